package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// Permission is what a scope allows, upon the names that its pattern covers.
type Permission string

// The permissions. In a token each stands before a pattern: "topic:read:orders.>".
const (
	TopicRead   Permission = "topic:read"   // read a topic, and subscribe to it without a group
	TopicWrite  Permission = "topic:write"  // publish
	GroupJoin   Permission = "group:join"   // take events as a member of a group; TopicRead is needed too
	GroupSeek   Permission = "group:seek"   // move a group
	DeadRead    Permission = "dlq:read"     // read the dead letters of a topic
	DeadReplay  Permission = "dlq:replay"   // replay and purge them; into another topic with dlq:read alone
	SchemaRead  Permission = "schema:read"  // read the schemas of a topic
	SchemaWrite Permission = "schema:write" // register, configure and delete them
	OpsRead     Permission = "ops:read"     // see all topics and groups, but no payloads; takes no pattern
	OpsAdmin    Permission = "ops:admin"    // change them; takes no pattern, and has OpsRead in it
)

var permissions = []Permission{TopicRead, TopicWrite, GroupJoin, GroupSeek, DeadRead, DeadReplay, SchemaRead, SchemaWrite, OpsRead, OpsAdmin}

// takesPattern reports whether a scope of p names what it is about.
func (p Permission) takesPattern() bool { return p != OpsRead && p != OpsAdmin }

// Scopes are permissions with patterns: those of a token. The zero value allows nothing.
// They do not change, and may be used by several goroutines.
type Scopes struct {
	patterns map[Permission][]string
	all      bool
}

// ErrInvalidScope says that a scope cannot be read. Nothing is allowed by halves: a token
// with such a scope does not count.
var ErrInvalidScope = errors.New("invalid scope")

// Bounds of what a token says.
const (
	maxScopes       = 256
	maxPatternBytes = jetbus.MaxTopicBytes + 4 // with "dlq."
)

// AllScopes allows everything that can be allowed.
func AllScopes() Scopes { return Scopes{all: true} }

// ParseScopes reads scopes, "<permission>:<pattern>" each, such as "topic:read:orders.>";
// ops:read and ops:admin take no pattern. Patterns are tokens between dots: "*" stands for
// one token and ">", at the end, for one or more. "{sub}" stands for the subject, which
// must be a token then: letters, digits, '_' and '-'.
//
// A wildcard in front covers neither dead letters nor topics that begin with '_', which are
// the bus's own: these are read where a scope names them, and never written.
// The error wraps [ErrInvalidScope].
func ParseScopes(subject string, scopes ...string) (Scopes, error) {
	if len(scopes) > maxScopes {
		return Scopes{}, fmt.Errorf("%w: %d scopes, at most %d are allowed", ErrInvalidScope, len(scopes), maxScopes)
	}
	s := Scopes{patterns: map[Permission][]string{}}
	for _, text := range scopes {
		p, pattern, err := parseScope(subject, text)
		if err != nil {
			return Scopes{}, err
		}
		if !slices.Contains(s.patterns[p], pattern) {
			s.patterns[p] = append(s.patterns[p], pattern)
		}
	}
	return s, nil
}

// parseScope reads one scope.
func parseScope(subject, text string) (Permission, string, error) {
	for _, p := range permissions {
		rest, ok := strings.CutPrefix(text, string(p))
		switch {
		case !ok:
			continue
		case !p.takesPattern() && rest == "":
			return p, ">", nil
		case !p.takesPattern() || !strings.HasPrefix(rest, ":"):
			continue
		}
		pattern := rest[1:]
		if strings.Contains(pattern, "{sub}") {
			if !isToken(subject) {
				return "", "", fmt.Errorf("%w: %.100q: the subject %.100q cannot stand in a pattern: use letters, digits, '_' and '-'", ErrInvalidScope, text, subject)
			}
			pattern = strings.ReplaceAll(pattern, "{sub}", subject)
		}
		if !validPattern(pattern) {
			return "", "", fmt.Errorf("%w: %.100q: a pattern is tokens between dots, of letters, digits, '_' and '-', or *, and > at the end", ErrInvalidScope, text)
		}
		return p, pattern, nil
	}
	return "", "", fmt.Errorf("%w: %.100q: a scope is <permission>:<pattern>, as in topic:read:orders.>, or ops:read or ops:admin", ErrInvalidScope, text)
}

// isToken reports whether s is a token of a name.
func isToken(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	}) < 0
}

func validPattern(pattern string) bool {
	if len(pattern) > maxPatternBytes {
		return false
	}
	ended := false
	for token := range strings.SplitSeq(pattern, ".") {
		if ended || token != "*" && token != ">" && !isToken(token) {
			return false
		}
		ended = token == ">"
	}
	return true
}

// Allow reports whether the scopes allow p upon a name: a topic, or a group for the
// permissions of groups. Dead letters are read with [DeadRead] of their origin.
// For OpsRead and OpsAdmin the name does not matter.
func (s Scopes) Allow(p Permission, name string) bool {
	if !p.takesPattern() {
		return s.all || len(s.patterns[p]) > 0 || p == OpsRead && len(s.patterns[OpsAdmin]) > 0
	}
	return name != "" && !strings.ContainsAny(name, "*>") && s.AllowPattern(p, name)
}

// AllowPattern reports whether the scopes allow p upon every name that the pattern covers:
// one of theirs must cover them all.
func (s Scopes) AllowPattern(p Permission, pattern string) bool {
	if !p.takesPattern() {
		return s.Allow(p, "")
	}
	group := p == GroupJoin || p == GroupSeek
	if pattern == "" || !group && !validPattern(pattern) || group && strings.ContainsAny(pattern, " \t\r\n\x00") {
		return false
	}
	if !group {
		origin, dead := strings.CutPrefix(pattern, jetbus.DeadLetterTopic(""))
		switch {
		case p == TopicWrite && (dead || pattern[0] == '_'):
			return false
		case p == TopicRead && dead:
			return s.AllowPattern(DeadRead, origin)
		}
	}
	if s.all {
		return true
	}
	return slices.ContainsFunc(s.patterns[p], func(mine string) bool {
		if !group && pattern[0] == '_' && (mine[0] == '*' || mine[0] == '>') {
			return false
		}
		return covers(mine, pattern)
	})
}

// covers reports whether every name that b covers is covered by a. A name is a pattern
// that covers itself.
func covers(a, b string) bool {
	for {
		x, restA, moreA := strings.Cut(a, ".")
		y, restB, moreB := strings.Cut(b, ".")
		switch {
		case x == ">":
			return true
		case y == ">", y == "", x != "*" && x != y:
			return false
		case !moreA || !moreB:
			return moreA == moreB
		}
		a, b = restA, restB
	}
}

// mayJoin reports whether the principal may take events of the topic as a member of the
// group. Groups named u.<subject>, or that and more tokens, are its own.
func (p Principal) mayJoin(topic, group string) bool {
	return p.Scopes.Allow(TopicRead, topic) && (p.Scopes.Allow(GroupJoin, group) || p.owns(group))
}

// mayDelete reports whether the principal may delete the group from the topic.
func (p Principal) mayDelete(topic, group string) bool {
	return p.Scopes.Allow(OpsAdmin, "") || p.Scopes.Allow(TopicRead, topic) && p.owns(group)
}

// maySeek reports whether the principal may move the group in the topic.
func (p Principal) maySeek(topic, group string) bool {
	return p.Scopes.Allow(TopicRead, topic) && (p.Scopes.Allow(GroupSeek, group) || p.owns(group))
}

// personalPrefix is the prefix of the names of groups that belong to subjects.
const personalPrefix = "u."

func (p Principal) owns(group string) bool {
	rest, ok := strings.CutPrefix(group, personalPrefix+p.Subject)
	return ok && isToken(p.Subject) && (rest == "" || rest[0] == '.')
}
