package exactjson_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus/internal/exactjson"
)

// Errors speak of JSON: they name the member, and no type of Go.
func TestErrorsNameNoTypesOfGo(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`7`:                           "the value is a number, at byte 1, and should be an object",
		`{"scope":7}`:                 "member scope is a number, at byte 10, and should be a string",
		`{"bus":{"read":{}}}`:         "member bus.read is an object, at byte 16, and should be an array",
		`{"bus":{"read":[true]}}`:     "member bus.read is true or false, at byte 20, and should be a string",
		`{"Plain":1.5}`:               "member Plain is a number 1.5, at byte 12, and should be a whole number that fits",
		`{"headers":{"a":{"b":"c"}}}`: "member headers is an object, at byte 17, and should be a string",
		"\ufeff{}":                    "the text begins with a byte order mark",
	} {
		var d document
		err := exactjson.Unmarshal([]byte(text), &d, exactjson.Ignore)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
		if mark := errors.Is(err, exactjson.ErrByteOrderMark); mark != strings.HasPrefix(text, "\ufeff") || !mark && (!ok || wrong.Offset == 0) {
			t.Errorf("%s: %#v", text, err)
		}
	}
	if exactjson.Readable(nil, nil) != nil {
		t.Error("an error of nothing")
	}
}
