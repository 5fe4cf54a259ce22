package adapter

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// A batch that lost its connection is given up, by name, where an event of it was
// stored ahead of one of its key, and only there.
func TestBatchOvertaken(t *testing.T) {
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{AutoCreate: true})
	for what, c := range map[string]struct {
		keys   [3]string // of the events of a batch, of which the last was on its way
		stored []int     // of them
		given  bool
	}{
		"ahead of one of its key":       {[3]string{"k", "j", "k"}, []int{2}, true},
		"after the last of its key":     {[3]string{"k", "j", "k"}, []int{0, 2}, false},
		"ahead of those of another key": {[3]string{"j", "j", "k"}, []int{2}, false},
		"lost as well":                  {[3]string{"k", "j", "k"}, nil, false},
	} {
		t.Run(what, func(t *testing.T) {
			events := make([]jetbus.Event, len(c.keys))
			for i, key := range c.keys {
				events[i] = jetbus.Event{Topic: "t", Key: key, ID: jetbus.NewID(), Payload: []byte("1")}
			}
			for _, i := range c.stored {
				if _, err := bus.Publish(t.Context(), events[i]); err != nil {
					t.Fatal(err)
				}
			}
			p := &batch{b: bus, receipts: make([]jetbus.Receipt, len(events)), to: make([]destination, len(events)), jumper: 2}
			if err := p.complete(t.Context(), events, time.Now()); err != nil {
				t.Fatal(err)
			}
			p.errs = []error{errNoAnswer, errNotSent, errNoAnswer}
			failed := p.jumped(t.Context(), []int{0, 1, 2})
			if given := failed != nil; given != c.given {
				t.Fatalf("given up: %v (%v)", given, failed)
			}
			if !c.given {
				return
			}
			err := p.failure(failed, []bool{true, false, true})
			batch, ok := errors.AsType[*jetbus.BatchError](err)
			if !ok || len(batch.Failed) != 2 || !errors.Is(err, jetbus.ErrOvertaken) {
				t.Fatalf("the batch ends with %v", err)
			}
			if stored := []jetbus.Stored{batch.Failed[0].Stored, batch.Failed[1].Stored}; stored[0] != jetbus.StoredUnknown || stored[1] != jetbus.StoredNo {
				t.Errorf("stored: %v", stored)
			}
			if p.receipts[2].Event.Seq == 0 {
				t.Error("the event that is stored has no receipt")
			}
		})
	}
}

// A batch is given up by name, too, where nobody took one of its events for a moment in
// which the server took a later one of its key.
func TestBatchOvertakenInAnElection(t *testing.T) {
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{AutoCreate: true})
	events := make([]jetbus.Event, 3)
	for i, key := range []string{"k", "j", "k"} {
		events[i] = jetbus.Event{Topic: "t", Key: key, ID: jetbus.NewID(), Payload: []byte("1")}
	}
	if _, err := bus.Publish(t.Context(), events[2]); err != nil {
		t.Fatal(err)
	}
	p := &batch{b: bus, receipts: make([]jetbus.Receipt, len(events)), to: make([]destination, len(events))}
	if err := p.complete(t.Context(), events, time.Now()); err != nil {
		t.Fatal(err)
	}
	p.errs = []error{nats.ErrNoResponders, nats.ErrNoResponders, nil}
	again, failed := p.remaining(t.Context(), []int{0, 1, 2}, make([]bool, 3))
	if !slices.Equal(again, []int{0, 1}) || !errors.Is(failed, jetbus.ErrOvertaken) {
		t.Fatalf("%v are left, %v", again, failed)
	}
	err := p.failure(failed, make([]bool, 3))
	batch, ok := errors.AsType[*jetbus.BatchError](err)
	if !ok || len(batch.Failed) != 2 || !errors.Is(batch.Failed[0].Err, jetbus.ErrOvertaken) || !errors.Is(batch.Failed[0].Err, jetbus.ErrUnavailable) || batch.Failed[0].Stored != jetbus.StoredNo {
		t.Errorf("the batch ends with %v", err)
	}
	if !errors.Is(batch.Failed[1].Err, jetbus.ErrUnavailable) || errors.Is(batch.Failed[1].Err, jetbus.ErrOvertaken) {
		t.Errorf("the event of another key ends with %v", batch.Failed[1].Err)
	}
}

// An event that a chained batch has stored is not a duplicate, although an event before it got
// no answer and both are sent again. In a replicated stream that event may be stored already,
// and then the server takes what follows it.
func TestChainedAgain(t *testing.T) {
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{AutoCreate: true})
	now := time.Now()
	events := make([]jetbus.Event, 2)
	for i := range events {
		events[i] = jetbus.Event{Topic: "t", ID: jetbus.NewID(), Time: now}
	}
	before := events[0]
	before.Time = now.Add(-time.Second)
	for _, e := range []jetbus.Event{before, events[1]} {
		if _, err := bus.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	p := &batch{b: bus, given: events, receipts: make([]jetbus.Receipt, 2), to: make([]destination, 2), room: make(chan struct{}, 1), chain: &chain{bySeq: true, replicated: true}}
	if err := p.complete(t.Context(), events, now); err != nil {
		t.Fatal(err)
	}
	p.errs = []error{nats.ErrNoResponders, nil} // after its first round
	p.receipts[1].Event.Seq = 2
	todo, retried := []int{0, 1}, make([]bool, 2)
	for round := 1; ; round++ {
		if err := p.grow(&todo); err != nil {
			t.Fatal(err)
		}
		if len(todo) == 0 {
			break
		}
		if err := p.relink(t.Context(), &todo, retried); err != nil || round > 3 {
			t.Fatalf("round %d: %v", round, err)
		}
		if len(todo) > 0 {
			if err := p.round(t.Context(), todo, retried); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.tellDuplicates(t.Context(), retried)
	for i, r := range p.receipts {
		if r.Event.Seq != uint64(i+1) || r.Duplicate != (i == 0) {
			t.Errorf("event %d has position %d, duplicate %t", i, r.Event.Seq, r.Duplicate)
		}
	}
}
