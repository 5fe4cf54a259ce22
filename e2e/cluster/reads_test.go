package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// Whoever reads right after an event was acknowledged finds it, though the replica that
// answers lags behind the leader: from a position, from a time, by its key.
func TestReadsOnCluster(t *testing.T) {
	c, _ := onCluster(t, jetbus.TopicConfig{KeyInSubject: true})
	step, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	leader, err := election.Leader(step, c, func() (int, error) { return c.StreamLeader("EV_A") })
	if err != nil {
		t.Fatal(err)
	}
	// A node answers who is connected to it by itself.
	bus := bustest.Open(t, c.Node((leader+1)%3), adapter.Config{Timeout: patience})
	ctx := t.Context()
	loader := bustest.Open(t, c.Node(leader), adapter.Config{Timeout: patience})
	publish := func(key, payload string) jetbus.Event {
		t.Helper()
		r, err := bus.Publish(ctx, jetbus.Event{Topic: "a", Key: key, Payload: []byte(payload)})
		if err != nil {
			t.Fatal(err)
		}
		return r.Event
	}
	latest := func(keys ...string) map[string]jetbus.Event {
		t.Helper()
		state, err := bus.LatestByKey(ctx, "a", keys...)
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	const rounds = 20
	for i := range rounds {
		stored := busy(t, loader)
		began := time.Now().Add(-time.Millisecond)
		first := publish("k", fmt.Sprint(i))
		var next uint64
		for e, err := range bus.Scan(ctx, "a", jetbus.ScanQuery{From: jetbus.AfterSeq(first.Seq - 1), Limit: 1}) {
			if err != nil {
				t.Fatal(err)
			}
			next = e.Seq
		}
		if next != first.Seq {
			t.Errorf("round %d: scanned %d behind the event before, want %d", i, next, first.Seq)
		}
		if one := latest("k")["k"]; one.Seq != first.Seq {
			t.Errorf("round %d: the last event of the key is at %d, want %d", i, one.Seq, first.Seq)
		}
		fresh := publish(fmt.Sprint("new-", i), "0")
		state := latest("k", fresh.Key, "never")
		if len(state) != 2 || state[fresh.Key].Seq != fresh.Seq {
			t.Errorf("round %d: %d of 2 keys, the new one at %d, want %d", i, len(state), state[fresh.Key].Seq, fresh.Seq)
		}
		if none := latest("never", "ever"); len(none) != 0 {
			t.Errorf("round %d: %d events of keys that never were", i, len(none))
		}
		found := 0
		for e, err := range bus.Read(ctx, []string{"a"}, jetbus.ReadOptions{From: jetbus.AtTime(began)}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Seq == first.Seq || e.Seq == fresh.Seq {
				found++
			}
		}
		if found != 2 {
			t.Errorf("round %d: read %d of the 2 events stored since it began", i, found)
		}
		stored()
	}
}

// busy gives the replicas of topic "a" work, so that those which follow lag behind. wait returns
// when it is stored: what is read meanwhile has so much to wait for, and no more.
func busy(t *testing.T, bus *adapter.Bus) (wait func()) {
	const batches = 4
	events := make([]jetbus.Event, 50)
	for i := range events {
		events[i] = jetbus.Event{Topic: "a", Key: fmt.Sprint("busy-", i), Payload: make([]byte, 32<<10)}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range batches {
			if _, err := bus.PublishBatch(t.Context(), events, jetbus.BatchOptions{}); err != nil {
				if t.Context().Err() == nil {
					t.Error(err)
				}
				return
			}
		}
	}()
	wait = func() { <-done }
	t.Cleanup(wait)
	return wait
}
