package ce

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

func TestStructured(t *testing.T) {
	base := jetbus.Event{
		ID: "1", SID: "/s", Topic: "process.state", Time: time.Date(2026, 2, 3, 4, 5, 6, 700_000_000, time.UTC),
		Partition: jetbus.NoPartition, Seq: 17, Stored: storedAt.Time,
	}
	const start = `{"specversion":"1.0","id":"1","source":"/s","type":"process.state","time":"2026-02-03T05:05:06.7+01:00"`
	for name, c := range map[string]struct {
		rest string
		want func(e *jetbus.Event)
	}{
		"no data": {`}`, func(*jetbus.Event) {}},
		"digits and space": {`,"data": { "n":1.0000000000000000001e3 ,"m": 12345678901234567890 } }`, func(e *jetbus.Event) {
			e.Payload = []byte(`{ "n":1.0000000000000000001e3 ,"m": 12345678901234567890 }`)
		}},
		"null":        {`,"data":null}`, func(e *jetbus.Event) { e.Payload = []byte("null") }},
		"JSON string": {`,"data":"a\n"}`, func(e *jetbus.Event) { e.Payload = []byte(`"a\n"`) }},
		"JSON string by type": {`,"datacontenttype":"application/vnd.x+json; a=b","data":"a"}`, func(e *jetbus.Event) {
			e.Payload, e.Headers = []byte(`"a"`), map[string]string{"content-type": "application/vnd.x+json; a=b"}
		}},
		"text": {`,"datacontenttype":"text/plain","data":"a\nü"}`, func(e *jetbus.Event) {
			e.Payload, e.Headers = []byte("a\nü"), map[string]string{"content-type": "text/plain"}
		}},
		"no text": {`,"datacontenttype":"text/xml","data":[ 1]}`, func(e *jetbus.Event) {
			e.Payload, e.Headers = []byte("[ 1]"), map[string]string{"content-type": "text/xml"}
		}},
		"bytes": {`,"datacontenttype":"image/png","data_base64":"AAH/"}`, func(e *jetbus.Event) {
			e.Payload, e.Headers = []byte{0, 1, 255}, map[string]string{"content-type": "image/png"}
		}},
		"attributes": {`,"partitionkey":"a b%20","causedby":"a,b%2Cc","tags":"é","dataschema":"urn:x","seqno":7,"on":true,"none":null,"Odd":"dropped","obj":{"a":"\n"}}`, func(e *jetbus.Event) {
			e.Key, e.CausedBy, e.Tags = "a b%20", []string{"a", "b,c"}, []string{"é"}
			e.Headers = map[string]string{"x-ce-dataschema": "urn:x", "x-ce-seqno": "7", "x-ce-on": "true", "x-ce-obj": `{"a":"\n"}`}
		}},
		"bad attributes": {`,"partitionkey":"a\nb","line":"\n"}`, func(e *jetbus.Event) {
			e.Headers = map[string]string{"x-ce-partitionkey": "a%0Ab", "x-ce-line": "%0A"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			want := base
			c.want(&want)
			for _, h := range []nats.Header{
				{"content-type": {"application/cloudevents+json"}},
				{"Content-Type": {"application/CloudEvents+JSON; charset=UTF-8"}},
				{"content-type": {"application/cloudevents"}, "ce-id": {"not this one"}},
			} {
				got, err := Decode(h, []byte(start+c.rest), storedAt)
				if err != nil {
					t.Fatal(err)
				}
				checkEqual(t, want, got)
				checkEqual(t, got, roundTrip(t, got, storedAt))
			}
		})
	}
}

func TestStructuredKeepsMessageHeaders(t *testing.T) {
	h := nats.Header{"content-type": {"application/cloudevents+json"}, "traceparent": {"00"}, "ce-subject": {"header"}, "ce-extra": {"e"}, "ce-id": {"h"}}
	got, err := Decode(h, []byte(`{"specversion":"1.0","subject":"document"}`), storedAt)
	if err != nil {
		t.Fatal(err)
	}
	want := jetbus.Event{
		ID: "h", Topic: "process.state", Time: millis(storedAt.Time), Partition: jetbus.NoPartition, Seq: 17, Stored: storedAt.Time,
		Headers: map[string]string{"traceparent": "00", "x-ce-subject": "document", "x-ce-extra": "e"},
	}
	checkEqual(t, want, got)
}

func TestStructuredBroken(t *testing.T) {
	h := nats.Header{"content-type": {"application/cloudevents+json"}}
	for _, data := range []string{
		``, `null`, `[]`, `"x"`, `{`, `{}x`, `{"id":"1"}`,
		`{"specversion":"1.0","data":1,"data_base64":"AA=="}`,
		`{"specversion":"1.0","data_base64":"?"}`,
		`{"specversion":"1.0","data_base64":1}`,
	} {
		if e, err := Decode(h, []byte(data), storedAt); !errors.Is(err, jetbus.ErrUndecodable) {
			t.Errorf("%s: %+v, %v, want ErrUndecodable", data, e, err)
		}
	}
}

func TestOtherCloudEventsTypesAreOpaque(t *testing.T) {
	for _, contentType := range []string{"application/cloudevents-batch+json", "application/cloudevents+avro", "application/cloudeventsx"} {
		e, err := Decode(nats.Header{"content-type": {contentType}}, []byte("x"), storedAt)
		if err != nil || string(e.Payload) != "x" || e.Headers["content-type"] != contentType {
			t.Errorf("%s: %+v, %v", contentType, e, err)
		}
	}
}

func FuzzStructured(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1.0}}`), "text/plain")
	f.Add([]byte(`{"specversion":1,"id":{},"tags":"a,b","x":"\n","time":"2026-02-03T04:05:06Z","data_base64":"AA=="}`), "")
	f.Add([]byte(`{"specversion":"1.0","datacontenttype":"application/json","data":"\ud800"}`), "a")
	f.Fuzz(func(t *testing.T, data []byte, note string) {
		h := nats.Header{"content-type": {"application/cloudevents+json"}, "x-note": {note}}
		e, err := Decode(h, data, storedAt)
		if err != nil {
			if !errors.Is(err, jetbus.ErrUndecodable) {
				t.Fatalf("unexpected error %v", err)
			}
			return
		}
		var document struct {
			Data json.RawMessage `json:"data"`
		}
		if json.Unmarshal(data, &document) == nil && len(e.Payload) > 0 && isJSONType(e.ContentType()) && len(document.Data) > 0 && !json.Valid(e.Payload) {
			t.Fatalf("payload %q is no JSON", e.Payload)
		}
		checkDecoded(t, h, data, storedAt)
	})
}
