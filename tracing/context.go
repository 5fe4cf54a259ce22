package tracing

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed-63e9a637/jetbus"
)

// carrier reads and writes the headers of an event.
type carrier map[string]string

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(name string) string { return c[name] }

// Set implements propagation.TextMapCarrier.
func (c carrier) Set(name, value string) { c[name] = value }

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() []string {
	return []string{jetbus.HeaderTraceParent, jetbus.HeaderTraceState}
}

var w3c propagation.TraceContext

// Inject puts the trace context of ctx into the event's headers, which are copied
// first. An event that has one keeps it. It does nothing where ctx has none, and where
// the headers have no room: an event is published all the same.
func Inject(ctx context.Context, e *jetbus.Event) {
	if e.Headers[jetbus.HeaderTraceParent] != "" || !trace.SpanContextFromContext(ctx).IsValid() {
		return
	}
	found := carrier{}
	w3c.Inject(ctx, found)
	headers := maps.Clone(e.Headers)
	if headers == nil {
		headers = map[string]string{}
	}
	delete(headers, jetbus.HeaderTraceState) // it means nothing without the other one
	for _, name := range found.Keys() {
		value := found[name]
		if value != "" && len(headers) < jetbus.MaxHeaders && jetbus.ValidHeader(name, value) == nil {
			headers[name] = value
		}
	}
	if headers[jetbus.HeaderTraceParent] != "" {
		e.Headers = headers
	}
}

// Extract returns ctx with the trace context of the event, as that of a remote parent.
// Without a valid one in its headers it returns ctx.
func Extract(ctx context.Context, e *jetbus.Event) context.Context {
	return w3c.Extract(ctx, carrier(e.Headers))
}

// linkTo is a link to the trace context of an event, if it has one.
func linkTo(ctx context.Context, e *jetbus.Event) (trace.Link, bool) {
	of := trace.SpanContextFromContext(Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), e))
	return trace.Link{SpanContext: of}, of.IsValid()
}
