package metrics

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed-63e9a637/jetbus"
)

// Other is the value of a label beyond the bounds of a [Config], and of what is no name.
const Other = "other"

// NoVersion is the value of the label version for events that state no schema version.
const NoVersion = "none"

// Config says how much is kept. The zero value of each field is its default.
type Config struct {
	// MaxTopics bounds the topics that this process is seen to use. Defaults to 200.
	MaxTopics int
	// MaxGroups bounds the pairs of a topic and a group. Each costs 4 histograms and about
	// 15 counters. Defaults to 500.
	MaxGroups int
	// MaxVersions bounds the schema versions of each topic: the first ones seen; a restart forgets them. Each costs
	// a counter of the topic and two of each of its groups. Defaults to 20.
	MaxVersions int
	// MaxInflight bounds the deliveries that are followed to their end, for
	// events_inflight and delivery_latency_ms; of more the oldest are not in them. Defaults
	// to 100,000.
	MaxInflight int
	// Buckets are the upper bounds of histograms, in milliseconds, ascending. Defaults to
	// 16 from 0.5 ms to 1 minute.
	Buckets []float64
	// AskEvery is the least time between two rounds of questions to the broker, however
	// often somebody scrapes. Defaults to 15 seconds.
	AskEvery time.Duration
	// Timeout bounds such a round, and so how long a scrape waits for it. Defaults to 5
	// seconds.
	Timeout time.Duration
}

// Defaults of a Config.
const (
	DefaultMaxTopics   = 200
	DefaultMaxGroups   = 500
	DefaultMaxVersions = 20
	DefaultMaxInflight = 100_000
	DefaultAskEvery    = 15 * time.Second
	DefaultTimeout     = 5 * time.Second
)

var defaultBuckets = []float64{0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000}

// Normalize returns the config with its defaults. The error wraps
// [jetbus.ErrInvalidOption] and names the field.
func (c Config) Normalize() (Config, error) {
	for _, n := range []struct {
		name  string
		value *int
		other int
	}{{"MaxTopics", &c.MaxTopics, DefaultMaxTopics}, {"MaxGroups", &c.MaxGroups, DefaultMaxGroups}, {"MaxVersions", &c.MaxVersions, DefaultMaxVersions}, {"MaxInflight", &c.MaxInflight, DefaultMaxInflight}} {
		if *n.value < 0 {
			return c, fmt.Errorf("%w: %s is %d, it must be positive, or 0 for %d", jetbus.ErrInvalidOption, n.name, *n.value, n.other)
		}
		if *n.value == 0 {
			*n.value = n.other
		}
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		other time.Duration
	}{{"AskEvery", &c.AskEvery, DefaultAskEvery}, {"Timeout", &c.Timeout, DefaultTimeout}} {
		if *d.value < 0 {
			return c, fmt.Errorf("%w: %s is %v, it must be positive, or 0 for %v", jetbus.ErrInvalidOption, d.name, *d.value, d.other)
		}
		if *d.value == 0 {
			*d.value = d.other
		}
	}
	c.Buckets = slices.Clone(c.Buckets)
	if len(c.Buckets) == 0 {
		c.Buckets = defaultBuckets
	}
	for i, b := range c.Buckets {
		if math.IsNaN(b) || i > 0 && b <= c.Buckets[i-1] {
			return c, fmt.Errorf("%w: Buckets must ascend", jetbus.ErrInvalidOption)
		}
	}
	return c, nil
}

// Metrics counts what one process does. It is a [prometheus.Collector]: register it
// once. Its methods may be called concurrently.
type Metrics struct {
	c    Config
	read map[string]described // what is read when somebody scrapes

	counters   map[string]*prometheus.CounterVec
	histograms map[string]*prometheus.HistogramVec

	mu     sync.RWMutex
	topics map[string]*topicSeries
	groups map[pair]*groupSeries
	named  int // of groups: those that are not Other

	inflight inflight
	watched  watched
	round    round
}

var _ prometheus.Collector = (*Metrics)(nil)

// New makes metrics that are all zero. The error wraps [jetbus.ErrInvalidOption].
func New(c Config) (*Metrics, error) {
	c, err := c.Normalize()
	if err != nil {
		return nil, fmt.Errorf("new metrics: %w", err)
	}
	m := &Metrics{
		c: c, read: map[string]described{},
		counters: map[string]*prometheus.CounterVec{}, histograms: map[string]*prometheus.HistogramVec{},
		topics: map[string]*topicSeries{}, groups: map[pair]*groupSeries{},
		inflight: inflight{most: c.MaxInflight, events: map[flight]delivery{}, held: map[pair]int{}},
	}
	for _, row := range table {
		switch {
		case row.Type == Histogram:
			m.histograms[row.Name] = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: row.Name, Help: row.Help, Buckets: c.Buckets}, row.Labels)
		case row.Type == Counter && isCounted(row):
			m.counters[row.Name] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: row.Name, Help: row.Help}, row.Labels)
		default:
			kind := prometheus.GaugeValue
			if row.Type == Counter {
				kind = prometheus.CounterValue
			}
			m.read[row.Name] = described{prometheus.NewDesc(row.Name, row.Help, row.Labels, nil), kind}
		}
	}
	m.watched.init()
	m.round.init(c, m.ask)
	return m, nil
}

// isCounted reports whether a counter counts here, and not in what is watched.
func isCounted(row Metric) bool {
	switch row.From {
	case fromOutbox, fromFeed, fromProjection, fromMember:
		return false
	}
	return true
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, row := range table {
		switch {
		case m.histograms[row.Name] != nil:
			m.histograms[row.Name].Describe(to)
		case m.counters[row.Name] != nil:
			m.counters[row.Name].Describe(to)
		default:
			to <- m.read[row.Name].desc
		}
	}
}

// Collect implements [prometheus.Collector]. It takes at most Config.Timeout.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, s := range m.round.samples() {
		to <- s
	}
	m.collectWatched(func(s prometheus.Metric) { to <- s })
	for group, n := range m.held() {
		to <- m.sample("events_inflight", float64(n), group.topic, group.group)
	}
	for _, v := range m.histograms {
		v.Collect(to)
	}
	for _, v := range m.counters { // the last one, for what went wrong until now
		v.Collect(to)
	}
}

// maxScrapes is how many scrapes Handler answers at a time.
const maxScrapes = 8

// Handler serves these metrics, and no others, in the formats of Prometheus, for GET of any
// path. It answers 503 to a scrape beyond 8 at a time.
func (m *Metrics) Handler() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(m) // it is one that a registry takes
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: maxScrapes})
}

// described is what a sample needs besides its value.
type described struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// sample is a value of now.
func (m *Metrics) sample(name string, v float64, labels ...string) prometheus.Metric {
	of := m.read[name]
	out, err := prometheus.NewConstMetric(of.desc, of.kind, v, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(of.desc, err)
	}
	return out
}

// failed counts something that could not be read.
func (m *Metrics) failed(source string) {
	m.counters["metrics_errors_total"].WithLabelValues(source).Inc()
}
