package adapter

import (
	"runtime"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// The probes of many large events take the memory of one: a gateway sends up to 64 at the same time.
func TestProbesShareTheirData(t *testing.T) {
	bus, _, _ := internalBus(t)
	e := jetbus.Event{Topic: "k", Key: "k", ID: "a", Payload: make([]byte, 1<<20)}
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: e.Topic}); err != nil {
		t.Fatal(err)
	}
	topic, err := bus.lookup(t.Context(), e.Topic)
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 64 {
		m := &nats.Msg{Subject: topic.filter, Header: ce.Encode(&e), Data: e.Payload}
		size := headerBytes(m.Header) + len(m.Data)
		if err := bus.toProbe(&destination{topic: topic}, m); err != nil {
			t.Fatal(err)
		}
		if got := headerBytes(m.Header) + len(m.Data); got != size {
			t.Fatalf("the probe has %d bytes, the event %d", got, size)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
		t.Errorf("64 probes of 1 MiB allocate %d bytes", n)
	}
}
