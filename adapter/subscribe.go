package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Subscribe implements jetbus.Subscriber.
func (b *Bus) Subscribe(ctx context.Context, topic, group string, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	op := fmt.Sprintf("subscribe %s/%s", topic, group)
	if err := b.enterNew(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	o, err := o.Normalize()
	switch {
	case err != nil:
	case h == nil:
		err = fmt.Errorf("%w: no handler", jetbus.ErrInvalidOption)
	case len(o.Topics) >= o.MaxInFlight:
		err = fmt.Errorf("%w: MaxInFlight %d is less than one event for each of %d topics", jetbus.ErrInvalidOption, o.MaxInFlight, len(o.Topics)+1)
	case o.MaxLease < 0 && len(o.Topics) >= o.Concurrency:
		err = fmt.Errorf("%w: without lease extension (MaxLease -1) Concurrency must be at least the number of topics, %d", jetbus.ErrInvalidOption, len(o.Topics)+1)
	case o.Order == jetbus.Total && len(o.Topics) > 0:
		err = fmt.Errorf("%w: Order %s is that of one topic, Topics names more: name one topic", jetbus.ErrInvalidOption, o.Order)
	case slices.Contains(o.Topics, topic):
		err = fmt.Errorf("%w: Topics names %s again", jetbus.ErrInvalidOption, topic)
	default:
		err = jetbus.ValidGroup(group)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	s := newSubscription(ctx, b, group, h, o)
	if err = b.tied(ctx, func(ctx context.Context) error { return s.join(ctx, append([]string{topic}, o.Topics...)) }); err == nil {
		err = s.start(ctx)
	} else {
		s.abandon()
	}
	if err != nil {
		return nil, doing(op, "group "+topic+"/"+group, err)
	}
	return s, nil
}

// subscription is one member of a group. Events come in by pullers, wait in the
// queue, and are handled by workers, which exist while there is work.
type subscription struct {
	leaseSet
	o       jetbus.SubscribeOptions
	handler jetbus.Handler
	ctx     context.Context         //nolint:containedctx // values for handlers, never canceled
	life    context.Context         //nolint:containedctx // canceled when the subscription ends; for its own requests
	die     context.CancelCauseFunc // of life
	owners  []*owner                // of an ordered group's topics; nil: the group is not ordered
	owning  sync.WaitGroup          // owners that run
	work    sync.WaitGroup          // workers and rejoins
	done    chan struct{}           // closed when nothing runs any more
	ended   func(err error)         // called before that, with why; nil: nobody wants to know
	idle    chan struct{}           // signaled when work or leases end while stopping; capacity 1
	pausing chan struct{}           // full while a Pause or a Resume is under way, or pullers end; capacity 1

	// Guarded by leaseSet.mu.
	pullers  []*puller // of the topics, then of their retries
	topics   int       // how many topics there are
	starved  []*puller // with nothing asked for and nothing held, since there was no room for one event
	queue    queue
	parked   []*lease // suspects that wait for another one to end
	workers  int
	running  int // handlers
	paused   bool
	stopping bool
	patience patience
	err      error
	rate     rate
	arrivals uint64 // events that came, of a group without order
	unwatch  []func()
}

func newSubscription(ctx context.Context, b *Bus, group string, h jetbus.Handler, o jetbus.SubscribeOptions) *subscription {
	s := &subscription{
		leaseSet: leaseSet{b: b, group: group, own: o.AckTimeout, maxLease: o.MaxLease, backoff: o.Backoff},
		o:        o, handler: h, ctx: context.WithoutCancel(ctx),
		done: make(chan struct{}), idle: make(chan struct{}, 1), pausing: make(chan struct{}, 1),
	}
	s.init()
	s.changed = s.leasesEnded
	s.life, s.die = context.WithCancelCause(s.ctx)
	return s
}

// enlist makes the subscription one that Close stops.
func (s *subscription) enlist() error {
	s.b.mu.Lock()
	closing := s.b.closing
	if !closing {
		s.b.members[s] = struct{}{}
	}
	s.b.mu.Unlock()
	if closing {
		s.abandon()
		return jetbus.ErrClosed
	}
	return nil
}

// start lets events flow.
func (s *subscription) start(ctx context.Context) error {
	if err := s.enlist(); err != nil {
		return err
	}
	if s.owners != nil {
		s.startOwners()
	}
	for _, p := range s.pullers {
		if s.owners != nil {
			break
		}
		unwatch := s.b.link.Watch(p.reconnected)
		s.mu.Lock()
		s.unwatch = append(s.unwatch, unwatch)
		s.mu.Unlock()
		p.start()
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Stop(s.ctx) })
	s.mu.Lock()
	s.unwatch = append(s.unwatch, func() { stop() })
	s.mu.Unlock()
	return nil
}

// windowLocked is how many events to hold: no more than this member finished in the last
// second, so that a slow one hoards nothing, and at least one for each handler.
func (s *subscription) windowLocked(now time.Time) int {
	able := s.o.Concurrency - s.stuck
	switch {
	case s.owners != nil: // what waits for one key must not keep the others from coming
		return s.o.MaxInFlight
	case able <= 0: // what came would wait for handlers that do not come back
		return 0
	case s.o.MaxLease < 0: // nothing extends what waits
		return able
	case s.o.ManualAck: // what is held has been handed over, and whoever has it may want more before it settles
		return s.grip.hold(s.o.MaxInFlight, now, s.ackTimeout)
	}
	return min(max(s.rate.lastSecond(now), able), s.o.MaxInFlight)
}

// share is how much of the window one topic may take, so that each has its part.
func (s *subscription) share() int {
	if s.o.MaxLease < 0 {
		return s.o.Concurrency / s.topics
	}
	return s.o.MaxInFlight / s.topics
}

// readyLocked has an event handled; shutdown gives it back, if it has begun.
func (s *subscription) readyLocked(l *lease) {
	from := l.p
	if l.slot != nil { // it may be adrift
		from = l.slot.tr.p
	}
	s.queue.push(&from.flow, l)
	s.hireLocked()
}

// hireLocked starts a worker if there is work for one more.
func (s *subscription) hireLocked() {
	if !s.stopping && s.workers < s.o.Concurrency && s.workers < s.running+s.queue.len() {
		s.workers++
		s.work.Go(s.worker)
	}
}

// maxYields is how often a worker without work lets others run before it ends.
const maxYields = 4

// worker handles events until there are none.
func (s *subscription) worker() {
	now := time.Now()
	s.mu.Lock()
	for yields := 0; ; {
		l := s.nextLocked(now)
		if l == nil {
			// The next event is often about to come; to wait for it a moment is
			// cheaper than to end and have another worker started.
			if yields++; yields > maxYields || s.stopping {
				break
			}
			s.mu.Unlock()
			runtime.Gosched()
			now = time.Now()
			s.mu.Lock()
			continue
		}
		yields = 0
		s.running++
		s.mu.Unlock()
		now = s.process(l, now)
		s.mu.Lock()
		s.ranLocked(l)
	}
	s.workers--
	s.mu.Unlock()
	s.signalIdle()
}

// ranLocked notes that a worker is done with an event, in one step: an owner stands down when
// its events are out of all hands, and whoever still counted as running then would be taken
// for a handler that ignores its context.
func (s *subscription) ranLocked(l *lease) {
	s.running--
	if l.slot != nil {
		l.slot.ranLocked()
	}
}

// turnsPerSecond is how many turns of its topics a member that has enough to do is through with
// in a second: a turn has as many events as it handles in that part of one.
const turnsPerSecond = 100

// nextLocked takes the next event that waits and is still ours. What waits
// when the subscription stops is left for Stop to give back.
func (s *subscription) nextLocked(now time.Time) *lease {
	if s.stopping {
		return nil
	}
	turn := s.rate.lastSecond(now) / turnsPerSecond
	for {
		if l := s.queue.pop(turn); l == nil || l.startLocked() {
			return l
		}
	}
}

// process decodes, filters and handles one event. It is told the time and tells
// it, so that the clock is read once an event.
func (s *subscription) process(l *lease, now time.Time) time.Time {
	if l.deliveries > 1 || l.retry != nil || l.slot != nil {
		if !s.admit(l) {
			return time.Now()
		}
		defer s.ran(l, *l.record)
		now = time.Now()
	}
	e, err := l.decode()
	if err != nil {
		s.unseen(now)
		_ = s.reject(s.ctx, l, jetbus.DeadUndecodable, err, nil) // else it comes back, as the observer is told
		return time.Now()
	}
	wanted, err := s.wants(&e)
	if err != nil {
		s.mu.Lock()
		s.noteEventLocked(l, &e)
		l.attempt = l.attemptNumber()
		s.rate.add(now)
		s.mu.Unlock()
		s.failed(l, err)
		return time.Now()
	}
	if !wanted {
		s.unseen(now)
		if l.settle(s.ctx, "ack", nil) == nil {
			s.b.done(l)
			s.note(l, jetbus.Filtered, "", nil)
		}
		return time.Now()
	}
	return s.handle(l, &e, now)
}

// unseen counts an event that is done without its handler as one that this member
// finishes, before it is settled: the request for more that follows goes by the rate.
func (s *subscription) unseen(now time.Time) {
	s.mu.Lock()
	s.rate.add(now)
	s.mu.Unlock()
}

// handle runs the handler and settles what it did not settle itself.
func (s *subscription) handle(l *lease, e *jetbus.Event, now time.Time) time.Time {
	ctx := &handlerContext{s: s}
	d := l.delivery(e, s.o.MaxAttempts)
	if !s.begin(ctx, l, e, d.Attempt, now) {
		return now
	}
	err, returned := errGoexit, false
	defer func() {
		if returned {
			return
		}
		s.finish(ctx, l, time.Now(), err) // runtime.Goexit ends this goroutine, the worker
		ctx.cancel(nil)
		s.exited(l)
	}()
	err = s.call(ctx, d)
	returned = true
	now = time.Now()
	s.finish(ctx, l, now, err)
	ctx.cancel(nil)
	return now
}

// begin notes that a handler is about to get the event. It reports false where
// that must not happen any more.
func (s *subscription) begin(ctx *handlerContext, l *lease, e *jetbus.Event, attempt int, now time.Time) bool {
	s.mu.Lock()
	if l.over() || s.stopping && s.err != nil {
		s.mu.Unlock()
		return false
	}
	s.noteEventLocked(l, e)
	l.attempt, l.started, l.run = attempt, now, ctx
	if l.slot != nil {
		l.slot.beginLocked(now)
	}
	s.stats.Delivered++
	s.mu.Unlock()
	if s.b.cfg.Observer != nil {
		s.b.cfg.Observer(jetbus.Observation{
			Kind: jetbus.Delivered, Topic: e.Topic, Group: s.group, ID: e.ID, Seq: e.Seq, Attempt: attempt, Duration: now.Sub(time.Unix(0, l.stored)),
			Reason: l.why(), Version: e.Headers[jetbus.HeaderSchemaVersion],
		})
	}
	return true
}

// delivery is what a handler gets of a lease.
func (l *lease) delivery(e *jetbus.Event, maxAttempts int) *jetbus.Delivery {
	if l.slot != nil {
		return l.slot.delivery(e, maxAttempts)
	}
	d := jetbus.NewDelivery(*e, l.h.group, l.attemptNumber(), maxAttempts, l)
	d.Redelivered = l.deliveries > 1
	if l.retry != nil {
		d.Redelivered, d.ReplayOf = true, l.retry.ReplayOf
	}
	return d
}

// why says why an event is delivered again; nothing for one that is not.
func (l *lease) why() string {
	first := l.deliveries == 1 && (l.slot == nil || l.slot.fresh())
	switch {
	case l.retry != nil && l.retry.ReplayOf > 0 && first:
		return "replay"
	case first && l.retry == nil:
		return ""
	case l.record != nil && l.record.Failed > 0:
		return "attempt " + strconv.Itoa(l.record.Failed) + " failed: " + l.record.Error
	case l.runsAlone():
		return "its member died or lost its connection"
	case l.suspect:
		return "it was delivered before"
	default:
		return "put off or given back"
	}
}

// errGoexit is the failure of a handler that ended its goroutine, as t.FailNow does.
var errGoexit = errors.New("the handler called runtime.Goexit")

// exited strikes off a worker that its handler has ended, and hires another.
func (s *subscription) exited(l *lease) {
	s.mu.Lock()
	s.ranLocked(l)
	s.workers--
	s.hireLocked()
	s.mu.Unlock()
	s.signalIdle()
}

// wants applies the filters; a panic becomes an error.
func (s *subscription) wants(e *jetbus.Event) (wanted bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &jetbus.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return s.o.Filter.Match(e) && (s.o.FilterFunc == nil || s.o.FilterFunc(e)), nil
}

// call runs the handler; a panic becomes an error.
func (s *subscription) call(ctx *handlerContext, d *jetbus.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &jetbus.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return s.handler(ctx, d)
}

// finish settles what the handler did not settle itself.
func (s *subscription) finish(ctx *handlerContext, l *lease, now time.Time, err error) {
	if l.slot != nil {
		s.finishTurn(ctx, l, now, err)
		return
	}
	s.mu.Lock()
	if l.state == leaseLost && l.run != nil {
		s.stuck--
	}
	l.run = nil
	s.rate.add(now)
	held := l.state == leaseOpen
	if held && err == nil && !s.o.ManualAck && s.b.link.IsUp() {
		s.acknowledgeAndUnlock(l, now)
		return
	}
	s.mu.Unlock()
	switch {
	case !held, err == nil && s.o.ManualAck:
		s.leasesEnded(l.p)
		return
	case err == nil:
		_ = l.Ack(s.ctx) // refused if the lease ran out: the event comes again
	case errors.Is(context.Cause(ctx), jetbus.ErrStopped) && jetbus.DispositionOf(err).Action == jetbus.ActionRetry:
		s.giveBack(s.ctx, []*lease{l}, "its handler was canceled by Stop")
	default:
		s.failed(l, err)
	}
}

// acknowledgeAndUnlock is Ack for the events that go as they should, which are most: all
// that needs s.mu, which the caller holds, is done at once. The acknowledgement is sent
// before the request for more.
func (s *subscription) acknowledgeAndUnlock(l *lease, now time.Time) {
	err := s.takeLocked(l, now)
	if err == nil {
		s.stats.Acked++
		s.ackedLocked(l)
	}
	o, reply := l.p.requestLocked(now)
	starved := s.starvedLocked()
	s.mu.Unlock()
	// The lease is over here before the server knows, so nobody else in this process begins to send
	// anything for it, and the order of what follows needs no lock; an extension that is on its
	// way does nothing behind an acknowledgement.
	if err == nil {
		err = s.b.nc.Publish(l.reply, nil)
		s.acknowledged(l, now, err)
	}
	l.p.send(o, reply)
	for _, p := range starved {
		p.request()
	}
	s.signalIdle()
}

// acknowledged tells the observer, or takes the acknowledgement out of the count
// where it was not sent: the event comes again.
func (s *subscription) acknowledged(l *lease, now time.Time, err error) {
	switch {
	case err != nil:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stats.Acked--
	case l.recorded || l.retry != nil:
		s.b.done(l)
		fallthrough
	case s.b.cfg.Observer != nil:
		s.b.cfg.Observer.Observe(jetbus.Observation{
			Kind: jetbus.Acked, Topic: l.t.name(), Group: s.group, ID: l.id, Seq: l.position(), Attempt: l.attempt, Duration: now.Sub(l.started), Version: l.version,
		})
	}
}

// failed does what the error of a handler asks for. Where that cannot be done,
// the event comes back when its lease is over.
func (s *subscription) failed(l *lease, err error) {
	if p, ok := errors.AsType[*jetbus.PanicError](err); ok {
		s.b.cfg.Logger.Error("handler panicked",
			slog.String("topic", l.t.name()), slog.String("group", s.group), slog.String("event", l.id), slog.Any("panic", p.Value), slog.String("stack", string(p.Stack)))
	}
	_ = s.dispose(s.ctx, l, jetbus.DispositionOf(err), err)
}

// leasesEnded runs when a lease of a puller ended, or several of any: there is room
// to ask for more. When all handlers are stuck, what waits for them is given back.
//
// What one puller holds takes no room from another, and there may be hundreds: the
// others are asked only where they starve, as all do while all handlers are stuck.
func (s *subscription) leasesEnded(p *puller) {
	s.mu.Lock()
	back := s.stuck >= s.o.Concurrency && s.queue.len() > 0 && !s.stopping
	s.mu.Unlock()
	if back {
		s.giveBack(s.life, s.takeQueue(), "all handlers are stuck")
	}
	asking := s.pullers
	if p != nil {
		p.request()
		s.mu.Lock()
		asking = s.starvedLocked()
		s.mu.Unlock()
	}
	for _, p := range asking {
		p.request()
	}
	s.signalIdle()
}

// starvedLocked returns the pullers that starve, each of which asks again.
func (s *subscription) starvedLocked() []*puller {
	starved := s.starved
	s.starved = nil
	for _, p := range starved {
		p.starved = false
	}
	return starved
}

func (s *subscription) signalIdle() {
	select {
	case s.idle <- struct{}{}:
	default:
	}
}
