package groups_test

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// What is done to a group under a lock that somebody else may have by now, as where a cluster
// elects for long, is done again under another one.
func TestOutlivedLockIsTakenAnew(t *testing.T) {
	pause := func(ctx context.Context, b *adapter.Bus) error {
		return b.PauseGroup(ctx, "a", "g", time.Now().Add(time.Hour))
	}
	deletion := func(ctx context.Context, b *adapter.Bus) error { return b.DeleteGroup(ctx, "a", "g") }
	for what, c := range map[string]struct {
		partitions    int
		lock, request string
		call          func(context.Context, *adapter.Bus) error
	}{
		"a pause":               {0, "group.EV_A.a__g", "CONSUMER.PAUSE", pause},
		"a pause of partitions": {2, "join.EV_A.a__g", "CONSUMER.PAUSE", pause},
		"the end of partitions": {2, "join.EV_A.a__g", "CONSUMER.DELETE", deletion},
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
				w := &adaptertest.Forgetful{Broker: r.Broker, Question: question, Lasts: 30 * time.Second}
				_, b := r.Open(adapter.Config{Timeout: patience}, nats.InProcessServer(w))
				w.Forget(true)
				done := make(chan error, 1)
				go func() { done <- c.call(r.Context(), b) }()
				time.Sleep(time.Second)
				e := must(r.Bus.KeyGet(r.Context(), "JETBUS_LOCKS", c.lock))(t)
				must(r.Bus.KeySet(r.Context(), "JETBUS_LOCKS", c.lock, nil, e.Revision, 10*time.Second))(t)
				r.OK(<-done)
				if c.request == "CONSUMER.DELETE" {
					r.WantErr(adaptertest.Last(r.Bus.Cursor(r.Context(), "a", "g")), jetbus.ErrNoGroup)
					return
				}
				r.Equal("paused", r.Group("a", "g").Paused, true)
			})
		})
	}
}
