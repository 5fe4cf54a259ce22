package adapter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// How a pull request is kept alive. The server answers a request that got
// nothing after pullExpiry, and says every pullHeartbeat that it is still there;
// without a sign for twice as long the puller asks anew.
const (
	pullExpiry    = 30 * time.Second
	pullHeartbeat = 5 * time.Second
	pullRetry     = 250 * time.Millisecond // after a refusal; doubles up to pullRetryMax
	pullRetryMax  = 5 * time.Second
)

// puller keeps pull requests open at one durable, for the subscription's share
// of one topic. It asks on the goroutine that made room, so that there is no
// moment in which events wait and nobody asks: nats.go's Consume has one.
type puller struct {
	s    *subscription
	t    *topic
	sub  *nats.Subscription
	wake *time.Timer // calls check; its next time is under s.mu

	// Guarded by s.mu.
	next    string    // subject of pull requests at the present durable
	asked   int       // events asked for and not here yet
	since   time.Time // when the first of them was asked for; zero once one came
	heard   time.Time // last sign of the server
	retry   time.Duration
	joining bool // the durable is gone; join is looking for its successor
	ended   bool
}

func (s *subscription) newPuller(t *topic, consumer string) (*puller, error) {
	p := &puller{s: s, t: t, next: s.b.api + "CONSUMER.MSG.NEXT." + t.stream + "." + consumer, heard: time.Now()}
	var err error
	if p.sub, err = s.b.nc.Subscribe(s.b.nc.NewInbox(), p.receive); err != nil {
		return nil, err
	}
	if err := p.sub.SetPendingLimits(-1, -1); err != nil { // bounded by what is asked for
		return nil, err
	}
	p.wake = time.AfterFunc(2*pullHeartbeat, p.check)
	return p, nil
}

// receive runs on the subscription's goroutine.
func (p *puller) receive(m *nats.Msg) {
	if a, ok := parseAckReply(m.Reply); ok {
		p.deliver(m, a)
		return
	}
	p.status(m)
}

// deliver takes charge of a message.
func (p *puller) deliver(m *nats.Msg, a ackReply) {
	now := time.Now()
	l := &lease{h: &p.s.holding, t: p.t, msg: m, reply: m.Reply, deliveries: a.deliveries, seq: a.seq, stored: a.storedNano}
	s := p.s
	s.mu.Lock()
	p.asked = max(p.asked-1, 0)
	p.heard, p.retry = now, 0
	since := p.since
	p.since = time.Time{}
	s.addLocked(l, now)
	s.queue.push(l) // shutdown gives it back, if it has begun
	s.hireLocked()
	request := p.requestLocked(now)
	s.mu.Unlock()
	p.send(request)
	if s.b.cfg.Observer != nil && !since.IsZero() {
		s.b.cfg.Observer(jetbus.Observation{Kind: jetbus.Polled, Topic: p.t.name(), Group: s.group, Count: 1, Duration: now.Sub(since)})
	}
}

// status handles what the server says instead of an event.
func (p *puller) status(m *nats.Msg) {
	code, description := m.Header.Get("Status"), m.Header.Get("Description")
	s := p.s
	now := time.Now()
	s.mu.Lock()
	p.heard = now
	if n, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages")); err == nil {
		p.asked = max(p.asked-n, 0) // of the request that ended
	}
	switch {
	case code == "100": // heartbeat
	case code == "409" && description == "Consumer Deleted", code == "503":
		p.asked = 0
		p.rejoinLocked()
	case code == "400", code == "409" && description == "Consumer is push based":
		s.failLocked(fmt.Errorf("subscribe %s/%s: pull request refused: %s %s", p.t.name(), s.group, code, description))
	case code == "404", code == "408": // the request is over
		p.retry = 0
	default: // 409: leadership change, server shutdown, limits of the consumer
		p.backOffLocked()
	}
	var request int
	if p.retry == 0 {
		request = p.requestLocked(now)
	}
	s.mu.Unlock()
	p.send(request)
}

// backOffLocked lets the puller ask again after a while.
func (p *puller) backOffLocked() {
	p.retry = min(max(2*p.retry, pullRetry), pullRetryMax)
	p.wake.Reset(p.retry)
}

// requestLocked returns how many events to ask for now, and counts them as asked.
func (p *puller) requestLocked(now time.Time) int {
	s := p.s
	if s.stopping || s.paused || p.joining || p.ended {
		return 0
	}
	window := s.windowLocked(now)
	if s.count >= window {
		return 0
	}
	free := window - s.count
	for _, other := range s.pullers {
		free -= other.asked
	}
	n := min(free, s.o.BatchSize)
	if p.asked == 0 {
		n = max(n, 1) // a topic without events must not use up the room of the others
	} else if n < min(s.o.BatchSize, max(window/4, 1)) {
		return 0 // too little to be worth a request while another is open
	}
	if p.asked == 0 {
		p.since = now
	}
	p.asked += n
	return n
}

// send asks for n events.
func (p *puller) send(n int) {
	if n == 0 {
		return
	}
	p.s.mu.Lock()
	next := p.next
	p.s.mu.Unlock()
	if err := p.s.b.nc.PublishRequest(next, p.sub.Subject, pullBody(n)); err != nil {
		p.s.mu.Lock()
		p.asked = 0
		p.s.mu.Unlock() // the connection is gone; reconnected or check go on
	}
}

// request asks for what there is room for.
func (p *puller) request() {
	p.s.mu.Lock()
	n := p.requestLocked(time.Now())
	p.s.mu.Unlock()
	p.send(n)
}

// reconnected runs after a reconnect: requests of the old connection are gone.
func (p *puller) reconnected() {
	s := p.s
	s.mu.Lock()
	if s.b.link.isClosed() {
		s.failLocked(fmt.Errorf("subscribe %s/%s: %w: the connection was closed", p.t.name(), s.group, jetbus.ErrClosed))
		s.mu.Unlock()
		return
	}
	p.asked, p.heard, p.retry = 0, time.Now(), 0
	s.mu.Unlock()
	p.request()
}

// check is the timer's: it asks anew when the server has been silent too long,
// or when a refusal's wait is over.
func (p *puller) check() {
	s := p.s
	now := time.Now()
	s.mu.Lock()
	if p.ended {
		s.mu.Unlock()
		return
	}
	silent := now.Sub(p.heard) >= 2*pullHeartbeat
	if silent && p.asked > 0 && s.b.link.isUp() {
		p.asked, p.heard = 0, now
		p.rejoinLocked() // the server may have lost the durable
	}
	request := p.requestLocked(now)
	p.wake.Reset(2 * pullHeartbeat)
	s.mu.Unlock()
	p.send(request)
}

// rejoinLocked starts to look for the durable, which may have been replaced by
// SetCursor, deleted, or be without a leader for the moment.
func (p *puller) rejoinLocked() {
	if p.joining || p.ended || p.s.stopping {
		return
	}
	p.joining = true
	p.s.work.Go(p.rejoin)
}

func (p *puller) rejoin() {
	s := p.s
	ctx, cancel := context.WithTimeout(s.life, s.b.cfg.Timeout)
	defer cancel()
	info, err := s.b.findGroup(ctx, p.t, s.group)
	if err == nil {
		if mark, ok := readSeekMark(info.Config.Metadata); ok {
			if err = s.b.completeSeek(ctx, p.t, s.group, info, mark); err == nil {
				info, err = s.b.findGroup(ctx, p.t, s.group)
			}
		}
	}
	s.mu.Lock()
	p.joining = false
	switch {
	case s.stopping:
	case err == nil:
		p.next = s.b.api + "CONSUMER.MSG.NEXT." + p.t.stream + "." + info.Name
		p.asked, p.heard = 0, time.Now()
	case errors.Is(err, jetbus.ErrNoGroup), errors.Is(err, jetbus.ErrNoTopic):
		s.failLocked(fmt.Errorf("subscribe %s/%s: %w: it was deleted", p.t.name(), s.group, err))
	default:
		p.backOffLocked()
	}
	s.mu.Unlock()
	if err == nil {
		p.request()
	}
}

// end stops asking, and returns when the server has stopped sending and all that
// it sent has been received.
func (p *puller) end(ctx context.Context) {
	p.s.mu.Lock()
	p.ended = true
	p.s.mu.Unlock()
	p.wake.Stop()
	if p.s.b.link.isUp() {
		drained := make(chan struct{})
		p.sub.SetClosedHandler(func(string) { close(drained) })
		if p.sub.Drain() == nil {
			timeout := time.NewTimer(drainTimeout)
			defer timeout.Stop()
			select {
			case <-drained:
				return
			case <-timeout.C:
			case <-ctx.Done():
			}
		}
	}
	_ = p.sub.Unsubscribe() // closed already, or gone with the connection
}

// drainTimeout is how long the server may take to confirm that it sends no more.
const drainTimeout = 2 * time.Second
