package partition

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
)

// MaxMetaBytes is the largest metadata of a member, in bytes of JSON; see [Options].Meta.
const MaxMetaBytes = 1 << 10

// encodeMeta returns metadata as a session stores it, nil if there is none. Equal metadata has equal text.
func encodeMeta(meta map[string]string) (json.RawMessage, error) {
	if len(meta) == 0 {
		return nil, nil
	}
	for _, name := range slices.Sorted(maps.Keys(meta)) {
		switch value := meta[name]; {
		case name == "":
			return nil, fmt.Errorf("%w: Meta has an empty name", jetbus.ErrInvalidOption)
		case !isText(name) || !isText(value):
			return nil, fmt.Errorf("%w: invalid Meta[%.100q] %.100q: names and values must be UTF-8 without control characters", jetbus.ErrInvalidOption, name, value)
		}
	}
	text, err := json.Marshal(meta)
	if err == nil && len(text) > MaxMetaBytes {
		err = fmt.Errorf("%w: Meta has %d bytes of JSON, use at most %d", jetbus.ErrInvalidOption, len(text), MaxMetaBytes)
	}
	return text, err
}

// isText reports whether s is UTF-8 without control characters.
func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

// decodeMeta returns the metadata of a session. It returns nil for a session without metadata, and for a value that
// is too large or not a map of strings: it must not hide the member.
func decodeMeta(text json.RawMessage) (meta map[string]string) {
	if len(text) > MaxMetaBytes || json.Unmarshal(text, &meta) != nil {
		return nil
	}
	return meta
}
