package topics_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// dry are the options of a dry run.
var dry = jetbus.PublishOptions{DryRun: true}

// At each size around the limits of the broker and of a stream, a dry run answers as Publish does.
func TestDryRunMeasuresAsPublishDoes(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		const brokers, streams = 16 << 10, 4 << 10
		r := &rig{adaptertest.On(t, bustest.Start(t, embedded.Config{MaxPayload: brokers}))}
		r.Ensure(jetbus.TopicConfig{Name: "small"})
		r.change("EV_SMALL", func(c *jetstream.StreamConfig) { c.MaxMsgSize = streams })
		r.Ensure(jetbus.TopicConfig{Name: "keyed", KeyInSubject: true, Delays: true})
		r.sizes(jetbus.Event{Topic: "small"}, streams, func(uint64) (o jetbus.PublishOptions) { return o })
		r.sizes(jetbus.Event{Topic: "keyed", Key: "k"}, brokers, func(last uint64) jetbus.PublishOptions { return jetbus.PublishOptions{ExpectLastSeq: &last} })
		r.sizes(jetbus.Event{Topic: "keyed", Key: "\u00fc"}, brokers, func(uint64) jetbus.PublishOptions {
			return jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour), TTL: time.Minute}
		})
	})
}

// change changes the configuration of a stream, as an operator can.
func (r *rig) change(stream string, f func(*jetstream.StreamConfig)) {
	r.Helper()
	config := must(r.JS.Stream(r.Context(), stream))(r.T).CachedInfo().Config
	f(&config)
	must(r.JS.UpdateStream(r.Context(), config))(r.T)
}

// sizes publishes an event with payloads of sizes around the largest one, which is below the limit, each first
// as a dry run. o are the options; last is the sequence of the last event.
func (r *rig) sizes(e jetbus.Event, limit int, o func(last uint64) jetbus.PublishOptions) {
	r.Helper()
	var last uint64
	isStored := func(size int) bool {
		e.Payload = make([]byte, size)
		trial := o(last)
		trial.DryRun = true
		_, wrong := r.Bus.Publish(r.Context(), e, trial)
		receipt, err := r.Bus.Publish(r.Context(), e, o(last))
		if err == nil {
			last = receipt.Event.Seq
			r.OK(wrong)
			return true
		}
		r.WantErr(err, jetbus.ErrPayloadTooLarge)
		r.WantErr(wrong, jetbus.ErrPayloadTooLarge)
		return false
	}
	low, high := 0, limit // stored; refused
	for high-low > 1 {
		if half := (low + high) / 2; isStored(half) {
			low = half
		} else {
			high = half
		}
	}
	for size := low - 40; size < high+40; size++ {
		isStored(size)
	}
}

// Subscribers that do not use JetStream do not get the event of a dry run.
func TestDryRunIsNoEventForOtherSubscribers(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		r.Ensure(jetbus.TopicConfig{Name: "parts", Partitions: 3})
		sub := must(r.NC.SubscribeSync("ev.>"))(r.T)
		r.OK(r.NC.Flush())
		for _, topic := range []string{"a", "parts"} {
			e := adaptertest.Event(topic, "k")
			e.Payload = []byte("secret")
			must(r.Bus.Publish(r.Context(), e, dry))(r.T)
			m := must(sub.NextMsg(time.Second))(r.T)
			for name := range m.Header {
				if !strings.HasPrefix(name, "Nats-") {
					r.Errorf("%s: the message has the header %s", topic, name)
				}
			}
			if strings.Contains(string(m.Data), "secret") || !strings.HasSuffix(m.Subject, ".S") {
				r.Errorf("%s: %q arrives on %s", topic, m.Data, m.Subject)
			}
			must(r.Bus.Publish(r.Context(), e))(r.T)
			if m := must(sub.NextMsg(time.Second))(r.T); strings.HasSuffix(m.Subject, ".S") || string(m.Data) != "secret" {
				r.Errorf("%s: the event arrives as %q on %s", topic, m.Data, m.Subject)
			}
		}
	})
}

// A dry run would deliver a message to the subscribers of an adopted topic's subject, so it is refused.
func TestDryRunOfAdoptedTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		must(r.JS.CreateStream(r.Context(), jetstream.StreamConfig{Name: "IN", Subjects: []string{"in"}}))(r.T)
		r.Ensure(jetbus.TopicConfig{Name: "adopted", Stream: "IN", Subject: "in"})
		sub := must(r.NC.SubscribeSync("in"))(r.T)
		r.OK(r.NC.Flush())
		for _, c := range []struct {
			e    jetbus.Event
			want error
		}{
			{jetbus.Event{Topic: "adopted", Payload: []byte("1")}, jetbus.ErrUnsupported},
			{jetbus.Event{Topic: "adopted", Key: "a\x00"}, jetbus.ErrInvalidEvent},
			{jetbus.Event{Topic: "adopted", Payload: make([]byte, 2<<20)}, jetbus.ErrPayloadTooLarge},
		} {
			_, err := r.Bus.Publish(r.Context(), c.e, dry)
			r.WantErr(err, c.want)
		}
		must(r.Bus.Publish(r.Context(), jetbus.Event{Topic: "adopted", Payload: []byte("stored")}))(r.T)
		if m := must(sub.NextMsg(time.Second))(r.T); string(m.Data) != "stored" {
			r.Errorf("a dry run delivered %q with %v", m.Data, m.Header)
		}
	})
}

// A dry run calls no observer, declares no topic and creates no stream, also for dead letters.
func TestDryRunHasNoEffects(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, b := r.Open(adapter.Config{AutoCreate: true, Observer: func(o jetbus.Observation) { r.Errorf("told %+v", o) }})
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		streams := func() string {
			var names []string
			list := r.JS.StreamNames(r.Context())
			for name := range list.Name() {
				names = append(names, name)
			}
			r.OK(list.Err())
			slices.Sort(names)
			return strings.Join(names, " ")
		}
		before := streams()
		for _, c := range []struct {
			topic string
			o     jetbus.PublishOptions
			want  error
		}{
			{"a", dry, nil},
			{"b", dry, jetbus.ErrNoTopic},
			{"dlq.a", dry, jetbus.ErrNoTopic},
			{"dlq.b", dry, jetbus.ErrNoTopic},
			{"b", jetbus.PublishOptions{DryRun: true, DeliverAt: time.Now().Add(time.Hour)}, jetbus.ErrNoTopic},
		} {
			_, err := b.Publish(r.Context(), adaptertest.Event(c.topic, "k"), c.o)
			r.WantErr(err, c.want)
			r.Equal("streams after a dry run of "+c.topic, streams(), before)
		}
		r.Equal("stored", r.Stored("a"), "")
	})
}

// A dry run waits for the broker like a publish. If no answer arrives, nothing is stored, and the error has StoredNo.
func TestDryRunWithoutAnswer(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		w, b := r.OpenCabled(adapter.Config{})
		must(b.TopicInfo(r.Context(), "a"))(r.T)
		w.Deaf.Store(true)
		time.AfterFunc(100*time.Millisecond, w.Cut)
		receipt := must(b.Publish(r.Context(), jetbus.Event{Topic: "a", ID: "once"}, dry))(r.T)
		if receipt.Duplicate || receipt.Event.Seq != 0 {
			r.Errorf("%+v", receipt)
		}
		w.Deaf.Store(true)
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		_, err := b.Publish(ctx, adaptertest.Event("a", "k"), dry)
		r.WantErr(err, jetbus.ErrUnavailable)
		if p, ok := errors.AsType[*jetbus.PublishError](err); !ok || p.Stored != jetbus.StoredNo {
			r.Errorf("got %v", err)
		}
		w.Cut()
		must(b.Publish(r.Context(), adaptertest.Event("a", "k"), dry))(r.T)
		r.Equal("stored", r.Stored("a"), "")
	})
}

// A dry run follows a topic that was deleted and declared again since the bus looked it up. It does not declare one
// that was deleted.
func TestDryRunFollowsTheTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		memory := jetbus.TopicConfig{Name: "a", Storage: jetbus.MemoryStorage}
		r.Ensure(memory)
		_, early := r.Open(adapter.Config{AutoCreate: true, Storage: jetbus.MemoryStorage})
		_, late := r.Open(adapter.Config{})
		for _, b := range []*adapter.Bus{early, late} {
			must(b.Publish(r.Context(), adaptertest.Event("a", "k"), dry))(r.T)
		}
		r.OK(r.Bus.DeleteTopic(r.Context(), "a"))
		_, err := early.Publish(r.Context(), adaptertest.Event("a", "k"), dry)
		r.WantErr(err, jetbus.ErrNoTopic)
		if _, err := r.JS.Stream(r.Context(), "EV_A"); !errors.Is(err, jetstream.ErrStreamNotFound) {
			r.Errorf("after a dry run, the stream of a deleted topic: %v", err)
		}
		memory.Partitions = 4
		r.Ensure(memory)
		receipt := must(late.Publish(r.Context(), adaptertest.Event("a", "k"), dry))(r.T)
		r.Equal("stored", r.Stored("a"), "")
		if stored := r.Publish("a", "k")[0]; receipt.Event.Partition != stored.Partition {
			r.Errorf("the dry run returned partition %d, the event is in %d", receipt.Event.Partition, stored.Partition)
		}
	})
}

// A tombstone needs a rollup where more than one event of a key is kept. If the stream does not allow it, a dry run
// fails as the publish does.
func TestDryRunOfTombstoneWithoutRollup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Compact: true, History: 2})
		must(r.Bus.Publish(r.Context(), jetbus.Tombstone("a", "k"), dry))(r.T)
		r.change("EV_A", func(c *jetstream.StreamConfig) { c.AllowRollup, c.SubjectDeleteMarkerTTL = false, 0 })
		must(r.Bus.Publish(r.Context(), adaptertest.Event("a", "k"), dry))(r.T)
		tombstone := jetbus.Tombstone("a", "k")
		tombstone.ID = "t"
		_, wrong := r.Bus.Publish(r.Context(), tombstone, dry)
		_, err := r.Bus.Publish(r.Context(), tombstone)
		if err == nil || wrong == nil || wrong.Error() != err.Error() {
			r.Errorf("the dry run returned %v, Publish %v", wrong, err)
		}
	})
}

func TestDryRunDenied(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		s := adaptertest.DenyingServer(t, "ev.secret.>")
		root := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("root", "root")), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, root)
		b := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("a", "a")), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, b)
		for _, name := range []string{"secret", "open"} {
			must(root.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: name}))(t)
		}
		_, err := b.Publish(t.Context(), adaptertest.Event("secret", "k"), dry)
		adaptertest.WantErr(t, err, jetbus.ErrDenied)
		must(b.Publish(t.Context(), adaptertest.Event("open", "k"), dry))(t)
	})
}
