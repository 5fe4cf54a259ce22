//go:build unix

package rig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
)

// KillAndRestart ends a broker by SIGKILL and starts it again.
func KillAndRestart(t *testing.T, b *broker.Broker) {
	t.Helper()
	Must(t, b.Kill())
	Must(t, b.Restart())
}

// Connect connects this process.
func Connect(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := broker.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// OpenBus opens a bus in this process.
func OpenBus(t *testing.T, url string) *adapter.Bus {
	t.Helper()
	bus, err := adapter.Open(t.Context(), Connect(t, url), adapter.Config{Timeout: Limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Limit)
		defer cancel()
		if err := bus.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return bus
}

// OnBus opens a bus for a role, with Limit as its Timeout, calls f, and closes the bus and what it is on.
func OnBus(ctx context.Context, url string, c adapter.Config, f func(*nats.Conn, *adapter.Bus) error) error {
	nc, err := broker.Dial(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	c.Timeout = Limit
	bus, err := adapter.Open(ctx, nc, c)
	if err != nil {
		return err
	}
	return errors.Join(f(nc, bus), bus.Close(context.Background()))
}

// Declare makes a topic that is as the configuration says.
func Declare(t *testing.T, bus *adapter.Bus, c jetbus.TopicConfig) jetbus.TopicInfo {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	defer cancel()
	info, err := bus.EnsureTopic(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// Publish stores events <prefix>-0, <prefix>-1, ... and returns their ids.
func Publish(t *testing.T, bus *adapter.Bus, topic, prefix string, n int) []string {
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

// Eventually waits until ok, which says what is missing.
func Eventually(t *testing.T, ok func() (missing string)) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(Limit); ; <-tick.C {
		missing := ok()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(missing)
		}
	}
}

// Group describes a group as it is at the broker.
func Group(t *testing.T, bus *adapter.Bus, topic, name string) (jetbus.GroupInfo, error) {
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

// AwaitSettled waits until the broker has nothing left for the group: as long as
// it takes, while it becomes less.
func AwaitSettled(t *testing.T, bus *adapter.Bus, topic, name string) {
	t.Helper()
	left := uint64(math.MaxUint64)
	for left > 0 {
		Eventually(t, func() string {
			g, err := Group(t, bus, topic, name)
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

// DeadLetters reads those of a topic.
func DeadLetters(t *testing.T, bus jetbus.Backend, topic string) []jetbus.DeadLetter {
	t.Helper()
	byID := map[string]jetbus.DeadLetter{}
	for e, err := range bus.Scan(t.Context(), jetbus.DeadLetterTopic(topic), jetbus.ScanQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		d, err := jetbus.ParseDeadLetter(e)
		if err != nil {
			t.Fatal(err)
		}
		byID[d.ID] = d
	}
	return slices.Collect(maps.Values(byID))
}

// Handled returns the ids that some child has handled.
func Handled(children ...*Process) map[string]bool {
	ids := map[string]bool{}
	for _, c := range children {
		for _, r := range c.Said("handled") {
			ids[r.ID] = true
		}
	}
	return ids
}

// AwaitHandled waits until the children together have handled these events.
func AwaitHandled(t *testing.T, ids []string, children ...*Process) {
	t.Helper()
	Eventually(t, func() string {
		have := Handled(children...)
		for _, id := range ids {
			if !have[id] {
				return fmt.Sprintf("%s was not handled (%d others were)", id, len(have))
			}
		}
		return ""
	})
}
