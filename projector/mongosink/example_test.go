package mongosink_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// A projection does what this example does by hand: it opens the sink for a topic,
// and writes what becomes of the keys. The older of two events changes nothing.
func ExampleSink() {
	ctx := context.Background()
	db, done := exampleDatabase(ctx)
	defer done()
	sink, err := mongosink.New(db, mongosink.Options{
		Collection: "orders",
		Indexes:    []mongosink.Index{{Keys: bson.D{{Key: "customer", Value: 1}}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	stream := projector.Source{Projection: "orders", Topic: "order.changed", Stream: "EV_order.changed", Created: time.Unix(1, 0)}
	if _, err := sink.Open(ctx, stream); err != nil {
		fmt.Println(err)
		return
	}
	order := func(seq uint64, state string) projector.Change {
		return projector.Change{Key: "o1", Doc: json.RawMessage(state), Event: jetbus.Event{Seq: seq}}
	}
	for _, c := range []projector.Change{
		order(2, `{"customer": "ann", "total": 30}`),
		order(1, `{"customer": "ann", "total": 10}`),
	} {
		out, err := sink.Write(ctx, projector.Batch{Changes: []projector.Change{c}})
		fmt.Println(out.Applied, out.Stale, err)
	}
	var stored bson.M
	err = db.Collection("orders").FindOne(ctx, append(mongosink.Live(), bson.E{Key: "customer", Value: "ann"})).Decode(&stored)
	fmt.Println(stored["_id"], stored["total"], stored["_seq"], err)
	// Output:
	// 1 0 <nil>
	// 0 1 <nil>
	// o1 30 2 <nil>
}

func ExampleReadStatus() {
	ctx := context.Background()
	db, done := exampleDatabase(ctx)
	defer done()
	sink, err := mongosink.New(db, mongosink.Options{Collection: "orders"})
	if err != nil {
		fmt.Println(err)
		return
	}
	stream := projector.Source{Projection: "orders", Topic: "order.changed", Stream: "EV_order.changed", Created: time.Unix(1, 0)}
	if _, err := sink.Open(ctx, stream); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := sink.Write(ctx, projector.Batch{UpTo: 12}); err != nil {
		fmt.Println(err)
		return
	}
	list, err := mongosink.ReadStatus(ctx, db)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range list {
		fmt.Println(s.Collection, s.Projection, s.Sources[0].Topic, s.Sources[0].Position.Seq)
	}
	// Output: orders orders order.changed 12
}

// exampleDatabase is a database of the stand-in.
func exampleDatabase(ctx context.Context) (db *mongo.Database, done func()) {
	srv, err := mongod.Start(ctx, mongod.Config{})
	if err != nil {
		panic(err)
	}
	client, err := mongo.Connect(options.Client().ApplyURI(srv.URI()))
	if err != nil {
		panic(err)
	}
	return client.Database("shop"), func() {
		_ = client.Disconnect(ctx) // the server goes with it
		srv.Stop()
	}
}
