package projector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Sink is where a projection keeps its state: a collection of a database, say.
// It may be used by several replicas of a projection at once, in different
// processes; each replica calls the methods of its own Sink one at a time.
type Sink interface {
	// Open makes the sink ready for a source: what is missing is created, what is
	// in the way is an error ([ErrOwned], [ErrNewStream], or one of the sink's). It
	// is called again after it failed, and before each turn of an exclusive projection.
	Open(ctx context.Context, s Source) (Position, error)
	// Write stores a batch: each change, unless what the sink holds of its key is as
	// new or newer. When it returns without an error, the changes are as safe as the
	// sink can make them. An error means that nothing is known of any change, and
	// the same batch is written again later; so what was stored already must do no
	// harm. It may be a [ChangeError]. Changes that can never be stored are no error:
	// they are the outcome's Rejected.
	Write(ctx context.Context, b Batch) (Outcome, error)
}

// Source is what a projection reads, as far as a sink cares.
type Source struct {
	Projection string    // the projection's name
	Topic      string    // the topic whose events it projects
	Stream     string    // where the topic is stored
	Created    time.Time // when that was made: another time is another stream, with sequences of its own
	Exclusive  bool      // see Options.Exclusive
	Every      bool      // see Options.Every
	Versioned  bool      // there is an Options.VersionOf
}

// Position is the progress of a sink with a source.
type Position struct {
	// Known: the sink has seen this source before.
	Known bool
	// Seq is the sequence up to which the sink certainly has every event. The sink may have
	// later events, too, except in an exclusive projection, where Seq is exact.
	Seq uint64
	// Last is the newest event that may be in the sink; see [Batch]. Start returns
	// [ErrNewStream] if the topic does not have it, because its broker was restored to an
	// earlier state. Zero: unknown, because an older version filled the sink; then only Seq is
	// compared.
	Last jetbus.Checkpoint
}

// checkpoint returns the position that is compared with the topic.
func (p Position) checkpoint() jetbus.Checkpoint {
	if p.Last.Seq == 0 {
		return jetbus.Checkpoint{Seq: p.Seq}
	}
	return p.Last
}

// Batch is what a sink writes in one call.
type Batch struct {
	// Changes are in the order of their versions and sequences, with one change of a
	// key at most, unless Options.Every is set.
	Changes []Change
	// UpTo is the sequence up to which the sink has every event once the batch is written. In
	// an exclusive projection, the sink must store it together with the changes, and must
	// refuse the batch ([ErrFenced]) if another replica or a rebuild has moved the stored value
	// since this sink last read or wrote it. If a change of the batch is rejected, UpTo is not
	// stored: the batch is written again without that change, which is a dead letter by then.
	// Zero: unknown.
	UpTo uint64
	// Last is the newest event of this batch and all batches before it, or a later end of the
	// topic. A sink that outlives the process stores it before the changes or together with
	// them, unless the stored one is newer, and returns it as Position.Last. If replicas share
	// the events, the sink should be a [Positioner], so that each replica learns the newest
	// event of the others. Zero: unknown.
	Last jetbus.Checkpoint
}

// Change is the effect of an event on its key.
type Change struct {
	Key string
	// Doc is the new state: the result of Options.Map, by default the event's payload as
	// json.RawMessage, or as []byte if its content type is application/bson. Nil if Deleted is
	// set.
	Doc any
	// Deleted: the key no longer exists.
	Deleted bool
	// Version orders the changes of a key, before their sequences do, if Versioned is set.
	Version   int64
	Versioned bool
	// Event is the event. Its Seq orders the changes of a key.
	Event jetbus.Event
}

// Outcome is the result of writing a batch.
type Outcome struct {
	Applied int // changes that are in the sink now
	Stale   int // changes for which the sink had something as new or newer
	// Raced is how many of both were written again because another writer changed the key.
	Raced int
	// Rejected are changes that can never be stored, in order. With Source.Every, the changes
	// after the first rejected one need not have been written yet; otherwise all other changes
	// are written as if the rejected ones were absent.
	Rejected []Rejection
}

// Rejection is a change that a sink cannot store.
type Rejection struct {
	Index int // in Batch.Changes
	Err   error
}

// ChangeError is an error of Sink.Write that one change is to blame for, not the
// sink. The batch is written again, and a change that has failed five times is given
// up: its event becomes a dead letter.
type ChangeError struct {
	Index int // in Batch.Changes
	Err   error
}

// Error names the change by its place in the batch.
func (e *ChangeError) Error() string { return fmt.Sprintf("change %d: %v", e.Index, e.Err) }

// Unwrap returns the cause.
func (e *ChangeError) Unwrap() error { return e.Err }

// Errors of Sink.Open. They are wrapped with what is in the way and what to do.
var (
	// ErrOwned: what the sink holds belongs to another projection.
	ErrOwned = errors.New("owned by another projection")
	// ErrNewStream: since the sink was filled, the topic was deleted and declared again, or was
	// restored to an earlier state; then the error wraps a [jetbus.RestoredError]. Sequences
	// are reused, so new events would be treated as old ones. Rebuild the sink.
	ErrNewStream = errors.New("the topic has another history")
	// ErrFenced: another replica has written to the sink in the meantime.
	ErrFenced = errors.New("another replica took over")
)

// ErrSwapRefused is returned by Shadow.Open and Shadow.Swap if the database will never put the shadow
// into place, because a permission or a command is missing. It is wrapped with the cause.
var ErrSwapRefused = errors.New("the swap is refused")

// Positioner is a Sink that says how far it has got with a source without being opened for it:
// [Projection.Lag] of a replica that stands by asks it.
type Positioner interface {
	Sink
	// Position reads the position and changes nothing. It may be called at any time, also
	// beside the other methods, and before Open. Its errors are those of Open.
	Position(ctx context.Context, s Source) (Position, error)
}

// Rebuilder is a Sink that can be filled anew beside what it holds.
type Rebuilder interface {
	Sink
	// Shadow returns an empty sink beside this one, to be filled and put into its
	// place. Its Open removes one that an earlier rebuild left behind.
	Shadow(ctx context.Context) (Shadow, error)
}

// Shadow is a sink that is being filled to replace another.
type Shadow interface {
	Sink
	// Swap puts the shadow into the place of the other sink, whose content is gone.
	// The shadow stays usable: it writes to what it has become. After an error it is
	// called again, unless that is one of Open's or [ErrSwapRefused]. With Source.Every
	// it is called while no replica projects.
	Swap(ctx context.Context) error
	// Drop removes the shadow where it was not swapped, and does nothing after that. It
	// may come behind a Swap that was given up: from then on none is carried out any more.
	Drop(ctx context.Context) error
}
