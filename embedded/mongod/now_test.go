package mongod_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestNow has expressions with the time of the command, which is one for all documents,
// and strings that only look like it.
func TestNow(t *testing.T) {
	r := newRig(t)
	before := time.Now().Truncate(time.Millisecond)
	r.insert(doc(`{"_id": 1, "s": "$$NOW"}`), doc(`{"_id": 2, "at": {"$date": "2100-01-01T00:00:00Z"}}`))

	stamp := mongo.Pipeline{{{Key: "$set", Value: doc(`{"now": "$$NOW", "ms": {"$toLong": "$$NOW"}, "later": {"$add": ["$$NOW", 5000]}, "text": {"$literal": "$$NOW"}}`)}}}
	_, err := r.c.UpdateMany(r.ctx, bson.D{}, stamp)
	r.must(err)
	_, err = r.c.UpdateOne(r.ctx, doc(`{"_id": 3}`), stamp, options.UpdateOne().SetUpsert(true))
	r.must(err)
	_, err = r.c.UpdateOne(r.ctx, doc(`{"_id": 1}`), doc(`{"$set": {"t": "$$NOW"}}`))
	r.must(err)
	var all []struct {
		ID         int `bson:"_id"`
		Now, Later time.Time
		Ms         int64
		S, T, Text string
	}
	cur, err := r.c.Find(r.ctx, bson.D{}, options.Find().SetSort(doc(`{"_id": 1}`)))
	r.must(err)
	r.must(cur.All(r.ctx, &all))
	for _, d := range all {
		if d.Now.Before(before) || d.Now.After(time.Now()) || d.Ms != d.Now.UnixMilli() || d.Later.Sub(d.Now) != 5*time.Second || d.Text != "$$NOW" {
			t.Errorf("%+v", d)
		}
	}
	if len(all) != 3 || all[0].Now != all[1].Now || all[0].S != "$$NOW" || all[0].T != "$$NOW" {
		t.Errorf("%+v", all)
	}

	for filter, want := range map[string]int64{
		`{"$expr": {"$lte": ["$at", "$$NOW"]}}`:                                  2, // missing is less than any time
		`{"$and": [{"at": {"$type": 9}}, {"$expr": {"$gt": ["$at", "$$NOW"]}}]}`: 1,
		`{"s": "$$NOW"}`: 1,
	} {
		n, err := r.c.CountDocuments(r.ctx, doc(filter))
		if err != nil || n != want {
			t.Errorf("%s: %d, %v, want %d", filter, n, err, want)
		}
	}
	var found struct{ Due bool }
	r.must(r.c.FindOne(r.ctx, doc(`{"_id": 2}`), options.FindOne().SetProjection(doc(`{"due": {"$lte": ["$at", "$$NOW"]}}`))).Decode(&found))
	if found.Due {
		t.Error("2100 is over")
	}
	gone, err := r.c.DeleteMany(r.ctx, doc(`{"$expr": {"$lte": ["$now", "$$NOW"]}}`))
	r.must(err)
	if gone.DeletedCount != 3 {
		t.Errorf("%d deleted", gone.DeletedCount)
	}
}
