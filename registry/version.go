package registry

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// Version is a registered schema. Its maps and slices are shared: do not change
// them.
type Version struct {
	Topic string `json:"topic"`
	// Number counts from 1 in each topic, without gaps.
	Number int `json:"version"`
	// ID is a number for the Fingerprint, the same in all topics of a registry.
	ID int `json:"id"`
	// Fingerprint is that of the compiled schema; see schema.Schema.Fingerprint.
	Fingerprint string `json:"fingerprint"`
	// Text is the schema as it was registered; "" when it is erased.
	Text  string       `json:"schema,omitempty"`
	Draft schema.Draft `json:"draft,omitempty"`
	// References are the versions that Text refers to itself, in order.
	References []Reference       `json:"references,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	// Level and Model are those it was let in by, and Admission says how.
	Level     Level        `json:"level,omitempty"`
	Model     schema.Model `json:"model,omitempty"`
	Admission Admission    `json:"admission"`
	// By is who registered it, as far as they said. With Forced, who forced it.
	By      string    `json:"by,omitempty"`
	Created time.Time `json:"created"` // in milliseconds
	// Deleted is when it was deleted; zero while it is live. A deleted version can
	// be read, so that events of the past can, but counts nowhere else.
	Deleted time.Time `json:"deleted,omitzero"`
	// Erased says that it was deleted for good, and the text is gone.
	Erased bool `json:"erased,omitempty"`
}

// Live reports whether the version is not deleted.
func (v Version) Live() bool { return v.Deleted.IsZero() && !v.Erased }

// Reference returns the reference to this version.
func (v Version) Reference() Reference { return Reference{Topic: v.Topic, Version: v.Number} }

// ForcedBy returns who forced the version in, "" if nobody had to.
func (v Version) ForcedBy() string {
	if v.Admission == Forced {
		return v.By
	}
	return ""
}

// Admission says how a version came in.
type Admission string

// The admissions.
const (
	First     Admission = "first"     // there was nothing to compare it with
	Proved    Admission = "proved"    // compatible with what its level asks for
	Forced    Admission = "forced"    // not so, and let in on somebody's word
	Unchecked Admission = "unchecked" // under LevelNone
)

// Reference names a version of a schema. In a schema it is spelled
// "schema://<topic>/<n>", with a fragment behind it for a part.
type Reference struct {
	Topic   string `json:"topic"`
	Version int    `json:"version"`
}

const referenceScheme = "schema://"

// String returns the reference as an absolute URI, "schema://orders.created/1".
func (r Reference) String() string {
	return referenceScheme + r.Topic + "/" + strconv.Itoa(r.Version)
}

// compareReferences orders by topic and number.
func compareReferences(a, b Reference) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Version, b.Version))
}

// ParseReference reads the URI of a version; a fragment behind it is ignored. The
// error wraps [ErrInvalidReference].
func ParseReference(uri string) (Reference, error) {
	whole, _, _ := strings.Cut(uri, "#")
	rest, ok := strings.CutPrefix(whole, referenceScheme)
	if !ok {
		return Reference{}, fmt.Errorf("%w: %.200q: a schema refers to its own parts (#/$defs/...) and to registered versions (schema://<topic>/<n>); nothing is loaded from anywhere else", ErrInvalidReference, uri)
	}
	topic, digits, _ := strings.Cut(rest, "/")
	if err := jetbus.ValidTopic(topic); err != nil {
		return Reference{}, fmt.Errorf("%w: %.200q: %w", ErrInvalidReference, uri, err)
	}
	n, ok := parseNumber(digits)
	if !ok {
		return Reference{}, fmt.Errorf("%w: %.200q: after the topic comes the number of a version, 1 or more", ErrInvalidReference, uri)
	}
	return Reference{Topic: topic, Version: n}, nil
}

// maxNumber is the largest number of a version and the largest id: keys with larger
// ones are not read.
const maxNumber = 999_999_999

// parseNumber reads a positive decimal without leading zeros, up to maxNumber.
func parseNumber(s string) (int, bool) {
	if s == "" || len(s) > 9 || s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}
