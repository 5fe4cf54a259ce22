package registry

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/link"
)

// How long the watcher may be behind what is known to be stored, or silent, before it is
// made anew, and how long to wait after one could not be made.
const (
	lagLimit      = time.Second
	stallLimit    = 5 * time.Second // of a watcher that has not brought all it began with
	rewatchWait   = 20 * time.Millisecond
	rewatchLimit  = time.Second
	batchedAtOnce = 256 // records taken into one snapshot
)

// Why a watcher is made anew.
var (
	errEnded  = errors.New("it ended by itself")
	errBehind = errors.New("it did not bring what the bucket's leader has")
)

// doubt asks for another watcher, unless there is a new one already that has not brought
// all: where it takes long it would never come to its end.
func (r *Registry) doubt() {
	if !r.catching.Load() {
		r.remake()
	}
}

// remake asks for another watcher. It does not wait.
func (r *Registry) remake() {
	select {
	case r.rewatch <- struct{}{}:
	default: // is asked for already
	}
}

// follow keeps the cache as the bucket is, until the registry is closed. A watcher
// is made anew whenever there is doubt: after a reconnect, when it ends, and when
// it is behind. Each begins with all that is there, which replaces the cache: what
// a server has lost is not kept here. first gets nil when there is a cache, or the
// refusal of the server without which there would be one.
func (r *Registry) follow(kv jetstream.KeyValue, first chan<- error) {
	wait := rewatchWait
	tell := func(err error) {
		select {
		case first <- err:
		default: // nobody waits any more
		}
	}
	for r.life.Err() == nil {
		began := time.Now()
		err := r.watch(kv, func() { tell(nil) })
		if r.life.Err() != nil || r.link.IsClosed() {
			return
		}
		if time.Since(began) > rewatchLimit && !errors.Is(err, errBehind) {
			wait = rewatchWait
		}
		if errors.Is(err, jetbus.ErrDenied) {
			tell(err)
		}
		if err != nil {
			r.failed.Store(&err)
			r.cfg.Logger.Warn("the registry's watcher ended and is made anew", slog.String("bucket", r.cfg.Bucket), slog.Any("error", err))
			if !pause(r.life, wait) {
				return
			}
			wait = min(2*wait, rewatchLimit)
		}
	}
}

// watch makes one watcher and takes in what it brings, until it ends or another
// one is asked for. Its consumer may begin at a replica that is behind the bucket's
// leader: the cache stays as it was until the watcher has brought all that the leader
// had before. synced is called when it has.
func (r *Registry) watch(kv jetstream.KeyValue, synced func()) error {
	if _, err := r.link.Wait(r.life); err != nil {
		return err
	}
	r.catching.Store(true)
	defer r.catching.Store(false)
	asking, enough := context.WithTimeout(r.life, min(stallLimit, r.cfg.Timeout/2))
	last, err := r.lastOf(asking, r.subject(">"))
	enough()
	if err != nil {
		return err
	}
	select { // what is asked for is what begins now
	case <-r.rewatch:
	default:
	}
	ctx, cancel := context.WithCancel(r.life)
	defer cancel()
	w, err := r.watcher(ctx, cancel, kv)
	if err != nil {
		return err
	}
	defer link.EndWatch(cancel, w)
	s, err := r.catchUp(w, last)
	if s == nil {
		return err
	}
	s.adopt(r.now.Load())
	r.publish(s)
	r.catching.Store(false)
	synced()
	for next := s.change(r.warn); ; next = r.now.Load().change(r.warn) {
		select {
		case <-r.life.Done():
			return nil
		case <-r.rewatch:
			return nil
		case update, open := <-w.Updates():
			if !open {
				return errEnded
			}
			if update != nil {
				next.apply(recordOf(update))
			}
			r.drain(w, next)
			r.publish(next.done())
		}
	}
}

// watcher starts to watch the bucket; cancel ends ctx.
func (r *Registry) watcher(ctx context.Context, cancel context.CancelFunc, kv jetstream.KeyValue) (jetstream.KeyWatcher, error) {
	api := r.api + "CONSUMER.CREATE." + r.stream() + "."
	var w jetstream.KeyWatcher
	err := r.try(ctx, api, func(tryCtx context.Context) (err error) {
		stop := context.AfterFunc(tryCtx, cancel)
		defer stop()
		w, err = kv.WatchAll(ctx)
		return err
	})
	return w, r.translate(api+">", err)
}

// catchUp takes in what a watcher begins with, and what it brings until it has last.
// There is no snapshot where the watcher ended, or another one is asked for.
func (r *Registry) catchUp(w jetstream.KeyWatcher, last uint64) (*snapshot, error) {
	next := emptySnapshot().change(r.warn)
	limit := stallLimit
	stalled := time.NewTimer(limit)
	defer stalled.Stop()
	for initial := true; initial || next.seq < last; {
		select {
		case <-r.life.Done():
			return nil, nil
		case <-r.rewatch:
			return nil, nil
		case <-stalled.C:
			return nil, errBehind
		case update, open := <-w.Updates():
			switch {
			case !open:
				return nil, errEnded
			case update != nil:
				next.apply(recordOf(update))
			default: // that was all it found
				initial, limit = false, lagLimit
			}
			stalled.Reset(limit)
		}
	}
	return next.done(), nil
}

// drain takes in what is there already.
func (r *Registry) drain(w jetstream.KeyWatcher, next *builder) {
	for range batchedAtOnce {
		select {
		case update, open := <-w.Updates():
			if !open {
				return // watch sees it next
			}
			if update != nil {
				next.apply(recordOf(update))
			}
		default:
			return
		}
	}
}

func recordOf(update jetstream.KeyValueEntry) record {
	return record{
		key: update.Key(), value: update.Value(), seq: update.Revision(),
		deleted: update.Operation() != jetstream.KeyValuePut,
	}
}

// publish makes a snapshot the present one.
func (r *Registry) publish(s *snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Store(s)
	close(r.changed)
	r.changed = make(chan struct{})
}

// reach waits until the cache has taken in a sequence, and returns it.
func (r *Registry) reach(ctx context.Context, seq uint64) (*snapshot, error) {
	return r.await(ctx, func(s *snapshot) bool { return s.seq >= seq })
}

// await waits until the cache is as it should be, and returns it.
func (r *Registry) await(ctx context.Context, holds func(*snapshot) bool) (*snapshot, error) {
	lag := time.NewTimer(lagLimit)
	defer lag.Stop()
	for {
		r.mu.Lock()
		s, changed := r.now.Load(), r.changed
		r.mu.Unlock()
		if holds(s) {
			return s, nil
		}
		select {
		case <-changed:
		case <-lag.C:
			r.doubt()
			lag.Reset(lagLimit)
		case <-ctx.Done():
			return nil, r.translate("the watcher of "+r.stream(), context.Cause(ctx))
		case <-r.link.Closed():
			return nil, jetbus.ErrClosed
		}
	}
}

func (r *Registry) warn(key string, err error) {
	r.cfg.Logger.Warn("a record of the registry cannot be read", slog.String("bucket", r.cfg.Bucket), slog.String("key", key), slog.Any("error", err))
}
