package tracing

import (
	"context"
	"slices"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-63e9a637/jetbus"
)

// maxLinks bounds the links of a span of many events.
const maxLinks = 128

// Options say where spans go. The zero value is usable.
type Options struct {
	// Provider makes the tracer. Defaults to the global one of OpenTelemetry.
	Provider trace.TracerProvider
}

// Traced returns a backend that does what b does and traces it: Publish, PublishBatch,
// Receive, and the handlers of Subscribe and SubscribePartition. It fails no call that
// b would not, but for an event that leaves no room for two more headers. With ManualAck a handler's span ends when it returns. Put it around all
// other decorators, so that its spans contain what they do; Subscriptions of package
// partition are traced where they are given the result.
func Traced(b jetbus.Backend, o Options) jetbus.Backend {
	if o.Provider == nil {
		o.Provider = otel.GetTracerProvider()
	}
	return &traced{Backend: b, t: o.Provider.Tracer("github.com/seed-63e9a637/jetbus/tracing")}
}

// traced is the decorator.
type traced struct {
	jetbus.Backend

	t trace.Tracer
}

// Attributes by the conventions of OpenTelemetry for messaging, and two of our own.
const (
	attrSystem    = attribute.Key("messaging.system")
	attrOperation = attribute.Key("messaging.operation.name")
	attrType      = attribute.Key("messaging.operation.type")
	attrTopic     = attribute.Key("messaging.destination.name")
	attrPartition = attribute.Key("messaging.destination.partition.id")
	attrGroup     = attribute.Key("messaging.consumer.group.name")
	attrID        = attribute.Key("messaging.message.id")
	attrSize      = attribute.Key("messaging.message.body.size")
	attrCount     = attribute.Key("messaging.batch.message_count")
	attrError     = attribute.Key("error.type")
	attrAttempt   = attribute.Key("jetbus.attempt")
	attrCausedBy  = attribute.Key("jetbus.caused_by")
	attrOutcome   = attribute.Key("jetbus.outcome")
)

// start begins a span.
func (b *traced) start(ctx context.Context, kind trace.SpanKind, name, operation, topic string, links []trace.Link, more ...attribute.KeyValue) (context.Context, trace.Span) {
	full := operation
	if topic != "" {
		full += " " + topic
		more = append(more, attrTopic.String(topic))
	}
	more = append(more, attrSystem.String("jetbus"), attrOperation.String(name), attrType.String(operation))
	return b.t.Start(ctx, full, trace.WithSpanKind(kind), trace.WithLinks(links...), trace.WithAttributes(more...))
}

// fail notes an error.
func fail(s trace.Span, err error) {
	s.RecordError(err)
	s.SetStatus(codes.Error, err.Error())
	s.SetAttributes(attrError.String("_OTHER"))
}

// Publish implements jetbus.Publisher. The span of a dry run is not the span of a producer, because nothing is sent.
func (b *traced) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	var links []trace.Link
	if link, is := linkTo(ctx, &e); is {
		links = append(links, link)
	}
	kind, name, operation := trace.SpanKindProducer, "publish", "send"
	if len(o) == 1 && o[0].DryRun {
		kind, name, operation = trace.SpanKindInternal, "dry run", "dry run"
	}
	ctx, span := b.start(ctx, kind, name, operation, e.Topic, links, attrSize.Int(len(e.Payload)))
	defer span.End()
	Inject(ctx, &e) // into a dry run, too: the headers count
	r, err := b.Backend.Publish(ctx, e, o...)
	if err != nil {
		fail(span, err)
		return r, err
	}
	span.SetAttributes(attrID.String(r.Event.ID))
	return r, nil
}

// PublishBatch implements jetbus.Batcher.
func (b *traced) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	events = slices.Clone(events)
	topic := ""
	if len(events) > 0 {
		topic = events[0].Topic
	}
	var links []trace.Link
	for i := range events {
		if events[i].Topic != topic {
			topic = "" // of several there is no name
		}
		if link, is := linkTo(ctx, &events[i]); is && len(links) < maxLinks {
			links = append(links, link)
		}
	}
	ctx, span := b.start(ctx, trace.SpanKindProducer, "publish", "send", topic, links, attrCount.Int(len(events)))
	defer span.End()
	for i := range events {
		Inject(ctx, &events[i])
	}
	receipts, err := b.Backend.PublishBatch(ctx, events, o)
	if err != nil {
		fail(span, err)
	}
	return receipts, err
}

// Receive implements jetbus.Receiver. The span has links to the events.
func (b *traced) Receive(ctx context.Context, topic, group string, o jetbus.ReceiveOptions) ([]*jetbus.Delivery, error) {
	ctx, span := b.start(ctx, trace.SpanKindClient, "receive", "receive", topic, nil, attrGroup.String(group))
	defer span.End()
	got, err := b.Backend.Receive(ctx, topic, group, o)
	if err != nil {
		fail(span, err)
	}
	for _, d := range got[:min(len(got), maxLinks)] {
		if link, is := linkTo(ctx, &d.Event); is {
			span.AddLink(link)
		}
	}
	span.SetAttributes(attrCount.Int(len(got)))
	return got, err
}

// Subscribe implements jetbus.Subscriber.
func (b *traced) Subscribe(ctx context.Context, topic, group string, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	return b.Backend.Subscribe(ctx, topic, group, b.handler(h), o)
}

// SubscribePartition implements jetbus.Partitions.
func (b *traced) SubscribePartition(ctx context.Context, topic, group string, turn jetbus.PartitionTurn, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.PartitionSubscription, error) {
	return b.Backend.SubscribePartition(ctx, topic, group, turn, b.handler(h), o)
}

// handler runs h in spans. No handler stays none, which b refuses.
func (b *traced) handler(h jetbus.Handler) jetbus.Handler {
	if h == nil {
		return nil
	}
	return func(ctx context.Context, d *jetbus.Delivery) (err error) {
		about := []attribute.KeyValue{
			attrGroup.String(d.Group), attrID.String(d.ID), attrSize.Int(len(d.Payload)), attrAttempt.Int(d.Attempt),
		}
		if d.Partition != jetbus.NoPartition {
			about = append(about, attrPartition.String(strconv.Itoa(d.Partition)))
		}
		if len(d.CausedBy) > 0 {
			about = append(about, attrCausedBy.StringSlice(d.CausedBy))
		}
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{}) // what Subscribe was called in is over, or goes on for ever
		ctx, span := b.start(Extract(ctx, &d.Event), trace.SpanKindConsumer, "process", "process", d.Topic, nil, about...)
		defer span.End()
		returned := false
		defer func() {
			if !returned { // it goes on up to the bus, which recovers it
				span.SetStatus(codes.Error, "the handler panicked")
				span.SetAttributes(attrError.String("panic"))
			}
		}()
		err = h(ctx, d)
		returned = true
		outcome(span, err)
		return err
	}
}

// outcome notes what the handler's result asks for. To put an event off is no error.
func outcome(s trace.Span, err error) {
	asked := jetbus.DispositionOf(err)
	switch asked.Action {
	case jetbus.ActionAck:
		s.SetAttributes(attrOutcome.String("ack"))
		if asked.Err != nil { // dropped
			s.RecordError(asked.Err)
		}
	case jetbus.ActionSnooze:
		s.SetAttributes(attrOutcome.String("snooze"))
	case jetbus.ActionReject:
		s.SetAttributes(attrOutcome.String("reject"))
		fail(s, err)
	case jetbus.ActionRetry:
		s.SetAttributes(attrOutcome.String("retry"))
		fail(s, err)
	}
}
