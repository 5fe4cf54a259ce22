package gateway

import (
	"encoding/json"
	"testing"
)

// TestEmbedded: what refers to parts of a schema refers to them where they are in a document;
// data are left alone, and numbers keep their digits.
func TestEmbedded(t *testing.T) {
	for text, want := range map[string]string{
		`true`:             `{}`,
		`false`:            `{"not":{}}`,
		`{"maximum":1.50}`: `{"maximum":1.50}`,
		`{"items":[{"$ref":"#"}],"not":{"$ref":"https://e.example/s#/a"}}`:       `{"items":[{"$ref":"#/x/y"}],"not":{"$ref":"https://e.example/s#/a"}}`,
		`{"properties":{"const":{"$ref":"#/$defs/a"},"$ref":{"type":"string"}}}`: `{"properties":{"$ref":{"type":"string"},"const":{"$ref":"#/x/y/$defs/a"}}}`,
		`{"const":{"$ref":"#/a"},"enum":[{"$ref":"#"}],"default":{"$ref":"#"}}`:  `{"const":{"$ref":"#/a"},"default":{"$ref":"#"},"enum":[{"$ref":"#"}]}`,
	} {
		if got, err := json.Marshal(embedded(json.RawMessage(text), "#/x/y")); err != nil || string(got) != want {
			t.Errorf("%s became %s, want %s (%v)", text, got, want, err)
		}
	}
	if got := embedded(json.RawMessage(`{`), "#"); got != nil {
		t.Errorf("%v", got)
	}
}
