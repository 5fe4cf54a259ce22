package gateway

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// receive handles one frame of the client.
func (c *conn) receive(text []byte) {
	var req frame.Request
	var err error
	late := parse(c.ctx, c.account, len(text), func() error {
		req, err = frame.ParseRequest(text)
		return nil
	})
	if late != nil {
		c.refuseUnparsed(text, late)
		return
	}
	if errors.Is(err, frame.ErrUTF8) {
		c.end(closeUTF8)
		return
	}
	if wait, ok := c.charge(); !ok {
		c.say(errorFrame(req.Corr, &failure{Code: CodeRateLimited, Msg: "too many frames at once", After: max(wait, time.Millisecond)}))
		return
	}
	if err != nil {
		c.refuse(req.Corr, frameFailure(err))
		return
	}
	if req.Op == frame.Auth {
		c.auth(req, true)
		return
	}
	if !c.isAuthed() {
		if c.early++; c.early > maxEarly {
			c.end(closeUnauthorized)
			return
		}
		if req.Op == frame.Ping {
			c.say(&frame.Message{Op: frame.Pong, N: req.N})
		} else if req.Op != frame.Pong {
			c.refuse(req.Corr, refuse(CodeUnauthorized, "Call AUTH first."))
		}
		return
	}
	c.dispatch(req)
}

// corrBytes is how much of a frame is searched for its corr if it is not parsed.
const corrBytes = 1 << 10

// closeOverloaded is for a connection with a frame that could be neither handled nor answered.
var closeOverloaded = closing{int(websocket.StatusTryAgainLater), "overloaded"}

// refuseUnparsed refuses a large frame that waited too long to be parsed. Without its corr the client could not match
// the error with its request, and would wait forever. So the connection is closed.
func (c *conn) refuseUnparsed(text []byte, err error) {
	corr := frame.CorrOf(text[:min(len(text), corrBytes)])
	switch {
	case c.isOver():
	case corr == "":
		c.end(closeOverloaded)
	default:
		c.refuse(corr, err)
	}
}

func (c *conn) dispatch(req frame.Request) {
	switch req.Op {
	case frame.Subscribe:
		c.subscribe(req)
	case frame.Unsubscribe:
		c.unsubscribe(req)
	case frame.Flow:
		c.flow(req)
	case frame.Publish:
		c.publish(req)
	case frame.PublishBatch:
		c.publishBatch(req)
	case frame.Ack, frame.Nack, frame.ModAck:
		c.settle(req)
	case frame.Acks:
		c.settleAll(req)
	case frame.Seek:
		c.seek(req)
	case frame.Cursor:
		c.cursor(req)
	case frame.Ping:
		c.say(&frame.Message{Op: frame.Pong, N: req.N, Corr: req.Corr})
	case frame.Pong:
	default:
		c.refuse(req.Corr, refuse(CodeUnknownOp, "there is no op %.40q", req.Op))
	}
}

// subjectFrames multiplies Limits.Rate and Limits.Burst to get the limit for all connections of a subject.
const subjectFrames = 10

// charge counts a frame. A client that goes on although it is told to slow down is closed.
func (c *conn) charge() (wait time.Duration, ok bool) {
	ok, wait = c.rate.take(time.Now(), 1)
	if ok && c.g.c.Auth != nil && c.isAuthed() {
		l := c.g.c.Limits
		ok, wait = c.g.gate.frames.take(c.principal().Subject, subjectFrames*l.Rate, subjectFrames*l.Burst, 1)
	}
	if ok {
		c.refusals = max(c.refusals-1, 0)
		return 0, true
	}
	if c.refusals++; c.refusals > c.g.c.Limits.Burst {
		c.end(closeRateLimited)
	}
	return wait, false
}

// control counts a control frame. It reports whether a ping must be answered. The reader calls it; after the
// end of the connection, the goroutine that closes it may call it concurrently.
func (c *conn) control() (ok bool) {
	if !c.isOver() {
		_, ok = c.charge()
	}
	return ok
}

// frameFailure is what a client is told of a frame that cannot be read.
func frameFailure(err error) error {
	switch {
	case errors.Is(err, frame.ErrMember):
		return refuse(CodeBadRequest, "%v", err)
	case errors.Is(err, frame.ErrJSON), errors.Is(err, frame.ErrUTF8):
		return refuse(CodeBadJSON, "Invalid JSON")
	}
	return err
}

// errorFrame is an ERR frame.
func errorFrame(corr string, f *failure) *frame.Message {
	m := &frame.Message{Op: frame.Err, Corr: corr, Code: string(f.Code), Msg: f.Msg, Retryable: f.retryable(), RetryAfterMs: f.After.Milliseconds()}
	if f.Details != nil {
		if text, err := json.Marshal(f.Details); err == nil {
			m.Details = text
		}
	}
	return m
}

// hello tells a client of the protocol what holds here.
func (c *conn) hello() {
	if c.sketch {
		return
	}
	l := c.g.c.Limits
	limits, err := json.Marshal(map[string]any{
		"maxMessage": l.FrameBytes, "maxSubs": l.Subscriptions, "maxInFlight": l.InFlight, "maxBatch": l.BatchEvents,
		"maxLeaseMs": l.LeaseMax.Milliseconds(), "resumeGraceMs": l.ResumeGrace.Milliseconds(), "rate": l.Rate,
	})
	if err != nil {
		limits = nil // numbers never fail
	}
	auth := "required"
	if c.g.c.Auth == nil {
		auth = "none"
	}
	c.mu.Lock()
	id := c.ses.id
	c.mu.Unlock()
	c.say(&frame.Message{Op: frame.Hello, V: 1, Server: "jetbus", Session: id, Limits: limits, PingMs: l.Ping.Milliseconds(), Auth: auth})
}
