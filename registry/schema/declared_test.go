package schema

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestValidateDeclared(t *testing.T) {
	for _, test := range []struct {
		name, schema, payload string
		refused               string // the undeclared ones, as paths
	}{
		{"declared", `{"properties":{"a":{}}}`, `{"a":1}`, ""},
		{"undeclared", `{"properties":{"a":{}}}`, `{"a":1,"c":1,"b":1}`, `/b /c`},
		{"required", `{"required":["a"]}`, `{"a":1,"b":1}`, `/b`},
		{"pattern", `{"patternProperties":{"^x":{}}}`, `{"xy":1,"y":1}`, `/y`},
		{"explicitly open", `{"properties":{"a":{}},"additionalProperties":true}`, `{"b":1}`, ""},
		{"open to some", `{"properties":{"a":{}},"additionalProperties":{"type":"number"}}`, `{"b":1}`, ""},
		{"open to the unevaluated", `{"properties":{"a":{}},"unevaluatedProperties":true}`, `{"b":1}`, ""},
		{"nothing of objects", `{"type":"object"}`, `{"b":1}`, ""},
		{"everything", `true`, `{"b":1}`, ""},
		{"nested", `{"properties":{"a":{"properties":{"b":{}}}}}`, `{"a":{"b":1,"c":1}}`, `/a/c`},
		{"nested in what says nothing", `{"properties":{"a":{}}}`, `{"a":{"b":{"c":1}}}`, ""},
		{"items", `{"items":{"properties":{"b":{}}}}`, `[{"b":1},{"c/d":1}]`, `/1/c~1d`},
		{"prefix", `{"prefixItems":[{"properties":{"a":{}}}],"items":{"properties":{"b":{}}}}`, `[{"b":1},{"b":1},{"a":1}]`, `/0/b /2/a`},
		{"allOf", `{"allOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}]}`, `{"a":1,"b":1,"c":1}`, `/c`},
		{"allOf with an open one", `{"allOf":[{"properties":{"a":{}}},{"additionalProperties":true}]}`, `{"c":1}`, ""},
		{"nested allOf", `{"allOf":[{"properties":{"k":{"properties":{"a":{}}}}},{"properties":{"k":{"properties":{"b":{}}}}}]}`, `{"k":{"a":1,"b":1,"c":1}}`, `/k/c`},
		{"any branch", `{"anyOf":[{"properties":{"a":{}}},{"properties":{"b":{}}}]}`, `{"a":1,"b":1,"c":1}`, `/c`},
		{"any branch below", `{"anyOf":[{"properties":{"k":{"properties":{"a":{}}}}},{"properties":{"k":{"properties":{"b":{}}}}}]}`, `{"k":{"b":1,"c":1}}`, `/k/c`},
		{"conditions", `{"if":{"properties":{"a":{}}},"then":{"properties":{"b":{}}},"else":{"properties":{"c":{}}}}`, `{"a":1,"b":1,"c":1,"d":1}`, `/d`},
		{"dependent", `{"dependentSchemas":{"a":{"properties":{"a":{},"b":{}}}}}`, `{"b":1,"c":1}`, `/c`},
		{"not describes nothing", `{"properties":{"a":{}},"not":{"required":["b"]}}`, `{"c":1}`, `/c`},
		{"contains describes nothing", `{"contains":{"properties":{"a":{}}}}`, `[{"b":1}]`, ""},
		{"reference", `{"properties":{"k":{"$ref":"#/$defs/k"}},"$defs":{"k":{"properties":{"a":{}}}}}`, `{"k":{"b":1}}`, `/k/b`},
		{"recursion", `{"properties":{"next":{"$ref":"#"},"v":{}}}`, `{"next":{"next":{"v":1,"w":1}}}`, `/next/next/w`},
		{"dynamic reference", `{"properties":{"a":{}},"$dynamicRef":"#x","$defs":{"x":{"$dynamicAnchor":"x"}}}`, `{"b":1}`, ""},
		{"additional items of a pattern", `{"patternProperties":{"^x":{"properties":{"a":{}}}}}`, `{"xy":{"b":1}}`, `/xy/b`},
		{"below additional", `{"properties":{"a":{}},"additionalProperties":{"properties":{"b":{}}}}`, `{"z":{"c":1}}`, `/z/c`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := compile(t, test.schema)
			if err := s.Validate([]byte(test.payload)); err != nil {
				t.Fatalf("Validate: %v", err)
			}
			err := s.ValidateDeclared([]byte(test.payload))
			if test.refused == "" {
				if err != nil {
					t.Errorf("ValidateDeclared: %v", err)
				}
				return
			}
			var got []string
			for _, v := range violationsOf(t, err) {
				name, ok := strings.CutPrefix(v.Message, "the property ")
				if !ok {
					t.Fatalf("violation %+v", v)
				}
				name = strings.TrimSuffix(name, " is not declared")
				got = append(got, v.InstancePath+"/"+escape(strings.Trim(name, `"`)))
			}
			if want := strings.Fields(test.refused); !slices.Equal(got, want) {
				t.Errorf("refused %v, want %v", got, want)
			}
		})
	}
}

func TestValidateDeclaredIsStricter(t *testing.T) {
	s := compile(t, `{"properties":{"a":{"type":"null"}}}`)
	if err := s.ValidateDeclared([]byte(`{"a":1}`)); err == nil {
		t.Error("ValidateDeclared accepts what Validate does not")
	}
	if err := s.ValidateDeclared([]byte(`{`)); err == nil {
		t.Error("ValidateDeclared accepts what is no JSON")
	}
}

func TestDeclarations(t *testing.T) {
	s := compile(t, `{"properties":{"a":{"$ref":"#"},"b":{"$ref":"#"}},"additionalProperties":{"items":{"$ref":"#"}}}`)
	d := s.declarations
	if a := d.property(s.described, "a"); d.property(a, "a") != a {
		t.Error("recursion makes declarations without end")
	}
	if d.other(s.described) != d.property(s.described, "c") {
		t.Error("other is not that of a name that nobody gives")
	}
	if d.item(s.described, 0) != nil || d.property(nil, "a") != nil || d.item(nil, 0) != nil || d.other(nil) != nil {
		t.Error("nothing is described by something")
	}
	var none *declaration
	if !none.declares("a", matchPlainly) {
		t.Error("the empty declaration is closed")
	}
	item := compile(t, `{"prefixItems":[{"type":"null"}],"items":{}}`)
	if d := item.declarations; d.item(item.described, 0) == d.item(item.described, 1) || d.item(item.described, 1) != d.item(item.described, 7) {
		t.Error("items behind the prefix have not one declaration of their own")
	}
}

func TestDeclarationsAreBounded(t *testing.T) {
	// Every set of the branches is described by some path of a and b.
	var branches []string
	for i := range 14 {
		next := fmt.Sprintf(`{"$ref":"#/anyOf/%d"}`, (i+1)%14)
		branches = append(branches, fmt.Sprintf(`{"properties":{"a":%s,"b":{"anyOf":[%s,{"$ref":"#/anyOf/0"}]}}}`, next, next))
	}
	s := compile(t, `{"anyOf":[`+strings.Join(branches, ",")+`]}`)
	at := s.declarations.describe(s.root.anyOf[0])
	x := uint32(1)
	for range 3 * maxDeclarations {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		at = s.declarations.property(at, []string{"a", "b"}[x&1])
	}
	if n := len(s.declarations.known); n > maxDeclarations {
		t.Errorf("%d declarations are remembered, want at most %d", n, maxDeclarations)
	}
}
