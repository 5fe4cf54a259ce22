package changefeed

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// present is the position of a change stream that begins now.
func (f *Feed) present(ctx context.Context) (Token, error) {
	cs, err := f.watch(ctx, position{}, f.o.MaxAwaitTime)
	if err != nil {
		return "", err
	}
	defer func() { _ = cs.Close(context.WithoutCancel(ctx)) }() // it has no other effect
	for range firstAnswers {
		if doc := cs.ResumeToken(); len(doc) > 0 {
			return tokenOf(doc)
		}
		if cs.TryNext(ctx) {
			break // its token would be behind a change that nobody has
		}
		if err := cs.Err(); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("%w: the server does not say where a change stream is (4.0.7 and newer do)", ErrStream)
}

// watch opens a change stream at a position, the present if that is empty.
func (f *Feed) watch(ctx context.Context, p position, await time.Duration) (*mongo.ChangeStream, error) {
	o := options.ChangeStream().SetMaxAwaitTime(await)
	if f.o.FullDocument != NoDocument {
		o.SetFullDocument(options.FullDocument(f.o.FullDocument))
	}
	if f.o.Before != BeforeOff {
		o.SetFullDocumentBeforeChange(options.FullDocument(f.o.Before))
	}
	if f.o.Expanded {
		o.SetShowExpandedEvents(true)
	}
	switch {
	case p.at != nil:
		o.SetStartAtOperationTime(p.at)
	case p.token != "":
		o.SetStartAfter(p.token.doc())
	default: // where it begins is only said in an answer without changes, and one may come at once
		o.SetBatchSize(0)
	}
	pipeline := []bson.D{}
	for _, stage := range f.o.Pipeline {
		// The stream ends behind an invalidate event: without its token, there is no way on.
		always := bson.D{{Key: "operationType", Value: opInvalidate}}
		pipeline = append(pipeline, bson.D{{Key: stage[0].Key, Value: bson.D{{Key: "$or", Value: bson.A{always, stage[0].Value}}}}})
	}
	if f.split {
		pipeline = append(pipeline, bson.D{{Key: "$changeStreamSplitLargeEvent", Value: bson.D{}}})
	}
	db := f.client.Database(f.o.Database)
	if f.o.Collection == "" {
		return db.Watch(ctx, pipeline, o)
	}
	return db.Collection(f.o.Collection).Watch(ctx, pipeline, o)
}

// page is what the fetcher hands over at once.
type page struct {
	changes []bson.Raw
	more    bool           // MongoDB has sent more changes with these
	token   bson.Raw       // of the change stream, where there is no change
	now     bson.Timestamp // the newest that MongoDB has told of
	err     error          // why this is the last one; it has no changes
}

// fetcher reads a change stream on a goroutine of its own: MongoDB looks for the
// next changes while the last ones become events and are stored. It alone uses the
// change stream and its session. It is one page ahead, and behind one without changes
// it rests until the reader has done what there is to do then.
type fetcher struct {
	cs      *mongo.ChangeStream
	session *mongo.Session
	count   int           // of the changes of a page, at most
	bytes   int           // the same, give or take one change
	pages   chan page     // unbuffered
	rested  chan struct{} // the reader has nothing to do but wait for changes

	chunk []byte // that changes are copied to
}

// chunkBytes is how much is allocated for changes at once.
const chunkBytes = 64 << 10

// run fetches until ctx ends, or the change stream does.
func (f *fetcher) run(ctx context.Context) {
	for {
		p := f.next(ctx)
		select {
		case f.pages <- p:
		case <-ctx.Done():
			return
		}
		switch {
		case p.err != nil:
			return
		case len(p.changes) > 0:
			continue
		}
		select {
		case <-f.rested:
		case <-ctx.Done():
			return
		}
	}
}

// next waits for changes for as long as MongoDB does.
func (f *fetcher) next(ctx context.Context) (p page) {
	size := 0
	for f.cs.TryNext(ctx) {
		left := f.cs.RemainingBatchLength()
		if p.changes == nil {
			p.changes = make([]bson.Raw, 0, min(left+1, f.count))
		}
		p.changes = append(p.changes, f.keep(f.cs.Current))
		size += len(f.cs.Current)
		if p.more = left > 0; !p.more || len(p.changes) >= f.count || size >= f.bytes {
			break
		}
	}
	p.now = clusterNow(f.session)
	if len(p.changes) > 0 {
		return p // what is wrong with the next one is said with the next page
	}
	if p.err = f.cs.Err(); p.err == nil && f.cs.ID() == 0 {
		p.err = errEnded
	}
	p.token = slices.Clone(f.cs.ResumeToken())
	return p
}

// keep copies a change: the driver uses the bytes again.
func (f *fetcher) keep(change bson.Raw) bson.Raw {
	if len(change) > chunkBytes/8 {
		return slices.Clone(change)
	}
	if cap(f.chunk)-len(f.chunk) < len(change) {
		f.chunk = make([]byte, 0, chunkBytes)
	}
	at := len(f.chunk)
	f.chunk = append(f.chunk, change...)
	return f.chunk[at:len(f.chunk):len(f.chunk)]
}

// clusterNow is the newest cluster time that the server has told of.
func clusterNow(s *mongo.Session) bson.Timestamp {
	t, i, ok := s.ClusterTime().Lookup("$clusterTime", "clusterTime").TimestampOK()
	if !ok {
		return bson.Timestamp{}
	}
	return bson.Timestamp{T: t, I: i}
}

// assemble puts the fragments of a split event together. It returns nil until it
// has the last one, whose token is that of the whole.
func (r *reader) assemble(raw bson.Raw) (bson.Raw, error) {
	n, ok := raw.Lookup("splitEvent", "fragment").AsInt64OK()
	of, _ := raw.Lookup("splitEvent", "of").AsInt64OK()
	if !ok {
		return raw, nil
	}
	if int(n) != r.parts+1 {
		return nil, fmt.Errorf("fragment %d of %d of a split change event, %d expected", n, of, r.parts+1)
	}
	elements, err := raw.Elements()
	if err != nil {
		return nil, err
	}
	for _, e := range elements {
		if key := e.Key(); key != idField && key != "splitEvent" {
			r.part = append(r.part, bson.E{Key: key, Value: e.Value()})
		}
	}
	if r.parts = int(n); n < of {
		if r.part == nil {
			r.part = bson.D{}
		}
		return nil, nil //nolint:nilnil // there is more to come
	}
	whole := append(bson.D{{Key: idField, Value: raw.Lookup(idField)}}, r.part...)
	r.part, r.parts = nil, 0
	return bson.Marshal(whole)
}
