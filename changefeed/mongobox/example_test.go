package mongobox_test

import (
	"context"
	"fmt"
	"log"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// Events that are added in a transaction are published when it has committed.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	broker, err := embedded.Start(ctx, embedded.Config{})
	check(err)
	defer broker.Stop(context.Background())
	nc, err := broker.Connect()
	check(err)
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	check(err)
	defer bus.Close(context.Background())
	server, err := mongod.Start(ctx, mongod.Config{}) // or a MongoDB of yours
	check(err)
	defer server.Stop()
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI()))
	check(err)
	defer client.Disconnect(context.Background())

	db := client.Database("shop")
	box, err := mongobox.Open(ctx, db.Collection("outbox"), mongobox.Options{})
	check(err)
	_, err = bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders.paid"})
	check(err)
	drainer, err := jetbus.NewDrainer(box, bus, jetbus.DrainOptions{})
	check(err)
	ended := make(chan error, 2)
	go func() { ended <- drainer.Run(ctx) }()
	go func() { ended <- box.Watch(ctx, drainer.Kick) }()

	session, err := client.StartSession()
	check(err)
	defer session.EndSession(context.Background())
	pay := func(id string, total int) error {
		_, err := session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
			body := fmt.Appendf(nil, `{"total":%d}`, total)
			if err := box.Add(ctx, jetbus.Event{Topic: "orders.paid", Key: id, Payload: body}); err != nil {
				return nil, err
			}
			if _, err := db.Collection("orders").InsertOne(ctx, bson.M{"_id": id, "total": total}); err != nil {
				return nil, err
			}
			if total < 0 {
				return nil, fmt.Errorf("order %s: a total of %d", id, total)
			}
			return nil, nil
		})
		return err
	}
	fmt.Println(pay("8", -1)) // nothing is written, and nothing published
	fmt.Println(pay("7", 250))

	for e, err := range bus.Read(ctx, []string{"orders.paid"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		check(err)
		fmt.Println("paid:", e.Key, string(e.Payload))
		break
	}
	stop()
	check(<-ended)
	check(<-ended)
	// Output:
	// order 8: a total of -1
	// <nil>
	// paid: 7 {"total":250}
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
