package adapter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// receiptsKey names what Receive handed out. The ack timeout is the group's, so
// one that changes makes a new entry.
type receiptsKey struct {
	topic, group string
	ackTimeout   time.Duration
}

// receipts are the leases that Receive handed out for a group.
type receipts struct {
	holding
	t    *topic
	next string // subject of pull requests
}

// Receive implements jetbus.Receiver.
func (b *Bus) Receive(ctx context.Context, topic, group string, o jetbus.ReceiveOptions) ([]*jetbus.Delivery, error) {
	op := fmt.Sprintf("receive %s/%s", topic, group)
	if err := b.enterNew(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.Done()
	ctx, untie := b.tie(ctx)
	defer untie()
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
	for try := 0; ; try++ {
		r, err := b.receiptsFor(ctx, topic, group, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op, err)
		}
		out, err := r.receive(ctx, o)
		if errors.Is(err, errNoDurable) && try == 0 { // replaced by SetCursor, or deleted
			r.forget()
			continue
		}
		if errors.Is(err, errNoDurable) {
			err = jetbus.ErrNoGroup
		}
		if err != nil {
			return nil, b.translate(op, r.next, err)
		}
		return out, nil
	}
}

// errNoDurable: nobody answers pull requests at the durable's subject.
var errNoDurable = errors.New("the durable is gone")

// receiptsFor returns the entry of a group, joining it first where it is new.
func (b *Bus) receiptsFor(ctx context.Context, name, group string, o jetbus.ReceiveOptions) (*receipts, error) {
	key := receiptsKey{name, group, o.AckTimeout}
	b.mu.Lock()
	r := b.held[key]
	b.mu.Unlock()
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.next != "" {
			return r, nil
		}
	}
	t, err := b.lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	info, err := b.joinGroup(ctx, t, group, o.From, groupSettings{ackTimeout: o.AckTimeout})
	if err != nil {
		return nil, err
	}
	next := b.api + "CONSUMER.MSG.NEXT." + t.stream + "." + info.Name
	if r != nil { // its leases go on; r.mu is held
		r.t, r.next = t, next
		return r, nil
	}
	backoff, err := jetbus.Backoff{}.Normalize()
	if err != nil {
		return nil, err
	}
	r = &receipts{holding: holding{b: b, group: group, ackTimeout: o.AckTimeout, maxLease: -1, backoff: backoff}, t: t, next: next}
	r.init()
	b.mu.Lock()
	defer b.mu.Unlock()
	if other := b.held[key]; other != nil {
		return other, nil
	}
	b.held[key] = r
	return r, nil
}

// forget makes the next call join again.
func (r *receipts) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = ""
}

// receive asks for what is there; if nothing is, it waits for one event and then
// asks for what came with it. A waiting request for more than one would have to
// be canceled with events on their way.
func (r *receipts) receive(ctx context.Context, o jetbus.ReceiveOptions) ([]*jetbus.Delivery, error) {
	call, err := r.open(o.Max)
	if err != nil {
		return nil, err
	}
	defer call.end(ctx)
	if err := call.collect(ctx, o); err != nil && call.len() == 0 {
		return nil, err
	}
	return call.deliveries(ctx, o.MaxAttempts), nil
}

func (c *receiveCall) collect(ctx context.Context, o jetbus.ReceiveOptions) error {
	if err := c.pull(ctx, o.Max, 0); err != nil || c.len() > 0 || o.Wait <= 0 {
		return err
	}
	if err := c.pull(ctx, 1, o.Wait); err != nil || c.len() == 0 || o.Max == 1 {
		return err
	}
	return c.pull(ctx, o.Max-c.len(), 0)
}

// receiveCall is the inbox of one Receive.
type receiveCall struct {
	r      *receipts
	sub    *nats.Subscription
	mu     sync.Mutex
	leases []*lease
	ended  bool          // what comes now is given back
	over   chan error    // the end of a request; capacity 1
	first  chan struct{} // signaled by an event; capacity 1
}

func (r *receipts) open(size int) (*receiveCall, error) {
	c := &receiveCall{r: r, over: make(chan error, 1), first: make(chan struct{}, 1), leases: make([]*lease, 0, min(size, 64))}
	var err error
	if c.sub, err = r.b.nc.Subscribe(r.b.nc.NewInbox(), c.receive); err != nil {
		return nil, err
	}
	return c, c.sub.SetPendingLimits(-1, -1)
}

func (c *receiveCall) receive(m *nats.Msg) {
	a, ok := parseAckReply(m.Reply)
	if !ok {
		c.status(m)
		return
	}
	l := &lease{t: c.r.t, msg: m, reply: m.Reply, deliveries: a.deliveries, seq: a.seq, stored: a.storedNano}
	c.r.add(l, time.Now())
	c.mu.Lock()
	ended := c.ended
	if !ended {
		c.leases = append(c.leases, l)
	}
	c.mu.Unlock()
	if ended {
		c.r.giveBack(context.Background(), []*lease{l}, "nobody waits for it any more")
		return
	}
	notify(c.first, struct{}{})
}

func (c *receiveCall) status(m *nats.Msg) {
	switch code, description := m.Header.Get("Status"), m.Header.Get("Description"); {
	case code == "100":
	case code == "404", code == "408":
		notify(c.over, nil)
	case code == "503", code == "409" && description == "Consumer Deleted":
		notify(c.over, errNoDurable)
	default:
		notify(c.over, fmt.Errorf("%w: %s %s", jetbus.ErrUnavailable, code, description))
	}
}

// pull sends one request and waits until it is over or, for a single event,
// until that is here.
func (c *receiveCall) pull(ctx context.Context, n int, wait time.Duration) error {
	lost, err := c.r.b.link.wait(ctx)
	if err != nil {
		return err
	}
	before := c.len()
	b := strconv.AppendInt([]byte(`{"batch":`), int64(n), 10)
	if wait > 0 {
		b = strconv.AppendInt(append(b, `,"expires":`...), int64(wait), 10)
	} else {
		b = append(b, `,"no_wait":true`...)
	}
	c.r.mu.Lock()
	next := c.r.next
	c.r.mu.Unlock()
	if err := c.r.b.nc.PublishRequest(next, c.sub.Subject, append(b, '}')); err != nil {
		return err
	}
	silent := time.NewTimer(wait + c.r.b.cfg.Timeout)
	defer silent.Stop()
	for c.len()-before < n {
		select {
		case <-c.first:
		case err := <-c.over:
			return err
		case <-lost:
			return errLost
		case <-silent.C:
			return nats.ErrTimeout
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
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
	c.r.giveBack(context.WithoutCancel(ctx), c.take(), "the call failed")
	if c.sub.Drain() != nil {
		_ = c.sub.Unsubscribe() // closed with the connection
	}
}

// deliveries decodes what came.
func (c *receiveCall) deliveries(ctx context.Context, maxAttempts int) []*jetbus.Delivery {
	leases := c.take()
	out := make([]*jetbus.Delivery, 0, len(leases))
	for _, l := range leases {
		e, err := l.decode()
		if err != nil {
			c.r.putOff(ctx, l, err)
			continue
		}
		attempt := c.r.b.attemptOf(ctx, l)
		c.r.mu.Lock()
		l.id, l.attempt, l.started = e.ID, attempt, time.Now()
		c.r.mu.Unlock()
		out = append(out, jetbus.NewDelivery(e, c.r.group, attempt, maxAttempts, l))
	}
	return out
}

// giveBackReceipts returns what Receive handed out and nobody settled.
func (b *Bus) giveBackReceipts(ctx context.Context) {
	b.mu.Lock()
	var all []*receipts
	for _, r := range b.held {
		all = append(all, r)
	}
	b.mu.Unlock()
	for _, r := range all {
		r.giveBack(context.WithoutCancel(ctx), r.all(), "the bus is closing")
		r.mu.Lock()
		for r.count > 0 {
			r.removeLocked(r.first.next, lost)
		}
		r.mu.Unlock()
		r.end()
	}
}

// notify sends without waiting.
func notify[T any](c chan T, v T) {
	select {
	case c <- v:
	default:
	}
}
