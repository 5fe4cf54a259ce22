package jetbus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

func TestDeadLetterTopic(t *testing.T) {
	for topic, want := range map[string]string{"orders": "dlq.orders", "orders.v2": "dlq.orders.v2", "dlq.orders": "", "dlqs": "dlq.dlqs"} {
		if got := jetbus.DeadLetterTopic(topic); got != want {
			t.Errorf("dead letters of %s are in %q, want %q", topic, got, want)
		}
	}
	longest := strings.Repeat("a", jetbus.MaxTopicBytes)
	check(t, "the topic of the longest name's dead letters", jetbus.ValidTopic(jetbus.DeadLetterTopic(longest)), nil)
	for _, name := range []string{"dlq", "retry", "dlq.dlq.a", "dlq.dlq", "dlq.retry"} {
		check(t, name, jetbus.ValidTopic(name), jetbus.ErrInvalidTopic)
	}
}

// dead is a dead letter with everything in it.
func dead() jetbus.DeadLetter {
	e := typical()
	return jetbus.DeadLetter{
		Event: e, Group: "mailer", Stream: "EV_orders", StreamCreated: time.Unix(1_700_000_000, 123_456_789).UTC(),
		Reason: jetbus.DeadMaxAttempts, Error: "dial tcp 10.0.0.7:25: connection refused", Stack: "mail.send(...)\n\t/app/mail.go:12", Attempts: 5,
		FirstFailed: time.UnixMilli(1_750_000_001_000).UTC(), LastFailed: time.UnixMilli(1_750_000_009_000).UTC(), Replays: 2, ReplayOf: 9,
	}
}

// stored is the record of a dead letter as a bus hands it out again.
func stored(d jetbus.DeadLetter, seq uint64) jetbus.Event {
	e := d.Record()
	e.ID, e.Seq, e.Time = "0197a3c4-0000-7000-8000-0000000000ff", seq, time.UnixMilli(1_750_000_010_000).UTC()
	return e
}

func TestDeadLetterRecord(t *testing.T) {
	d := dead()
	e := stored(d, 17)
	if e.Topic != "dlq."+d.Event.Topic || string(e.Payload) != string(d.Event.Payload) || e.Headers["x-schema-version"] != "2" || e.CausedBy[0] != d.Event.ID {
		t.Errorf("the record does not show the original: %+v", e)
	}
	want := map[string]string{
		"x-dlq-topic": "process.state.v2", "x-dlq-group": "mailer", "x-dlq-seq": "42", "x-dlq-reason": "max_attempts", "x-dlq-attempts": "5",
		"x-dlq-ce-partitionkey": "host-1/4711", "x-dlq-ce-tags": "prod,eu", "x-dlq-stream-created": "2023-11-14T22:13:20.123456789Z",
	}
	for name, value := range want {
		if e.Headers[name] != value {
			t.Errorf("header %s is %q, want %q", name, e.Headers[name], value)
		}
	}
	got, err := jetbus.ParseDeadLetter(e)
	d.ID, d.Seq, d.Time = e.ID, e.Seq, e.Time
	if diff := cmp.Diff(d, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

// drawText is text that events allow, with what is hard in headers.
func drawText(t *rapid.T, name string, most int) string {
	runes := rapid.SampledFrom([]rune("ab -_.,;:%/\"'=+\u00e9\u2028\u00a0\U0001F600"))
	return rapid.StringOfN(runes, 0, most, most).Draw(t, name)
}

// drawEvent is any valid event as a bus stores it.
func drawEvent(t *rapid.T) jetbus.Event {
	lists := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string { return "i" + drawText(t, "item", 60) }), 0, 200)
	e := jetbus.Event{
		ID: strings.TrimSpace(drawText(t, "id", jetbus.MaxIDBytes)), SID: drawText(t, "sid", 512), Topic: "orders.created",
		Time: drawTime(t, "time").UTC(), Key: drawText(t, "key", jetbus.MaxKeyBytes), Partition: rapid.IntRange(-1, 64).Draw(t, "partition"),
		Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"), CausedBy: lists.Draw(t, "causedBy"), Tags: lists.Draw(t, "tags"),
		Seq: rapid.Uint64Min(1).Draw(t, "seq"), Headers: map[string]string{},
	}
	names := rapid.SampledFrom([]string{"x-a", "x-dlq-", "x-dlq-h-", "x-dlq-reason", "x-dlq-replays", "x-trace.id", "x-"})
	for i := range rapid.IntRange(0, jetbus.MaxHeaders).Draw(t, "headers") {
		name := fmt.Sprintf("%s%d%s", names.Draw(t, "name"), i, strings.Repeat("n", rapid.SampledFrom([]int{0, 0, 0, 60, 80}).Draw(t, "pad")))
		e.Headers[name] = strings.TrimSpace(drawText(t, "value", rapid.SampledFrom([]int{0, 9, 200, jetbus.MaxHeaderValueBytes}).Draw(t, "size")))
	}
	for name := range e.Headers {
		if len(name) > jetbus.MaxHeaderNameBytes {
			delete(e.Headers, name)
		}
	}
	return e
}

// The record of any valid event is valid, and gives the event back whole, or
// says that it does not.
func TestDeadLetterRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := jetbus.DeadLetter{
			Event: drawEvent(t), Group: "g." + strings.Repeat("G", rapid.IntRange(1, 98).Draw(t, "group")),
			Stream:        "S" + strings.ReplaceAll(strings.ReplaceAll(drawText(t, "stream", 250), "/", ""), ".", ""),
			StreamCreated: time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "created"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")).UTC(),
			Reason:        jetbus.DeadSchema, Error: strings.TrimSpace(drawText(t, "error", 900)),
			Attempts: rapid.IntRange(0, 9).Draw(t, "attempts"), Replays: rapid.IntRange(0, math.MaxInt32).Draw(t, "replays"),
			ReplayOf:  rapid.Uint64().Draw(t, "replayOf"),
			Truncated: rapid.Bool().Draw(t, "truncated"),
		}
		if err := d.Event.Validate(); err != nil {
			t.Fatalf("the test draws an event that is not valid: %v", err)
		}
		e := d.Record()
		if err := e.Validate(); err != nil {
			t.Fatal(err)
		}
		bytes := 0
		for name, value := range e.Headers {
			bytes += len(name) + len(value)
		}
		if bytes > 48<<10+100 {
			t.Fatalf("headers of %d bytes", bytes)
		}
		got, err := jetbus.ParseDeadLetter(e)
		if err != nil {
			t.Fatal(err)
		}
		if d.Truncated {
			d.Event.Payload = nil
		}
		if got.Truncated { // parts may be missing, none may be wrong
			for name, value := range got.Event.Headers {
				if d.Event.Headers[name] != value {
					t.Fatalf("header %s became %q", name, value)
				}
			}
			for _, lists := range [][2][]string{{d.Event.CausedBy, got.Event.CausedBy}, {d.Event.Tags, got.Event.Tags}} {
				if len(lists[1]) > 0 && !cmp.Equal(lists[0], lists[1]) {
					t.Fatal(cmp.Diff(lists[0], lists[1]))
				}
			}
			d.Truncated, got.Event.Headers, got.Event.CausedBy, got.Event.Tags = true, d.Event.Headers, d.Event.CausedBy, d.Event.Tags
		}
		if diff := cmp.Diff(d, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// What a valid event can have at most fits into a record.
func TestDeadLetterOfLargestEvent(t *testing.T) {
	d := dead()
	d.Error = strings.Repeat("e\n", 5000)
	d.Event.Headers = map[string]string{}
	for i := range jetbus.MaxHeaders {
		d.Event.Headers[fmt.Sprintf("x-%d", i)] = strings.Repeat("v", jetbus.MaxHeaderValueBytes)
	}
	for len(d.Event.CausedBy) < 250 {
		d.Event.CausedBy = append(d.Event.CausedBy, strings.Repeat("\u00e9", 32))
	}
	check(t, "the original", d.Event.Validate(), nil)
	e := stored(d, 1)
	check(t, "its record", e.Validate(), nil)
	got, err := jetbus.ParseDeadLetter(e)
	if err != nil || !got.Truncated || len(got.Event.CausedBy) > 0 || len(got.Event.Headers) == 0 || string(got.Event.Payload) != string(d.Event.Payload) || len(got.Error) > 1<<10 || strings.Contains(got.Error, "\n") {
		t.Errorf("%v, truncated %v, %d headers, %d bytes of error", err, got.Truncated, len(got.Event.Headers), len(got.Error))
	}
}

func TestDeadLetterKey(t *testing.T) {
	d := dead()
	keys := map[string]string{}
	add := func(what string) {
		t.Helper()
		key := d.Key()
		check(t, key, jetbus.ValidKey(key), nil)
		if other, ok := keys[key]; ok {
			t.Errorf("%s has the key of %s, %s", what, other, key)
		}
		keys[key] = what
	}
	add("the dead letter")
	d.Replays++
	add("one after another replay")
	d.ReplayOf++
	add("one of the same number after the replay of another dead letter")
	d.Event.Seq++
	add("another event")
	d.Group = strings.Repeat("g", jetbus.MaxGroupBytes)
	add("another group")
	d.StreamCreated = d.StreamCreated.Add(1)
	add("a stream made anew")
	for pad := range 4 {
		d.Stream = strings.Repeat("s", pad) + strings.Repeat("\u00e9", 120)
		d.Event.Seq, d.Replays, d.ReplayOf = math.MaxUint64, math.MaxInt32, math.MaxUint64
		add(fmt.Sprintf("a long stream's name, %d", pad))
	}
}

func TestParseDeadLetterRefuses(t *testing.T) {
	for name, change := range map[string]func(map[string]string){
		"nothing of it":    func(h map[string]string) { clear(h) },
		"another topic":    func(h map[string]string) { h["x-dlq-topic"] = "payments" },
		"a topic of such":  func(h map[string]string) { h["x-dlq-topic"] = "dlq.process.state.v2" },
		"no group":         func(h map[string]string) { delete(h, "x-dlq-group") },
		"a bad group":      func(h map[string]string) { h["x-dlq-group"] = "a b" },
		"no sequence":      func(h map[string]string) { delete(h, "x-dlq-seq") },
		"a bad lineage":    func(h map[string]string) { h["x-dlq-replay-of"] = "d17" },
		"a bad sequence":   func(h map[string]string) { h["x-dlq-seq"] = "-1" },
		"bad attempts":     func(h map[string]string) { h["x-dlq-attempts"] = "many" },
		"negative replays": func(h map[string]string) { h["x-dlq-replays"] = "-2" },
		"a bad partition":  func(h map[string]string) { h["x-dlq-partition"] = "p" },
		"a bad time":       func(h map[string]string) { h["x-dlq-ce-time"] = "yesterday" },
		"a bad key":        func(h map[string]string) { h["x-dlq-ce-partitionkey"] = "%zz" },
		"an invalid key":   func(h map[string]string) { h["x-dlq-ce-partitionkey"] = "%00" },
		"a cut list":       func(h map[string]string) { h["x-dlq-ce-tags"] = "a,b%" },
		"an empty item":    func(h map[string]string) { h["x-dlq-ce-causedby"] = "a,,b" },
	} {
		e := stored(dead(), 3)
		e.Headers = maps.Clone(e.Headers)
		change(e.Headers)
		d, err := jetbus.ParseDeadLetter(e)
		if !errors.Is(err, jetbus.ErrUndecodable) || !cmp.Equal(d, jetbus.DeadLetter{}) {
			t.Errorf("%s: read as %+v, %v", name, d, err)
		}
	}
}

// What was read once is read the same after it was written again.
func FuzzParseDeadLetter(f *testing.F) {
	for _, d := range []jetbus.DeadLetter{dead(), {}, {Event: jetbus.Event{Topic: "orders", Partition: 3}, Group: "g", Truncated: true}} {
		h, err := json.Marshal(d.Record().Headers)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(h, []byte(`{"a":1}`))
	}
	f.Add([]byte(`{"x-dlq-topic":"orders","x-dlq-group":"g","x-dlq-seq":"1","x-dlq-ce-source":" %00 ","x-dlq-ce-time":"0000-01-01T00:00:00+23:59"}`), []byte(nil))
	f.Fuzz(func(t *testing.T, headers, payload []byte) {
		var h map[string]string
		if json.Unmarshal(headers, &h) != nil {
			return
		}
		topic := "dlq.orders"
		if jetbus.ValidTopic(h["x-dlq-topic"]) == nil {
			topic = jetbus.DeadLetterTopic(h["x-dlq-topic"])
		}
		read, err := jetbus.ParseDeadLetter(jetbus.Event{ID: "1", Topic: topic, Headers: h, Payload: payload, Seq: 9})
		if err != nil {
			if !errors.Is(err, jetbus.ErrUndecodable) {
				t.Fatal(err)
			}
			return
		}
		first, err := jetbus.ParseDeadLetter(read.Record())
		if err != nil {
			t.Fatalf("%+v cannot be written: %v", read, err)
		}
		second, err := jetbus.ParseDeadLetter(first.Record())
		if diff := cmp.Diff(first, second, cmpopts.EquateEmpty()); diff != "" || err != nil {
			t.Fatal(err, diff)
		}
		if !read.Truncated && !first.Truncated && !cmp.Equal(read.Event, first.Event, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(jetbus.Event{}, "ID")) {
			t.Fatal(cmp.Diff(read.Event, first.Event))
		}
	})
}

func TestDeadLetterJSON(t *testing.T) {
	d := dead()
	d.ID, d.Seq, d.Time, d.Replayed, d.Truncated = "x", 17, time.UnixMilli(1_750_000_010_000).UTC(), time.UnixMilli(1_750_000_020_000).UTC(), true
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"id":"x","seq":17,"ts":1750000010000,"group":"mailer","reason":"max_attempts","error":"dial tcp 10.0.0.7:25: connection refused",` +
		`"stack":"mail.send(...)\n\t/app/mail.go:12","attempts":5,"firstFailed":1750000001000,"lastFailed":1750000009000,"replays":2,"replayOf":9,"replayed":1750000020000,"truncated":true,` +
		`"stream":"EV_orders","streamCreated":"2023-11-14T22:13:20.123456789Z","event":{"id":"0197a3c4-`
	if !strings.HasPrefix(string(text), want) {
		t.Errorf("got  %s\nwant %s...", text, want)
	}
	var again jetbus.DeadLetter
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	d.Event.Payload = []byte(strings.NewReplacer(", ", ",", ": ", ":").Replace(string(d.Event.Payload))) // json.Marshal compacts
	if diff := cmp.Diff(d, again, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	binary := jetbus.DeadLetter{Event: jetbus.Event{Payload: []byte("\xff<"), Partition: jetbus.NoPartition}, Group: "g"}
	if text, err = json.Marshal(binary); err != nil || json.Unmarshal(text, &again) != nil || !cmp.Equal(binary, again, cmpopts.EquateEmpty()) {
		t.Errorf("%s, %v: %s", text, err, cmp.Diff(binary, again))
	}
	for _, bad := range []string{`[]`, `{"seq":"x"}`, `{"event":[]}`} {
		if err := json.Unmarshal([]byte(bad), &again); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}
