package jetbus

import (
	"fmt"
	"strings"
	"time"
)

// Defaults of TopicConfig.
const (
	DefaultRetention       = 7 * 24 * time.Hour
	DefaultMaxBytes        = 10 << 30
	DefaultReplicas        = 1
	DefaultDuplicateWindow = 2 * time.Minute
	DefaultHistory         = 1
	DefaultTombstoneTTL    = 24 * time.Hour

	minRetention        = 100 * time.Millisecond // the server's own bound, for the window too
	maxReplicas         = 5
	maxHistory          = 64 // the server's own, of its key-value buckets
	maxDescriptionBytes = 4 << 10
	maxStreamBytes      = 255
	maxSubjectBytes     = 1 << 10
)

// Normalize returns the configuration of a topic that does not exist yet: with
// defaults filled in, limits that are none as -1, or an error wrapping [ErrInvalidTopic] or [ErrInvalidOption] that
// names the field. Stream stays empty where it was: the bus chooses the name.
func (c TopicConfig) Normalize() (TopicConfig, error) {
	if c.Compact || c.SnapshotOf != "" {
		c.stateDefaults()
	}
	setDefault(&c.Retention, DefaultRetention)
	if c.Delays {
		setDefault(&c.MaxBytes, -1)
	}
	setDefault(&c.MaxBytes, DefaultMaxBytes)
	setDefault(&c.MaxEvents, -1)
	setDefault(&c.Discard, DiscardOld)
	setDefault(&c.Storage, FileStorage)
	setDefault(&c.Replicas, DefaultReplicas)
	if c.DuplicateWindow == 0 {
		c.DuplicateWindow = DefaultDuplicateWindow
		if c.Retention > 0 {
			c.DuplicateWindow = min(c.DuplicateWindow, c.Retention)
		}
	}
	if err := ValidTopic(c.Name); err != nil {
		return c, err
	}
	if err := c.validLimits(); err != nil {
		return c, fmt.Errorf("topic %s: %w", c.Name, err)
	}
	if err := c.validPlace(); err != nil {
		return c, fmt.Errorf("topic %s: %w", c.Name, err)
	}
	if err := c.validState(); err != nil {
		return c, fmt.Errorf("topic %s: %w", c.Name, err)
	}
	return c, nil
}

// stateDefaults fills in what is different for topics that keep state.
func (c *TopicConfig) stateDefaults() {
	c.KeyInSubject = true
	setDefault(&c.History, DefaultHistory)
	setDefault(&c.Retention, -1)
	if !c.Delays {
		setDefault(&c.Discard, DiscardNew)
	}
	if c.Compact && c.TombstoneTTL == 0 {
		c.TombstoneTTL = DefaultTombstoneTTL
		if c.Retention > 0 {
			c.TombstoneTTL = min(c.TombstoneTTL, max(c.Retention.Truncate(time.Second), time.Second))
		}
	}
	if c.SnapshotOf != "" {
		setDefault(&c.DuplicateWindow, -1)
		if c.Storage != MemoryStorage {
			setDefault(&c.MaxBytes, -1) // one that is full misses what its topic loses meanwhile
		}
	}
}

// validState checks what is said about state.
func (c *TopicConfig) validState() error {
	switch {
	case !c.Compact && c.SnapshotOf == "":
		if c.History != 0 || c.TombstoneTTL != 0 {
			return fmt.Errorf("%w: History and TombstoneTTL need Compact", ErrInvalidOption)
		}
		return nil
	case c.History < 1 || c.History > maxHistory:
		return fmt.Errorf("%w: History is %d, use 1 to %d", ErrInvalidOption, c.History, maxHistory)
	case c.Compact && (c.TombstoneTTL < time.Second || c.TombstoneTTL > maxTTL || c.TombstoneTTL%time.Second != 0):
		return fmt.Errorf("%w: TombstoneTTL is %v, use whole seconds from 1s to %v", ErrInvalidOption, c.TombstoneTTL, maxTTL)
	case c.Compact && c.Retention != -1 && c.TombstoneTTL > c.Retention:
		return fmt.Errorf("%w: TombstoneTTL is %v, use at most Retention (%v), which ends tombstones, too", ErrInvalidOption, c.TombstoneTTL, c.Retention)
	case c.SnapshotOf == "":
		return nil
	case ValidTopic(c.SnapshotOf) != nil || c.SnapshotOf == c.Name:
		return fmt.Errorf("%w: SnapshotOf is %q, use another topic", ErrInvalidOption, c.SnapshotOf)
	case c.Compact || c.History != 1 || c.TombstoneTTL != 0 || c.Delays || c.Stream != "" || c.DuplicateWindow != -1:
		return fmt.Errorf("%w: SnapshotOf excludes Compact, History, TombstoneTTL, Delays, DuplicateWindow, Stream and Subject", ErrInvalidOption)
	}
	return nil
}

// validLimits checks what is kept, and for how long.
func (c *TopicConfig) validLimits() error {
	switch {
	case c.Retention != -1 && c.Retention < minRetention:
		return fmt.Errorf("%w: Retention is %v, use at least %v, or -1 for none", ErrInvalidOption, c.Retention, minRetention)
	case c.MaxBytes < -1:
		return fmt.Errorf("%w: MaxBytes is %d, use 1 or more, or -1 for none", ErrInvalidOption, c.MaxBytes)
	case c.MaxEvents < -1:
		return fmt.Errorf("%w: MaxEvents is %d, use 1 or more, or -1 for none", ErrInvalidOption, c.MaxEvents)
	case c.Discard != DiscardOld && c.Discard != DiscardNew:
		return fmt.Errorf("%w: Discard is %q, use %q or %q", ErrInvalidOption, c.Discard, DiscardOld, DiscardNew)
	case c.Delays && c.Discard == DiscardNew:
		return fmt.Errorf("%w: Delays excludes DiscardNew, use DiscardOld", ErrInvalidOption)
	case c.Delays && (c.MaxBytes != -1 || c.MaxEvents != -1):
		return fmt.Errorf("%w: Delays excludes limits, and MaxBytes is %d and MaxEvents %d: a full topic would drop events that wait for their time; use -1",
			ErrInvalidOption, c.MaxBytes, c.MaxEvents)
	case c.SnapshotOf != "": // has no window: see validState
	case c.DuplicateWindow < minRetention:
		return fmt.Errorf("%w: DuplicateWindow is %v, use at least %v", ErrInvalidOption, c.DuplicateWindow, minRetention)
	case c.Retention != -1 && c.DuplicateWindow > c.Retention:
		return fmt.Errorf("%w: DuplicateWindow is %v, use at most Retention (%v)", ErrInvalidOption, c.DuplicateWindow, c.Retention)
	}
	return nil
}

// validPlace checks where the topic is kept.
func (c *TopicConfig) validPlace() error {
	switch {
	case len(c.Description) > maxDescriptionBytes:
		return fmt.Errorf("%w: Description has %d bytes, at most %d are allowed", ErrInvalidOption, len(c.Description), maxDescriptionBytes)
	case c.Storage != FileStorage && c.Storage != MemoryStorage:
		return fmt.Errorf("%w: Storage is %q, use %q or %q", ErrInvalidOption, c.Storage, FileStorage, MemoryStorage)
	case c.Replicas < 1 || c.Replicas > maxReplicas:
		return fmt.Errorf("%w: Replicas is %d, use 1 to %d", ErrInvalidOption, c.Replicas, maxReplicas)
	case c.Partitions < 0 || c.Partitions > MaxPartitions:
		return fmt.Errorf("%w: Partitions is %d, use 1 to %d, or 0 for none", ErrInvalidOption, c.Partitions, MaxPartitions)
	case c.Partitions > 0 && (c.Stream != "" || c.Subject != "" || c.SnapshotOf != ""):
		return fmt.Errorf("%w: Partitions excludes Stream, Subject and SnapshotOf: such a topic has a stream of its own", ErrInvalidOption)
	case c.Subject != "" && c.Stream == "":
		return fmt.Errorf("%w: Subject needs Stream, the existing stream that has it", ErrInvalidOption)
	}
	if c.Stream != "" || c.SnapshotOf != "" { // else it may be a snapshot that is there already
		if err := ValidSnapshotOf(c.Name, c.SnapshotOf); err != nil {
			return err
		}
	}
	if c.Stream != "" {
		if err := validStream(c.Stream); err != nil {
			return err
		}
	}
	if c.Subject != "" {
		return validSubject(c.Subject)
	}
	return nil
}

// validStream is the server's rule of stream names, without control characters.
func validStream(name string) error {
	switch {
	case len(name) > maxStreamBytes:
		return fmt.Errorf("%w: Stream has %d bytes, at most %d are allowed", ErrInvalidOption, len(name), maxStreamBytes)
	case !printable(name) || strings.ContainsAny(name, ` .*>/\`):
		return fmt.Errorf(`%w: Stream is %q: names have no spaces, control characters, '.', '*', '>', '/' and '\'`, ErrInvalidOption, name)
	}
	return nil
}

// validSubject is the server's rule of subjects, but refuses a wildcard that is
// only part of a token: the server would take it literally, which nobody means.
func validSubject(subject string) error {
	bad := func(why string) error {
		return fmt.Errorf("%w: Subject is %.100q: %s", ErrInvalidOption, subject, why)
	}
	switch {
	case len(subject) > maxSubjectBytes:
		return bad(fmt.Sprintf("it has %d bytes, at most %d are allowed", len(subject), maxSubjectBytes))
	case !printable(subject) || strings.ContainsRune(subject, ' '):
		return bad("it has spaces or control characters, or is no UTF-8")
	}
	rest, more := subject, true
	for more {
		var token string
		token, rest, more = strings.Cut(rest, ".")
		switch {
		case token == "":
			return bad("it has an empty token")
		case token == ">" && more:
			return bad("'>' may only be the last token")
		case len(token) > 1 && strings.ContainsAny(token, "*>"):
			return bad("'*' and '>' stand for whole tokens")
		}
	}
	return nil
}
