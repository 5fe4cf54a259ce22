package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

// TestLatestOfLargeEvents: keys whose events are more than one answer has are asked for in several.
func TestLatestOfLargeEvents(t *testing.T) {
	l := limits()
	l.QueueBytes = 4 << 10
	r := start(t, gateway.Config{Limits: l})
	bus := dial(t, r.config())
	var keys []string
	for i := range 11 {
		e := jetbus.Event{Topic: "orders", Key: fmt.Sprint(i), Payload: []byte(`"` + strings.Repeat("x", i<<8) + `"`)}
		if _, err := bus.Publish(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	got, err := bus.LatestByKey(t.Context(), "orders", keys...)
	if err != nil || len(got) != len(keys) {
		t.Errorf("%d of %d keys: %v", len(got), len(keys), err)
	}
}

// PartitionsOf returns the partitions of all pages, and the errors of the bus.
func TestPartitionsOf(t *testing.T) {
	var want []jetbus.PartitionStatus
	for n := range 5 {
		p := jetbus.Partition{Generation: 1 + n/3, Number: n % 3}
		want = append(want, jetbus.PartitionStatus{
			Name: p.String(), PartitionInfo: jetbus.PartitionInfo{Partition: p, Pending: 2, Held: 1, AckedSeq: 7, Retries: 4}, LagEvents: 3, LagSeconds: 1.5,
			Owned: n > 2, Member: "m", State: "live", Meta: map[string]string{"zone": "eu"}, Epoch: 9, Orphaned: n < 3,
		})
	}
	c := gateway.Config{Limits: limits(), PartitionsOf: func(_ context.Context, topic, group string) ([]jetbus.PartitionStatus, error) {
		if topic != "orders" {
			return nil, jetbus.ErrNoPartitions
		}
		if group != "billing" {
			return nil, jetbus.ErrNoGroup
		}
		return want, nil
	}}
	c.Limits.PageEvents = 2
	r := start(t, c)
	bus := dial(t, r.config())
	got, err := bus.PartitionsOf(t.Context(), "orders", "billing")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		topic, group string
		want         error
	}{
		{"orders", "none", jetbus.ErrNoGroup},
		{"plain", "billing", jetbus.ErrNoPartitions},
		{"a/b", "billing", jetbus.ErrInvalidTopic},
		{"orders", "a/b", jetbus.ErrInvalidGroup},
	} {
		if _, err := bus.PartitionsOf(t.Context(), c.topic, c.group); !errors.Is(err, c.want) {
			t.Errorf("%s/%s: %v, want %v", c.topic, c.group, err, c.want)
		}
	}
}
