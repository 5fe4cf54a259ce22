package schema

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// scheme is that of the URIs of registered schemas, schema://<topic>/<n>.
const scheme = "schema://"

const onlyRegistered = "references can only name parts of the schema itself and registered schemas, " + scheme + "<topic>/<n>"

// References returns the absolute schema:// URIs that a schema refers to by $ref,
// without their fragments, sorted. What those refer to in turn is not among them. A text
// that is no schema is an error, as in Compile; whether all is well with it only
// Compile can say.
func References(text string) ([]string, error) {
	doc, err := parse(text)
	if err != nil {
		return nil, err
	}
	draft, err := draftOf(doc, "")
	if err != nil {
		return nil, err
	}
	return registered(doc, draft), nil
}

// registered is References of a parsed document.
func registered(doc any, draft Draft) []string {
	own := map[string]bool{}
	var uris []string
	for _, p := range partsOf(doc, draft) {
		own[p.base] = true
		for _, r := range p.references() {
			uri, _, _ := strings.Cut(r.to, "#")
			if strings.HasPrefix(uri, scheme) && !strings.HasPrefix(uri, baseURI) {
				uris = append(uris, uri)
			}
		}
	}
	uris = slices.DeleteFunc(uris, func(uri string) bool { return own[uri] })
	slices.Sort(uris)
	return slices.Compact(uris)
}

// part is one object of a document that is a schema or may be referred to as one.
type part struct {
	path string // "#/properties/a"
	base string // the URI that its references are relative to, without fragment
	of   map[string]any
}

// reference is one reference of a part.
type reference struct {
	keyword string
	text    string
	to      string // resolved
}

func (p part) references() []reference {
	var out []reference
	for _, k := range []string{"$ref", "$dynamicRef", "$recursiveRef"} {
		if text, ok := p.of[k].(string); ok {
			out = append(out, reference{k, text, resolve(p.base, text)})
		}
	}
	return out
}

func resolve(base, ref string) string {
	b, err := url.Parse(base)
	if err != nil {
		return ref
	}
	r, err := url.Parse(ref)
	if err != nil {
		return ref
	}
	if r.IsAbs() {
		return ref
	}
	return b.ResolveReference(r).String()
}

// The keywords whose members are schemas by a name of their own, and those whose
// value is data.
var (
	namesSchemas = map[string]bool{
		"properties": true, "patternProperties": true, "$defs": true, "definitions": true,
		"dependentSchemas": true, "dependencies": true,
	}
	holdsData = map[string]bool{"enum": true, "const": true, "default": true, "examples": true}
)

// partsOf lists the objects of a document, but for data, sorted by path within
// each. What stands under a keyword that no draft knows is listed: a $ref can
// come to it.
func partsOf(doc any, draft Draft) []part {
	var out []part
	var schema func(path, base string, v any)
	schema = func(path, base string, v any) {
		switch v := v.(type) {
		case []any:
			for i, x := range v {
				schema(path+"/"+itoa(i), base, x)
			}
		case map[string]any:
			base = baseOf(base, v, draft)
			out = append(out, part{path, base, v})
			for _, k := range sortedKeys(v) {
				at := path + "/" + escape(k)
				named, ok := v[k].(map[string]any)
				switch {
				case holdsData[k]:
				case namesSchemas[k] && ok:
					for _, name := range sortedKeys(named) {
						schema(at+"/"+escape(name), base, named[name])
					}
				default:
					schema(at, base, v[k])
				}
			}
		}
	}
	schema("#", baseURI, doc)
	return out
}

// baseOf reads $id.
func baseOf(base string, of map[string]any, draft Draft) string {
	keyword := "$id"
	if draft == Draft4 {
		keyword = "id"
	}
	if _, ref := of["$ref"]; ref && (draft == Draft4 || draft == Draft6 || draft == Draft7) {
		return base
	}
	id, _ := of[keyword].(string)
	if id, _, _ = strings.Cut(id, "#"); id == "" {
		return base
	}
	base, _, _ = strings.Cut(resolve(base, id), "#")
	return base
}

// checkSize looks at all of a document, data too, since a $ref can come to that:
// how many parts it has, and how large its expressions are.
func checkSize(doc any) error {
	parts, patterns := 0, 0
	expression := func(path, text string) error {
		size := textSize(text)
		if patterns += size; size > MaxPattern || patterns > MaxPatterns {
			return tooLarge(path, fmt.Sprintf("the regular expression is too large: at most %d instructions are allowed, and %d for all together; the counts of repetitions multiply", MaxPattern, MaxPatterns))
		}
		return nil
	}
	var walk func(path string, v any) error
	walk = func(path string, v any) error {
		switch v := v.(type) {
		case bool:
			parts++
		case []any:
			for i, x := range v {
				if err := walk(path+"/"+itoa(i), x); err != nil {
					return err
				}
			}
		case map[string]any:
			parts++
			for _, k := range sortedKeys(v) {
				at := path + "/" + escape(k)
				if text, ok := v[k].(string); ok && k == "pattern" {
					if err := expression(at, text); err != nil {
						return err
					}
				}
				if named, ok := v[k].(map[string]any); ok && k == "patternProperties" {
					for _, text := range sortedKeys(named) {
						if err := expression(at+"/"+escape(text), text); err != nil {
							return err
						}
					}
				}
				if err := walk(at, v[k]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := walk("#", doc); err != nil {
		return err
	}
	if parts > MaxParts {
		return tooLarge("#", fmt.Sprintf("the schema has %d objects and booleans; at most %d are allowed", parts, MaxParts))
	}
	return nil
}
