package adapter

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// handedOutKey names what Receive handed out. The ack timeout is the group's at
// that time; one that changes makes a new entry.
type handedOutKey struct {
	topic, group string
	ackTimeout   time.Duration
	maxLease     time.Duration // -1: none
}

// handedOut are the leases that Receive handed out for a group.
type handedOut struct {
	leaseSet
	t   *topic
	key handedOutKey

	users   int         // Receive calls under way; guarded by Bus.mu
	adopted *knownGroup // guarded by mu
}

// useHandedOut returns the entry of a group.
func (b *Bus) useHandedOut(t *topic, group string, ackTimeout, maxLease time.Duration) (*handedOut, error) {
	backoff, err := jetbus.Backoff{}.Normalize()
	if err != nil {
		return nil, err
	}
	if maxLease == 0 {
		maxLease = -1
	} else {
		maxLease = max(maxLease, ackTimeout) // that of the group may be longer than the caller's
	}
	key := handedOutKey{t.name(), group, ackTimeout, maxLease}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.held[key]
	if r == nil {
		r = &handedOut{leaseSet: leaseSet{b: b, group: group, ackTimeout: ackTimeout, maxLease: maxLease, backoff: backoff}, t: t, key: key}
		r.init()
		r.changed = func(*puller) { b.pruneHandedOut(r) }
		b.held[key] = r
	}
	r.users++
	return r, nil
}

func (b *Bus) unuseHandedOut(r *handedOut) {
	b.mu.Lock()
	r.users--
	b.mu.Unlock()
	b.pruneHandedOut(r)
}

// pruneHandedOut drops an entry that holds nothing and that nobody uses.
func (b *Bus) pruneHandedOut(r *handedOut) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users == 0 && r.count == 0 && b.held[r.key] == r {
		delete(b.held, r.key)
		r.closeLocked() // its keeper goes off duty; Close waits for it
		b.retired.Go(r.wg.Wait)
	}
}

// failed gives back what came to a call that failed, which does not wait for what is exposed:
// Close does.
func (r *handedOut) failed(ctx context.Context, leases []*lease) {
	ctx = context.WithoutCancel(ctx)
	held, exposed := r.cover(ctx, 0, leases)
	r.letGo(ctx, held, "the call failed")
	if len(exposed) > 0 {
		r.b.calls.begin()
		r.wg.Go(func() {
			defer r.b.calls.end()
			r.letGo(ctx, exposed, "the call failed")
		})
	}
}

// letGo gives leases back, and forgets those that cannot be: nobody has them.
func (r *handedOut) letGo(ctx context.Context, leases []*lease, reason string) {
	r.giveBack(ctx, leases, reason)
	r.mu.Lock()
	for _, l := range leases {
		if l.state == leaseOpen {
			r.removeLocked(l, leaseLost)
		}
	}
	r.mu.Unlock()
	r.b.pruneHandedOut(r)
}

// returnLate gives back an event that came when its call was over.
func (r *handedOut) returnLate(l *lease, sent time.Time) {
	if !r.b.link.IsUp() {
		return
	}
	ctx := context.Background()
	l.sent = sent
	if r.b.enter(ctx) != nil {
		r.b.mu.Lock()
		defer r.b.mu.Unlock()
		r.b.late[r] = append(r.b.late[r], l) // for Close, unless it is done
		return
	}
	go func() { // Close waits for it as for a call
		defer r.b.calls.end()
		r.giveBackLate(ctx, []*lease{l})
	}()
}

// giveBackLate gives back what came too late. The entry of its group may be retired by then, so
// that it has a set of its own.
func (r *handedOut) giveBackLate(ctx context.Context, leases []*lease) {
	if !r.b.link.IsUp() {
		return
	}
	late := &leaseSet{b: r.b, group: r.group, ackTimeout: r.ackTimeout, maxLease: r.maxLease, backoff: r.backoff}
	late.init()
	for _, l := range leases {
		r.mu.Lock()
		if r.confirmers[l.consumer] != nil && late.confirmers[l.consumer] == nil {
			late.confirmers[l.consumer] = &confirmer{}
		}
		r.mu.Unlock()
		late.add(l, l.sent)
		late.secure(l)
	}
	late.giveBack(ctx, leases, "nobody waits for it any more")
	late.end()
}

// openInbox counts the inbox of a Receive until it is closed.
func (b *Bus) openInbox(sub *nats.Subscription) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inboxes++
	sub.SetClosedHandler(func(string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.inboxes--; b.inboxes == 0 && b.emptied != nil {
			close(b.emptied)
		}
	})
}

// awaitInboxes waits for what is on its way to Receive calls, all of which are over: to give it
// back. Without a connection nothing is. The error is that of a server that does not answer.
func (b *Bus) awaitInboxes(ctx context.Context) error {
	b.mu.Lock()
	b.emptied = make(chan struct{})
	none := b.inboxes == 0
	b.mu.Unlock()
	if none {
		return nil
	}
	now, cancel := context.WithCancel(ctx)
	cancel()
	lost, err := b.link.Wait(now)
	if err != nil { // there is no connection
		return nil
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	late := time.NewTimer(drainTimeout)
	defer late.Stop()
	select { // it has been read, and is about to be taken in
	case <-b.emptied:
	case <-lost:
	case <-late.C:
	}
	return nil
}

// deliveries decodes what came.
func (r *handedOut) deliveries(ctx context.Context, leases []*lease, maxAttempts int) []*jetbus.Delivery {
	out := make([]*jetbus.Delivery, 0, len(leases))
	r.b.recallAll(ctx, leases)
	for _, l := range leases {
		if l.hopeless() {
			r.giveUp(ctx, l)
			continue
		}
		e, err := l.decode()
		if err != nil {
			_ = r.reject(ctx, l, jetbus.DeadUndecodable, err, nil) // else it comes back, as the observer is told
			continue
		}
		d := l.delivery(&e, maxAttempts)
		r.mu.Lock()
		r.noteEventLocked(l, &e)
		l.attempt, l.started = d.Attempt, time.Now()
		r.mu.Unlock()
		out = append(out, d)
	}
	return out
}

// giveBackHandedOut returns what Receive handed out and nobody settled, and what came too late
// to be handed out.
func (b *Bus) giveBackHandedOut(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	b.mu.Lock()
	var all []func()
	for _, r := range b.held {
		all = append(all, func() { r.letGo(ctx, r.all(), "the bus is closing") })
	}
	for r, leases := range b.late {
		all = append(all, func() { r.giveBackLate(ctx, leases) })
	}
	b.mu.Unlock()
	besides(len(all), len(all), func(i int) { all[i]() })
}
