package changefeed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// parseCopy reads the header HeaderCopy, nil where it is absent.
func parseCopy(text string) (*CopyProgress, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no copy is under way
	}
	var p CopyProgress
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return nil, fmt.Errorf("header %s: %w", HeaderCopy, err)
	}
	return &p, nil
}

// copyMore publishes the next documents of a copy. The changes that were read have been
// handed over before: so what is read here is never older than what was published.
// Those take turns, so that MongoDB's history need not last for the whole copy.
func (r *reader) copyMore(ctx context.Context) error {
	defer func() { r.copied = time.Now() }()
	p := *r.pos.copy
	collections, err := r.f.copied(ctx)
	if err != nil {
		return err
	}
	for _, name := range collections {
		if name < p.Collection {
			continue
		}
		if name > p.Collection {
			p.Collection, p.After = name, ""
		}
		n, err := r.copyChunk(ctx, &p)
		if err != nil || n > 0 {
			return err
		}
	}
	return r.copyDone(ctx)
}

// copied lists the collections to be copied, sorted.
func (f *Feed) copied(ctx context.Context) ([]string, error) {
	if f.o.Collection != "" {
		return []string{f.o.Collection}, nil
	}
	names, err := f.client.Database(f.o.Database).ListCollectionNames(ctx, bson.D{{Key: "type", Value: "collection"}})
	names = slices.DeleteFunc(names, func(name string) bool { return len(name) > 7 && name[:7] == "system." })
	slices.Sort(names)
	return names, err
}

// copyChunk publishes up to CopyBatch documents that sort after p, and advances p.
func (r *reader) copyChunk(ctx context.Context, p *CopyProgress) (n int, err error) {
	f := r.f
	filter, err := behind(p.After)
	if err != nil {
		return 0, err
	}
	shardKey, err := f.shardKey(ctx, p.Collection)
	if err != nil {
		return 0, err
	}
	c := f.client.Database(f.o.Database).Collection(p.Collection, options.Collection().SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary()))
	cursor, err := c.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: idField, Value: 1}}).SetLimit(int64(f.o.CopyBatch)))
	if err != nil {
		return 0, fmt.Errorf("copy %s: %w", p.Collection, err)
	}
	defer func() { _ = cursor.Close(context.WithoutCancel(ctx)) }() // the server closes it otherwise
	for cursor.Next(ctx) {
		n++
		doc := bson.Raw(bytes.Clone(cursor.Current))
		before, had := *p, r.pos.copy
		p.After = idText(doc.Lookup(idField))
		progress := *p
		r.pos.copy = &progress
		if err := r.copyOne(ctx, p, doc, shardKey); err != nil {
			if ctx.Err() == nil { // it was not published: a copy that resumes must not skip it
				*p, r.pos.copy = before, had
			}
			return n, err
		}
	}
	f.status.count(func(s *Stats) { s.Copied += uint64(n) })
	if err := cursor.Err(); err != nil {
		return n, fmt.Errorf("copy %s: %w", p.Collection, err)
	}
	return n, r.flush(ctx, false)
}

// shardKey names the fields of a collection's shard key, which are in the key of its
// changes; none where it is not sharded.
func (f *Feed) shardKey(ctx context.Context, collection string) ([]string, error) {
	var hello struct {
		Msg string `bson:"msg"`
	}
	err := f.client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
	if err != nil || hello.Msg != "isdbgrid" { // what a router says
		return nil, err
	}
	var c struct {
		Key bson.D `bson:"key"`
	}
	err = f.client.Database("config").Collection("collections").FindOne(ctx, bson.D{{Key: idField, Value: f.o.Database + "." + collection}}).Decode(&c)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	if codeOf(err) == codeUnauthorized { // most users may ask whether there is one
		var stats struct {
			Sharded bool `bson:"sharded"`
		}
		asked := f.client.Database(f.o.Database).RunCommand(ctx, bson.D{{Key: "collStats", Value: collection}}).Decode(&stats)
		if asked == nil && !stats.Sharded {
			return nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the shard key of %s from config.collections, as a copy must: %w", collection, err)
	}
	fields := make([]string, len(c.Key))
	for i, e := range c.Key {
		fields[i] = e.Key
	}
	return fields, nil
}

// keyOf is the document key that MongoDB gives a change of the document: the fields of
// the shard key that it has, by their paths, and the _id.
func keyOf(doc bson.Raw, shardKey []string) (bson.Raw, error) {
	key := bson.D{}
	for _, field := range shardKey {
		if v, err := doc.LookupErr(strings.Split(field, ".")...); err == nil {
			key = append(key, bson.E{Key: field, Value: v})
		}
	}
	if !slices.Contains(shardKey, idField) {
		key = append(key, bson.E{Key: idField, Value: doc.Lookup(idField)})
	}
	return bson.Marshal(key)
}

// copyOne publishes a document. Its cluster time is that of the stream's position: the
// document has every change up to then, and maybe later ones.
func (r *reader) copyOne(ctx context.Context, p *CopyProgress, doc bson.Raw, shardKey []string) error {
	f := r.f
	documents, err := keyOf(doc, shardKey)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStream, err)
	}
	key, id := documentKey(documents)
	c := &Change{
		Op: OpCopy, Database: f.o.Database, Collection: p.Collection, Key: f.scoped(p.Collection, key), ID: id,
		DocumentKey: documents, FullDocument: doc, ClusterTime: r.pos.token.Timestamp(), Token: r.pos.token,
	}
	wanted, err := f.wants(c)
	if err != nil {
		return err
	}
	if !wanted {
		f.status.count(func(s *Stats) { s.Filtered++; s.InFlight++ })
		r.next.changes++
		r.next.upTo = r.pos.token
		return r.limit(ctx)
	}
	e, err := f.event(c, time.Now())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStream, err)
	}
	f.status.count(func(s *Stats) { s.InFlight++ })
	e.ID = f.eventID("copy." + string(p.Start) + "." + p.Collection + "." + p.After)
	return r.put(ctx, f.outgoing(c, e), len(doc))
}

// copyDone says that the copy is complete, and goes on with the changes alone.
func (r *reader) copyDone(ctx context.Context) error {
	f := r.f
	start := r.pos.copy.Start
	r.pos.copy = nil
	c := &Change{Op: OpCopied, Database: f.o.Database, Collection: f.o.Collection, ClusterTime: r.pos.token.Timestamp(), Token: r.pos.token}
	e, err := f.event(c, time.Now())
	if err != nil {
		return err
	}
	f.status.count(func(s *Stats) { s.InFlight++ })
	e.ID = f.eventID("copied." + string(start))
	if err := r.put(ctx, outgoing{event: e, change: c}, 0); err != nil {
		return err
	}
	if err := r.flush(ctx, false); err != nil {
		return err
	}
	return errReopen // with the MaxAwaitTime of a stream that has nothing else to do
}

// idTypes are the types that an _id can have, in the order in which MongoDB sorts them.
var idTypes = []bson.Type{
	bson.TypeMinKey, bson.TypeNull, bson.TypeDouble, bson.TypeString, bson.TypeEmbeddedDocument, bson.TypeBinary,
	bson.TypeObjectID, bson.TypeBoolean, bson.TypeDateTime, bson.TypeTimestamp,
	bson.TypeDBPointer, bson.TypeJavaScript, bson.TypeCodeWithScope, bson.TypeMaxKey,
}

// behind selects the documents whose _id sorts after the given one, in the form of
// idText; empty selects all documents. A comparison operator alone only matches IDs of
// the same type.
func behind(after string) (bson.D, error) {
	if after == "" {
		return bson.D{}, nil
	}
	id, err := parseID(after)
	if err != nil {
		return nil, err
	}
	t := id.Type
	switch t { //nolint:exhaustive // those that are not in idTypes, and sort with one that is
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDecimal128:
		t = bson.TypeDouble
	case bson.TypeSymbol:
		t = bson.TypeString
	}
	later := bson.A{}
	for _, other := range idTypes[slices.Index(idTypes, t)+1:] {
		switch other {
		case bson.TypeDouble:
			later = append(later, "number")
		case bson.TypeString:
			later = append(later, "string", "symbol")
		case bson.TypeMaxKey:
			later = append(later, "maxKey")
		default:
			later = append(later, int32(other))
		}
	}
	either := bson.A{bson.D{{Key: idField, Value: bson.D{{Key: "$gt", Value: id}}}}}
	if strings.Contains(after, `:"NaN"`) && t == bson.TypeDouble { // it sorts before the other numbers, and $gt finds none
		either = bson.A{bson.D{{Key: idField, Value: bson.D{{Key: "$type", Value: "number"}, {Key: "$ne", Value: id}}}}}
	}
	if len(later) > 0 {
		either = append(either, bson.D{{Key: idField, Value: bson.D{{Key: "$type", Value: later}}}})
	}
	return bson.D{{Key: "$or", Value: either}}, nil
}
