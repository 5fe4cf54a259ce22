//go:build unix

package partitions

import (
	"slices"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// TestShared: members become more, and then less, under load. No more partitions move than
// have to, each when its owner has done what it does at the end of a turn, and nothing
// is handled twice.
func TestShared(t *testing.T) {
	t.Parallel()
	s, _ := alone(t)
	config := func(name string) memberConfig {
		c := s.config(name, longTTL)
		c.Leave = 300 * time.Millisecond
		return c
	}
	m := s.startAll(config("a"), config("b"), config("c"))
	stop := s.load(keys)
	before := ownedBy(m...)
	m = append(m, s.start(config("d")))
	s.balanced(m...)
	for p := range m[3].owned() {
		for _, had := range before {
			delete(had, p)
		}
	}
	s.undisturbed(before, m[:3]...)
	before = ownedBy(m[:2]...)
	m[3].stop(t)
	m[2].stop(t)
	s.balanced(m[:2]...)
	s.undisturbed(before, m[:2]...)
	stop()
	s.account().exact(t)
}

// TestLateSuccess: a member that was frozen for longer than the TTL finishes what it was
// at. Its success settles nothing: the event is its new owner's, who may still fail.
func TestLateSuccess(t *testing.T) {
	t.Parallel()
	s, _ := alone(t)
	victim, heir := s.config("victim", shortTTL), s.config("heir", longTTL)
	victim.Hold, victim.Stubborn = "held", true
	heir.Hold, heir.HoldAgain = "held", true
	m := s.startAll(heir, victim)
	held := s.hold(m[1])
	must(t, m[1].freeze())
	again := m[0].await(t, isStarted, func(r report) bool { return r.ID == held.ID })
	must(t, m[1].thaw())
	must(t, m[1].Order("release"))
	late := m[1].await(t, isHandled, func(r report) bool { return r.ID == held.ID })
	if late.Epoch != held.Epoch || again.Epoch <= held.Epoch {
		t.Errorf("what is late has epoch %d and had %d, the new owner %d", late.Epoch, held.Epoch, again.Epoch)
	}
	m[1].stop(t) // by then all it had to say is said
	if s.drained(held.Partition) {
		t.Errorf("the success of %s, which came late, has settled the event", m[1].config.Member)
	}
	must(t, m[0].Order("release"))
	s.settled()
}

// drained reports whether the group is done with a partition.
func (s *service) drained(p jetbus.Partition) bool {
	s.Helper()
	list, err := s.bus.GroupPartitions(s.Context(), topic, group)
	must(s.T, err)
	i := slices.IndexFunc(list, func(i jetbus.PartitionInfo) bool { return i.Partition == p })
	return list[i].Drained()
}

// TestBehind: what a member gains has events that are older than all that it has handled.
// None is skipped.
func TestBehind(t *testing.T) {
	t.Parallel()
	s, _ := alone(t)
	m := s.startAll(s.config("a", longTTL), s.config("b", 2*shortTTL))
	had := m[1].owned()
	of := map[bool][]string{} // keys, by whether they are of the second one
	for _, key := range names("key", keys) {
		p, err := jetbus.PartitionOf(key, partitions)
		must(t, err)
		_, theirs := had[jetbus.Partition{Generation: 1, Number: p}]
		of[theirs] = append(of[theirs], key)
	}
	s.settled() // what it has said by then, nobody handles again
	must(t, m[1].freeze())
	const rounds = 5
	for _, theirs := range []bool{true, false} {
		s.publish(t.Context(), s.bus, of[theirs], rounds, 0)
	}
	s.eventually(func() string {
		for _, key := range of[false] {
			s.mu.Lock()
			last := s.published[key][rounds-1]
			s.mu.Unlock()
			if !m[0].has(isHandled, last) {
				return last + " is not handled"
			}
		}
		return ""
	})
	m[1].kill()
	s.took(had, m[0])
	s.account().exact(t)
}
