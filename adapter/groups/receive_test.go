package groups_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// receive is one call on topic a, from its beginning.
func (r *rig) receive(group string, o jetbus.ReceiveOptions) []*jetbus.Delivery {
	r.Helper()
	o.From = jetbus.Earliest()
	return must(r.Bus.Receive(r.Context(), "a", group, o))(r.T)
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
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 150), jetbus.BatchOptions{}))(r.T)
		began := time.Now()
		r.Equal("two", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{Max: 2})), "0 1")
		r.Equal("the default", len(r.receive("g", jetbus.ReceiveOptions{})), 100)
		r.Equal("the rest", len(r.receive("g", jetbus.ReceiveOptions{})), 48)
		r.Equal("time for what is there", time.Since(began), time.Duration(0))
		r.Equal("none", len(r.receive("g", jetbus.ReceiveOptions{Wait: -1})), 0)
		r.Equal("time without a wait", time.Since(began), time.Duration(0))
		r.Equal("held", r.Group("a", "g").Held, 150)
	})
}

func TestReceiveWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		began := time.Now()
		r.Equal("none", len(r.receive("g", jetbus.ReceiveOptions{})), 0)
		r.Equal("the default wait", time.Since(began).Round(time.Second), jetbus.DefaultReceiveWait)
		time.AfterFunc(time.Minute, func() {
			_, err := r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 3), jetbus.BatchOptions{})
			r.WantNil(err)
		})
		began = time.Now()
		got := r.receive("g", jetbus.ReceiveOptions{Wait: time.Hour})
		if len(got) == 0 || time.Since(began) != time.Minute {
			r.Errorf("%d events after %v", len(got), time.Since(began))
		}
		for len(got) < 3 {
			got = append(got, r.receive("g", jetbus.ReceiveOptions{})...)
		}
		r.Equal("events", deliveredKeys(got), "0 1 2")

		ctx, cancel := context.WithCancel(r.Context())
		time.AfterFunc(time.Second, cancel)
		began = time.Now()
		_, err := r.Bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: time.Hour})
		r.WantErr(err, context.Canceled)
		r.Equal("canceled after", time.Since(began), time.Second)
		// The request that is still open at the server takes nothing away.
		r.Publish("a", "next")
		r.Equal("next", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{})), "next")
	})
}

// Events that come when nobody waits for them any more go back at once. (The
// attempt may be 2: the server counts a delivery to an inbox that has just gone.)
func TestReceiveLateEvents(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		for round := range 20 {
			ctx, cancel := context.WithCancel(r.Context())
			done := make(chan []*jetbus.Delivery)
			go func() {
				ds, _ := r.Bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: time.Hour, From: jetbus.Earliest()}) // canceled or not
				done <- ds
			}()
			synctest.Wait()
			go cancel()
			r.Publish("a", fmt.Sprint(round))
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
			r.OK(got[0].Ack(r.Context()))
		}
		r.Equal("held", r.Group("a", "g").Held, 0)
	})
}

// Nobody extends what Receive handed out, unless the caller does.
func TestReceiveLeases(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "kept", "long", "left")
		ds := r.receive("g", jetbus.ReceiveOptions{AckTimeout: 10 * time.Second})
		kept, long, left := ds[0], ds[1], ds[2]
		if until := time.Until(left.Deadline()); until < 8*time.Second || until > 10*time.Second {
			r.Errorf("the lease lasts %v", until)
		}
		r.OK(long.Extend(ctx, time.Minute))
		for range 10 {
			time.Sleep(5 * time.Second)
			r.OK(kept.Extend(ctx, 0))
		}
		r.WantErr(left.Ack(ctx), jetbus.ErrLeaseExpired)
		r.WantErr(left.Extend(ctx, 0), jetbus.ErrLeaseExpired)
		r.WantErr(left.Nack(ctx, jetbus.NackOptions{}), jetbus.ErrLeaseExpired)
		r.OK(kept.Ack(ctx))
		r.OK(long.Ack(ctx))
		r.WantErr(long.Ack(ctx), jetbus.ErrAlreadySettled)
		again := r.receive("g", jetbus.ReceiveOptions{AckTimeout: 10 * time.Second})
		if len(again) != 1 || again[0].Key != "left" || again[0].Attempt != 2 {
			r.Fatalf("got %q", deliveredKeys(again))
		}
		// By its id, on behalf of somebody who knows nothing else.
		r.WantErr(r.Bus.Ack(ctx, "a", "other", again[0].ID), jetbus.ErrNotHeld)
		r.OK(r.Bus.Ack(ctx, "a", "g", again[0].ID))
		r.WantErr(r.Bus.Ack(ctx, "a", "g", again[0].ID), jetbus.ErrNotHeld)
		g := r.Group("a", "g")
		r.Equal("held", g.Held, 0)
		r.Equal("settled up to", g.AckedSeq, 3)
	})
}

func TestReceiveRefusals(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1")
		began := time.Now()
		d := r.receive("g", jetbus.ReceiveOptions{})[0]
		r.OK(d.Nack(ctx, jetbus.NackOptions{Delay: time.Minute}))
		d = r.receive("g", jetbus.ReceiveOptions{Wait: time.Hour})[0]
		r.Equal("attempt", d.Attempt, 2)
		r.Equal("came back after", time.Since(began), time.Minute)
		r.WantErr(d.Nack(ctx, jetbus.NackOptions{Delay: -1}), jetbus.ErrInvalidOption)
		r.OK(d.GiveBack(ctx))
		d = r.receive("g", jetbus.ReceiveOptions{})[0]
		r.Equal("attempt after it was given back", d.Attempt, 2)
		r.Equal("came back after", time.Since(began), time.Minute)
		r.OK(r.Bus.Nack(ctx, "a", "g", d.ID, "no"))
		d = r.receive("g", jetbus.ReceiveOptions{Wait: time.Hour, MaxAttempts: 9})[0]
		if d.Attempt != 3 || d.MaxAttempts != 9 {
			r.Errorf("attempt %d of %d", d.Attempt, d.MaxAttempts)
		}
		for _, o := range []jetbus.ReceiveOptions{{Max: -1}, {Max: 1_000_000}, {Wait: -2}, {AckTimeout: 1}, {MaxAttempts: -2}} {
			_, err := r.Bus.Receive(ctx, "a", "g", o)
			r.WantErr(err, jetbus.ErrInvalidOption)
		}
		_, err := r.Bus.Receive(ctx, "a", "g.", jetbus.ReceiveOptions{})
		r.WantErr(err, jetbus.ErrInvalidGroup)
	})
}

// The group is moved, deleted and the broker restarted between calls.
func TestReceiveAcrossChanges(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1", "2", "3")
		held := r.receive("g", jetbus.ReceiveOptions{})
		r.WantErr(r.Bus.SetCursor(ctx, "a", "g", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{Wait: time.Second}), jetbus.ErrGroupBusy)
		r.OK(r.Bus.SetCursor(ctx, "a", "g", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{Force: true}))
		for _, d := range held {
			r.OK(d.Ack(ctx)) // has no effect any more
		}
		got := r.receive("g", jetbus.ReceiveOptions{})
		r.Equal("after the move", deliveredKeys(got), "2 3")
		for _, d := range got {
			r.Equal("attempt", d.Attempt, 1)
			r.OK(d.Ack(ctx))
		}
		r.OK(r.Broker.Restart(ctx))
		r.Publish("a", "4")
		got = r.receive("g", jetbus.ReceiveOptions{})
		r.Equal("after the restart", deliveredKeys(got), "4")
		r.OK(got[0].Ack(ctx))
		r.OK(r.Bus.DeleteGroup(ctx, "a", "g"))
		r.Equal("after the deletion", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{})), "1 2 3 4")
		// Other settings for the leases are the group's from then on.
		r.Equal("others", len(r.receive("g", jetbus.ReceiveOptions{Wait: -1, AckTimeout: time.Minute})), 0)
		r.Equal("ack timeout", r.Group("a", "g").AckTimeout, time.Minute)
	})
}

// Two buses receive as one group: each event goes to one of them.
func TestReceiveShares(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 500
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		_, other := r.Open(adapter.Config{})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", n), jetbus.BatchOptions{}))(r.T)
		got := make(chan string, 2*n)
		done := make(chan struct{})
		for _, b := range []*adapter.Bus{r.Bus, other} {
			go func() {
				defer func() { done <- struct{}{} }()
				for {
					ds, err := b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 7, Wait: time.Second})
					if err != nil || len(ds) == 0 {
						r.WantNil(err)
						return
					}
					for _, d := range ds {
						got <- d.Key
						r.WantNil(d.Ack(r.Context()))
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
		r.Equal("events", len(seen), n)
	})
}

// What nobody settled when the bus closes goes back at once, without an attempt.
func TestCloseGivesBackReceived(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1", "2", "3")
		_, b := r.Open(adapter.Config{})
		ds := must(b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest()}))(r.T)
		r.OK(ds[1].Ack(r.Context()))
		adaptertest.CloseBus(r.T, b)
		if err := ds[0].Ack(r.Context()); err == nil {
			r.Error("an event that went back was acknowledged")
		}
		began := time.Now()
		got := r.receive("g", jetbus.ReceiveOptions{})
		r.Equal("given back", deliveredKeys(got), "1 3")
		r.Equal("came back after", time.Since(began), time.Duration(0))
		for _, d := range got {
			r.Equal("attempt", d.Attempt, 1)
		}
	})
}

// What is on its way to a call that Close ends goes back, and does not wait for the end of its lease.
func TestCloseGivesBackWhatIsOnItsWay(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		far := r.OpenDistant(100 * time.Millisecond)
		ended := make(chan error)
		go func() {
			_, err := far.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: time.Hour, From: jetbus.Earliest()})
			ended <- err
		}()
		time.Sleep(5 * time.Second)
		closed := make(chan error)
		go func() { closed <- far.Close(r.Context()) }()
		r.WantErr(<-ended, jetbus.ErrClosed)
		r.Publish("a", "1") // the server knows of no end
		r.OK(<-closed)
		got := r.receive("g", jetbus.ReceiveOptions{})
		r.Equal("given back", deliveredKeys(got), "1")
		for _, d := range got {
			r.Equal("attempt", d.Attempt, 1)
		}
	})
}

// A call that waits ends with the bus.
func TestCloseEndsReceive(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		_, b := r.Open(adapter.Config{})
		done := make(chan error)
		go func() {
			_, err := b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: time.Hour})
			done <- err
		}()
		synctest.Wait()
		began := time.Now()
		go adaptertest.CloseBus(r.T, b)
		r.WantErr(<-done, jetbus.ErrClosed)
		r.Equal("it took", time.Since(began), time.Duration(0))
	})
}
