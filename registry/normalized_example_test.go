package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/registry"
)

const (
	heartbeat   = "heartbeat.received"
	heartbeatV1 = `{"type":"object","properties":{"host":{"type":"string"},"mem_mb":{"type":"integer"}},"required":["host","mem_mb"]}`
	heartbeatV2 = `{"type":"object","properties":{"host":{"type":"string"},"mem_mib":{"type":"integer"}},"required":["host","mem_mib"]}`
)

// A rolling deploy: version 2 of a heartbeat renames mem_mb to mem_mib. For a while
// old and new releases write and read side by side, in one group.
func ExampleNormalized() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nc, stop := exampleBroker(ctx)
	defer stop()
	bus, err := adapter.Open(ctx, nc, adapter.Config{AutoCreate: true})
	if err != nil {
		log.Fatal(err)
	}
	defer bus.Close(ctx)
	reg, err := registry.Open(ctx, nc, registry.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer reg.Close(ctx)

	_, err = reg.Register(ctx, heartbeat, heartbeatV1, registry.RegisterOptions{By: "alice"})
	fmt.Println("register version 1:", err)
	_, err = reg.Register(ctx, heartbeat, heartbeatV2, registry.RegisterOptions{By: "alice"})
	fmt.Println("version 2 is refused:", errors.Is(err, registry.ErrIncompatible)) // a rename breaks readers
	v2, err := reg.Register(ctx, heartbeat, heartbeatV2, registry.RegisterOptions{By: "alice", Force: true})
	fmt.Println("forced by", v2.ForcedBy(), err) // she has an upcaster

	release := func(version int) jetbus.Backend {
		versions := map[string]int{heartbeat: version} // what this release was written for
		return registry.Normalized(
			registry.Validated(bus, reg, registry.ValidatedOptions{Versions: versions}),
			reg, registry.NormalizedOptions{
				Versions:   versions,
				NewerDelay: 10 * time.Millisecond,
				Upcasters: registry.Upcasters{heartbeat: { // the old release has none yet; it needs none
					1: registry.Edit{Rename: map[string]string{"mem_mb": "mem_mib"}},
				}},
			})
	}
	before, after := release(1), release(2)

	seen := make(chan string, 100)
	read := func(member jetbus.Backend, field string) {
		_, err := member.Subscribe(ctx, heartbeat, "ops", func(_ context.Context, d *jetbus.Delivery) error {
			var beat map[string]any
			if err := json.Unmarshal(d.Payload, &beat); err != nil {
				return err
			}
			seen <- fmt.Sprintf("%v has %v", beat["host"], beat[field])
			return nil
		}, jetbus.SubscribeOptions{})
		if err != nil {
			log.Fatal(err)
		}
	}
	read(before, "mem_mb")
	read(after, "mem_mib")

	for i := range 3 {
		for writer, text := range map[jetbus.Backend]string{
			before: fmt.Sprintf(`{"host":"old-%d","mem_mb":%d}`, i, 100+i),
			after:  fmt.Sprintf(`{"host":"new-%d","mem_mib":%d}`, i, 200+i),
		} {
			if _, err := writer.Publish(ctx, jetbus.Event{Topic: heartbeat, Payload: []byte(text)}); err != nil {
				fmt.Println(err) // nothing is refused
			}
		}
	}
	var lines []string
	for len(lines) < 6 {
		lines = append(lines, <-seen)
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
	_, err = jetbus.DeadLetterStats(ctx, bus, heartbeat)
	fmt.Println("no dead letters:", errors.Is(err, jetbus.ErrNoDeadLetters))
	// Output:
	// register version 1: <nil>
	// version 2 is refused: true
	// forced by alice <nil>
	// new-0 has 200
	// new-1 has 201
	// new-2 has 202
	// old-0 has 100
	// old-1 has 101
	// old-2 has 102
	// no dead letters: true
}

// exampleBroker starts a broker in this process.
func exampleBroker(ctx context.Context) (nc *nats.Conn, stop func()) {
	broker, err := embedded.Start(ctx, embedded.Config{})
	if err != nil {
		log.Fatal(err)
	}
	nc, err = broker.Connect()
	if err != nil {
		log.Fatal(err)
	}
	return nc, func() {
		nc.Close()
		if err := broker.Stop(context.WithoutCancel(ctx)); err != nil {
			log.Print(err)
		}
	}
}
