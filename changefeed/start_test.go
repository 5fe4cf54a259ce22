package changefeed_test

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
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
