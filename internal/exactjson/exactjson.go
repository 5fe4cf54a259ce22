// Package exactjson decodes JSON that other parties wrote into structs.
//
// encoding/json matches the names of members without regard to case, and of a member that
// is given twice the last one wins. A check that another program makes of the same text
// then sees other values than this one: RFC 7519, section 10.1.1, asks for exact names
// for this reason. [Unmarshal] matches names byte for byte and refuses members that are
// given twice.
package exactjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// Unknown says what happens to members that a struct has no field for.
type Unknown int

// Policies for unknown members.
const (
	// RefuseVariants ignores unknown members, so that newer clients can send more, but
	// refuses a name that differs from a known one in case alone: it is a mistake.
	RefuseVariants Unknown = iota
	// Ignore ignores all unknown members, whatever their names and types.
	Ignore
	// RefuseAll refuses every unknown member.
	RefuseAll
)

// MemberError reports a member that was refused. The others were decoded.
type MemberError struct {
	Member string // its name, unescaped
	Offset int64  // where the name begins in the text
	Twice  bool   // it was given before; otherwise it is unknown
	Known  string // the name that it differs from in case alone; empty: none
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

// errUnsupported reports JSON that is valid and that the scanner did not understand. It is
// refused, because its names were not checked.
var errUnsupported = errors.New("the JSON value nests too deep")

// maxDepth bounds the nesting of structs, slices and maps that are decoded into.
const maxDepth = 1000

// Unmarshal is [json.Unmarshal] for exact names: a member is decoded into the field whose
// JSON name it has byte for byte. It applies to into and to the structs, slices, maps and
// pointers in it; types with methods of their own for JSON or text decode themselves.
//
// A member that a struct or a map is given twice is refused; members that are ignored may
// repeat. The error is [*MemberError] or one of encoding/json, see [Readable]. Where it is a *MemberError,
// the fields of into have the members that were not refused, of those given twice the first.
func Unmarshal(text []byte, into any, unknown Unknown) error {
	s := scanner{text: text, unknown: unknown}
	if !s.value(reflect.TypeOf(into), 0) || s.space() != 0 {
		if !json.Valid(text) {
			return Readable(text, json.Unmarshal(text, into)) // the error names the place, and nothing is decoded
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

// scanner walks a JSON text beside the types that it is decoded into. It hides members from
// encoding/json that must not match a field, by another name of the same length.
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

// value scans one value that is decoded into a t; nil stands for one whose names do not
// count. It reports false where the text is not valid JSON, or nests too deep.
func (s *scanner) value(t reflect.Type, depth int) bool {
	if depth > maxDepth {
		return false
	}
	c := s.space()
	if c != '{' && c != '[' { // there are no names in it
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

// list scans what f scans, between commas, up to the end of a list whose first byte was
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

// object scans an object that is decoded into a struct with these fields, or, where fields
// is nil, into a map of elem.
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

// unmatched deals with a member that the struct has no field for. Its name is in
// text[start:end].
func (s *scanner) unmatched(fields map[string]reflect.Type, name string, start, end int) {
	refused := MemberError{Member: name, Offset: int64(start)}
	for f := range fields {
		if strings.EqualFold(f, name) { // as encoding/json compares
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

// hide overwrites the quoted name in text[start:end] with one that no field has. The length
// stays, and with it the places that errors name.
func (s *scanner) hide(start, end int) {
	if !s.copied {
		s.text, s.copied = append([]byte(nil), s.text...), true
	}
	for i := start + 1; i < end-1; i++ {
		s.text[i] = '\x7f' // valid in a string, and in no field's name
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

// quoted scans a string, at whose first quote the scanner is.
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

// skip scans a value of whatever type.
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

// decodesItself reports whether a type has a method that encoding/json calls.
func decodesItself(t reflect.Type) bool {
	if t.Kind() != reflect.Pointer {
		t = reflect.PointerTo(t)
	}
	return t.Implements(unmarshaler) || t.Implements(textUnmarshaler)
}

// known has the fields of the structs that were decoded, map[string]reflect.Type by
// reflect.Type.
var known sync.Map

// structFields returns the types of a struct's fields by their names in JSON.
func structFields(t reflect.Type) map[string]reflect.Type {
	if have, ok := known.Load(t); ok {
		return have.(map[string]reflect.Type)
	}
	fields := map[string]reflect.Type{}
	addFields(fields, t)
	known.Store(t, fields)
	return fields
}

// addFields adds the fields of t, and of the structs embedded in it, that fields does not
// have yet: those of the outer struct hide the others.
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
