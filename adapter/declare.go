package adapter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// defaultMemoryBytes is the MaxBytes of a topic in memory that does not say: the
// server sets the whole of it aside.
const defaultMemoryBytes = 256 << 20

// maxConsumers lifts the server's default cap of 1,000 consumers a stream (2.15).
const maxConsumers = 100_000

// EnsureTopic implements jetbus.Topics. With Subject set it adopts an existing
// stream: that the topic exists is then known to this bus only, so that every process declares it.
func (b *Bus) EnsureTopic(ctx context.Context, c jetbus.TopicConfig) (jetbus.TopicInfo, error) {
	op, ensure := "ensure topic "+c.Name, b.ensureTopic
	if err := b.enter(ctx); err != nil {
		return jetbus.TopicInfo{}, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	if jetbus.IsDeadLetterTopic(c.Name) {
		return jetbus.TopicInfo{}, fmt.Errorf("%s: %w: dead letters are kept by the bus itself; see Config.DeadLetterRetention", op, jetbus.ErrInvalidTopic)
	}
	if c.Subject != "" {
		op, ensure = "adopt topic "+c.Name, b.adopt
	}
	info, err := ensure(ctx, c)
	if err != nil {
		return jetbus.TopicInfo{}, doing(op, "topic "+c.Name, err)
	}
	return info, nil
}

// ensureTopic is EnsureTopic of a topic that is not adopted.
func (st *streams) ensureTopic(ctx context.Context, c jetbus.TopicConfig) (jetbus.TopicInfo, error) {
	info, err := st.declare(ctx, c)
	if err != nil {
		return jetbus.TopicInfo{}, err
	}
	t, err := st.remember(c.Name, info)
	if err != nil {
		return jetbus.TopicInfo{}, err
	}
	return st.describe(ctx, t, info)
}

// resolve is what a declaration makes of a topic that does not exist yet: it fills in
// defaults, those of the bus first.
func (srv *server) resolve(c jetbus.TopicConfig) (jetbus.TopicConfig, error) {
	c.Shrink = false
	if c.Storage == "" {
		c.Storage = srv.cfg.Storage
	}
	if c.Replicas == 0 {
		c.Replicas = srv.cfg.Replicas
	}
	if c.MaxBytes == 0 && c.Storage == jetbus.MemoryStorage && !c.Delays {
		c.MaxBytes = defaultMemoryBytes
	}
	return c.Normalize()
}

// declare creates or updates the stream of a topic. Fields that are zero are resolved
// where it is known whether there is one.
func (st *streams) declare(ctx context.Context, c jetbus.TopicConfig) (*jetstream.StreamInfo, error) {
	place := jetbus.TopicConfig{Name: c.Name, Stream: c.Stream, SnapshotOf: c.SnapshotOf}
	if _, err := place.Normalize(); err != nil {
		return nil, err
	}
	if c.Delays {
		if err := st.needs("TopicConfig.Delays"); err != nil {
			return nil, err
		}
	}
	if c.SnapshotOf != "" {
		return st.declareSnapshot(ctx, c)
	}
	return st.declareStream(ctx, c, nil)
}

// declareStream creates or updates the stream of a topic. source is the topic
// that a snapshot is fed from. Another process may do the same at the same time:
// what it finds changed under it, it looks at again.
func (st *streams) declareStream(ctx context.Context, c jetbus.TopicConfig, source *topic) (*jetstream.StreamInfo, error) {
	const races = 10
	for range races {
		have, err := st.placeOf(ctx, c)
		again := false
		switch {
		case errors.Is(err, jetbus.ErrNoTopic):
			have, again, err = st.declareNew(ctx, c, source)
		case err != nil:
		case source == nil && snapshotted(&have.Config, c.Name) != "":
			c.SnapshotOf = snapshotted(&have.Config, c.Name)
			return st.declareSnapshot(ctx, c)
		default:
			have, again, err = st.redeclare(ctx, have, c, source)
		}
		if !again {
			return have, err
		}
	}
	return nil, fmt.Errorf("%w: its stream keeps changing", jetbus.ErrConflict)
}

// placeOf returns the stream that a declaration is about: the one that it names, the
// topic's own, or one that has the topic already. [jetbus.ErrNoTopic]: there is none.
func (srv *server) placeOf(ctx context.Context, c jetbus.TopicConfig) (*jetstream.StreamInfo, error) {
	name := srv.streamFor(c)
	info, err := srv.streamInfo(ctx, name)
	switch {
	case apiCode(err) != jetstream.JSErrCodeStreamNotFound:
		return info, srv.translate("", srv.api+"STREAM.INFO."+name, err)
	case c.Stream != "":
		return nil, jetbus.ErrNoTopic
	}
	return srv.findShared(ctx, c.Name)
}

// streamFor names the stream of a topic that does not exist yet.
func (srv *server) streamFor(c jetbus.TopicConfig) string {
	return cmp.Or(c.Stream, ownStream(srv.cfg.Prefix, c.Name))
}

// declareNew creates the stream of a topic. again: somebody was faster.
func (srv *server) declareNew(ctx context.Context, c jetbus.TopicConfig, source *topic) (info *jetstream.StreamInfo, again bool, err error) {
	asked := c.Replicas
	if err = jetbus.ValidSnapshotOf(c.Name, c.SnapshotOf); err == nil {
		c, err = srv.resolve(c)
	}
	if err != nil {
		return nil, false, err
	}
	name := srv.streamFor(c)
	info, err = srv.createStream(ctx, name, c, source)
	if apiCode(err) == jetstream.JSErrCodeStreamNameInUse {
		return nil, true, nil
	}
	err = srv.translate("", srv.api+"STREAM.CREATE."+name, err)
	if asked == 0 && apiCode(err) == codeNoCluster {
		return nil, false, withoutCluster(err)
	}
	return info, false, withoutRoom(err)
}

// redeclare updates the stream that a declaration is about. again: it was deleted
// this moment.
func (st *streams) redeclare(ctx context.Context, have *jetstream.StreamInfo, c jetbus.TopicConfig, source *topic) (info *jetstream.StreamInfo, again bool, err error) {
	name := have.Config.Name
	if _, changed, err := st.change(have, c, source); err != nil || !changed {
		return have, false, err
	}
	err = st.lockStream(ctx, name, func(ctx context.Context) error {
		if info, err = st.streamInfo(ctx, name); err != nil {
			again = apiCode(err) == jetstream.JSErrCodeStreamNotFound
			return st.translate("", st.api+"STREAM.INFO."+name, err)
		}
		want, changed, err := st.change(info, c, source)
		if err != nil || !changed {
			return err
		}
		info, err = st.updateStream(ctx, info, want)
		return err
	})
	if err != nil {
		return nil, again, err
	}
	return info, false, nil
}

// updateStream changes a stream as it was looked up under its lock, which the caller has.
func (srv *server) updateStream(ctx context.Context, have *jetstream.StreamInfo, c jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	request := srv.api + "STREAM.UPDATE." + c.Name
	ctx, release := srv.guard(ctx, request)
	defer release()
	s, err := srv.js.change(ctx, have, c)
	if err != nil {
		return nil, withoutRoom(srv.translate("", request, err))
	}
	return s.CachedInfo(), nil
}

func (srv *server) createStream(ctx context.Context, name string, c jetbus.TopicConfig, source *topic) (*jetstream.StreamInfo, error) {
	config := jetstream.StreamConfig{
		Name: name, Description: "JetBus", Retention: jetstream.LimitsPolicy,
		MaxConsumers: maxConsumers, MaxMsgSize: -1,
		AllowDirect: true, AllowMsgTTL: true, AllowAtomicPublish: srv.level >= levelBatches,
		Metadata: map[string]string{},
	}
	if err := srv.apply(&config, c, source); err != nil {
		return nil, err
	}
	ctx, release := srv.guard(ctx, srv.api+"STREAM.CREATE."+name)
	defer release()
	s, err := srv.js.CreateStream(ctx, config)
	if err != nil {
		return nil, err
	}
	return s.CachedInfo(), nil
}

// apply writes a topic's declaration into a stream's configuration.
func (srv *server) apply(s *jetstream.StreamConfig, c jetbus.TopicConfig, source *topic) error {
	declared := declarationOf(&c)
	declared.Partitions = partitionsToDeclare(s, &c)
	if source != nil {
		declared.SnapshotFrom = source.created
	}
	d, err := json.Marshal(declared)
	if err != nil {
		return err
	}
	s.Metadata = maps.Clone(s.Metadata)
	if s.Metadata == nil {
		s.Metadata = map[string]string{}
	}
	s.Metadata[metaTopic+c.Name] = string(d)
	s.Subjects = slices.Clone(s.Subjects)
	addSubject := func(subject string) {
		if !slices.Contains(s.Subjects, subject) {
			s.Subjects = append(s.Subjects, subject)
		}
	}
	switch {
	case c.Partitions > 0:
		addSubject(generationFilter(srv.cfg.Prefix, c.Name, len(declared.Partitions)))
	case c.SnapshotOf != "":
	case c.KeyInSubject && !slices.Contains(s.Subjects, topicFilter(srv.cfg.Prefix, c.Name)): // declared by an older version
		addSubject(keyedFilter(srv.cfg.Prefix, c.Name))
	default:
		addSubject(topicFilter(srv.cfg.Prefix, c.Name))
	}
	if c.Delays {
		addSubject(delayFilter(srv.cfg.Prefix, c.Name))
		s.AllowMsgSchedules, s.AllowRollup = true, true
	}
	s.MaxAge = max(c.Retention, 0)
	s.MaxBytes, s.MaxMsgs, s.Replicas, s.Duplicates = c.MaxBytes, c.MaxEvents, c.Replicas, max(c.DuplicateWindow, 0)
	s.Discard, s.Storage = jetstream.DiscardOld, jetstream.FileStorage
	if c.Discard == jetbus.DiscardNew {
		s.Discard = jetstream.DiscardNew
	}
	if c.Storage == jetbus.MemoryStorage {
		s.Storage = jetstream.MemoryStorage
	}
	srv.applyState(s, &c, source)
	return nil
}

// adopt binds a topic to a stream that exists, without changing it.
func (st *streams) adopt(ctx context.Context, c jetbus.TopicConfig) (jetbus.TopicInfo, error) {
	if bare := (jetbus.TopicConfig{Name: c.Name, Description: c.Description, Stream: c.Stream, Subject: c.Subject}); c != bare {
		return jetbus.TopicInfo{}, fmt.Errorf("%w: with Subject set only Name, Stream and Description may be: an adopted stream keeps its settings", jetbus.ErrInvalidOption)
	}
	if _, err := c.Normalize(); err != nil {
		return jetbus.TopicInfo{}, err
	}
	info, err := st.streamInfo(ctx, c.Stream)
	if err != nil {
		return jetbus.TopicInfo{}, st.translate("", st.api+"STREAM.INFO."+c.Stream, err)
	}
	t := &topic{config: settingsOf(&info.Config), stream: c.Stream, filter: c.Subject, created: info.Created, elects: hasPeers(info)}
	if !slices.ContainsFunc(info.Config.Subjects, func(s string) bool { return subjectsOverlap(s, c.Subject) }) {
		if t.feeds = feedsOf(&info.Config); t.feeds == nil {
			return jetbus.TopicInfo{}, &jetbus.ConflictError{
				What:        "stream " + c.Stream,
				Differences: []jetbus.Difference{{Field: "Subject", Have: strings.Join(info.Config.Subjects, " "), Want: c.Subject}},
			}
		}
	}
	t.config.Name, t.config.Description, t.config.Stream, t.config.Subject = c.Name, c.Description, c.Stream, c.Subject
	st.put(t)
	return st.describe(ctx, t, info)
}

// feedsOf are the streams that the server copies into a stream.
func feedsOf(c *jetstream.StreamConfig) []string {
	var names []string
	if c.Mirror != nil {
		names = append(names, c.Mirror.Name)
	}
	for _, source := range c.Sources {
		names = append(names, source.Name)
	}
	return names
}

// subjectsOverlap reports whether some subject matches both patterns.
func subjectsOverlap(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; i < len(as) && i < len(bs); i++ {
		switch {
		case as[i] == ">" || bs[i] == ">":
			return true
		case as[i] != bs[i] && as[i] != "*" && bs[i] != "*":
			return false
		}
	}
	return len(as) == len(bs)
}

// describe turns what the server knows into a TopicInfo.
func (srv *server) describe(ctx context.Context, t *topic, info *jetstream.StreamInfo) (jetbus.TopicInfo, error) {
	out := jetbus.TopicInfo{
		Config: t.config, Stream: t.stream, Created: info.Created, Events: info.State.Msgs, Bytes: info.State.Bytes,
		FirstSeq: info.State.FirstSeq, LastSeq: info.State.LastSeq, Groups: info.State.Consumers,
	}
	out.Generations = slices.Clone(t.generations)
	if info.State.Msgs > 0 && info.State.LastTime.Year() > 1 {
		out.LastTime = info.State.LastTime.Round(0).In(time.UTC)
	}
	if t.config.SnapshotOf != "" {
		out.Lag = srv.snapshotLag(ctx, t, info)
	}
	if !t.adopted() && t.alone(&info.Config) {
		return out, nil
	}
	var err error
	out.Events, err = srv.countEvents(ctx, t)
	return out, err
}

// TopicInfo implements jetbus.Topics.
func (b *Bus) TopicInfo(ctx context.Context, name string) (jetbus.TopicInfo, error) {
	if err := b.enter(ctx); err != nil {
		return jetbus.TopicInfo{}, fmt.Errorf("topic info %s: %w", name, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	var out jetbus.TopicInfo
	t, info, err := b.inspect(ctx, name)
	if err == nil {
		out, err = b.describe(ctx, t, info)
	}
	if err != nil {
		return jetbus.TopicInfo{}, fmt.Errorf("topic info %s: %w", name, err)
	}
	return out, nil
}

// inspect asks the server about a topic, whatever is remembered of it. It creates nothing.
func (st *streams) inspect(ctx context.Context, name string) (*topic, *jetstream.StreamInfo, error) {
	if err := jetbus.ValidTopic(name); err != nil {
		return nil, nil, err
	}
	t := st.remembered(name)
	if t != nil && t.adopted() {
		info, err := st.streamInfo(ctx, t.stream)
		return t, info, st.translate("", st.api+"STREAM.INFO."+t.stream, err)
	}
	if jetbus.IsDeadLetterTopic(name) {
		return st.deadTopic(ctx, name, false)
	}
	info, err := st.findStream(ctx, name)
	if err != nil {
		if t != nil && errors.Is(err, jetbus.ErrNoTopic) {
			st.forget(t)
		}
		return nil, nil, err
	}
	t, err = st.remember(name, info)
	return t, info, err
}

// ListTopics implements jetbus.Topics. Adopted topics are among them where this
// bus declared them.
func (b *Bus) ListTopics(ctx context.Context) ([]jetbus.TopicInfo, error) {
	if err := b.enter(ctx); err != nil {
		return nil, fmt.Errorf("list topics: %w", err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	streams, err := b.topicStreams(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]jetbus.TopicInfo, 0, len(streams))
	for _, name := range slices.Sorted(maps.Keys(streams)) {
		t, err := b.remember(name, streams[name])
		if err == nil {
			var d jetbus.TopicInfo
			d, err = b.describe(ctx, t, streams[name])
			out = append(out, d)
		}
		if err != nil {
			return nil, fmt.Errorf("list topics: %w", ofTopic(name, err))
		}
	}
	adopted, err := b.listAdopted(ctx)
	if err != nil {
		return nil, err
	}
	out = append(out, adopted...)
	slices.SortFunc(out, func(a, b jetbus.TopicInfo) int { return cmp.Compare(a.Config.Name, b.Config.Name) })
	return out, nil
}

// topicStreams returns the stream of each declared topic, as one list tells it.
func (srv *server) topicStreams(ctx context.Context) (map[string]*jetstream.StreamInfo, error) {
	streams := map[string]*jetstream.StreamInfo{}
	all := listQuestion{what: "list topics", subject: srv.api + "STREAM.LIST", taking: srv.cfg.Prefix + ".>", within: listTimeout}
	take := func(infos []*jetstream.StreamInfo) {
		for _, info := range infos {
			for _, name := range topicsOf(&info.Config) {
				if slices.ContainsFunc(info.Config.Subjects, func(s string) bool { return takesIn(s, srv.cfg.Prefix, name) }) {
					streams[name] = info
				}
			}
		}
	}
	var missing []string
	err := eachPage(ctx, srv, all, func(page listPage[*jetstream.StreamInfo]) error {
		missing = append(missing, page.Missing...)
		// Of a stream all of whose servers are down there is an empty one beside its name.
		take(slices.DeleteFunc(page.Streams, func(info *jetstream.StreamInfo) bool { return slices.Contains(page.Missing, info.Config.Name) }))
		return nil
	})
	if err != nil {
		return nil, err
	}
	take(srv.leftOut(ctx, missing))
	if ctx.Err() != nil {
		return nil, srv.translate(all.what, all.subject, context.Cause(ctx))
	}
	return streams, srv.addSnapshots(ctx, streams)
}

// leftOut looks up the streams that a list leaves out, since their leader does not answer:
// those of which it does so by the time in which one is elected. The list is no less worth for
// one whose only server is down.
func (srv *server) leftOut(ctx context.Context, names []string) []*jetstream.StreamInfo {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	found := make([]*jetstream.StreamInfo, len(names))
	besides(len(names), leftOutAtOnce, func(i int) {
		if info, err := srv.streamInfo(ctx, names[i]); err == nil {
			found[i] = info
		}
	})
	return slices.DeleteFunc(found, func(info *jetstream.StreamInfo) bool { return info == nil })
}

// leftOutAtOnce is of how many streams that do not answer the others wait for none.
const leftOutAtOnce = 256

// listAdopted describes the topics that this bus has adopted.
func (st *streams) listAdopted(ctx context.Context) ([]jetbus.TopicInfo, error) {
	var out []jetbus.TopicInfo
	for _, name := range st.allAdopted() {
		t, info, err := st.inspect(ctx, name)
		if errors.Is(err, jetbus.ErrNoTopic) { // the stream was deleted
			continue
		}
		if err == nil {
			var d jetbus.TopicInfo
			d, err = st.describe(ctx, t, info)
			out = append(out, d)
		}
		if err != nil {
			return nil, fmt.Errorf("list topics: %w", ofTopic(name, err))
		}
	}
	return out, nil
}
