package jetbus_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

// decode reads an event that must be one.
func decode(t testing.TB, text []byte) jetbus.Event {
	t.Helper()
	var e jetbus.Event
	if err := json.Unmarshal(text, &e); err != nil {
		t.Fatalf("unmarshal %s: %v", text, err)
	}
	return e
}

func encode(t testing.TB, e *jetbus.Event) []byte {
	t.Helper()
	text, err := jetbus.AppendJSON(nil, e)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) || !utf8.Valid(text) {
		t.Fatalf("%q is no JSON", text)
	}
	return text
}

func TestEventJSON(t *testing.T) {
	e := typical()
	const want = `{"id":"0197a3c4-5b6d-7e8f-9a0b-1c2d3e4f5a6b","sid":"boot-1","ts":1750000000123,"topic":"process.state.v2",` +
		`"key":"host-1/4711","headers":{"content-type":"application/json","x-schema-version":"2"},` +
		`"caused_by":["0197a3c4-0000-7000-8000-000000000001"],"tags":["prod","eu"],"seq":42,` +
		`"payload":{"pid": 4711, "name": "nginx", "cpu": 0.25}}`
	text, err := jetbus.AppendJSON([]byte("data: "), &e)
	if err != nil || string(text) != "data: "+want {
		t.Errorf("got  %s, %v\nwant data: %s", text, err, want)
	}
	if diff := cmp.Diff(e, decode(t, []byte(want))); diff != "" {
		t.Error(diff)
	}
	compact, err := json.Marshal(e)
	if err != nil || string(compact) != strings.ReplaceAll(strings.ReplaceAll(want, ", ", ","), ": ", ":") {
		t.Errorf("json.Marshal: %s, %v", compact, err)
	}
	if got := string(encode(t, &jetbus.Event{Partition: jetbus.NoPartition})); got != `{"id":"","topic":""}` {
		t.Errorf("an event with nothing: %s", got)
	}
	if got := string(encode(t, &jetbus.Event{Partition: 0, Headers: map[string]string{"x-a": "<&>"}})); got != `{"id":"","topic":"","partition":0,"headers":{"x-a":"<&>"}}` {
		t.Errorf("partition 0 and HTML in a header: %s", got)
	}
	if got := decode(t, []byte(`{"unknown":{"a":[]},"topic":"a"}`)); !cmp.Equal(got, jetbus.Event{Topic: "a", Partition: jetbus.NoPartition}) {
		t.Errorf("unknown members: %+v", got)
	}
}

// JSON payloads keep their bytes, all others are base64 and keep theirs.
func TestEventJSONPayload(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, payload := range []string{
		`null`, `""`, `0`, `false`, `{}`, `[]`, `{"a" : [ 1 ,	2 ] }`, "{\n  \"a\": 1\r\n}", `"<b>&amp;</b>"`, `123456789012345678901234567890.10e+0400`,
		`{"a":1,"a":2}`, "\"\u2028\u2029\"", `"\u2028\/\ud800"`, `"\\\"[[["`, `1e999`, `-0.0`, nested(1000), `"` + strings.Repeat("[", 2000) + `"`,
	} {
		e := jetbus.Event{Payload: []byte(payload)}
		text := encode(t, &e)
		if !strings.HasSuffix(string(text), `,"payload":`+payload+`}`) {
			t.Errorf("payload %.50q became %.100q", payload, text)
		}
		if got := decode(t, text); string(got.Payload) != payload {
			t.Errorf("payload %.50q came back as %.50q", payload, got.Payload)
		}
	}
	for _, payload := range []string{
		"\x00", "\xff\xfe", "hello", " ", "\n", "nul", "{", `{"a":1}{"b":2}`, "'a'", "NaN", "01", "\"a\nb\"", "\ufeff{}",
		"\"\xff\"", "{\"a\":\"\xc3\"}", // JSON to encoding/json, but no UTF-8
		nested(1001), nested(10_000), nested(10_001),
	} {
		e := jetbus.Event{Payload: []byte(payload)}
		text := encode(t, &e)
		if !strings.Contains(string(text), `"payload_base64":"`) {
			t.Errorf("payload %.50q became %.100q", payload, text)
		}
		if got := decode(t, text); string(got.Payload) != payload {
			t.Errorf("payload %.50q came back as %.50q", payload, got.Payload)
		}
	}
	for _, payload := range [][]byte{nil, {}} {
		e := jetbus.Event{Payload: payload}
		if text := encode(t, &e); strings.Contains(string(text), "payload") {
			t.Errorf("an empty payload became %s", text)
		}
	}
}

// White space around a JSON payload, as that of encoders which end with a line end, is
// beside the value, and not in the way of who reads only that.
func TestEventJSONPayloadSpace(t *testing.T) {
	for payload, want := range map[string]string{
		"{\"a\": 1}\n":   `"payload_space":["","\n"],"payload":{"a": 1}}`,
		" \t{\"a\": 1}":  `"payload_space":[" \t",""],"payload":{"a": 1}}`,
		"\r\n\"x\" \r\n": `"payload_space":["\r\n"," \r\n"],"payload":"x"}`,
	} {
		e := jetbus.Event{Payload: []byte(payload)}
		text := encode(t, &e)
		if !strings.HasSuffix(string(text), want) {
			t.Errorf("payload %q became %s", payload, text)
		}
		if got := decode(t, text); string(got.Payload) != payload {
			t.Errorf("payload %q came back as %q", payload, got.Payload)
		}
	}
	if got := decode(t, []byte(`{"payload": {"a": 1} }`)); string(got.Payload) != `{"a": 1}` {
		t.Errorf("white space of somebody else's form: %q", got.Payload)
	}
	for _, text := range []string{
		`{"payload_space":[""," "]}`, `{"payload_space":["x",""],"payload":1}`, `{"payload_space":["1",""],"payload":1}`,
		`{"payload_space":["",""],"payload_base64":"MQ=="}`, `{"payload_space":"","payload":1}`,
	} {
		var e jetbus.Event
		if err := json.Unmarshal([]byte(text), &e); err == nil {
			t.Errorf("%s became %+v", text, e)
		}
	}
}

func TestEventJSONTime(t *testing.T) {
	for _, at := range []time.Time{
		{},
		time.UnixMilli(0), time.UnixMilli(1), time.UnixMilli(-1), time.UnixMilli(-1001), time.UnixMilli(1_750_000_000_123),
		time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC),
		time.Time{}.Add(time.Millisecond), time.Time{}.Add(-time.Millisecond),
		time.Date(2025, 1, 2, 3, 4, 5, 6e6, time.FixedZone("", 3600)),
	} {
		e := jetbus.Event{Time: at}
		text := encode(t, &e)
		got := decode(t, text)
		if !got.Time.Equal(at) || got.Time.Location() != time.UTC || got.Time.IsZero() != at.IsZero() {
			t.Errorf("%v became %s became %v", at, text, got.Time)
		}
		if at.IsZero() == strings.Contains(string(text), `"ts"`) {
			t.Errorf("%v became %s", at, text)
		}
	}
	// What is finer than a millisecond is cut off downwards, also before 1970.
	for ns, ms := range map[int64]int64{1_999_999: 1, -1: -1, -1_000_001: -2} {
		e := jetbus.Event{Time: time.Unix(0, ns)}
		if got := decode(t, encode(t, &e)).Time; !got.Equal(time.UnixMilli(ms)) {
			t.Errorf("%d ns became %v", ns, got)
		}
	}
}

func TestEventJSONRefused(t *testing.T) {
	for _, text := range []string{
		``, `[]`, `"a"`, `{"ts":"now"}`, `{"ts":1.5}`, `{"id":1}`, `{"payload_base64":"*"}`, `{"payload":}`, `{"headers":{"a":1}}`, `{"seq":-1}`,
	} {
		var e jetbus.Event
		if err := json.Unmarshal([]byte(text), &e); err == nil {
			t.Errorf("%s was read as %+v", text, e)
		}
	}
	var e jetbus.Event
	err := json.Unmarshal([]byte(`{"payload":1,"payload_base64":"MQ=="}`), &e)
	if !errors.Is(err, jetbus.ErrInvalidEvent) {
		t.Errorf("two payloads: %v", err)
	}
	if got := decode(t, []byte(`{"partition":-5}`)); got.Partition != jetbus.NoPartition {
		t.Errorf("partition -5 became %d", got.Partition)
	}
}

// drawPayload draws bytes, which are JSON with white space around it now and then.
func drawPayload(t *rapid.T) []byte {
	bytes := rapid.SliceOf(rapid.Byte())
	space := rapid.StringMatching(`[ \t\r\n]{0,3}`)
	value := rapid.StringMatching(`[0-9]|"[a-z ]*"|\{"a": ?\[\]\}`)
	if rapid.Bool().Draw(t, "json") {
		return []byte(space.Draw(t, "before") + value.Draw(t, "value") + space.Draw(t, "behind"))
	}
	return bytes.Draw(t, "payload")
}

func TestEventJSONRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := jetbus.Event{
			ID: rapid.String().Draw(t, "id"), SID: rapid.String().Draw(t, "sid"), Topic: rapid.String().Draw(t, "topic"),
			Time: drawTime(t, "time"), Key: rapid.String().Draw(t, "key"), Partition: rapid.IntRange(-1, 1<<20).Draw(t, "partition"),
			Headers:  rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "headers"),
			Payload:  drawPayload(t),
			CausedBy: rapid.SliceOf(rapid.String()).Draw(t, "causedBy"), Tags: rapid.SliceOf(rapid.String()).Draw(t, "tags"),
			Seq: rapid.Uint64().Draw(t, "seq"),
		}
		text, err := jetbus.AppendJSON(nil, &e)
		if err != nil {
			t.Fatal(err)
		}
		var got jetbus.Event
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(e, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s: %s", text, diff)
		}
	})
}

func FuzzEventJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `{"ts":0}`, `{"ts":-62135596800000}`, `{"ts":9223372036854775807}`, `{"partition":-5}`, `{"payload":null}`, `{"payload": [ 1 ] }`, `{"payload_base64":""}`,
		`{"payload_base64":"/w=="}`, `{"payload_base64":"IDEg"}`, `{"payload":1,"payload_space":["\n",""]}`, `{"headers":{},"tags":[],"caused_by":[]}`, `{"id":"\ud800","Id":"b","payload":"\u2028"}`, "{\"payload\":\"\xff\"}",
	} {
		f.Add([]byte(seed))
	}
	e := typical()
	f.Add(encode(f, &e))
	f.Fuzz(func(t *testing.T, text []byte) {
		var first jetbus.Event
		if json.Unmarshal(text, &first) != nil {
			return
		}
		again := encode(t, &first)
		second := decode(t, again)
		if diff := cmp.Diff(first, second, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s became %s: %s", text, again, diff)
		}
	})
}

func BenchmarkAppendJSON(b *testing.B) {
	e := typical()
	buf := make([]byte, 0, 1<<10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := jetbus.AppendJSON(buf, &e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUnmarshalEvent(b *testing.B) {
	e := typical()
	text := encode(b, &e)
	b.ReportAllocs()
	for b.Loop() {
		if err := json.Unmarshal(text, &e); err != nil {
			b.Fatal(err)
		}
	}
}
