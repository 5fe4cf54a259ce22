package adapter_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// foreignMapping is how the server chooses the partitions of what publishers without
// JetBus send. It names the generation and its number of partitions, and is changed
// with them.
const foreignMapping = `mappings = {
  "in.orders.*": "ev.orders.P1.{{partition(8,1)}}.{{wildcard(1)}}"
}
`

// Publishers that know nothing of partitions let the server choose them. It does so in
// another way than JetBus; the events of one key lie in one partition all the same.
func TestForeignPublisher(t *testing.T) {
	file := filepath.Join(t.TempDir(), "server.conf")
	if err := os.WriteFile(file, []byte(foreignMapping), 0o600); err != nil {
		t.Fatal(err)
	}
	bustest.Run(t, func(t *testing.T) {
		o := must(server.ProcessConfigFile(file))(t)
		o.JetStream = true
		s := adaptertest.StartServer(t, o)
		ctx := t.Context()
		bus := must(adapter.Open(ctx, adaptertest.Dial(t, s), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, bus)
		must(bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders", Partitions: 8, KeyInSubject: true, Retention: -1}))(t)

		foreign := adaptertest.Dial(t, s)
		for i := range 40 {
			must(foreign.Request(fmt.Sprint("in.orders.key-", i%20), fmt.Append(nil, i), time.Second))(t)
		}
		at, used := map[string]int{}, map[int]bool{}
		n := 0
		for e, err := range bus.Scan(ctx, "orders", jetbus.ScanQuery{}) {
			if err != nil {
				t.Fatal(err)
			}
			if p, seen := at[e.Key]; seen && p != e.Partition || e.Partition < 0 || e.Partition > 7 {
				t.Errorf("event %d of key %s is in partition %d, the one before in %d", e.Seq, e.Key, e.Partition, p)
			}
			if want := fmt.Sprint("key-", n%20); e.Key != want {
				t.Errorf("event %d has the key %q, want %q", e.Seq, e.Key, want)
			}
			at[e.Key], used[e.Partition] = e.Partition, true
			n++
		}
		if n != 40 || len(at) != 20 || len(used) < 4 {
			t.Errorf("%d events of %d keys in %d partitions", n, len(at), len(used))
		}
		latest := must(bus.LatestByKey(ctx, "orders", "key-7"))(t)
		if string(latest["key-7"].Payload) != "27" {
			t.Errorf("latest %+v", latest)
		}

		// When the topic grows, they are told that nobody is there until the mapping is changed.
		must(bus.Repartition(ctx, "orders", 12))(t)
		if _, err := foreign.Request("in.orders.key-1", nil, time.Second); !errors.Is(err, nats.ErrNoResponders) {
			t.Errorf("by the old mapping: %v", err)
		}
		if err := s.GlobalAccount().AddMapping("in.orders.*", "ev.orders.P2.{{partition(12,1)}}.{{wildcard(1)}}"); err != nil {
			t.Fatal(err)
		}
		must(foreign.Request("in.orders.key-1", nil, time.Second))(t)
	})
}
