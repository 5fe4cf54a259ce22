package ce

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

var storedAt = Place{Topic: "process.state", Stream: "EV_PROCESS_STATE", Seq: 17, Time: time.Date(2026, 2, 3, 4, 5, 6, 789_654_321, time.UTC)}

// overWire gives the headers as the receiver of the message has them.
func overWire(t require, h nats.Header) nats.Header {
	t.Helper()
	var b bytes.Buffer
	b.WriteString("NATS/1.0\r\n")
	for name, values := range h {
		for _, value := range values {
			// What nats.go writes: it trims values and replaces line breaks.
			value = strings.NewReplacer("\r", " ", "\n", " ").Replace(strings.Trim(value, " \t\r\n"))
			fmt.Fprintf(&b, "%s: %s\r\n", name, value)
		}
	}
	b.WriteString("\r\n")
	got, err := nats.DecodeHeadersMsg(b.Bytes())
	if err != nil {
		t.Fatalf("headers %q: %v", h, err)
	}
	return got
}

// require is what tests, fuzz targets and properties have in common.
type require interface {
	Helper()
	Fatalf(format string, args ...any)
}

// roundTrip encodes and decodes e.
func roundTrip(t require, e jetbus.Event, at Place) jetbus.Event {
	t.Helper()
	got, err := Decode(overWire(t, Encode(&e)), e.Payload, at)
	if err != nil {
		t.Fatalf("decode %+v: %v", e, err)
	}
	return got
}

// checkEqual fails where two events differ, nil and empty being the same.
func checkEqual(t require, want, got jetbus.Event) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("event differs (-want +got):\n%s", diff)
	}
	if got.Time.Location() != time.UTC {
		t.Fatalf("time is in %v, want UTC", got.Time.Location())
	}
}

func TestEncodeHeader(t *testing.T) {
	e := jetbus.Event{
		ID: "0198f000-0000-7000-8000-000000000001", SID: "boot-1", Topic: "process.state", Key: "a b%é",
		Time:    time.Date(2026, 2, 3, 4, 5, 6, 7_999_999, time.FixedZone("", 3600)),
		Headers: map[string]string{"x-note": "Grüße, \"100%\"", "x-ce-dataschema": "urn:x:a b", "x-ce-id": "%", "traceparent": "00-0-0-01"},
		Payload: []byte("{}"), CausedBy: []string{"a", "b,c"}, Tags: []string{"50% off", "é"},
	}
	want := nats.Header{
		"Nats-Msg-Id":     {"process.state|0198f000-0000-7000-8000-000000000001"},
		"ce-specversion":  {"1.0"},
		"ce-id":           {"0198f000-0000-7000-8000-000000000001"},
		"ce-type":         {"process.state"},
		"ce-source":       {"urn:jetbus:boot-1"},
		"ce-time":         {"2026-02-03T03:05:06.007Z"},
		"ce-partitionkey": {"a%20b%25%C3%A9"},
		"ce-causedby":     {"a,b%2Cc"},
		"ce-tags":         {"50%25%20off,%C3%A9"},
		"ce-dataschema":   {"urn:x:a%20b"},
		"x-ce-id":         {"%"},
		"x-note":          {"Grüße, \"100%\""},
		"traceparent":     {"00-0-0-01"},
	}
	if diff := cmp.Diff(want, Encode(&e)); diff != "" {
		t.Errorf("headers differ (-want +got):\n%s", diff)
	}
	e.Time = time.Date(2026, 2, 3, 3, 5, 6, 7_000_000, time.UTC)
	e.Partition, e.Seq, e.Stored = jetbus.NoPartition, storedAt.Seq, storedAt.Time
	checkEqual(t, e, roundTrip(t, e, storedAt))
}

func TestEncodeLeavesOutEmptyAttributes(t *testing.T) {
	h := Encode(&jetbus.Event{ID: "1", Topic: "a", Time: storedAt.Time})
	want := nats.Header{
		"Nats-Msg-Id": {"a|1"}, "ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-type": {"a"}, "ce-source": {"urn:jetbus:"},
		"ce-time": {"2026-02-03T04:05:06.789Z"},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("headers differ (-want +got):\n%s", diff)
	}
}

// TestEncodeContentType: content-type is for messages in structured mode.
func TestEncodeContentType(t *testing.T) {
	for contentType, want := range map[string]string{
		"text/plain; charset=utf-8":          "text/plain;%20charset=utf-8",
		"application/cloudevents+json":       "application/cloudevents+json",
		"Application/CloudEvents-Batch+json": "Application/CloudEvents-Batch+json",
		"":                                   "",
	} {
		e := jetbus.Event{ID: "1", Topic: "a", Time: storedAt.Time, Headers: map[string]string{"content-type": contentType}}
		h := Encode(&e)
		if got := h.Get("ce-datacontenttype"); got != want || len(h["content-type"]) > 0 {
			t.Errorf("%q: ce-datacontenttype is %q, want %q, and content-type is %q", contentType, got, want, h["content-type"])
		}
		if got := roundTrip(t, e, storedAt); got.Headers["content-type"] != contentType {
			t.Errorf("content type %q came back as %q", contentType, got.Headers["content-type"])
		}
	}
}

// TestSchemaVersion: the version of the schema is stored once.
func TestSchemaVersion(t *testing.T) {
	tests := []struct {
		version, reference string // what the event says, - for nothing
		stored, read       string
	}{
		{"3", "schema://orders/3", "-", "3"},
		{"3", "schema://orders.created/3", "-", "3"},
		{"-", "schema://orders/3", "-", "3"},
		{"2", "schema://orders/3", "2", "2"},
		{"", "schema://orders/3", "", ""},
		{"3", "-", "3", "3"},
		{"3", "https://shop.example/orders/3", "3", "3"},
		{"03", "schema://orders/03", "03", "03"},
		{"", "schema://orders/", "", ""},
		{"-", "schema://orders/3/4", "-", "-"},
		{"-", "-", "-", "-"},
	}
	value := func(values []string) string {
		if len(values) == 0 {
			return "-"
		}
		return values[0]
	}
	for _, tt := range tests {
		e := jetbus.Event{ID: "1", Topic: "orders", Time: storedAt.Time, Headers: map[string]string{}}
		for name, text := range map[string]string{"x-schema-version": tt.version, "x-ce-dataschema": tt.reference} {
			if text != "-" {
				e.Headers[name] = text
			}
		}
		h := Encode(&e)
		if got := value(h["x-schema-version"]); got != tt.stored {
			t.Errorf("%+v: x-schema-version is stored as %q", tt, got)
		}
		read, ok := roundTrip(t, e, storedAt).Headers["x-schema-version"]
		if !ok {
			read = "-"
		}
		if read != tt.read {
			t.Errorf("%+v: x-schema-version is read as %q", tt, read)
		}
	}
}

func TestSource(t *testing.T) {
	for sid, want := range map[string]string{
		"":                        "urn:jetbus:",
		"boot-1":                  "urn:jetbus:boot-1",
		"a b%é":                   "urn:jetbus:a%20b%25%C3%A9",
		"https://x.example/a?b=1": "https://x.example/a?b=1",
		"urn:uuid:1":              "urn:uuid:1",
		"urn:jetbus:1":            "urn:jetbus:urn%3Ajetbus%3A1",
		"http://x/a b":            "urn:jetbus:http%3A%2F%2Fx%2Fa%20b",
		"http://x/%zz":            "urn:jetbus:http%3A%2F%2Fx%2F%25zz",
		"http://x/%20":            "http://x/%20",
		"/relative":               "/relative",
		"/shop/42?a=b%20c":        "/shop/42?a=b%20c",
		"/a b":                    "urn:jetbus:%2Fa%20b",
		"/a#b":                    "urn:jetbus:%2Fa%23b",
		"relative":                "urn:jetbus:relative",
		"1:2":                     "urn:jetbus:1%3A2",
		":":                       "urn:jetbus:%3A",
		"a:":                      "urn:jetbus:a%3A",
	} {
		if got := sourceURN(sid); got != want {
			t.Errorf("sourceURN(%q) = %q, want %q", sid, got, want)
		}
		if got := sidOf(want); got != sid {
			t.Errorf("sidOf(%q) = %q, want %q", want, got, sid)
		}
	}
	if got := sidOf("/foreign"); got != "/foreign" {
		t.Errorf("sidOf(/foreign) = %q", got)
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a": "a", "%41": "A", "%c3%A9": "é", "%": "%", "%4": "%4", "%4g": "%4g", "%%41": "%A", "%2541": "%41", "a%": "a%",
	} {
		if got := unescape(in); got != want {
			t.Errorf("unescape(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestParseTime(t *testing.T) {
	want := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	for in, add := range map[string]time.Duration{
		"2026-02-03T04:05:06Z":                0,
		"2026-02-03t04:05:06z":                0,
		"2026-02-03T04:05:06.7Z":              700 * time.Millisecond,
		"2026-02-03T04:05:06.789987654Z":      789 * time.Millisecond,
		"2026-02-03T05:35:06.001+01:30":       time.Millisecond,
		"2026-02-02T20:05:06.123456789-08:00": 123 * time.Millisecond,
	} {
		if got, ok := parseTime(in); !ok || got != want.Add(add) {
			t.Errorf("parseTime(%q) = %v, %v, want %v", in, got, ok, want.Add(add))
		}
	}
	for _, in := range []string{"", "now", "2026-02-03", "2026-02-30T00:00:00Z", "2026-02-03T04:05:06"} {
		if got, ok := parseTime(in); ok {
			t.Errorf("parseTime(%q) = %v", in, got)
		}
	}
}

func TestDecodeForeign(t *testing.T) {
	long := strings.Repeat("x", 300)
	at := storedAt.Time.Truncate(time.Millisecond)
	base := jetbus.Event{ID: "EV_PROCESS_STATE-17", Topic: "process.state", Time: at, Partition: jetbus.NoPartition, Seq: 17, Stored: storedAt.Time, Payload: []byte("p")}
	for name, c := range map[string]struct {
		h     nats.Header
		token string
		want  func(e *jetbus.Event)
	}{
		"nothing":           {nil, "", func(*jetbus.Event) {}},
		"subject key":       {nil, "a%20b", func(e *jetbus.Event) { e.Key = "a b" }},
		"no such key token": {nil, "P1", func(*jetbus.Event) {}},
		"other headers": {nats.Header{
			"X-Upper": {"1", "2"}, "x-upper": {"exact"}, "X-UPPER": {"3"}, "X-More": {"a", "b"}, "X-MORE": {"c"}, "Foo": {"as", "it is"}, "foo!": {"too"}, "x-jetbus-a": {"dropped"},
			"Nats-Expected-Stream": {"S"}, "Nats-Msg-Id": {"id"}, "nats-foo": {"1"}, "x-empty": {}, "x-bad": {"\xff"}, "Status": {"100"}, "X-Dlq-Topic": {"small"}, "Traceparent": {"small"}, "Jetbus-Retry": {"dropped"}, "a/b": {"dropped"},
		}, "", func(e *jetbus.Event) {
			e.Headers = map[string]string{"x-upper": "exact", "X-MORE": "c", "Foo": "as, it is", "foo!": "too", "x-dlq-topic": "small", "traceparent": "small"}
		}},
		"any case": {nats.Header{"CE-Id": {"1"}, "Ce-PartitionKey": {"k"}, "Content-Type": {"text/plain"}, "Ce-Source": {"urn:jetbus:s"}, "Ce-Foo": {"f"}}, "", func(e *jetbus.Event) {
			e.ID, e.Key, e.SID = "1", "k", "s"
			e.Headers = map[string]string{"content-type": "text/plain", "x-ce-foo": "f"}
		}},
		"extensions": {nats.Header{"ce-subject": {"a%20b"}, "x-ce-subject": {"loses"}, "ce-foo-bar": {"1"}, "ce-ctl": {"a%0Ab"}, "ce-": {"no name"}}, "", func(e *jetbus.Event) {
			e.Headers = map[string]string{"x-ce-subject": "a b", "x-ce-foo-bar": "1", "x-ce-ctl": "a%0Ab"}
		}},
		"foreign type and version": {nats.Header{"ce-type": {"com.example"}, "ce-specversion": {"0.3"}, "ce-source": {"/src"}}, "", func(e *jetbus.Event) {
			e.SID, e.Headers = "/src", map[string]string{"x-ce-type": "com.example", "x-ce-specversion": "0.3"}
		}},
		"relative source": {nats.Header{"ce-source": {"shop-42"}}, "", func(e *jetbus.Event) {
			e.SID, e.Headers = "shop-42", map[string]string{"x-ce-source": "shop-42"}
		}},
		"source that is escaped otherwise": {nats.Header{"ce-source": {"urn:jetbus:a b"}}, "", func(e *jetbus.Event) {
			e.SID, e.Headers = "a b", map[string]string{"x-ce-source": "urn:jetbus:a b"}
		}},
		"what an event cannot hold": {nats.Header{
			"ce-id": {long}, "ce-partitionkey": {"%0A"}, "ce-time": {"yesterday"}, "ce-source": {"urn:jetbus:%00"}, "ce-tags": {"a,%01"}, "ce-causedby": {"%02,%2C"}, "ce-datacontenttype": {"%FF"},
		}, "k", func(e *jetbus.Event) {
			e.Key = "k"
			e.Headers = map[string]string{
				"x-ce-id": long, "x-ce-partitionkey": "%0A", "x-ce-time": "yesterday", "x-ce-source": "urn:jetbus:%00",
				"x-ce-tags": "a,%01", "x-ce-causedby": "%02,%2C", "x-ce-datacontenttype": "%FF",
			}
		}},
		"year out of range": {nats.Header{"ce-time": {"9999-12-31T23:59:59-01:00"}}, "", func(e *jetbus.Event) {
			e.Headers = map[string]string{"x-ce-time": "9999-12-31T23:59:59-01:00"}
		}},
		"lists":                {nats.Header{"ce-tags": {"a,, b ,c%2Cd,%20e"}, "ce-causedby": {","}}, "", func(e *jetbus.Event) { e.Tags = []string{"a", "b", "c,d", " e"} }},
		"either content type":  {nats.Header{"content-type": {"text/a"}, "ce-datacontenttype": {"text/b"}}, "", func(e *jetbus.Event) { e.Headers = map[string]string{"content-type": "text/b"} }},
		"default content type": {nats.Header{"content-type": {"application/json"}}, "", func(*jetbus.Event) {}},
		"marker": {nats.Header{"Nats-Marker-Reason": {"MaxAge"}, "Nats-Rollup": {"sub"}, "Nats-TTL": {"5s"}}, "m%2E1", func(e *jetbus.Event) {
			e.Key, e.Payload = "m.1", []byte("null")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			at, want := storedAt, base
			at.Token = c.token
			c.want(&want)
			got, err := Decode(c.h, []byte("p"), at)
			if err != nil {
				t.Fatal(err)
			}
			checkEqual(t, want, got)
			if err := got.Validate(); err != nil {
				t.Errorf("what was decoded cannot be published: %v", err)
			}
			checkEqual(t, got, roundTrip(t, got, at))
		})
	}
}

// TestSourceIsKept encodes what was decoded: the source is the one that the message came with. A header
// x-ce-source of another session id is a header like any other.
func TestSourceIsKept(t *testing.T) {
	for _, source := range []string{
		"shop-42", "shop 42", "a/b", "?q", "../x", "1:2", ":", "a:", "/src", "/a b", "https://x.example/a", "http://x/%zz", "https://x.example/a#b", "urn:uuid:1",
		"urn:jetbus:", "urn:jetbus:boot-1", "urn:jetbus:a b", "urn:jetbus:%zz", "urn:jetbus:/src", "urn:jetbus:urn%3Ajetbus%3A1", "\u00e9",
	} {
		h := nats.Header{"ce-id": {"1"}, "ce-source": {attributeEscape.encode(source)}}
		e, err := Decode(h, nil, storedAt)
		if err != nil {
			t.Fatal(err)
		}
		got := Encode(&e)
		if e.SID != "" && Source(&e) != source {
			t.Errorf("the source of an event from %q is %q", source, Source(&e))
		}
		if want := h["ce-source"]; !slices.Equal(got["ce-source"], want) || got["x-ce-source"] != nil {
			t.Errorf("source %q comes back as %q, x-ce-source %q", want, got["ce-source"], got["x-ce-source"])
		}
		e.SID = "other"
		if got = Encode(&e); !slices.Equal(got["ce-source"], []string{"urn:jetbus:other"}) {
			t.Errorf("source of another session id: %q", got["ce-source"])
		}
	}
}

func TestDecodeBoundsHeaders(t *testing.T) {
	h := nats.Header{}
	for i := range 100 {
		h[fmt.Sprintf("x-%03d", i)] = []string{"v"}
	}
	e, err := Decode(h, nil, storedAt)
	if err != nil || len(e.Headers) != jetbus.MaxHeaders || e.Headers["x-063"] != "v" {
		t.Fatalf("%d headers %v, %v", len(e.Headers), e.Headers, err)
	}
}

func TestDecodeFallbackIDFits(t *testing.T) {
	at := storedAt
	at.Stream = strings.Repeat("S", 255)
	e, err := Decode(nil, nil, at)
	if want := ShortHash(at.Stream) + "-17"; err != nil || e.ID != want {
		t.Fatalf("id %q, %v, want %q", e.ID, err, want)
	}
}

// text generates printable UTF-8 of at most limit bytes, special characters often.
func text(limit int) *rapid.Generator[string] {
	r := rapid.OneOf(
		rapid.SampledFrom([]rune("aA0 _-.,:%\"*>é|/=€\u00a0\u2028😀S")),
		rapid.Rune().Filter(func(r rune) bool { return jetbus.ValidKey(string(r)) == nil }),
	)
	return rapid.Custom(func(t *rapid.T) string {
		s := string(rapid.SliceOfN(r, 0, limit/4).Draw(t, "runes"))
		return s[:min(len(s), limit)]
	})
}

func trimmed(limit int) *rapid.Generator[string] { return rapid.Map(text(limit), strings.TrimSpace) }

func events() *rapid.Generator[jetbus.Event] {
	item := text(60).Filter(func(s string) bool { return s != "" })
	name := rapid.OneOf(
		rapid.SampledFrom([]string{"content-type", "traceparent", "tracestate", "x-ce-id", "x-ce-data", "x-ce-subject", "x-ce-time", "x-ce-a-b", "x-a"}),
		rapid.StringMatching(`x-[a-z0-9_.-]{1,20}`), rapid.StringMatching(`x-ce-[a-z0-9]{1,20}`),
		rapid.StringMatching("[a-dA-D]{1,3}"), rapid.StringMatching("[a-zA-Z0-9!#$%&'*+.^_`|~-]{1,20}"),
	)
	value := rapid.OneOf(trimmed(80), rapid.SampledFrom([]string{"application/cloudevents+json", "application/cloudevents", "text/plain", "application/json"}))
	return rapid.Custom(func(t *rapid.T) jetbus.Event {
		return jetbus.Event{
			ID:       trimmed(jetbus.MaxIDBytes).Filter(func(s string) bool { return s != "" }).Draw(t, "id"),
			SID:      rapid.OneOf(text(200), rapid.SampledFrom([]string{"", "urn:jetbus:x", "urn:uuid:1", "http://x/%41", "/x/1", "/%zz"})).Draw(t, "sid"),
			Time:     time.UnixMilli(rapid.Int64Range(-62167219200000, 253402300799999).Draw(t, "ms")).UTC(),
			Topic:    rapid.StringMatching(`[a-z0-9_-]{1,10}(\.[a-z_-]{1,10}){0,3}`).Draw(t, "topic"),
			Key:      rapid.OneOf(text(jetbus.MaxKeyBytes), rapid.SampledFrom([]string{"", "a b%é", "_"})).Draw(t, "key"),
			Headers:  rapid.MapOfN(name, value, 0, 8).Draw(t, "headers"),
			Payload:  rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "payload"),
			CausedBy: rapid.SliceOfN(item, 0, 5).Draw(t, "caused_by"),
			Tags:     rapid.SliceOfN(item, 0, 5).Draw(t, "tags"),
		}
	})
}

func TestEveryValidEventRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := events().Draw(t, "event")
		if err := e.Validate(); err != nil {
			return // a segment like "v0": not what this is about
		}
		at := Place{Topic: e.Topic, Stream: "S", Seq: 5, Time: storedAt.Time, Token: KeyToken(e.Key)}
		got := roundTrip(t, e, at)
		e.Partition, e.Seq, e.Stored = jetbus.NoPartition, 5, storedAt.Time
		if e.ContentType() == defaultContentType { // saying the default is saying nothing
			e.Headers = maps.Clone(e.Headers)
			delete(e.Headers, jetbus.HeaderContentType)
		}
		checkEqual(t, e, got)
	})
}

// unescapedAttribute returns the first value of an attribute that the binding
// does not allow in a header.
func unescapedAttribute(h nats.Header) string {
	for name, values := range h {
		if strings.HasPrefix(name, "ce-") && strings.ContainsFunc(values[0], func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }) {
			return name + ": " + values[0]
		}
	}
	return ""
}

// fuzzHeader makes headers of lines "name: value", names in any case.
func fuzzHeader(lines string) nats.Header {
	h := nats.Header{}
	for line := range strings.SplitSeq(lines, "\n") {
		name, value, _ := strings.Cut(line, ":")
		if name != "" {
			h[name] = append(h[name], value)
		}
	}
	return h
}

// checkDecoded fails unless a decoded event is publishable, the same again after
// another trip, and the same when its headers come in another order.
func checkDecoded(t *testing.T, h nats.Header, data []byte, at Place) {
	t.Helper()
	e, err := Decode(h, data, at)
	if err != nil {
		return
	}
	if err := e.Validate(); err != nil {
		t.Fatalf("what was decoded cannot be published: %v\n%+v", err, e)
	}
	again, err := Decode(h, data, at)
	if err != nil {
		t.Fatalf("the second time: %v", err)
	}
	checkEqual(t, e, again)
	if bad := unescapedAttribute(Encode(&e)); bad != "" {
		t.Fatalf("attribute is not escaped: %q", bad)
	}
	checkEqual(t, e, roundTrip(t, e, at))
}

func FuzzDecodeEvent(f *testing.F) {
	f.Add("ce-id: 1\nce-type:a\nce-source:urn:jetbus:x\nce-time:2026-02-03T04:05:06.789Z", []byte("{}"), "_")
	f.Add("Ce-Id:%\nx-ce-id:1\nce-foo:%0A\nX-CE-FOO:2\nx-ce-foo:3\nCE-FOO:4", []byte(""), "a%2Eb")
	f.Add("Nats-Marker-Reason:MaxAge\ncontent-type:text/a b\nce-datacontenttype:%FF", []byte("x"), "P1")
	f.Add("content-type:application/cloudevents+json; charset=utf-8\nce-id:h", []byte(`{"specversion":"1.0","id":"1","data":[1.0]}`), "k")
	f.Add("Foo:1\nFOO:2\nTrace|Id~: 3\nContent-Type:text/plain\nX-Dlq-Topic:a\nStatus:503\nNATS-TTL:1s", []byte(""), "_")
	f.Add("ce-time:0000-01-01T00:00:00+23:59\nce-tags:a,%2C,%,\nce-causedby:%20", []byte("x"), "")
	f.Fuzz(func(t *testing.T, lines string, data []byte, token string) {
		at := storedAt
		at.Token = token
		checkDecoded(t, fuzzHeader(lines), data, at)
	})
}

func benchmarkEvent() jetbus.Event {
	return jetbus.Event{
		ID: jetbus.NewID(), SID: jetbus.NewID(), Time: time.Now(), Topic: "process.state", Key: "machine-0017",
		Payload: []byte(`{"state":"running"}`),
	}
}

// benchmarkEvents are the events that benchmarks measure.
func benchmarkEvents() map[string]jetbus.Event {
	plain, rich := benchmarkEvent(), benchmarkEvent()
	rich.Key = "a b%é"
	rich.Headers = map[string]string{"content-type": "application/json", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "x-schema-version": "3"}
	rich.CausedBy, rich.Tags = []string{jetbus.NewID()}, []string{"eu", "night shift"}
	return map[string]jetbus.Event{"plain": plain, "rich": rich}
}

func BenchmarkEncodeHeader(b *testing.B) {
	for name, e := range benchmarkEvents() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Encode(&e)
			}
		})
	}
}

func BenchmarkDecodeEvent(b *testing.B) {
	for name, e := range benchmarkEvents() {
		h := Encode(&e)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Decode(h, e.Payload, storedAt); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
