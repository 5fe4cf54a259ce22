package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// In a bubble, topics that grow have no Retention: see inRealTime.

// grow gives a topic more partitions, past the bus under test.
func (r *rig) grow(topic string, n int) {
	r.Helper()
	_, other := r.open(adapter.Config{})
	must(other.Repartition(r.Context(), topic, n))(r.T)
}

func TestRepartition(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "orders", Partitions: 8, Retention: -1, Description: "d"})
		r.publish("orders", "a", "b", "c")
		one := []jetbus.Generation{{Generation: 1, Partitions: 8, Stream: "EV_ORDERS"}}
		two := append(slices.Clone(one), jetbus.Generation{Generation: 2, Partitions: 12, Stream: "EV_ORDERS"})
		r.equal("before", must(r.bus.Generations(ctx, "orders"))(r.T), one)
		r.ok(r.bus.CheckRepartition(ctx, "orders", 8))
		r.ok(r.bus.CheckRepartition(ctx, "orders", 12))
		r.equal("to what it has", must(r.bus.Repartition(ctx, "orders", 8))(r.T), one)
		r.equal("grown", must(r.bus.Repartition(ctx, "orders", 12))(r.T), two)
		r.equal("once more", must(r.bus.Repartition(ctx, "orders", 12))(r.T), two)
		_, other := r.open(adapter.Config{})
		r.equal("elsewhere", must(other.Generations(ctx, "orders"))(r.T), two)
		r.equal("subjects", r.stream("EV_ORDERS").Config.Subjects, []string{"ev.orders.P2.*.*"})

		// Declarations of either number stand for the topic as it is.
		for _, n := range []int{8, 12} {
			info := must(other.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders", Partitions: n, Retention: -1, Description: "d"}))(r.T)
			r.equal(fmt.Sprint("declared with ", n), info.Config.Partitions, 12)
			r.equal("its generations", info.Generations, two)
		}
		r.ensure(jetbus.TopicConfig{Name: "orders", Partitions: 8, Retention: -1, Description: "new"})
		r.equal("subjects after an update", r.stream("EV_ORDERS").Config.Subjects, []string{"ev.orders.P2.*.*"})
		r.publish("orders", "a", "b", "c")
		r.equal("all of them", r.stored("orders"), "a b c a b c")
		info := must(r.bus.TopicInfo(ctx, "orders"))(r.T)
		r.equal("events", info.Events, 6)
		r.equal("generations", info.Generations, two)
		list := must(r.bus.ListTopics(ctx))(r.T)
		r.equal("topics", len(list), 1)
		for _, subject := range r.subjects("EV_ORDERS")[3:] {
			if !strings.HasPrefix(subject, "ev.orders.P2.") {
				r.Errorf("after it an event is stored to %s", subject)
			}
		}
	})
}

// What cannot be changed is refused with what stands in the way, and nothing is changed.
func TestPartitionsAreRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "plain"})
		r.ensure(jetbus.TopicConfig{Name: "grown", Partitions: 4, Retention: -1})
		r.grow("grown", 6)
		r.ensure(jetbus.TopicConfig{Name: "compact", Partitions: 4, Retention: -1, Compact: true})
		r.ensure(jetbus.TopicConfig{Name: "delays", Partitions: 4, Retention: -1, Delays: true})
		r.ensure(jetbus.TopicConfig{Name: "log", Partitions: 4, Retention: -1, KeyInSubject: true})
		r.ensure(jetbus.TopicConfig{Name: "log.snapshot", SnapshotOf: "log"})
		for _, c := range []struct {
			topic       string
			n           int
			field, hint string
		}{
			{"grown", 4, "Partitions", "never has fewer"},
			{"grown", 5, "Partitions", "never has fewer"},
			{"compact", 8, "Compact", "declare another topic"},
			{"delays", 8, "Delays", "declare another topic"},
			{"log", 8, "its snapshot", "log.snapshot"},
		} {
			_, err := r.bus.Repartition(ctx, c.topic, c.n)
			r.wantErr(err, jetbus.ErrConflict)
			r.equal("what a check says", r.bus.CheckRepartition(ctx, c.topic, c.n), err)
			conflict, ok := errors.AsType[*jetbus.ConflictError](err)
			if !ok || len(conflict.Differences) != 1 || conflict.Differences[0].Field != c.field || !strings.Contains(conflict.Hint, c.hint) {
				r.Errorf("%s to %d: %v", c.topic, c.n, err)
			}
		}
		for _, n := range []int{-1, 0, jetbus.MaxPartitions + 1} {
			_, err := r.bus.Repartition(ctx, "grown", n)
			r.wantErr(err, jetbus.ErrInvalidOption)
		}
		_, err := r.bus.Repartition(ctx, "plain", 4)
		r.wantErr(err, jetbus.ErrNoPartitions)
		_, err = r.bus.Generations(ctx, "plain")
		r.wantErr(err, jetbus.ErrNoPartitions)
		_, err = r.bus.Repartition(ctx, "none", 4)
		r.wantErr(err, jetbus.ErrNoTopic)
		_, err = r.bus.Generations(ctx, "none")
		r.wantErr(err, jetbus.ErrNoTopic)

		for _, c := range []struct {
			config jetbus.TopicConfig
			hint   string
		}{
			{jetbus.TopicConfig{Name: "plain", Partitions: 4}, "delete the topic first"},
			{jetbus.TopicConfig{Name: "grown", Partitions: 5}, "Repartition"},
			{jetbus.TopicConfig{Name: "grown", Partitions: 12}, "Repartition"},
		} {
			_, err := r.bus.EnsureTopic(ctx, c.config)
			conflict, ok := errors.AsType[*jetbus.ConflictError](err)
			if !ok || len(conflict.Differences) != 1 || conflict.Differences[0].Field != "Partitions" || !strings.Contains(conflict.Hint, c.hint) {
				r.Errorf("declaring %+v: %v", c.config, err)
			}
		}
		for _, c := range []jetbus.TopicConfig{
			{Name: "x", Partitions: -1},
			{Name: "x", Partitions: jetbus.MaxPartitions + 1},
			{Name: "x", Partitions: 4, Stream: "S"},
			{Name: "x", Partitions: 4, Stream: "S", Subject: "s.>"},
			{Name: "x", Partitions: 4, SnapshotOf: "log"},
		} {
			_, err := r.bus.EnsureTopic(ctx, c)
			r.wantErr(err, jetbus.ErrInvalidOption)
		}
		r.equal("generations", must(r.bus.Generations(ctx, "grown"))(r.T), []jetbus.Generation{{Generation: 1, Partitions: 4, Stream: "EV_GROWN"}, {Generation: 2, Partitions: 6, Stream: "EV_GROWN"}})
	})
}

// Many ask for the same at once, and for different numbers: each generation has more
// partitions than the one before.
func TestRepartitionRaces(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "t", Partitions: 2, Retention: -1})
		var wg sync.WaitGroup
		for i := range 8 {
			_, bus := r.open(adapter.Config{})
			wg.Go(func() {
				n := 3 + i%4
				list, err := bus.Repartition(ctx, "t", n)
				if err != nil && !errors.Is(err, jetbus.ErrConflict) || err == nil && list[len(list)-1].Partitions != n {
					r.Errorf("to %d: %v, %v", n, list, err)
				}
			})
		}
		wg.Wait()
		list := must(r.bus.Generations(ctx, "t"))(r.T)
		for i, g := range list {
			if g.Generation != i+1 || i > 0 && g.Partitions <= list[i-1].Partitions {
				r.Errorf("generations %v", list)
			}
		}
		r.equal("the last one", list[len(list)-1].Partitions, 6)
		r.equal("subjects", r.stream("EV_T").Config.Subjects, []string{fmt.Sprintf("ev.t.P%d.*.*", len(list))})
	})
}

// A publisher that does not know of a new generation finds out, in every mode, and
// stores what it has where it belongs now.
func TestStalePublisher(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		zero := uint64(0)
		for name, publish := range map[string]func(topic string) ([]jetbus.Receipt, error){
			"one": func(topic string) ([]jetbus.Receipt, error) {
				receipt, err := r.bus.Publish(ctx, event(topic, "k"))
				return []jetbus.Receipt{receipt}, err
			},
			"conditional": func(topic string) ([]jetbus.Receipt, error) {
				receipt, err := r.bus.Publish(ctx, event(topic, "k"), jetbus.PublishOptions{ExpectLastSeq: &zero})
				return []jetbus.Receipt{receipt}, err
			},
			"bulk": func(topic string) ([]jetbus.Receipt, error) {
				return r.bus.PublishBatch(ctx, numbered(topic, 4200), jetbus.BatchOptions{}) // more than may be on their way at once
			},
			"atomic": func(topic string) ([]jetbus.Receipt, error) {
				return r.bus.PublishBatch(ctx, numbered(topic, 100), jetbus.BatchOptions{Atomic: true})
			},
			"atomic.conditional": func(topic string) ([]jetbus.Receipt, error) {
				return r.bus.PublishBatch(ctx, numbered(topic, 100), jetbus.BatchOptions{Atomic: true, ExpectLastSeq: &zero})
			},
			"chain": func(topic string) ([]jetbus.Receipt, error) {
				return r.bus.PublishBatch(ctx, numbered(topic, 100), jetbus.BatchOptions{Chain: &jetbus.Chain{}})
			},
		} {
			topic := "t." + name
			keyed := strings.Contains(name, "conditional")
			r.ensure(jetbus.TopicConfig{Name: topic, Partitions: 3, Retention: -1, KeyInSubject: keyed})
			r.grow(topic, 7)
			began := time.Now()
			receipts, err := publish(topic)
			if err != nil {
				r.Errorf("%s: %v", name, err)
				continue
			}
			if took := time.Since(began); took > time.Second {
				r.Errorf("%s: it took %v to find out", name, took)
			}
			stored := 0
			for e, err := range r.bus.Scan(ctx, topic, jetbus.ScanQuery{}) {
				r.ok(err)
				receipt := receipts[stored].Event
				want := r.partitionOf(e.Key, 7)
				if e.Partition != want || receipt.Partition != want || receipt.Seq != e.Seq || receipt.ID != e.ID || receipts[stored].Duplicate {
					r.Fatalf("%s: stored %+v, receipt %+v, want partition %d", name, e, receipts[stored], want)
				}
				stored++
			}
			r.equal(name+": events", stored, len(receipts))
			for _, subject := range r.stream("EV_" + strings.ToUpper(strings.ReplaceAll(topic, ".", "_"))).Config.Subjects {
				r.equal(name+": subjects", subject, "ev."+topic+".P2.*.*")
			}
		}
	})
}

// While a topic grows again and again, publishers in all modes lose nothing, store
// nothing twice, and keep the order of each of their keys.
func TestRepartitionUnderLoad(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		r.ensure(jetbus.TopicConfig{Name: "t", Partitions: 2, Retention: -1, KeyInSubject: true, DuplicateWindow: time.Hour})
		r.ensure(jetbus.TopicConfig{Name: "chained", Partitions: 2, Retention: -1})
		const keys = 5
		var mu sync.Mutex
		acked := map[string]map[uint64]string{} // topic: sequence: id
		var wg sync.WaitGroup
		publisher := func(name, topic string, publish func(b *adapter.Bus, events []jetbus.Event, last map[string]uint64) ([]jetbus.Receipt, error)) {
			_, bus := r.open(adapter.Config{})
			wg.Go(func() {
				last := map[string]uint64{}
				for n := 0; ctx.Err() == nil; n += 2 * keys {
					events := make([]jetbus.Event, 2*keys)
					for i := range events {
						key := fmt.Sprint(name, "-", i%keys)
						events[i] = jetbus.Event{Topic: topic, Key: key, ID: fmt.Sprintf("%s-%06d", name, n+i)}
					}
					receipts, err := publish(bus, events, last)
					if err != nil {
						r.Errorf("%s: %v", name, err)
						return
					}
					mu.Lock()
					for _, receipt := range receipts {
						e := receipt.Event
						if acked[topic] == nil {
							acked[topic] = map[uint64]string{}
						}
						acked[topic][e.Seq], last[e.Key] = e.ID, e.Seq
						if receipt.Duplicate {
							r.Errorf("%s: %s is told to be a duplicate", name, e.ID)
						}
					}
					mu.Unlock()
					time.Sleep(4 * time.Millisecond) // several times in each generation
				}
			})
		}
		one := func(conditional bool) func(b *adapter.Bus, events []jetbus.Event, last map[string]uint64) ([]jetbus.Receipt, error) {
			return func(b *adapter.Bus, events []jetbus.Event, last map[string]uint64) (out []jetbus.Receipt, err error) {
				for _, e := range events {
					var o jetbus.PublishOptions
					if expected := last[e.Key]; conditional {
						o.ExpectLastSeq = &expected
					}
					receipt, err := b.Publish(r.Context(), e, o)
					if err != nil {
						return out, err
					}
					last[e.Key] = receipt.Event.Seq
					out = append(out, receipt)
				}
				return out, nil
			}
		}
		batch := func(o jetbus.BatchOptions) func(b *adapter.Bus, events []jetbus.Event, last map[string]uint64) ([]jetbus.Receipt, error) {
			return func(b *adapter.Bus, events []jetbus.Event, _ map[string]uint64) ([]jetbus.Receipt, error) {
				return b.PublishBatch(r.Context(), events, o)
			}
		}
		publisher("one", "t", one(false))
		publisher("conditional", "t", one(true))
		publisher("bulk", "t", batch(jetbus.BatchOptions{}))
		publisher("atomic", "t", batch(jetbus.BatchOptions{Atomic: true}))
		after := jetbus.Chain{}
		publisher("chain", "chained", func(b *adapter.Bus, events []jetbus.Event, _ map[string]uint64) ([]jetbus.Receipt, error) {
			receipts, err := b.PublishBatch(r.Context(), events, jetbus.BatchOptions{Chain: &after})
			if err == nil {
				end := receipts[len(receipts)-1].Event
				after = jetbus.Chain{AfterID: end.ID, AfterSeq: end.Seq}
			}
			return receipts, err
		})
		for n := 3; n <= 7; n++ {
			time.Sleep(15 * time.Millisecond)
			for _, topic := range []string{"t", "chained"} {
				must(r.bus.Repartition(r.Context(), topic, n))(r.T)
			}
		}
		time.Sleep(15 * time.Millisecond)
		cancel()
		wg.Wait()
		for topic, want := range acked {
			generations := r.inOrder(topic, want)
			r.equal(topic+": generations with events", len(generations), 6)
		}
	})
}

// inOrder checks that a topic holds what was acknowledged, each event once and those of
// a key in the order of their ids, and returns how many events each generation has.
func (r *rig) inOrder(topic string, want map[uint64]string) map[string]int {
	r.Helper()
	got := map[uint64]string{}
	last := map[string]string{}
	for e, err := range r.bus.Scan(r.Context(), topic, jetbus.ScanQuery{}) {
		r.ok(err)
		if e.ID <= last[e.Key] {
			r.Errorf("%s: %s is stored behind %s", topic, e.ID, last[e.Key])
		}
		last[e.Key], got[e.Seq] = e.ID, e.ID
	}
	if !maps.Equal(got, want) {
		r.Errorf("%s: %d events are stored, %d were acknowledged", topic, len(got), len(want))
	}
	generations := map[string]int{}
	for _, subject := range r.subjects("EV_" + strings.ToUpper(topic)) {
		generations[strings.Split(subject, ".")[2]]++
	}
	return generations
}

// A condition on the last event of a key holds across generations.
func TestExpectLastSeqAcrossGenerations(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "t", Partitions: 3, Retention: -1, KeyInSubject: true})
		expect := func(key string, seq uint64) error {
			_, err := r.bus.Publish(ctx, event("t", key), jetbus.PublishOptions{ExpectLastSeq: &seq})
			return err
		}
		atomic := func(key string, seq uint64) error {
			_, err := r.bus.PublishBatch(ctx, []jetbus.Event{event("t", key), event("t", "other")}, jetbus.BatchOptions{Atomic: true, ExpectLastSeq: &seq})
			return err
		}
		last := func(key string) uint64 {
			return must(r.bus.LatestByKey(ctx, "t", key))(r.T)[key].Seq
		}
		all := []string{"a", "b", "c.d", "e f", ""}
		r.publish("t", all...)
		r.grow("t", 7)
		for _, publish := range []func(string, uint64) error{expect, atomic} {
			for _, key := range all {
				r.wantErr(publish(key, 0), jetbus.ErrWrongSequence)
				r.wantErr(publish(key, last(key)+100), jetbus.ErrWrongSequence)
				r.ok(publish(key, last(key)))
				r.ok(publish(key, last(key)))
				r.wantErr(publish(key, 1), jetbus.ErrWrongSequence)
			}
			r.grow("t", 9+len(must(r.bus.Generations(ctx, "t"))(r.T)))
		}
		r.ok(expect("new", 0))
		r.wantErr(expect("new", 0), jetbus.ErrWrongSequence)
	})
}

// A conditional publish whose answer was lost, and that is repeated in another
// generation, is found where it was stored.
func TestConditionalAnswerLostAcrossGenerations(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "t", Partitions: 3, Retention: -1, KeyInSubject: true})
		w, bus := r.openWired(adapter.Config{})
		first := must(bus.Publish(ctx, event("t", "k")))(r.T)
		w.deaf.Store(true)
		var receipt jetbus.Receipt
		var err error
		var wg sync.WaitGroup
		wg.Go(func() {
			receipt, err = bus.Publish(ctx, event("t", "k"), jetbus.PublishOptions{ExpectLastSeq: &first.Event.Seq})
		})
		time.Sleep(time.Second)
		r.grow("t", 7)
		w.cut()
		wg.Wait()
		r.ok(err)
		r.equal("its place", receipt.Event.Seq, 2)
		r.equal("stored", r.stored("t"), "k k")
	})
}

// What a key's last event is does not depend on the generation it is in.
func TestStateAcrossGenerations(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "t", Partitions: 3, Retention: -1, KeyInSubject: true})
		var all []string
		for i := range 1500 {
			all = append(all, fmt.Sprint("k", i))
		}
		batch := make([]jetbus.Event, len(all))
		for i, key := range all {
			batch[i] = jetbus.Event{Topic: "t", Key: key, Payload: []byte("1")}
		}
		must(r.bus.PublishBatch(ctx, batch, jetbus.BatchOptions{}))(r.T)
		time.Sleep(time.Minute)
		between := time.Now()
		time.Sleep(time.Minute)
		_, stale := r.open(adapter.Config{})
		must(stale.LatestByKey(ctx, "t", "k0"))(r.T)
		r.grow("t", 40)
		for i := range batch {
			batch[i].ID, batch[i].Payload = "", []byte("2")
		}
		must(r.bus.PublishBatch(ctx, batch[:1000], jetbus.BatchOptions{}))(r.T)
		check := func(what string, got map[string]jetbus.Event, newer int) {
			r.Helper()
			r.equal(what+": keys", len(got), len(all))
			for i, key := range all {
				want := "1"
				if i < newer {
					want = "2"
				}
				if e := got[key]; string(e.Payload) != want || e.Partition != r.partitionOf(key, map[string]int{"1": 3, "2": 40}[want]) {
					r.Fatalf("%s: %s is %+v, want payload %s", what, key, e, want)
				}
			}
		}
		check("latest", must(r.bus.LatestByKey(ctx, "t", all...))(r.T), 1000)
		check("latest by a bus that knows the old generation", must(stale.LatestByKey(ctx, "t", all...))(r.T), 1000)
		scanned := map[string]jetbus.Event{}
		asOf := must(r.bus.ScanLatest(ctx, "t", jetbus.LatestQuery{}, func(e jetbus.Event) error { scanned[e.Key] = e; return nil }))(r.T)
		check("scan", scanned, 1000)
		r.equal("as of", asOf, 2500)
		now := must(r.bus.StateAt(ctx, "t", time.Now()))(r.T)
		check("state", now.Events, 1000)
		then := must(r.bus.StateAt(ctx, "t", between))(r.T)
		check("state before", then.Events, 0)
		if !now.Exact || !then.Exact {
			r.Errorf("exact: %t, %t", now.Exact, then.Exact)
		}
	})
}

// A snapshot and compaction work on partitions as they do without; a topic with
// more than one generation may get a snapshot.
func TestStateOfPartitionedTopics(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "log", Partitions: 3, Retention: -1, KeyInSubject: true})
		r.publish("log", "a", "b", "c.d")
		r.grow("log", 8)
		r.publish("log", "b", "e")
		r.ensure(jetbus.TopicConfig{Name: "log.snapshot", SnapshotOf: "log"})
		r.publish("log", "a")
		tombstone := must(r.bus.Publish(ctx, jetbus.Tombstone("log", "c.d")))(r.T)
		r.equal("partition of a tombstone", tombstone.Event.Partition, r.partitionOf("c.d", 8))
		time.Sleep(10 * time.Second)
		r.equal("lag", must(r.bus.TopicInfo(ctx, "log.snapshot"))(r.T).Lag, 0)
		r.equal("subjects of the snapshot", strings.Join(slices.Sorted(slices.Values(r.subjects("EV_LOG_SNAPSHOT"))), " "),
			"ev.log.snapshot.a ev.log.snapshot.b ev.log.snapshot.c%2Ed ev.log.snapshot.e")
		for _, topic := range []string{"log", "log.snapshot"} {
			got := must(r.bus.LatestByKey(ctx, topic, "a", "b", "c.d", "e"))(r.T)
			r.equal(topic+": keys", strings.Join(slices.Sorted(maps.Keys(got)), " "), "a b e")
			for key, e := range got {
				r.equal(topic+": partition of "+key, e.Partition, r.partitionOf(key, 8))
				r.equal(topic+": topic of "+key, e.Topic, "log")
			}
			r.equal(topic+": a", got["a"].Seq, 6)
		}

		r.ensure(jetbus.TopicConfig{Name: "state", Partitions: 4, Retention: -1, Compact: true})
		r.publish("state", "a", "b", "a", "", "")
		must(r.bus.Publish(ctx, jetbus.Tombstone("state", "b")))(r.T)
		got := must(r.bus.LatestByKey(ctx, "state", "a", "b", ""))(r.T)
		r.equal("compacted", strings.Join(slices.Sorted(maps.Keys(got)), " "), " a")
		r.equal("messages", r.stream("EV_STATE").State.Msgs, 3)
		state := must(r.bus.StateAt(ctx, "state", time.Now()))(r.T)
		r.equal("state", len(state.Events), 2)
	})
}

// A table follows a topic from one generation to the next.
func TestTableAcrossGenerations(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "t", Partitions: 3, Retention: -1, KeyInSubject: true})
		r.publish("t", "a", "b")
		table := must(jetbus.OpenTable(ctx, r.bus, "t", jetbus.TableOptions{}))(r.T)
		defer table.Close()
		r.grow("t", 9)
		last := r.publish("t", "b", "c")[1]
		r.ok(table.WaitFor(ctx, last.Seq))
		for _, key := range []string{"a", "b", "c"} {
			if _, ok := table.Get(key); !ok {
				r.Errorf("the table has no %s", key)
			}
		}
	})
}

// Events that end, and those that wait for their time, have their partition.
func TestTimeOnPartitions(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "t", Partitions: 5, Retention: -1, Delays: true, Storage: jetbus.MemoryStorage})
		r.equal("subjects", r.stream("EV_T").Config.Subjects, []string{"ev.t.P1.*.*", "ev.t.S.*"})
		later := must(r.bus.Publish(ctx, event("t", "later"), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)}))(r.T)
		if !later.Scheduled || later.Event.Partition != r.partitionOf("later", 5) {
			r.Errorf("receipt %+v", later)
		}
		must(r.bus.Publish(ctx, event("t", "ends"), jetbus.PublishOptions{TTL: time.Minute}))(r.T)
		r.equal("now", r.stored("t"), "ends")
		r.equal("events", must(r.bus.TopicInfo(ctx, "t"))(r.T).Events, 1)
		time.Sleep(2 * time.Hour)
		for e, err := range r.bus.Scan(ctx, "t", jetbus.ScanQuery{}) {
			r.ok(err)
			r.equal("partition", e.Partition, r.partitionOf("later", 5))
		}
		r.equal("then", r.stored("t"), "later")
	})
}

// A dead letter says in which partition its original is.
func TestDeadLetterOfPartition(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "t", Partitions: 5, Retention: -1})
		e := r.publish("t", "k")[0]
		s := must(r.js.Stream(ctx, "EV_T"))(r.T)
		must(r.js.PublishMsg(ctx, &nats.Msg{Subject: "ev.t.P1.4._", Header: nats.Header{"content-type": {"application/cloudevents+json"}}, Data: []byte("{")}))(r.T)
		sub := must(r.bus.Subscribe(ctx, "t", "g", func(context.Context, *jetbus.Delivery) error {
			return jetbus.Reject(errors.New("no"))
		}, jetbus.SubscribeOptions{From: jetbus.Earliest()}))(r.T)
		time.Sleep(time.Minute)
		r.ok(sub.Stop(ctx))
		var got []int
		for record, err := range r.bus.Scan(ctx, jetbus.DeadLetterTopic("t"), jetbus.ScanQuery{}) {
			r.ok(err)
			d := must(jetbus.ParseDeadLetter(record))(r.T)
			r.equal("partition of the dead letter itself", record.Partition, jetbus.NoPartition)
			got = append(got, d.Event.Partition)
		}
		r.equal("partitions", got, []int{e.Partition, 4})
		r.equal("messages", must(s.Info(ctx, jetstream.WithSubjectFilter(">")))(r.T).State.Msgs, 2)
	})
}

// A position by an id that says nothing about time is found in the server's memory of
// recent ones, also by a bus that does not know of the new generation.
func TestPositionByIDAcrossGenerations(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "t", Partitions: 3, Retention: -1})
		for _, id := range []string{"one", "two", "three"} {
			must(r.bus.Publish(ctx, jetbus.Event{Topic: "t", ID: id}))(r.T)
		}
		r.grow("t", 7)
		var ids []string
		for e, err := range r.bus.Read(ctx, []string{"t"}, jetbus.ReadOptions{From: jetbus.AfterID("one")}) {
			r.ok(err)
			ids = append(ids, e.ID)
		}
		r.equal("behind one", ids, []string{"two", "three"})
		again := must(r.bus.Publish(ctx, jetbus.Event{Topic: "t", ID: "two"}))(r.T)
		if !again.Duplicate || again.Event.Seq != 2 {
			r.Errorf("published again: %+v", again)
		}
	})
}
