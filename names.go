package jetbus

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of names. They leave room for the prefix, the key token and the names
// of streams and consumers, which the server bounds to 255 bytes.
const (
	MaxTopicBytes = 200 // longest topic name
	MaxKeyBytes   = 256 // longest event key
	MaxIDBytes    = 200 // longest event id
	MaxGroupBytes = 100 // longest group name
)

// ValidTopic reports whether name is a topic name: 1 to 200 bytes of
// dot-separated segments, each one or more of the characters a-z, 0-9, '_' and
// '-'. A topic that breaks its schema on purpose gets a new last segment "vN", N
// a positive decimal without leading zeros; "v0" and "v01" are refused there,
// because they read as versions and are none. The name "dlq." before that of
// another topic is the topic of its dead letters; "dlq" and "retry" alone are
// the bus's own. The name ".snapshot" behind that of another topic is for its
// snapshot ([TopicConfig].SnapshotOf) and for nothing else. Neither counts among the
// 200 bytes. The error wraps [ErrInvalidTopic] and says what is wrong.
func ValidTopic(name string) error {
	origin := strings.TrimPrefix(name, deadPrefix)
	origin = strings.TrimSuffix(origin, snapshotSuffix)
	switch {
	case name == "":
		return fmt.Errorf("%w: empty name", ErrInvalidTopic)
	case len(origin) > MaxTopicBytes:
		return fmt.Errorf("%w: %.40q... has %d bytes, at most %d are allowed", ErrInvalidTopic, name, len(name), MaxTopicBytes)
	case origin == "dlq" || origin == "retry" || IsDeadLetterTopic(origin):
		return fmt.Errorf("%w: %q is reserved: dead letters have no dead letters, and dlq and retry are the bus's", ErrInvalidTopic, name)
	}
	last := ""
	for segment := range strings.SplitSeq(name, ".") {
		if segment == "" {
			return fmt.Errorf("%w: %q has an empty segment", ErrInvalidTopic, name)
		}
		if i := strings.IndexFunc(segment, notTopicRune); i >= 0 {
			_, size := utf8.DecodeRuneInString(segment[i:])
			return fmt.Errorf("%w: %q: segments consist of a-z, 0-9, '_' and '-', found %q", ErrInvalidTopic, name, segment[i:i+size])
		}
		last = segment
	}
	if looksLikeVersion(last) && last[1] == '0' {
		return fmt.Errorf("%w: %q: version %q: versions are v1, v2, v3 and so on", ErrInvalidTopic, name, last)
	}
	return nil
}

// snapshotSuffix is behind the topic's name in that of its snapshot.
const snapshotSuffix = ".snapshot"

// SnapshotTopic is the name that a snapshot of a topic has by custom:
// "orders.placed.snapshot" for "orders.placed". Another name may be given to it; but this
// one is refused for all else. It does not validate the name.
func SnapshotTopic(topic string) string { return topic + snapshotSuffix }

// ValidSnapshotOf reports whether a topic may have its name, with this as its
// [TopicConfig].SnapshotOf, empty for none: one that ends in ".snapshot" is for the
// snapshot of the topic before that. The error wraps [ErrInvalidTopic]. Who declares a
// topic that is not there yet asks it; of one that is there, SnapshotOf may be left out.
func ValidSnapshotOf(topic, of string) error {
	if origin, ok := strings.CutSuffix(topic, snapshotSuffix); ok && origin != of {
		return fmt.Errorf("%w: the name %s is for a snapshot of %s: say SnapshotOf %s, or use another name", ErrInvalidTopic, topic, origin, origin)
	}
	return nil
}

func notTopicRune(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-'
}

// looksLikeVersion reports whether a segment is the letter v and digits only.
func looksLikeVersion(segment string) bool {
	return len(segment) > 1 && segment[0] == 'v' && strings.Trim(segment[1:], "0123456789") == ""
}

// TopicVersion splits a topic name into the name before its version segment and
// the version: "process.state.v2" is ("process.state", 2). A name without one
// has version 1, as has one whose version does not fit an int. It does not
// validate the name.
func TopicVersion(name string) (base string, version int) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 || !looksLikeVersion(name[i+1:]) || name[i+2] == '0' {
		return name, 1
	}
	version, err := strconv.Atoi(name[i+2:])
	if err != nil {
		return name, 1
	}
	return name[:i], version
}

// ValidGroup reports whether name is a group name: 1 to 100 bytes of letters,
// digits, '_', '-' and '.', the dot neither first nor last. The error wraps
// [ErrInvalidGroup].
func ValidGroup(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: empty name", ErrInvalidGroup)
	case len(name) > MaxGroupBytes:
		return fmt.Errorf("%w: %.40q... has %d bytes, at most %d are allowed", ErrInvalidGroup, name, len(name), MaxGroupBytes)
	case name[0] == '.' || name[len(name)-1] == '.':
		return fmt.Errorf("%w: %q starts or ends with a dot", ErrInvalidGroup, name)
	}
	for _, r := range name {
		if (r < 'A' || r > 'Z') && r != '.' && notTopicRune(r) {
			return fmt.Errorf("%w: %q: names consist of letters, digits, '_', '-' and '.', found %q", ErrInvalidGroup, name, string(r))
		}
	}
	return nil
}
