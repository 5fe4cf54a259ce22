package adapter_test

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// forgetful is a way to the broker on which the questions of a kind are lost for a while
// from the first one on: a cluster that loses a leader swallows requests, and gives no
// answer for longer than one request waits.
type forgetful struct {
	*embedded.Broker
	question *regexp.Regexp // finds one, its kind and its size
	lasts    time.Duration  // the silence

	mu    sync.Mutex
	since map[string]time.Time // by the kind of question; nil where nothing is lost
}

func (w *forgetful) InProcessConn() (net.Conn, error) {
	c, err := w.Broker.InProcessConn()
	return &forgetfulConn{c, w}, err
}

func (w *forgetful) forget(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since = nil
	if on {
		w.since = map[string]time.Time{}
	}
}

func (w *forgetful) forgets(kind string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since == nil {
		return false
	}
	if _, ok := w.since[kind]; !ok {
		w.since[kind] = time.Now()
	}
	return time.Since(w.since[kind]) < w.lasts
}

type forgetfulConn struct {
	net.Conn
	w *forgetful
}

var (
	apiQuestion    = regexp.MustCompile(`H?PUB (\$JS\.API(?:\.\w+){1,2})\S* [^\r\n]*?(\d+)\r\n`)
	bucketQuestion = regexp.MustCompile(`H?PUB \S*(JETBUS_ATTEMPTS)\S* [^\r\n]*?(\d+)\r\n`)
)

func (c *forgetfulConn) Write(p []byte) (int, error) {
	var kept []byte
	for rest := p; ; {
		m := c.w.question.FindSubmatchIndex(rest)
		if m == nil {
			_, err := c.Conn.Write(append(kept, rest...))
			return len(p), err
		}
		size, err := strconv.Atoi(string(rest[m[4]:m[5]]))
		if err != nil {
			return 0, err
		}
		end := m[1] + size + len("\r\n")
		if c.w.forgets(string(rest[m[2]:m[3]])) {
			kept = append(kept, rest[:m[0]]...)
		} else {
			kept = append(kept, rest[:end]...)
		}
		rest = rest[end:]
	}
}

// A call that may take its time sits a silence out. Receive does not, whose caller asks
// again and again, nor what removes a topic or changes its stream: a repetition might undo
// what others have done since.
func TestSilenceIsSatOut(t *testing.T) {
	nothing := func(context.Context, *jetbus.Delivery) error { return nil }
	calls := map[string]func(context.Context, *adapter.Bus) error{
		"Health":    func(ctx context.Context, b *adapter.Bus) error { return b.Health(ctx) },
		"TopicInfo": func(ctx context.Context, b *adapter.Bus) error { return last(b.TopicInfo(ctx, "a")) },
		"EnsureTopic again": func(ctx context.Context, b *adapter.Bus) error {
			return last(b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "a", KeyInSubject: true}))
		},
		"EnsureTopic": func(ctx context.Context, b *adapter.Bus) error {
			return last(b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "b"}))
		},
		"ListTopics": func(ctx context.Context, b *adapter.Bus) error { return last(b.ListTopics(ctx)) },
		"Groups":     func(ctx context.Context, b *adapter.Bus) error { return last(b.Groups(ctx, "a")) },
		"PauseGroup": func(ctx context.Context, b *adapter.Bus) error {
			return b.PauseGroup(ctx, "a", "g", time.Now().Add(time.Hour))
		},
		"ResumeGroup": func(ctx context.Context, b *adapter.Bus) error { return b.ResumeGroup(ctx, "a", "g") },
		"DeleteGroup": func(ctx context.Context, b *adapter.Bus) error { return b.DeleteGroup(ctx, "a", "g") },
		"Cursor":      func(ctx context.Context, b *adapter.Bus) error { return last(b.Cursor(ctx, "a", "g")) },
		"SetCursor": func(ctx context.Context, b *adapter.Bus) error {
			return b.SetCursor(ctx, "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{})
		},
		"JoinPartitions": func(ctx context.Context, b *adapter.Bus) error {
			return b.JoinPartitions(ctx, "p", "new", jetbus.SubscribeOptions{Order: jetbus.PerKey})
		},
		"Generations": func(ctx context.Context, b *adapter.Bus) error { return last(b.Generations(ctx, "p")) },
		"Publish":     func(ctx context.Context, b *adapter.Bus) error { return last(b.Publish(ctx, event("a", "1"))) },
		"PublishBatch": func(ctx context.Context, b *adapter.Bus) error {
			return last(b.PublishBatch(ctx, numbered("a", 3), jetbus.BatchOptions{}))
		},
		"LatestByKey": func(ctx context.Context, b *adapter.Bus) error { return last(b.LatestByKey(ctx, "a", "0")) },
		"ScanLatest": func(ctx context.Context, b *adapter.Bus) error {
			return last(b.ScanLatest(ctx, "a", jetbus.LatestQuery{}, func(jetbus.Event) error { return nil }))
		},
		"StateAt": func(ctx context.Context, b *adapter.Bus) error { return last(b.StateAt(ctx, "a", time.Now())) },
		"Read": func(ctx context.Context, b *adapter.Bus) error {
			return firstErr(b.Read(ctx, []string{"a"}, jetbus.ReadOptions{}))
		},
		"Scan": func(ctx context.Context, b *adapter.Bus) error { return firstErr(b.Scan(ctx, "a", jetbus.ScanQuery{})) },
		"Subscribe": func(ctx context.Context, b *adapter.Bus) error {
			s, err := b.Subscribe(ctx, "a", "new", nothing, jetbus.SubscribeOptions{})
			if err != nil {
				return err
			}
			return s.Stop(ctx)
		},
		"KeySet": func(ctx context.Context, b *adapter.Bus) error {
			return last(b.KeySet(ctx, "kept", "k", []byte("v"), 0, 0))
		},
		"KeyGet":    func(ctx context.Context, b *adapter.Bus) error { return last(b.KeyGet(ctx, "there", "k")) },
		"KeyDelete": func(ctx context.Context, b *adapter.Bus) error { return b.KeyDelete(ctx, "gone", "k", 1) },
	}
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		r.ensure(jetbus.TopicConfig{Name: "p", Partitions: 2})
		r.publish("a", "0")
		must(r.bus.KeySet(r.Context(), "there", "k", []byte("v"), 0, 0))(r.T)
		must(r.bus.KeySet(r.Context(), "gone", "k", []byte("v"), 0, 0))(r.T)
		for what, call := range calls {
			// The group is as it was: behind all events, and not paused.
			if err := r.bus.DeleteGroup(r.Context(), "a", "g"); !errors.Is(err, jetbus.ErrNoGroup) {
				r.ok(err)
			}
			r.ok(must(r.bus.Subscribe(r.Context(), "a", "g", nothing, jetbus.SubscribeOptions{}))(r.T).Stop(r.Context()))
			w := &forgetful{Broker: r.broker, question: apiQuestion, lasts: 12 * time.Second}
			_, b := r.open(adapter.Config{Timeout: time.Minute}, nats.InProcessServer(w))
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Minute)
			w.forget(true)
			if err := call(ctx, b); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			w.forget(false)
			cancel()
			r.ok(b.Close(r.Context()))
		}
	})
}

// While the bucket of the attempts is away events are redelivered, and refused, all the
// same; when it is back attempts count.
func TestAttemptsOutOfReach(t *testing.T) {
	inBubble(t, func(r *rig) {
		const events = 5
		r.ensure(jetbus.TopicConfig{Name: "a"})
		must(r.bus.PublishBatch(r.Context(), numbered("a", events), jetbus.BatchOptions{}))(r.T)
		ds := must(r.bus.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: events}))(r.T)
		r.equal("received", len(ds), events)
		for _, d := range ds {
			r.ok(d.GiveBack(r.Context()))
		}
		w := &forgetful{Broker: r.broker, question: bucketQuestion, lasts: time.Hour}
		_, b := r.open(adapter.Config{}, nats.InProcessServer(w))
		must(b.Receive(r.Context(), "a", "other", jetbus.ReceiveOptions{Wait: -1}))(r.T) // it knows that the bucket is there

		w.forget(true)
		began := time.Now()
		runs := make(chan int, 100) // attempts
		r.subscribe(b, func(_ context.Context, d *jetbus.Delivery) error {
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
		r.publish("a", "again")
		began = time.Now()
		for range 4 {
			<-runs
		}
		if took := time.Since(began); took > 9*time.Second { // 3 s of it are backoff
			r.Errorf("4 runs took %v", took)
		}
		w.forget(false)
		time.Sleep(time.Minute)
		r.equal("settled up to", r.group("a", "g").AckedSeq, events+1)
		for len(runs) > 1 {
			<-runs
		}
		r.equal("the last attempt", <-runs, 3)
	})
}

// A bus is opened on a connection on which requests are lost at first.
func TestOpenSitsSilenceOut(t *testing.T) {
	inBubble(t, func(r *rig) {
		w := &forgetful{Broker: r.broker, question: apiQuestion, lasts: 12 * time.Second}
		nc := bustest.Connect(r.T, r.broker, nats.InProcessServer(w))
		w.forget(true)
		began := time.Now()
		b := must(adapter.Open(r.Context(), nc, adapter.Config{Timeout: time.Minute}))(r.T)
		if took := time.Since(began); took < 12*time.Second || took > 30*time.Second {
			r.Errorf("it took %v", took)
		}
		w.forget(false)
		r.ok(b.Health(r.Context()))
		closeBus(r.T, b)
	})
}

func last[T any](_ T, err error) error { return err }
