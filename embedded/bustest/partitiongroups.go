package bustest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// partitionGroupBehaviors are about groups whose members share out partitions. Who
// has which is decided here, as package partition would.
var partitionGroupBehaviors = []Behavior{
	{Name: "a group by partition keeps the order of each key while its partitions change hands, over turns that end well and that do not", Cases: []int{42, 43, 54}, Needs: NeedPartitions, play: partitionsChangeHands},
	{Name: "a partition that is handed over goes on without a duplicate, also of what waits behind a failure", Cases: []int{43, 54}, Needs: NeedPartitions, play: partitionHandedOver},
	{Name: "when a turn is over its handlers are canceled, what they say is refused, and nothing is skipped", Cases: []int{16, 44, 45}, Needs: NeedPartitions, play: turnOver},
	{Name: "a group has partitions or it has none, whichever came first", Cases: []int{70}, Needs: NeedPartitions | NeedReceive, play: groupBothWays},
	{Name: "a group by partition is moved, paused, described and deleted as one", Cases: []int{59, 65}, Needs: NeedPartitions | NeedTopics, play: partitionsAsOne},
	{Name: "a new group begins at the same event in all partitions, and in those that come later", Cases: []int{45, 46}, Needs: NeedPartitions, play: partitionsBegin},
	{Name: "a replay comes to the member that has the partition of its event", Cases: []int{27}, Needs: NeedPartitions, play: replayInPartition},
}

// assignment gives the partitions of one group turns.
type assignment struct {
	*run
	topic string
	epoch uint64
	left  map[jetbus.Partition]bool // how its last turn was left; missing: there was none
}

// byPartition are the options of such a group's members.
func byPartition(concurrency int) jetbus.SubscribeOptions { return inOrder(jetbus.PerKey, concurrency) }

// assign declares a topic of n partitions, and group g on it.
func (r *run) assign(n int) *assignment {
	r.Helper()
	topic := r.declare("t", jetbus.TopicConfig{Partitions: n, Retention: -1})
	r.must(r.A.(jetbus.Partitions).JoinPartitions(r.ctx, topic, "g", byPartition(1)))
	return &assignment{run: r, topic: topic, left: map[jetbus.Partition]bool{}}
}

// turn lets a bus have a partition until ctx ends, or it stops.
func (a *assignment) turn(ctx context.Context, bus jetbus.Bus, p jetbus.Partition, h jetbus.Handler, o jetbus.SubscribeOptions) jetbus.PartitionSubscription {
	a.Helper()
	clean, had := a.left[p]
	a.epoch++
	a.left[p] = false
	s, err := bus.(jetbus.Partitions).SubscribePartition(ctx, a.topic, "g", jetbus.PartitionTurn{Partition: p, Epoch: a.epoch, Clean: clean || !had}, h, o)
	a.must(err)
	return s
}

// all lets a bus have partitions 0 to n-1 of a generation.
func (a *assignment) all(ctx context.Context, bus jetbus.Bus, generation, n int, h jetbus.Handler, o jetbus.SubscribeOptions) []jetbus.PartitionSubscription {
	a.Helper()
	out := make([]jetbus.PartitionSubscription, n)
	for i := range out {
		out[i] = a.turn(ctx, bus, jetbus.Partition{Generation: generation, Number: i}, h, o)
	}
	return out
}

// handOver stops the members of the first partitions of the first generation.
func (a *assignment) handOver(members ...jetbus.PartitionSubscription) {
	a.Helper()
	for i, s := range members {
		a.stop(s)
		if !s.Clean() && a.inbox == nil { // what could not be confirmed in an election comes again, after the lease
			a.Errorf("partition %d was not handed over", i)
		}
		a.left[first(i)] = s.Clean()
	}
}

func first(n int) jetbus.Partition { return jetbus.Partition{Generation: 1, Number: n} }

// drained waits until the partitions of a generation have nothing left.
func (a *assignment) drained(generation int) {
	a.Helper()
	a.eventually(fmt.Sprintf("generation %d is drained", generation), func() error {
		parts, err := a.Admin.GroupPartitions(a.ctx, a.topic, "g")
		for _, p := range parts {
			if p.Generation == generation && !p.Drained() {
				err = fmt.Errorf("%s has %d pending and %d held", p.Partition, p.Pending, p.Held)
			}
		}
		return err
	})
}

func partitionsChangeHands(r *run) {
	const n, keys, each = 3, 12, 12
	a := r.assign(n)
	r.number(a.topic, keys, 0, each/2)
	var line lineup
	h := line.handle(20)
	for i, bus := range []jetbus.Bus{r.A, r.B, r.A, r.B} {
		ctx, end := context.WithCancel(r.ctx)
		members := a.all(ctx, bus, 1, n, h, byPartition(4))
		r.pause(30 * time.Millisecond)
		if i == 1 { // lost
			end()
			for _, s := range members {
				receive(r.T, "the end of a member", s.Done())
			}
			r.number(a.topic, keys, each/2, each)
			continue
		}
		a.handOver(members...)
		end()
	}
	a.all(r.ctx, r.A, 1, n, h, byPartition(4))
	r.eventually("all events succeed", func() error { return line.missing(keys * each) })
	r.settled(a.topic, "g", keys*each)
	line.check(r)
}

func partitionHandedOver(r *run) {
	a := r.assign(1)
	got := r.newRecord()
	var mu sync.Mutex
	ready := false
	h := got.then(func(_ context.Context, d *jetbus.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if d.Key == "2" && !ready {
			return jetbus.RetryIn(time.Hour, errors.New("not yet"))
		}
		return nil
	})
	r.publish(a.topic, keys(8)...)
	s := a.turn(r.ctx, r.A, first(0), h, byPartition(2))
	got.wait(r.T, 8)
	r.eventually("the others are settled", func() error {
		if stats := s.Stats(); stats.Acked < 7 || stats.Acked > 7 && r.inbox == nil || stats.Retrying != 1 {
			return fmt.Errorf("%+v", stats)
		}
		return nil
	})
	a.handOver(s)
	mu.Lock()
	ready = true
	mu.Unlock()
	s = a.turn(r.ctx, r.B, first(0), h, byPartition(2))
	d := got.first(r, "what waited comes to the next member", func(d *jetbus.Delivery) bool { return d.Key == "2" && d.Epoch == 2 })
	r.settled(a.topic, "g", 8)
	if r.inbox == nil { // else it may come more than once before
		got.exactly(r.T, append(keys(8), "2")...)
	}
	r.numbered("the one that waited", d.Attempt, 1, 2)
	if d.Epoch != 2 || !d.Redelivered || d.Partition != 0 {
		r.Errorf("the one that waited: %+v", d.Delivery)
	}
	a.handOver(s)
}

func turnOver(r *run) {
	a := r.assign(1)
	gone := errors.New("the session is lost")
	g := r.newGate()
	late := make(chan error, 10)
	ctx, end := context.WithCancelCause(r.ctx)
	s := a.turn(ctx, r.A, first(0), func(ctx context.Context, d *jetbus.Delivery) error {
		err := g.handle(ctx, d)
		if ctx.Err() != nil {
			late <- d.Ack(context.WithoutCancel(ctx))
		}
		return err
	}, byPartition(2))
	r.publish(a.topic, keys(4)...)
	for range 2 {
		receive(r.T, "a handler's start", g.entered)
	}
	end(gone)
	for range 2 {
		wantErr(r.T, "the cause of a handler's context", receive(r.T, "the end of a handler's context", g.ended), jetbus.ErrLeaseExpired)
		wantErr(r.T, "Ack when the turn is over", receive(r.T, "Ack", late), jetbus.ErrLeaseExpired)
	}
	receive(r.T, "the end of the member", s.Done())
	wantErr(r.T, "why it ended", s.Err(), gone)
	if s.Clean() {
		r.Error("a turn that was cut short was left in order")
	}
	if n := s.Stats().Acked; n != 0 {
		r.Errorf("%d events acknowledged", n)
	}
	got := r.newRecord()
	a.turn(r.ctx, r.B, first(0), got.handle, byPartition(2))
	got.wait(r.T, 4)
	r.settled(a.topic, "g", 4)
	got.exactly(r.T, keys(4)...)
}

func groupBothWays(r *run) {
	a := r.assign(2)
	ignore := func(context.Context, *jetbus.Delivery) error { return nil }
	_, err := r.B.Subscribe(r.ctx, a.topic, "g", ignore, jetbus.SubscribeOptions{})
	wantErr(r.T, "Subscribe to a group by partition", err, jetbus.ErrConflict)
	_, err = r.B.(jetbus.Receiver).Receive(r.ctx, a.topic, "g", jetbus.ReceiveOptions{Wait: -1})
	wantErr(r.T, "Receive for a group by partition", err, jetbus.ErrConflict)
	r.stop(r.subscribe(r.A, a.topic, "whole", ignore, jetbus.SubscribeOptions{}))
	parts := r.B.(jetbus.Partitions)
	wantErr(r.T, "JoinPartitions of a group without", parts.JoinPartitions(r.ctx, a.topic, "whole", byPartition(1)), jetbus.ErrConflict)
	_, err = parts.SubscribePartition(r.ctx, a.topic, "whole", jetbus.PartitionTurn{Partition: first(0), Epoch: 1}, ignore, byPartition(1))
	wantErr(r.T, "SubscribePartition of a group without", err, jetbus.ErrConflict)
	plain := r.declare("plain", jetbus.TopicConfig{})
	wantErr(r.T, "a topic without partitions", parts.JoinPartitions(r.ctx, plain, "g", byPartition(1)), jetbus.ErrNoPartitions)
	_, err = parts.GroupPartitions(r.ctx, plain, "g")
	wantErr(r.T, "a topic without partitions", err, jetbus.ErrNoPartitions)
	_, err = parts.GroupPartitions(r.ctx, a.topic, "nobody")
	wantErr(r.T, "a group that is not there", err, jetbus.ErrNoGroup)
}

func partitionsAsOne(r *run) {
	const n = 3
	a := r.assign(n)
	topics := r.B.(jetbus.Topics)
	r.publish(a.topic, keys(12)...)
	r.has(a.topic, func(g jetbus.GroupInfo) bool { return g.Pending == 12 }, "12 pending") // a group hears of an event behind its publisher
	parts, err := r.B.(jetbus.Partitions).GroupPartitions(r.ctx, a.topic, "g")
	r.must(err)
	var pending uint64
	for i, p := range parts {
		pending += p.Pending
		if p.Partition != first(i) || p.Drained() != (p.Pending == 0) {
			r.Errorf("partition %d: %+v", i, p)
		}
	}
	if g := r.group(a.topic, "g"); len(parts) != n || pending != 12 || g.Pending != 12 || g.AckedSeq != 0 {
		r.Errorf("partitions %+v, the group %+v", parts, g)
	}
	got := r.newRecord()
	members := a.all(r.ctx, r.A, 1, n, got.handle, byPartition(2))
	r.settled(a.topic, "g", 12)
	c, err := r.B.Cursor(r.ctx, a.topic, "g")
	r.must(err)
	if c.LastSeq != 12 || c.LastID == "" {
		r.Errorf("cursor %+v", c)
	}
	r.again(5)
	r.must(r.move(r.B, a.topic, jetbus.Cursor{LastSeq: 5}, r.moving()))
	got.wait(r.T, 12+7)
	r.settled(a.topic, "g", 12)
	r.must(topics.PauseGroup(r.ctx, a.topic, "g", time.Now().Add(time.Hour)))
	r.publish(a.topic, keys(12)...)
	r.pause(time.Second)
	r.has(a.topic, func(g jetbus.GroupInfo) bool { return g.Paused && g.Pending == 12 }, "12 pending, paused")
	r.must(topics.ResumeGroup(r.ctx, a.topic, "g"))
	r.settled(a.topic, "g", 24)
	got.exactly(r.T, slices.Concat(keys(12), keys(12)[5:], keys(12))...)
	r.must(topics.DeleteGroup(r.ctx, a.topic, "g"))
	for _, s := range members {
		receive(r.T, "the end of a member", s.Done())
		wantErr(r.T, "why it ended", s.Err(), jetbus.ErrNoGroup)
	}
	_, err = r.B.Cursor(r.ctx, a.topic, "g")
	wantErr(r.T, "the group", err, jetbus.ErrNoGroup)
}

func partitionsBegin(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Partitions: 2, Retention: -1})
	a := &assignment{run: r, topic: topic, left: map[jetbus.Partition]bool{}}
	r.publish(topic, keys(6)...)
	o := byPartition(2)
	o.From = jetbus.AfterSeq(3)
	r.must(r.A.(jetbus.Partitions).JoinPartitions(r.ctx, topic, "g", o))
	r.publish(topic, keys(6)...)
	_, err := r.A.(jetbus.Partitions).Repartition(r.ctx, topic, 3)
	r.must(err)
	r.publish(topic, keys(6)...)
	o.From = jetbus.Latest()
	r.must(r.B.(jetbus.Partitions).JoinPartitions(r.ctx, topic, "g", o))
	got := r.newRecord()
	a.all(r.ctx, r.B, 1, 2, got.handle, o)
	a.drained(1)
	a.all(r.ctx, r.A, 2, 3, got.handle, o)
	a.drained(2)
	got.exactly(r.T, slices.Concat(keys(6)[3:], keys(6), keys(6))...)
	r.settled(topic, "g", 18)
}

func replayInPartition(r *run) {
	const n = 3
	a := r.assign(n)
	got := r.newRecord()
	a.all(r.ctx, r.A, 1, n, got.then(func(_ context.Context, d *jetbus.Delivery) error {
		if d.ReplayOf == 0 && d.Key == "4" {
			return jetbus.Reject(errHandler)
		}
		return nil
	}), byPartition(1))
	r.publish(a.topic, keys(6)...)
	dead := r.dead(a.topic, 1)
	if e := dead[0].Event; e.Partition != r.partitionOf("4", n) {
		r.Errorf("the dead letter's event is in partition %d", e.Partition)
	}
	stats, err := jetbus.Replay(r.ctx, r.Admin, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: a.topic}})
	r.must(err)
	if stats.Replayed != 1 {
		r.Errorf("replayed: %+v", stats)
	}
	calls := got.wait(r.T, 7)
	if d := calls[6]; d.Key != "4" || d.ReplayOf == 0 || d.Partition != r.partitionOf("4", n) || d.Epoch != uint64(d.Partition)+1 || d.Attempt != 1 {
		r.Errorf("the replay: %+v", d.Delivery)
	}
	r.settled(a.topic, "g", 6)
}
