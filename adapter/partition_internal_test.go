package adapter

import (
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

// A durable whose copy of the stream is behind counts nothing; what an older generation
// has left the stream's leader knows.
func TestDrainedByLeader(t *testing.T) {
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{})
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
