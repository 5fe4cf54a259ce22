package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/deadline"
)

// outcome is how a lease ended.
type outcome int

const (
	leaseOpen outcome = iota
	leaseSettled
	leaseLost
	leaseAdrift // of an ordered group: ours, and to be delivered again
)

// lease is one delivered message that this process holds. It implements jetbus.Lease.
//
// The server starts counting AckTimeout when it sends, and again at every
// extension it gets. This side counts from a moment that is never later: a time
// before which the server cannot have sent the event, see puller.arrivedLocked, then
// the sending of the last extension that was answered. An answer shows that the
// server had the extension at some time before now; one that arrives after the
// deadline shows nothing, because the server answers extensions, and takes
// acknowledgements, of events it has long given to somebody else.
type lease struct {
	h           *leaseSet
	p           *puller // that got it; nil: Receive did
	t           *topic
	msg         *nats.Msg
	consumer    string // the durable
	reply       string // where acknowledgements go
	size        int64  // of the message, as the server counts
	deliveries  int
	arrival     uint64 // among those of its subscription; 0: of another holder, or of an ordered group
	seq         uint64
	stored      int64        // nanoseconds since the epoch
	retry       *retryOrigin // of an event that comes from the group's retries
	slot        *slot        // of an ordered group's event; nil: of another's
	maxAttempts int

	// What is known of the attempts; used by whoever is about to run the handler,
	// then by whoever has claimed the lease, then by whoever settled or lost it.
	record   *record // nil: nothing
	recorded bool    // in the bucket
	revision uint64  // of the record that says that it was started alone
	base     uint64  // of the record that is known, or of what stands where there was one
	unread   bool    // whether there is a record could not be found out
	suspect  bool    // a delivery before this one is unaccounted for

	// Guarded by h.mu.
	prev, next *lease
	twin       *lease // the next one of the same topic and id; see leaseSet.named
	state      outcome
	claimed    bool            // a refusal is under way
	alone      bool            // runs as the only suspect
	overran    bool            // lost, and not because the server did not answer
	id         string          // once decoded
	version    string          // of its schema, as the event states it, once decoded
	attempt    int             // once decoded
	started    time.Time       // when a handler got it
	deadline   time.Time       // until when it is ours, see package deadline
	sent       time.Time       // a time before which the server cannot have sent it
	exposed    chan struct{}   // closed when that is over; nil: it never was, see exposeLocked
	asked      time.Time       // when the newest extension was sent
	askedOn    uint64          // on which of the bus's connections; 0: it was answered, or there was none
	known      bool            // the server has had an extension, and confirmed it where that takes others
	keepUntil  time.Time       // Extend asked for more than one AckTimeout
	run        *handlerContext // of the handler, while there is one
	forget     func()          // drops the answer to the newest extension
	extending  chan struct{}   // closed when the newest extension has been sent; nil: there was none
}

// newLease is the lease on a message that came from a topic, or its retries.
func newLease(t *topic, m *nats.Msg, a ackReply, maxAttempts int) *lease {
	l := &lease{t: t, msg: m, consumer: a.consumer, reply: m.Reply, size: int64(m.Size()), deliveries: a.deliveries, seq: a.seq, stored: a.storedNano, maxAttempts: maxAttempts}
	if t.retries {
		l.retry = parseRetry(m.Header, t, a.seq, a.storedNano)
	}
	return l
}

// isReplicated reports whether another server may take the lead of the durable.
func (l *lease) isReplicated() bool { return l.t.config.Replicas > 1 }

// margin is the part of AckTimeout by which this side gives up early, for what
// the way to the server and the tick of the clock take.
const margin = 10

// safe is how long a lease counts as held after the server was told.
// It needs h.mu.
func (h *leaseSet) safe() time.Duration { return h.ackTimeout - h.ackTimeout/margin }

// Deadline implements jetbus.Lease.
func (l *lease) Deadline() time.Time {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return l.deadline
}

// Ack implements jetbus.Lease.
func (l *lease) Ack(ctx context.Context) error {
	if err := l.settle(ctx, "ack", nil); err != nil {
		return err
	}
	l.h.b.done(l)
	l.h.note(l, jetbus.Acked, "", nil)
	return nil
}

// Nack implements jetbus.Lease.
func (l *lease) Nack(ctx context.Context, o jetbus.NackOptions) error {
	if err := o.Validate(); err != nil {
		return l.wrap("nack", err)
	}
	why := &manualError{cmp.Or(o.Reason, "refused"), o.Stack}
	return l.h.refuse(ctx, l, nackDelay(o), why, why)
}

// nackDelay is the delay of a refusal as refuse takes it: 0 the backoff, -1 none.
func nackDelay(o jetbus.NackOptions) time.Duration {
	if o.AtOnce {
		return -1
	}
	return min(o.Delay, jetbus.MaxRetryDelay)
}

// GiveBack implements jetbus.Lease.
func (l *lease) GiveBack(ctx context.Context) error {
	return l.h.giveBackOne(ctx, l, "given back by its holder")
}

// Snooze implements jetbus.Lease.
func (l *lease) Snooze(ctx context.Context, d time.Duration) error {
	if d <= 0 || d > jetbus.MaxRetryDelay {
		return l.wrap("snooze", fmt.Errorf("%w: delay is %v, use more than 0 and at most %v", jetbus.ErrInvalidOption, d, jetbus.MaxRetryDelay))
	}
	return l.h.snooze(ctx, l, d)
}

// Reject implements jetbus.Lease.
func (l *lease) Reject(ctx context.Context, o jetbus.RejectOptions) error {
	why := &manualError{cmp.Or(o.Reason, "rejected"), o.Stack}
	return l.h.reject(ctx, l, o.As, why, why)
}

// Extend implements jetbus.Lease.
func (l *lease) Extend(ctx context.Context, by time.Duration) error {
	if err := l.use(); err != nil {
		return l.wrap("extend", err)
	}
	sent, err := l.ask(ctx)
	if err != nil {
		return l.wrap("extend", err)
	}
	if !l.extended(sent) {
		return l.wrap("extend", l.use())
	}
	l.h.keep(l, sent.Add(by))
	l.h.note(l, jetbus.Extended, extendedByHolder, nil)
	return nil
}

const extendedByHolder = "extended by its holder"

// ask asks the server to extend the lease, and again where a connection breaks
// before the answer or nobody has taken it, until the lease or ctx ends. It returns
// when it sent what was taken.
func (l *lease) ask(ctx context.Context) (sent time.Time, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	for {
		lost, err := l.h.b.link.Wait(ctx)
		if err != nil {
			return time.Time{}, err
		}
		on := l.h.b.connections.Load()
		sent = time.Now()
		answer, err := l.h.b.exchange(ctx, &nats.Msg{Subject: l.reply, Data: extension}, lost, tryTimeout)
		switch {
		case err == nil && extensionTaken(answer) && l.isConfirmed(ctx, sent, on):
			return sent, nil
		case err == nil, errors.Is(err, nats.ErrNoResponders):
			select {
			case <-time.After(denialCheck):
			case <-ctx.Done():
				return time.Time{}, context.Cause(ctx)
			}
		case err != errLost && !errors.Is(err, nats.ErrTimeout): //nolint:errorlint // exchange returns errLost as it is
			return time.Time{}, err
		}
	}
}

// extensionTaken reports whether the answer to an extension is the server's. Where
// the durable is gone, or its leader, nobody has the extension, and it is said so.
func extensionTaken(m *nats.Msg) bool { return m.Header.Get("Status") == "" }

// extended notes an answer to an extension sent at that time. It reports whether
// the lease is still held.
func (l *lease) extended(sent time.Time) bool {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return l.extendedLocked(sent)
}

// notExtended has an extension that nobody took sent again, where that is since a durable is
// without a leader.
func (l *lease) notExtended(sent time.Time) {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	if l.isReplicated() && l.asked.Equal(sent) {
		l.askedOn = doubtful
	}
}

// extendedLocked is extended for who has the lock. An answer that arrives after the deadline
// changes nothing: the server answers whoever asks, also for an event that it has given to
// somebody else. One that is older than another, as answers may overtake each other, does
// not shorten the lease.
func (l *lease) extendedLocked(sent time.Time) bool {
	if l.state != leaseOpen || deadline.Over(l.deadline, time.Now()) {
		return false
	}
	if until := sent.Add(l.h.safe()); until.After(l.deadline) {
		l.deadline = until
	}
	if !sent.Before(l.asked) {
		l.asked, l.askedOn = sent, 0
	}
	if !l.known {
		l.known = true
		l.h.quorumHasLocked(l)
	}
	return true
}

// startLocked reports whether a worker may begin with the event.
func (l *lease) startLocked() bool {
	if l.slot != nil {
		return l.slot.startLocked()
	}
	return l.state == leaseOpen
}

// over reports whether the lease has ended. It needs h.mu.
func (l *lease) over() bool { return l.state == leaseSettled || l.state == leaseLost }

// current is what settles the event now.
func (l *lease) current() jetbus.Lease {
	if l.slot == nil {
		return l
	}
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	if l.slot.turn == nil { // it waits for the next one
		return &turn{l: l, state: leaseSettled}
	}
	return l.slot.turn
}

// use returns why the lease cannot be used any more.
func (l *lease) use() error {
	l.h.mu.Lock()
	defer l.h.mu.Unlock()
	return l.check()
}

// check needs h.mu.
func (l *lease) check() error { return l.checkAt(time.Now()) }

func (l *lease) checkAt(now time.Time) error {
	switch {
	case l.state == leaseSettled:
		return jetbus.ErrAlreadySettled
	case l.state == leaseLost || l.slot == nil && deadline.Over(l.deadline, now):
		return jetbus.ErrLeaseExpired
	case l.claimed:
		return jetbus.ErrAlreadySettled
	}
	return nil
}

// settle ends the lease and tells the server. Of several calls one wins.
func (l *lease) settle(ctx context.Context, verb string, payload []byte) error {
	if l.slot != nil {
		return l.slot.settle(verb, payload)
	}
	if !l.h.b.link.IsUp() { // what is sent now would wait in a buffer past the lease
		if err := l.awaitLink(ctx); err != nil {
			return l.wrap(verb, err)
		}
	}
	if err := l.h.take(l); err != nil {
		return l.wrap(verb, err)
	}
	if payload != nil {
		l.awaitExtension()
		if deadline.Over(l.Deadline(), time.Now()) { // the connection hung: a refusal would act on the next holder's delivery
			return l.wrap(verb, jetbus.ErrLeaseExpired)
		}
	}
	if err := l.tell(ctx, payload); err != nil {
		return l.h.b.translate(verb+" "+l.t.name()+" "+l.id, "", err)
	}
	if payload == nil {
		l.h.mu.Lock()
		l.h.ackedLocked(l)
		l.h.mu.Unlock()
	}
	return nil
}

// awaitExtension lets an extension that is being sent go first. Behind a refusal it would
// have the server count AckTimeout from then, and not the delay that the refusal asks for. An
// acknowledgement ends the event whatever comes behind it.
func (l *lease) awaitExtension() {
	l.h.mu.Lock()
	sent := l.extending
	l.h.mu.Unlock()
	if sent != nil {
		<-sent // it waits for the connection, as what follows does
	}
}

// tell sends what settles the lease. Nobody waits for the answer, except where Receive
// handed the event out: there is no subscription then that could end with the error if
// the server refuses it.
func (l *lease) tell(ctx context.Context, payload []byte) error {
	if l.p == nil {
		return l.h.b.settleReceived(ctx, l.reply, payload)
	}
	return l.h.b.nc.Publish(l.reply, payload)
}

// awaitLink waits for a connection until ctx or the lease ends.
func (l *lease) awaitLink(ctx context.Context) error {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	if _, err := l.h.b.link.Wait(ctx); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

// bound ends ctx with the lease, whose error becomes its cause.
func (l *lease) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, l.Deadline(), jetbus.ErrLeaseExpired)
}

func (l *lease) wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s %s in group %s: %w", verb, l.t.name(), l.label(), l.h.group, err)
}

// position is where the event stands in its topic.
func (l *lease) position() uint64 {
	if l.retry != nil {
		return l.retry.Seq
	}
	return l.seq
}

// storedTime is when the broker stored the event; of a retry, the original, and zero where
// whoever asked for the retry did not know.
func (l *lease) storedTime() time.Time {
	at := l.stored
	if l.retry != nil {
		at = l.retry.Stored
	}
	if at == 0 {
		return time.Time{}
	}
	return time.Unix(0, at).UTC()
}

// label names the event for messages.
func (l *lease) label() string {
	if l.id != "" {
		return l.id
	}
	return "#" + strconv.FormatUint(l.seq, 10)
}

var (
	nakNow    = []byte("-NAK")
	extension = []byte("+WPI")
)

func nakPayload(delay time.Duration) []byte {
	if delay <= 0 {
		return nakNow
	}
	return append(strconv.AppendInt([]byte(`-NAK {"delay":`), int64(delay), 10), '}')
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
