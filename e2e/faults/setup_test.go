//go:build unix

package faults

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
)

// killAndRestart ends a broker by SIGKILL and starts it again.
func killAndRestart(t *testing.T, b *broker.Broker) {
	t.Helper()
	must(t, b.Kill())
	must(t, b.Restart())
}

// connect connects this process.
func connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := broker.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// openBus opens a bus in this process.
func openBus(t *testing.T, url string) *adapter.Bus {
	t.Helper()
	bus, err := adapter.Open(t.Context(), connect(t, url), adapter.Config{Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := bus.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return bus
}

func declare(t *testing.T, bus *adapter.Bus, c jetbus.TopicConfig) jetbus.TopicInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	info, err := bus.EnsureTopic(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// publish stores events <prefix>-0, <prefix>-1, ... and returns their ids.
func publish(t *testing.T, bus *adapter.Bus, topic, prefix string, n int) []string {
	t.Helper()
	var ids []string
	for i := range n {
		id := fmt.Sprintf("%s-%d", prefix, i)
		if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: topic, ID: id}); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// eventually waits until ok, which says what is missing.
func eventually(t *testing.T, ok func() (missing string)) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); ; <-tick.C {
		missing := ok()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(missing)
		}
	}
}

// group describes a group as it is at the broker.
func group(t *testing.T, bus *adapter.Bus, topic, name string) (jetbus.GroupInfo, error) {
	t.Helper()
	groups, err := bus.Groups(t.Context(), topic)
	if err != nil {
		return jetbus.GroupInfo{}, err
	}
	if i := slices.IndexFunc(groups, func(g jetbus.GroupInfo) bool { return g.Group == name }); i >= 0 {
		return groups[i], nil
	}
	return jetbus.GroupInfo{}, jetbus.ErrNoGroup
}

// awaitSettled waits until the broker has nothing left for the group: as long as
// it takes, while it becomes less.
func awaitSettled(t *testing.T, bus *adapter.Bus, topic, name string) {
	t.Helper()
	left := uint64(math.MaxUint64)
	for left > 0 {
		eventually(t, func() string {
			g, err := group(t, bus, topic, name)
			switch now := g.Pending + uint64(g.Held); { //nolint:gosec // a count
			case err == nil && now == 0 && !g.Paused:
				left = 0
				return ""
			case err == nil && now > 0 && now < left:
				left = now
				return ""
			}
			return fmt.Sprintf("group %s/%s is not settled: %+v, %v", topic, name, g, err)
		})
	}
}

// readLog reads a topic, and checks that no id is in it twice.
func readLog(t *testing.T, bus *adapter.Bus, topic string) map[string]jetbus.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	events := map[string]jetbus.Event{}
	for e, err := range bus.Scan(ctx, topic, jetbus.ScanQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if other, twice := events[e.ID]; twice {
			t.Errorf("%s is stored twice, at %d and %d", e.ID, other.Seq, e.Seq)
		}
		events[e.ID] = e
	}
	return events
}

// checkLog checks that a topic holds these events, once each, and no others.
func checkLog(t *testing.T, bus *adapter.Bus, topic string, ids []string) {
	t.Helper()
	events := readLog(t, bus, topic)
	missing := 0
	for _, id := range ids {
		if _, ok := events[id]; !ok {
			missing++
			if missing <= 5 {
				t.Errorf("%s was acknowledged and is not stored", id)
			}
		}
	}
	if len(events) != len(ids) || missing > 0 {
		t.Errorf("%d events are stored, %d were published, %d of those are missing", len(events), len(ids), missing)
	}
}

// handled returns the ids that some child has handled.
func handled(children ...*process) map[string]bool {
	ids := map[string]bool{}
	for _, c := range children {
		for _, r := range c.said("handled") {
			ids[r.ID] = true
		}
	}
	return ids
}

// awaitHandled waits until the children together have handled these events.
func awaitHandled(t *testing.T, ids []string, children ...*process) {
	t.Helper()
	eventually(t, func() string {
		have := handled(children...)
		for _, id := range ids {
			if !have[id] {
				return fmt.Sprintf("%s was not handled (%d others were)", id, len(have))
			}
		}
		return ""
	})
}
