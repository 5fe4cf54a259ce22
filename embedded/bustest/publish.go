package bustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-63e9a637/jetbus"
)

// publishBehaviors are about what is stored, and what the publisher is told.
var publishBehaviors = []Behavior{
	{Name: "an id published twice is stored once in each topic, and the second is told", Cases: []int{30}, play: duplicates},
	{Name: "an id is stored again once the duplicate window has passed", Cases: []int{31}, Needs: NeedFakeTime, play: afterWindow},
	{Name: "an event above the broker's limit is refused before it is sent, and one at the limit is stored", Cases: []int{35}, Needs: NeedPower, play: payloadLimit},
	{Name: "all that a valid event holds arrives as it was", Cases: []int{36, 72}, play: verbatim},
	{Name: "what an event may not hold is refused at the call", Cases: []int{36}, play: invalidEvents},
	{Name: "a full topic refuses new events or drops its oldest, as declared", Cases: []int{37}, play: fullTopic},
	{Name: "of writers that expect the same sequence exactly one wins each round", Cases: []int{38}, play: optimistic},
	{Name: "every publisher's events are stored in its order", Cases: []int{40}, play: publishersOrder},
	{Name: "a publish whose context is over stores nothing", Cases: []int{34}, play: publishCanceled},
	{Name: "an event may expire, and the others stay", Cases: []int{36}, Needs: NeedAging, play: eventTTL},
	{Name: "an event for later enters its topic at its time", Cases: []int{36}, Needs: NeedFakeTime, play: deliverAt},
	{Name: "a dry run returns what a publish would, and stores nothing", Cases: []int{30, 36, 38}, play: dryRun},
}

func duplicates(r *run) {
	one, two := r.topic("one"), r.topic("two")
	e := jetbus.Event{ID: "same", Payload: []byte("1")}
	for _, topic := range []string{one, two} {
		e.Topic = topic
		first, err := r.A.Publish(r.ctx, e)
		r.must(err)
		for _, bus := range []jetbus.Bus{r.A, r.B} {
			again, err := bus.Publish(r.ctx, e)
			r.must(err)
			if first.Duplicate || !again.Duplicate || again.Event.Seq != first.Event.Seq {
				r.Errorf("topic %s: first %+v, again %+v", topic, first, again)
			}
		}
		if got := r.stored(topic); len(got) != 1 || got[0].ID != "same" {
			r.Errorf("topic %s holds %+v", topic, got)
		}
	}
}

func afterWindow(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{DuplicateWindow: time.Minute})
	for i, want := range []struct {
		wait      time.Duration
		duplicate bool
	}{{0, false}, {50 * time.Second, true}, {15 * time.Second, false}} {
		r.pause(want.wait)
		receipt, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, ID: "same"})
		r.must(err)
		if receipt.Duplicate != want.duplicate {
			r.Errorf("publish %d: %+v", i, receipt)
		}
	}
	if got := r.stored(topic); len(got) != 2 || got[0].Seq == got[1].Seq {
		r.Errorf("the topic holds %+v", got)
	}
}

func payloadLimit(r *run) {
	topic := r.topic("t")
	publish := func(size int) error {
		_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Payload: make([]byte, size)})
		return err
	}
	wantErr(r.T, "far above the limit", publish(2*r.MaxPayload), jetbus.ErrPayloadTooLarge)
	low, high := r.MaxPayload-4096, r.MaxPayload // stored; refused
	stored := 1
	r.must(publish(low))
	wantErr(r.T, "no room for headers", publish(high), jetbus.ErrPayloadTooLarge)
	for high-low > 1 {
		switch err := publish((low + high) / 2); {
		case err == nil:
			low = (low + high) / 2
			stored++
		case errors.Is(err, jetbus.ErrPayloadTooLarge):
			high = (low + high) / 2
		default:
			r.Fatal(err)
		}
	}
	events := r.stored(topic)
	largest := 0
	for _, e := range events {
		largest = max(largest, len(e.Payload))
	}
	if len(events) != stored || largest != low {
		r.Errorf("the topic holds %d events up to %d bytes; %d were acknowledged, up to %d bytes", len(events), largest, stored, low)
	}
}

// odd are events that a careless wire format would change.
var odd = []jetbus.Event{
	{Key: ""},
	{Key: "plain", SID: "https://example.com/source?a=b#c", Headers: map[string]string{"content-type": "text/plain; charset=utf-8"}, Payload: []byte("hello")},
	{Key: "a.b*c>d $x/\\%41 e", ID: "id: with, odd%2C chars", SID: "sid with spaces"},
	{Key: "\u00fcml\u00e4ut \U0001f600", ID: "\u00e9v\u00e9nement-1", Tags: []string{"a,b", "100%", "\u2603", " spaced "}, CausedBy: []string{"x,y", "z"}},
	{Key: "_", Headers: map[string]string{"x-empty": "", "x-colon": "a: b: c", "x-quote": `"a" = 'b'`, "x-uni": "\u65e5\u672c\u8a9e", "x-a_b.c-d": "1"}},
	{Key: "names", Headers: map[string]string{"User-Agent": "a/1", "correlation_id": "7", "X-Upper": "1", "!#$%&'*+-.^_`|~": "t", strings.Repeat("N", jetbus.MaxHeaderNameBytes): "long"}},
	{Key: "time", Time: time.Date(1999, 12, 31, 23, 59, 59, 999e6, time.UTC), Payload: []byte{0, 1, 2, 0xff, '\r', '\n', 0}},
	{Key: "trace", Headers: map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b,c=d"}},
	{Key: strings.Repeat("k", jetbus.MaxKeyBytes), ID: strings.Repeat("i", jetbus.MaxIDBytes)},
	{Key: "P0"},
	{Key: "S"},
	{Key: "null", Payload: []byte("null")},
}

func verbatim(r *run) {
	for name, c := range map[string]jetbus.TopicConfig{"plain": {}, "keyed": {KeyInSubject: true}} {
		topic := r.declare(name, c)
		got := r.newRecord()
		r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{})
		for i, e := range odd {
			e.Topic = topic
			receipt, err := r.A.Publish(r.ctx, e)
			if err != nil {
				r.Fatalf("event %d: %v", i, err)
			}
			want := e
			want.Seq, want.Partition = receipt.Event.Seq, jetbus.NoPartition
			for _, field := range []struct{ set, chosen *string }{{&want.ID, &receipt.Event.ID}, {&want.SID, &receipt.Event.SID}} {
				if *field.set == "" {
					*field.set = *field.chosen
				}
			}
			if want.Time.IsZero() {
				want.Time = receipt.Event.Time
			}
			delivered := got.wait(r.T, i+1)[i].Event
			for what, is := range map[string]jetbus.Event{"receipt": receipt.Event, "delivery": delivered} {
				if diff := cmp.Diff(want, is, cmpopts.EquateEmpty(), notStored); diff != "" || is.ID == "" || is.SID == "" || is.Time.IsZero() {
					r.Errorf("%s, event %d, %s:\n%s", name, i, what, diff)
				}
			}
		}
	}
}

func invalidEvents(r *run) {
	topic := r.topic("t")
	header := func(name, value string) jetbus.Event {
		return jetbus.Event{Headers: map[string]string{name: value}}
	}
	for what, c := range map[string]struct {
		event jetbus.Event
		want  error
	}{
		"header with a line break":       {header("x-a", "a\r\nNats-Msg-Id: b"), jetbus.ErrInvalidHeader},
		"header with a space at the end": {header("x-a", "a "), jetbus.ErrInvalidHeader},
		"header name with a colon":       {header("x-a:b", "c"), jetbus.ErrInvalidHeader},
		"header name of 101 bytes":       {header(strings.Repeat("n", jetbus.MaxHeaderNameBytes+1), "c"), jetbus.ErrInvalidHeader},
		"header names of two cases":      {jetbus.Event{Headers: map[string]string{"Tenant": "a", "tenant": "a"}}, jetbus.ErrInvalidHeader},
		"header of the server":           {header("Nats-Msg-Id", "c"), jetbus.ErrInvalidHeader},
		"header of the server, small":    {header("nats-rollup", "all"), jetbus.ErrInvalidHeader},
		"header of the bus":              {header("x-jetbus-a", "c"), jetbus.ErrInvalidHeader},
		"header of a retry":              {header("Jetbus-Retry", "{}"), jetbus.ErrInvalidHeader},
		"header of CloudEvents":          {header("ce-id", "c"), jetbus.ErrInvalidHeader},
		"header of CloudEvents, large":   {header("CE-ID", "c"), jetbus.ErrInvalidHeader},
		"content type in large letters":  {header("Content-Type", "text/plain"), jetbus.ErrInvalidHeader},
		"status of a pull":               {header("Status", "503"), jetbus.ErrInvalidHeader},
		"header that is no UTF-8":        {header("x-a", "\xff"), jetbus.ErrInvalidHeader},
		"key with a control character":   {jetbus.Event{Key: "a\x00"}, jetbus.ErrInvalidEvent},
		"key that is too long":           {jetbus.Event{Key: strings.Repeat("k", jetbus.MaxKeyBytes+1)}, jetbus.ErrInvalidEvent},
		"id that is too long":            {jetbus.Event{ID: strings.Repeat("i", jetbus.MaxIDBytes+1)}, jetbus.ErrInvalidEvent},
		"id with a line break":           {jetbus.Event{ID: "a\nb"}, jetbus.ErrInvalidEvent},
		"empty tag":                      {jetbus.Event{Tags: []string{""}}, jetbus.ErrInvalidEvent},
	} {
		c.event.Topic = topic
		_, err := r.A.Publish(r.ctx, c.event)
		wantErr(r.T, what, err, c.want)
	}
	if got := r.stored(topic); len(got) != 0 {
		r.Errorf("the topic holds %+v", got)
	}
}

func fullTopic(r *run) {
	refusing := r.declare("refusing", jetbus.TopicConfig{MaxEvents: 3, Discard: jetbus.DiscardNew})
	r.publish(refusing, keys(3)...)
	_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: refusing, Key: "3"})
	wantErr(r.T, "publish to a full topic", err, jetbus.ErrTopicFull)
	if pe, ok := errors.AsType[*jetbus.PublishError](err); !ok || !r.refused(pe.Stored) {
		r.Errorf("error %#v does not say that nothing was stored", err)
	}
	sameKeys(r.T, "the refusing topic", r.stored(refusing), keys(3))

	dropping := r.declare("dropping", jetbus.TopicConfig{MaxEvents: 3})
	r.publish(dropping, keys(5)...)
	sameKeys(r.T, "the dropping topic", r.stored(dropping), keys(5)[2:])
}

func optimistic(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{KeyInSubject: true})
	r.publish(topic, "other")
	const writers, rounds = 20, 5
	var last uint64
	for round := range rounds {
		var wg sync.WaitGroup
		receipts, errs := make([]jetbus.Receipt, writers), make([]error, writers)
		for i := range writers {
			bus := []jetbus.Bus{r.A, r.B}[i%2]
			wg.Go(func() {
				e := jetbus.Event{Topic: topic, Key: "k", Payload: fmt.Append(nil, i)}
				receipts[i], errs[i] = bus.Publish(r.ctx, e, jetbus.PublishOptions{ExpectLastSeq: &last})
			})
		}
		wg.Wait()
		won := 0
		for i, err := range errs {
			if err == nil {
				won++
				last = receipts[i].Event.Seq
				continue
			}
			wantErr(r.T, "a writer that lost", err, jetbus.ErrWrongSequence)
		}
		if won != 1 {
			r.Fatalf("round %d: %d writers won", round, won)
		}
	}
	if got := r.stored(topic); len(got) != rounds+1 || got[rounds].Seq != last {
		r.Errorf("the topic holds %d events after %d rounds", len(got), rounds)
	}
	plain := r.topic("plain")
	_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: plain}, jetbus.PublishOptions{ExpectLastSeq: new(uint64)})
	wantErr(r.T, "ExpectLastSeq without KeyInSubject", err, jetbus.ErrNeedsKeySubject)
}

func publishersOrder(r *run) {
	topic := r.topic("t")
	const publishers, each = 8, 50
	var wg sync.WaitGroup
	for p := range publishers {
		bus := []jetbus.Bus{r.A, r.B}[p%2]
		wg.Go(func() {
			for i := range each {
				_, err := bus.Publish(r.ctx, jetbus.Event{Topic: topic, Key: fmt.Sprint(p), Payload: fmt.Append(nil, i)})
				r.wantNil(err)
			}
		})
	}
	wg.Wait()
	next := map[string]int{}
	for _, e := range r.stored(topic) {
		if string(e.Payload) != fmt.Sprint(next[e.Key]) {
			r.Fatalf("publisher %s: event %s where %d should be", e.Key, e.Payload, next[e.Key])
		}
		next[e.Key]++
	}
	for p := range publishers {
		if n := next[fmt.Sprint(p)]; n != each {
			r.Errorf("publisher %d: %d events of %d", p, n, each)
		}
	}
}

func publishCanceled(r *run) {
	topic := r.topic("t")
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	_, err := r.A.Publish(ctx, jetbus.Event{Topic: topic})
	wantErr(r.T, "publish with a canceled context", err, context.Canceled)
	past, cancel := context.WithDeadline(r.ctx, time.Now().Add(-time.Second))
	defer cancel()
	_, err = r.A.Publish(past, jetbus.Event{Topic: topic})
	wantErr(r.T, "publish after the deadline", err, context.DeadlineExceeded)
	if got := r.stored(topic); len(got) != 0 {
		r.Errorf("the topic holds %+v", got)
	}
}

func eventTTL(r *run) {
	topic := r.topic("t")
	r.publish(topic, "0")
	_, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: "short"}, jetbus.PublishOptions{TTL: time.Second})
	r.must(err)
	r.publish(topic, "1")
	sameKeys(r.T, "before", r.stored(topic), []string{"0", "short", "1"})
	r.pause(3 * time.Second)
	sameKeys(r.T, "after", r.stored(topic), []string{"0", "1"})
}

func deliverAt(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Delays: true})
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.handle, jetbus.SubscribeOptions{})
	at := time.Now().Add(time.Minute)
	receipt, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: "later", Payload: []byte("p")}, jetbus.PublishOptions{DeliverAt: at})
	r.must(err)
	if !receipt.Scheduled || receipt.Event.Seq != 0 {
		r.Errorf("receipt %+v", receipt)
	}
	r.publish(topic, "now")
	all := got.within(r.T, 2, 2*time.Minute)
	if !slices.Equal(got.keys(), []string{"now", "later"}) {
		r.Errorf("order %v", got.keys())
	}
	later := all[1]
	if d := later.at.Sub(at); d < -time.Millisecond || d > 2*time.Second || later.ID != receipt.Event.ID || string(later.Payload) != "p" {
		r.Errorf("delivered %v after its time: %+v", d, later.Event)
	}
	r.settled(topic, "g", later.Seq)
}

// dryRun compares the answers to dry runs with the answers to the publishes after them.
func dryRun(r *run) {
	plain, keyed := r.topic("plain"), r.declare("keyed", jetbus.TopicConfig{KeyInSubject: true, Delays: true})
	later := time.Now().Add(time.Hour)
	seq := func(n uint64) *uint64 { return &n }
	for i, c := range []struct {
		e         jetbus.Event
		o         jetbus.PublishOptions
		want      error
		duplicate bool
	}{
		{e: jetbus.Event{Topic: plain, ID: "a", Payload: []byte("1")}},
		{e: jetbus.Event{Topic: plain, ID: "a", Payload: []byte("2")}, duplicate: true},
		{e: jetbus.Event{Topic: plain}},
		{e: jetbus.Event{Topic: plain}, o: jetbus.PublishOptions{ExpectLastSeq: seq(0)}, want: jetbus.ErrNeedsKeySubject},
		{e: jetbus.Event{Topic: plain}, o: jetbus.PublishOptions{DeliverAt: later}, want: jetbus.ErrUnsupported},
		{e: jetbus.Event{Topic: plain}, o: jetbus.PublishOptions{TTL: 1}, want: jetbus.ErrInvalidOption},
		{e: jetbus.Event{Topic: plain, Key: "a\x00"}, want: jetbus.ErrInvalidEvent},
		{e: jetbus.Event{Topic: plain, Headers: map[string]string{"x-a": "a "}}, want: jetbus.ErrInvalidHeader},
		{e: jetbus.Event{Topic: plain, Payload: make([]byte, r.MaxPayload)}, want: jetbus.ErrPayloadTooLarge},
		{e: jetbus.Event{Topic: r.prefix + ".none"}, want: jetbus.ErrNoTopic},
		{e: jetbus.Event{Topic: keyed, Key: "k", ID: "b"}, o: jetbus.PublishOptions{ExpectLastSeq: seq(7)}, want: jetbus.ErrWrongSequence},
		{e: jetbus.Event{Topic: keyed, Key: "k", ID: "b"}, o: jetbus.PublishOptions{ExpectLastSeq: seq(0)}},
		{e: jetbus.Event{Topic: keyed, Key: "k", ID: "b"}, o: jetbus.PublishOptions{ExpectLastSeq: seq(0)}, duplicate: true},
		{e: jetbus.Event{Topic: keyed, Key: "k"}, o: jetbus.PublishOptions{ExpectLastSeq: seq(0)}, want: jetbus.ErrWrongSequence},
		{e: jetbus.Event{Topic: keyed, Key: "k"}, o: jetbus.PublishOptions{ExpectLastSeq: seq(1), TTL: time.Hour}},
		{e: jetbus.Event{Topic: keyed, Key: "other"}, o: jetbus.PublishOptions{ExpectLastSeq: seq(0)}},
		{e: jetbus.Event{Topic: keyed, ID: "later"}, o: jetbus.PublishOptions{DeliverAt: later}},
		{e: jetbus.Event{Topic: keyed, ID: "later"}, o: jetbus.PublishOptions{DeliverAt: later}, duplicate: true},
	} {
		stored := len(r.stored(plain)) + len(r.stored(keyed))
		trial := c.o
		trial.DryRun = true
		for range 2 { // a dry run does not make the next one a duplicate
			r.sameAnswer(i, c.e, trial, c.want, c.duplicate)
		}
		if now := len(r.stored(plain)) + len(r.stored(keyed)); now != stored {
			r.Fatalf("case %d: the topics hold %d events after a dry run, %d before it", i, now, stored)
		}
		r.sameAnswer(i, c.e, c.o, c.want, c.duplicate)
	}
}

// sameAnswer publishes an event and checks the receipt and the error.
func (r *run) sameAnswer(i int, e jetbus.Event, o jetbus.PublishOptions, want error, duplicate bool) {
	r.Helper()
	got, err := r.A.Publish(r.ctx, e, o)
	if !errors.Is(err, want) {
		r.Errorf("case %d, dry run %v: error %v, want %v", i, o.DryRun, err, want)
		return
	}
	if p, ok := errors.AsType[*jetbus.PublishError](err); ok && p.Stored != jetbus.StoredNo {
		r.Errorf("case %d, dry run %v: error %v does not say that nothing was stored", i, o.DryRun, err)
	}
	scheduled := !o.DeliverAt.IsZero()
	hasSeq := err == nil && !scheduled && (duplicate || !o.DryRun)
	if err == nil && (got.Duplicate != duplicate || got.Scheduled != scheduled || (got.Event.Seq > 0) != hasSeq || got.Event.ID == "" || got.Event.Time.IsZero()) {
		r.Errorf("case %d, dry run %v: %+v", i, o.DryRun, got)
	}
}
