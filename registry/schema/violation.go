package schema

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// maxExcerpt is how many bytes of a value or a schema a message shows.
const maxExcerpt = 200

// violations says in words what the library found wrong with the value.
func (s *Schema) violations(v any, err error) []Violation {
	remarks, ok := s.lib.remarks(err)
	if !ok || len(remarks) == 0 {
		return []Violation{{KeywordPath: "#", Message: err.Error()}}
	}
	var out []Violation
	for _, l := range remarks {
		out = append(out, s.violation(v, l)...)
	}
	return tidy(out)
}

// violation finds the schema that speaks, since the library's words are poor in
// what is in it: they lose digits and follow no order.
func (s *Schema) violation(doc any, l remark) []Violation {
	one := Violation{InstancePath: l.instance, KeywordPath: l.at, Message: l.message}
	if n := s.nodes[l.at]; n != nil && n.always != nil {
		one.Message = "is not allowed"
		return []Violation{one}
	}
	at, keyword := l.at, ""
	var n *node
	for n == nil {
		slash := strings.LastIndexByte(at, '/')
		if slash < 0 {
			return []Violation{one}
		}
		keyword, at = at[slash+1:]+"/"+keyword, at[:slash]
		n = s.nodes[at]
	}
	keyword, _, _ = strings.Cut(keyword, "/")
	path := l.at
	if keyword == "minContains" && n.minContains == 1 { // which nobody wrote, as a rule
		path = at + "/contains"
	}
	var value any
	if l.name {
		value = lastToken(l.instance)
	} else {
		value = lookup(doc, l.instance)
	}
	messages := words(n, keyword, value, l.message)
	out := make([]Violation, len(messages))
	for i, m := range messages {
		if l.name {
			m = "the name of the property " + m
		}
		out[i] = Violation{InstancePath: l.instance, KeywordPath: path, Message: m}
	}
	return out
}

// words are the messages for a keyword that the value breaks.
func words(n *node, keyword string, value any, library string) []string {
	switch keyword {
	case "required":
		return missing(n, value, library)
	case "additionalProperties":
		return further(n, value, library)
	}
	return []string{word(n, keyword, value, library)}
}

func word(n *node, keyword string, value any, library string) string {
	switch keyword {
	case "type":
		return "must be " + typeNames(n) + " but is " + typeName(value)
	case "enum":
		return "must be " + oneOf(n.values) + " but is " + show(value)
	case "const":
		return "must be " + oneOf(constOf(n)) + " but is " + show(value)
	case "format":
		return show(value) + " is not a valid " + n.format
	case "minimum":
		return "must be >= " + exact(n.minimum) + " but found " + show(value)
	case "exclusiveMinimum":
		return "must be > " + exact(n.exclusiveMinimum) + " but found " + show(value)
	case "maximum":
		return "must be <= " + exact(n.maximum) + " but found " + show(value)
	case "exclusiveMaximum":
		return "must be < " + exact(n.exclusiveMaximum) + " but found " + show(value)
	case "multipleOf":
		return "must be a multiple of " + exact(n.multipleOf) + " but found " + show(value)
	case "pattern":
		return show(value) + " does not match the pattern " + excerpt(n.pattern.String())
	case "uniqueItems":
		return "must not have equal items: " + library
	case "not":
		if n.not != nil && n.not.values != nil {
			return "must not be " + oneOf(n.not.values)
		}
		return "must not fit the schema of not, and does: " + show(value)
	case "oneOf":
		if both, ok := strings.CutPrefix(library, "valid against schemas at indexes "); ok {
			return "fits the alternatives " + both + " of oneOf, counted from 0, and may fit only one"
		}
		return "must fit exactly one of oneOf: " + library
	case "minContains":
		return fmt.Sprintf("must have at least %s as contains describes, but has %s", count(n.minContains, "item", "items"), lastWord(library))
	case "maxContains":
		return fmt.Sprintf("must have at most %s as contains describes, but has %s", count(n.maxContains, "item", "items"), lastWord(library))
	}
	return sizeWord(n, keyword, value, library)
}

// sizeWord is word for what is counted.
func sizeWord(n *node, keyword string, value any, library string) string {
	var has int
	switch v := value.(type) {
	case string:
		has = len([]rune(v))
	case []any:
		has = len(v)
	case map[string]any:
		has = len(v)
	}
	say := func(how string, n int, one, many string) string {
		return fmt.Sprintf("must have %s %s but has %d", how, count(n, one, many), has)
	}
	switch keyword {
	case "minLength":
		return say("at least", n.minLength, "character", "characters")
	case "maxLength":
		return say("at most", n.maxLength, "character", "characters")
	case "minItems":
		return say("at least", n.minItems, "item", "items")
	case "maxItems":
		return say("at most", n.maxItems, "item", "items")
	case "additionalItems":
		return say("at most", len(n.prefix), "item", "items")
	case "minProperties":
		return say("at least", n.minProperties, "property", "properties")
	case "maxProperties":
		return say("at most", n.maxProperties, "property", "properties")
	}
	return library
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return itoa(n) + " " + many
}

func missing(n *node, value any, library string) []string {
	m, _ := value.(map[string]any)
	var out []string
	for _, name := range n.required {
		if _, ok := m[name]; !ok && len(out) < MaxViolations {
			out = append(out, "lacks the required property "+excerpt(name))
		}
	}
	if len(out) == 0 {
		return []string{library}
	}
	return out
}

func further(n *node, value any, library string) []string {
	m, _ := value.(map[string]any)
	var out []string
next:
	for _, name := range sortedKeys(m) {
		if n.properties[name] != nil {
			continue
		}
		for _, p := range n.patterns {
			if p.re.MatchString(name) {
				continue next
			}
		}
		if out = append(out, "the property "+excerpt(name)+" is not allowed"); len(out) == MaxViolations {
			break
		}
	}
	if len(out) == 0 {
		return []string{library}
	}
	return out
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case json.Number:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	}
	return "object"
}

func typeNames(n *node) string {
	var names []string
	for i, name := range []string{"null", "boolean", "number", "string", "array", "object"} {
		if m := mask(1 << i); n.types&m != 0 {
			if m == tNum && n.integer {
				name = "integer"
			}
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// constOf is the value of const, which stands in allOf where there is an enum too.
func constOf(n *node) []any {
	for _, a := range n.allOf {
		if a.at == n.at {
			return a.values
		}
	}
	return n.values
}

func oneOf(values []any) string {
	const most = 8
	if len(values) == 1 {
		return show(values[0])
	}
	shown := make([]string, 0, most)
	for _, v := range values[:min(len(values), most)] {
		shown = append(shown, show(v))
	}
	list := "one of " + strings.Join(shown, ", ")
	if len(values) > most {
		list += fmt.Sprintf(" and %d more", len(values)-most)
	}
	return list
}

// show is a value as JSON, the beginning of it where it is long.
func show(v any) string {
	switch v := v.(type) {
	case string:
		return excerpt(v)
	case []any, map[string]any:
		if text, err := json.Marshal(v); err == nil && len(text) <= maxExcerpt {
			return string(text)
		}
		return "an " + typeName(v)
	}
	return fmt.Sprint(orNull(v))
}

func orNull(v any) any {
	if v == nil {
		return "null"
	}
	return v
}

// excerpt quotes what somebody else wrote, the beginning of it where it is long.
func excerpt(s string) string {
	if len(s) <= maxExcerpt {
		return strconv.Quote(s)
	}
	return strconv.Quote(strings.ToValidUTF8(s[:maxExcerpt], "")) + "..."
}

// exact writes a number that came from a decimal one, with all its digits.
func exact(r *big.Rat) string {
	if r == nil {
		return "?"
	}
	places, terminates := r.FloatPrec()
	if text := r.FloatString(places); terminates && len(text) <= 40 {
		return text
	}
	f, _ := new(big.Float).SetRat(r).Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

func lastWord(s string) string { return s[strings.LastIndexByte(s, ' ')+1:] }

func lastToken(pointer string) string {
	return unescape(pointer[strings.LastIndexByte(pointer, '/')+1:])
}

// unescape reads a token of a JSON pointer.
func unescape(token string) string {
	if !strings.Contains(token, "~") {
		return token
	}
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
}

// lookup finds the part of a decoded value that a JSON pointer names; nil if there
// is none.
func lookup(v any, pointer string) any {
	if pointer == "" {
		return v
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		switch x := v.(type) {
		case map[string]any:
			next, ok := x[unescape(token)]
			if !ok {
				return nil
			}
			v = next
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}
