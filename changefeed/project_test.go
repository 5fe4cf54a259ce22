package changefeed_test

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// contents are the documents of a collection by the keys that their events have, without
// the _id and what a sink adds.
func (r *rig) contents(c *mongo.Collection, filter any) map[string]bson.Raw {
	r.Helper()
	cursor, err := c.Find(r.Context(), filter)
	r.must(err)
	var docs []bson.Raw
	r.must(cursor.All(r.Context(), &docs))
	out := map[string]bson.Raw{}
	for _, doc := range docs {
		key, projected := doc.Lookup("_key").StringValueOK()
		if !projected {
			key = changefeed.Key(doc.Lookup("_id"))
		}
		elements, err := doc.Elements()
		r.must(err)
		rest := bson.D{}
		for _, e := range elements {
			if !slices.Contains([]string{"_id", "_key", "_seq", "_ts", "_src", "_srcCreated"}, e.Key()) {
				rest = append(rest, bson.E{Key: e.Key(), Value: e.Value()})
			}
		}
		out[key], err = bson.Marshal(rest)
		r.must(err)
	}
	return out
}

// A collection that a feed copies and follows, and a projection of its topic fills, has the
// documents of its source, without a dead letter.
func TestProjectionOfAFeedEqualsItsSource(t *testing.T) {
	for _, format := range []changefeed.Format{changefeed.Relaxed, changefeed.Canonical, changefeed.BSON} {
		t.Run(string(format), func(t *testing.T) {
			r := newRig(t)
			now := bson.NewDateTimeFromTime(time.Now())
			doc := func(id any, rest ...bson.E) bson.D {
				return append(bson.D{
					{Key: "_id", Value: id},
					{Key: "owner", Value: bson.NewObjectID()},
					{Key: "at", Value: now},
					{Key: "n", Value: int32(1)},
					{Key: "total", Value: int64(math.MaxInt64)},
					{Key: "price", Value: bson.NewDecimal128(0x3040000000000000, 1999)},
					{Key: "tags", Value: bson.A{"a", now, bson.D{{Key: "ref", Value: bson.NewObjectID()}}}},
					{Key: "a.b", Value: bson.D{{Key: "$c", Value: 1.0}, {Key: "d.e", Value: bson.Binary{Subtype: 4, Data: make([]byte, 16)}}}},
				}, rest...)
			}
			insert := func(ids ...any) {
				for _, id := range ids {
					_, err := r.coll.InsertOne(t.Context(), doc(id, bson.E{Key: "$top", Value: now}))
					r.must(err)
				}
			}
			insert(bson.NewObjectID(), "text", int32(7), bson.D{{Key: "x", Value: now}})
			o := r.options()
			o.Format, o.Start = format, changefeed.FromCopy()
			r.start(o)
			target := r.coll.Database().Collection("copied")
			sink, err := mongosink.New(target.Database(), mongosink.Options{Collection: target.Name()})
			r.must(err)
			p, err := projector.Start(t.Context(), r.bus, sink, projector.Options{Name: "copied", Topic: r.topic})
			r.must(err)
			r.Cleanup(func() {
				if err := p.Stop(r.Context()); err != nil {
					r.Error(err)
				}
			})
			insert(bson.NewObjectID(), "later")
			_, err = r.coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "text"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "at", Value: bson.DateTime(0)}}}})
			r.must(err)
			_, err = r.coll.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: int32(7)}})
			r.must(err)
			r.untilEvery(rarely, "the copied collection equals its source", func() bool {
				return maps.EqualFunc(r.contents(r.coll, bson.D{}), r.contents(target, mongosink.Live()), func(a, b bson.Raw) bool { return bytes.Equal(a, b) })
			})
			r.until("the projection has settled everything", func() bool {
				lag, err := p.Lag(t.Context())
				r.must(err)
				return lag.Events == 0
			})
			r.dead(0)
		})
	}
}
