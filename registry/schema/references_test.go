package schema

import (
	"errors"
	"slices"
	"testing"
)

func TestReferences(t *testing.T) {
	for _, test := range []struct {
		text string
		want []string
	}{
		{`true`, nil},
		{`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}}`, nil},
		{`{"properties":{"b":{"$ref":"schema://b/2#/x"},"a":{"items":[{"$ref":"schema://a/1"}]},"c":{"$ref":"schema://b/2"}}}`, []string{"schema://a/1", "schema://b/2"}},
		{`{"properties":{"$ref":{"$ref":"schema://a/1"}},"allOf":[{"$dynamicRef":"schema://d/1#x"}]}`, []string{"schema://a/1", "schema://d/1"}},
		{`{"const":{"$ref":"schema://a/1"},"default":{"$ref":"schema://a/1"},"enum":[{"$ref":"schema://a/1"}]}`, nil},
		{`{"properties":{"const":{"$ref":"schema://a/1"}}}`, []string{"schema://a/1"}},
		{`{"$id":"schema://me/3","properties":{"a":{"$ref":"schema://me/3"},"b":{"$ref":"/2"},"c":{"$ref":"4"}}}`, []string{"schema://me/2", "schema://me/4"}},
		{`{"$schema":"http://json-schema.org/draft-04/schema#","id":"schema://me/3","$id":"schema://no/1","properties":{"c":{"$ref":"4"}}}`, []string{"schema://me/4"}},
		{`{"$defs":{"in":{"$id":"schema://in/1"}},"$ref":"schema://in/1"}`, nil},
		{`{"$ref":5,"not":{"$ref":"//x/1"}}`, []string{"schema://x/1"}},
		{`{"$ref":"%zz"}`, nil},
	} {
		got, err := References(test.text)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("References(%s) = %v, %v, want %v", test.text, got, err, test.want)
		}
	}
	for _, text := range []string{`{`, `{"$schema":"https://example.org"}`} {
		if _, err := References(text); !errors.Is(err, ErrInvalidSchema) {
			t.Errorf("References(%s): %v, want ErrInvalidSchema", text, err)
		}
	}
}
