package frame_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

func TestParseRequest(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       error
	}{
		{"empty", ``, frame.ErrJSON},
		{"cut", `{"op":"PUBLISH"`, frame.ErrJSON},
		{"two objects", `{"op":"PING"}{"op":"PING"}`, frame.ErrJSON},
		{"array", `[{"op":"PING"}]`, frame.ErrJSON},
		{"string", `"PING"`, frame.ErrJSON},
		{"bad UTF-8", "{\"op\":\"\xff\"}", frame.ErrUTF8},
		{"bad UTF-8 in a payload", "{\"op\":\"PUBLISH\",\"payload\":\"\xc3\x28\"}", frame.ErrUTF8},
		{"op is a number", `{"op":1}`, frame.ErrMember},
		{"corr is a number", `{"op":"PING","corr":7}`, frame.ErrMember},
		{"long corr", `{"op":"PING","corr":"` + strings.Repeat("x", 65) + `"}`, frame.ErrMember},
		{"deep", `{"op":"PUBLISH","payload":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, frame.ErrJSON},
		{"deep and unclosed", strings.Repeat(`{"a":`, 100_000), frame.ErrJSON},
		{"unknown members", `{"op":"PING","future":{"a":[1,2]}}`, nil},
		{"duplicate members", `{"op":"PING","op":"PONG"}`, frame.ErrMember},
		{"duplicate members in a list", `{"op":"ACKS","nack":[{"ack_id":"1","dead":false,"dead":true}]}`, frame.ErrMember},
		{"duplicate members of an unknown one", `{"op":"PING","future":{"a":1,"a":2},"future":1}`, nil},
		{"duplicate members of a payload", `{"op":"PUBLISH","payload":{"a":1,"A":2,"a":3}}`, nil},
		{"names in other letters", `{"op":"PING","TOPIC":"a"}`, frame.ErrMember},
		{"names in other letters in a list", `{"op":"PUBLISH_BATCH","events":[{"Topic":"a"}]}`, frame.ErrMember},
		{"names in other letters in an object", `{"op":"SEEK","to":{"from":"earliest","FORCE":true}}`, frame.ErrMember},
		{"as deep as it may be", `{"op":"PUBLISH","payload":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := frame.ParseRequest([]byte(c.text)); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Errorf("err = %v, want %v", err, c.want)
			}
		})
	}
}

func TestParseRequestKeepsWhatItCould(t *testing.T) {
	r, err := frame.ParseRequest([]byte(`{"op":"MODACK","extend_ms":"soon","corr":"7"}`))
	if !errors.Is(err, frame.ErrMember) || r.Corr != "7" || r.Op != frame.ModAck {
		t.Errorf("%+v, %v", r, err)
	}
	r, err = frame.ParseRequest([]byte(`{"op":"PING","CORR":"7","corr":"8","op":"PONG"}`))
	if !errors.Is(err, frame.ErrMember) || r.Op != frame.Ping || r.Corr != "8" {
		t.Errorf("names in other letters and twice: %+v, %v", r, err)
	}
}

func TestCorrOf(t *testing.T) {
	for text, want := range map[string]string{
		`{"op":"PUBLISH","corr":"7","payload":[`:                            "7",
		`{"corr":"7"`:                                                       "7",
		`{"op":"PUBLISH","payload":[],"corr":"7"}`:                          "",
		`{"op":"PUBLISH","corr":7}`:                                         "",
		`{"op":"PUBLISH","payload":"corr","topic":"a"}`:                     "",
		`{"op":"PUBLISH","corr":"` + strings.Repeat("x", 65) + `","a":"b"}`: "",
		`{"op":"PUBLISH","corr":"7`:                                         "",
		`{"op"`:                                                             "", `["corr","7"]`: "", ``: "",
	} {
		if got := frame.CorrOf([]byte(text)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestPublishItem(t *testing.T) {
	text := `{"op":"PUBLISH","topic":"a.b","payload": {"n":9007199254740993, "f":1.10} ,"opts":{"id":"1","key":"k","ts":1700000000000,"headers":{"x-a":"b"},"tags":["t"],"caused_by":["c"],"sid":"s","expect":{"lastSeq":7},"ttlMs":2000}}`
	r, err := frame.ParseRequest([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	item := r.Item()
	e, o, err := item.Event()
	if err != nil {
		t.Fatal(err)
	}
	if string(e.Payload) != `{"n":9007199254740993, "f":1.10}` {
		t.Errorf("the payload is %s", e.Payload)
	}
	if e.ID != "1" || e.Key != "k" || e.SID != "s" || e.Time.UnixMilli() != 1700000000000 || e.Headers["x-a"] != "b" || e.Tags[0] != "t" || e.CausedBy[0] != "c" {
		t.Errorf("the event is %+v", e)
	}
	if *o.ExpectLastSeq != 7 || o.TTL != 2*time.Second {
		t.Errorf("the options are %+v", o)
	}
}

func TestPublishItemRefuses(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       error
	}{
		{"two payloads", `{"payload":1,"payload_base64":"AA=="}`, frame.ErrMember},
		{"no base64", `{"payload_base64":"%"}`, frame.ErrMember},
		{"options are a list", `{"opts":[]}`, frame.ErrJSON},
		{"a header is a number", `{"opts":{"headers":{"x-a":1}}}`, frame.ErrMember},
		{"negative TTL", `{"opts":{"ttlMs":-1}}`, frame.ErrMember},
		{"a dry run", `{"opts":{"dryRun":true}}`, jetbus.ErrUnsupported},
		{"a dry run by its name in a query", `{"opts":{"dry_run":true}}`, jetbus.ErrUnsupported},
		{"expect an id", `{"opts":{"expect":{"lastId":"x"}}}`, jetbus.ErrUnsupported},
		{"deep payload", `{"payload":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + `}`, frame.ErrMember},
	} {
		t.Run(c.name, func(t *testing.T) {
			var item frame.PublishItem
			if err := json.Unmarshal([]byte(c.text), &item); err != nil {
				t.Fatal(err)
			}
			if _, _, err := item.Event(); !errors.Is(err, c.want) {
				t.Errorf("err = %v, want %v", err, c.want)
			}
		})
	}
}

func TestSubscribeOptions(t *testing.T) {
	o := frame.SubscribeOptions{
		SubscribeOptions: jetbus.SubscribeOptions{From: jetbus.AfterSeq(3), AckTimeout: time.Second, MaxInFlightBytes: 7, Filter: jetbus.Filter{Key: "k"}},
		Gateway:          frame.GatewayOptions{Flow: "credit", Credit: 5},
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	back, err := frame.ParseSubscribeOptions(text)
	if err != nil || back.From != o.From || back.AckTimeout != time.Second || back.MaxInFlightBytes != 7 || back.Filter.Key != "k" || back.Gateway.Credit != 5 {
		t.Errorf("%s became %+v, %v", text, back, err)
	}
	for _, text := range []string{`{"filter":{"expr":"a>1"}}`, `{"partitioned":{"partitions":3}}`} {
		if _, err := frame.ParseSubscribeOptions(json.RawMessage(text)); !errors.Is(err, jetbus.ErrUnsupported) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := frame.ParseSubscribeOptions(json.RawMessage(`{"maxInFlight":"many"}`)); !errors.Is(err, frame.ErrMember) {
		t.Errorf("a number that is a string: %v", err)
	}
}

func TestMessage(t *testing.T) {
	yes := true
	m := frame.Message{Op: frame.OK, Corr: "<&>", Applied: &yes}
	if got := string(m.Text()); got != `{"op":"OK","corr":"<&>","applied":true}` {
		t.Error(got)
	}
	e := jetbus.Event{ID: "1", Topic: "a.b", Partition: jetbus.NoPartition, Payload: []byte("{ \"a\" : 1 }"), Seq: 5}
	b, err := frame.AppendEvent([]byte(`{"op":"EVENT",`), &e, "tok")
	if err != nil {
		t.Fatal(err)
	}
	back, err := frame.ParseMessage(append(b, '}'))
	if err != nil || back.Seq != 5 || back.Offset != "tok" || string(back.Event.Payload) != `{ "a" : 1 }` {
		t.Errorf("%s became %+v, %v", b, back, err)
	}
	for _, s := range []string{"", "plain", "quo\"te", "new\nline", "ü", "\x7f"} {
		var got string
		if err := json.Unmarshal(frame.AppendString(nil, s), &got); err != nil || got != s {
			t.Errorf("%q became %q, %v", s, got, err)
		}
	}
}

func TestTerminal(t *testing.T) {
	for code, want := range map[int]bool{1000: false, 1006: false, 1009: true, 1011: false, 4001: false, 4105: false, 4501: true} {
		if frame.Terminal(code) != want {
			t.Errorf("Terminal(%d) = %v", code, !want)
		}
	}
}

// FuzzParseRequest looks for frames that panic, or that are read although encoding/json
// says that they are no object, and for payloads that lose a byte.
func FuzzParseRequest(f *testing.F) {
	for _, seed := range []string{
		`{"op":"PUBLISH","topic":"a","payload":{"a":[1,2.50,"\u0000"]},"opts":{"id":"1"}}`,
		`{"op":"SUBSCRIBE","topic":"a","group":"g","opts":{"from":"offset","offset":"x","filter":{"key":"a"}}}`,
		`{"op":"ACKS","ack":["a"],"nack":[{"ack_id":"b","delay_ms":1}],"mod":[{"ack_id":"c"}]}`,
		`{"op":"PUBLISH_BATCH","chain":{"afterId":"a","afterSeq":1},"events":[{"opts":{"expect":{"lastSeq":7}}}]}`,
		`{"op":"NACK","ack_id":"b","dead":true,"dead_reason":"schema","stack":"f"}`, `{"op":"SUBSCRIBE","opts":{"order":"per_key","assign":true}}`,
		`{"op":"SEEK","to":{"ts":1}}`, `{"op":"PUBLISH_BATCH","events":[{"topic":"a","payload":1}]}`,
		`[]`, `null`, `{"op":null}`, strings.Repeat("[", 2000),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := frame.ParseRequest(text)
		if err != nil {
			return
		}
		var same struct {
			Payload json.RawMessage `json:"payload"`
		}
		if err := json.Unmarshal(text, &same); err != nil {
			t.Fatalf("accepted what is no object: %v", err)
		}
		if string(same.Payload) != string(r.Payload) {
			t.Errorf("payload %q became %q", same.Payload, r.Payload)
		}
		for _, item := range append(r.Events, r.Item()) {
			e, _, err := item.Event()
			if err == nil && item.PayloadBase64 == nil && string(e.Payload) != string(item.Payload) {
				t.Errorf("payload %q became %q", item.Payload, e.Payload)
			}
		}
		_, _ = frame.ParseSubscribeOptions(r.Opts)
	})
}
