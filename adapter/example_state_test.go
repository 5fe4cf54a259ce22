package adapter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// A compacted topic keeps the last event of each key. A tombstone deletes a key.
func ExampleBus_EnsureTopic_compacted() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	_, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "process.state", Compact: true})
	check(err)
	for _, e := range []jetbus.Event{
		{Topic: "process.state", Key: "web", Payload: []byte(`"starting"`)},
		{Topic: "process.state", Key: "job", Payload: []byte(`"running"`)},
		{Topic: "process.state", Key: "web", Payload: []byte(`"running"`)},
		jetbus.Tombstone("process.state", "job"),
	} {
		_, err := bus.Publish(ctx, e)
		check(err)
	}
	state, err := bus.LatestByKey(ctx, "process.state", "web", "job")
	check(err)
	_, there := state["job"]
	fmt.Printf("web %s, job %v\n", state["web"].Payload, there)
	// Output: web "running", job false
}

// A snapshot is the last event of each key of a topic that keeps all of them. Its
// events have the positions of that topic: read the snapshot, then follow the topic.
func ExampleBus_ScanLatest_snapshot() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	_, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "prices", KeyInSubject: true})
	check(err)
	_, err = bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "prices.snapshot", SnapshotOf: "prices"})
	check(err)
	for _, price := range []string{"3", "4", "5"} {
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "prices", Key: "tea", Payload: []byte(price)})
		check(err)
	}
	for e, err := range bus.Read(ctx, []string{"prices.snapshot"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		check(err)
		if e.Seq == 3 {
			break // the server keeps the snapshot, moments behind its topic
		}
	}
	asOf, err := bus.ScanLatest(ctx, "prices.snapshot", jetbus.LatestQuery{}, func(e jetbus.Event) error {
		fmt.Printf("%s %d: %s costs %s\n", e.Topic, e.Seq, e.Key, e.Payload)
		return nil
	})
	check(err)
	_, err = bus.Publish(ctx, jetbus.Event{Topic: "prices", Key: "cup", Payload: []byte("9")})
	check(err)
	for e, err := range bus.Read(ctx, []string{"prices"}, jetbus.ReadOptions{After: map[string]uint64{"prices": asOf}, Follow: true}) {
		check(err)
		fmt.Printf("%s %d: %s costs %s\n", e.Topic, e.Seq, e.Key, e.Payload)
		break
	}
	// Output:
	// prices 3: tea costs 5
	// prices 4: cup costs 9
}

// What was known at a time, by the broker's clock.
func ExampleBus_StateAt_timeTravel() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	publish := func(price string) {
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "prices", Key: "tea", Payload: []byte(price)})
		check(err)
	}
	publish("3")
	noon := time.Now()
	publish("4")

	for _, at := range []time.Time{noon, time.Now()} {
		state, err := bus.StateAt(ctx, "prices", at)
		check(err)
		fmt.Printf("as of %d tea cost %s, exact: %v\n", state.AsOf, state.Events["tea"].Payload, state.Exact)
	}
	// Output:
	// as of 1 tea cost 3, exact: true
	// as of 2 tea cost 4, exact: true
}

// An event that enters its topic later, on a topic that allows it.
func ExampleBus_Publish_delayedDelivery() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	_, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "reminders", Delays: true})
	check(err)
	later := jetbus.PublishOptions{DeliverAt: time.Now().Add(2 * time.Second)}
	receipt, err := bus.Publish(ctx, jetbus.Event{Topic: "reminders", Payload: []byte(`"tea is ready"`)}, later)
	check(err)
	fmt.Println("scheduled:", receipt.Scheduled)
	for e, err := range bus.Read(ctx, []string{"reminders"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		check(err)
		fmt.Printf("%s, on time: %v\n", e.Payload, !time.Now().Before(later.DeliverAt))
		break
	}
	// Output:
	// scheduled: true
	// "tea is ready", on time: true
}

// An event with a time to live. Where it was the last of its key in a compacted
// topic, a tombstone takes its place.
func ExampleBus_Publish_timeToLive() {
	bus, end := open()
	defer end()
	ctx := context.Background()

	_, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "sessions", Compact: true})
	check(err)
	session := jetbus.Event{Topic: "sessions", Key: "ann", Payload: []byte(`{"from":"10.0.0.7"}`)}
	_, err = bus.Publish(ctx, session, jetbus.PublishOptions{TTL: 5 * time.Second})
	check(err)
	for e, err := range bus.Read(ctx, []string{"sessions"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		check(err)
		fmt.Printf("%s: %s\n", e.Key, e.Payload)
		if e.IsTombstone() {
			break
		}
	}
	// Output:
	// ann: {"from":"10.0.0.7"}
	// ann: null
}
