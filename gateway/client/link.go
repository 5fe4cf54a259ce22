package client

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// endpoint is a subscription as its link sees it. Its methods do not block.
type endpoint interface {
	on(l *link)                           // it is on that link, and nobody else has it yet
	request() *frame.Request              // SUBSCRIBE; nil: not now
	message(m *frame.Message)             // a frame for it
	subscribed(m *frame.Message, e error) // the answer to a SUBSCRIBE
	down(grace time.Duration)             // the connection broke; what is held there is kept for so long
	restored(kept bool)                   // there is another connection; kept: the gateway still has all of it
	failed(err error)                     // there will be none any more
}

// limits are what a gateway says in HELLO.
type limits struct {
	MaxMessage    int   `json:"maxMessage"`
	MaxSubs       int   `json:"maxSubs"`
	MaxInFlight   int   `json:"maxInFlight"`
	MaxBatch      int   `json:"maxBatch"`
	MaxLeaseMs    int64 `json:"maxLeaseMs"`
	ResumeGraceMs int64 `json:"resumeGraceMs"`

	ping time.Duration
}

// link is a connection to the gateway that is made again when it breaks.
type link struct {
	c      *Client
	ctx    context.Context //nolint:containedctx // of all its connections; ends with close
	cancel context.CancelFunc
	ran    chan struct{} // closed when nothing of it runs any more
	wake   chan struct{} // signaled when there is something to write; capacity 1

	mu         sync.Mutex
	ws         *websocket.Conn // nil: there is none
	session    string
	limits     limits
	subs       map[string]endpoint
	claims     map[string]string // what a subscription has for itself -> its name
	numbers    uint64
	queue      []*call          // to be written, by number
	sent       map[string]*call // by corr: answers are due
	marks      []*mark          // to be written as one ACKS
	after      time.Time        // no ACKS before
	pongs      int              // PONG frames to write
	token      string           // that the gateway has
	expires    int64            // when it ends, in epoch seconds, where that is soon; else 0
	asked      time.Time        // when refresh asked for another one
	refreshing bool             // refresh runs
	leaving    map[string]bool  // subscriptions that UNSUBSCRIBE was said of, and not answered
	repeats    []func()         // to be called at repeat
	repeat     time.Time
	ended      error // nil: it goes on
}

func newLink(c *Client) *link {
	l := &link{
		c: c, ran: make(chan struct{}), wake: make(chan struct{}, 1),
		subs: map[string]endpoint{}, claims: map[string]string{}, sent: map[string]*call{}, leaving: map[string]bool{},
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// open makes the first connection.
func (l *link) open(ctx context.Context) error {
	ctx, cancel := l.c.bound(ctx)
	defer cancel()
	for attempt := 1; ; attempt++ {
		ws, hello, err := l.connect(ctx)
		if err == nil {
			l.up(ws, hello)
			go l.run(ws) //nolint:contextcheck // it outlives the call, and ends with close, which waits for it
			return nil
		}
		hopeless := terminal(err) != nil || errors.Is(err, jetbus.ErrDenied) || errors.Is(err, jetbus.ErrUnsupported)
		if hopeless || sleep(ctx, l.c.c.Reconnect.Delay(attempt)) != nil {
			l.cancel()
			return err
		}
	}
}

// run serves one connection after the other.
func (l *link) run(ws *websocket.Conn) {
	defer close(l.ran)
	for {
		err := l.serve(ws)
		l.down(err)
		if l.ctx.Err() != nil {
			l.end(jetbus.ErrClosed)
			return
		}
		l.c.c.Logger.LogAttrs(l.ctx, slog.LevelDebug, "connection to the gateway broke", slog.Any("err", err))
		if err := terminal(err); err != nil {
			l.end(err)
			return
		}
		if ws = l.again(); ws == nil {
			return
		}
	}
}

// manyAttempts is where waits no longer grow.
const manyAttempts = 64

// crowded reports whether a connection was refused for what passes, for a client that was let
// in before: old connections that count until they are noticed, or a machine that was asleep.
func crowded(err error) bool {
	code := websocket.CloseStatus(err)
	return code == frame.CloseConnections || code == frame.CloseAuthTimeout
}

// again connects anew; nil: it is over.
func (l *link) again() *websocket.Conn {
	for attempt := 1; ; attempt++ {
		wait := time.NewTimer(l.c.c.Reconnect.Delay(attempt))
		select {
		case <-wait.C:
		case <-l.ctx.Done():
			wait.Stop()
			l.end(jetbus.ErrClosed)
			return nil
		}
		ws, hello, err := l.connect(l.ctx)
		if err == nil {
			l.up(ws, hello)
			return ws
		}
		if crowded(err) {
			attempt += manyAttempts
		} else if err := terminal(err); err != nil {
			l.end(err)
			return nil
		}
		l.c.c.Logger.LogAttrs(l.ctx, slog.LevelDebug, "gateway not reached", slog.Any("err", err), slog.Int("attempt", attempt))
	}
}

// greeting is what a gateway said at the beginning of a connection.
type greeting struct {
	hello, auth frame.Message
	token       string
	early       []frame.Message // that came before the answer to AUTH
}

// up puts a connection to use: what was under way goes on over it.
func (l *link) up(ws *websocket.Conn, g greeting) {
	kept := g.auth.Recovered != nil && *g.auth.Recovered
	var have limits
	_ = json.Unmarshal(g.hello.Limits, &have) // what it does not say is not limited
	have.ping = time.Duration(g.hello.PingMs) * time.Millisecond
	l.mu.Lock()
	if !kept {
		l.session = g.hello.Session
	}
	l.ws, l.limits, l.pongs, l.after = ws, have, 0, time.Time{}
	l.token, l.expires = g.token, 0
	if l.ctx.Err() != nil { // close has not seen this connection, perhaps
		_ = ws.CloseNow()
	}
	lost := l.requeueLocked(kept)
	ids := make([]string, 0, len(l.subs))
	subs := make(map[string]endpoint, len(l.subs))
	for id, e := range l.subs {
		ids = append(ids, id)
		subs[id] = e
	}
	l.mu.Unlock()
	slices.Sort(ids)
	l.c.c.Logger.LogAttrs(l.ctx, slog.LevelDebug, "connected to the gateway", slog.Bool("resumed", kept), slog.Int("subscriptions", len(ids)))
	for _, m := range lost {
		m.answer(false, "expired", nil)
	}
	for _, id := range g.auth.Subs {
		if subs[id] == nil { // it ended meanwhile
			l.unsubscribe(id, nil)
		}
	}
	for _, id := range ids {
		there := kept && slices.Contains(g.auth.Subs, id)
		subs[id].restored(there)
		if !there {
			l.subscribe(id, subs[id])
		}
	}
	for i := range g.early { // what became of the session meanwhile
		l.receive(&g.early[i])
	}
	l.signal()
}

// requeueLocked puts what has no answer before what was not sent yet. It returns what nobody
// will answer any more.
func (l *link) requeueLocked(kept bool) (lost []*mark) {
	var marks []*mark
	for _, c := range l.sent {
		if c.marks == nil {
			l.queue = append(l.queue, c)
			continue
		}
		for _, m := range c.marks {
			m.again = true
		}
		marks = append(marks, c.marks...)
	}
	clear(l.sent)
	slices.SortFunc(l.queue, byNumber)
	marks = append(marks, l.marks...)
	if !kept {
		l.marks = nil
		return marks
	}
	l.marks = marks
	return nil
}

// down is told that a connection is over, and why.
func (l *link) down(err error) {
	grace := l.grace()
	if err == errSilent || websocket.CloseStatus(err) == frame.CloseGoingAway { //nolint:errorlint // as it is
		grace = 0 // the gateway has noticed long ago, or keeps nothing
	}
	l.mu.Lock()
	for _, e := range l.subs {
		defer e.down(grace) // without the lock
	}
	l.ws = nil
	var broken []*call
	for corr, c := range l.sent {
		if c.once {
			broken = append(broken, c)
			delete(l.sent, corr)
		}
	}
	rest := l.queue[:0]
	for _, c := range l.queue {
		if c.once {
			broken = append(broken, c)
		} else {
			rest = append(rest, c)
		}
	}
	l.queue = rest
	repeats := l.repeats
	l.repeats = nil
	l.mu.Unlock()
	for _, c := range broken {
		c.reply(nil, errBroken)
	}
	for _, f := range repeats { // whose frames are refused now
		f()
	}
}

// end is told that there will be no connection any more.
func (l *link) end(err error) {
	l.mu.Lock()
	l.ended, l.ws = err, nil
	calls := l.queue
	marks := l.marks
	for _, c := range l.sent {
		calls = append(calls, c)
		marks = append(marks, c.marks...)
	}
	l.queue, l.marks = nil, nil
	clear(l.sent)
	subs := make([]endpoint, 0, len(l.subs))
	for _, e := range l.subs {
		subs = append(subs, e)
	}
	l.mu.Unlock()
	for _, m := range marks {
		m.answer(false, "", err)
	}
	for _, c := range calls {
		c.reply(nil, err)
	}
	for _, e := range subs {
		e.failed(err)
	}
}

// close ends the link. It returns when nothing of it runs any more.
func (l *link) close(ctx context.Context) {
	l.cancel() // first: up looks at it
	l.mu.Lock()
	ws := l.ws
	l.mu.Unlock()
	if ws != nil {
		cut := context.AfterFunc(ctx, func() { _ = ws.CloseNow() })
		_ = ws.Close(websocket.StatusNormalClosure, "") // it may be broken already
		cut()
	}
	<-l.ran
}

// closeSoon is close, for a link that nobody waits for.
func (l *link) closeSoon() { l.close(context.Background()) }

// add takes a subscription, if there is room and what it claims is not claimed.
func (l *link) add(id string, e endpoint, claims []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil && len(l.subs) > 0 || l.limits.MaxSubs > 0 && len(l.subs) >= l.limits.MaxSubs {
		return false
	}
	for _, c := range claims {
		if _, taken := l.claims[c]; taken {
			return false
		}
	}
	for _, c := range claims {
		l.claims[c] = id
	}
	e.on(l)
	l.subs[id] = e
	return true
}

// remove forgets a subscription and returns how many are left.
func (l *link) remove(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subs, id)
	for c, by := range l.claims {
		if by == id {
			delete(l.claims, c)
		}
	}
	return len(l.subs)
}

// isUp reports whether there is a connection.
func (l *link) isUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ws != nil
}

// allowed are the limits of the gateway.
func (l *link) allowed() limits {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limits
}

// subscribe asks for the events of an endpoint, unless there is no connection: then it is
// asked when there is one.
func (l *link) subscribe(id string, e endpoint) {
	req := e.request()
	if req == nil {
		return
	}
	req.Op, req.Sub = frame.Subscribe, id
	l.send(req, true, func(m *frame.Message, err error) {
		if err != errBroken { //nolint:errorlint // as it is: up asks again
			e.subscribed(m, err)
		}
	})
}

// unsubscribe gives a subscription up, and says so until the gateway has heard it; over another
// connection up does. answered is called when that is done; nil: nobody wants to know.
func (l *link) unsubscribe(id string, answered func(error)) {
	l.mu.Lock()
	told := l.leaving[id]
	l.leaving[id] = true
	l.mu.Unlock()
	if !told || answered != nil {
		l.leave(id, answered)
	}
}

// leave says UNSUBSCRIBE until it is heard.
func (l *link) leave(id string, answered func(error)) {
	l.send(&frame.Request{Op: frame.Unsubscribe, Sub: id}, true, func(_ *frame.Message, err error) {
		if l.refused(err, func() { l.leave(id, answered) }) {
			return
		}
		l.mu.Lock()
		delete(l.leaving, id)
		l.mu.Unlock()
		if answered != nil {
			answered(err)
		}
	})
}

// refused reports whether a frame was refused for now: then again is called in a while, or when
// the connection is over.
func (l *link) refused(err error, again func()) bool {
	if !passes(err) {
		return false
	}
	l.mu.Lock()
	if at := time.Now().Add(max(retryAfter(err), retryWait)); at.After(l.repeat) {
		l.repeat = at
	}
	l.repeats = append(l.repeats, again)
	l.mu.Unlock()
	l.signal()
	return true
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
