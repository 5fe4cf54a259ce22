package cloudevents

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/client"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// ours are events that JetBus publishes, among them those that the binding has
// to escape.
var ours = map[string]jetbus.Event{
	"bare":         {Topic: topic},
	"odd key":      {Topic: topic, Key: "a b%é", Payload: []byte(`{}`)},
	"escaped key":  {Topic: topic, Key: "a%20b", Payload: []byte(`{}`)},
	"emoji key":    {Topic: topic, Key: `"😀"` + "\u2028", Payload: []byte(`{}`)},
	"odd id":       {Topic: topic, ID: `7 | "é"`, Payload: []byte(`{}`)},
	"odd sid":      {Topic: topic, SID: "host 1/é%2F#x", Payload: []byte(`{}`)},
	"sid as a URI": {Topic: topic, SID: "https://shop.example/a%20b?q=1", Payload: []byte(`{}`)},
	"lists":        {Topic: topic, CausedBy: []string{"a,b", "c d", "100%"}, Tags: []string{"é", ","}, Payload: []byte(`{}`)},
	"content type": {Topic: topic, Headers: map[string]string{"content-type": "application/octet-stream"}, Payload: []byte(payloads["binary"])},
	"is a CE": {
		Topic: topic, Payload: []byte(payloads["like CE"]),
		Headers: map[string]string{"content-type": "application/cloudevents+json"},
	},
	"attributes": {
		Topic: topic, Payload: []byte(payloads["object"]), Time: time.Date(1, 1, 1, 0, 0, 0, 1e6, time.UTC),
		Headers: map[string]string{
			"x-ce-subject": "order 7%", "x-ce-dataschema": "https://shop.example/schema/1", "x-ce-comexample": "€",
			"x-request": "r1", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		},
	},
}

// TestOursByTheBinding reads stored messages with plain nats.go and the rules of
// the binding: prefix, percent-decoding, and nothing else.
func TestOursByTheBinding(t *testing.T) {
	f := newFixture(t)
	for name, e := range ours {
		t.Run(name, func(t *testing.T) {
			stored, m := f.store(t, e)
			got := map[string]string{}
			for header, values := range m.Header {
				attribute, ok := strings.CutPrefix(header, "ce-")
				if !ok {
					continue
				}
				if strings.ContainsFunc(values[0], func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }) {
					t.Errorf("%s: %q has characters that the binding escapes", header, values[0])
				}
				value, err := url.PathUnescape(values[0])
				if err != nil || len(values) != 1 {
					t.Errorf("%s: %q: %v", header, values, err)
				}
				got[attribute] = value
			}
			want := map[string]string{
				"specversion": "1.0", "id": stored.ID, "type": topic, "source": got["source"],
				"time": stored.Time.Format("2006-01-02T15:04:05.000Z"),
			}
			if kind := stored.ContentType(); kind != "application/json" { // which is what it is where nothing is said
				want["datacontenttype"] = kind
			}
			if e.Key != "" {
				want["partitionkey"] = e.Key
			}
			for _, list := range []string{"causedby", "tags"} {
				if got[list] != "" { // escaped once more, item by item: read back in TestOursBySDK
					want[list] = got[list]
				}
			}
			for header, value := range e.Headers {
				if attribute, ok := strings.CutPrefix(header, "x-ce-"); ok {
					want[attribute] = value
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("attributes (-want +got):\n%s", diff)
			}
			if string(m.Data) != string(e.Payload) {
				t.Errorf("payload is %q, published was %q", m.Data, e.Payload)
			}
			if _, err := url.Parse(got["source"]); err != nil || got["source"] == "" {
				t.Errorf("source %q is no URI: %v", got["source"], err)
			}
		})
	}
}

// TestOursBySDK reads stored messages with the SDK, which does not decode
// percent-escapes: what it shows is what stands in the header.
func TestOursBySDK(t *testing.T) {
	f := newFixture(t)
	for name, e := range ours {
		t.Run(name, func(t *testing.T) {
			stored, m := f.store(t, e)
			message := nats_jetstream.NewMessage(m)
			if got := message.ReadEncoding(); got != binding.EncodingBinary {
				t.Fatalf("the SDK takes it for %v", got)
			}
			ce, err := binding.ToEvent(t.Context(), message)
			if err != nil {
				t.Fatal(err)
			}
			f.check(t, stored, ce)
			if string(ce.Data()) != string(e.Payload) {
				t.Errorf("data is %q, published was %q", ce.Data(), e.Payload)
			}
		})
	}
}

// check compares what the SDK read with what was stored.
func (f *fixture) check(t *testing.T, stored jetbus.Event, ce *event.Event) {
	t.Helper()
	if err := ce.Validate(); err != nil {
		t.Errorf("no valid CloudEvent: %v\n%v", err, ce)
	}
	decode := func(what, s string) string {
		out, err := url.PathUnescape(s)
		if err != nil {
			t.Errorf("%s %q: %v", what, s, err)
		}
		return out
	}
	if ce.SpecVersion() != "1.0" || ce.Type() != topic || decode("id", ce.ID()) != stored.ID || !ce.Time().Equal(stored.Time) {
		t.Errorf("the SDK reads\n%v\nstored was %+v", ce, stored)
	}
	got := decode("datacontenttype", ce.DataContentType())
	if got == "" { // which says JSON
		got = "application/json"
	}
	if got != stored.ContentType() {
		t.Errorf("content type is %q, want %q", got, stored.ContentType())
	}
	key, _ := ce.Extensions()["partitionkey"].(string)
	if decode("partitionkey", key) != stored.Key {
		t.Errorf("partitionkey is %q, the key is %q", key, stored.Key)
	}
	for name, items := range map[string][]string{"causedby": stored.CausedBy, "tags": stored.Tags} {
		text, _ := ce.Extensions()[name].(string)
		var got []string
		for item := range strings.SplitSeq(text, ",") {
			if item != "" {
				got = append(got, decode(name, item))
			}
		}
		if diff := cmp.Diff(items, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if !strings.Contains(ce.Source(), ":") || stored.SID == "" {
		t.Errorf("source is %q, the session id is %q", ce.Source(), stored.SID)
	}
}

// store publishes an event and returns what the bus says was stored, and the
// message as any NATS client gets it.
func (f *fixture) store(t *testing.T, e jetbus.Event) (jetbus.Event, *nats.Msg) {
	t.Helper()
	messages := make(chan *nats.Msg, 1)
	sub, err := f.plain.ChanSubscribe(subject, messages)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // its connection is closed soon
	if err := f.plain.FlushTimeout(limit); err != nil {
		t.Fatal(err)
	}
	r, err := f.bus.Publish(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	m := next(t, messages)
	for back, err := range f.bus.Scan(t.Context(), topic, jetbus.ScanQuery{From: jetbus.AfterSeq(r.Event.Seq - 1)}) {
		if err != nil {
			t.Fatal(err)
		}
		if back.Stored.IsZero() {
			t.Errorf("the bus does not say when it stored %+v", back)
		}
		r.Event.Stored = back.Stored // which a receipt does not know
		same := cmp.FilterValues(func(a, b []byte) bool { return len(a)+len(b) == 0 }, cmp.Ignore())
		if diff := cmp.Diff(r.Event, back, same); diff != "" {
			t.Errorf("the bus reads another event than it stored (-stored +read):\n%s", diff)
		}
	}
	return r.Event, m
}

// TestSDKReceiver reads a topic with a client of the SDK.
func TestSDKReceiver(t *testing.T) {
	f := newFixture(t)
	var stored []jetbus.Event
	for _, e := range ours {
		r, err := f.bus.Publish(t.Context(), e)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, r.Event)
	}
	consumer, err := nats_jetstream.NewConsumerFromConn(f.plain, stream, subject, nil, []nats.SubOpt{nats.DeliverAll()})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(consumer, client.WithPollGoroutines(1), client.WithBlockingCallback())
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan event.Event, len(stored))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.StartReceiver(ctx, func(e event.Event) { received <- e }) }()
	for _, e := range stored {
		ce := next(t, received)
		f.check(t, e, &ce)
	}
	cancel()
	if err := next(t, ended); err != nil {
		t.Error(err)
	}
}
