package processes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// ackTimeout is how long the heartbeats of a projector that was killed are held
// back from the others, and with them the notice of silence.
const ackTimeout = 10 * time.Second

// Backend is what a [Projector] needs of a bus; every
// [jetbus.Backend] has it.
type Backend interface {
	jetbus.Publisher
	jetbus.Subscriber
	Read(ctx context.Context, topics []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error]
	LatestByKey(ctx context.Context, topic string, keys ...string) (map[string]jetbus.Event, error)
	ScanLatest(ctx context.Context, topic string, q jetbus.LatestQuery, each func(jetbus.Event) error) (asOf uint64, err error)
	EnsureTopic(ctx context.Context, c jetbus.TopicConfig) (jetbus.TopicInfo, error)
	TopicInfo(ctx context.Context, topic string) (jetbus.TopicInfo, error)
	Groups(ctx context.Context, topic string) ([]jetbus.GroupInfo, error)
}

// Options configure a [Projector]. The zero value is the documented default.
type Options struct {
	// Heartbeats is the topic of [Heartbeat] events. It is declared with defaults
	// if it does not exist. Default "heartbeat.received".
	Heartbeats string
	// States is the topic of [Process] events. It is declared with KeyInSubject if
	// it does not exist; one without KeyInSubject is refused. Default "process.state".
	States string
	// Group shares the heartbeats between projectors. A new group begins with the
	// oldest heartbeat. Default "process-projector".
	Group string
	// StaleAfter is how long a process may be silent. Default 15 seconds.
	StaleAfter time.Duration
	// Sweep is how often silence is looked for. Default 1 second.
	Sweep time.Duration
	// Forget is how long after its last heartbeat a stale process stays in
	// Processes and in memory; its state stays in the topic. Default 1 hour, at
	// least StaleAfter.
	Forget time.Duration
	// ShutdownTimeout is how long Stop lets a heartbeat in hand be finished.
	// Default 30 seconds.
	ShutdownTimeout time.Duration
	// Logger is told of heartbeats that name no process and of a broker that is
	// away. Default nil: nobody is told.
	Logger *slog.Logger
}

func (o Options) normalize() (Options, error) {
	o.Heartbeats = cmp.Or(o.Heartbeats, DefaultHeartbeats)
	o.States = cmp.Or(o.States, DefaultStates)
	o.Group = cmp.Or(o.Group, DefaultGroup)
	o.StaleAfter = cmp.Or(o.StaleAfter, 15*time.Second)
	o.Sweep = cmp.Or(o.Sweep, time.Second)
	o.Forget = cmp.Or(o.Forget, max(time.Hour, o.StaleAfter))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	err := errors.Join(jetbus.ValidTopic(o.Heartbeats), jetbus.ValidTopic(o.States), jetbus.ValidGroup(o.Group))
	switch {
	case err != nil:
	case o.Heartbeats == o.States:
		err = fmt.Errorf("%w: Heartbeats and States are both %s", jetbus.ErrInvalidOption, o.States)
	case o.StaleAfter < 0 || o.Sweep < 0 || o.ShutdownTimeout < 0:
		err = fmt.Errorf("%w: StaleAfter, Sweep and ShutdownTimeout must not be negative", jetbus.ErrInvalidOption)
	case o.Forget < o.StaleAfter:
		err = fmt.Errorf("%w: Forget is %v, use at least StaleAfter (%v)", jetbus.ErrInvalidOption, o.Forget, o.StaleAfter)
	}
	return o, err
}

// Projector projects heartbeats into process states; see the package
// comment for what it promises.
//
// A state event has the process id as its key, an id derived from that of its
// heartbeat, the heartbeat's id in CausedBy and its position in the headers
// x-heartbeat-seq and x-heartbeat-epoch. Heartbeats are ordered by their position in the
// log, not by their Time. Silence is measured from the Time of the last heartbeat, set by
// its publisher, to the clock of the projector: the two must agree to well within
// StaleAfter, else a process with a slow clock turns stale between its beats. A Time that
// lies in the future counts as the moment it was read.
//
// A heartbeat that is not valid JSON or names no process is acknowledged and
// counted as Invalid. One that fails for another reason, the broker being away
// for instance, is tried again without end.
type Projector struct {
	b       Backend
	o       Options
	log     *slog.Logger
	epoch   int64 // of the heartbeats; see position
	created time.Time
	view    view
	readTo  uint64 // the state topic was read up to here; the follower's alone
	barrier uint64 // heartbeats up to here must be settled before silence counts; the sweeper's alone

	sub    jetbus.Subscription
	cancel context.CancelFunc // ends the follower and the sweeper
	loops  sync.WaitGroup
	done   chan struct{}

	states, stale, repeated, invalid atomic.Uint64
}

// Stats count what one projector did since it started.
type Stats struct {
	States   uint64 `json:"states"`   // states published for a heartbeat
	Stale    uint64 `json:"stale"`    // states published for a silence
	Repeated uint64 `json:"repeated"` // heartbeats that gave none: the state was of this one or a newer one already
	Invalid  uint64 `json:"invalid"`  // heartbeats that are no heartbeats
}

// Start reads the last state of each process and joins the group. It returns when
// the projector is running, or an error and nothing runs. Canceling ctx is a
// graceful Stop.
func Start(ctx context.Context, b Backend, o Options) (*Projector, error) {
	o, err := o.normalize()
	if err != nil {
		return nil, fmt.Errorf("project process state: %w", err)
	}
	p := &Projector{b: b, o: o, log: o.Logger, view: view{entries: make(map[string]entry)}, done: make(chan struct{})}
	if err := p.start(ctx); err != nil {
		return nil, fmt.Errorf("project %s into %s: %w", o.Heartbeats, o.States, err)
	}
	return p, nil
}

func (p *Projector) start(ctx context.Context) error {
	beats, err := p.ensure(ctx, jetbus.TopicConfig{Name: p.o.Heartbeats})
	if err != nil {
		return err
	}
	states, err := p.ensure(ctx, jetbus.TopicConfig{Name: p.o.States, KeyInSubject: true})
	if err != nil {
		return err
	}
	if !states.Config.KeyInSubject {
		return fmt.Errorf("topic %s: %w: delete it, or name another in States", p.o.States, jetbus.ErrNeedsKeySubject)
	}
	if !beats.Created.IsZero() {
		p.epoch = beats.Created.UnixNano()
	}
	p.created = states.Created
	if err := p.load(ctx); err != nil {
		return err
	}
	p.sub, err = p.b.Subscribe(ctx, p.o.Heartbeats, p.o.Group, p.beat, jetbus.SubscribeOptions{
		From:            jetbus.Earliest(),
		MaxAttempts:     -1, // a heartbeat is given up by nobody
		AckTimeout:      ackTimeout,
		Backoff:         jetbus.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second},
		ShutdownTimeout: p.o.ShutdownTimeout,
	})
	if err != nil {
		return err
	}
	// The subscription ends gracefully with ctx, and the rest ends with the subscription.
	loopCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p.cancel = cancel
	p.loops.Go(func() { p.follow(loopCtx) })
	p.loops.Go(func() { p.sweep(loopCtx) })
	go p.finish()
	return nil
}

// ensure declares a topic that does not exist and leaves one that does as it is.
func (p *Projector) ensure(ctx context.Context, c jetbus.TopicConfig) (jetbus.TopicInfo, error) {
	info, err := p.b.TopicInfo(ctx, c.Name)
	if errors.Is(err, jetbus.ErrNoTopic) {
		return p.b.EnsureTopic(ctx, c)
	}
	return info, err
}

// finish waits for the end of the subscription and ends the rest.
func (p *Projector) finish() {
	<-p.sub.Done()
	p.cancel()
	p.loops.Wait()
	close(p.done)
}

// Stop ends the projector: the heartbeat in hand is finished, and nothing of it
// runs any more when Stop returns. It may be called twice and concurrently. The
// error is that of the subscription's Stop.
func (p *Projector) Stop(ctx context.Context) error {
	err := p.sub.Stop(ctx)
	<-p.done
	if err != nil {
		return fmt.Errorf("stop projecting %s: %w", p.o.Heartbeats, err)
	}
	return nil
}

// Done is closed when the projector has ended, for whatever reason.
func (p *Projector) Done() <-chan struct{} { return p.done }

// Err returns why it ended: nil while it runs and after Stop.
func (p *Projector) Err() error {
	if err := p.sub.Err(); err != nil {
		return fmt.Errorf("project %s into %s: %w", p.o.Heartbeats, p.o.States, err)
	}
	return nil
}

// Stats returns the counters.
func (p *Projector) Stats() Stats {
	return Stats{
		States: p.states.Load(), Stale: p.stale.Load(),
		Repeated: p.repeated.Load(), Invalid: p.invalid.Load(),
	}
}

// Processes returns the processes as the state topic has them, whoever
// published the states, sorted by id. It lags behind the topic by moments.
func (p *Projector) Processes() []Process { return p.view.processes() }
