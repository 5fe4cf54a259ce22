package reads_test

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// What a topic among others holds is counted without a list of all its subjects, and
// counted right.
func TestEventsAreCounted(t *testing.T) {
	inBubble(t, func(r *rig) {
		var lists atomic.Int64
		must(r.NC.Subscribe("$JS.API.STREAM.INFO.>", func(m *nats.Msg) {
			if bytes.Contains(m.Data, []byte("subjects_filter")) {
				lists.Add(1)
			}
		}))(t)
		must(r.JS.CreateStream(r.Context(), jetstream.StreamConfig{Name: "THEIRS", Subjects: []string{"theirs.>"}, AllowDirect: true, Storage: jetstream.MemoryStorage}))(t)
		must(r.JS.CreateStream(r.Context(), jetstream.StreamConfig{Name: "PLAIN", Subjects: []string{"plain.>"}, Storage: jetstream.MemoryStorage}))(t)
		topics := []jetbus.TopicConfig{
			{Name: "later", Delays: true, KeyInSubject: true},
			{Name: "one", Stream: "SHARED", KeyInSubject: true},
			{Name: "two", Stream: "SHARED"},
			{Name: "theirs", Stream: "THEIRS", Subject: "theirs.*.a"},
			{Name: "plain", Stream: "PLAIN", Subject: "plain.a"},
		}
		for _, c := range topics {
			r.Ensure(c)
		}
		for i := range 7 {
			key := fmt.Sprint(i % 5)
			r.Publish("later", key)
			r.Publish("one", key, key)
			r.Publish("two", key)
			must(r.Bus.Publish(r.Context(), adaptertest.Event("later", key), jetbus.PublishOptions{DeliverAt: time.Now().Add(time.Hour)}))(t)
			for _, subject := range []string{"theirs." + key + ".a", "theirs." + key + ".b", "plain.a", "plain.b"} {
				must(r.JS.Publish(r.Context(), subject, []byte(key)))(t)
			}
		}
		must(r.Bus.RemoveEvents(r.Context(), "one", 1))(t)
		check := func(when string, later int) {
			r.Helper()
			wants := map[string]int{"later": later, "one": 13, "two": 7, "theirs": 7, "plain": 7}
			for _, c := range topics {
				lists.Store(0)
				r.Equal(c.Name+" declared "+when, r.Ensure(c).Events, wants[c.Name])
				r.Equal(c.Name+" described "+when, must(r.Bus.TopicInfo(r.Context(), c.Name))(t).Events, wants[c.Name])
				r.Settle()
				if n := lists.Load(); n > 0 && c.Name != "plain" { // which allows no direct gets
					t.Errorf("%s %s: %d lists of subjects", c.Name, when, n)
				}
			}
			for _, info := range must(r.Bus.ListTopics(r.Context()))(t) {
				r.Equal(info.Config.Name+" listed "+when, info.Events, wants[info.Config.Name])
			}
		}
		check("while some wait", 7)
		time.Sleep(2 * time.Hour)
		check("afterwards", 14)
	})
}

// A topic with events is not taken to be empty, whichever replica answers.
func TestCountAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "one", Stream: "SHARED"})
		r.Ensure(jetbus.TopicConfig{Name: "two", Stream: "SHARED"})
		r.Publish("one", "1")
		goOn := r.lagging("SHARED")
		r.Publish("two", "1", "2")
		r.Equal("events", must(r.Bus.TopicInfo(r.Context(), "two"))(t).Events, 2)
		current := must(r.JS.Stream(t.Context(), "CURRENT"))(t)
		for end := r.Stream("SHARED").State.LastSeq; must(current.Info(t.Context()))(t).State.LastSeq < end; { // what answers is as far as it is
			time.Sleep(10 * time.Millisecond)
		}
		goOn()
		r.Equal("events of all replicas", must(r.Bus.TopicInfo(r.Context(), "two"))(t).Events, 2)
	})
}

// Who may describe a topic and not read it is told how many events it has.
func TestCountDenied(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		s := adaptertest.DenyingServer(t, "$JS.API.DIRECT.GET.>")
		root := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("root", "root")), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, root)
		must(root.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a", Stream: "SHARED"}))(t)
		must(root.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "b", Stream: "SHARED"}))(t)
		must(root.Publish(t.Context(), adaptertest.Event("a", "1")))(t)
		b := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("a", "a")), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, b)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if n := must(b.TopicInfo(ctx, "a"))(t).Events; n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	})
}
