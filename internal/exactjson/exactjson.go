// Package exactjson decodes untrusted JSON into structs by exact member names.
//
// encoding/json ignores the case of member names, and if a member is given twice, it uses the
// last one. Another program that checks the same text can see other values. RFC 7519, section
// 10.1.1, requires exact names for this reason. [Unmarshal] matches names byte for byte and
// refuses members that are given twice.
package exactjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// Unknown is a policy for members that have no field in the struct.
type Unknown int

// Policies for unknown members.
const (
	// RefuseVariants ignores unknown members, so that newer clients can send more. It refuses
	// a name that differs from a known one only in case, which is a mistake.
	RefuseVariants Unknown = iota
	// Ignore ignores all unknown members.
	Ignore
	// RefuseAll refuses every unknown member.
	RefuseAll
)

// MemberError reports the first member that was refused. All members that were not refused were
// decoded.
type MemberError struct {
	Member string // its name, unescaped
	Offset int64  // where the name begins in the text
	Twice  bool   // the member is given twice; otherwise it is unknown
	Known  string // the known name that differs from Member only in case; empty: none
}

// Error returns one line that names the member.
func (e *MemberError) Error() string {
	switch {
	case e.Twice:
		return fmt.Sprintf("member %.100q is given twice", e.Member)
	case e.Known != "":
		return fmt.Sprintf("unknown member %.100q, use %q", e.Member, e.Known)
	}
	return fmt.Sprintf("unknown member %.100q", e.Member)
}

// errUnsupported reports valid JSON that the scanner could not scan. It is refused, because its
// names were not checked.
var errUnsupported = errors.New("the JSON value nests too deep")

// maxDepth bounds the nesting of the structs, slices and maps that a text is decoded into.
const maxDepth = 1000

// Unmarshal is [json.Unmarshal] with exact names: a member is decoded only into a field with
// the same JSON name, byte for byte. This applies to into and to the structs, slices, maps and
// pointers in it. Types that implement json.Unmarshaler or encoding.TextUnmarshaler decode
// themselves.
//
// A member of a struct or a map that is given twice is refused. Members that are ignored may
// repeat. The error is a [*MemberError] or an error of encoding/json, see [Readable]. If it is a
// *MemberError, into has all members that were not refused. If a member is given twice, into has
// its first value.
func Unmarshal(text []byte, into any, unknown Unknown) error {
	s := scanner{text: text, unknown: unknown}
	if !s.value(reflect.TypeOf(into), 0) || s.space() != 0 {
		if !json.Valid(text) {
			return Readable(text, json.Unmarshal(text, into)) // only for the error: nothing is decoded
		}
		return errUnsupported
	}
	if err := json.Unmarshal(s.text, into); err != nil {
		return Readable(text, err)
	}
	if s.refused != nil {
		return s.refused
	}
	return nil
}

// scanner walks a JSON text along with the types that the text is decoded into. A member that must
// not match a field is hidden from encoding/json: its name is replaced by another one of the same
// length.
type scanner struct {
	text    []byte
	at      int
	unknown Unknown
	copied  bool // text is a copy, which may be changed
	refused *MemberError
}

// space skips white space and returns the next byte, 0 at the end.
func (s *scanner) space() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

// value scans a value that is decoded into a t. If t is nil, its names are not checked. value
// returns false if the text is not valid JSON or nests too deep.
func (s *scanner) value(t reflect.Type, depth int) bool {
	if depth > maxDepth {
		return false
	}
	c := s.space()
	if c != '{' && c != '[' { // it has no names
		return s.skip()
	}
	for t != nil && t.Kind() == reflect.Pointer && !decodesItself(t) {
		t = t.Elem()
	}
	if t == nil || decodesItself(t) {
		return s.skip()
	}
	switch {
	case c == '{' && t.Kind() == reflect.Struct:
		return s.object(structFields(t), nil, depth)
	case c == '{' && t.Kind() == reflect.Map:
		return s.object(nil, t.Elem(), depth)
	case c == '[' && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array):
		s.at++
		return s.list(']', func() bool { return s.value(t.Elem(), depth+1) })
	}
	return s.skip()
}

// list calls f for each element of a list, up to its end. The first byte of the list was already
// scanned.
func (s *scanner) list(end byte, f func() bool) bool {
	if s.space() == end {
		s.at++
		return true
	}
	for f() {
		c := s.space()
		s.at++
		if c == end {
			return true
		}
		if c != ',' {
			return false
		}
	}
	return false
}

// object scans an object that is decoded into a struct with these fields. If fields is nil, the
// object is decoded into a map of elem.
func (s *scanner) object(fields map[string]reflect.Type, elem reflect.Type, depth int) bool {
	s.at++
	seen := make(map[string]bool, len(fields))
	return s.list('}', func() bool {
		s.space()
		start := s.at
		name, ok := s.name()
		end := s.at
		if !ok || s.space() != ':' {
			return false
		}
		s.at++
		t, known := elem, fields == nil
		if !known {
			t, known = fields[name]
		}
		switch {
		case !known:
			s.unmatched(fields, name, start, end)
		case seen[name]:
			s.hide(start, end)
			s.refuse(MemberError{Member: name, Offset: int64(start), Twice: true})
		}
		seen[name] = seen[name] || known
		return s.value(t, depth+1)
	})
}

// unmatched hides or refuses a member without a field in the struct, as the policy requires. Its
// name is in text[start:end].
func (s *scanner) unmatched(fields map[string]reflect.Type, name string, start, end int) {
	refused := MemberError{Member: name, Offset: int64(start)}
	for f := range fields {
		if strings.EqualFold(f, name) { // as in encoding/json
			s.hide(start, end)
			refused.Known = f
			break
		}
	}
	if s.unknown == RefuseAll || s.unknown == RefuseVariants && refused.Known != "" {
		s.refuse(refused)
	}
}

// refuse keeps the first refusal.
func (s *scanner) refuse(e MemberError) {
	if s.refused == nil {
		s.refused = &e
	}
}

// hide overwrites the quoted name in text[start:end] with a name that no field has. It keeps the
// length, so that offsets in errors stay correct.
func (s *scanner) hide(start, end int) {
	if !s.copied {
		s.text, s.copied = append([]byte(nil), s.text...), true
	}
	for i := start + 1; i < end-1; i++ {
		s.text[i] = '\x7f' // valid in a string, but not in the name of a field
	}
}

// name scans a quoted name.
func (s *scanner) name() (string, bool) {
	start := s.at
	if start >= len(s.text) || s.text[start] != '"' || !s.quoted() {
		return "", false
	}
	raw := s.text[start:s.at]
	for _, c := range raw {
		if c == '\\' || c >= 0x80 {
			var name string
			return name, json.Unmarshal(raw, &name) == nil
		}
	}
	return string(raw[1 : len(raw)-1]), true
}

// quoted scans a string. The scanner must be at its first quote.
func (s *scanner) quoted() bool {
	for s.at++; s.at < len(s.text); s.at++ {
		switch s.text[s.at] {
		case '\\':
			s.at++ // the next byte may be a quote
		case '"':
			s.at++
			return true
		}
	}
	return false
}

// skip scans a value of any type without checking its names.
func (s *scanner) skip() bool {
	depth := 0
	s.space()
	for start := s.at; s.at < len(s.text); {
		switch s.text[s.at] {
		case '"':
			if !s.quoted() {
				return false
			}
			if depth == 0 {
				return true
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return s.at > start
			}
			if depth--; depth == 0 {
				s.at++
				return true
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return s.at > start
			}
		}
		s.at++
	}
	return depth == 0
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[interface{ UnmarshalText([]byte) error }]()
)

// decodesItself reports whether a type has an unmarshal method that encoding/json calls.
func decodesItself(t reflect.Type) bool {
	if t.Kind() != reflect.Pointer {
		t = reflect.PointerTo(t)
	}
	return t.Implements(unmarshaler) || t.Implements(textUnmarshaler)
}

// known caches the results of structFields: map[string]reflect.Type by reflect.Type.
var known sync.Map

// structFields returns the types of a struct's fields by their JSON names.
func structFields(t reflect.Type) map[string]reflect.Type {
	if have, ok := known.Load(t); ok {
		return have.(map[string]reflect.Type)
	}
	fields := map[string]reflect.Type{}
	addFields(fields, t)
	known.Store(t, fields)
	return fields
}

// addFields adds the fields of t and of its embedded structs. It skips names that are already in
// fields, because the fields of an outer struct hide those of an embedded one.
func addFields(fields map[string]reflect.Type, t reflect.Type) {
	var embedded []reflect.Type
	for f := range t.Fields() {
		tag := f.Tag.Get("json")
		name, _, _ := strings.Cut(tag, ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case tag == "-":
			continue
		case f.Anonymous && name == "" && inner.Kind() == reflect.Struct:
			embedded = append(embedded, inner)
			continue
		case !f.IsExported():
			continue
		case name == "":
			name = f.Name
		}
		if _, hidden := fields[name]; !hidden {
			fields[name] = f.Type
		}
	}
	for _, e := range embedded {
		addFields(fields, e)
	}
}
