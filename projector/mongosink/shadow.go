package mongosink

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector"
)

// shadowInfix follows the collection's name in that of a rebuild's page, and in
// that of the collection it fills, which ends with the rebuild's token.
const shadowInfix = "__rebuild"

// shadow is a collection that is filled to replace the sink's. Each rebuild has a
// token, in its page of the book and in the name of its collection: one that comes
// back from the dead when another has begun can neither write nor swap.
//
// A swap is: mark the page, rename the collection, move what the page says to the
// page of the collection that it replaced. A crash before the rename leaves the old
// content. A crash behind it leaves a marked page of the very collection that the sink
// has now, which the next Open or Shadow takes as the order to move it.
//
// The server may carry out a rename long after who asked for it has given up. So the end
// of a swap is never told from what is missing, but from the UUID of what is there, and
// nobody takes a marked page away before the shadow is dropped: then no rename can find it.
type shadow struct {
	sink    *Sink
	token   string
	name    string       // of its collection
	uuid    *bson.Binary // of its collection, whatever that is called
	w       *writer
	begun   bool // it has a page
	swapped bool
	dropped bool
}

// Shadow returns a sink for an empty collection beside this one's, which its Open makes.
// That also removes what an earlier rebuild left behind, and takes the place of one that is
// under way. All documents of the collection are going to be replaced: those of other
// sources, or of nobody, too; for other sources the shadow's Open refuses that.
func (s *Sink) Shadow(context.Context) (projector.Shadow, error) {
	token := bson.NewObjectID().Hex()
	return &shadow{sink: s, token: token, name: s.o.Collection + shadowInfix + "_" + token}, nil
}

// page is the _id of the rebuild's page.
func (sh *shadow) page() string { return sh.sink.o.Collection + shadowInfix }

// Open begins the rebuild: it creates the shadow's collection and its indexes.
func (sh *shadow) Open(ctx context.Context, src projector.Source) (projector.Position, error) {
	s := sh.sink
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	w := s.writer(src)
	w.coll = s.db.Collection(sh.name, safely())
	w.mark.page, w.mark.token = sh.page(), sh.token
	err := sh.usable()
	if err == nil {
		err = sh.open(ctx, w)
	}
	if err != nil {
		return projector.Position{}, fmt.Errorf("mongosink: rebuild collection %s: %w", s.o.Collection, explain(err, s.db))
	}
	sh.w = w
	return w.mark.pos, nil
}

func (sh *shadow) usable() error {
	if sh.dropped {
		return fmt.Errorf("%w: the shadow was dropped", ErrNotOpen)
	}
	if sh.swapped {
		return fmt.Errorf("%w: the shadow was swapped", jetbus.ErrInvalidOption)
	}
	return nil
}

func (sh *shadow) open(ctx context.Context, w *writer) error {
	s, src := sh.sink, w.mark.src
	if err := s.check(ctx, src); err != nil {
		return err
	}
	if err := sh.checkRename(ctx); err != nil {
		return err
	}
	if err := finishSwap(ctx, s.db, s.o.Collection); err != nil {
		return err
	}
	main, err := readPage(ctx, w.mark.book, s.o.Collection)
	if err != nil {
		return err
	}
	// What is refused here has not disturbed a rebuild that is under way.
	if main != nil {
		if others := main.others(src.Topic); main.Projection == src.Projection && len(others) > 0 {
			return fmt.Errorf("%w: the collection is filled from %s as well, which a rebuild from %s would lose: drop the collection and its document in %s, and let all of them fill it anew",
				jetbus.ErrInvalidOption, strings.Join(others, ", "), src.Topic, bookCollection)
		}
		if err := main.check(src); err != nil && !errors.Is(err, projector.ErrNewStream) {
			return err
		}
	}
	if err := sh.begin(ctx, w.mark); err != nil {
		return err
	}
	if err := prepare(ctx, s.db, sh.name, s.o.Indexes, s.expires()); err != nil {
		return err
	}
	if err := w.mark.claim(ctx); err != nil {
		return err
	}
	if sh.uuid, err = uuidOf(ctx, s.db, sh.name); err == nil && sh.uuid == nil { // another rebuild has removed it
		err = w.mark.fenced()
	}
	return err
}

// checkRename returns [projector.ErrSwapRefused] if the server has no renameCollection command, which
// the swap needs. Without the check a rebuild would fail only at its end. The check renames a collection
// that does not exist and ignores every other error: the user may be permitted to rename the real one.
func (sh *shadow) checkRename(ctx context.Context) error {
	db := sh.sink.db
	none := db.Name() + "." + sh.name + "_none"
	err := db.Client().Database("admin").RunCommand(ctx, bson.D{{Key: "renameCollection", Value: none}, {Key: "to", Value: none + "_to"}}).Err()
	if hasCode(err, codeCommandNotFound, codeCommandNotSupported, codeNotImplemented) {
		return fmt.Errorf("%w: the server cannot rename collections: %w", projector.ErrSwapRefused, err)
	}
	return nil
}

// begin makes the page of the rebuild, unless it is there, and removes what others left.
func (sh *shadow) begin(ctx context.Context, mark *bookmark) error {
	if err := sh.enter(ctx, mark); err != nil {
		return err
	}
	db := sh.sink.db
	names, err := db.ListCollectionNames(ctx, bson.D{{Key: "type", Value: "collection"}})
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, sh.page()+"_") && name != sh.name {
			if err := db.Collection(name, safely()).Drop(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// enter makes the page, once: it is not to be taken back from a rebuild that began since.
func (sh *shadow) enter(ctx context.Context, mark *bookmark) error {
	if sh.begun {
		n, err := mark.book.CountDocuments(ctx, bson.D{{Key: "_id", Value: sh.page()}, {Key: "token", Value: sh.token}})
		if err == nil && n == 0 {
			err = mark.fenced()
		}
		return err
	}
	s := sh.sink
	p, err := readPage(ctx, mark.book, sh.page())
	if err == nil && p != nil && p.Swap {
		err = retire(ctx, s.db, s.o.Collection, p.Token, p.Shadow)
	}
	if err != nil {
		return err
	}
	_, err = mark.book.ReplaceOne(ctx, bson.D{{Key: "_id", Value: sh.page()}, {Key: "swap", Value: bson.D{{Key: "$ne", Value: true}}}},
		page{ID: sh.page(), Projection: mark.src.Projection, Sources: map[string]entry{}, Token: sh.token, Shadow: sh.name}, options.Replace().SetUpsert(true))
	if mongo.IsDuplicateKeyError(err) { // it swaps since it was looked at
		return mark.fenced()
	}
	if err != nil {
		return err
	}
	sh.begun = true
	return nil
}

// Write stores a batch in the shadow, or in what it has become.
func (sh *shadow) Write(ctx context.Context, b projector.Batch) (projector.Outcome, error) {
	if sh.w == nil || sh.dropped {
		return projector.Outcome{}, fmt.Errorf("mongosink: write to a shadow: %w", ErrNotOpen)
	}
	return sh.w.writeBatch(ctx, b)
}

// Swap renames the shadow's collection to that of the sink, whose content is gone,
// and moves the position. Where the replicas of a projection share the events, the
// position counts as unknown until the shadow writes a batch with UpTo again: what a
// replica wrote to the old collection last may be missing until then. It may be
// called again after an error, in vain where that is [projector.ErrSwapRefused]: the user
// may not rename, or the server does not rename such a collection.
func (sh *shadow) Swap(ctx context.Context) error {
	s := sh.sink
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	if sh.swapped {
		return nil
	}
	if err := sh.swap(ctx); err != nil {
		return fmt.Errorf("mongosink: swap the rebuilt collection %s: %w", s.o.Collection, explain(err, s.db))
	}
	sh.swapped = true
	known := sh.w.mark.pos
	sh.w.coll = s.db.Collection(s.o.Collection, safely())
	sh.w.mark = &bookmark{book: sh.w.mark.book, page: s.o.Collection, src: sh.w.mark.src, swapped: sh.token}
	if sh.w.mark.src.Exclusive {
		sh.w.mark.pos = known
	}
	return nil
}

func (sh *shadow) swap(ctx context.Context) error {
	if sh.w == nil || sh.dropped {
		return ErrNotOpen
	}
	s, m := sh.sink, sh.w.mark
	set := bson.D{{Key: "$set", Value: bson.D{{Key: "swap", Value: true}, {Key: "uuid", Value: sh.uuid}}}}
	if !m.src.Exclusive {
		set = append(set, bson.E{Key: "$unset", Value: bson.D{{Key: m.field("seq"), Value: ""}}})
	}
	r, err := m.book.UpdateOne(ctx, bson.D{{Key: "_id", Value: m.page}, {Key: "token", Value: sh.token}}, set)
	if err != nil {
		return err
	}
	if r.MatchedCount == 0 {
		if moved, err := isMoved(ctx, m.book, s.o.Collection, sh.token); err != nil || moved {
			return err
		}
		return m.fenced()
	}
	err = s.db.Client().Database("admin").RunCommand(ctx, bson.D{
		{Key: "renameCollection", Value: s.db.Name() + "." + sh.name},
		{Key: "to", Value: s.db.Name() + "." + s.o.Collection},
		{Key: "dropTarget", Value: true},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}},
	}).Err()
	if err != nil && !hasCode(err, codeNamespaceNotFound) { // it was renamed, but the answer was lost, or dropped
		return renameError(err)
	}
	if err := finishSwap(ctx, s.db, s.o.Collection); err != nil {
		return err
	}
	moved, err := isMoved(ctx, m.book, s.o.Collection, sh.token)
	if err == nil && !moved {
		err = m.fenced()
	}
	return err
}

// renameError tells what the server would answer again, however often it is asked.
func renameError(err error) error {
	if hasCode(err, codeUnauthorized, codeIllegalOperation) {
		return fmt.Errorf("%w: %w", projector.ErrSwapRefused, err)
	}
	return err
}

// isMoved reports whether the last swap of a collection was that of a token.
func isMoved(ctx context.Context, book *mongo.Collection, collection, token string) (bool, error) {
	n, err := book.CountDocuments(ctx, bson.D{{Key: "_id", Value: collection}, {Key: "swapped", Value: token}})
	return n > 0, err
}

// finishSwap moves what the page of a rebuild says to the page of the collection, if
// that is the rebuild's collection by now and the page has not been moved.
func finishSwap(ctx context.Context, db *mongo.Database, collection string) error {
	book := openBook(db)
	p, err := readPage(ctx, book, collection+shadowInfix)
	if err != nil || p == nil || !p.Swap {
		return err
	}
	there, err := uuidOf(ctx, db, collection)
	if err != nil || there == nil || p.UUID == nil || !there.Equal(*p.UUID) {
		return err
	}
	_, err = book.UpdateOne(ctx,
		bson.D{{Key: "_id", Value: collection}, {Key: "swapped", Value: bson.D{{Key: "$ne", Value: p.Token}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "projection", Value: p.Projection}, {Key: "sources", Value: p.Sources}, {Key: "swapped", Value: p.Token}}}},
		options.UpdateOne().SetUpsert(true))
	if err != nil && !mongo.IsDuplicateKeyError(err) { // a duplicate: somebody else has moved it
		return err
	}
	_, err = book.DeleteOne(ctx, bson.D{{Key: "_id", Value: p.ID}, {Key: "token", Value: p.Token}})
	return err
}

// retire ends the rebuild of a token, which swapped the collection or did not. The shadow
// goes first: a rename that still waits at the server finds nothing from then on.
func retire(ctx context.Context, db *mongo.Database, collection, token, shadow string) error {
	if err := db.Collection(shadow, safely()).Drop(ctx); err != nil {
		return err
	}
	if err := finishSwap(ctx, db, collection); err != nil {
		return err
	}
	_, err := openBook(db).DeleteOne(ctx, bson.D{{Key: "_id", Value: collection + shadowInfix}, {Key: "token", Value: token}})
	return err
}

// Drop removes the shadow and its page, unless it was swapped. Where the server has carried
// out a swap that was given up, it finishes that one.
func (sh *shadow) Drop(ctx context.Context) error {
	if sh.swapped || sh.dropped {
		return nil
	}
	s := sh.sink
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	if err := retire(ctx, s.db, s.o.Collection, sh.token, sh.name); err != nil {
		return fmt.Errorf("mongosink: drop the shadow of collection %s: %w", s.o.Collection, explain(err, s.db))
	}
	sh.dropped = true
	return nil
}
