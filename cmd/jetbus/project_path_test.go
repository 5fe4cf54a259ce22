package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

func TestParsePath(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"key", ".processId", ".order.id", ".ördér.$x", "._id", ".0", ".a-b.c_d", ".@timestamp"} {
		p, err := parsePath(s)
		if err != nil || p.String() != s {
			t.Errorf("%q: %v", s, err)
		}
	}
	for s, want := range map[string]string{
		"":                             "empty: use key",
		"processId":                    "does not start with a dot: use key for the event's key, or a path",
		"payload.id":                   "does not start with a dot",
		".":                            "a dot without a name",
		".a.":                          "a dot without a name",
		"..a":                          "a dot without a name",
		".a[0]":                        "'['",
		".a b":                         "' '",
		".a\x1b":                       `'\x1b'`,
		`.a."b"`:                       `'"'`,
		".*":                           "'*'",
		".\xff":                        "no UTF-8",
		"." + strings.Repeat("a", 1e4): "too long",
		strings.Repeat(".a", 101):      "too long",
	} {
		if _, err := parsePath(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.50q: %v, want %q", s, err, want)
		}
	}
}

// event is an event with a key and a payload.
func payloadOf(s string) jetbus.Event { return jetbus.Event{Key: "k", Payload: []byte(s)} }

func TestKeyOfPath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ path, payload, want, wrong string }{
		{"key", `{"a":1}`, "k", ""},
		{"key", `no JSON`, "k", ""},
		{".a", `{"a":"x","b":2}`, "x", ""},
		{".a", ` {"a" : "\u00e9" }`, "é", ""},
		{".a.b", `{"a":{"b":17}}`, "17", ""},
		{".a", `{"a":-3}`, "-3", ""},
		{".a", `null`, "k", ""}, // a tombstone has its own key only
		{".a", ``, "k", ""},
		{".a", `{"a":""}`, "", ""}, // which the projection refuses
		{".a", `{"a":1.0}`, "", ".a is the number 1.0: a key is a string or an integer"},
		{".a", `{"a":-0}`, "", "the number -0"},
		{".a", `{"a":1e3}`, "", "the number 1e3"},
		{".a", `{"a":null}`, "", ".a is null"},
		{".a", `{"a":true}`, "", ".a is true"},
		{".a", `{"a":{}}`, "", ".a is an object"},
		{".a", `{"a":[1]}`, "", ".a is an array"},
		{".a", `{"A":"x"}`, "", "the payload has no .a"},
		{".a.b", `{"a":"x"}`, "", "the payload has no .a.b"},
		{".a.b", `{"a":null}`, "", "the payload has no .a.b"},
		{".a", `[1]`, "", "the payload is no object"},
		{".a", `"x"`, "", "the payload is no object"},
		{".a", `{"a":`, "", "the payload is no JSON"},
	} {
		p, err := parsePath(c.path)
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.key(payloadOf(c.payload))
		if c.wrong == "" && (err != nil || got != c.want) {
			t.Errorf("%s of %s: %q, %v", c.path, c.payload, got, err)
		}
		if c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s of %s: %q, %v, want %q", c.path, c.payload, got, err, c.wrong)
		}
	}
}

func TestVersionOfPath(t *testing.T) {
	t.Parallel()
	p, err := parsePath(".v")
	if err != nil {
		t.Fatal(err)
	}
	if v, err := p.version(payloadOf(`{"v":-9223372036854775808}`)); err != nil || v != -1<<63 {
		t.Errorf("%d, %v", v, err)
	}
	for payload, want := range map[string]string{
		`{"v":9223372036854775808}`: "the number 9223372036854775808: a version is an integer of 64 bits",
		`{"v":1.5}`:                 "the number 1.5",
		`{"v":"1"}`:                 "a string",
		`{}`:                        "the payload has no .v",
		`null`:                      "the payload is no object",
	} {
		if _, err := p.version(payloadOf(payload)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", payload, err, want)
		}
	}
}

func TestCondition(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, payload string
		want          bool
	}{
		{".gone", `{"gone":true}`, true},
		{".gone", `{"gone":"true"}`, true},
		{".gone", `{"gone":false}`, false},
		{".gone", `{}`, false},
		{".gone", `null`, false},
		{".gone", `no JSON`, false},
		{".status=gone", `{"status":"gone"}`, true},
		{".status=gone", `{"status":"here"}`, false},
		{".status=a=b", `{"status":"a=b"}`, true},
		{".n=3", `{"n":3}`, true},
		{".n=", `{"n":""}`, true},
		{".a.n=null", `{"a":{"n":null}}`, true},
	} {
		p, err := parseCondition(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.holds(payloadOf(c.payload)); got != c.want {
			t.Errorf("%s of %s: %v", c.text, c.payload, got)
		}
	}
	for _, s := range []string{"", "key", "key=k", "gone", ".a[0]=1"} {
		if _, err := parseCondition(s); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

func TestProjectFields(t *testing.T) {
	t.Parallel()
	fields, err := parseFields([]string{"host=.host,load=.cpu.pct", "id=key"})
	if err != nil {
		t.Fatal(err)
	}
	for payload, want := range map[string]string{
		`{"cpu":{"pct":1.50},"host":"h","other":1}`: `{"host":"h","load":1.50,"id":"k"}`,
		`{"cpu":1,"host":null}`:                     `{"host":null,"id":"k"}`,
		`{}`:                                        `{"id":"k"}`,
	} {
		if got, err := project(fields, payloadOf(payload)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", payload, got, err)
		}
	}
	for _, payload := range []string{`[]`, `{"a"`, `7`} {
		if got, err := project(fields, payloadOf(payload)); err == nil {
			t.Errorf("%s: %s", payload, got)
		}
	}
}

// FuzzPath compares a path with a walk through what encoding/json makes of the payload.
func FuzzPath(f *testing.F) {
	f.Add("key", `{}`)
	f.Add(".a.b", `{"a":{"b":"x"}}`)
	f.Add(".a", `{"a":1,"a":2}`)
	f.Add(".a.", `[`)
	f.Add(".a[0]", `{"a":[1]}`)
	f.Fuzz(func(t *testing.T, text, payload string) {
		p, err := parsePath(text)
		if err != nil {
			return
		}
		if again, err := parsePath(p.String()); err != nil || again.String() != text {
			t.Fatalf("%q reads as %q, %v", text, again.String(), err)
		}
		if p.isKey() {
			return
		}
		if "."+strings.Join(p.names, ".") != text {
			t.Fatalf("%q has the names %q", text, p.names)
		}
		raw, err := p.find(&document{raw: json.RawMessage(payload)})
		var value any
		if json.Unmarshal([]byte(payload), &value) != nil {
			if err == nil {
				t.Fatalf("found %s in %q, which is no JSON", raw, payload)
			}
			return
		}
		want, found := value, true
		for _, name := range p.names {
			object, ok := want.(map[string]any)
			if want, found = object[name], ok; !found {
				break
			}
			if _, found = object[name]; !found {
				break
			}
		}
		if found != (raw != nil) {
			t.Fatalf("%s of %s: %s, %v", text, payload, raw, err)
		}
		if !found {
			return
		}
		wantText, _ := json.Marshal(want)
		var got any
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		if gotText, _ := json.Marshal(got); string(gotText) != string(wantText) {
			t.Fatalf("%s of %s: %s, want %s", text, payload, gotText, wantText)
		}
	})
}
