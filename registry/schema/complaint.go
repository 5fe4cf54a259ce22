package schema

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// complain says in words why the library did not compile the schema.
func (s *Schema) complain(parts []part, err error) error {
	if own := (*CompileError)(nil); errors.As(err, &own) {
		return own
	}
	if load := (*refused)(nil); errors.As(err, &load) {
		return missingReference(parts, load.uri)
	}
	if found, ok := remarks(err); ok {
		return s.notASchema(found)
	}
	for _, p := range parts { // what the metaschemas of some drafts let pass
		for _, k := range []string{"$ref", "$recursiveRef", "$dynamicRef"} {
			if _, ok := p.of[k].(string); p.of[k] != nil && !ok {
				return invalid(p.path+"/"+k, keywordWords[k])
			}
		}
		// The library takes this keyword of the metaschema of draft-04 everywhere.
		if _, ok := p.of["regexProperties"].(bool); p.of["regexProperties"] != nil && !ok {
			return invalid(p.path+"/regexProperties", mustBool)
		}
	}
	message := err.Error()
	if i := strings.Index(message, "jsonschema: "); i >= 0 {
		message = message[i+len("jsonschema: "):]
	}
	message = strings.TrimPrefix(message, "jsonschema "+baseURI+" compilation failed: ")
	if uri, ok := strings.CutSuffix(message, " not found"); ok {
		return missingReference(parts, uri)
	}
	if where, ok := strings.CutPrefix(message, "infinite loop "); ok {
		_, path, _ := strings.Cut(where, "#")
		path, _, _ = strings.Cut(path, "/$ref")
		return invalid("#"+path, endless)
	}
	return invalid("#", "cannot be read: "+strings.ReplaceAll(message, baseURI, ""))
}

const endless = "the schema refers to itself without looking into a part of the value: judging it would never end"

// missingReference finds the reference that led to the URI.
func missingReference(parts []part, uri string) error {
	bare, _, _ := strings.Cut(uri, "#")
	for _, exact := range []bool{true, false} {
		for _, p := range parts {
			for _, r := range p.references() {
				to, _, _ := strings.Cut(r.to, "#")
				if r.to == uri || !exact && to == bare {
					return invalid(p.path, missingWords(parts, p, r, to))
				}
			}
		}
	}
	// It stands in one of the schemas that are referred to.
	return invalid("#", "a reference in a schema that this one refers to leads to nothing: "+excerpt(strings.TrimPrefix(uri, baseURI)))
}

func missingWords(parts []part, p part, r reference, to string) string {
	head := r.keyword + " " + excerpt(r.text) + ": "
	embedded := slices.IndexFunc(parts, func(x part) bool { return x.base == to && to != parts[0].base })
	switch {
	case embedded >= 0:
		return head + "the embedded schema at " + parts[embedded].path + " with the $id " + excerpt(strings.TrimPrefix(to, baseURI)) +
			" has no such part; references to it and within it start there, not at the whole schema"
	case to == p.base:
		return head + "there is no such part of the schema"
	case strings.HasPrefix(to, scheme) && !strings.HasPrefix(to, baseURI):
		if to == r.to {
			return head + "there is no such schema"
		}
		return head + "there is no such schema, or no such part of it"
	case draftNamed(to) != "":
		return head + "of the metaschemas of the drafts only the whole can be referred to"
	}
	return head + onlyRegistered
}

// notASchema says what the metaschema has against the document: of all that is
// wrong, what lies deepest, since what is around it is wrong for its sake.
func (s *Schema) notASchema(remarks []remark) error {
	slices.SortFunc(remarks, func(a, b remark) int {
		if c := strings.Count(b.instance, "/") - strings.Count(a.instance, "/"); c != 0 {
			return c
		}
		if c := strings.Compare(a.instance, b.instance); c != 0 {
			return c
		}
		return strings.Compare(a.at+a.message, b.at+b.message)
	})
	first := remarks[0]
	path := "#" + first.instance
	value := lookup(s.doc, first.instance)
	keyword, schema := keywordAt(first.instance)
	text, isText := value.(string)
	switch {
	case schema && keyword == "patternProperties" && badExpression(lastToken(first.instance)):
		return invalid(path, badPattern(lastToken(first.instance)))
	case schema && s.draft == Draft4:
		return invalid(path, "must be a schema: an object")
	case schema:
		return invalid(path, "must be a schema: an object, true or false")
	case keyword == "pattern" && isText:
		return invalid(path, badPattern(text))
	case keyword == "patternProperties" && badName(value) != "":
		return invalid(path, badPattern(badName(value)))
	case keyword == "items" && s.draft == Draft2020:
		return invalid(path, "must be a schema; the list of schemas is prefixItems in draft 2020-12")
	case (keyword == "exclusiveMinimum" || keyword == "exclusiveMaximum") && s.draft == Draft4:
		return invalid(path, "must be true or false in draft-04")
	}
	if words := keywordWords[keyword]; words != "" {
		return invalid(path, words)
	}
	return invalid(path, first.message)
}

// badName finds the name that is no expression.
func badName(value any) string {
	m, _ := value.(map[string]any)
	for _, name := range sortedKeys(m) {
		if badExpression(name) {
			return name
		}
	}
	return ""
}

func badExpression(text string) bool {
	_, err := syntax.Parse(text, syntax.Perl)
	return err != nil
}

// badPattern says why an expression is not supported.
func badPattern(text string) string {
	message := "pattern " + excerpt(text) + " is not supported: patterns are RE2"
	var bad *syntax.Error
	_, err := syntax.Parse(text, syntax.Perl)
	if !errors.As(err, &bad) {
		return message
	}
	what := bad.Code.String() + " " + strconv.Quote(bad.Expr)
	switch {
	case strings.HasPrefix(bad.Expr, "(?=") || strings.HasPrefix(bad.Expr, "(?!"):
		what = "lookahead " + bad.Expr
	case strings.HasPrefix(bad.Expr, "(?<"):
		what = "lookbehind " + bad.Expr
	case bad.Code == syntax.ErrInvalidEscape && len(bad.Expr) == 2 && bad.Expr[1] >= '1' && bad.Expr[1] <= '9':
		what = "the backreference " + bad.Expr
	case bad.Code == syntax.ErrInvalidEscape:
		what = "the escape " + bad.Expr
	case bad.Code == syntax.ErrInvalidRepeatSize:
		what = "the repetition " + bad.Expr + " (at most 1000)"
	}
	return fmt.Sprintf("pattern %s: %s is not supported: patterns are RE2", excerpt(text), what)
}

// keywordAt says which keyword a part of a schema's document belongs to, and
// whether a schema has to stand there.
func keywordAt(pointer string) (keyword string, schema bool) {
	if pointer == "" {
		return "", true
	}
	named := false // the next token is a name, not a keyword
	schema = true
	for token := range strings.SplitSeq(pointer[1:], "/") {
		token = unescape(token)
		switch {
		case named:
			named, schema = false, true
		case schema, keyword == "items" && !isIndex(token):
			keyword, named, schema = token, namesSchemas[token], holdsSchema[token]
		case holdsSchemas[keyword]:
			schema = true
		default:
			return keyword, false
		}
	}
	return keyword, schema
}

func isIndex(token string) bool {
	_, err := strconv.Atoi(token)
	return err == nil
}

// The keywords that hold a schema, and those that hold a list of them.
var (
	holdsSchema = map[string]bool{
		"not": true, "if": true, "then": true, "else": true, "additionalProperties": true, "additionalItems": true,
		"propertyNames": true, "contains": true, "unevaluatedItems": true, "unevaluatedProperties": true, "contentSchema": true,
	}
	holdsSchemas = map[string]bool{"allOf": true, "anyOf": true, "oneOf": true, "prefixItems": true, "items": true}
)

const (
	mustCount  = "must be a whole number, 0 or more"
	mustNumber = "must be a number"
	mustString = "must be a string"
	mustBool   = "must be true or false"
	mustNamed  = "must be an object whose members are schemas"
	mustList   = "must be a list of at least one schema"
	mustSchema = "must be a schema"
	mustNames  = "must be a list of property names, each once"
)

// keywordWords are what the keywords have to be.
var keywordWords = map[string]string{
	"type":     "must be one of array, boolean, integer, null, number, object, string, or a list of some of them, each once",
	"required": mustNames + " (a single property is required by its object, not by itself)",
	"enum":     "must be a list of values, each once", "$ref": "must be a string: a URI reference",
	"$id": "must be a string: a URI reference without a fragment", "id": "must be a string: a URI",
	"$dynamicRef": "must be a string: a URI reference", "$recursiveRef": `must be "#"`, "$schema": mustString,
	"$anchor": "must be a name", "$dynamicAnchor": "must be a name", "$comment": mustString, "$vocabulary": "must be an object",
	"title": mustString, "description": mustString, "format": mustString, "pattern": mustString,
	"contentEncoding": mustString, "contentMediaType": mustString,
	"minLength": mustCount, "maxLength": mustCount, "minItems": mustCount, "maxItems": mustCount, "minProperties": mustCount,
	"maxProperties": mustCount, "minContains": mustCount, "maxContains": mustCount,
	"minimum": mustNumber, "maximum": mustNumber, "multipleOf": "must be a number above 0",
	"exclusiveMinimum": mustNumber + " (true and false are draft-04)", "exclusiveMaximum": mustNumber + " (true and false are draft-04)",
	"uniqueItems": mustBool, "readOnly": mustBool, "writeOnly": mustBool, "deprecated": mustBool, "$recursiveAnchor": mustBool,
	"examples": "must be a list", "properties": mustNamed, "patternProperties": mustNamed, "$defs": mustNamed, "definitions": mustNamed,
	"dependentSchemas": mustNamed, "dependencies": "must be an object whose members are schemas or lists of property names",
	"dependentRequired": "must be an object whose members are lists of property names, each once",
	"allOf":             mustList, "anyOf": mustList, "oneOf": mustList, "prefixItems": mustList,
	"items": "must be a schema or a list of at least one", "additionalItems": mustSchema, "additionalProperties": mustSchema,
}
