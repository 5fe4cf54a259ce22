package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"
)

func TestEdit(t *testing.T) {
	for _, test := range []struct{ name, edit, in, out, fails string }{
		{"rename", `{"rename":{"mem_mb":"mem_mib"}}`, `{"mem_mb": 64, "host":"a"}`, `{"mem_mib":64,"host":"a"}`, ""},
		{"digits stay", `{"rename":{"a":"b"}}`, `{"a":1.10,"n":123456789012345678901234567890,"e":1E+2}`, `{"b":1.10,"n":123456789012345678901234567890,"e":1E+2}`, ""},
		{"the order stays", `{"remove":["m"]}`, `{"z":1,"m":2,"a":3}`, `{"z":1,"a":3}`, ""},
		{"values stay as they are written", `{"remove":["m"]}`, `{"t":"<\u0041&>", "o":{ "x" : [1, 2] }}`, `{"t":"<\u0041&>","o":{ "x" : [1, 2] }}`, ""},
		{"nothing to do", `{"rename":{"a":"b"},"remove":["c"]}`, `{"d":1}`, `{"d":1}`, ""},
		{"a default", `{"default":{"b":{"x":[]},"a":1.0}}`, `{"z":0}`, `{"z":0,"a":1.0,"b":{"x":[]}}`, ""},
		{"null is there", `{"default":{"a":1}}`, `{"a":null}`, `{"a":null}`, ""},
		{"a default for what was renamed away", `{"rename":{"a":"b"},"default":{"a":0,"b":1}}`, `{"a":5}`, `{"b":5,"a":0}`, ""},
		{"two names change places", `{"rename":{"a":"b","b":"a"}}`, `{"a":1,"b":2}`, `{"b":1,"a":2}`, ""},
		{"a name becomes free", `{"remove":["b"],"rename":{"a":"b"}}`, `{"a":1,"b":2}`, `{"b":1}`, ""},
		{"a name is taken", `{"rename":{"a":"b"}}`, `{"a":1,"b":2}`, "", `there is a "b" as well`},
		{
			"within", `{"rename":{"/host/nm":"name"},"remove":["/host/os/x"],"default":{"/host/os/arch":"amd64"}}`,
			`{"nm":1,"host":{"nm":"a","os":{"x":1}}}`, `{"nm":1,"host":{"name":"a","os":{"arch":"amd64"}}}`, "",
		},
		{"a path through nothing, and through no object", `{"remove":["/a/b"],"default":{"/c/d":1}}`, `{"c":[{"d":2}]}`, `{"c":[{"d":2}]}`, ""},
		{"an object that is renamed is edited", `{"rename":{"a":"b"},"remove":["/a/x"]}`, `{"a":{"x":1,"y":2}}`, `{"b":{"y":2}}`, ""},
		{"escapes of pointers", `{"remove":["/a~1b/c~0d","/~1"]}`, `{"a/b":{"c~d":1},"/":2}`, `{"a/b":{}}`, ""},
		{"the empty name", `{"rename":{"/":"a"}}`, `{"":1}`, `{"a":1}`, ""},
		{"names that need escapes", `{"remove":["x"]}`, `{"a\"\n<":1}`, `{"a\"\n<":1}`, ""},
		{"of two members of one name the last counts", `{"remove":["x"]}`, `{"a":1,"b":2,"a":3}`, `{"a":3,"b":2}`, ""},
		{"no object", `{"remove":["x"]}`, `[1]`, "", "no JSON object"},
		{"no JSON", `{"remove":["x"]}`, `{"a":`, "", "not JSON"},
		{"more than JSON", `{"remove":["x"]}`, `{} {}`, "", "not JSON"},
		{"nothing", `{"remove":["x"]}`, ``, "", "not JSON"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var edit registry.Edit
			if err := json.Unmarshal([]byte(test.edit), &edit); err != nil {
				t.Fatal(err)
			}
			in := jetbus.Event{ID: "1", Payload: []byte(test.in)}
			got, err := edit.Upcast(t.Context(), in)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("got %s and the error %v, want one with %q", got.Payload, err, test.fails)
				}
				return
			}
			if err != nil || string(got.Payload) != test.out {
				t.Errorf("got %s and the error %v, want %s", got.Payload, err, test.out)
			}
			if string(in.Payload) != test.in {
				t.Errorf("the payload that was passed is %s now", in.Payload)
			}
		})
	}
}

func TestEditsThatAreNotValid(t *testing.T) {
	for _, edit := range []registry.Edit{
		{Remove: []string{""}},
		{Remove: []string{"/a/~2"}},
		{Remove: []string{"a"}, Rename: map[string]string{"a": "b"}},
		{Rename: map[string]string{"a": "a"}},
		{Rename: map[string]string{"a": "c", "b": "c"}},
		{Rename: map[string]string{"": "c"}},
		{Default: map[string]json.RawMessage{"a": json.RawMessage(`{`)}},
		{Default: map[string]json.RawMessage{"a": nil}},
	} {
		if err := edit.Valid(); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("%+v: error %v", edit, err)
		}
		if _, err := edit.Upcast(t.Context(), jetbus.Event{Payload: []byte(`{}`)}); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("upcast by %+v: error %v", edit, err)
		}
		if err := (registry.Upcasters{"a": {1: edit}}).Valid(); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("upcasters with %+v: error %v", edit, err)
		}
	}
}

func TestParseUpcasters(t *testing.T) {
	got, err := registry.ParseUpcasters([]byte(`{"heartbeat.received": {"1": {"rename": {"mem_mb": "mem_mib"}}, "2": {"remove": ["x"]}}}`))
	want := registry.Upcasters{"heartbeat.received": {
		1: registry.Edit{Rename: map[string]string{"mem_mb": "mem_mib"}},
		2: registry.Edit{Remove: []string{"x"}},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v and the error %v", got, err)
	}
	for _, text := range []string{``, `[]`, `{} {}`, `{"t":{"1":{"renam":{}}}}`, `{"t":{"x":{}}}`, `{"t":{"0":{}}}`, `{"t":{"1":{"remove":[""]}}}`} {
		if _, err := registry.ParseUpcasters([]byte(text)); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("%s: error %v", text, err)
		}
	}
	if _, err := registry.ParseUpcasters([]byte(`{"Not a topic":{}}`)); !errors.Is(err, jetbus.ErrInvalidTopic) {
		t.Errorf("no topic: error %v", err)
	}
	if err := (registry.Upcasters{"t": {1: nil}}).Valid(); !errors.Is(err, jetbus.ErrInvalidOption) {
		t.Errorf("an upcaster that is nil: error %v", err)
	}
}

func TestUpcastJSON(t *testing.T) {
	type v1 struct{ MB int }
	type v2 struct{ MiB float64 }
	up := registry.UpcastJSON(func(_ context.Context, old v1) (v2, error) {
		if old.MB < 0 {
			return v2{}, errors.New("negative")
		}
		return v2{MiB: float64(old.MB)}, nil
	})
	got, err := up.Upcast(t.Context(), jetbus.Event{Payload: []byte(`{"MB":7}`)})
	if err != nil || string(got.Payload) != `{"MiB":7}` {
		t.Errorf("got %s and the error %v", got.Payload, err)
	}
	for _, bad := range []string{`{"MB":-1}`, `{"MB":"x"}`, ``} {
		if _, err := up.Upcast(t.Context(), jetbus.Event{Payload: []byte(bad)}); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// An edit never breaks a payload: what comes out is JSON with the same values, but
// for those that the edit is about.
func FuzzEdit(f *testing.F) {
	for _, text := range []string{`{"a":1,"b":{"c":[1,2]}}`, `{"a":1.50e3,"a":2}`, `{"":{}}`, `[]`, `{"a":"\ud800"}`, `{"b":{"c":{}}}`} {
		f.Add(text)
	}
	edit := registry.Edit{
		Remove: []string{"/b/x"}, Rename: map[string]string{"a": "renamed", "/b/c": "d"},
		Default: map[string]json.RawMessage{"added": json.RawMessage(`{"n":1}`)},
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := edit.Upcast(context.Background(), jetbus.Event{Payload: []byte(text)})
		var before, after map[string]json.RawMessage
		if err != nil {
			return
		}
		if err := json.Unmarshal([]byte(text), &before); err != nil {
			t.Fatalf("%q was edited to %q, and is not JSON: %v", text, got.Payload, err)
		}
		if err := json.Unmarshal(got.Payload, &after); err != nil {
			t.Fatalf("%q was edited to %q: %v", text, got.Payload, err)
		}
		if _, ok := after["added"]; !ok {
			t.Errorf("%q was edited to %q, without the default", text, got.Payload)
		}
		for name, value := range before {
			if name == "a" {
				name = "renamed"
			}
			if name != "b" && string(after[name]) != string(value) {
				t.Errorf("%q was edited to %q: %q is %s", text, got.Payload, name, after[name])
			}
		}
	})
}

func FuzzParseUpcasters(f *testing.F) {
	f.Add([]byte(`{"t":{"1":{"rename":{"a":"b"},"default":{"c":null},"remove":["/d/e"]}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		u, err := registry.ParseUpcasters(text)
		if err == nil && u.Valid() != nil {
			t.Errorf("%q gives upcasters that are not valid: %v", text, u.Valid())
		}
	})
}
