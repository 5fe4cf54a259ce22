package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// drainFlags are the flags of outbox run.
type drainFlags struct {
	outboxTable
	jetbus.DrainOptions

	runFor time.Duration
}

func newOutboxRun(a *app, f *outboxFlags) *cobra.Command {
	var d drainFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Publish what waits in an outbox, until it is stopped",
		Long: `Publishes what waits in an outbox, until it is stopped. Run it as often as you like, the
instances share the work; kill one, and its rows are due again after --lease. The events
of a key are published in the order in which they were added. A broker that is away, and a
topic that is full, are waited for; an event that can never be published, and one that
failed --max-attempts times, becomes a dead row (see jetbus outbox ls --state dead).

Ctrl-C ends it in order: the window in hand is published, and what cannot be is given back.
In MongoDB it learns of new rows at once, in the others it looks for them every --poll.`,
		Example: `  jetbus outbox run --db postgres://shop@db.example.com/shop
  jetbus outbox run --db sqlite:shop.db --create --keep 24h
  JETBUS_OUTBOX_DB=mongodb://db.example.com/shop jetbus outbox run`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.drainOutbox(cmd, f, &d) },
	}
	flags := cmd.Flags()
	flags.IntVar(&d.Window, "window", jetbus.DefaultDrainWindow, "rows claimed and published at a time, at most 1,000")
	flags.IntVar(&d.WindowBytes, "window-bytes", jetbus.DefaultDrainWindowBytes, "bytes claimed at a time, about; a row that is larger comes alone; -1 for any number")
	flags.DurationVar(&d.Lease, "lease", jetbus.DefaultDrainLease, "how long a claim lasts, at least 1s")
	flags.IntVar(&d.MaxAttempts, "max-attempts", jetbus.DefaultDrainMaxAttempts, "failed attempts after which a row is dead, -1 for never")
	flags.DurationVar(&d.PollMin, "poll", jetbus.DefaultDrainPoll, "pause between looks at an outbox that has nothing to do, growing to five times that")
	flags.BoolVar(&d.skipDead, "skip-dead", false, "publish later rows of a key whose row is dead, instead of holding them back")
	flags.DurationVar(&d.keep, "keep", 0, "how long rows stay after they were sent (default they are deleted at once)")
	flags.BoolVar(&d.create, "create", false, "make the table or collection where it does not exist")
	flags.DurationVar(&d.runFor, "for", 0, "end this time after the start (default never)")
	return cmd
}

// maxWindow is DrainOptions.Window at most.
const maxWindow = 1000

// options are what the flags say.
func (f *drainFlags) options() (o jetbus.DrainOptions, err error) {
	o = f.DrainOptions
	switch {
	case f.runFor < 0:
		return o, usagef("--for %v: use more than 0", f.runFor)
	case f.keep < 0:
		return o, usagef("--keep %v: use 0 or more", f.keep)
	case o.PollMin <= 0:
		return o, usagef("--poll %v: use more than 0", o.PollMin)
	case o.Window < 1 || o.Window > maxWindow: // 0 would be the default
		return o, usagef("--window %d: use 1 to 1,000", o.Window)
	case o.WindowBytes == 0 || o.WindowBytes < -1:
		return o, usagef("--window-bytes %d: use 1 or more, or -1 for any number", o.WindowBytes)
	case o.Lease < time.Second:
		return o, usagef("--lease %v: use at least 1s", o.Lease)
	case o.MaxAttempts == 0 || o.MaxAttempts < -1:
		return o, usagef("--max-attempts %d: use 1 or more, or -1 for no end", o.MaxAttempts)
	}
	o.PollMax = 5 * o.PollMin
	_, err = o.Normalize()
	return o, err
}

// watcher is an outbox that says when rows were added.
type watcher interface {
	Watch(ctx context.Context, kick func()) error
}

func (a *app) drainOutbox(cmd *cobra.Command, f *outboxFlags, flags *drainFlags) error {
	o, err := flags.options()
	if err != nil {
		return err
	}
	o.Logger = newBriefLog(cmd.ErrOrStderr())
	return untilInterrupted(cmd.Context(), func(open func()) error {
		return a.withOutboxOpen(cmd.Context(), f, flags.outboxTable, func(box outboxBox) error {
			return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
				open()
				d, err := jetbus.NewDrainer(box, bus, o)
				if err != nil {
					return err
				}
				ctx, cancel := endAfter(cmd.Context(), flags.runFor)
				defer cancel()
				defer kicked(ctx, box, d, o.Logger)()
				return newDrainRunner(cmd.OutOrStdout(), f, box, d).run(ctx, startDrain(ctx, d))
			})
		})
	})
}

// kicked lets the outbox, where it can, tell the drainer of new rows, until stop is called.
func kicked(ctx context.Context, box outboxBox, d *jetbus.Drainer, log *slog.Logger) (stop func()) {
	w, ok := box.(watcher)
	if !ok {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		if err := w.Watch(ctx, d.Kick); err != nil {
			log.LogAttrs(ctx, slog.LevelWarn, "new rows are found by looking for them, every --poll", slog.Any("err", err))
		}
	})
	return func() {
		cancel()
		watching.Wait()
	}
}

// drainJob is a drainer that runs.
type drainJob struct {
	stop context.CancelFunc
	done chan struct{} // closed when err is set
	err  error
}

func startDrain(ctx context.Context, d *jetbus.Drainer) *drainJob {
	ctx, stop := context.WithCancel(ctx)
	j := &drainJob{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(j.done)
		j.err = d.Run(ctx)
	}()
	return j
}

func (j *drainJob) Done() <-chan struct{} { return j.done }

// Err is asked after Stop.
func (j *drainJob) Err() error {
	select {
	case <-j.done:
		return j.err
	default:
		return nil
	}
}

// Stop waits for the end, for which the drainer has its own bounds.
func (j *drainJob) Stop(context.Context) error {
	j.stop()
	<-j.done
	return nil
}

func newDrainRunner(out io.Writer, f *outboxFlags, box outboxBox, d *jetbus.Drainer) *runner {
	r := &runner{out: out, output: f.output, title: "draining " + f.table + "; Ctrl-C ends it"}
	dead := 0
	r.line = func(ctx context.Context) (string, any) {
		s := d.Stats()
		if !s.Running { // it has ended: what it knows of the outbox is old
			if now, err := box.OutboxStats(ctx); err == nil {
				s.Outbox, s.LookedAt = now, time.Now()
			}
		}
		dead = s.Outbox.Dead
		l := drainLineOf(f.table, s)
		return l.text(), l
	}
	r.hint = func() string {
		if dead == 0 {
			return ""
		}
		return "see jetbus outbox ls --state dead"
	}
	return r
}

// drainLine is what a run prints for programs.
type drainLine struct {
	Time       time.Time                         `json:"time"`
	Table      string                            `json:"table"`
	Published  uint64                            `json:"published"`
	Duplicates uint64                            `json:"duplicates"`
	Retried    uint64                            `json:"retried"`
	Killed     uint64                            `json:"killed"` // rows that this run has set aside
	Errors     map[jetbus.DrainErrorClass]uint64 `json:"errors"`
	HeldTopics []string                          `json:"heldTopics,omitempty"`
	BrokerAway *time.Time                        `json:"brokerAway,omitempty"` // since when
	OutboxAway *time.Time                        `json:"outboxAway,omitempty"`
	Error      string                            `json:"error,omitempty"`
	Waiting    *outboxCounts                     `json:"waiting,omitempty"` // missing until the outbox has said so
}

// drainLineOf says how a drainer is.
func drainLineOf(table string, s jetbus.DrainStats) drainLine {
	l := drainLine{
		Time: time.Now(), Table: table, Published: s.Published, Duplicates: s.Duplicates, Retried: s.Retried, Killed: s.Dead,
		Errors: s.Errors, HeldTopics: s.HeldTopics, BrokerAway: unlessZero(s.BrokerAway), OutboxAway: unlessZero(s.OutboxAway),
	}
	if s.Err != nil {
		l.Error = s.Err.Error()
	}
	if !s.LookedAt.IsZero() {
		l.Waiting = &outboxCounts{table, s.Outbox.Pending, s.Outbox.Dead, s.Outbox.Age.Milliseconds()}
	}
	return l
}

// text is the line for people, without the time.
func (l drainLine) text() string {
	parts := []string{count(l.Published) + " published"}
	for _, p := range []struct {
		n    uint64
		noun string
	}{{l.Duplicates, "duplicate"}, {l.Retried, "failed attempt"}} {
		if p.n > 0 {
			parts = append(parts, plural(p.n, p.noun))
		}
	}
	if w := l.Waiting; w != nil {
		parts = append(parts, count(w.Pending)+" pending", count(w.Dead)+" dead")
		if w.Pending > 0 {
			parts = append(parts, fmt.Sprintf("oldest %v", (time.Duration(w.AgeMs)*time.Millisecond).Round(time.Second)))
		}
	}
	if len(l.HeldTopics) > 0 {
		parts = append(parts, "nothing is taken by "+strings.Join(l.HeldTopics, ", "))
	}
	if l.Error != "" {
		parts = append(parts, l.Error)
	}
	return printable(strings.Join(parts, "  "))
}
