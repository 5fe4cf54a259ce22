// Package tracing carries traces over a bus: W3C trace context in the headers of
// events, and spans by OpenTelemetry around publishing, receiving and handling, with the
// attributes of its conventions for messaging.
//
//	bus := tracing.Traced(bus, tracing.Options{})
//
// A publish is a span of kind producer, and its context travels in the headers
// traceparent and tracestate of the event, unless the event brings its own: one that is
// relayed keeps the trace it began in, and the publish has a link to it. [Inject] is for
// events that are stored elsewhere first, as in an outbox. A dry run is a span of kind
// internal, named "dry run".
//
// A handler runs in a span of kind consumer, a child of that publish, in whatever
// process and however much later. What it publishes with its context continues the
// trace. Each attempt is a span of its own. [Extract] is for those who take events
// without a handler.
//
// Spans hold names, ids and sizes, and the texts of errors; never payloads or keys.
package tracing
