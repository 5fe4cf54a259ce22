package adapter

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

var storedAt = time.Date(2026, 2, 3, 4, 5, 6, 789_654_321, time.UTC)

func equalEvents(t *testing.T, want, got jetbus.Event) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("event differs (-want +got):\n%s", diff)
	}
}

func TestEventRoundTripsThroughServer(t *testing.T) {
	_, nc, js := directStream(t)
	e := jetbus.Event{
		ID: "é 1", SID: "a b", Topic: "process.state", Key: "a b%é", Time: storedAt.Truncate(time.Millisecond),
		Headers: map[string]string{"x-note": "Grüße, \"100%\"", "x-empty": "", "x-ce-subject": "é", "traceparent": "00", "User-Agent": "a/1", "!#$%&'*+-.^_`|~": "token"},
		Payload: []byte("{ \"n\": 1.0 }"), Tags: []string{"a,b"},
	}
	m := &nats.Msg{Subject: eventSubject("d", e.Topic, ce.KeyToken(e.Key)), Header: ce.Encode(&e), Data: e.Payload}
	for _, duplicate := range []bool{false, true} {
		ack, err := js.PublishMsg(t.Context(), m)
		if err != nil || ack.Duplicate != duplicate {
			t.Fatalf("duplicate %+v, %v, want %v", ack, err, duplicate)
		}
	}
	var got jetbus.Event
	if _, err := directGet(t.Context(), nc, directAPI, directRequest{Seq: 1}, func(m *nats.Msg, seq uint64, at time.Time) bool {
		e.Stored = at.UTC()
		var err error
		if got, err = ce.Decode(m.Header, m.Data, ce.Place{Topic: e.Topic, Stream: "D", Seq: seq, Time: at}); err != nil {
			t.Error(err)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	e.Partition, e.Seq = jetbus.NoPartition, 1
	equalEvents(t, e, got)
}

func TestExpiryMarkerIsTombstone(t *testing.T) {
	_, _, js := directStream(t)
	s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "M", Subjects: []string{"m.>"}, AllowMsgTTL: true, MaxMsgsPerSubject: 1, SubjectDeleteMarkerTTL: time.Minute, AllowDirect: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	e := jetbus.Event{ID: "1", Topic: "process.state", Key: "a b", Time: storedAt, Payload: []byte("1")}
	subject := eventSubject("m", e.Topic, ce.KeyToken(e.Key))
	ttl := ce.Encode(&e)
	ttl.Set("Nats-TTL", "1s")
	if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Header: ttl, Data: e.Payload}); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := c.Next(jetstream.FetchMaxWait(30 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if m.Headers().Get(ce.HeaderMarker) == "" {
			continue
		}
		got, err := ce.Decode(m.Headers(), m.Data(), ce.Place{Topic: e.Topic, Stream: "M", Seq: 2, Time: storedAt, Token: ce.KeyToken(e.Key)})
		if err != nil {
			t.Fatal(err)
		}
		equalEvents(t, jetbus.Event{
			ID: "M-2", Topic: e.Topic, Key: e.Key, Time: storedAt.Truncate(time.Millisecond), Partition: jetbus.NoPartition, Seq: 2, Stored: storedAt, Payload: []byte("null"),
		}, got)
		return
	}
}
