package processes_test

import (
	"context"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

func ExampleStart() {
	ctx := context.Background()
	broker, err := embedded.Start(ctx, embedded.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = broker.Stop(ctx) }()
	nc, err := broker.Connect()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer bus.Close(ctx)

	states, err := processes.Start(ctx, bus, processes.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = states.Stop(ctx) }()
	if _, err := processes.HeartbeatTopic.Publish(ctx, bus, processes.Heartbeat{PID: 42, Name: "nginx", Host: "web1", MemMB: 64}); err != nil {
		fmt.Println(err)
		return
	}
	for e, err := range bus.Read(ctx, []string{processes.DefaultStates}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		s, err := processes.StateTopic.Decode(e)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(s.ProcessID, s.Status)
		break
	}
	// Output: web1:nginx:42 alive
}

func ExampleID() {
	fmt.Println(processes.ID("web1", "nginx", 42))
	fmt.Println(processes.ID("web1", "nginx: worker", 42))
	// Output:
	// web1:nginx:42
	// web1:nginx%3A worker:42
}
