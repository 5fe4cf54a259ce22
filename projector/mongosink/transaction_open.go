package mongosink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/mongolink"
	"github.com/seed-63e9a637/jetbus/projector"
)

// position is the document that holds how far a transactional projection has got.
type position struct {
	ID         string    `bson:"_id"` // positionID
	Projection string    `bson:"projection"`
	Topic      string    `bson:"topic"`
	Stream     string    `bson:"stream"`
	Created    int64     `bson:"created"` // when the stream was made, in nanoseconds
	Seq        int64     `bson:"seq"`     // up to which every event counts; -1: nothing was written yet
	At         time.Time `bson:"at"`      // when that was written
	Writer     string    `bson:"writer"`  // the replica that did
	// Last is the newest event that is applied; nil: unknown.
	Last *lastEvent `bson:"last,omitempty"`
}

// positionID returns the _id of a position. No collection of a sink has such a name.
func positionID(projection string) string { return "projection " + projection }

// of reports whether this is a position in the stream of s.
func (p *position) of(s projector.Source) bool {
	return p.Stream == s.Stream && p.Created == s.Created.UnixNano()
}

// normalize returns the options with defaults filled in, or an error that names
// the field.
func (o TransactionOptions) normalize() (TransactionOptions, error) {
	bad := func(format string, args ...any) (TransactionOptions, error) {
		return o, fmt.Errorf("%w: "+format, append([]any{jetbus.ErrInvalidOption}, args...)...)
	}
	switch {
	case o.Apply == nil:
		return bad("Apply is required")
	case len(o.Collections) == 0:
		return bad("Collections is empty: name those that Apply writes to")
	case o.Timeout < 0:
		return bad("Timeout is negative")
	}
	for i, name := range o.Collections {
		if err := validCollection(name); err != nil {
			return o, err
		}
		if slices.Contains(o.Collections[:i], name) {
			return bad("Collections names %s twice", name)
		}
	}
	indexes := make(map[string][]Index, len(o.Indexes))
	for name, list := range o.Indexes {
		if !slices.Contains(o.Collections, name) {
			return bad("Indexes are for %s, which Collections does not name", name)
		}
		var err error
		if indexes[name], err = normalizeIndexes(list); err != nil {
			return o, fmt.Errorf("collection %s: %w", name, err)
		}
	}
	o.Collections, o.Indexes = slices.Clone(o.Collections), indexes
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	return o, nil
}

// Open checks that the server answers and has transactions, claims the collections
// for the projection, creates them and their indexes where they do not exist, and
// returns the stored position. Errors wrap [ErrNeedsReplicaSet], [ErrUnreachable],
// [ErrCredentials], [ErrDenied], [ErrIndexConflict], projector.ErrOwned,
// projector.ErrNewStream, and jetbus.ErrInvalidOption for a projection without
// Options.Every; they come within TransactionOptions.Timeout.
func (t *Transaction) Open(ctx context.Context, s projector.Source) (projector.Position, error) {
	t.writer, t.uncounted = "", 0
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	var p position
	err := mongolink.Persist(ctx, func() (err error) {
		p, err = t.open(ctx, s)
		return err
	})
	if err != nil {
		return projector.Position{}, fmt.Errorf("mongosink: open database %s for the transactions of projection %s: %w", t.db.Name(), s.Projection, explain(err, t.db))
	}
	t.at, t.writer = p.Seq, bson.NewObjectID().Hex()
	return p.known(), nil
}

// Position reads the stored position, and changes nothing. It may be called beside all other
// methods. Errors wrap [ErrUnreachable], [ErrCredentials], [ErrDenied], projector.ErrOwned and
// projector.ErrNewStream; they come within TransactionOptions.Timeout.
func (t *Transaction) Position(ctx context.Context, s projector.Source) (projector.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	p := position{Seq: -1}
	err := mongolink.Persist(ctx, func() error {
		at, err := readPosition(ctx, t.book, s.Projection)
		if errors.Is(err, mongo.ErrNoDocuments) {
			return nil
		}
		if err != nil {
			return err
		}
		p = at
		return p.fits(s)
	})
	if err != nil {
		return projector.Position{}, fmt.Errorf("mongosink: position of projection %s in database %s: %w", s.Projection, t.db.Name(), explain(err, t.db))
	}
	return p.known(), nil
}

// known is the position as a projection has it.
func (p *position) known() projector.Position {
	at := projector.Position{Known: p.Seq >= 0, Last: p.Last.checkpoint()}
	at.Seq = uint64(max(p.Seq, 0)) //nolint:gosec // not negative
	return at
}

func (t *Transaction) open(ctx context.Context, s projector.Source) (position, error) {
	t.source = s
	if err := t.checkServer(ctx); err != nil {
		return position{}, err
	}
	p, err := t.position(ctx)
	known := !errors.Is(err, mongo.ErrNoDocuments)
	if known {
		if err == nil {
			err = p.fits(s)
		}
		if err != nil {
			return position{}, err
		}
	}
	for _, name := range t.o.Collections {
		if err := t.claim(ctx, name, s.Projection); err != nil {
			return position{}, err
		}
	}
	for _, name := range t.o.Collections {
		if err := prepare(ctx, t.db, name, t.o.Indexes[name], false); err != nil {
			return position{}, err
		}
	}
	if known {
		return p, nil
	}
	p = position{
		ID: positionID(s.Projection), Projection: s.Projection, Topic: s.Topic, Stream: s.Stream,
		Created: s.Created.UnixNano(), Seq: -1, At: time.Now(),
	}
	if _, err := t.book.InsertOne(ctx, p); err == nil || !mongo.IsDuplicateKeyError(err) {
		return p, wrap("store the position", err)
	}
	if p, err = t.position(ctx); err != nil { // another replica was faster
		return position{}, err
	}
	return p, p.fits(s)
}

// checkServer makes sure that the server answers and can do what is needed.
func (t *Transaction) checkServer(ctx context.Context) error {
	switch s := t.source; {
	case s.Projection == "" || s.Topic == "" || s.Stream == "" || s.Created.IsZero():
		return fmt.Errorf("%w: the source lacks Projection, Topic, Stream or Created", jetbus.ErrInvalidOption)
	case !s.Every || !s.Exclusive:
		return fmt.Errorf("%w: transactions count each event once, in order: set Options.Every and Exclusive of the projection", jetbus.ErrInvalidOption)
	}
	set, err := isReplicaSet(ctx, t.db)
	if err == nil && !set {
		err = fmt.Errorf("%w, for it has no transactions otherwise: start it with --replSet and initiate the set", ErrNeedsReplicaSet)
	}
	return err
}

// position reads the stored position.
func (t *Transaction) position(ctx context.Context) (position, error) {
	return readPosition(ctx, t.book, t.source.Projection)
}

func readPosition(ctx context.Context, book *mongo.Collection, projection string) (p position, err error) {
	err = book.FindOne(ctx, bson.D{{Key: "_id", Value: positionID(projection)}}).Decode(&p)
	return p, wrap("read the position", err)
}

// fits reports that the position is one in another topic or stream.
func (p *position) fits(s projector.Source) error {
	switch {
	case p.Topic != s.Topic:
		return fmt.Errorf("%w: projection %s of this database is one of topic %s, not of %s; use another name",
			projector.ErrOwned, s.Projection, p.Topic, s.Topic)
	case !p.of(s):
		return fmt.Errorf("%w: its stream is %s of %s, the position %d is in %s of %s; "+
			"where the collections shall go on, delete %q in %s, else delete them as well",
			projector.ErrNewStream, s.Stream, moment(s.Created.UnixNano()), p.Seq, p.Stream, moment(p.Created), p.ID, bookCollection)
	}
	return nil
}

// moment is how the creation of a stream is shown to people.
func moment(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }

// claim notes whose the collection is, or finds that it is another projection's.
func (t *Transaction) claim(ctx context.Context, collection, projection string) error {
	id := bson.D{{Key: "_id", Value: collection}}
	_, err := t.book.InsertOne(ctx, bson.D{
		id[0], {Key: "projection", Value: projection}, {Key: "sources", Value: bson.D{}}, {Key: "transaction", Value: true},
	})
	if !mongo.IsDuplicateKeyError(err) {
		return wrap("claim collection "+collection, err)
	}
	var have struct {
		Projection  string `bson:"projection"`
		Transaction bool   `bson:"transaction"`
	}
	if err := t.book.FindOne(ctx, id).Decode(&have); err != nil {
		return fmt.Errorf("read whose collection %s is: %w", collection, err)
	}
	if have.Projection != projection || !have.Transaction {
		kind := ""
		if have.Projection == projection {
			kind = ", which is not transactional"
		}
		return fmt.Errorf("collection %s: %w, %s%s; use another collection, or delete %q in %s",
			collection, projector.ErrOwned, have.Projection, kind, collection, bookCollection)
	}
	return nil
}

// wrap names what failed; nil stays nil.
func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
