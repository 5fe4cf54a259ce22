package bustest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// batchBehaviors are about events that are published together.
var batchBehaviors = []Behavior{
	{Name: "a batch is stored in its order, with a receipt for each event", Cases: []int{40}, Needs: NeedBatch, play: batchOrder},
	{Name: "an atomic batch is stored whole or not at all", Cases: []int{39}, Needs: NeedBatch, play: atomicBatch},
	{Name: "an atomic batch over its limits is refused before it is sent", Cases: []int{39}, Needs: NeedBatch, play: atomicLimits},
	{Name: "the events of a batch have options of their own", Cases: []int{36, 39, 40}, Needs: NeedBatch, play: batchEach},
	{Name: "an event of a batch may expire, and the others stay", Cases: []int{36}, Needs: NeedBatch | NeedAging, play: batchTTL},
	{Name: "a batch with an invalid event stores nothing", Cases: []int{36, 39}, Needs: NeedBatch | NeedPower, play: invalidBatch},
	{Name: "a batch that fills its topic stores a prefix and names the rest", Cases: []int{37, 40}, Needs: NeedBatch, play: fullBatch},
	{Name: "a chained batch is stored behind the event it names, once, and nobody else's is", Cases: []int{40}, Needs: NeedBatch, play: chainedBatch},
}

// batch makes an event for each key.
func batch(topic string, keys ...string) []jetbus.Event {
	out := make([]jetbus.Event, len(keys))
	for i, key := range keys {
		out[i] = jetbus.Event{Topic: topic, Key: key}
	}
	return out
}

// sameBatch fails unless the events that a batch has stored have these keys, in this order; in
// any order where leaders get lost: then a batch keeps that of each key, and these have one each.
func (r *run) sameBatch(events []jetbus.Event, want []string) {
	r.Helper()
	if r.inbox != nil {
		events, want = slices.Clone(events), slices.Sorted(slices.Values(want))
		slices.SortFunc(events, func(a, b jetbus.Event) int { return strings.Compare(a.Key, b.Key) })
	}
	sameKeys(r.T, "the topic", events, want)
}

// isAgain reports whether a receipt is that of an event that was stored before. Where answers get
// lost Duplicate does not tell: the one before may be one's own first try, which had its time, too.
func (r *run) isAgain(receipt jetbus.Receipt, stored jetbus.Event) bool {
	if r.inbox == nil {
		return receipt.Duplicate && receipt.Event.Seq == stored.Seq
	}
	return receipt.Event.ID == stored.ID && receipt.Event.Seq == stored.Seq
}

func batchOrder(r *run) {
	topic := r.topic("t")
	want := keys(500)
	receipts, err := r.A.(jetbus.Batcher).PublishBatch(r.ctx, batch(topic, want...), jetbus.BatchOptions{})
	r.must(err)
	stored := r.stored(topic)
	r.sameBatch(stored, want)
	if len(receipts) != len(want) {
		r.Fatalf("%d receipts", len(receipts))
	}
	byID := map[string]jetbus.Event{}
	for _, e := range stored {
		byID[e.ID] = e
	}
	for i, receipt := range receipts {
		e := byID[receipt.Event.ID]
		if r.inbox == nil { // else it may be elsewhere, see sameBatch
			e = stored[i]
		}
		if receipt.Event.Seq != e.Seq || receipt.Event.ID != e.ID || e.Key != want[i] || receipt.Duplicate {
			r.Fatalf("receipt %d is %+v, stored %+v", i, receipt, e)
		}
	}
	first := receipts[7].Event
	receipts, err = r.B.(jetbus.Batcher).PublishBatch(r.ctx, []jetbus.Event{first, {Topic: topic, Key: "new"}}, jetbus.BatchOptions{})
	r.must(err)
	if !r.isAgain(receipts[0], first) || receipts[1].Duplicate {
		r.Errorf("receipts %+v", receipts)
	}
	r.sameBatch(r.stored(topic), append(want, "new"))
}

func atomicBatch(r *run) {
	one := r.declare("one", jetbus.TopicConfig{Stream: streamOf(r.prefix), KeyInSubject: true})
	two := r.declare("two", jetbus.TopicConfig{Stream: streamOf(r.prefix), KeyInSubject: true})
	bus := r.A.(jetbus.Batcher)
	events := append(batch(one, "a", "b"), batch(two, "c")...)
	receipts, err := bus.PublishBatch(r.ctx, events, jetbus.BatchOptions{Atomic: true})
	r.must(err)
	stored := append(r.stored(one), r.stored(two)...)
	sameKeys(r.T, "the topics", stored, []string{"a", "b", "c"})
	for i, receipt := range receipts {
		if receipt.Event.Seq != stored[i].Seq || receipt.Event.ID != stored[i].ID {
			r.Errorf("receipt %d is %+v, stored %+v", i, receipt, stored[i])
		}
	}
	wrong := stored[0].Seq + 100
	_, err = bus.PublishBatch(r.ctx, batch(one, "a", "d"), jetbus.BatchOptions{Atomic: true, ExpectLastSeq: &wrong})
	wantErr(r.T, "a batch that expects a wrong sequence", err, jetbus.ErrWrongSequence)
	if be, ok := errors.AsType[*jetbus.BatchError](err); !ok || len(be.Failed) != 2 || be.Total != 2 {
		r.Errorf("error %#v", err)
	}
	duplicate := append(batch(one, "e"), stored[0])
	if _, err := bus.PublishBatch(r.ctx, duplicate, jetbus.BatchOptions{Atomic: true}); err == nil {
		r.Error("a batch with a duplicate was stored")
	}
	sameKeys(r.T, "the first topic", r.stored(one), []string{"a", "b"})
	right := stored[0].Seq
	_, err = bus.PublishBatch(r.ctx, batch(one, "a", "d"), jetbus.BatchOptions{Atomic: true, ExpectLastSeq: &right})
	r.must(err)
	sameKeys(r.T, "the first topic", r.stored(one), []string{"a", "b", "a", "d"})
}

// expecting are the options of events that expect these sequences of their keys.
func expecting(seqs ...uint64) (out []jetbus.PublishOptions) {
	for _, seq := range seqs {
		out = append(out, jetbus.PublishOptions{ExpectLastSeq: &seq})
	}
	return out
}

func batchEach(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{KeyInSubject: true})
	bus := r.A.(jetbus.Batcher)
	first, err := bus.PublishBatch(r.ctx, batch(topic, "a", "b", "c"), jetbus.BatchOptions{Each: expecting(0, 0, 0)})
	r.must(err)
	a, b, c := first[0].Event.Seq, first[1].Event.Seq, first[2].Event.Seq
	var sent []jetbus.Event
	for _, receipt := range first {
		sent = append(sent, receipt.Event)
	}
	again, err := r.B.(jetbus.Batcher).PublishBatch(r.ctx, sent, jetbus.BatchOptions{Each: expecting(0, 0, 0)})
	r.must(err)
	for i, receipt := range again {
		if !r.isAgain(receipt, first[i].Event) {
			r.Errorf("published again, event %d is %+v, was %+v", i, receipt, first[i])
		}
	}
	_, err = bus.PublishBatch(r.ctx, batch(topic, "c", "a", "b"), jetbus.BatchOptions{Atomic: true, Each: expecting(c, a, b+100)})
	wantErr(r.T, "an atomic batch whose last event expects a wrong sequence", err, jetbus.ErrWrongSequence)
	r.sameBatch(r.stored(topic), []string{"a", "b", "c"})
	atomic, err := bus.PublishBatch(r.ctx, batch(topic, "c", "a", "b"), jetbus.BatchOptions{Atomic: true, Each: expecting(c, a, b)})
	r.must(err)
	stored := r.stored(topic)
	n := min(3, len(stored))
	r.sameBatch(stored[:n], []string{"a", "b", "c"})
	sameKeys(r.T, "the topic behind its first batch", stored[n:], []string{"c", "a", "b"})

	c, a = atomic[0].Event.Seq, atomic[1].Event.Seq
	receipts, err := bus.PublishBatch(r.ctx, batch(topic, "a", "b", "c"), jetbus.BatchOptions{Each: expecting(a, b, c)})
	wantErr(r.T, "a batch with an event that expects what was", err, jetbus.ErrWrongSequence)
	be, ok := errors.AsType[*jetbus.BatchError](err)
	if !ok || be.Failed[0].Event.Key != "b" || !r.refused(be.Failed[0].Stored) || len(receipts) != 3 || receipts[0].Event.Seq == 0 {
		r.Fatalf("receipts %+v, error %v", receipts, err)
	}
	latest := r.stored(topic)[6]
	if latest.Key != "a" || latest.Seq != receipts[0].Event.Seq {
		r.Errorf("behind the atomic batch is %+v, want %+v", latest, receipts[0].Event)
	}
}

func batchTTL(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Stream: streamOf(r.prefix)})
	bus := r.A.(jetbus.Batcher)
	for _, o := range []jetbus.BatchOptions{{}, {Atomic: true}} {
		o.Each = []jetbus.PublishOptions{{}, {TTL: time.Second}, {}}
		_, err := bus.PublishBatch(r.ctx, batch(topic, "long", "short", "longer"), o)
		r.must(err)
	}
	r.pause(3 * time.Second)
	sameKeys(r.T, "the topic", r.stored(topic), []string{"long", "longer", "long", "longer"})
}

func atomicLimits(r *run) {
	topic, other := r.topic("t"), r.topic("other")
	bus := r.A.(jetbus.Batcher)
	if _, err := bus.PublishBatch(r.ctx, batch(topic, keys(1001)...), jetbus.BatchOptions{Atomic: true}); err == nil {
		r.Error("a batch of 1001 events was accepted")
	}
	if _, err := bus.PublishBatch(r.ctx, append(batch(topic, "a"), batch(other, "b")...), jetbus.BatchOptions{Atomic: true}); err == nil {
		r.Error("a batch over two streams was accepted")
	}
	if n := len(r.stored(topic)) + len(r.stored(other)); n != 0 {
		r.Errorf("%d events stored", n)
	}
	receipts, err := bus.PublishBatch(r.ctx, batch(topic, keys(1000)...), jetbus.BatchOptions{Atomic: true})
	r.must(err)
	stored := r.stored(topic)
	sameKeys(r.T, "the topic", stored, keys(1000))
	if receipts[999].Event.Seq != stored[999].Seq {
		r.Errorf("the last receipt is %+v", receipts[999])
	}
}

func invalidBatch(r *run) {
	topic := r.topic("t")
	bus := r.A.(jetbus.Batcher)
	for _, atomic := range []bool{false, true} {
		for what, c := range map[string]struct {
			last jetbus.Event
			want error
		}{
			"unknown topic":  {jetbus.Event{Topic: topic + ".unknown"}, jetbus.ErrNoTopic},
			"invalid topic":  {jetbus.Event{Topic: "A"}, jetbus.ErrInvalidTopic},
			"invalid header": {jetbus.Event{Topic: topic, Headers: map[string]string{"a b": "c"}}, jetbus.ErrInvalidHeader},
			"too large":      {jetbus.Event{Topic: topic, Payload: make([]byte, r.MaxPayload)}, jetbus.ErrPayloadTooLarge},
		} {
			_, err := bus.PublishBatch(r.ctx, append(batch(topic, "a", "b"), c.last), jetbus.BatchOptions{Atomic: atomic})
			wantErr(r.T, what, err, c.want)
		}
	}
	if got := r.stored(topic); len(got) != 0 {
		r.Errorf("the topic holds %+v", got)
	}
}

func fullBatch(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{MaxEvents: 30, Discard: jetbus.DiscardNew})
	receipts, err := r.A.(jetbus.Batcher).PublishBatch(r.ctx, batch(topic, keys(100)...), jetbus.BatchOptions{})
	wantErr(r.T, "a batch that does not fit", err, jetbus.ErrTopicFull)
	sameKeys(r.T, "the topic", r.stored(topic), keys(30))
	be, ok := errors.AsType[*jetbus.BatchError](err)
	if !ok || len(be.Failed) != 70 || be.Total != 100 || be.Failed[0].Event.Key != "30" {
		r.Fatalf("error %v", err)
	}
	if len(receipts) != 100 || receipts[29].Event.Seq == 0 || receipts[30].Event.Seq != 0 {
		r.Errorf("receipts %+v", receipts)
	}
}

func chainedBatch(r *run) {
	topic := r.topic("t")
	events := batch(topic, keys(50)...)
	for i := range events {
		events[i].ID = events[i].Key
	}
	a, b := r.A.(jetbus.Batcher), r.B.(jetbus.Batcher)
	_, err := a.PublishBatch(r.ctx, events[:30], jetbus.BatchOptions{Chain: &jetbus.Chain{}})
	r.must(err)
	end := jetbus.Chain{AfterID: events[9].ID, AfterSeq: 10}
	receipts, err := a.PublishBatch(r.ctx, events[10:40], jetbus.BatchOptions{Chain: &end})
	r.must(err)
	for i, receipt := range receipts {
		e := events[10+i]
		e.Seq = uint64(11 + i)
		if i < 20 && !r.isAgain(receipt, e) || i >= 20 && (receipt.Event.Seq != e.Seq || receipt.Duplicate) {
			r.Fatalf("receipt %d: %+v", i, receipt)
		}
	}
	_, err = b.PublishBatch(r.ctx, batch(topic, "late", "later"), jetbus.BatchOptions{Chain: &end})
	wantErr(r.T, "a batch behind an event that is not the last one", err, jetbus.ErrWrongSequence)
	if be, ok := errors.AsType[*jetbus.BatchError](err); !ok || len(be.Failed) != 2 || !r.refused(be.Failed[0].Stored) {
		r.Errorf("error %v", err)
	}
	sameKeys(r.T, "the topic", r.stored(topic), keys(50)[:40])
}
