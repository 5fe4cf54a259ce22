package bustest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// deadBehaviors are about events that a group cannot process.
var deadBehaviors = []Behavior{
	{Name: "an event that always fails is run MaxAttempts times and becomes one dead letter that tells all about it", Cases: []int{20}, play: poisoned},
	{Name: "two groups that cannot process an event have a dead letter of it each", Cases: []int{28}, play: twoDead},
	{Name: "a message that is no event is a dead letter at once", Cases: []int{10}, Needs: NeedOpen, play: undecodable},
	{Name: "a rejected event is a dead letter at once, with the handler's reason", Cases: []int{10, 20}, play: rejected},
	{Name: "a dropped event is settled and no dead letter", Cases: []int{4}, play: dropped},
	{Name: "while there is no room for dead letters their events are kept, and not run again", Cases: []int{21}, Needs: NeedOpen | NeedAging, play: noRoom},
	{Name: "a crash between the dead letter and the end of its event leaves one dead letter", Cases: []int{22}, Needs: NeedOpen, play: crashBetween},
	{Name: "a group that moves back and fails again has one dead letter", Cases: []int{22}, play: deadAgain},
	{Name: "an event too large for a dead letter has one without its payload, and is replayed whole", Cases: []int{20, 27, 35}, Needs: NeedPower, play: largeDead},
	{Name: "an event with as many headers as there may be keeps them", Cases: []int{20, 27}, play: manyHeaders},
	{Name: "a dead letter that cannot be processed stays where it is", Cases: []int{27}, play: deadOfDead},
	{Name: "events above a MaxAttempts that was lowered become dead letters without another run", Cases: []int{29}, play: lowered},
	{Name: "with MaxAttempts -1 an event may fail a hundred times", Cases: []int{24}, play: endless},
	{Name: "received events become dead letters too", Cases: []int{20}, Needs: NeedReceive, play: receivedDead},
	{Name: "a dead letter has the stack of the panic or error, and its replay does not", Cases: []int{20}, play: stacks},
	{Name: "a received event's dead letter has the stack", Cases: []int{20}, Needs: NeedReceive, play: receivedStacks},
	{Name: "names as long as they may be have dead letters and retries of their own", Cases: []int{20, 27, 68}, play: longNames},
	{Name: "single events are removed, and no others", Cases: []int{27}, Needs: NeedRetry, play: removed},
}

// quick is a backoff for tests that want many attempts.
var quick = jetbus.Backoff{Max: 10 * time.Millisecond}

// dead waits until a topic has n dead letters at least, and returns all.
func (r *run) dead(topic string, n int) []jetbus.DeadLetter {
	r.Helper()
	var all []jetbus.DeadLetter
	r.eventually(fmt.Sprint(n, " dead letters"), func() error {
		all = nil
		for d, err := range jetbus.DeadLetters(r.ctx, r.Admin, jetbus.DeadLetterQuery{Topic: topic}) {
			if err != nil && !errors.Is(err, jetbus.ErrNoDeadLetters) {
				return err
			}
			if err == nil {
				all = append(all, d)
			}
		}
		if len(all) < n {
			return fmt.Errorf("there are %d", len(all))
		}
		return nil
	})
	return all
}

// deadly fails for the keys that begin with "bad", and for no other.
func deadly(_ context.Context, d *jetbus.Delivery) error {
	if strings.HasPrefix(d.Key, "bad") {
		return fmt.Errorf("attempt %d: %w", d.Attempt, errHandler)
	}
	return nil
}

// calls counts how often each key was handled.
func (c *record) calls() map[string]int {
	out := map[string]int{}
	for _, key := range c.keys() {
		out[key]++
	}
	return out
}

// called fails unless each key was handled so often.
func (r *run) called(got *record, want map[string]int) {
	r.Helper()
	if calls := got.calls(); !maps.Equal(calls, want) {
		r.Errorf("handlers were called %v, want %v", calls, want)
	}
}

func poisoned(r *run) {
	topic := r.topic("t")
	got, other := r.newRecord(), r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.then(deadly), jetbus.SubscribeOptions{MaxAttempts: 3, Backoff: quick})
	r.subscribe(r.B, topic, "other", other.handle, jetbus.SubscribeOptions{})
	began := time.Now().Add(-time.Millisecond)
	r.publish(topic, "before")
	bad := jetbus.Event{
		Topic: topic, Key: "bad", Payload: []byte("\x00\xff{"), Tags: []string{"t,1", "\u00e9"}, CausedBy: []string{"cause"}, SID: "boot 1",
		Headers: map[string]string{"content-type": "application/x-bad", "x-mine": "value", "x-dlq-group": "not this", "Their-Id": "as it is"},
	}
	receipt, err := r.A.Publish(r.ctx, bad)
	r.must(err)
	bad = receipt.Event
	last := r.publish(topic, "after")[0]
	r.dead(topic, 1)
	r.settled(topic, "g", last.Seq)
	r.settled(topic, "other", last.Seq)
	r.pause(5 * time.Second)
	r.called(got, map[string]int{"before": 1, "bad": 3, "after": 1})
	r.called(other, map[string]int{"before": 1, "bad": 1, "after": 1})
	all := r.dead(topic, 1)
	if len(all) != 1 {
		r.Fatalf("dead letters %+v", all)
	}
	info, err := r.Admin.TopicInfo(r.ctx, topic)
	r.must(err)
	d := all[0]
	if diff := cmp.Diff(bad, d.Event, cmpopts.EquateEmpty()); diff != "" {
		r.Error(diff)
	}
	if d.Group != "g" || d.Stream != info.Stream || !d.StreamCreated.Equal(info.Created) || d.Reason != jetbus.DeadMaxAttempts || d.Attempts != 3 ||
		d.Error != "attempt 3: "+errHandler.Error() || d.Replays != 0 || d.Truncated || d.Seq != 1 {
		r.Errorf("dead letter %+v", d)
	}
	if d.FirstFailed.Before(began) || !d.FirstFailed.Before(d.LastFailed) || d.Time.Before(d.LastFailed.Truncate(time.Millisecond)) {
		r.Errorf("failed from %v to %v, given up at %v", d.FirstFailed, d.LastFailed, d.Time)
	}
	if st := s.Stats(); st.DeadLetters != 1 || st.Nacked != 2 || st.Acked != 2 || st.Held != 0 {
		r.Errorf("stats %+v", st)
	}
}

func twoDead(r *run) {
	topic := r.topic("t")
	r.subscribe(r.A, topic, "g", deadly, jetbus.SubscribeOptions{MaxAttempts: 2, Backoff: quick})
	r.subscribe(r.B, topic, "h", deadly, jetbus.SubscribeOptions{MaxAttempts: 1})
	e := r.publish(topic, "bad")[0]
	attempts := map[string]int{}
	for _, d := range r.dead(topic, 2) {
		attempts[d.Group] = d.Attempts
		if d.Event.ID != e.ID {
			r.Errorf("dead letter %+v", d)
		}
	}
	if !maps.Equal(attempts, map[string]int{"g": 2, "h": 1}) {
		r.Errorf("attempts %v", attempts)
	}
	r.settled(topic, "g", e.Seq)
	r.settled(topic, "h", e.Seq)
}

// raw stores a message in the stream of a topic past the bus, and returns its sequence.
func (r *run) raw(topic string, h nats.Header, data string) uint64 {
	r.Helper()
	js := r.jetStream()
	info, err := r.Admin.TopicInfo(r.ctx, topic)
	r.must(err)
	s, err := js.Stream(r.ctx, info.Stream)
	r.must(err)
	subject := strings.NewReplacer("*", "_", ">", "_").Replace(s.CachedInfo().Config.Subjects[0])
	ack, err := js.PublishMsg(r.ctx, &nats.Msg{Subject: subject, Header: h, Data: []byte(data)})
	r.must(err)
	return ack.Sequence
}

// jetStream is the broker past the bus.
func (r *run) jetStream() jetstream.JetStream {
	r.Helper()
	nc, err := r.Broker.Connect()
	r.must(err)
	r.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	r.must(err)
	return js
}

func undecodable(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.handle, jetbus.SubscribeOptions{})
	const document = `{"specversion":"1.0","id":"i","type":` // and no more
	seq := r.raw(topic, nats.Header{"content-type": {"application/cloudevents+json"}}, document)
	last := r.publish(topic, "good")[0]
	r.settled(topic, "g", last.Seq)
	r.pause(time.Second)
	got.exactly(r.T, "good")
	all := r.dead(topic, 1)
	d := all[0]
	if len(all) != 1 || d.Reason != jetbus.DeadUndecodable || d.Error == "" || d.Attempts != 0 || d.Event.Seq != seq || d.Event.Topic != topic {
		r.Errorf("dead letters %+v", all)
	}
	if string(d.Event.Payload) != document || d.Event.Headers["content-type"] != "application/cloudevents+json" {
		r.Errorf("dead letter of %q, headers %v", d.Event.Payload, d.Event.Headers)
	}
}

func rejected(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.then(func(ctx context.Context, d *jetbus.Delivery) error {
		switch d.Key {
		case "reject":
			return fmt.Errorf("wrapped: %w", jetbus.Reject(errHandler))
		case "schema":
			return jetbus.RejectAs(jetbus.DeadSchema, errHandler)
		case "by hand":
			r.wantNil(d.Reject(ctx, "by hand"))
			wantErr(r.T, "ack after reject", d.Ack(ctx), jetbus.ErrAlreadySettled)
		}
		return nil
	}), jetbus.SubscribeOptions{})
	last := r.publish(topic, "reject", "schema", "by hand", "good")[3]
	r.settled(topic, "g", last.Seq)
	all := r.dead(topic, 3)
	got.exactly(r.T, "reject", "schema", "by hand", "good")
	if len(all) != 3 || s.Stats().DeadLetters != 3 || s.Stats().Nacked != 0 {
		r.Fatalf("dead letters %+v, stats %+v", all, s.Stats())
	}
	want := map[string]struct {
		reason jetbus.DeadReason
		text   string
	}{
		"reject":  {jetbus.DeadRejected, errHandler.Error()},
		"schema":  {jetbus.DeadSchema, errHandler.Error()},
		"by hand": {jetbus.DeadRejected, "by hand"},
	}
	for _, d := range all {
		if w := want[d.Event.Key]; d.Reason != w.reason || d.Error != w.text || d.Attempts != 1 {
			r.Errorf("event %s: dead letter %+v", d.Event.Key, d)
		}
	}
}

func dropped(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	s := r.subscribe(r.A, topic, "g", got.then(func(context.Context, *jetbus.Delivery) error {
		return jetbus.Drop(errHandler)
	}), jetbus.SubscribeOptions{})
	e := r.publish(topic, "k")[0]
	r.settled(topic, "g", e.Seq)
	r.pause(time.Second)
	if r.inbox == nil { // else it may come again
		got.exactly(r.T, "k")
	}
	if all := r.dead(topic, 0); len(all) != 0 || s.Stats().Acked != 1 && r.inbox == nil {
		r.Errorf("dead letters %+v, stats %+v", all, s.Stats())
	}
}

// fill makes the stream of dead letters full, and returns what makes room. In a
// bubble the server takes a change of a stream in files for a reason to look for events that are
// too old by the real clock, which all are.
func (r *run) fill() (room func()) {
	r.Helper()
	js := r.jetStream()
	names := js.ListStreams(r.ctx)
	var config jetstream.StreamConfig
	for info := range names.Info() {
		for _, subject := range info.Config.Subjects {
			if strings.HasSuffix(subject, ".dlq.>") {
				config = info.Config
			}
		}
	}
	r.must(names.Err())
	if config.Name == "" {
		r.Fatal("there is no stream of dead letters")
	}
	full := config
	full.MaxBytes = 1
	_, err := js.UpdateStream(r.ctx, full)
	r.must(err)
	return func() {
		_, err := js.UpdateStream(r.ctx, config)
		r.must(err)
	}
}

func noRoom(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.then(func(ctx context.Context, d *jetbus.Delivery) error {
		if d.Key == "rejected" {
			return jetbus.Reject(errHandler)
		}
		return deadly(ctx, d)
	}), jetbus.SubscribeOptions{MaxAttempts: 2, Backoff: quick})
	room := r.fill()
	last := r.publish(topic, "bad", "rejected", "good")[2]
	got.wait(r.T, 4)
	r.pause(500 * time.Millisecond) // fifty times the longest wait of its backoff
	want := map[string]int{"bad": 2, "rejected": 1, "good": 1}
	r.called(got, want)
	if g := r.group(topic, "g"); g.Held != 2 || g.AckedSeq >= last.Seq-2 {
		r.Errorf("an event without a dead letter was settled: %+v", g)
	}
	room()
	all := r.dead(topic, 2)
	r.settled(topic, "g", last.Seq)
	r.called(got, want)
	for _, d := range all {
		if reason := map[string]jetbus.DeadReason{"bad": jetbus.DeadMaxAttempts, "rejected": jetbus.DeadRejected}[d.Event.Key]; d.Reason != reason || len(all) != 2 {
			r.Errorf("dead letter %+v of %d", d, len(all))
		}
	}
}

func crashBetween(r *run) {
	topic := r.topic("t")
	o := jetbus.SubscribeOptions{AckTimeout: time.Second, MaxAttempts: 1}
	bus, die := r.dies()
	first := r.newGate()
	_, err := bus.Subscribe(r.ctx, topic, "g", first.handle, o)
	r.must(err)
	e := r.publish(topic, "k")[0]
	receive(r.T, "the first delivery", first.entered)
	// What the process does next is to store the dead letter. It comes to no more.
	info, err := r.Admin.TopicInfo(r.ctx, topic)
	r.must(err)
	letter := jetbus.DeadLetter{Event: e, Group: "g", Stream: info.Stream, StreamCreated: info.Created, Reason: jetbus.DeadMaxAttempts, Attempts: 1, Error: "the first"}
	_, err = r.Admin.Publish(r.ctx, letter.Record(), jetbus.PublishOptions{ExpectLastSeq: new(uint64)})
	r.must(err)
	die()
	got := r.newRecord()
	r.subscribe(r.B, topic, "g", got.then(failing(10)), o)
	got.wait(r.T, 1)
	r.settled(topic, "g", e.Seq)
	if all := r.dead(topic, 1); len(all) != 1 || all[0].Event.ID != e.ID || all[0].Error != "the first" {
		r.Errorf("dead letters %+v", all)
	}
}

func deadAgain(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.then(deadly), jetbus.SubscribeOptions{MaxAttempts: 2, Backoff: quick})
	e := r.publish(topic, "bad")[0]
	for n := range 3 {
		all := got.wait(r.T, 2*(n+1))
		r.settled(topic, "g", e.Seq)
		if first := all[2*n]; first.Attempt != 1 {
			r.Errorf("the first attempt after a move is number %d", first.Attempt)
		}
		r.must(r.move(r.A, topic, jetbus.Cursor{}, r.moving()))
	}
	r.settled(topic, "g", e.Seq)
	if all := r.dead(topic, 1); len(all) != 1 {
		r.Errorf("dead letters %+v", all)
	}
}

func largeDead(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.then(func(_ context.Context, d *jetbus.Delivery) error {
		if d.ReplayOf == 0 {
			return jetbus.Reject(errHandler)
		}
		return nil
	}), jetbus.SubscribeOptions{})
	payload := bytes.Repeat([]byte{'x'}, r.MaxPayload-900) // there is room for its own headers, but not for those of a dead letter
	receipt, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: "large", Payload: payload, Headers: map[string]string{"x-mine": "value"}})
	r.must(err)
	d := r.dead(topic, 1)[0]
	r.settled(topic, "g", receipt.Event.Seq)
	if !d.Truncated || len(d.Event.Payload) != 0 || d.Event.ID != receipt.Event.ID || d.Event.Key != "large" || d.Event.Headers["x-mine"] != "value" {
		r.Errorf("dead letter truncated %v, %d bytes, %s", d.Truncated, len(d.Event.Payload), d.Event.ID)
	}
	stats, err := jetbus.Replay(r.ctx, r.Admin, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: topic}})
	r.must(err)
	again := got.first(r, "the replay comes", func(d *jetbus.Delivery) bool { return d.ReplayOf > 0 })
	if r.inbox == nil { // else the original may come again
		got.exactly(r.T, "large", "large")
	}
	if stats.Replayed != 1 || again.ReplayOf != d.Seq || !bytes.Equal(again.Payload, payload) || again.ID != receipt.Event.ID {
		r.Errorf("stats %+v; replay of %d has %d bytes", stats, again.ReplayOf, len(again.Payload))
	}
}

func manyHeaders(r *run) {
	topic := r.topic("t")
	headers := map[string]string{}
	for i := range 60 {
		headers[fmt.Sprintf("x-h%02d", i)] = strings.Repeat("v", i)
	}
	delete(headers, "x-h00") // an empty value is none
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.then(func(_ context.Context, d *jetbus.Delivery) error {
		switch {
		case d.ReplayOf > 0:
			return nil
		case d.Attempt < 2:
			return jetbus.RetryIn(2*time.Minute, errHandler) // by way of the retries, where that is possible
		}
		return jetbus.Reject(errHandler)
	}), jetbus.SubscribeOptions{})
	receipt, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Headers: headers})
	r.must(err)
	got.wait(r.T, 1)
	if r.fake {
		r.pause(2 * time.Minute)
		d := r.dead(topic, 1)[0]
		if !maps.Equal(d.Event.Headers, headers) && !d.Truncated {
			r.Errorf("dead letter has the headers %v", d.Event.Headers)
		}
		_, err = jetbus.Replay(r.ctx, r.Admin, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: topic}})
		r.must(err)
		got.wait(r.T, 3)
	}
	for i, d := range got.list() {
		if !maps.Equal(d.Headers, headers) || d.ID != receipt.Event.ID {
			r.Errorf("delivery %d has the headers %v", i+1, d.Headers)
		}
	}
}

func deadOfDead(r *run) {
	topic := r.topic("t")
	r.subscribe(r.A, topic, "g", deadly, jetbus.SubscribeOptions{MaxAttempts: 1})
	r.publish(topic, "bad1")
	r.dead(topic, 1)
	got := r.newRecord()
	letters := jetbus.DeadLetterTopic(topic)
	s := r.subscribe(r.B, letters, "watch", got.then(failing(100)), jetbus.SubscribeOptions{From: jetbus.Earliest(), MaxAttempts: 2, Backoff: quick})
	r.publish(topic, "bad2")
	got.wait(r.T, 4)
	r.settled(letters, "watch", 2)
	if all := r.dead(topic, 2); len(all) != 2 || s.Stats().DeadLetters != 2 {
		r.Errorf("dead letters %+v, stats %+v", all, s.Stats())
	}
	if n := len(r.stored(letters)); n != 2 {
		r.Errorf("%d events in %s", n, letters)
	}
}

func lowered(r *run) {
	topic := r.topic("t")
	got, late := r.newRecord(), r.newRecord()
	o := jetbus.SubscribeOptions{MaxAttempts: -1, Backoff: jetbus.Backoff{Min: time.Second, Max: time.Second, NoJitter: true}}
	s := r.subscribe(r.A, topic, "g", got.then(deadly), o)
	e := r.publish(topic, "bad", "good")[1]
	got.wait(r.T, 5)
	r.stop(s)
	o.MaxAttempts = 3
	r.subscribe(r.B, topic, "g", late.then(deadly), o)
	d := r.dead(topic, 1)[0]
	r.settled(topic, "g", e.Seq)
	late.exactly(r.T)
	if d.Reason != jetbus.DeadMaxAttempts || d.Attempts != 4 || d.Error != "attempt 4: "+errHandler.Error() {
		r.Errorf("dead letter %+v", d)
	}
}

func endless(r *run) {
	topic := r.topic("t")
	got := r.newRecord()
	r.subscribe(r.A, topic, "g", got.then(failing(100)), jetbus.SubscribeOptions{MaxAttempts: -1, Backoff: jetbus.Backoff{Max: time.Millisecond}})
	e := r.publish(topic, "k")[0]
	all := got.wait(r.T, 101)
	r.settled(topic, "g", e.Seq)
	if last := all[len(all)-1]; len(all) != 101 || last.Attempt != 101 || last.MaxAttempts != -1 {
		r.Errorf("%d calls, the last is attempt %d of %d", len(all), last.Attempt, last.MaxAttempts)
	}
	if all := r.dead(topic, 0); len(all) != 0 {
		r.Errorf("dead letters %+v", all)
	}
}

func receivedDead(r *run) {
	topic := r.topic("t")
	ackTimeout := r.lease(time.Second)
	o := jetbus.ReceiveOptions{From: jetbus.Earliest(), MaxAttempts: 2, AckTimeout: ackTimeout}
	events := r.publish(topic, "nacked", "rejected", "overrun")
	for n := 1; n <= 2; n++ {
		ds, err := r.A.(jetbus.Receiver).Receive(r.ctx, topic, "g", o)
		r.must(err)
		for _, d := range ds {
			if d.Attempt != n {
				r.Errorf("event %s is attempt %d, want %d", d.Key, d.Attempt, n)
			}
			switch d.Key {
			case "nacked":
				r.must(d.Nack(r.ctx, jetbus.NackOptions{AtOnce: true, Reason: "not this"}))
			case "rejected":
				r.must(d.Reject(r.ctx, "never"))
			}
		}
		r.pause(2 * ackTimeout)
	}
	rest, err := r.A.(jetbus.Receiver).Receive(r.ctx, topic, "g", jetbus.ReceiveOptions{MaxAttempts: 2, AckTimeout: ackTimeout, Wait: -1})
	r.must(err)
	if len(rest) != 0 {
		r.Errorf("received %d events beyond MaxAttempts", len(rest))
	}
	r.settled(topic, "g", events[2].Seq)
	want := map[string]string{"nacked": "max_attempts 2 not this", "rejected": "rejected 1 never", "overrun": "max_attempts 2 " + jetbus.ErrLeaseExpired.Error()}
	found := map[string]string{}
	for _, d := range r.dead(topic, 3) {
		found[d.Event.Key] = fmt.Sprint(d.Reason, " ", d.Attempts, " ", d.Error)
	}
	if !maps.Equal(found, want) {
		r.Errorf("dead letters %v, want %v", found, want)
	}
}
