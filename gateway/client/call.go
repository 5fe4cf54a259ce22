package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// call is a frame that is to be answered.
type call struct {
	number uint64
	corr   string
	text   []byte
	once   bool    // it is of no use over another connection
	marks  []*mark // of ACKS
	tries  *tries  // of what is published; nil: it is something else
	wrote  bool    // it may have come to the gateway
	answer func(m *frame.Message, err error)
}

func byNumber(a, b *call) int { return cmp.Compare(a.number, b.number) }

func (c *call) reply(m *frame.Message, err error) {
	if c.answer != nil {
		c.answer(m, err)
	}
}

// mark is what is said of one event that is held: an ACK, NACK or MODACK.
type mark struct {
	ackID  string
	op     string
	nack   frame.Refuse
	extend time.Duration
	again  bool // it was said before, over a connection that broke
	answer func(applied bool, reason string, err error)
}

// requestText is a frame as JSON. Payloads keep their bytes: encoding/json would change them.
func requestText(r *frame.Request) ([]byte, error) {
	payload, events := r.Payload, r.Events
	r.Payload, r.Events = nil, nil
	text, err := plainText(r)
	r.Payload, r.Events = payload, events
	if err != nil || len(events) == 0 {
		return splice(text, "payload", payload), err
	}
	list := []byte{'['}
	for i, item := range events {
		payload, item.Payload = item.Payload, nil
		one, err := plainText(item)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, splice(one, "payload", payload)...)
	}
	return splice(text, "events", append(list, ']')), nil
}

// splice puts a member at the end of an object.
func splice(object []byte, name string, value []byte) []byte {
	if len(value) == 0 || len(object) == 0 {
		return object
	}
	object = append(object[:len(object)-1], `,"`+name+`":`...)
	return append(append(object, value...), '}')
}

func plainText(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// writeLocked notes that the frame is written now, and returns its text.
func (c *call) writeLocked() []byte {
	c.wrote = true
	if c.tries == nil {
		return c.text
	}
	age := c.tries.write(time.Now())
	if age == 0 {
		return c.text
	}
	return splice(slices.Clone(c.text), "age_ms", strconv.AppendInt(nil, age.Milliseconds(), 10))
}

// ageBytes is how much longer a frame becomes that says how old it is.
const ageBytes = 32

// send queues a frame. answer is told how it ended, once; nil: nobody wants to know. It must not block.
func (l *link) send(req *frame.Request, once bool, answer func(*frame.Message, error)) {
	l.put(req, &call{once: once, answer: answer})
}

// put is send of a frame whose call is made.
func (l *link) put(req *frame.Request, c *call) {
	l.mu.Lock()
	l.numbers++
	c.number = l.numbers
	c.corr = strconv.FormatUint(c.number, 36)
	req.Corr = c.corr
	over, ws, most := l.ended, l.ws, l.limits.MaxMessage
	l.mu.Unlock()
	text, err := requestText(req)
	c.text = text
	size := len(text)
	if c.tries != nil {
		size += ageBytes
	}
	switch {
	case err != nil:
	case over != nil:
		err = over
	case c.once && ws == nil:
		err = errBroken
	case most > 0 && size > most: // it would be the end of the connection
		err = fmt.Errorf("%w: a frame of %d bytes, the gateway takes %d (Limits.FrameBytes)", jetbus.ErrPayloadTooLarge, size, most)
	}
	if err != nil {
		c.reply(nil, err)
		return
	}
	l.mu.Lock()
	err = l.ended
	if err == nil && c.once && l.ws != ws { // broken, or made anew, meanwhile
		err = errBroken
	}
	if err == nil {
		at, _ := slices.BinarySearchFunc(l.queue, c, byNumber)
		l.queue = slices.Insert(l.queue, at, c)
	}
	l.mu.Unlock()
	if err != nil {
		c.reply(nil, err)
		return
	}
	l.signal()
}

// do sends a frame and waits for its answer. The error is a refusal, that of ctx or one of
// the link. wrote says whether the frame may have come to the gateway.
func (l *link) do(ctx context.Context, req *frame.Request, once bool) (m *frame.Message, wrote bool, err error) {
	return l.try(ctx, req, once, nil)
}

// try is do for what is published: t takes note of when it is written.
func (l *link) try(ctx context.Context, req *frame.Request, once bool, t *tries) (m *frame.Message, wrote bool, err error) {
	type outcome struct {
		m   *frame.Message
		err error
	}
	done := make(chan outcome, 1)
	c := &call{once: once, tries: t, answer: func(m *frame.Message, err error) { done <- outcome{m, err} }}
	l.put(req, c)
	select {
	case o := <-done:
		return o.m, c.wrote, o.err // after done nobody writes it
	case <-ctx.Done():
	}
	l.mu.Lock()
	delete(l.sent, c.corr)
	l.queue = slices.DeleteFunc(l.queue, func(other *call) bool { return other == c })
	wrote = c.wrote
	l.mu.Unlock()
	select {
	case o := <-done: // at this moment
		return o.m, wrote, o.err
	default:
		return nil, wrote, cause(ctx)
	}
}

// mark queues what is said of an event that is held.
func (l *link) mark(m *mark) {
	l.mu.Lock()
	err := l.ended
	if err == nil {
		l.marks = append(l.marks, m)
	}
	l.mu.Unlock()
	if err != nil {
		m.answer(false, "", err)
		return
	}
	l.signal()
}

// maxMarks is how many events one ACKS frame speaks of, markBytes what each of them takes
// without texts.
const (
	maxMarks  = 256
	markBytes = 200
)

// take returns the next frame to write, and when to look again where there is none: zero, when
// something is queued.
func (l *link) take() (text []byte, again time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pongs > 0 {
		l.pongs--
		return []byte(`{"op":"PONG"}`), 0
	}
	if len(l.marks) > 0 {
		if again = time.Until(l.after); again <= 0 {
			return l.marksLocked(), 0
		}
	}
	if len(l.repeats) > 0 {
		if left := time.Until(l.repeat); again <= 0 || left < again {
			again = max(left, 1)
		}
	}
	for len(l.queue) > 0 {
		c := l.queue[0]
		l.queue = l.queue[1:]
		l.sent[c.corr] = c
		return c.writeLocked(), 0
	}
	return nil, max(again, 0)
}

// sayAgain calls what was put off, when it is time.
func (l *link) sayAgain() {
	l.mu.Lock()
	var due []func()
	if len(l.repeats) > 0 && time.Until(l.repeat) <= 0 {
		due, l.repeats = l.repeats, nil
	}
	l.mu.Unlock()
	for _, f := range due {
		f()
	}
}

// marksLocked makes an ACKS frame.
func (l *link) marksLocked() []byte {
	n := min(len(l.marks), maxMarks)
	if l.limits.MaxInFlight > 0 {
		n = min(n, l.limits.MaxInFlight)
	}
	if most := l.limits.MaxMessage; most > 0 {
		bytes := 0
		for i, m := range l.marks[:n] {
			if bytes += markBytes + 6*(len(m.nack.Reason)+len(m.nack.DeadAs)+len(m.nack.Stack)); bytes > most && i > 0 { // a byte is 6 as \u0000
				n = i
				break
			}
		}
	}
	c := &call{marks: slices.Clone(l.marks[:n])}
	l.marks = append(l.marks[:0:0], l.marks[n:]...)
	l.numbers++
	c.number = l.numbers
	c.corr = strconv.FormatUint(c.number, 36)
	req := frame.Request{Op: frame.Acks, Corr: c.corr}
	settled := map[string]bool{}
	for _, m := range c.marks {
		settled[m.ackID] = settled[m.ackID] || m.op != frame.ModAck
	}
	for _, m := range c.marks {
		switch m.op {
		case frame.ModAck: // of what is settled here it would fail, and its answer be taken for that of both
			if !settled[m.ackID] {
				req.Mod = append(req.Mod, frame.Extend{AckID: m.ackID, ExtendMs: m.extend.Milliseconds()})
			}
		case frame.Ack:
			req.Ack = append(req.Ack, m.ackID)
		default:
			m.nack.AckID = m.ackID
			req.Nack = append(req.Nack, m.nack)
		}
	}
	c.answer = func(answer *frame.Message, err error) { l.marked(c, answer, err) }
	l.sent[c.corr] = c
	text, err := requestText(&req)
	if err != nil { // strings and numbers
		return nil
	}
	return text
}

// marked is told the answer to an ACKS frame: what is not named was applied.
func (l *link) marked(c *call, answer *frame.Message, err error) {
	if err != nil {
		e, refused := err.(*Error) //nolint:errorlint // made by refusal, as it is
		if refused && passes(err) {
			l.later(c.marks, max(e.RetryAfter, retryWait))
			return
		}
		for _, m := range c.marks {
			m.answer(false, "", err)
		}
		return
	}
	failed := make(map[string]*frame.Result, len(answer.Results))
	for i := range answer.Results {
		failed[answer.Results[i].AckID] = &answer.Results[i]
	}
	var retry []*mark
	for _, m := range c.marks {
		r := failed[m.ackID]
		switch {
		case r == nil, m.again && m.op != frame.ModAck && r.Reason == "settled": // the first time
			m.answer(true, "", nil)
		case r.Code != "" && r.Retryable:
			retry = append(retry, m)
		case r.Code != "":
			m.answer(false, "", refusal(&frame.Message{Code: r.Code, Msg: r.Msg}))
		default:
			m.answer(false, r.Reason, nil)
		}
	}
	if len(retry) > 0 {
		l.later(retry, retryWait)
	}
}

// retryWait is how long to wait before the gateway is told again what it could not do.
const retryWait = 250 * time.Millisecond

// later tells the gateway again in a while.
func (l *link) later(marks []*mark, wait time.Duration) {
	l.mu.Lock()
	err := l.ended
	if err == nil {
		l.marks = append(marks, l.marks...)
		l.after = time.Now().Add(wait)
	}
	l.mu.Unlock()
	if err != nil {
		for _, m := range marks {
			m.answer(false, "", err)
		}
	}
	l.signal()
}

// answered is told an OK or ERR frame.
func (l *link) answered(m *frame.Message) {
	l.mu.Lock()
	c := l.sent[m.Corr]
	delete(l.sent, m.Corr)
	l.mu.Unlock()
	switch {
	case c == nil: // nobody waits for it any more
	case m.Op == frame.Err:
		c.reply(nil, refusal(m))
	default:
		c.reply(m, nil)
	}
}

// bearer is a token as a header.
func bearer(token string) string { return "Bearer " + strings.TrimSpace(token) }
