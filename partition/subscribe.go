package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

const (
	lookPause = 2 * time.Second        // between looks whether the topic has a new generation
	restLook  = 15 * time.Second       // between looks whether older ones have work again
	gateAgain = time.Second            // between the first and the last look that say so
	gatePause = 250 * time.Millisecond // between looks whether older ones are drained, while somebody waits for that
)

// Subscription is a process's part in a group of a topic with partitions. It is a
// [jetbus.Subscription]. Its methods may be called concurrently.
type Subscription struct {
	bus          Bus
	topic, group string
	o            SubscribeOptions
	handler      jetbus.Handler
	ctx          context.Context         //nolint:containedctx // values for handlers, never canceled
	life         context.Context         //nolint:containedctx // of its own requests; canceled by stop
	end          context.CancelCauseFunc // of life
	done         chan struct{}           // closed when nothing runs any more
	again        chan struct{}           // signaled when the generations are to be looked at; capacity 1
	gate         gate
	work         sync.WaitGroup // those who wait for the ends of memberships
	rested       time.Time      // when older generations were looked at; of run

	mu          sync.Mutex
	generations map[int]*generation // of which it is a member
	live        map[jetbus.Partition]jetbus.PartitionSubscription
	past        jetbus.SubscriptionStats // of turns that are over
	counts      Stats                    // of memberships that are over
	paused      bool
	stopping    bool
	err         error
}

var _ jetbus.Subscription = (*Subscription)(nil)

// Subscribe makes this process a member of a group of a topic with partitions
// ([jetbus.TopicConfig]). The members share the partitions out among themselves, and
// each handles the events of its own: those of a key one after the other, in their
// order, across members, crashes and growth of the topic. It returns when the
// group exists in all partitions: what is published after that is not missed. The end
// of ctx is a Stop; its values go to handlers. Stop it before the bus is closed: a bus
// that is closed under it can tell nobody that the partitions are free, so that others wait
// for TTL, and begin as after a crash.
//
// A topic that grows ([jetbus.Partitions].Repartition) has a generation more of
// partitions. Members see that within seconds, and begin with a new partition when the
// group is done with the older ones that hold events of its keys.
//
// Of the errors, [jetbus.ErrInvalidOption] is about the arguments, [jetbus.ErrNoPartitions]
// and [jetbus.ErrNoTopic] about the topic, [jetbus.ErrConflict] about a group that has
// members without partitions, or whose members know another number of them, and
// [jetbus.ErrUnsupported] about a bucket whose keys cannot expire. [ErrMemberExists] comes
// later, as Subscription.Err, as for [Join].
func Subscribe(ctx context.Context, bus Bus, topic, group string, h jetbus.Handler, o SubscribeOptions) (*Subscription, error) {
	s, err := subscribe(ctx, bus, topic, group, h, o)
	if err != nil {
		return nil, fmt.Errorf("subscribe %s/%s by partition: %w", topic, group, err)
	}
	return s, nil
}

func subscribe(ctx context.Context, bus Bus, topic, group string, h jetbus.Handler, o SubscribeOptions) (*Subscription, error) {
	o, err := o.normalize()
	switch {
	case err != nil:
	case bus == nil || h == nil:
		err = fmt.Errorf("%w: a bus and a handler are needed", jetbus.ErrInvalidOption)
	default:
		err = errors.Join(jetbus.ValidTopic(topic), jetbus.ValidGroup(group))
	}
	if err != nil {
		return nil, err
	}
	s := &Subscription{
		bus: bus, topic: topic, group: group, o: o, handler: h, done: make(chan struct{}), again: make(chan struct{}, 1),
		generations: map[int]*generation{}, live: map[jetbus.Partition]jetbus.PartitionSubscription{},
	}
	s.ctx = context.WithValue(context.WithoutCancel(ctx), insideKey{s}, true)
	s.life, s.end = context.WithCancelCause(s.ctx)
	s.gate = gate{turn: make(chan struct{}, 1), look: s.partitions}
	unfollow := context.AfterFunc(ctx, s.stop)
	begin, cancel := s.life, context.CancelFunc(func() {})
	if until, ok := ctx.Deadline(); ok {
		begin, cancel = context.WithDeadline(s.life, until)
	}
	defer cancel()
	if err := s.enterAll(begin); err != nil { //nolint:contextcheck // a subscription outlasts ctx
		unfollow()
		s.stop()
		s.work.Wait()
		return nil, errors.Join(err, context.Cause(ctx))
	}
	go func() {
		s.run()
		s.work.Wait()
		unfollow()
		close(s.done)
	}()
	return s, nil
}

// insideKey finds, in the context of a handler or an Own, whose it is: the subscription's, the membership's.
type insideKey struct{ of any }

// Member is the name under which the process is a member.
func (s *Subscription) Member() string { return s.o.Member }

// Owned lists the partitions in this process's hands, in order. Those of a new
// generation may still wait for older ones.
func (s *Subscription) Owned() []jetbus.Partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []jetbus.Partition
	for _, g := range s.generations {
		for _, p := range g.membership.Owned() {
			out = append(out, jetbus.Partition{Generation: g.Generation.Generation, Number: p})
		}
	}
	slices.SortFunc(out, comparePartitions)
	return out
}

// Counts returns what the memberships of this subscription did: turns taken, given up in
// order, and sessions lost.
func (s *Subscription) Counts() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.counts
	for _, g := range s.generations {
		out = out.plus(g.membership.Stats())
	}
	return out
}

func (c Stats) plus(d Stats) Stats {
	return Stats{Acquired: c.Acquired + d.Acquired, Released: c.Released + d.Released, Expelled: c.Expelled + d.Expelled}
}

// Stats implements jetbus.Subscription: the sums over all partitions. BlockedKey is that
// of the partition in which it holds back the most.
func (s *Subscription) Stats() jetbus.SubscriptionStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.past
	for _, l := range s.live {
		stats := l.Stats()
		addCounters(&out, stats)
		out.Held += stats.Held
		out.Running += stats.Running
		out.Retrying += stats.Retrying
		out.Active = out.Active || stats.Active
		if stats.Blocked > out.Blocked {
			out.Blocked, out.BlockedKey = stats.Blocked, stats.BlockedKey
		}
	}
	out.Paused = s.paused
	return out
}

// addCounters adds what only grows.
func addCounters(sum *jetbus.SubscriptionStats, s jetbus.SubscriptionStats) {
	sum.Delivered += s.Delivered
	sum.Acked += s.Acked
	sum.Nacked += s.Nacked
	sum.Snoozed += s.Snoozed
	sum.DeadLetters += s.DeadLetters
	sum.Filtered += s.Filtered
	sum.GivenBack += s.GivenBack
	sum.LeasesLost += s.LeasesLost
}

// Done implements jetbus.Subscription.
func (s *Subscription) Done() <-chan struct{} { return s.done }

// Err implements jetbus.Subscription.
func (s *Subscription) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Pause stops fetching in all partitions of this process until Resume, in those that it
// gets meanwhile too; it keeps them. What it holds goes on.
func (s *Subscription) Pause() { s.setPaused(true) }

// Resume ends a Pause.
func (s *Subscription) Resume() { s.setPaused(false) }

func (s *Subscription) setPaused(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = paused
	for _, l := range s.live {
		setPaused(l, paused)
	}
}

func setPaused(l jetbus.PartitionSubscription, paused bool) {
	if paused {
		l.Pause()
	} else {
		l.Resume()
	}
}

// Stop hands all partitions over and leaves the group: handlers that run finish, or
// are canceled after ShutdownTimeout. It returns when all is over; when ctx ends
// first, the contexts of what still runs are canceled, and it waits on for that to
// return, and returns the error of ctx. It may be called again. From inside a handler,
// OnAssigned or OnRevoked it does not wait if ctx is their context or one made from it;
// given another one it waits for who waits for it, until ShutdownTimeout or ctx ends that.
// A ctx that was canceled before the call shortens nothing.
func (s *Subscription) Stop(ctx context.Context) error {
	s.stop()
	if ctx.Value(insideKey{s}) != nil {
		return nil
	}
	ctx, release := shutdown.Context(ctx, 0)
	defer release()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for _, g := range s.generations {
		g.membership.lose(jetbus.ErrStopped) // one that begins now has no turns any more
	}
	s.mu.Unlock()
	<-s.done
	return fmt.Errorf("unsubscribe %s/%s: %w", s.topic, s.group, context.Cause(ctx))
}

func (s *Subscription) stop() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.end(jetbus.ErrStopped)
}

// fail ends the subscription with an error.
func (s *Subscription) fail(err error) {
	s.mu.Lock()
	if s.err == nil && !s.stopping {
		s.err = fmt.Errorf("subscription %s/%s by partition: %w", s.topic, s.group, err)
	}
	s.mu.Unlock()
	s.stop()
}

// warn logs what a later try may mend.
func (s *Subscription) warn(err error) {
	s.o.Log.LogAttrs(s.ctx, slog.LevelWarn, "a subscription by partition tries again",
		slog.String("topic", s.topic), slog.String("group", s.group), slog.String("member", s.o.Member), slog.Any("error", err))
}
