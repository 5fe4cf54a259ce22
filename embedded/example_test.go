package embedded_test

import (
	"context"
	"fmt"
	"log"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/embedded"
)

func ExampleStart() {
	ctx := context.Background()
	// No Dir: the store is temporary. No Listen: no port is opened.
	b, err := embedded.Start(ctx, embedded.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Stop(ctx)

	nc, err := b.Connect()
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	s, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}})
	if err != nil {
		log.Fatal(err)
	}
	ack, err := js.Publish(ctx, "orders.created", []byte("number 7"))
	if err != nil {
		log.Fatal(err)
	}
	m, err := s.GetMsg(ctx, ack.Sequence)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d %s: %s\n", m.Sequence, m.Subject, m.Data)
	// Output: 1 orders.created: number 7
}
