package mongobox_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
)

// TestOpen makes the collections and their indexes, once.
func TestOpen(t *testing.T) {
	r := newRig(t)
	var opening sync.WaitGroup
	for range 5 {
		opening.Go(func() {
			if _, err := mongobox.Open(r.Context(), r.coll, mongobox.Options{}); err != nil {
				r.Error(err)
			}
		})
	}
	opening.Wait()
	for name, want := range map[string]ids{
		"outbox":      {"_id_", "outbox_id", "outbox_keys", "outbox_pending", "outbox_sent"},
		"outbox.keys": {"_id_", "outbox_expire"},
	} {
		list, err := r.db.Collection(name).Indexes().ListSpecifications(r.Context())
		r.ok(err)
		got := ids{}
		for _, ix := range list {
			got = append(got, ix.Name)
		}
		r.want("indexes of "+name, got, want)
	}
	// What programs inserted since then, and is no row, does not keep it from opening.
	_, err := r.coll.InsertOne(r.Context(), bson.M{"id": 7, "topic": "orders"})
	r.ok(err)
	r.open(mongobox.Options{})
}

// TestOpenThroughCuts opens an outbox although connections break under it.
func TestOpenThroughCuts(t *testing.T) {
	r, server := newFaultyRig(t)
	for _, command := range []string{"hello", "find", "listCollections", "create", "createIndexes"} {
		c := r.db.Collection("outbox_" + command)
		if command == "hello" { // the driver's own monitors say it, too
			server.CutConnections()
		} else {
			mongotest.FailCommand(r, server.URI(), bson.M{"times": 3}, bson.D{{Key: "failCommands", Value: bson.A{command}}, {Key: "closeConnection", Value: true}})
		}
		if _, err := mongobox.Open(r.Context(), c, mongobox.Options{}); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
}

// TestOpenRefuses names what is wrong with a collection.
func TestOpenRefuses(t *testing.T) {
	r := newRig(t)
	index := func(name string, keys bson.D, o *options.IndexOptionsBuilder) func(c *mongo.Collection) error {
		return func(c *mongo.Collection) error {
			_, err := c.Indexes().CreateOne(r.Context(), mongo.IndexModel{Keys: keys, Options: o.SetName(name)})
			return err
		}
	}
	document := func(d bson.M) func(c *mongo.Collection) error {
		return func(c *mongo.Collection) error {
			_, err := c.InsertOne(r.Context(), d)
			return err
		}
	}
	for i, c := range []struct {
		before func(c *mongo.Collection) error
		o      mongobox.Options
		want   error
		says   string
	}{
		{nil, mongobox.Options{MaxBytes: -2}, jetbus.ErrInvalidOption, "MaxBytes"},
		{nil, mongobox.Options{Keep: -2}, jetbus.ErrInvalidOption, "Keep"},
		{document(bson.M{"_id": "p-1", "name": "anvil"}), mongobox.Options{}, jetbus.ErrConflict, `document "p-1": field id is missing, not string`},
		{document(bson.M{"id": "1", "topic": "orders", "state": 2}), mongobox.Options{}, jetbus.ErrConflict, "field state is 32-bit integer, not string"},
		{document(bson.M{"id": "1", "topic": "orders", "state": "new"}), mongobox.Options{}, jetbus.ErrConflict, `field state is "new"`},
		{index("age", doc(`{"at": 1}`), options.Index().SetExpireAfterSeconds(60)), mongobox.Options{}, jetbus.ErrConflict, "index age is one that removes documents by age"},
		{index("one", doc(`{"key": 1}`), options.Index().SetUnique(true)), mongobox.Options{}, jetbus.ErrConflict, "index one is a unique one"},
		{index("outbox_keys", doc(`{"key": 1}`), options.Index()), mongobox.Options{}, jetbus.ErrConflict, "outbox_keys"},
		{
			func(c *mongo.Collection) error {
				return r.db.CreateView(r.Context(), c.Name(), "outbox", mongo.Pipeline{})
			},
			mongobox.Options{},
			jetbus.ErrConflict, "its kind is view, not collection",
		},
		{
			func(c *mongo.Collection) error {
				_, err := r.db.Collection(c.Name()+".keys").InsertOne(r.Context(), bson.M{"name": "door"})
				return err
			},
			mongobox.Options{},
			jetbus.ErrConflict, "field n is missing",
		},
	} {
		coll := r.db.Collection(fmt.Sprintf("c%d", i))
		if c.before != nil {
			r.ok(c.before(coll))
		}
		_, err := mongobox.Open(r.Context(), coll, c.o)
		r.wantErr(c.says, err, c.want)
		if err != nil && !strings.Contains(err.Error(), c.says) {
			r.Errorf("the error %q does not say %q", err, c.says)
		}
	}
	_, err := mongobox.Open(r.Context(), nil, mongobox.Options{})
	r.wantErr("no collection", err, jetbus.ErrInvalidOption)
}

// TestStandalone is refused, since it has no transactions.
func TestStandalone(t *testing.T) {
	server, err := mongod.Start(t.Context(), mongod.Config{Standalone: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	client := connect(t, server.URI())
	r := &rig{T: t, client: client}
	_, err = mongobox.Open(t.Context(), client.Database("shop").Collection("outbox"), mongobox.Options{})
	r.wantErr("a standalone", err, jetbus.ErrUnsupported)
}

// TestRows shows rows as they are, and selects them.
func TestRows(t *testing.T) {
	r := newRig(t)
	want := order("1", "$a.b")
	want.SID, want.Time, want.Partition = "till", time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC), jetbus.NoPartition
	want.Headers, want.Tags, want.CausedBy = map[string]string{"x-shop.name": "$$NOW"}, []string{"$tag"}, []string{"visit"}
	r.ok(r.box.Add(r.Context(), want, order("2", "b"), jetbus.Event{ID: "3", Topic: "other"}))
	_, err := r.coll.InsertOne(r.Context(), bson.M{
		"id": "4", "topic": "other", "state": "pending", "pos": time.Now().Add(time.Minute).UnixMicro(), "payload": "text", "tags": "x", "ts": "now",
	})
	r.ok(err)
	rows, err := r.box.List(r.Context(), mongobox.Query{})
	r.ok(err)
	r.want("rows", len(rows), 4)
	r.want("event", rows[0].Event, want)
	if since := time.Since(rows[0].Added); rows[0].State != mongobox.Pending || !rows[0].DueAt.IsZero() || since < -time.Minute || since > time.Hour {
		r.Errorf("row %+v", rows[0])
	}
	r.wantErr("no event", rows[3].Err, jetbus.ErrInvalidEvent)
	for _, field := range []string{"tags", "ts"} {
		if !strings.Contains(rows[3].Err.Error(), "field "+field+" is string") {
			r.Errorf("the error %q does not name %s", rows[3].Err, field)
		}
	}
	r.want("a payload that is a string", string(rows[3].Event.Payload), "text")

	_, claimed := r.claim(r.box, 1, time.Hour)
	rows, err = r.box.List(r.Context(), mongobox.Query{IDs: ids{"1"}})
	r.ok(err)
	if left := time.Until(rows[0].ClaimedUntil); left < 30*time.Minute || left > 2*time.Hour || rows[0].DueAt != rows[0].ClaimedUntil {
		r.Errorf("a claimed row %+v", rows[0])
	}
	r.ok(r.box.Failed(r.Context(), []jetbus.OutboxFailure{{Row: claimed[0], Err: fmt.Errorf("$%w", jetbus.ErrSchema), RetryIn: time.Hour}}))
	rows, err = r.box.List(r.Context(), mongobox.Query{Key: "$a.b"})
	r.ok(err)
	if rows[0].Attempts != 1 || !rows[0].ClaimedUntil.IsZero() || rows[0].DueAt.IsZero() || rows[0].LastError != "$"+jetbus.ErrSchema.Error() {
		r.Errorf("a row that failed %+v", rows[0])
	}

	r.want("limit", r.list(mongobox.Query{Limit: 2}), ids{"1", "2"})
	r.want("no limit", r.list(mongobox.Query{Limit: -1}), ids{"1", "2", "3", "4"})
	r.want("topic", r.list(mongobox.Query{Topic: "other"}), ids{"3", "4"})
	for _, q := range []mongobox.Query{{State: "lost"}, {Limit: -2}, {IDs: make([]string, 1001)}} {
		_, err := r.box.List(r.Context(), q)
		r.wantErr("list", err, jetbus.ErrInvalidOption)
		_, err = r.box.Retry(r.Context(), q)
		r.wantErr("retry", err, jetbus.ErrInvalidOption)
	}
	n, err := r.box.Retry(r.Context(), mongobox.Query{IDs: ids{"1"}})
	r.ok(err)
	r.want("retried", n, 1)
	rows, err = r.box.List(r.Context(), mongobox.Query{IDs: ids{"1"}})
	r.ok(err)
	if rows[0].Attempts != 0 || !rows[0].DueAt.IsZero() {
		r.Errorf("a row that is retried %+v", rows[0])
	}
}
