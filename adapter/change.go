package adapter

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// change compares a stream with a declaration, whose zero fields keep what the stream
// has. It returns the configuration to update to and whether it differs, or what
// stands in the way.
func (srv *server) change(have *jetstream.StreamInfo, given jetbus.TopicConfig, source *topic) (want jetstream.StreamConfig, changed bool, err error) {
	want = have.Config
	if len(topicsOf(&want)) == 0 {
		return want, false, &jetbus.ConflictError{
			What:        "topic " + given.Name,
			Differences: []jetbus.Difference{{Field: "stream " + want.Name, Have: "not JetBus's", Want: "declared by JetBus"}},
			Hint:        "adopt it, or name another stream",
			See:         "TopicConfig.Stream, TopicConfig.Subject",
		}
	}
	now, err := asIs(&want, given)
	if err != nil {
		return want, false, err
	}
	c := grown(&want, kept(now, given))
	if err := refuseChange(&want, now, c, source, given.Shrink); err != nil {
		return want, false, err
	}
	if err := validChange(now, c); err != nil {
		return want, false, err
	}
	if err := srv.apply(&want, c, source); err != nil {
		return want, false, err
	}
	changed = now != c || !declares(&have.Config, c.Name) || !slices.Equal(have.Config.Subjects, want.Subjects)
	return want, changed, nil
}

// asIs is a topic as its stream has it, or what the stream says of one that is to
// share it.
func asIs(c *jetstream.StreamConfig, given jetbus.TopicConfig) (jetbus.TopicConfig, error) {
	if declares(c, given.Name) {
		return topicOf(given.Name, c)
	}
	now := settingsOf(c)
	now.Name, now.Stream = given.Name, c.Name
	if given.Compact && compacts(c) {
		now.History, now.TombstoneTTL = int(c.MaxMsgsPerSubject), c.SubjectDeleteMarkerTTL
	}
	return now, nil
}

func compacts(c *jetstream.StreamConfig) bool { return c.MaxMsgsPerSubject > 0 }

// kept is a declaration whose zero fields are those of the topic as it is.
func kept(now, given jetbus.TopicConfig) jetbus.TopicConfig {
	return jetbus.TopicConfig{
		Name:            given.Name,
		Description:     cmp.Or(given.Description, now.Description),
		Retention:       cmp.Or(given.Retention, now.Retention),
		MaxBytes:        cmp.Or(given.MaxBytes, now.MaxBytes),
		MaxEvents:       cmp.Or(given.MaxEvents, now.MaxEvents),
		Discard:         cmp.Or(given.Discard, now.Discard),
		Storage:         cmp.Or(given.Storage, now.Storage),
		Replicas:        cmp.Or(given.Replicas, now.Replicas),
		DuplicateWindow: cmp.Or(given.DuplicateWindow, now.DuplicateWindow),
		KeyInSubject:    given.KeyInSubject || now.KeyInSubject || given.Compact || given.SnapshotOf != "",
		Partitions:      cmp.Or(given.Partitions, now.Partitions),
		Delays:          given.Delays || now.Delays,
		Compact:         given.Compact || now.Compact,
		History:         cmp.Or(given.History, now.History),
		SnapshotOf:      cmp.Or(given.SnapshotOf, now.SnapshotOf),
		TombstoneTTL:    cmp.Or(given.TombstoneTTL, now.TombstoneTTL),
		Stream:          cmp.Or(given.Stream, now.Stream),
	}
}

// refuseChange says what of a topic cannot become what a declaration asks for, or may
// not without Shrink. The hint is about what is hardest to change, which comes last.
func refuseChange(have *jetstream.StreamConfig, now, c jetbus.TopicConfig, source *topic, shrink bool) error {
	conflict := &jetbus.ConflictError{What: "topic " + c.Name}
	add := func(why jetbus.ConflictError, differences []jetbus.Difference) {
		if len(differences) > 0 {
			conflict.Differences, conflict.Hint, conflict.See = append(conflict.Differences, differences...), why.Hint, why.See
		}
	}
	exists := declares(have, c.Name)
	switch shared := len(topicsOf(have)) > 1 || !exists; {
	case shared:
		add(jetbus.ConflictError{Hint: "topics of one stream share its settings"}, sharedDifferences(have, now, c))
	case !shrink:
		add(jetbus.ConflictError{Hint: "it would keep less than it does", See: "TopicConfig.Shrink"}, shrunk(now, c))
	}
	add(jetbus.ConflictError{Hint: "storage cannot be changed; copy the topic to one with another name"}, differ("Storage", now.Storage, c.Storage))
	if exists {
		add(jetbus.ConflictError{Hint: "what a topic is cannot be changed; delete the topic first"}, frozen(have, now, c, source))
	} else {
		add(jetbus.ConflictError{Hint: "a topic with partitions has its stream alone: name another, or none", See: "TopicConfig.Stream"}, partitioned(have))
	}
	if len(conflict.Differences) == 1 && now.Partitions > 0 && now.Partitions != c.Partitions {
		why := jetbus.ConflictError{Hint: "a topic never has fewer partitions"}
		if c.Partitions > now.Partitions {
			why = jetbus.ConflictError{Hint: "a declaration gives a topic no more partitions", See: "Repartition"}
		}
		conflict.Hint, conflict.See = why.Hint, why.See
	}
	if len(conflict.Differences) > 0 {
		return conflict
	}
	return nil
}

// frozen lists what cannot be changed in a topic once it exists, events or not:
// buses that know it act on what it was, and events may come at any moment.
func frozen(have *jetstream.StreamConfig, now, c jetbus.TopicConfig, source *topic) []jetbus.Difference {
	var out []jetbus.Difference
	if now.SnapshotOf == c.SnapshotOf {
		out = append(differ("Compact", now.Compact, c.Compact), differ("KeyInSubject", now.KeyInSubject, c.KeyInSubject)...)
	}
	out = append(out, differ("Partitions", now.Partitions, c.Partitions)...)
	out = append(out, differ("Stream", now.Stream, c.Stream)...)
	return append(out, frozenSource(have, now, c, source)...)
}

// partitioned lists the topics of a stream that have partitions, beside which there may be
// no other: what they read and purge by takes in all of the stream.
func partitioned(have *jetstream.StreamConfig) []jetbus.Difference {
	var out []jetbus.Difference
	for _, name := range topicsOf(have) {
		if of := declaredPartitions(name, have); len(of) > 0 {
			out = append(out, jetbus.Difference{Field: "Partitions", Have: fmt.Sprintf("%d of topic %s", of[len(of)-1], name), Want: "none"})
		}
	}
	return out
}

// sharedDifferences lists the stream settings on which topics of one stream disagree.
func sharedDifferences(have *jetstream.StreamConfig, now, c jetbus.TopicConfig) []jetbus.Difference {
	state := differ("Compact", compacts(have), c.Compact)
	if len(state) == 0 {
		state = append(differ("History", now.History, c.History), differ("TombstoneTTL", now.TombstoneTTL, c.TombstoneTTL)...)
	}
	return slices.Concat(
		differ("Retention", bound(now.Retention), bound(c.Retention)), differ("MaxBytes", bound(now.MaxBytes), bound(c.MaxBytes)),
		differ("MaxEvents", bound(now.MaxEvents), bound(c.MaxEvents)), differ("Discard", now.Discard, c.Discard),
		differ("Replicas", now.Replicas, c.Replicas), differ("DuplicateWindow", now.DuplicateWindow, c.DuplicateWindow),
		state,
	)
}

// shrunk lists the settings by which a topic would keep less, or for less long, than
// it does.
func shrunk(now, c jetbus.TopicConfig) []jetbus.Difference {
	var out []jetbus.Difference
	add := func(less bool, differences []jetbus.Difference) {
		if less {
			out = append(out, differences...)
		}
	}
	add(isLess(now.Retention, c.Retention), differ("Retention", bound(now.Retention), bound(c.Retention)))
	add(isLess(now.MaxBytes, c.MaxBytes), differ("MaxBytes", bound(now.MaxBytes), bound(c.MaxBytes)))
	add(isLess(now.MaxEvents, c.MaxEvents), differ("MaxEvents", bound(now.MaxEvents), bound(c.MaxEvents)))
	add(now.Discard == jetbus.DiscardNew, differ("Discard", now.Discard, c.Discard))
	add(isLess(now.Replicas, c.Replicas), differ("Replicas", now.Replicas, c.Replicas))
	add(isLess(now.DuplicateWindow, c.DuplicateWindow), differ("DuplicateWindow", now.DuplicateWindow, c.DuplicateWindow))
	add(isLess(now.History, c.History), differ("History", now.History, c.History))
	add(isLess(now.TombstoneTTL, c.TombstoneTTL), differ("TombstoneTTL", now.TombstoneTTL, c.TombstoneTTL))
	return out
}

// isLess reports whether a limit is tighter than the one that there is; -1 is none, and
// what is below that is Normalize's to refuse.
func isLess[T ~int | ~int64](have, want T) bool { return want >= 0 && (have == -1 || want < have) }

// bound is a limit in words.
func bound[T ~int64](limit T) string {
	if limit == -1 {
		return "none"
	}
	return fmt.Sprint(limit)
}

// validChange checks what a topic is to become. The limits of a topic with Delays that
// are there already stay as they are: it was declared before they were refused.
func validChange(now, c jetbus.TopicConfig) error {
	if c == now {
		return nil
	}
	if now.Delays && c.MaxBytes == now.MaxBytes {
		c.MaxBytes = -1
	}
	if now.Delays && c.MaxEvents == now.MaxEvents {
		c.MaxEvents = -1
	}
	_, err := c.Normalize()
	return err
}

func differ[T comparable](field string, have, want T) []jetbus.Difference {
	if have == want {
		return nil
	}
	return []jetbus.Difference{{Field: field, Have: fmt.Sprint(have), Want: fmt.Sprint(want)}}
}
