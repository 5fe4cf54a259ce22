package adapter

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Subjects are <prefix>.<topic>.<key token>, and <prefix>.<topic>.S.<id token>
// for events that wait for their time. Topic segments are lower case, so "S" and
// "P1" are never one of them, and every subject of a topic has a fixed number of
// tokens, so that the filter of a topic does not match the events of a longer one.

// noKey is the token of the empty key.
const noKey = "_"

// delayToken stands before the id token of an event that waits.
const delayToken = "S"

// keyToken returns the subject token of a key: "_" for the empty key, the key
// itself where it is printable ASCII that means nothing in a subject, otherwise
// the key with each other byte as "%" and two upper-case hex digits. A key that
// could be taken for a token of ours ("_", "S", "P1") has its first byte
// escaped. Different keys have different tokens, at most three times as long.
func keyToken(key string) string {
	if key == "" {
		return noKey
	}
	first := reservedToken(key)
	if !first && !tokenEscape.anyIn(key) {
		return key
	}
	var b strings.Builder
	b.Grow(len(key) + 16)
	if first {
		writeEscape(&b, key[0])
		key = key[1:]
	}
	tokenEscape.write(&b, key)
	return b.String()
}

// parseKeyToken returns the key of a token, and false for a token that keyToken
// does not make.
func parseKeyToken(token string) (key string, ok bool) {
	if token == noKey {
		return "", true
	}
	key = unescape(token)
	if key == "" || keyToken(key) != token {
		return "", false
	}
	return key, true
}

// reservedToken reports whether a key reads like a token with a meaning: "_", or
// one of the upper-case letters P and S alone or with digits.
func reservedToken(key string) bool {
	if key == noKey {
		return true
	}
	return (key[0] == 'P' || key[0] == 'S') && strings.Trim(key[1:], "0123456789") == ""
}

// eventSubject is where an event with this key token is stored.
func eventSubject(prefix, topic, token string) string { return prefix + "." + topic + "." + token }

// topicFilter matches the events of the topic and nothing else.
func topicFilter(prefix, topic string) string { return prefix + "." + topic + ".*" }

// delaySubject is where the event with this id waits for its time.
func delaySubject(prefix, topic, id string) string {
	return prefix + "." + topic + "." + delayToken + "." + keyToken(id)
}

// delayFilter matches the waiting events of the topic and nothing else.
func delayFilter(prefix, topic string) string {
	return prefix + "." + topic + "." + delayToken + ".*"
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
	hash := "__" + strings.ToUpper(shortHash(topic))
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
	return t[:min(len(t), cutTopicBytes)] + "__" + g[:min(len(g), cutGroupBytes)] + "__" + shortHash(topic+"\x00"+group)
}

// shortHash is 64 bits of a hash that is the same in every version, in 16 lower-case hex digits.
func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}
