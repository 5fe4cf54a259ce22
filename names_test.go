package jetbus_test

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
)

// check fails unless err matches want, or is nil where want is nil.
func check(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
	if err != nil && !utf8.ValidString(err.Error()) {
		t.Errorf("%s: error text %q is no UTF-8", what, err.Error())
	}
}

func TestValidTopic(t *testing.T) {
	valid := []string{
		"a", "0", "_", "-", "process.state", "heartbeat.received", "a.b.c.d", "a-b_c.9", "process.state.v2",
		"v1", "v10", "v", "vx", "v1x", "v0.a", "v01.a", "a.vv0", "a.v99999999999999999999", "dlq.process.state", "snapshot",
		strings.Repeat("x", jetbus.MaxTopicBytes), jetbus.SnapshotTopic(strings.Repeat("x", jetbus.MaxTopicBytes)),
		jetbus.DeadLetterTopic(strings.Repeat("x", jetbus.MaxTopicBytes)),
	}
	for _, name := range valid {
		check(t, name, jetbus.ValidTopic(name), nil)
	}
	invalid := []string{
		"", ".", "a.", ".a", "a..b", "A", "a.B", "a b", "a/b", "a*", "a.*", "a.>", ">", "a\x00", "a\n", "\xff",
		"caf\u00e9", "v0", "v01", "a.v0", "a.v00", "a.v01", "a\u2028", "a:b", "a$",
		strings.Repeat("x", jetbus.MaxTopicBytes+1), jetbus.SnapshotTopic(strings.Repeat("x", jetbus.MaxTopicBytes+1)),
		jetbus.DeadLetterTopic(strings.Repeat("x", jetbus.MaxTopicBytes+1)), ".snapshot", "dlq..snapshot",
	}
	for _, name := range invalid {
		check(t, name, jetbus.ValidTopic(name), jetbus.ErrInvalidTopic)
	}
	if err := jetbus.ValidTopic("caf\u00e9"); !strings.HasSuffix(err.Error(), `found "`+"\u00e9"+`"`) {
		t.Errorf("the error %q does not show the character that is wrong", err)
	}
}

var (
	topicGrammar  = regexp.MustCompile(`^[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)
	falseVersion  = regexp.MustCompile(`(^|\.)v0[0-9]*$`)
	reservedName  = regexp.MustCompile(`^(retry|dlq(\..*)?)$`)
	versionSuffix = regexp.MustCompile(`^(.*)\.v([1-9][0-9]{0,8})$`)
)

func FuzzValidTopic(f *testing.F) {
	for _, seed := range []string{"", "a", "process.state.v2", "a..b", "a.v0", "v01", "a.v1", "A", "\xff", "a.v99999999999999999999", "dlq.a", "dlq.dlq", "a.snapshot", "dlq.snapshot", "retry.snapshot"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		err := jetbus.ValidTopic(name)
		origin := strings.TrimSuffix(strings.TrimPrefix(name, "dlq."), ".snapshot")
		want := topicGrammar.MatchString(name) && len(origin) <= jetbus.MaxTopicBytes && !falseVersion.MatchString(name) && !reservedName.MatchString(origin)
		if (err == nil) != want {
			t.Fatalf("ValidTopic(%q) = %v, the grammar says %v", name, err, want)
		}
		if err != nil {
			check(t, name, err, jetbus.ErrInvalidTopic)
		}
		base, version := jetbus.TopicVersion(name)
		if version < 1 {
			t.Fatalf("TopicVersion(%q) = %q, %d", name, base, version)
		}
		if base != name && base+".v"+strconv.Itoa(version) != name {
			t.Fatalf("TopicVersion(%q) = %q, %d, which does not give the name back", name, base, version)
		}
		if m := versionSuffix.FindStringSubmatch(name); err == nil && m != nil && (base != m[1] || strconv.Itoa(version) != m[2]) {
			t.Fatalf("TopicVersion(%q) = %q, %d, want %q, %s", name, base, version, m[1], m[2])
		}
	})
}

func TestTopicVersion(t *testing.T) {
	for _, c := range []struct {
		name, base string
		version    int
	}{
		{"process.state", "process.state", 1},
		{"process.state.v1", "process.state", 1},
		{"process.state.v2", "process.state", 2},
		{"process.state.v10", "process.state", 10},
		{"a.v2.v3", "a.v2", 3},
		{"a.v2.b", "a.v2.b", 1},
		{"v2", "v2", 1},
		{"a.v", "a.v", 1},
		{"a.v2x", "a.v2x", 1},
		{"a.v0", "a.v0", 1},
		{"a.v02", "a.v02", 1},
		{"a.v99999999999999999999", "a.v99999999999999999999", 1},
		{"", "", 1},
	} {
		if base, version := jetbus.TopicVersion(c.name); base != c.base || version != c.version {
			t.Errorf("TopicVersion(%q) = %q, %d, want %q, %d", c.name, base, version, c.base, c.version)
		}
	}
}

func TestValidGroup(t *testing.T) {
	for _, name := range []string{"a", "ops", "Ops-1", "a.b", "a..b", "_", "-", "9", strings.Repeat("g", jetbus.MaxGroupBytes)} {
		check(t, name, jetbus.ValidGroup(name), nil)
	}
	for _, name := range []string{"", ".", ".a", "a.", "a b", "a/b", "a*", ">", "a\n", "\xff", "gr\u00fcn", strings.Repeat("g", jetbus.MaxGroupBytes+1)} {
		check(t, name, jetbus.ValidGroup(name), jetbus.ErrInvalidGroup)
	}
}

func TestValidHeader(t *testing.T) {
	for _, h := range [][2]string{
		{"x-a", ""},
		{"x-a", "b"},
		{"x-a.b_c-9", "v"},
		{"x-jetbus", "v"},
		{"x--", "v"},
		{"x-a", "two words"},
		{"x-a", "na\u00efve \U0001f600"},
		{"x-a", "a:b, <c>&\"d\""},
		{"x-a", "a\u2028b"},
		{"content-type", "application/json; charset=utf-8"},
		{"traceparent", "00-1-2-01"},
		{"tracestate", "a=1,b=2"},
		{"x-" + strings.Repeat("n", jetbus.MaxHeaderNameBytes-2), "v"},
		{strings.Repeat("N", jetbus.MaxHeaderNameBytes), "v"},
		{"x-a", strings.Repeat("v", jetbus.MaxHeaderValueBytes)},
		{"x", "v"},
		{"x-", "v"},
		{"a", "v"},
		{"X-a", "v"},
		{"x-A", "v"},
		{"User-Agent", "v"},
		{"_AMQP.delivery", "v"},
		{"!#$%&'*+-.^_`|~09azAZ", "v"},
		{"ce", "v"},
		{"nats", "v"},
		{"x-nats-a", "v"},
		{"status-code", "v"},
		{"x-tombstones", "v"},
		{"X-Tombstones", "v"},
	} {
		check(t, h[0]+"="+h[1], jetbus.ValidHeader(h[0], h[1]), nil)
	}
	for _, h := range [][2]string{
		{"", "v"},
		{"x-a:", "v"},
		{"x-a b", "v"},
		{"x-a\r\n", "v"},
		{"x-caf\u00e9", "v"},
		{"x-\xff", "v"},
		{"x-jetbus-a", "v"},
		{"x-jetbus-", "v"},
		{"X-Jetbus-a", "v"},
		{"Jetbus-Retry", "v"},
		{"jetbus-retry", "v"},
		{"ce-id", "v"},
		{"CE-Anything", "v"},
		{"ce-", "v"},
		{"Content-Type", "v"},
		{"Traceparent", "v"},
		{"TraceState", "v"},
		{"X-Tombstone", "1"},
		{"X-Schema-Version", "1"},
		{"X-Ce-A", "v"},
		{"x-ce-A", "v"},
		{"X-DLQ-topic", "v"},
		{"Nats-Msg-Id", "v"},
		{"nats-rollup", "sub"},
		{"NATS-Anything", "v"},
		{"Status", "503"},
		{"status", "503"},
		{"Description", "v"},
		{"a/b", "v"},
		{"a@b", "v"},
		{"(a)", "v"},
		{"\"a\"", "v"},
		{"[a]", "v"},
		{"{a}", "v"},
		{"a;b", "v"},
		{"a\x00", "v"},
		{" a", "v"},
		{"x-" + strings.Repeat("n", jetbus.MaxHeaderNameBytes-1), "v"},
		{strings.Repeat("N", jetbus.MaxHeaderNameBytes+1), "v"},
		{"x-a", strings.Repeat("v", jetbus.MaxHeaderValueBytes+1)},
		{"x-a", " v"},
		{"x-a", "v "},
		{"x-a", "\tv"},
		{"x-a", "\u00a0v"},
		{"x-a", "a\r\nNats-Rollup: sub"},
		{"x-a", "a\rb"},
		{"x-a", "a\nb"},
		{"x-a", "a\tb"},
		{"x-a", "a\x00b"},
		{"x-a", "a\x7fb"},
		{"x-a", "a\u0085b"},
		{"x-a", "a\xffb"},
		{"x-a", "a\ufffeb"},
	} {
		check(t, h[0]+"="+h[1], jetbus.ValidHeader(h[0], h[1]), jetbus.ErrInvalidHeader)
	}
}

func TestValidKey(t *testing.T) {
	for _, key := range []string{"", "a", " ", "a b", "a.b.*.>", "host/1", "\u00fc\U0001f600", "\u2028", strings.Repeat("k", jetbus.MaxKeyBytes)} {
		check(t, key, jetbus.ValidKey(key), nil)
	}
	for _, key := range []string{"\x00", "a\n", "\t", "\x1f", "\x7f", "\u0080", "\u009f", "\ufffe", "\U0010ffff", "\ufdd0", "\xff", "a\xc3", strings.Repeat("k", jetbus.MaxKeyBytes+1)} {
		check(t, key, jetbus.ValidKey(key), jetbus.ErrInvalidEvent)
	}
}
