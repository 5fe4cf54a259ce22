package topics_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// failedKeys lists the keys of a BatchError.
func failedKeys(r *rig, err error) (keys []string, stored []jetbus.Stored) {
	r.Helper()
	b, ok := errors.AsType[*jetbus.BatchError](err)
	if !ok {
		r.Fatalf("got %v, want a BatchError", err)
	}
	for _, p := range b.Failed {
		keys, stored = append(keys, p.Event.Key), append(stored, p.Stored)
	}
	return keys, stored
}

// More events than may be on their way at once.
func TestBatchOrder(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 4200
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		receipts := must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", n), jetbus.BatchOptions{}))(r.T)
		for i, receipt := range receipts {
			if receipt.Event.Seq != uint64(i)+1 || receipt.Event.ID == "" || receipt.Duplicate || receipt.Event.SID == "" {
				r.Fatalf("receipt %d: %+v", i, receipt)
			}
		}
		if r.Stored("a") != adaptertest.Keys(n) {
			r.Error("the log has another order")
		}
		if got, err := r.Bus.PublishBatch(r.Context(), nil, jetbus.BatchOptions{}); err != nil || len(got) != 0 {
			r.Errorf("no events: %v, %v", got, err)
		}
	})
}

// What nobody hears at first, since the topic is new and not known everywhere, is stored
// ahead of what is behind it in the batch.
func TestBatchOfNewTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n, deaf = 200, 2
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		c := r.Stream("EV_A").Config
		c.Subjects = []string{"elsewhere"}
		must(r.JS.UpdateStream(r.Context(), c))(r.T)
		heard := make(chan string, n+n)
		sub := must(r.NC.Subscribe("ev.a.>", func(m *nats.Msg) {
			heard <- string(m.Data)
			answer := &nats.Msg{Header: nats.Header{"Status": {"503"}}} // as the server says that nobody is there
			if stored := len(heard) - deaf; stored > 0 {
				answer = &nats.Msg{Data: fmt.Appendf(nil, `{"stream":"EV_A","seq":%d}`, stored)}
			}
			r.OK(m.RespondMsg(answer))
		}))(r.T)
		receipts := must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", n), jetbus.BatchOptions{}))(r.T)
		r.OK(sub.Unsubscribe())
		close(heard)
		var stored []string
		for payload := range heard {
			stored = append(stored, strings.Trim(payload, `"`))
		}
		r.Equal("not heard", stored[:deaf], "[0 0]")
		r.Equal("stored", strings.Join(stored[deaf:], " "), adaptertest.Keys(n))
		r.Equal("the last receipt", receipts[n-1].Event.Seq, n)
	})
}

// Large events are on their way a few at a time.
func TestBatchOfLargeEvents(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		const n = 24 // half as much again as may be on its way at once
		events := adaptertest.Numbered("a", n)
		for i := range events {
			events[i].Payload = make([]byte, 1000<<10)
		}
		must(r.Bus.PublishBatch(r.Context(), events, jetbus.BatchOptions{}))(r.T)
		r.Equal("stored", r.Stored("a"), adaptertest.Keys(n))
	})
}

// What is stored is a prefix; the error lists the rest.
func TestBatchFails(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", MaxEvents: 7, Discard: jetbus.DiscardNew})
		receipts, err := r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 12), jetbus.BatchOptions{})
		r.WantErr(err, jetbus.ErrTopicFull)
		for i, receipt := range receipts {
			if stored := receipt.Event.Seq > 0; stored != (i < 7) {
				r.Errorf("receipt %d: %+v", i, receipt)
			}
		}
		keys, stored := failedKeys(r, err)
		r.Equal("failed", keys, strings.Fields(adaptertest.Keys(12))[7:])
		if slices.Contains(stored, jetbus.StoredUnknown) {
			r.Errorf("stored: %v", stored)
		}
		r.Equal("stored", r.Stored("a"), adaptertest.Keys(7))
	})
}

func TestBatchChecksFirst(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		for _, c := range []struct {
			last jetbus.Event
			want error
		}{
			{adaptertest.Event("none", "k"), jetbus.ErrNoTopic},
			{adaptertest.Event("a", "\x00"), jetbus.ErrInvalidEvent},
			{jetbus.Event{Topic: "a", Payload: make([]byte, 2<<20)}, jetbus.ErrPayloadTooLarge},
		} {
			receipts, err := r.Bus.PublishBatch(r.Context(), append(adaptertest.Numbered("a", 3), c.last), jetbus.BatchOptions{})
			r.WantErr(err, c.want)
			if receipts != nil || err == nil || !strings.Contains(err.Error(), "event 3") {
				r.Errorf("%v, %v", receipts, err)
			}
		}
		_, err := r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 1), jetbus.BatchOptions{ExpectLastSeq: new(uint64(0))})
		r.WantErr(err, jetbus.ErrInvalidOption)
		r.Equal("stored", r.Stored("a"), "")
	})
}

func TestBatchDuplicates(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		events := adaptertest.Numbered("a", 4)
		for i, id := range []string{"x", "y", "x", "z"} {
			events[i].ID = id
		}
		check := func(again bool, wantSeq ...uint64) {
			r.Helper()
			for i, receipt := range must(r.Bus.PublishBatch(r.Context(), events, jetbus.BatchOptions{}))(r.T) {
				if receipt.Duplicate != (again || i == 2) || receipt.Event.Seq != wantSeq[i] {
					r.Errorf("receipt %d: %+v", i, receipt)
				}
			}
		}
		check(false, 1, 2, 1, 3)
		check(true, 1, 2, 1, 3)
		r.Equal("stored", r.Stored("a"), "0 1 3")
	})
}

// The connection breaks after some of the batch has gone out. The batch is
// completed, in its order and without duplicates; or, where the client sent an
// event first thing after it reconnected, ends there with an error.
func TestBatchConnectionLost(t *testing.T) {
	for _, budget := range []int64{3_000, 30_000, 100_000} { // of some 130,000
		t.Run(fmt.Sprint(budget), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				const n = 1000
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				w, b := r.OpenCabled(adapter.Config{})
				must(b.Publish(r.Context(), adaptertest.Event("a", "first")))(r.T)
				w.Budget.Store(budget)
				events := make([]jetbus.Event, n)
				for i := range events {
					events[i] = jetbus.Event{Topic: "a", ID: fmt.Sprint(i + 2), Key: "k"}
				}
				receipts, err := b.PublishBatch(r.Context(), events, jetbus.BatchOptions{})
				if err != nil {
					r.WantErr(err, jetbus.ErrOvertaken)
					r.WantErr(err, jetbus.ErrUnavailable)
				}
				for i, receipt := range receipts {
					if err == nil && (receipt.Event.Seq != uint64(i)+2 || receipt.Duplicate) {
						r.Fatalf("receipt %d: %+v", i, receipt)
					}
				}
				last := 0
				for e, err := range r.Bus.Scan(r.Context(), "a", jetbus.ScanQuery{From: jetbus.AfterSeq(1)}) {
					r.OK(err)
					n := must(strconv.Atoi(e.ID))(r.T)
					if n <= last {
						r.Errorf("event %d is behind %d", n, last)
					}
					last = n
				}
				if err == nil {
					r.Equal("messages", r.Stream("EV_A").State.Msgs, n+1)
				}
			})
		})
	}
}

// Events that expect a sequence and were stored while the answers got lost, of all or only of
// some, have their receipts and are no duplicates; one that was refused is refused.
func TestBatchExpectsAnswerLost(t *testing.T) {
	for what, lose := range map[string]func(*adaptertest.Cable){
		"all answers": func(w *adaptertest.Cable) {
			w.Deaf.Store(true)
			time.AfterFunc(100*time.Millisecond, w.Cut)
		},
		"the connection in the middle": func(w *adaptertest.Cable) { w.Budget.Store(3000) }, // of some 8,000 bytes
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
				taken := r.Publish("a", "taken")[0]
				w, b := r.OpenCabled(adapter.Config{})
				must(b.TopicInfo(r.Context(), "a"))(r.T)
				events, each := adaptertest.Numbered("a", 24), make([]jetbus.PublishOptions, 25)
				for i := range each {
					each[i].ExpectLastSeq = new(uint64)
				}
				lose(w)
				receipts := must(b.PublishBatch(r.Context(), events, jetbus.BatchOptions{Each: each[:24]}))(r.T)
				stored := strings.Fields(r.Stored("a"))
				r.Equal("stored", len(stored), 1+24)
				for i, receipt := range receipts { // in any order: each has a key of its own
					at := uint64(slices.Index(stored, events[i].Key)) + 1 //nolint:gosec // 0 where it is missing
					if at == 0 || receipt.Event.Seq != at || receipt.Duplicate {
						r.Errorf("receipt %d of what is stored at %d: %+v", i, at, receipt)
					}
				}

				events = adaptertest.Numbered("a", 24)
				for i := range events {
					events[i].Key = "later" + events[i].Key
				}
				lose(w)
				_, err := b.PublishBatch(r.Context(), append(events, adaptertest.Event("a", taken.Key)), jetbus.BatchOptions{Each: each})
				r.WantErr(err, jetbus.ErrWrongSequence)
				keys, _ := failedKeys(r, err)
				r.Equal("failed", keys, []string{taken.Key})
				r.Equal("messages", r.Stream("EV_A").State.Msgs, 1+24+24)
			})
		})
	}
}

// A batch that is published again, by who does not know that it is stored, is as good as through
// in one go, however many its events are; by events of new IDs the conditions are refused.
func TestBatchExpectsAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 500
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		events, each := adaptertest.Numbered("a", n), make([]jetbus.PublishOptions, n)
		for i := range each {
			events[i].ID, each[i].ExpectLastSeq = events[i].Key, new(uint64)
		}
		o := jetbus.BatchOptions{Each: each}
		must(r.Bus.PublishBatch(r.Context(), events, o))(r.T)
		again := r.OpenDistant(10 * time.Millisecond)
		began := time.Now()
		for i, receipt := range must(again.PublishBatch(r.Context(), events, o))(r.T) {
			if receipt.Event.Seq != uint64(i)+1 || !receipt.Duplicate {
				r.Fatalf("receipt %d: %+v", i, receipt)
			}
		}
		if took := time.Since(began); took > 2*time.Second { // in a few rounds
			r.Errorf("it took %v", took)
		}
		_, err := again.PublishBatch(r.Context(), []jetbus.Event{{Topic: "a", Key: "0"}, {Topic: "a", Key: "0"}}, jetbus.BatchOptions{Each: []jetbus.PublishOptions{{ExpectLastSeq: new(uint64)}, {}}})
		r.WantErr(err, jetbus.ErrWrongSequence)
	})
}

// Of events that are stored while their answers get lost, those that an earlier call stored are
// duplicates, and those of the batch's own first try are none.
func TestBatchDuplicatesAnswerLost(t *testing.T) {
	for what, o := range map[string]jetbus.BatchOptions{
		"pipelined":   {},
		"conditional": {Each: []jetbus.PublishOptions{{ExpectLastSeq: new(uint64)}, {}, {ExpectLastSeq: new(uint64)}, {}}},
		"chained":     {Chain: &jetbus.Chain{}},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
				events := adaptertest.Numbered("a", 4)
				for i := range events[:3] {
					events[i].ID = events[i].Key
				}
				earlier := must(r.Bus.PublishBatch(r.Context(), events[:2], jetbus.BatchOptions{}))(r.T)
				w, b := r.OpenCabled(adapter.Config{})
				must(b.TopicInfo(r.Context(), "a"))(r.T)
				time.Sleep(time.Second) // what is published now is of another time
				w.Deaf.Store(true)
				time.AfterFunc(100*time.Millisecond, w.Cut)
				for i, receipt := range must(b.PublishBatch(r.Context(), events, o))(r.T) {
					if receipt.Duplicate != (i < len(earlier)) || receipt.Event.Seq != uint64(i)+1 {
						r.Errorf("receipt %d: %+v", i, receipt)
					}
				}
				r.Equal("stored", r.Stored("a"), adaptertest.Keys(4))
			})
		})
	}
}

// Restarts and kills of the broker in the middle of batches: whatever has a
// receipt is where the receipt says, what is said not to be stored is not, and
// the events of a key are in their order.
func TestBatchThroughRestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		const batches, size = 12, 200
		type fate struct {
			seq    uint64 // of the receipt
			absent bool   // said not to be stored
		}
		fates := map[string]fate{} // by id
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range batches {
				events := make([]jetbus.Event, size)
				for k := range events {
					events[k] = jetbus.Event{Topic: "a", ID: fmt.Sprint(i*size + k), Key: fmt.Sprint(k % 3)}
				}
				receipts, err := r.Bus.PublishBatch(r.Context(), events, jetbus.BatchOptions{})
				for _, receipt := range receipts {
					fates[receipt.Event.ID] = fate{seq: receipt.Event.Seq}
				}
				if err != nil {
					r.WantErr(err, jetbus.ErrOvertaken)
					r.WantErr(err, jetbus.ErrUnavailable)
					b, _ := errors.AsType[*jetbus.BatchError](err)
					for _, p := range b.Failed {
						fates[p.Event.ID] = fate{absent: p.Stored == jetbus.StoredNo}
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
		for range 3 {
			time.Sleep(30 * time.Millisecond)
			r.OK(r.Broker.Kill(r.Context()))
			r.OK(r.Broker.Restart(r.Context()))
			time.Sleep(20 * time.Millisecond)
			r.OK(r.Broker.Restart(r.Context()))
		}
		<-done
		last := map[string]int{"0": -1, "1": -1, "2": -1}
		acked := 0
		for e, err := range r.Bus.Scan(r.Context(), "a", jetbus.ScanQuery{}) {
			r.OK(err)
			n := must(strconv.Atoi(e.ID))(r.T)
			f := fates[e.ID]
			if n <= last[e.Key] || f.absent || f.seq != 0 && f.seq != e.Seq {
				r.Errorf("event %d at %d, behind %d of its key: %+v", n, e.Seq, last[e.Key], f)
			}
			last[e.Key] = n
			if f.seq != 0 {
				acked++
			}
		}
		receipts := 0
		for _, f := range fates {
			if f.seq != 0 {
				receipts++
			}
		}
		r.Equal("acknowledged events found", acked, receipts)
		if receipts < batches*size/2 {
			r.Errorf("only %d events were acknowledged", receipts)
		}
	})
}

func TestBatchBrokerAway(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		w, b := r.OpenCabled(adapter.Config{})
		must(b.Publish(r.Context(), adaptertest.Event("a", "first")))(r.T)
		w.Deaf.Store(true)
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		_, err := b.PublishBatch(ctx, adaptertest.Numbered("a", 3), jetbus.BatchOptions{})
		r.WantErr(err, jetbus.ErrUnavailable)
		if _, stored := failedKeys(r, err); !slices.Equal(stored, []jetbus.Stored{1, 1, 1}) {
			r.Errorf("stored: %v", stored)
		}
		w.Deaf.Store(false)
		r.OK(r.Broker.Kill(r.Context()))
		synctest.Wait()
		canceled, cancel := context.WithCancel(r.Context())
		time.AfterFunc(time.Second, cancel)
		_, err = b.PublishBatch(canceled, adaptertest.Numbered("a", 3), jetbus.BatchOptions{})
		r.WantErr(err, context.Canceled)
		if _, stored := failedKeys(r, err); !slices.Equal(stored, []jetbus.Stored{0, 0, 0}) {
			r.Errorf("stored: %v", stored)
		}
		r.OK(r.Broker.Restart(r.Context()))
	})
}

// What may be stored is sent again only as long as the topic knows the ids, in a pipelined
// batch as in one that is atomic; one with a condition is refused, and nobody knows why.
func TestBatchPastDuplicateWindow(t *testing.T) {
	for what, o := range map[string]jetbus.BatchOptions{
		"pipelined": {}, "atomic": {Atomic: true}, "conditional": {Atomic: true, ExpectLastSeq: new(uint64(0))},
		"conditional and soon over": {Atomic: true, Each: []jetbus.PublishOptions{{ExpectLastSeq: new(uint64), TTL: time.Second}, {}, {}}},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true, Storage: jetbus.MemoryStorage, DuplicateWindow: 500 * time.Millisecond})
				w, b := r.OpenCabled(adapter.Config{})
				must(b.Publish(r.Context(), adaptertest.Event("a", "first")))(r.T)
				w.Deaf.Store(true)
				time.AfterFunc(2*time.Second, w.Cut)
				_, err := b.PublishBatch(r.Context(), adaptertest.Numbered("a", 3), o)
				if keys, stored := failedKeys(r, err); len(keys) != 3 || slices.Contains(stored, jetbus.StoredNo) {
					r.Errorf("failed: %v, stored: %v", keys, stored)
				}
				if len(o.Each) > 0 {
					r.Within(10*time.Second, "the TTL", func() bool { return r.Stored("a") == "first 1 2" })
				} else {
					r.Equal("stored", r.Stored("a"), "first 0 1 2")
				}
			})
		})
	}
}

// Within the window the batch is completed, and what was surely not stored is sent later, too.
func TestBatchWithinDuplicateWindow(t *testing.T) {
	for what, o := range map[string]jetbus.BatchOptions{"pipelined": {}, "atomic": {Atomic: true}} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a", DuplicateWindow: 500 * time.Millisecond})
				w, b := r.OpenCabled(adapter.Config{})
				must(b.Publish(r.Context(), adaptertest.Event("a", "first")))(r.T)
				w.Deaf.Store(true)
				time.AfterFunc(100*time.Millisecond, w.Cut)
				must(b.PublishBatch(r.Context(), adaptertest.Numbered("a", 3), o))(r.T)
				r.Equal("stored", r.Stored("a"), "first 0 1 2")

				r.OK(r.Broker.Kill(r.Context()))
				synctest.Wait()
				time.AfterFunc(3*time.Second, func() { r.OK(r.Broker.Restart(r.Context())) })
				must(b.PublishBatch(r.Context(), adaptertest.Numbered("a", 1), o))(r.T)
				r.Equal("stored later", r.Stored("a"), "first 0 1 2 0")
			})
		})
	}
}

// A leader that has not had the beginning of an atomic batch, since it was elected in the middle
// of it, refuses the rest. It is sent again, as a whole.
func TestAtomicBatchWithoutItsBeginning(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		detour, b := r.OpenDetour("HPUB ev.a", "HPUB no.a")
		detour.Times.Store(1)
		receipts := must(b.PublishBatch(r.Context(), adaptertest.Numbered("a", 3), jetbus.BatchOptions{Atomic: true}))(r.T)
		if detour.Times.Load() > 0 {
			r.Error("nothing was redirected")
		}
		r.Equal("the last one", receipts[2].Event.Seq, uint64(3))
		r.Equal("stored", r.Stored("a"), adaptertest.Keys(3))
	})
}

func TestAtomicBatch(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, name := range []string{"a", "b"} {
			r.Ensure(jetbus.TopicConfig{Name: name, Stream: "S", MaxEvents: 1500, Discard: jetbus.DiscardNew})
		}
		atomic := jetbus.BatchOptions{Atomic: true}
		events := adaptertest.Numbered("a", 1000)
		for i := range events {
			events[i].Topic = []string{"a", "b"}[i%2]
		}
		for i, receipt := range must(r.Bus.PublishBatch(r.Context(), events, atomic))(r.T) {
			if receipt.Event.Seq != uint64(i)+1 || receipt.Event.ID == "" {
				r.Fatalf("receipt %d: %+v", i, receipt)
			}
		}
		for e, err := range r.Bus.Scan(r.Context(), "b", jetbus.ScanQuery{Limit: 1}) {
			r.OK(err)
			if e.Key != "1" || len(e.Headers) != 0 {
				r.Errorf("got %+v", e)
			}
		}
		// Full at the 501st: nothing of it.
		receipts, err := r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 501), atomic)
		r.WantErr(err, jetbus.ErrTopicFull)
		if keys, stored := failedKeys(r, err); len(keys) != 501 || slices.Contains(stored, jetbus.StoredUnknown) || receipts != nil {
			r.Errorf("%d receipts, %d failed", len(receipts), len(keys))
		}
		r.Equal("messages", r.Stream("S").State.Msgs, 1000)

		// Of an id that is stored, or is in it twice: nothing.
		twice := adaptertest.Numbered("a", 3)
		twice[0].ID, twice[2].ID = "x", "x"
		_, err = r.Bus.PublishBatch(r.Context(), twice, atomic)
		r.WantErr(err, jetbus.ErrConflict)
		must(r.Bus.PublishBatch(r.Context(), twice[:2], atomic))(r.T)
		_, err = r.Bus.PublishBatch(r.Context(), twice[1:], atomic)
		r.WantErr(err, jetbus.ErrConflict)
		r.Equal("messages", r.Stream("S").State.Msgs, 1002)
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 498), atomic))(r.T) // room was for exactly as many
	})
}

func TestAtomicBatchRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Ensure(jetbus.TopicConfig{Name: "b"})
		r.Ensure(jetbus.TopicConfig{Name: "adopted", Stream: must(r.JS.CreateStream(r.Context(), jetstream.StreamConfig{Name: "T", Subjects: []string{"t"}}))(r.T).CachedInfo().Config.Name, Subject: "t"})
		for _, c := range []struct {
			events []jetbus.Event
			o      jetbus.BatchOptions
			want   error
		}{
			{[]jetbus.Event{adaptertest.Event("a", "1"), adaptertest.Event("b", "1")}, jetbus.BatchOptions{}, jetbus.ErrConflict},
			{adaptertest.Numbered("a", 1001), jetbus.BatchOptions{}, jetbus.ErrInvalidOption},
			{adaptertest.Numbered("a", 2), jetbus.BatchOptions{ExpectLastSeq: new(uint64(0))}, jetbus.ErrNeedsKeySubject},
			{adaptertest.Numbered("adopted", 2), jetbus.BatchOptions{}, jetbus.ErrUnsupported},
		} {
			c.o.Atomic = true
			_, err := r.Bus.PublishBatch(r.Context(), c.events, c.o)
			r.WantErr(err, c.want)
		}
		r.Equal("stored", r.Stored("a")+r.Stored("b"), "")
		r.Equal("messages", r.Stream("T").State.Msgs, 0)
	})
}

func TestAtomicBatchConditional(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		last := r.Publish("a", "0", "1", "0")[2].Seq
		o := jetbus.BatchOptions{Atomic: true, ExpectLastSeq: new(last + 1)}
		_, err := r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 3), o)
		r.WantErr(err, jetbus.ErrWrongSequence)
		r.Equal("stored", r.Stored("a"), "0 1 0")
		o.ExpectLastSeq = &last
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 3), o))(r.T)
		r.Equal("stored", r.Stored("a"), "0 1 0 0 1 2")

		// Behind another event of its key, the server cannot tell.
		o = jetbus.BatchOptions{Atomic: true, Each: []jetbus.PublishOptions{{}, {}, {ExpectLastSeq: new(last + 1)}}}
		_, err = r.Bus.PublishBatch(r.Context(), append(adaptertest.Numbered("a", 2), adaptertest.Event("a", "0")), o)
		r.WantErr(err, jetbus.ErrInvalidOption)
		r.Equal("stored", r.Stored("a"), "0 1 0 0 1 2")
	})
}

// The batch is stored, its answer lost.
func TestAtomicBatchAnswerLost(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		w, b := r.OpenCabled(adapter.Config{})
		last := must(b.Publish(r.Context(), adaptertest.Event("a", "0")))(r.T).Event.Seq
		for _, o := range []jetbus.BatchOptions{{Atomic: true}, {Atomic: true, ExpectLastSeq: new(last + 3)}} {
			w.Deaf.Store(true)
			time.AfterFunc(100*time.Millisecond, w.Cut)
			receipts, err := b.PublishBatch(r.Context(), []jetbus.Event{adaptertest.Event("a", "0"), adaptertest.Event("a", "1"), adaptertest.Event("a", "0")}, o)
			r.OK(err)
			for i, receipt := range receipts {
				r.Equal("sequence", receipt.Event.Seq, last+uint64(i)+1)
			}
			last += 3
		}
		r.Equal("stored", r.Stored("a"), "0 0 1 0 0 1 0")
		// One that was not stored because its beginning got lost.
		w.Budget.Store(2000)
		must(b.PublishBatch(r.Context(), adaptertest.Numbered("a", 100), jetbus.BatchOptions{Atomic: true}))(r.T)
		r.Equal("stored", r.Stored("a"), "0 0 1 0 0 1 0 "+adaptertest.Keys(100))
	})
}
