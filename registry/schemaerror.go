package registry

import (
	"errors"
	"fmt"
	"mime"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// SchemaError lists the violations of a topic's schema by an event. It matches [jetbus.ErrSchema],
// and also [schema.ErrTooMuchWork] if the validation stopped at [schema.MaxWork].
type SchemaError struct {
	Topic   string
	Version int // of the schema
	// Violations has at least one violation, sorted by instance path. An event that cannot be
	// validated, because it has no payload or the payload is not valid JSON, has one violation
	// with the path "".
	Violations []schema.Violation

	tooMuchWork bool
}

// Bounds of the texts of errors, so that they fit into a log line and a dead letter.
const (
	shownViolations     = 3
	shownViolationBytes = 200
)

// Error gives the first violations in one line, each with the part of the payload
// that it is about.
func (e *SchemaError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s breaks version %d of its schema", e.Topic, e.Version)
	separator := ": "
	for _, v := range e.Violations[:min(shownViolations, len(e.Violations))] {
		at := v.InstancePath
		if at == "" {
			at = "payload"
		}
		fmt.Fprintf(&b, "%s%s: %s", separator, cut(at), cut(v.Message))
		separator = "; "
	}
	if more := len(e.Violations) - shownViolations; more > 0 {
		fmt.Fprintf(&b, "; and %d more", more)
	}
	return b.String()
}

// Is reports whether target is jetbus.ErrSchema, or ErrTooMuchWork if that is the reason.
func (e *SchemaError) Is(target error) bool {
	return target == jetbus.ErrSchema || e.tooMuchWork && target == schema.ErrTooMuchWork
}

// cut makes one short line of a text that others wrote parts of.
func cut(s string) string { return cutTo(s, shownViolationBytes) }

func cutTo(s string, most int) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// judgment makes the error of an event whose payload was validated.
func judgment(topic string, version int, err error) error {
	if err == nil {
		return nil
	}
	out := &SchemaError{Topic: topic, Version: version, tooMuchWork: errors.Is(err, schema.ErrTooMuchWork)}
	if invalid, ok := errors.AsType[*schema.InvalidError](err); ok {
		out.Violations = invalid.Violations
	} else {
		out.Violations = []schema.Violation{{KeywordPath: "#", Message: err.Error()}}
	}
	return out
}

// judgeable reports what keeps an event's payload from being validated: that
// there is none, or that it says that it is no JSON.
func judgeable(e *jetbus.Event, version int) error {
	problem := ""
	switch {
	case len(e.Payload) == 0:
		problem = "missing: an event of a topic with a schema has one"
	case !isJSONType(e.Headers[jetbus.HeaderContentType]):
		problem = fmt.Sprintf("its content type is %.100q, which is no JSON", e.Headers[jetbus.HeaderContentType])
	default:
		return nil
	}
	return &SchemaError{Topic: e.Topic, Version: version, Violations: []schema.Violation{{KeywordPath: "#", Message: problem}}}
}

// isJSONType reports whether a content type is one of JSON; "" is.
func isJSONType(contentType string) bool {
	if contentType == "" || contentType == "application/json" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return false
	}
	return media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json") && !strings.HasPrefix(media, "application/cloudevents")
}
