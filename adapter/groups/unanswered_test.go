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
