package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// startCredit makes sure that the group exists, and takes events when there is credit.
func (s *sub) startCredit() error {
	if err := s.lookUp(); err != nil {
		return err
	}
	b := s.ses.g.b
	if _, err := b.Cursor(s.ctx, s.topics[0], s.group); errors.Is(err, jetbus.ErrNoGroup) {
		o, reserved := s.receiveOptions(1, s.most)
		o.Wait = -1
		early, err := b.Receive(s.ctx, s.topics[0], s.group, o)
		defer reserved.charge(nil)
		for _, d := range early { // nobody has asked for it yet
			_ = d.GiveBack(s.ctx) // else it comes again when the lease ends
		}
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return s.run(s.take)
}

// run runs what brings events, until the subscription ends.
func (s *sub) run(f func(ctx context.Context) error) error {
	s.ses.mu.Lock()
	defer s.ses.mu.Unlock()
	if s.ended || s.ses.ended {
		return refuse(CodeDraining, "the connection is over")
	}
	ran := make(chan struct{})
	s.ran = ran
	s.ses.work.Go(func() {
		err := f(s.ctx)
		close(ran)
		if err != nil && s.ctx.Err() == nil {
			s.close(err)
		}
	})
	return nil
}

func (s *sub) receiveOptions(n, bytes int) (jetbus.ReceiveOptions, *reservation) {
	r := &reservation{account: s.member, had: s.unreserved()}
	return jetbus.ReceiveOptions{
		From: s.o.From, Max: n, MaxBytes: int64(min(bytes, maxHeldBytes)), Wait: creditWait, AckTimeout: groupAckTimeout, MaxAttempts: s.o.MaxAttempts,
		Reserve: r.reserve,
	}, r
}

// take requests as many events as the client has credit for, and extends the leases of the events that
// the client holds.
func (s *sub) take(ctx context.Context) error {
	kept := make(chan struct{})
	s.ses.mu.Lock()
	if s.ses.ended {
		close(kept)
	} else {
		s.ses.work.Go(func() {
			defer close(kept)
			s.keep(ctx)
		})
	}
	s.ses.mu.Unlock()
	defer func() {
		s.cancel()
		<-kept
	}()
	for wait := retryWait; ; {
		// While the client does not read, no events are requested.
		if !s.ses.pushEvent(s.done, func() []byte { return nil }) {
			return nil
		}
		ctx, stop := context.WithCancel(ctx)
		n, bytes := s.room(stop)
		if n == 0 {
			stop()
			return nil
		}
		o, reserved := s.receiveOptions(n, bytes)
		got, err := s.ses.g.b.Receive(ctx, s.topics[0], s.group, o)
		stop()
		got = s.fit(ctx, got, bytes)
		reserved.charge(got)
		s.ses.mu.Lock()
		for _, d := range got {
			s.taken[d] = struct{}{}
		}
		s.ses.mu.Unlock()
		for _, d := range got {
			s.receive(ctx, d)
		}
		switch {
		case err == nil && (len(got) > 0 || reserved.refused == nil):
			wait = retryWait
			continue
		case err == nil: // the budget has no room for the next event
		case s.ctx.Err() != nil:
			return nil
		case errors.Is(err, context.Canceled): // paused
			continue
		case !codeOf(err).Retryable():
			return err
		}
		wait = s.rest(wait)
	}
}

const (
	retryWait    = 250 * time.Millisecond
	retryWaitMax = 5 * time.Second
)

// rest waits before the bus is asked again, and returns how long to wait the next time.
func (s *sub) rest(wait time.Duration) time.Duration {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-s.done:
	}
	return min(2*wait, retryWaitMax)
}

// receive handles one event that was taken.
func (s *sub) receive(ctx context.Context, d *jetbus.Delivery) {
	matches := s.o.Filter.Match(&d.Event)
	delivered := matches && s.deliver(d) // which may take long
	s.ses.mu.Lock()
	delete(s.taken, d)
	if delivered {
		s.credit--
	}
	s.ses.mu.Unlock()
	if delivered {
		return
	}
	s.discharge(sizeOf(&d.Event))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), taskTime)
	defer cancel()
	if matches {
		_ = d.GiveBack(ctx) // else it comes again when the lease ends
	} else {
		_ = d.Ack(ctx) // unseen; else it comes again
	}
}

// fit gives back an event that came alone since it is larger than there is room for, where
// there is more room when what is held is settled.
func (s *sub) fit(ctx context.Context, got []*jetbus.Delivery, bytes int) []*jetbus.Delivery {
	if len(got) == 0 {
		return got
	}
	last := got[len(got)-1]
	s.ses.mu.Lock()
	s.next = sizeOf(&last.Event)
	fits := len(s.held) == 0 || s.next <= bytes
	s.ses.mu.Unlock()
	if fits {
		return got
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), taskTime)
	defer cancel()
	_ = last.GiveBack(ctx) // else it comes again when the lease ends
	return got[:len(got)-1]
}

// room waits until there is credit, and says for how many events to ask now, and of how many
// bytes; 0: for none any more. A pause calls stop.
func (s *sub) room(stop context.CancelFunc) (n, bytes int) {
	for {
		s.ses.mu.Lock()
		n, bytes = min(int(s.credit), s.inFlight-len(s.held), s.o.BatchSize), max(s.most-s.bytes, 1)
		if s.paused || len(s.held) > 0 && bytes < max(s.next, eventOverhead) {
			n = 0
		}
		s.stop = stop
		s.ses.mu.Unlock()
		select {
		case <-s.done:
			return 0, 0
		default:
		}
		if n > 0 {
			return n, bytes
		}
		select {
		case <-s.freed:
		case <-s.done:
			return 0, 0
		}
	}
}

// keep keeps the leases at the broker until the deadlines of the client, and those of what
// waits for room there.
func (s *sub) keep(ctx context.Context) {
	tick := time.NewTicker(groupAckTimeout / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		s.ses.mu.Lock()
		var short []*jetbus.Delivery
		for _, h := range s.held {
			if h.deadline.After(h.d.Deadline()) {
				short = append(short, h.d)
			}
		}
		for d := range s.taken { // else they were attempts that nobody saw
			short = append(short, d)
		}
		s.ses.mu.Unlock()
		for _, d := range short {
			_ = d.Extend(ctx, groupAckTimeout) // else the client's acknowledgement will not be applied, and it is told so
		}
	}
}

// flow handles a FLOW frame.
func (c *conn) flow(req frame.Request) {
	s, err := c.ses.find(&req)
	switch {
	case err != nil:
	case req.Pause != nil && s.group == "":
		err = refuse(CodeUnsupported, "a reader has no pause: unsubscribe, and go on behind the offset of its last event")
	case req.Pause != nil:
		c.pauseFlow(s, *req.Pause, req.Corr)
		return
	case s.o.Gateway.Flow != "credit":
		err = refuse(CodeBadRequest, "subscription %s has no credit: events are pushed", s.id)
	case req.Credit < 0:
		err = refuse(CodeBadRequest, "messages is negative")
	}
	if err != nil {
		c.refuse(req.Corr, err)
		return
	}
	most := int64(s.inFlight)
	c.ses.mu.Lock()
	s.credit = min(s.credit+min(req.Credit, most), most)
	c.ses.mu.Unlock()
	signal(s.freed)
	if req.Corr != "" {
		c.ok(frame.Message{Corr: req.Corr, Sub: s.id})
	}
}

// pauseFlow stops the events of a subscription, or lets them come again, for a client that asks.
func (c *conn) pauseFlow(s *sub, pause bool, corr string) {
	s.ses.mu.Lock()
	s.halted = pause
	s.ses.mu.Unlock()
	if pause {
		s.pause()
	} else {
		s.resume(c)
	}
	if corr != "" {
		c.ok(frame.Message{Corr: corr, Sub: s.id})
	}
}
