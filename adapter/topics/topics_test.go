package topics_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

func TestEnsureTopicDefaults(t *testing.T) {
	inBubble(t, func(r *rig) {
		info := r.Ensure(jetbus.TopicConfig{Name: "process.state"})
		want := jetbus.TopicConfig{
			Name: "process.state", Retention: 7 * 24 * time.Hour, MaxBytes: 10 << 30, MaxEvents: -1, Discard: jetbus.DiscardOld,
			Storage: jetbus.FileStorage, Replicas: 1, DuplicateWindow: 2 * time.Minute,
		}
		if diff := cmp.Diff(want, info.Config); diff != "" {
			r.Error(diff)
		}
		c := r.Stream("EV_PROCESS_STATE").Config
		r.Equal("subjects", c.Subjects, []string{"ev.process.state.*"})
		if !c.AllowDirect || !c.AllowMsgTTL || !c.AllowAtomicPublish || c.MaxConsumers < 10_000 {
			r.Errorf("stream: %+v", c)
		}
	})
}

// Declaring again what exists asks the server to change nothing, whether by the
// declaration or by what the bus said of it.
func TestEnsureTopicIdempotent(t *testing.T) {
	inBubble(t, func(r *rig) {
		updates := 0
		must(r.NC.Subscribe("$JS.EVENT.ADVISORY.STREAM.UPDATED.>", func(*nats.Msg) { updates++ }))(r.T)
		for _, c := range []jetbus.TopicConfig{
			{Name: "a"},
			{Name: "b", Retention: -1, MaxBytes: -1, MaxEvents: 7, Discard: jetbus.DiscardNew, KeyInSubject: true, Description: "d"},
			{Name: "c", Delays: true, Storage: jetbus.MemoryStorage},
			{Name: "d", Stream: "SHARED"},
			{Name: "e", Retention: time.Minute},
		} {
			first := r.Ensure(c)
			_, other := r.Open(adapter.Config{})
			second := must(other.EnsureTopic(r.Context(), c))(r.T)
			if diff := cmp.Diff(first, second); diff != "" {
				r.Errorf("%s: %s", c.Name, diff)
			}
			third := r.Ensure(first.Config)
			if diff := cmp.Diff(first, third); diff != "" {
				r.Errorf("%s: %s", c.Name, diff)
			}
		}
		r.OK(r.NC.Flush())
		r.Equal("updates", updates, 0)
	})
}

func TestEnsureTopicUpdates(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1")
		want := r.Ensure(jetbus.TopicConfig{
			Name: "a", Retention: time.Hour, MaxBytes: 1 << 20, MaxEvents: 5, Discard: jetbus.DiscardNew, DuplicateWindow: time.Minute, Description: "new",
			Shrink: true,
		})
		got := must(r.Bus.TopicInfo(r.Context(), "a"))(r.T)
		if diff := cmp.Diff(want, got); diff != "" {
			r.Error(diff)
		}
		c := r.Stream("EV_A").Config
		if c.MaxAge != time.Hour || c.MaxBytes != 1<<20 || c.MaxMsgs != 5 || c.Discard != jetstream.DiscardNew || c.Duplicates != time.Minute {
			r.Errorf("stream: %+v", c)
		}
		r.Ensure(jetbus.TopicConfig{Name: "b"})
		if info := r.Ensure(jetbus.TopicConfig{Name: "b", Delays: true, MaxBytes: -1}); !info.Config.Delays {
			r.Errorf("%+v", info.Config)
		}
		r.Equal("subjects", r.Stream("EV_B").Config.Subjects, []string{"ev.b.*", "ev.b.S.*"})
		must(r.Bus.Publish(r.Context(), adaptertest.Event("b", "k"), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)}))(r.T)
	})
}

// Every setting that cannot be changed is named with both values.
func TestEnsureTopicConflicts(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Delays: true})
		r.Publish("a", "1")
		r.Ensure(jetbus.TopicConfig{Name: "s1", Stream: "S", MaxEvents: 10})
		for _, c := range []struct {
			config jetbus.TopicConfig
			fields string
		}{
			{jetbus.TopicConfig{Name: "a", Storage: jetbus.MemoryStorage}, "Storage"},
			{jetbus.TopicConfig{Name: "a", Delays: true, KeyInSubject: true}, "KeyInSubject"},
			{jetbus.TopicConfig{Name: "a", Compact: true}, "Compact KeyInSubject"},
			{jetbus.TopicConfig{Name: "a", Partitions: 4}, "Partitions"},
			{jetbus.TopicConfig{Name: "a", KeyInSubject: true, Storage: jetbus.MemoryStorage}, "Storage KeyInSubject"},
			{jetbus.TopicConfig{Name: "a", Delays: true, Stream: "EV_A"}, "Stream"},
			{
				jetbus.TopicConfig{Name: "s2", Stream: "S", Retention: time.Hour, MaxBytes: 1 << 20, Discard: jetbus.DiscardNew, DuplicateWindow: time.Minute},
				"Retention MaxBytes Discard DuplicateWindow",
			},
			{jetbus.TopicConfig{Name: "s2", Stream: "S", MaxEvents: -1}, "MaxEvents"},
			{jetbus.TopicConfig{Name: "s2", Stream: "S", Storage: jetbus.MemoryStorage}, "Storage"},
		} {
			_, err := r.Bus.EnsureTopic(r.Context(), c.config)
			r.Equal(fmt.Sprintf("differences of %+v", c.config), conflicting(r, err), c.fields)
		}
		r.Equal("topics of S", len(r.Stream("S").Config.Metadata) > 0 && !strings.Contains(fmt.Sprint(r.Stream("S").Config.Subjects), "s2"), true)
	})
}

// A stream of somebody else with the name of ours is left alone.
func TestForeignStream(t *testing.T) {
	inBubble(t, func(r *rig) {
		must(r.JS.CreateStream(r.Context(), jetstream.StreamConfig{Name: "EV_A", Subjects: []string{"other.>"}}))(r.T)
		_, err := r.Bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "a"})
		r.WantErr(err, jetbus.ErrConflict)
		if err == nil || !strings.Contains(err.Error(), "adopt") {
			r.Errorf("no remedy in %v", err)
		}
		_, err = r.Bus.Publish(r.Context(), adaptertest.Event("a", "1"))
		r.WantErr(err, jetbus.ErrNoTopic)

		// Subjects of ours in a stream of theirs.
		must(r.JS.CreateStream(r.Context(), jetstream.StreamConfig{Name: "THEIRS", Subjects: []string{"ev.b.>"}}))(r.T)
		_, err = r.Bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "b"})
		r.WantErr(err, jetbus.ErrConflict)
		_, err = r.Bus.Publish(r.Context(), adaptertest.Event("b", "1"))
		r.WantErr(err, jetbus.ErrNoTopic)
		if msgs := r.Stream("THEIRS").State.Msgs; msgs != 0 {
			r.Errorf("%d messages in the foreign stream", msgs)
		}
	})
}

func TestEnsureTopicRaces(t *testing.T) {
	inBubble(t, func(r *rig) {
		const buses, rounds = 4, 10
		var opened []*adapter.Bus
		for range buses {
			_, b := r.Open(adapter.Config{})
			opened = append(opened, b)
		}
		race := func(round int, config func(bus int) jetbus.TopicConfig) {
			var wg sync.WaitGroup
			for i, b := range opened {
				wg.Go(func() {
					if _, err := b.EnsureTopic(r.Context(), config(i)); err != nil {
						r.Errorf("round %d, bus %d: %v", round, i, err)
					}
				})
			}
			wg.Wait()
		}
		for round := range rounds {
			race(round, func(int) jetbus.TopicConfig { return jetbus.TopicConfig{Name: fmt.Sprint("same", round)} })
			shared := fmt.Sprint("SHARED", round)
			race(round, func(i int) jetbus.TopicConfig {
				return jetbus.TopicConfig{Name: fmt.Sprint("t", round, ".", i), Stream: shared}
			})
			if n := len(r.Stream(shared).Config.Subjects); n != buses {
				r.Errorf("round %d: the shared stream has %d topics, want %d", round, n, buses)
			}
		}
	})
}

func TestSharedStream(t *testing.T) {
	inRealTime(t, func(r *rig) {
		for _, name := range []string{"orders", "orders.lines", "bills"} {
			r.Ensure(jetbus.TopicConfig{Name: name, Stream: "SALES"})
		}
		var want []uint64
		for i := range 9 {
			name := []string{"orders", "orders.lines", "bills"}[i%3]
			want = append(want, r.Publish(name, fmt.Sprint(i))[0].Seq)
		}
		if !slices.IsSorted(want) || want[8] != 9 {
			r.Errorf("the topics have no common order: %v", want)
		}
		r.Equal("lines", r.Stored("orders.lines"), "1 4 7")
		info := must(r.Bus.TopicInfo(r.Context(), "orders"))(r.T)
		r.Equal("events of the topic", info.Events, 3)
		r.Equal("stream", info.Stream, "SALES")

		// The same id in two topics is two events.
		e := adaptertest.Event("orders", "same")
		e.ID = "id-1"
		must(r.Bus.Publish(r.Context(), e))(r.T)
		e.Topic = "bills"
		if receipt := must(r.Bus.Publish(r.Context(), e))(r.T); receipt.Duplicate {
			r.Error("the id of another topic counts as a duplicate")
		}

		sub := must(r.Bus.Subscribe(r.Context(), "orders", "g", adaptertest.Ignore, jetbus.SubscribeOptions{}))(r.T)
		kept := must(r.Bus.Subscribe(r.Context(), "bills", "g", adaptertest.Ignore, jetbus.SubscribeOptions{}))(r.T)
		r.OK(r.Bus.DeleteTopic(r.Context(), "orders"))
		<-sub.Done()
		r.WantErr(sub.Err(), jetbus.ErrNoGroup)
		r.Equal("bills", r.Stored("bills"), "2 5 8 same")
		r.Equal("lines", r.Stored("orders.lines"), "1 4 7")
		r.Equal("messages", r.Stream("SALES").State.Msgs, 7)
		r.Equal("subjects", r.Stream("SALES").Config.Subjects, []string{"ev.orders.lines.*", "ev.bills.*"})
		_, err := r.Bus.TopicInfo(r.Context(), "orders")
		r.WantErr(err, jetbus.ErrNoTopic)
		r.WantErr(r.Bus.DeleteTopic(r.Context(), "orders"), jetbus.ErrNoTopic)
		r.OK(kept.Stop(r.Context()))

		// The last topic takes the stream along.
		r.OK(r.Bus.DeleteTopic(r.Context(), "orders.lines"))
		r.OK(r.Bus.DeleteTopic(r.Context(), "bills"))
		_, err = r.JS.Stream(r.Context(), "SALES")
		r.WantErr(err, jetstream.ErrStreamNotFound)
	})
}

// A bus that remembers a topic of a shared stream learns that it was deleted.
func TestSharedTopicDeletedElsewhere(t *testing.T) {
	inBubble(t, func(r *rig) {
		const forever = -1 // see inRealTime
		for _, name := range []string{"a", "b"} {
			r.Ensure(jetbus.TopicConfig{Name: name, Stream: "S", Retention: forever})
		}
		r.Publish("a", "1")
		_, other := r.Open(adapter.Config{})
		r.OK(other.DeleteTopic(r.Context(), "a"))
		began := time.Now()
		_, err := r.Bus.Publish(r.Context(), adaptertest.Event("a", "2"))
		r.WantErr(err, jetbus.ErrNoTopic)
		if took := time.Since(began); took > 2*time.Second {
			r.Errorf("it took %v to find out", took)
		}
		r.Ensure(jetbus.TopicConfig{Name: "a", Stream: "S", Retention: forever})
		r.Publish("a", "3")
		r.OK(other.DeleteTopic(r.Context(), "a"))
		_, err = r.Bus.Subscribe(r.Context(), "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{})
		r.WantErr(err, jetbus.ErrNoTopic)
		_, err = r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("b", 3), jetbus.BatchOptions{Atomic: true})
		r.OK(err)
	})
}

// TestAdoptionOfCopies: a mirror, and a stream fed by others, are read as any other, and
// written where their events come from.
func TestAdoptionOfCopies(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		must(r.JS.CreateStream(ctx, jetstream.StreamConfig{Name: "THEIRS", Subjects: []string{"theirs.>"}}))(r.T)
		must(r.JS.CreateStream(ctx, jetstream.StreamConfig{Name: "MIRROR", Mirror: &jetstream.StreamSource{Name: "THEIRS"}, AllowDirect: true, MirrorDirect: true}))(r.T)
		must(r.JS.CreateStream(ctx, jetstream.StreamConfig{Name: "SOURCED", Sources: []*jetstream.StreamSource{{Name: "THEIRS"}}, AllowDirect: true}))(r.T)
		must(r.JS.Publish(ctx, "theirs.orders", []byte("1")))(r.T)
		for topic, stream := range map[string]string{"mirror": "MIRROR", "sourced": "SOURCED"} {
			r.Ensure(jetbus.TopicConfig{Name: topic, Stream: stream, Subject: "theirs.orders"})
			_, err := r.Bus.Publish(ctx, adaptertest.Event(topic, "k"))
			r.WantErr(err, jetbus.ErrUnsupported)
			if !strings.Contains(err.Error(), "takes events from THEIRS alone") {
				r.Error(err)
			}
			ds := must(r.Bus.Receive(ctx, topic, "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Wait: time.Minute}))(r.T)
			if len(ds) != 1 || string(ds[0].Payload) != "1" {
				r.Fatalf("received %+v", ds)
			}
			r.OK(ds[0].Ack(ctx))
		}
		_, err := r.Bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "other", Stream: "THEIRS", Subject: "other"})
		r.WantErr(err, jetbus.ErrConflict)
	})
}

func TestAdoption(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		theirs := must(r.JS.CreateStream(ctx, jetstream.StreamConfig{Name: "LEGACY", Subjects: []string{"legacy.>"}, AllowDirect: true}))(r.T)
		before := theirs.CachedInfo().Config
		for _, subject := range []string{"legacy.orders", "legacy.bills", "legacy.orders"} {
			must(r.JS.Publish(ctx, subject, []byte(`{"of":"`+subject+`"}`)))(r.T)
		}
		info := r.Ensure(jetbus.TopicConfig{Name: "orders", Stream: "LEGACY", Subject: "legacy.orders"})
		r.Equal("events", info.Events, 2)
		r.Equal("storage", info.Config.Storage, jetbus.FileStorage)
		r.Equal("discard", info.Config.Discard, jetbus.DiscardOld)
		r.Equal("retention", int(info.Config.Retention), -1)
		r.Ensure(jetbus.TopicConfig{Name: "all", Stream: "LEGACY", Subject: "legacy.*"})

		var ids []string
		for e, err := range r.Bus.Scan(ctx, "orders", jetbus.ScanQuery{}) {
			r.OK(err)
			ids = append(ids, e.ID)
			r.Equal("topic", e.Topic, "orders")
			r.Equal("payload", string(e.Payload), `{"of":"legacy.orders"}`)
		}
		r.Equal("ids", ids, []string{"LEGACY-1", "LEGACY-3"})

		receipt := must(r.Bus.Publish(ctx, adaptertest.Event("orders", "k")))(r.T)
		r.Equal("sequence", receipt.Event.Seq, 4)
		_, err := r.Bus.Publish(ctx, adaptertest.Event("all", "k"))
		r.WantErr(err, jetbus.ErrUnsupported)
		_, err = r.Bus.Publish(ctx, adaptertest.Event("orders", "k"), jetbus.PublishOptions{TTL: time.Hour})
		r.WantErr(err, jetbus.ErrUnsupported)

		ds := must(r.Bus.Receive(ctx, "all", "g", jetbus.ReceiveOptions{From: jetbus.AfterID("LEGACY-1")}))(r.T)
		r.Equal("behind the first", len(ds), 3)
		for _, d := range ds {
			r.OK(d.Ack(ctx))
		}
		names := func() string {
			var out []string
			for _, i := range must(r.Bus.ListTopics(ctx))(r.T) {
				out = append(out, i.Config.Name)
			}
			return strings.Join(out, " ")
		}
		r.Equal("topics", names(), "all orders")
		r.OK(r.Bus.DeleteTopic(ctx, "all"))
		r.Equal("topics", names(), "orders")
		after := r.Stream("LEGACY")
		r.Equal("consumers", after.State.Consumers, 0)
		r.Equal("messages", after.State.Msgs, 4)
		if diff := cmp.Diff(before, after.Config); diff != "" {
			r.Errorf("the adopted stream was changed: %s", diff)
		}

		for _, c := range []jetbus.TopicConfig{
			{Name: "x", Subject: "legacy.orders"},
			{Name: "x", Stream: "LEGACY", Subject: "legacy.orders", Retention: time.Hour},
			{Name: "x", Stream: "LEGACY", Subject: "legacy..orders"},
		} {
			_, err := r.Bus.EnsureTopic(ctx, c)
			r.WantErr(err, jetbus.ErrInvalidOption)
		}
		_, err = r.Bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "x", Stream: "LEGACY", Subject: "other.orders"})
		r.WantErr(err, jetbus.ErrConflict)
		_, err = r.Bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: "x", Stream: "NONE", Subject: "other.orders"})
		r.WantErr(err, jetbus.ErrNoTopic)
	})
}

func TestAutoCreate(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		for name, call := range map[string]func(b *adapter.Bus, topic string) error{
			"publish": func(b *adapter.Bus, topic string) error {
				_, err := b.Publish(ctx, adaptertest.Event(topic, "1"))
				return err
			},
			"batch": func(b *adapter.Bus, topic string) error {
				_, err := b.PublishBatch(ctx, adaptertest.Numbered(topic, 2), jetbus.BatchOptions{})
				return err
			},
			"subscribe": func(b *adapter.Bus, topic string) error {
				_, err := b.Subscribe(ctx, topic, "g", adaptertest.Ignore, jetbus.SubscribeOptions{})
				return err
			},
			"receive": func(b *adapter.Bus, topic string) error {
				_, err := b.Receive(ctx, topic, "g", jetbus.ReceiveOptions{Wait: -1})
				return err
			},
			"read": func(b *adapter.Bus, topic string) error {
				return adaptertest.FirstErr(b.Read(ctx, []string{topic}, jetbus.ReadOptions{}))
			},
			"scan": func(b *adapter.Bus, topic string) error {
				return adaptertest.FirstErr(b.Scan(ctx, topic, jetbus.ScanQuery{}))
			},
		} {
			r.WantErr(call(r.Bus, name), jetbus.ErrNoTopic)
			_, auto := r.Open(adapter.Config{AutoCreate: true})
			if err := call(auto, name); err != nil {
				r.Errorf("%s: %v", name, err)
			}
			must(r.Bus.TopicInfo(ctx, name))(r.T)
		}
		// Where the server has no room for its replicas the event is not to blame: it can wait.
		_, wide := r.Open(adapter.Config{AutoCreate: true, Replicas: 3})
		_, err := wide.Publish(ctx, adaptertest.Event("wide", "1"))
		if known, ok := errors.AsType[*jetbus.RemedyError](err); !ok || known.See != "Config.Replicas" || errors.Is(err, jetbus.ErrUnsupported) {
			r.Errorf("a publish to a topic of three replicas: %v", err)
		}
		// Questions and removals create nothing.
		_, auto := r.Open(adapter.Config{AutoCreate: true})
		_, err = auto.TopicInfo(ctx, "none")
		r.WantErr(err, jetbus.ErrNoTopic)
		_, err = auto.Groups(ctx, "none")
		r.WantErr(err, jetbus.ErrNoTopic)
		_, err = auto.Cursor(ctx, "none", "g")
		r.WantErr(err, jetbus.ErrNoTopic)
		r.WantErr(auto.DeleteTopic(ctx, "none"), jetbus.ErrNoTopic)
		_, err = r.Bus.TopicInfo(ctx, "none")
		r.WantErr(err, jetbus.ErrNoTopic)
	})
}

func TestPrefixes(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		_, other := r.Open(adapter.Config{Prefix: "other.bus"})
		_, prefix := r.Open(adapter.Config{Prefix: "other"})
		for i, b := range []*adapter.Bus{r.Bus, other, prefix} {
			must(b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "same.name", KeyInSubject: true}))(r.T)
			for range i + 1 {
				must(b.Publish(ctx, adaptertest.Event("same.name", "k")))(r.T)
			}
		}
		for i, b := range []*adapter.Bus{r.Bus, other, prefix} {
			infos := must(b.ListTopics(ctx))(r.T)
			if len(infos) != 1 || infos[0].Events != uint64(i)+1 {
				r.Errorf("bus %d sees %+v", i, infos)
			}
		}
		// The one place where two prefixes meet is refused: other + bus.x is other.bus + x.
		must(other.EnsureTopic(ctx, jetbus.TopicConfig{Name: "x"}))(r.T)
		_, err := prefix.EnsureTopic(ctx, jetbus.TopicConfig{Name: "bus.x"})
		r.WantErr(err, jetbus.ErrConflict)
		_, err = prefix.Publish(ctx, adaptertest.Event("bus.x", "k"))
		r.WantErr(err, jetbus.ErrNoTopic)
	})
}

func TestManyTopicsOneGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 40 // far more than the handlers that run at once
		got := make(chan string, n)
		var topics []string
		for i := range n {
			topics = append(topics, fmt.Sprint("t", i))
			r.Ensure(jetbus.TopicConfig{Name: topics[i], Storage: jetbus.MemoryStorage, MaxBytes: 1 << 20})
		}
		sub := must(r.Bus.Subscribe(r.Context(), topics[0], "g", func(_ context.Context, d *jetbus.Delivery) error {
			got <- d.Topic
			return nil
		}, jetbus.SubscribeOptions{Topics: topics[1:]}))(r.T)
		for _, name := range topics {
			r.Publish(name, "k")
		}
		seen := map[string]bool{}
		for range n {
			seen[<-got] = true
		}
		r.Equal("topics seen", len(seen), n)
		r.OK(sub.Stop(r.Context()))
		for _, name := range topics {
			if g := r.Group(name, "g"); g.AckedSeq != 1 || g.Held != 0 || g.Pending != 0 {
				r.Errorf("%+v", g)
			}
		}
	})
}

func TestTopicDeletedUnderneath(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		nc, publisher := r.Open(adapter.Config{})
		sub := must(publisher.Subscribe(r.Context(), "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{}))(r.T)
		must(publisher.Publish(r.Context(), adaptertest.Event("a", "1")))(r.T)
		r.OK(r.Bus.DeleteTopic(r.Context(), "a"))
		<-sub.Done()
		if err := sub.Err(); !errors.Is(err, jetbus.ErrNoTopic) && !errors.Is(err, jetbus.ErrNoGroup) {
			r.Errorf("the subscription ended with %v", err)
		}
		began := time.Now()
		_, err := publisher.Publish(r.Context(), adaptertest.Event("a", "2"))
		r.WantErr(err, jetbus.ErrNoTopic)
		_, err = publisher.PublishBatch(r.Context(), adaptertest.Numbered("a", 5), jetbus.BatchOptions{})
		r.WantErr(err, jetbus.ErrNoTopic)
		_, err = publisher.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{})
		r.WantErr(err, jetbus.ErrNoTopic)
		if took := time.Since(began); took > 2*time.Second {
			r.Errorf("it took %v to find out", took)
		}

		// With AutoCreate it comes back. (In memory: a stream in files that is deleted
		// twice within moments may come back with the events of before.)
		auto := must(adapter.Open(r.Context(), nc, adapter.Config{AutoCreate: true, Storage: jetbus.MemoryStorage}))(r.T)
		defer adaptertest.CloseBus(r.T, auto)
		must(auto.Publish(r.Context(), adaptertest.Event("b", "3")))(r.T)
		r.OK(r.Bus.DeleteTopic(r.Context(), "b"))
		must(auto.Publish(r.Context(), adaptertest.Event("b", "4")))(r.T)
		r.Equal("stored", r.Stored("b"), "4")
		r.OK(r.Bus.DeleteTopic(r.Context(), "b"))
		must(auto.PublishBatch(r.Context(), adaptertest.Numbered("b", 3), jetbus.BatchOptions{}))(r.T)
		r.Equal("stored", r.Stored("b"), "0 1 2")
	})
}

func TestStorageExceeded(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		r := &rig{adaptertest.On(t, bustest.Start(t, embedded.Config{MaxMemory: 10 << 20}))}
		_, err := r.Bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a", Storage: jetbus.MemoryStorage, MaxBytes: 20 << 20})
		r.WantErr(err, jetbus.ErrUnavailable)
		if err == nil || !strings.Contains(err.Error(), "MaxBytes") {
			t.Errorf("no remedy in %v", err)
		}
		r.Ensure(jetbus.TopicConfig{Name: "a", Storage: jetbus.MemoryStorage, MaxBytes: 5 << 20})
	})
}

func TestReplicasOnASingleServer(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, err := r.Bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "a", Replicas: 3})
		r.Equal("what it says", err, "ensure topic a: replicas need a cluster, and this server is alone (see TopicConfig.Replicas)")
		if said, ok := errors.AsType[*jetstream.APIError](err); !ok || said.ErrorCode != 10074 {
			r.Errorf("what the server said cannot be asked for: %v", said)
		}
		_, err = r.Bus.TopicInfo(r.Context(), "a")
		r.WantErr(err, jetbus.ErrNoTopic)
	})
}
