package adapter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// A pull request lives for a third of the lease's time, so that what it brings
// is known to have been sent not longer ago than that; see pulls. The
// server says every third of that time that it is still there, if that is long
// enough to be worth it.
const (
	maxPullExpiry = 30 * time.Second
	minPullExpiry = 30 * time.Millisecond
	minHeartbeat  = 500 * time.Millisecond
	pullGrace     = 2 * time.Second        // how much later than its end an answer may be
	pullRetry     = 250 * time.Millisecond // after a refusal; doubles up to pullRetryMax
	pullRetryMax  = 5 * time.Second
	drainTimeout  = 2 * time.Second // for the server to confirm that it sends no more
)

// puller keeps pull requests open at one durable, for the subscription's share of one topic. It
// requests events on the goroutine that made room for them. So there is never a moment in which
// events wait without a request, as there is with nats.go's Consume.
type puller struct {
	s  *subscription
	t  *topic
	tr *track // of an ordered group

	// Guarded by s.mu.
	expiry    time.Duration
	heartbeat time.Duration      // 0: none
	sub       *nats.Subscription // nil while paused
	inbox     string             // of sub, with a dot at the end
	durable   string             // the present one
	at        pullPoint          // where its requests go
	wake      *time.Timer        // calls check; nil before start
	pulls     pulls              // requests that are open
	flow      flow               // leases that wait for a handler
	held      int                // leases of this topic
	heldBytes int64              // of their messages
	refused   int64              // free bytes that did not suffice for the next event; 0: unknown
	reserved  int64              // granted by SubscribeOptions.Reserve, and not given back
	looking   bool               // check will look soon whether that event is gone
	first     bool               // no event has arrived since there was no open request
	heard     time.Time          // last sign of the server
	retry     time.Duration      // the last wait after a refusal; 0 since one was granted
	resting   bool               // that wait is not over
	missing   bool               // the last request was not answered
	starved   bool               // among the subscription's starved
	joining   bool               // rejoin runs
	ended     bool
	settling  time.Time // when something was first sent to acks on this connection; zero: nothing was
	acks      string    // beginning of the subjects at which the durable's leases are settled

	recollection recollection
}

func (s *subscription) newPuller(t *topic, consumer string) *puller {
	p := &puller{s: s, t: t, heard: time.Now()}
	p.attach(consumer)
	p.setExpiry()
	return p
}

// attach directs requests to a durable.
func (p *puller) attach(durable string) {
	if durable != p.durable {
		p.settling = time.Time{}
	}
	p.durable, p.at = durable, p.s.b.pullPoint(p.t.stream, durable)
}

// setExpiry fits the life of requests to the ack timeout.
func (p *puller) setExpiry() {
	p.expiry, p.heartbeat = min(max(p.s.ackTimeout/3, minPullExpiry), maxPullExpiry), 0
	if p.s.o.Order != jetbus.NoOrder {
		p.expiry = min(p.expiry, ownerExpiry)
	}
	if beat := p.expiry / 3; beat >= minHeartbeat {
		p.heartbeat = beat
	}
}

// silence is how long the server may say nothing while a request is open.
func (p *puller) silence() time.Duration {
	if p.heartbeat > 0 {
		return 2 * p.heartbeat
	}
	return p.expiry + pullGrace
}

// open subscribes to a new inbox, unless the puller has ended meanwhile.
func (p *puller) open() error {
	inbox := p.s.b.nc.NewInbox() + "."
	sub, err := p.s.b.nc.Subscribe(inbox+"*", p.receive)
	if err == nil {
		err = sub.SetPendingLimits(-1, -1) // bounded by what is asked for
	}
	if err != nil {
		return p.s.b.translate("", "", err)
	}
	p.s.mu.Lock()
	ended := p.ended
	if !ended {
		p.sub, p.inbox = sub, inbox
		p.pulls.reset()
		p.refused, p.looking = 0, false
	}
	p.s.mu.Unlock()
	if ended {
		_ = sub.Unsubscribe() // closed already, or gone with the connection
	}
	return nil
}

// start lets events come in.
func (p *puller) start() {
	p.s.mu.Lock()
	p.heard, p.settling = time.Now(), time.Time{}
	p.wake = time.AfterFunc(denialCheck, p.check)
	p.s.mu.Unlock()
	p.request()
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
	s := p.s
	if p.tr != nil {
		p.tr.deliver(m, a, now)
		return
	}
	l := newLease(p.t, m, a, s.o.MaxAttempts)
	l.h, l.p = &s.leaseSet, p
	s.mu.Lock()
	s.arrivals++
	l.arrival = s.arrivals
	since, first := p.arrivedLocked(l.size, now)
	p.holdLocked(l)
	s.addLocked(l, since)
	if !l.isExposed() {
		s.readyLocked(l)
	}
	o, reply := p.requestLocked(now)
	s.mu.Unlock()
	s.secure(l)
	p.send(o, reply)
	if first {
		p.polled(now.Sub(since))
	}
}

// polled tells that the first event has come since there was no open request.
func (p *puller) polled(after time.Duration) {
	p.s.b.cfg.Observer.Observe(jetbus.Observation{Kind: jetbus.Polled, Topic: p.t.name(), Group: p.s.group, Count: 1, Duration: after})
}

// arrivedLocked accounts for an event that came, and returns a time before which the
// server cannot have sent it. The time of arrival would not do: an event may
// have been held up on the way while the server gave it to somebody else. It reports
// whether the event is the first one since there was no open request.
func (p *puller) arrivedLocked(size int64, now time.Time) (since time.Time, first bool) {
	p.heard, p.retry, p.missing, p.refused = now, 0, false, 0
	first, p.first = p.first, false
	if since = p.pulls.event(size); since.IsZero() {
		since = now.Add(-p.expiry) // of a request of an inbox that Pause left
	}
	return since, first
}

// status handles what the server says instead of an event.
func (p *puller) status(m *nats.Msg) {
	w := readPullWord(m)
	s := p.s
	now := time.Now()
	s.mu.Lock()
	p.heard = now
	token, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, p.inbox), 36, 64)
	if err != nil { // of an inbox that Pause left
		s.mu.Unlock()
		return
	}
	if w.kind == pullBeat {
		p.pulls.answered(token)
		s.mu.Unlock()
		return
	}
	p.pulls.close(token, w)
	switch {
	case w.kind == pullGone, w.kind == pullNobody && !p.missing:
		p.missing = w.kind == pullNobody
		p.pulls.giveUp(p.expiry)
		p.rejoinLocked()
	case w.kind == pullRefused:
		s.failLocked(fmt.Errorf("subscribe %s/%s: pull request refused: %s %s", p.t.name(), s.group, w.code, w.description))
	case w.kind == pullFull:
		p.refused = max(p.refused, w.bytes, 1)
	case w.kind == pullOver: // no event was there, so none that is too large
		p.retry, p.missing, p.refused = 0, false, 0
		p.giveBackLocked()
	case w.kind == pullDone:
	default: // it passes; or again nobody is there
		p.backOffLocked()
	}
	o, reply := p.requestLocked(now)
	if o.events == 0 && w.kind == pullFull {
		p.lookLocked()
	}
	s.mu.Unlock()
	p.send(o, reply)
}

// windowLocked is how many events this puller may hold.
func (p *puller) windowLocked(now time.Time) int {
	window := p.s.windowLocked(now)
	if p.t.retries && p.s.o.MaxLease >= 0 { // few, and beside what the topics bring
		return min(window, p.s.o.Concurrency)
	}
	return min(window, p.s.share()) // of retries as well where nothing extends what waits for its turn
}

// backOffLocked lets the puller ask again after a while.
func (p *puller) backOffLocked() {
	p.retry, p.resting = min(max(2*p.retry, pullRetry), pullRetryMax), true
	if p.wake != nil {
		p.wake.Reset(p.retry)
	}
}

// requestLocked opens a request for what there is room for. It returns what it asks for, no
// events where it asks for none, and its reply subject.
func (p *puller) requestLocked(now time.Time) (o pullOrder, reply string) {
	s := p.s
	if s.stopping || s.paused || p.joining || p.resting || p.ended || p.sub == nil || p.wake == nil {
		return o, ""
	}
	window := p.windowLocked(now)
	if window <= 0 && p.held == 0 && p.pulls.asked == 0 && !p.starved { // nothing of its own will make it ask
		p.starved, s.starved = true, append(s.starved, p)
	}
	room := window - p.held - p.pulls.asked
	n := min(room, s.o.BatchSize)
	if n <= 0 || p.pulls.asked > 0 && n < min(s.o.BatchSize, max(window/4, 1)) {
		return o, "" // no room, or too little to be worth a request while another is open
	}
	if !s.b.link.IsUp() {
		return o, "" // it would be sent before the inbox is known to the server again, and what it brings would go to nobody
	}
	if o.events, o.bytes = p.bytesLocked(n, room); o.events == 0 {
		return o, ""
	}
	p.first = p.first || p.pulls.asked == 0
	o.expires, o.heartbeat = p.expiry, p.heartbeat
	return o, p.inbox + strconv.FormatUint(p.pulls.ask(o.events, o.bytes, now), 36)
}

// send sends a request, if there is one.
func (p *puller) send(o pullOrder, reply string) {
	if o.events == 0 {
		return
	}
	p.s.mu.Lock()
	at := p.at
	p.s.mu.Unlock()
	// Where the connection is gone, rejoin and check go on when there is one again.
	_ = at.ask(reply, o)
}

// request asks for what there is room for.
func (p *puller) request() {
	p.s.mu.Lock()
	o, reply := p.requestLocked(time.Now())
	p.s.mu.Unlock()
	p.send(o, reply)
}

// reconnected runs after a reconnect, and when the connection was closed. The
// requests of the old connection are gone; what they brought cannot come any
// more. It must not block.
func (p *puller) reconnected() {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.b.link.IsClosed() {
		s.failLocked(fmt.Errorf("subscribe %s/%s: %w: the connection was closed", p.t.name(), s.group, jetbus.ErrClosed))
		return
	}
	p.pulls.reset()
	p.refused = 0
	p.settling = time.Time{} // another user's permissions, perhaps
	p.heard, p.retry, p.resting, p.missing = time.Now(), 0, false, false
	p.rejoinLocked() // the durable may have been replaced meanwhile, or its settings changed
}

// check is the timer's: it ends the subscription when the server refuses what it needs,
// and asks anew when the server has been silent too long, or when the wait after a
// status that asks for patience is over.
func (p *puller) check() {
	s := p.s
	now := time.Now()
	s.mu.Lock()
	if p.ended {
		s.mu.Unlock()
		return
	}
	if refused := p.refusedLocked(); refused != "" {
		err := fmt.Errorf("subscribe %s/%s: %w", p.t.name(), s.group, noPermission(refused))
		s.failLocked(err)
		s.mu.Unlock()
		s.b.cfg.Logger.Error("a member ends for want of a permission", slog.Any("error", err))
		return
	}
	if s.b.link.IsUp() {
		p.pulls.overdue(p.expiry, now)
		if p.pulls.asked > 0 && now.Sub(p.heard) >= p.silence() {
			p.heard = now
			p.pulls.giveUp(p.expiry)
			p.rejoinLocked() // the server may have lost the durable
		}
	}
	p.refused, p.looking = 0, false
	if p.resting {
		p.resting = false
		p.pulls.giveUp(p.expiry)
		if p.missing {
			p.rejoinLocked()
		}
	}
	o, reply := p.requestLocked(now)
	p.wake.Reset(p.silence())
	s.mu.Unlock()
	p.send(o, reply)
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

// rejoin looks for the durable without the lock, which it lets go of for as long as the server
// takes: Stop, the owner of an ordered group and a reconnect may all come in between. So it
// compares what it finds with the durable of before, and with what the puller goes by now: where
// the group was moved, one that its owner has attached elsewhere, or ended, meanwhile is left alone.
func (p *puller) rejoin() {
	s := p.s
	ctx, cancel := context.WithTimeout(s.life, s.b.cfg.Timeout)
	defer cancel()
	s.mu.Lock()
	durable := p.durable
	s.mu.Unlock()
	info, err := p.settledGroup(ctx)
	s.mu.Lock()
	p.joining = false
	switch {
	case s.stopping:
	case err == nil && p.tr != nil && info.Name != durable: // its owner attaches it to the new one
		if p.durable == durable && !p.ended {
			p.tr.o.disturbLocked("the group was moved")
		}
	case err == nil && p.tr == nil && orderChanged(p.t, s.group, info, s.o.Order) != nil: // while this member asked for nothing
		s.failLocked(orderChanged(p.t, s.group, info, s.o.Order))
	case err == nil:
		p.attach(info.Name)
		p.heard = time.Now()
		p.pulls.giveUp(p.expiry)
		s.adoptLocked(info)
		p.setExpiry()
		p.checkSoonLocked()
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

// orderChanged is the conflict of a member with a group that has got another order than the
// member's, which others may give it while it looks as if it had no members.
func orderChanged(t *topic, group string, info *jetstream.ConsumerInfo, order jetbus.Order) error {
	have := jetbus.Order(info.Config.Metadata[metaOrder])
	if have == order || t.retries {
		return nil
	}
	return &jetbus.ConflictError{
		What:        "group " + t.name() + "/" + group,
		Differences: differ("Order", orderWord(have), orderWord(order)),
		Hint:        "it was changed while this member stood by",
	}
}

// settledGroup returns the group's durable; errMoved says that somebody is moving it.
func (p *puller) settledGroup(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	b, group := p.s.b, p.s.group
	info, err := b.findGroup(ctx, p.t, group)
	if err != nil {
		return nil, err
	}
	mark, ok := readMoveMark(info.Config.Metadata)
	if !ok {
		return info, nil
	}
	if err = b.finishMove(ctx, p.t, group, info, mark); err != nil {
		return nil, err
	}
	if info, err = b.findGroup(ctx, p.t, group); err != nil {
		return nil, err
	}
	if _, ok = readMoveMark(info.Config.Metadata); ok { // its mover is alive, and waits
		return nil, errMoved
	}
	return info, nil
}

// resume opens the puller, which has ended, at a durable.
func (p *puller) resume(durable string) error {
	p.s.mu.Lock()
	p.attach(durable)
	p.setExpiry()
	p.ended, p.retry, p.resting, p.missing = false, 0, false, false
	p.s.mu.Unlock()
	if err := p.open(); err != nil {
		return err
	}
	p.start()
	return nil
}

// end stops asking, and returns when the server has stopped sending and all that
// it sent has been received.
func (p *puller) end(ctx context.Context) {
	p.s.mu.Lock()
	p.ended = true
	if p.wake != nil {
		p.wake.Stop()
	}
	p.s.mu.Unlock()
	p.drain(ctx)
}

// drain closes the inbox when all that is on its way has been received.
func (p *puller) drain(ctx context.Context) {
	p.s.mu.Lock()
	sub := p.sub
	p.sub = nil
	p.pulls.reset()
	p.giveBackLocked()
	p.s.mu.Unlock()
	if sub == nil {
		return
	}
	if p.s.b.link.IsUp() {
		drained := make(chan struct{})
		sub.SetClosedHandler(func(string) { close(drained) })
		if sub.Drain() == nil {
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
	_ = sub.Unsubscribe() // closed already, or gone with the connection
}
