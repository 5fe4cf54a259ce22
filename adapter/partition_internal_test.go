package adapter

import (
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// A durable whose copy of the stream is behind counts nothing; what an older generation
// has left the stream's leader knows.
func TestDrainedByLeader(t *testing.T) {
	_, nc, _ := directStream(t)
	bus, err := Open(t.Context(), nc, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := bus.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	r, err := bus.Publish(t.Context(), jetbus.Event{Topic: "a", Key: "k", Payload: []byte("1")})
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.JoinPartitions(t.Context(), "a", "g", jetbus.SubscribeOptions{Order: jetbus.PerKey}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Repartition(t.Context(), "a", 2); err != nil {
		t.Fatal(err)
	}
	parts, err := bus.existingParts(t.Context(), "a", "g")
	if err != nil {
		t.Fatal(err)
	}
	for acked, want := range map[uint64]uint64{0: 1, r.Event.Seq: 0} {
		infos := make([]jetbus.PartitionInfo, len(parts))
		for i := range parts {
			infos[i] = jetbus.PartitionInfo{Partition: parts[i].part, AckedSeq: acked}
		}
		if err := bus.confirmDrained(t.Context(), parts, infos); err != nil || infos[0].Pending != want {
			t.Errorf("settled up to %d: %+v (%v), want %d pending", acked, infos[0], err, want)
		}
	}
}

// A durable that is in no list while it is replaced is looked for again; one that stays
// away is gone.
func TestFindOwn(t *testing.T) {
	_, nc, _ := directStream(t)
	bus, err := Open(t.Context(), nc, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := bus.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	if err := bus.JoinPartitions(t.Context(), "a", "g", jetbus.SubscribeOptions{Order: jetbus.PerKey}); err != nil {
		t.Fatal(err)
	}
	parts, err := bus.existingParts(t.Context(), "a", "g")
	if err != nil {
		t.Fatal(err)
	}
	p := parts[0]
	info, err := bus.createConsumer(t.Context(), p.topic, "g", 1, 1, p.info.Config)
	if err == nil {
		err = bus.js.DeleteConsumer(t.Context(), p.stream, p.info.Name)
	}
	if err != nil {
		t.Fatal(err)
	}
	var asked, missing atomic.Int64
	api := bus.api
	defer func() { bus.api = api }()
	bus.api = "fake."
	sub, err := nc.Subscribe("fake.CONSUMER.LIST."+p.stream, func(m *nats.Msg) {
		page := consumerPage{Total: 1, Limit: 100}
		if asked.Add(1) > missing.Load() {
			page.Consumers = []*jetstream.ConsumerInfo{info}
		}
		text, err := json.Marshal(page)
		if err != nil || m.Respond(text) != nil {
			t.Errorf("not answered: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		missing, asked int64
		want           error
	}{{0, 1, nil}, {1, 2, nil}, {ownLooks - 1, ownLooks, nil}, {ownLooks, ownLooks, jetbus.ErrNoGroup}} {
		asked.Store(0)
		missing.Store(c.missing)
		bus.present.seen = nil
		found, err := bus.findOwn(t.Context(), p.topic, "g")
		if !errors.Is(err, c.want) || err == nil && found.Name != info.Name || asked.Load() != c.asked {
			t.Errorf("missing in %d lists: %+v, %v after %d", c.missing, found, err, asked.Load())
		}
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Error(err)
	}
}
