package partition_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/partition"
)

// TestMembersComeAndGo: partitions follow the members, one owner each, and only
// those move that have to.
func TestMembersComeAndGo(t *testing.T) {
	bubble(t, 16, func(r *rig) {
		m := r.start("a", "b", "c")
		r.settled(2*time.Second, "a", "b", "c")
		r.wants("partitions taken", r.took(), 16)

		r.start("d")
		r.settled(2*time.Second, "a", "b", "c", "d")
		r.wants("moves for one that joins", r.took()-16, 4)

		r.stop(m[0])
		r.settled(time.Second, "b", "c", "d")
		r.wants("moves for one that leaves", r.took()-20, 4)
		r.wants("what one that left owns", len(m[0].Owned()), 0)
		r.wants("its error", m[0].Err(), error(nil))
	})
}

// TestCrash: what a member had that died is taken within TTL and a second, and not
// as clean; what others have goes on.
func TestCrash(t *testing.T) {
	bubble(t, 8, func(r *rig) {
		m := r.start("a", "b")
		r.settled(2*time.Second, "a", "b")
		time.Sleep(time.Minute)
		synctest.Wait()
		moves := r.took()
		m[0].line.cut(true)
		if took := r.settled(r.ttl+time.Second, "b"); took < r.ttl/2 {
			r.Errorf("taken after %v already", took)
		}
		r.wants("moves", r.took()-moves, 4)
		r.wants("expelled", m[0].Stats().Expelled, 1)
		r.mu.Lock()
		unclean := 0
		for _, h := range r.owners {
			if !h.turn.Clean && h.turn.Epoch > 8 {
				unclean++
			}
		}
		r.mu.Unlock()
		if unclean < 4 {
			r.Errorf("%d turns after a crash are not clean, want 4", unclean)
		}
		// Back again, it is a member as before.
		m[0].line.cut(false)
		r.settled(3*time.Second, "a", "b")
	})
}

// TestCleanIsTold: the next owner knows whether the turn before ended in order.
func TestCleanIsTold(t *testing.T) {
	bubble(t, 1, func(r *rig) {
		clean := make(chan bool, 10)
		answer := true
		own := func(ctx context.Context, turn *partition.Turn) (bool, error) {
			clean <- turn.Clean
			select {
			case <-turn.Revoked():
			case <-ctx.Done():
			}
			return answer, nil
		}
		for i, want := range []bool{false, true, false, true} { // the first, after true, after false, after true
			answer = i != 1
			m, err := partition.Join(r.Context(), r.keys, "g", own, partition.Options{Partitions: 1})
			if err != nil {
				r.Fatal(err)
			}
			r.wants(fmt.Sprintf("turn %d is clean", i), <-clean, want)
			if err := m.Stop(r.Context()); err != nil {
				r.Error(err)
			}
		}
	})
}

// TestStatic: a member with a name of its own that is restarted within the TTL
// finds what it had, and nothing moves; one that stays away loses it.
func TestStatic(t *testing.T) {
	bubble(t, 12, func(r *rig) {
		static := func(id string) partition.Options {
			o := r.options(id)
			o.Static = true
			return o
		}
		var m []*member
		for _, id := range []string{"a", "b", "c"} {
			m = append(m, r.join(static(id)))
		}
		r.settled(2*time.Second, "a", "b", "c")
		for i, id := range []string{"a", "b", "c"} { // a rolling deploy
			moves, had := r.took(), places(r.owned(), id)
			r.stop(m[i])
			time.Sleep(10 * time.Second)
			synctest.Wait()
			r.wants("moves while it is away", r.took(), moves)
			r.join(static(id))
			r.settled(2*time.Second, "a", "b", "c")
			r.wants(id+" has", places(r.owned(), id), had)
			r.wants("moves for it", r.took()-moves, len(had))
			for _, p := range had {
				if !r.turn(p).Clean {
					r.Errorf("partition %d was not left in order", p)
				}
			}
		}
		r.stop(r.members[3])
		r.settled(r.ttl+time.Second, "b", "c")
	})
}

// TestGap: what happens while a member's watch is away, it knows soon after.
func TestGap(t *testing.T) {
	for name, gap := range map[string]func(r *rig, a *member){
		"a session ends": func(r *rig, a *member) {
			time.Sleep(2 * time.Second) // a died before
			r.last("b").line.mend()
			r.settled(2*time.Second, "b")
		},
		"kicked": func(r *rig, a *member) {
			if err := partition.Kick(r.Context(), r.keys, "", "t/g", "b"); err != nil {
				r.Fatal(err)
			}
			r.last("b").line.mend()
			time.Sleep(time.Second)
			r.wants("expelled", r.last("b").Stats().Expelled, 1)
			a.line.mend()
			r.settled(3*time.Second, "a", "b")
		},
		"a lease is deleted": func(r *rig, a *member) {
			a.line.mend()
			p := r.last("b").Owned()[0]
			key := fmt.Sprint("t/g/.l/", p)
			l, err := r.keys.KeyGet(r.Context(), partition.DefaultBucket, key)
			if err == nil {
				err = r.keys.KeyDelete(r.Context(), partition.DefaultBucket, key, l.Revision)
			}
			if err != nil {
				r.Fatal(err)
			}
			r.last("b").line.mend()
			time.Sleep(2 * time.Second)
			if turn := r.turn(p); turn == nil || turn.Epoch <= l.Revision {
				r.Errorf("the turn goes on that had lost its lease: %+v", turn)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 4, func(r *rig) {
				m := r.start("a", "b")
				r.settled(2*time.Second, "a", "b")
				m[0].line.cut(true)
				time.Sleep(r.ttl - 2*time.Second)
				m[1].line.cut(true)
				gap(r, m[0])
			})
		})
	}
}

// TestGapOfStatic: one with a name of its own that died while a member's watch was away is
// waited for a moment, as if the member had been told; one that came meanwhile is new to it.
func TestGapOfStatic(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		o := r.options("a")
		o.Static = true
		a := r.join(o)
		b := r.start("b")[0]
		r.settled(2*time.Second, "a", "b")
		a.line.cut(true)
		time.Sleep(r.ttl - 2*time.Second)
		b.line.cut(true)
		time.Sleep(2 * time.Second)
		b.line.mend()
		time.Sleep(partition.DefaultJoinDelay / 2)
		synctest.Wait()
		r.wants("b has so far", len(b.Owned()), 2)
		r.settled(3*time.Second, "b")
		b.line.cut(true)
		c := r.start("c")[0]
		time.Sleep(time.Second)
		b.line.mend()
		time.Sleep(partition.DefaultJoinDelay / 2)
		synctest.Wait()
		r.wants("c has so far", len(c.Owned()), 0)
		r.settled(3*time.Second, "b", "c")
	})
}

// TestStaticCrash: one that died and comes back waits for the end of its session,
// and the others wait for it a moment more.
func TestStaticCrash(t *testing.T) {
	bubble(t, 6, func(r *rig) {
		o := r.options("a")
		o.Static = true
		a := r.join(o)
		r.start("b")
		r.settled(2*time.Second, "a", "b")
		had := places(r.owned(), "a")
		a.line.cut(true)
		again := r.join(o)
		time.Sleep(r.ttl - time.Second) // the first one knows that its session is over
		r.settled(r.ttl+2*time.Second, "a", "b")
		r.wants("it has", places(r.owned(), "a"), had)
		r.wants("its error", again.Err(), error(nil))
	})
}

// TestTwoOfOneName: the second one is refused, the first one goes on.
func TestTwoOfOneName(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		a := r.start("a")[0]
		r.settled(2*time.Second, "a")
		second := r.join(r.options("a"))
		select {
		case <-second.Done():
		case <-time.After(r.ttl):
			r.Fatal("the second one waits for ever")
		}
		if !errors.Is(second.Err(), partition.ErrMemberExists) {
			r.Errorf("the second one ends with %v", second.Err())
		}
		r.wants("what the first one has", a.Owned(), []int{0, 1, 2, 3})
	})
}

func TestJoinRefuses(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		r.start("a")
		own := func(context.Context, *partition.Turn) (bool, error) { return true, nil }
		for _, c := range []struct {
			name  string
			group string
			o     partition.Options
			want  error
			says  string
		}{
			{"another number", "t/g", partition.Options{Partitions: 8}, jetbus.ErrConflict, "Partitions"},
			{"no partitions", "g", partition.Options{}, jetbus.ErrInvalidOption, "Partitions is 0"},
			{"too many", "g", partition.Options{Partitions: 5000}, jetbus.ErrInvalidOption, "5000"},
			{"no name", "", partition.Options{Partitions: 1}, jetbus.ErrInvalidOption, "name"},
			{"a long name", strings.Repeat("g", 300), partition.Options{Partitions: 1}, jetbus.ErrInvalidOption, "name"},
			{"a dot behind a slash", "g/.m/x", partition.Options{Partitions: 1}, jetbus.ErrInvalidOption, "name"},
			{"a slash at the end", "g/", partition.Options{Partitions: 1}, jetbus.ErrInvalidOption, "name"},
			{"static without a name", "g", partition.Options{Partitions: 1, Static: true}, jetbus.ErrInvalidOption, "Member"},
			{"a bad name", "g", partition.Options{Partitions: 1, Member: "a/b"}, jetbus.ErrInvalidOption, "Member"},
			{"weight", "g", partition.Options{Partitions: 1, Weight: 101}, jetbus.ErrInvalidOption, "Weight"},
			{"ttl", "g", partition.Options{Partitions: 1, TTL: time.Second}, jetbus.ErrInvalidOption, "TTL"},
			{"a long ttl", "g", partition.Options{Partitions: 1, TTL: time.Hour + time.Second}, jetbus.ErrInvalidOption, "TTL"},
			{"half a second", "g", partition.Options{Partitions: 1, TTL: 4500 * time.Millisecond}, jetbus.ErrInvalidOption, "TTL"},
			{"delay", "g", partition.Options{Partitions: 1, JoinDelay: -2}, jetbus.ErrInvalidOption, "JoinDelay"},
		} {
			_, err := partition.Join(r.Context(), r.keys, c.group, own, c.o)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				r.Errorf("%s: %v, want %v and %q", c.name, err, c.want, c.says)
			}
		}
		if _, err := partition.Join(r.Context(), r.keys, "g", nil, partition.Options{Partitions: 1}); !errors.Is(err, jetbus.ErrInvalidOption) {
			r.Errorf("without a function: %v", err)
		}
	})
}

// TestOwnEnds: what its function returns decides about a membership.
func TestOwnEnds(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		own  partition.Own
		want func(err error) bool
	}{
		"error": {func(context.Context, *partition.Turn) (bool, error) { return false, boom }, func(err error) bool { return errors.Is(err, boom) }},
		"panic": {func(context.Context, *partition.Turn) (bool, error) { panic(boom) }, func(err error) bool {
			_, ok := errors.AsType[*jetbus.PanicError](err)
			return ok && errors.Is(err, boom)
		}},
		"goexit": {func(context.Context, *partition.Turn) (bool, error) { runtime.Goexit(); return true, nil }, func(err error) bool {
			return err != nil && strings.Contains(err.Error(), "runtime.Goexit")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 2, func(r *rig) {
				m, err := partition.Join(r.Context(), r.keys, "g", c.own, partition.Options{Partitions: 2})
				if err != nil {
					r.Fatal(err)
				}
				<-m.Done()
				if !c.want(m.Err()) {
					r.Errorf("ended with %v", m.Err())
				}
				if err := m.Stop(r.Context()); err != nil {
					r.Error(err)
				}
			})
		})
	}
	t.Run("early", func(t *testing.T) {
		bubble(t, 1, func(r *rig) {
			turns := 0
			m, err := partition.Join(r.Context(), r.keys, "g", func(context.Context, *partition.Turn) (bool, error) {
				turns++
				return true, nil
			}, partition.Options{Partitions: 1})
			if err != nil {
				r.Fatal(err)
			}
			time.Sleep(10*time.Second + 700*time.Millisecond)
			synctest.Wait()
			if err := m.Stop(r.Context()); err != nil {
				r.Error(err)
			}
			if turns < 8 || turns > 11 {
				r.Errorf("%d turns in ten seconds, want one a second", turns)
			}
		})
	})
}

// TestStopInAHurry: when there is no time, what runs is canceled, and waited for.
func TestStopInAHurry(t *testing.T) {
	bubble(t, 2, func(r *rig) {
		m := r.start("a")[0]
		m.drain = time.Hour
		r.settled(2*time.Second, "a")
		ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		if err := m.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			r.Errorf("Stop: %v", err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second {
			r.Errorf("Stop took %v", took)
		}
		r.wants("again", m.Stop(r.Context()), error(nil))
	})
}

// TestStopWithEndedContext: one that ended before the call leaves what runs its time.
func TestStopWithEndedContext(t *testing.T) {
	bubble(t, 2, func(r *rig) {
		m := r.start("a")[0]
		m.drain = 5 * time.Second
		r.settled(2*time.Second, "a")
		over, end := context.WithCancel(r.Context())
		end()
		began := time.Now()
		r.wants("Stop", m.Stop(over), error(nil))
		if took := time.Since(began); took < 5*time.Second || took > 6*time.Second {
			r.Errorf("Stop took %v", took)
		}
	})
}

// TestStopFromInside: a function that owns a partition may stop its membership, and does not wait for
// itself.
func TestStopFromInside(t *testing.T) {
	bubble(t, 2, func(r *rig) {
		var m *partition.Membership
		joined := make(chan struct{})
		own := func(ctx context.Context, _ *partition.Turn) (bool, error) {
			<-joined
			ctx, cancel := context.WithTimeout(ctx, time.Hour) // one made from it
			defer cancel()
			stopped := make(chan error, 1)
			go func() { stopped <- m.Stop(ctx) }() // so that one that waits for itself ends
			select {
			case err := <-stopped:
				r.wants("Stop", err, error(nil))
			case <-time.After(time.Minute):
				r.Error("Stop waits for who calls it")
			}
			return true, nil
		}
		var err error
		if m, err = partition.Join(r.Context(), r.keys, "g", own, partition.Options{Partitions: 2}); err != nil {
			r.Fatal(err)
		}
		close(joined)
		<-m.Done()
		r.wants("its error", m.Err(), error(nil))
		r.wants("turns given up in order", m.Stats().Released, m.Stats().Acquired)
	})
}

// TestContextStops: the end of Join's context is a Stop.
func TestContextStops(t *testing.T) {
	bubble(t, 2, func(r *rig) {
		ctx, cancel := context.WithCancel(r.Context())
		m, err := partition.Join(ctx, r.keys, "g", func(_ context.Context, t *partition.Turn) (bool, error) {
			<-t.Revoked()
			return true, nil
		}, partition.Options{Partitions: 2})
		if err != nil {
			r.Fatal(err)
		}
		time.Sleep(time.Second)
		cancel()
		<-m.Done()
		r.wants("its error", m.Err(), error(nil))
	})
}

// TestMeddling: an operator who deletes a lease, or a session, takes the partitions
// away from their owner, and they are owned again in a moment.
func TestMeddling(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		r.start("a", "b")
		r.settled(2*time.Second, "a", "b")
		for _, key := range []string{"t/g/.l/2", "t/g/.m/a", "t/g/.m/b"} {
			moves := r.took()
			entry, err := r.keys.KeyGet(r.Context(), "", key)
			if err == nil {
				err = r.keys.KeyDelete(r.Context(), "", key, entry.Revision)
			}
			if err != nil {
				r.Fatal(err)
			}
			time.Sleep(r.ttl / 2) // a session shows its end when it is to be renewed
			r.settled(5*time.Second, "a", "b")
			if r.took() == moves {
				r.Errorf("nothing moved when %s was deleted", key)
			}
		}
	})
}

// TestChurn plays groups in which members join, leave, die, are cut off for a
// while and lose answers, and looks whether there are ever two owners.
func TestChurn(t *testing.T) {
	for seed := range churns() {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, 8, func(r *rig) { r.churn(rand.New(rand.NewPCG(seed, 3))) }) //nolint:gosec // reproducible on purpose
		})
	}
}

func (r *rig) churn(rng *rand.Rand) {
	live := r.start("m0", "m1", "m2")
	for range 25 {
		time.Sleep(time.Duration(rng.IntN(6000)) * time.Millisecond)
		i := rng.IntN(max(len(live), 1))
		switch what := rng.IntN(10); {
		case len(live) < 2 || what < 3 && len(live) < 6:
			o := r.options(fmt.Sprintf("m%d", len(r.members)))
			o.Static, o.Weight = rng.IntN(3) == 0, 1+rng.IntN(2)
			m := r.join(o)
			m.drain = time.Duration(rng.IntN(3000)) * time.Millisecond
			m.line.mu.Lock()
			m.line.loses = 0.3 * float64(rng.IntN(2))
			m.line.mu.Unlock()
			live = append(live, m)
		case what < 5:
			go func(m *member) { _ = m.Stop(r.Context()) }(live[i]) // the rig stops it again
			live = slices.Delete(live, i, i+1)
		case what < 6:
			live[i].line.die()
			live = slices.Delete(live, i, i+1)
		default:
			l := live[i].line
			l.cut(true)
			time.AfterFunc(time.Duration(500+rng.IntN(20_000))*time.Millisecond, func() { l.cut(false) })
		}
	}
	for _, m := range live {
		m.line.mend()
	}
	began := time.Now()
	for {
		synctest.Wait()
		owned := r.owned()
		if !slices.Contains(owned, "") && !slices.ContainsFunc(owned, func(id string) bool {
			return !slices.ContainsFunc(live, func(m *member) bool { return m.id == id })
		}) {
			return
		}
		if time.Since(began) > 3*r.ttl {
			r.Fatalf("after %v the partitions are with %q", time.Since(began), owned)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

var churnSeeds = flag.Uint64("churns", 30, "how many groups TestChurn plays, and TestChaos half as many services")

func churns() uint64 { return *churnSeeds }

// TestBlind: who cannot see the group takes no share of it, and says why: a member that may not
// watch ends, one whose watch fails for other reasons joins when it does not any more.
func TestBlind(t *testing.T) {
	for what, blind := range map[string]error{"not allowed": jetbus.ErrDenied, "fails": jetbus.ErrUnavailable} {
		t.Run(what, func(t *testing.T) {
			bubble(t, 8, func(r *rig) {
				r.start("a", "b")
				r.settled(2*time.Second, "a", "b")
				moves := r.took()
				r.prepare = func(l *line) { l.suffer(blind, false) }
				c := r.start("c")[0]
				time.Sleep(3 * r.ttl)
				r.settled(time.Second, "a", "b")
				r.wants("moves", r.took()-moves, 0)
				if errors.Is(blind, jetbus.ErrDenied) {
					<-c.Done()
					r.wants("its error is that", errors.Is(c.Err(), blind), true)
					return
				}
				r.wants("its error", c.Err(), error(nil))
				if n := r.logged(`what="watch the group"`); n < 1 || n > 3 {
					r.Errorf("it is logged %d times", n)
				}
				c.line.suffer(nil, false)
				r.settled(2*time.Second, "a", "b", "c")
			})
		})
	}
}

// TestFullBucket: that partitions cannot be taken for want of room is told, and over when there is
// room again.
func TestFullBucket(t *testing.T) {
	bubble(t, 4, func(r *rig) {
		r.prepare = func(l *line) { l.suffer(nil, true) }
		a := r.start("a")[0]
		time.Sleep(3 * r.ttl)
		r.wants("partitions", len(a.Owned()), 0)
		if n := r.logged("bucket is full"); n < 1 || n > 3 {
			r.Errorf("it is logged %d times", n)
		}
		a.line.suffer(nil, false)
		r.settled(2*time.Second, "a")
	})
}
