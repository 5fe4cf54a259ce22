package schema

import (
	"fmt"
	"maps"
	"sync"
)

// readerForm is kept with a Schema, made when it is first asked for.
type readerForm struct {
	once   sync.Once
	schema *Schema
	err    error
}

// reader returns the form of the schema that a reader in the model Declared uses:
// additionalProperties and unevaluatedProperties that are false are not there, in it
// and in all it refers to. It fails where a $ref names one of these.
func (s *Schema) reader() (*Schema, error) {
	s.reading.once.Do(func() { s.reading.schema, s.reading.err = s.open() })
	return s.reading.schema, s.reading.err
}

func (s *Schema) open() (*Schema, error) {
	references := make(map[string]*Schema, len(s.references))
	changed := false
	for _, uri := range sortedKeys(s.references) {
		r, err := s.references[uri].reader()
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", uri, err)
		}
		references[uri] = r
		changed = changed || r != s.references[uri]
	}
	doc := opened(s.doc)
	if !changed && same(doc, s.doc) {
		return s, nil
	}
	return Compile(string(textOf(doc)), Options{Draft: s.draft, References: references})
}

// opened is a schema's document as a reader in the declared model takes it: without
// additionalProperties and unevaluatedProperties where they are false. What stands
// under enum, const, default and examples is data and stays.
func opened(doc any) any {
	m, ok := doc.(map[string]any)
	if !ok {
		return doc
	}
	out := maps.Clone(m)
	for k, v := range m {
		switch k {
		case "additionalProperties", "unevaluatedProperties":
			if v == false {
				delete(out, k)
			} else {
				out[k] = opened(v)
			}
		case "enum", "const", "default", "examples":
		case "properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions":
			if members, ok := v.(map[string]any); ok { // named by people, not keywords
				members = maps.Clone(members)
				for name, x := range members {
					members[name] = opened(x)
				}
				out[k] = members
			}
		default:
			out[k] = openedList(v)
		}
	}
	return out
}

func openedList(v any) any {
	list, ok := v.([]any)
	if !ok {
		return opened(v)
	}
	out := make([]any, len(list))
	for i, x := range list {
		out[i] = openedList(x)
	}
	return out
}
