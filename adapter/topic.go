package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// metaTopic is the key in a stream's metadata under which a topic's declaration
// stands, followed by the topic's name.
const metaTopic = "jetbus.topic."

// topic is what the bus knows of a topic it uses. Except for looked and heard it does not
// change; a topic declared anew is a new one.
type topic struct {
	config  jetbus.TopicConfig // resolved
	stream  string
	filter  string   // subject of its events, wildcards included
	kept    bool     // in a stream of the bus's own, which declares nothing
	retries bool     // the retries of a group
	origin  *topic   // of retries: what they are retries of
	feeds   []string // of an adopted stream that takes no publishes: what the server fills it from

	generations []jetbus.Generation // of its partitions, oldest first; nil: it has none
	part        jetbus.Partition    // the one that this value stands for; Generation 0: the whole topic

	tombstone nats.Header // what tombstones have on top; nil: the topic keeps no state

	created time.Time     // when its stream was
	elects  bool          // whether its stream has peers, see hasPeers
	looked  *atomic.Int64 // when the server was asked about it last, since the bus began; nil: it is not asked again
	heard   *atomic.Bool  // whether it has stored something for the bus; nil: that makes no difference
}

// freshFor is how long a bus goes by what it knows of a topic before it asks
// again: others may have changed the topic, or deleted it and made it anew.
const freshFor = 10 * time.Second

func (t *topic) name() string { return t.config.Name }

// adopted reports whether the stream is somebody else's.
func (t *topic) adopted() bool { return t.config.Subject != "" }

// isHeard reports whether what is sent to the topic is known to arrive: in a cluster a
// new stream is not reachable everywhere at once.
func (t *topic) isHeard() bool { return t.heard == nil || t.heard.Load() }

// setHeard notes that something has arrived.
func (t *topic) setHeard() {
	if !t.isHeard() {
		t.heard.Store(true)
	}
}

// alone reports whether a stream holds the events of the topic and nothing else.
func (t *topic) alone(c *jetstream.StreamConfig) bool {
	return len(topicsOf(c)) == 1 && !t.config.Delays
}

// subject returns where an event with that key is stored; of a topic with partitions,
// one of the places where events are.
func (t *topic) subject(prefix, key string) (string, error) {
	switch {
	case t.config.SnapshotOf != "":
		return "", fmt.Errorf("%w: it is a snapshot, which only the server writes; publish to %s", jetbus.ErrUnsupported, t.config.SnapshotOf)
	case t.generations != nil:
		return partitionSubject(prefix, t.config.Name, jetbus.Partition{Generation: len(t.generations)}, ce.KeyToken("")), nil
	case !t.adopted():
		return t.subjectOf(t.token(key)), nil
	case t.feeds != nil:
		return "", fmt.Errorf("%w: it is adopted from stream %s, which takes events from %s alone; publish there", jetbus.ErrUnsupported, t.stream, strings.Join(t.feeds, ", "))
	case strings.ContainsAny(t.config.Subject, "*>"):
		return "", fmt.Errorf("%w: it is adopted with the wildcard subject %s, which names no place to publish to", jetbus.ErrUnsupported, t.config.Subject)
	}
	return t.config.Subject, nil
}

// subjectOf returns the subject of a key token. In a topic with partitions it is a filter for the
// token in all partitions.
func (t *topic) subjectOf(token string) string { return strings.TrimSuffix(t.filter, "*") + token }

// lookupSubject returns the subject with which the topic's stream is asked for an ID. It is not the
// subject of any event, so that other subscribers that receive the request can recognize it.
func (t *topic) lookupSubject(prefix string) (string, error) {
	subject, err := t.subject(prefix, "")
	if err != nil || t.adopted() {
		return subject, err
	}
	return strings.TrimSuffix(subject, ce.NoKey) + delayToken, nil
}

// ownStream is the name of a topic's own stream. Buses with another prefix than
// the default have that in front, and a hash of it at the end.
func ownStream(prefix, topic string) string {
	name := streamName(topic)
	if prefix == "ev" {
		return name
	}
	return strings.ToUpper(strings.ReplaceAll(prefix, ".", "_")) + strings.TrimPrefix(name, "EV") + "__" + strings.ToUpper(ce.ShortHash(prefix))
}

// lookup returns a topic that exists, or declares it where AutoCreate is on. Its errors, as
// those of all that is about one topic or group, do not name it: the operation does.
func (st *streams) lookup(ctx context.Context, name string) (*topic, error) {
	return st.lookupAt(ctx, name, time.Now(), true)
}

// lookupAt is lookup for a caller that has read the clock. It declares nothing unless create is set.
func (st *streams) lookupAt(ctx context.Context, name string, now time.Time, create bool) (*topic, error) {
	create = create && st.cfg.AutoCreate
	if err := jetbus.ValidTopic(name); err != nil {
		return nil, err
	}
	t := st.remembered(name)
	if t != nil {
		t = st.refresh(ctx, t, now)
	}
	if t != nil {
		return t, nil
	}
	if jetbus.IsDeadLetterTopic(name) {
		t, _, err := st.deadTopic(ctx, name, create)
		return t, err
	}
	info, err := st.findStream(ctx, name)
	if errors.Is(err, jetbus.ErrNoTopic) && create {
		info, err = st.autoCreate(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	return st.remember(name, info)
}

// refresh returns what is known of a topic. One caller asks the server again where
// that is old, and the others go on meanwhile. The result is nil where the topic
// is not there any more.
func (cat *catalog) refresh(ctx context.Context, t *topic, now time.Time) *topic {
	if t.looked == nil {
		return t
	}
	at, looked := int64(now.Sub(cat.began)), t.looked.Load()
	if at-looked < int64(freshFor) || !t.looked.CompareAndSwap(looked, at) {
		return t
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout) // without an answer, what is known has to do
	defer cancel()
	info, err := cat.streamInfo(ctx, t.stream)
	switch {
	case apiCode(err) == jetstream.JSErrCodeStreamNotFound, err == nil && !declares(&info.Config, t.name()):
		cat.forget(t)
		return nil
	case err == nil:
		if fresh, err := cat.remember(t.name(), info); err == nil {
			return fresh
		}
	}
	t.looked.Store(looked) // the next caller asks
	return t
}

// autoCreate declares a topic with defaults. One that somebody else declares at
// the same moment stays as they have it.
func (st *streams) autoCreate(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	c, err := st.resolve(jetbus.TopicConfig{Name: name})
	if err != nil {
		return nil, err
	}
	stream := ownStream(st.cfg.Prefix, name)
	info, err := st.createStream(ctx, stream, c, nil)
	if apiCode(err) == jetstream.JSErrCodeStreamNameInUse {
		return st.findStream(ctx, name)
	}
	return info, withoutCluster(st.translate("create the topic", st.api+"STREAM.CREATE."+stream, err))
}

// remember keeps what a stream says of a topic.
func (cat *catalog) remember(name string, info *jetstream.StreamInfo) (*topic, error) {
	c, err := topicOf(name, &info.Config)
	if err != nil {
		return nil, err
	}
	t := &topic{
		config: c, stream: info.Config.Name, filter: topicFilter(cat.cfg.Prefix, name), generations: generationsOf(name, &info.Config),
		tombstone: tombstoneHeader(&c, &info.Config), created: info.Created, elects: hasPeers(info),
		looked: new(atomic.Int64), heard: new(atomic.Bool),
	}
	if t.generations != nil {
		t.filter = partitionsFilter(cat.cfg.Prefix, name, "*")
	}
	if keyed := keyedFilter(cat.cfg.Prefix, name); slices.Contains(info.Config.Subjects, keyed) {
		t.filter = keyed
	}
	t.looked.Store(int64(time.Since(cat.began)))
	cat.put(t)
	return t, nil
}

// forget drops what the bus knows of a topic, because it turned out to be wrong;
// also where somebody has looked at the same topic since.
func (cat *catalog) forget(t *topic) {
	cat.topicsMu.Lock()
	defer cat.topicsMu.Unlock()
	have := cat.topics[t.name()]
	if have != nil && !have.adopted() && have.stream == t.stream && have.created.Equal(t.created) {
		delete(cat.topics, t.name())
	}
}

// stillDeclared checks that a topic that is remembered was not deleted since.
func (cat *catalog) stillDeclared(ctx context.Context, t *topic) error {
	_, err := cat.asDeclared(ctx, t)
	return err
}

// asDeclared is stillDeclared, but returns the current topic: it may have begun a new generation of
// partitions, or may have been deleted and declared again.
func (cat *catalog) asDeclared(ctx context.Context, t *topic) (*topic, error) {
	ctx, cancel := cat.bound(ctx)
	defer cancel()
	info, err := cat.streamInfo(ctx, t.stream)
	switch {
	case err != nil:
		return nil, cat.translate("", cat.api+"STREAM.INFO."+t.stream, err)
	case t.adopted(), t.kept:
		return t, nil
	case !declares(&info.Config, t.name()):
		cat.forget(t)
		return nil, jetbus.ErrNoTopic
	case t.generations == nil && info.Created.Equal(t.created) && slices.Contains(info.Config.Subjects, t.filter):
		return t, nil
	}
	return cat.remember(t.name(), info)
}

// findStream returns the stream that declares a topic: the one named after it,
// or a shared one that has its subjects.
func (srv *server) findStream(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	own := ownStream(srv.cfg.Prefix, name)
	info, err := srv.streamInfo(ctx, own)
	if err == nil && declares(&info.Config, name) {
		return info, nil
	}
	if err != nil && apiCode(err) != jetstream.JSErrCodeStreamNotFound {
		return nil, srv.translate("", srv.api+"STREAM.INFO."+own, err)
	}
	return srv.findShared(ctx, name)
}

// findShared returns the stream that declares a topic without being named after it. A
// cluster in which servers disagree on whether it is there, because it was made or deleted
// this moment, is asked again until they agree, for as long as a call may take: where they
// never do, who has no deadline must not wait for ever, nor take the topic for gone.
func (srv *server) findShared(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	ctx, cancel := srv.bound(ctx)
	defer cancel()
	for {
		shared, err := srv.js.StreamNameBySubject(ctx, topicFilter(srv.cfg.Prefix, name))
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			shared, err = srv.js.StreamNameBySubject(ctx, keyedFilter(srv.cfg.Prefix, name))
		}
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil, &jetbus.RemedyError{Err: jetbus.ErrNoTopic, See: "EnsureTopic"}
		}
		if err != nil {
			return nil, srv.translate("", srv.api+"STREAM.NAMES", err)
		}
		info, err := srv.streamInfo(ctx, shared)
		if apiCode(err) == jetstream.JSErrCodeStreamNotFound {
			select {
			case <-time.After(publishRetry):
				continue
			case <-ctx.Done():
				return nil, fmt.Errorf("%w: servers of the cluster do not agree on whether there is the stream %s", jetbus.ErrUnavailable, shared)
			}
		}
		switch {
		case err != nil:
			return nil, srv.translate("", srv.api+"STREAM.INFO."+shared, err)
		case !declares(&info.Config, name):
			return nil, &jetbus.RemedyError{
				Err: fmt.Errorf("%w: the stream %s holds its subjects without declaring it, and can be adopted", jetbus.ErrNoTopic, shared),
				See: "TopicConfig.Stream, TopicConfig.Subject",
			}
		}
		return info, nil
	}
}

func (srv *server) streamInfo(ctx context.Context, name string, o ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	return ask(ctx, srv, srv.api+"STREAM.INFO."+name, func(ctx context.Context) (*jetstream.StreamInfo, error) {
		s, err := srv.js.Stream(ctx, name)
		if err != nil {
			return nil, err
		}
		if len(o) == 0 {
			return s.CachedInfo(), nil
		}
		info, err := s.Info(ctx, o...)
		if err != nil || !isHeadless(info) {
			return info, err
		}
		select {
		case <-time.After(publishRetry):
		case <-ctx.Done():
		}
		return nil, nats.ErrTimeout
	})
}

// isHeadless reports whether a stream with replicas was described by a server that knows of no
// leader. It may not have all that was acknowledged, and so is not to say where the stream ends.
func isHeadless(info *jetstream.StreamInfo) bool {
	return info.Config.Replicas > 1 && info.Cluster != nil && info.Cluster.Leader == ""
}

// hasPeers reports whether a stream has replicas on other servers, so that one of them leads.
func hasPeers(info *jetstream.StreamInfo) bool {
	return info.Cluster != nil && len(info.Cluster.Replicas) > 0
}

// declares reports whether a stream was made for the topic.
func declares(c *jetstream.StreamConfig, name string) bool {
	_, ok := c.Metadata[metaTopic+name]
	return ok
}

// topicsOf lists the names of the topics a stream declares, sorted.
func topicsOf(c *jetstream.StreamConfig) []string {
	var names []string
	for key := range c.Metadata {
		if name, ok := strings.CutPrefix(key, metaTopic); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// declaration is the part of a TopicConfig that is the topic's own and not the
// stream's; it is stored in the stream's metadata.
type declaration struct {
	Description  string `json:"description,omitempty"`
	KeyInSubject bool   `json:"keyInSubject,omitempty"`
	Delays       bool   `json:"delays,omitempty"`
	Shared       bool   `json:"shared,omitempty"` // TopicConfig.Stream was set
	Compact      bool   `json:"compact,omitempty"`
	SnapshotOf   string `json:"snapshotOf,omitempty"`
	Partitions   []int  `json:"partitions,omitempty"` // of each generation

	SnapshotFrom time.Time `json:"snapshotFrom,omitzero"` // when the stream of SnapshotOf was created
}

func declarationOf(c *jetbus.TopicConfig) declaration {
	return declaration{
		Description: c.Description, KeyInSubject: c.KeyInSubject, Delays: c.Delays, Shared: c.Stream != "",
		Compact: c.Compact, SnapshotOf: c.SnapshotOf,
	}
}

// snapshotted returns the topic that a topic is the snapshot of, "" where it is none.
// Metadata that cannot be read is topicOf's to refuse.
func snapshotted(c *jetstream.StreamConfig, name string) string {
	var d declaration
	if json.Unmarshal([]byte(c.Metadata[metaTopic+name]), &d) != nil {
		return ""
	}
	return d.SnapshotOf
}

// topicOf reads a topic's configuration back from its stream's.
func topicOf(name string, c *jetstream.StreamConfig) (jetbus.TopicConfig, error) {
	var d declaration
	if err := json.Unmarshal([]byte(c.Metadata[metaTopic+name]), &d); err != nil {
		return jetbus.TopicConfig{}, fmt.Errorf("%w: metadata of stream %s is damaged: %w", jetbus.ErrConflict, c.Name, err)
	}
	t := settingsOf(c)
	t.Name, t.Description, t.KeyInSubject, t.Delays = name, d.Description, d.KeyInSubject, d.Delays
	if len(d.Partitions) > 0 {
		t.Partitions = d.Partitions[len(d.Partitions)-1]
	}
	switch {
	case d.Compact:
		t.Compact, t.History, t.TombstoneTTL = true, int(c.MaxMsgsPerSubject), c.SubjectDeleteMarkerTTL
	case d.SnapshotOf != "":
		t.SnapshotOf, t.History = d.SnapshotOf, int(c.MaxMsgsPerSubject)
	}
	if d.Shared {
		t.Stream = c.Name
	}
	return t, nil
}

// settingsOf is the part of a TopicConfig that a stream's own settings say.
func settingsOf(c *jetstream.StreamConfig) jetbus.TopicConfig {
	t := jetbus.TopicConfig{
		Retention: c.MaxAge, MaxBytes: c.MaxBytes, MaxEvents: c.MaxMsgs, Replicas: c.Replicas,
		DuplicateWindow: c.Duplicates, Storage: jetbus.FileStorage, Discard: jetbus.DiscardOld,
	}
	if t.Retention == 0 {
		t.Retention = -1
	}
	if t.DuplicateWindow == 0 {
		t.DuplicateWindow = -1
	}
	if c.Storage == jetstream.MemoryStorage {
		t.Storage = jetbus.MemoryStorage
	}
	if c.Discard == jetstream.DiscardNew {
		t.Discard = jetbus.DiscardNew
	}
	return t
}
