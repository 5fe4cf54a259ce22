package registry

import (
	"strconv"
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// kind says what a key holds.
type kind int

const (
	kindUnknown  kind = iota // of a topic, of a kind that this release does not know
	kindVersion              // s.<topic>.v.<n>
	kindSettings             // s.<topic>.c
	kindReferrer             // s.<topic>.r.<n>.<referrer>.<m>
	kindGlobal               // g.c
	kindID                   // g.i.<id>
	kindForeign              // none of ours
)

// key is a parsed key of the bucket. kindReferrer uses all of its fields.
type key struct {
	kind  kind
	topic string
	n     int       // version or id
	by    Reference // who refers to version n
}

func topicPrefix(topic string) string { return "s." + token(topic) + "." }

func versionKey(r Reference) string { return topicPrefix(r.Topic) + "v." + strconv.Itoa(r.Version) }

func settingsKey(topic string) string { return topicPrefix(topic) + "c" }

func fenceKey(topic string) string { return topicPrefix(topic) + "f" }

func referrerKey(to, by Reference) string {
	return topicPrefix(to.Topic) + "r." + strconv.Itoa(to.Version) + "." + token(by.Topic) + "." + strconv.Itoa(by.Version)
}

const globalKey = "g.c"

func idKey(id int) string { return "g.i." + strconv.Itoa(id) }

// parseKey reads a key of the bucket.
func parseKey(s string) key {
	parts := strings.Split(s, ".")
	if parts[0] == "g" {
		return parseGlobalKey(s, parts)
	}
	if parts[0] != "s" || len(parts) < 3 {
		return key{kind: kindForeign}
	}
	topic, ok := parseToken(parts[1])
	if !ok || jetbus.ValidTopic(topic) != nil {
		return key{kind: kindForeign}
	}
	k := key{topic: topic}
	switch rest := parts[2:]; {
	case len(rest) == 1 && rest[0] == "c":
		k.kind = kindSettings
	case len(rest) == 2 && rest[0] == "v":
		if k.n, ok = parseNumber(rest[1]); ok {
			k.kind = kindVersion
		}
	case len(rest) == 4 && rest[0] == "r":
		referrer, ok1 := parseToken(rest[2])
		n, ok2 := parseNumber(rest[1])
		m, ok3 := parseNumber(rest[3])
		if ok1 && ok2 && ok3 && jetbus.ValidTopic(referrer) == nil {
			k.kind, k.n, k.by = kindReferrer, n, Reference{Topic: referrer, Version: m}
		}
	}
	return k
}

func parseGlobalKey(s string, parts []string) key {
	if s == globalKey {
		return key{kind: kindGlobal}
	}
	if len(parts) == 3 && parts[1] == "i" {
		if id, ok := parseNumber(parts[2]); ok {
			return key{kind: kindID, n: id}
		}
	}
	return key{kind: kindForeign}
}

// tokenByte reports whether a byte stands for itself in a token.
func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// token writes a name as one token of a key: bytes other than letters, digits,
// '_' and '-' as "=" and two hex digits.
func token(name string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(name) + 8)
	for i := range len(name) {
		c := name[i]
		if tokenByte(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('=')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String()
}

// parseToken is the inverse of token. It takes no other spelling, so that a name
// has one key.
func parseToken(s string) (name string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if tokenByte(s[i]) {
			b.WriteByte(s[i])
			continue
		}
		if s[i] != '=' || i+2 >= len(s) {
			return "", false
		}
		c, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		i += 2
	}
	name = b.String()
	return name, token(name) == s
}
