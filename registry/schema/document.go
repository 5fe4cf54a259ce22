package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// parse decodes a schema's text: numbers keep their digits, and an object with
// two members of one name is refused, since which of them holds is anybody's guess.
func parse(text string) (any, error) {
	if len(text) > MaxText {
		return nil, tooLarge("#", fmt.Sprintf("the schema has %d bytes; at most %d are allowed", len(text), MaxText))
	}
	_, err := scan([]byte(text), schemaLimits)
	if limit := (*scanError)(nil); errors.As(err, &limit) {
		return nil, tooLarge("#", limit.what+position(text, limit.offset))
	}
	if err != nil {
		return nil, invalid("#", err.Error())
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	doc, err := parseValue(dec, "#")
	if err != nil {
		if own := (*CompileError)(nil); errors.As(err, &own) {
			return nil, err
		}
		return nil, notJSON(text, int(dec.InputOffset()), err)
	}
	end := int(dec.InputOffset())
	if rest := strings.TrimLeft(text[end:], " \t\r\n"); rest != "" {
		return nil, invalid("#", "not JSON: there is more text behind the schema"+position(text, len(text)-len(rest)))
	}
	// The decoder's tokens are laxer than the grammar here and there.
	if !json.Valid([]byte(text)) {
		var v any
		return nil, notJSON(text, end, json.Unmarshal([]byte(text), &v))
	}
	return doc, nil
}

func parseValue(dec *json.Decoder, path string) (any, error) {
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		m := map[string]any{}
		for dec.More() {
			k, err := dec.Token()
			if err != nil {
				return nil, err
			}
			name, ok := k.(string)
			if !ok {
				return nil, errors.New("a member's name is not a string")
			}
			at := path + "/" + escape(name)
			if _, twice := m[name]; twice {
				return nil, invalid(at, fmt.Sprintf("the member %q stands twice in its object", name))
			}
			if m[name], err = parseValue(dec, at); err != nil {
				return nil, err
			}
		}
		_, err = dec.Token()
		return m, err
	case json.Delim('['):
		l := []any{}
		for dec.More() {
			v, err := parseValue(dec, fmt.Sprintf("%s/%d", path, len(l)))
			if err != nil {
				return nil, err
			}
			l = append(l, v)
		}
		_, err = dec.Token()
		return l, err
	}
	return t, nil
}

// byteOrderMark is written by some editors at the beginning of a text.
const byteOrderMark = "\ufeff"

var errByteOrderMark = errors.New("it begins with a byte order mark; save it without one")

// notJSON says where the text stops being JSON.
func notJSON(text string, offset int, err error) error {
	var v any
	if whole := json.Unmarshal([]byte(text), &v); whole != nil {
		err = whole // it knows more of the place
	}
	if strings.HasPrefix(text, byteOrderMark) {
		return invalid("#", "not JSON: "+errByteOrderMark.Error())
	}
	what := "not JSON"
	var syn *json.SyntaxError
	switch {
	case errors.As(err, &syn):
		offset = int(syn.Offset) - 1
		what += ": " + syn.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		what += ": it ends early"
	case err != nil:
		what += ": " + err.Error()
	}
	if strings.TrimSpace(text) == "" {
		return invalid("#", "the schema is empty")
	}
	return invalid("#", what+position(text, offset))
}

// position is an offset for people.
func position(text string, offset int) string {
	offset = max(0, min(offset, len(text)))
	line := 1 + bytes.Count([]byte(text[:offset]), []byte("\n"))
	column := offset - strings.LastIndexByte(text[:offset], '\n')
	return fmt.Sprintf(" (line %d, column %d)", line, column)
}

// escape makes a member's name a token of a JSON pointer.
func escape(name string) string {
	if !strings.ContainsAny(name, "~/") {
		return name
	}
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
