package metrics

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/partition"
	"github.com/seed-63e9a637/jetbus/projector"
)

// Outbox is what is read of a drainer: a [jetbus.Drainer].
type Outbox interface {
	Stats() jetbus.DrainStats
}

// Projection is what is read of a projection: a [projector.Projection].
type Projection interface {
	Stats() projector.Stats
	Lag(ctx context.Context) (projector.Lag, error)
}

// Member is what is read of a subscription by partition: a [partition.Subscription].
type Member interface {
	Owned() []jetbus.Partition
	Counts() partition.Stats
}

// FeedStats are those of a change feed: convert what its Stats returns. (They are not
// that type since it would bring MongoDB's driver.)
type FeedStats struct {
	Published, Duplicates, Copied, Filtered, Poisoned, Oversize, Gaps, Reopened, Fenced uint64

	InFlight int
}

// Feed is what is read of a change feed.
type Feed struct {
	State string        // of its Status
	Lag   time.Duration // of its Status
	Stats FeedStats
}

// Inflight is how many events WebSocket clients hold of a group.
type Inflight struct {
	Topic, Group string
	Events       int
}

// watched are the things that are read when somebody scrapes, by name.
type watched struct {
	mu          sync.Mutex
	outboxes    map[string]Outbox
	projections map[string]Projection
	members     map[string]Member
	feeds       map[string]func() Feed
	gateway     func() []Inflight
	topics      TopicReader
	topicsOf    TopicOptions
	known       []string // names of topics, as of the last time that they were listed
}

func (w *watched) init() {
	w.outboxes, w.projections = map[string]Outbox{}, map[string]Projection{}
	w.members, w.feeds = map[string]Member{}, map[string]func() Feed{}
}

// WatchOutbox reads a drainer at each scrape, under a name that becomes a label. It takes the
// place of the one that had the name; nil ends it. The drainer's Observer should be
// [Metrics.Observe]: it moves the counters without that label.
func (m *Metrics) WatchOutbox(name string, o Outbox) {
	put(&m.watched, m.watched.outboxes, name, o, o == nil)
}

// WatchProjection reads a projection at each scrape, and asks for its lag, which asks
// the broker, as often as it is asked about topics. The name becomes a label; it takes
// the place of the one that had it, and nil ends it.
func (m *Metrics) WatchProjection(name string, p Projection) {
	put(&m.watched, m.watched.projections, name, p, p == nil)
	m.round.forget()
}

// WatchMember reads a subscription by partition at each scrape. The name becomes a
// label; it takes the place of the one that had it, and nil ends it.
func (m *Metrics) WatchMember(name string, s Member) {
	put(&m.watched, m.watched.members, name, s, s == nil)
}

// WatchFeed reads a change feed at each scrape. The name becomes a label; it takes the
// place of the one that had it, and nil ends it. The function is
//
//	func() metrics.Feed {
//		s := feed.Status()
//		return metrics.Feed{State: string(s.State), Lag: s.Lag, Stats: metrics.FeedStats(feed.Stats())}
//	}
func (m *Metrics) WatchFeed(name string, f func() Feed) {
	put(&m.watched, m.watched.feeds, name, f, f == nil)
}

// WatchGateway asks at each scrape what WebSocket clients hold; nil ends it.
func (m *Metrics) WatchGateway(f func() []Inflight) {
	m.watched.mu.Lock()
	defer m.watched.mu.Unlock()
	m.watched.gateway = f
}

// put sets one of the watched things.
func put[S any](w *watched, of map[string]S, name string, s S, none bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if none {
		delete(of, name)
		return
	}
	of[name] = s
}

// emit takes a sample.
type emit func(prometheus.Metric)

// collectWatched reads what is watched and answers at once.
func (m *Metrics) collectWatched(to emit) {
	w := &m.watched
	w.mu.Lock()
	outboxes, projections, members, feeds, gateway := maps.Clone(w.outboxes), maps.Clone(w.projections), maps.Clone(w.members), maps.Clone(w.feeds), w.gateway
	w.mu.Unlock()
	each(m, "outbox", outboxes, to, m.outbox)
	each(m, "projection", projections, to, m.projection)
	each(m, "member", members, to, m.member)
	each(m, "feed", feeds, to, m.feed)
	if gateway != nil {
		each(m, "gateway", map[string]func() []Inflight{"": gateway}, to, m.gateway)
	}
}

// each reads things of one kind. One that panics has no samples.
func each[S any](m *Metrics, source string, all map[string]S, to emit, read func(name string, s S) []prometheus.Metric) {
	for name, s := range all {
		for _, sample := range guard(m, source, func() []prometheus.Metric { return read(name, s) }) {
			to(sample)
		}
	}
}

// guard calls read; a panic is a failure of the source.
func guard(m *Metrics, source string, read func() []prometheus.Metric) (out []prometheus.Metric) {
	defer func() {
		if recover() != nil {
			m.failed(source)
			out = nil
		}
	}()
	return read()
}

func (m *Metrics) outbox(name string, o Outbox) []prometheus.Metric {
	s := o.Stats()
	out := []prometheus.Metric{
		m.sample("outbox_running", one(s.Running), name),
		m.sample("outbox_held_topics", float64(len(s.HeldTopics)), name),
		m.sample("outbox_away", one(!s.BrokerAway.IsZero()), name, "broker"),
		m.sample("outbox_away", one(!s.OutboxAway.IsZero()), name, "outbox"),
		m.sample("outbox_duplicates_total", float64(s.Duplicates), name),
		m.sample("outbox_retried_total", float64(s.Retried), name),
	}
	if s.LookedAt.IsZero() { // what waits is not known yet
		return out
	}
	return append(out,
		m.sample("outbox_pending", float64(s.Outbox.Pending), name),
		m.sample("outbox_dead", float64(s.Outbox.Dead), name),
		m.sample("outbox_oldest_seconds", s.Outbox.Age.Seconds(), name))
}

func (m *Metrics) projection(name string, p Projection) []prometheus.Metric {
	s := p.Stats()
	return []prometheus.Metric{
		m.sample("projector_phase", 1, name, string(s.Phase)),
		m.sample("projector_held", float64(s.Held), name),
		m.sample("projector_events_total", float64(s.Events), name),
		m.sample("projector_batches_total", float64(s.Batches), name),
		m.sample("projector_applied_total", float64(s.Applied), name),
		m.sample("projector_stale_total", float64(s.Stale), name),
		m.sample("projector_raced_total", float64(s.Raced), name),
		m.sample("projector_rejected_total", float64(s.Rejected), name),
		m.sample("projector_failed_total", float64(s.Failed), name),
	}
}

func (m *Metrics) member(name string, s Member) []prometheus.Metric {
	counts := s.Counts()
	return []prometheus.Metric{
		m.sample("partition_owned", float64(len(s.Owned())), name),
		m.sample("partition_acquired_total", float64(counts.Acquired), name),
		m.sample("partition_released_total", float64(counts.Released), name),
		m.sample("partition_expelled_total", float64(counts.Expelled), name),
	}
}

func (m *Metrics) feed(name string, read func() Feed) []prometheus.Metric {
	f := read()
	return []prometheus.Metric{
		m.sample("changefeed_state", 1, name, f.State),
		m.sample("changefeed_lag_seconds", f.Lag.Seconds(), name),
		m.sample("changefeed_inflight", float64(f.Stats.InFlight), name),
		m.sample("changefeed_published_total", float64(f.Stats.Published), name),
		m.sample("changefeed_duplicates_total", float64(f.Stats.Duplicates), name),
		m.sample("changefeed_copied_total", float64(f.Stats.Copied), name),
		m.sample("changefeed_filtered_total", float64(f.Stats.Filtered), name),
		m.sample("changefeed_poisoned_total", float64(f.Stats.Poisoned), name),
		m.sample("changefeed_oversize_total", float64(f.Stats.Oversize), name),
		m.sample("changefeed_gaps_total", float64(f.Stats.Gaps), name),
		m.sample("changefeed_reopened_total", float64(f.Stats.Reopened), name),
		m.sample("changefeed_fenced_total", float64(f.Stats.Fenced), name),
	}
}

// gateway sums what clients hold under the labels of their groups.
func (m *Metrics) gateway(_ string, read func() []Inflight) []prometheus.Metric {
	held := map[pair]int{}
	for _, i := range read() {
		held[m.group(i.Topic, i.Group).pair] += i.Events
	}
	out := make([]prometheus.Metric, 0, len(held))
	for p, n := range held {
		out = append(out, m.sample("ws_inflight", float64(n), p.topic, p.group))
	}
	return out
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
