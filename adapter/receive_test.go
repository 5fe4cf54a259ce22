package adapter_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// receive is one call on topic a, from its beginning.
func (r *rig) receive(group string, o jetbus.ReceiveOptions) []*jetbus.Delivery {
	r.Helper()
	o.From = jetbus.Earliest()
	return must(r.bus.Receive(r.Context(), "a", group, o))(r.T)
}

func deliveredKeys(ds []*jetbus.Delivery) string {
	var keys []string
	for _, d := range ds {
		keys = append(keys, d.Key)
	}
	return strings.Join(keys, " ")
}

func TestReceiveMax(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "a"})
		must(r.bus.PublishBatch(r.Context(), numbered("a", 150), jetbus.BatchOptions{}))(r.T)
		began := time.Now()
		r.equal("two", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{Max: 2})), "0 1")
		r.equal("the default", len(r.receive("g", jetbus.ReceiveOptions{})), 100)
		r.equal("the rest", len(r.receive("g", jetbus.ReceiveOptions{})), 48)
		r.equal("time for what is there", time.Since(began), time.Duration(0))
		r.equal("none", len(r.receive("g", jetbus.ReceiveOptions{Wait: -1})), 0)
		r.equal("time without a wait", time.Since(began), time.Duration(0))
		r.equal("held", r.group("a", "g").Held, 150)
	})
}

func TestReceiveWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "a"})
		began := time.Now()
		r.equal("none", len(r.receive("g", jetbus.ReceiveOptions{})), 0)
		r.equal("the default wait", time.Since(began).Round(time.Second), jetbus.DefaultReceiveWait)
		time.AfterFunc(time.Minute, func() {
			_, err := r.bus.PublishBatch(r.Context(), numbered("a", 3), jetbus.BatchOptions{})
			r.wantNil(err)
		})
		began = time.Now()
		got := r.receive("g", jetbus.ReceiveOptions{Wait: time.Hour})
		if len(got) == 0 || time.Since(began) != time.Minute {
			r.Errorf("%d events after %v", len(got), time.Since(began))
		}
		for len(got) < 3 {
			got = append(got, r.receive("g", jetbus.ReceiveOptions{})...)
		}
		r.equal("events", deliveredKeys(got), "0 1 2")

		ctx, cancel := context.WithCancel(r.Context())
		time.AfterFunc(time.Second, cancel)
		began = time.Now()
		_, err := r.bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: time.Hour})
		r.wantErr(err, context.Canceled)
		r.equal("canceled after", time.Since(began), time.Second)
		// The request that is still open at the server takes nothing away.
		r.publish("a", "next")
		r.equal("next", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{})), "next")
	})
}

// Events that come when nobody waits for them any more go back at once. (The
// attempt may be 2: the server counts a delivery to an inbox that has just gone.)
func TestReceiveLateEvents(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "a"})
		for round := range 20 {
			ctx, cancel := context.WithCancel(r.Context())
			done := make(chan []*jetbus.Delivery)
			go func() {
				ds, _ := r.bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: time.Hour, From: jetbus.Earliest()}) // canceled or not
				done <- ds
			}()
			synctest.Wait()
			go cancel()
			r.publish("a", fmt.Sprint(round))
			got := <-done
			if len(got) == 0 {
				began := time.Now()
				got = r.receive("g", jetbus.ReceiveOptions{Wait: time.Minute})
				if took := time.Since(began); took > time.Second {
					r.Errorf("round %d: the event came back after %v", round, took)
				}
			}
			if len(got) != 1 || got[0].Attempt > 2 {
				r.Fatalf("round %d: got %d events", round, len(got))
			}
			r.ok(got[0].Ack(r.Context()))
		}
		r.equal("held", r.group("a", "g").Held, 0)
	})
}

// Nobody extends what Receive handed out, unless the caller does.
func TestReceiveLeases(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "a"})
		r.publish("a", "kept", "long", "left")
		ds := r.receive("g", jetbus.ReceiveOptions{AckTimeout: 10 * time.Second})
		kept, long, left := ds[0], ds[1], ds[2]
		if until := time.Until(left.Deadline()); until < 8*time.Second || until > 10*time.Second {
			r.Errorf("the lease lasts %v", until)
		}
		r.ok(long.Extend(ctx, time.Minute))
		for range 10 {
			time.Sleep(5 * time.Second)
			r.ok(kept.Extend(ctx, 0))
		}
		r.wantErr(left.Ack(ctx), jetbus.ErrLeaseExpired)
		r.wantErr(left.Extend(ctx, 0), jetbus.ErrLeaseExpired)
		r.wantErr(left.Nack(ctx, jetbus.NackOptions{}), jetbus.ErrLeaseExpired)
		r.ok(kept.Ack(ctx))
		r.ok(long.Ack(ctx))
		r.wantErr(long.Ack(ctx), jetbus.ErrAlreadySettled)
		again := r.receive("g", jetbus.ReceiveOptions{AckTimeout: 10 * time.Second})
		if len(again) != 1 || again[0].Key != "left" || again[0].Attempt != 2 {
			r.Fatalf("got %q", deliveredKeys(again))
		}
		// By its id, on behalf of somebody who knows nothing else.
		r.wantErr(r.bus.Ack(ctx, "a", "other", again[0].ID), jetbus.ErrNotHeld)
		r.ok(r.bus.Ack(ctx, "a", "g", again[0].ID))
		r.wantErr(r.bus.Ack(ctx, "a", "g", again[0].ID), jetbus.ErrNotHeld)
		g := r.group("a", "g")
		r.equal("held", g.Held, 0)
		r.equal("settled up to", g.AckedSeq, 3)
	})
}

func TestReceiveRefusals(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "a"})
		r.publish("a", "1")
		began := time.Now()
		d := r.receive("g", jetbus.ReceiveOptions{})[0]
		r.ok(d.Nack(ctx, jetbus.NackOptions{Delay: time.Minute}))
		d = r.receive("g", jetbus.ReceiveOptions{Wait: time.Hour})[0]
		r.equal("attempt", d.Attempt, 2)
		r.equal("came back after", time.Since(began), time.Minute)
		r.wantErr(d.Nack(ctx, jetbus.NackOptions{Delay: -1}), jetbus.ErrInvalidOption)
		r.ok(d.GiveBack(ctx))
		d = r.receive("g", jetbus.ReceiveOptions{})[0]
		r.equal("attempt after it was given back", d.Attempt, 2)
		r.equal("came back after", time.Since(began), time.Minute)
		r.ok(r.bus.Nack(ctx, "a", "g", d.ID, "no"))
		d = r.receive("g", jetbus.ReceiveOptions{Wait: time.Hour, MaxAttempts: 9})[0]
		if d.Attempt != 3 || d.MaxAttempts != 9 {
			r.Errorf("attempt %d of %d", d.Attempt, d.MaxAttempts)
		}
		for _, o := range []jetbus.ReceiveOptions{{Max: -1}, {Max: 1_000_000}, {Wait: -2}, {AckTimeout: 1}, {MaxAttempts: -2}} {
			_, err := r.bus.Receive(ctx, "a", "g", o)
			r.wantErr(err, jetbus.ErrInvalidOption)
		}
		_, err := r.bus.Receive(ctx, "a", "g.", jetbus.ReceiveOptions{})
		r.wantErr(err, jetbus.ErrInvalidGroup)
	})
}

// The group is moved, deleted and the broker restarted between calls.
func TestReceiveAcrossChanges(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "a"})
		r.publish("a", "1", "2", "3")
		held := r.receive("g", jetbus.ReceiveOptions{})
		r.wantErr(r.bus.SetCursor(ctx, "a", "g", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{Wait: time.Second}), jetbus.ErrGroupBusy)
		r.ok(r.bus.SetCursor(ctx, "a", "g", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{Force: true}))
		for _, d := range held {
			r.ok(d.Ack(ctx)) // has no effect any more
		}
		got := r.receive("g", jetbus.ReceiveOptions{})
		r.equal("after the move", deliveredKeys(got), "2 3")
		for _, d := range got {
			r.equal("attempt", d.Attempt, 1)
			r.ok(d.Ack(ctx))
		}
		r.ok(r.broker.Restart(ctx))
		r.publish("a", "4")
		got = r.receive("g", jetbus.ReceiveOptions{})
		r.equal("after the restart", deliveredKeys(got), "4")
		r.ok(got[0].Ack(ctx))
		r.ok(r.bus.DeleteGroup(ctx, "a", "g"))
		r.equal("after the deletion", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{})), "1 2 3 4")
		// Other settings for the leases are the group's from then on.
		r.equal("others", len(r.receive("g", jetbus.ReceiveOptions{Wait: -1, AckTimeout: time.Minute})), 0)
		r.equal("ack timeout", r.group("a", "g").AckTimeout, time.Minute)
	})
}

// Two buses receive as one group: each event goes to one of them.
func TestReceiveShares(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 500
		r.ensure(jetbus.TopicConfig{Name: "a"})
		_, other := r.open(adapter.Config{})
		must(r.bus.PublishBatch(r.Context(), numbered("a", n), jetbus.BatchOptions{}))(r.T)
		got := make(chan string, 2*n)
		done := make(chan struct{})
		for _, b := range []*adapter.Bus{r.bus, other} {
			go func() {
				defer func() { done <- struct{}{} }()
				for {
					ds, err := b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 7, Wait: time.Second})
					if err != nil || len(ds) == 0 {
						r.wantNil(err)
						return
					}
					for _, d := range ds {
						got <- d.Key
						r.wantNil(d.Ack(r.Context()))
					}
				}
			}()
		}
		<-done
		<-done
		close(got)
		seen := map[string]bool{}
		for key := range got {
			if seen[key] {
				r.Errorf("event %s went to both", key)
			}
			seen[key] = true
		}
		r.equal("events", len(seen), n)
	})
}

// What nobody settled when the bus closes goes back at once, without an attempt.
func TestCloseGivesBackReceived(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "a"})
		r.publish("a", "1", "2", "3")
		_, b := r.open(adapter.Config{})
		ds := must(b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest()}))(r.T)
		r.ok(ds[1].Ack(r.Context()))
		closeBus(r.T, b)
		if err := ds[0].Ack(r.Context()); err == nil {
			r.Error("an event that went back was acknowledged")
		}
		began := time.Now()
		got := r.receive("g", jetbus.ReceiveOptions{})
		r.equal("given back", deliveredKeys(got), "1 3")
		r.equal("came back after", time.Since(began), time.Duration(0))
		for _, d := range got {
			r.equal("attempt", d.Attempt, 1)
		}
	})
}

// A call that waits ends with the bus.
func TestCloseEndsReceive(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "a"})
		_, b := r.open(adapter.Config{})
		done := make(chan error)
		go func() {
			_, err := b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: time.Hour})
			done <- err
		}()
		synctest.Wait()
		began := time.Now()
		go closeBus(r.T, b)
		r.wantErr(<-done, jetbus.ErrClosed)
		r.equal("it took", time.Since(began), time.Duration(0))
	})
}
