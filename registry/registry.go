package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/link"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// Registry is a schema registry. Open makes one; it is safe for concurrent use.
// Its calls wait for a lost connection within their context, or Config.Timeout.
type Registry struct {
	cfg  Config
	nc   *nats.Conn
	js   jetstream.JetStream
	api  string // prefix of API subjects, with the dot
	link *link.Link
	gate *gate // bounds the expensive validations of the registry's users

	life  context.Context         //nolint:containedctx // canceled by Close; ends the calls and what follows the bucket
	die   context.CancelCauseFunc // of life
	ended chan struct{}           // closed at the end of Close

	now      atomic.Pointer[snapshot]
	rewatch  chan struct{}         // cap 1: the watcher is to be made anew
	catching atomic.Bool           // it is new, and has not brought all
	failed   atomic.Pointer[error] // why the last watcher ended
	follows  sync.WaitGroup
	writing  chan struct{} // cap 1: held by the one who decides on a write, so that a process does not race with itself

	mu      sync.Mutex
	closed  bool
	changed chan struct{}  // closed when there is another snapshot; then a new one is made
	calls   sync.WaitGroup // calls under way; Add under mu while not closed
}

// Open opens the registry of a bucket, which it makes if there is none. It returns
// when it has read all that is there. The connection remains the caller's: Close
// leaves it open. Also who only reads has to be allowed STREAM.MSG.GET of the stream
// KV_<bucket>, beside STREAM.INFO and CONSUMER.CREATE: its leader is asked for what the
// cache must have.
//
// The error wraps jetbus.ErrUnavailable where the server does not answer or has no
// JetStream, jetbus.ErrConflict (see jetbus.ConflictError) where the bucket has
// another format or settings that would lose versions, jetbus.ErrDenied,
// jetbus.ErrClosed or jetbus.ErrInvalidOption.
func Open(ctx context.Context, nc *nats.Conn, cfg Config) (*Registry, error) {
	if nc == nil {
		return nil, fmt.Errorf("open registry: %w: no connection", jetbus.ErrInvalidOption)
	}
	cfg, err := cfg.normalize()
	if err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	if nc.IsClosed() {
		return nil, fmt.Errorf("open registry: %w", jetbus.ErrClosed)
	}
	r := &Registry{
		cfg: cfg, nc: nc, api: "$JS.API.", gate: newGate(), ended: make(chan struct{}),
		rewatch: make(chan struct{}, 1), changed: make(chan struct{}), writing: make(chan struct{}, 1),
	}
	r.now.Store(emptySnapshot())
	if cfg.Domain != "" {
		r.api = "$JS." + cfg.Domain + ".API."
		r.js, err = jetstream.NewWithDomain(nc, cfg.Domain)
	} else {
		r.js, err = jetstream.New(nc)
	}
	if err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	r.life, r.die = context.WithCancelCause(context.WithoutCancel(ctx))
	r.link = link.New(nc)
	r.link.Watch(r.remake)
	if err := r.begin(ctx); err != nil {
		r.die(jetbus.ErrClosed)
		r.follows.Wait()
		r.link.Stop()
		return nil, fmt.Errorf("open registry %s: %w", cfg.Bucket, err)
	}
	return r, nil
}

// begin makes sure of the bucket and starts to follow it.
func (r *Registry) begin(ctx context.Context) error {
	ctx, cancel := r.bound(ctx)
	defer cancel()
	kv, err := r.openBucket(ctx)
	if err != nil {
		return err
	}
	first := make(chan error, 1)
	r.follows.Go(func() { r.follow(kv, first) }) //nolint:contextcheck // it lives as long as the registry
	select {
	case err := <-first:
		return err
	case <-ctx.Done():
		err := context.Cause(ctx)
		if why := r.failed.Load(); why != nil {
			err = errors.Join(err, *why)
		}
		return fmt.Errorf("%w: the bucket could not be read in time: %w", jetbus.ErrUnavailable, err)
	case <-r.link.Closed():
		return jetbus.ErrClosed
	}
}

// Close ends the registry: calls under way fail with jetbus.ErrClosed. It may be
// called again and concurrently; each waits for the end, within ctx unless that was canceled
// before: at once where the broker answers, and up to 5 seconds where it does not. The
// connection stays open.
func (r *Registry) Close(ctx context.Context) error {
	ctx, release := shutdown.Context(ctx, 0)
	defer release()
	r.mu.Lock()
	first := !r.closed
	r.closed = true
	r.mu.Unlock()
	if first {
		r.die(jetbus.ErrClosed)
		go func() { // ends when everything of the registry has
			defer close(r.ended)
			r.calls.Wait()
			r.follows.Wait()
			r.link.Stop()
		}()
	}
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close registry %s: %w", r.cfg.Bucket, context.Cause(ctx))
	}
}

// bound gives ctx a deadline if it has none.
func (r *Registry) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, r.cfg.Timeout)
}

// enter begins a call: it fails when the registry is closed or ctx is over. The
// context ends with the registry, too; leave ends the call.
func (r *Registry) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.link.IsClosed() {
		return nil, nil, jetbus.ErrClosed
	}
	r.calls.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.life, func() { cancel(jetbus.ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		r.calls.Done()
	}, nil
}

// read begins and ends a call that reads the cache.
func (r *Registry) read(ctx context.Context) (*snapshot, error) {
	_, leave, err := r.enter(ctx)
	if err != nil {
		return nil, err
	}
	leave()
	return r.now.Load(), nil
}

// readTopic is read for what is said of a topic. op is for the error.
func (r *Registry) readTopic(ctx context.Context, op, topic string) (*topicState, *snapshot, error) {
	if err := jetbus.ValidTopic(topic); err != nil {
		return nil, nil, fmt.Errorf("%s %.40q: %w", op, topic, err)
	}
	s, err := r.read(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("%s %s: %w", op, topic, err)
	}
	return s.topic(topic), s, nil
}
