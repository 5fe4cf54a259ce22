package mongosink

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/projector"
)

// Live is the filter for the documents of keys that are not deleted. Readers put
// their own conditions beside it.
func Live() bson.D {
	return bson.D{{Key: "_deleted", Value: bson.D{{Key: "$ne", Value: true}}}}
}

// Status says which projection fills a collection, and how far.
type Status struct {
	Collection string
	Projection string
	Sources    []SourceStatus // by topic
	// Rebuilding: a rebuild of the collection has begun and neither ended nor was
	// removed. It may be a leftover of one that crashed.
	Rebuilding bool
}

// SourceStatus is how far a collection has got with a topic.
type SourceStatus struct {
	Topic   string
	Stream  string
	Created time.Time // when the stream was made
	// Position is what the sink's Open returns. It is exact for exclusive
	// projections only; others know it from when the collection was filled.
	Position projector.Position
	At       time.Time // when the position was stored; zero: never
}

// ReadStatus lists the collections of a database that projections fill, by name.
// It reads only; there are none in a database that no projection has used.
func ReadStatus(ctx context.Context, db *mongo.Database) ([]Status, error) {
	cur, err := openBook(db).Find(ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	var docs []bson.Raw
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	var list []Status
	if err == nil {
		list, err = statusOf(docs)
	}
	if err != nil {
		return nil, fmt.Errorf("mongosink: read the projections of database %s: %w", db.Name(), explain(err, db))
	}
	return list, nil
}

// statusOf makes a status of what the book holds: pages of collections and of
// rebuilds, and the positions of transactions.
func statusOf(docs []bson.Raw) ([]Status, error) {
	var list []Status
	rebuilding := map[string]bool{}
	positions := map[string]SourceStatus{} // by projection
	transactional := map[string]bool{}     // by collection
	for _, d := range docs {
		var p page
		var at position
		id, _ := d.Lookup("_id").StringValueOK() // others are not the book's
		switch {
		case strings.HasPrefix(id, positionID("")):
			if err := bson.Unmarshal(d, &at); err != nil {
				return nil, err
			}
			positions[at.Projection] = at.status()
			continue
		case id == "":
			continue
		}
		if err := bson.Unmarshal(d, &p); err != nil {
			return nil, err
		}
		if name, ok := strings.CutSuffix(p.ID, shadowInfix); ok {
			rebuilding[name] = true
			continue
		}
		transactional[p.ID] = p.Transaction
		list = append(list, Status{Collection: p.ID, Projection: p.Projection, Sources: p.status()})
	}
	for i := range list {
		s := &list[i]
		s.Rebuilding = rebuilding[s.Collection]
		if at, ok := positions[s.Projection]; ok && transactional[s.Collection] {
			s.Sources = append(s.Sources, at)
		}
	}
	return list, nil
}

// status is what a position of transactions says.
func (p *position) status() SourceStatus {
	return SourceStatus{
		Topic: p.Topic, Stream: p.Stream, Created: time.Unix(0, p.Created).UTC(), At: p.At,
		Position: p.known(),
	}
}

// status is what a page says of its sources.
func (p *page) status() []SourceStatus {
	var list []SourceStatus
	for _, e := range p.Sources {
		list = append(list, SourceStatus{
			Topic: e.Topic, Stream: e.Stream, Created: time.Unix(0, e.Created).UTC(), Position: p.position(e.Topic), At: e.At,
		})
	}
	slices.SortFunc(list, func(a, b SourceStatus) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Stream, b.Stream))
	})
	return list
}
