package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
)

// Bounds of a path, generous for any payload that people wrote.
const (
	maxPathBytes = 1000
	maxPathNames = 100
)

// pathSyntax says what a path is.
const pathSyntax = "use key for the event's key, or a path into the payload like .processId or .order.id"

// jsonPath names a value of an event: its key, or a member of its payload. The zero
// value is not set. It is a flag and a member of the file.
type jsonPath struct {
	text  string
	names []string // from the outside in; none: the event's key
}

// parsePath reads "key" or a path of names, each behind a dot.
func parsePath(s string) (jsonPath, error) {
	switch {
	case s == "key":
		return jsonPath{text: s}, nil
	case s == "":
		return jsonPath{}, fmt.Errorf("empty: %s", pathSyntax)
	case len(s) > maxPathBytes || strings.Count(s, ".") > maxPathNames:
		return jsonPath{}, fmt.Errorf("%.40q... is too long: at most %d bytes and %d names are allowed", s, maxPathBytes, maxPathNames)
	case s[0] != '.':
		return jsonPath{}, fmt.Errorf("%q does not start with a dot: %s", s, pathSyntax)
	case !utf8.ValidString(s):
		return jsonPath{}, fmt.Errorf("%q is no UTF-8: %s", s, pathSyntax)
	}
	names := strings.Split(s[1:], ".")
	for _, name := range names {
		if name == "" {
			return jsonPath{}, fmt.Errorf("%q has a dot without a name behind it: %s", s, pathSyntax)
		}
		for _, r := range name {
			// What other languages of paths give a meaning to, this one refuses.
			if strings.ContainsRune(`[]{}()"'`+"`"+`*?|,=\`, r) || unicode.IsSpace(r) || !unicode.IsPrint(r) {
				return jsonPath{}, fmt.Errorf("%q has %q in it: %s; there are no indexes, wildcards or quotes", s, r, pathSyntax)
			}
		}
	}
	return jsonPath{text: s, names: names}, nil
}

func (p *jsonPath) String() string { return p.text }
func (p *jsonPath) Type() string   { return "path" }

// Set is parsePath for a flag.
func (p *jsonPath) Set(s string) (err error) {
	*p, err = parsePath(s)
	return err
}

// UnmarshalText is parsePath for a file.
func (p *jsonPath) UnmarshalText(text []byte) error { return p.Set(string(text)) }

// isKey says that the path means the event's key, which is also what it means where it is not set.
func (p *jsonPath) isKey() bool { return len(p.names) == 0 }

// document is the payload of an event, of which as much is decoded as is asked for.
type document struct {
	raw     json.RawMessage
	members map[string]*document // nil until one is asked for
}

// errNoObject is a value that has no members.
var errNoObject = errors.New("is no object")

// member returns a member of an object; nil if it has none of that name.
func (d *document) member(name string) (*document, error) {
	if d.members == nil {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(d.raw, &members); err != nil {
			if _, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
				return nil, errNoObject
			}
			return nil, fmt.Errorf("is no JSON: %w", err)
		}
		if members == nil { // null
			return nil, errNoObject
		}
		d.members = make(map[string]*document, len(members))
		for n, raw := range members {
			d.members[n] = &document{raw: raw}
		}
	}
	return d.members[name], nil
}

// find returns the value at the path; nil if there is none.
func (p *jsonPath) find(d *document) (json.RawMessage, error) {
	for i, name := range p.names {
		next, err := d.member(name)
		switch {
		case errors.Is(err, errNoObject) && i > 0:
			return nil, nil // what is no object has no such member
		case err != nil:
			return nil, fmt.Errorf("the payload %w", err)
		case next == nil:
			return nil, nil
		}
		d = next
	}
	return d.raw, nil
}

// hasPayload says that there is something that a path can lead into: a tombstone has nothing.
func hasPayload(e *jetbus.Event) bool {
	p := bytes.TrimSpace(e.Payload)
	return len(p) > 0 && !bytes.Equal(p, []byte("null"))
}

// key is the key that the path makes of an event: a string, or an integer as it is
// written. An event without a payload, which deletes its key, has only its own.
func (p *jsonPath) key(e jetbus.Event) (string, error) {
	if p.isKey() || !hasPayload(&e) {
		return e.Key, nil
	}
	raw, err := p.find(&document{raw: e.Payload})
	switch {
	case err != nil:
		return "", err
	case raw == nil:
		return "", fmt.Errorf("the payload has no %s", p)
	case raw[0] == '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	case isInteger(raw):
		return string(raw), nil
	}
	return "", fmt.Errorf("%s is %s: a key is a string or an integer", p, kind(raw))
}

// version is the integer at the path.
func (p *jsonPath) version(e jetbus.Event) (int64, error) {
	raw, err := p.find(&document{raw: e.Payload})
	switch {
	case err != nil:
		return 0, err
	case raw == nil:
		return 0, fmt.Errorf("the payload has no %s", p)
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is %s: a version is an integer of 64 bits", p, kind(raw))
	}
	return n, nil
}

// isInteger says whether a JSON value is a number that can be spelled in one way
// only: 7 and 7.0 are the same number, but would be two keys.
func isInteger(raw []byte) bool {
	digits := bytes.TrimPrefix(raw, []byte("-"))
	for _, c := range digits {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(digits) > 0 && string(raw) != "-0"
}

// kind says what a JSON value is.
func kind(raw []byte) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f', 'n':
		return string(raw)
	}
	return fmt.Sprintf("the number %.40s", raw)
}

// condition is a path, and the value that there must be: PATH for true, or PATH=VALUE.
type condition struct {
	path  jsonPath
	value string // a string, or how JSON writes the value
}

func parseCondition(s string) (c condition, err error) {
	path, value, has := strings.Cut(s, "=")
	if c.path, err = parsePath(path); err != nil {
		return c, err
	}
	if c.path.isKey() {
		return c, fmt.Errorf("%q is no condition: use a path into the payload, .gone for true, or .status=gone", s)
	}
	if c.value = "true"; has {
		c.value = value
	}
	return c, nil
}

func (c *condition) String() string {
	if c.path.text == "" {
		return ""
	}
	return c.path.text + "=" + c.value
}

func (c *condition) Type() string { return "condition" }

// Set is parseCondition for a flag.
func (c *condition) Set(s string) (err error) {
	*c, err = parseCondition(s)
	return err
}

// UnmarshalText is parseCondition for a file.
func (c *condition) UnmarshalText(text []byte) error { return c.Set(string(text)) }

// holds says whether the event's payload has the value at the path. A payload that
// cannot be read is for the map to complain about.
func (c *condition) holds(e jetbus.Event) bool {
	raw, err := c.path.find(&document{raw: e.Payload})
	if err != nil || raw == nil {
		return false
	}
	if raw[0] == '"' {
		var s string
		return json.Unmarshal(raw, &s) == nil && s == c.value
	}
	return string(raw) == c.value
}

// field is a member of the documents, and where its value comes from.
type field struct {
	name string
	path jsonPath
}

// project makes the document of an event: the fields that it has, in their order.
func project(fields []field, e jetbus.Event) (json.RawMessage, error) {
	doc := &document{raw: e.Payload}
	b := []byte{'{'}
	for _, f := range fields {
		raw, err := json.RawMessage(nil), error(nil)
		if f.path.isKey() {
			raw, err = json.Marshal(e.Key)
		} else {
			raw, err = f.path.find(doc)
		}
		if err != nil {
			return nil, err
		}
		if raw == nil {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		name, err := json.Marshal(f.name)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, name...), ':'), raw...)
	}
	return append(b, '}'), nil
}
