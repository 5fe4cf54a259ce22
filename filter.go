package jetbus

import (
	"fmt"
	"strings"
)

// Filter selects events by their attributes. All conditions that are set must hold. The
// zero value selects everything. A group acknowledges the events that its filter leaves
// out, without handling them.
//
// The bus compares events after it has received them, so a filter does not reduce the
// cost of reading: Read, Scan and Subscribe receive every event of the topic from the
// start position. To look up the last event of a key, use [StateStore].LatestByKey. To look up
// events by a header, keep an index; see the example. Its cost follows the number of
// matches.
type Filter struct {
	Key       string `json:"key,omitempty"`       // exactly this key; "" selects all keys
	KeyPrefix string `json:"keyPrefix,omitempty"` // keys that start with it; "" selects all keys
	// Headers are headers with exactly these values, names in the case in which they were
	// published. Nil selects all events. A header filter still reads the whole topic, however
	// few events match.
	Headers map[string]string `json:"headers,omitempty"`
}

// Match reports whether the filter selects e.
func (f *Filter) Match(e *Event) bool {
	if f.Key != "" && e.Key != f.Key || !strings.HasPrefix(e.Key, f.KeyPrefix) {
		return false
	}
	for name, value := range f.Headers {
		if got, ok := e.Headers[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// IsZero reports whether the filter selects everything.
func (f *Filter) IsZero() bool { return f.Key == "" && f.KeyPrefix == "" && len(f.Headers) == 0 }

// Validate reports a filter that can select nothing: a Key that does not start
// with KeyPrefix. The error wraps [ErrInvalidOption].
func (f *Filter) Validate() error {
	if f.Key != "" && !strings.HasPrefix(f.Key, f.KeyPrefix) {
		return fmt.Errorf("%w: Filter selects nothing: key %q does not start with %q", ErrInvalidOption, f.Key, f.KeyPrefix)
	}
	return nil
}
