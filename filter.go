package jetbus

import (
	"fmt"
	"strings"
)

// Filter selects events by their attributes; what it leaves out is acknowledged
// unseen. All conditions that are set must hold. The zero value selects everything.
type Filter struct {
	Key       string            `json:"key,omitempty"`       // exactly this key
	KeyPrefix string            `json:"keyPrefix,omitempty"` // keys that start so
	Headers   map[string]string `json:"headers,omitempty"`   // headers with exactly these values
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
