package edge

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/protocol"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
)

// sender is the SDK's HTTP client for a topic.
func sender(r *rig, topic string) cloudevents.Client {
	r.Helper()
	c, err := cloudevents.NewClientHTTP(cehttp.WithTarget(r.url+"/v1/topics/"+topic), cehttp.WithHeader("Authorization", "Bearer "+token))
	if err != nil {
		r.Fatal(err)
	}
	return c
}

// newEvent is an event of the SDK.
func newEvent(id, contentType string, data any) event.Event {
	e := event.New()
	e.SetID(id)
	e.SetType("com.example.placed")
	e.SetSource("https://shop.example/42?a=b")
	e.SetSubject("order 7 ☕")
	e.SetDataSchema("https://shop.example/schema")
	e.SetTime(time.Date(2026, 2, 3, 4, 5, 6, 789e6, time.UTC))
	e.SetExtension("partitionkey", "a b é%")
	e.SetExtension("sequence", "7")
	e.SetExtension("flag", true)
	if err := e.SetData(contentType, data); err != nil {
		panic(err) // what is sent has an encoder
	}
	return e
}

// TestCloudEventsClient sends in all modes what the SDK makes of an event, and finds the same
// in the topic.
func TestCloudEventsClient(t *testing.T) {
	r := newRig(t)
	r.ensure(jetbus.TopicConfig{Name: "orders"})
	c := sender(r, "orders")
	modes := map[string]func(e event.Event) error{
		"binary":     func(e event.Event) error { return c.Send(binding.WithForceBinary(t.Context()), e) },
		"structured": func(e event.Event) error { return c.Send(binding.WithForceStructured(t.Context()), e) },
		"batch": func(e event.Event) error {
			req, err := cehttp.NewHTTPRequestFromEvents(t.Context(), r.url+"/v1/topics/orders", []event.Event{e})
			if err != nil {
				return err
			}
			req.Header.Set("Authorization", "Bearer "+token)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
				return cehttp.NewResult(res.StatusCode, "%s, %w", res.Status, err)
			}
			return protocol.ResultACK
		},
	}
	for mode, send := range modes {
		for name, data := range map[string]struct {
			contentType string
			data        any
			payload     string
		}{
			"object": {cloudevents.ApplicationJSON, map[string]any{"n": 1}, `{"n":1}`},
			"JSON":   {cloudevents.ApplicationJSON, json.RawMessage(`{"n":12345678901234567890.10}`), `{"n":12345678901234567890.10}`},
			"text":   {cloudevents.TextPlain, "tä\n", "tä\n"},
			"bytes":  {"application/octet-stream", []byte("\x00\xff\r\n"), "\x00\xff\r\n"},
		} {
			id := mode + " " + name
			if err := send(newEvent(id, data.contentType, data.data)); !protocol.IsACK(err) {
				t.Errorf("%s: %v", id, err)
				continue
			}
			all := r.stored("orders")
			got := all[len(all)-1]
			want := jetbus.Event{
				ID: id, SID: "https://shop.example/42?a=b", Topic: "orders", Key: "a b é%", Partition: jetbus.NoPartition, Seq: got.Seq, Stored: got.Stored,
				Time: time.Date(2026, 2, 3, 4, 5, 6, 789e6, time.UTC), Payload: []byte(data.payload),
				Headers: map[string]string{"x-ce-type": "com.example.placed", "x-ce-subject": "order 7 ☕", "x-ce-dataschema": "https://shop.example/schema", "x-ce-sequence": "7", "x-ce-flag": "true"},
			}
			if data.contentType != cloudevents.ApplicationJSON {
				want.Headers["content-type"] = data.contentType
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", id, diff)
			}
		}
	}
	before := len(r.stored("orders"))
	if err := c.Send(t.Context(), newEvent("binary text", cloudevents.TextPlain, "again")); !protocol.IsACK(err) {
		t.Errorf("sent twice: %v", err)
	}
	if n := len(r.stored("orders")); n != before {
		t.Errorf("an event that was sent twice is there twice")
	}
}

// TestCloudEventsClientRefused tells the SDK what is refused, so that it counts as refused.
func TestCloudEventsClientRefused(t *testing.T) {
	r := newRig(t)
	r.ensure(jetbus.TopicConfig{Name: "orders"})
	r.register("orders", one)
	e := newEvent("1", cloudevents.ApplicationJSON, map[string]any{"id": "text"})
	for topic, want := range map[string]int{"orders": 422, "none": 404, "or%20ders": 400, "dlq.orders": 403} {
		err := sender(r, topic).Send(t.Context(), e)
		var result *cehttp.Result
		if protocol.IsACK(err) || !protocol.ResultAs(err, &result) || result.StatusCode != want {
			t.Errorf("%s: %v, want %d", topic, err, want)
		}
	}
	if all := r.stored("orders"); len(all) != 0 {
		t.Errorf("%+v was stored", all)
	}
}

// TestCloudEventsReceived hands what the gateway delivers to the SDK: the event of a pull, put
// into structured mode by the rules of the bus, is one that the SDK reads and sends back.
func TestCloudEventsReceived(t *testing.T) {
	r := newRig(t)
	r.ensure(jetbus.TopicConfig{Name: "orders"})
	r.ensure(jetbus.TopicConfig{Name: "copies"})
	sent := newEvent("1", cloudevents.ApplicationJSON, map[string]any{"n": 1})
	if err := sender(r, "orders").Send(t.Context(), sent); !protocol.IsACK(err) {
		t.Fatal(err)
	}
	pulled := parsed[struct {
		Events []struct {
			AckID string       `json:"ack_id"`
			Event jetbus.Event `json:"event"`
		}
	}](t, r.do("POST", "/v1/groups/orders/copy:pull", `{"wait":"30s","from":"earliest"}`, "application/json"))
	if len(pulled.Events) != 1 {
		t.Fatalf("%+v", pulled)
	}
	e := pulled.Events[0].Event
	got := event.New()
	got.SetID(e.ID)
	got.SetSource(e.SID)
	got.SetType(e.Headers["x-ce-type"])
	got.SetSubject(e.Headers["x-ce-subject"])
	got.SetDataSchema(e.Headers["x-ce-dataschema"])
	got.SetTime(e.Time)
	got.SetExtension("partitionkey", e.Key)
	got.SetExtension("sequence", e.Headers["x-ce-sequence"])
	got.SetExtension("flag", e.Headers["x-ce-flag"] == "true")
	if err := got.SetData(cloudevents.ApplicationJSON, json.RawMessage(e.Payload)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sent.String(), got.String()); diff != "" {
		t.Errorf("(-sent +received):\n%s", diff)
	}
	// By its relay a receiver of the SDK gets it, and answers.
	req, err := cehttp.NewHTTPRequestFromEvent(t.Context(), r.url+"/v1/topics/copies", got)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		t.Fatal(err)
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	again, err := cehttp.NewEventFromHTTPRequest(req)
	if err != nil || again.ID() != "1" {
		t.Errorf("%v, %v", again, err)
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusCreated {
		t.Errorf("%s, %v", res.Status, err)
	}
	copied := r.stored("copies")
	if len(copied) != 1 || copied[0].ID != e.ID || copied[0].Key != e.Key || string(copied[0].Payload) != string(e.Payload) {
		t.Errorf("%+v", copied)
	}
}
