package mongosink_test

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

// The states of processes become the collection processes, which is asked which of
// them live on a host.
func Example() {
	ctx := context.Background()
	db, done := exampleDatabase(ctx)
	defer done()
	bus, closeBus := exampleBus(ctx)
	defer closeBus()
	if _, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: processes.DefaultStates, KeyInSubject: true}); err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range []processes.Process{
		{ProcessID: "h1/db", Name: "db", Host: "h1", Status: processes.Alive},
		{ProcessID: "h1/web", Name: "web", Host: "h1", Status: processes.Alive},
		{ProcessID: "h2/web", Name: "web", Host: "h2", Status: processes.Alive},
		{ProcessID: "h1/db", Name: "db", Host: "h1", Status: processes.Stale},
	} {
		if _, err := processes.StateTopic.Publish(ctx, bus, p); err != nil {
			fmt.Println(err)
			return
		}
	}

	sink, err := mongosink.New(db, mongosink.Options{
		Collection: "processes",
		Indexes: []mongosink.Index{
			{Keys: bson.D{{Key: "host", Value: 1}, {Key: "name", Value: 1}}},
			{Keys: bson.D{{Key: "status", Value: 1}}},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := projector.Start(ctx, bus, sink, projector.Options{Name: "processes", Topic: processes.DefaultStates})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range time.Tick(10 * time.Millisecond) { // it is filled in the background
		if p.Stats().Phase == projector.Following {
			break
		}
	}
	if err := p.Stop(ctx); err != nil {
		fmt.Println(err)
		return
	}

	for _, q := range processesOn(ctx, db, "h1") {
		fmt.Println(q.ProcessID, q.Status)
	}
	// Output:
	// h1/db stale
	// h1/web alive
}

// processesOn asks the collection.
func processesOn(ctx context.Context, db *mongo.Database, host string) (list []struct {
	ProcessID string `bson:"processId"`
	Status    string
},
) {
	cursor, err := db.Collection("processes").Find(ctx, append(mongosink.Live(), bson.E{Key: "host", Value: host}),
		options.Find().SetSort(bson.D{{Key: "name", Value: 1}}))
	if err == nil {
		err = cursor.All(ctx, &list)
	}
	if err != nil {
		fmt.Println(err)
	}
	return list
}

// exampleBus is a bus on a broker of its own.
func exampleBus(ctx context.Context) (bus *adapter.Bus, done func()) {
	broker, err := embedded.Start(ctx, embedded.Config{})
	if err != nil {
		panic(err)
	}
	nc, err := broker.Connect()
	if err != nil {
		panic(err)
	}
	if bus, err = adapter.Open(ctx, nc, adapter.Config{}); err != nil {
		panic(err)
	}
	return bus, func() {
		bus.Close(ctx)
		nc.Close()
		_ = broker.Stop(ctx)
	}
}
