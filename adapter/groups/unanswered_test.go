package groups_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// unanswered opens a bus whose questions of a kind get no answer, behind some that do.
func (r *rig) unanswered(kind string, behind int) *adapter.Bus {
	r.Helper()
	question := regexp.MustCompile(`H?PUB (\$JS\.API\.` + regexp.QuoteMeta(kind) + `)\S* [^\r\n]*?(\d+)\r\n`)
	w := &adaptertest.Forgetful{Broker: r.Broker, Question: question, Lasts: 24 * time.Hour, Spares: behind}
	_, b := r.Open(adapter.Config{}, nats.InProcessServer(w))
	w.Forget(true)
	return b
}

// A Subscribe without a deadline whose questions get no answer, whichever of them, fails
// when its time is over, and the end of the bus does not wait for that.
func TestSubscribeUnanswered(t *testing.T) {
	for _, c := range []struct {
		kind, group string
		behind      int
	}{
		{"CONSUMER.INFO", "there", 1},   // the look for a group is the second one
		{"STREAM.INFO", "new", 2},       // is the topic still there?
		{"STREAM.INFO", "new", 3},       // where does it end?
		{"STREAM.INFO", "new", 4},       // are there the bus's own streams?
		{"CONSUMER.CREATE", "new", 0},   // of the group
		{"CONSUMER.CREATE", "there", 0}, // of its retries
	} {
		t.Run(fmt.Sprintf("%s of a group that is %s, behind %d", c.kind, c.group, c.behind), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				if c.group == "there" {
					must(r.Bus.Receive(r.Context(), "a", c.group, jetbus.ReceiveOptions{Wait: -1}))(r.T)
					r.OK(r.JS.DeleteConsumer(r.Context(), "EV_RETRY", "a__there__retries"))
				}
				subscribe := func(b *adapter.Bus) <-chan error {
					done := make(chan error, 1)
					go func() {
						done <- adaptertest.Last(b.Subscribe(context.Background(), "a", c.group, adaptertest.Ignore, jetbus.SubscribeOptions{}))
					}()
					return done
				}
				b := r.unanswered(c.kind, c.behind)
				err, ok := awaited(subscribe(b))
				if !ok {
					r.Fatal("it waits for ever")
				}
				r.WantErr(err, jetbus.ErrUnavailable)

				b = r.unanswered(c.kind, c.behind)
				done := subscribe(b)
				time.Sleep(3 * time.Second)
				began := time.Now()
				r.OK(b.Close(context.Background()))
				if took := time.Since(began); took > 3*time.Second {
					r.Errorf("Close took %v", took)
				}
				if err := <-done; !adaptertest.IsClosed(err) || !strings.HasPrefix(err.Error(), "subscribe a/") {
					r.Errorf("the end of the bus: %v", err)
				}
			})
		})
	}
}

// Whatever waits for an answer when the bus is closed says so, and not that it was canceled.
func TestClosedUnanswered(t *testing.T) {
	inPart := jetbus.SubscribeOptions{Order: jetbus.PerKey}
	for name, c := range map[string]struct {
		kind string
		call func(ctx context.Context, b *adapter.Bus) error
	}{
		"receive": {"CONSUMER.CREATE", func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.Last(b.Receive(ctx, "a", "new", jetbus.ReceiveOptions{Wait: -1}))
		}},
		"join the partitions": {"CONSUMER.CREATE", func(ctx context.Context, b *adapter.Bus) error { return b.JoinPartitions(ctx, "p", "new", inPart) }},
		"subscribe p/g": {"CONSUMER.NAMES", func(ctx context.Context, b *adapter.Bus) error {
			turn := jetbus.PartitionTurn{Partition: jetbus.Partition{Generation: 1}, Epoch: 1}
			return adaptertest.Last(b.SubscribePartition(ctx, "p", "g", turn, adaptertest.Ignore, inPart))
		}},
		"state of a": {"STREAM.INFO", func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.Last(b.StateAt(ctx, "a", time.Now()))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "a", Compact: true})
				r.Ensure(jetbus.TopicConfig{Name: "p", Partitions: 2})
				r.OK(r.Bus.JoinPartitions(r.Context(), "p", "g", inPart))
				b := r.unanswered(c.kind, 0)
				done := make(chan error, 1)
				go func() { done <- c.call(context.Background(), b) }()
				time.Sleep(3 * time.Second)
				r.OK(b.Close(context.Background()))
				if err := <-done; !adaptertest.IsClosed(err) || !strings.HasPrefix(err.Error(), name) {
					r.Errorf("the end of the bus: %v", err)
				}
			})
		})
	}
}
