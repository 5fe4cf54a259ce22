package adapter_test

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

var (
	apiQuestion    = regexp.MustCompile(`H?PUB (\$JS\.API(?:\.\w+){1,2})\S* [^\r\n]*?(\d+)\r\n`)
	bucketQuestion = regexp.MustCompile(`H?PUB \S*(JETBUS_ATTEMPTS)\S* [^\r\n]*?(\d+)\r\n`)
)

// A call that may take its time sits a silence out. What removes a topic or changes its stream
// does not: a repetition might undo what others have done since.
func TestSilenceIsSatOut(t *testing.T) {
	nothing := func(context.Context, *jetbus.Delivery) error { return nil }
	calls := map[string]func(context.Context, *adapter.Bus) error{
		"Health":    func(ctx context.Context, b *adapter.Bus) error { return b.Health(ctx) },
		"TopicInfo": func(ctx context.Context, b *adapter.Bus) error { return adaptertest.Last(b.TopicInfo(ctx, "a")) },
		"EnsureTopic again": func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.Last(b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "a", KeyInSubject: true}))
		},
		"EnsureTopic": func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.Last(b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "b"}))
		},
		"ListTopics": func(ctx context.Context, b *adapter.Bus) error { return adaptertest.Last(b.ListTopics(ctx)) },
		"Groups":     func(ctx context.Context, b *adapter.Bus) error { return adaptertest.Last(b.Groups(ctx, "a")) },
		"PauseGroup": func(ctx context.Context, b *adapter.Bus) error {
			return b.PauseGroup(ctx, "a", "g", time.Now().Add(time.Hour))
		},
		"ResumeGroup": func(ctx context.Context, b *adapter.Bus) error { return b.ResumeGroup(ctx, "a", "g") },
		"DeleteGroup": func(ctx context.Context, b *adapter.Bus) error { return b.DeleteGroup(ctx, "a", "g") },
		"Cursor":      func(ctx context.Context, b *adapter.Bus) error { return adaptertest.Last(b.Cursor(ctx, "a", "g")) },
		"SetCursor": func(ctx context.Context, b *adapter.Bus) error {
			return b.SetCursor(ctx, "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{})
		},
		"JoinPartitions": func(ctx context.Context, b *adapter.Bus) error {
			return b.JoinPartitions(ctx, "p", "new", jetbus.SubscribeOptions{Order: jetbus.PerKey})
		},
		"Generations": func(ctx context.Context, b *adapter.Bus) error { return adaptertest.Last(b.Generations(ctx, "p")) },
		"Publish": func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.Last(b.Publish(ctx, adaptertest.Event("a", "1")))
		},
		"PublishBatch": func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.Last(b.PublishBatch(ctx, adaptertest.Numbered("a", 3), jetbus.BatchOptions{}))
		},
		"LatestByKey": func(ctx context.Context, b *adapter.Bus) error { return adaptertest.Last(b.LatestByKey(ctx, "a", "0")) },
		"ScanLatest": func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.Last(b.ScanLatest(ctx, "a", jetbus.LatestQuery{}, func(jetbus.Event) error { return nil }))
		},
		"StateAt": func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.Last(b.StateAt(ctx, "a", time.Now()))
		},
		"Read": func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.FirstErr(b.Read(ctx, []string{"a"}, jetbus.ReadOptions{}))
		},
		"Scan": func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.FirstErr(b.Scan(ctx, "a", jetbus.ScanQuery{}))
		},
		"Subscribe": func(ctx context.Context, b *adapter.Bus) error {
			s, err := b.Subscribe(ctx, "a", "new", nothing, jetbus.SubscribeOptions{})
			if err != nil {
				return err
			}
			return s.Stop(ctx)
		},
		"Receive": func(ctx context.Context, b *adapter.Bus) error {
			ds, err := b.Receive(ctx, "a", "received", jetbus.ReceiveOptions{From: jetbus.Earliest()})
			if err == nil && len(ds) == 0 {
				err = errors.New("received nothing")
			}
			return err
		},
		"KeySet": func(ctx context.Context, b *adapter.Bus) error {
			return adaptertest.Last(b.KeySet(ctx, "kept", "k", []byte("v"), 0, 0))
		},
		"KeyGet":    func(ctx context.Context, b *adapter.Bus) error { return adaptertest.Last(b.KeyGet(ctx, "there", "k")) },
		"KeyDelete": func(ctx context.Context, b *adapter.Bus) error { return b.KeyDelete(ctx, "gone", "k", 1) },
	}
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		r.Ensure(jetbus.TopicConfig{Name: "p", Partitions: 2})
		r.Publish("a", "0")
		must(r.Bus.KeySet(r.Context(), "there", "k", []byte("v"), 0, 0))(r.T)
		must(r.Bus.KeySet(r.Context(), "gone", "k", []byte("v"), 0, 0))(r.T)
		for what, call := range calls {
			// The group is as it was: behind all events, and not paused.
			if err := r.Bus.DeleteGroup(r.Context(), "a", "g"); !errors.Is(err, jetbus.ErrNoGroup) {
				r.OK(err)
			}
			r.OK(must(r.Bus.Subscribe(r.Context(), "a", "g", nothing, jetbus.SubscribeOptions{}))(r.T).Stop(r.Context()))
			w := &adaptertest.Forgetful{Broker: r.Broker, Question: apiQuestion, Lasts: 12 * time.Second}
			_, b := r.Open(adapter.Config{Timeout: time.Minute}, nats.InProcessServer(w))
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Minute)
			w.Forget(true)
			if err := call(ctx, b); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			w.Forget(false)
			cancel()
			r.OK(b.Close(r.Context()))
		}
	})
}

// While the bucket of the attempts is away events are redelivered, and refused, all the
// same; when it is back attempts count.
func TestAttemptsOutOfReach(t *testing.T) {
	inBubble(t, func(r *rig) {
		const events = 5
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", events), jetbus.BatchOptions{}))(r.T)
		ds := must(r.Bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: events}))(r.T)
		r.Equal("received", len(ds), events)
		for _, d := range ds {
			r.OK(d.GiveBack(r.Context()))
		}
		w := &adaptertest.Forgetful{Broker: r.Broker, Question: bucketQuestion, Lasts: time.Hour}
		_, b := r.Open(adapter.Config{}, nats.InProcessServer(w))
		must(b.Receive(r.Context(), "a", "other", jetbus.ReceiveOptions{Wait: -1}))(r.T) // it knows that the bucket is there

		w.Forget(true)
		began := time.Now()
		runs := make(chan int, 100) // attempts
		r.Subscribe(b, func(_ context.Context, d *jetbus.Delivery) error {
			runs <- d.Attempt
			if d.Key == "again" && d.Attempt < 3 {
				return errors.New("down")
			}
			return nil
		}, jetbus.SubscribeOptions{Concurrency: 1, Backoff: jetbus.Backoff{Min: time.Second, Max: time.Second, NoJitter: true}})
		for range events {
			<-runs
		}
		if took := time.Since(began); took > 3*time.Second {
			r.Errorf("%d redeliveries took %v", events, took)
		}
		time.Sleep(time.Minute)
		r.Publish("a", "again")
		began = time.Now()
		for range 4 {
			<-runs
		}
		if took := time.Since(began); took > 9*time.Second { // 3 s of it are backoff
			r.Errorf("4 runs took %v", took)
		}
		w.Forget(false)
		time.Sleep(time.Minute)
		r.Equal("settled up to", r.Group("a", "g").AckedSeq, events+1)
		for len(runs) > 1 {
			<-runs
		}
		r.Equal("the last attempt", <-runs, 3)
	})
}

// A bus is opened on a connection on which requests are lost at first.
func TestOpenSitsSilenceOut(t *testing.T) {
	inBubble(t, func(r *rig) {
		w := &adaptertest.Forgetful{Broker: r.Broker, Question: apiQuestion, Lasts: 12 * time.Second}
		nc := bustest.Connect(r.T, r.Broker, nats.InProcessServer(w))
		w.Forget(true)
		began := time.Now()
		b := must(adapter.Open(r.Context(), nc, adapter.Config{Timeout: time.Minute}))(r.T)
		if took := time.Since(began); took < 12*time.Second || took > 30*time.Second {
			r.Errorf("it took %v", took)
		}
		w.Forget(false)
		r.OK(b.Health(r.Context()))
		adaptertest.CloseBus(r.T, b)
	})
}
