package brokers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// TestDeliverAtBeyondRetention: what waits for its time in files is not removed by the age
// that events of its topic may have, which counts from its delivery. In files the server goes
// by the clock of the machine, so that a bubble of fake time has no say in it.
func TestDeliverAtBeyondRetention(t *testing.T) {
	t.Parallel()
	bus := openAt(t, runServer(t, server.Options{}), adapter.Config{})
	ctx := patient(t)
	const retention = 4 * time.Second
	c := jetbus.TopicConfig{Name: "orders", Delays: true, Retention: retention, DuplicateWindow: time.Second}
	if _, err := bus.EnsureTopic(ctx, c); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(2 * retention)
	e := jetbus.Event{Topic: "orders", ID: "7", Key: "42"}
	if _, err := bus.Publish(ctx, e, jetbus.PublishOptions{DeliverAt: at}); err != nil {
		t.Fatal(err)
	}
	for e, err := range bus.Read(ctx, []string{"orders"}, jetbus.ReadOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.ID != "7" || time.Now().Before(at) {
			t.Errorf("got %+v, %v before its time", e, time.Until(at))
		}
		break
	}
	persist(t, func(ctx context.Context) error {
		info, err := bus.TopicInfo(ctx, "orders")
		if err == nil && info.Events > 0 {
			err = errors.New("its age does not end it")
		}
		return err
	})
}
