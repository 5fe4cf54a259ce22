package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Bundle returns a schema for tools that know nothing of registered ones: those that it
// refers to are in its $defs, and every $ref is a pointer within it, "#/$defs/a". others has
// their texts by URI, schema://<topic>/<n>, with those that they refer to in turn. What names
// parts otherwise is left out ($id, anchors), so the result means the same under any address;
// numbers keep their digits, members are sorted. $dynamicRef and $recursiveRef are read as
// $ref, and point to where that does.
//
// The error is that of a text that is no schema, or of a reference that leads nowhere.
func Bundle(text string, others map[string]string) (string, error) {
	main, err := newBundled("#", text)
	if err != nil {
		return "", err
	}
	all := []*bundled{main}
	roots := map[string]*bundled{}
	root, ok := main.doc.(map[string]any)
	if !ok { // true, or false
		return strings.TrimSpace(text), nil
	}
	defs, ok := root["$defs"].(map[string]any)
	if !ok {
		defs = map[string]any{}
	}
	for _, uri := range slices.Sorted(maps.Keys(others)) {
		name := strings.ReplaceAll(strings.TrimPrefix(uri, scheme), "/", ".")
		for defs[name] != nil {
			name += "_"
		}
		b, err := newBundled("#/$defs/"+escape(name), others[uri])
		if err != nil {
			return "", fmt.Errorf("%s: %w", uri, err)
		}
		defs[name], roots[uri] = b.doc, b
		all = append(all, b)
	}
	for _, b := range all {
		if err := b.point(roots); err != nil {
			return "", err
		}
	}
	if len(defs) > 0 { // even beside a $ref of the older drafts: it points there
		root["$defs"] = defs
	}
	out, err := json.Marshal(root)
	return string(out), err
}

// bundled is one schema of a bundle.
type bundled struct {
	at    string // where it is
	doc   any
	draft Draft
	parts []part
	names map[string]string // URIs, with anchors, of its parts: where they are
}

func newBundled(at, text string) (*bundled, error) {
	doc, err := parse(text)
	if err != nil {
		return nil, err
	}
	draft, err := draftOf(doc, "")
	if err != nil {
		return nil, err
	}
	b := &bundled{at: at, doc: doc, draft: draft, parts: partsOf(doc, draft), names: map[string]string{baseURI: at}}
	for _, p := range b.parts {
		here := at + strings.TrimPrefix(p.path, "#")
		if _, known := b.names[p.base]; !known { // parents come first
			b.names[p.base] = here
		}
		for _, k := range []string{"$anchor", "$dynamicAnchor"} {
			if name, ok := p.of[k].(string); ok {
				b.names[p.base+"#"+name] = here
			}
		}
		for _, k := range []string{"$id", "id"} { // the anchors of the older drafts
			if name, ok := p.of[k].(string); ok && len(name) > 1 && name[0] == '#' {
				b.names[p.base+name] = here
			}
		}
	}
	return b, nil
}

// find returns where a URI of this schema leads, "" if nowhere.
func (b *bundled) find(uri string) string {
	base, fragment, _ := strings.Cut(uri, "#")
	if at, ok := b.names[base]; ok && (fragment == "" || fragment[0] == '/') {
		return at + fragment
	}
	return b.names[uri]
}

// point makes pointers of references.
func (b *bundled) point(roots map[string]*bundled) error {
	for _, p := range b.parts {
		for _, r := range p.references() {
			to := b.find(r.to)
			if uri, fragment, _ := strings.Cut(r.to, "#"); to == "" && roots[uri] != nil {
				to = roots[uri].find(baseURI + "#" + fragment)
			}
			switch {
			case to == "" && strings.HasPrefix(r.to, scheme):
				return invalid(p.path+"/"+r.keyword, r.text+" leads nowhere")
			case to == "": // a metaschema
				to = r.to
			}
			delete(p.of, r.keyword)
			if _, own := p.of["$ref"].(string); !own || r.keyword == "$ref" {
				p.of["$ref"] = to
			}
		}
		b.strip(p.of)
	}
	return nil
}

// strip leaves out what names a part, and what the older drafts ignore beside $ref, but for
// what it may point to.
func (b *bundled) strip(of map[string]any) {
	older := b.draft == Draft4 || b.draft == Draft6 || b.draft == Draft7
	if _, ref := of["$ref"].(string); ref && older {
		for k := range of {
			switch k {
			case "$ref", "$schema", "definitions", "$defs", "title", "description":
			default:
				delete(of, k)
			}
		}
	}
	for _, k := range []string{"$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"} {
		if _, object := of[k].(map[string]any); !object { // a property may have that name
			delete(of, k)
		}
	}
	if text, ok := of["id"].(string); ok && b.draft == Draft4 && text != "" {
		delete(of, "id")
	}
}
