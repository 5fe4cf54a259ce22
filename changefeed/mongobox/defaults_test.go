package mongobox_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
)

// TestClientDefaults works with a client that reads and writes otherwise by default.
func TestClientDefaults(t *testing.T) {
	for name, o := range map[string]*options.ClientOptions{
		"read preference": options.Client().SetReadPreference(readpref.SecondaryPreferred()),
		"linearizable":    options.Client().SetReadConcern(readconcern.Linearizable()),
		"available":       options.Client().SetReadConcern(readconcern.Available()),
		"no retries":      options.Client().SetRetryWrites(false).SetRetryReads(false),
		"one member":      options.Client().SetWriteConcern(writeconcern.W1()),
		"unacknowledged":  options.Client().SetWriteConcern(writeconcern.Unacknowledged()),
		"a timeout":       options.Client().SetTimeout(time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			server := mongotest.Start(t)
			client, err := mongo.Connect(o.ApplyURI(server.URI()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Disconnect(context.Background()) }()
			r := &rig{T: t, client: client, coll: client.Database(server.Database()).Collection("outbox")}
			r.box = r.open(mongobox.Options{Keep: time.Hour})
			r.ok(r.box.Add(t.Context(), order("1", "a"), order("2", "b"), order("3", "a"), order("4", "")))
			got, rows := r.claim(r.box, 10, time.Minute)
			r.want("claimed", got, ids{"1", "2", "3", "4"})
			r.ok(r.box.Failed(t.Context(), []jetbus.OutboxFailure{{Row: rows[0], Dead: true}}))
			r.ok(r.box.Release(t.Context(), rows))
			r.ok(r.box.Sent(t.Context(), rows[1:2]))
			_, err = r.box.Clean(t.Context())
			r.ok(err)
			r.want("sent", r.list(mongobox.Query{State: mongobox.Sent}), ids{"2"})
			got, _ = r.claim(r.box, 10, time.Minute)
			r.want("claimed", got, ids{"4"})
		})
	}
}
