package jetbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// DrainOptions say how an outbox is drained. The zero value is ready for use.
type DrainOptions struct {
	// Window is how many rows are claimed and published at a time. Defaults to 500,
	// at most 1,000.
	Window int
	// WindowBytes bounds the memory that a window takes: rows are claimed up to so many
	// bytes, about, and one that is larger alone. Defaults to 16 MiB, -1 means any number.
	WindowBytes int
	// Lease is how long a claim lasts. Two thirds of it are for publishing; what is not
	// published by then is given back. When a drainer dies, its rows are due again
	// after the lease. A claim that itself takes two thirds of it leaves no time, and one
	// that is not answered within a third of it, or the ShutdownTimeout where that is longer,
	// is given up: both are failures of the outbox, and the next claim is for half as many
	// rows. Defaults to 30 seconds, at least 1.
	Lease time.Duration
	// MaxAttempts sets a row aside after so many failed attempts, -1 never. The outage
	// of a broker and the refusals of a topic that is full are no attempts. Defaults
	// to 20, which takes about half an hour with the default Backoff.
	MaxAttempts int
	// Backoff is the wait of a row that failed, and of a topic or a broker that takes
	// nothing. Defaults to that of [Backoff].
	Backoff Backoff
	// PollMin and PollMax are the pauses between looks at an outbox that has nothing to
	// do: from the one, doubling, to the other. [Drainer.Kick] ends them. Default to 1
	// and 5 seconds.
	PollMin, PollMax time.Duration
	// StatsEvery is how often the outbox is asked what waits. Defaults to 15 seconds.
	// One that has been emptied is asked at once, and one that is emptied all the time
	// no more often than others: to count rows takes the longer the more there are.
	StatsEvery time.Duration
	// ShutdownTimeout is how long the claim, and then the window in hand may take after
	// the end of Run's context, and each time that the outbox is told then what became
	// of the rows, for which there is a second at the least: rows that were published, that
	// failed and that are given back have equal parts of what is left of it. Defaults to 10 seconds.
	ShutdownTimeout time.Duration
	// MaxAge is how old a pending row may get before [Drainer.Ready] says so. Defaults
	// to 5 minutes, -1 means never.
	MaxAge time.Duration
	// Observer is told of rows [Drained], [DrainFail] and [OutboxDead]. Defaults to none.
	Observer Observer
	// Logger gets failures. Defaults to none.
	Logger *slog.Logger
}

// What the Observer of a drainer is told.
const (
	Drained    ObservationKind = "drained"     // Count rows of an outbox were published; Duration is the window's
	DrainFail  ObservationKind = "drain_fail"  // a row, a topic or the outbox failed, Err; Reason is the DrainErrorClass
	OutboxDead ObservationKind = "outbox_dead" // a row was set aside after Attempt failed attempts, because of Err
)

// Defaults and bounds of DrainOptions.
const (
	DefaultDrainWindow          = 500
	DefaultDrainWindowBytes     = 16 << 20
	DefaultDrainLease           = 30 * time.Second
	DefaultDrainMaxAttempts     = 20
	DefaultDrainPoll            = time.Second
	DefaultDrainPollMax         = 5 * time.Second
	DefaultDrainStatsEvery      = 15 * time.Second
	DefaultDrainShutdownTimeout = 10 * time.Second
	DefaultDrainMaxAge          = 5 * time.Minute

	maxDrainWindow = 1000
	minDrainLease  = time.Second
	drainClean     = time.Minute     // between calls of OutboxCleaner
	cleanMore      = 1000            // rows removed by a call that may have left some
	maxBrokerPause = 5 * time.Second // PublishBatch itself waits for the broker
	probeTime      = 5 * time.Second // of a topic that has not answered, at first
)

// Normalize returns the options with defaults filled in, or an error wrapping
// [ErrInvalidOption] that names the field.
func (o DrainOptions) Normalize() (DrainOptions, error) {
	setDefault(&o.Window, DefaultDrainWindow)
	setDefault(&o.WindowBytes, DefaultDrainWindowBytes)
	setDefault(&o.Lease, DefaultDrainLease)
	setDefault(&o.MaxAttempts, DefaultDrainMaxAttempts)
	setDefault(&o.PollMin, min(DefaultDrainPoll, max(o.PollMax, 0)))
	setDefault(&o.PollMin, DefaultDrainPoll)
	setDefault(&o.PollMax, max(DefaultDrainPollMax, o.PollMin))
	setDefault(&o.StatsEvery, DefaultDrainStatsEvery)
	setDefault(&o.ShutdownTimeout, DefaultDrainShutdownTimeout)
	setDefault(&o.MaxAge, DefaultDrainMaxAge)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Window < 1 || o.Window > maxDrainWindow:
		return o, fmt.Errorf("%w: Window is %d, use 1 to %d", ErrInvalidOption, o.Window, maxDrainWindow)
	case o.WindowBytes < -1:
		return o, fmt.Errorf("%w: WindowBytes is %d, use 1 or more, or -1 for any number", ErrInvalidOption, o.WindowBytes)
	case o.Lease < minDrainLease:
		return o, fmt.Errorf("%w: Lease is %v, use at least %v", ErrInvalidOption, o.Lease, minDrainLease)
	case o.MaxAttempts < -1:
		return o, fmt.Errorf("%w: MaxAttempts is %d, use 1 or more, or -1 for no end", ErrInvalidOption, o.MaxAttempts)
	case o.PollMin < 0 || o.PollMax < o.PollMin:
		return o, fmt.Errorf("%w: PollMin is %v and PollMax %v, use 0 < PollMin <= PollMax", ErrInvalidOption, o.PollMin, o.PollMax)
	case o.StatsEvery < 0:
		return o, fmt.Errorf("%w: StatsEvery is %v", ErrInvalidOption, o.StatsEvery)
	case o.ShutdownTimeout < 0:
		return o, fmt.Errorf("%w: ShutdownTimeout is %v", ErrInvalidOption, o.ShutdownTimeout)
	case o.MaxAge < -1:
		return o, fmt.Errorf("%w: MaxAge is %v, use -1 for never", ErrInvalidOption, o.MaxAge)
	}
	var err error
	o.Backoff, err = o.Backoff.Normalize()
	return o, err
}

// Drain publishes what waits in an outbox, until ctx ends: NewDrainer and
// [Drainer.Run] in one.
func Drain(ctx context.Context, from Outbox, to Batcher, o DrainOptions) error {
	d, err := NewDrainer(from, to, o)
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// Drainer publishes the waiting rows of an outbox. Any number of drainers, in this process and
// others, may share the rows of one outbox.
//
// A drainer publishes a row under the row's own ID and then marks it as sent. If the drainer
// dies in between, the row is published again. Within the topic's DuplicateWindow this stores
// nothing; later, the topic has two events with the same ID. Make the window longer than the
// lease plus the time to restart a drainer.
//
// The rows of a key are published one after the other, each after the row before it is stored. A
// row becomes dead immediately if the row itself is the reason why it cannot be published: its
// event is invalid, too large or violates its schema, or its topic does not exist. After other
// failures the row is retried MaxAttempts times, with Backoff. A row whose failure the outbox
// cannot record becomes dead, too, with a reason that the outbox can record; [Drainer.Ready]
// reports a row that the outbox cannot change at all.
//
// Three failures are not counted as attempts: the broker is unavailable, a topic is full or may
// not be written, or a topic does not answer while others do. The drainer waits until they end,
// and publishes the rows of other topics in the meantime.
type Drainer struct {
	o    DrainOptions
	from Outbox
	to   Batcher
	kick chan struct{} // capacity 1
	look chan struct{} // capacity 1: the statistics are old

	unmarked []OutboxRow // published, and not yet noted as sent; Run's own
	cleaned  time.Time   // Run's own
	window   int         // how many rows to claim: less than Window after claims that took too long or were not answered; Run's own

	mu         sync.Mutex
	stats      DrainStats
	hold       map[string]*outage    // topics that accept no events
	spoke      time.Time             // the last window in which a topic answered every publish
	away       outage                // of the broker
	store      outage                // of the outbox
	unrecorded map[string]unrecorded // by OutboxRow.Ref; see drainrecord.go
	uncounted  error                 // of the last call of OutboxStats
}

// outage is the time in which something does not do what it is asked. The zero
// value means that it does.
type outage struct {
	since    time.Time
	until    time.Time // when to try again
	failures int
	err      error

	silent bool      // a topic that did not answer
	broker bool      // which may have been the broker's fault
	last   time.Time // when that was
}

// NewDrainer returns a drainer for [Drainer.Run]. The error wraps
// [ErrInvalidOption].
func NewDrainer(from Outbox, to Batcher, o DrainOptions) (*Drainer, error) {
	o, err := o.Normalize()
	if err == nil && (from == nil || to == nil) {
		err = fmt.Errorf("%w: an outbox and a bus are needed", ErrInvalidOption)
	}
	if err != nil {
		return nil, fmt.Errorf("drain outbox: %w", err)
	}
	return &Drainer{
		o: o, window: o.Window, from: from, to: to, kick: make(chan struct{}, 1), look: make(chan struct{}, 1), hold: map[string]*outage{},
		stats: DrainStats{Errors: map[DrainErrorClass]uint64{}}, unrecorded: map[string]unrecorded{},
	}, nil
}

// Kick ends the pause of a drainer that has nothing to do: call it after the
// commit of a transaction that added events. It never blocks.
func (d *Drainer) Kick() {
	signal(d.kick)
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting
	}
}

// Run drains until ctx ends. It then finishes the window in hand, within
// ShutdownTimeout, gives back what it could not publish, and returns nil, or the
// failure of the broker or the outbox that it was waiting out. It ends before that
// with an error that wraps [ErrClosed] when the bus was closed. One call at a time
// ([ErrConflict]).
func (d *Drainer) Run(ctx context.Context) error {
	d.mu.Lock()
	running := d.stats.Running
	d.stats.Running = true
	d.mu.Unlock()
	if running {
		return fmt.Errorf("drain outbox: %w: this drainer runs already", ErrConflict)
	}
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.stats.Running = false
	}()
	err := d.run(ctx)
	if err != nil {
		return fmt.Errorf("drain outbox: %w", err)
	}
	return nil
}

func (d *Drainer) run(ctx context.Context) error {
	var watcher sync.WaitGroup
	defer watcher.Wait()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watcher.Go(func() { d.watch(watching) })
	idle := d.o.PollMin
	for claimed := 0; ctx.Err() == nil; {
		emptied := claimed > 0
		var err error
		claimed, err = d.step(ctx)
		switch {
		case errors.Is(err, ErrClosed):
			return err
		case err != nil:
			sleep(ctx, d.pause())
		case claimed > 0:
			idle = d.o.PollMin
		default:
			if emptied {
				signal(d.look)
			}
			if d.wait(ctx, idle) {
				idle = d.o.PollMin
			} else {
				idle = min(2*idle, d.o.PollMax)
			}
		}
	}
	return d.end(ctx)
}

// wait pauses until there may be something to do, and reports whether somebody said so.
func (d *Drainer) wait(ctx context.Context, idle time.Duration) (kicked bool) {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	select {
	case <-d.kick:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// step publishes one window and returns how many rows it had. An error is one of
// the broker or of the outbox.
func (d *Drainer) step(ctx context.Context) (claimed int, err error) {
	if err := d.mark(ctx); err != nil {
		return 0, err
	}
	d.clean(ctx)
	began := time.Now() // the lease runs from later on
	rows, probed, err := d.next(ctx)
	if err != nil {
		return 0, err
	}
	if len(rows) == 0 {
		d.brokerSaid(nil, !d.isSilent()) // else nothing waits for it
		return 0, nil
	}
	if took := time.Since(began); !d.inTime(took) {
		return len(rows), d.tooLate(ctx, rows, took)
	}
	w := &drainWindow{Drainer: d, began: began, probed: probed}
	err = w.run(ctx, rows)
	return len(rows), err
}

// next claims the rows of a window. Those of the topic probed did not get an answer
// last time.
func (d *Drainer) next(ctx context.Context) (rows []OutboxRow, probed string, err error) {
	skip, probed := d.held()
	o := ClaimOptions{Max: d.window, MaxBytes: max(d.o.WindowBytes, 0), Lease: d.o.Lease, SkipTopics: skip}
	if d.isAway() {
		o.Max = 1 // to see whether the broker is back
	}
	if d.isAway() && probed != "" { // or whether only some topics are: others come first
		o.SkipTopics = append(slices.Clone(skip), probed)
		if rows, err = d.claim(ctx, o); err != nil || len(rows) > 0 {
			return rows, "", err
		}
		o.SkipTopics = skip
	}
	if rows, err = d.claim(ctx, o); err == nil {
		d.take(probed, rows)
	}
	if err == nil && len(rows) == 0 {
		d.forget(skip)
	}
	return rows, probed, err
}

// finishing is a context for what the end of ctx does not interrupt at once: it ends at
// the deadline, or the grace after ctx. Its cause says which.
func finishing(ctx context.Context, deadline time.Time, grace time.Duration) (context.Context, context.CancelFunc) {
	working, end := context.WithDeadlineCause(context.WithoutCancel(ctx), deadline, errLeaseOver)
	working, cancel := context.WithCancelCause(working)
	stop := context.AfterFunc(ctx, func() {
		sleep(working, grace)
		cancel(errShutdownOver)
	})
	return working, func() {
		stop()
		cancel(nil)
		end()
	}
}

// timeUpError says which time is up. It is a context's end, whatever name it has.
type timeUpError string

func (t timeUpError) Error() string { return string(t) }

// Is makes it one of the errors with which contexts end.
func (t timeUpError) Is(target error) bool { return target == context.DeadlineExceeded }

const (
	errLeaseOver    timeUpError = "no answer within two thirds of the lease"
	errShutdownOver timeUpError = "no answer within the ShutdownTimeout"
	errProbeOver    timeUpError = "no answer within the time of a topic that has not answered before"
)

// claim takes rows. The end of ctx does not interrupt it: a claim that was made
// without an answer would hide its rows for the whole lease. One that runs into its own
// limit would do so for ever at the same size, and the next is for half as many rows.
func (d *Drainer) claim(ctx context.Context, o ClaimOptions) ([]OutboxRow, error) {
	limit := max(d.o.Lease/3, d.o.ShutdownTimeout) // a third of the lease is not for publishing
	claiming, cancel := finishing(ctx, time.Now().Add(limit), d.o.ShutdownTimeout)
	defer cancel()
	rows, err := d.from.Claim(claiming, o)
	if err != nil && errors.Is(context.Cause(claiming), errLeaseOver) {
		d.window = max(d.window/2, 1)
		err = fmt.Errorf("no answer within %v, the next claim has a Max of %d; use a longer Lease or ShutdownTimeout where that does not help: %w", limit, d.window, err)
	}
	d.storeSaid("claim", err)
	return rows, err
}

// inTime reports whether a claim that took so long leaves time to publish, and sees to the
// size of the next one.
func (d *Drainer) inTime(took time.Duration) bool {
	switch {
	case took >= d.o.Lease*2/3:
		d.window = max(d.window/2, 1)
		return false
	case took < d.o.Lease/6: // twice as many will be in time, too
		d.window = min(2*d.window, d.o.Window)
	}
	return true
}

// tooLate gives back rows whose claim left no time to publish them, and says so: they would
// be claimed and given back for ever.
func (d *Drainer) tooLate(ctx context.Context, rows []OutboxRow, took time.Duration) error {
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), minDrainLease)
	defer cancel()
	err := fmt.Errorf("it took %v, of a Lease of %v two thirds are for publishing: use a longer one", took.Round(time.Millisecond), d.o.Lease)
	if failed := d.from.Release(releasing, rows); failed != nil { // they are due again after the lease
		err = fmt.Errorf("%w; give back: %w", err, failed)
	}
	d.storeSaid("claim", err)
	return err
}

// mark marks the published rows as sent. If the outbox refuses to mark some rows, they become
// dead, so that they do not block the others.
func (d *Drainer) mark(ctx context.Context) error {
	if len(d.unmarked) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.o.Lease) // an outbox that does not answer is asked again later
	defer cancel()
	err := d.from.Sent(ctx, d.unmarked)
	refused, partly := errors.AsType[*OutboxRowsError](err)
	if partly {
		err = nil
	}
	d.storeSaid("note as sent", err)
	if err != nil {
		return err
	}
	d.recorded(d.unmarked)
	if partly {
		d.buryUnmarked(ctx, refused)
	}
	d.unmarked = nil
	return nil
}

// clean lets the outbox remove what it kept.
func (d *Drainer) clean(ctx context.Context) {
	c, ok := d.from.(OutboxCleaner)
	if !ok || time.Since(d.cleaned) < drainClean {
		return
	}
	cleaning, cancel := context.WithTimeout(ctx, d.o.Lease)
	defer cancel()
	n, err := c.Clean(cleaning)
	if n < cleanMore || err != nil {
		d.cleaned = time.Now()
	}
	if ctx.Err() == nil {
		d.storeSaid("clean", err)
	}
}

// end settles what is left after the end of ctx.
func (d *Drainer) end(ctx context.Context) error {
	settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.o.ShutdownTimeout)
	defer cancel()
	for attempt := 1; d.mark(settling) != nil && settling.Err() == nil; attempt++ {
		sleep(settling, Backoff{Min: 100 * time.Millisecond, Max: time.Second}.Delay(attempt))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.store.err != nil {
		return d.store.err
	}
	return d.away.err
}
