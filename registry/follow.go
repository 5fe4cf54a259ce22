package registry

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// How long the watcher may be behind what is known to be stored before it is made
// anew, and how long to wait after one could not be made.
const (
	lagLimit      = time.Second
	rewatchWait   = 20 * time.Millisecond
	rewatchLimit  = time.Second
	batchedAtOnce = 256 // records taken into one snapshot
)

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
// a server has lost is not kept here. synced is closed when the first one has that.
func (r *Registry) follow(kv jetstream.KeyValue, synced chan struct{}) {
	wait := rewatchWait
	once := sync.OnceFunc(func() { close(synced) })
	for r.life.Err() == nil {
		began := time.Now()
		err := r.watch(kv, once)
		if r.life.Err() != nil || r.link.IsClosed() {
			return
		}
		if time.Since(began) > rewatchLimit {
			wait = rewatchWait
		}
		if err != nil {
			r.cfg.Logger.Warn("the registry's watcher ended and is made anew", slog.String("bucket", r.cfg.Bucket), slog.Any("error", err))
			if !pause(r.life, wait) {
				return
			}
			wait = min(2*wait, rewatchLimit)
		}
	}
}

// watch makes one watcher and takes in what it brings, until it ends or another
// one is asked for.
func (r *Registry) watch(kv jetstream.KeyValue, synced func()) error {
	if _, err := r.link.Wait(r.life); err != nil {
		return err
	}
	select { // what is asked for is what begins now
	case <-r.rewatch:
	default:
	}
	ctx, cancel := context.WithCancel(r.life)
	defer cancel()
	api := r.api + "CONSUMER.CREATE." + r.stream()
	var w jetstream.KeyWatcher
	if err := r.try(ctx, api, func(tryCtx context.Context) (err error) {
		stop := context.AfterFunc(tryCtx, cancel)
		defer stop()
		w, err = kv.WatchAll(ctx)
		return err
	}); err != nil {
		if w != nil {
			end(w)
		}
		return r.translate(api, err)
	}
	defer end(w)
	next := emptySnapshot().change(r.warn)
	for initial := true; ; {
		select {
		case <-r.life.Done():
			return nil
		case <-r.rewatch:
			return nil
		case update, open := <-w.Updates():
			if !open {
				return errors.New("it ended by itself")
			}
			if update != nil {
				next.apply(recordOf(update))
				if initial {
					continue
				}
				r.drain(w, next)
			}
			s := next.done()
			if initial {
				initial = false
				s.adopt(r.now.Load())
			}
			r.publish(s)
			synced()
			next = s.change(r.warn)
		}
	}
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

// end stops a watcher and takes what it still has, since it would wait for that.
func end(w jetstream.KeyWatcher) {
	_ = w.Stop() // the connection may be gone
	for range w.Updates() {
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
	lag := time.NewTimer(lagLimit)
	defer lag.Stop()
	for {
		r.mu.Lock()
		s, changed := r.now.Load(), r.changed
		r.mu.Unlock()
		if s.seq >= seq {
			return s, nil
		}
		select {
		case <-changed:
		case <-lag.C:
			r.remake()
			lag.Reset(lagLimit)
		case <-ctx.Done():
			return nil, r.translate(r.stream(), context.Cause(ctx))
		case <-r.link.Closed():
			return nil, jetbus.ErrClosed
		}
	}
}

func (r *Registry) warn(key string, err error) {
	r.cfg.Logger.Warn("a record of the registry cannot be read", slog.String("bucket", r.cfg.Bucket), slog.String("key", key), slog.Any("error", err))
}
