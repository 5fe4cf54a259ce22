package schema

import (
	"errors"
	"testing"
)

func TestBundle(t *testing.T) {
	others := map[string]string{
		"schema://address/1": `{"$id":"https://e.example/a","properties":{"city":{"$ref":"schema://city/2#/$defs/name"},"self":{"$ref":"#"}}}`,
		"schema://city/2":    `{"$defs":{"name":{"type":"string","maximum":1.50}}}`,
	}
	for _, c := range []struct{ name, text, want string }{
		{"true", ` true `, `true`},
		{"nothing to do", `{"type":"object","maximum":1e400}`, `{"type":"object","maximum":1e400}`},
		{"own parts", `{"$defs":{"a":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/a"},"b":{"$ref":"#"}}}`, `{"$defs":{"a":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/a"},"b":{"$ref":"#"}}}`},
		{"anchors", `{"$defs":{"a":{"$anchor":"n","type":"string"}},"items":{"$ref":"#n"}}`, `{"$defs":{"a":{"type":"string"}},"items":{"$ref":"#/$defs/a"}}`},
		{
			"resources", `{"$id":"https://e.example/x/","$defs":{"a":{"$id":"y","$defs":{"b":true},"items":{"$ref":"#/$defs/b"}}},"items":{"$ref":"y#/$defs/b"},"not":{"$ref":"https://e.example/x/"}}`,
			`{"$defs":{"a":{"$defs":{"b":true},"items":{"$ref":"#/$defs/a/$defs/b"}}},"items":{"$ref":"#/$defs/a/$defs/b"},"not":{"$ref":"#"}}`,
		},
		{"dynamic", `{"$dynamicAnchor":"n","items":{"$dynamicRef":"#n"}}`, `{"items":{"$ref":"#"}}`},
		{
			"draft 7", `{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"a":{"$id":"#n","minimum":1}},"items":{"$ref":"#n","minimum":5}}`,
			`{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"a":{"minimum":1}},"items":{"$ref":"#/definitions/a"}}`,
		},
		{"data", `{"const":{"$ref":"#/x","$id":"y"},"properties":{"$id":{"type":"string"},"$ref":{"enum":[{"$ref":"z"}]}}}`, `{"const":{"$id":"y","$ref":"#/x"},"properties":{"$id":{"type":"string"},"$ref":{"enum":[{"$ref":"z"}]}}}`},
		{"metaschema", `{"$ref":"https://json-schema.org/draft/2020-12/schema"}`, `{"$ref":"https://json-schema.org/draft/2020-12/schema"}`},
	} {
		got, err := Bundle(c.text, nil)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		canonical, err := Canonical(got)
		want, _ := Canonical(c.want)
		if err != nil || canonical != want {
			t.Errorf("%s: %s, want %s (%v)", c.name, got, want, err)
		}
	}
	got, err := Bundle(`{"$defs":{"city.2":false},"properties":{"to":{"$ref":"schema://address/1"},"street":{"$ref":"schema://address/1#/properties/city"}}}`, others)
	want := `{"$defs":{"address.1":{"properties":{"city":{"$ref":"#/$defs/city.2_/$defs/name"},"self":{"$ref":"#/$defs/address.1"}}},"city.2":false,"city.2_":{"$defs":{"name":{"maximum":1.50,"type":"string"}}}},` +
		`"properties":{"street":{"$ref":"#/$defs/address.1/properties/city"},"to":{"$ref":"#/$defs/address.1"}}}`
	if err != nil || got != want {
		t.Errorf("%s, want %s (%v)", got, want, err)
	}
	if _, err := Compile(got, Options{}); err != nil {
		t.Errorf("the bundle is no schema: %v", err)
	}
	for _, draft := range []string{"draft-04", "draft-06", "draft-07"} { // the older ones ignore what stands beside $ref, but for what it points to
		head := `"$schema":"http://json-schema.org/` + draft + `/schema#"`
		got, err := Bundle(`{"$ref":"schema://city/2#/$defs/name",`+head+`,"type":"object"}`, others)
		if want := `{"$defs":{"address.1":{"properties":{"city":{"$ref":"#/$defs/city.2/$defs/name"},"self":{"$ref":"#/$defs/address.1"}}},` +
			`"city.2":{"$defs":{"name":{"maximum":1.50,"type":"string"}}}},"$ref":"#/$defs/city.2/$defs/name",` + head + `}`; err != nil || got != want {
			t.Errorf("%s, want %s (%v)", got, want, err)
		}
		if _, err := Compile(got, Options{}); err != nil {
			t.Errorf("the bundle of %s is no schema: %v", draft, err)
		}
		got, err = Bundle(`{"$ref":"#/$defs/a","$defs":{"a":{"type":"string"}},`+head+`}`, nil)
		if want := `{"$defs":{"a":{"type":"string"}},"$ref":"#/$defs/a",` + head + `}`; err != nil || got != want {
			t.Errorf("%s, want %s (%v)", got, want, err)
		}
	}
	for _, draft := range []string{"draft-04", "draft-06", "draft-07"} { // one that is referred to keeps its own
		head := `"$schema":"http://json-schema.org/` + draft + `/schema#"`
		to := map[string]string{"schema://name/1": `{` + head + `,"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"type":"string","minLength":3}}}`}
		got, err := Bundle(`{`+head+`,"properties":{"name":{"$ref":"schema://name/1"}}}`, to)
		if err != nil {
			t.Errorf("%s: %v", draft, err)
			continue
		}
		s, err := Compile(got, Options{})
		if err != nil {
			t.Errorf("the bundle of %s is no schema: %v: %s", draft, err, got)
			continue
		}
		if long, short := s.Validate([]byte(`{"name":"abc"}`)), s.Validate([]byte(`{"name":"ab"}`)); long != nil || short == nil {
			t.Errorf("the bundle of %s says %v of a valid value, and %v of another: %s", draft, long, short, got)
		}
	}
	if _, err := Bundle(`{"$ref":"schema://nobody/1"}`, others); err == nil {
		t.Error("a reference that leads nowhere is none")
	}
	if _, err := Bundle(`{`, nil); !errors.As(err, new(*CompileError)) {
		t.Errorf("%v", err)
	}
}
