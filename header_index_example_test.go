package jetbus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

const (
	indexedTopic  = "orders.created"
	indexTopic    = "orders.by_correlation" // key: a correlation ID; payload: indexEntry
	indexedHeader = "x-correlation-id"
	maxIndexed    = 1000 // events per correlation ID: the newest
)

// indexEntry lists the events with a correlation ID by their sequences, oldest first.
type indexEntry struct {
	Seqs []uint64 `json:"seqs"`
}

// keepIndex declares the index, and keeps it until the subscription stops. Retention is
// the retention of the indexed topic: an entry expires with the last event of its ID. Any
// number of processes may run it; one of them works, and ExpectLastSeq refuses the writes
// of a stalled process.
func keepIndex(ctx context.Context, bus jetbus.Backend, retention time.Duration) (jetbus.Subscription, error) {
	_, err := bus.EnsureTopic(ctx, jetbus.TopicConfig{
		Name: indexTopic, Compact: true, Retention: retention,
		TombstoneTTL: time.Second, // an expired entry leaves a tombstone, which ExpectLastSeq refuses
	})
	if err != nil {
		return nil, err
	}
	return bus.Subscribe(ctx, indexedTopic, "correlation-index", func(ctx context.Context, d *jetbus.Delivery) error {
		id := d.Headers[indexedHeader]
		if id == "" {
			return nil
		}
		if err := jetbus.ValidKey(id); err != nil {
			return jetbus.Drop(err) // not indexed
		}
		entry, last, err := readIndex(ctx, bus, id)
		if err != nil {
			return err
		}
		at, found := slices.BinarySearch(entry.Seqs, d.Seq)
		if found || at == 0 && len(entry.Seqs) == maxIndexed { // redelivered, or too old
			return nil
		}
		entry.Seqs = slices.Insert(entry.Seqs, at, d.Seq)
		entry.Seqs = entry.Seqs[max(0, len(entry.Seqs)-maxIndexed):]
		payload, err := json.Marshal(entry)
		if err == nil {
			_, err = bus.Publish(ctx, jetbus.Event{Topic: indexTopic, Key: id, Payload: payload}, jetbus.PublishOptions{ExpectLastSeq: &last})
		}
		return err
	}, jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: jetbus.Total})
}

// readIndex returns the index entry of a correlation ID, and the sequence of its event.
func readIndex(ctx context.Context, bus jetbus.Store, id string) (entry indexEntry, last uint64, err error) {
	found, err := bus.LatestByKey(ctx, indexTopic, id)
	if e, ok := found[id]; ok && err == nil {
		return entry, e.Seq, json.Unmarshal(e.Payload, &entry)
	}
	return entry, 0, err
}

// correlated returns the events with a correlation ID, oldest first. It reads the index
// entry and these events, however many other events there are.
func correlated(ctx context.Context, bus jetbus.Store, id string) (events []jetbus.Event, err error) {
	entry, _, err := readIndex(ctx, bus, id)
	if err != nil {
		return nil, err
	}
	for _, seq := range entry.Seqs {
		for e, err := range bus.Scan(ctx, indexedTopic, jetbus.ScanQuery{From: jetbus.AfterSeq(seq - 1), Limit: 1}) {
			if err != nil {
				return nil, err
			}
			if e.Seq == seq && e.Headers[indexedHeader] == id { // otherwise it has expired
				events = append(events, e)
			}
		}
	}
	return events, nil
}

// Find the events with a header's value without reading the whole topic, as
// [jetbus.Filter] does: keep an index in another topic.
func ExampleFilter_index() {
	bus, end := openExample()
	defer end()
	ctx := context.Background()
	for order, correlation := range []string{"a", "b", "a"} {
		e := jetbus.Event{Topic: indexedTopic, Key: fmt.Sprint(order), Headers: map[string]string{indexedHeader: correlation}}
		if _, err := bus.Publish(ctx, e); err != nil {
			panic(err)
		}
	}

	index, err := keepIndex(ctx, bus, 7*24*time.Hour)
	if err != nil {
		panic(err)
	}
	defer index.Stop(ctx)
	for e, err := range bus.Read(ctx, []string{indexTopic}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		if err != nil {
			panic(err)
		}
		if e.Seq == 3 { // the index follows the topic: it has an entry for the third event
			break
		}
	}

	events, err := correlated(ctx, bus, "a")
	for _, e := range events {
		fmt.Println("order", e.Key, "at", e.Seq)
	}
	fmt.Println(err)
	// Output:
	// order 0 at 1
	// order 2 at 3
	// <nil>
}
