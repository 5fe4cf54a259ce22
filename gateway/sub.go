package gateway

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// What a subscription asks the bus for, whatever its client said.
const (
	groupAckTimeout = 30 * time.Second // of leases at the broker; the client's deadline is the gateway's
	defaultInFlight = 100
	maxBatch        = 64 // events of one request
	stopTime        = 5 * time.Second
	minLease        = time.Second
	creditWait      = 10 * time.Second // of one request for events
	maxOpts         = 32 << 10         // bytes of opts, which are kept
)

// sub is one subscription of a client: a member of a group with flow push, a member with flow credit,
// or a reader.
type sub struct {
	ses         *session
	who         Principal // at the time of SUBSCRIBE; a new token may change all but the subject
	id, group   string
	topics      []string
	streams     map[string]uint64 // of the topics, for offsets
	heads       map[string][]byte // of a reader's frames; by topic
	lease       time.Duration     // until the deadline of a delivery
	inFlight    int
	most        int // maximum bytes of held events, with flow credit
	grace       time.Duration
	headersOnly bool
	o           frame.SubscribeOptions
	account     *budget.Account // of the connection; used by readers, which end with the connection
	member      *budget.Account // charged for the events that a group member holds; nil for readers

	ctx     context.Context //nolint:containedctx // of all that the subscription asks the bus for
	cancel  context.CancelFunc
	started chan struct{} // closed when the client knows of the subscription
	done    chan struct{} // closed when it ends
	ran     chan struct{} // closed when its own goroutine has ended; nil: there is none
	stopped sync.Once
	turn    sync.Mutex // of follow

	// Guarded by session.mu.
	bus    jetbus.Subscription // nil: not pushed to, or not yet
	ended  bool
	paused bool
	halted bool // its client asked for a pause
	credit int64
	bytes  int                // of held events
	next   int                // assumed size of the next event, with flow credit: the size of the last one
	stop   context.CancelFunc // of the request for events that waits; may be nil
	held   map[string]*hold
	taken  map[*jetbus.Delivery]struct{} // received with flow credit, and not sent to the client yet
	freed  chan struct{}                 // signaled when fewer bytes are held, or there is more credit; capacity 1
	empty  chan struct{}                 // closed and replaced when nothing is held any more
}

// subscribe handles a SUBSCRIBE frame.
func (c *conn) subscribe(req frame.Request) {
	s, err := c.newSub(req)
	if err == nil {
		err = s.enlist(c.g.c.Limits.Subscriptions, req.Sub)
	}
	if err != nil {
		c.refuse(req.Corr, err)
		return
	}
	m := frame.Message{Corr: req.Corr, Sub: s.id}
	if err = acquire(c.ctx, s.account, budget.Calls, 1); err == nil {
		err = s.start(&m)
		s.account.Release(budget.Calls, 1)
	}
	if err != nil {
		s.end()
		c.refuse(req.Corr, err)
		return
	}
	c.ok(m)
	close(s.started)
}

// newSub checks what a client asks for.
func (c *conn) newSub(req frame.Request) (*sub, error) {
	if c.g.isDraining() {
		return nil, refuse(CodeDraining, "the gateway stops; use another one")
	}
	if len(req.Opts) > maxOpts {
		return nil, refuse(CodeBadRequest, "opts has %d bytes, at most %d are allowed", len(req.Opts), maxOpts)
	}
	o, err := frame.ParseSubscribeOptions(req.Opts)
	if err != nil {
		return nil, frameFailure(err)
	}
	c.mu.Lock()
	account := c.account
	c.mu.Unlock()
	s := &sub{
		account: account, ses: c.ses, who: c.principal(), id: req.Sub, group: req.Group, o: o, headersOnly: o.Gateway.HeadersOnly,
		started: make(chan struct{}), done: make(chan struct{}), held: map[string]*hold{}, taken: map[*jetbus.Delivery]struct{}{},
		streams: map[string]uint64{}, freed: make(chan struct{}, 1), empty: make(chan struct{}),
	}
	if req.Topic != "" {
		s.topics = append(s.topics, req.Topic)
	}
	s.topics = append(append(s.topics, req.Topics...), o.Topics...)
	if len(s.topics) == 0 || len(s.topics) > c.g.c.Limits.Subscriptions {
		return nil, refuse(CodeBadRequest, "a subscription names 1 to %d topics", c.g.c.Limits.Subscriptions)
	}
	for i, topic := range s.topics {
		if err := jetbus.ValidTopic(topic); err != nil {
			return nil, err
		}
		if slices.Contains(s.topics[:i], topic) {
			return nil, refuse(CodeBadRequest, "topic %s is named twice", topic)
		}
	}
	if s.group != "" {
		if err := jetbus.ValidGroup(s.group); err != nil {
			return nil, err
		}
		s.member = c.g.account(s.who)
	}
	if err := s.allowed(s.who); err != nil {
		return nil, err
	}
	if err := s.setLimits(c.g.c.Limits); err != nil {
		return nil, err
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(c.ctx))
	return s, nil
}

// allowed reports what keeps a principal from having the subscription.
func (s *sub) allowed(who Principal) error {
	for _, topic := range s.topics {
		switch {
		case !who.Scopes.Allow(TopicRead, topic):
			return forbidden(TopicRead, topic)
		case s.group != "" && !who.mayJoin(topic, s.group):
			return forbidden(GroupJoin, s.group)
		}
	}
	return nil
}

// setLimits fits what the client asked for into what it may have. The first clients knew no
// limits: what they ask for is cut; others are told.
func (s *sub) setLimits(l Limits) error {
	s.lease, s.inFlight = s.o.AckTimeout, s.o.MaxInFlight
	if s.lease == 0 {
		s.lease = min(jetbus.DefaultAckTimeout, l.LeaseMax)
	}
	if s.inFlight == 0 {
		s.inFlight = min(defaultInFlight, l.InFlight)
	}
	s.o.MaxInFlightBytes = min(s.o.MaxInFlightBytes, jetbus.DefaultMaxInFlightBytes)
	s.most = int(cmp.Or(s.o.MaxInFlightBytes, jetbus.DefaultMaxInFlightBytes))
	s.grace = time.Duration(s.o.Gateway.ResumeGraceMs) * time.Millisecond
	if s.ses.sketch {
		s.lease = min(max(s.lease, minLease), l.LeaseMax)
		s.inFlight = min(max(s.inFlight, 1), l.InFlight)
		s.o.BatchSize = min(max(s.o.BatchSize, 0), maxBatch)
	}
	switch flow := s.o.Gateway.Flow; {
	case s.lease < minLease || s.lease > l.LeaseMax:
		return refuse(CodeBadRequest, "ackTimeoutMs is %d, use %d to %d", s.lease.Milliseconds(), minLease.Milliseconds(), l.LeaseMax.Milliseconds())
	case s.inFlight < 1 || s.inFlight > l.InFlight:
		return refuse(CodeBadRequest, "maxInFlight is %d, use 1 to %d", s.inFlight, l.InFlight)
	case s.o.MaxInFlightBytes < 0:
		return refuse(CodeBadRequest, "maxInFlightBytes is %d, use 1 or more", s.o.MaxInFlightBytes)
	case s.o.BatchSize < 0:
		return refuse(CodeBadRequest, "batchSize is negative")
	case s.o.Gateway.ResumeGraceMs < 0 || s.o.Gateway.ResumeGraceMs > l.ResumeGrace.Milliseconds():
		return refuse(CodeBadRequest, "resumeGraceMs is %d, use 0 to %d", s.o.Gateway.ResumeGraceMs, l.ResumeGrace.Milliseconds())
	case s.group == "" && s.grace > 0:
		return refuse(CodeBadRequest, "resumeGraceMs is for groups: a reader goes on behind the offset of the last event that it has")
	case flow != "" && flow != "push" && flow != "credit":
		return refuse(CodeBadRequest, "flow is %.20q, use push or credit", flow)
	case flow == "credit" && (s.group == "" || len(s.topics) > 1):
		return refuse(CodeUnsupported, "flow credit is for a group and one topic")
	case flow == "credit" && s.o.Order != jetbus.NoOrder:
		return refuse(CodeUnsupported, "flow credit has no order: use push")
	case s.o.Gateway.Assign && s.o.Order == jetbus.NoOrder:
		return refuse(CodeBadRequest, "assign is for groups with an order")
	case s.o.Gateway.Credit < 0:
		return refuse(CodeBadRequest, "credit is negative")
	case s.group != "" && (s.o.Gateway.Offset != "" || len(s.o.Gateway.Offsets) > 0 || s.o.From.Kind == fromOffset):
		return refuse(CodeBadRequest, "offset is for readers: a group goes on where it was, and SEEK moves it")
	case s.group != "" && s.o.Gateway.Slow != "":
		return refuse(CodeBadRequest, "slow is for readers: a group keeps what its client has no room for")
	case s.o.Gateway.Slow != "" && s.o.Gateway.Slow != "close" && s.o.Gateway.Slow != "conflate":
		return refuse(CodeBadRequest, "slow is %.20q, use close or conflate", s.o.Gateway.Slow)
	}
	s.credit = min(s.o.Gateway.Credit, int64(s.inFlight))
	s.o.BatchSize = min(s.o.BatchSize, maxBatch)
	if s.o.BatchSize == 0 {
		s.o.BatchSize = maxBatch
	}
	return nil
}

// enlist makes the subscription one of its session, under the client's name for it or one
// that is made up.
func (s *sub) enlist(most int, name string) error {
	ses := s.ses
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.ended {
		return refuse(CodeDraining, "the connection is over")
	}
	if ses.g.stops() { // those that are in ses.subs by then are paused
		return refuse(CodeDraining, "the gateway stops; use another one")
	}
	if len(ses.subs) >= most {
		return refuse(CodeTooManySubs, "the connection has %d subscriptions, and may not have more", most)
	}
	if len(name) > frame.MaxCorr {
		return refuse(CodeBadRequest, "sub has more than %d bytes", frame.MaxCorr)
	}
	for _, other := range ses.subs {
		for _, topic := range s.topics {
			if s.group != "" && other.group == s.group && slices.Contains(other.topics, topic) {
				return refuse(CodeAlreadySubscribed, "%s::%s", topic, s.group)
			}
		}
	}
	if _, taken := ses.subs[name]; taken {
		return refuse(CodeAlreadySubscribed, "there is a subscription %q", name)
	}
	if name == "" {
		s.id = ses.nameLocked()
	}
	ses.subs[s.id] = s
	return nil
}

// start lets events come. m becomes the answer.
func (s *sub) start(m *frame.Message) error {
	if s.group == "" {
		return s.startReader(m)
	}
	if err := s.member.TryAcquire(budget.Bytes, s.unreserved()); err != nil {
		return overBudget(err)
	}
	if s.o.Gateway.Flow == "credit" {
		return s.startCredit()
	}
	o := s.o.SubscribeOptions
	o.Topics = s.topics[1:]
	o.Concurrency, o.MaxInFlight = 1, s.inFlight
	o.AckTimeout, o.MaxLease = groupAckTimeout, max(s.ses.g.c.Limits.LeaseTotal, groupAckTimeout)
	o.ManualAck, o.ShutdownTimeout, o.Reserve = true, stopTime, s.reserve
	if err := s.lookUp(); err != nil {
		return err
	}
	bus, err := s.ses.g.b.Subscribe(s.ctx, s.topics[0], s.group, s.push, o)
	if err != nil {
		return err
	}
	s.ses.mu.Lock()
	if s.ended || s.ses.ended {
		s.ses.mu.Unlock()
		s.cancel() // which stops it, too
		return refuse(CodeDraining, "the connection is over")
	}
	s.bus = bus
	s.ses.work.Go(s.watch)
	s.ses.mu.Unlock()
	s.follow() // a pause while the bus was asked
	return nil
}

// lookUp finds the topics' streams.
func (s *sub) lookUp() error {
	for _, topic := range s.topics {
		info, err := s.ses.g.b.TopicInfo(s.ctx, topic)
		if err != nil {
			return err
		}
		s.streams[topic] = streamOf(info)
		if err := s.ses.g.mayMake(s.ctx, s.who, info, s.group, s.o.From); err != nil {
			return err
		}
	}
	return nil
}

// push is the handler of a group: it returns when the event is on its way to the client, who
// settles it.
func (s *sub) push(ctx context.Context, d *jetbus.Delivery) error {
	if !s.deliver(d) {
		_ = d.GiveBack(context.WithoutCancel(ctx)) // else it comes again when the lease ends
	}
	return nil
}

// deliver puts an event into the client's hands. It reports false where the subscription
// has ended, or is paused.
func (s *sub) deliver(d *jetbus.Delivery) bool {
	select {
	case <-s.started:
	case <-s.done:
		return false
	}
	size := sizeOf(&d.Event)
	for {
		var h *hold
		var heavy <-chan struct{}
		s.ses.pushEvent(s.done, func() []byte {
			if h, heavy = s.hold(d, size); h == nil {
				return nil
			}
			return h.text()
		})
		if heavy == nil {
			return h != nil
		}
		select {
		case <-heavy:
		case <-s.done:
			return false
		}
	}
}

// activeTick is how often a member of an ordered group is looked at.
const activeTick = time.Second

// watch tells the client when the bus has ended the subscription, and where it asked for that
// whether it is the active one.
func (s *sub) watch() {
	var tick <-chan time.Time
	if s.o.Gateway.Assign {
		select {
		case <-s.started:
		case <-s.done:
		}
		t := time.NewTicker(activeTick)
		defer t.Stop()
		tick = t.C
	}
	told, to := false, (*conn)(nil)
	for ended := false; !ended; {
		select {
		case <-tick:
			s.ses.mu.Lock()
			c := s.ses.conn
			s.ses.mu.Unlock()
			if c != to { // which takes it for not active
				told, to = false, c
			}
			if active := s.bus.Stats().Active; c != nil && active != told {
				m := frame.Message{Op: frame.Revoke, Sub: s.id}
				if active {
					m.Op = frame.Assign
				}
				c.say(&m)
				told = active
			}
		case <-s.bus.Done():
			ended = true
		}
	}
	if err := s.bus.Err(); err != nil {
		s.close(err)
	}
}

// close ends the subscription and tells the client why.
func (s *sub) close(err error) {
	s.ses.mu.Lock()
	ended := s.ended
	c := s.ses.conn
	s.ses.mu.Unlock()
	if ended {
		return
	}
	s.end()
	if c == nil {
		return
	}
	f := c.explain(err)
	s.ses.say(&frame.Message{Op: frame.SubClosed, Sub: s.id, Topic: s.topics[0], Group: s.group, Code: string(f.Code), Msg: f.Msg, Retryable: f.retryable()})
}

// pause lets no more events come; what is held stays.
func (s *sub) pause() {
	s.ses.mu.Lock()
	was := s.paused
	s.paused = true
	s.ses.lightenLocked() // who waits there gives back
	stop := s.stop
	s.ses.mu.Unlock()
	if was {
		return
	}
	s.follow()
	if stop != nil {
		stop()
	}
}

// resume ends a pause, unless the client asked for one, the gateway stops, or the session has
// another connection than c by now, or none.
func (s *sub) resume(c *conn) {
	s.ses.mu.Lock()
	if !s.paused || s.halted || s.ses.conn != c || s.ses.g.stops() {
		s.ses.mu.Unlock()
		return
	}
	s.paused = false
	s.ses.mu.Unlock()
	s.follow()
	signal(s.freed)
}

// follow lets the bus pause, or go on, as the subscription does. Of several calls the last one
// finds how it is.
func (s *sub) follow() {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.ses.mu.Lock()
	bus, paused := s.bus, s.paused
	s.ses.mu.Unlock()
	switch {
	case bus == nil:
	case paused:
		bus.Pause()
	default:
		bus.Resume()
	}
}

// settled waits until nothing is held, the subscription has ended, or done is closed.
func (s *sub) settled(done <-chan struct{}) {
	for {
		s.ses.mu.Lock()
		left, empty := len(s.held), s.empty
		s.ses.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-empty:
		case <-s.done:
			return
		case <-done:
			return
		}
	}
}

// end ends the subscription and gives back what is held. It returns when nothing of it runs
// any more.
func (s *sub) end() {
	s.stopped.Do(func() {
		ctx := context.WithoutCancel(s.ctx)
		s.ses.mu.Lock()
		s.ended = true
		close(s.done)
		delete(s.ses.subs, s.id)
		bus, ran := s.bus, s.ran
		s.ses.mu.Unlock()
		s.cancel()
		s.giveBack(ctx)
		if bus != nil {
			ctx, cancel := context.WithTimeout(ctx, stopTime)
			defer cancel()
			_ = bus.Stop(ctx) // it ends; handlers never outlive s.done
		}
		if ran != nil {
			<-ran
		}
		s.member.Close()
	})
}

// find returns the subscription that a frame names. The error is a failure.
func (s *session) find(req *frame.Request) (*sub, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.Sub != "" {
		if one := s.subs[req.Sub]; one != nil {
			return one, nil
		}
		return nil, refuse(CodeUnknownSub, "there is no subscription %.80q", req.Sub)
	}
	for _, one := range s.subs {
		if one.group == req.Group && slices.Contains(one.topics, req.Topic) {
			return one, nil
		}
	}
	return nil, refuse(CodeNotSubscribed, "%.210s::%.110s", req.Topic, req.Group)
}

// unsubscribe handles an UNSUBSCRIBE frame.
func (c *conn) unsubscribe(req frame.Request) {
	s, err := c.ses.find(&req)
	if err != nil {
		c.refuse(req.Corr, err)
		return
	}
	if !req.Drain {
		s.end()
		c.ok(frame.Message{Corr: req.Corr, Sub: c.named(s)})
		return
	}
	c.later(req.Corr, func() {
		s.pause()
		s.settled(c.ended)
		if !c.isOver() {
			s.end()
			c.ok(frame.Message{Corr: req.Corr, Sub: s.id})
		}
	})
}

// named is the name of a subscription for an answer; the first clients know none.
func (c *conn) named(s *sub) string {
	if c.sketch {
		return ""
	}
	return s.id
}

// later runs what may take long beside the reading of frames.
func (c *conn) later(corr string, f func()) {
	select {
	case c.waits <- struct{}{}:
	default:
		c.refuse(corr, &failure{Code: CodeRateLimited, Msg: "too much is under way; wait for its answers", After: time.Second})
		return
	}
	c.work.Go(func() {
		defer func() { <-c.waits }()
		f()
	})
}
