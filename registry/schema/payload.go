package schema

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// object is a decoded JSON object: its members sorted by name, each name once. Other values
// are decoded as encoding/json does with UseNumber. A payload of 1 MiB may hold 200,000
// objects, and a map for each of them would take ten times the memory of a slice.
type object []member

type member struct {
	name  string
	value any
	at    int // position in the text; the last member of a name counts
}

// find returns the index of a member, or -1.
func (o object) find(name string) int {
	low, high := 0, len(o)
	for low < high {
		middle := int(uint(low+high) >> 1)
		if o[middle].name < name {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low < len(o) && o[low].name == name {
		return low
	}
	return -1
}

func (o object) has(name string) bool { return o.find(name) >= 0 }

// newObject sorts members and drops those that a later one of the same name replaces.
func newObject(members []member) object {
	byName := func(a, b member) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return cmp.Compare(a.at, b.at)
	}
	if !slices.IsSortedFunc(members, byName) {
		slices.SortFunc(members, byName)
	}
	kept := 0
	for i, m := range members {
		if i+1 < len(members) && members[i+1].name == m.name {
			continue
		}
		members[kept] = m
		kept++
	}
	return slices.Clone(members[:kept])
}

// objectsOf returns v with an object for each map.
func objectsOf(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = objectsOf(x)
		}
		return out
	case map[string]any:
		members := make([]member, 0, len(v))
		for name, x := range v {
			members = append(members, member{name: name, value: objectsOf(x)})
		}
		return newObject(members)
	}
	return v
}

// payloadReader decodes text that is known to be valid JSON. It allocates about twice as
// much as the result takes: values lie on a stack until their container is complete.
type payloadReader struct {
	text    string
	at      int
	values  []any
	members []member
}

// Values that are often empty are shared, so that they take no memory.
var (
	emptyArray  any = []any{}
	emptyObject any = object{}
	emptyString any = ""
)

func readPayload(text string, size scanned) any {
	r := payloadReader{
		text:    text,
		values:  make([]any, 0, size.values-size.members),
		members: make([]member, 0, size.members),
	}
	return r.value()
}

func (r *payloadReader) value() any {
	r.space()
	switch r.text[r.at] {
	case '{':
		return r.object()
	case '[':
		return r.array()
	case '"':
		if s := r.string(); s != "" {
			return s
		}
		return emptyString
	case 't':
		r.at += len("true")
		return true
	case 'f':
		r.at += len("false")
		return false
	case 'n':
		r.at += len("null")
		return nil
	}
	start := r.at
	for r.at < len(r.text) && strings.IndexByte("+-.0123456789Ee", r.text[r.at]) >= 0 {
		r.at++
	}
	return json.Number(r.text[start:r.at])
}

// space skips what stands between tokens, commas and colons included.
func (r *payloadReader) space() {
	for r.at < len(r.text) {
		switch r.text[r.at] {
		case ' ', '\t', '\r', '\n', ',', ':':
			r.at++
		default:
			return
		}
	}
}

func (r *payloadReader) array() any {
	start := len(r.values)
	for r.at++; ; {
		if r.space(); r.text[r.at] == ']' {
			break
		}
		v := r.value() // uses the stack itself
		r.values = append(r.values, v)
	}
	r.at++
	if len(r.values) == start {
		return emptyArray
	}
	out := slices.Clone(r.values[start:])
	clear(r.values[start:])
	r.values = r.values[:start]
	return out
}

func (r *payloadReader) object() any {
	start := len(r.members)
	for r.at++; ; {
		if r.space(); r.text[r.at] == '}' {
			break
		}
		m := member{at: r.at, name: r.string()}
		m.value = r.value()
		r.members = append(r.members, m)
	}
	r.at++
	if len(r.members) == start {
		return emptyObject
	}
	out := newObject(r.members[start:])
	clear(r.members[start:])
	r.members = r.members[:start]
	return out
}

// string reads a string. It shares the memory of the text unless it has escapes.
func (r *payloadReader) string() string {
	r.at++
	start := r.at
	for r.text[r.at] != '"' {
		if r.text[r.at] == '\\' {
			return r.unescape(start)
		}
		r.at++
	}
	r.at++
	return r.text[start : r.at-1]
}

// unescape reads the rest of a string that began at start and has an escape at r.at.
// Surrogates that are not in pairs become U+FFFD, as in encoding/json.
func (r *payloadReader) unescape(start int) string {
	var b strings.Builder
	for b.WriteString(r.text[start:r.at]); r.text[r.at] != '"'; {
		if r.text[r.at] != '\\' {
			b.WriteByte(r.text[r.at])
			r.at++
			continue
		}
		c := r.text[r.at+1]
		if r.at += 2; c == 'u' {
			b.WriteRune(r.unicode())
			continue
		}
		if i := strings.IndexByte("bfnrt", c); i >= 0 {
			c = "\b\f\n\r\t"[i]
		}
		b.WriteByte(c)
	}
	r.at++
	return b.String()
}

// unicode reads the four digits of an escape, and the second half of a surrogate pair.
func (r *payloadReader) unicode() rune {
	first := hex4(r.text[r.at:])
	if r.at += 4; !utf16.IsSurrogate(first) {
		return first
	}
	if strings.HasPrefix(r.text[r.at:], `\u`) {
		if both := utf16.DecodeRune(first, hex4(r.text[r.at+2:])); both != utf8.RuneError {
			r.at += 6
			return both
		}
	}
	return utf8.RuneError
}

func hex4(digits string) rune {
	var r rune
	for _, c := range []byte(digits[:4]) {
		switch {
		case c <= '9':
			c -= '0'
		case c <= 'F':
			c -= 'A' - 10
		default:
			c -= 'a' - 10
		}
		r = r<<4 | rune(c)
	}
	return r
}

// appendKey appends a text that is the same for equal values, and for no others. It stops
// when the text is longer than most.
func appendKey(b []byte, v any, most int) []byte {
	if len(b) > most {
		return b
	}
	switch v := v.(type) {
	case nil:
		return append(b, 'n')
	case bool:
		if v {
			return append(b, 't')
		}
		return append(b, 'f')
	case json.Number:
		return append(append(b, canonicalNumber(string(v))...), ' ')
	case string:
		b = append(append(b, '"'), itoa(len(v))...)
		return append(append(b, ' '), v[:min(len(v), most+1)]...)
	case []any:
		b = append(b, '[')
		for _, x := range v {
			if b = appendKey(b, x, most); len(b) > most {
				return b
			}
		}
		return append(b, ']')
	case object:
		b = append(b, '{')
		for _, m := range v {
			if b = appendKey(appendKey(b, m.name, most), m.value, most); len(b) > most {
				return b
			}
		}
		return append(b, '}')
	}
	return b
}
