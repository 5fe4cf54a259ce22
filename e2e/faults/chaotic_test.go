//go:build unix

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

// chaoticConfig is that of a member whose handlers are slow and fail at random.
type chaoticConfig struct {
	URL, Group string
	Order      jetbus.Order
}

// runChaotic tells of each event before it acknowledges it, so that what is
// acknowledged was told of.
func runChaotic(ctx context.Context, config []byte, p *rig.Parent) error {
	var c chaoticConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	nc, err := broker.Dial(c.URL)
	if err != nil {
		return err
	}
	defer nc.Close()
	var bus *adapter.Bus
	for bus == nil { // it may start while the broker is away
		if bus, err = adapter.Open(ctx, nc, adapter.Config{Timeout: rig.Limit}); err != nil && !errors.Is(err, jetbus.ErrUnavailable) {
			return err
		}
	}
	handle := func(ctx context.Context, d *jetbus.Delivery) error {
		wait := rand.N(20 * time.Millisecond)
		if rand.IntN(200) == 0 {
			wait = rand.N(6 * time.Second) // longer than a lease, unless it is extended
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if d.Headers["x-bad"] != "" || d.Attempt < 3 && rand.IntN(10) == 0 {
			return errors.New("on purpose")
		}
		p.Tell(rig.Report{What: "handled", ID: d.ID})
		return nil
	}
	s, err := bus.Subscribe(context.WithoutCancel(ctx), chaosTopic, c.Group, handle, jetbus.SubscribeOptions{
		From: jetbus.Earliest(), AckTimeout: 3 * time.Second, Concurrency: 8, MaxAttempts: 5, Order: c.Order,
		Backoff: jetbus.Backoff{Min: 50 * time.Millisecond, Max: time.Second}, ShutdownTimeout: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	p.Tell(rig.Report{What: "ready"})
	select {
	case <-ctx.Done():
	case <-s.Done():
		return s.Err()
	}
	return bus.Close(context.Background())
}
