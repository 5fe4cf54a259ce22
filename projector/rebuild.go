package projector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// RebuildOptions configure a rebuild.
type RebuildOptions struct {
	// Progress is called at the beginning of each phase and with each batch, by the
	// goroutine of Rebuild, which waits for it. Default nil.
	Progress func(RebuildStats)
}

// RebuildPhase is what a rebuild is doing.
type RebuildPhase string

// The phases, in their order.
const (
	RebuildWaiting  RebuildPhase = "waiting"  // another rebuild of the projection is under way
	RebuildFilling  RebuildPhase = "filling"  // the shadow is filled with what the topic held at the beginning
	RebuildCatching RebuildPhase = "catching" // it is filled with what has come since
	RebuildSwapping RebuildPhase = "swapping" // it takes the place of the sink; with Options.Every once no replica runs
	RebuildClosing  RebuildPhase = "closing"  // it is filled with what came meanwhile
	RebuildDone     RebuildPhase = "done"
)

// RebuildStats count what a rebuild has done so far.
type RebuildStats struct {
	Phase RebuildPhase `json:"phase"`
	Read  uint64       `json:"read"` // events, repeated ones included
	// Total is how many events there are to read, more or less; 0 where that is not
	// known, since only the last one of each key is read.
	Total    uint64 `json:"total,omitempty"`
	Written  uint64 `json:"written"`  // changes that were stored
	Rejected uint64 `json:"rejected"` // events that cannot be projected: dead letters
	Failed   uint64 `json:"failed"`   // writes that failed and were tried again
	Seq      uint64 `json:"seq"`      // of the newest event that was written
	LastSeq  uint64 `json:"lastSeq"`  // of the topic's stream, when that was last asked
	// Elapsed is how long it has taken.
	Elapsed time.Duration `json:"-"`
}

const (
	// maxPasses bounds how often a rebuild catches up before it swaps, where events
	// come faster than it reads.
	maxPasses = 20
	// swapTimeout is how long a swap may keep all replicas from projecting.
	swapTimeout = 5 * time.Minute
	// dropTimeout bounds the removal of a shadow that is of no use.
	dropTimeout = 30 * time.Second
)

// Rebuild fills a sink again from the topic. It fills a shadow, a second sink, while the
// old one stays in use and its replicas write. Then it swaps the two, and adds the changes
// that were written only to the old one. The options are those of the projection's
// replicas, which may be running or not. With Options.Every, the swap waits until none is
// running: stop them in the phase RebuildSwapping, and start them after Rebuild has
// returned.
//
// One rebuild of a projection runs at a time; another one waits for it. If Rebuild fails
// or ctx ends before the swap, the sink is unchanged and the shadow is removed. If that
// happens after the swap, the sink has the new content, with a position from which the
// next Start or Rebuild resumes. If the process dies, it leaves a shadow, which the next
// rebuild removes.
//
// Once the shadow is open, Rebuild waits while the sink or the broker is unavailable.
// Events that cannot be projected become dead letters, as in the projection. The error
// wraps the errors of the options, of the sink's Shadow, Open and Swap ([ErrSwapRefused]),
// [ErrNewStream] if the topic is declared again or restored in the meantime, and the cause
// of ctx. With Options.Every, it may also wrap [jetbus.ErrLockLost], and
// [context.DeadlineExceeded] if the swap takes longer than the five minutes for which the
// replicas may be kept from projecting.
func Rebuild(ctx context.Context, b Backend, sink Rebuilder, o Options, ro RebuildOptions) (RebuildStats, error) {
	return rebuildIf(ctx, b, sink, o, ro, nil)
}

// rebuildIf is Rebuild if needed reports true when its turn comes. A nil needed means
// true.
func rebuildIf(ctx context.Context, b Backend, sink Rebuilder, o Options, ro RebuildOptions, needed func(context.Context) (bool, error)) (RebuildStats, error) {
	o, err := o.normalize()
	if err == nil && (b == nil || sink == nil) {
		err = fmt.Errorf("%w: no bus or no sink", jetbus.ErrInvalidOption)
	}
	if err != nil {
		return RebuildStats{}, fmt.Errorf("rebuild projection: %w", err)
	}
	r := &rebuild{b: b, o: o, report: ro.Progress, needed: needed, began: time.Now()}
	if err := r.run(ctx, sink); err != nil {
		return r.stats(), fmt.Errorf("rebuild projection %s of %s: %w", o.Name, o.Topic, err)
	}
	return r.stats(), nil
}

// rebuild is one call of Rebuild.
type rebuild struct {
	b      Backend
	o      Options
	report func(RebuildStats)
	needed func(context.Context) (bool, error)
	began  time.Time

	phase   RebuildPhase
	count   counters
	total   uint64
	lastSeq uint64
	shadow  Shadow
	w       writer
}

func (r *rebuild) stats() RebuildStats {
	c := &r.count
	seq := c.seq.Load()
	return RebuildStats{
		Phase: r.phase, Read: c.events.Load(), Total: r.total, Written: c.applied.Load(), Rejected: c.rejected.Load(),
		Failed: c.failed.Load(), Seq: seq, LastSeq: max(seq, r.lastSeq), Elapsed: time.Since(r.began),
	}
}

func (r *rebuild) enter(phase RebuildPhase) {
	r.phase = phase
	r.progress()
}

func (r *rebuild) progress() {
	if r.report != nil {
		r.report(r.stats())
	}
}

func (r *rebuild) run(ctx context.Context, sink Rebuilder) error {
	source, err := describe(ctx, r.b, &r.o)
	if err != nil {
		return err
	}
	r.enter(RebuildWaiting)
	return jetbus.Lock{Key: lockKey("rebuild", &r.o)}.Hold(ctx, r.b, func(ctx context.Context, _ jetbus.Held) (_ bool, err error) {
		if r.needed != nil {
			if needed, err := r.needed(ctx); err != nil || !needed {
				return true, err
			}
		}
		if r.shadow, err = sink.Shadow(ctx); err != nil {
			return true, fmt.Errorf("make a shadow: %w", err)
		}
		defer func() { err = r.drop(ctx, err) }()
		r.w = writer{b: r.b, sink: r.shadow, source: source, o: &r.o, count: &r.count, wrote: r.progress}
		if _, err := open(ctx, r.shadow, source); err != nil {
			return true, err
		}
		return true, r.build(ctx)
	})
}

// drop removes the shadow, unless it was swapped.
func (r *rebuild) drop(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	if failed := r.shadow.Drop(ctx); failed != nil {
		r.o.Logger.LogAttrs(ctx, slog.LevelWarn, "a shadow stays; the next rebuild removes it",
			slog.String("projection", r.o.Name), slog.Any("error", failed))
	}
	return err
}

// build fills the shadow and swaps it.
//
// A replica may have written its last batch to the old content just before the
// swap, and have acknowledged it: no replica writes that again. But the topic has it,
// below the sequence that is its last one behind the swap. So everything up to there
// is written once more to what the shadow has become, where it is stale or missing.
// The replica of an exclusive projection goes on from the position that it finds, which
// is the shadow's; see swapAlone.
func (r *rebuild) build(ctx context.Context) error {
	info, err := r.w.info(ctx)
	if err != nil {
		return err
	}
	if !r.w.latest(info) {
		r.total = info.Events
	}
	r.lastSeq = info.LastSeq
	r.enter(RebuildFilling)
	at, err := r.w.fill(ctx)
	if err != nil {
		return err
	}
	r.enter(RebuildCatching)
	for range maxPasses {
		behind := uint64(0)
		if at, behind, err = r.catchUp(ctx, at); err != nil {
			return err
		}
		if behind <= uint64(r.o.MaxBatch) { //nolint:gosec // not negative
			break
		}
	}
	r.enter(RebuildSwapping)
	if r.o.Every {
		err = r.swapAlone(ctx, at)
	} else {
		err = r.swap(ctx)
	}
	if err != nil {
		return err
	}
	if !r.o.Exclusive {
		r.enter(RebuildClosing)
		if _, _, err := r.catchUp(ctx, at); err != nil {
			return fmt.Errorf("the new content is in place, but its last events are not: %w", err)
		}
	}
	r.enter(RebuildDone)
	return nil
}

// catchUp writes what has come behind a sequence. It returns up to where that was,
// and how much.
func (r *rebuild) catchUp(ctx context.Context, at uint64) (now, behind uint64, err error) {
	info, err := r.w.info(ctx)
	if err != nil {
		return at, 0, err
	}
	r.lastSeq = info.LastSeq
	if r.total > 0 {
		r.total = max(r.total, info.Events)
	}
	now = at
	if info.LastSeq > at {
		if now, err = r.w.fillLog(ctx, at, info.LastSeq); err != nil {
			return at, 0, err
		}
	}
	return now, now - at, r.w.store(ctx, nil, now)
}

// swapAlone swaps while no replica projects. Where each event is handed to the sink, a
// change may hold only what differs from the one before. A replica that is further than
// the shadow could write its next batch to the new content before it finds its position
// gone, and what lies between the two would count as old when it is read again. So the
// lock of the replicas is held, and the shadow has all that the holder before can have
// had in hand, however late that arrives. One that cannot be swapped is dropped under the
// lock: the database may still carry out a swap that it was asked for. What is left is a
// process that dies in the swap, or cannot drop the shadow, or loses the lock first, whose
// swap is carried out after that.
func (r *rebuild) swapAlone(ctx context.Context, at uint64) error {
	r.o.Logger.LogAttrs(ctx, slog.LevelInfo, "what was rebuilt is put into place when no replica runs",
		slog.String("projection", r.o.Name))
	lock := jetbus.Lock{Key: lockKey("projection", &r.o), TTL: r.o.AckTimeout}
	return lock.Hold(ctx, r.b, func(held context.Context, _ jetbus.Held) (_ bool, err error) {
		bounded, cancel := context.WithTimeout(held, swapTimeout)
		defer cancel()
		if _, _, err = r.catchUp(bounded, at); err == nil {
			err = r.swap(bounded)
		}
		if err != nil {
			err = r.drop(held, err)
		}
		return true, err
	})
}

// swap puts the shadow into place, through all that passes by itself.
func (r *rebuild) swap(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := r.shadow.Swap(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return errors.Join(context.Cause(ctx), err)
		case isFinal(err), errors.Is(err, ErrSwapRefused), errors.Is(err, jetbus.ErrInvalidOption):
			return fmt.Errorf("swap: %w", err)
		}
		r.count.failedWrite(err)
		r.progress()
		if attempt == 1 {
			r.o.Logger.LogAttrs(ctx, slog.LevelWarn, "what was rebuilt cannot be put into place; it is tried again",
				slog.String("projection", r.o.Name), slog.Any("error", err))
		}
		if err := pause(ctx, retryBackoff.Delay(attempt)); err != nil {
			return err
		}
	}
}
