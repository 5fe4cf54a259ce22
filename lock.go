package jetbus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-63e9a637/jetbus/internal/deadline"
)

// Lock lets one process at a time do something: lead, compact, migrate. It is
// kept in a bucket of [Keys] and lasts as long as its holder renews it.
//
// While clocks run at like speed no two hold it: the holder's function is
// canceled before the lock can pass on without its consent, and within a second
// after a sleep of the machine in which it could. What the function
// does in spite of that, or what it sent before and arrives later, [Held].Epoch
// tells apart. That is as good as the broker's memory: a single server that loses
// power may forget its last writes, after which a second one may hold the lock
// until the first one renews it, with an Epoch that was there before.
//
// A lock leaves two small keys in its bucket for good, and who waits is told of
// every change there: locks are for names that are few, not for every order.
type Lock struct {
	// Bucket is where the lock is kept. Defaults to DefaultLockBucket.
	Bucket string
	// Key is the name of the lock, 1 to 240 bytes, not ending in "#held". Whoever
	// names the same bucket and key, on a bus of the same prefix, competes for the same
	// lock. No default.
	Key string
	// Owner says in the bucket who holds the lock, for people who look; it decides
	// nothing. Defaults to a random id.
	Owner string
	// TTL is how long the lock stays taken when its holder dies: whole seconds, from 3
	// seconds to an hour. A holder that cannot reach the broker gives up after four fifths of
	// it. Defaults to 15 seconds.
	TTL time.Duration
}

// Held is what a holder knows of its turn.
type Held struct {
	// Epoch ascends from turn to turn. What is written with it can be refused once
	// something with a higher one has been seen.
	Epoch uint64
	// Clean: the turn before ended in order, with its function saying so, or there
	// was none. It is false where the holder before died, lost the lock or failed.
	Clean bool
}

// Defaults and bounds of Lock.
const (
	DefaultLockBucket = "JETBUS_HOLDERS"
	DefaultLockTTL    = 15 * time.Second

	minLockTTL     = 3 * time.Second
	maxLockTTL     = time.Hour              // a lost bucket is reported for that long
	maxLockBytes   = MaxKeyBytes - 16       // leaves room for lockMark
	lockMark       = "#held"                // behind the key, where no lock's is: a key that stays once the lock was held
	lockPause      = 250 * time.Millisecond // between tries that fail at once
	maxLockRelease = 5 * time.Second        // how long a release may take
	lockFree       = "free"                 // lockValue.State, without a TTL
	lockHeld       = "held"                 // lockValue.State, with one
	afterNone      = "none"                 // lockValue.After: there was no value
	afterClean     = "clean"                // the turn before ended in order
	afterUnclean   = "unclean"              // it did not
)

// lockValue is what the bucket holds of a lock.
type lockValue struct {
	State string    `json:"state"`
	Owner string    `json:"owner"`
	Nonce string    `json:"nonce"`           // of one call of Hold: an Owner may compete with itself
	After string    `json:"after,omitempty"` // how the turn before ended; while held
	Clean bool      `json:"clean,omitempty"` // how this turn ended; while free
	Since time.Time `json:"since"`           // by the owner's clock, for people
}

// normalize returns the lock with defaults filled in.
func (l Lock) normalize() (Lock, error) {
	setDefault(&l.Bucket, DefaultLockBucket)
	setDefault(&l.TTL, DefaultLockTTL)
	if l.Owner == "" {
		l.Owner = NewID()
	}
	switch {
	case l.Key == "" || len(l.Key) > maxLockBytes || ValidKey(l.Key) != nil:
		return l, fmt.Errorf("%w: Key is %.300q, use 1 to %d bytes of UTF-8 without control characters", ErrInvalidOption, l.Key, maxLockBytes)
	case strings.HasSuffix(l.Key, lockMark):
		return l, fmt.Errorf("%w: Key is %q, which must not end in %q", ErrInvalidOption, l.Key, lockMark)
	case len(l.Owner) > maxSIDBytes || !printable(l.Owner):
		return l, fmt.Errorf("%w: Owner has more than %d bytes or control characters, or is no UTF-8", ErrInvalidOption, maxSIDBytes)
	case l.TTL < minLockTTL || l.TTL > maxLockTTL || l.TTL%time.Second != 0:
		return l, fmt.Errorf("%w: TTL is %v, use whole seconds, from %v to %v", ErrInvalidOption, l.TTL, minLockTTL, maxLockTTL)
	}
	return l, nil
}

// Hold waits until the lock is free, takes it, runs f and lets go of it. It waits
// through outages of the broker, for as long as ctx allows.
//
// The context of f has the values of ctx and ends with it; it is canceled with
// the cause [ErrLockLost] where the lock could not be renewed in time or is
// somebody else's. Hold waits for f in either case, keeps the lock until f has
// returned, and returns the error of f. clean says that f left everything in
// order; the next holder is told ([Held].Clean).
//
// The error wraps [ErrLockLost] when the lock was lost before f returned. Other
// errors are those of ctx, of a lock that is not valid ([ErrInvalidOption]), of
// the broker where it is not to be waited for ([ErrClosed], [ErrDenied]: also for who may not
// watch a lock that somebody else has), of a bucket
// whose keys cannot expire ([ErrUnsupported]), and [ErrUnavailable] where f went
// well and the lock could not be released: it then ends with its TTL and is not
// clean. A panic of f is a [PanicError].
func (l Lock) Hold(ctx context.Context, k Keys, f func(ctx context.Context, h Held) (clean bool, err error)) error {
	l, err := l.normalize()
	if err == nil {
		held, lose := context.WithCancelCause(ctx)
		defer lose(nil)
		h := &holder{Lock: l, keys: k, tries: map[string]time.Time{}, lose: lose}
		if err = h.acquire(ctx); err == nil {
			err = h.run(ctx, held, f)
		}
	}
	if err != nil {
		return fmt.Errorf("lock %s/%s: %w", l.Bucket, l.Key, err)
	}
	return nil
}

// holder is one call of Hold.
type holder struct {
	Lock
	keys  Keys
	tries map[string]time.Time // writes that may have been stored: their nonces and when they were sent

	nonce    string // of the write that took the lock, and of all that follow
	epoch    uint64
	after    string
	revision uint64    // of the last write that is known to be stored
	unsure   time.Time // when the first renewal after that was sent; zero: there is none
	expiry   *deadline.Alarm
	lost     atomic.Bool
	lose     context.CancelCauseFunc // of f's context
}

// surely is how long after the sending of a write the lock is ours for sure.
func (h *holder) surely() time.Duration { return h.TTL - h.TTL/5 }

// acquire waits until the lock is ours.
func (h *holder) acquire(ctx context.Context) error {
	changed, blind := make(chan struct{}, 1), make(chan error, 1)
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	defer stop()
	var failure error // what the broker says lately, if that is not how things are
	for first := true; ; first = false {
		taken, err := h.attempt(ctx)
		if ctx.Err() == nil {
			failure = err
		}
		switch {
		case taken:
			return nil
		case ctx.Err() != nil:
			h.undo(ctx)
			if failure != nil {
				return fmt.Errorf("wait until it is free: %w: %w", context.Cause(ctx), failure)
			}
			return fmt.Errorf("wait until it is free: %w", context.Cause(ctx))
		case isFinal(err):
			h.undo(ctx)
			return err
		case first:
			watcher.Go(func() { h.watch(watching, changed, blind) })
		}
		pause := h.TTL / 2 // an expiry may go unnoticed
		if err != nil {
			pause = lockPause
		}
		select {
		case <-changed:
		case err := <-blind:
			h.undo(ctx)
			return err
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// isFinal reports whether there is no point in trying again.
func isFinal(err error) bool {
	return errors.Is(err, ErrClosed) || errors.Is(err, ErrDenied) || errors.Is(err, ErrInvalidOption) || errors.Is(err, ErrUnsupported)
}

// attempt takes the lock if it is free, or finds that an earlier attempt did.
func (h *holder) attempt(ctx context.Context) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.TTL/2)
	defer cancel()
	for {
		entry, err := h.keys.KeyGet(ctx, h.Bucket, h.Key)
		if err != nil {
			return false, err
		}
		after := afterNone
		if entry.Revision != 0 {
			v := parseLock(entry.Value)
			if sent, mine := h.tries[v.Nonce]; mine && v.State == lockHeld {
				h.take(v.Nonce, entry.Revision, v.After)
				return h.arm(sent), nil // otherwise it is too old to build on, and expires
			}
			if v.State != lockFree {
				return false, nil
			}
			after = afterUnclean
			if v.Clean {
				after = afterClean
			}
		}
		h.nonce = NewID()
		sent := time.Now()
		maps.DeleteFunc(h.tries, func(_ string, sent time.Time) bool { return time.Since(sent) > 2*h.TTL })
		h.tries[h.nonce] = sent
		revision, err := h.write(ctx, entry.Revision, lockValue{State: lockHeld, After: after}, h.TTL)
		if err == nil {
			h.take(h.nonce, revision, after)
			return h.arm(sent), nil
		}
		if !errors.Is(err, ErrWrongSequence) {
			return false, err
		}
	}
}

func (h *holder) take(nonce string, revision uint64, after string) {
	h.nonce, h.epoch, h.revision, h.after = nonce, revision, revision, after
}

// arm reports whether a write of that time is young enough, and sets the alarm.
func (h *holder) arm(sent time.Time) bool {
	until := sent.Add(h.surely())
	if deadline.Over(until, time.Now()) {
		return false
	}
	h.expiry = deadline.NewAlarm(until, h.drop)
	return true
}

// drop ends the turn against the will of its holder.
func (h *holder) drop() {
	h.lost.Store(true)
	h.lose(ErrLockLost)
}

// watch tells of changes of the lock until ctx ends. Where there is no point in watching again it tells
// blind why: the lock would be looked at now and then, and nobody would know.
func (h *holder) watch(ctx context.Context, changed chan<- struct{}, blind chan<- error) {
	for ctx.Err() == nil {
		pause := h.TTL / 2
		for e, err := range h.keys.KeyWatch(ctx, h.Bucket, h.Key) {
			if err != nil && isFinal(err) {
				blind <- err
				return
			}
			if err != nil {
				break
			}
			pause = lockPause
			if !e.Synced && (e.Key != h.Key || !e.Deleted && parseLock(e.Value).State != lockFree) {
				continue
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		sleep(ctx, pause)
	}
}

// run calls f, and renews the lock meanwhile.
func (h *holder) run(ctx, held context.Context, f func(context.Context, Held) (bool, error)) (err error) {
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx)) // f may take its time after the end of ctx
	var renewal sync.WaitGroup
	renewal.Go(func() { h.renew(renewing) })
	clean, marked := false, false
	defer func() { // also when f ends its goroutine
		lost := h.lost.Load()
		stop()
		renewal.Wait()
		h.expiry.Stop()
		switch {
		case lost && (err == nil || errors.Is(err, context.Canceled)):
			err = ErrLockLost
		case lost && !errors.Is(err, ErrLockLost):
			err = fmt.Errorf("%w: %w", ErrLockLost, err)
		case !lost:
			if failed := h.release(ctx, clean, marked); err == nil {
				err = failed
			}
		}
	}()
	fresh := false
	if marked = h.after != afterNone; !marked {
		if fresh, err = h.mark(held); err != nil {
			return err
		}
		marked = true
	}
	clean, err = runHeld(held, Held{Epoch: h.epoch, Clean: h.after == afterClean || fresh}, f)
	return err
}

// runHeld calls f and makes an error of its panic.
func runHeld(ctx context.Context, h Held, f func(context.Context, Held) (bool, error)) (clean bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			clean, err = false, &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f(ctx, h)
}

// mark writes a permanent key, the only trace that remains of a lock that expired. It reports
// whether the lock is held for the first time. If the bucket lost its keys, another process may
// still hold the lock without having noticed the loss. That process stops within a TTL after the
// loss, so mark waits that long. It writes the key only after the wait, because a process that
// finds the key does not wait.
func (h *holder) mark(ctx context.Context) (fresh bool, err error) {
	waited := false
	for {
		entry, err := h.keys.KeyGet(ctx, h.Bucket, h.Key+lockMark)
		if err == nil && entry.Revision != 0 {
			return string(entry.Value) == h.nonce && !waited, nil
		}
		if err == nil && entry.Lost && !waited {
			waited = true
			if sleep(ctx, h.TTL); ctx.Err() == nil {
				continue
			}
			return false, context.Cause(ctx)
		}
		if err == nil {
			if _, err = h.keys.KeySet(ctx, h.Bucket, h.Key+lockMark, []byte(h.nonce), 0, 0); err == nil {
				return !waited, nil
			}
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if isFinal(err) {
			return false, err
		}
		sleep(ctx, lockPause)
	}
}

// renew keeps the lock until ctx ends or it is lost.
func (h *holder) renew(ctx context.Context) {
	for wait := h.TTL / 3; !h.lost.Load(); {
		if sleep(ctx, wait); ctx.Err() != nil {
			return
		}
		wait = h.renewOnce(ctx)
	}
}

// renewOnce renews the lock, if it can, and returns when to do so next.
func (h *holder) renewOnce(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, h.TTL/6) // several fit into the time that is left
	defer cancel()
	sent := time.Now()
	if h.unsure.IsZero() {
		h.unsure = sent
	}
	revision, err := h.write(ctx, h.revision, lockValue{State: lockHeld, After: h.after}, h.TTL)
	switch {
	case err == nil:
		h.renewed(revision, sent)
		return h.TTL/3 - time.Since(sent)
	case !errors.Is(err, ErrWrongSequence):
		return lockPause
	}
	entry, err := h.keys.KeyGet(ctx, h.Bucket, h.Key)
	switch {
	case err != nil:
		return lockPause
	case entry.Revision != 0 && parseLock(entry.Value).Nonce == h.nonce:
		if entry.Revision > h.revision { // a renewal whose answer was lost
			h.renewed(entry.Revision, h.unsure)
		}
		return lockPause
	}
	h.drop()
	return 0
}

// renewed counts a renewal that was sent at that time or later.
func (h *holder) renewed(revision uint64, sent time.Time) {
	h.revision, h.unsure = revision, time.Time{}
	h.expiry.Move(sent.Add(h.surely()))
}

// release lets go of the lock. Where the lock was not marked there must be no
// value, since one says that it was.
func (h *holder) release(ctx context.Context, clean, marked bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(h.TTL, maxLockRelease))
	defer cancel()
	for {
		var err error
		if marked {
			_, err = h.write(ctx, h.revision, lockValue{State: lockFree, Clean: clean}, 0)
		} else {
			err = h.keys.KeyDelete(ctx, h.Bucket, h.Key, h.revision)
		}
		var entry KeyEntry
		if errors.Is(err, ErrWrongSequence) {
			entry, err = h.keys.KeyGet(ctx, h.Bucket, h.Key)
			v := parseLock(entry.Value)
			if err == nil && (entry.Revision == 0 || v.Nonce != h.nonce || v.State == lockFree) {
				return nil // expired, somebody else's, or released without our knowing
			}
			h.revision = cmp.Or(entry.Revision, h.revision) // a renewal whose answer was lost
		}
		switch {
		case err == nil && entry.Revision == 0:
			return nil
		case err == nil: // once more
		case isFinal(err) || ctx.Err() != nil:
			return fmt.Errorf("release, which its TTL does now: %w", err)
		default:
			sleep(ctx, lockPause)
		}
	}
}

// undo releases what an attempt may have taken without our knowing.
func (h *holder) undo(ctx context.Context) {
	if len(h.tries) == 0 {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	entry, err := h.keys.KeyGet(bounded, h.Bucket, h.Key)
	if err != nil {
		return // it expires
	}
	v := parseLock(entry.Value)
	if _, mine := h.tries[v.Nonce]; mine && v.State == lockHeld {
		h.take(v.Nonce, entry.Revision, v.After)
		_ = h.release(bounded, v.After == afterClean, v.After != afterNone) // it expires otherwise
	}
}

// write stores a value of this holder. All values of a turn have the same length, so that a
// renewal fits into a full bucket.
func (h *holder) write(ctx context.Context, revision uint64, v lockValue, ttl time.Duration) (uint64, error) {
	v.Owner, v.Nonce, v.Since = h.Owner, h.nonce, time.Now().UTC().Truncate(time.Second)
	text, err := json.Marshal(v)
	if err != nil {
		return 0, err
	}
	return h.keys.KeySet(ctx, h.Bucket, h.Key, text, revision, ttl)
}

// parseLock parses a value. A value that no Lock wrote has no owner, and is not free either.
func parseLock(text []byte) lockValue {
	var v lockValue
	if json.Unmarshal(text, &v) != nil {
		return lockValue{}
	}
	return v
}

// sleep waits, but not longer than ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
