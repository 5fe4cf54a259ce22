package schema

import (
	"math/big"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	js "github.com/santhosh-tekuri/jsonschema/v5"
)

// TestLibraryFields fails on a field of the library's schemas that the builder does
// not know: an upgrade that brings a keyword must not bring it past the proof.
func TestLibraryFields(t *testing.T) {
	known := strings.Fields(`
		Location Draft Format Always Ref RecursiveAnchor RecursiveRef DynamicAnchor DynamicRef Types Constant Enum
		Not AllOf AnyOf OneOf If Then Else
		MinProperties MaxProperties Required Properties PropertyNames RegexProperties PatternProperties
		AdditionalProperties Dependencies DependentRequired DependentSchemas UnevaluatedProperties
		MinItems MaxItems UniqueItems Items AdditionalItems PrefixItems Items2020 Contains ContainsEval MinContains
		MaxContains UnevaluatedItems
		MinLength MaxLength Pattern ContentEncoding ContentMediaType ContentSchema
		Minimum ExclusiveMinimum Maximum ExclusiveMaximum MultipleOf
		Title Description Default Comment ReadOnly WriteOnly Examples Deprecated Extensions`)
	var has []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[js.Schema]()) {
		if f.IsExported() {
			has = append(has, f.Name)
		}
	}
	slices.Sort(known)
	slices.Sort(has)
	if !slices.Equal(known, has) {
		t.Fatalf("the fields of the library's Schema are\n%v\nand the builder knows\n%v", has, known)
	}
}

func compile(t testing.TB, text string) *Schema {
	t.Helper()
	s, err := Compile(text, Options{})
	if err != nil {
		t.Fatalf("Compile(%s): %v", text, err)
	}
	return s
}

// TestNodes checks that the spellings of the drafts become one.
func TestNodes(t *testing.T) {
	const d4, d6, d7, d19 = `"$schema":"http://json-schema.org/draft-04/schema#",`, `"$schema":"http://json-schema.org/draft-06/schema#",`,
		`"$schema":"http://json-schema.org/draft-07/schema#",`, `"$schema":"https://json-schema.org/draft/2019-09/schema",`
	for _, test := range []struct {
		name, text string
		holds      func(n *node) bool
	}{
		{"nothing", `{}`, func(n *node) bool {
			return n.types == tAll && n.minLength == 0 && n.maxLength == -1 && n.maxItems == -1 && n.maxProperties == -1 && n.maxContains == -1 && n.always == nil && n.values == nil && n.at == "#"
		}},
		{"true", `true`, func(n *node) bool { return n.always != nil && *n.always }},
		{"maxLength 0", `{"maxLength":0}`, func(n *node) bool { return n.maxLength == 0 }},
		{"type list", `{"type":["integer","null"]}`, func(n *node) bool { return n.types == tNum|tNull && n.integer }},
		{"integer and number", `{"type":["integer","number"]}`, func(n *node) bool { return n.types == tNum && !n.integer }},
		{"boolean exclusiveMinimum", `{` + d4 + `"minimum":3,"exclusiveMinimum":true}`, func(n *node) bool {
			return n.minimum == nil && n.exclusiveMinimum.Cmp(big.NewRat(3, 1)) == 0
		}},
		{"false exclusiveMaximum", `{` + d4 + `"maximum":3,"exclusiveMaximum":false}`, func(n *node) bool {
			return n.exclusiveMaximum == nil && n.maximum.Cmp(big.NewRat(3, 1)) == 0
		}},
		{"items list", `{` + d7 + `"items":[{"type":"null"}],"additionalItems":false}`, func(n *node) bool {
			return len(n.prefix) == 1 && n.prefix[0].types == tNull && n.items != nil && !*n.items.always
		}},
		{"additionalItems without a list", `{` + d7 + `"items":{},"additionalItems":false}`, func(n *node) bool {
			return n.prefix == nil && n.items.always == nil
		}},
		{"prefixItems", `{"prefixItems":[true],"items":{"type":"null"}}`, func(n *node) bool {
			return len(n.prefix) == 1 && n.items.types == tNull
		}},
		{"additional true", `{"additionalProperties":true}`, func(n *node) bool { return n.additional != nil && *n.additional.always }},
		{"no additional", `{"properties":{}}`, func(n *node) bool { return n.additional == nil }},
		{"const", `{"const":null}`, func(n *node) bool { return len(n.values) == 1 && n.values[0] == nil }},
		{"const and enum", `{"const":1,"enum":[1,2]}`, func(n *node) bool {
			return len(n.values) == 2 && len(n.allOf) == 1 && len(n.allOf[0].values) == 1 && n.allOf[0].accepts(n.values[0]) && !n.allOf[0].accepts(n.values[1])
		}},
		{"const in draft-04", `{` + d4 + `"const":1}`, func(n *node) bool { return n.values == nil }},
		{"siblings of $ref in draft-07", `{` + d7 + `"$ref":"#/definitions/a","type":"null","definitions":{"a":{"minimum":1}}}`, func(n *node) bool {
			return n.ref != nil && n.types == tAll
		}},
		{"siblings of $ref in 2019-09", `{` + d19 + `"$ref":"#/$defs/a","type":"null","$defs":{"a":{}}}`, func(n *node) bool {
			return n.ref != nil && n.types == tNull
		}},
		{"dependencies", `{` + d7 + `"dependencies":{"a":["b"],"c":{"type":"object"}}}`, func(n *node) bool {
			return slices.Equal(n.dependentRequired["a"], []string{"b"}) && n.dependentSchemas["c"].types == tObj
		}},
		{"dependencies twice", `{"dependencies":{"a":{"minProperties":2}},"dependentSchemas":{"a":{"maxProperties":3}}}`, func(n *node) bool {
			return len(n.dependentSchemas["a"].allOf) == 2
		}},
		{"contains", `{` + d6 + `"contains":{},"maxContains":1}`, func(n *node) bool { return n.minContains == 1 && n.maxContains == -1 }},
		{"maxContains", `{"contains":{},"minContains":0,"maxContains":1}`, func(n *node) bool { return n.minContains == 0 && n.maxContains == 1 }},
		{"format", `{"format":"email"}`, func(n *node) bool { return n.format == "email" && n.beyond == nil }},
		{"unknown format", `{"format":"phone"}`, func(n *node) bool { return n.format == "" }},
		{"content asserted", `{` + d7 + `"contentEncoding":"base64","contentMediaType":"application/json"}`, func(n *node) bool {
			return slices.Equal(n.beyond, []string{"contentEncoding", "contentMediaType"})
		}},
		{"content annotated", `{"contentEncoding":"base64"}`, func(n *node) bool { return n.beyond == nil && n.accepts("%") }},
		{"then without if", `{"then":false}`, func(n *node) bool { return n.then == nil }},
		{"recursion", `{"properties":{"next":{"$ref":"#"}}}`, func(n *node) bool { return n.properties["next"].ref == n && !n.opaque }},
		{"dynamic", `{"properties":{"a":{"$dynamicRef":"#n"}},"$defs":{"x":{"$dynamicAnchor":"n"}}}`, func(n *node) bool {
			a := n.properties["a"]
			return n.opaque && n.beyond == nil && a.opaque && slices.Equal(a.beyond, []string{"$dynamicRef"}) && len(a.dynamic) == 1
		}},
		{"dynamic without anchor", `{"$dynamicRef":"#/$defs/x","$defs":{"x":{"type":"null"}}}`, func(n *node) bool {
			return !n.opaque && len(n.allOf) == 1 && n.allOf[0].types == tNull
		}},
		{"location", `{"properties":{"a b/c":{}}}`, func(n *node) bool { return n.properties["a b/c"].at == "#/properties/a b~1c" }},
		{"identifier", `{"$id":"https://example.org/a","properties":{"x":{"$ref":"#/$defs/y"}},"$defs":{"y":{}}}`, func(n *node) bool {
			return n.properties["x"].ref.at == "#/$defs/y"
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if n := compile(t, test.text).root; !test.holds(n) {
				t.Errorf("%s became %+v", test.text, n)
			}
		})
	}
}

// The metaschemas are the library's, and of all compilations at once.
func TestSharedMetaschema(t *testing.T) {
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := Compile(`{"properties":{"s":{"$ref":"http://json-schema.org/draft-07/schema#"}}}`, Options{}); err != nil {
				t.Errorf("Compile: %v", err)
			}
		})
	}
	all.Wait()
}
