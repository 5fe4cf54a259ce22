package outbox

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// Events that are added in a transaction are published when it has committed.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	broker, err := embedded.Start(ctx, embedded.Config{})
	check(err)
	defer func() { _ = broker.Stop(context.Background()) }()
	nc, err := broker.Connect()
	check(err)
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	check(err)
	db, err := sql.Open("sqlite", "file:example?mode=memory&cache=shared")
	check(err)
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // a database in memory

	check(outbox.Create(ctx, db, outbox.SQLite, ""))
	box, err := outbox.Open(ctx, db, outbox.Options{Dialect: outbox.SQLite})
	check(err)
	_, err = bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders.paid"})
	check(err)
	drainer, err := jetbus.NewDrainer(box, bus, jetbus.DrainOptions{})
	check(err)
	ended := make(chan error, 1)
	go func() { ended <- drainer.Run(ctx) }()

	for id, paid := range map[string]bool{"7": true, "8": false} {
		tx, err := db.BeginTx(ctx, nil)
		check(err)
		check(box.Add(ctx, tx, jetbus.Event{Topic: "orders.paid", Key: id, Payload: []byte(`{"total":250}`)}))
		if !paid {
			check(tx.Rollback())
			continue
		}
		check(tx.Commit())
		drainer.Kick()
	}
	for e, err := range bus.Read(ctx, []string{"orders.paid"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		check(err)
		fmt.Println("paid:", e.Key, string(e.Payload))
		break
	}
	stop()
	check(<-ended)
	check(bus.Close(context.Background()))
	// Output: paid: 7 {"total":250}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
