package gateway

import (
	"cmp"
	"crypto/rand"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// session is what a client has: its subscriptions and what it holds. It ends with its
// connection, or outlives it for a while where a subscription asked for that.
type session struct {
	g      *Gateway
	id     string // random: whoever knows it, and is the same principal, may go on with it
	prefix string // of its ack ids
	sketch bool
	work   sync.WaitGroup // settling, and what subscriptions run
	over   chan struct{}  // closed by end

	mu       sync.Mutex
	conn     *conn         // nil: it broke
	moved    chan struct{} // closed when conn changes
	parked   chan struct{} // closed when what follows from a broken connection is done
	subject  string        // of the connection that broke
	subs     map[string]*sub
	holds    map[string]*hold         // by ack id
	settling map[string]chan struct{} // what was taken out of the client's hands, until that is applied or was in vain
	bytes    int                      // of what is held
	lighter  chan struct{}            // closed, and made anew, when there is less held and somebody waits for that; nil: nobody does
	issued   uint64                   // ack ids
	expired  []string                 // the last ack ids whose leases ran out
	names    int                      // names of subscriptions that were made up
	ended    bool

	timer *time.Timer // of one that is kept; guarded by life.mu
}

func newSession(c *conn) *session {
	return &session{
		g: c.g, id: rand.Text(), prefix: rand.Text()[:12] + ".", sketch: c.sketch, conn: c,
		over: make(chan struct{}), moved: make(chan struct{}), parked: make(chan struct{}), subs: map[string]*sub{}, holds: map[string]*hold{}, settling: map[string]chan struct{}{},
	}
}

// say tells the client, if it is there.
func (s *session) say(m *frame.Message) {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		c.say(m)
	}
}

// pushEvent sends an event when there is room, over whichever connection the session has
// then. It reports false where done is closed before build was called.
func (s *session) pushEvent(done <-chan struct{}, build func() []byte) bool {
	return s.pushFrame(done, func() outgoing { return outgoing{text: build()} })
}

// pushFrame is pushEvent of a frame in two parts.
func (s *session) pushFrame(done <-chan struct{}, build func() outgoing) bool {
	ok, _ := s.pushWithin(done, 0, 0, build)
	return ok
}

// pushWithin is like pushFrame, for an event of about size bytes. It waits for patience at most, unless that is 0,
// and returns stalled if the client does not read fast enough.
func (s *session) pushWithin(done <-chan struct{}, size int, patience time.Duration, build func() outgoing) (ok, stalled bool) {
	for {
		s.mu.Lock()
		c, moved := s.conn, s.moved
		s.mu.Unlock()
		if c != nil {
			built := false
			ok, stalled := c.out.pushWithin(done, size, patience, func() outgoing {
				built = true
				return build()
			})
			if ok || built { // an event that a broken connection did not accept is sent again or given back
				return true, false
			}
			if stalled {
				return false, true
			}
		}
		select {
		case <-done:
			return false, false
		case <-s.over:
			return false, false
		case <-moved:
		}
	}
}

// stops reports whether Drain has begun.
func (g *Gateway) stops() bool {
	select {
	case <-g.stopping:
		return true
	default:
		return false
	}
}

// detach is told that a connection is over.
func (s *session) detach(c *conn) {
	s.mu.Lock()
	if s.conn != c { // it went to another one
		s.mu.Unlock()
		return
	}
	s.conn, s.subject = nil, c.principal().Subject
	defer close(s.parked)
	close(s.moved)
	s.moved = make(chan struct{})
	var keep, leave []*sub
	grace := time.Duration(0)
	for _, one := range s.subs {
		if one.grace > 0 && !s.sketch && c.keeps() {
			keep, grace = append(keep, one), max(grace, one.grace)
		} else {
			leave = append(leave, one)
		}
	}
	s.mu.Unlock()
	if len(keep) == 0 || s.g.enter() != nil {
		s.end()
		return
	}
	for _, one := range keep {
		one.pause()
	}
	endAll(leave)
	if !s.g.keep(s, grace) {
		s.end()
		s.g.leave()
	}
}

// keep keeps a session for a while, unless the gateway stops. As many are kept as there may be
// connections, and none counts as one: clients that come back find room.
func (g *Gateway) keep(s *session, grace time.Duration) bool {
	s.mu.Lock()
	subject := s.subject
	s.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining || len(g.kept) >= g.c.Limits.Connections || g.keptOf[subject] >= g.c.Limits.PerPrincipal {
		return false
	}
	g.kept[s.id] = s
	g.keptOf[subject]++
	s.timer = time.AfterFunc(grace, func() { g.forget(s) }) // which waits until s is there
	return true
}

// keeps reports whether what broke the connection lets its session go on.
func (c *conn) keeps() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.why.code < frame.CloseProtocol && c.why != closeGoingAway && c.why != closeDone
}

// forget ends a session whose client did not come back.
func (g *Gateway) forget(s *session) {
	g.mu.Lock()
	kept := g.kept[s.id] == s
	if kept {
		g.dropLocked(s)
	}
	g.mu.Unlock()
	if kept {
		s.end()
		g.leave()
	}
}

// claim takes a session that is kept, for its subject.
func (g *Gateway) claim(id, subject string) *session {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.kept[id]
	if s == nil {
		return nil
	}
	s.mu.Lock()
	mine := s.subject == subject
	s.mu.Unlock()
	if !mine {
		return nil
	}
	g.dropLocked(s)
	s.timer.Stop()
	return s
}

// dropLocked takes a session out of those that are kept.
func (g *Gateway) dropLocked(s *session) {
	s.mu.Lock()
	subject := s.subject
	s.mu.Unlock()
	delete(g.kept, s.id)
	if g.keptOf[subject]--; g.keptOf[subject] == 0 {
		delete(g.keptOf, subject)
	}
}

// interrupt ends the connection that a session has: its client is back before the gateway
// noticed that it broke. It reports whether the session is kept now.
func (g *Gateway) interrupt(id string, by *conn, subject string) bool {
	g.mu.Lock()
	var old *conn
	for c := range g.conns {
		if c != by && c.has(id, subject) {
			old = c
		}
	}
	g.mu.Unlock()
	if old == nil {
		return false
	}
	old.mu.Lock()
	s := old.ses
	old.mu.Unlock()
	s.mu.Lock()
	parked := s.parked
	s.mu.Unlock()
	old.end(closeReplaced)
	late := time.NewTimer(taskTime)
	defer late.Stop()
	select {
	case <-parked:
		return true
	case <-late.C:
		return false
	}
}

// has reports whether the connection is that of a session, for a subject.
func (c *conn) has(id, subject string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ses.id == id && c.who.Subject == subject
}

// adopt goes on with a session that is kept, in place of the connection's own, which must
// have no subscriptions yet.
func (c *conn) adopt(id string) bool {
	who := c.principal()
	c.mu.Lock()
	old := c.ses
	c.mu.Unlock()
	old.mu.Lock()
	fresh := len(old.subs) == 0
	old.mu.Unlock()
	if !fresh {
		return false
	}
	s := c.g.claim(id, who.Subject)
	if s == nil && c.g.interrupt(id, c, who.Subject) {
		s = c.g.claim(id, who.Subject)
	}
	if s == nil {
		return false
	}
	defer c.g.leave() // the connection is busy for it now
	c.mu.Lock()
	over := c.isOver()
	if !over {
		c.ses = s
		s.mu.Lock()
		s.conn, s.parked = c, make(chan struct{})
		s.mu.Unlock()
	}
	c.mu.Unlock()
	if over {
		s.end()
		return false
	}
	old.end()
	s.restrict(who)
	return true
}

// made returns the names of the subscriptions that there are, in order, when none is being made any
// more: a client takes what is named here for made, and the group of one that is not may not be there
// yet, so that it would begin behind what its client publishes next. When over is closed, it returns.
func (s *session) made(over <-chan struct{}) []string {
	s.mu.Lock()
	subs := s.list()
	s.mu.Unlock()
	for _, one := range subs {
		select {
		case <-one.started:
		case <-one.done:
		case <-over:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.subs))
}

// resend sends what is held again, since the client may not have got it, under the ids it
// has, and lets events flow.
func (s *session) resend() {
	s.mu.Lock()
	held := make([]*hold, 0, len(s.holds))
	for _, h := range s.holds {
		held = append(held, h)
	}
	subs := s.list()
	c := s.conn
	s.mu.Unlock()
	slices.SortFunc(held, func(a, b *hold) int { return cmp.Compare(a.number, b.number) })
	if c == nil {
		return
	}
	for _, h := range held {
		c.out.pushEvent(c.ended, h.textIfHeld)
	}
	for _, one := range subs {
		one.resume(c)
	}
	s.mu.Lock()
	close(s.moved)
	s.moved = make(chan struct{})
	s.mu.Unlock()
}

// list needs s.mu.
func (s *session) list() []*sub {
	out := make([]*sub, 0, len(s.subs))
	for _, one := range s.subs {
		out = append(out, one)
	}
	return out
}

// restrict ends subscriptions that the principal may not have.
func (s *session) restrict(who Principal) {
	s.mu.Lock()
	subs := s.list()
	s.mu.Unlock()
	for _, one := range subs {
		if err := one.allowed(who); err != nil {
			one.close(err)
		}
	}
}

// quiet lets no more events come.
func (s *session) quiet() {
	s.mu.Lock()
	subs := s.list()
	s.mu.Unlock()
	for _, one := range subs {
		one.pause()
	}
}

// settled waits until nothing is held, or done is closed.
func (s *session) settled(done <-chan struct{}) {
	s.mu.Lock()
	subs := s.list()
	s.mu.Unlock()
	for _, one := range subs {
		one.settled(done)
	}
}

// end ends all subscriptions and gives back what is held. It returns when that is done.
func (s *session) end() {
	s.mu.Lock()
	first := !s.ended
	if first {
		s.ended = true
		close(s.over)
	}
	subs := s.list()
	s.mu.Unlock()
	endAll(subs)
	s.work.Wait()
}

// endAll ends subscriptions, all at once.
func endAll(subs []*sub) {
	var all sync.WaitGroup
	for _, one := range subs {
		all.Go(one.end)
	}
	all.Wait()
}

// name makes up the name of a subscription. It needs s.mu.
func (s *session) nameLocked() string {
	for {
		s.names++
		name := "s" + strconv.Itoa(s.names)
		if _, taken := s.subs[name]; !taken {
			return name
		}
	}
}

// keepExpired is how many leases that ran out a session can tell from others.
const keepExpired = 1024

// unknown says why an ack id is not held. It needs s.mu.
func (s *session) unknownLocked(ackID string) string {
	rest, mine := strings.CutPrefix(ackID, s.prefix)
	number, err := strconv.ParseUint(rest, 36, 64)
	switch {
	case !mine || err != nil || number == 0 || number > s.issued:
		return "unknown"
	case slices.Contains(s.expired, ackID):
		return "expired"
	}
	return "settled"
}
