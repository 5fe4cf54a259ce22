package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// Receive implements [jetbus.Receiver], over HTTP: what it returns stays held when a
// connection breaks. The leases last 1 second at least, and the gateway's limits of a batch
// and of a wait may make it return less, or earlier, than o says. It is the gateway that
// extends leases with MaxLease, which is its Limits.LeaseTotal at most: they go on where this
// process ends without a word.
func (c *Client) Receive(ctx context.Context, topic, group string, o jetbus.ReceiveOptions) ([]*jetbus.Delivery, error) {
	out, err := c.receive(ctx, topic, group, o)
	if err != nil {
		return nil, fmt.Errorf("receive %s %s: %w", topic, group, err)
	}
	return out, nil
}

func (c *Client) receive(ctx context.Context, topic, group string, o jetbus.ReceiveOptions) ([]*jetbus.Delivery, error) {
	err := jetbus.ValidTopic(topic)
	if err == nil {
		err = jetbus.ValidGroup(group)
	}
	if err == nil {
		o, err = o.Normalize()
	}
	o.AckTimeout = cmp.Or(o.AckTimeout, jetbus.DefaultAckTimeout)
	switch {
	case err != nil:
		return nil, err
	case o.Reserve != nil:
		return nil, fmt.Errorf("%w: Reserve: the gateway's limits bound what a subject holds", jetbus.ErrUnsupported)
	case o.AckTimeout < leastLease:
		return nil, fmt.Errorf("%w: AckTimeout is %v, the leases of a gateway last 1 second at least", jetbus.ErrUnsupported, o.AckTimeout)
	}
	ctx, cancel := c.longer(ctx, max(o.Wait, 0))
	defer cancel()
	var got struct {
		Events []struct {
			AckID string             `json:"ack_id"`
			Ctx   frame.EventContext `json:"ctx"`
			Event *jetbus.Event      `json:"event"`
		} `json:"events"`
	}
	at := "/v1/groups/" + url.PathEscape(topic) + "/" + url.PathEscape(group)
	if err := c.web(ctx, at+":pull", nil, o, &got); err != nil {
		return nil, err
	}
	now := time.Now()
	out := make([]*jetbus.Delivery, 0, len(got.Events))
	for _, e := range got.Events {
		p := &pulled{c: c, at: at, token: e.AckID, group: group, lease: o.AckTimeout}
		if e.Event == nil {
			continue // its lease ends by itself
		}
		p.deadline = now.Add(time.Duration(e.Ctx.AckDeadlineMs)*time.Millisecond - margin(o.AckTimeout))
		d := jetbus.NewDelivery(*e.Event, group, e.Ctx.Attempt, e.Ctx.MaxAttempts, p)
		d.Redelivered, d.Epoch, d.ReplayOf = e.Ctx.Redelivered, e.Ctx.Epoch, e.Ctx.ReplayOf
		p.key = heldKey{d.Topic, group, d.ID}
		p.mu.Lock()
		p.timer = time.AfterFunc(time.Until(p.deadline), p.expire)
		p.mu.Unlock()
		for _, l := range c.leases(p.key) {
			if before, ok := l.(*pulled); ok {
				before.overtake()
			}
		}
		c.holdLease(p.key, p)
		out = append(out, d)
	}
	return out, nil
}

// pulled is the lease on an event that was received: a [jetbus.Lease].
type pulled struct {
	c                *Client
	key              heldKey
	at, token, group string
	lease            time.Duration

	mu       sync.Mutex
	state    state
	doubtful bool // it may be settled
	deadline time.Time
	timer    *time.Timer
}

// overtake ends a lease that may be settled: its event has come again.
func (p *pulled) overtake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.doubtful && p.state == open {
		p.state = lost
		p.timer.Stop()
		p.c.dropLease(p.key, p)
	}
}

// expire forgets a lease that nobody extended.
func (p *pulled) expire() {
	p.mu.Lock()
	left := time.Until(p.deadline)
	if p.state == open && left > 0 {
		p.timer.Reset(left)
	}
	p.mu.Unlock()
	if left <= 0 {
		_ = p.take(false) // which finds that it is over
	}
}

// settleRequest is what is said of an event.
type settleRequest struct {
	AckIDs   []string `json:"ack_ids"`
	DelayMs  int64    `json:"delay_ms,omitempty"`
	ExtendMs int64    `json:"extend_ms,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Dead     bool     `json:"dead,omitempty"`
	DeadAs   string   `json:"dead_reason,omitempty"`
	Stack    string   `json:"stack,omitempty"`
	Snooze   bool     `json:"snooze,omitempty"`
	GiveBack bool     `json:"give_back,omitempty"`
}

// take makes the lease the caller's to settle.
func (p *pulled) take(final bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == open && !time.Now().Before(p.deadline) {
		p.state = lost
	}
	switch p.state {
	case settled:
		return jetbus.ErrAlreadySettled
	case lost:
		p.c.dropLease(p.key, p)
		return jetbus.ErrLeaseExpired
	case open:
	}
	if final {
		p.state = settled
		p.timer.Stop()
		p.c.dropLease(p.key, p)
	}
	return nil
}

func (p *pulled) say(ctx context.Context, verb string, req settleRequest) error {
	err := ctx.Err()
	if err == nil {
		err = p.take(verb != "extend")
	}
	if err == nil {
		if err = p.tell(ctx, verb, req); err != nil && verb != "extend" && !errors.Is(err, jetbus.ErrLeaseExpired) && !errors.Is(err, jetbus.ErrAlreadySettled) {
			p.reopen()
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", verb, p.key.topic, p.key.id, err)
	}
	return nil
}

// reopen leaves a lease with its holder where it is not known to be settled: the broker did not
// take what was said of it, or no answer came. Where it was settled all the same, the gateway knows for a
// while what was said, and takes the same once more; anything else finds it settled, or later expired.
func (p *pulled) reopen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == settled {
		p.state, p.doubtful = open, true
		p.c.holdLease(p.key, p)
		p.timer.Reset(time.Until(p.deadline))
	}
}

func (p *pulled) tell(ctx context.Context, verb string, req settleRequest) error {
	req.AckIDs = []string{p.token}
	if l, err := p.c.main(); err == nil { // a body is bounded like a frame
		req.Reason, req.Stack = l.shorten(req.Reason, req.Stack)
	}
	var got struct {
		Results []struct {
			frame.Result
			DeadlineMs int64 `json:"deadline_ms"`
		} `json:"results"`
	}
	asked := time.Now()
	if err := p.c.web(ctx, p.at+":"+verb, nil, req, &got); err != nil {
		return err
	}
	if len(got.Results) != 1 {
		return fmt.Errorf("%w: the gateway's answer has %d results", jetbus.ErrUnavailable, len(got.Results))
	}
	r := got.Results[0]
	switch {
	case r.Applied != nil && *r.Applied:
		if r.DeadlineMs > 0 {
			left := time.Duration(r.DeadlineMs) * time.Millisecond
			p.mu.Lock()
			p.deadline = asked.Add(left - margin(left))
			p.mu.Unlock()
		}
		return nil
	case r.Code != "":
		return refusal(&frame.Message{Code: r.Code, Msg: r.Msg, Retryable: r.Retryable})
	case r.Reason == "settled":
		return jetbus.ErrAlreadySettled
	case r.Reason == "limit":
		return fmt.Errorf("%w: the gateway extends a lease no further (Limits.LeaseTotal)", jetbus.ErrUnsupported)
	}
	return jetbus.ErrLeaseExpired
}

// Ack implements [jetbus.Lease].
func (p *pulled) Ack(ctx context.Context) error { return p.say(ctx, "ack", settleRequest{}) }

// Nack implements [jetbus.Lease].
func (p *pulled) Nack(ctx context.Context, o jetbus.NackOptions) error {
	if err := o.Validate(); err != nil {
		return err
	}
	return p.say(ctx, "nack", settleRequest{DelayMs: milliseconds(nackDelay(o)), Reason: o.Reason, Stack: o.Stack})
}

// Extend implements [jetbus.Lease].
func (p *pulled) Extend(ctx context.Context, by time.Duration) error {
	return p.say(ctx, "extend", settleRequest{ExtendMs: milliseconds(min(max(by, p.lease), jetbus.MaxRetryDelay))})
}

// GiveBack implements [jetbus.Lease].
func (p *pulled) GiveBack(ctx context.Context) error {
	return p.say(ctx, "nack", settleRequest{GiveBack: true})
}

// Snooze implements [jetbus.Lease].
func (p *pulled) Snooze(ctx context.Context, d time.Duration) error {
	return p.say(ctx, "nack", settleRequest{Snooze: true, DelayMs: milliseconds(min(max(d, time.Millisecond), jetbus.MaxRetryDelay))})
}

// Reject implements [jetbus.Lease].
func (p *pulled) Reject(ctx context.Context, o jetbus.RejectOptions) error {
	return p.say(ctx, "nack", settleRequest{Dead: true, DeadAs: deadAs(o.As), Reason: o.Reason, Stack: o.Stack})
}

// Deadline implements [jetbus.Lease].
func (p *pulled) Deadline() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline
}
