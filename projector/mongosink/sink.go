package mongosink

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/mongolink"
	"github.com/seed-63e9a637/jetbus/projector"
)

// Sink fills a collection. It is a [projector.Rebuilder] and a [projector.Positioner]. Open and Write are called
// one at a time; Shadow and Position may be called beside them. Each replica has a Sink of its
// own, as has each topic where several fill one collection.
type Sink struct {
	db *mongo.Database
	o  Options
	w  *writer // nil: not open
}

// New makes a sink for a collection of a database, whose client stays the
// caller's. Nothing is sent. An error wraps jetbus.ErrInvalidOption.
func New(db *mongo.Database, o Options) (*Sink, error) {
	if db == nil {
		return nil, fmt.Errorf("mongosink: %w: the database is nil", jetbus.ErrInvalidOption)
	}
	o, err := o.normalize()
	if err != nil {
		return nil, fmt.Errorf("mongosink: %w", err)
	}
	return &Sink{db: db, o: o}, nil
}

// Open checks that the server answers, creates the collection and its indexes where
// they do not exist, and claims the collection for the projection. Errors wrap
// [ErrUnreachable], [ErrCredentials], [ErrDenied], [ErrIndexConflict],
// projector.ErrOwned, projector.ErrNewStream, jetbus.ErrInvalidOption; they come
// within Options.Timeout.
func (s *Sink) Open(ctx context.Context, src projector.Source) (projector.Position, error) {
	w := s.writer(src)
	if s.w != nil {
		w.session = s.w.session
	}
	s.w = nil
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	if err := mongolink.Persist(ctx, func() error { return s.open(ctx, w) }); err != nil {
		return projector.Position{}, fmt.Errorf("mongosink: open collection %s of database %s: %w", s.o.Collection, s.db.Name(), explain(err, s.db))
	}
	s.w = w
	return w.mark.pos, nil
}

// Position reads how far the collection has got with a source, and changes nothing. It may
// be called beside all other methods. A collection that no projection has claimed yet has
// not begun. Errors wrap [ErrUnreachable], [ErrCredentials], [ErrDenied],
// projector.ErrOwned and projector.ErrNewStream; they come within Options.Timeout.
func (s *Sink) Position(ctx context.Context, src projector.Source) (projector.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	var at projector.Position
	err := mongolink.Persist(ctx, func() error {
		p, err := readPage(ctx, openBook(s.db), s.o.Collection)
		if err != nil || p == nil {
			return err
		}
		at = p.position(src.Topic)
		return p.check(src)
	})
	if err != nil {
		return projector.Position{}, fmt.Errorf("mongosink: position of collection %s of database %s: %w", s.o.Collection, s.db.Name(), explain(err, s.db))
	}
	return at, nil
}

func (s *Sink) open(ctx context.Context, w *writer) error {
	if err := s.check(ctx, w.mark.src); err != nil {
		return err
	}
	if err := finishSwap(ctx, s.db, s.o.Collection); err != nil {
		return err
	}
	p, err := readPage(ctx, w.mark.book, s.o.Collection)
	if err != nil {
		return err
	}
	if p != nil { // before anything of another projection is touched
		if err := p.check(w.mark.src); err != nil {
			return err
		}
	}
	if err := prepare(ctx, s.db, s.o.Collection, s.o.Indexes, s.expires()); err != nil {
		return err
	}
	return w.mark.claim(ctx)
}

// expires reports whether documents of deleted keys go after a while.
func (s *Sink) expires() bool { return !s.o.HardDelete && s.o.TombstoneTTL != forever }

// check makes sure that the server answers and can do what is needed.
func (s *Sink) check(ctx context.Context, src projector.Source) error {
	switch {
	case src.Projection == "" || src.Topic == "" || src.Stream == "" || src.Created.IsZero():
		return fmt.Errorf("%w: the source lacks Projection, Topic, Stream or Created", jetbus.ErrInvalidOption)
	case s.o.HardDelete && !src.Exclusive:
		return fmt.Errorf("%w: HardDelete needs an exclusive projection: several replicas would bring deleted keys back", jetbus.ErrInvalidOption)
	case s.o.HardDelete && src.Versioned:
		return fmt.Errorf("%w: HardDelete keeps no version of a deleted key, which an event of an older one would bring back: leave it or VersionOf out", jetbus.ErrInvalidOption)
	}
	if err := jetbus.ValidTopic(src.Topic); err != nil { // a field is named after it
		return err
	}
	set, err := isReplicaSet(ctx, s.db)
	if err == nil && s.o.HardDelete && !set {
		err = fmt.Errorf("HardDelete: %w: start it with --replSet, or leave HardDelete out", ErrNeedsReplicaSet)
	}
	return err
}

// isReplicaSet asks the server whether it is a member of a set, or a router.
func isReplicaSet(ctx context.Context, db *mongo.Database) (bool, error) {
	var hello struct {
		SetName string `bson:"setName"`
		Msg     string `bson:"msg"`
	}
	if err := db.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return false, err
	}
	return hello.SetName != "" || hello.Msg == "isdbgrid", nil
}

// writer makes the writer to the sink's collection.
func (s *Sink) writer(src projector.Source) *writer {
	return &writer{
		db: s.db, o: &s.o, coll: s.db.Collection(s.o.Collection, safely()),
		mark: &bookmark{book: openBook(s.db), page: s.o.Collection, src: src},
	}
}

// Write stores a batch; see projector.Sink. Changes are rejected with errors that wrap
// [ErrInvalidDocument], [ErrTooLarge], [ErrKeyTaken], [ErrDuplicate] or [ErrRefused].
//
// If a change collides in a unique index, it is written again as long as other changes of the
// batch may have removed the collision. Changes that swap values are written together in a
// transaction, which requires a replica set. Changes that still collide are rejected. The
// change that would remove the collision may be in a later batch or, if replicas share the
// events, in another replica's batch: rebuild the projection then.
func (s *Sink) Write(ctx context.Context, b projector.Batch) (projector.Outcome, error) {
	if s.w == nil {
		return projector.Outcome{}, fmt.Errorf("mongosink: write: %w", ErrNotOpen)
	}
	return s.w.writeBatch(ctx, b)
}

// writeBatch is Write of a sink and of a shadow.
func (w *writer) writeBatch(ctx context.Context, b projector.Batch) (projector.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, w.o.Timeout)
	defer cancel()
	out, err := w.write(ctx, b)
	if err == nil {
		return out, nil
	}
	if errors.Is(err, projector.ErrFenced) {
		return projector.Outcome{}, fmt.Errorf("mongosink: %w", err)
	}
	return projector.Outcome{}, fmt.Errorf("mongosink: write to collection %s of database %s: %w", w.coll.Name(), w.db.Name(), explain(err, w.db))
}
