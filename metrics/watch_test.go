package metrics_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/metrics"
	"github.com/seed-63e9a637/jetbus/partition"
	"github.com/seed-63e9a637/jetbus/projector"
)

// What real things are read as.
var (
	_ metrics.Outbox      = (*jetbus.Drainer)(nil)
	_ metrics.Projection  = (*projector.Projection)(nil)
	_ metrics.Member      = (*partition.Subscription)(nil)
	_ metrics.TopicReader = jetbus.Backend(nil)
	_ jetbus.Observer     = (*metrics.Metrics)(nil).Observe
)

type lag = projector.Lag

type outbox jetbus.DrainStats

func (o outbox) Stats() jetbus.DrainStats { return jetbus.DrainStats(o) }

// projection is one that is 7 events behind, or whose lag is not known.
type projection struct{ err error }

func (p projection) Stats() projector.Stats {
	return projector.Stats{Phase: projector.Following, Events: 1, Batches: 2, Applied: 3, Stale: 4, Raced: 5, Rejected: 6, Failed: 7, Held: 8}
}
func (p projection) Lag(context.Context) (lag, error) { return lag{Events: 7}, p.err }

type member struct{}

func (member) Owned() []jetbus.Partition { return make([]jetbus.Partition, 4) }
func (member) Counts() partition.Stats {
	return partition.Stats{Acquired: 6, Released: 2, Expelled: 1}
}

func feed() metrics.Feed {
	return metrics.Feed{State: "copying", Lag: 1500 * time.Millisecond, Stats: metrics.FeedStats{
		Published: 1, Duplicates: 2, Copied: 3, Filtered: 4, Poisoned: 5, Oversize: 6, Gaps: 7, Reopened: 8, Fenced: 9, InFlight: 10,
	}}
}

// watchAll watches one of each kind.
func watchAll(m *metrics.Metrics) {
	m.WatchOutbox("o", outbox{
		Running: true, Duplicates: 2, Retried: 3, HeldTopics: []string{"a"}, BrokerAway: time.Now(),
		Outbox: jetbus.OutboxStats{Pending: 4, Dead: 5, Age: 6 * time.Second}, LookedAt: time.Now(),
	})
	m.WatchProjection("p", projection{})
	m.WatchMember("m", member{})
	m.WatchFeed("f", feed)
	m.WatchGateway(func() []metrics.Inflight { return []metrics.Inflight{{"a", "g", 2}, {"a", "g", 3}} })
}

func TestWatch(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	watchAll(m)
	scrape(t, m).want(t, map[string]float64{
		"outbox_running{outbox=o}": 1, "outbox_pending{outbox=o}": 4, "outbox_dead{outbox=o}": 5, "outbox_oldest_seconds{outbox=o}": 6,
		"outbox_held_topics{outbox=o}": 1, "outbox_away{outbox=o,side=broker}": 1, "outbox_away{outbox=o,side=outbox}": 0,
		"outbox_duplicates_total{outbox=o}": 2, "outbox_retried_total{outbox=o}": 3,

		"projector_phase{phase=following,projection=p}": 1, "projector_events_total{projection=p}": 1, "projector_batches_total{projection=p}": 2,
		"projector_applied_total{projection=p}": 3, "projector_stale_total{projection=p}": 4, "projector_raced_total{projection=p}": 5,
		"projector_rejected_total{projection=p}": 6, "projector_failed_total{projection=p}": 7, "projector_held{projection=p}": 8,
		"projector_lag_events{projection=p}": 7,

		"partition_owned{member=m}": 4, "partition_acquired_total{member=m}": 6, "partition_released_total{member=m}": 2, "partition_expelled_total{member=m}": 1,

		"changefeed_state{feed=f,state=copying}": 1, "changefeed_lag_seconds{feed=f}": 1.5, "changefeed_published_total{feed=f}": 1,
		"changefeed_duplicates_total{feed=f}": 2, "changefeed_copied_total{feed=f}": 3, "changefeed_filtered_total{feed=f}": 4,
		"changefeed_poisoned_total{feed=f}": 5, "changefeed_oversize_total{feed=f}": 6, "changefeed_gaps_total{feed=f}": 7,
		"changefeed_reopened_total{feed=f}": 8, "changefeed_fenced_total{feed=f}": 9, "changefeed_inflight{feed=f}": 10,

		"ws_inflight{group=g,topic=a}": 5,
	})
	m.WatchOutbox("o", outbox{}) // takes its place, and has not looked yet
	got := scrape(t, m)
	got.want(t, map[string]float64{"outbox_running{outbox=o}": 0})
	got.without(t, "outbox_pending", "outbox_oldest_seconds", "outbox_dead{")

	m.WatchOutbox("o", nil)
	m.WatchProjection("p", nil)
	m.WatchMember("m", nil)
	m.WatchFeed("f", nil)
	m.WatchGateway(nil)
	scrape(t, m).without(t, "outbox", "projector", "partition", "changefeed", "ws_")
}

func TestWatchBroken(t *testing.T) {
	m := newMetrics(t, metrics.Config{})
	m.WatchProjection("p", projection{err: errors.New("down")})
	m.WatchFeed("panics", func() metrics.Feed { panic("feed") })
	m.WatchFeed("f", feed)
	m.WatchOutbox("o", (*jetbus.Drainer)(nil))
	m.WatchFeed("text", func() metrics.Feed { return metrics.Feed{State: "streaming"} })
	m.WatchGateway(func() []metrics.Inflight { panic("gateway") })
	got := scrape(t, m)
	got.want(t, map[string]float64{
		"metrics_errors_total{source=lag}": 1, "metrics_errors_total{source=feed}": 1, "metrics_errors_total{source=gateway}": 1,
		"metrics_errors_total{source=outbox}": 1, "projector_held{projection=p}": 8, "changefeed_gaps_total{feed=f}": 7,
	})
	got.without(t, "projector_lag_events", "outbox_", "ws_", "changefeed_state{feed=panics")
}
