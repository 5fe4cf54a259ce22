package adapter

import (
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/seed-63e9a637/jetbus"
)

func TestKeyToken(t *testing.T) {
	for key, want := range map[string]string{
		"":               "_",
		"_":              "%5F",
		"__":             "__",
		"m-17":           "m-17",
		"Ops/eu:1@x$#!~": "Ops/eu:1@x$#!~",
		"a.b":            "a%2Eb",
		"*":              "%2A",
		">":              "%3E",
		"%":              "%25",
		"%2E":            "%252E",
		"a b%é":          "a%20b%25%C3%A9",
		"S":              "%53",
		"S1":             "%531",
		"P":              "%50",
		"P10":            "%5010",
		"P1x":            "P1x",
		"Sam":            "Sam",
		"s":              "s",
		"p1":             "p1",
		"\x00\n\x7f":     "%00%0A%7F",
	} {
		if got := keyToken(key); got != want {
			t.Errorf("keyToken(%q) = %q, want %q", key, got, want)
		}
		if got, ok := parseKeyToken(want); !ok || got != key {
			t.Errorf("parseKeyToken(%q) = %q, %v, want %q", want, got, ok, key)
		}
	}
	for _, token := range []string{"", "S", "P1", "a.b", "a b", "%41", "%2e", "%", "%2", "%GG", "é", "a*"} {
		if key, ok := parseKeyToken(token); ok {
			t.Errorf("parseKeyToken(%q) = %q, but keyToken does not make it", token, key)
		}
	}
}

func TestKeyTokenIsBounded(t *testing.T) {
	key := strings.Repeat("\xff", jetbus.MaxKeyBytes)
	if got := len(keyToken(key)); got != 3*jetbus.MaxKeyBytes {
		t.Errorf("the longest token has %d bytes, want %d", got, 3*jetbus.MaxKeyBytes)
	}
}

// checkToken fails unless token is one legal subject token without wildcards
// that is none of ours.
func checkToken(t *testing.T, key, token string) {
	t.Helper()
	bad := strings.IndexFunc(token, func(r rune) bool {
		return r > unicode.MaxASCII || unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(".*>", r)
	})
	switch {
	case token == "" || bad >= 0:
		t.Fatalf("keyToken(%q) = %q is no legal token", key, token)
	case len(token) > max(1, 3*len(key)):
		t.Fatalf("keyToken(%q) has %d bytes, more than three times as many", key, len(token))
	case token == "_" && key != "" || token == "S" || token[0] == 'P' && strings.Trim(token[1:], "0123456789") == "":
		t.Fatalf("keyToken(%q) = %q has a meaning", key, token)
	}
}

func FuzzKeyToken(f *testing.F) {
	for _, key := range []string{"", "_", "a", "a.b", "S", "P12", "%5F", "a b%é", "\xff"} {
		f.Add(key, "%"+key)
	}
	f.Fuzz(func(t *testing.T, key, other string) {
		token := keyToken(key)
		checkToken(t, key, token)
		if got, ok := parseKeyToken(token); !ok || got != key {
			t.Fatalf("parseKeyToken(keyToken(%q)) = %q, %v", key, got, ok)
		}
		if (keyToken(other) == token) != (other == key) {
			t.Fatalf("keys %q and %q, tokens %q and %q", key, other, token, keyToken(other))
		}
		if parsed, ok := parseKeyToken(other); ok && keyToken(parsed) != other {
			t.Fatalf("parseKeyToken accepts %q, which is not the token of %q", other, parsed)
		}
	})
}

// matches is the server's rule for a filter that has "*" tokens only.
func matches(filter, subject string) bool {
	f, s := strings.Split(filter, "."), strings.Split(subject, ".")
	if len(f) != len(s) {
		return false
	}
	for i := range f {
		if f[i] != "*" && f[i] != s[i] {
			return false
		}
	}
	return true
}

func TestSubjectsKeepTopicsApart(t *testing.T) {
	topics := []string{"a", "a.b", "a.b.c", "s", "a.s", "p1", "a.p1", "a.v2", "b"}
	keys := []string{"", "_", "S", "P1", "a", "b", "b.c", "*", ">"}
	for _, topic := range topics {
		for _, key := range keys {
			event, delay := eventSubject("ev", topic, keyToken(key)), delaySubject("ev", topic, key)
			for _, other := range topics {
				if got := matches(topicFilter("ev", other), event); got != (other == topic) {
					t.Errorf("filter of %s matches %s: %v", other, event, got)
				}
				if got := matches(delayFilter("ev", other), delay); got != (other == topic) {
					t.Errorf("delay filter of %s matches %s: %v", other, delay, got)
				}
				if matches(topicFilter("ev", other), delay) || matches(delayFilter("ev", other), event) {
					t.Errorf("filters of %s mix up %s and %s", other, event, delay)
				}
			}
		}
	}
}

// No filter of one topic's partitions matches the events of another topic, or of another
// partition; that of all of them is only used in the topic's own stream.
func TestSubjectsKeepPartitionsApart(t *testing.T) {
	topics := []string{"a", "a.b", "a.b.c", "a.p1", "a.b.c.d"}
	partitions := []jetbus.Partition{{Generation: 1}, {Generation: 1, Number: 1}, {Generation: 1, Number: 11}, {Generation: 2}, {Generation: 11, Number: 1}}
	for _, topic := range topics {
		for _, p := range partitions {
			for _, key := range []string{"", "a", "P1", "S", "0", "b.c"} {
				event := partitionSubject("ev", topic, p, keyToken(key))
				if got, ok := parsePartition(event); !ok || got != p {
					t.Errorf("%s is in %v, %t", event, got, ok)
				}
				if !matches(partitionsFilter("ev", topic, "*"), event) || !matches(partitionsFilter("ev", topic, keyToken(key)), event) {
					t.Errorf("the filters of all partitions miss %s", event)
				}
				for _, other := range topics {
					if matches(topicFilter("ev", other), event) || matches(delayFilter("ev", other), event) {
						t.Errorf("the filters of %s without partitions match %s", other, event)
					}
					for _, q := range partitions {
						same := topic == other && p == q
						if got := matches(partitionFilter("ev", other, q), event); got != same {
							t.Errorf("filter of %s %v matches %s: %v", other, q, event, got)
						}
						same = topic == other && p.Generation == q.Generation
						if got := matches(generationFilter("ev", other, q.Generation), event); got != same {
							t.Errorf("filter of %s, generation %d, matches %s: %v", other, q.Generation, event, got)
						}
						if got, want := takesIn(generationFilter("ev", other, q.Generation), "ev", topic), topic == other; got != want {
							t.Errorf("the stream of %s takes in %s: %v", other, topic, got)
						}
					}
				}
			}
		}
	}
	for _, subject := range []string{"ev.a.*", "ev.a.b.*", "ev.a.P1.*", "ev.a.P.*.*", "ev.a.P01.*.*", "ev.a.Px.*.*", "ev.a.>", "ev.a.P1.*.*.*", "ev.ab.P1.*.*"} {
		if got := takesIn(subject, "ev", "a"); got != (subject == "ev.a.*") {
			t.Errorf("%s takes in a: %v", subject, got)
		}
	}
}

func FuzzParsePartition(f *testing.F) {
	for _, s := range []string{"ev.t.P1.3._", "P1.0.k", "ev.t.P0.3._", "ev.t.P1.03._", "ev.t.P1.4096._", "ev.t.p1.3._", "ev.t.k", "..", "", "P1.3.", "P999999999.4095.a.b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, subject string) {
		p, ok := parsePartition(subject)
		if !ok {
			return
		}
		token := subject[strings.LastIndexByte(subject, '.')+1:]
		own := p.String() + "." + token
		if p.Generation < 1 || p.Number < 0 || p.Number >= jetbus.MaxPartitions || subject != own && !strings.HasSuffix(subject, "."+own) {
			t.Fatalf("%q is in %v", subject, p)
		}
	})
}

// names returns all names of one to three parts of a few letters and separators.
func names(valid func(string) error) []string {
	const letters = "ab_-.A"
	list, all := []string{""}, []string{}
	for range 5 {
		var longer []string
		for _, name := range list {
			for _, c := range letters {
				longer = append(longer, name+string(c))
			}
		}
		for _, name := range longer {
			if valid(name) == nil {
				all = append(all, name)
			}
		}
		list = longer
	}
	return all
}

// checkName fails unless name is a legal name of a stream or consumer that no
// other input has, on file systems without case either.
func checkName(t *testing.T, seen map[string]string, name, input string) {
	t.Helper()
	if name == "" || len(name) > 255 || strings.ContainsAny(name, ".*> /\\\t\r\n") {
		t.Fatalf("%s has the name %q, which is not legal", input, name)
	}
	fold := strings.ToLower(name)
	if other, ok := seen[fold]; ok && other != input {
		t.Fatalf("%s and %s share the name %q", input, other, name)
	}
	seen[fold] = input
}

func TestStreamName(t *testing.T) {
	for topic, want := range map[string]string{
		"process.state":          "EV_PROCESS_STATE",
		"heartbeat.received":     "EV_HEARTBEAT_RECEIVED",
		"heartbeat_received":     "EV_HEARTBEAT_RECEIVED__D557B3507D245EE6",
		"heartbeat-received.v2":  "EV_HEARTBEAT-RECEIVED_V2",
		strings.Repeat("a", 200): "EV_" + strings.Repeat("A", 179) + "__C2A908D98F5DF987",
	} {
		if got := streamName(topic); got != want {
			t.Errorf("streamName(%s) = %s, want %s", topic, got, want)
		}
	}
	seen := map[string]string{}
	all := names(jetbus.ValidTopic)
	long := strings.Repeat("a_", 100)
	all = append(all, long, long[:199], strings.Repeat("a.", 99)+"aa", strings.Repeat("a.", 99)+"ab", strings.Repeat("a", 200))
	for _, topic := range []string{"a_b", long} { // topics that read like a hashed name
		all = append(all, strings.ToLower(strings.TrimPrefix(streamName(topic), "EV_")))
	}
	for _, topic := range all {
		name := streamName(topic)
		checkName(t, seen, name, topic)
		if len(name) > maxStreamBytes {
			t.Errorf("streamName(%s) has %d bytes", topic, len(name))
		}
	}
	if len(seen) < 1000 {
		t.Fatalf("only %d names were compared", len(seen))
	}
}

func TestConsumerName(t *testing.T) {
	for _, c := range []struct{ topic, group, want string }{
		{"process.state", "ops", "process_state__ops"},
		{"process.state", "ops.eu-1", "process_state__ops_eu-1"},
		{"process.state", "ops_eu", "process_state__ops_eu__61be74a76c32d7f8"},
	} {
		if got := consumerName(c.topic, c.group); got != c.want {
			t.Errorf("consumerName(%s, %s) = %s, want %s", c.topic, c.group, got, c.want)
		}
	}
	var topics, groups []string
	for i, name := range names(jetbus.ValidTopic) {
		if i < 120 || i%29 == 0 {
			topics = append(topics, name)
		}
	}
	for i, name := range names(jetbus.ValidGroup) {
		if i < 160 || i%61 == 0 {
			groups = append(groups, name)
		}
	}
	long := strings.Repeat("t", 198)
	topics = append(topics, long+".a", long+".b", long)
	groups = append(groups, strings.Repeat("g", 99)+"1", strings.Repeat("g", 99)+"2", consumerName("a", "b_b"))
	seen := map[string]string{}
	for _, topic := range topics {
		for _, group := range groups {
			name := consumerName(topic, group)
			checkName(t, seen, name, topic+" "+group)
			if len(name) > maxConsumerBytes {
				t.Fatalf("consumerName(%s, %s) has %d bytes", topic, group, len(name))
			}
		}
	}
	if len(seen) < 10_000 {
		t.Fatalf("only %d names were compared", len(seen))
	}
}

func BenchmarkKeyToken(b *testing.B) {
	for _, key := range []string{"machine-0017", "a b%é"} {
		b.Run(fmt.Sprintf("%q", key), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				keyToken(key)
			}
		})
	}
}
