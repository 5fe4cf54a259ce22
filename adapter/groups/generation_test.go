package groups_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// partitionOf is where a key belongs among n partitions.
func (r *rig) partitionOf(key string, n int) int {
	r.Helper()
	return must(jetbus.PartitionOf(key, n))(r.T)
}

// subjects lists where a stream has its messages, in their order.
func (r *rig) subjects(stream string) []string {
	r.Helper()
	s := must(r.JS.Stream(r.Context(), stream))(r.T)
	info := must(s.Info(r.Context()))(r.T)
	var out []string
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		if m, err := s.GetMsg(r.Context(), seq); err == nil {
			out = append(out, m.Subject)
		}
	}
	return out
}

func TestPartitionedTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		info := r.Ensure(jetbus.TopicConfig{Name: "orders", Partitions: 8})
		r.Equal("partitions", info.Config.Partitions, 8)
		r.Equal("generations", info.Generations, []jetbus.Generation{{Generation: 1, Partitions: 8, Stream: "EV_ORDERS"}})
		r.Equal("subjects", r.Stream("EV_ORDERS").Config.Subjects, []string{"ev.orders.P1.*.*"})
		again := r.Ensure(info.Config)
		if diff := cmp.Diff(info, again); diff != "" {
			r.Error(diff)
		}
		for i := range 20 {
			key := fmt.Sprint("key-", i)
			want := r.partitionOf(key, 8)
			receipt := must(r.Bus.Publish(ctx, adaptertest.Event("orders", key)))(r.T)
			r.Equal("partition of "+key, receipt.Event.Partition, want)
			r.Equal("subject of "+key, r.subjects("EV_ORDERS")[i], fmt.Sprintf("ev.orders.P1.%d._", want))
		}
		id := must(r.Bus.Publish(ctx, jetbus.Event{Topic: "orders", ID: "id-1"}))(r.T)
		r.Equal("partition of an event without a key", id.Event.Partition, r.partitionOf("id-1", 8))

		// Whoever reads it, however, learns the partition.
		want := map[int]int{}
		for e, err := range r.Bus.Scan(ctx, "orders", jetbus.ScanQuery{}) {
			r.OK(err)
			key := e.Key
			if key == "" {
				key = e.ID
			}
			r.Equal("scan: partition of "+key, e.Partition, r.partitionOf(key, 8))
			want[int(e.Seq)] = e.Partition
		}
		r.Equal("events", len(want), 21)
		for e, err := range r.Bus.Read(ctx, []string{"orders"}, jetbus.ReadOptions{}) {
			r.OK(err)
			r.Equal("read: partition", e.Partition, want[int(e.Seq)])
		}
		for _, d := range must(r.Bus.Receive(ctx, "orders", "plain", jetbus.ReceiveOptions{From: jetbus.Earliest()}))(r.T) {
			r.Equal("received: partition", d.Partition, want[int(d.Seq)])
			r.OK(d.Ack(ctx))
		}
		list := must(r.Bus.ListTopics(ctx))(r.T)
		if len(list) != 1 || list[0].Events != 21 || list[0].Config.Partitions != 8 {
			r.Errorf("listed: %+v", list)
		}
	})
}

// Every way to publish stores what it should where it should.
func TestPartitionedPublishing(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		for name, o := range map[string]jetbus.BatchOptions{"bulk": {}, "atomic": {Atomic: true}, "chain": {Chain: &jetbus.Chain{}}} {
			for _, keyed := range []bool{false, true} {
				topic := fmt.Sprint(name, ".", keyed)
				r.Ensure(jetbus.TopicConfig{Name: topic, Partitions: 5, KeyInSubject: keyed})
				receipts := must(r.Bus.PublishBatch(ctx, adaptertest.Numbered(topic, 30), o))(r.T)
				subjects := r.subjects("EV_" + strings.ToUpper(strings.ReplaceAll(topic, ".", "_")))
				for i, receipt := range receipts {
					key, token := fmt.Sprint(i), "_"
					if keyed {
						token = key
					}
					p := r.partitionOf(key, 5)
					r.Equal(topic+": partition of "+key, receipt.Event.Partition, p)
					r.Equal(topic+": subject of "+key, subjects[i], fmt.Sprintf("ev.%s.P1.%d.%s", topic, p, token))
				}
			}
		}
	})
}

func TestPartitionBy(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a", Partitions: 16})
		r.Ensure(jetbus.TopicConfig{Name: "keyed", Partitions: 16, KeyInSubject: true})
		r.Ensure(jetbus.TopicConfig{Name: "plain"})
		_, bus := r.Open(adapter.Config{PartitionBy: func(e jetbus.Event) string {
			if e.Key == "panic" {
				panic("no")
			}
			tenant, _, _ := strings.Cut(e.Key, "/")
			return tenant
		}})
		for _, key := range []string{"acme/1", "acme/2", "other/1"} {
			tenant, _, _ := strings.Cut(key, "/")
			receipt := must(bus.Publish(ctx, adaptertest.Event("a", key)))(r.T)
			r.Equal("partition of "+key, receipt.Event.Partition, r.partitionOf(tenant, 16))
			batch := must(bus.PublishBatch(ctx, []jetbus.Event{adaptertest.Event("a", key)}, jetbus.BatchOptions{}))(r.T)
			r.Equal("partition of "+key+" in a batch", batch[0].Event.Partition, r.partitionOf(tenant, 16))
		}
		_, err := bus.Publish(ctx, adaptertest.Event("keyed", "acme/1"))
		r.WantErr(err, jetbus.ErrUnsupported)
		receipt := must(bus.Publish(ctx, adaptertest.Event("keyed", "acme")))(r.T)
		r.Equal("partition by the key itself", receipt.Event.Partition, r.partitionOf("acme", 16))
		_, err = bus.Publish(ctx, adaptertest.Event("a", "panic"))
		if pe, ok := errors.AsType[*jetbus.PanicError](err); !ok || pe.Value != "no" {
			r.Errorf("a panic of PartitionBy is %v", err)
		}
		must(bus.Publish(ctx, adaptertest.Event("plain", "panic")))(r.T)
		r.Equal("stored", r.Stored("keyed"), "acme")
	})
}
