package reads_test

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// hold keeps what it is handed.
type hold struct {
	mu   sync.Mutex
	held map[string]*jetbus.Delivery
}

func (h *hold) handle(_ context.Context, d *jetbus.Delivery) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		h.held = map[string]*jetbus.Delivery{}
	}
	h.held[d.Key] = d
	return nil
}

func (h *hold) all() map[string]*jetbus.Delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.held)
}

func (h *hold) await(r *rig, n int) {
	r.Helper()
	for range 1000 {
		if len(h.all()) >= n {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.Fatalf("got %d events within 10 s, want %d", len(h.all()), n)
}

// Events that come again after a crash are held together where attempts have no
// end, in both kinds of groups, and what failed before is counted.
func TestEndlessAfterCrash(t *testing.T) {
	const n = 400
	for _, order := range []jetbus.Order{jetbus.NoOrder, jetbus.PerKey} {
		t.Run("order "+string(order), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				events := adaptertest.Numbered("a", n)
				must(r.Bus.PublishBatch(r.Context(), events, jetbus.BatchOptions{}))(r.T)
				o := jetbus.SubscribeOptions{
					From: jetbus.Earliest(), AckTimeout: time.Second, MaxAttempts: -1, ManualAck: true,
					Concurrency: 8, Order: order, Backoff: jetbus.Backoff{Max: time.Millisecond},
				}
				nc, doomed := r.Open(adapter.Config{})
				var first, second hold
				must(doomed.Subscribe(r.Context(), "a", "g", first.handle, o))(r.T)
				first.await(r, n)
				failed := first.all()["7"]
				r.OK(failed.Nack(r.Context(), jetbus.NackOptions{}))
				for range 100 {
					if first.all()["7"].Attempt == 2 {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				nc.Close()
				if order == jetbus.PerKey {
					time.Sleep(jetbus.DefaultLockTTL) // of the member that is gone
				}
				began := time.Now()
				_, b := r.Open(adapter.Config{})
				var together sync.WaitGroup // handlers that wait for each other
				var calls atomic.Int32
				together.Add(o.Concurrency)
				s := must(b.Subscribe(r.Context(), "a", "g", func(ctx context.Context, d *jetbus.Delivery) error {
					if calls.Add(1) <= int32(o.Concurrency) {
						together.Done()
						together.Wait()
					}
					return second.handle(ctx, d)
				}, o))(r.T)
				second.await(r, n) // none of them settled: not one at a time
				if took := time.Since(began); took > 3*time.Second {
					r.Errorf("that took %v", took)
				}
				for key, d := range second.all() {
					want := 1
					if key == "7" {
						want = 2
					}
					if d.Attempt != want || !d.Redelivered {
						r.Errorf("event %s is attempt %d, want %d; redelivered: %v", key, d.Attempt, want, d.Redelivered)
					}
					r.OK(d.Ack(r.Context()))
				}
				r.Equal("held", s.Stats().Held, 0)
			})
		})
	}
}

// Events given back by the thousand cost no record each.
func TestEndlessGivenBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 500), jetbus.BatchOptions{}))(r.T)
		o := jetbus.SubscribeOptions{From: jetbus.Earliest(), MaxAttempts: -1, ManualAck: true}
		var first, second hold
		s := must(r.Bus.Subscribe(r.Context(), "a", "g", first.handle, o))(r.T)
		first.await(r, 500)
		s.Pause()
		before := r.Stream("KV_JETBUS_ATTEMPTS").State.Msgs
		for _, d := range first.all() {
			r.OK(d.GiveBack(r.Context()))
		}
		r.Equal("records", r.Stream("KV_JETBUS_ATTEMPTS").State.Msgs, before)
		_, b := r.Open(adapter.Config{})
		must(b.Subscribe(r.Context(), "a", "g", second.handle, o))(r.T)
		second.await(r, 500)
		for key, d := range second.all() {
			if d.Attempt != 1 {
				r.Errorf("event %s is attempt %d", key, d.Attempt)
			}
		}
	})
}

// The leases of a batch that is being written last as long as that takes.
func TestManualAckLeasesLast(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 20), jetbus.BatchOptions{}))(r.T)
		var got hold
		s := must(r.Bus.Subscribe(r.Context(), "a", "g", got.handle, jetbus.SubscribeOptions{
			From: jetbus.Earliest(), MaxAttempts: -1, ManualAck: true, AckTimeout: time.Second, MaxLease: 40 * time.Second,
		}))(r.T)
		got.await(r, 20)
		time.Sleep(30 * time.Second)
		for _, d := range got.all() {
			r.OK(d.Ack(r.Context()))
		}
		st := s.Stats()
		r.Equal("acked, lost, delivered", []any{st.Acked, st.LeasesLost, st.Delivered}, []any{20, 0, 20})
	})
}
