package topics_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// links makes the events from..to of a chain, whose ids and keys are their numbers.
func links(topic string, from, to int) (out []jetbus.Event) {
	for i := from; i <= to; i++ {
		e := adaptertest.Event(topic, fmt.Sprint(i))
		e.ID = fmt.Sprint("id-", i)
		out = append(out, e)
	}
	return out
}

// behind is the chain behind number n, which is at position n.
func behind(n int) jetbus.BatchOptions {
	c := &jetbus.Chain{AfterSeq: uint64(n)}
	if n > 0 {
		c.AfterID = fmt.Sprint("id-", n)
	}
	return jetbus.BatchOptions{Chain: c}
}

// numbers lists from..to as stored does.
func numbers(from, to int) string {
	var s []string
	for i := from; i <= to; i++ {
		s = append(s, fmt.Sprint(i))
	}
	return strings.Join(s, " ")
}

// chained publishes and checks the receipts: the first dups of them are duplicates.
func (r *rig) chained(b jetbus.Batcher, events []jetbus.Event, o jetbus.BatchOptions, first uint64, dups int) {
	r.Helper()
	for i, receipt := range must(b.PublishBatch(r.Context(), events, o))(r.T) {
		if receipt.Event.Seq != first+uint64(i) || receipt.Duplicate != (i < dups) {
			r.Fatalf("receipt %d: seq %d, duplicate %t; want seq %d", i, receipt.Event.Seq, receipt.Duplicate, first+uint64(i))
		}
	}
}

// refused publishes what must be refused for what the topic ends with.
func (r *rig) refused(b jetbus.Batcher, events []jetbus.Event, o jetbus.BatchOptions, lastID string) *jetbus.BatchError {
	r.Helper()
	_, err := b.PublishBatch(r.Context(), events, o)
	r.WantErr(err, jetbus.ErrWrongSequence)
	c, ok := errors.AsType[*jetbus.ChainError](err)
	if !ok || c.LastID != lastID {
		r.Errorf("got %v, want a ChainError with the last event %q", err, lastID)
	}
	be, ok := errors.AsType[*jetbus.BatchError](err)
	if !ok {
		r.Fatalf("got %v, want a BatchError", err)
	}
	return be
}

// More events than may be on their way at once; a repeat, in part and as a whole,
// within the duplicate window and long after it.
func TestChainOrderAndRepeat(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 4200
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		all := links("a", 1, n)
		r.chained(r.Bus, all, behind(0), 1, 0)
		r.chained(r.Bus, all, behind(0), 1, n)
		r.chained(r.Bus, links("a", n-1, n+2), behind(n-2), n-1, 2)
		time.Sleep(time.Hour)
		r.chained(r.Bus, links("a", n-9, n+2), behind(n-10), n-9, 12)
		r.chained(r.Bus, links("a", n+2, n+4), behind(n+1), n+2, 1)
		r.Equal("stored", r.Stored("a"), numbers(1, n+4))
	})
}

// A second publisher that lags repeats what is stored, and gets no further.
func TestChainRefusesAnother(t *testing.T) {
	for _, pause := range []time.Duration{0, time.Hour} {
		inBubble(t, func(r *rig) {
			r.Ensure(jetbus.TopicConfig{Name: "a"})
			_, other := r.Open(adapter.Config{})
			r.chained(r.Bus, links("a", 1, 10), behind(0), 1, 0)
			time.Sleep(pause)
			be := r.refused(other, []jetbus.Event{{Topic: "a", ID: "x"}, {Topic: "a", ID: "y"}}, behind(5), "id-10")
			if len(be.Failed) != 2 || be.Failed[0].Stored != jetbus.StoredNo || !errors.Is(be.Failed[1], jetbus.ErrWrongSequence) {
				r.Errorf("failed: %v", be.Failed)
			}
			mixed := append(links("a", 4, 5), jetbus.Event{Topic: "a", ID: "x"})
			be = r.refused(other, mixed, behind(3), "id-10")
			if want := 1 + 2*int(min(pause, 1)); len(be.Failed) != want {
				r.Errorf("%d failed, want %d", len(be.Failed), want)
			}
			_ = r.refused(other, []jetbus.Event{{Topic: "a", ID: "z"}}, jetbus.BatchOptions{Chain: &jetbus.Chain{AfterID: "never"}}, "id-10")
			_ = r.refused(other, []jetbus.Event{{Topic: "a", ID: "x"}}, behind(0), "id-10")
			must(other.Publish(r.Context(), adaptertest.Event("a", "loose")))(r.T)
			if _, err := r.Bus.PublishBatch(r.Context(), links("a", 11, 12), behind(10)); !errors.Is(err, jetbus.ErrWrongSequence) {
				r.Errorf("behind somebody else's event: %v", err)
			}
			r.Equal("stored", r.Stored("a"), numbers(1, 10)+" loose")
		})
	}
}

// A duplicate that does not lie behind the event before it ends the chain.
func TestChainDuplicateOutOfPlace(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.chained(r.Bus, links("a", 1, 5), behind(0), 1, 0)
		_ = r.refused(r.Bus, append(links("a", 6, 7), links("a", 2, 3)...), behind(5), "id-2")
		r.Equal("stored", r.Stored("a"), numbers(1, 7))
	})
}

// What the server knows survives its restarts and crashes.
func TestChainOverRestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		next := 1
		for i := range 6 {
			r.chained(r.Bus, links("a", next, next+9), behind(next-1), uint64(next), 0)
			next += 10
			time.Sleep(time.Duration(i) * 2 * time.Minute)
			if i%2 == 0 {
				r.OK(r.Broker.Kill(r.Context()))
			}
			r.OK(r.Broker.Restart(r.Context()))
			_ = r.refused(r.Bus, []jetbus.Event{{Topic: "a", ID: "x"}}, behind(next-2), fmt.Sprint("id-", next-1))
		}
		r.Equal("stored", r.Stored("a"), numbers(1, next-1))
	})
}

// Restarts and kills in the middle of batches: with the same chain again, all is
// stored once.
func TestChainThroughRestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", DuplicateWindow: time.Second})
		const batches, size = 12, 200
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range batches {
				from := i*size + 1
				for {
					_, err := r.Bus.PublishBatch(r.Context(), links("a", from, from+size-1), behind(from-1))
					if err == nil {
						break
					}
					if errors.Is(err, jetbus.ErrWrongSequence) {
						r.Error(err)
						return
					}
				}
				time.Sleep(20 * time.Millisecond)
			}
		}()
		for i := 0; ; i++ {
			select {
			case <-done:
				r.Equal("stored", r.Stored("a"), numbers(1, batches*size))
				return
			case <-time.After(200 * time.Millisecond):
			}
			if i%2 == 0 {
				r.OK(r.Broker.Kill(r.Context()))
				time.Sleep(100 * time.Millisecond)
			}
			r.OK(r.Broker.Restart(r.Context()))
		}
	})
}

// The connection breaks under a batch, or its answers are lost until the duplicate
// window is over.
func TestChainConnectionLost(t *testing.T) {
	for _, budget := range []int64{3_000, 30_000, 100_000} {
		inBubble(t, func(r *rig) {
			const n = 1000
			r.Ensure(jetbus.TopicConfig{Name: "a"})
			w, b := r.OpenCabled(adapter.Config{})
			r.chained(b, links("a", 1, 1), behind(0), 1, 0)
			w.Budget.Store(budget)
			r.chained(b, links("a", 2, n), behind(1), 2, 0)
			r.Equal("stored", r.Stored("a"), numbers(1, n))
		})
	}
}

func TestChainAnswersLost(t *testing.T) {
	for _, window := range []time.Duration{time.Minute, time.Second} {
		inBubble(t, func(r *rig) {
			r.Ensure(jetbus.TopicConfig{Name: "a", DuplicateWindow: window})
			w, b := r.OpenCabled(adapter.Config{})
			for from := 1; from < 30; from += 10 {
				time.AfterFunc(3*time.Second, w.Cut)
				w.Deaf.Store(true)
				ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
				receipts := must(b.PublishBatch(ctx, links("a", from, from+9), behind(from-1)))(r.T)
				cancel()
				for i, receipt := range receipts {
					if receipt.Event.Seq != uint64(from+i) || receipt.Duplicate {
						r.Errorf("receipt %d: %+v", i, receipt)
					}
				}
			}
			r.Equal("stored", r.Stored("a"), numbers(1, 30))
		})
	}
}

// A stream that is empty has no last id once the server has restarted.
func TestChainEmptied(t *testing.T) {
	for _, restart := range []bool{false, true} {
		inBubble(t, func(r *rig) {
			r.Ensure(jetbus.TopicConfig{Name: "a"})
			r.chained(r.Bus, links("a", 1, 10), behind(0), 1, 0)
			s := must(r.JS.Stream(r.Context(), "EV_A"))(r.T)
			r.OK(s.Purge(r.Context()))
			time.Sleep(time.Hour)
			if restart {
				r.OK(r.Broker.Restart(r.Context()))
			}
			// The repeat of the last one is known as long as the server knows its id.
			if !restart {
				r.chained(r.Bus, links("a", 10, 10), behind(9), 10, 1)
			}
			if _, err := r.Bus.PublishBatch(r.Context(), links("a", 11, 12), behind(9)); !errors.Is(err, jetbus.ErrWrongSequence) {
				r.Errorf("behind 9: %v", err)
			}
			_, err := r.Bus.PublishBatch(r.Context(), links("a", 11, 12), jetbus.BatchOptions{Chain: &jetbus.Chain{AfterID: "id-10"}})
			if restart {
				r.WantErr(err, jetbus.ErrWrongSequence)
			} else {
				r.OK(err)
			}
			r.chained(r.Bus, links("a", 11, 15), behind(10), 11, 2*btoi(!restart))
			r.Equal("stored", r.Stored("a"), numbers(11, 15))
		})
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The server's own markers of keys that ended stand between events.
func TestChainBehindMarkers(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Compact: true, Storage: jetbus.MemoryStorage, Retention: time.Hour, TombstoneTTL: time.Minute})
		r.chained(r.Bus, links("a", 1, 3), behind(0), 1, 0)
		time.Sleep(time.Hour + 10*time.Second)
		if last := r.Stream("EV_A").State.LastSeq; last <= 3 {
			r.Fatalf("the server put no markers: the last sequence is %d", last)
		}
		receipts := must(r.Bus.PublishBatch(r.Context(), links("a", 4, 6), behind(3)))(r.T)
		at := receipts[2].Event.Seq
		time.Sleep(2 * time.Minute) // the markers are gone, too
		o := behind(6)
		o.Chain.AfterSeq = at
		r.chained(r.Bus, links("a", 7, 8), o, at+1, 0)
		r.Equal("markers", r.Stream("EV_A").State.Msgs, 5)
		r.Equal("stored", r.Stored("a"), "4 5 6 7 8")
	})
}

func TestChainTombstones(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Compact: true})
		events := links("a", 1, 4)
		events[2] = jetbus.Event{Topic: "a", ID: "id-3", Key: "1", Payload: []byte("null")}
		r.chained(r.Bus, events, behind(0), 1, 0)
		r.chained(r.Bus, events, behind(0), 1, 4)
		if got := must(r.Bus.LatestByKey(r.Context(), "a", "1", "2", "4"))(r.T); len(got) != 2 {
			r.Errorf("latest: %v", got)
		}
	})
}

// A topic in a stream that others write to has no chain.
func TestChainNeedsItsStream(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Ensure(jetbus.TopicConfig{Name: "b"})
		r.Ensure(jetbus.TopicConfig{Name: "shared", Stream: "S"})
		r.Ensure(jetbus.TopicConfig{Name: "late", Delays: true})
		must(r.JS.CreateStream(r.Context(), jetstream.StreamConfig{Name: "OLD", Subjects: []string{"old"}}))(r.T)
		r.Ensure(jetbus.TopicConfig{Name: "adopted", Stream: "OLD", Subject: "old"})
		o := behind(0)
		for topic, want := range map[string]error{"shared": jetbus.ErrConflict, "late": jetbus.ErrUnsupported, "adopted": jetbus.ErrUnsupported, "none": jetbus.ErrNoTopic} {
			_, err := r.Bus.PublishBatch(r.Context(), links(topic, 1, 2), o)
			r.WantErr(err, want)
		}
		_, err := r.Bus.PublishBatch(r.Context(), append(links("a", 1, 2), links("b", 3, 3)...), o)
		r.WantErr(err, jetbus.ErrConflict)
		o.Atomic = true
		_, err = r.Bus.PublishBatch(r.Context(), links("a", 1, 2), o)
		r.WantErr(err, jetbus.ErrInvalidOption)
		_, err = r.Bus.PublishBatch(r.Context(), links("a", 1, 2), jetbus.BatchOptions{Chain: &jetbus.Chain{AfterID: "\n"}})
		r.WantErr(err, jetbus.ErrInvalidOption)
		r.Equal("stored", r.Stored("a"), "")
	})
}

// Events of a chain may expire, each by itself.
func TestChainTTL(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Storage: jetbus.MemoryStorage})
		o := behind(0)
		o.Each = []jetbus.PublishOptions{{}, {TTL: time.Second}, {}}
		r.chained(r.Bus, links("a", 1, 3), o, 1, 0)
		time.Sleep(3 * time.Second)
		r.Equal("stored", r.Stored("a"), "1 3")
		r.chained(r.Bus, links("a", 4, 4), behind(3), 4, 0)
	})
}

// A full topic stores a prefix of the chain, which goes on when there is room.
func TestChainFull(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", MaxEvents: 4, Storage: jetbus.MemoryStorage, Discard: jetbus.DiscardNew})
		_, err := r.Bus.PublishBatch(r.Context(), links("a", 1, 7), behind(0))
		r.WantErr(err, jetbus.ErrTopicFull)
		r.Ensure(jetbus.TopicConfig{Name: "a", MaxEvents: 10, Storage: jetbus.MemoryStorage, Discard: jetbus.DiscardNew})
		r.chained(r.Bus, links("a", 1, 7), behind(0), 1, 4)
		r.Equal("stored", r.Stored("a"), numbers(1, 7))
	})
}

// The stream was deleted and made anew.
func TestChainOfNewStream(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.chained(r.Bus, links("a", 1, 5), behind(0), 1, 0)
		r.OK(r.Bus.DeleteTopic(r.Context(), "a"))
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		_ = r.refused(r.Bus, links("a", 6, 7), behind(5), "")
		m := &nats.Msg{Subject: "ev.a._", Data: []byte("x")} // of somebody who knows nothing of all this
		must(r.JS.PublishMsg(r.Context(), m))(r.T)
		_ = r.refused(r.Bus, links("a", 1, 2), behind(0), "")
	})
}
