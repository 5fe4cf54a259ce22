package registry

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// Headers that say which schema a payload follows.
const (
	// HeaderSchemaVersion is the number of the version, "2". A publisher that sets it
	// is held to that version.
	HeaderSchemaVersion = jetbus.HeaderSchemaVersion
	// HeaderDataSchema is the reference to the version, "schema://orders.created/2".
	// It travels as the CloudEvents attribute dataschema.
	HeaderDataSchema = jetbus.HeaderExtension + "dataschema"
	// HeaderUpcastedFrom is on events that were upcast: the version they were stored
	// under.
	HeaderUpcastedFrom = "x-upcasted-from"
)

// statedVersion returns the version that an event says it follows, 0 where it says
// none. A version of another topic's schema, which an event brings along that was
// copied from there, is none. The error wraps jetbus.ErrSchema.
func statedVersion(e *jetbus.Event) (int, error) {
	text := e.Headers[HeaderSchemaVersion]
	if text == "" {
		return 0, nil
	}
	if uri := e.Headers[HeaderDataSchema]; uri != "" {
		if ref, err := ParseReference(uri); err == nil && ref.Topic != e.Topic {
			return 0, nil
		}
	}
	n, ok := parseNumber(text)
	if !ok {
		return 0, fmt.Errorf("%w: %s: header %s is %.40q: use the number of a version, 1 or more", jetbus.ErrSchema, e.Topic, HeaderSchemaVersion, text)
	}
	return n, nil
}

// stamp makes the event say which version it follows. The map that it had is not
// changed.
func stamp(e *jetbus.Event, n int) {
	text := strconv.Itoa(n)
	uri := Reference{Topic: e.Topic, Version: n}.String()
	if e.Headers[HeaderSchemaVersion] == text && e.Headers[HeaderDataSchema] == uri {
		return
	}
	headers := make(map[string]string, len(e.Headers)+2)
	maps.Copy(headers, e.Headers)
	headers[HeaderSchemaVersion], headers[HeaderDataSchema] = text, uri
	e.Headers = headers
}

// validateRead validates a payload as a reader's under a model.
func validateRead(s *schema.Schema, m schema.Model, payload []byte) error {
	if m == schema.Declared {
		return s.ValidateReader(payload)
	}
	return s.Validate(payload)
}

// isUnjudged reports whether an event passes whatever the schema of its topic is:
// dead letters, which are what somebody else's schema refused, and tombstones.
func isUnjudged(e *jetbus.Event) bool {
	return jetbus.IsDeadLetterTopic(e.Topic) || e.IsTombstone()
}

// isMeantAsTombstone reports whether an event was published to delete its key. A
// null alone can be a value that somebody did not mean to send.
func isMeantAsTombstone(e *jetbus.Event) bool {
	return e.IsTombstone() && e.Headers[jetbus.HeaderTombstone] != ""
}
