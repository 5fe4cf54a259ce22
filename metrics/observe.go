package metrics

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-63e9a637/jetbus"
)

// pair is what most metrics are labeled with.
type pair struct{ topic, group string }

// topicSeries are the metrics of one topic.
type topicSeries struct {
	label     string
	versions  map[string]bool               // labels of versions, at most MaxVersions
	published map[string]prometheus.Counter // by version
	took      prometheus.Observer
}

// groupSeries are the metrics of one group.
type groupSeries struct {
	pair     // as in the labels
	counters map[jetbus.ObservationKind]prometheus.Counter
	versions map[string]versionSeries

	redelivered, dropped         prometheus.Counter
	poll, wait, handler, latency prometheus.Observer
}

// versionSeries are the metrics of a group that have the version as a label.
type versionSeries struct{ delivered, acked prometheus.Counter }

// ofKind are the counters of a group that count one kind of observation.
var ofKind = map[jetbus.ObservationKind]string{
	jetbus.Nacked:    "events_nacked_total",
	jetbus.Snoozed:   "events_snoozed_total",
	jetbus.GivenBack: "events_given_back_total",
	jetbus.Filtered:  "events_filtered_total",
	jetbus.DeadFail:  "events_dead_letter_failed_total",
	jetbus.Replayed:  "events_replayed_total",
	jetbus.Extended:  "leases_extended_total",
	jetbus.LeaseLost: "leases_lost_total",
	jetbus.TookOver:  "group_taken_over_total",
	jetbus.StoodDown: "group_stood_down_total",
}

// Observe counts what a bus or a drainer says: it is a [jetbus.Observer].
func (m *Metrics) Observe(o jetbus.Observation) {
	switch o.Kind {
	case jetbus.Published:
		s := m.topic(o.Topic)
		m.published(s, o.Version).Add(float64(max(o.Count, 1)))
		s.took.Observe(milliseconds(o.Duration))
	case jetbus.PublishFail:
		m.counters["events_publish_failed_total"].WithLabelValues(m.failedTopic(o), publishReason(o.Err)).Inc()
	case jetbus.Undecodable:
		m.counters["events_undecodable_total"].WithLabelValues(m.topicName(o.Topic)).Inc()
	case jetbus.Drained:
		m.counters["outbox_published_total"].WithLabelValues().Add(float64(max(o.Count, 0)))
		m.histograms["outbox_window_duration_ms"].WithLabelValues().Observe(milliseconds(o.Duration))
	case jetbus.DrainFail:
		m.counters["outbox_failed_total"].WithLabelValues(drainClass(o.Reason)).Inc()
	case jetbus.OutboxDead:
		m.counters["outbox_set_aside_total"].WithLabelValues(m.topicName(o.Topic)).Inc()
	default:
		m.observeGroup(o)
	}
}

// observeGroup counts what is said of a group.
func (m *Metrics) observeGroup(o jetbus.Observation) {
	s := m.group(o.Topic, o.Group)
	if c := s.counters[o.Kind]; c != nil {
		c.Inc()
	}
	switch o.Kind {
	case jetbus.Polled:
		s.poll.Observe(milliseconds(o.Duration))
	case jetbus.Delivered:
		m.version(s, o.Version).delivered.Inc()
		if o.Attempt > 1 || o.Reason != "" {
			s.redelivered.Inc()
		}
		s.wait.Observe(milliseconds(max(o.Duration, 0)))
		m.inflight.begin(o, s.pair)
	case jetbus.Acked:
		m.version(s, o.Version).acked.Inc()
		if o.Err != nil {
			s.dropped.Inc()
		}
		if d, known := m.inflight.end(o); known {
			s.handler.Observe(milliseconds(o.Duration))
			s.latency.Observe(milliseconds(max(time.Since(d.stored), 0)))
		}
	case jetbus.Nacked:
		if _, known := m.inflight.end(o); known {
			s.handler.Observe(milliseconds(o.Duration))
		}
	case jetbus.DeadLettered:
		m.counters["events_dead_lettered_total"].WithLabelValues(s.topic, s.group, deadReason(o.Reason)).Inc()
		m.inflight.end(o)
	case jetbus.DeadFail, jetbus.Snoozed, jetbus.GivenBack, jetbus.LeaseLost, jetbus.Filtered:
		m.inflight.end(o)
	default:
	}
}

// topic returns the metrics of a topic.
func (m *Metrics) topic(name string) *topicSeries {
	m.mu.RLock()
	s := m.topics[name]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.topicLocked(m.labelLocked(name))
}

// topicLocked returns the metrics of a topic by its label.
func (m *Metrics) topicLocked(label string) *topicSeries {
	s := m.topics[label]
	if s == nil {
		s = &topicSeries{label: label, versions: map[string]bool{}, published: map[string]prometheus.Counter{}, took: m.histograms["publish_duration_ms"].WithLabelValues(label)}
		m.publishedLocked(s, NoVersion)
		m.topics[label] = s
	}
	return s
}

// labelLocked is what a topic is called in labels.
func (m *Metrics) labelLocked(name string) string {
	_, other := m.topics[Other]
	known := len(m.topics)
	if other {
		known--
	}
	switch {
	case m.topics[name] != nil:
		return name
	case jetbus.ValidTopic(name) != nil || known >= m.c.MaxTopics:
		return Other
	}
	return name
}

// topicName is what a topic is called in labels; it is one of the topics then.
func (m *Metrics) topicName(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	label := m.labelLocked(name)
	m.topicLocked(label)
	return label
}

// published returns the counter of a topic for events that state a version.
func (m *Metrics) published(s *topicSeries, stated string) prometheus.Counter {
	label := versionLabel(stated)
	m.mu.RLock()
	c := s.published[label]
	m.mu.RUnlock()
	if c != nil {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.publishedLocked(s, m.versionLocked(s, label))
}

// publishedLocked returns the counter of a topic by the label of a version.
func (m *Metrics) publishedLocked(s *topicSeries, label string) prometheus.Counter {
	c := s.published[label]
	if c == nil {
		c = m.counters["events_published_total"].WithLabelValues(s.label, label)
		s.published[label] = c
	}
	return c
}

// version returns the metrics of a group for events that state a version.
func (m *Metrics) version(s *groupSeries, stated string) versionSeries {
	label := versionLabel(stated)
	m.mu.RLock()
	v, is := s.versions[label]
	m.mu.RUnlock()
	if is {
		return v
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.groupVersionLocked(s, m.versionLocked(m.topicLocked(s.topic), label))
}

// groupVersionLocked returns the metrics of a group by the label of a version.
func (m *Metrics) groupVersionLocked(s *groupSeries, label string) versionSeries {
	v, is := s.versions[label]
	if !is {
		v = versionSeries{
			delivered: m.counters["events_delivered_total"].WithLabelValues(s.topic, s.group, label),
			acked:     m.counters["events_acked_total"].WithLabelValues(s.topic, s.group, label),
		}
		s.versions[label] = v
	}
	return v
}

// versionLocked returns the label of a version in the metrics of a topic: [Other] for a version beyond MaxVersions.
func (m *Metrics) versionLocked(s *topicSeries, label string) string {
	switch {
	case label == NoVersion || label == Other || s.versions[label]:
		return label
	case len(s.versions) >= m.c.MaxVersions:
		return Other
	}
	s.versions[label] = true
	return label
}

// versionLabel returns the label of a version: its number, [NoVersion], or [Other] for a text that is not a version
// number. Any publisher may write one.
func versionLabel(stated string) string {
	if stated == "" {
		return NoVersion
	}
	n, err := strconv.ParseInt(stated, 10, 32)
	label := strconv.FormatInt(n, 10) // not stated, which may be a part of a message
	if err != nil || n < 1 || label != stated {
		return Other
	}
	return label
}

// unproven are errors of a publish whose topic may be a name that somebody made up.
var unproven = []error{
	jetbus.ErrNoTopic, jetbus.ErrInvalidTopic, jetbus.ErrInvalidEvent, jetbus.ErrInvalidHeader, jetbus.ErrInvalidOption,
	jetbus.ErrDenied, jetbus.ErrUnavailable, jetbus.ErrClosed, context.Canceled, context.DeadlineExceeded,
}

// failedTopic is topicName for a publish that failed: names that somebody made up
// take no room from those of topics.
func (m *Metrics) failedTopic(o jetbus.Observation) string {
	if !slices.ContainsFunc(unproven, func(err error) bool { return errors.Is(o.Err, err) }) {
		return m.topicName(o.Topic)
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.topics[o.Topic] == nil {
		return Other
	}
	return o.Topic
}

// group returns the metrics of a group.
func (m *Metrics) group(topic, group string) *groupSeries {
	m.mu.RLock()
	s := m.groups[pair{topic, group}]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	label := pair{m.labelLocked(topic), group}
	m.topicLocked(label.topic)
	if label.topic == Other || jetbus.ValidGroup(group) != nil || m.groups[label] == nil && m.named >= m.c.MaxGroups {
		label.group = Other
	}
	s = m.groups[label]
	if s == nil {
		s = m.newGroup(label)
		m.groups[label] = s
		if label.group != Other {
			m.named++
		}
	}
	return s
}

func (m *Metrics) newGroup(p pair) *groupSeries {
	counter := func(name string) prometheus.Counter { return m.counters[name].WithLabelValues(p.topic, p.group) }
	histogram := func(name string) prometheus.Observer {
		return m.histograms[name].WithLabelValues(p.topic, p.group)
	}
	s := &groupSeries{
		pair: p, counters: map[jetbus.ObservationKind]prometheus.Counter{}, versions: map[string]versionSeries{},
		redelivered: counter("events_redelivered_total"), dropped: counter("events_dropped_total"),
		poll: histogram("subscribe_poll_duration_ms"), wait: histogram("delivery_wait_ms"),
		handler: histogram("delivery_handler_duration_ms"), latency: histogram("delivery_latency_ms"),
	}
	for kind, name := range ofKind {
		s.counters[kind] = counter(name)
	}
	m.groupVersionLocked(s, NoVersion)
	return s
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// publishReasons are the values of the label reason of events_publish_failed_total.
var publishReasons = []struct {
	err  error
	name string
}{
	{jetbus.ErrSchema, "schema"},
	{jetbus.ErrTopicFull, "topic_full"},
	{jetbus.ErrWrongSequence, "wrong_sequence"},
	{jetbus.ErrOvertaken, "overtaken"},
	{jetbus.ErrNoTopic, "no_topic"},
	{jetbus.ErrPayloadTooLarge, "payload_too_large"},
	{jetbus.ErrDenied, "denied"},
	{jetbus.ErrConflict, "conflict"},
	{jetbus.ErrInvalidTopic, "invalid"},
	{jetbus.ErrInvalidEvent, "invalid"},
	{jetbus.ErrInvalidHeader, "invalid"},
	{jetbus.ErrInvalidOption, "invalid"},
	{jetbus.ErrUnsupported, "unsupported"},
	{jetbus.ErrNeedsKeySubject, "unsupported"},
	{jetbus.ErrClosed, "closed"},
	{jetbus.ErrUnavailable, "unavailable"},
	{context.DeadlineExceeded, "timeout"},
	{context.Canceled, "canceled"},
}

func publishReason(err error) string {
	for _, r := range publishReasons {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return Other
}

func deadReason(reason string) string {
	switch r := jetbus.DeadReason(reason); r {
	case jetbus.DeadMaxAttempts, jetbus.DeadRejected, jetbus.DeadUndecodable, jetbus.DeadSchema, jetbus.DeadCrashLoop, jetbus.DeadMaxDeliver, jetbus.DeadTerminated:
		return string(r)
	default: // the words of a gateway's client, which knows no more
		return Other
	}
}

func drainClass(class string) string {
	switch c := jetbus.DrainErrorClass(class); c {
	case jetbus.DrainBroker, jetbus.DrainTopic, jetbus.DrainPoison, jetbus.DrainRow, jetbus.DrainStore:
		return string(c)
	default:
		return Other
	}
}
