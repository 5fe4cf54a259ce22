package changefeed_test

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"strings"
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

// project starts a projection of the feed's topic into a collection.
func (r *rig) project() (*mongo.Collection, *projector.Projection) {
	r.Helper()
	target := r.coll.Database().Collection("copied")
	sink, err := mongosink.New(target.Database(), mongosink.Options{Collection: target.Name()})
	r.must(err)
	p, err := projector.Start(r.Context(), r.bus, sink, projector.Options{Name: "copied", Topic: r.topic})
	r.must(err)
	r.Cleanup(func() {
		if err := p.Stop(r.Context()); err != nil {
			r.Error(err)
		}
	})
	return target, p
}

// settled waits until a projection has written, or buried, all events.
func (r *rig) settled(p *projector.Projection) {
	r.Helper()
	r.until("the projection has settled everything", func() bool {
		lag, err := p.Lag(r.Context())
		r.must(err)
		return lag.Events == 0
	})
}

// An event that does not have the document does not replace it: it becomes a dead letter.
func TestProjectionOfEventsWithoutADocument(t *testing.T) {
	for why, set := range map[string]func(o *changefeed.Options){
		changefeed.OmittedOversize: func(o *changefeed.Options) { o.OnOversize = changefeed.KeyOnly },
		changefeed.OmittedNoImage: func(o *changefeed.Options) {
			o.FullDocument, o.OnMissing = changefeed.WhenAvailable, changefeed.Skip // the document is not gone
		},
		changefeed.OmittedUpdate: func(o *changefeed.Options) { o.FullDocument = changefeed.NoDocument },
	} {
		t.Run(why, func(t *testing.T) {
			r := newRig(t)
			o := r.options()
			set(&o)
			r.start(o)
			target, p := r.project()
			r.insert("a")
			r.wants("insert a")
			text := "short"
			if why == changefeed.OmittedOversize {
				text = strings.Repeat("x", 5<<18)
			}
			_, err := r.coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "text", Value: text}}}})
			r.must(err)
			r.wants("insert a, update a")
			if got := r.events()[1].Headers[changefeed.HeaderOmitted]; got != why {
				t.Errorf("omitted: %q", got)
			}
			r.settled(p)
			r.dead(1)
			want, err := bson.Marshal(bson.D{{Key: "n", Value: int32(0)}})
			r.must(err)
			if got := r.contents(target, bson.D{})["a"]; !bytes.Equal(got, want) {
				t.Errorf("the document is %v", got)
			}
		})
	}
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
			target, p := r.project()
			insert(bson.NewObjectID(), "later")
			_, err := r.coll.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "text"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "at", Value: bson.DateTime(0)}}}})
			r.must(err)
			_, err = r.coll.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: int32(7)}})
			r.must(err)
			r.untilEvery(rarely, "the copied collection equals its source", func() bool {
				return maps.EqualFunc(r.contents(r.coll, bson.D{}), r.contents(target, mongosink.Live()), func(a, b bson.Raw) bool { return bytes.Equal(a, b) })
			})
			r.settled(p)
			r.dead(0)
		})
	}
}
