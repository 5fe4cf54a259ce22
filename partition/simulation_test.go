package partition_test

import (
	"context"
	"flag"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus/partition"
)

var simulate = flag.String("simulate", "20x64", "members x partitions of the group that TestSimulation plays")

// TestSimulation plays a group that is larger than one machine runs, and prints
// what it costs: writes to the bucket, changes that it has to tell members of, moves
// and how long partitions stand still. Members are all in this process, and time is
// not real; what one step of a member takes is not in it.
func TestSimulation(t *testing.T) {
	var members, partitions int
	if _, err := fmt.Sscanf(*simulate, "%dx%d", &members, &partitions); err != nil {
		t.Fatal(err)
	}
	remembering := &remembered{}
	partition.SetAssign(remembering.assign)
	defer partition.SetAssign(partition.Assign)
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{T: t, keys: newMemKeys(), n: partitions, since: make([]time.Time, partitions), busy: make([]bool, partitions)}
		for i := range partitions {
			s.since[i] = time.Now()
		}
		s.members = make([]*simulated, members)
		var joining sync.WaitGroup
		for i := range members {
			joining.Go(func() { s.members[i] = s.join(i) })
		}
		joining.Wait()
		s.report("all join at once", time.Minute, partitions)
		s.report("a minute of peace", time.Minute, 0)
		share := (partitions + members - 1) / members
		s.members = append(s.members, s.join(members))
		s.report("one joins", time.Minute, partitions/(members+1)+1)
		s.during("one leaves in order", time.Minute, share, func() { s.stop(0) })
		s.members[1].line.die()
		s.report("one dies", time.Minute, share)
		rng := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // reproducible on purpose
		had := 0
		for _, i := range rng.Perm(members - 2)[:members/10] {
			had += len(s.members[2+i].Owned())
			s.members[2+i].line.die()
		}
		s.report("a tenth dies at once", time.Minute, had)
		for _, m := range s.members {
			m.line.mend()
		}
		var all sync.WaitGroup
		for i := range s.members {
			all.Go(func() { s.stop(i) })
		}
		all.Wait()
	})
}

// remembered computes each assignment once, for members that see the same.
type remembered struct {
	mu     sync.Mutex
	seed   maphash.Seed
	known  map[uint64][]string
	asked  int
	unlike int // assignments that were computed
}

func (r *remembered) assign(n int, members []partition.Member, holders []string) []string {
	var h maphash.Hash
	r.mu.Lock()
	if r.known == nil {
		r.seed, r.known = maphash.MakeSeed(), map[uint64][]string{}
	}
	h.SetSeed(r.seed)
	r.asked++
	r.mu.Unlock()
	for _, m := range members {
		_, _ = h.WriteString(m.ID)
		_ = h.WriteByte(byte(m.Weight))
	}
	_ = h.WriteByte(0xff)
	for _, id := range holders {
		_, _ = h.WriteString(id)
		_ = h.WriteByte(0xff)
	}
	sum := h.Sum64()
	r.mu.Lock()
	defer r.mu.Unlock()
	out, known := r.known[sum]
	if !known {
		if len(r.known) > 200 {
			clear(r.known)
		}
		out = partition.Assign(n, members, holders)
		r.known[sum] = out
		r.unlike++
	}
	return out
}

// simulation is a large group, and what has been counted of it.
type simulation struct {
	*testing.T
	keys    *memKeys
	n       int
	members []*simulated

	mu      sync.Mutex
	since   []time.Time // since when a partition is with nobody
	busy    []bool
	moves   int
	longest time.Duration // without an owner
}

type simulated struct {
	*partition.Membership
	line *line
}

func (s *simulation) join(i int) *simulated {
	m := &simulated{line: newLine(s.keys, uint64(i))} //nolint:gosec // not negative
	joined, err := partition.Join(s.Context(), m.line, "sim", s.own, partition.Options{Partitions: s.n, Member: fmt.Sprintf("member-%04d", i)})
	if err != nil {
		s.Error(err)
	}
	m.Membership = joined
	return m
}

func (s *simulation) stop(i int) {
	if err := s.members[i].Stop(s.Context()); err != nil {
		s.Error(err)
	}
}

func (s *simulation) own(ctx context.Context, t *partition.Turn) (bool, error) {
	s.mu.Lock()
	if s.busy[t.Partition] {
		s.Errorf("partition %d has two owners", t.Partition)
	}
	s.moves++
	s.busy[t.Partition] = true
	s.longest = max(s.longest, time.Since(s.since[t.Partition]))
	s.mu.Unlock()
	select {
	case <-t.Revoked():
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy[t.Partition], s.since[t.Partition] = false, time.Now()
	return ctx.Err() == nil, nil
}

// report lets time pass and says what happened meanwhile. No more than so many
// partitions may have moved, and each must have an owner in the end.
func (s *simulation) report(what string, d time.Duration, most int) {
	s.Helper()
	s.during(what, d, most, func() {})
}

// during is report of the time that begins with what f does.
func (s *simulation) during(what string, d time.Duration, most int, f func()) {
	s.Helper()
	s.mu.Lock()
	s.moves, s.longest = 0, 0
	s.mu.Unlock()
	s.keys.mu.Lock()
	writes, told := s.keys.writes, s.keys.told
	s.keys.mu.Unlock()
	f()
	time.Sleep(d)
	synctest.Wait()
	s.keys.mu.Lock()
	writes, told = s.keys.writes-writes, s.keys.told-told
	s.keys.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Logf("%-20s %6.1f writes/s  %9.0f changes told/s  %5d moves  %v at most without an owner",
		what, float64(writes)/d.Seconds(), float64(told)/d.Seconds(), s.moves, s.longest.Round(time.Millisecond))
	if s.moves > most {
		s.Errorf("%s: %d partitions moved, %d would have done", what, s.moves, most)
	}
	for p, busy := range s.busy {
		if !busy {
			s.Errorf("%s: partition %d has no owner", what, p)
		}
	}
}
