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
	move := func(ctx context.Context, b *adapter.Bus) error {
		return b.SetCursor(ctx, "a", "g", jetbus.Cursor{LastSeq: 1}, jetbus.SeekOptions{})
	}
	moved := func(r *rig) {
		r.Equal("received", deliveredKeys(must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Max: 3, Wait: -1}))(r.T)), "1 2")
	}
	movedParts := func(r *rig) {
		for _, p := range must(r.Bus.GroupPartitions(r.Context(), "a", "g"))(r.T) {
			r.Equal("settled in "+p.String(), p.AckedSeq, 1)
		}
	}
	paused := func(r *rig) { r.Equal("paused", r.Group("a", "g").Paused, true) }
	for what, c := range map[string]struct {
		partitions    int
		lock, request string
		call          func(context.Context, *adapter.Bus) error
		is            func(*rig)
	}{
		"a move":                {0, "group.EV_A.a__g", "CONSUMER.PAUSE", move, moved},
		"a move of partitions":  {2, "group.EV_A.a__g", "CONSUMER.PAUSE", move, movedParts},
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
		"what a topic leaves": {0, "EV_A", "STREAM.PURGE.EV_RETRY", end, ended},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				if c.partitions > 0 {
					r.partitioned(c.partitions, inPartition(1))
				} else {
					r.Ensure(jetbus.TopicConfig{Name: "a"})
					must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}))(t)
				}
				r.Publish("a", "0", "1", "2")
				done := r.outlived(c.lock, c.request, 0, c.call, func() {})
				r.OK(<-done)
				c.is(r)
			})
		})
	}
}

// What is gone when the deletion of it would go on is not looked for in what others have made
// since, nor is that deleted.
func TestOutlivedDeletionLeavesOthers(t *testing.T) {
	for what, c := range map[string]struct {
		partitions    int
		lock, request string
		call          func(context.Context, *adapter.Bus) error
		meanwhile, is func(*rig)
	}{
		"a topic that is declared anew": {
			0, "EV_A", "STREAM.DELETE",
			func(ctx context.Context, b *adapter.Bus) error { return b.DeleteTopic(ctx, "a") },
			func(r *rig) {
				r.OK(r.JS.DeleteStream(r.Context(), "EV_A"))
				r.Ensure(jetbus.TopicConfig{Name: "a"})
			},
			func(r *rig) { must(r.Bus.TopicInfo(r.Context(), "a"))(r.T) },
		},
		"a group by partition that is moved": {
			2, "join.EV_A.a__g", "CONSUMER.DELETE",
			func(ctx context.Context, b *adapter.Bus) error { return b.DeleteGroup(ctx, "a", "g") },
			func(r *rig) {
				for name := range must(r.JS.Stream(r.Context(), "EV_A"))(r.T).ConsumerNames(r.Context()).Name() {
					config := must(r.JS.Consumer(r.Context(), "EV_A", name))(r.T).CachedInfo().Config
					config.Metadata["jetbus.move"] = "another"
					must(r.JS.UpdateConsumer(r.Context(), "EV_A", config))(r.T)
				}
			},
			func(r *rig) { must(r.Bus.Cursor(r.Context(), "a", "g"))(r.T) },
		},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				if c.partitions > 0 {
					r.partitioned(c.partitions, inPartition(1))
				} else {
					r.Ensure(jetbus.TopicConfig{Name: "a"})
				}
				done := r.outlived(c.lock, c.request, 0, c.call, func() { c.meanwhile(r) })
				r.WantErr(<-done, jetbus.ErrUnavailable)
				c.is(r)
			})
		})
	}
}

// Nor is the deletion of a topic done again in a stream that it shares with others: there what
// is declared anew looks as what was there before.
func TestOutlivedDeletionOfASharedTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, name := range []string{"a", "b"} {
			r.Ensure(jetbus.TopicConfig{Name: name, Stream: "S"})
		}
		deletion := func(ctx context.Context, b *adapter.Bus) error { return b.DeleteTopic(ctx, "a") }
		done := r.outlived("S", "STREAM.PURGE", 2, deletion, func() {}) // the third is behind the change of the stream
		r.wantOutlived(<-done)
		r.Equal("topics", r.shared("S"), []string{"b"})
		r.Ensure(jetbus.TopicConfig{Name: "a", Stream: "S"})
		time.Sleep(time.Minute)
		r.Equal("topics", r.shared("S"), []string{"a", "b"})
	})
}

// outlived begins a call whose lock somebody else takes, for a while, when its requests of a kind
// get no answer, behind some that do. meanwhile is what happens before that one gives it back.
func (r *rig) outlived(lock, request string, behind int, call func(context.Context, *adapter.Bus) error, meanwhile func()) <-chan error {
	r.Helper()
	question := regexp.MustCompile(`H?PUB (\$JS\.API\.` + regexp.QuoteMeta(request) + `)\S* [^\r\n]*?(\d+)\r\n`)
	w := &adaptertest.Forgetful{Broker: r.Broker, Question: question, Lasts: 12 * time.Second, Spares: behind}
	_, b := r.Open(adapter.Config{Timeout: patience}, nats.InProcessServer(w))
	w.Forget(true)
	done := make(chan error, 1)
	go func() { done <- call(r.Context(), b) }()
	time.Sleep(time.Second)
	e := must(r.Bus.KeyGet(r.Context(), "JETBUS_LOCKS", lock))(r.T)
	revision := must(r.Bus.KeySet(r.Context(), "JETBUS_LOCKS", lock, nil, e.Revision, time.Hour))(r.T)
	time.Sleep(15 * time.Second)
	meanwhile()
	r.OK(r.Bus.KeyDelete(r.Context(), "JETBUS_LOCKS", lock, revision))
	return done
}
