package adapter

import (
	"context"
	"maps"
	"slices"
	"time"

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

// returnLate gives back an event that came when its call was over, if the bus is not closed. The
// entry of its group may be retired by then, so that it has a set of its own.
func (r *handedOut) returnLate(l *lease, sent time.Time) {
	ctx := context.Background()
	if r.b.enter(ctx) != nil {
		return
	}
	late := &leaseSet{b: r.b, group: r.group, ackTimeout: r.ackTimeout, maxLease: r.maxLease, backoff: r.backoff}
	late.init()
	r.mu.Lock()
	if r.confirmers[l.consumer] != nil {
		late.confirmers[l.consumer] = &confirmer{}
	}
	r.mu.Unlock()
	late.add(l, sent)
	late.secure(l)
	go func() { // Close waits for it as for a call
		defer r.b.calls.end()
		late.giveBack(ctx, []*lease{l}, "nobody waits for it any more")
		late.end()
	}()
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
			_ = r.reject(ctx, l, jetbus.DeadUndecodable, err) // else it comes back, as the observer is told
			continue
		}
		d := l.delivery(&e, maxAttempts)
		r.mu.Lock()
		r.nameLocked(l, e.ID)
		l.attempt, l.started = d.Attempt, time.Now()
		r.mu.Unlock()
		out = append(out, d)
	}
	return out
}

// giveBackHandedOut returns what Receive handed out and nobody settled.
func (b *Bus) giveBackHandedOut(ctx context.Context) {
	b.mu.Lock()
	all := slices.Collect(maps.Values(b.held))
	b.mu.Unlock()
	besides(len(all), len(all), func(i int) {
		r := all[i]
		r.letGo(context.WithoutCancel(ctx), r.all(), "the bus is closing")
	})
}
