package ce

import (
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// escapes is a set of bytes that are written as "%" and two hex digits.
type escapes [256]bool

// What is escaped: in the value of an attribute (as the binding says), in an
// item of a list, in a session id inside a URN, in a key inside a subject.
var (
	attributeEscape = newEscapes(func(c byte) bool { return c <= ' ' || c > '~' || c == '"' || c == '%' })
	itemEscape      = newEscapes(func(c byte) bool { return attributeEscape[c] || c == ',' })
	sidEscape       = newEscapes(func(c byte) bool { return !isAlphanumeric(c) && strings.IndexByte("-._~", c) < 0 })
	tokenEscape     = newEscapes(func(c byte) bool { return c <= ' ' || c > '~' || strings.IndexByte("%.*>", c) >= 0 })
)

func newEscapes(f func(c byte) bool) *escapes {
	var set escapes
	for c := range 256 {
		set[c] = f(byte(c))
	}
	return &set
}

// anyIn reports whether s has a byte to escape.
func (set *escapes) anyIn(s string) bool {
	for i := range len(s) {
		if set[s[i]] {
			return true
		}
	}
	return false
}

// write writes s, escaped.
func (set *escapes) write(b *strings.Builder, s string) {
	from := 0
	for i := range len(s) {
		if set[s[i]] {
			b.WriteString(s[from:i])
			writeEscape(b, s[i])
			from = i + 1
		}
	}
	b.WriteString(s[from:])
}

// encode returns s, escaped.
func (set *escapes) encode(s string) string {
	if !set.anyIn(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + 16)
	set.write(&b, s)
	return b.String()
}

func writeEscape(b *strings.Builder, c byte) {
	const digits = "0123456789ABCDEF"
	b.WriteByte('%')
	b.WriteByte(digits[c>>4])
	b.WriteByte(digits[c&15])
}

// unescape replaces every "%" with two hex digits by the byte they name and
// leaves any other "%" alone.
func unescape(s string) string {
	i := strings.IndexByte(s, '%')
	if i < 0 {
		return s
	}
	out := append(make([]byte, 0, len(s)), s[:i]...)
	for ; i < len(s); i++ {
		if s[i] == '%' && escapeAt(s, i) {
			out = append(out, byte(hexValue(s[i+1])<<4|hexValue(s[i+2])))
			i += 2
			continue
		}
		out = append(out, s[i])
	}
	return string(out)
}

// escapeAt reports whether two hex digits follow the byte at i.
func escapeAt(s string, i int) bool {
	return i+2 < len(s) && hexValue(s[i+1]) >= 0 && hexValue(s[i+2]) >= 0
}

// hexValue returns the value of a hex digit, -1 for any other byte.
func hexValue(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// Source returns the CloudEvents source of an event that was read: the source that it was published with, or else the
// source for its SID. It is empty if the event has neither; only other programs write such events.
func Source(e *jetbus.Event) string {
	if kept := e.Headers[nameSource]; kept != "" {
		return kept
	}
	if e.SID == "" {
		return ""
	}
	return sourceURN(e.SID)
}

// sourceURN returns the CloudEvents source of a session id: the id itself where
// it is an absolute URI or a path, as /shop/42, otherwise urn:jetbus: and the id,
// percent-encoded.
func sourceURN(sid string) string {
	if isPath(sid) || isURI(sid) && !strings.HasPrefix(sid, sourcePrefix) {
		return sid
	}
	var b strings.Builder
	b.Grow(len(sourcePrefix) + len(sid))
	b.WriteString(sourcePrefix)
	sidEscape.write(&b, sid)
	return b.String()
}

// sidOf returns the session id of a CloudEvents source: what sourceURN was given,
// or the source itself where that did not make it.
func sidOf(source string) string {
	if rest, ok := strings.CutPrefix(source, sourcePrefix); ok {
		return unescape(rest)
	}
	return source
}

// isForeignSource reports whether an event with the session ID sid, which is sidOf(source), would be
// written with another source: sourceURN makes a relative reference such as shop-42 absolute.
func isForeignSource(source, sid string) bool {
	if len(source) == len(sourcePrefix)+len(sid) && !sidEscape.anyIn(sid) && strings.HasPrefix(source, sourcePrefix) {
		return false // the usual case, without an allocation
	}
	return sourceURN(sid) != source
}

// isURI reports whether s is an absolute URI: a scheme, a colon, and one or
// more of the characters of a URI, without a fragment.
func isURI(s string) bool {
	i := strings.IndexByte(s, ':')
	if i < 1 || i+1 == len(s) || s[0]|0x20 < 'a' || s[0]|0x20 > 'z' {
		return false
	}
	for j := range i {
		if c := s[j]; !isAlphanumeric(c) && c != '+' && c != '-' && c != '.' {
			return false
		}
	}
	return isURIText(s[i+1:])
}

// isPath reports whether s is a relative reference that begins with a slash,
// without a fragment.
func isPath(s string) bool { return strings.HasPrefix(s, "/") && isURIText(s) }

// isURIText reports whether s consists of the characters of a URI behind its scheme.
func isURIText(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c == '%' && escapeAt(s, i) {
			continue
		}
		if !isAlphanumeric(c) && !strings.ContainsRune("-._~:/?@!$&'()*+,;=", rune(c)) {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9'
}
