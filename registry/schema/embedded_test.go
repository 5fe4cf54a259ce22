package schema

import (
	"strings"
	"testing"
)

// A reference that finds nothing because an embedded $id changed what it is relative to names
// that schema.
func TestMissingPartOfEmbeddedSchema(t *testing.T) {
	for _, test := range []struct{ text, path, id string }{
		{`{"$defs":{"a":{"$id":"https://e.example/a","properties":{"x":{"$ref":"#/$defs/b"}}},"b":true},"$ref":"#/$defs/a"}`, "#/$defs/a", "https://e.example/a"},
		{`{"$defs":{"a":{"$id":"a","$ref":"#x"}},"$ref":"a"}`, "#/$defs/a", "a"},
		{`{"$defs":{"a":{"$id":"https://e.example/a","$defs":{"c":true}}},"$ref":"https://e.example/a#/$defs/d"}`, "#/$defs/a", "https://e.example/a"},
		{`{"$id":"https://e.example/root","$ref":"item#/$defs/d","$defs":{"i":{"$id":"item"}}}`, "#/$defs/i", "https://e.example/item"},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"a":{"$id":"https://e.example/a","items":{"$ref":"#/definitions/b"}},"b":true},"items":{"$ref":"#/definitions/a"}}`, "#/definitions/a", "https://e.example/a"},
	} {
		_, err := Compile(test.text, Options{})
		if err == nil || !strings.Contains(err.Error(), `embedded schema at `+test.path+` with the $id "`+test.id+`" has no such part`) {
			t.Errorf("Compile(%s): %v, want an error that names the embedded schema %s at %s", test.text, err, test.id, test.path)
		}
	}
	_, err := Compile(`{"properties":{"x":{"$ref":"#/$defs/b"}}}`, Options{})
	if err == nil || !strings.Contains(err.Error(), "there is no such part of the schema") {
		t.Errorf("Compile: %v", err)
	}
}
