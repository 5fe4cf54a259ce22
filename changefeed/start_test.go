package changefeed_test

import (
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus/changefeed"
)

// A connection that ends while Start lets go of the change stream that it tried is no
// reason to fail.
func TestConnectionCutAtTheEndOfStart(t *testing.T) {
	r := newRig(t)
	r.failCommand(1, bson.D{{Key: "failCommands", Value: bson.A{"killCursors"}}, {Key: "closeConnection", Value: true}})
	r.start(r.options())
	r.insert("a")
	r.wants("insert a")
}

// A change that commits while Start looks where MongoDB is, or while the change stream is
// opened, is published.
func TestChangeInTheMomentOfTheStart(t *testing.T) {
	r := newStandInRig(t)
	var opened atomic.Int32
	r.Cleanup(r.standIn().OnWatch(func(string) {
		switch opened.Add(1) {
		case 1: // by Start
			_, _ = r.coll.InsertOne(r.Context(), bson.M{"_id": "a"}) // what is not inserted does not come
		case 2: // to read
			_, _ = r.coll.InsertOne(r.Context(), bson.M{"_id": "b"})
		}
	}))
	f := r.start(r.options())
	if s := f.Status(); s.State != changefeed.Streaming {
		t.Fatalf("status %+v", s)
	}
	r.wants("insert a, insert b")
}
