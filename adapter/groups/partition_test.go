package groups_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// inPartition are the options of the members of a group by partition.
func inPartition(concurrency int) jetbus.SubscribeOptions {
	return jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: jetbus.PerKey, Concurrency: concurrency, Backoff: quick, MaxAttempts: -1}
}

// forever is the retention of a topic that grows in a bubble: there the server goes by
// the real clock where a changed stream looks for events that have ended.
const forever = -1

// partitioned declares topic a with n partitions and joins group g on it.
func (r *rig) partitioned(n int, o jetbus.SubscribeOptions) {
	r.Helper()
	r.Ensure(jetbus.TopicConfig{Name: "a", Partitions: n, Retention: forever})
	r.OK(r.Bus.JoinPartitions(r.Context(), "a", "g", o))
}

// turns gives the partitions of topic a to members, an epoch each.
type turns struct {
	*rig
	epoch uint64
	clean map[jetbus.Partition]bool // as the last turn of it ended; missing: there was none
}

func (r *rig) turns() *turns { return &turns{rig: r, clean: map[jetbus.Partition]bool{}} }

// take begins a turn. The context is the turn's.
func (u *turns) take(ctx context.Context, b *adapter.Bus, p jetbus.Partition, h jetbus.Handler, o jetbus.SubscribeOptions) jetbus.PartitionSubscription {
	u.Helper()
	clean, had := u.clean[p]
	u.epoch++
	turn := jetbus.PartitionTurn{Partition: p, Epoch: u.epoch, Clean: clean || !had}
	u.clean[p] = false // unless it is handed over
	return must(b.SubscribePartition(ctx, "a", "g", turn, h, o))(u.T)
}

// all takes all partitions of the first n of a generation.
func (u *turns) all(ctx context.Context, b *adapter.Bus, generation, n int, h jetbus.Handler, o jetbus.SubscribeOptions) []jetbus.PartitionSubscription {
	u.Helper()
	var out []jetbus.PartitionSubscription
	for i := range n {
		out = append(out, u.take(ctx, b, jetbus.Partition{Generation: generation, Number: i}, h, o))
	}
	return out
}

// handOver stops a member, which must leave its partition in order.
func (u *turns) handOver(p jetbus.Partition, s jetbus.PartitionSubscription) {
	u.Helper()
	u.OK(s.Stop(u.Context()))
	if !s.Clean() {
		u.Errorf("partition %s was not handed over", p)
	}
	u.clean[p] = s.Clean()
}

// A member that ends before it has begun leaves its partition as it was.
func TestPartitionNotBegun(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(1, inPartition(1))
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		for epoch, clean := range []bool{true, false} {
			turn := jetbus.PartitionTurn{Partition: p1(0), Epoch: uint64(epoch) + 1, Clean: clean}
			s := must(r.Bus.SubscribePartition(ctx, "a", "g", turn, adaptertest.Ignore, inPartition(1)))(t)
			r.OK(s.Stop(ctx)) // as soon as that
			if !s.Began() && s.Clean() != clean || s.Began() && !s.Clean() {
				t.Errorf("began %v, clean %v of a turn that is clean: %v", s.Began(), s.Clean(), clean)
			}
		}
		s := must(r.Bus.SubscribePartition(ctx, "a", "g", jetbus.PartitionTurn{Partition: p1(0), Epoch: 3}, adaptertest.Ignore, inPartition(1)))(t)
		r.Publish("a", "1")
		r.settled(time.Minute)
		r.OK(s.Stop(ctx))
		r.Equal("began", s.Began(), true)
		r.Equal("clean", s.Clean(), true)
	})
}

func p1(n int) jetbus.Partition { return jetbus.Partition{Generation: 1, Number: n} }

// parts describes the partitions of group g.
func (r *rig) parts() []jetbus.PartitionInfo {
	r.Helper()
	r.Settle()
	return must(r.Bus.GroupPartitions(r.Context(), "a", "g"))(r.T)
}

func TestPartitions(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(4, inPartition(4))
		r.publishKeys("a", 20, 0, 10)
		var d diary
		var mu sync.Mutex
		wrong := map[string]bool{}
		u := r.turns()
		members := u.all(r.Context(), r.Bus, 1, 4, func(_ context.Context, e *jetbus.Delivery) error {
			want := must(jetbus.PartitionOf(e.Key, 4))(r.T)
			mu.Lock()
			if e.Partition != want || e.Epoch != uint64(want+1) {
				wrong[fmt.Sprint(e.Key, " in ", e.Partition, " by ", e.Epoch)] = true
			}
			mu.Unlock()
			return d.handle(e, func() error {
				time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
				if rand.IntN(5) == 0 {
					return errors.New("bad luck")
				}
				return nil
			})
		}, inPartition(4))
		r.publishKeys("a", 20, 10, 10)
		r.settled(time.Minute)
		d.check(t, 20, 20)
		r.Equal("partitions and epochs that are wrong", wrong, "map[]")
		var acked uint64
		for i, s := range members {
			stats := s.Stats()
			if !stats.Active || stats.Acked == 0 || stats.LeasesLost > 0 {
				t.Errorf("stats: %+v", stats)
			}
			acked += stats.Acked
			u.handOver(p1(i), s)
		}
		r.Equal("acked", acked, 400)
		g := r.Group("a", "g")
		r.Equal("waiting, acked", []any{g.Waiting, g.AckedSeq}, "[0 400]")
		for _, p := range r.parts() {
			r.Equal("drained", []any{p.Drained(), p.Retries}, "[true 0]")
		}
	})
}

// A partition that is handed over goes on at once, without a duplicate, also of what
// was settled beyond an event that waits for its next attempt.
func TestPartitionHandOver(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(1, inPartition(3))
		r.publishKeys("a", 4, 0, 25)
		_, other := r.Open(adapter.Config{})
		var d diary
		h := func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				time.Sleep(20 * time.Millisecond)
				if string(e.Payload) == "k2-3" && e.Epoch < 3 {
					return jetbus.RetryIn(time.Hour, errors.New("not yet"))
				}
				return nil
			})
		}
		u := r.turns()
		first := u.take(r.Context(), r.Bus, p1(0), h, inPartition(3))
		time.Sleep(200 * time.Millisecond)
		u.handOver(p1(0), first)
		start := time.Now()
		second := u.take(r.Context(), other, p1(0), h, inPartition(3))
		r.Within(time.Second, "the next one goes on", func() bool { return second.Stats().Delivered > 0 })
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("taken over after %v", took)
		}
		r.Within(time.Minute, "all other keys", func() bool { _, done := d.read(); return strings.Count(done, "-") == 78 })
		u.handOver(p1(0), second)
		third := u.take(r.Context(), r.Bus, p1(0), h, inPartition(3))
		r.settled(time.Minute)
		d.check(t, 4, 25)
		runs, _ := d.read()
		r.Equal("runs of the event that failed", strings.Count(runs, "k2-3 "), 3)
		r.Equal("runs", len(strings.Fields(runs)), 102)
		u.handOver(p1(0), third)
	})
}

// When a turn is over everything is given up at once, and the next owner begins at
// the first event that is not settled.
func TestPartitionTurnOver(t *testing.T) {
	lost := errors.New("expelled")
	inBubble(t, func(r *rig) {
		r.partitioned(1, inPartition(2))
		r.publishKeys("a", 3, 0, 10)
		var d diary
		u := r.turns()
		ctx, end := context.WithCancelCause(r.Context())
		causes := make(chan error, 2)
		first := u.take(ctx, r.Bus, p1(0), func(ctx context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				if e.Seq < 10 {
					return nil
				}
				<-ctx.Done()
				causes <- context.Cause(ctx)
				adaptertest.WantErr(t, e.Ack(context.Background()), jetbus.ErrLeaseExpired)
				return context.Cause(ctx)
			})
		}, inPartition(2))
		r.Within(time.Second, "two are held", func() bool { return first.Stats().Running == 2 })
		start := time.Now()
		end(lost)
		<-first.Done()
		r.Equal("ended after", time.Since(start) < time.Second, true)
		adaptertest.WantErr(t, <-causes, jetbus.ErrLeaseExpired)
		adaptertest.WantErr(t, <-causes, jetbus.ErrLeaseExpired)
		adaptertest.WantErr(t, first.Err(), lost)
		r.Equal("clean", first.Clean(), false)
		r.OK(first.Stop(r.Context()))

		h := func(_ context.Context, e *jetbus.Delivery) error { return d.handle(e, nil) }
		ctx, end = context.WithCancelCause(r.Context())
		second := u.take(ctx, r.Bus, p1(0), h, inPartition(2))
		r.settled(time.Minute)
		d.check(t, 3, 10)
		end(lost) // with nothing in hand
		<-second.Done()
		r.Equal("clean", second.Clean(), false)
		r.publishKeys("a", 3, 10, 10)
		third := u.take(r.Context(), r.Bus, p1(0), h, inPartition(2))
		r.settled(time.Minute)
		d.check(t, 3, 20)
		u.handOver(p1(0), third)
	})
}

// A handler that ignores its context is left behind when the turn is over, and what
// it says then is refused.
func TestPartitionStuckHandler(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(1, inPartition(1))
		r.publishKeys("a", 1, 0, 3)
		release := make(chan struct{})
		u := r.turns()
		ctx, end := context.WithCancel(r.Context())
		late := make(chan error, 1)
		stuck := u.take(ctx, r.Bus, p1(0), func(_ context.Context, e *jetbus.Delivery) error {
			<-release
			late <- e.Ack(context.Background())
			return nil
		}, inPartition(1))
		r.Within(time.Second, "running", func() bool { return stuck.Stats().Running == 1 })
		start := time.Now()
		end()
		<-stuck.Done()
		if took := time.Since(start); took > 15*time.Second {
			t.Errorf("Done after %v", took)
		}
		if err := stuck.Stop(r.Context()); err == nil {
			t.Error("Stop does not tell of the handler that is left behind")
		}
		r.Equal("clean", stuck.Clean(), false)
		var d diary
		u.take(r.Context(), r.Bus, p1(0), func(_ context.Context, e *jetbus.Delivery) error { return d.handle(e, nil) }, inPartition(1))
		r.settled(time.Minute)
		close(release)
		adaptertest.WantErr(t, <-late, jetbus.ErrLeaseExpired)
		d.check(t, 1, 3)
	})
}

// What a process that died had in hand is tried with care: an event that kills its
// process again and again is found, its neighbors are not blamed, and the partition
// goes on.
func TestPartitionCrashLoop(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := inPartition(3)
		o.MaxAttempts = 2
		r.partitioned(2, o)
		r.publishKeys("a", 8, 0, 5)
		var d diary
		u := r.turns()
		crashes := 0
		for range 4 {
			nc, b := r.Open(adapter.Config{})
			poisoned := make(chan struct{}, 1)
			end := make(chan struct{})
			members := u.all(r.Context(), b, 1, 2, func(_ context.Context, e *jetbus.Delivery) error {
				return d.handle(e, func() error {
					if string(e.Payload) == "k1-1" {
						poisoned <- struct{}{}
						<-end
						return errors.New("dead")
					}
					return nil
				})
			}, o)
			select {
			case <-poisoned:
				crashes++
			case <-time.After(time.Minute):
				close(end)
				r.settled(time.Second)
				continue
			}
			nc.Close()
			close(end)
			for _, s := range members {
				<-s.Done()
				adaptertest.WantErr(t, s.Err(), jetbus.ErrClosed)
				r.Equal("clean", s.Clean(), false)
			}
		}
		r.Equal("crashes", crashes, 3) // as one of several, and twice alone
		dead := r.deadOf("a")
		r.Equal("dead letters", len(dead), 1)
		r.Equal("reason", dead[0].Headers["x-dlq-reason"], string(jetbus.DeadCrashLoop))
		r.Equal("its partition", dead[0].Headers["x-dlq-partition"], must(jetbus.PartitionOf("k1", 2))(t))
		_, done := d.read()
		r.Equal("successes", len(strings.Fields(done)), 39)
		r.settled(time.Second)
	})
}

// A replay comes to the member that has the partition, and to no other.
func TestPartitionReplay(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(4, inPartition(2))
		r.publishKeys("a", 8, 0, 2)
		var mu sync.Mutex
		var got []string
		bad := true
		h := func(_ context.Context, e *jetbus.Delivery) error {
			if bad && string(e.Payload) == "k3-0" {
				return jetbus.Reject(errors.New("bad"))
			}
			if e.ReplayOf > 0 {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprint(string(e.Payload), " ", e.Key, " ", e.Partition, " ", e.Epoch, " ", e.Redelivered))
			}
			return nil
		}
		u := r.turns()
		members := u.all(r.Context(), r.Bus, 1, 4, h, inPartition(2))
		r.settled(time.Minute)
		bad = false
		at := must(jetbus.PartitionOf("k3", 4))(t)
		stats := must(jetbus.Replay(r.Context(), r.Bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "a"}}))(t)
		r.Equal("replayed", stats.Replayed, 1)
		r.Within(time.Minute, "it came", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) > 0 })
		r.Equal("replays", got, fmt.Sprintf("[k3-0 k3 %d %d true]", at, at+1))

		members[at].Pause() // they wait where they are
		time.Sleep(100 * time.Millisecond)
		dead := r.deadOf("a")
		retry := func(b *adapter.Bus, name string) jetbus.Receipt {
			return must(b.Retry(r.Context(), "g", jetbus.Event{Topic: "a", Key: "k3", Seq: 4, ID: "x", Partition: at, Payload: []byte("k3-" + name)}, jetbus.RetryOptions{Name: name, ReplayOf: dead[0].Seq}))(t)
		}
		first := retry(r.Bus, "one")
		r.Equal("where", []any{first.Event.Partition, first.Duplicate}, fmt.Sprint([]any{at, false}))
		r.Equal("again", retry(r.Bus, "one").Duplicate, true)
		var waiting []uint64
		for _, p := range r.parts() {
			waiting = append(waiting, p.Retries)
		}
		want := []uint64{0, 0, 0, 0}
		want[at] = 1
		r.Equal("retries", waiting, want)
		names := must(r.Bus.Retried(r.Context(), "a", "g", "one", "two"))(t)
		r.Equal("retried", []any{len(names), names["one"].IsZero()}, "[1 false]")
		members[at].Resume()
		r.Within(time.Minute, "it came", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == 2 })

		must(r.Bus.Repartition(r.Context(), "a", 6))(t)
		r.OK(r.Bus.JoinPartitions(r.Context(), "a", "g", inPartition(2)))
		r.Equal("of before the topic grew", retry(r.Bus, "one").Duplicate, true)
		at = must(jetbus.PartitionOf("k3", 6))(t)
		r.Equal("by key now", retry(r.Bus, "two").Event.Partition, at)
		p2 := jetbus.Partition{Generation: 2, Number: at}
		s := u.take(r.Context(), r.Bus, p2, h, inPartition(2))
		r.Within(time.Minute, "it came", func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == 3 })
		u.handOver(p2, s)
		r.OK(r.Bus.DeleteGroup(r.Context(), "a", "g"))
		r.Equal("retried", must(r.Bus.Retried(r.Context(), "a", "g", "one", "two"))(t), "map[]")
	})
}

// A group has partitions or it has none, whichever came first.
func TestPartitionGroupUsedBothWays(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(3, inPartition(1))
		nothing := func(context.Context, *jetbus.Delivery) error { return nil }
		_, other := r.Open(adapter.Config{})
		conflict := func(what string, err error) {
			t.Helper()
			adaptertest.WantErr(t, err, jetbus.ErrConflict)
			if c, ok := errors.AsType[*jetbus.ConflictError](err); !ok || len(c.Differences) != 1 || c.Differences[0].Field != "Partitions" || c.Hint == "" {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := other.Subscribe(r.Context(), "a", "g", nothing, jetbus.SubscribeOptions{})
		conflict("subscribe", err)
		_, err = other.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1})
		conflict("receive", err)
		s := must(other.Subscribe(r.Context(), "a", "plain", nothing, jetbus.SubscribeOptions{From: jetbus.Earliest()}))(t)
		conflict("join", r.Bus.JoinPartitions(r.Context(), "a", "plain", inPartition(1)))
		_, err = r.Bus.GroupPartitions(r.Context(), "a", "plain")
		conflict("partitions", err)
		_, err = r.Bus.GroupPartitions(r.Context(), "a", "none")
		adaptertest.WantErr(t, err, jetbus.ErrNoGroup)
		r.publishKeys("a", 5, 0, 2)
		r.Within(time.Minute, "all of the topic", func() bool { return s.Stats().Acked == 10 })
		r.OK(s.Stop(r.Context()))
		groups := must(r.Bus.Groups(r.Context(), "a"))(t)
		r.Equal("groups", len(groups), 2)
		r.Equal("pending", []any{groups[0].Group, groups[0].Pending, groups[1].Group, groups[1].Pending}, "[g 10 plain 0]")
		r.OK(r.Bus.DeleteGroup(r.Context(), "a", "plain"))
		r.OK(r.Bus.JoinPartitions(r.Context(), "a", "plain", inPartition(1)))

		for i := range 10 { // at once
			name := fmt.Sprint("both", i)
			var wg sync.WaitGroup
			var errs [2]error
			wg.Go(func() { _, errs[0] = other.Subscribe(r.Context(), "a", name, nothing, jetbus.SubscribeOptions{}) })
			wg.Go(func() { errs[1] = r.Bus.JoinPartitions(r.Context(), "a", name, inPartition(1)) })
			wg.Wait()
			if (errs[0] == nil) == (errs[1] == nil) {
				t.Errorf("group %s: %v", name, errs)
			}
		}
	})
}

// A new group begins at the same event in all partitions, those that it joins later
// included.
func TestPartitionStart(t *testing.T) {
	for name, c := range map[string]struct {
		from jetbus.Start
		want int
	}{
		"latest":   {jetbus.Latest(), 20},
		"earliest": {jetbus.Earliest(), 60},
		"after":    {jetbus.AfterSeq(30), 30},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a", Partitions: 3, Retention: forever})
				r.publishKeys("a", 10, 0, 4)
				o := inPartition(2)
				o.From = c.from
				r.OK(r.Bus.JoinPartitions(r.Context(), "a", "g", o))
				r.publishKeys("a", 10, 4, 1)
				must(r.Bus.Repartition(r.Context(), "a", 5))(t)
				r.publishKeys("a", 10, 5, 1)
				o.From = jetbus.Latest() // the group has begun
				_, other := r.Open(adapter.Config{})
				r.OK(other.JoinPartitions(r.Context(), "a", "g", o))
				r.Equal("partitions", len(r.parts()), 8)
				var d diary
				h := func(_ context.Context, e *jetbus.Delivery) error { return d.handle(e, nil) }
				u := r.turns()
				u.all(r.Context(), r.Bus, 1, 3, h, o)
				r.Within(time.Minute, "the old ones are drained", func() bool {
					return !slices.ContainsFunc(r.parts()[:3], func(p jetbus.PartitionInfo) bool { return !p.Drained() })
				})
				u.all(r.Context(), r.Bus, 2, 5, h, o)
				r.settled(time.Minute)
				runs, _ := d.read()
				r.Equal("handled", len(strings.Fields(runs)), c.want)
				d.noDuplicates(t)
				r.Equal("cursor", must(r.Bus.Cursor(r.Context(), "a", "g"))(t).LastSeq, 60)
			})
		})
	}
}

// A group that is moved under its members goes on where it was moved to. Members of
// later generations end, since the older ones may have to go first.
func TestPartitionSetCursor(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(3, inPartition(2))
		r.publishKeys("a", 6, 0, 5)
		var d diary
		h := func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error { time.Sleep(time.Millisecond); return nil })
		}
		u := r.turns()
		old := u.all(r.Context(), r.Bus, 1, 3, h, inPartition(2))
		r.settled(time.Minute)
		must(r.Bus.Repartition(r.Context(), "a", 4))(t)
		r.OK(r.Bus.JoinPartitions(r.Context(), "a", "g", inPartition(2)))
		r.publishKeys("a", 6, 5, 5)
		later := u.all(r.Context(), r.Bus, 2, 4, h, inPartition(2))
		r.settled(time.Minute)
		d.check(t, 6, 10)
		for i, s := range later {
			select {
			case <-s.Done():
				t.Fatalf("member %d ended: %v", i, s.Err())
			default:
			}
		}
		r.OK(r.Bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{LastSeq: 12}, jetbus.SeekOptions{}))
		for i, s := range later {
			<-s.Done()
			r.OK(s.Err())
			r.Equal("clean", s.Clean(), true)
			u.clean[jetbus.Partition{Generation: 2, Number: i}] = true
		}
		r.Within(time.Minute, "the old ones again", func() bool {
			return !slices.ContainsFunc(r.parts()[:3], func(p jetbus.PartitionInfo) bool { return !p.Drained() })
		})
		runs, _ := d.read()
		r.Equal("runs", len(strings.Fields(runs)), 60+18)
		later = u.all(r.Context(), r.Bus, 2, 4, h, inPartition(2))
		r.settled(time.Minute)
		runs, _ = d.read()
		r.Equal("runs", len(strings.Fields(runs)), 60+48)

		r.OK(r.Bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{ToLatest: true}))
		for _, s := range later {
			<-s.Done()
		}
		r.Equal("cursor", must(r.Bus.Cursor(r.Context(), "a", "g"))(t).LastSeq, 60)
		for _, s := range old {
			r.OK(s.Err())
			r.OK(s.Stop(r.Context()))
			r.Equal("clean", s.Clean(), true)
		}
	})
}

// Where one partition cannot be moved none is.
func TestPartitionSetCursorBusy(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(3, inPartition(1))
		r.publishKeys("a", 6, 0, 2)
		slow := must(jetbus.PartitionOf("k0", 3))(t)
		var d diary
		release := make(chan struct{})
		u := r.turns()
		u.all(r.Context(), r.Bus, 1, 3, func(_ context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				if e.Partition == slow {
					<-release
				}
				return nil
			})
		}, inPartition(1))
		time.Sleep(time.Second)
		err := r.Bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{Wait: 5 * time.Second})
		adaptertest.WantErr(t, err, jetbus.ErrGroupBusy)
		r.Equal("paused", r.Group("a", "g").Paused, false)
		close(release)
		r.settled(time.Minute)
		d.noDuplicates(t)
		d.check(t, 6, 2)
	})
}

// A move that waits longer for locks than it was to take goes on.
func TestPartitionSetCursorSlow(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 17 // more than are moved at a time
		r.partitioned(n, inPartition(1))
		r.publishKeys("a", n, 0, 1)
		for i := range n - 1 { // owners that died while they replaced their durables
			must(r.Bus.KeySet(r.Context(), "JETBUS_LOCKS", "group.EV_A.a__g__p1_"+fmt.Sprint(i), nil, 0, 5*time.Second))(r.T)
		}
		r.OK(r.Bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{LastSeq: n}, jetbus.SeekOptions{Wait: 500 * time.Millisecond}))
		g := r.Group("a", "g")
		r.Equal("paused, pending", []any{g.Paused, g.Pending}, "[false 0]")
	})
}

// Close does not wait for a member that joins while it completes a move.
func TestCloseWhileJoining(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(1, inPartition(1))
		r.publishKeys("a", 1, 0, 1)
		h := newBlock()
		member := r.turns().take(r.Context(), r.Bus, p1(0), h.handle, inPartition(1))
		<-h.running
		s := must(r.JS.Stream(r.Context(), "EV_A"))(t)
		c := must(s.Consumer(r.Context(), r.durableName()))(t).CachedInfo().Config
		c.Metadata["jetbus.seek"] = fmt.Sprintf("1@%d", time.Now().UnixMilli())
		must(s.UpdateConsumer(r.Context(), c))(t)
		_, other := r.Open(adapter.Config{})
		joined := make(chan error, 1)
		go func() { joined <- other.JoinPartitions(r.Context(), "a", "g", inPartition(1)) }()
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_ = other.Close(ctx) // in time or not: the join is not done
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("closed after %v", took)
		}
		adaptertest.WantErr(t, <-joined, jetbus.ErrClosed)
		close(h.release)
		r.settled(time.Minute)
		r.OK(member.Stop(r.Context()))
	})
}

// durableName is the name of the one durable of topic a.
func (r *rig) durableName() string {
	r.Helper()
	var name string
	for n := range must(r.JS.Stream(r.Context(), "EV_A"))(r.T).ConsumerNames(r.Context()).Name() {
		name = n
	}
	return name
}

// A group that is paused stands still in all partitions, those that it joins
// meanwhile included.
func TestPartitionPauseGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(3, inPartition(1))
		var d diary
		h := func(_ context.Context, e *jetbus.Delivery) error { return d.handle(e, nil) }
		u := r.turns()
		u.all(r.Context(), r.Bus, 1, 3, h, inPartition(1))
		r.publishKeys("a", 6, 0, 1)
		r.settled(time.Minute)
		r.OK(r.Bus.PauseGroup(r.Context(), "a", "g", time.Now().Add(time.Hour)))
		must(r.Bus.Repartition(r.Context(), "a", 5))(t)
		r.OK(r.Bus.JoinPartitions(r.Context(), "a", "g", inPartition(1)))
		u.all(r.Context(), r.Bus, 2, 5, h, inPartition(1))
		r.publishKeys("a", 6, 1, 1)
		time.Sleep(time.Minute)
		g := r.Group("a", "g")
		r.Equal("pending, paused", []any{g.Pending, g.Held, g.Paused}, "[6 0 true]")
		for _, p := range r.parts() {
			if old := time.Since(p.Oldest).Round(time.Second); p.Drained() != p.Oldest.IsZero() || !p.Drained() && old != time.Minute {
				t.Errorf("the oldest event of %s: %v (%+v)", p.Partition, old, p)
			}
		}
		r.OK(r.Bus.ResumeGroup(r.Context(), "a", "g"))
		r.settled(time.Minute)
		d.check(t, 6, 2)
		d.noDuplicates(t)
	})
}

// So do the partitions that join while it is being paused, over a way on which each request takes
// its time, wherever between these the pause comes.
func TestPauseBesideJoiningPartitions(t *testing.T) {
	const parts, rtt = 4, 10 * time.Millisecond
	for after := time.Duration(0); after < 20*rtt; after += rtt {
		inBubble(t, func(r *rig) {
			r.Ensure(jetbus.TopicConfig{Name: "a", Partitions: parts})
			far := r.OpenDistant(rtt)
			joined := make(chan error, 1)
			go func() { joined <- far.JoinPartitions(r.Context(), "a", "g", inPartition(1)) }()
			time.Sleep(after)
			pause := func() error { return r.Bus.PauseGroup(r.Context(), "a", "g", time.Now().Add(time.Hour)) }
			err := pause()
			for ; errors.Is(err, jetbus.ErrNoGroup); err = pause() {
				time.Sleep(time.Millisecond)
			}
			r.OK(err)
			r.OK(<-joined)
			paused := 0
			for c := range must(r.JS.Stream(r.Context(), "EV_A"))(t).ListConsumers(r.Context()).Info() {
				if c.Paused {
					paused++
				}
			}
			r.Equal("paused durables", paused, parts)
		})
	}
}

// Partitions that join are paused as long as the one of the group that is longest: whoever was
// pausing it may have come no further than that one.
func TestJoiningPartitionsTakeTheLatestPause(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(2, inPartition(1))
		stream := must(r.JS.Stream(r.Context(), "EV_A"))(t)
		var names []string
		for name := range stream.ConsumerNames(r.Context()).Name() {
			names = append(names, name)
		}
		slices.Sort(names)
		until := time.Now().Add(time.Hour)
		must(r.JS.PauseConsumer(r.Context(), "EV_A", names[1], until))(t)
		must(r.Bus.Repartition(r.Context(), "a", 4))(t)
		r.OK(r.Bus.JoinPartitions(r.Context(), "a", "g", inPartition(1)))
		paused := 0
		for c := range stream.ListConsumers(r.Context()).Info() {
			if at := c.Config.PauseUntil; c.Paused && at.Equal(until) {
				paused++
			}
		}
		r.Equal("durables that are paused as long", paused, 1+4)
	})
}

// A group that is deleted ends its members; nothing of it is left for another of the
// same name.
func TestPartitionDeleteGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(3, inPartition(1))
		r.publishKeys("a", 6, 0, 2)
		var d diary
		h := func(_ context.Context, e *jetbus.Delivery) error { return d.handle(e, nil) }
		u := r.turns()
		first := u.all(r.Context(), r.Bus, 1, 3, h, inPartition(1))
		r.settled(time.Minute)
		for i, s := range first[:2] {
			u.handOver(p1(i), s)
		}
		r.OK(r.Bus.DeleteGroup(r.Context(), "a", "g"))
		<-first[2].Done()
		adaptertest.WantErr(t, first[2].Err(), jetbus.ErrNoGroup)
		_, err := r.Bus.GroupPartitions(r.Context(), "a", "g")
		adaptertest.WantErr(t, err, jetbus.ErrNoGroup)
		_, err = r.Bus.SubscribePartition(r.Context(), "a", "g", jetbus.PartitionTurn{Partition: p1(0), Epoch: 9}, h, inPartition(1))
		adaptertest.WantErr(t, err, jetbus.ErrNoGroup)
		time.Sleep(time.Second)
		r.OK(r.Bus.JoinPartitions(r.Context(), "a", "g", inPartition(1)))
		u.all(r.Context(), r.Bus, 1, 3, h, inPartition(1)) // Clean, as the last ones left
		r.settled(time.Minute)
		runs, _ := d.read()
		r.Equal("runs", len(strings.Fields(runs)), 24)
	})
}

// A member that is paused hands over and keeps its partition.
func TestPartitionPauseMember(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(1, inPartition(1))
		r.publishKeys("a", 2, 0, 20)
		var d diary
		u := r.turns()
		s := u.take(r.Context(), r.Bus, p1(0), func(_ context.Context, e *jetbus.Delivery) error {
			r.Equal("epoch", e.Epoch, 1)
			return d.handle(e, func() error { time.Sleep(20 * time.Millisecond); return nil })
		}, inPartition(1))
		time.Sleep(100 * time.Millisecond)
		s.Pause()
		r.Within(time.Second, "nothing in hand", func() bool { return s.Stats().Held == 0 })
		before, _ := d.read()
		time.Sleep(time.Minute)
		after, _ := d.read()
		r.Equal("handled while paused", after, before)
		s.Resume()
		r.settled(time.Minute)
		d.check(t, 2, 20)
		d.noDuplicates(t)
		s.Pause()
		u.handOver(p1(0), s)
	})
}

func TestPartitionBadInput(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.partitioned(3, inPartition(1))
		r.Ensure(jetbus.TopicConfig{Name: "plain"})
		nothing := func(context.Context, *jetbus.Delivery) error { return nil }
		changed := func(f func(*jetbus.SubscribeOptions)) jetbus.SubscribeOptions {
			o := inPartition(1)
			f(&o)
			return o
		}
		noOrder := changed(func(o *jetbus.SubscribeOptions) { o.Order = jetbus.NoOrder })
		topics := changed(func(o *jetbus.SubscribeOptions) { o.Topics = []string{"plain"} })
		for _, c := range []struct {
			topic, group string
			o            jetbus.SubscribeOptions
			p            jetbus.Partition
			h            jetbus.Handler
			want         error
		}{
			{"none", "g", inPartition(1), p1(0), nothing, jetbus.ErrNoTopic},
			{"A", "g", inPartition(1), p1(0), nothing, jetbus.ErrInvalidTopic},
			{"plain", "g", inPartition(1), p1(0), nothing, jetbus.ErrNoPartitions},
			{"a", "", inPartition(1), p1(0), nothing, jetbus.ErrInvalidGroup},
			{"a", "g", noOrder, p1(0), nothing, jetbus.ErrInvalidOption},
			{"a", "g", topics, p1(0), nothing, jetbus.ErrInvalidOption},
			{"a", "g", inPartition(1), p1(0), nil, jetbus.ErrInvalidOption},
			{"a", "g", inPartition(1), p1(3), nothing, jetbus.ErrInvalidOption},
			{"a", "g", inPartition(1), p1(-1), nothing, jetbus.ErrInvalidOption},
			{"a", "g", inPartition(1), jetbus.Partition{}, nothing, jetbus.ErrInvalidOption},
			{"a", "g", inPartition(1), jetbus.Partition{Generation: 2}, nothing, jetbus.ErrInvalidOption},
			{"a", "other", inPartition(1), p1(0), nothing, jetbus.ErrNoGroup},
		} {
			_, err := r.Bus.SubscribePartition(r.Context(), c.topic, c.group, jetbus.PartitionTurn{Partition: c.p, Epoch: 1}, c.h, c.o)
			if !errors.Is(err, c.want) {
				t.Errorf("subscribe %s/%s to %s: got %v, want %v", c.topic, c.group, c.p, err, c.want)
			}
			if c.h == nil || c.p != p1(0) || c.group == "other" {
				continue
			}
			if err := r.Bus.JoinPartitions(r.Context(), c.topic, c.group, c.o); !errors.Is(err, c.want) {
				t.Errorf("join %s/%s: got %v, want %v", c.topic, c.group, err, c.want)
			}
		}
		s := r.turns().take(r.Context(), r.Bus, p1(1), nothing, inPartition(1))
		total := changed(func(o *jetbus.SubscribeOptions) { o.Order = jetbus.Total })
		r.Within(time.Second, "it waits", func() bool { return r.Group("a", "g").Waiting > 0 })
		adaptertest.WantErr(t, r.Bus.JoinPartitions(r.Context(), "a", "g", total), jetbus.ErrConflict)
		r.OK(s.Stop(r.Context()))
		r.Within(10*time.Second, "nobody waits", func() bool { return r.Group("a", "g").Waiting == 0 })
		r.OK(r.Bus.JoinPartitions(r.Context(), "a", "g", total))
	})
}

// Members of all kinds come and go, and nothing is lost or out of order.
func TestPartitionChurn(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 4
		r.partitioned(n, inPartition(3))
		_, other := r.Open(adapter.Config{})
		var d diary
		h := func(ctx context.Context, e *jetbus.Delivery) error {
			return d.handle(e, func() error {
				select {
				case <-time.After(time.Duration(rand.IntN(8)) * time.Millisecond):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				if rand.IntN(6) == 0 {
					return errors.New("bad luck")
				}
				return nil
			})
		}
		u := r.turns()
		var wg sync.WaitGroup
		wg.Go(func() { r.publishKeys("a", 16, 0, 25) })
		for round := range 9 {
			ctx, end := context.WithCancel(r.Context())
			bus := []*adapter.Bus{r.Bus, other}[round%2]
			members := u.all(ctx, bus, 1, n, h, inPartition(3))
			time.Sleep(time.Duration(rand.IntN(80)) * time.Millisecond)
			if round%3 == 2 {
				end()
				for _, s := range members {
					<-s.Done()
				}
				continue
			}
			var stops sync.WaitGroup
			for _, s := range members {
				stops.Go(func() { r.OK(s.Stop(r.Context())) })
			}
			stops.Wait()
			for i, s := range members {
				u.clean[p1(i)] = s.Clean()
			}
			end()
		}
		wg.Wait()
		u.all(r.Context(), r.Bus, 1, n, h, inPartition(3))
		r.settled(time.Minute)
		d.check(t, 16, 25)
	})
}
