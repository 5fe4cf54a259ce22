package schema

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strconv"
	"unicode/utf8"
)

// Limits of schemas. What exceeds them is refused by [Compile].
const (
	// MaxText is the size of a schema in bytes.
	MaxText = 64 << 10
	// MaxDepth is the depth of a schema's JSON.
	MaxDepth = 64
	// MaxParts is the number of objects and booleans in a schema: its subschemas,
	// and what looks like one. The library's work grows with its square.
	MaxParts = 3000
	// MaxExpansion is the number of schemas that can come to judge one place of a
	// value: a $ref, allOf, anyOf, oneOf, not, if and dependentSchemas each lead to
	// more of them, and what two of them refer to counts twice.
	MaxExpansion = 2000
	// MaxReferences is the number of other schemas that one refers to, directly or
	// through them.
	MaxReferences = 64
	// MaxPattern is the size of a regular expression, in instructions of package
	// regexp: about its length, with repetitions counted out.
	MaxPattern = 2000
	// MaxPatterns is the size of all regular expressions together.
	MaxPatterns = 20_000
	// MaxCount is the largest number that minLength, maxItems and the like can have.
	MaxCount = 1<<53 - 1
)

// Limits of payloads. A payload that exceeds them is invalid for every schema.
const (
	// MaxPayloadDepth is the depth of a payload's JSON.
	MaxPayloadDepth = 512
	// MaxDigits is the number of digits of a number, in payloads and schemas.
	MaxDigits = 100
	// MaxExponent is the absolute value of a number's exponent, in payloads and
	// schemas. Numbers are compared exactly, and 1e1000000 has a million digits.
	MaxExponent = 400
	// MaxWork is how many steps the validation of one payload may take. A step takes about 20 ns
	// and at most 32 bytes of memory. Applying a schema to a part of the payload counts 2 steps,
	// looking up a member 1, and decoding 2 for each value. Operations on texts and numbers count
	// more steps the longer they take. So a payload of up to 1 MiB takes at most 100 ms of CPU and
	// 64 MiB, whatever its schema. An ordinary payload of that size stays below the limit, even
	// with a union of eight branches. Nested unions and recursions that multiply can exceed it.
	MaxWork = 2_000_000
)

type scanLimits struct {
	depth int
}

var (
	schemaLimits  = scanLimits{depth: MaxDepth}
	payloadLimits = scanLimits{depth: MaxPayloadDepth}
)

// scanError is a text that exceeds a limit.
type scanError struct {
	offset int
	what   string
}

func (e *scanError) Error() string { return e.what }

// scanned is the size of a text.
type scanned struct {
	values  int // an upper bound of their number
	members int // an upper bound of the number of members
	depth   int
}

var errNotUTF8 = errors.New("the text is not UTF-8")

// scan looks for what must not come to the decoder or the library: numbers with
// huge exponents, which they would write out, and depths that end in a stack
// overflow. It judges no grammar, and does not allocate unless it fails.
func scan(b []byte, l scanLimits) (scanned, error) {
	s := scanned{values: 1}
	depth := 0
	for i := 0; i < len(b); {
		switch c := b[i]; c {
		case '"':
			i = skipString(b, i+1)
			continue
		case '{', '[':
			s.values++ // its first member has no comma
			if depth++; depth > l.depth {
				return s, &scanError{i, fmt.Sprintf("nested deeper than %d", l.depth)}
			}
			s.depth = max(s.depth, depth)
		case '}', ']':
			depth--
		case ',':
			s.values++
		case ':':
			s.members++
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			end, what := scanNumber(b, i)
			if what != "" {
				return s, &scanError{i, what}
			}
			i = end
			continue
		}
		i++
	}
	if !utf8.Valid(b) {
		return s, errNotUTF8
	}
	return s, nil
}

// skipString returns the offset behind the closing quote.
func skipString(b []byte, i int) int {
	for i < len(b) {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i += 2
		default:
			i++
		}
	}
	return i
}

// scanNumber returns the offset behind a number, and what is wrong with it.
func scanNumber(b []byte, i int) (end int, what string) {
	digits, exponent, inExponent := 0, 0, false
	for ; i < len(b); i++ {
		switch c := b[i]; {
		case c >= '0' && c <= '9' && inExponent:
			if exponent = exponent*10 + int(c-'0'); exponent > MaxExponent {
				return i, fmt.Sprintf("a number has an exponent beyond %d", MaxExponent)
			}
		case c >= '0' && c <= '9':
			if digits++; digits > MaxDigits {
				return i, fmt.Sprintf("a number has more than %d digits", MaxDigits)
			}
		case c == 'e' || c == 'E':
			inExponent = true
		case c == '-' || c == '+' || c == '.':
		default:
			return i, ""
		}
	}
	return i, ""
}

// textSize is patternSize of a text, and 0 of one that is no expression.
func textSize(text string) int {
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0
	}
	return patternSize(re, MaxPattern)
}

// patternSize is about the number of instructions of the compiled expression, and
// at most limit+1.
func patternSize(re *syntax.Regexp, limit int) int {
	size := 1
	for _, sub := range re.Sub {
		if size += patternSize(sub, limit); size > limit {
			return limit + 1
		}
	}
	switch re.Op { //nolint:exhaustive // the others are one instruction beside their parts
	case syntax.OpLiteral:
		size = max(len(re.Rune), 1)
	case syntax.OpCharClass:
		size += len(re.Rune) / 64
	case syntax.OpRepeat:
		n := re.Max
		if n < 0 {
			n = re.Min + 1
		}
		if n > 1 {
			size *= n
		}
	}
	return min(size, limit+1)
}

func itoa(n int) string { return strconv.Itoa(n) }
