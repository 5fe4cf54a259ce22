package groups_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// heldMove is group g of topic a, of which a member holds event 1, and which is being moved
// to its beginning by a process of its own.
type heldMove struct {
	*rig
	handled atomic.Int32
	mover   *adapter.Bus
	cable   *adaptertest.Cable // of the mover
	die     func()             // which it does
	moved   chan error         // by it
}

// holdMove begins a move that waits as long as it takes for an event that is held for a while.
func (r *rig) holdMove(partitions int, held time.Duration) *heldMove {
	r.Helper()
	m := r.holdEvent(partitions, held)
	m.move(2 * held)
	r.Within(time.Minute, "marked", func() bool { return r.Group("a", "g").Paused })
	return m
}

// holdEvent is a group that is not moved yet.
func (r *rig) holdEvent(partitions int, held time.Duration) *heldMove {
	r.Helper()
	m := &heldMove{rig: r, moved: make(chan error, 1)}
	o := inPartition(8)
	o.MaxLease = 2 * held
	if partitions > 0 {
		r.partitioned(partitions, o)
		r.turns().all(r.Context(), r.Bus, 1, partitions, func(ctx context.Context, _ *jetbus.Delivery) error { return m.handle(ctx, held) }, o)
	} else {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Subscribe(r.Bus, func(ctx context.Context, _ *jetbus.Delivery) error { return m.handle(ctx, held) },
			jetbus.SubscribeOptions{Concurrency: 2, MaxLease: o.MaxLease})
	}
	r.Publish("a", "1")
	r.Within(time.Minute, "held", func() bool { return m.handled.Load() == 1 })
	m.open()
	return m
}

// open makes the process that is to move the group.
func (m *heldMove) open() {
	m.cable = &adaptertest.Cable{Broker: m.Broker}
	nc, mover := m.Open(adapter.Config{}, nats.InProcessServer(m.cable))
	m.mover, m.die = mover, nc.Close
}

// move begins the move.
func (m *heldMove) move(wait time.Duration) {
	go func() { // ends with the wait, or with its connection
		m.moved <- m.mover.SetCursor(m.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{Wait: wait})
	}()
}

// handle holds the first event for a while.
func (m *heldMove) handle(ctx context.Context, held time.Duration) error {
	if m.handled.Add(1) > 1 {
		return nil
	}
	select {
	case <-time.After(held):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// standsStill publishes, and sees that nobody gets that within a time.
func (m *heldMove) standsStill(n int, during time.Duration) {
	m.Helper()
	for i := range n {
		m.Publish("a", fmt.Sprint("k", i))
	}
	time.Sleep(during)
	m.Equal("handled while the group is moved", m.handled.Load(), 1)
}

// goesOn waits until so many have been handled besides the one that is held.
func (m *heldMove) goesOn(n int32, within time.Duration) {
	m.Helper()
	m.Within(within, "what came since", func() bool { return m.handled.Load() == 1+n })
}

// However long a mover waits for held events: while it lives nobody takes its move up.
func TestMoverWaitsLong(t *testing.T) {
	for _, partitions := range []int{0, 2} {
		for _, held := range []time.Duration{17 * time.Second, 75 * time.Second} { // about as long as it lives by itself, and several times that
			t.Run(fmt.Sprint(partitions, " partitions, ", held), func(t *testing.T) {
				inBubble(t, func(r *rig) {
					m := r.holdMove(partitions, held)
					m.standsStill(3, held*9/10)
					r.OK(<-m.moved)
					m.goesOn(4, time.Minute)
				})
			})
		}
	}
}

// Who joins a group that is being moved waits for that, however long it takes.
func TestJoinWhileMoverWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := r.holdMove(0, 2*time.Minute)
		_, b := r.Open(adapter.Config{})
		joined := make(chan error, 1)
		go func() {
			_, err := b.Subscribe(r.Context(), "a", "g", func(context.Context, *jetbus.Delivery) error {
				m.handled.Add(1)
				return nil
			}, jetbus.SubscribeOptions{})
			joined <- err
		}()
		m.standsStill(3, 100*time.Second)
		r.Equal("joined", len(joined), 0)
		r.OK(<-m.moved)
		r.OK(<-joined)
		m.goesOn(4, time.Minute)
	})
}

// When a mover dies the group goes on soon after, wherever it was to be moved: that its
// events are held still, nobody waits for.
func TestMoverDies(t *testing.T) {
	for _, partitions := range []int{0, 2} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				m := r.holdMove(partitions, 10*time.Minute)
				m.standsStill(3, time.Minute)
				m.die()
				r.WantErr(<-m.moved, jetbus.ErrClosed)
				m.goesOn(3, 30*time.Second)
			})
		})
	}
}

// A group that was paused before it was moved stays so behind a mover that dies, whether the
// move is completed for it or given up.
func TestPauseOutlivesADeadMover(t *testing.T) {
	for what, c := range map[string]struct {
		held time.Duration
		goOn int32
	}{"completed": {90 * time.Second, 4}, "given up": {10 * time.Minute, 3}} {
		for _, partitions := range []int{0, 2} {
			t.Run(fmt.Sprint(what, ", ", partitions, " partitions"), func(t *testing.T) {
				inBubble(t, func(r *rig) {
					m := r.holdEvent(partitions, c.held)
					r.OK(r.Bus.PauseGroup(r.Context(), "a", "g", time.Now().Add(time.Hour)))
					m.move(2 * c.held)
					m.standsStill(3, time.Minute)
					m.die()
					r.WantErr(<-m.moved, jetbus.ErrClosed)
					m.standsStill(0, 5*time.Minute)
					ctx, cancel := context.WithTimeout(r.Context(), 2*time.Minute) // for what is held
					defer cancel()
					r.OK(r.Bus.ResumeGroup(ctx, "a", "g"))
					m.goesOn(c.goOn, time.Minute)
				})
			})
		}
	}
}

// wantOutlived wants the error of what was done under a lock to say why it ended.
func (r *rig) wantOutlived(err error) {
	r.Helper()
	r.WantErr(err, jetbus.ErrUnavailable)
	if !strings.Contains(fmt.Sprint(err), "somebody else may have the lock") || errors.Is(err, context.Canceled) {
		r.Errorf("got error %v", err)
	}
}

// A mover that is cut off for less than its locks live goes on. One that is for longer leaves
// the group to others, and begins anew when it is back.
func TestMoverCutOff(t *testing.T) {
	for _, c := range []struct {
		deaf    time.Duration
		goesOn  int32 // meanwhile
		standOn time.Duration
	}{{10 * time.Second, 0, time.Minute}, {time.Minute, 3, 20 * time.Second}} {
		for _, partitions := range []int{0, 2} {
			t.Run(fmt.Sprint(partitions, " partitions, ", c.deaf), func(t *testing.T) {
				inBubble(t, func(r *rig) {
					m := r.holdMove(partitions, 2*time.Minute)
					m.standsStill(3, 30*time.Second)
					m.cable.Deaf.Store(true)
					time.Sleep(c.deaf)
					r.Equal("handled meanwhile", m.handled.Load(), 1+c.goesOn)
					m.cable.Cut()
					time.Sleep(5 * time.Second)
					r.Equal("begun anew", r.Group("a", "g").Paused, true)
					time.Sleep(c.standOn)
					r.Equal("handled while the group is moved", m.handled.Load(), 1+c.goesOn)
					r.OK(<-m.moved)
					m.goesOn(c.goesOn+4, time.Minute)
				})
			})
		}
	}
}

// The partitions that a mover has marked stand still until it has the locks of the others,
// the owners of which died, though it waits for held events far shorter, and is cut off for
// a while.
func TestMoverWaitsForLocks(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(2, inPartition(1))
		must(r.Bus.KeySet(r.Context(), "JETBUS_LOCKS", "group.EV_A.a__g__p1_1", nil, 0, time.Minute))(t)
		moved := make(chan error, 1)
		w, mover := r.OpenCabled(adapter.Config{})
		go func() {
			moved <- mover.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{Wait: time.Second})
		}()
		time.Sleep(time.Second)
		var handled atomic.Int32
		r.publishKeys("a", 20, 0, 1)
		r.turns().all(r.Context(), r.Bus, 1, 1, func(context.Context, *jetbus.Delivery) error {
			handled.Add(1)
			return nil
		}, inPartition(1))
		time.Sleep(30 * time.Second)
		w.Deaf.Store(true)
		time.Sleep(10 * time.Second)
		w.Cut()
		time.Sleep(10 * time.Second)
		r.Equal("handled", handled.Load(), 0)
		r.OK(<-moved)
		r.Within(time.Minute, "handled", func() bool { return handled.Load() > 0 })
	})
}

// A bus that closes waits for its moves, which it keeps alive until they end.
func TestBusClosesWhileMoverWaits(t *testing.T) {
	for _, partitions := range []int{0, 2} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				m := r.holdMove(partitions, time.Minute)
				closed := make(chan error, 1)
				go func() {
					ctx, cancel := context.WithTimeout(r.Context(), 5*time.Minute)
					defer cancel()
					closed <- m.mover.Close(ctx)
				}()
				m.standsStill(3, 45*time.Second)
				r.OK(<-m.moved)
				r.OK(<-closed)
				m.goesOn(4, time.Minute)
			})
		})
	}
}

// A mover that gives up unmarks all its partitions, however many, and gives their locks back.
func TestMoverGivesUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		const partitions = 48
		r.partitioned(partitions, inPartition(8))
		held := make(chan struct{})
		r.turns().all(r.Context(), r.Bus, 1, partitions, func(context.Context, *jetbus.Delivery) error {
			<-held
			return nil
		}, inPartition(8))
		r.Publish("a", "1")
		distant := r.OpenDistant(100 * time.Millisecond) // one after the other would take 20 s
		time.Sleep(time.Second)
		began := time.Now()
		err := distant.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{Wait: time.Second})
		r.WantErr(err, jetbus.ErrGroupBusy)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		r.Equal("paused", r.Group("a", "g").Paused, false)
		close(held)
		r.OK(r.Bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{Wait: 5 * time.Second}))
	})
}

// A mover whose lock is another's leaves the marks to that one, for which it waits, and begins
// anew.
func TestMoverLosesLock(t *testing.T) {
	for _, partitions := range []int{0, 2} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				m := r.holdMove(partitions, 5*time.Minute)
				const bucket, lock = "JETBUS_LOCKS", "group.EV_A.a__g"
				e := must(r.Bus.KeyGet(r.Context(), bucket, lock))(t)
				must(r.Bus.KeySet(r.Context(), bucket, lock, nil, e.Revision, 2*time.Minute))(t)
				m.standsStill(3, 10*time.Second)
				m.goesOn(3, time.Minute) // its marks are over
				r.Equal("paused while it waits", r.Group("a", "g").Paused, false)
				time.Sleep(2 * time.Minute)
				r.Equal("paused when it has begun anew", r.Group("a", "g").Paused, true)
				r.OK(<-m.moved)
				m.goesOn(7, time.Minute)
			})
		})
	}
}

// That an owner has put the next durable in the place of the group's, where it was, is no move:
// one that others have given up meanwhile is begun anew.
func TestMoveThatWasGivenUpBeginsAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		m := &heldMove{rig: r, moved: make(chan error, 1)}
		o := jetbus.SubscribeOptions{Order: jetbus.PerKey, MaxLease: 20 * time.Minute}
		handle := func(ctx context.Context, _ *jetbus.Delivery) error { return m.handle(ctx, 10*time.Minute) }
		first := r.Subscribe(r.Bus, handle, o)
		r.Publish("a", "1")
		r.Within(time.Minute, "held", func() bool { return m.handled.Load() == 1 })
		m.open()
		m.move(5 * time.Minute)
		r.Within(time.Minute, "marked", func() bool { return r.Group("a", "g").Paused })
		before := r.durable()
		m.cable.Deaf.Store(true)
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Minute)
		defer cancel()
		r.OK(r.Bus.PauseGroup(ctx, "a", "g", time.Now().Add(time.Hour))) // which gives it up
		r.OK(r.Bus.ResumeGroup(ctx, "a", "g"))
		r.Subscribe(r.Bus, handle, o)
		now, cancelNow := context.WithTimeout(r.Context(), time.Second)
		defer cancelNow()
		_ = first.Stop(now)
		m.goesOn(1, time.Minute)
		if after := r.durable(); after == before {
			r.Errorf("%s was not replaced", before)
		}
		m.cable.Cut()
		r.OK(<-m.moved)
		m.goesOn(2, time.Minute)
	})
}

// What others have taken up and brought to its end meanwhile, a mover that has lost its locks
// does not do again.
func TestMoveIsTakenUpOnce(t *testing.T) {
	for _, partitions := range []int{0, 2} {
		t.Run(fmt.Sprint(partitions, " partitions"), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				m := r.holdMove(partitions, 90*time.Second)
				m.cable.Deaf.Store(true)
				time.Sleep(2 * time.Minute)
				ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
				defer cancel()
				r.OK(r.Bus.PauseGroup(ctx, "a", "g", time.Now().Add(time.Hour))) // which takes it up
				r.OK(r.Bus.ResumeGroup(ctx, "a", "g"))
				m.goesOn(1, time.Minute)
				m.cable.Cut()
				r.OK(<-m.moved)
				m.Publish("a", "2")
				time.Sleep(time.Minute)
				r.Equal("handled", m.handled.Load(), 3)
			})
		})
	}
}
