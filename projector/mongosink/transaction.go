package mongosink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/mongolink"
	"github.com/seed-63e9a637/jetbus/projector"
)

const (
	// maxTransaction is how many changes one transaction holds at most. MongoDB advises
	// against more than 1,000 documents, and Apply may write several.
	maxTransaction = 500
	// maxRestarts is how often a transaction is begun anew before the batch is given to
	// the projection's backoff, and maxCommitTries how often one is committed again whose
	// result is not known.
	maxRestarts    = 10
	maxCommitTries = 5
	// maxRestartPause bounds the wait before a round.
	maxRestartPause = 200 * time.Millisecond
	// cleanupTimeout bounds what is done after a failure.
	cleanupTimeout = 2 * time.Second
)

// TransactionOptions configure a [Transaction].
type TransactionOptions struct {
	// Collections are those that Apply writes to, in the sink's database. They are
	// created if they do not exist, and belong to the projection then. Required.
	Collections []string
	// Indexes are ensured in the collections that they are named for. Default: none.
	Indexes map[string][]Index
	// Apply makes a change. It runs within a transaction, which ctx carries: pass ctx
	// to each call of the driver, and return the driver's errors, wrapped with %w if
	// at all. It may be called several times for a change, of which one call counts;
	// so it has no other effects than its writes. An error of [jetbus.Reject] makes
	// the event a dead letter, without what Apply wrote for it; after any other, or a
	// panic, the event is tried again, and is a dead letter after 5 failures. Required.
	Apply func(ctx context.Context, c projector.Change) error
	// Timeout is how long Open and each transaction wait for the server, and for Apply.
	// Default 30 seconds; MongoDB ends a transaction after 60.
	Timeout time.Duration
}

// Transaction is a sink that has a function write each event, in a transaction
// that stores the projection's position as well: what the function writes to the
// database counts exactly once, also where it counts, appends, or writes to several
// collections. Its projection needs Options.Every, and the server must be a replica
// set or a sharded cluster. It is a [projector.Positioner]. Open and Write are called one at
// a time; Position may be called beside them.
type Transaction struct {
	db   *mongo.Database
	book *mongo.Collection
	o    TransactionOptions

	source    projector.Source // of the last Open
	writer    string           // tells our own position from that of another replica; made by Open
	at        int64            // the position that is stored, as far as we know; -1: none
	size      int              // of the next transaction, at most
	uncounted int              // changes that were applied and not told of
	session   *mongo.Session   // of a Write that failed: its transaction may still be open
}

// NewTransaction returns a sink for the collections of a database. Nothing is
// sent before Open. The error wraps [jetbus.ErrInvalidOption].
func NewTransaction(db *mongo.Database, o TransactionOptions) (*Transaction, error) {
	if db == nil {
		return nil, fmt.Errorf("mongosink: transactions: %w: the database is nil", jetbus.ErrInvalidOption)
	}
	o, err := o.normalize()
	if err != nil {
		return nil, fmt.Errorf("mongosink: transactions: %w", err)
	}
	return &Transaction{db: db, book: openBook(db), o: o, at: -1, size: maxTransaction}, nil
}

// Write applies the changes that are behind the stored position, in transactions
// of at most 500 of them. It returns [projector.ErrFenced] where another replica has
// moved the position; Open then tells where to.
func (t *Transaction) Write(ctx context.Context, b projector.Batch) (projector.Outcome, error) {
	if t.writer == "" {
		return projector.Outcome{}, fmt.Errorf("mongosink: write: %w", ErrNotOpen)
	}
	sess := t.session
	if sess == nil {
		var err error
		if sess, err = t.db.Client().StartSession(); err != nil {
			return projector.Outcome{}, fmt.Errorf("mongosink: start a session: %w", err)
		}
	}
	rejected, err := t.write(ctx, sess, b)
	if err != nil {
		err = fmt.Errorf("mongosink: write to database %s: %w", t.db.Name(), explain(err, t.db))
	}
	if err != nil && !sess.TransactionRunning() {
		t.session = sess // a transaction that is open at the server ends with the session's next one
		return projector.Outcome{}, err
	}
	t.session = nil
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	sess.EndSession(short)
	if err != nil {
		return projector.Outcome{}, err
	}
	out := projector.Outcome{Applied: t.uncounted, Rejected: rejected}
	t.uncounted = 0
	return out, nil
}

// write goes through the changes. An event that fails has those before it
// committed, so that the next transaction begins with it.
func (t *Transaction) write(ctx context.Context, sess *mongo.Session, b projector.Batch) ([]projector.Rejection, error) {
	if err := t.check(b); err != nil {
		return nil, err
	}
	begin, rounds := t.after(b.Changes, 0), 0
	for limit := t.size; begin < len(b.Changes) || t.at < int64(b.UpTo); { //nolint:gosec // sequences fit
		part := b.Changes[begin:min(begin+limit, len(b.Changes))]
		to, last := b.UpTo, b.Last
		if begin+len(part) < len(b.Changes) {
			e := &part[len(part)-1].Event
			to, last = e.Seq, jetbus.CheckpointOf(e)
		}
		err := t.transact(ctx, sess, part, int64(to), last) //nolint:gosec // sequences fit
		bad, blamed := errors.AsType[*projector.ChangeError](err)
		switch {
		case err == nil:
			begin += len(part)
			t.at, t.uncounted, rounds = int64(to), t.uncounted+len(part), 0 //nolint:gosec // sequences fit
			t.size = min(2*t.size, maxTransaction)
			limit = t.size
			continue
		case blamed && bad.Index > 0:
			limit = bad.Index
			continue
		case blamed && jetbus.DispositionOf(bad.Err).Action == jetbus.ActionReject:
			return []projector.Rejection{{Index: begin, Err: jetbus.DispositionOf(bad.Err).Err}}, nil
		case blamed:
			return nil, &projector.ChangeError{Index: begin, Err: bad.Err}
		case errors.Is(err, errMoved):
			if err := t.resync(ctx); err != nil {
				return nil, err
			}
			stored := t.after(b.Changes, begin) - begin
			begin, t.uncounted = begin+stored, t.uncounted+stored
			continue
		case hasCode(err, codesTooLarge...) && len(part) == 1:
			return nil, &projector.ChangeError{Index: begin, Err: err}
		}
		t.size = max(len(part)/2, 1) // the transaction may be too large, or take too long
		limit = t.size
		if rounds++; rounds > maxRestarts || !hasCode(err, codesTooLarge...) && !isTransient(err) {
			return nil, err
		}
		if pause(ctx, rounds); ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, nil
}

// check reports a batch that cannot be stored with its position.
func (t *Transaction) check(b projector.Batch) error {
	if b.UpTo == 0 {
		return fmt.Errorf("%w: the batch has no position", jetbus.ErrInvalidOption)
	}
	if int64(b.UpTo) < t.at { //nolint:gosec // sequences fit
		return fmt.Errorf("%w: position %d is before the stored position %d", projector.ErrFenced, b.UpTo, t.at)
	}
	last := uint64(0)
	for i := range b.Changes {
		seq := b.Changes[i].Event.Seq
		if seq <= last || seq > b.UpTo {
			return fmt.Errorf("%w: the changes are not in order: event %d behind %d, up to %d", jetbus.ErrInvalidOption, seq, last, b.UpTo)
		}
		last = seq
	}
	return nil
}

// after returns the index of the first change from that index on which is not
// stored yet.
func (t *Transaction) after(changes []projector.Change, from int) int {
	for from < len(changes) && int64(changes[from].Event.Seq) <= t.at { //nolint:gosec // sequences fit
		from++
	}
	return from
}

// errMoved says that the stored position is not what it was.
var errMoved = errors.New("the position has moved")

// transact runs one transaction. It applies the changes, and moves the position from t.at
// to to, with last as the newest event up to there. The index in a ChangeError counts
// from the first of these changes.
func (t *Transaction) transact(ctx context.Context, sess *mongo.Session, changes []projector.Change, to int64, last jetbus.Checkpoint) error {
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	err := sess.StartTransaction(options.Transaction().
		SetReadConcern(readconcern.Snapshot()).SetReadPreference(readpref.Primary()).SetWriteConcern(writeconcern.Majority()))
	if err != nil {
		return fmt.Errorf("start a transaction: %w", err)
	}
	if err := t.apply(mongo.NewSessionContext(ctx, sess), changes, to, last); err != nil {
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_ = sess.AbortTransaction(short) // one that stays open is ended by the session's next
		if bad, ok := errors.AsType[*projector.ChangeError](err); ok {
			return t.blame(ctx, bad)
		}
		return err
	}
	for n := 1; ; n++ {
		err := sess.CommitTransaction(ctx)
		if err == nil {
			return nil
		}
		if n == maxCommitTries || !hasLabel(err, "UnknownTransactionCommitResult") || ctx.Err() != nil {
			return fmt.Errorf("commit up to %d: %w", to, err)
		}
		pause(ctx, n)
	}
}

// apply is what is inside a transaction. The position comes first: it is the
// fence, and of two replicas one meets the other there.
func (t *Transaction) apply(ctx context.Context, changes []projector.Change, to int64, last jetbus.Checkpoint) error {
	filter := bson.D{
		{Key: "_id", Value: positionID(t.source.Projection)},
		{Key: "stream", Value: t.source.Stream},
		{Key: "created", Value: t.source.Created.UnixNano()},
		{Key: "seq", Value: t.at},
	}
	set := bson.D{{Key: "seq", Value: to}, {Key: "at", Value: time.Now()}, {Key: "writer", Value: t.writer}}
	if last.Seq > 0 {
		set = append(set, bson.E{Key: "last", Value: lastOf(last)})
	}
	moved, err := t.book.UpdateOne(ctx, filter, bson.D{{Key: "$set", Value: set}})
	switch {
	case err != nil:
		return fmt.Errorf("store position %d: %w", to, err)
	case moved.MatchedCount == 0:
		return errMoved
	}
	for i := range changes {
		if err := t.call(ctx, changes[i]); err != nil {
			return &projector.ChangeError{Index: i, Err: err}
		}
	}
	return nil
}

// call calls Apply and makes an error of its panic. One that drops the event is done.
func (t *Transaction) call(ctx context.Context, c projector.Change) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &jetbus.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	if err = t.o.Apply(ctx, c); jetbus.DispositionOf(err).Action == jetbus.ActionAck {
		return nil
	}
	return err
}

// blame returns a failure of Apply where the change is to blame for it, and
// otherwise, the server being away, an error of the sink: whatever Apply made of the
// driver's error, nothing becomes a dead letter for that.
func (t *Transaction) blame(ctx context.Context, bad *projector.ChangeError) error {
	away := fmt.Errorf("apply: %w", bad.Err)
	if steered := jetbus.DispositionOf(bad.Err).Err; steered != nil {
		away = fmt.Errorf("apply: %w", steered)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isTransient(bad.Err) || mongolink.IsBroken(bad.Err) || mongo.IsTimeout(bad.Err):
		return away
	}
	if _, ok := errors.AsType[mongo.ServerError](bad.Err); ok {
		return bad // it has answered
	}
	short, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	if _, err := t.position(short); err != nil {
		return errors.Join(away, err)
	}
	return bad
}

// resync finds out why the position has moved: a transaction of ours was
// committed without our knowing, or another replica is at work.
func (t *Transaction) resync(ctx context.Context) error {
	p, err := t.position(ctx)
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return fmt.Errorf("%w: the position is gone", projector.ErrFenced)
	case err != nil:
		return err
	case p.Seq <= t.at || p.Writer != t.writer || !p.of(t.source):
		return fmt.Errorf("%w: the position is %d, not %d", projector.ErrFenced, p.Seq, t.at)
	}
	t.at = p.Seq
	return nil
}

// pause waits a random while before a round, longer from round to round.
func pause(ctx context.Context, round int) {
	timer := time.NewTimer(rand.N(min(time.Millisecond<<round, maxRestartPause)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func hasLabel(err error, label string) bool {
	labeled, ok := errors.AsType[mongo.LabeledError](err)
	return ok && labeled.HasErrorLabel(label)
}

// isTransient reports an error after which a transaction may well succeed.
func isTransient(err error) bool { return hasLabel(err, "TransientTransactionError") }

// codesTooLarge are the errors of a server that has no room for a transaction.
var codesTooLarge = []int{257, 391, codeTooLarge}
