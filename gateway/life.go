package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// drainTime is how long Drain takes at most where its context does not say.
const drainTime = 25 * time.Second

// spread is over how long connections are closed, so that not all clients come back to
// another gateway at one moment.
const spread = 5 * time.Second

// errDraining ends the streams of a gateway that stops.
var errDraining = errors.New("the gateway stops")

// life counts the connections and requests that a gateway serves, and ends them in Drain.
type life struct {
	mu       sync.Mutex
	draining bool
	opened   [kinds]int     // by kind
	of       map[string]int // of all kinds, by subject
	posts    map[string]int // publishes over HTTP, by subject
	denied   int            // connections beyond the limit that wait for their close frame
	busy     int            // goroutines that Drain waits for
	conns    map[*conn]struct{}
	kept     map[string]*session // sessions of broken connections, by session id
	keptOf   map[string]int      // number of sessions in kept, by subject

	stopping chan struct{} // closed when Drain begins
	idle     chan struct{} // closed when nothing runs any more after that
	late     chan struct{} // closed by hurry when the time of Drain has expired
	hurry    func()
}

func (l *life) init() {
	l.of, l.posts, l.conns, l.kept, l.keptOf = map[string]int{}, map[string]int{}, map[*conn]struct{}{}, map[string]*session{}, map[string]int{}
	l.stopping, l.idle, l.late = make(chan struct{}), make(chan struct{}), make(chan struct{})
	l.hurry = sync.OnceFunc(func() { close(l.late) })
}

// isDraining reports whether Drain has begun.
func (g *Gateway) isDraining() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.draining
}

// enter lets something run that Drain waits for, unless that has begun.
func (l *life) enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining {
		return refuse(CodeDraining, "the gateway stops; use another one")
	}
	l.busy++
	return nil
}

// leave is the end of what entered.
func (l *life) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	if l.draining && l.busy == 0 {
		close(l.idle)
	}
}

// errConnections is the refusal of one connection too many.
var errConnections error = &failure{Code: CodeRateLimited, Msg: "too many connections", After: budget.RetryAfter}

// kind is a kind of connection or long request of an authenticated client. Each kind has its own
// limit of Limits.Connections, so that one kind cannot use up the limit of another.
type kind int

const (
	sockets kind = iota // WebSockets
	streams             // of server-sent events
	polls               // long polls and pulls
	scans               // snapshots, states and dead letters
	kinds
)

// hasRoom reports whether the limit of a kind allows one more.
func (g *Gateway) hasRoom(k kind) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened[k] < g.c.Limits.Connections
}

// open counts one more of a kind for a subject. It returns errConnections if a limit is reached.
func (g *Gateway) open(k kind, subject string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened[k] >= g.c.Limits.Connections || g.of[subject] >= g.c.Limits.PerPrincipal {
		return errConnections
	}
	g.opened[k]++
	g.of[subject]++
	return nil
}

// close undoes open.
func (g *Gateway) close(k kind, subject string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.opened[k]--
	if g.of[subject]--; g.of[subject] == 0 {
		delete(g.of, subject)
	}
}

// maxDenied is how many connections beyond the limit are accepted at once, only to be told: a
// browser shows its page nothing of a handshake that is refused. More are refused so.
const maxDenied = 64

// openDenied counts a connection beyond the limit.
func (g *Gateway) openDenied() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.denied >= maxDenied {
		return errConnections
	}
	g.denied++
	return nil
}

func (g *Gateway) closeDenied() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.denied--
}

// errPosts is the refusal of one publish too many.
var errPosts error = &failure{Code: CodeRateLimited, Msg: "too many concurrent publishes", After: budget.RetryAfter}

// enterPost is enter for a publish over HTTP, whose body is held until it is stored: a subject has PerPrincipal of them
// under way at most. They are no connections: who has as many of those as may be can publish all the same.
func (g *Gateway) enterPost(subject string) error {
	if err := g.enter(); err != nil {
		return err
	}
	g.mu.Lock()
	full := g.posts[subject] >= g.c.Limits.PerPrincipal
	if !full {
		g.posts[subject]++
	}
	g.mu.Unlock()
	if full {
		g.leave()
		return errPosts
	}
	return nil
}

// leavePost is the end of what entered by enterPost.
func (g *Gateway) leavePost(subject string) {
	g.mu.Lock()
	if g.posts[subject]--; g.posts[subject] == 0 {
		delete(g.posts, subject)
	}
	g.mu.Unlock()
	g.leave()
}

// track counts a request that may take long. The context that it returns ends when Drain begins or the
// principal's token expires. The caller must call release when the request ends. The error is a
// failure.
func (g *Gateway) track(ctx context.Context, who Principal, k kind) (tracked context.Context, release func(), err error) {
	if err := g.enter(); err != nil {
		return nil, nil, err
	}
	if err := g.open(k, who.Subject); err != nil {
		g.leave()
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	forget := func() bool { return true }
	if !who.Expires.IsZero() {
		forget = time.AfterFunc(time.Until(who.Expires), func() { cancel(refuse(CodeTokenExpired, "%s", plain[CodeTokenExpired])) }).Stop
	}
	over := make(chan struct{})
	go func() { // ends with release
		select {
		case <-g.stopping:
			cancel(errDraining)
		case <-over:
		}
	}()
	var once sync.Once
	return ctx, func() {
		once.Do(func() {
			close(over)
			forget()
			cancel(nil)
			g.close(k, who.Subject)
			g.leave()
		})
	}, nil
}

// Drain ends the gateway: it refuses new connections and requests that wait, tells clients
// to go (GOAWAY), sends no more events but still takes acknowledgements, closes each
// connection when nothing is held there or ctx ends (25 seconds where ctx has no deadline),
// and returns when nothing of the gateway runs any more. What clients still hold then is
// given back; what clients hold over HTTP, who cannot be told, after 5 seconds. An answer
// that its client does not read is given up at the end of that time, or WriteTimeout later. The error
// is that of ctx where it came to that; a ctx that was canceled before the call is as one that
// was not. It may be called again, and concurrently.
func (g *Gateway) Drain(ctx context.Context) error {
	ctx, release := shutdown.Context(ctx, drainTime)
	defer release()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, drainTime)
		defer cancel()
	}
	g.mu.Lock()
	if !g.draining {
		g.draining = true
		close(g.stopping)
		if g.busy == 0 {
			close(g.idle)
		}
	}
	conns := make([]*conn, 0, len(g.conns))
	for c := range g.conns {
		conns = append(conns, c)
	}
	kept := g.kept
	g.kept = map[string]*session{}
	g.mu.Unlock()
	for _, s := range kept {
		go func() { // ends before g.idle is closed
			defer g.leave() // what detach entered
			s.end()
		}()
	}
	until, _ := ctx.Deadline()
	left := time.Until(until)
	for _, c := range conns {
		c.goAway(left, rand.N(max(min(spread, left/2), time.Millisecond))) //nolint:gosec // it spreads load, and is no secret
	}
	select {
	case <-g.idle:
		return nil
	case <-ctx.Done():
	}
	for _, c := range conns {
		c.end(closeGoingAway)
	}
	g.hurry()
	g.pulls.end()
	<-g.idle
	return context.Cause(ctx)
}
