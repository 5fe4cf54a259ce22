package jetbus

import (
	"fmt"
	"strings"
)

// Headers of an event that have a meaning for the bus; [HeaderTombstone] is another. (What a
// message has on the wire, for the event's other fields, is in adapter/ce/header.go, and what
// a dead letter has in deadletter.go.)
const (
	HeaderContentType   = "content-type"     // media type of the payload; JSON where it is absent
	HeaderTraceParent   = "traceparent"      // W3C trace context
	HeaderTraceState    = "tracestate"       // W3C trace context
	HeaderSchemaVersion = "x-schema-version" // which version of the topic's schema the payload follows, "2"; see package registry
	HeaderExtension     = "x-ce-"            // begins the name of a header that is a CloudEvents attribute without a field in Event
)

// Bounds of an event's headers. The broker takes 64 KiB in all, which includes
// what the bus writes itself.
const (
	MaxHeaders          = 64
	MaxHeaderNameBytes  = 100
	MaxHeaderValueBytes = 8 << 10
)

// ValidHeader reports whether an event may carry the header. Its name is one that HTTP
// would take (a token of RFC 9110: letters, digits and any of !#$%&'*+-.^_`|~), of at most
// 100 bytes, and none of those that are reserved, whatever the case of their letters: what
// starts with "ce-", "nats-", "jetbus-" or "x-jetbus-", and "status" and "description",
// with which the broker tells of itself. Names that the bus reads are lower case:
// content-type, traceparent, tracestate, x-tombstone, x-schema-version, and what starts
// with "x-ce-" or "x-dlq-". All others are kept as they are written; of two that differ
// only in case [Event.Validate] refuses the event. For names of your own, "x-" and
// lower-case letters never meet those of anybody else.
//
// Its value is printable UTF-8, without control characters and without spaces at its ends,
// at most 8 KiB. The error wraps [ErrInvalidHeader].
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
	switch {
	case name == "":
		return fmt.Errorf("%w: a name is empty", ErrInvalidHeader)
	case len(name) > MaxHeaderNameBytes:
		return fmt.Errorf("%w: name %.40q... has %d bytes, at most %d are allowed", ErrInvalidHeader, name, len(name), MaxHeaderNameBytes)
	}
	lower, ok := lowerToken(name)
	switch {
	case !ok:
		return fmt.Errorf("%w: name %q: names are letters, digits and any of !#$%%&'*+-.^_`|~", ErrInvalidHeader, name)
	case isReservedHeader(lower):
		return fmt.Errorf("%w: name %q is reserved, as what starts with ce-, nats-, jetbus- or x-jetbus-, and status and description", ErrInvalidHeader, name)
	case lower != name && isReadHeader(lower):
		return fmt.Errorf("%w: name %q: the bus reads %s, in lower case", ErrInvalidHeader, name, lower)
	}
	return nil
}

// lowerToken returns a name in lower case. ok: it is a token of RFC 9110.
func lowerToken(name string) (lower string, ok bool) {
	upper := false
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', c == '-', '0' <= c && c <= '9':
		case 'A' <= c && c <= 'Z':
			upper = true
		case strings.IndexByte("!#$%&'*+.^_`|~", c) < 0:
			return "", false
		}
	}
	if upper {
		return strings.ToLower(name), true
	}
	return name, true
}

// isReservedHeader reports whether a name, in lower case, is one of those that say
// something else on the wire than what an event says.
func isReservedHeader(lower string) bool {
	switch lower {
	case "status", "description":
		return true
	}
	return hasOnePrefix(lower, "ce-", "nats-", "jetbus-", "x-jetbus-")
}

// isReadHeader reports whether the bus gives a name, in lower case, a meaning.
func isReadHeader(lower string) bool {
	switch lower {
	case HeaderContentType, HeaderTraceParent, HeaderTraceState, HeaderTombstone, HeaderSchemaVersion:
		return true
	}
	return hasOnePrefix(lower, HeaderExtension, deadHeaders)
}

func hasOnePrefix(s string, prefixes ...string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(s, prefix) {
			return true
		}
	}
	return false
}

// validHeaders reports what keeps an event from having these headers.
func validHeaders(headers map[string]string) error {
	cased := false
	for name, value := range headers {
		if err := ValidHeader(name, value); err != nil {
			return err
		}
		cased = cased || strings.ToLower(name) != name
	}
	if !cased {
		return nil
	}
	seen := make(map[string]string, len(headers))
	for name := range headers {
		lower := strings.ToLower(name)
		if other, ok := seen[lower]; ok {
			return fmt.Errorf("%w: names %q and %q differ only in case, which others do not tell apart", ErrInvalidHeader, min(name, other), max(name, other))
		}
		seen[lower] = name
	}
	return nil
}
