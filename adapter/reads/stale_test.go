package reads_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// A topic that buses may know keeps the subjects and the compaction that it has,
// also while it is empty.
func TestWhatATopicIsStays(t *testing.T) {
	inBubble(t, func(r *rig) {
		for name, c := range map[string]struct{ is, wanted jetbus.TopicConfig }{
			"a": {jetbus.TopicConfig{}, jetbus.TopicConfig{Compact: true}},
			"b": {jetbus.TopicConfig{}, jetbus.TopicConfig{KeyInSubject: true}},
			"c": {jetbus.TopicConfig{KeyInSubject: true}, jetbus.TopicConfig{Compact: true}},
		} {
			c.is.Name, c.wanted.Name = name, name
			r.Ensure(c.is)
			_, other := r.Open(adapter.Config{})
			must(other.TopicInfo(r.Context(), name))(t)
			_, err := r.Bus.EnsureTopic(r.Context(), c.wanted)
			r.WantErr(err, jetbus.ErrConflict)
			if err == nil || !strings.Contains(err.Error(), "delete the topic first") {
				t.Errorf("topic %s: the error does not say what to do: %v", name, err)
			}
			for _, key := range []string{"a", "b", "c"} {
				must(other.Publish(r.Context(), adaptertest.Event(name, key)))(t)
			}
			r.Equal("stored in "+name, r.Stored(name), "a b c")
		}
	})
}

// A bus learns within 10 seconds what others did to a topic that it knows.
func TestTopicChangedElsewhere(t *testing.T) {
	inBubble(t, func(r *rig) {
		state := jetbus.TopicConfig{Name: "state", Compact: true, Storage: jetbus.MemoryStorage, TombstoneTTL: time.Minute}
		r.Ensure(state)
		r.Ensure(jetbus.TopicConfig{Name: "raw", KeyInSubject: true, Storage: jetbus.MemoryStorage})
		r.Ensure(jetbus.TopicConfig{Name: "anew", Storage: jetbus.MemoryStorage})
		r.Ensure(jetbus.TopicConfig{Name: "gone", Storage: jetbus.MemoryStorage})
		r.Ensure(jetbus.TopicConfig{Name: "later"})
		_, other := r.Open(adapter.Config{})
		for _, name := range []string{"state", "raw", "anew", "gone", "later"} {
			must(other.TopicInfo(r.Context(), name))(t)
		}
		state.TombstoneTTL, state.History = 1000*time.Minute, 5
		r.Ensure(state)
		r.Ensure(jetbus.TopicConfig{Name: "snap", SnapshotOf: "raw", Storage: jetbus.MemoryStorage})
		r.Ensure(jetbus.TopicConfig{Name: "later", Delays: true, MaxBytes: -1})
		r.OK(r.Bus.DeleteTopic(r.Context(), "gone"))
		r.OK(r.Bus.DeleteTopic(r.Context(), "anew"))
		r.compacted("anew")
		r.put("state", "a", "1")
		r.put("raw", "a", "1")
		time.Sleep(11 * time.Second)

		_, err := other.Publish(r.Context(), adaptertest.Event("state", "a"), jetbus.PublishOptions{TTL: time.Minute})
		r.WantErr(err, jetbus.ErrUnsupported) // as its History says
		must(other.Publish(r.Context(), jetbus.Tombstone("state", "a")))(t)
		must(other.Publish(r.Context(), jetbus.Event{Topic: "raw", Key: "a", Payload: []byte("null")}))(t)
		r.Equal("null in a topic with a snapshot", words(must(other.LatestByKey(r.Context(), "raw", "a"))(t)), "")
		for _, key := range []string{"a", "b", "c"} {
			must(other.Publish(r.Context(), adaptertest.Event("anew", key)))(t)
		}
		r.Equal("stored in a topic made anew", r.Stored("anew"), "a b c")
		r.Equal("latest there", r.latest("anew", "a", "b", "c"), `a="a" b="b" c="c"`)
		receipt := must(other.Publish(r.Context(), adaptertest.Event("later", "a"), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)}))(t)
		r.Equal("scheduled", receipt.Scheduled, true)
		_, err = other.Receive(r.Context(), "gone", "g", jetbus.ReceiveOptions{})
		r.WantErr(err, jetbus.ErrNoTopic)
		time.Sleep(10 * time.Minute)
		all, _ := r.scanned("state")
		r.Equal("tombstone after 10 of 1000 minutes", all, "a=null")
	})
}

// What a bus knows costs one request in 10 seconds, however many use it.
func TestTopicIsAskedForSeldom(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t", Storage: jetbus.MemoryStorage})
		asked := must(r.NC.SubscribeSync("$JS.API.STREAM.INFO.EV_T"))(t)
		r.OK(r.NC.Flush())
		count := func() int {
			r.Settle()
			n := 0
			for {
				if _, err := asked.NextMsg(time.Millisecond); err != nil {
					if !errors.Is(err, nats.ErrTimeout) {
						t.Error(err)
					}
					return n
				}
				n++
			}
		}
		for round := range 3 {
			var publishers sync.WaitGroup
			for range 20 {
				publishers.Go(func() {
					for range 20 {
						_, err := r.Bus.Publish(r.Context(), adaptertest.Event("t", "k"))
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			publishers.Wait()
			r.Equal(fmt.Sprint("asked in round ", round), count(), min(round, 1))
			time.Sleep(10 * time.Second)
		}
		r.Publish("t", "k")
		r.Equal("asked after 10 s", count(), 1)
		r.Publish("t", "k")
		r.Equal("asked again", count(), 0)
	})
}

// Without an answer what is known has to do.
func TestTopicAskedForInVain(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t", Storage: jetbus.MemoryStorage})
		way, bus := r.OpenCabled(adapter.Config{})
		must(bus.Publish(r.Context(), adaptertest.Event("t", "1")))(t)
		time.Sleep(time.Minute)
		way.Deaf.Store(true)
		time.AfterFunc(time.Second, way.Cut)
		must(bus.Publish(r.Context(), adaptertest.Event("t", "2")))(t)
		r.Equal("stored", r.Stored("t"), "1 2")
	})
}
