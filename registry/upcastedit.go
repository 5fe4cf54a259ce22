package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/exactjson"
)

// Edit is an [Upcaster] that is said, not programmed: it changes members of the
// JSON object that the payload is. What it does not touch stays byte for byte, the
// digits of numbers included, and in its order; white space between members goes.
//
// Members are named by their names, and those of objects within by JSON pointers:
// "/host/name" is the member name of the member host. A name that starts with "/"
// is written as a pointer, "/~1name". Where the path leads to nothing, or through
// something that is no object, nothing is done. All paths are those before the
// edit. Members are first removed, then renamed, then set to their defaults.
type Edit struct {
	// Remove lists members to remove.
	Remove []string `json:"remove,omitempty"`
	// Rename gives members new names, in the objects where they are. An event that has
	// a member of the new name as well cannot be edited.
	Rename map[string]string `json:"rename,omitempty"`
	// Default gives values to members that are not there after that. Null counts as
	// being there. New members come last, in the order of their names.
	Default map[string]json.RawMessage `json:"default,omitempty"`
}

// Upcast edits the payload. The error wraps jetbus.ErrInvalidOption where the edit
// is not valid.
func (x Edit) Upcast(_ context.Context, e jetbus.Event) (jetbus.Event, error) {
	steps, err := x.steps()
	if err != nil {
		return e, err
	}
	payload, isObject, err := steps.apply(e.Payload)
	switch {
	case err != nil:
		return e, fmt.Errorf("edit: %w", err)
	case !isObject:
		return e, errors.New("edit: the payload is no JSON object")
	}
	e.Payload = payload
	return e, nil
}

// Valid reports paths that are none, and instructions that contradict each other.
// The error wraps jetbus.ErrInvalidOption.
func (x Edit) Valid() error {
	_, err := x.steps()
	return err
}

// editSteps is what an edit does to one object and to those within.
type editSteps struct {
	remove   map[string]bool
	rename   map[string]string
	defaults map[string]json.RawMessage
	within   map[string]*editSteps
}

// steps sorts the instructions by the objects that they are about.
func (x Edit) steps() (*editSteps, error) {
	root := &editSteps{}
	bad := func(path, why string) error {
		return fmt.Errorf("%w: edit of %.100q: %s", jetbus.ErrInvalidOption, path, why)
	}
	for _, path := range x.Remove {
		at, name, ok := root.find(path)
		if !ok {
			return nil, bad(path, notPath)
		}
		set(&at.remove, name, true)
	}
	for _, path := range slices.Sorted(maps.Keys(x.Rename)) {
		at, name, ok := root.find(path)
		to := x.Rename[path]
		switch {
		case !ok:
			return nil, bad(path, notPath)
		case at.remove[name]:
			return nil, bad(path, "it is both removed and renamed")
		case to == name:
			return nil, bad(path, "its new name is the old one")
		}
		for other, taken := range at.rename {
			if taken == to {
				return nil, bad(path, fmt.Sprintf("%.100q gets the name %.100q, too", other, to))
			}
		}
		set(&at.rename, name, to)
	}
	for _, path := range slices.Sorted(maps.Keys(x.Default)) {
		at, name, ok := root.find(path)
		switch {
		case !ok:
			return nil, bad(path, notPath)
		case !json.Valid(x.Default[path]):
			return nil, bad(path, "its default is no JSON")
		}
		set(&at.defaults, name, x.Default[path])
	}
	return root, nil
}

const notPath = `name a member, or one within another by a JSON pointer ("/host/name", with ~0 and ~1 for "~" and "/")`

func set[V any](m *map[string]V, name string, v V) {
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[name] = v
}

// find returns the steps of the object that a path leads to, and the member's name.
func (s *editSteps) find(path string) (at *editSteps, name string, ok bool) {
	rest, isPointer := strings.CutPrefix(path, "/")
	if !isPointer {
		return s, path, path != ""
	}
	tokens := strings.Split(rest, "/")
	for i, token := range tokens {
		plain := strings.ReplaceAll(strings.ReplaceAll(token, "~1", ""), "~0", "")
		if strings.Contains(plain, "~") {
			return nil, "", false
		}
		name = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		if i == len(tokens)-1 {
			break
		}
		if s.within[name] == nil {
			set(&s.within, name, &editSteps{})
		}
		s = s.within[name]
	}
	return s, name, true
}

// member is one member of an object, its value as it is written.
type member struct {
	name  string
	value json.RawMessage
}

// apply edits a JSON text. One that is no object stays as it is.
func (s *editSteps) apply(text []byte) (out []byte, isObject bool, err error) {
	members, isObject, err := parseObject(text)
	if err != nil || !isObject {
		return text, false, err
	}
	kept := make([]member, 0, len(members)+len(s.defaults))
	for _, m := range members {
		if s.remove[m.name] {
			continue
		}
		if within := s.within[m.name]; within != nil {
			if m.value, _, err = within.apply(m.value); err != nil {
				return nil, false, fmt.Errorf("%.100q: %w", m.name, err)
			}
		}
		if to, ok := s.rename[m.name]; ok {
			if slices.ContainsFunc(members, func(other member) bool {
				_, moves := s.rename[other.name]
				return other.name == to && !moves && !s.remove[to]
			}) {
				return nil, false, fmt.Errorf("%.100q cannot be renamed: there is a %.100q as well", m.name, to)
			}
			m.name = to
		}
		kept = append(kept, m)
	}
	for _, name := range slices.Sorted(maps.Keys(s.defaults)) {
		if !slices.ContainsFunc(kept, func(m member) bool { return m.name == name }) {
			kept = append(kept, member{name, s.defaults[name]})
		}
	}
	out, err = writeObject(kept)
	return out, true, err
}

// parseObject splits an object into its members, in their order. Of several with
// one name the last one counts, as for encoding/json.
func parseObject(text []byte) (members []member, isObject bool, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	first, err := dec.Token()
	if err != nil {
		return nil, false, fmt.Errorf("not JSON: %w", noEOF(err))
	}
	if first != json.Delim('{') {
		return nil, false, nil
	}
	at := map[string]int{}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return nil, false, fmt.Errorf("not JSON: %w", noEOF(err))
		}
		name, _ := token.(string) // the decoder sees to it
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, false, fmt.Errorf("not JSON: %w", noEOF(err))
		}
		if i, twice := at[name]; twice {
			members[i].value = value
			continue
		}
		at[name] = len(members)
		members = append(members, member{name, value})
	}
	if _, err := dec.Token(); err != nil {
		return nil, false, fmt.Errorf("not JSON: %w", noEOF(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, false, errors.New("not JSON: there is more text behind the value")
	}
	return members, true, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func writeObject(members []member) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	b.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := enc.Encode(m.name); err != nil {
			return nil, err
		}
		b.Truncate(b.Len() - 1) // the encoder's line end
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// decodeStrictly decodes one JSON value. It refuses members whose exact name v does not have, and
// members that are given twice.
func decodeStrictly(text []byte, v any) error {
	return exactjson.Unmarshal(text, v, exactjson.RefuseAll)
}
