package jetbus

import (
	"fmt"
	"strings"
)

// Headers that are no "x-" names and may be set on an event all the same.
const (
	HeaderContentType = "content-type" // media type of the payload; JSON where it is absent
	HeaderTraceParent = "traceparent"  // W3C trace context
	HeaderTraceState  = "tracestate"   // W3C trace context
)

// Bounds of an event's headers. The broker takes 64 KiB in all, which includes
// what the bus writes itself.
const (
	MaxHeaders          = 64
	MaxHeaderNameBytes  = 100
	MaxHeaderValueBytes = 8 << 10
)

// ValidHeader reports whether an event may carry the header: a lower-case name
// "x-" and one or more of a-z, 0-9, '_', '-' and '.', or content-type, traceparent or tracestate;
// and a value of printable UTF-8, without control characters and without spaces
// at its ends, at most 8 KiB. Names starting with "x-jetbus-" are the bus's own.
// The error wraps [ErrInvalidHeader].
func ValidHeader(name, value string) error {
	if err := validHeaderName(name); err != nil {
		return err
	}
	switch {
	case len(value) > MaxHeaderValueBytes:
		return fmt.Errorf("%w: %s: value has %d bytes, at most %d are allowed", ErrInvalidHeader, name, len(value), MaxHeaderValueBytes)
	case !printable(value):
		return fmt.Errorf("%w: %s: value has control characters or is no UTF-8", ErrInvalidHeader, name)
	case strings.TrimSpace(value) != value:
		return fmt.Errorf("%w: %s: value starts or ends with a space, which the wire does not keep", ErrInvalidHeader, name)
	}
	return nil
}

func validHeaderName(name string) error {
	switch name {
	case HeaderContentType, HeaderTraceParent, HeaderTraceState:
		return nil
	}
	rest, ok := strings.CutPrefix(name, "x-")
	switch {
	case !ok || rest == "":
		return fmt.Errorf("%w: name %.60q: names start with x-, or are content-type, traceparent or tracestate", ErrInvalidHeader, name)
	case len(name) > MaxHeaderNameBytes:
		return fmt.Errorf("%w: name %.40q... has %d bytes, at most %d are allowed", ErrInvalidHeader, name, len(name), MaxHeaderNameBytes)
	case strings.HasPrefix(rest, "jetbus-"):
		return fmt.Errorf("%w: name %q: x-jetbus- is reserved", ErrInvalidHeader, name)
	}
	if i := strings.IndexFunc(rest, func(r rune) bool { return r != '.' && notTopicRune(r) }); i >= 0 {
		return fmt.Errorf("%w: name %q: names are lower case a-z, 0-9, '_', '-' and '.'", ErrInvalidHeader, name)
	}
	return nil
}
