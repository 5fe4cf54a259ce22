package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// A snapshot is a stream without subjects, which the server feeds from the stream
// of another topic: each event under the snapshot's name, the last one of a subject
// kept. The other topic's stream names its snapshots in its metadata, so that null
// is known for a tombstone there, and so that they are found.

// metaSnapshots is the key in a stream's metadata under which the snapshots of a
// topic stand, followed by the topic's name.
const metaSnapshots = "jetbus.snapshots."

// headerOrigin is where the server says what it has copied an event from.
const headerOrigin = "Nats-Stream-Source"

// sourceSilence is how long the server may not have heard of the stream that a
// snapshot is fed from, which sends a heartbeat every second.
const sourceSilence = 15 * time.Second

// snapshotsOf returns the snapshots of a topic, sorted. Metadata that cannot be
// read names none: it is not what events depend on.
func snapshotsOf(c *jetstream.StreamConfig, topic string) []string {
	var names []string
	if json.Unmarshal([]byte(c.Metadata[metaSnapshots+topic]), &names) != nil {
		return nil
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// noteSnapshots writes the snapshots of a topic into its stream's configuration.
func noteSnapshots(c *jetstream.StreamConfig, topic string, names []string) error {
	c.Metadata = maps.Clone(c.Metadata)
	if len(names) == 0 {
		delete(c.Metadata, metaSnapshots+topic)
		return nil
	}
	text, err := json.Marshal(names)
	c.Metadata[metaSnapshots+topic] = string(text)
	return err
}

// declareSnapshot notes a snapshot at its topic and then creates or updates its
// stream: a note of a stream that does not exist does no harm.
func (st *streams) declareSnapshot(ctx context.Context, c jetbus.TopicConfig) (*jetstream.StreamInfo, error) {
	if jetbus.IsDeadLetterTopic(c.SnapshotOf) {
		return nil, fmt.Errorf("%w: a snapshot of dead letters", jetbus.ErrUnsupported)
	}
	origin, _, err := st.inspect(ctx, c.SnapshotOf)
	switch {
	case err != nil:
		return nil, fmt.Errorf("a snapshot of %s: %w", c.SnapshotOf, err)
	case origin.adopted() || origin.config.SnapshotOf != "":
		return nil, fmt.Errorf("%w: topic %s is adopted or a snapshot itself", jetbus.ErrUnsupported, c.SnapshotOf)
	case !origin.config.KeyInSubject:
		return nil, fmt.Errorf("a snapshot of %s: %w", c.SnapshotOf, jetbus.ErrNeedsKeySubject)
	}
	own := ownStream(st.cfg.Prefix, c.Name)
	have, err := st.streamInfo(ctx, own)
	existed := err == nil
	if existed { // what is refused must not leave a note
		_, _, err = st.change(have, c, origin)
	} else if apiCode(err) == jetstream.JSErrCodeStreamNotFound {
		err = st.newSnapshot(c, origin)
	}
	if err == nil {
		err = st.noteSnapshot(ctx, origin, c.Name, true)
	}
	if err != nil {
		return nil, st.translate("", st.api+"STREAM.INFO."+own, err)
	}
	info, err := st.declareStream(ctx, c, origin)
	if err != nil && !existed {
		err = errors.Join(err, st.noteSnapshot(ctx, origin, c.Name, false))
	}
	return info, err
}

// newSnapshot checks the declaration of a snapshot that does not exist yet.
func (srv *server) newSnapshot(c jetbus.TopicConfig, origin *topic) error {
	c, err := srv.resolve(c)
	if err == nil && origin.config.Storage == jetbus.MemoryStorage && c.Storage != jetbus.MemoryStorage {
		err = fmt.Errorf("%w: Storage is %s, and topic %s is in memory, which its snapshot must not outlive: use %s",
			jetbus.ErrInvalidOption, c.Storage, c.SnapshotOf, jetbus.MemoryStorage)
	}
	return err
}

// noteSnapshot notes a snapshot at its topic, or removes the note.
func (st *streams) noteSnapshot(ctx context.Context, origin *topic, snapshot string, there bool) error {
	op := "change the note of it at topic " + origin.name()
	info, err := st.streamInfo(ctx, origin.stream)
	if err != nil {
		return st.translate(op, st.api+"STREAM.INFO."+origin.stream, err)
	}
	if slices.Contains(snapshotsOf(&info.Config, origin.name()), snapshot) == there {
		return nil
	}
	err = st.lockStream(ctx, origin.stream, func(ctx context.Context) error { return st.noteHeld(ctx, origin, snapshot, there) })
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

// noteHeld is noteSnapshot for who has the lock of the topic's stream: others declare topics and
// note snapshots in the same configuration, which is read and written back whole.
func (st *streams) noteHeld(ctx context.Context, origin *topic, snapshot string, there bool) error {
	info, err := st.streamInfo(ctx, origin.stream)
	if err != nil {
		return st.translate("", st.api+"STREAM.INFO."+origin.stream, err)
	}
	if there && !declares(&info.Config, origin.name()) {
		return jetbus.ErrNoTopic // deleted since
	}
	names := slices.DeleteFunc(snapshotsOf(&info.Config, origin.name()), func(name string) bool { return name == snapshot })
	if there {
		names = append(names, snapshot)
	}
	config := info.Config
	if err := noteSnapshots(&config, origin.name(), names); err != nil {
		return err
	}
	if info, err = st.updateStream(ctx, info, config); err != nil {
		return err
	}
	_, err = st.remember(origin.name(), info)
	return err
}

// deleteSnapshot removes a snapshot, then the note of it.
func (st *streams) deleteSnapshot(ctx context.Context, t *topic) error {
	if err := st.js.DeleteStream(ctx, t.stream); err != nil && apiCode(err) != jetstream.JSErrCodeStreamNotFound {
		return st.translate("", st.api+"STREAM.DELETE."+t.stream, err)
	}
	st.drop(t)
	info, err := st.findStream(ctx, t.config.SnapshotOf)
	if errors.Is(err, jetbus.ErrNoTopic) {
		return nil // its topic is gone, and the note with it
	}
	if err != nil {
		return ofTopic(t.config.SnapshotOf, err)
	}
	origin, err := st.remember(t.config.SnapshotOf, info)
	if err != nil {
		return ofTopic(t.config.SnapshotOf, err)
	}
	return st.noteSnapshot(ctx, origin, t.name(), false)
}

// noSnapshots refuses to delete a topic that has snapshots.
func (srv *server) noSnapshots(ctx context.Context, name string, info *jetstream.StreamInfo) error {
	for _, snapshot := range snapshotsOf(&info.Config, name) {
		switch _, err := srv.findStream(ctx, snapshot); {
		case errors.Is(err, jetbus.ErrNoTopic): // a note that was left behind
		case err != nil:
			return ofTopic(snapshot, err)
		default:
			return &jetbus.ConflictError{
				What:        "topic " + name,
				Differences: []jetbus.Difference{{Field: "its snapshot", Have: snapshot, Want: "gone"}},
				Hint:        "delete topic " + snapshot + " first",
			}
		}
	}
	return nil
}

// addSnapshots adds the snapshots of the topics that were found: their streams
// have no subjects to find them by.
func (srv *server) addSnapshots(ctx context.Context, streams map[string]*jetstream.StreamInfo) error {
	found := map[string]*jetstream.StreamInfo{}
	for name, info := range streams {
		for _, snapshot := range snapshotsOf(&info.Config, name) {
			info, err := srv.findStream(ctx, snapshot)
			if errors.Is(err, jetbus.ErrNoTopic) {
				continue
			}
			if err != nil {
				return fmt.Errorf("list topics: %w", ofTopic(snapshot, err))
			}
			found[snapshot] = info
		}
	}
	maps.Copy(streams, found)
	return nil
}

// applyState writes what a declaration says about state into a stream's
// configuration. source is the topic that a snapshot is fed from.
func (srv *server) applyState(s *jetstream.StreamConfig, c *jetbus.TopicConfig, source *topic) {
	s.MaxMsgsPerSubject, s.SubjectDeleteMarkerTTL = -1, 0
	switch {
	case c.Compact:
		// The server marks the end of a key's last event, by its age or TTL. With a
		// History it would also lengthen shorter TTLs; Publish refuses those.
		s.MaxMsgsPerSubject, s.SubjectDeleteMarkerTTL, s.AllowRollup = int64(c.History), c.TombstoneTTL, true
	case c.SnapshotOf != "":
		// No markers of its own, which would have no position in the other topic.
		// And no duplicates: the server would drop an event whose id was published
		// again, rightly, after the other topic's window.
		s.MaxMsgsPerSubject, s.AllowRollup, s.AllowAtomicPublish = int64(c.History), true, false
		token := "{{wildcard(1)}}"
		if source.generations != nil { // the wildcards before are generation and partition
			token = "{{wildcard(3)}}"
		}
		s.Sources = []*jetstream.StreamSource{{Name: source.stream, SubjectTransforms: []jetstream.SubjectTransformConfig{{
			Source: source.filter, Destination: eventSubject(srv.cfg.Prefix, c.Name, token),
		}}}}
	}
}

// frozenSource lists what cannot be changed about what a snapshot is fed from.
func frozenSource(have *jetstream.StreamConfig, now, c jetbus.TopicConfig, source *topic) []jetbus.Difference {
	out := differ("SnapshotOf", now.SnapshotOf, c.SnapshotOf)
	if len(out) > 0 || c.SnapshotOf == "" {
		return out
	}
	if len(have.Sources) != 1 || have.Sources[0].Name != source.stream {
		out = differ("the stream of SnapshotOf", "another", source.stream)
	}
	var d declaration
	if err := json.Unmarshal([]byte(have.Metadata[metaTopic+c.Name]), &d); err != nil || !d.SnapshotFrom.Equal(source.created) {
		out = append(out, jetbus.Difference{Field: "SnapshotOf, created at", Have: d.SnapshotFrom.Format(time.RFC3339Nano), Want: source.created.Format(time.RFC3339Nano)})
	}
	return out
}

// snapshotLag is TopicInfo.Lag. The server's own count leaves out the event that it
// is about to store, also where it cannot; from 2.15 on it says which it stored.
func (srv *server) snapshotLag(ctx context.Context, t *topic, info *jetstream.StreamInfo) int64 {
	if len(info.Sources) != 1 || info.Sources[0].Error != nil || info.Sources[0].Active < 0 || info.Sources[0].Active > sourceSilence {
		return -1
	}
	source := info.Sources[0]
	if source.Lag > 0 || source.Seq == 0 {
		return int64(source.Lag)
	}
	of := t.config.SnapshotOf
	origin := &topic{config: jetbus.TopicConfig{Name: of}, stream: source.Name, filter: sourceFilter(&info.Config)}
	more, err := srv.hasAfter(ctx, origin, source.Seq)
	switch {
	case err != nil:
		return -1
	case more:
		return 1
	}
	return 0
}

// sourceFilter is which subjects of another stream one is fed from.
func sourceFilter(c *jetstream.StreamConfig) string {
	for _, s := range c.Sources {
		for _, transform := range s.SubjectTransforms {
			return transform.Source
		}
	}
	return ">"
}

// originSubject returns the subject that a message had where the server copied it
// from, empty where it does not say.
func originSubject(h nats.Header) string {
	values := h[headerOrigin]
	if len(values) == 0 {
		return ""
	}
	fields := strings.Fields(values[len(values)-1])
	if len(fields) < 5 {
		return ""
	}
	return fields[4]
}

// originOf returns where the server says it copied a message from; the sequence
// is 0 where it does not say.
func originOf(h nats.Header) (stream string, seq uint64) {
	values := h[headerOrigin]
	if len(values) == 0 {
		return "", 0
	}
	return parseOrigin(values[len(values)-1])
}

// parseOrigin reads "<stream> <sequence>", which the filter, the transform, the
// subject and the identity of the source may follow, separated by spaces.
func parseOrigin(value string) (stream string, seq uint64) {
	stream, rest, _ := strings.Cut(value, " ")
	digits, _, _ := strings.Cut(rest, " ")
	seq, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || stream == "" || seq == 0 {
		return "", 0
	}
	return stream, seq
}
