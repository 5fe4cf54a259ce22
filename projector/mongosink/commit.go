package mongosink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-63e9a637/jetbus/projector"
)

// commit stores a batch and its position in one transaction, provided that no other
// replica has moved the position. If there are no tombstones, only this prevents a replica
// that lost its lock without noticing from restoring deleted keys.
//
// If the server refuses a write, the transaction ends and is run again; see
// transactParked.
func (w *writer) commit(ctx context.Context, writes []*guarded, b projector.Batch, out *projector.Outcome) error {
	if len(writes) == 0 && (b.UpTo == 0 || len(out.Rejected) > 0) {
		return nil
	}
	var moves bool
	var stale int
	err := w.transactParked(ctx, func(ctx context.Context, paths []string) error {
		moves = b.UpTo > 0 && len(out.Rejected) == 0
		err := w.mark.hold(ctx, b, moves)
		if err == nil {
			stale, err = w.replace(ctx, writes, out.Rejected, paths)
		}
		return err
	}, &out.Rejected)
	switch {
	case errors.Is(err, errCommitted):
		out.Stale = len(writes)
		return nil
	case err != nil:
		return err
	}
	if moves {
		w.mark.pos.Known, w.mark.pos.Seq = true, b.UpTo
	}
	if b.Last.Seq > w.mark.pos.Last.Seq {
		w.mark.pos.Last = b.Last
	}
	out.Stale = stale
	out.Applied = len(writes) - stale - rejectedOf(writes, out.Rejected)
	return nil
}

// maxPauseRound is the round of pause from which on pauses get no longer.
const maxPauseRound = 16

// transact runs a transaction, again where the server says that it may succeed
// then. Session.WithTransaction is no help: it takes up to two minutes for a commit,
// whatever the context says.
//
// A session whose transaction may be open at the server is kept: its next one ends it.
func (w *writer) transact(ctx context.Context, run func(context.Context) error) error {
	if w.session == nil {
		session, err := w.db.Client().StartSession()
		if err != nil {
			return err
		}
		w.session = session
	}
	for n := 1; ; n++ {
		err := w.transactOnce(ctx, run)
		if err == nil || !isTransient(err) {
			if err == nil {
				w.session.EndSession(context.WithoutCancel(ctx)) // sends nothing
				w.session = nil
			}
			return err
		}
		if pause(ctx, min(n, maxPauseRound)); ctx.Err() != nil {
			return err
		}
	}
}

func (w *writer) transactOnce(ctx context.Context, run func(context.Context) error) error {
	o := options.Transaction().SetReadConcern(readconcern.Snapshot()).SetReadPreference(readpref.Primary()).SetWriteConcern(writeconcern.Majority())
	if err := w.session.StartTransaction(o); err != nil {
		return err
	}
	if err := run(mongo.NewSessionContext(ctx, w.session)); err != nil {
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_ = w.session.AbortTransaction(short) // the cause is worth more
		return err
	}
	for n := 1; ; n++ {
		err := w.session.CommitTransaction(ctx)
		if err == nil || !hasLabel(err, "UnknownTransactionCommitResult") {
			return err
		}
		if pause(ctx, min(n, maxPauseRound)); ctx.Err() != nil {
			return fmt.Errorf("it is not known whether the transaction was committed: %w", err)
		}
	}
}

// errCommitted: the batch was committed before, and its answer got lost.
var errCommitted = errors.New("committed before")

// A refusalError reports a write that the server refused within a transaction.
type refusalError struct {
	projector.Rejection
	paths []string // fields of the unique index that refused it; nil: it can never be stored
}

func (e *refusalError) Error() string { return e.Err.Error() }

// hold makes the position part of a transaction, so that the transaction fails if another
// replica moves the position. If moves is set, hold also moves it.
func (m *bookmark) hold(ctx context.Context, b projector.Batch, moves bool) error {
	upTo := b.UpTo
	if m.pos.Known && moves && upTo < m.pos.Seq {
		return fmt.Errorf("%w: position %d is before the stored position %d", projector.ErrFenced, upTo, m.pos.Seq)
	}
	set := bson.D{{Key: m.field("at"), Value: time.Now()}}
	if moves {
		set = append(set, bson.E{Key: m.field("seq"), Value: int64(upTo)}) //nolint:gosec // sequences are far below 2^63
	}
	if b.Last.Seq > m.pos.Last.Seq {
		set = append(set, bson.E{Key: m.field("last"), Value: lastOf(b.Last)})
	}
	r, err := m.book.UpdateOne(ctx, append(m.filter(), bson.E{Key: m.field("seq"), Value: m.stored()}), bson.D{{Key: "$set", Value: set}})
	if err != nil || r.MatchedCount > 0 {
		return err
	}
	p, err := readPage(ctx, m.book, m.page)
	if err != nil {
		return err
	}
	if p != nil && moves && p.check(m.src) == nil && p.Token == m.token && p.Swapped == m.swapped {
		if stored := p.position(m.src.Topic); stored.Known && stored.Seq == upTo {
			m.pos = stored
			return errCommitted
		}
	}
	return m.fenced()
}

// replace writes the changes that are not stale within a transaction, and counts the stale
// ones. It parks the fields at paths first.
func (w *writer) replace(ctx context.Context, writes []*guarded, rejected []projector.Rejection, paths []string) (stale int, err error) {
	keys := make([]string, 0, len(writes))
	for _, g := range writes {
		keys = append(keys, g.key)
	}
	slices.Sort(keys)
	marks, err := w.marks(ctx, slices.Compact(keys))
	if err != nil {
		return 0, err
	}
	var todo []*guarded
	for _, g := range writes {
		m, found := marks[g.key]
		switch {
		case isRejected(g, rejected):
		case found && m.foreign != "":
			return 0, &refusalError{Rejection: projector.Rejection{Index: g.index, Err: keyTaken(g.key, m)}}
		case found && m.newer:
			return 0, w.madeAnew(g.key)
		case found && m.covers(g):
			stale++
		default:
			todo = append(todo, g)
		}
	}
	if err := w.park(ctx, todo, paths); err != nil {
		return 0, err
	}
	return stale, w.replaceAll(ctx, todo)
}

// replaceAll writes changes in order, within a transaction.
func (w *writer) replaceAll(ctx context.Context, writes []*guarded) error {
	for chunk := range chunks(writes) {
		if err := w.replaceChunk(ctx, chunk); err != nil {
			return err
		}
	}
	return nil
}

// replaceChunk is replaceAll for changes that fit into one request.
func (w *writer) replaceChunk(ctx context.Context, writes []*guarded) error {
	models := make([]mongo.WriteModel, len(writes))
	for i, g := range writes {
		if g.deleted && w.o.HardDelete {
			models[i] = mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: g.key}})
		} else {
			models[i] = g.model()
		}
	}
	return w.sendOrdered(ctx, writes, models)
}

// sendOrdered sends one request within a transaction. Each of the models is part of the write
// with its index.
func (w *writer) sendOrdered(ctx context.Context, writes []*guarded, models []mongo.WriteModel) error {
	_, err := w.coll.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(true))
	if be, ok := errors.AsType[mongo.BulkWriteException](err); ok && len(be.WriteErrors) > 0 {
		we := be.WriteErrors[0].WriteError
		g := writes[we.Index]
		switch {
		case we.Code == codeDuplicateKey && onKey(we) && !w.o.HardDelete:
			return errRaced
		case we.Code == codeDuplicateKey && !onKey(we):
			return &refusalError{Rejection: projector.Rejection{Index: g.index, Err: duplicate(we)}, paths: pathsOf(we)}
		case permanent[we.Code]:
			return &refusalError{Rejection: projector.Rejection{Index: g.index, Err: refused(we)}}
		}
	}
	return err
}

func isRejected(g *guarded, rejected []projector.Rejection) bool {
	return slices.ContainsFunc(rejected, func(r projector.Rejection) bool { return r.Index == g.index })
}

// rejectedOf counts the writes that were rejected.
func rejectedOf(writes []*guarded, rejected []projector.Rejection) int {
	n := 0
	for _, g := range writes {
		if isRejected(g, rejected) {
			n++
		}
	}
	return n
}
