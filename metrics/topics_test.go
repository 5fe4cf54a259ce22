package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/metrics"
)

// broker is a TopicReader whose parts can break.
type broker struct {
	infos  []jetbus.TopicInfo
	groups map[string][]jetbus.GroupInfo
	parts  map[string][]jetbus.PartitionInfo // of topics
	oldest map[string]time.Time              // of topics
	panics bool
	sent   time.Time // by whom published it, of the oldest of a bus that does not know when it was stored

	mu     sync.Mutex
	broken map[string]error // by what is asked, "groups a"
	silent map[string]bool  // what is not answered before the question is given up
	asked  []string
}

func (b *broker) ask(ctx context.Context, what string) error {
	b.mu.Lock()
	b.asked = append(b.asked, what)
	err, silent := b.broken[what], b.silent[what]
	b.mu.Unlock()
	if b.panics {
		panic(what)
	}
	if silent {
		<-ctx.Done()
		return ctx.Err()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// questions counts what was asked since the last time.
func (b *broker) questions() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.asked)
	b.asked = nil
	return n
}

func (b *broker) breakDown(what string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken == nil {
		b.broken = map[string]error{}
	}
	b.broken[what] = err
}

func (b *broker) silence(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.silent == nil {
		b.silent = map[string]bool{}
	}
	b.silent[what] = true
}

func (b *broker) ListTopics(ctx context.Context) ([]jetbus.TopicInfo, error) {
	return b.infos, b.ask(ctx, "list")
}

func (b *broker) TopicInfo(ctx context.Context, topic string) (jetbus.TopicInfo, error) {
	if err := b.ask(ctx, "info "+topic); err != nil {
		return jetbus.TopicInfo{}, err
	}
	for _, info := range b.infos {
		if info.Config.Name == topic {
			return info, nil
		}
	}
	return jetbus.TopicInfo{}, jetbus.ErrNoTopic
}

func (b *broker) Groups(ctx context.Context, topic string) ([]jetbus.GroupInfo, error) {
	return b.groups[topic], b.ask(ctx, "groups "+topic)
}

func (b *broker) GroupPartitions(ctx context.Context, topic, group string) ([]jetbus.PartitionInfo, error) {
	return b.parts[topic], b.ask(ctx, "partitions "+topic+"/"+group)
}

func (b *broker) Scan(ctx context.Context, topic string, q jetbus.ScanQuery) iter.Seq2[jetbus.Event, error] {
	return func(yield func(jetbus.Event, error) bool) {
		if err := b.ask(ctx, fmt.Sprintf("scan %s %d %d", topic, q.From.Seq, q.Limit)); err != nil {
			yield(jetbus.Event{}, err)
			return
		}
		if e := (jetbus.Event{Time: b.sent, Stored: b.oldest[topic]}); !e.Time.IsZero() || !e.Stored.IsZero() {
			yield(e, nil)
		}
	}
}

func info(name string, events uint64, groups int) jetbus.TopicInfo {
	return jetbus.TopicInfo{Config: jetbus.TopicConfig{Name: name}, Events: events, Bytes: 10 * events, LastSeq: 2 * events, Groups: groups}
}

// A bus that does not know when events were stored has no lag in seconds.
func TestLagOfABusWithoutStoredTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := shop()
		b.oldest["orders"], b.sent = time.Time{}, time.Now().Add(-time.Hour)
		m := newMetrics(t, metrics.Config{})
		if err := m.WatchTopics(b, metrics.TopicOptions{}); err != nil {
			t.Fatal(err)
		}
		got := scrape(t, m)
		got.want(t, map[string]float64{"group_lag_events{group=behind,topic=orders}": 7, "group_lag_seconds{group=done,topic=orders}": 0})
		got.without(t, "group_lag_seconds{group=behind", "metrics_errors_total")
	})
}

// shop is a broker with two topics, a snapshot and dead letters.
func shop() *broker {
	snapshot := info("snapshot", 3, 0)
	snapshot.Config.SnapshotOf, snapshot.Lag = "orders", 4
	return &broker{
		infos: []jetbus.TopicInfo{info("dlq.orders", 2, 0), info("orders", 9, 2), info("quiet", 0, 0), snapshot},
		groups: map[string][]jetbus.GroupInfo{"orders": {
			{Topic: "orders", Group: "behind", Pending: 5, Held: 2, Retrying: 1, AckedSeq: 11, Waiting: 3, Paused: true},
			{Topic: "orders", Group: "done", AckedSeq: 18},
		}},
		oldest: map[string]time.Time{"orders": time.Now().Add(-90 * time.Second)},
	}
}

func TestTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := shop(), newMetrics(t, metrics.Config{})
		if err := m.WatchTopics(b, metrics.TopicOptions{}); err != nil {
			t.Fatal(err)
		}
		got := scrape(t, m)
		got.want(t, map[string]float64{
			"topic_events{topic=orders}": 9, "topic_bytes{topic=orders}": 90, "topic_last_seq{topic=orders}": 18, "topic_events{topic=quiet}": 0,
			"snapshot_lag_events{topic=snapshot}": 4, "dead_letters{topic=orders}": 2, "dead_letters{topic=quiet}": 0, "topics_unwatched{}": 0,
			"group_lag_events{group=behind,topic=orders}": 7, "group_lag_seconds{group=behind,topic=orders}": 90, "group_held{group=behind,topic=orders}": 2,
			"group_retrying{group=behind,topic=orders}": 1, "group_waiting{group=behind,topic=orders}": 3, "group_paused{group=behind,topic=orders}": 1,
			"group_lag_events{group=done,topic=orders}": 0, "group_lag_seconds{group=done,topic=orders}": 0, "group_paused{group=done,topic=orders}": 0,
		})
		got.without(t, "topic_events{topic=dlq.", "metrics_errors_total")
		if n := b.questions(); n != 5 { // the list, two for dead letters, the groups of orders, the oldest event of the one that is behind
			t.Errorf("asked %d times, want 5", n)
		}
		time.Sleep(metrics.DefaultAskEvery - 1)
		scrape(t, m)
		if n := b.questions(); n != 0 {
			t.Errorf("asked %d times again within AskEvery", n)
		}
		time.Sleep(time.Nanosecond)
		scrape(t, m)
		if n := b.questions(); n != 5 {
			t.Errorf("asked %d times after AskEvery, want 5", n)
		}
		if err := m.WatchTopics(nil, metrics.TopicOptions{}); err != nil {
			t.Fatal(err)
		}
		scrape(t, m).without(t, "topic", "group_lag", "dead_letters")
	})
}

// TestTopicsBroken: what does not answer has no sample, counts as an error, and takes
// nothing else with it.
func TestTopicsBroken(t *testing.T) {
	down := errors.New("down")
	tests := []struct {
		what    string
		without []string
		errs    map[string]float64
	}{
		{"groups orders", []string{"group_"}, map[string]float64{"metrics_errors_total{source=groups}": 1}},
		{"scan orders 11 1", []string{"group_lag_seconds{group=behind"}, map[string]float64{"metrics_errors_total{source=lag}": 1, "group_lag_events{group=behind,topic=orders}": 7}},
		{"list", []string{"topics_unwatched"}, map[string]float64{ // each is asked alone
			"metrics_errors_total{source=topics}": 1, "group_lag_events{group=behind,topic=orders}": 7, "dead_letters{topic=quiet}": 0,
		}},
		{"list, info orders", []string{"topic_events{topic=orders}", "group_", "dead_letters{topic=orders}"}, map[string]float64{
			"metrics_errors_total{source=topics}": 2, "topic_events{topic=quiet}": 0,
		}},
		{"info dlq.orders", []string{"dead_letters{topic=orders}"}, map[string]float64{"metrics_errors_total{source=dead_letters}": 1, "topic_events{topic=orders}": 9}},
	}
	for _, silent := range []bool{false, true} {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s, silent %t", tt.what, silent), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b, m := shop(), newMetrics(t, metrics.Config{})
					if err := m.WatchTopics(b, metrics.TopicOptions{}); err != nil {
						t.Fatal(err)
					}
					scrape(t, m).want(t, map[string]float64{"topic_events{topic=orders}": 9})
					for what := range strings.SplitSeq(tt.what, ", ") {
						if silent {
							b.silence(what)
						} else {
							b.breakDown(what, down)
						}
					}
					time.Sleep(metrics.DefaultAskEvery)
					began := time.Now()
					got := scrape(t, m)
					if took := time.Since(began); took > metrics.DefaultTimeout {
						t.Errorf("the scrape took %v, at most %v are allowed", took, metrics.DefaultTimeout)
					}
					got.without(t, tt.without...)
					got.want(t, tt.errs)
				})
			})
		}
	}
}

// stuck is a projection that never answers, not even when it is told to stop.
type stuck struct {
	projection
	free chan struct{}
}

func (s stuck) Lag(context.Context) (lag, error) {
	<-s.free
	return lag{Events: 1}, nil
}

// TestStuck: what ignores the end of its context delays a scrape by the timeout, and is
// not asked again before it answers.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(t, metrics.Config{})
		s := stuck{free: make(chan struct{})}
		m.WatchProjection("p", s)
		for range 3 {
			began := time.Now()
			scrape(t, m).without(t, "projector_lag_events")
			if took := time.Since(began); took != metrics.DefaultTimeout {
				t.Errorf("the scrape took %v, want %v", took, metrics.DefaultTimeout)
			}
		}
		close(s.free)
		synctest.Wait()
		scrape(t, m).want(t, map[string]float64{"projector_lag_events{projection=p}": 1})
	})
}

// TestWatchDuringRound: what is watched while others are asked is asked by the next scrape.
func TestWatchDuringRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(t, metrics.Config{})
		s := stuck{free: make(chan struct{})}
		m.WatchProjection("p", s)
		scrape(t, m)
		m.WatchProjection("q", projection{})
		close(s.free)
		synctest.Wait()
		scrape(t, m).want(t, map[string]float64{"projector_lag_events{projection=p}": 1, "projector_lag_events{projection=q}": 7})
	})
}

// TestStale: what was learned too long ago is not shown.
func TestStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(t, metrics.Config{})
		s := stuck{free: make(chan struct{}, 1)}
		m.WatchProjection("p", s)
		s.free <- struct{}{}
		scrape(t, m).want(t, map[string]float64{"projector_lag_events{projection=p}": 1})
		time.Sleep(metrics.DefaultAskEvery)
		scrape(t, m).want(t, map[string]float64{"projector_lag_events{projection=p}": 1}) // the round hangs: what there is
		scrape(t, m).without(t, "projector_lag_events")
		close(s.free)
	})
}

func TestTopicsOfOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := shop(), newMetrics(t, metrics.Config{})
		b.groups["orders"] = nil
		for i := range 9 {
			b.groups["orders"] = append(b.groups["orders"], jetbus.GroupInfo{Topic: "orders", Group: fmt.Sprint("g", i)})
		}
		if err := m.WatchTopics(b, metrics.TopicOptions{MaxTopics: 1, MaxGroups: 2}); err != nil {
			t.Fatal(err)
		}
		got := scrape(t, m)
		got.want(t, map[string]float64{"topics_unwatched{}": 2, "topic_events{topic=orders}": 9, "dead_letters{topic=orders}": 2, "group_held{group=g1,topic=orders}": 0})
		got.without(t, "topic_events{topic=quiet}", "topic_events{topic=snapshot}", "group_held{group=g2")

		if err := m.WatchTopics(b, metrics.TopicOptions{Topics: []string{"quiet", "orders", "none", "quiet"}}); err != nil {
			t.Fatal(err)
		}
		got = scrape(t, m)
		got.want(t, map[string]float64{"topics_unwatched{}": 0, "topic_events{topic=orders}": 9, "topic_events{topic=quiet}": 0, "dead_letters{topic=orders}": 2, "dead_letters{topic=quiet}": 0})
		got.without(t, "topic_events{topic=none}", "topic_events{topic=snapshot}", "dead_letters{topic=none}", "metrics_errors_total")

		for _, o := range []metrics.TopicOptions{{MaxTopics: -1}, {MaxGroups: -1}} {
			if err := m.WatchTopics(b, o); !errors.Is(err, jetbus.ErrInvalidOption) {
				t.Errorf("WatchTopics(%+v) = %v, want ErrInvalidOption", o, err)
			}
		}
		if err := m.WatchTopics(b, metrics.TopicOptions{Topics: []string{"A"}}); !errors.Is(err, jetbus.ErrInvalidTopic) {
			t.Errorf("WatchTopics of A = %v, want ErrInvalidTopic", err)
		}
	})
}

func TestTopicsOfPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ago := func(s int) time.Time { return time.Now().Add(-time.Duration(s) * time.Second) }
		b, m := shop(), newMetrics(t, metrics.Config{})
		wide, parted := info("wide", 1, 1), info("parted", 1, 1)
		parted.Config.Partitions, parted.Generations = 8, []jetbus.Generation{{Partitions: 4}, {Generation: 1, Partitions: 8}}
		wide.Config.Partitions, wide.Generations = 512, []jetbus.Generation{{Partitions: 512}}
		b.infos = append(b.infos, wide, parted)
		b.groups["parted"] = []jetbus.GroupInfo{{Topic: "parted", Group: "g", Pending: 3}}
		b.groups["wide"] = []jetbus.GroupInfo{{Topic: "wide", Group: "g", Pending: 3}}
		b.parts = map[string][]jetbus.PartitionInfo{"parted": {{Oldest: ago(20)}, {}, {Oldest: ago(70)}, {Oldest: ago(30)}}}
		if err := m.WatchTopics(b, metrics.TopicOptions{}); err != nil {
			t.Fatal(err)
		}
		got := scrape(t, m)
		got.want(t, map[string]float64{"group_lag_seconds{group=g,topic=parted}": 70, "group_lag_events{group=g,topic=wide}": 3})
		got.without(t, "group_lag_seconds{group=g,topic=wide}", "metrics_errors_total")

		b.breakDown("partitions parted/g", jetbus.ErrConflict) // it takes the topic as a whole
		b.oldest["parted"] = ago(5)
		time.Sleep(metrics.DefaultAskEvery)
		scrape(t, m).want(t, map[string]float64{"group_lag_seconds{group=g,topic=parted}": 5 + metrics.DefaultAskEvery.Seconds()})
		b.breakDown("partitions parted/g", jetbus.ErrUnavailable)
		time.Sleep(metrics.DefaultAskEvery)
		got = scrape(t, m)
		got.want(t, map[string]float64{"metrics_errors_total{source=lag}": 1})
		got.without(t, "group_lag_seconds{group=g,topic=parted}")
	})
}

func TestTopicsPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, m := shop(), newMetrics(t, metrics.Config{})
		b.panics = true
		if err := m.WatchTopics(b, metrics.TopicOptions{}); err != nil {
			t.Fatal(err)
		}
		got := scrape(t, m)
		got.want(t, map[string]float64{"metrics_errors_total{source=topics}": 1})
		got.without(t, "topic", "group_lag")
	})
}
