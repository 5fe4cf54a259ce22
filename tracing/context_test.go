package tracing_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/tracing"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// in is a context in the span of parent.
func in(t *testing.T, state string) context.Context {
	t.Helper()
	e := jetbus.Event{Headers: map[string]string{"traceparent": parent, "tracestate": state}}
	ctx := tracing.Extract(t.Context(), &e)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		t.Fatal("the context has no span")
	}
	return ctx
}

func TestInject(t *testing.T) {
	full := map[string]string{}
	for i := range jetbus.MaxHeaders {
		full[fmt.Sprint("x-", i)] = "1"
	}
	almost := maps.Clone(full)
	delete(almost, "x-0")
	both := maps.Clone(almost)
	both["traceparent"] = parent
	tests := []struct {
		name    string
		ctx     context.Context
		headers map[string]string
		want    map[string]string
	}{
		{"no trace", t.Context(), map[string]string{"x-a": "1"}, map[string]string{"x-a": "1"}},
		{"no headers", in(t, ""), nil, map[string]string{"traceparent": parent}},
		{"state", in(t, "a=b,c=d"), map[string]string{"x-a": "1"}, map[string]string{"x-a": "1", "traceparent": parent, "tracestate": "a=b,c=d"}},
		{"its own", in(t, "a=b"), map[string]string{"traceparent": "its own"}, map[string]string{"traceparent": "its own"}},
		{"state of nothing", in(t, ""), map[string]string{"tracestate": "old=1"}, map[string]string{"traceparent": parent}},
		{"no room", in(t, "a=b"), full, full},
		{"room for one", in(t, "a=b"), almost, both},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := maps.Clone(tt.headers)
			e := jetbus.Event{Topic: "a", Headers: tt.headers}
			tracing.Inject(tt.ctx, &e)
			if !maps.Equal(e.Headers, tt.want) {
				t.Errorf("headers = %v, want %v", e.Headers, tt.want)
			}
			if !maps.Equal(tt.headers, before) {
				t.Errorf("the caller's headers are changed: %v, were %v", tt.headers, before)
			}
		})
	}
}

// FuzzExtract: whatever a header says, what comes of it can be published again.
func FuzzExtract(f *testing.F) {
	f.Add(parent, "a=b,c=d")
	f.Add("00-00000000000000000000000000000000-b7ad6b7169203331-01", "")
	f.Add("ff", "=")
	f.Add(parent, "a=\x00")
	f.Fuzz(func(t *testing.T, of, state string) {
		e := jetbus.Event{Headers: map[string]string{"traceparent": of, "tracestate": state}}
		ctx := tracing.Extract(t.Context(), &e)
		next := jetbus.Event{Topic: "a"}
		tracing.Inject(ctx, &next)
		if trace.SpanContextFromContext(ctx).IsValid() != (next.Headers["traceparent"] != "") {
			t.Errorf("%q became %v", of, next.Headers)
		}
		for name, value := range next.Headers {
			if err := jetbus.ValidHeader(name, value); err != nil {
				t.Error(err)
			}
		}
	})
}
