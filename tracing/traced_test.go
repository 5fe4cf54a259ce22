package tracing_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/partition"
	"github.com/seed-63e9a637/jetbus/tracing"
)

// rig is a traced bus in fake time, and the spans that have ended.
type rig struct {
	*testing.T
	jetbus.Backend
	plain    jetbus.Backend
	provider trace.TracerProvider
	spans    *tracetest.SpanRecorder
}

func inBubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		spans := tracetest.NewSpanRecorder()
		provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
		bus := bustest.Open(t, bustest.Start(t, embedded.Config{}), adapter.Config{AutoCreate: true})
		f(&rig{T: t, Backend: tracing.Traced(bus, tracing.Options{Provider: provider}), plain: bus, provider: provider, spans: spans})
	})
}

// subscribe handles events of a topic.
func (r *rig) subscribe(ctx context.Context, topic string, h jetbus.Handler) {
	r.Helper()
	if _, err := r.Subscribe(ctx, topic, "g", h, jetbus.SubscribeOptions{MaxAttempts: 2}); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) publish(ctx context.Context, e jetbus.Event) jetbus.Event {
	r.Helper()
	e.Payload = []byte("1")
	receipt, err := r.Publish(ctx, e)
	if err != nil {
		r.Fatal(err)
	}
	return receipt.Event
}

// named returns the spans of a name, in the order in which they ended.
func (r *rig) named(name string, n int) []sdk.ReadOnlySpan {
	r.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	var out []sdk.ReadOnlySpan
	for _, s := range r.spans.Ended() {
		if s.Name() == name {
			out = append(out, s)
		}
	}
	if len(out) != n {
		r.Fatalf("%d spans %q, want %d", len(out), name, n)
	}
	return out
}

// says checks attributes of a span, as text.
func (r *rig) says(s sdk.ReadOnlySpan, want map[string]string) {
	r.Helper()
	got := attribute.NewSet(s.Attributes()...)
	for name, value := range want {
		if v, is := got.Value(attribute.Key(name)); !is || v.String() != value {
			r.Errorf("%s: %s = %q, want %q", s.Name(), name, v.String(), value)
		}
	}
}

// TestTrace is one trace through two topics.
func TestTrace(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.subscribe(in(r.T, ""), "orders", func(ctx context.Context, d *jetbus.Delivery) error { // as if called in a span of its own
			r.publish(ctx, jetbus.Event{Topic: "bills", CausedBy: []string{d.ID}})
			return nil
		})
		r.subscribe(r.Context(), "bills", func(context.Context, *jetbus.Delivery) error { return nil })
		stored := r.publish(r.Context(), jetbus.Event{Topic: "orders"})

		last := r.named("process bills", 1)[0]
		sent := r.named("send orders", 1)[0]
		handled := r.named("process orders", 1)[0]
		sentOn := r.named("send bills", 1)[0]
		if stored.Headers["traceparent"] == "" {
			r.Error("what is stored has no trace")
		}
		for _, link := range []struct{ child, parent sdk.ReadOnlySpan }{{handled, sent}, {sentOn, handled}, {last, sentOn}} {
			if link.child.Parent().SpanID() != link.parent.SpanContext().SpanID() || link.child.SpanContext().TraceID() != sent.SpanContext().TraceID() {
				r.Errorf("%s is not a child of %s", link.child.Name(), link.parent.Name())
			}
		}
		if sent.SpanKind() != trace.SpanKindProducer || handled.SpanKind() != trace.SpanKindConsumer {
			r.Errorf("kinds are %v and %v", sent.SpanKind(), handled.SpanKind())
		}
		r.says(sent, map[string]string{
			"messaging.system": "jetbus", "messaging.operation.name": "publish", "messaging.operation.type": "send",
			"messaging.destination.name": "orders", "messaging.message.id": stored.ID, "messaging.message.body.size": "1",
		})
		r.says(handled, map[string]string{
			"messaging.operation.type": "process", "messaging.destination.name": "orders", "messaging.consumer.group.name": "g",
			"messaging.message.id": stored.ID, "jetbus.attempt": "1", "jetbus.outcome": "ack",
		})
		r.says(last, map[string]string{"jetbus.caused_by": `["` + stored.ID + `"]`})
		for _, a := range handled.Attributes() {
			if a.Key == "messaging.destination.partition.id" {
				r.Errorf("an event without partition has %s = %s", a.Key, a.Value.String())
			}
		}
	})
}

// A dry run sends nothing, so its span is not the span of a producer. Its event has the headers of a publish, which count.
func TestDryRun(t *testing.T) {
	inBubble(t, func(r *rig) {
		stored := r.publish(r.Context(), jetbus.Event{Topic: "orders"})
		receipt, err := r.Publish(r.Context(), jetbus.Event{Topic: "orders"}, jetbus.PublishOptions{DryRun: true})
		if err != nil || len(receipt.Event.Headers["traceparent"]) != len(stored.Headers["traceparent"]) {
			r.Errorf("%+v, %v", receipt, err)
		}
		r.named("send orders", 1)
		if s := r.named("dry run orders", 1)[0]; s.SpanKind() != trace.SpanKindInternal {
			r.Errorf("the kind is %v", s.SpanKind())
		}
	})
}

// TestOutcome: each attempt is a span, which says what became of it.
func TestOutcome(t *testing.T) {
	why := errors.New("why")
	tests := []struct {
		name    string
		h       func(attempt int) error
		outcome []string
		failed  []bool
	}{
		{"fails, then is done", func(n int) error {
			if n == 1 {
				return why
			}
			return nil
		}, []string{"retry", "ack"}, []bool{true, false}},
		{"reject", func(int) error { return jetbus.Reject(why) }, []string{"reject"}, []bool{true}},
		{"drop", func(int) error { return jetbus.Drop(why) }, []string{"ack"}, []bool{false}},
		{"panic", func(n int) error {
			if n == 1 {
				panic(why)
			}
			return nil
		}, []string{"", "ack"}, []bool{true, false}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.subscribe(r.Context(), "orders", func(_ context.Context, d *jetbus.Delivery) error { return tt.h(d.Attempt) })
				r.publish(r.Context(), jetbus.Event{Topic: "orders"})
				for i, s := range r.named("process orders", len(tt.outcome)) {
					if (s.Status().Code == codes.Error) != tt.failed[i] {
						r.Errorf("attempt %d ended with %v", i+1, s.Status())
					}
					if tt.outcome[i] != "" {
						r.says(s, map[string]string{"jetbus.outcome": tt.outcome[i]})
					}
				}
			})
		})
	}
	t.Run("snooze", func(t *testing.T) {
		inBubble(t, func(r *rig) {
			times := 0
			r.subscribe(r.Context(), "orders", func(context.Context, *jetbus.Delivery) error {
				if times++; times == 1 {
					return jetbus.Snooze(time.Second)
				}
				return nil
			})
			r.publish(r.Context(), jetbus.Event{Topic: "orders"})
			first := r.named("process orders", 2)[0]
			r.says(first, map[string]string{"jetbus.outcome": "snooze"})
			if first.Status().Code == codes.Error {
				r.Errorf("to put off is an error: %v", first.Status())
			}
		})
	})
}

// TestRelayed: an event that brings its trace keeps it, and the publish has a link there.
func TestRelayed(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.subscribe(r.Context(), "orders", func(context.Context, *jetbus.Delivery) error { return nil })
		stored := r.publish(r.Context(), jetbus.Event{Topic: "orders", Headers: map[string]string{"traceparent": parent}})
		sent, handled := r.named("send orders", 1)[0], r.named("process orders", 1)[0]
		if stored.Headers["traceparent"] != parent || handled.Parent().TraceID().String() != parent[3:35] {
			r.Errorf("stored with %q, handled in %v", stored.Headers["traceparent"], handled.Parent().TraceID())
		}
		if len(sent.Links()) != 1 || sent.Links()[0].SpanContext.TraceID().String() != parent[3:35] {
			r.Errorf("links = %v, want one to %s", sent.Links(), parent)
		}
	})
}

// TestNoTrace: an event without a trace begins one.
func TestNoTrace(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, span := r.provider.Tracer("t").Start(r.Context(), "start of the program")
		r.subscribe(ctx, "orders", func(context.Context, *jetbus.Delivery) error { return nil })
		span.End()
		for _, headers := range []map[string]string{nil, {"traceparent": "nonsense"}} {
			if _, err := r.plain.Publish(r.Context(), jetbus.Event{Topic: "orders", Payload: []byte("1"), Headers: headers}); err != nil {
				r.Fatal(err)
			}
		}
		for _, s := range r.named("process orders", 2) {
			if s.Parent().IsValid() || s.SpanContext().TraceID() == span.SpanContext().TraceID() {
				r.Errorf("%s is part of another trace", s.Name())
			}
		}
	})
}

func TestBatchAndReceive(t *testing.T) {
	inBubble(t, func(r *rig) {
		events := []jetbus.Event{{Topic: "orders", Payload: []byte("1")}, {Topic: "orders", Payload: []byte("2"), Headers: map[string]string{"traceparent": parent}}}
		if _, err := r.PublishBatch(r.Context(), events, jetbus.BatchOptions{}); err != nil {
			r.Fatal(err)
		}
		if events[0].Headers != nil {
			r.Errorf("the caller's event is changed: %v", events[0].Headers)
		}
		sent := r.named("send orders", 1)[0]
		r.says(sent, map[string]string{"messaging.batch.message_count": "2"})
		if len(sent.Links()) != 1 {
			r.Errorf("links of the batch = %v, want one", sent.Links())
		}
		got, err := r.Receive(r.Context(), "orders", "g", jetbus.ReceiveOptions{From: jetbus.Earliest()})
		if err != nil || len(got) != 2 {
			r.Fatalf("received %d, %v", len(got), err)
		}
		for _, d := range got {
			if !trace.SpanContextFromContext(tracing.Extract(r.Context(), &d.Event)).IsRemote() {
				r.Errorf("%s has no trace", d.ID)
			}
			if err := d.Ack(r.Context()); err != nil {
				r.Error(err)
			}
		}
		received := r.named("receive orders", 1)[0]
		r.says(received, map[string]string{"messaging.batch.message_count": "2", "messaging.operation.type": "receive"})
		if len(received.Links()) != 2 || received.Links()[0].SpanContext.SpanID() != sent.SpanContext().SpanID() {
			r.Errorf("links = %v, want the batch and the event's own", received.Links())
		}
	})
}

// TestPartition: handlers by partition are traced, and say which one it is.
func TestPartition(t *testing.T) {
	inBubble(t, func(r *rig) {
		if _, err := r.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "orders", Partitions: 2}); err != nil {
			r.Fatal(err)
		}
		_, err := partition.Subscribe(r.Context(), r, "orders", "g", func(context.Context, *jetbus.Delivery) error { return nil }, partition.SubscribeOptions{})
		if err != nil {
			r.Fatal(err)
		}
		stored := r.publish(r.Context(), jetbus.Event{Topic: "orders", Key: "7"})
		handled := r.named("process orders", 1)[0]
		r.says(handled, map[string]string{"messaging.destination.partition.id": strconv.Itoa(stored.Partition)})
		if handled.Parent().SpanID() != r.named("send orders", 1)[0].SpanContext().SpanID() {
			r.Error("the handler's span is not a child of the publish")
		}
	})
}

// TestErrors: what the bus refuses is refused with the same errors, and seen.
func TestErrors(t *testing.T) {
	inBubble(t, func(r *rig) {
		if _, err := r.Publish(r.Context(), jetbus.Event{Topic: "A"}); !errors.Is(err, jetbus.ErrInvalidTopic) {
			r.Errorf("Publish = %v", err)
		}
		if _, err := r.PublishBatch(r.Context(), []jetbus.Event{{Topic: "A"}, {Topic: "b"}}, jetbus.BatchOptions{}); !errors.Is(err, jetbus.ErrInvalidTopic) {
			r.Errorf("PublishBatch = %v", err)
		}
		if _, err := r.Receive(r.Context(), "A", "g", jetbus.ReceiveOptions{}); !errors.Is(err, jetbus.ErrInvalidTopic) {
			r.Errorf("Receive = %v", err)
		}
		if _, err := r.Subscribe(r.Context(), "orders", "g", nil, jetbus.SubscribeOptions{}); !errors.Is(err, jetbus.ErrInvalidOption) {
			r.Errorf("Subscribe without a handler = %v", err)
		}
		for _, name := range []string{"send A", "send", "receive A"} {
			if s := r.named(name, 1)[0]; s.Status().Code != codes.Error || !strings.Contains(s.Status().Description, "topic") {
				r.Errorf("%s ended with %v", name, s.Status())
			}
		}
	})
}

// TestGlobal: without a provider nothing is written, and what there is is passed on.
func TestGlobal(t *testing.T) {
	inBubble(t, func(r *rig) {
		bus := tracing.Traced(r.plain, tracing.Options{})
		got, err := bus.Publish(r.Context(), jetbus.Event{Topic: "orders", Payload: []byte("1")})
		if err != nil || got.Event.Headers["traceparent"] != "" {
			r.Errorf("stored with %q, %v", got.Event.Headers["traceparent"], err)
		}
		got, err = bus.Publish(in(r.T, ""), jetbus.Event{Topic: "orders", Payload: []byte("1")})
		if err != nil || got.Event.Headers["traceparent"] != parent {
			r.Errorf("stored with %q, %v, want the caller's", got.Event.Headers["traceparent"], err)
		}
	})
}
