package schema

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxExcerpt is how many bytes of a value or a schema a message shows.
const maxExcerpt = 200

// word returns the message for a value that violates a keyword.
func word(n *node, keyword string, value any) string {
	switch keyword {
	case "type":
		return "must be " + typeNames(n) + " but is " + typeName(value)
	case "enum":
		return "must be " + oneOf(n.values) + " but is " + show(value)
	case "const":
		return "must be " + oneOf(n.values) + " but is " + show(value)
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
	case "not":
		if n.not != nil && n.not.values != nil {
			return "must not be " + oneOf(n.not.values)
		}
		return "must not fit the schema of not, and does: " + show(value)
	case "contentEncoding":
		return "value is not base64 encoded"
	case "contentMediaType":
		return "value is not of mediatype 'application/json'"
	}
	return sizeWord(n, keyword, value)
}

// sizeWord is word for the keywords that limit a size.
func sizeWord(n *node, keyword string, value any) string {
	var has int
	switch v := value.(type) {
	case string:
		has = utf8.RuneCountInString(v)
	case []any:
		has = len(v)
	case object:
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
	return "violates " + keyword
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return itoa(n) + " " + many
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

// show returns a value as JSON. It cuts a long string, and replaces a long array or object by its
// type.
func show(v any) string {
	switch v := v.(type) {
	case string:
		return excerpt(v)
	case []any, map[string]any, object:
		if text := appendShort(nil, v); len(text) <= maxExcerpt {
			return string(text)
		}
		return "an " + typeName(v)
	}
	return fmt.Sprint(orNull(v))
}

// appendShort appends a value as JSON and stops after maxExcerpt bytes.
func appendShort(b []byte, v any) []byte {
	if len(b) > maxExcerpt {
		return b
	}
	switch v := v.(type) {
	case json.Number:
		return append(b, v...)
	case string:
		return appendString(b, v[:min(len(v), maxExcerpt+1)])
	case []any:
		b = append(b, '[')
		for i, x := range v {
			if len(b) > maxExcerpt {
				return b
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = appendShort(b, x)
		}
		return append(b, ']')
	case map[string]any:
		return appendShort(b, objectsOf(v))
	case object:
		b = append(b, '{')
		for i, m := range v {
			if len(b) > maxExcerpt {
				return b
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendShort(b, m.name), ':')
			b = appendShort(b, m.value)
		}
		return append(b, '}')
	}
	return fmt.Append(b, orNull(v))
}

func orNull(v any) any {
	if v == nil {
		return "null"
	}
	return v
}

// singleQuoted is like excerpt, but uses single quotes.
func singleQuoted(s string) string { return strings.ReplaceAll(excerpt(s), `"`, "'") }

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
