package mongosink

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// manyNames is from how many names on an object's are kept in a map.
const manyNames = 16

// appendJSON appends the fields of a JSON object to a document, but for those that
// are the sink's: in their order, integers as int64 or else as Decimal128, other
// numbers as double. An error wraps ErrInvalidDocument or ErrTooLarge.
func appendJSON(b, payload []byte) ([]byte, error) {
	p := jsonParser{in: payload, out: b, start: len(b)}
	p.space()
	if p.peek() != '{' {
		return nil, invalid("the payload is no JSON object")
	}
	if err := p.object(1); err != nil {
		return nil, err
	}
	if p.space(); p.at < len(p.in) {
		return nil, p.fail("the payload goes on behind its end")
	}
	return p.out, nil
}

// A jsonParser turns JSON into BSON as it reads it.
type jsonParser struct {
	in    []byte
	at    int
	out   []byte
	start int      // of the fields in out
	names [][]byte // of the objects that are open
}

func (p *jsonParser) fail(format string, args ...any) error {
	return invalid("JSON, at byte %d: %s", p.at, fmt.Sprintf(format, args...))
}

func (p *jsonParser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// peek is the next byte, 0 at the end.
func (p *jsonParser) peek() byte {
	if p.at >= len(p.in) {
		return 0
	}
	return p.in[p.at]
}

// expect reads one byte, behind space.
func (p *jsonParser) expect(c byte) error {
	if p.space(); p.peek() != c {
		return p.fail("%q is missing", c)
	}
	p.at++
	return nil
}

// object reads the members of an object, from its brace on, as fields. At depth 1
// they are fields of the document.
func (p *jsonParser) object(depth int) error {
	if depth > maxDepth {
		return p.fail("it is nested deeper than %d levels", maxDepth)
	}
	p.at++
	first := len(p.names)
	defer func() { p.names = p.names[:first] }()
	var seen map[string]struct{}
	if p.space(); p.peek() == '}' {
		p.at++
		return nil
	}
	for {
		p.space()
		name, err := p.text()
		if err != nil {
			return err
		}
		keep := true
		if depth == 1 {
			keep, err = checkTop(name, false)
		} else {
			err = checkName(name, false)
		}
		if err != nil {
			return err
		}
		if seen, err = p.once(name, first, seen); err != nil {
			return err
		}
		if err := p.expect(':'); err != nil {
			return err
		}
		was := len(p.out)
		if err := p.value(name, depth); err != nil {
			return err
		}
		if !keep {
			p.out = p.out[:was]
		}
		if more, err := p.more('}'); !more {
			return err
		}
	}
}

// once notes the name of a member, and refuses one that its object has already.
func (p *jsonParser) once(name []byte, first int, seen map[string]struct{}) (map[string]struct{}, error) {
	known := false
	if seen != nil {
		_, known = seen[string(name)]
	} else {
		for _, n := range p.names[first:] {
			known = known || bytes.Equal(n, name)
		}
	}
	if known {
		return nil, p.fail("field %q is there twice", name)
	}
	p.names = append(p.names, name)
	switch {
	case seen != nil:
		seen[string(name)] = struct{}{}
	case len(p.names)-first >= manyNames:
		seen = make(map[string]struct{}, 4*manyNames)
		for _, n := range p.names[first:] {
			seen[string(n)] = struct{}{}
		}
	}
	return seen, nil
}

// more reads what follows an element: a comma, or the end.
func (p *jsonParser) more(end byte) (bool, error) {
	p.space()
	switch p.peek() {
	case ',':
		p.at++
		return true, nil
	case end:
		p.at++
		return false, nil
	}
	return false, p.fail("a comma or %q is missing", end)
}

// array reads the elements of an array, from its bracket on.
func (p *jsonParser) array(depth int) error {
	if depth > maxDepth {
		return p.fail("it is nested deeper than %d levels", maxDepth)
	}
	p.at++
	if p.space(); p.peek() == ']' {
		p.at++
		return nil
	}
	var name [20]byte
	for i := int64(0); ; i++ {
		if err := p.value(strconv.AppendInt(name[:0], i, 10), depth); err != nil {
			return err
		}
		if more, err := p.more(']'); !more {
			return err
		}
	}
}

// value reads a value and appends it as the field of that name.
func (p *jsonParser) value(name []byte, depth int) error {
	if len(p.out)-p.start > maxDocument { // short JSON may be long BSON
		return ErrTooLarge
	}
	p.space()
	kind := len(p.out)
	p.out = append(append(append(p.out, 0), name...), 0)
	var t bson.Type
	var err error
	switch c := p.peek(); c {
	case '{', '[':
		open := len(p.out)
		p.out = append(p.out, 0, 0, 0, 0)
		if t = bson.TypeEmbeddedDocument; c == '{' {
			err = p.object(depth + 1)
		} else {
			t = bson.TypeArray
			err = p.array(depth + 1)
		}
		p.out = append(p.out, 0)
		bsoncore.UpdateLength(p.out, int32(open), int32(len(p.out)-open)) //nolint:gosec // bounded above
	case '"':
		t = bson.TypeString
		var s []byte
		s, err = p.text()
		p.out = bsoncore.AppendString(p.out, string(s))
	case 't', 'f', 'n':
		t, err = p.word()
	default:
		t, err = p.number()
	}
	p.out[kind] = byte(t)
	return err
}

// word reads true, false or null.
func (p *jsonParser) word() (bson.Type, error) {
	rest := p.in[p.at:]
	switch {
	case bytes.HasPrefix(rest, []byte("true")):
		p.at += 4
		p.out = append(p.out, 1)
		return bson.TypeBoolean, nil
	case bytes.HasPrefix(rest, []byte("false")):
		p.at += 5
		p.out = append(p.out, 0)
		return bson.TypeBoolean, nil
	case bytes.HasPrefix(rest, []byte("null")):
		p.at += 4
		return bson.TypeNull, nil
	}
	return 0, p.fail("a value is missing")
}

// digits reads digits and reports whether there were any.
func (p *jsonParser) digits() bool {
	from := p.at
	for c := p.peek(); '0' <= c && c <= '9'; c = p.peek() {
		p.at++
	}
	return p.at > from
}

// number reads a number.
func (p *jsonParser) number() (bson.Type, error) {
	from := p.at
	if p.peek() == '-' {
		p.at++
	}
	zero := p.peek() == '0'
	if begin := p.at; !p.digits() {
		return 0, p.fail("a value is missing")
	} else if zero && p.at > begin+1 {
		return 0, p.fail("a number begins with 0")
	}
	integer := true
	if p.peek() == '.' {
		integer = false
		if p.at++; !p.digits() {
			return 0, p.fail("a number ends with its point")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		integer = false
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if !p.digits() {
			return 0, p.fail("a number ends with its exponent")
		}
	}
	return p.numeral(string(p.in[from:p.at]), integer)
}

// numeral appends a number that was read.
func (p *jsonParser) numeral(s string, integer bool) (bson.Type, error) {
	if !integer {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsInf(f, 0) {
			return 0, p.fail("the number %s is too large", clip(s))
		}
		p.out = bsoncore.AppendDouble(p.out, f)
		return bson.TypeDouble, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		p.out = bsoncore.AppendInt64(p.out, n)
		return bson.TypeInt64, nil
	}
	if len(s) > 6200 { // longer ones are beyond Decimal128, and slow to parse
		return 0, p.fail("the number %s is too large", clip(s))
	}
	d, err := bson.ParseDecimal128(s)
	if err != nil || d.IsInf() != 0 {
		return 0, p.fail("the integer %s has more digits than a Decimal128", clip(s))
	}
	h, l := d.GetBytes()
	p.out = bsoncore.AppendDecimal128(p.out, h, l)
	return bson.TypeDecimal128, nil
}

// clip shortens a number for a message.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

// text reads a string. It is part of the input where that has no escapes.
func (p *jsonParser) text() ([]byte, error) {
	if p.peek() != '"' {
		return nil, p.fail("a string is missing")
	}
	p.at++
	from := p.at
	for ; p.at < len(p.in); p.at++ {
		switch c := p.in[p.at]; {
		case c == '"':
			s := p.in[from:p.at]
			p.at++
			if !utf8.Valid(s) {
				return nil, p.fail("a string is no UTF-8")
			}
			return s, nil
		case c == '\\':
			return p.escaped(from)
		case c < ' ':
			return nil, p.fail("a string has a control character")
		}
	}
	return nil, p.fail("a string has no end")
}

// escaped reads on in a string that has escapes.
func (p *jsonParser) escaped(from int) ([]byte, error) {
	s := append(make([]byte, 0, 2*(p.at-from)+32), p.in[from:p.at]...)
	for p.at < len(p.in) {
		c := p.in[p.at]
		p.at++
		switch {
		case c == '"':
			if !utf8.Valid(s) {
				return nil, p.fail("a string is no UTF-8")
			}
			return s, nil
		case c < ' ':
			return nil, p.fail("a string has a control character")
		case c != '\\':
			s = append(s, c)
			continue
		}
		e := p.peek()
		p.at++
		if at := bytes.IndexByte([]byte(`"\/bfnrt`), e); at >= 0 {
			s = append(s, "\"\\/\b\f\n\r\t"[at])
			continue
		}
		if e != 'u' {
			return nil, p.fail("a string has an unknown escape")
		}
		r, ok := p.hex()
		if !ok {
			return nil, p.fail("a string has an unknown escape")
		}
		s = utf8.AppendRune(s, p.paired(r))
	}
	return nil, p.fail("a string has no end")
}

// paired is a character that was escaped; the second half of a pair is read, and
// half a pair becomes the replacement character.
func (p *jsonParser) paired(r rune) rune {
	if !utf16.IsSurrogate(r) {
		return r
	}
	if rest := p.in[p.at:]; len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
		was := p.at
		p.at += 2
		if second, ok := p.hex(); ok {
			if full := utf16.DecodeRune(r, second); full != utf8.RuneError {
				return full
			}
		}
		p.at = was
	}
	return utf8.RuneError
}

// hex reads four hexadecimal digits.
func (p *jsonParser) hex() (rune, bool) {
	if len(p.in)-p.at < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.in[p.at:p.at+4]), 16, 16)
	p.at += 4
	return rune(n), err == nil
}
