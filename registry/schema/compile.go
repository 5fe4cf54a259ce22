package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// baseURI is the URI of a schema while it is compiled, whatever name it is
// registered under. Without one the library would take the working directory's.
const baseURI = "schema:///"

// Compile compiles a schema. It loads nothing: $ref can name the schema's own parts,
// the metaschemas of the drafts, and o.References.
//
// Its errors are *CompileError: the text is not JSON, has an object with two
// members of one name, is not a schema, is of a draft that is not known, refers to
// what is not there, has a pattern that package regexp does not know, or exceeds
// one of the limits (MaxText and those beside it).
func Compile(text string, o Options) (*Schema, error) {
	doc, err := parse(text)
	if err != nil {
		return nil, err
	}
	draft, err := draftOf(doc, o.Draft)
	if err != nil {
		return nil, err
	}
	return compileDocument(&Schema{text: text, doc: doc, draft: draft}, o.References)
}

// compileDocument makes a schema of s, which has text, doc and draft.
func compileDocument(s *Schema, references map[string]*Schema) (*Schema, error) {
	if err := checkSize(s.doc); err != nil {
		return nil, err
	}
	parts := partsOf(s.doc, s.draft)
	for _, p := range parts {
		for _, r := range p.references() {
			if strings.HasPrefix(r.text, baseURI) {
				return nil, invalid(p.path, r.keyword+" "+excerpt(r.text)+": "+onlyRegistered)
			}
		}
	}
	docs, err := s.gather(references)
	if err != nil {
		return nil, err
	}
	lib, err := compileLibrary(s.draft, docs)
	if err != nil {
		return nil, s.complain(parts, err)
	}
	b, err := lib.build(s.anchors(parts), s.documents())
	if err != nil {
		return nil, s.complain(parts, err)
	}
	if s.heaviest, err = weigh(b.all); err != nil {
		return nil, err
	}
	s.root, s.declarations = b.node(lib.root), &declarations{}
	s.described = s.declarations.describe(s.root)
	s.fingerprint = s.sum()
	return s, nil
}

// gather collects the documents that can be referred to, s itself first, and sets
// s.references.
func (s *Schema) gather(from map[string]*Schema) ([]source, error) {
	s.references = map[string]*Schema{}
	docs := []source{{baseURI, s.text}}
	var add func(of *Schema) error
	add = func(of *Schema) error {
		for _, uri := range registered(of.doc, of.draft) {
			r := from[uri]
			if r == nil {
				r = of.references[uri]
			}
			if r == nil || s.references[uri] != nil {
				continue // if it is needed, the library will miss it
			}
			if len(s.references) == MaxReferences {
				return tooLarge("#", fmt.Sprintf("the schema refers, directly or through others, to more than %d schemas", MaxReferences))
			}
			s.references[uri] = r
			text, err := r.withDraft(s.draft)
			if err != nil {
				return err
			}
			docs = append(docs, source{uri, text})
			if err := add(r); err != nil {
				return err
			}
		}
		return nil
	}
	return docs, add(s)
}

// withDraft is the text as one that a schema of another draft can refer to: with
// the draft that it was compiled as.
func (s *Schema) withDraft(other Draft) (string, error) {
	m, ok := s.doc.(map[string]any)
	if _, has := m["$schema"]; !ok || has || s.draft == other {
		return s.text, nil
	}
	m = maps.Clone(m)
	m["$schema"] = draftURI(s.draft)
	text, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("write a referenced schema: %w", err)
	}
	return string(text), nil
}

// anchors lists the locations of all $dynamicAnchor, here and in the references.
func (s *Schema) anchors(parts []part) []string {
	var out []string
	add := func(uri string, parts []part) {
		for _, p := range parts {
			if _, ok := p.of["$dynamicAnchor"].(string); ok {
				out = append(out, uri+p.path)
			}
		}
	}
	add(baseURI, parts)
	for _, uri := range sortedKeys(s.references) {
		r := s.references[uri]
		add(uri, partsOf(r.doc, r.draft))
	}
	return out
}

// documents returns the parsed documents by their URIs in node.at.
func (s *Schema) documents() map[string]any {
	docs := map[string]any{"": s.doc}
	for uri, r := range s.references {
		docs[uri] = r.doc
		if root := partsOf(r.doc, r.draft); len(root) > 0 {
			docs[root[0].base] = r.doc
		}
	}
	return docs
}

// draftOf reads $schema.
func draftOf(doc any, missing Draft) (Draft, error) {
	if missing == "" {
		missing = Draft2020
	}
	if draftURI(missing) == "" {
		return "", invalid("#", fmt.Sprintf("draft %q is not known: use one of %s", missing, knownDrafts))
	}
	m, ok := doc.(map[string]any)
	if !ok {
		return missing, nil
	}
	v, ok := m["$schema"]
	if !ok {
		return missing, nil
	}
	s, ok := v.(string)
	if !ok {
		return "", invalid("#/$schema", "must be a string")
	}
	if d := draftNamed(s); d != "" {
		return d, nil
	}
	return "", invalid("#/$schema", excerpt(s)+" is not known: use that of one of the drafts "+knownDrafts)
}

const knownDrafts = "draft-04, draft-06, draft-07, 2019-09, 2020-12"

// draftURI is the $schema of a draft, and "" for one that is not known.
func draftURI(d Draft) string {
	switch d {
	case Draft4, Draft6, Draft7:
		return "http://json-schema.org/" + string(d) + "/schema#"
	case Draft2019, Draft2020:
		return "https://json-schema.org/draft/" + string(d) + "/schema"
	}
	return ""
}

func draftNamed(uri string) Draft {
	uri = strings.TrimSuffix(strings.TrimSuffix(uri, "#/"), "#")
	uri = strings.TrimPrefix(strings.TrimPrefix(uri, "http://"), "https://")
	switch uri {
	case "json-schema.org/draft-04/schema":
		return Draft4
	case "json-schema.org/draft-06/schema":
		return Draft6
	case "json-schema.org/draft-07/schema":
		return Draft7
	case "json-schema.org/draft/2019-09/schema":
		return Draft2019
	case "json-schema.org/draft/2020-12/schema", "json-schema.org/schema":
		return Draft2020
	}
	return ""
}
