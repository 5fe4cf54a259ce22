package contract

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// Whoever reads right after an event was acknowledged finds it, though the replica that
// answers lags behind the leader: from a position, from a time, by its key.
func TestReadsOnCluster(t *testing.T) {
	c, _ := onCluster(t, jetbus.TopicConfig{KeyInSubject: true})
	leader, err := c.StreamLeader("EV_A")
	if err != nil {
		t.Fatal(err)
	}
	// A node answers who is connected to it by itself.
	bus := bustest.Open(t, c.Node((leader+1)%3), adapter.Config{Timeout: patience})
	ctx := t.Context()
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
	const rounds = 100
	for i := range rounds {
		began := time.Now().Add(-time.Millisecond)
		first := publish("k", fmt.Sprint(i))
		found := 0
		for _, err := range bus.Scan(ctx, "a", jetbus.ScanQuery{From: jetbus.AfterSeq(first.Seq - 1)}) {
			if err != nil {
				t.Fatal(err)
			}
			found++
		}
		if found != 1 {
			t.Errorf("round %d: scanned %d events behind the one before, want 1", i, found)
		}
		if one := latest("k")["k"]; one.Seq != first.Seq {
			t.Errorf("round %d: the last event of the key is at %d, want %d", i, one.Seq, first.Seq)
		}
		fresh := publish(fmt.Sprint("new-", i), "0")
		state := latest("k", fresh.Key, "never")
		if len(state) != 2 || state[fresh.Key].Seq != fresh.Seq {
			t.Errorf("round %d: the state of 2 keys is %v", i, state)
		}
		if none := latest("never", "ever"); len(none) != 0 {
			t.Errorf("round %d: %v of keys that never were", i, none)
		}
		found = 0
		for e, err := range bus.Read(ctx, []string{"a"}, jetbus.ReadOptions{From: jetbus.AtTime(began)}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Seq >= first.Seq {
				found++
			}
		}
		if found != 2 {
			t.Errorf("round %d: read %d of the 2 events stored since it began", i, found)
		}
	}
}
