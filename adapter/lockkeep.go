package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/deadline"
)

// What is done under a lock may take long, and who does it may die in it. So the life of a
// lock has nothing to do with how long that may take: it begins anew while its holder
// lives, and ends soon after it.
const (
	keptLife     = 20 * time.Second
	keptLifePart = 50 * time.Millisecond // more of it for each durable: so long it may take to renew them
	keptRenewals = 4                     // in a life
)

// errOutlived: whatever the locks were for, others act on it by now.
var errOutlived = fmt.Errorf("%w: for so long that somebody else may have the lock by now", jetbus.ErrUnavailable)

// keptLocks are locks that this process keeps until it gives them back.
type keptLocks struct {
	kv   *buckets
	life time.Duration
	lose context.CancelCauseFunc // ends the context
	stop func()                  // ends the renewing, and waits for it

	renewing chan struct{} // full while they are renewed
	mu       sync.Mutex
	locks    []*heldLock
}

// newKeptLocks makes room for the locks of that many durables.
func (kv *buckets) newKeptLocks(durables int) *keptLocks {
	return &keptLocks{kv: kv, life: keptLife + time.Duration(durables)*keptLifePart, renewing: make(chan struct{}, 1)}
}

// start begins to renew them, and calls also each time. The context that it returns ends,
// with errOutlived, when one of them may be another's. The caller calls end.
func (k *keptLocks) start(ctx context.Context, also func(context.Context)) context.Context {
	ctx, k.lose = context.WithCancelCause(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() { k.keepAlive(ctx, also) })
	k.stop = func() {
		k.lose(nil)
		renewing.Wait()
	}
	return ctx
}

// end gives all locks back.
func (k *keptLocks) end(ctx context.Context) {
	k.stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	_ = everyPart(ctx, k.locks, func(ctx context.Context, l *heldLock) error {
		l.unlock(ctx)
		return nil
	})
}

// result is the error of what ended with err: what was asked when the locks were outlived
// says no more than that it was canceled.
func (k *keptLocks) result(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errOutlived) {
		return cause
	}
	return err
}

// hold waits for a lock.
func (k *keptLocks) hold(ctx context.Context, name string) error {
	held, err := k.kv.hold(ctx, name, k.life)
	if err == nil {
		k.keep(held)
	}
	return err
}

func (k *keptLocks) keep(held *heldLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.locks = append(k.locks, held)
}

// keepAlive renews the locks until ctx is over, or it has not been able to for so long
// that one may be over before the next time.
func (k *keptLocks) keepAlive(ctx context.Context, also func(context.Context)) {
	every := k.life / keptRenewals
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		k.renew(ctx, every, also)
	}
}

// renew does what it does to its end, also where ctx is over: of a lock that is given back
// it is known what was written last.
func (k *keptLocks) renew(ctx context.Context, within time.Duration, also func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	k.renewing <- struct{}{}
	defer func() { <-k.renewing }()
	k.mu.Lock()
	locks := slices.Clone(k.locks)
	k.mu.Unlock()
	err := everyPart(ctx, locks, func(ctx context.Context, l *heldLock) error { return l.extend(ctx) })
	if soon := time.Now().Add(within); slices.ContainsFunc(locks, func(l *heldLock) bool { return deadline.Over(l.until, soon) }) {
		k.lose(errors.Join(errOutlived, err)) // before anybody decides
		return
	}
	also(ctx)
}

// locked runs f while this process has a lock, for which it waits. The context of f ends,
// with errOutlived, when the lock may be another's.
func (kv *buckets) locked(ctx context.Context, name string, f func(context.Context) error) error {
	k := kv.newKeptLocks(1)
	ctx = k.start(ctx, func(context.Context) {})
	defer k.end(ctx)
	err := k.hold(ctx, name)
	if err == nil {
		err = f(ctx)
	}
	return k.result(ctx, err)
}

// lockedAgain is locked for what may be done twice.
func (kv *buckets) lockedAgain(ctx context.Context, name string, f func(context.Context) error) error {
	return kv.again(ctx, func() error { return kv.locked(ctx, name, f) })
}

// again calls f, which takes locks and may be done twice: where one is outlived, as where a
// cluster elects for long, it begins anew under new ones, for as long as a call is repeated
// that got no answer.
func (kv *buckets) again(ctx context.Context, f func() error) error {
	isOutlived := func(err error) bool { return errors.Is(err, errOutlived) }
	_, err := retriedFor(ctx, kv.js, isOutlived, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// lockStream is locked for who changes a stream that others change, too: topics that share
// it, snapshots of its topics, generations of its partitions. The server knows no
// conditional update: of two changes at once the later would undo the earlier. So f begins with
// a look at the stream, and may be done again.
func (kv *buckets) lockStream(ctx context.Context, stream string, f func(context.Context) error) error {
	return kv.lockedAgain(ctx, stream, f)
}
