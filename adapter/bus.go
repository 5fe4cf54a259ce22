package adapter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/link"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// API levels of the server, by the feature they brought.
const (
	levelMinimum = 1 // 2.11: per-message TTL, consumer pause, batched direct get
	levelBatches = 2 // 2.12: atomic batches, message schedules
)

// lateFlush is how long Close still waits for the server to take in what was sent, when
// its context is over.
const lateFlush = 2 * time.Second

// Bus is a jetbus.Backend on JetStream. Open makes one; it is safe for concurrent use.
type Bus struct {
	cfg   Config
	nc    *nats.Conn
	js    *patient
	api   string // prefix of API subjects, with the dot
	level int    // the server's API level
	began time.Time
	link  *link.Link
	mux   *mux

	narrow      atomic.Bool   // the log has been told that streams could not be widened
	connections atomic.Uint64 // how many there have been; what was asked on an earlier one gets no answer
	settled     sync.Map      // ackTrial of durables whose events Receive hands out, by ackSubjects
	reached     sync.Map      // buckets of another domain that were seen to be there

	life  context.Context         //nolint:containedctx // canceled by Close; ends what would go on for ever
	die   context.CancelCauseFunc // of life
	ended chan struct{}           // closed at the end of Close

	mu       sync.Mutex
	closing  bool // no new subscriptions; what runs may still publish and settle
	closed   bool // nothing any more
	kept     int  // the bus's own streams exist, and have that many replicas if they can; 0: that is not known
	replicas int  // of what the bus keeps, see needReplicas; 0: nobody has asked yet
	watching bool // watchAdvisories was called
	topics   map[string]*topic
	members  map[member]struct{} // running subscriptions
	held     map[receiptsKey]*receipts
	groups   map[groupKey]*knownGroup
	swept    time.Time      // when groups lost those that are old
	retired  sync.WaitGroup // what pruneReceipts has dropped
	survived survived
	records  breaker // of the attempts
	alone    alone   // suspects run one at a time
	calls    calls   // under way; begun under mu while not closed
	present  present // of the durables
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
	b := &Bus{
		cfg: cfg, nc: nc, api: "$JS.API.", began: time.Now(), topics: map[string]*topic{},
		members: map[member]struct{}{}, held: map[receiptsKey]*receipts{}, groups: map[groupKey]*knownGroup{}, ended: make(chan struct{}),
	}
	b.life, b.die = context.WithCancelCause(context.WithoutCancel(ctx))
	var js jetstream.JetStream
	if cfg.Domain != "" {
		b.api = "$JS." + cfg.Domain + ".API."
		js, err = jetstream.NewWithDomain(nc, cfg.Domain)
	} else {
		js, err = jetstream.New(nc)
	}
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	b.js = &patient{js, cfg.Timeout}
	b.link = link.New(nc)
	b.connections.Store(1)
	b.link.Watch(func() { b.connections.Add(1) }) // until the link stops
	if err := b.probe(ctx); err != nil {
		b.link.Stop()
		return nil, err
	}
	if b.mux, err = newMux(nc); err != nil {
		b.link.Stop()
		return nil, b.translate("open", "", err)
	}
	return b, nil
}

// probe reads the server's API level.
func (b *Bus) probe(ctx context.Context) error {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	if _, err := b.link.Wait(ctx); err != nil {
		return fmt.Errorf("open: %w: %w", jetbus.ErrUnavailable, err)
	}
	info, err := ask(ctx, b, b.api+"INFO", b.js.AccountInfo)
	if err != nil {
		return b.translate("open", b.api+"INFO", err)
	}
	b.level = info.API.Level
	if b.level < levelMinimum {
		return fmt.Errorf("open: %w: server %s is too old: JetBus needs 2.11 or newer", jetbus.ErrUnavailable, b.nc.ConnectedServerVersion())
	}
	return nil
}

// bound gives ctx a deadline if it has none.
func (b *Bus) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, b.cfg.Timeout)
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

// guard makes a context that ends when the server refuses the request: what is
// refused is not answered, and would be waited for in vain.
func (b *Bus) guard(ctx context.Context, request string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() { // ends with the request, which calls release
		defer close(done)
		tick := time.NewTicker(denialCheck)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if b.denied(request) {
					cancel(jetbus.ErrDenied)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// needs refuses a feature that the server does not have.
func (b *Bus) needs(level int, feature, since string) error {
	if b.level >= level {
		return nil
	}
	return fmt.Errorf("%w: %s needs server %s or newer, connected is %s", jetbus.ErrUnsupported, feature, since, b.nc.ConnectedServerVersion())
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
// handlers may still publish and settle; then it ends Receive, Read and JoinPartitions
// calls with [jetbus.ErrClosed], waits for other calls under way, gives back what
// Receive handed out and nobody settled, waits until the server has what was sent,
// where there is a connection, and lets go of it without closing it. When ctx ends
// while it waits, handlers are canceled, calls that wait for the server fail with
// [jetbus.ErrClosed], and the error says so. A ctx that was canceled before, as that of
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
	b.mu.Unlock()
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
	b.giveBackReceipts(ctx)
	b.retired.Wait()
	errs = append(errs, b.flush(ctx))
	b.mux.stop()
	b.link.Stop()
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

// flush makes sure that what was sent without an answer, acknowledgements above
// all, has reached the server. It is not worth an error that there is no server: what
// it did not take in is delivered again.
func (b *Bus) flush(ctx context.Context) error {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(b.cfg.Timeout, lateFlush))
		defer cancel()
	}
	ctx, cancel := b.bound(ctx)
	defer cancel()
	if err := b.link.Flush(ctx); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}
