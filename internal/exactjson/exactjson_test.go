package exactjson_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus/internal/exactjson"
)

type base struct {
	Sub string `json:"sub"`
}

type inner struct {
	Read []string `json:"read"`
}

type document struct {
	base

	Scope   string            `json:"scope"`
	Key     string            `json:"key"`
	Bus     *inner            `json:"bus,omitempty"`
	Items   []inner           `json:"items"`
	Named   map[string]inner  `json:"named"`
	Headers map[string]string `json:"headers"`
	Payload json.RawMessage   `json:"payload"`
	Any     any               `json:"any"`
	Plain   int
	Hidden  int `json:"-"`
}

func TestUnmarshalMatchesNamesExactly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		variant    string // that is refused under RefuseVariants; empty: none
		want       document
	}{
		{name: "exact", text: `{"sub":"a","scope":"s","bus":{"read":["x"]},"Plain":1}`, want: document{base: base{"a"}, Scope: "s", Bus: &inner{[]string{"x"}}, Plain: 1}},
		{name: "upper case", text: `{"SCOPE":"s","sub":"a"}`, variant: "SCOPE", want: document{base: base{"a"}}},
		{name: "upper case first", text: `{"Scope":"evil","scope":"s"}`, variant: "Scope", want: document{Scope: "s"}},
		{name: "upper case last", text: `{"scope":"s" , "sCope" : "evil"}`, variant: "sCope", want: document{Scope: "s"}},
		{name: "embedded", text: `{"SUB":"evil"}`, variant: "SUB"},
		{name: "escaped", text: `{"\u0053cope":"evil"}`, variant: "Scope"},
		{name: "escaped and exact", text: `{"\u0073cope":"s"}`, want: document{Scope: "s"}},
		{name: "Unicode folds to ASCII", text: `{"ſcope":"evil","Key":"evil"}`, variant: "ſcope"},
		{name: "of another type", text: `{"SCOPE":{"a":[1,{"b":"}"}]},"scope":"s"}`, variant: "SCOPE", want: document{Scope: "s"}},
		{name: "in a pointer", text: `{"bus":{"READ":["evil"]}}`, variant: "READ", want: document{Bus: &inner{}}},
		{name: "in a slice", text: `{"items":[{"read":["a"]},{"Read":["evil"]}]}`, variant: "Read", want: document{Items: []inner{{[]string{"a"}}, {}}}},
		{name: "in a map", text: `{"named":{"READ":{"rEad":["evil"]}}}`, variant: "rEad", want: document{Named: map[string]inner{"READ": {}}}},
		{name: "keys of a map", text: `{"headers":{"a":"1","A":"2"}}`, want: document{Headers: map[string]string{"a": "1", "A": "2"}}},
		{name: "in raw JSON", text: `{"payload":{"SCOPE":1,"a":1,"a":"\"}"}}`, want: document{Payload: json.RawMessage(`{"SCOPE":1,"a":1,"a":"\"}"}`)}},
		{name: "no member", text: `{"Hidden":1,"-":2,"hidden":3}`},
		{name: "unknown", text: "\t{ \"future\" : [ { } , [ ] , \"\\\\\" ] , \"sub\" : \"a\" , \"future\" : null } \n", want: document{base: base{"a"}}},
		{name: "null", text: `null`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			text := []byte(c.text)
			for _, unknown := range []exactjson.Unknown{exactjson.Ignore, exactjson.RefuseVariants} {
				var got document
				err := exactjson.Unmarshal(text, &got, unknown)
				if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(document{})); diff != "" {
					t.Error(diff)
				}
				refused, ok := errors.AsType[*exactjson.MemberError](err)
				if want := c.variant != "" && unknown == exactjson.RefuseVariants; ok != want || err != nil && !ok || ok && refused.Member != c.variant {
					t.Errorf("policy %d: %v", unknown, err)
				}
			}
			if string(text) != c.text {
				t.Errorf("the text was changed to %s", text)
			}
		})
	}
}

func TestUnmarshalRefusesMembersGivenTwice(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"sub":"a","sub":"b"}`, `{"sub":"a","\u0073ub":"b"}`, `{"sub":"a","sub":"a"}`, `{"sub":"a","sub":null}`,
		`{"bus":{"read":[],"read":["x"]}}`, `{"items":[{},{"read":[],"read":[]}]}`, `{"headers":{"a":"1","a":"2"}}`, `{"headers":{"":"1","":"2"}}`,
	} {
		for _, unknown := range []exactjson.Unknown{exactjson.Ignore, exactjson.RefuseVariants, exactjson.RefuseAll} {
			var got document
			err := exactjson.Unmarshal([]byte(text), &got, unknown)
			if _, ok := errors.AsType[*exactjson.MemberError](err); !ok || !strings.Contains(err.Error(), "twice") {
				t.Errorf("%s: %v", text, err)
			}
			if got.Sub == "b" {
				t.Errorf("%s: the second one counts", text)
			}
		}
	}
}

func TestUnmarshalRefusesUnknownMembers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{`{"sub":"a"}`: false, `{"future":1}`: true, `{"Sub":"a"}`: true, `{"bus":{"write":[]}}`: true, `{"payload":{"a":1}}`: false} {
		var got document
		if err := exactjson.Unmarshal([]byte(text), &got, exactjson.RefuseAll); (err != nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestUnmarshalReportsErrorsOfJSON(t *testing.T) {
	t.Parallel()
	for _, text := range []string{``, ` `, `{`, `{"sub"`, `{"sub":`, `{"sub":"a"`, `{"sub":"a",}`, `{"sub":"a"}{}`, `{"a":1 "b":2}`, `{"sub":"\q"}`, `[`, `"`, `{"sub":"a"]`, `{"x":}`, "{\"sub\":\"a\"}\x00", `{"SUB":"a","SUB"}`} {
		var got document
		err := exactjson.Unmarshal([]byte(text), &got, exactjson.Ignore)
		if _, ok := errors.AsType[*json.SyntaxError](err); !ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	var got document
	err := exactjson.Unmarshal([]byte(`{"SCOPE":"x","scope":1}`), &got, exactjson.Ignore)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); !ok || wrong.Field != "scope" {
		t.Errorf("a member of the wrong type: %v", err)
	}
}

// FuzzUnmarshal compares with a map, whose keys are exact.
func FuzzUnmarshal(f *testing.F) {
	for _, text := range []string{
		`{"sub":"a","SUB":"b","scope":"c"}`, `{"sub":"a","sub":"b"}`, `{"\u0053UB":1,"x":[{"a":"]"}]}`, `[]`, `{"bus":{"read":["a"],"READ":0}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var got document
		if exactjson.Unmarshal(text, &got, exactjson.Ignore) != nil {
			return
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(text, &members); err != nil {
			t.Fatalf("%q was accepted: %v", text, err)
		}
		for name, have := range map[string]string{"sub": got.Sub, "scope": got.Scope, "key": got.Key} {
			var want string
			if raw, ok := members[name]; ok {
				if err := json.Unmarshal(raw, &want); err != nil {
					t.Fatalf("%q: %s: %v", text, name, err)
				}
			}
			if have != want {
				t.Errorf("%q: %s is %q, not %q", text, name, have, want)
			}
		}
	})
}
