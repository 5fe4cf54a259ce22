package groups_test

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
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// In a bubble, topics that grow have no Retention: see inRealTime.

// grow gives a topic more partitions, past the bus under test.
func (r *rig) grow(topic string, n int) {
	r.Helper()
	_, other := r.Open(adapter.Config{})
	must(other.Repartition(r.Context(), topic, n))(r.T)
}

func TestRepartition(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "orders", Partitions: 8, Retention: -1, Description: "d"})
		r.Publish("orders", "a", "b", "c")
		one := []jetbus.Generation{{Generation: 1, Partitions: 8, Stream: "EV_ORDERS"}}
		two := append(slices.Clone(one), jetbus.Generation{Generation: 2, Partitions: 12, Stream: "EV_ORDERS"})
		r.Equal("before", must(r.Bus.Generations(ctx, "orders"))(r.T), one)
		r.OK(r.Bus.CheckRepartition(ctx, "orders", 8))
		r.OK(r.Bus.CheckRepartition(ctx, "orders", 12))
		r.Equal("to what it has", must(r.Bus.Repartition(ctx, "orders", 8))(r.T), one)
		r.Equal("grown", must(r.Bus.Repartition(ctx, "orders", 12))(r.T), two)
		r.Equal("once more", must(r.Bus.Repartition(ctx, "orders", 12))(r.T), two)
		_, other := r.Open(adapter.Config{})
		r.Equal("elsewhere", must(other.Generations(ctx, "orders"))(r.T), two)
		r.Equal("subjects", r.Stream("EV_ORDERS").Config.Subjects, []string{"ev.orders.P2.*.*"})

		// Declarations of either number stand for the topic as it is.
		for _, n := range []int{8, 12} {
			info := must(other.EnsureTopic(ctx, jetbus.TopicConfig{Name: "orders", Partitions: n, Retention: -1, Description: "d"}))(r.T)
			r.Equal(fmt.Sprint("declared with ", n), info.Config.Partitions, 12)
			r.Equal("its generations", info.Generations, two)
		}
		r.Ensure(jetbus.TopicConfig{Name: "orders", Partitions: 8, Retention: -1, Description: "new"})
		r.Equal("subjects after an update", r.Stream("EV_ORDERS").Config.Subjects, []string{"ev.orders.P2.*.*"})
		r.Publish("orders", "a", "b", "c")
		r.Equal("all of them", r.Stored("orders"), "a b c a b c")
		info := must(r.Bus.TopicInfo(ctx, "orders"))(r.T)
		r.Equal("events", info.Events, 6)
		r.Equal("generations", info.Generations, two)
		list := must(r.Bus.ListTopics(ctx))(r.T)
		r.Equal("topics", len(list), 1)
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
		r.Ensure(jetbus.TopicConfig{Name: "plain"})
		r.Ensure(jetbus.TopicConfig{Name: "grown", Partitions: 4, Retention: -1})
		r.grow("grown", 6)
		r.Ensure(jetbus.TopicConfig{Name: "compact", Partitions: 4, Retention: -1, Compact: true})
		r.Ensure(jetbus.TopicConfig{Name: "delays", Partitions: 4, Retention: -1, Delays: true})
		r.Ensure(jetbus.TopicConfig{Name: "log", Partitions: 4, Retention: -1, KeyInSubject: true})
		r.Ensure(jetbus.TopicConfig{Name: "log.snapshot", SnapshotOf: "log"})
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
			_, err := r.Bus.Repartition(ctx, c.topic, c.n)
			r.WantErr(err, jetbus.ErrConflict)
			r.Equal("what a check says", r.Bus.CheckRepartition(ctx, c.topic, c.n), err)
			conflict, ok := errors.AsType[*jetbus.ConflictError](err)
			if !ok || len(conflict.Differences) != 1 || conflict.Differences[0].Field != c.field || !strings.Contains(conflict.Hint, c.hint) {
				r.Errorf("%s to %d: %v", c.topic, c.n, err)
			}
		}
		for _, n := range []int{-1, 0, jetbus.MaxPartitions + 1} {
			_, err := r.Bus.Repartition(ctx, "grown", n)
			r.WantErr(err, jetbus.ErrInvalidOption)
		}
		_, err := r.Bus.Repartition(ctx, "plain", 4)
		r.WantErr(err, jetbus.ErrNoPartitions)
		_, err = r.Bus.Generations(ctx, "plain")
		r.WantErr(err, jetbus.ErrNoPartitions)
		_, err = r.Bus.Repartition(ctx, "none", 4)
		r.WantErr(err, jetbus.ErrNoTopic)
		_, err = r.Bus.Generations(ctx, "none")
		r.WantErr(err, jetbus.ErrNoTopic)

		for _, c := range []struct {
			config jetbus.TopicConfig
			hint   string
		}{
			{jetbus.TopicConfig{Name: "plain", Partitions: 4}, "delete the topic first"},
			{jetbus.TopicConfig{Name: "grown", Partitions: 5}, "never has fewer"},
			{jetbus.TopicConfig{Name: "grown", Partitions: 12}, "Repartition"},
		} {
			_, err := r.Bus.EnsureTopic(ctx, c.config)
			conflict, ok := errors.AsType[*jetbus.ConflictError](err)
			if !ok || len(conflict.Differences) != 1 || conflict.Differences[0].Field != "Partitions" || !strings.Contains(conflict.Hint+" "+conflict.See, c.hint) {
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
			_, err := r.Bus.EnsureTopic(ctx, c)
			r.WantErr(err, jetbus.ErrInvalidOption)
		}
		r.Equal("generations", must(r.Bus.Generations(ctx, "grown"))(r.T), []jetbus.Generation{{Generation: 1, Partitions: 4, Stream: "EV_GROWN"}, {Generation: 2, Partitions: 6, Stream: "EV_GROWN"}})
	})
}

// Many ask for the same at once, and for different numbers: each generation has more
// partitions than the one before.
func TestRepartitionRaces(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "t", Partitions: 2, Retention: -1})
		var wg sync.WaitGroup
		for i := range 8 {
			_, bus := r.Open(adapter.Config{})
			wg.Go(func() {
				n := 3 + i%4
				list, err := bus.Repartition(ctx, "t", n)
				if err != nil && !errors.Is(err, jetbus.ErrConflict) || err == nil && list[len(list)-1].Partitions != n {
					r.Errorf("to %d: %v, %v", n, list, err)
				}
			})
		}
		wg.Wait()
		list := must(r.Bus.Generations(ctx, "t"))(r.T)
		for i, g := range list {
			if g.Generation != i+1 || i > 0 && g.Partitions <= list[i-1].Partitions {
				r.Errorf("generations %v", list)
			}
		}
		r.Equal("the last one", list[len(list)-1].Partitions, 6)
		r.Equal("subjects", r.Stream("EV_T").Config.Subjects, []string{fmt.Sprintf("ev.t.P%d.*.*", len(list))})
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
				receipt, err := r.Bus.Publish(ctx, adaptertest.Event(topic, "k"))
				return []jetbus.Receipt{receipt}, err
			},
			"conditional": func(topic string) ([]jetbus.Receipt, error) {
				receipt, err := r.Bus.Publish(ctx, adaptertest.Event(topic, "k"), jetbus.PublishOptions{ExpectLastSeq: &zero})
				return []jetbus.Receipt{receipt}, err
			},
			"bulk": func(topic string) ([]jetbus.Receipt, error) {
				return r.Bus.PublishBatch(ctx, adaptertest.Numbered(topic, 4200), jetbus.BatchOptions{}) // more than may be on their way at once
			},
			"atomic": func(topic string) ([]jetbus.Receipt, error) {
				return r.Bus.PublishBatch(ctx, adaptertest.Numbered(topic, 100), jetbus.BatchOptions{Atomic: true})
			},
			"atomic.conditional": func(topic string) ([]jetbus.Receipt, error) {
				return r.Bus.PublishBatch(ctx, adaptertest.Numbered(topic, 100), jetbus.BatchOptions{Atomic: true, ExpectLastSeq: &zero})
			},
			"chain": func(topic string) ([]jetbus.Receipt, error) {
				return r.Bus.PublishBatch(ctx, adaptertest.Numbered(topic, 100), jetbus.BatchOptions{Chain: &jetbus.Chain{}})
			},
		} {
			topic := "t." + name
			keyed := strings.Contains(name, "conditional")
			r.Ensure(jetbus.TopicConfig{Name: topic, Partitions: 3, Retention: -1, KeyInSubject: keyed})
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
			for e, err := range r.Bus.Scan(ctx, topic, jetbus.ScanQuery{}) {
				r.OK(err)
				receipt := receipts[stored].Event
				want := r.partitionOf(e.Key, 7)
				if e.Partition != want || receipt.Partition != want || receipt.Seq != e.Seq || receipt.ID != e.ID || receipts[stored].Duplicate {
					r.Fatalf("%s: stored %+v, receipt %+v, want partition %d", name, e, receipts[stored], want)
				}
				stored++
			}
			r.Equal(name+": events", stored, len(receipts))
			for _, subject := range r.Stream("EV_" + strings.ToUpper(strings.ReplaceAll(topic, ".", "_"))).Config.Subjects {
				r.Equal(name+": subjects", subject, "ev."+topic+".P2.*.*")
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
		r.Ensure(jetbus.TopicConfig{Name: "t", Partitions: 2, Retention: -1, KeyInSubject: true, DuplicateWindow: time.Hour})
		r.Ensure(jetbus.TopicConfig{Name: "chained", Partitions: 2, Retention: -1})
		const keys = 5
		var mu sync.Mutex
		acked := map[string]map[uint64]string{} // topic: sequence: id
		var wg sync.WaitGroup
		publisher := func(name, topic string, publish func(b *adapter.Bus, events []jetbus.Event, last map[string]uint64) ([]jetbus.Receipt, error)) {
			_, bus := r.Open(adapter.Config{})
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
				must(r.Bus.Repartition(r.Context(), topic, n))(r.T)
			}
		}
		time.Sleep(15 * time.Millisecond)
		cancel()
		wg.Wait()
		for topic, want := range acked {
			generations := r.inOrder(topic, want)
			r.Equal(topic+": generations with events", len(generations), 6)
		}
	})
}

// inOrder checks that a topic holds what was acknowledged, each event once and those of
// a key in the order of their ids, and returns how many events each generation has.
func (r *rig) inOrder(topic string, want map[uint64]string) map[string]int {
	r.Helper()
	got := map[uint64]string{}
	last := map[string]string{}
	for e, err := range r.Bus.Scan(r.Context(), topic, jetbus.ScanQuery{}) {
		r.OK(err)
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
		r.Ensure(jetbus.TopicConfig{Name: "t", Partitions: 3, Retention: -1, KeyInSubject: true})
		expect := func(key string, seq uint64) error {
			_, err := r.Bus.Publish(ctx, adaptertest.Event("t", key), jetbus.PublishOptions{ExpectLastSeq: &seq})
			return err
		}
		atomic := func(key string, seq uint64) error {
			_, err := r.Bus.PublishBatch(ctx, []jetbus.Event{adaptertest.Event("t", key), adaptertest.Event("t", "other")}, jetbus.BatchOptions{Atomic: true, ExpectLastSeq: &seq})
			return err
		}
		last := func(key string) uint64 {
			return must(r.Bus.LatestByKey(ctx, "t", key))(r.T)[key].Seq
		}
		all := []string{"a", "b", "c.d", "e f", ""}
		r.Publish("t", all...)
		r.grow("t", 7)
		for _, publish := range []func(string, uint64) error{expect, atomic} {
			for _, key := range all {
				r.WantErr(publish(key, 0), jetbus.ErrWrongSequence)
				r.WantErr(publish(key, last(key)+100), jetbus.ErrWrongSequence)
				r.OK(publish(key, last(key)))
				r.OK(publish(key, last(key)))
				r.WantErr(publish(key, 1), jetbus.ErrWrongSequence)
			}
			r.grow("t", 9+len(must(r.Bus.Generations(ctx, "t"))(r.T)))
		}
		r.OK(expect("new", 0))
		r.WantErr(expect("new", 0), jetbus.ErrWrongSequence)
	})
}

// A conditional publish whose answer was lost, and that is repeated in another
// generation, is found where it was stored.
func TestConditionalAnswerLostAcrossGenerations(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "t", Partitions: 3, Retention: -1, KeyInSubject: true})
		w, bus := r.OpenCabled(adapter.Config{})
		first := must(bus.Publish(ctx, adaptertest.Event("t", "k")))(r.T)
		w.Deaf.Store(true)
		var receipt jetbus.Receipt
		var err error
		var wg sync.WaitGroup
		wg.Go(func() {
			receipt, err = bus.Publish(ctx, adaptertest.Event("t", "k"), jetbus.PublishOptions{ExpectLastSeq: &first.Event.Seq})
		})
		time.Sleep(time.Second)
		r.grow("t", 7)
		w.Cut()
		wg.Wait()
		r.OK(err)
		r.Equal("its place", receipt.Event.Seq, 2)
		r.Equal("stored", r.Stored("t"), "k k")
	})
}

// What a key's last event is does not depend on the generation it is in.
func TestStateAcrossGenerations(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "t", Partitions: 3, Retention: -1, KeyInSubject: true})
		var all []string
		for i := range 1500 {
			all = append(all, fmt.Sprint("k", i))
		}
		batch := make([]jetbus.Event, len(all))
		for i, key := range all {
			batch[i] = jetbus.Event{Topic: "t", Key: key, Payload: []byte("1")}
		}
		must(r.Bus.PublishBatch(ctx, batch, jetbus.BatchOptions{}))(r.T)
		time.Sleep(time.Minute)
		between := time.Now()
		time.Sleep(time.Minute)
		_, stale := r.Open(adapter.Config{})
		must(stale.LatestByKey(ctx, "t", "k0"))(r.T)
		r.grow("t", 40)
		for i := range batch {
			batch[i].ID, batch[i].Payload = "", []byte("2")
		}
		must(r.Bus.PublishBatch(ctx, batch[:1000], jetbus.BatchOptions{}))(r.T)
		check := func(what string, got map[string]jetbus.Event, newer int) {
			r.Helper()
			r.Equal(what+": keys", len(got), len(all))
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
		check("latest", must(r.Bus.LatestByKey(ctx, "t", all...))(r.T), 1000)
		check("latest by a bus that knows the old generation", must(stale.LatestByKey(ctx, "t", all...))(r.T), 1000)
		scanned := map[string]jetbus.Event{}
		asOf := must(r.Bus.ScanLatest(ctx, "t", jetbus.LatestQuery{}, func(e jetbus.Event) error { scanned[e.Key] = e; return nil }))(r.T)
		check("scan", scanned, 1000)
		r.Equal("as of", asOf, 2500)
		now := must(r.Bus.StateAt(ctx, "t", time.Now()))(r.T)
		check("state", now.Events, 1000)
		then := must(r.Bus.StateAt(ctx, "t", between))(r.T)
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
		r.Ensure(jetbus.TopicConfig{Name: "log", Partitions: 3, Retention: -1, KeyInSubject: true})
		r.Publish("log", "a", "b", "c.d")
		r.grow("log", 8)
		r.Publish("log", "b", "e")
		r.Ensure(jetbus.TopicConfig{Name: "log.snapshot", SnapshotOf: "log"})
		r.Publish("log", "a")
		tombstone := must(r.Bus.Publish(ctx, jetbus.Tombstone("log", "c.d")))(r.T)
		r.Equal("partition of a tombstone", tombstone.Event.Partition, r.partitionOf("c.d", 8))
		time.Sleep(10 * time.Second)
		r.Equal("lag", must(r.Bus.TopicInfo(ctx, "log.snapshot"))(r.T).Lag, 0)
		r.Equal("subjects of the snapshot", strings.Join(slices.Sorted(slices.Values(r.subjects("EV_LOG_SNAPSHOT"))), " "),
			"ev.log.snapshot.a ev.log.snapshot.b ev.log.snapshot.c%2Ed ev.log.snapshot.e")
		for _, topic := range []string{"log", "log.snapshot"} {
			got := must(r.Bus.LatestByKey(ctx, topic, "a", "b", "c.d", "e"))(r.T)
			r.Equal(topic+": keys", strings.Join(slices.Sorted(maps.Keys(got)), " "), "a b e")
			for key, e := range got {
				r.Equal(topic+": partition of "+key, e.Partition, r.partitionOf(key, 8))
				r.Equal(topic+": topic of "+key, e.Topic, "log")
			}
			r.Equal(topic+": a", got["a"].Seq, 6)
		}

		r.Ensure(jetbus.TopicConfig{Name: "state", Partitions: 4, Retention: -1, Compact: true})
		r.Publish("state", "a", "b", "a", "", "")
		must(r.Bus.Publish(ctx, jetbus.Tombstone("state", "b")))(r.T)
		got := must(r.Bus.LatestByKey(ctx, "state", "a", "b", ""))(r.T)
		r.Equal("compacted", strings.Join(slices.Sorted(maps.Keys(got)), " "), " a")
		r.Equal("messages", r.Stream("EV_STATE").State.Msgs, 3)
		state := must(r.Bus.StateAt(ctx, "state", time.Now()))(r.T)
		r.Equal("state", len(state.Events), 2)
	})
}

// A table follows a topic from one generation to the next.
func TestTableAcrossGenerations(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "t", Partitions: 3, Retention: -1, KeyInSubject: true})
		r.Publish("t", "a", "b")
		table := must(jetbus.OpenTable(ctx, r.Bus, "t", jetbus.TableOptions{}))(r.T)
		defer table.Close()
		r.grow("t", 9)
		last := r.Publish("t", "b", "c")[1]
		r.OK(table.WaitFor(ctx, last.Seq))
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
		r.Ensure(jetbus.TopicConfig{Name: "t", Partitions: 5, Retention: -1, Delays: true, Storage: jetbus.MemoryStorage})
		r.Equal("subjects", r.Stream("EV_T").Config.Subjects, []string{"ev.t.P1.*.*", "ev.t.S.*"})
		later := must(r.Bus.Publish(ctx, adaptertest.Event("t", "later"), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)}))(r.T)
		if !later.Scheduled || later.Event.Partition != r.partitionOf("later", 5) {
			r.Errorf("receipt %+v", later)
		}
		must(r.Bus.Publish(ctx, adaptertest.Event("t", "ends"), jetbus.PublishOptions{TTL: time.Minute}))(r.T)
		r.Equal("now", r.Stored("t"), "ends")
		r.Equal("events", must(r.Bus.TopicInfo(ctx, "t"))(r.T).Events, 1)
		time.Sleep(2 * time.Hour)
		for e, err := range r.Bus.Scan(ctx, "t", jetbus.ScanQuery{}) {
			r.OK(err)
			r.Equal("partition", e.Partition, r.partitionOf("later", 5))
		}
		r.Equal("then", r.Stored("t"), "later")
	})
}

// A dead letter says in which partition its original is.
func TestDeadLetterOfPartition(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "t", Partitions: 5, Retention: -1})
		e := r.Publish("t", "k")[0]
		s := must(r.JS.Stream(ctx, "EV_T"))(r.T)
		must(r.JS.PublishMsg(ctx, &nats.Msg{Subject: "ev.t.P1.4._", Header: nats.Header{"content-type": {"application/cloudevents+json"}}, Data: []byte("{")}))(r.T)
		sub := must(r.Bus.Subscribe(ctx, "t", "g", func(context.Context, *jetbus.Delivery) error {
			return jetbus.Reject(errors.New("no"))
		}, jetbus.SubscribeOptions{From: jetbus.Earliest()}))(r.T)
		time.Sleep(time.Minute)
		r.OK(sub.Stop(ctx))
		var got []int
		for record, err := range r.Bus.Scan(ctx, jetbus.DeadLetterTopic("t"), jetbus.ScanQuery{}) {
			r.OK(err)
			d := must(jetbus.ParseDeadLetter(record))(r.T)
			r.Equal("partition of the dead letter itself", record.Partition, jetbus.NoPartition)
			got = append(got, d.Event.Partition)
		}
		r.Equal("partitions", got, []int{e.Partition, 4})
		r.Equal("messages", must(s.Info(ctx, jetstream.WithSubjectFilter(">")))(r.T).State.Msgs, 2)
	})
}

// A position by an id that says nothing about time is found in the server's memory of
// recent ones, also by a bus that does not know of the new generation.
func TestPositionByIDAcrossGenerations(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "t", Partitions: 3, Retention: -1})
		for _, id := range []string{"one", "two", "three"} {
			must(r.Bus.Publish(ctx, jetbus.Event{Topic: "t", ID: id}))(r.T)
		}
		r.grow("t", 7)
		var ids []string
		for e, err := range r.Bus.Read(ctx, []string{"t"}, jetbus.ReadOptions{From: jetbus.AfterID("one")}) {
			r.OK(err)
			ids = append(ids, e.ID)
		}
		r.Equal("behind one", ids, []string{"two", "three"})
		again := must(r.Bus.Publish(ctx, jetbus.Event{Topic: "t", ID: "two"}))(r.T)
		if !again.Duplicate || again.Event.Seq != 2 {
			r.Errorf("published again: %+v", again)
		}
	})
}
