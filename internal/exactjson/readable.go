package exactjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// ErrByteOrderMark reports a text that begins with a byte order mark, which some editors write.
var ErrByteOrderMark = errors.New("the text begins with a byte order mark, which JSON does not allow; save it without one")

// bom is the byte order mark of UTF-8.
const bom = "\xef\xbb\xbf"

// Readable makes an error of encoding/json readable for users: the result wraps err, but names no Go
// types. If the text begins with a byte order mark, the result wraps [ErrByteOrderMark] too. Other
// errors, and nil, are returned unchanged.
func Readable(text []byte, err error) error {
	if err == nil {
		return nil
	}
	if bytes.HasPrefix(text, []byte(bom)) {
		return fmt.Errorf("%w: %w", ErrByteOrderMark, err)
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return typeError{e}
	}
	return err
}

// typeError reports a JSON value of the wrong type.
type typeError struct{ *json.UnmarshalTypeError }

func (e typeError) Unwrap() error { return e.UnmarshalTypeError }

func (e typeError) Error() string {
	what := "the value"
	if e.Field != "" {
		what = "member " + e.Field
	}
	return fmt.Sprintf("%s is %s, at byte %d, and should be %s", what, article(e.Value), e.Offset, wordOf(e.Type))
}

// article returns encoding/json's name of a value, with its article.
func article(value string) string {
	switch value {
	case "array", "object":
		return "an " + value
	case "bool":
		return "true or false"
	}
	return "a " + value // also "number 1e400"
}

// wordOf returns the kind of JSON value that can be decoded into a type.
func wordOf(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number of 0 or more that fits"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number that fits"
	default:
		return "another value"
	}
}
