//go:build unix

package partitions

import (
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
)

const keys = 24

// TestKilled: what a member had that was killed passes on when its session is over, with
// the event that it was at first. The other partitions do not pause.
func TestKilled(t *testing.T) {
	t.Parallel()
	s, _ := alone(t)
	victim := s.config("victim", deathTTL)
	victim.Hold = "held"
	m := s.startAll(s.config("a", longTTL), s.config("b", longTTL), victim)
	stop := s.load(keys)
	held := s.hold(m[2])
	had, others := m[2].owned(), ownedBy(m[0], m[1])
	m[2].kill()
	killed := time.Now()
	s.took(had, m[0], m[1])
	t.Logf("taken over after %v, TTL %v", time.Since(killed), deathTTL)
	s.undisturbed(others, m[0], m[1])
	stop()
	a := s.account()
	if len(a.inside) > 0 {
		t.Errorf("%v, want no overlap", a)
	}
	again := 0
	for _, o := range m[:2] {
		for _, r := range o.said(isHandled) {
			if r.ID == held.ID && r.Epoch > held.Epoch {
				again++
			}
		}
	}
	if again != 1 {
		t.Errorf("what the killed one was at was handled %d times by others, want once", again)
	}
}

// TestFrozen: a member that is frozen for longer than the TTL is replaced. When it goes on
// it notices: its handler is canceled, and what it had is others'.
func TestFrozen(t *testing.T) {
	t.Parallel()
	s, _ := alone(t)
	victim := s.config("victim", shortTTL)
	victim.Hold = "held"
	m := s.startAll(s.config("a", longTTL), s.config("b", longTTL), victim)
	stop := s.load(keys)
	held := s.hold(m[2])
	had, others := m[2].owned(), ownedBy(m[0], m[1])
	must(t, m[2].freeze())
	s.took(had, m[0], m[1])
	s.undisturbed(others, m[0], m[1])
	s.eventually(func() string {
		if !m[0].has(isHandled, held.ID) && !m[1].has(isHandled, held.ID) {
			return "nobody handled what the frozen one is at"
		}
		return ""
	})
	must(t, m[2].thaw())
	m[2].await(t, isCanceled, func(r report) bool { return r.ID == held.ID && r.Epoch == held.Epoch })
	for p, epoch := range had {
		r := m[2].await(t, isRevoked, func(r report) bool { return r.Partition == p && r.Epoch == epoch })
		if r.Clean {
			t.Errorf("the frozen one says that it handed over %s", p)
		}
	}
	s.balanced(m...) // it has joined anew
	stop()
	s.account()
	for p, epoch := range had {
		if now, ok := m[2].owned()[p]; ok && now <= epoch {
			t.Errorf("partition %s has epoch %d, and had %d before", p, now, epoch)
		}
	}
}

// TestIgnoring: a handler that ignores its context goes on while the partition has
// another owner: the documented case, in which the epoch tells the two apart.
func TestIgnoring(t *testing.T) {
	t.Parallel()
	s, b := alone(t)
	p := b.Proxy(t)
	victim := s.config("victim", shortTTL)
	victim.URL, victim.Hold, victim.Stubborn = p.URL(), "held", true
	m := s.startAll(s.config("a", longTTL), victim)
	held := s.hold(m[1])
	p.HalfOpen()
	s.took(map[jetbus.Partition]uint64{held.Partition: held.Epoch}, m[0])
	r := m[0].await(t, isHandled, func(r report) bool { return r.ID == held.ID })
	must(t, m[1].Order("release"))
	late := m[1].await(t, isHandled, func(r report) bool { return r.ID == held.ID })
	if late.Epoch >= r.Epoch {
		t.Errorf("what comes late has epoch %d, the new owner %d", late.Epoch, r.Epoch)
	}
	p.Cut()
	s.balanced(m...)
	s.settled()
}

// TestStopped: a member that stops in order hands over at once: nothing is handled
// twice, and the other partitions do not pause.
func TestStopped(t *testing.T) {
	t.Parallel()
	s, _ := alone(t)
	m := s.startAll(s.config("a", longTTL), s.config("b", longTTL), s.config("c", longTTL))
	stop := s.load(keys)
	chaos.Linger(t.Context(), 500*time.Millisecond)
	had, others := m[2].owned(), ownedBy(m[0], m[1])
	m[2].stop(t)
	s.balanced(m[0], m[1])
	s.took(had, m[0], m[1])
	s.undisturbed(others, m[0], m[1])
	for _, r := range m[2].said(isRevoked) {
		if !r.Clean {
			t.Errorf("partition %s was not handed over", r.Partition)
		}
	}
	stop()
	s.account().exact(t)
}

// TestDeploy: replicas are replaced one by one under load: nothing is handled twice.
func TestDeploy(t *testing.T) {
	t.Parallel()
	for name, static := range map[string]bool{"static": true, "not static": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := alone(t)
			configs := []memberConfig{s.config("a", longTTL), s.config("b", longTTL), s.config("c", longTTL)}
			for i := range configs {
				configs[i].Static = static
			}
			m := s.startAll(configs...)
			stop := s.load(keys)
			for i, c := range configs {
				s.replace(m, i, c)
			}
			stop()
			s.account().exact(t)
		})
	}
}

// replace stops a member and starts another one in its place, of the same name if it is
// static. No partitions move but its own.
func (s *service) replace(m []*member, i int, c memberConfig) {
	s.Helper()
	rest := append(append([]*member{}, m[:i]...), m[i+1:]...)
	had, others := m[i].owned(), ownedBy(rest...)
	m[i].stop(s.T)
	if !c.Static {
		c.Member += "-next"
		s.balanced(rest...)
		s.undisturbed(others, rest...)
		others = ownedBy(rest...)
	}
	m[i] = s.start(c)
	s.balanced(m...)
	now := m[i].owned()
	if c.Static {
		s.undisturbed(others, rest...)
		s.took(had, m[i])
		return
	}
	for _, o := range others { // those alone that passed to the new one
		for p := range now {
			delete(o, p)
		}
	}
	s.undisturbed(others, rest...)
}

// TestHalfOpen: a member whose connection is dead without a sign stops by itself, before
// others take over. When it is back it has its share.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	s, b := alone(t)
	p := b.Proxy(t)
	victim := s.config("victim", shortTTL)
	victim.URL, victim.Hold = p.URL(), "held"
	m := s.startAll(s.config("a", longTTL), s.config("b", longTTL), victim)
	stop := s.load(keys)
	held := s.hold(m[2])
	had, others := m[2].owned(), ownedBy(m[0], m[1])
	p.HalfOpen()
	m[2].await(t, isCanceled, func(r report) bool { return r.ID == held.ID && r.Epoch == held.Epoch })
	s.took(had, m[0], m[1])
	s.undisturbed(others, m[0], m[1])
	p.Cut()
	s.balanced(m...)
	stop()
	s.account()
}

// TestBrokerRestarted: while the broker is away all members stop, and go on with its store.
func TestBrokerRestarted(t *testing.T) {
	t.Parallel()
	s, b := alone(t)
	m := s.startAll(s.config("a", shortTTL), s.config("b", shortTTL))
	stop := s.load(keys)
	chaos.Linger(t.Context(), 500*time.Millisecond)
	must(t, b.Kill())
	s.eventually(func() string {
		for _, m := range m {
			if have := m.owned(); len(have) > 0 {
				return m.config.Member + " goes on without a broker"
			}
		}
		return ""
	})
	before := len(m[0].said(isStarted)) + len(m[1].said(isStarted))
	chaos.Linger(t.Context(), 300*time.Millisecond)
	if now := len(m[0].said(isStarted)) + len(m[1].said(isStarted)); now > before {
		t.Errorf("%d handlers began without a broker", now-before)
	}
	must(t, b.Restart())
	s.balanced(m...)
	stop()
	s.publish(t.Context(), s.bus, names("key", keys), 5, 0)
	s.account()
}

// TestGrown: a topic that grows has its members share out what it has then. Publishers who
// do not know of it go on: nothing is handled twice, or before what its key had before.
func TestGrown(t *testing.T) {
	t.Parallel()
	s, _ := alone(t)
	m := s.startAll(s.config("a", longTTL), s.config("b", longTTL), s.config("c", longTTL))
	var stop []func()
	for _, who := range []string{"left", "right"} {
		stop = append(stop, s.loadFrom(s.open(), names(who, keys/2)))
	}
	chaos.Linger(t.Context(), 500*time.Millisecond)
	s.grow()
	s.balanced(m...)
	chaos.Linger(t.Context(), 500*time.Millisecond)
	for _, stop := range stop {
		stop()
	}
	s.account().exact(t)
	s.acrossGenerations()
}
