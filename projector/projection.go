package projector

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// Backend is what a projection needs of a bus; every [jetbus.Backend] has it.
type Backend interface {
	jetbus.Subscriber
	jetbus.Reader
	jetbus.Burier
	jetbus.Keys // of the lock of an exclusive projection, and of a rebuild
	jetbus.CheckpointBus
	ScanLatest(ctx context.Context, topic string, q jetbus.LatestQuery, each func(jetbus.Event) error) (asOf uint64, err error)
	Groups(ctx context.Context, topic string) ([]jetbus.GroupInfo, error)
}

// Projection is one replica of a projection that runs. [Start] makes it. Its methods
// may be called at any time and from any goroutine.
type Projection struct {
	b      Backend
	o      Options
	source Source
	writer writer
	count  counters
	queue  queue
	sub    jetbus.Subscription // nil until joined; the loop's alone
	joined atomic.Bool         // there is a group

	soft context.Context         //nolint:containedctx // canceled when it is to stop: nothing is begun any more
	halt context.CancelCauseFunc // of soft
	hard context.Context         //nolint:containedctx // canceled when Stop has waited long enough: nothing goes on
	kill context.CancelCauseFunc // of hard, and so of soft
	done chan struct{}           // closed when nothing runs any more

	mu      sync.Mutex
	err     error // why it ended
	stopErr error // of the subscription
}

// errStopped is the cause of what is canceled because Stop has waited long enough.
var errStopped = fmt.Errorf("projection: %w", jetbus.ErrStopped)

// Start begins to project. It checks what can be known at once: the options, that
// the topic exists ([jetbus.ErrNoTopic]), and what the sink says to its Open
// ([ErrOwned], [ErrNewStream] and errors of its own). After an error nothing runs.
//
// What is left takes its time and may fail and be tried again: a sink that has not
// seen the topic is filled with what it holds, and then follows it. Canceling ctx is
// a graceful Stop. The sink must not be used for anything else until the projection
// has ended, and remains the caller's.
func Start(ctx context.Context, b Backend, sink Sink, o Options) (*Projection, error) {
	o, err := o.normalize()
	if err != nil {
		return nil, fmt.Errorf("start projection: %w", err)
	}
	p := &Projection{b: b, o: o, done: make(chan struct{})}
	p.queue.init(p.o.linger())
	if err := p.start(ctx, sink); err != nil {
		return nil, fmt.Errorf("start projection %s of %s: %w", o.Name, o.Topic, err)
	}
	return p, nil
}

func (p *Projection) start(ctx context.Context, sink Sink) error {
	if p.b == nil || sink == nil {
		return fmt.Errorf("%w: no bus or no sink", jetbus.ErrInvalidOption)
	}
	source, err := describe(ctx, p.b, &p.o)
	if err != nil {
		return err
	}
	position, err := openVerified(ctx, p.b, sink, source)
	if errors.Is(err, ErrNewStream) && p.o.OnNewStream == RebuildOnNewStream {
		position, err = p.rebuild(ctx, sink, source, err)
	}
	if err != nil {
		return err
	}
	p.source = source
	p.writer = writer{b: p.b, sink: sink, source: source, o: &p.o, count: &p.count, last: position.checkpoint()}
	p.count.upTo.Store(position.Seq)
	hard, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	p.hard, p.kill = hard, kill
	p.soft, p.halt = context.WithCancelCause(hard)
	if position.Known && !p.o.Exclusive {
		if err := p.join(hard, position.Seq); err != nil {
			p.kill(nil)
			return err
		}
	}
	unwatch := context.AfterFunc(ctx, p.stop)
	go func() { // Stop waits for it
		err := errGoexit
		defer func() {
			unwatch()
			p.finish(err)
		}()
		err = p.run(hard)
	}()
	return nil
}

// describe finds the topic, and the snapshot that the sink may be filled from.
func describe(ctx context.Context, b Backend, o *Options) (Source, error) {
	info, err := b.TopicInfo(ctx, o.Topic)
	if err != nil {
		return Source{}, err
	}
	if of := info.Config.SnapshotOf; of != "" {
		return Source{}, fmt.Errorf("topic %s: %w: it is a snapshot, which has no groups: project %s, with From %s", o.Topic, jetbus.ErrUnsupported, of, o.Topic)
	}
	if o.From != "" {
		from, err := b.TopicInfo(ctx, o.From)
		if err != nil {
			return Source{}, fmt.Errorf("option From: %w", err)
		}
		if from.Config.SnapshotOf != o.Topic {
			return Source{}, &jetbus.RemedyError{Err: fmt.Errorf("%w: From is %s, which is no snapshot of %s", jetbus.ErrInvalidOption, o.From, o.Topic), See: "TopicConfig.SnapshotOf"}
		}
	}
	return Source{
		Projection: o.Name, Topic: o.Topic, Stream: info.Stream, Created: info.Created,
		Exclusive: o.Exclusive, Every: o.Every, Versioned: o.VersionOf != nil,
	}, nil
}

// open is Sink.Open; a panic becomes an error.
func open(ctx context.Context, sink Sink, s Source) (Position, error) {
	at, err := askPosition(func() (Position, error) { return sink.Open(ctx, s) })
	if err != nil {
		return at, fmt.Errorf("open the sink: %w", err)
	}
	return at, nil
}

// openVerified is open, but returns ErrNewStream if the topic no longer has the history from
// which the sink was filled.
func openVerified(ctx context.Context, b Backend, sink Sink, s Source) (Position, error) {
	at, err := open(ctx, sink, s)
	if err == nil {
		err = asNewStream(at.checkpoint().Verify(ctx, b, s.Topic))
	}
	return at, err
}

// askPosition asks a sink for its position; a panic becomes an error.
func askPosition(call func() (Position, error)) (at Position, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicked{&jetbus.PanicError{Value: r, Stack: debug.Stack()}}
		}
	}()
	return call()
}

// rebuild rebuilds a sink that was filled from a stream that no longer exists, unless another replica has done so. If
// it loses the lock of the rebuild, for example because the broker was restored again, it starts over.
func (p *Projection) rebuild(ctx context.Context, sink Sink, source Source, why error) (Position, error) {
	rebuilder, ok := sink.(Rebuilder)
	if !ok {
		return Position{}, fmt.Errorf("%w; and OnNewStream is %s, but the sink cannot be rebuilt", why, p.o.OnNewStream)
	}
	needed := func(ctx context.Context) (bool, error) { // another replica may have done it
		_, err := openVerified(ctx, p.b, sink, source)
		if errors.Is(err, ErrNewStream) {
			return true, nil
		}
		return false, err
	}
	for {
		_, err := rebuildIf(ctx, p.b, rebuilder, p.o, RebuildOptions{}, needed)
		switch {
		case err == nil:
			return open(ctx, sink, source)
		case !errors.Is(err, jetbus.ErrLockLost) || ctx.Err() != nil:
			return Position{}, err
		}
	}
}

// finish notes why everything has ended.
func (p *Projection) finish(err error) {
	if err != nil && (p.soft.Err() == nil || !errors.Is(err, errStopped)) {
		p.mu.Lock()
		p.err = fmt.Errorf("projection %s of %s: %w", p.o.Name, p.o.Topic, err)
		p.mu.Unlock()
	}
	p.kill(nil)
	p.count.enter(Ended)
	close(p.done)
}

// errGoexit is for a function of the options that ends its goroutine, as t.FailNow does.
var errGoexit = errors.New("a function of the options called runtime.Goexit")

// run does all the work, until it is to stop or cannot go on. What is in hand when it
// is to stop goes on as long as ctx.
func (p *Projection) run(ctx context.Context) error {
	if p.o.Exclusive {
		soft, cancel := p.untilStopped(ctx)
		defer cancel()
		return p.runExclusive(soft)
	}
	if p.sub == nil {
		if err := p.begin(ctx); err != nil {
			return err
		}
	}
	p.count.enter(Following)
	return p.follow(ctx)
}

// begin fills the sink and joins the group.
func (p *Projection) begin(hard context.Context) error {
	ctx, cancel := p.untilStopped(hard)
	defer cancel()
	p.count.enter(Filling)
	asOf, err := p.writer.fill(ctx)
	if err != nil {
		return err
	}
	return p.writer.insist(ctx, func() error { return p.join(hard, asOf) })
}

// untilStopped makes a context that ends when the projection is to stop, too.
func (p *Projection) untilStopped(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	unwatch := context.AfterFunc(p.soft, func() { cancel(context.Cause(p.soft)) })
	return ctx, func() {
		unwatch()
		cancel(nil)
	}
}

// Stop ends the replica: no more events are taken, a batch in hand is written or
// given back to the other replicas, and nothing of it runs any more when Stop
// returns. When ShutdownTimeout has passed or ctx ends, a batch that is still being
// written is canceled; a ctx that was canceled before the call shortens nothing. It may be
// called twice and concurrently. The error is that of the subscription's Stop.
func (p *Projection) Stop(ctx context.Context) error {
	p.stop()
	ctx, release := shutdown.Context(ctx, 0)
	defer release()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill(errStopped)
		<-p.done
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopErr != nil {
		return fmt.Errorf("stop projection %s of %s: %w", p.o.Name, p.o.Topic, p.stopErr)
	}
	return nil
}

// stop begins the end: nothing is begun any more, and what is in hand has its time.
func (p *Projection) stop() {
	p.halt(errStopped)
	time.AfterFunc(p.o.ShutdownTimeout, func() { p.kill(errStopped) }) // of no effect when all has ended
}

// Done is closed when the replica has ended, for whatever reason.
func (p *Projection) Done() <-chan struct{} { return p.done }

// Err returns why the projection ended: nil while it runs and after Stop. It is
// [ErrNewStream] if the topic was deleted and declared again, or restored to an earlier
// state, and [jetbus.ErrNoTopic] or [jetbus.ErrNoGroup] if the topic or the group was
// deleted.
func (p *Projection) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
