package groups_test

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// What is done to a group or a topic under a lock that somebody else may have by now, as where a cluster
// elects for long, is done again under another one.
func TestOutlivedLockIsTakenAnew(t *testing.T) {
	end := func(ctx context.Context, b *adapter.Bus) error { return b.DeleteTopic(ctx, "a") }
	ended := func(r *rig) {
		r.WantErr(adaptertest.Last(r.Bus.TopicInfo(r.Context(), "a")), jetbus.ErrNoTopic)
		r.WantErr(adaptertest.Last(r.JS.Consumer(r.Context(), "EV_RETRY", "a__g__retries")), jetstream.ErrConsumerNotFound)
	}
	pause := func(ctx context.Context, b *adapter.Bus) error {
		return b.PauseGroup(ctx, "a", "g", time.Now().Add(time.Hour))
	}
	paused := func(r *rig) { r.Equal("paused", r.Group("a", "g").Paused, true) }
	for what, c := range map[string]struct {
		partitions    int
		lock, request string
		call          func(context.Context, *adapter.Bus) error
		is            func(*rig)
	}{
		"a pause":               {0, "group.EV_A.a__g", "CONSUMER.PAUSE", pause, paused},
		"a pause of partitions": {2, "join.EV_A.a__g", "CONSUMER.PAUSE", pause, paused},
		"the end of partitions": {
			2, "join.EV_A.a__g", "CONSUMER.DELETE",
			func(ctx context.Context, b *adapter.Bus) error { return b.DeleteGroup(ctx, "a", "g") },
			func(r *rig) {
				r.WantErr(adaptertest.Last(r.Bus.Cursor(r.Context(), "a", "g")), jetbus.ErrNoGroup)
			},
		},
		"the end of a topic":  {0, "EV_A", "STREAM.DELETE", end, ended},
		"what a topic leaves": {0, "EV_A", "STREAM.PURGE", end, ended},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				if c.partitions > 0 {
					r.partitioned(c.partitions, inPartition(1))
				} else {
					r.Ensure(jetbus.TopicConfig{Name: "a"})
					must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}))(t)
				}
				question := regexp.MustCompile(`H?PUB (\$JS\.API\.` + regexp.QuoteMeta(c.request) + `)\S* [^\r\n]*?(\d+)\r\n`)
				w := &adaptertest.Forgetful{Broker: r.Broker, Question: question, Lasts: 12 * time.Second}
				_, b := r.Open(adapter.Config{Timeout: patience}, nats.InProcessServer(w))
				w.Forget(true)
				done := make(chan error, 1)
				go func() { done <- c.call(r.Context(), b) }()
				time.Sleep(time.Second)
				e := must(r.Bus.KeyGet(r.Context(), "JETBUS_LOCKS", c.lock))(t)
				must(r.Bus.KeySet(r.Context(), "JETBUS_LOCKS", c.lock, nil, e.Revision, 15*time.Second))(t)
				r.OK(<-done)
				c.is(r)
			})
		})
	}
}

// What the deletion of a topic does again leaves those alone that share its stream.
func TestOutlivedDeletionOfASharedTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, name := range []string{"a", "b"} {
			r.Ensure(jetbus.TopicConfig{Name: name, Stream: "S", Retention: forever})
		}
		r.Publish("b", "k")
		r.OK(must(r.Bus.Receive(r.Context(), "b", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Wait: time.Minute}))(t)[0].GiveBack(r.Context()))
		recorded := func() uint64 { return r.Stream("KV_JETBUS_ATTEMPTS").State.Msgs }
		before := recorded() // that of the event among them
		question := regexp.MustCompile(`H?PUB (\$JS\.API\.STREAM\.PURGE)\S* [^\r\n]*?(\d+)\r\n`)
		w := &adaptertest.Forgetful{Broker: r.Broker, Question: question, Lasts: 12 * time.Second, Spares: 2} // the second is behind the change of the stream
		_, b := r.Open(adapter.Config{Timeout: patience}, nats.InProcessServer(w))
		w.Forget(true)
		done := make(chan error, 1)
		go func() { done <- b.DeleteTopic(r.Context(), "a") }()
		time.Sleep(time.Second)
		r.Equal("topics", r.shared("S"), []string{"b"})
		e := must(r.Bus.KeyGet(r.Context(), "JETBUS_LOCKS", "S"))(t)
		must(r.Bus.KeySet(r.Context(), "JETBUS_LOCKS", "S", nil, e.Revision, 15*time.Second))(t)
		r.OK(<-done)
		r.Equal("records", recorded(), before)
	})
}
