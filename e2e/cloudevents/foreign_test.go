package cloudevents

import (
	"bytes"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/client"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/protocol"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// payloads are bytes that a decoder on the way would change.
var payloads = map[string]string{
	"empty":      "",
	"object":     "{ \"b\":1.0,\t\"a\":1e400, \"a\":12345678901234567890 }\n",
	"string":     `"caf\u00e9 ☕ \/"`,
	"null":       "null",
	"no JSON":    "{ not json",
	"binary":     "\x00\x01\xff\xfe\r\n\r\n\x80",
	"like CE":    `{"specversion":"1.0","id":"inner","type":"t","source":"s","data":1}`,
	"whitespace": " \r\n\t ",
}

// TestPlainMessages publishes without a single header.
func TestPlainMessages(t *testing.T) {
	f := newFixture(t)
	events := f.subscribe(t)
	seq := uint64(0)
	for name, payload := range payloads {
		seq++
		before := time.Now().Truncate(time.Millisecond)
		if _, err := f.plain.Request(subject, []byte(payload), limit); err != nil {
			t.Fatal(err)
		}
		e := next(t, events)
		if string(e.Payload) != payload {
			t.Errorf("%s: payload is %q, sent was %q", name, e.Payload, payload)
		}
		if e.Time.Before(before) || e.Time.After(time.Now()) {
			t.Errorf("%s: time is %v, want that of storage", name, e.Time)
		}
		want := jetbus.Event{ID: stream + "-" + strconv.FormatUint(seq, 10), Topic: topic, Partition: jetbus.NoPartition, Seq: seq, Time: e.Stored.Truncate(time.Millisecond), Stored: e.Stored, Payload: e.Payload}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Errorf("%s: event (-want +got):\n%s", name, diff)
		}
	}
}

// TestBinaryByHand publishes what the NATS binding prescribes, attributes
// percent-encoded and header names in the spellings that clients have.
func TestBinaryByHand(t *testing.T) {
	f := newFixture(t)
	events := f.subscribe(t)
	for name, payload := range payloads {
		m := &nats.Msg{Subject: subject, Data: []byte(payload), Header: nats.Header{
			"ce-specversion":  {"1.0"},
			"ce-id":           {"a%201"},
			"ce-type":         {"com.example.placed"},
			"ce-source":       {"/shop/42?q=%2525"},
			"ce-time":         {"2026-02-03T04:05:06.789123+01:00"},
			"ce-partitionkey": {"a%20b%25%C3%A9"},
			"ce-subject":      {"order%207"},
			"ce-comexample":   {"Euro%20%E2%82%AC%20%F0%9F%98%80"},
			"content-type":    {"application/vnd.example+json; charset=utf-8"},
			"x-request":       {"r1"},
		}}
		if _, err := f.plain.RequestMsg(m, limit); err != nil {
			t.Fatal(err)
		}
		e := next(t, events)
		want := jetbus.Event{
			ID: "a 1", SID: "/shop/42?q=%25", Topic: topic, Key: "a b%é", Partition: jetbus.NoPartition,
			Time: time.Date(2026, 2, 3, 3, 5, 6, 789e6, time.UTC), Seq: e.Seq, Stored: e.Stored, Payload: e.Payload,
			Headers: map[string]string{
				"content-type": "application/vnd.example+json; charset=utf-8", "x-ce-type": "com.example.placed",
				"x-ce-subject": "order 7", "x-ce-comexample": "Euro € 😀", "x-request": "r1",
			},
		}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Errorf("%s: event (-want +got):\n%s", name, diff)
		}
		if string(e.Payload) != payload {
			t.Errorf("%s: payload is %q, sent was %q", name, e.Payload, payload)
		}
	}
}

// newEvent is an event of the SDK with that payload.
func newEvent(id, contentType string, payload []byte) event.Event {
	e := event.New()
	e.SetID(id)
	e.SetType("com.example.placed")
	e.SetSource("https://shop.example/42")
	e.SetSubject("order 7")
	e.SetTime(time.Date(2026, 2, 3, 4, 5, 6, 789e6, time.UTC))
	e.SetExtension("partitionkey", "a b é")
	if err := e.SetData(contentType, payload); err != nil {
		panic(err) // bytes need no encoder
	}
	return e
}

// sdkClient is a client of the SDK that sends to the topic's subject.
func sdkClient(t *testing.T, f *fixture) client.Client {
	t.Helper()
	sender, err := nats_jetstream.NewSenderFromConn(f.plain, stream, subject, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(sender)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestBinaryBySDK lets the SDK send in binary mode, which is its default.
func TestBinaryBySDK(t *testing.T) {
	f := newFixture(t)
	events := f.subscribe(t)
	c := sdkClient(t, f)
	for name, payload := range payloads {
		contentType := "application/json"
		if name == "binary" {
			contentType = "application/octet-stream"
		}
		if err := c.Send(t.Context(), newEvent("sdk-"+name, contentType, []byte(payload))); protocol.IsUndelivered(err) {
			t.Fatal(err)
		}
		e := next(t, events)
		want := jetbus.Event{
			ID: "sdk-" + name, SID: "https://shop.example/42", Topic: topic, Key: "a b é", Partition: jetbus.NoPartition,
			Time: time.Date(2026, 2, 3, 4, 5, 6, 789e6, time.UTC), Seq: e.Seq, Stored: e.Stored, Payload: e.Payload,
			Headers: map[string]string{"x-ce-type": "com.example.placed", "x-ce-subject": "order 7"},
		}
		if contentType != "application/json" {
			want.Headers["content-type"] = contentType
		}
		if diff := cmp.Diff(want, e); diff != "" {
			t.Errorf("%s: event (-want +got):\n%s", name, diff)
		}
		if string(e.Payload) != payload {
			t.Errorf("%s: payload is %q, sent was %q", name, e.Payload, payload)
		}
	}
}

// TestStructured publishes documents as the binding prescribes, with the media
// type of structured mode. JSON data keeps its spelling, its white space too.
func TestStructured(t *testing.T) {
	f := newFixture(t)
	events := f.subscribe(t)
	const attributes = `"specversion":"1.0","id":"s1","source":"https://shop.example/42","type":"order.placed",` +
		`"time":"2026-02-03T04:05:06.789Z","partitionkey":"a b%é","subject":"order 7"`
	cases := map[string]struct{ members, payload, contentType string }{
		"object":  {`,"data":` + strings.TrimSpace(payloads["object"]), strings.TrimSpace(payloads["object"]), ""},
		"string":  {`,"data":` + payloads["string"], payloads["string"], ""},
		"null":    {`,"data":null`, "null", ""},
		"no data": {``, "", ""},
		"text":    {`,"datacontenttype":"text/plain","data":"caf\u00e9\n"`, "café\n", "text/plain"},
		"base64":  {`,"datacontenttype":"application/octet-stream","data_base64":"AAH//g0KDQqA"`, payloads["binary"], "application/octet-stream"},
	}
	mediaTypes := []string{"application/cloudevents+json", "application/cloudevents+json; charset=UTF-8", "Application/CloudEvents+JSON"}
	for name, c := range cases {
		for _, mediaType := range mediaTypes {
			m := &nats.Msg{Subject: subject, Data: []byte(" {" + attributes + c.members + "}\n"), Header: nats.Header{"content-type": {mediaType}}}
			if _, err := f.plain.RequestMsg(m, limit); err != nil {
				t.Fatal(err)
			}
			e := next(t, events)
			want := jetbus.Event{
				ID: "s1", SID: "https://shop.example/42", Topic: topic, Key: "a b%é", Partition: jetbus.NoPartition,
				Time: time.Date(2026, 2, 3, 4, 5, 6, 789e6, time.UTC), Seq: e.Seq, Stored: e.Stored, Payload: e.Payload,
				Headers: map[string]string{"x-ce-subject": "order 7"},
			}
			if c.contentType != "" {
				want.Headers["content-type"] = c.contentType
			}
			if diff := cmp.Diff(want, e); diff != "" {
				t.Errorf("%s: event (-want +got):\n%s", name, diff)
			}
			if string(e.Payload) != c.payload {
				t.Errorf("%s: payload is %q, sent was %q", name, e.Payload, c.payload)
			}
		}
	}
}

// TestStructuredBySDK lets the SDK send in structured mode. It sends the
// document without any header, which leaves it a message like every other: its
// bytes are the payload. The same document under the media type is decoded.
func TestStructuredBySDK(t *testing.T) {
	f := newFixture(t)
	events := f.subscribe(t)
	sent := newEvent("sdk-structured", "application/json", []byte(`{"a":1.0}`))
	if err := sdkClient(t, f).Send(binding.WithForceStructured(t.Context()), sent); protocol.IsUndelivered(err) {
		t.Fatal(err)
	}
	document := next(t, events)
	text, err := sent.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(document.Payload, text) || document.ID != stream+"-1" || len(document.Headers) > 0 {
		t.Errorf("without a header: %+v with payload %s, want the document as it was sent: %s", document, document.Payload, text)
	}

	m := &nats.Msg{Subject: subject, Data: document.Payload, Header: nats.Header{"content-type": {event.ApplicationCloudEventsJSON}}}
	if _, err := f.plain.RequestMsg(m, limit); err != nil {
		t.Fatal(err)
	}
	e := next(t, events)
	wantHeaders := map[string]string{"x-ce-type": "com.example.placed", "x-ce-subject": "order 7"}
	if e.ID != "sdk-structured" || e.Key != "a b é" || string(e.Payload) != `{"a":1.0}` || !maps.Equal(e.Headers, wantHeaders) {
		t.Errorf("with the media type: %+v with payload %s", e, e.Payload)
	}
}
