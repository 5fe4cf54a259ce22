package schema

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// object is a decoded JSON object: its members, sorted by name without duplicates. It is a slice
// because a payload of 1 MiB may have 200,000 objects, and a map takes ten times the memory. Other
// values are decoded as by encoding/json with UseNumber.
type object []member

type member struct {
	name  string
	value any
	at    int // position in the text; the last of several members with the same name counts
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

// newObject sorts members in place. Of several members with the same name it keeps the last.
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
	clear(members[kept:])
	return members[:kept:kept]
}

// objectsOf returns a copy of v in which each map is replaced by an object.
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

// payloadReader decodes text that must be valid JSON.
type payloadReader struct {
	text    string
	at      int
	items   shelf[any]
	members shelf[member]
}

// shelf is one slice for the elements of all containers of a text. Containers that are still being
// read have their elements at its front, complete containers at its back.
type shelf[T any] struct {
	all      []T
	top, end int
}

func newShelf[T any](room int) shelf[T] { return shelf[T]{all: make([]T, room), end: room} }

func (s *shelf[T]) push(v T) {
	s.all[s.top] = v
	s.top++
}

// complete moves the elements from index start on to the back and returns them.
func (s *shelf[T]) complete(start int) []T {
	n := s.top - start
	s.end -= n
	out := s.all[s.end : s.end+n : s.end+n]
	copy(out, s.all[start:s.top])
	clear(s.all[start:min(s.top, s.end)])
	s.top = start
	return out
}

// Empty values are common, so they are shared and take no memory.
var (
	emptyArray  any = []any{}
	emptyObject any = object{}
	emptyString any = ""
)

func readPayload(text string, size scanned) any {
	r := payloadReader{
		text:    text,
		items:   newShelf[any](size.values - size.members),
		members: newShelf[member](size.members),
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

// space skips white space, commas and colons.
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
	start := r.items.top
	for r.at++; ; {
		if r.space(); r.text[r.at] == ']' {
			break
		}
		r.items.push(r.value())
	}
	r.at++
	if r.items.top == start {
		return emptyArray
	}
	return r.items.complete(start)
}

func (r *payloadReader) object() any {
	start := r.members.top
	for r.at++; ; {
		if r.space(); r.text[r.at] == '}' {
			break
		}
		m := member{at: r.at, name: r.string()}
		m.value = r.value()
		r.members.push(m)
	}
	r.at++
	if r.members.top == start {
		return emptyObject
	}
	return newObject(r.members.complete(start))
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

// unescape reads the rest of a string that begins at start and has its first escape at r.at.
// Unpaired surrogates become U+FFFD, as in encoding/json.
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

// unicode reads the four digits of an escape. If they are the first half of a surrogate pair, it also
// reads the second half.
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

// appendKey appends a key of v. Two values have the same key if and only if they are equal. It stops
// when the key is longer than most.
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
