package adapter

import (
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

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
			event, delay := eventSubject("ev", topic, ce.KeyToken(key)), delaySubject("ev", topic, key)
			keyed := strings.TrimSuffix(keyedFilter("ev", topic), "*") + ce.KeyToken(key)
			for _, other := range topics {
				if got := matches(topicFilter("ev", other), event); got != (other == topic) {
					t.Errorf("filter of %s matches %s: %v", other, event, got)
				}
				if got := matches(keyedFilter("ev", other), keyed); got != (other == topic) {
					t.Errorf("filter of %s with keys matches %s: %v", other, keyed, got)
				}
				if matches(topicFilter("ev", other), keyed) || matches(keyedFilter("ev", other), event) || matches(keyedFilter("ev", other), delay) || matches(delayFilter("ev", other), keyed) {
					t.Errorf("filters of %s mix up %s, %s and %s", other, event, keyed, delay)
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
				event := partitionSubject("ev", topic, p, ce.KeyToken(key))
				if got, ok := parsePartition(event); !ok || got != p {
					t.Errorf("%s is in %v, %t", event, got, ok)
				}
				if !matches(partitionsFilter("ev", topic, "*"), event) || !matches(partitionsFilter("ev", topic, ce.KeyToken(key)), event) {
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
	for _, subject := range []string{"ev.a.*", "ev.a.b.*", "ev.a.P1.*", "ev.a.P.*.*", "ev.a.P01.*.*", "ev.a.Px.*.*", "ev.a.>", "ev.a.P1.*.*.*", "ev.ab.P1.*.*", "ev.a.K.*", "ev.a.b.K.*", "ev.a.S.*"} {
		if got := takesIn(subject, "ev", "a"); got != (subject == "ev.a.*" || subject == "ev.a.K.*") {
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
