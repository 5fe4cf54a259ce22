package projector_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/projector"
)

// The sink is away for an hour: nothing becomes a dead letter, and nothing is held.
func TestSinkAwayForAnHour(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s := m.sink()
		var away atomic.Bool
		s.before = fails(&away)
		p := r.project(r.bus, s, options())
		r.publish("a:1")
		r.caughtUp(p)
		away.Store(true)
		r.publish(numbered(0, 300, 10)...)
		time.Sleep(time.Minute)
		if st := p.Stats(); st.Phase != projector.Away || st.Held != 0 {
			r.Errorf("stats %+v", st)
		}
		time.Sleep(time.Hour)
		r.publish("b:2")
		away.Store(false)
		r.caughtUp(p)
		m.want(t, "a=1 b=2 k0=290 k1=291 k2=292 k3=293 k4=294 k5=295 k6=296 k7=297 k8=298 k9=299")
		r.equal("dead letters", r.dead(), []string{})
		if st := p.Stats(); st.Failed > 3000 || st.Failed < 700 {
			r.Errorf("%d tries within an hour", st.Failed)
		}
	})
}

// The sink is away for one replica: the other one gets its events.
func TestSinkAwayForOneReplica(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		near, far := m.sink(), m.sink()
		var away atomic.Bool
		far.before = fails(&away)
		a := r.project(r.open(), far, options())
		r.publish("a:1")
		r.caughtUp(a)
		away.Store(true)
		r.publish(numbered(0, 100, 10)...)
		time.Sleep(20 * time.Second) // it has them all in hand
		b := r.project(r.open(), near, options())
		r.publish("b:1")
		time.Sleep(15 * time.Second) // its time is over
		r.caughtUp(b)
		m.want(t, "a=1 b=1 k0=90 k1=91 k2=92 k3=93 k4=94 k5=95 k6=96 k7=97 k8=98 k9=99")
		r.equal("phase", a.Stats().Phase, projector.Away)
		away.Store(false)
		r.eventually("its return", func() bool { return a.Stats().Phase == projector.Following })
		r.stop(b)
		r.publish("b:2")
		r.caughtUp(a)
		m.want(t, "a=1 b=2 k0=90 k1=91 k2=92 k3=93 k4=94 k5=95 k6=96 k7=97 k8=98 k9=99")
		r.equal("dead letters", r.dead(), []string{})
	})
}

// The broker is away, with a batch in hand.
func TestBrokerRestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		p := r.project(r.bus, m.sink(), options())
		r.publish(numbered(0, 100, 5)...)
		r.ok(r.broker.Kill(r.Context())) // a clean end of a broker with readers can hang in a bubble
		r.ok(r.broker.Restart(r.Context()))
		r.publish(numbered(100, 200, 5)...)
		r.caughtUp(p)
		m.want(t, "k0=195 k1=196 k2=197 k3=198 k4=199")
		r.equal("dead letters", r.dead(), []string{})
	})
}

// held is a hook that stays in the first write with changes until it is let go, or
// is told to leave.
type held struct {
	entered, leave chan struct{}
	once           sync.Once
}

func newHeld() *held {
	return &held{entered: make(chan struct{}), leave: make(chan struct{})}
}

func (h *held) before(ctx context.Context, b projector.Batch) (err error) {
	if len(b.Changes) > 0 {
		h.once.Do(func() {
			close(h.entered)
			select {
			case <-h.leave:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		})
	}
	return err
}

func TestStopLetsTheBatchBeWritten(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s, h := m.sink(), newHeld()
		s.before = h.before
		o := options()
		o.MaxBatch = 10
		p := r.project(r.bus, s, o)
		r.eventually("following", func() bool { return p.Stats().Phase == projector.Following })
		r.publish(numbered(0, 30, 30)...)
		<-h.entered
		go func() {
			time.Sleep(5 * time.Second)
			close(h.leave)
		}()
		began := time.Now()
		r.stop(p)
		if took := time.Since(began); took < 5*time.Second || took > 6*time.Second {
			r.Errorf("it took %v", took)
		}
		r.equal("batches, settled", []any{len(s.written()), r.group("p").AckedSeq}, []any{1, s.written()[0]})
		r.stop(p) // once more
		r.equal("error", p.Err(), nil)
		began = time.Now()
		p = r.project(r.bus, m.sink(), o)
		r.caughtUp(p)
		if took := time.Since(began); took > 2*time.Second {
			r.Errorf("what was given back came after %v", took)
		}
	})
}

func TestStopOfAWriteThatHangs(t *testing.T) {
	for name, c := range map[string]struct {
		patience time.Duration // of Stop's context; 0: none, below: it was canceled before
		took     time.Duration
	}{
		"ShutdownTimeout": {0, 10 * time.Second},
		"context":         {3 * time.Second, 3 * time.Second},
		"canceled before": {-1, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				m := newMemory()
				s, h := m.sink(), newHeld()
				s.before = h.before
				o := options()
				o.ShutdownTimeout = 10 * time.Second
				p := r.project(r.bus, s, o)
				r.eventually("following", func() bool { return p.Stats().Phase == projector.Following })
				r.publish("a:1", "b:1")
				<-h.entered
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				switch {
				case c.patience > 0:
					ctx, cancel = context.WithTimeout(ctx, c.patience)
					defer cancel()
				case c.patience < 0:
					cancel()
				}
				began := time.Now()
				_ = p.Stop(ctx)
				if took := time.Since(began); took < c.took || took > c.took+time.Second {
					r.Errorf("it took %v", took)
				}
				r.equal("error", p.Err(), nil)
				m.want(t, "")
				began = time.Now()
				p = r.project(r.bus, m.sink(), o)
				r.caughtUp(p)
				if took := time.Since(began); took > 2*time.Second {
					r.Errorf("what was given back came after %v", took)
				}
				m.want(t, "a=1 b=1")
			})
		})
	}
}

func TestStopWhileTheSinkIsAway(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s := m.sink()
		var away atomic.Bool
		s.before = fails(&away)
		for _, wait := range []time.Duration{5 * time.Second, 2 * time.Minute} { // with the events in hand, and without
			ctx, cancel := context.WithCancel(r.Context())
			p, err := projector.Start(ctx, r.bus, s, options())
			r.ok(err)
			r.eventually("following", func() bool { return p.Stats().Phase == projector.Following })
			away.Store(true)
			r.publish("a:1")
			time.Sleep(wait)
			began := time.Now()
			cancel() // which is a Stop
			<-p.Done()
			if took := time.Since(began); took > time.Second {
				r.Errorf("after %v it took %v", wait, took)
			}
			r.equal("error", p.Err(), nil)
			r.equal("held", p.Stats().Held, 0)
			away.Store(false)
		}
		r.equal("dead letters", r.dead(), []string{})
	})
}

// The bus is closed under a projection.
func TestBusClosed(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		bus := r.open()
		p := r.project(bus, m.sink(), options())
		r.publish("a:1")
		r.caughtUp(p)
		r.ok(bus.Close(r.Context()))
		<-p.Done()
		r.equal("error", p.Err(), nil)
	})
}

func TestStopDuringFill(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s, h := m.sink(), newHeld()
		s.before = h.before
		r.publish(numbered(0, 100, 10)...)
		p := r.project(r.bus, s, options())
		<-h.entered
		r.equal("phase", p.Stats().Phase, projector.Filling)
		began := time.Now()
		r.stop(p)
		if took := time.Since(began); took > time.Second {
			r.Errorf("it took %v", took)
		}
		r.equal("error", p.Err(), nil)
		if _, err := p.Lag(r.Context()); err != nil {
			r.Error(err)
		}
		if errors.Is(p.Err(), context.Canceled) {
			r.Error("a stop is no error")
		}
	})
}
