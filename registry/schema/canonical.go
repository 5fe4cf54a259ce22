package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Canonical returns a schema's text in canonical form, which texts that differ
// only in space, the order of members and the spelling of strings and numbers
// share. It is that of RFC 8785, but for numbers that a float64 does not hold:
// those keep all their digits, as a decimal fraction with an exponent where RFC
// 8785 would round. A text that is no schema's is an error, as in Compile.
func Canonical(text string) (string, error) {
	doc, err := parse(text)
	if err != nil {
		return "", err
	}
	return string(appendCanonical(nil, doc)), nil
}

// sum is the fingerprint: of the draft, the canonical form and the references.
func (s *Schema) sum() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n", s.draft)
	h.Write(appendCanonical(nil, s.doc))
	for _, uri := range sortedKeys(s.references) {
		fmt.Fprintf(h, "\n%s %s", uri, s.references[uri].fingerprint)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func appendCanonical(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case json.Number:
		return append(b, canonicalNumber(string(v))...)
	case string:
		return appendString(b, v)
	case []any:
		b = append(b, '[')
		for i, x := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendCanonical(b, x)
		}
		return append(b, ']')
	case map[string]any:
		names := sortedKeys(v)
		slices.SortFunc(names, compareUTF16)
		b = append(b, '{')
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, name), ':')
			b = appendCanonical(b, v[name])
		}
		return append(b, '}')
	}
	return b
}

func compareUTF16(a, b string) int {
	return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
}

// appendString escapes only what must be.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r < ' ':
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// canonicalNumber is the shortest text of a number, which is in the grammar of
// JSON and within the limits of scan.
func canonicalNumber(s string) string {
	negative := strings.HasPrefix(s, "-")
	mantissa, exp, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(s, "-")), "e")
	exponent, _ := strconv.Atoi(exp)
	whole, fraction, _ := strings.Cut(mantissa, ".")
	exponent -= len(fraction)
	digits := strings.TrimLeft(whole+fraction, "0")
	trimmed := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(trimmed)
	if digits = trimmed; digits == "" {
		return "0"
	}
	text := layout(digits, exponent)
	if negative {
		return "-" + text
	}
	return text
}

// layout writes digits times ten to the exponent as ECMAScript lays out numbers.
func layout(digits string, exponent int) string {
	point := len(digits) + exponent // of the digits, how many stand before it
	switch {
	case exponent >= 0 && point <= 21:
		return digits + strings.Repeat("0", exponent)
	case point > 0 && point <= 21:
		return digits[:point] + "." + digits[point:]
	case point > -6 && point <= 0:
		return "0." + strings.Repeat("0", -point) + digits
	}
	text := digits[:1]
	if len(digits) > 1 {
		text += "." + digits[1:]
	}
	if point--; point > 0 {
		return text + "e+" + itoa(point)
	}
	return text + "e" + itoa(point)
}
