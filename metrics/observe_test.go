package metrics_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/metrics"
)

// TestObserveKinds takes the kinds from the source of the root: one that is new there
// moves something here.
func TestObserveKinds(t *testing.T) {
	kinds := 0
	for _, file := range []string{"../observe.go", "../drain.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile(`ObservationKind = "([a-z_]+)"`).FindAllSubmatch(source, -1) {
			kind := jetbus.ObservationKind(found[1])
			kinds++
			m := newMetrics(t, metrics.Config{})
			m.Observe(of(jetbus.Polled, "")) // so that the group is there
			before := scrape(t, m)
			o := of(kind, "1")
			o.Count, o.Duration = 1, time.Second
			m.Observe(o)
			if maps.Equal(before, scrape(t, m)) {
				t.Errorf("%s moves nothing", kind)
			}
		}
	}
	if kinds < 20 {
		t.Errorf("found %d kinds: the sources are not where the test looks", kinds)
	}
}

func TestObserve(t *testing.T) {
	group, handled := "{group=g,topic=a}", "{group=g,topic=a,version=none}"
	why := errors.New("why")
	tests := []struct {
		name string
		told []jetbus.Observation
		want map[string]float64
	}{
		{"published", []jetbus.Observation{
			{Kind: jetbus.Published, Topic: "a", Count: 3, Duration: 20 * time.Millisecond},
			{Kind: jetbus.Published, Topic: "a", Duration: time.Microsecond}, // as a gateway's client says it
		}, map[string]float64{"events_published_total{topic=a,version=none}": 4, "publish_duration_ms{topic=a}": 2, "publish_duration_ms_sum{topic=a}": 20.001}},
		{"versions", []jetbus.Observation{
			{Kind: jetbus.Published, Topic: "a", Count: 3, Version: "1"},
			{Kind: jetbus.Published, Topic: "a", Version: "2"},
			{Kind: jetbus.Published, Topic: "a"},
			{Kind: jetbus.Delivered, Topic: "a", Group: "g", ID: "1", Version: "1"},
			{Kind: jetbus.Acked, Topic: "a", Group: "g", ID: "1", Version: "1"},
			{Kind: jetbus.Delivered, Topic: "a", Group: "g", ID: "2", Version: "3"}, // a process that publishes no such version
		}, map[string]float64{
			"events_published_total{topic=a,version=1}": 3, "events_published_total{topic=a,version=2}": 1, "events_published_total{topic=a,version=none}": 1,
			"events_delivered_total{group=g,topic=a,version=1}": 1, "events_acked_total{group=g,topic=a,version=1}": 1,
			"events_delivered_total{group=g,topic=a,version=3}": 1, "events_acked_total{group=g,topic=a,version=3}": 0, "events_delivered_total" + handled: 0,
		}},
		{"publish failed", []jetbus.Observation{
			{Kind: jetbus.PublishFail, Topic: "a", Count: 9, Err: fmt.Errorf("publish a: %w", jetbus.ErrSchema)},
			{Kind: jetbus.PublishFail, Topic: "a", Err: jetbus.ErrTopicFull},
			{Kind: jetbus.PublishFail, Topic: "a", Err: why},
			{Kind: jetbus.PublishFail, Topic: "made.up", Err: jetbus.ErrNoTopic},
			{Kind: jetbus.PublishFail, Topic: "\xff", Err: jetbus.ErrInvalidTopic},
		}, map[string]float64{
			"events_publish_failed_total{reason=schema,topic=a}":       1,
			"events_publish_failed_total{reason=topic_full,topic=a}":   1,
			"events_publish_failed_total{reason=other,topic=a}":        1,
			"events_publish_failed_total{reason=no_topic,topic=other}": 1,
			"events_publish_failed_total{reason=invalid,topic=other}":  1,
		}},
		{"redelivered", []jetbus.Observation{
			of(jetbus.Delivered, "1"),
			{Kind: jetbus.Delivered, Topic: "a", Group: "g", ID: "2", Attempt: 2},
			{Kind: jetbus.Delivered, Topic: "a", Group: "g", ID: "3", Attempt: 1, Reason: "given back"},
		}, map[string]float64{"events_delivered_total" + handled: 3, "events_redelivered_total" + group: 2, "events_inflight" + group: 3, "delivery_wait_ms" + group: 3}},
		{"dropped", []jetbus.Observation{{Kind: jetbus.Acked, Topic: "a", Group: "g", Err: why}}, map[string]float64{
			"events_acked_total" + handled: 1, "events_dropped_total" + group: 1, "delivery_latency_ms" + group: 0,
		}},
		{"dead", []jetbus.Observation{
			{Kind: jetbus.DeadLettered, Topic: "a", Group: "g", Reason: "max_attempts"},
			{Kind: jetbus.DeadLettered, Topic: "a", Group: "g", Reason: "the words of a client"},
		}, map[string]float64{
			"events_dead_lettered_total{group=g,reason=max_attempts,topic=a}": 1,
			"events_dead_lettered_total{group=g,reason=other,topic=a}":        1,
		}},
		{"extended", []jetbus.Observation{{Kind: jetbus.Extended, Topic: "a", Group: "g", ID: "1"}}, map[string]float64{"leases_extended_total" + group: 1}},
		{"polled", []jetbus.Observation{{Kind: jetbus.Polled, Topic: "a", Group: "g", Count: 1, Duration: time.Second}}, map[string]float64{
			"subscribe_poll_duration_ms" + group: 1, "subscribe_poll_duration_ms_sum" + group: 1000,
		}},
		{"drained", []jetbus.Observation{
			{Kind: jetbus.Drained, Count: 500, Duration: time.Second},
			{Kind: jetbus.DrainFail, Reason: string(jetbus.DrainTopic)},
			{Kind: jetbus.DrainFail, Reason: "made up"},
			{Kind: jetbus.OutboxDead, Topic: "a"},
		}, map[string]float64{
			"outbox_published_total{}": 500, "outbox_window_duration_ms{}": 1, "outbox_failed_total{class=topic}": 1,
			"outbox_failed_total{class=other}": 1, "outbox_set_aside_total{topic=a}": 1,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := newMetrics(t, metrics.Config{})
			for _, o := range tt.told {
				m.Observe(o)
			}
			scrape(t, m).want(t, tt.want)
		})
	}
}

// TestInflight: whatever ends a delivery takes it out, once, and what was never
// delivered takes out nothing.
func TestInflight(t *testing.T) {
	ends := []jetbus.ObservationKind{
		jetbus.Acked, jetbus.Nacked, jetbus.Snoozed, jetbus.DeadLettered, jetbus.DeadFail, jetbus.GivenBack, jetbus.LeaseLost,
	}
	const group = "{group=g,topic=a}"
	for _, end := range ends {
		t.Run(string(end), func(t *testing.T) {
			m := newMetrics(t, metrics.Config{})
			m.Observe(of(jetbus.Delivered, "1"))
			m.Observe(of(jetbus.Delivered, "2"))
			m.Observe(of(end, "never delivered"))
			scrape(t, m).want(t, map[string]float64{"events_inflight" + group: 2})
			m.Observe(of(end, "1"))
			m.Observe(of(jetbus.LeaseLost, "1")) // as a gateway's client says when it has settled for nothing
			m.Observe(of(jetbus.Extended, "2"))
			scrape(t, m).want(t, map[string]float64{"events_inflight" + group: 1})
			m.Observe(of(jetbus.Delivered, "2")) // it comes again: it is in one hand all the same
			scrape(t, m).want(t, map[string]float64{"events_inflight" + group: 1})
			m.Observe(of(end, "2"))
			scrape(t, m).want(t, map[string]float64{"events_inflight" + group: 0})
		})
	}
}

func TestInflightBound(t *testing.T) {
	m := newMetrics(t, metrics.Config{MaxInflight: 2})
	for i := range 5 {
		m.Observe(of(jetbus.Delivered, fmt.Sprint(i)))
	}
	scrape(t, m).want(t, map[string]float64{"events_inflight{group=g,topic=a}": 2, "events_delivered_total{group=g,topic=a,version=none}": 5})
}

// TestInflightForgets: deliveries whose ends are never told keep no others out.
func TestInflightForgets(t *testing.T) {
	m := newMetrics(t, metrics.Config{MaxInflight: 2})
	for i := range 5 {
		m.Observe(of(jetbus.Delivered, fmt.Sprint(i)))
	}
	m.Observe(of(jetbus.Acked, "4"))
	scrape(t, m).want(t, map[string]float64{"events_inflight{group=g,topic=a}": 1, "delivery_latency_ms{group=g,topic=a}": 1})
	m.Observe(of(jetbus.Acked, "0")) // it is not followed any more
	m.Observe(of(jetbus.Acked, "3"))
	scrape(t, m).want(t, map[string]float64{"events_inflight{group=g,topic=a}": 0, "delivery_latency_ms{group=g,topic=a}": 2})
}

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMetrics(t, metrics.Config{})
		waited := of(jetbus.Delivered, "1")
		waited.Duration = 2 * time.Second
		m.Observe(waited)
		time.Sleep(300 * time.Millisecond)
		done := of(jetbus.Acked, "1")
		done.Duration = 300 * time.Millisecond
		m.Observe(done)
		ahead := of(jetbus.Delivered, "2") // the broker's clock is ahead of ours
		ahead.Duration = -time.Hour
		m.Observe(ahead)
		m.Observe(of(jetbus.Acked, "2"))
		scrape(t, m).want(t, map[string]float64{
			"delivery_wait_ms_sum{group=g,topic=a}": 2000, "delivery_handler_duration_ms_sum{group=g,topic=a}": 300,
			"delivery_latency_ms_sum{group=g,topic=a}": 2300, "delivery_latency_ms{group=g,topic=a}": 2,
		})
	})
}

// TestBounds: however many names there are, the labels are few and nothing is lost.
func TestBounds(t *testing.T) {
	m := newMetrics(t, metrics.Config{MaxTopics: 3, MaxGroups: 4})
	for i := range 100 {
		name := fmt.Sprint("t", i)
		m.Observe(jetbus.Observation{Kind: jetbus.Published, Topic: name})
		m.Observe(jetbus.Observation{Kind: jetbus.PublishFail, Topic: name})
		m.Observe(jetbus.Observation{Kind: jetbus.Undecodable, Topic: name})
		m.Observe(jetbus.Observation{Kind: jetbus.OutboxDead, Topic: name})
		for j := range 10 {
			m.Observe(jetbus.Observation{Kind: jetbus.Delivered, Topic: name, Group: fmt.Sprint("g", j), ID: "1"})
		}
	}
	m.Observe(jetbus.Observation{Kind: jetbus.Acked, Topic: "t99", Group: "\xff", ID: "1"})
	m.WatchGateway(func() []metrics.Inflight {
		return []metrics.Inflight{{"t50", "g1", 2}, {"t51", "g2", 3}, {"t0", "g1", 1}}
	})
	got := scrape(t, m)
	got.want(t, map[string]float64{
		"events_published_total{topic=t2,version=none}": 1, "events_published_total{topic=other,version=none}": 97,
		"events_delivered_total{group=g0,topic=t0,version=none}": 1, "events_delivered_total{group=other,topic=t0,version=none}": 6,
		"events_delivered_total{group=other,topic=other,version=none}": 970, "events_inflight{group=other,topic=other}": 970,
		"ws_inflight{group=g1,topic=t0}": 1, "ws_inflight{group=other,topic=other}": 5,
	})
	series := map[string]int{}
	for name := range got {
		metric, _, _ := strings.Cut(name, "{")
		series[metric]++
	}
	for metric, n := range series {
		if n > 4+3+1 { // groups, those of known topics beyond them, and those of other topics
			t.Errorf("%s has %d series", metric, n)
		}
	}
	if series["events_published_total"] != 4 || series["events_undecodable_total"] != 4 {
		t.Errorf("series = %v, want 3 topics and other", series)
	}
}

// TestVersionBounds: texts that are not version numbers, and versions beyond MaxVersions, count as other, in published
// and in handled events.
func TestVersionBounds(t *testing.T) {
	m := newMetrics(t, metrics.Config{MaxVersions: 3})
	odd := []string{"0", "-1", "+1", "01", "1.0", "v1", " 1", "none", "other", "2147483648", strings.Repeat("9", 8000), "\xff"}
	for _, version := range odd {
		m.Observe(jetbus.Observation{Kind: jetbus.Published, Topic: "a", Version: version})
		m.Observe(jetbus.Observation{Kind: jetbus.Delivered, Topic: "a", Group: "g", ID: "1", Version: version})
	}
	for i := range 100 {
		version := fmt.Sprint(i + 1)
		m.Observe(jetbus.Observation{Kind: jetbus.Acked, Topic: "a", Group: "g", Version: version})
		m.Observe(jetbus.Observation{Kind: jetbus.Published, Topic: "a", Version: version})
		m.Observe(jetbus.Observation{Kind: jetbus.Delivered, Topic: "a", Group: fmt.Sprint("g", i%2), Version: version})
	}
	m.Observe(jetbus.Observation{Kind: jetbus.Published, Topic: "b", Version: "100"}) // which has room of its own
	got := scrape(t, m)
	got.want(t, map[string]float64{
		"events_published_total{topic=a,version=3}": 1, "events_published_total{topic=a,version=other}": 97 + float64(len(odd)), "events_published_total{topic=a,version=none}": 0,
		"events_published_total{topic=b,version=100}": 1, "events_acked_total{group=g,topic=a,version=2}": 1, "events_acked_total{group=g,topic=a,version=other}": 97,
		"events_delivered_total{group=g,topic=a,version=other}": float64(len(odd)), "events_delivered_total{group=g0,topic=a,version=other}": 48,
	})
	got.without(t, "events_published_total{topic=a,version=4}", "events_acked_total{group=g,topic=a,version=4}", "events_delivered_total{group=g1,topic=a,version=4}")
}

// TestHandledVersionsAreNotPublished: a process that only handles events of a version is not a writer of it.
func TestHandledVersionsAreNotPublished(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	for _, kind := range []jetbus.ObservationKind{jetbus.Delivered, jetbus.Acked} {
		m.Observe(jetbus.Observation{Kind: kind, Topic: "a", Group: "g", ID: "1", Version: "3"})
	}
	got := scrape(t, m)
	got.want(t, map[string]float64{"events_acked_total{group=g,topic=a,version=3}": 1})
	got.without(t, "events_published_total{topic=a,version=3}")
}

// TestMadeUpTopics: names that nobody has as a topic leave no room taken.
func TestMadeUpTopics(t *testing.T) {
	m := newMetrics(t, metrics.Config{MaxTopics: 1})
	m.Observe(jetbus.Observation{Kind: jetbus.PublishFail, Topic: "made.up", Err: jetbus.ErrNoTopic})
	m.Observe(jetbus.Observation{Kind: jetbus.PublishFail, Topic: "made.up", Err: jetbus.ErrDenied})
	m.Observe(jetbus.Observation{Kind: jetbus.Published, Topic: "real"})
	m.Observe(jetbus.Observation{Kind: jetbus.PublishFail, Topic: "real", Err: jetbus.ErrNoTopic})
	scrape(t, m).want(t, map[string]float64{
		"events_published_total{topic=real,version=none}":          1,
		"events_publish_failed_total{reason=no_topic,topic=other}": 1,
		"events_publish_failed_total{reason=no_topic,topic=real}":  1,
	})
}

// TestObserveConcurrently is for the race detector, and counts all the same.
func TestObserveConcurrently(t *testing.T) {
	m := newMetrics(t, metrics.Config{MaxTopics: 5, MaxGroups: 5})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				topic := fmt.Sprint("t", j%10)
				id := fmt.Sprint(i, ".", j)
				m.Observe(jetbus.Observation{Kind: jetbus.Published, Topic: topic, Version: fmt.Sprint(j)})
				m.Observe(jetbus.Observation{Kind: jetbus.Delivered, Topic: topic, Group: "g", ID: id, Version: fmt.Sprint(j % 3)})
				m.Observe(jetbus.Observation{Kind: jetbus.Acked, Topic: topic, Group: "g", ID: id})
			}
			scrape(t, m)
		})
	}
	all.Wait()
	sum := map[string]float64{}
	for name, v := range scrape(t, m) {
		metric, _, _ := strings.Cut(name, "{")
		sum[metric] += v
	}
	if sum["events_published_total"] != 400 || sum["events_acked_total"] != 400 || sum["events_inflight"] != 0 {
		t.Errorf("published %v, acked %v, in flight %v, want 400, 400, 0", sum["events_published_total"], sum["events_acked_total"], sum["events_inflight"])
	}
}

func TestConfig(t *testing.T) {
	bad := []metrics.Config{
		{MaxTopics: -1}, {MaxGroups: -1}, {MaxVersions: -1}, {MaxInflight: -1}, {AskEvery: -1}, {Timeout: -1}, {Buckets: []float64{1, 1}}, {Buckets: []float64{2, 1}}, {Buckets: []float64{math.NaN()}},
	}
	for _, c := range bad {
		if _, err := metrics.New(c); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("New(%+v) = %v, want ErrInvalidOption", c, err)
		}
	}
	c, err := metrics.Config{}.Normalize()
	if err != nil || c.MaxTopics != metrics.DefaultMaxTopics || c.MaxVersions != metrics.DefaultMaxVersions || c.AskEvery != metrics.DefaultAskEvery || c.Buckets[len(c.Buckets)-1] != 60_000 {
		t.Errorf("Normalize = %+v, %v", c, err)
	}
}
