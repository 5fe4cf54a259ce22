package jetbus

import "strings"

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
