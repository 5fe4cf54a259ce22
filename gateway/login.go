package gateway

import (
	"context"
	"time"

	"github.com/seed-63e9a637/jetbus/internal/frame"
)

func (c *conn) isAuthed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.authed
}

// principal is whom the connection acts for.
func (c *conn) principal() Principal {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.who
}

// auth handles an AUTH frame: the first, or one with a fresh token of the same subject.
// Without answer, the token came with the request.
func (c *conn) auth(req frame.Request, answer bool) {
	ctx, cancel := context.WithTimeout(c.ctx, taskTime)
	defer cancel()
	c.check(true)
	who, err := c.g.authenticate(ctx, c.r, req.Token)
	late := c.check(false)
	if err == nil && c.isAuthed() && who.Subject != c.principal().Subject {
		c.refuse(req.Corr, refuse(CodeForbidden, "the token is another subject's; connect anew"))
		return
	}
	if err != nil {
		c.refuse(req.Corr, err)
		c.early++
		if c.isAuthed() || c.sketch && answer && c.early <= maxEarly && !late {
			return // what it has counts on; or, as with the first clients, until the time is over
		}
		switch codeOf(err) {
		case CodeTokenExpired, CodeInternal:
			c.end(closeTokenExpired)
		case CodeForbidden:
			c.end(closeForbidden)
		default:
			c.end(closeUnauthorized)
		}
		return
	}
	if err := c.admitted(who); err != nil {
		c.refuse(req.Corr, err)
		c.end(closeConnections)
		return
	}
	if !answer {
		return
	}
	m := frame.Message{Corr: req.Corr}
	if !who.Expires.IsZero() {
		m.Exp = who.Expires.Unix()
	}
	if req.Session == "" || c.sketch {
		c.ok(m)
		return
	}
	recovered := c.adopt(req.Session)
	m.Recovered = &recovered
	if recovered {
		m.Subs = c.ses.made(c.ended)
	}
	c.ok(m)
	if recovered {
		c.ses.resend()
	}
}

// admitted lets the connection act for a principal from now on.
func (c *conn) admitted(who Principal) error {
	c.mu.Lock()
	first := !c.authed
	c.mu.Unlock()
	if first {
		if err := c.g.open(sockets, who.Subject); err != nil {
			return err
		}
		c.g.gate.preAuth.remove(c.place)
	}
	c.mu.Lock()
	if first {
		c.account = c.g.account(who)
		c.out.charge(c.account)
	}
	c.who, c.authed = who, true
	c.expiry.Stop()
	switch {
	case who.Expires.IsZero() || c.isOver():
	case who.Expires.Equal(c.warned): // the client knows
		c.expiry = time.AfterFunc(time.Until(who.Expires), func() { c.expire(who.Expires) })
	default:
		c.expiry = time.AfterFunc(time.Until(who.Expires)-warnTime, c.warn)
	}
	ses := c.ses
	c.mu.Unlock()
	c.ws.SetReadLimit(c.g.c.Limits.FrameBytes)
	if !first {
		ses.restrict(who)
	}
	return nil
}

// check records the start or the end of the check of a token. It reports whether the client's time
// for AUTH expired during the check.
func (c *conn) check(now bool) (late bool) {
	c.g.gate.preAuth.check(c.place, now)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checking = now
	return c.overdue
}

// late ends a connection that did not authenticate in time. If the client's token is being checked,
// the client is not late, and the connection stays open until the check is done.
func (c *conn) late() {
	c.mu.Lock()
	waits := c.authed || c.checking
	c.overdue = c.checking
	c.mu.Unlock()
	if !waits {
		c.end(closeAuthTimeout)
	}
}

// warn says that the token ends soon, and ends the connection when it does.
func (c *conn) warn() {
	c.mu.Lock()
	ends := c.who.Expires
	c.warned = ends
	if !c.isOver() {
		c.expiry = time.AfterFunc(time.Until(ends), func() { c.expire(ends) })
	}
	c.mu.Unlock()
	c.say(&frame.Message{Op: frame.TokenExpiring, Exp: ends.Unix()})
}

// expire ends a connection whose token has ended. It waits on where the clock went back.
func (c *conn) expire(ends time.Time) {
	c.mu.Lock()
	if c.isOver() || !c.who.Expires.Equal(ends) { // a fresh token has a timer of its own
		c.mu.Unlock()
		return
	}
	left := time.Until(ends)
	if left > 0 {
		c.expiry = time.AfterFunc(left, func() { c.expire(ends) })
	}
	c.mu.Unlock()
	if left <= 0 {
		c.end(closeTokenExpired)
	}
}

// sendPing asks the client whether it is there.
func (c *conn) sendPing() {
	c.mu.Lock()
	if c.isOver() {
		c.mu.Unlock()
		return
	}
	c.pings++
	n := c.pings
	c.ping.Reset(c.g.c.Limits.Ping)
	c.mu.Unlock()
	if !c.sketch {
		c.push((&frame.Message{Op: frame.Ping, N: n}).Text(), pingFrame)
		return
	}
	// The first clients answer those of RFC 6455 only.
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isOver() {
		c.work.Go(c.controlPing)
	}
}

func (c *conn) controlPing() {
	// It does not end with c.ctx: that would cut the connection before it is told why.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), c.g.c.Limits.PongTimeout+c.g.c.Limits.WriteTimeout)
	defer cancel()
	if c.ws.Ping(ctx) != nil {
		c.end(closeNoPong)
	}
}

// awaitPong ends the connection unless the client says something in time.
func (c *conn) awaitPong() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.isOver():
	case c.pong == nil:
		c.pong = time.AfterFunc(c.g.c.Limits.PongTimeout, c.silent)
	default:
		c.pong.Reset(c.g.c.Limits.PongTimeout)
	}
}

// silent ends a connection whose client said nothing, unless that waits to be read.
func (c *conn) silent() {
	c.mu.Lock()
	handling := c.handling
	if handling && !c.isOver() {
		c.pong.Reset(c.g.c.Limits.PongTimeout)
	}
	c.mu.Unlock()
	if !handling {
		c.end(closeNoPong)
	}
}

// endWhenAnswered closes the connection when no acknowledgement waits for its answer.
func (c *conn) endWhenAnswered() {
	n := 0
	defer func() {
		for range n {
			<-c.tasks
		}
	}()
	for ; n < maxTasks; n++ {
		select {
		case c.tasks <- struct{}{}:
		case <-c.ended:
			return
		}
	}
	c.end(closeGoingAway)
}

// goAway tells the client that the gateway stops, and closes the connection in a while:
// not before wait has passed, and when nothing is held any more.
func (c *conn) goAway(deadline, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isOver() || c.leaving != nil {
		return
	}
	ses := c.ses
	c.work.Go(func() {
		c.say(&frame.Message{Op: frame.GoAway, DeadlineMs: deadline.Milliseconds(), Reason: "the gateway stops"})
	})
	c.work.Go(ses.quiet)
	c.leaving = time.AfterFunc(wait, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.isOver() {
			return
		}
		c.work.Go(func() {
			ses.settled(c.ended)
			c.endWhenAnswered()
		})
	})
}
