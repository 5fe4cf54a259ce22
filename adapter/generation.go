package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// A topic's stream takes in the subjects of the newest generation and no other, so
// that whoever publishes to an older one is told that nobody is there, looks the topic
// up and publishes again. Its metadata lists how many partitions each generation has.

// generationsOf lists the generations of a topic as its stream tells them, nil where it
// has no partitions. Metadata that cannot be read is topicOf's to refuse.
func generationsOf(name string, c *jetstream.StreamConfig) []jetbus.Generation {
	var out []jetbus.Generation
	for i, n := range declaredPartitions(name, c) {
		out = append(out, jetbus.Generation{Generation: i + 1, Partitions: n, Stream: c.Name})
	}
	return out
}

// declaredPartitions lists how many partitions each generation of a topic has.
func declaredPartitions(name string, c *jetstream.StreamConfig) []int {
	var d declaration
	if json.Unmarshal([]byte(c.Metadata[metaTopic+name]), &d) != nil {
		return nil
	}
	return d.Partitions
}

// present is the newest generation, the zero value where the topic has no partitions.
func (t *topic) present() jetbus.Generation {
	if len(t.generations) == 0 {
		return jetbus.Generation{}
	}
	return t.generations[len(t.generations)-1]
}

// partitionsToDeclare is what a declaration writes down: the generations that the topic
// has, or its first one.
func partitionsToDeclare(s *jetstream.StreamConfig, c *jetbus.TopicConfig) []int {
	if c.Partitions == 0 {
		return nil
	}
	if have := declaredPartitions(c.Name, s); len(have) > 0 {
		return have
	}
	return []int{c.Partitions}
}

// grown is a declaration whose number of partitions is one that the topic had before:
// it means the topic as it is now.
func grown(s *jetstream.StreamConfig, c jetbus.TopicConfig) jetbus.TopicConfig {
	if have := declaredPartitions(c.Name, s); slices.Contains(have, c.Partitions) {
		c.Partitions = have[len(have)-1]
	}
	return c
}

// route finds out where an event is stored, which is complete but for its partition.
func (srv *server) route(e *jetbus.Event, to *destination) (err error) {
	e.Partition = jetbus.NoPartition
	if to.topic.generations == nil {
		to.subject, err = to.topic.subject(srv.cfg.Prefix, e.Key)
		return err
	}
	by, err := srv.partitionKey(e, to.topic)
	if err != nil {
		return err
	}
	present := to.topic.present()
	p := jetbus.Partition{Generation: present.Generation}
	if p.Number, err = jetbus.PartitionOf(by, present.Partitions); err != nil {
		return err
	}
	e.Partition = p.Number
	to.subject = partitionSubject(srv.cfg.Prefix, e.Topic, p, to.topic.token(e.Key))
	return nil
}

// token is the last token of the subjects of a key's events.
func (t *topic) token(key string) string {
	if !t.config.KeyInSubject {
		return ce.NoKey
	}
	return ce.KeyToken(key)
}

// partitionKey is what the partition of an event goes by.
func (srv *server) partitionKey(e *jetbus.Event, t *topic) (by string, err error) {
	if srv.cfg.PartitionBy != nil {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("%w: Config.PartitionBy: %w", jetbus.ErrInvalidOption, &jetbus.PanicError{Value: v})
			}
		}()
		by = srv.cfg.PartitionBy(*e)
	}
	switch {
	case by == "" && e.Key == "" && t.config.KeyInSubject: // events without a key are those of one key there
		return "", nil
	case by == "" && e.Key == "":
		return e.ID, nil
	case by == "":
		return e.Key, nil
	case t.config.KeyInSubject && by != e.Key:
		return "", fmt.Errorf("%w: Config.PartitionBy gives %.100q for key %.100q of a topic whose keys are in its subjects and lie in one partition each: return \"\" for it",
			jetbus.ErrUnsupported, by, e.Key)
	}
	return by, nil
}

// samePlace reports whether two versions of a topic store an event under the same subject.
func (t *topic) samePlace(other *topic) bool {
	return t.filter == other.filter && slices.Equal(t.generations, other.generations)
}

// expectAcross makes a condition on the last event of a key apply to all generations in
// the topic's stream.
func (srv *server) expectAcross(h nats.Header, t *topic, key string) error {
	delete(h, jetstream.ExpectedLastSubjSeqSubjHeader)
	if len(t.generations) < 2 || len(h[jetstream.ExpectedLastSubjSeqHeader]) == 0 {
		return nil
	}
	if err := srv.needs("ExpectLastSeq on a topic with more than one generation of partitions"); err != nil {
		return err
	}
	h[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{partitionsFilter(srv.cfg.Prefix, t.name(), t.token(key))}
	return nil
}

// Generations implements jetbus.Partitions.
func (b *Bus) Generations(ctx context.Context, topic string) ([]jetbus.Generation, error) {
	op := "generations of " + topic
	if err := b.enter(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	t, _, err := b.inspect(ctx, topic)
	if err == nil && t.generations == nil {
		err = jetbus.ErrNoPartitions
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return slices.Clone(t.generations), nil
}

// Repartition implements jetbus.Partitions.
func (b *Bus) Repartition(ctx context.Context, topic string, n int) ([]jetbus.Generation, error) {
	return b.repartition(ctx, topic, n, b.grow)
}

// CheckRepartition returns the error with which Repartition would refuse, as things are
// now, and changes nothing.
func (b *Bus) CheckRepartition(ctx context.Context, name string, n int) error {
	_, err := b.repartition(ctx, name, n, func(ctx context.Context, t *topic, n int) (*topic, error) {
		_, info, err := b.inspect(ctx, t.name())
		if err == nil {
			err = mayGrow(t, info, n)
		}
		return t, err
	})
	return err
}

// repartition calls grow for a topic with partitions that has not as many yet.
func (b *Bus) repartition(ctx context.Context, name string, n int, grow func(context.Context, *topic, int) (*topic, error)) ([]jetbus.Generation, error) {
	op := "repartition " + name
	if err := b.enter(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	if n < 1 || n > jetbus.MaxPartitions {
		return nil, fmt.Errorf("%s: %w: a topic has 1 to %d partitions, not %d", op, jetbus.ErrInvalidOption, jetbus.MaxPartitions, n)
	}
	t, _, err := b.inspect(ctx, name)
	switch {
	case err != nil:
	case t.generations == nil:
		err = jetbus.ErrNoPartitions
	case t.present().Partitions != n:
		t, err = grow(ctx, t, n)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return slices.Clone(t.generations), nil
}

// grow begins a generation, by one change of the topic's stream. The lock keeps others
// from changing what was seen.
func (st *streams) grow(ctx context.Context, t *topic, n int) (grown *topic, err error) {
	err = st.lockStream(ctx, t.stream, func(ctx context.Context) error {
		grown, err = st.growHeld(ctx, t.name(), n)
		return err
	})
	return grown, err
}

// growHeld is grow for who has the stream's lock.
func (st *streams) growHeld(ctx context.Context, name string, n int) (*topic, error) {
	t, info, err := st.inspect(ctx, name)
	switch {
	case err != nil:
		return nil, err
	case t.generations == nil:
		return nil, jetbus.ErrNoPartitions
	case t.present().Partitions == n:
		return t, nil
	}
	if err := mayGrow(t, info, n); err != nil {
		return nil, err
	}
	config := info.Config
	if err := st.addGeneration(&config, t, n); err != nil {
		return nil, err
	}
	if info, err = st.updateStream(ctx, info, config); err != nil {
		return nil, err
	}
	return st.remember(name, info)
}

// addGeneration writes one more generation into a stream's configuration.
func (srv *server) addGeneration(c *jetstream.StreamConfig, t *topic, n int) error {
	var d declaration
	if err := json.Unmarshal([]byte(c.Metadata[metaTopic+t.name()]), &d); err != nil {
		return err
	}
	last := generationFilter(srv.cfg.Prefix, t.name(), len(d.Partitions))
	d.Partitions = append(d.Partitions, n)
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	c.Metadata = maps.Clone(c.Metadata)
	c.Metadata[metaTopic+t.name()] = string(text)
	c.Subjects = slices.Clone(c.Subjects)
	at := slices.Index(c.Subjects, last)
	if at < 0 {
		return errors.New("the stream " + c.Name + " does not take in " + last)
	}
	c.Subjects[at] = generationFilter(srv.cfg.Prefix, t.name(), len(d.Partitions))
	return nil
}

// mayGrow refuses what cannot begin a generation. The keys of a compacted topic lie in
// one place each, to be replaced there, and an event that waits for its time has its
// place already.
func mayGrow(t *topic, info *jetstream.StreamInfo, n int) error {
	conflict := &jetbus.ConflictError{What: "topic " + t.name()}
	refuse := func(field, have, want, hint string) error {
		conflict.Differences = []jetbus.Difference{{Field: field, Have: have, Want: want}}
		conflict.Hint = hint
		return conflict
	}
	const another = "its partitions are for life: declare another topic with more of them, and copy this one"
	snapshots := snapshotsOf(&info.Config, t.name())
	switch now := t.present().Partitions; {
	case n < now:
		return refuse("Partitions", fmt.Sprint(now), fmt.Sprint(n), "a topic never has fewer partitions")
	case t.config.Compact:
		return refuse("Compact", "true", "false", another)
	case t.config.Delays:
		return refuse("Delays", "true", "false", another)
	case len(snapshots) > 0:
		return refuse("its snapshot", snapshots[0], "none", "delete topic "+snapshots[0]+" first")
	}
	return nil
}
