package adapter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// Bus is a jetbus.Backend on JetStream. Open makes one; it is safe for concurrent use.
type Bus struct {
	*streams // and what that is made of, down to the server: what holds for all processes

	settled sync.Map // ackTrial of durables whose events Receive hands out, by ackSubjects

	life  context.Context         //nolint:containedctx // canceled by Close; ends everything that would not end otherwise
	die   context.CancelCauseFunc // of life
	ended chan struct{}           // closed at the end of Close

	mu       sync.Mutex
	closing  bool                // no new subscriptions; running ones may still publish and settle
	closed   bool                // no calls are accepted
	watching bool                // watchAdvisories was called
	waiting  bool                // watchLater will call it
	sweeping bool                // sweepLater was called
	blind    bool                // the log has reported that watching failed
	members  map[member]struct{} // running subscriptions
	held     map[handedOutKey]*handedOut
	groups   map[groupKey]*knownGroup
	swept    time.Time               // when old ones were last removed from groups
	retired  sync.WaitGroup          // what pruneHandedOut has dropped
	later    sync.WaitGroup          // goroutines that watch advisories later, and sweeps; added to while not closing
	alone    alone                   // suspects run one at a time
	calls    calls                   // under way; begun under mu while not closed
	inboxes  int                     // of Receive calls, that are open
	emptied  chan struct{}           // closed when there is none of them; set by Close
	late     map[*handedOut][]*lease // what came to one while closed
}

var _ jetbus.Backend = (*Bus)(nil)

// member is what Close stops.
type member interface {
	Stop(ctx context.Context) error
}

// Open makes a bus of a connection. It asks the server for its version and
// limits, once. The connection remains the caller's: Close leaves it open. Until
// then the bus listens in on the connection's error handler, which is called as before. The
// error wraps [jetbus.ErrUnavailable] where the server does not answer, has no
// JetStream or is older than 2.11, [jetbus.ErrDenied], [jetbus.ErrClosed] or
// [jetbus.ErrInvalidOption].
func Open(ctx context.Context, nc *nats.Conn, cfg Config) (*Bus, error) {
	if nc == nil {
		return nil, fmt.Errorf("open: %w: no connection", jetbus.ErrInvalidOption)
	}
	cfg, err := cfg.normalize()
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	if nc.IsClosed() {
		return nil, fmt.Errorf("open: %w", jetbus.ErrClosed)
	}
	srv, err := newServer(ctx, nc, cfg)
	if err != nil {
		return nil, err
	}
	b := &Bus{
		streams: &streams{durables: newDurables(srv)},
		members: map[member]struct{}{}, held: map[handedOutKey]*handedOut{}, late: map[*handedOut][]*lease{},
		groups: map[groupKey]*knownGroup{}, ended: make(chan struct{}),
	}
	b.onKept = b.watchAdvisories
	b.life, b.die = context.WithCancelCause(context.WithoutCancel(ctx))
	return b, nil
}

// enter begins a call: it fails when the bus is closed or ctx is over. The
// caller must call b.calls.end.
func (b *Bus) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.link.IsClosed() {
		return jetbus.ErrClosed
	}
	b.calls.begin()
	return nil
}

// enterNew is enter for calls that begin something that lasts.
func (b *Bus) enterNew(ctx context.Context) error {
	if err := b.enter(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		b.calls.end()
		return jetbus.ErrClosed
	}
	return nil
}

// tie makes a context that ends with the bus, too.
func (b *Bus) tie(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(b.life, func() { cancel(jetbus.ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// tied runs f with a context that ends with the bus, too. What is asked then says no more than
// that it was canceled: tied says why.
func (b *Bus) tied(ctx context.Context, f func(context.Context) error) error {
	ctx, untie := b.tie(ctx)
	defer untie()
	err := f(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, jetbus.ErrClosed) {
		return cause
	}
	return err
}

// Health reports whether the bus can work: the connection is up and JetStream
// answers within ctx. The error wraps [jetbus.ErrClosed] or [jetbus.ErrUnavailable].
func (b *Bus) Health(ctx context.Context) error {
	if err := b.enter(ctx); err != nil {
		return fmt.Errorf("health: %w", err)
	}
	defer b.calls.end()
	if !b.link.IsUp() {
		return fmt.Errorf("health: %w: not connected", jetbus.ErrUnavailable)
	}
	ctx, cancel := b.bound(ctx)
	defer cancel()
	if _, err := b.js.AccountInfo(ctx); err != nil {
		return b.translate("health", b.api+"INFO", err)
	}
	return nil
}

// Close stops all subscriptions of this bus as their Stop does, while their
// handlers may still publish and settle; then it ends Subscribe, Receive, Read and JoinPartitions
// calls with [jetbus.ErrClosed], waits for other calls under way, gives back what
// Receive handed out and nobody settled, waits until the server has what was sent,
// where there is a connection, and lets go of it without closing it. When ctx ends
// while it waits, handlers are canceled, and calls that wait for the server fail with
// [jetbus.ErrClosed]. That alone is no error, where all handlers obey: the error is about those
// that do not and are left behind, about calls that were made to fail, and about a server that
// does not say that it has what was sent. A ctx that was canceled before, as that of
// signal.NotifyContext in a deferred Close, shortens nothing: handlers have their
// ShutdownTimeout, calls Config.Timeout. Its deadline holds all the same. Nothing left to do is no error. Closing twice is fine.
func (b *Bus) Close(ctx context.Context) error {
	b.mu.Lock()
	first := !b.closing
	b.closing = true
	members := make([]member, 0, len(b.members))
	for m := range b.members {
		members = append(members, m)
	}
	b.mu.Unlock() // who enlists after this is told that the bus closes; who did before is among members
	if !first {
		return b.awaitEnd(ctx)
	}
	defer close(b.ended)
	late := ctx.Err() != nil
	ctx, release := shutdown.Context(ctx, 0)
	defer release()
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { errs[i] = m.Stop(ctx) })
	}
	wg.Wait()
	b.die(jetbus.ErrClosed)
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	if late { // calls may have any deadline
		var cancel context.CancelFunc
		ctx, cancel = b.bound(ctx)
		defer cancel()
	}
	errs = append(errs, b.awaitCalls(ctx))
	b.later.Wait() // it waits for nothing else now
	err := b.awaitInboxes(ctx)
	b.giveBackHandedOut(ctx)
	b.retired.Wait()
	if err == nil { // else it is as silent as it was
		err = b.flush(ctx)
	}
	errs = append(errs, err)
	b.letGo()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// awaitEnd waits for the end that another Close brings about.
func (b *Bus) awaitEnd(ctx context.Context) error {
	select {
	case <-b.ended:
		return nil
	default:
	}
	select {
	case <-b.ended:
		return nil
	case <-ctx.Done(): // that of a handler, perhaps, for which the other one waits
		return fmt.Errorf("close: %w", ctx.Err())
	}
}

// awaitCalls waits for the calls under way. When ctx ends, they are made to fail.
func (b *Bus) awaitCalls(ctx context.Context) error {
	done := make(chan struct{})
	go func() { // ends with the last call, each of which is bounded
		b.calls.wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	if b.calls.none() {
		return nil
	}
	b.link.GiveUp()
	<-done
	return context.Cause(ctx)
}
