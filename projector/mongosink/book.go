package mongosink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-63e9a637/jetbus/projector"
)

// bookCollection is the collection that records which projection fills which collection.
// It has one document for each collection that a projection fills or rebuilds.
const bookCollection = "_projections"

// claimTries bounds the races that a claim may lose against other replicas.
const claimTries = 10

// A page is a document of the book.
type page struct {
	ID         string           `bson:"_id"` // the collection, or the collection and shadowInfix
	Projection string           `bson:"projection"`
	Sources    map[string]entry `bson:"sources"` // by topic; see sourceField

	Transaction bool `bson:"transaction,omitempty"` // a Transaction fills it, whose position is elsewhere

	Swapped string `bson:"swapped,omitempty"` // the token of the rebuild that made the collection, if one did

	// Of a rebuild only.
	Token  string `bson:"token,omitempty"`  // changes with each rebuild
	Shadow string `bson:"shadow,omitempty"` // the collection that is being filled
	Swap   bool   `bson:"swap,omitempty"`   // the shadow was complete, and is being renamed
	// UUID is the shadow's, with Swap: where the collection has it, the rename was carried out.
	UUID *bson.Binary `bson:"uuid,omitempty"`
}

// entry is the book's record of one source of a collection.
type entry struct {
	Topic   string    `bson:"topic"`
	Stream  string    `bson:"stream"`        // several topics may share one
	Created int64     `bson:"created"`       // when the stream was made, in nanoseconds since 1970
	Seq     *int64    `bson:"seq,omitempty"` // up to which every event is in the collection; nil: it was not filled yet
	At      time.Time `bson:"at,omitempty"`  // when Seq was written
	// Last is the newest event that may be in the collection; nil: unknown.
	Last *lastEvent `bson:"last,omitempty"`
}

// openBook returns the book of a database. Its reads return everything that was
// acknowledged, and a majority has its writes.
func openBook(db *mongo.Database) *mongo.Collection {
	return db.Collection(bookCollection, safely())
}

// safely returns options for collections whose writes a majority confirms and whose reads
// see those writes, whatever the client's settings are.
func safely() *options.CollectionOptionsBuilder {
	return options.Collection().SetWriteConcern(writeconcern.Majority()).
		SetReadConcern(readconcern.Local()).SetReadPreference(readpref.Primary())
}

// sourceField is the name of a topic's field in a page: names of topics have dots,
// which names of fields must not.
func sourceField(topic string) string { return strings.ReplaceAll(topic, ".", "%") }

// A bookmark is the place of one source in the book: how far the collection of a
// page has got with it.
type bookmark struct {
	book  *mongo.Collection
	page  string
	token string // of a rebuild; "" otherwise
	src   projector.Source
	pos   projector.Position // as it was last read or written here

	// swapped is the rebuild that made the collection, when this was claimed. What is
	// written then is in the collection of that one, and says nothing of another's.
	swapped string
	late    bool // a rebuild has swapped the collection since: what is there was not all filled here
}

// field is the path of a field of the source's entry.
func (m *bookmark) field(name string) string {
	return "sources." + sourceField(m.src.Topic) + "." + name
}

// readPage reads a page; nil: there is none.
func readPage(ctx context.Context, book *mongo.Collection, id string) (*page, error) {
	var p page
	err := book.FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(&p)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil //nolint:nilnil // no page is an answer
	}
	if err != nil {
		return nil, err
	}
	return &p, nil
}

// check reports what in a page is in the way of a source.
func (p *page) check(s projector.Source) error {
	if p.Projection != "" && p.Projection != s.Projection {
		return fmt.Errorf("collection %s: %w: %s, which fills it from %s: choose another collection, or, if that projection is gone for good, drop it and remove the document with the _id %q from the collection %s: what it holds would be newer than what is to come",
			p.ID, projector.ErrOwned, p.Projection, p.topics(), p.ID, bookCollection)
	}
	if p.Transaction {
		return fmt.Errorf("collection %s: %w: %s, which fills it in transactions: choose another collection, or drop it and remove the document with the _id %q from the collection %s",
			p.ID, projector.ErrOwned, p.Projection, p.ID, bookCollection)
	}
	e, ok := p.Sources[sourceField(s.Topic)]
	if ok && (e.Stream != s.Stream || e.Created != s.Created.UnixNano()) {
		return fmt.Errorf("collection %s, topic %s: %w: its stream is %s, made %s, and the collection was filled from %s, made %s: rebuild the projection",
			p.ID, s.Topic, projector.ErrNewStream, s.Stream, moment(s.Created.UnixNano()), e.Stream, moment(e.Created))
	}
	return nil
}

// topics lists the topics of a page.
func (p *page) topics() string {
	var names []string
	for _, e := range p.Sources {
		names = append(names, e.Topic)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "no topic yet"
	}
	return strings.Join(slices.Compact(names), ", ")
}

// position is how far a page has got with a topic.
func (p *page) position(topic string) projector.Position {
	e := p.Sources[sourceField(topic)]
	at := projector.Position{Last: e.Last.checkpoint()}
	if e.Seq != nil {
		at.Known, at.Seq = true, uint64(max(*e.Seq, 0)) //nolint:gosec // not negative
	}
	return at
}

// claim enters the source in its page, which has one owner, and reads the position.
func (m *bookmark) claim(ctx context.Context) error {
	id := bson.E{Key: "_id", Value: m.page}
	first := entry{Topic: m.src.Topic, Stream: m.src.Stream, Created: m.src.Created.UnixNano()}
	for range claimTries {
		p, err := readPage(ctx, m.book, m.page)
		if err != nil {
			return err
		}
		if m.token != "" && (p == nil || p.Token != m.token) {
			return m.fenced()
		}
		if p == nil {
			_, err = m.book.InsertOne(ctx, page{ID: m.page, Projection: m.src.Projection, Sources: map[string]entry{sourceField(m.src.Topic): first}})
			if err != nil && !mongo.IsDuplicateKeyError(err) {
				return err
			}
			continue
		}
		if err := p.check(m.src); err != nil {
			return err
		}
		if _, ok := p.Sources[sourceField(m.src.Topic)]; ok {
			m.pos, m.swapped = p.position(m.src.Topic), p.Swapped
			return nil
		}
		field := "sources." + sourceField(m.src.Topic)
		free := bson.D{id, {Key: "projection", Value: m.src.Projection}, {Key: field, Value: bson.D{{Key: "$exists", Value: false}}}}
		if m.token != "" {
			free = append(free, bson.E{Key: "token", Value: m.token})
		}
		_, err = m.book.UpdateOne(ctx, free, bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: first}}}})
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("collection %s: its entry in %s changes all the time", m.page, bookCollection)
}

// advance stores that every event up to upTo is in the collection. In an exclusive
// projection it is an ErrFenced if another replica, or a rebuild, has moved the position.
func (m *bookmark) advance(ctx context.Context, upTo uint64) error {
	if m.src.Exclusive && m.pos.Known && upTo < m.pos.Seq {
		return fmt.Errorf("%w: position %d is before the stored position %d", projector.ErrFenced, upTo, m.pos.Seq)
	}
	seq := int64(upTo) //nolint:gosec // sequences are far below 2^63
	at := bson.E{Key: m.field("at"), Value: time.Now()}
	filter := m.filter()
	update := bson.D{{Key: "$max", Value: bson.D{{Key: m.field("seq"), Value: seq}}}, {Key: "$set", Value: bson.D{at}}}
	switch {
	case m.src.Exclusive:
		// The same position may be the own one, whose answer was lost.
		filter = append(filter, bson.E{Key: m.field("seq"), Value: bson.D{{Key: "$in", Value: bson.A{m.stored(), seq}}}})
		update = bson.D{{Key: "$set", Value: bson.D{{Key: m.field("seq"), Value: seq}, at}}}
	case m.pos.Known || m.late: // one that is not known, whoever fills the collection makes known
		filter = append(filter, bson.E{Key: m.field("seq"), Value: bson.D{{Key: "$ne", Value: nil}}})
	}
	r, err := m.book.UpdateOne(ctx, filter, update)
	switch {
	case err != nil:
		return err
	case r.MatchedCount > 0:
		m.pos.Known, m.pos.Seq = true, upTo
		return nil
	case m.src.Exclusive:
		return m.fenced()
	}
	if again, err := m.follow(ctx); !again || err != nil {
		return err
	}
	return m.advance(ctx, upTo)
}

// follow finds out why a position of replicas that share the events could not be
// moved, and whether it can be now. Where a rebuild has swapped the collection it
// need not be: it is the rebuild, or whoever fills the collection when that has died,
// that knows when nothing is missing any more.
func (m *bookmark) follow(ctx context.Context) (again bool, err error) {
	p, err := readPage(ctx, m.book, m.page)
	if err != nil {
		return false, err
	}
	if p == nil || p.Token != m.token {
		return false, m.fenced()
	}
	if err := p.check(m.src); err != nil {
		return false, err
	}
	if _, ok := p.Sources[sourceField(m.src.Topic)]; !ok {
		return false, m.fenced()
	}
	again = p.Swapped != m.swapped && p.position(m.src.Topic).Known
	m.swapped, m.late = p.Swapped, true
	return again, nil
}

// filter matches the page while the source is entered in it as it was claimed, and
// its collection is still the same one.
func (m *bookmark) filter() bson.D {
	f := bson.D{
		{Key: "_id", Value: m.page},
		{Key: "projection", Value: m.src.Projection},
		{Key: m.field("stream"), Value: m.src.Stream},
		{Key: m.field("created"), Value: m.src.Created.UnixNano()},
		{Key: "swapped", Value: nil}, // or missing
	}
	if m.swapped != "" {
		f[len(f)-1].Value = m.swapped
	}
	if m.token != "" {
		f = append(f, bson.E{Key: "token", Value: m.token})
	}
	return f
}

// stored is the position as the page has it: null where it has none.
func (m *bookmark) stored() any {
	if !m.pos.Known {
		return nil
	}
	return int64(m.pos.Seq) //nolint:gosec // it was read from an int64
}

// fenced is the error for a page that somebody else has changed.
func (m *bookmark) fenced() error {
	return fmt.Errorf("%w: the position of %s in collection %s is no longer what this replica knows (%d)", projector.ErrFenced, m.src.Topic, m.page, m.pos.Seq)
}

// others lists the topics of a page other than the given one.
func (p *page) others(topic string) []string {
	topics := map[string]bool{}
	for _, e := range p.Sources {
		if e.Topic != topic {
			topics[e.Topic] = true
		}
	}
	return slices.Sorted(maps.Keys(topics))
}
