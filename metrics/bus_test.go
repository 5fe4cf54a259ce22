package metrics_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/metrics"
)

// TestBus is a bus from the first event to a dead letter.
func TestBus(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		m := newMetrics(t, metrics.Config{})
		bus := bustest.Open(t, bustest.Start(t, embedded.Config{}), adapter.Config{AutoCreate: true, Observer: m.Observe})
		if err := m.WatchTopics(bus, metrics.TopicOptions{}); err != nil {
			t.Fatal(err)
		}
		running, free := make(chan struct{}), make(chan struct{})
		_, err := bus.Subscribe(t.Context(), "orders", "billing", func(_ context.Context, d *jetbus.Delivery) error {
			switch d.Key {
			case "bad":
				return jetbus.Reject(errors.New("bad"))
			case "slow":
				close(running)
				<-free
			}
			return nil
		}, jetbus.SubscribeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"good", "bad", "slow"} {
			if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "orders", Key: key, Payload: []byte("1")}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "ORDERS"}); err == nil {
			t.Fatal("no error")
		}
		<-running
		time.Sleep(10 * time.Second)
		synctest.Wait()
		got := scrape(t, m)
		const group, handled = "{group=billing,topic=orders}", "{group=billing,topic=orders,version=none}"
		got.want(t, map[string]float64{
			"events_published_total{topic=orders,version=none}": 3, "events_delivered_total" + handled: 3, "events_acked_total" + handled: 1,
			"events_inflight" + group: 1, "events_nacked_total" + group: 0,
			"events_dead_lettered_total{group=billing,reason=rejected,topic=orders}": 1, "dead_letters{topic=orders}": 1,
			"events_publish_failed_total{reason=invalid,topic=other}": 1, "delivery_latency_ms" + group: 1,
			"topic_events{topic=orders}": 3, "group_lag_events" + group: 1, "group_lag_seconds" + group: 10, "group_held" + group: 1,
		})
		close(free)
		time.Sleep(metrics.DefaultAskEvery)
		synctest.Wait()
		got = scrape(t, m)
		got.want(t, map[string]float64{"events_inflight" + group: 0, "group_lag_events" + group: 0, "group_lag_seconds" + group: 0, "events_acked_total" + handled: 2})
		got.without(t, "metrics_errors_total")
	})
}
