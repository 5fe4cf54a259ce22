package groups_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// A lease is extended while its handler runs, and not once more when that has returned,
// whatever it said: an event that waits for its next attempt is nobody's.
func TestExtensionEndsWithItsHandler(t *testing.T) {
	for name, result := range map[string]error{
		"handled":  nil,
		"failed":   errors.New("down"),
		"put off":  jetbus.Snooze(50 * time.Second),
		"rejected": jetbus.Reject(errors.New("bad")),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				var extensions atomic.Int64
				must(r.NC.Subscribe("$JS.ACK.>", func(m *nats.Msg) { extensions.Add(int64(bytes.Count(m.Data, []byte("+WPI")))) }))(r.T)
				r.OK(r.NC.Flush())
				returned := make(chan struct{}, 1)
				s := r.Subscribe(r.Bus, func(ctx context.Context, _ *jetbus.Delivery) error {
					defer func() { returned <- struct{}{} }()
					time.Sleep(5 * time.Second)
					return errors.Join(ctx.Err(), result)
				}, jetbus.SubscribeOptions{AckTimeout: 3 * time.Second, Backoff: jetbus.Backoff{Min: 50 * time.Second, NoJitter: true}})
				r.Publish("a", "k")
				<-returned
				time.Sleep(100 * time.Millisecond)
				r.Settle()
				before := extensions.Load()
				if before < 4 || before > 6 {
					r.Errorf("%d extensions in 5 s of a lease of 3 s, want one a second", before)
				}
				time.Sleep(45 * time.Second)
				r.Settle()
				r.Equal("extensions since it returned", extensions.Load()-before, 0)
				r.Equal("held, lost", []any{s.Stats().Held, s.Stats().LeasesLost}, []any{0, 0})
			})
		})
	}
}

// An extension that goes down with its connection is asked for again on the next
// one, and not only when the one after it is due: after three thirds of the ack
// timeout the lease is over.
func TestExtensionCutOff(t *testing.T) {
	for name, order := range map[string]jetbus.Order{"plain": jetbus.NoOrder, "ordered": jetbus.PerKey} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				w, b := r.OpenCabled(adapter.Config{})
				h := newBlock()
				o := jetbus.SubscribeOptions{AckTimeout: 30 * time.Second, Order: order}
				s := r.Subscribe(b, h.handle, o)
				e := r.Publish("a", "k")[0]
				<-h.running
				r.Subscribe(r.Bus, h.handle, o)
				for range 3 { // 10 s apart; of each the first four asks are cut off
					w.Asks.Store(4)
					time.Sleep(o.AckTimeout / 3)
				}
				time.Sleep(o.AckTimeout)
				if left := w.Asks.Load(); left >= 0 {
					r.Errorf("%d cuts are left: the test shows nothing", left)
				}
				close(h.release)
				time.Sleep(o.AckTimeout)
				r.Equal("lost", s.Stats().LeasesLost, 0)
				r.Equal("handlers that began later", len(h.running), 0)
				r.Equal("settled up to", r.Group("a", "g").AckedSeq, e.Seq)
			})
		})
	}
}

// So is the one that its holder asks for.
func TestExtendCutOff(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		w, b := r.OpenCabled(adapter.Config{})
		r.Publish("a", "k")
		ds := must(b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), AckTimeout: time.Minute}))(t)
		time.Sleep(20 * time.Second)
		w.Asks.Store(3)
		began := time.Now()
		r.OK(ds[0].Extend(r.Context(), 0))
		if took := time.Since(began); took > 10*time.Second { // of 2 s each at most until the connection is back
			r.Errorf("it took %v", took)
		}
		if left := time.Until(ds[0].Deadline()); left < 50*time.Second {
			r.Errorf("the lease has %v left", left)
		}
		r.Equal("cuts that are left", max(w.Asks.Load(), 0), 0)
		time.Sleep(50 * time.Second)
		r.OK(ds[0].Ack(r.Context()))
	})
}
