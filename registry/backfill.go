package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Headers of the events that a backfill writes.
const (
	// HeaderBackfillOf is where the event comes from: "orders.created/17".
	HeaderBackfillOf = "x-backfill-of"
	// HeaderBackfill names the backfill, and when the stream of its source was made.
	HeaderBackfill = "x-backfill"
)

// BackfillOptions say what a backfill copies. From and To are required; the zero
// value of each other field is its default.
type BackfillOptions struct {
	// Name names the backfill: a run of the same name goes on where the last one
	// ended. 1 to 150 bytes as in an event's key. Defaults to "<From> to <To>".
	Name string `json:"name,omitempty"`
	From string `json:"from"` // the topic that is read
	To   string `json:"to"`   // the topic that is written; it must exist, and may be compacted
	// Version is the version of From's schema that events are brought to. Defaults to
	// the latest one when the backfill began.
	Version int `json:"version,omitempty"`
	// Upcasters lead there, as in NormalizedOptions.
	Upcasters Upcasters `json:"-"`
	// Since and Until bound the events by when they were stored: from Since on, and
	// before Until. Default to no bounds.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Rate is how many events a second are read at most. Zero: as fast as it goes.
	Rate float64 `json:"rate,omitempty"`
	// Limit is how many events this run reads at most; the next one goes on behind
	// them. Zero: all.
	Limit int `json:"limit,omitempty"`
	// BatchSize is how many events are read, and then written, at once, 1 to 500.
	// Defaults to 200.
	BatchSize int `json:"batchSize,omitempty"`
	// DryRun writes nothing, the position neither, and counts what would happen.
	DryRun bool `json:"dryRun,omitempty"`
	// Progress is called after every batch, by the goroutine that called Backfill.
	// Nil: not.
	Progress func(BackfillStats) `json:"-"`
}

// Bounds of backfills.
const (
	DefaultBackfillBatchSize = 200

	maxBackfillBatch    = 500     // the server takes 1,000 events in an atomic batch
	maxBackfillBytes    = 4 << 20 // of the payloads of a batch
	maxBackfillName     = 150
	maxBackfillProblems = 20
)

// BackfillStats count what a backfill did. Unless it is a dry run they count all of
// its runs, and those of a backfill that was killed and run again are the same as of
// one that was not.
type BackfillStats struct {
	Read    int `json:"read"`    // events of From that were looked at
	Written int `json:"written"` // stored in To
	Invalid int `json:"invalid"` // not written: see Problems
	Dropped int `json:"dropped"` // not written: an upcaster said jetbus.Drop
	// Kept are events that were not written since To, which is compacted, has an event
	// of their key that is not older, or is not known to be.
	Kept int `json:"kept"`
	// Seq is the position in From up to which the backfill is done, Last where it ends.
	Seq  uint64 `json:"seq"`
	Last uint64 `json:"last"`
	// Finished says that the backfill is done up to Last.
	Finished bool `json:"finished"`
	// Problems are the first 20 events that are invalid.
	Problems []BackfillProblem `json:"problems,omitempty"`
}

// BackfillProblem is an event that could not be written.
type BackfillProblem struct {
	Seq uint64 `json:"seq"` // in From
	ID  string `json:"id"`
	Err string `json:"error"` // in one line of at most 500 bytes
}

// ErrBackfillDiffers is returned if a backfill of that name began with other options, if
// one of its topics was deleted and declared again since, or if the broker of From was
// restored to an earlier state (the error is then a [jetbus.RestoredError], too). Use another Name.
var ErrBackfillDiffers = errors.New("the backfill began differently: use another Name")

// Backfill writes the events that From holds when it begins, from the first to the
// last, into To: each brought to one version of its schema and validated as by
// [Normalizer.Normalize], and by the schema of To where that has one. They arrive in
// their order, with their keys, times and payloads; with an ID of their own, the
// event's in CausedBy, and where they come from in [HeaderBackfillOf]. Events of a
// topic without a schema are written as they are.
//
// It can be killed at any point: run again with the same Name it goes on, at any
// time later, and To ends up with what an uninterrupted run would have written, each
// event once; that goes for as long as To, if it is a log, keeps what a run that was
// killed wrote last. Its position is kept in a bucket of jetbus.Keys. One process at a time
// works on a backfill; another one waits. A backfill that is finished does nothing
// when it is run again.
//
// A compacted To never loses newer state. An event of its key is written only over
// none, or over an older one of the same From that a backfill wrote; what others
// wrote there stays, tombstones too, as long as those last. There a From that is
// compacted or a log of states makes To its snapshot. Events without a key are invalid.
//
// Invalid events are counted and reported, and written nowhere: From still has them.
// So are those that are too large for To. What cannot be looked up or written for
// other reasons ends the run with an error; the stats then tell how far it came.
//
// Errors wrap jetbus.ErrInvalidOption, ErrInvalidTopic, ErrNoTopic, ErrUnsupported
// (a topic that is a snapshot by TopicConfig.SnapshotOf), [ErrBackfillDiffers], or
// those of b and r.
func Backfill(ctx context.Context, b jetbus.Backend, r *Registry, o BackfillOptions) (BackfillStats, error) {
	o, err := o.normalize()
	if err != nil {
		return BackfillStats{}, fmt.Errorf("backfill: %w", err)
	}
	f := &backfill{BackfillOptions: o, b: b, r: r}
	if o.DryRun {
		err = f.run(ctx)
	} else {
		lock := jetbus.Lock{Key: "backfill/" + o.Name, TTL: backfillLockTTL}
		var failed error
		err = lock.Hold(ctx, b, func(ctx context.Context, _ jetbus.Held) (bool, error) {
			failed = f.run(ctx)
			return failed == nil, failed
		})
		if failed != nil && !errors.Is(err, jetbus.ErrLockLost) {
			err = failed // nobody asked about the lock
		}
	}
	if err != nil {
		return f.rec.Stats, fmt.Errorf("backfill %s: %w", o.Name, err)
	}
	return f.rec.Stats, nil
}

func (o BackfillOptions) normalize() (BackfillOptions, error) {
	if o.Name == "" {
		o.Name = o.From + " to " + o.To
		if len(o.Name) > maxBackfillName {
			o.Name = shortID(o.Name)
		}
	}
	if o.BatchSize == 0 {
		o.BatchSize = DefaultBackfillBatchSize
	}
	o.Since, o.Until = o.Since.Truncate(time.Millisecond), o.Until.Truncate(time.Millisecond)
	if err := jetbus.ValidTopic(o.From); err != nil {
		return o, fmt.Errorf("option From: %w", err)
	}
	if err := jetbus.ValidTopic(o.To); err != nil {
		return o, fmt.Errorf("option To: %w", err)
	}
	if err := o.Upcasters.Valid(); err != nil {
		return o, err
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{jetbus.ErrInvalidOption}, args...)...)
	}
	switch {
	case o.From == o.To:
		return o, bad("From and To are both %s", o.From)
	case jetbus.IsDeadLetterTopic(o.From) || jetbus.IsDeadLetterTopic(o.To):
		return o, bad("dead letters are replayed, not backfilled")
	case len(o.Name) > maxBackfillName || jetbus.ValidKey(o.Name) != nil || strings.TrimSpace(o.Name) != o.Name:
		return o, bad("Name %.160q: use at most %d bytes of UTF-8 without control characters, and without spaces at the ends", o.Name, maxBackfillName)
	case o.Version < 0:
		return o, bad("Version is %d", o.Version)
	case !(o.Rate >= 0 && o.Rate <= 1e9): // nor NaN
		return o, bad("Rate is %v", o.Rate)
	case o.Limit < 0:
		return o, bad("Limit is %d", o.Limit)
	case o.BatchSize < 1 || o.BatchSize > maxBackfillBatch:
		return o, bad("BatchSize is %d, use 1 to %d", o.BatchSize, maxBackfillBatch)
	case !o.Since.IsZero() && !o.Until.IsZero() && !o.Since.Before(o.Until):
		return o, bad("Since is not before Until")
	}
	return o, nil
}
