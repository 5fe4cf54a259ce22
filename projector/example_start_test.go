package projector_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/projector"
)

// table is a sink in memory. One that outlives its process keeps the source, too,
// and refuses others.
type table struct {
	mu    sync.Mutex
	rows  map[string]projector.Change // deleted ones included: an older event may come late
	known projector.Position
}

func (t *table) Open(context.Context, projector.Source) (projector.Position, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known, nil
}

func (t *table) Write(_ context.Context, b projector.Batch) (projector.Outcome, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out projector.Outcome
	for _, c := range b.Changes {
		if have, ok := t.rows[c.Key]; ok && have.Event.Seq >= c.Event.Seq {
			out.Stale++
			continue
		}
		t.rows[c.Key] = c
		out.Applied++
	}
	if b.UpTo > 0 {
		t.known = projector.Position{Known: true, Seq: max(t.known.Seq, b.UpTo)}
	}
	return out, nil
}

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
	bus, err := adapter.Open(ctx, nc, adapter.Config{AutoCreate: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer bus.Close(ctx)
	stock := []jetbus.Event{
		{Topic: "stock", Key: "apples", Payload: []byte(`{"left":12}`)},
		{Topic: "stock", Key: "pears", Payload: []byte(`{"left":3}`)},
		{Topic: "stock", Key: "apples", Payload: []byte(`{"left":11}`)},
		{Topic: "stock", Key: "pears", Payload: []byte(`null`)}, // sold out, and gone
	}
	if _, err := bus.PublishBatch(ctx, stock, jetbus.BatchOptions{}); err != nil {
		fmt.Println(err)
		return
	}

	sink := &table{rows: map[string]projector.Change{}}
	p, err := projector.Start(ctx, bus, sink, projector.Options{Name: "stock-table", Topic: "stock"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for {
		lag, err := p.Lag(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		if lag.Events == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := p.Stop(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for key, c := range sink.rows {
		if !c.Deleted {
			fmt.Printf("%s %s\n", key, c.Doc.(json.RawMessage))
		}
	}
	// Output: apples {"left":11}
}
