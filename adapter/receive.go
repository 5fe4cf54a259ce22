package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// Receive implements jetbus.Receiver.
func (b *Bus) Receive(ctx context.Context, topic, group string, o jetbus.ReceiveOptions) ([]*jetbus.Delivery, error) {
	op := fmt.Sprintf("receive %s/%s", topic, group)
	if err := b.enterNew(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	o, err := o.Normalize()
	if err == nil {
		err = jetbus.ValidGroup(group)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.cfg.Timeout+max(o.Wait, 0))
		defer cancel()
	}
	var out []*jetbus.Delivery
	err = b.tied(ctx, func(ctx context.Context) (err error) {
		out, err = b.receiveUntil(ctx, topic, group, o)
		return err
	})
	if err != nil {
		return nil, doing(op, "group "+topic+"/"+group, err)
	}
	return out, nil
}

// receiveUntil receives, and begins anew where what it asked is gone or full, until
// the wait is over, and where it got no answer, as in an election, until ctx is.
func (b *Bus) receiveUntil(ctx context.Context, topic, group string, o jetbus.ReceiveOptions) ([]*jetbus.Delivery, error) {
	until, anew := time.Now().Add(o.Wait), false
	for try := 0; ; anew = true {
		out, err := b.receive(ctx, topic, group, o, anew)
		if o.Wait > 0 {
			o.Wait = max(time.Until(until), -1)
		}
		switch {
		case errors.Is(err, errNoDurable):
			// Replaced by SetCursor between two requests, or deleted; or created this
			// moment by somebody else, and not listening yet.
			if err := waitForDurable(ctx, try); err != nil {
				return nil, err
			}
			try++
		case errors.Is(err, errFull):
			if o.Wait <= 0 {
				return nil, nil
			}
		case isStale(err) && ctx.Err() == nil && !b.link.IsOver():
			try = 0
			if anew { // what the server said just now is no better
				select {
				case <-time.After(pullRetry):
				case <-ctx.Done():
				}
			}
		default:
			return out, err
		}
	}
}

// errNoDurable: nobody answers pull requests at the durable's subject.
var errNoDurable = errors.New("the durable is gone")

// errFull: the group holds all it may, and the server keeps the request to itself
// until it holds less.
var errFull = errors.New("the group is full")

// staleError is what a request came to that another one, behind a new look at the group, may
// not come to: by what was known of the group it was in vain, or who was asked has gone.
type staleError struct{ error }

func (e staleError) Unwrap() error { return e.error }

func isStale(err error) bool {
	_, ok := errors.AsType[staleError](err)
	return ok
}

// fullWait is how long a request waits for what a group that holds all it may has to
// give: events that it was given back.
const fullWait = 100 * time.Millisecond

// waitForDurable waits a little longer each time, and fails at last.
func waitForDurable(ctx context.Context, try int) error {
	const tries = 6
	if try == tries {
		return jetbus.ErrNoGroup
	}
	select {
	case <-time.After(movePoll << try):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// receive receives once, by what is known of the group unless it is to be asked for anew.
func (b *Bus) receive(ctx context.Context, name, group string, o jetbus.ReceiveOptions, anew bool) ([]*jetbus.Delivery, error) {
	t, err := b.lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	g, known := b.recentGroup(t, group, o)
	if known = known && !anew; !known {
		if g, err = b.askGroup(ctx, t, group, o); err != nil {
			return nil, err
		}
	}
	r, err := b.useHandedOut(t, group, g.ackTimeout, o.MaxLease)
	if err != nil {
		return nil, err
	}
	defer b.unuseHandedOut(r)
	out, err := r.receive(ctx, g, o)
	if err == nil {
		return out, nil
	}
	b.forgetGroup(g)
	stale := known && !errors.Is(err, errNoDurable) && !errors.Is(err, errFull) || isCut(err)
	err = b.translate("pull", g.main.at.subject, err)
	if stale {
		err = staleError{err}
	}
	return nil, err
}

// errForgone: what came may be somebody else's, see leaseSet.exposeLocked.
var errForgone = errors.New("it could not be known that nobody else has the event")

// isCut reports whether a request was lost, or ended by a leader that went.
func isCut(err error) bool {
	w, ok := errors.AsType[pullError](err)
	return ok && w.kind == pullLater || errors.Is(err, errLost) || errors.Is(err, errForgone) || isLost(err)
}

// source is where events of a group come from.
type source struct {
	t          *topic
	durable    string
	at         pullPoint
	most, room int                     // how many events the group may hold; and how many more it could a moment ago
	delivered  *high                   // of the durable's own count of deliveries, the highest that is known
	info       *jetstream.ConsumerInfo // what the server said of it
}

// high is the highest of numbers that come from several goroutines.
type high struct{ n atomic.Uint64 }

func (h *high) note(n uint64) {
	for {
		was := h.n.Load()
		if n <= was || h.n.CompareAndSwap(was, n) {
			return
		}
	}
}

func (srv *server) source(t *topic, info *jetstream.ConsumerInfo) source {
	s := source{t: t, durable: info.Name, at: srv.pullPoint(t.stream, info.Name), most: math.MaxInt, room: math.MaxInt, delivered: &high{}, info: info}
	s.delivered.note(info.Delivered.Consumer)
	if most := info.Config.MaxAckPending; most > 0 {
		s.most, s.room = most, max(most-info.NumAckPending, 0)
	}
	return s
}

// isFull reports whether the group holds all it may, as far as the server says.
func (srv *server) isFull(ctx context.Context, s source) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := srv.consumer(ctx, s.t, s.durable)
	return err == nil && srv.source(s.t, c.CachedInfo()).room == 0
}

// receive asks for what is there; if nothing is, it waits for one
// event and then asks for what came with it. A waiting request for more than one
// would have to be canceled with events on their way.
func (r *handedOut) receive(ctx context.Context, g *knownGroup, o jetbus.ReceiveOptions) ([]*jetbus.Delivery, error) {
	call, err := r.open(o)
	if err != nil {
		return nil, err
	}
	defer call.end(ctx)
	r.adopt(g)
	err = call.collect(ctx, g, o)
	came := call.take()
	g.took(len(came))
	leases, exposed := r.cover(ctx, min(r.b.cfg.Timeout, r.ackTimeout/3), came)
	r.failed(ctx, exposed)
	if err == nil && len(leases) == 0 && len(came) > 0 {
		err = cmp.Or(context.Cause(ctx), errForgone)
	}
	if err != nil {
		if len(leases) == 0 {
			return nil, err
		}
		r.b.forgetGroup(g) // the next call asks what is wrong
	}
	return r.deliveries(ctx, leases, o.MaxAttempts), nil
}

// adopt notes where the group's durables are.
func (r *handedOut) adopt(g *knownGroup) {
	retries, topic := g.sources()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.adopted == g { // what has been settled since is not in it
		return
	}
	r.adopted = g
	r.adoptedLocked(retries.info, g.on)
	r.adoptedLocked(topic.info, g.on)
}

func (c *receiveCall) collect(ctx context.Context, g *knownGroup, o jetbus.ReceiveOptions) error {
	retries, topic := g.sources()
	order := []source{topic, retries}
	if g.retriesDue(time.Now()) {
		order = []source{retries, topic}
	}
	for _, source := range order {
		left := o.Max - c.len()
		if left <= 0 || c.full {
			break
		}
		before := c.len()
		err := c.pullNow(ctx, source, left)
		if errors.Is(err, errNoDurable) && c.len() > 0 {
			return c.pullMoved(ctx, g, o)
		}
		if err != nil {
			return err
		}
		if source.t == retries.t {
			g.lookedAtRetries(time.Now(), c.len() > before)
		}
	}
	if c.len() > 0 || o.Wait <= 0 {
		return nil
	}
	// A request that waits is renewed in time, so that what it brings is known to
	// have been sent not long ago; see puller.
	until := time.Now().Add(o.Wait)
	for c.len() == 0 && !c.full && time.Until(until) > 0 {
		if err := c.pull(ctx, topic, 1, max(min(time.Until(until), c.r.ackTimeout/3), minPullExpiry)); err != nil {
			return err
		}
	}
	if left := min(o.Max, topic.room) - c.len(); c.len() > 0 && left > 0 && !c.full {
		return c.pull(ctx, topic, left, 0)
	}
	return nil
}

// pullMoved asks for what is missing where the group turned out to be elsewhere when some of
// its retries had come: they are no reason to leave out what the topic has for it.
func (c *receiveCall) pullMoved(ctx context.Context, g *knownGroup, o jetbus.ReceiveOptions) error {
	c.r.b.forgetGroup(g)
	fresh, err := c.r.b.askGroup(ctx, g.t, c.r.group, o)
	if err != nil || fresh.ackTimeout < g.ackTimeout { // leases that are shorter are for the next call
		return err
	}
	c.r.adopt(fresh)
	defer func(n int) { fresh.took(c.len() - n) }(c.len())
	_, topic := fresh.sources()
	return c.pullNow(ctx, topic, o.Max-c.len())
}

// pullNow asks for up to n events that are there. It asks for no more than the group
// may hold: the server answers such a request when it holds less, and not before. What
// a full group was given back is there all the same, which is asked for with an end.
func (c *receiveCall) pullNow(ctx context.Context, from source, n int) error {
	if from.room == 0 {
		return c.pull(ctx, from, min(n, from.most), fullWait)
	}
	return c.pull(ctx, from, min(n, from.room), 0)
}

// receiveCall is the inbox of a Receive call.
type receiveCall struct {
	r           *handedOut
	maxAttempts int
	maxBytes    int64
	reserve     func(int64) bool // ReceiveOptions.Reserve
	reserved    int64            // bytes that reserve granted
	sub         *nats.Subscription
	full        bool // the next event does not fit
	mu          sync.Mutex
	from        source    // of the newest request
	behind      uint64    // what its durable had delivered before
	sent        time.Time // of the newest request
	leases      []*lease
	bytes       int64         // of their messages
	ended       bool          // events that arrive now are given back
	over        chan pullWord // the end of a request; capacity 1
	first       chan struct{} // signaled by an event; capacity 1
}

func (r *handedOut) open(o jetbus.ReceiveOptions) (*receiveCall, error) {
	c := &receiveCall{
		r: r, maxAttempts: o.MaxAttempts, maxBytes: o.MaxBytes, reserve: o.Reserve, from: source{t: r.t}, over: make(chan pullWord, 1), first: make(chan struct{}, 1),
		leases: make([]*lease, 0, min(o.Max, 64)),
	}
	var err error
	if c.sub, err = r.b.nc.Subscribe(r.b.nc.NewInbox(), c.receive); err != nil {
		return nil, err
	}
	r.b.openInbox(c.sub)
	return c, c.sub.SetPendingLimits(-1, -1)
}

func (c *receiveCall) receive(m *nats.Msg) {
	a, ok := parseAckReply(m.Reply)
	if !ok {
		c.status(m)
		return
	}
	c.mu.Lock()
	l := newLease(c.from.t, m, a, c.maxAttempts)
	late, sent := c.ended, c.sent
	other := a.consumed <= c.behind // the durable was deleted, and made anew with other settings perhaps
	if !late && !other {
		c.from.delivered.note(a.consumed)
		c.r.add(l, sent)
		c.leases, c.bytes = append(c.leases, l), c.bytes+l.size
	}
	c.mu.Unlock()
	if late || other {
		c.r.returnLate(l, sent)
		if other {
			notify(c.over, pullWord{kind: pullGone})
		}
		return
	}
	c.r.secure(l)
	notify(c.first, struct{}{})
}

func (c *receiveCall) status(m *nats.Msg) {
	if w := readPullWord(m); w.kind != pullBeat && w.kind != pullDone { // all its events are there, or on their way
		notify(c.over, w)
	}
}

// pull sends one request and waits until it is over or has brought n events, or as many
// bytes as there is room for. Where the first event is larger than all the room that there
// is, it asks for that alone.
func (c *receiveCall) pull(ctx context.Context, from source, n int, wait time.Duration) error {
	if c.reserve != nil {
		return c.pullReserved(ctx, from, n, wait)
	}
	if n > 1 || c.len() > 0 {
		err := c.pullUpTo(ctx, from, n, c.maxBytes-c.size(), wait)
		if err != nil || c.len() > 0 || !c.full {
			return err
		}
	}
	c.full = false // but for this event
	return c.pullUpTo(ctx, from, 1, 0, wait)
}

// pullReserved is pull with ReceiveOptions.Reserve. The server does not report the size of
// the next event: if the event does not fit, pullReserved doubles the reservation.
func (c *receiveCall) pullReserved(ctx context.Context, from source, n int, wait time.Duration) error {
	for wanted := c.len() + n; ; {
		c.full = false
		have := jetbus.UnreservedBytes + c.reserved
		n = wanted - c.len()
		switch {
		case c.len() > 0:
			have, wait = min(have, c.maxBytes), 0
		case have > c.maxBytes:
			n = 1 // a larger event is received alone
		}
		err := c.pullUpTo(ctx, from, n, max(have-c.size(), 1), wait)
		if err != nil || !c.full || c.len() >= wanted || c.len() > 0 && have >= c.maxBytes {
			return err
		}
		more := jetbus.UnreservedBytes + c.reserved
		if !c.reserve(more) {
			return nil
		}
		c.reserved += more
	}
}

// pullUpTo is pull of events that have so many bytes together, 0 for any. Without a wait it
// fails, errFull, where others have filled the group before the request came to the server,
// which says nothing then.
func (c *receiveCall) pullUpTo(ctx context.Context, from source, n int, bytes int64, wait time.Duration) error {
	lost, err := c.r.b.link.Wait(ctx)
	if err != nil {
		return err
	}
	wanted, most := c.len()+n, c.size()+bytes
	if bytes == 0 {
		most = math.MaxInt64
	}
	sent := time.Now()
	c.mu.Lock()
	c.from, c.behind, c.sent = from, from.delivered.n.Load(), sent
	c.mu.Unlock()
	if err := from.at.ask(c.sub.Subject, pullOrder{events: n, bytes: bytes, expires: wait}); err != nil {
		return err
	}
	silent, quiet := time.NewTimer(wait+askTimeout), time.NewTimer(denialCheck)
	defer silent.Stop()
	defer quiet.Stop()
	for c.len() < wanted && c.size() < most {
		select {
		case <-c.first:
			if wait == 0 {
				quiet.Reset(denialCheck)
			}
		case <-quiet.C:
			switch {
			case c.r.b.link.Refused(from.at.subject, sent):
				return noPermission(from.at.subject)
			case wait > 0, c.full: // it is answered when that is over; or what it brings is on its way
			case c.r.b.isFull(ctx, from):
				return errFull
			default:
				quiet.Reset(denialCheck)
			}
		case w := <-c.over:
			if w.kind != pullFull || w.events < 0 {
				return w.err()
			}
			wanted -= w.events // the others were sent, and may come behind the word
			c.full = true
		case <-lost:
			return errLost
		case <-silent.C:
			return nats.ErrTimeout
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	c.full = c.full || c.size() >= c.maxBytes
	return nil
}

// size is how many bytes the messages have that came.
func (c *receiveCall) size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

func (c *receiveCall) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.leases)
}

// take ends the collection and returns what it has.
func (c *receiveCall) take() []*lease {
	c.mu.Lock()
	defer c.mu.Unlock()
	leases := c.leases
	c.leases, c.ended = nil, true
	return leases
}

// end closes the inbox; an event that was on its way is given back when it comes.
func (c *receiveCall) end(ctx context.Context) {
	c.r.failed(ctx, c.take())
	if c.sub.Drain() != nil {
		_ = c.sub.Unsubscribe() // closed with the connection
	}
}

// notify sends without waiting.
func notify[T any](c chan T, v T) {
	select {
	case c <- v:
	default:
	}
}
