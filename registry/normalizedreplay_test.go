package registry_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// An event that failed when its group read an older schema is replayed as it was stored,
// and comes to its handler in the version that the group reads now.
func TestNormalizedReplay(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		d := newDesk(t)
		d.declare(jetbus.TopicConfig{Name: counters})
		registerCounters(d)
		upcasters := registry.Upcasters{counters: {2: rename}}
		member := func(version int, h jetbus.Handler) jetbus.Subscription {
			b := registry.Normalized(d.bus, d.reg, registry.NormalizedOptions{Versions: map[string]int{counters: version}, Upcasters: upcasters})
			return must(b.Subscribe(t.Context(), counters, "g", h, jetbus.SubscribeOptions{From: jetbus.Earliest()}))(t)
		}
		const payload = `{"n": 7}`
		_, err := d.bus.Publish(t.Context(), jetbus.Event{Topic: counters, ID: "e", Payload: []byte(payload), Headers: map[string]string{"x-schema-version": "1"}})
		d.ok(err)
		old := member(1, func(context.Context, *jetbus.Delivery) error { return jetbus.Reject(errors.New("cannot")) })
		time.Sleep(time.Second)
		d.ok(old.Stop(t.Context()))

		var handled []string
		fresh := member(4, func(_ context.Context, d *jetbus.Delivery) error {
			handled = append(handled, fmt.Sprint(d.ID, string(d.Payload), " of version ", d.Headers["x-schema-version"], ", was ", d.Headers["x-upcasted-from"], ", replay of ", d.ReplayOf))
			return nil
		})
		stats := must(jetbus.Replay(t.Context(), d.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: counters}}))(t)
		time.Sleep(time.Second)
		synctest.Wait() // the handler has returned
		want := `e{"count":7} of version 4, was 1, replay of 1`
		if stats.Replayed != 1 || len(handled) != 1 || handled[0] != want {
			t.Errorf("the replay did %+v; handled %q, want %q", stats, handled, want)
		}
		for l, err := range jetbus.DeadLetters(t.Context(), d.bus, jetbus.DeadLetterQuery{Topic: counters}) {
			d.ok(err)
			if string(l.Event.Payload) != payload || l.Event.Headers["x-schema-version"] != "1" || l.Seq != 1 {
				t.Errorf("dead letter %+v", l)
			}
		}

		// What the group still cannot read is another dead letter, and no loop.
		d.ok(fresh.Stop(t.Context()))
		upcasters = nil
		member(4, func(context.Context, *jetbus.Delivery) error { t.Error("handled without its upcaster"); return nil })
		stats = must(jetbus.Replay(t.Context(), d.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: counters}, Force: true}))(t)
		time.Sleep(time.Hour)
		var reasons []jetbus.DeadReason
		for l, err := range jetbus.DeadLetters(t.Context(), d.bus, jetbus.DeadLetterQuery{Topic: counters}) {
			d.ok(err)
			reasons = append(reasons, l.Reason)
		}
		if got := fmt.Sprint(reasons); stats.Replayed != 1 || got != "[rejected schema]" {
			t.Errorf("the replay did %+v; dead letters %s", stats, got)
		}
	})
}
