package adapter

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// lossy does not answer the first request for a durable of a name, which may have done its
// work, and counts the requests.
type lossy struct {
	jetstream.JetStream

	t    *testing.T
	name string
	lose func(ctx context.Context, stream string, c jetstream.ConsumerConfig) error

	began time.Time // the call that asks for it
	asked int
}

func (l *lossy) CreateConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if until, ok := ctx.Deadline(); strings.HasPrefix(c.Durable, "a__g") && (!ok || until.Sub(l.began) < tryTimeout-time.Second) {
		l.t.Errorf("%s is given up %v after the call, and a cluster that is busy takes seconds", c.Durable, until.Sub(l.began))
	}
	if c.Durable == l.name {
		if l.asked++; l.asked == 1 && l.lose != nil {
			if err := l.lose(ctx, stream, c); err != nil {
				l.t.Error(err)
			}
			return nil, context.DeadlineExceeded
		}
	}
	return l.JetStream.CreateConsumer(ctx, stream, c)
}

// The first durable of a group whose making is not answered is made once: it may have
// been joined and replaced by others meanwhile, and would bring back all that the group
// has handled.
func TestCreateAnswerLost(t *testing.T) {
	none := func(context.Context, string, jetstream.ConsumerConfig) error { return nil }
	for _, c := range []struct {
		what     string
		replaced bool // by whoever joined it
		stored   bool
		want     string
		asked    int
	}{
		{"not stored", false, false, "", 2},
		{"stored", false, true, "", 1},
		{"stored and replaced", true, true, "__e1", 1},
	} {
		for _, partitions := range []int{0, 2} {
			t.Run(c.what+map[bool]string{true: " in a partition"}[partitions > 0], func(t *testing.T) {
				t.Parallel()
				_, nc, js := directStream(t)
				bus := openBus(t, nc, Config{})
				if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a", Partitions: partitions}); err != nil {
					t.Fatal(err)
				}
				l := &lossy{JetStream: js, t: t, name: "a__g", lose: none}
				if partitions > 0 {
					l.name += "__p1_1"
				}
				if c.stored {
					l.lose = func(ctx context.Context, stream string, config jetstream.ConsumerConfig) error {
						_, err := js.CreateConsumer(ctx, stream, config)
						if err != nil || !c.replaced {
							return err
						}
						first := config.Durable
						config.Durable, config.Metadata[metaEpoch] = first+"__e1", "1"
						if _, err = js.CreateConsumer(ctx, stream, config); err == nil {
							err = js.DeleteConsumer(ctx, stream, first)
						}
						return err
					}
				}
				bus.js.JetStream, l.began = l, time.Now()
				var err error
				if partitions > 0 {
					err = bus.JoinPartitions(t.Context(), "a", "g", jetbus.SubscribeOptions{Order: jetbus.PerKey})
				} else {
					_, err = bus.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1})
				}
				if err != nil {
					t.Fatal(err)
				}
				all, err := bus.consumersOf(t.Context(), "EV_A")
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, info := range all {
					if strings.HasPrefix(info.Name, l.name) {
						names = append(names, info.Name)
					}
				}
				if !slices.Equal(names, []string{l.name + c.want}) || l.asked != c.asked {
					t.Errorf("durables %v after %d requests, want %s%s after %d", names, l.asked, l.name, c.want, c.asked)
				}
			})
		}
	}
}
