package adapter

import (
	"slices"
	"strconv"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// Subjects are
//
//	<prefix>.<topic>._                                       events of a topic without keys in subjects
//	<prefix>.<topic>.K.<key token>                           events of a topic with KeyInSubject
//	<prefix>.<topic>.P<generation>.<partition>.<key token>   events of a topic with partitions
//	<prefix>.<topic>.S.<id token>                            events that wait for their time
//
// A stream accepts the subjects of only one of the first three forms. So if a topic was deleted and
// declared again with another layout, a bus with the old layout publishes to a subject without listeners.
// It immediately receives "no responders", and looks the topic up again. Snapshots, which only the server
// writes, and topics with KeyInSubject that an older version declared use the form
// <prefix>.<topic>.<key token>.
//
// Topic segments are lower case, so "K", "S" and "P1" are never topic segments. All subjects of a topic
// have a fixed number of tokens, so the filter of a topic does not match the events of a longer one. A
// filter for all partitions would match the events of a topic with two more segments; for this reason a
// topic with partitions has its own stream.

// keyedToken precedes the key token of an event of a topic with KeyInSubject.
const keyedToken = "K"

// delayToken precedes the ID token of an event that waits for its time.
const delayToken = "S"

// eventSubject returns the subject of an event with this key token, in a topic without keys in its
// subjects.
func eventSubject(prefix, topic, token string) string { return prefix + "." + topic + "." + token }

// topicFilter matches the events of a topic without keys in its subjects, and nothing else.
func topicFilter(prefix, topic string) string { return prefix + "." + topic + ".*" }

// keyedFilter matches the events of a topic with KeyInSubject, and nothing else.
func keyedFilter(prefix, topic string) string {
	return prefix + "." + topic + "." + keyedToken + ".*"
}

// plainFilters returns the filters that a topic without partitions may have.
func plainFilters(prefix, topic string) []string {
	return []string{topicFilter(prefix, topic), keyedFilter(prefix, topic)}
}

// delaySubject returns the subject of an event with this ID that waits for its time.
func delaySubject(prefix, topic, id string) string {
	return prefix + "." + topic + "." + delayToken + "." + ce.KeyToken(id)
}

// delayFilter matches the waiting events of the topic and nothing else.
func delayFilter(prefix, topic string) string {
	return prefix + "." + topic + "." + delayToken + ".*"
}

// partitionSubject is where an event of a partition with this key token is stored.
func partitionSubject(prefix, topic string, p jetbus.Partition, token string) string {
	return prefix + "." + topic + ".P" + strconv.Itoa(p.Generation) + "." + strconv.Itoa(p.Number) + "." + token
}

// partitionFilter matches the events of one partition and nothing else.
func partitionFilter(prefix, topic string, p jetbus.Partition) string {
	return partitionSubject(prefix, topic, p, "*")
}

// generationFilter matches the events of all partitions of a generation. The
// newest one's is what the topic's stream takes in.
func generationFilter(prefix, topic string, generation int) string {
	return prefix + "." + topic + ".P" + strconv.Itoa(generation) + ".*.*"
}

// partitionsFilter matches the events of a topic in all partitions it ever had, or
// those of one key token, and in the topic's stream nothing else.
func partitionsFilter(prefix, topic, token string) string {
	return prefix + "." + topic + ".*.*." + token
}

// parsePartition reads the partition out of a subject that ends with
// P<generation>.<partition>.<one token>, and reports false for any other.
func parsePartition(subject string) (p jetbus.Partition, ok bool) {
	end := strings.LastIndexByte(subject, '.')
	if end < 0 {
		return p, false
	}
	mid := strings.LastIndexByte(subject[:end], '.')
	if mid < 0 {
		return p, false
	}
	token := subject[strings.LastIndexByte(subject[:mid], '.')+1 : mid]
	if token == "" || token[0] != 'P' {
		return p, false
	}
	generation, ok := parseCount(token[1:])
	number, isNumber := parseCount(subject[mid+1 : end])
	if !ok || !isNumber || generation == 0 || number >= jetbus.MaxPartitions {
		return p, false
	}
	return jetbus.Partition{Generation: generation, Number: number}, true
}

// parseCount reads a number as it is written: up to nine digits, without a sign
// and without leading zeros.
func parseCount(s string) (n int, ok bool) {
	if s == "" || len(s) > 9 || len(s) > 1 && s[0] == '0' {
		return 0, false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, true
}

// takesIn reports whether a stream with that subject takes in the events of a topic.
func takesIn(subject, prefix, topic string) bool {
	if slices.Contains(plainFilters(prefix, topic), subject) {
		return true
	}
	generation, ok := strings.CutPrefix(subject, prefix+"."+topic+".P")
	if !ok {
		return false
	}
	generation, ok = strings.CutSuffix(generation, ".*.*")
	_, isNumber := parseCount(generation)
	return ok && isNumber
}

// maxStreamBytes bounds stream names. The server allows 255 bytes; the rest is
// room for another prefix in front and a hash of it at the end.
const maxStreamBytes = 200

// streamName is the name of the topic's own stream: process.state is kept in
// EV_PROCESS_STATE. A topic with an underscore, which would look like a dot, and
// one that is too long and cut, has "__" and a hash of the topic at the end; no
// other name contains "__". Names never differ in case only, since they are
// folders at the server.
func streamName(topic string) string {
	name := "EV_" + strings.ToUpper(strings.ReplaceAll(topic, ".", "_"))
	if len(name) <= maxStreamBytes && !strings.Contains(topic, "_") {
		return name
	}
	hash := "__" + strings.ToUpper(ce.ShortHash(topic))
	return name[:min(len(name), maxStreamBytes-len(hash))] + hash
}

// Bounds of consumer names. The server allows 255 bytes; the rest is room for
// what its file names add.
const (
	maxConsumerBytes = 200
	cutTopicBytes    = 90
	cutGroupBytes    = 80
)

// consumerName is the durable of a group: that of ops in process.state is
// process_state__ops. Where a part has an underscore, which would look like a
// dot, or a group has upper-case letters, which some file systems do not tell
// apart, or the name is long, then parts are cut and "__" and a hash of
// both follow; all other names contain "__" exactly once.
func consumerName(topic, group string) string {
	odd := strings.Contains(topic, "_") || strings.Contains(group, "_") || strings.Contains(group, "..") || strings.ToLower(group) != group
	t, g := strings.ReplaceAll(topic, ".", "_"), strings.ReplaceAll(group, ".", "_")
	if !odd && len(t)+len(g)+2 <= maxConsumerBytes {
		return t + "__" + g
	}
	return t[:min(len(t), cutTopicBytes)] + "__" + g[:min(len(g), cutGroupBytes)] + "__" + ce.ShortHash(topic+"\x00"+group)
}
