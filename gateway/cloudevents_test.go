package gateway

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

func TestCloudEvents(t *testing.T) {
	full := jetbus.Event{
		Topic: "orders", Partition: jetbus.NoPartition, ID: "1 %", SID: "boot 1", Key: "k", Time: time.UnixMilli(1700000000123).UTC(),
		Payload: []byte(`{"a": 1.0}`), CausedBy: []string{"x,y", "z"}, Tags: []string{"t"},
		Headers: map[string]string{"x-ce-subject": "s", "x-ce-dataschema": "https://e.example/s", "x-ce-type": "com.example.order", "x-ce-sequence": "7", "x-ce-type2": "true"},
	}
	binary := http.Header{
		"Ce-Specversion": {"1.0"}, "Ce-Id": {"1%20%25"}, "Ce-Source": {"urn:jetbus:boot%2520" + "1"}, "Ce-Type": {"com.example.order"},
		"Ce-Subject": {"s"}, "Ce-Partitionkey": {"k"}, "Ce-Time": {"2023-11-14T22:13:20.123456Z"}, "Ce-Dataschema": {"https://e.example/s"},
		"Ce-Causedby": {"x%2Cy, z"}, "Ce-Tags": {"t"}, "Ce-Sequence": {"7"}, "Ce-Type2": {"true"}, "Content-Type": {"application/json"}, "X-Other": {"o"},
	}
	e, ok, err := binaryCloudEvent("orders", binary, full.Payload)
	if err != nil || !ok || !reflect.DeepEqual(e, full) {
		t.Errorf("binary: %+v, %v, %v", e, ok, err)
	}
	structured := `{"specversion":"1.0","id":"1 %","source":"urn:jetbus:boot%201","type":"com.example.order","subject":"s","partitionkey":"k",
		"time":"2023-11-14T23:13:20.123+01:00","dataschema":"https://e.example/s","causedby":"x%2Cy,z","tags":"t","sequence":"7","type2":true,
		"datacontenttype":"application/json","extra":null,"data":{"a": 1.0}}`
	e, err = structuredCloudEvent("orders", []byte(structured))
	if err != nil || !reflect.DeepEqual(e, full) {
		t.Errorf("structured: %+v, %v", e, err)
	}
	if _, ok, _ := binaryCloudEvent("orders", http.Header{"Content-Type": {"application/json"}}, nil); ok {
		t.Error("a request without attributes is no CloudEvent")
	}
}

// TestRelativeSourceIsKept: a source that a session id does not bring back is also kept as an attribute.
func TestRelativeSourceIsKept(t *testing.T) {
	for source, kept := range map[string]string{
		"shop-42": "shop-42", "shop 42": "shop 42", "/a b": "/a b", "/src": "", "urn:uuid:1": "", "https://x.example/a?b=1": "", "urn:jetbus:a": "",
	} {
		e, err := structuredCloudEvent("orders", fmt.Appendf(nil, `{"specversion":"1.0","id":"1","source":%q,"type":"orders"}`, source))
		if err != nil || e.Headers["x-ce-source"] != kept {
			t.Errorf("%s: headers %v, %v; want x-ce-source %q", source, e.Headers, err, kept)
		}
	}
}

// TestCloudEventData: data are what the content type says.
func TestCloudEventData(t *testing.T) {
	const head = `{"specversion":"1.0","id":"1","source":"s","type":"orders","subject":"sub",`
	for _, c := range []struct{ rest, payload, kind string }{
		{`"data": 9007199254740993 }`, `9007199254740993`, ""},
		{`"data":"text"}`, `"text"`, ""},
		{`"datacontenttype":"text/plain","data":"t\u00e9"}`, "té", "text/plain"},
		{`"datacontenttype":"application/vnd.a+json","data":"x"}`, `"x"`, "application/vnd.a+json"},
		{`"data_base64":"AP8=","datacontenttype":"application/octet-stream"}`, "\x00\xff", "application/octet-stream"},
		{`"data":null}`, `null`, ""},
		{`"x":"y"}`, ``, ""},
	} {
		e, err := structuredCloudEvent("orders", []byte(head+c.rest))
		if err != nil || string(e.Payload) != c.payload || e.Headers[jetbus.HeaderContentType] != c.kind || e.Key != "sub" {
			t.Errorf("%s: %+v, %v", c.rest, e, err)
		}
	}
}

func TestCloudEventsRefused(t *testing.T) {
	for _, c := range []struct {
		text string
		want Code
	}{
		{``, CodeBadJSON},
		{`[]`, CodeBadJSON},
		{`null`, CodeBadJSON},
		{`{"id":"1","source":"s","type":"t"}`, CodeBadRequest},
		{`{"specversion":"0.3","id":"1","source":"s","type":"t"}`, CodeBadRequest},
		{`{"specversion":"1.0","source":"s","type":"t"}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","type":"t"}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","source":"s"}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","source":"s","type":"t","time":"noon"}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","source":"s","type":"t","nats-rollup":"all"}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","source":"s","type":"t","Big":"x"}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","source":"s","type":"t","ext":{"a":1}}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","source":"s","type":"t","ext":"a\r\nb"}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","source":"s","type":"t","data":1,"data_base64":"AA=="}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"*"}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":1}`, CodeBadRequest},
		{`{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"application/cloudevents+json","data":1}`, CodeUnsupportedEncoding},
		{`{"specversion":"1.0","id":"1","source":"s","type":"t","data":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, CodeBadJSON},
	} {
		if e, err := structuredCloudEvent("orders", []byte(c.text)); err == nil || codeOf(err) != c.want {
			t.Errorf("%.120s: %+v, %v", c.text, e, err)
		}
	}
	twice := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1", "2"}, "Ce-Source": {"s"}, "Ce-Type": {"t"}}
	if _, _, err := binaryCloudEvent("orders", twice, []byte("1")); codeOf(err) != CodeBadRequest {
		t.Errorf("an attribute twice: %v", err)
	}
	noJSON := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"s"}, "Ce-Type": {"t"}}
	if _, _, err := binaryCloudEvent("orders", noJSON, []byte("{")); codeOf(err) != CodeBadJSON {
		t.Errorf("no JSON: %v", err)
	}
}

// fuzzed fails unless what was read can be published, or is refused with a failure that has
// a status of the client's.
func fuzzed(t *testing.T, e jetbus.Event, err error) {
	t.Helper()
	if err == nil {
		err = e.Validate()
	}
	if err != nil {
		if s := codeOf(err).Status(); s < 400 || s > 499 {
			t.Errorf("%v has the status %d", err, s)
		}
		return
	}
	for name := range e.Headers {
		if strings.HasPrefix(strings.ToLower(name), "nats-") || strings.ContainsAny(name, "\r\n") {
			t.Errorf("the header %q", name)
		}
	}
}

func FuzzStructuredCloudEvent(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"urn:jetbus:s","type":"t","subject":"k","ext":7,"tags":"a,b","data":{"a":[1]}}`))
	f.Add([]byte(`{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"AP8="}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := structuredCloudEvent("orders", text)
		fuzzed(t, e, err)
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add("Ce-Ext", "a%0D%0Ab", "X-Evt-Key", "k", []byte("1"))
	f.Add("X-Evt-Tags", "a,b%2C", "Ce-Time", "2023-11-14T22:13:20Z", []byte("{}"))
	f.Add("Nats-Rollup", "all", "X-Evt-", "x", []byte(""))
	g := &Gateway{}
	f.Fuzz(func(t *testing.T, name, value, other, text string, body []byte) {
		for _, h := range []http.Header{{}, {"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"s"}, "Ce-Type": {"t"}}} {
			h.Add(name, value)
			h.Add(other, text)
			refused := refuseHeaders(h)
			if strings.HasPrefix(strings.ToLower(name), "nats-") && refused == nil {
				t.Errorf("%q is not refused", name)
			}
			before := maps.Clone(h)
			e, err := g.parseEvent("orders", "", h, body)
			fuzzed(t, e, err)
			if !reflect.DeepEqual(h, before) {
				t.Error("the request's headers were changed")
			}
		}
	})
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"payload\":1}\r\n\n{\"id\":\"1\",\"payload\":{\"a\": 1.0},\"headers\":{\"x-a\":\"b\"}}"))
	f.Add([]byte("{\"payload_base64\":\"AA==\"}\nnull\n[]\n1"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := lines(text, 8)
		if err != nil && codeOf(err) != CodeTooLarge {
			t.Error(err)
		}
		for _, line := range list {
			if len(line) == 0 || strings.ContainsRune(string(line), '\n') {
				t.Errorf("the line %q", line)
			}
			e, err := lineEvent("orders", line)
			if err == nil && (e.Topic != "orders" || e.Seq != 0) {
				t.Errorf("%+v", e)
			}
			fuzzed(t, e, err)
		}
	})
}

func TestLineEvent(t *testing.T) {
	e, err := lineEvent("orders", []byte(`{"id":"1","topic":"orders","seq":7,"partition":3,"ts":5,"key":"k","payload": {"n": 1.0} ,"tags":["t"]}`))
	if err != nil || string(e.Payload) != `{"n": 1.0}` || e.Seq != 0 || e.Partition != jetbus.NoPartition || e.Key != "k" || e.Time.UnixMilli() != 5 {
		t.Errorf("%+v, %v", e, err)
	}
	for _, text := range []string{`1`, `null`, `{}`, `{"id":"1"}`, `{"payload":1,"topic":"bills"}`, `{"payload":1,"id":1}`, `{"payload":1,"payload_base64":"AA=="}`, `{"payload_base64":"*"}`, `{"payload":1,"Key":"k"}`, `{"payload":1,"payload":2}`, `{"payload":1,"headers":{"a":"1","a":"2"}}`} {
		_, err := lineEvent("orders", []byte(text))
		if f, ok := errors.AsType[*failure](err); !ok || f.Code.Status() != 400 {
			t.Errorf("%s: %v", text, err)
		}
	}
}
