package metrics

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-63e9a637/jetbus"
)

// TopicReader is what WatchTopics asks: a [jetbus.Backend] is one.
type TopicReader interface {
	ListTopics(ctx context.Context) ([]jetbus.TopicInfo, error)
	TopicInfo(ctx context.Context, topic string) (jetbus.TopicInfo, error)
	Groups(ctx context.Context, topic string) ([]jetbus.GroupInfo, error)
	GroupPartitions(ctx context.Context, topic, group string) ([]jetbus.PartitionInfo, error)
	Scan(ctx context.Context, topic string, q jetbus.ScanQuery) iter.Seq2[jetbus.Event, error]
}

// TopicOptions say which topics are watched. The zero value of each field is its default.
type TopicOptions struct {
	// Topics are watched, and no others. Defaults to all there are.
	Topics []string
	// MaxTopics bounds how many are watched, the first by name; topics_unwatched says how
	// many are not. Dead-letter topics come on top. Defaults to 200.
	MaxTopics int
	// MaxGroups bounds how many groups of a topic are told, the first by name. Defaults to 50.
	MaxGroups int
}

// Defaults of TopicOptions.
const (
	DefaultWatchedTopics = 200
	DefaultWatchedGroups = 50
)

// maxOldest is how many partitions are asked for their oldest event; groups of topics
// with more have no group_lag_seconds.
const maxOldest = 128

// WatchTopics asks a bus about its topics and groups when somebody scrapes, within
// Config.AskEvery and Config.Timeout. A round costs a list of the topics, or where that
// fails or they are named a request a topic; then for each topic one about its dead
// letters and a list of its groups, and for each group that has something to do another
// request, or one a partition. It takes the place of the bus that was watched before; nil ends it. The error wraps
// [jetbus.ErrInvalidTopic] or [jetbus.ErrInvalidOption].
func (m *Metrics) WatchTopics(b TopicReader, o TopicOptions) error {
	for _, name := range o.Topics {
		if err := jetbus.ValidTopic(name); err != nil {
			return fmt.Errorf("watch topics: %w", err)
		}
	}
	if o.MaxTopics < 0 || o.MaxGroups < 0 {
		return fmt.Errorf("watch topics: %w: MaxTopics is %d and MaxGroups %d, use 1 or more, or 0 for the default", jetbus.ErrInvalidOption, o.MaxTopics, o.MaxGroups)
	}
	if o.MaxTopics == 0 {
		o.MaxTopics = DefaultWatchedTopics
	}
	if o.MaxGroups == 0 {
		o.MaxGroups = DefaultWatchedGroups
	}
	o.Topics = slices.Compact(slices.Sorted(slices.Values(o.Topics)))
	w := &m.watched
	w.mu.Lock()
	w.topics, w.topicsOf, w.known = b, o, nil
	w.mu.Unlock()
	m.round.forget()
	return nil
}

// ask is a round: it learns what others know.
func (m *Metrics) ask(ctx context.Context) []prometheus.Metric {
	w := &m.watched
	w.mu.Lock()
	b, o, projections := w.topics, w.topicsOf, maps.Clone(w.projections)
	w.mu.Unlock()
	var lags, topics []prometheus.Metric
	var both sync.WaitGroup
	both.Go(func() {
		names := slices.Sorted(maps.Keys(projections))
		lags = m.askEach(ctx, "lag", len(names), func(ctx context.Context, i int) []prometheus.Metric {
			lag, err := projections[names[i]].Lag(ctx)
			if err != nil {
				m.failed("lag")
				return nil
			}
			return []prometheus.Metric{m.sample("projector_lag_events", float64(lag.Events), names[i])}
		})
	})
	if b != nil {
		topics = guard(m, "topics", func() []prometheus.Metric { return m.askTopics(ctx, b, o) })
	}
	both.Wait()
	return append(lags, topics...)
}

// What does not answer has to leave time for the others.
const (
	askers = 4 // that are asked at a time
	share  = 3 // part of the timeout that one of them may take
)

// askEach asks n of a kind. One that panics has no samples.
func (m *Metrics) askEach(ctx context.Context, source string, n int, ask func(ctx context.Context, i int) []prometheus.Metric) []prometheus.Metric {
	learned := make([][]prometheus.Metric, n)
	slots := make(chan struct{}, askers)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, m.c.Timeout/share)
			defer cancel()
			learned[i] = guard(m, source, func() []prometheus.Metric { return ask(ctx, i) })
		})
	}
	all.Wait()
	return slices.Concat(learned...)
}

// askTopics learns about all topics.
func (m *Metrics) askTopics(ctx context.Context, b TopicReader, o TopicOptions) []prometheus.Metric {
	topics, left := m.listTopics(ctx, b, o)
	out := []prometheus.Metric{}
	if left >= 0 {
		out = append(out, m.sample("topics_unwatched", float64(left)))
	}
	return append(out, m.askEach(ctx, "topics", len(topics), func(ctx context.Context, i int) []prometheus.Metric {
		return m.askTopic(ctx, b, o, topics[i])
	})...)
}

// topic is one that is watched; info is nil where it has not been asked for.
type topic struct {
	name string
	info *jetbus.TopicInfo
}

// listTopics returns the topics that are watched, and how many are not: -1 where that is
// not known. Where the list does not come, since one that does not answer may fail it,
// they are those of the last one.
func (m *Metrics) listTopics(ctx context.Context, b TopicReader, o TopicOptions) (topics []topic, left int) {
	w := &m.watched
	if len(o.Topics) > 0 {
		left = max(len(o.Topics)-o.MaxTopics, 0)
		return named(o.Topics[:len(o.Topics)-left]), left
	}
	ctx, cancel := context.WithTimeout(ctx, m.c.Timeout/share)
	defer cancel()
	list, err := b.ListTopics(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		m.failed("topics")
		return named(w.known), -1
	}
	w.known = nil
	for _, info := range list {
		name := info.Config.Name
		switch {
		case jetbus.IsDeadLetterTopic(name): // it is told with the topic that they come from
		case len(topics) == o.MaxTopics:
			left++
		default:
			topics, w.known = append(topics, topic{name, &info}), append(w.known, name)
		}
	}
	return topics, left
}

func named(names []string) (topics []topic) {
	for _, name := range names {
		topics = append(topics, topic{name: name})
	}
	return topics
}

// askTopic learns about one topic.
func (m *Metrics) askTopic(ctx context.Context, b TopicReader, o TopicOptions, t topic) []prometheus.Metric {
	if t.info == nil {
		info, err := b.TopicInfo(ctx, t.name)
		switch {
		case errors.Is(err, jetbus.ErrNoTopic):
			return nil
		case err != nil:
			m.failed("topics")
			return nil
		}
		t.info = &info
	}
	out := m.topicSamples(t)
	if t.info.Config.SnapshotOf != "" { // it has neither groups nor dead letters
		return out
	}
	if !jetbus.IsDeadLetterTopic(t.name) {
		dead, err := b.TopicInfo(ctx, jetbus.DeadLetterTopic(t.name))
		switch {
		case err == nil, errors.Is(err, jetbus.ErrNoTopic): // nobody has needed it yet: there are none
			out = append(out, m.sample("dead_letters", float64(dead.Events), t.name))
		default:
			m.failed("dead_letters")
		}
	}
	if t.info.Groups > 0 {
		out = append(out, m.askGroups(ctx, b, o, *t.info)...)
	}
	return out
}

func (m *Metrics) topicSamples(t topic) []prometheus.Metric {
	name, info := t.name, t.info
	out := []prometheus.Metric{
		m.sample("topic_events", float64(info.Events), name),
		m.sample("topic_bytes", float64(info.Bytes), name),
		m.sample("topic_last_seq", float64(info.LastSeq), name),
	}
	if info.Config.SnapshotOf != "" && info.Lag >= 0 { // -1: the server does not know
		out = append(out, m.sample("snapshot_lag_events", float64(info.Lag), name))
	}
	return out
}

// askGroups learns about the groups of a topic.
func (m *Metrics) askGroups(ctx context.Context, b TopicReader, o TopicOptions, info jetbus.TopicInfo) []prometheus.Metric {
	groups, err := b.Groups(ctx, info.Config.Name)
	if err != nil {
		m.failed("groups")
		return nil
	}
	out := []prometheus.Metric{}
	for _, g := range groups[:min(len(groups), o.MaxGroups)] {
		out = append(out,
			m.sample("group_lag_events", float64(g.Pending)+float64(max(g.Held, 0)), g.Topic, g.Group),
			m.sample("group_held", float64(g.Held), g.Topic, g.Group),
			m.sample("group_retrying", float64(g.Retrying), g.Topic, g.Group),
			m.sample("group_waiting", float64(g.Waiting), g.Topic, g.Group),
			m.sample("group_paused", one(g.Paused), g.Topic, g.Group))
		oldest, known, err := oldestOf(ctx, b, info, g)
		switch {
		case err != nil:
			m.failed("lag")
		case known && oldest.IsZero():
			out = append(out, m.sample("group_lag_seconds", 0, g.Topic, g.Group))
		case known:
			out = append(out, m.sample("group_lag_seconds", max(time.Since(oldest).Seconds(), 0), g.Topic, g.Group))
		}
	}
	return out
}

// oldestOf is when the oldest event was stored that a group has not settled; zero where
// there is none. known is false where that would cost too much, or the bus does not know.
func oldestOf(ctx context.Context, b TopicReader, info jetbus.TopicInfo, g jetbus.GroupInfo) (oldest time.Time, known bool, err error) {
	if g.Pending == 0 && g.Held == 0 {
		return time.Time{}, true, nil
	}
	if info.Generations != nil {
		oldest, known, err = oldestOfParts(ctx, b, info, g)
		if !errors.Is(err, jetbus.ErrNoPartitions) && !errors.Is(err, jetbus.ErrConflict) { // else it is one of the whole topic
			return oldest, known, err
		}
	}
	for e, err := range b.Scan(ctx, g.Topic, jetbus.ScanQuery{From: jetbus.AfterSeq(g.AckedSeq), Limit: 1}) {
		return e.Stored, !e.Stored.IsZero(), err
	}
	return time.Time{}, true, nil
}

// oldestOfParts is oldestOf for a topic with partitions.
func oldestOfParts(ctx context.Context, b TopicReader, info jetbus.TopicInfo, g jetbus.GroupInfo) (oldest time.Time, known bool, err error) {
	n := 0
	for _, of := range info.Generations {
		n += of.Partitions
	}
	if n > maxOldest {
		return time.Time{}, false, nil
	}
	parts, err := b.GroupPartitions(ctx, g.Topic, g.Group)
	for _, p := range parts {
		if !p.Oldest.IsZero() && (oldest.IsZero() || p.Oldest.Before(oldest)) {
			oldest = p.Oldest
		}
	}
	return oldest, err == nil, err
}
