package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
)

const specText = `{
	"topic": "process.state", "collection": "processes", "name": "changelog", "from": "process.state.snapshot",
	"keyOf": ".processId",
	"map": {"name": ".name", "load": ".cpu.pct", "id": "key"},
	"tombstone": ".status=gone",
	"indexes": [{"keys": {"name": 1, "host": -1}}, {"keys": {"pid": 1}, "unique": true, "name": "one", "where": {"pid": {"$gt": 0}}}],
	"versionOf": ".v",
	"tombstoneTTL": "31d", "exclusive": true, "merge": true
}`

func TestParseSpec(t *testing.T) {
	s, err := parseSpec([]byte(specText))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range s.Map {
		names = append(names, f.name+"="+f.path.text)
	}
	if want := []string{"name=.name", "load=.cpu.pct", "id=key"}; !slices.Equal(names, want) {
		t.Errorf("map %q, want %q", names, want)
	}
	if s.Topic != "process.state" || s.Collection != "processes" || s.Name != "changelog" || s.From != "process.state.snapshot" ||
		s.KeyOf.text != ".processId" || s.VersionOf.text != ".v" || s.Tombstone.String() != ".status=gone" ||
		time.Duration(s.TombstoneTTL) != 31*24*time.Hour || !s.Exclusive || !s.Merge || s.HardDelete {
		t.Errorf("%+v", s)
	}
	if diff := cmp.Diff(bson.D{{Key: "name", Value: int32(1)}, {Key: "host", Value: int32(-1)}}, bson.D(s.Indexes[0].Keys)); diff != "" {
		t.Error(diff)
	}
	if i := s.Indexes[1]; !i.Unique || i.Name != "one" || len(i.Where) != 1 {
		t.Errorf("%+v", i)
	}
	o := s.options()
	e := payloadOf(`{"processId":"p","name":"n","v":3,"status":"gone"}`)
	if key, err := o.KeyOf(e); err != nil || key != "p" {
		t.Errorf("key %q, %v", key, err)
	}
	if v, err := o.VersionOf(e); err != nil || v != 3 {
		t.Errorf("version %d, %v", v, err)
	}
	if !o.Tombstone(e) || o.Tombstone(payloadOf(`{}`)) {
		t.Error("the tombstone is not what the file says")
	}
	var none projectSpec
	if o := none.options(); o.KeyOf != nil || o.Map != nil || o.Tombstone != nil || o.VersionOf != nil {
		t.Error("what is not said has a function")
	}
}

func TestParseSpecWrong(t *testing.T) {
	for text, want := range map[string]string{
		``:                                  "unexpected end of JSON input",
		`{"topic": "a", "topic": "b"}`:      `member "topic" is given twice`,
		`{"Topic": "a"}`:                    `unknown member "Topic", use "topic"`,
		`[]`:                                "the value is an array",
		`{"topics": "a"}`:                   `unknown member "topics"`,
		`{"topic": 7}`:                      "member topic is a number",
		`{} {}`:                             "after top-level value",
		`{"keyOf": "processId"}`:            "does not start with a dot",
		`{"keyOf": 1}`:                      "member keyOf is a number",
		`{"map": ["a"]}`:                    "there should be an object",
		`{"map": {"a": 1}}`:                 "map: a: a path is a string",
		`{"map": {"a": ".b", "a": ".c"}}`:   "map: a is there twice",
		`{"map": {"a.b": ".b"}}`:            `map: "a.b" is no name of a field`,
		`{"map": {"$a": ".b"}}`:             `map: "$a" is no name of a field`,
		`{"map": {"_seq": ".b"}}`:           "fields that start with _ are the projection's own",
		`{"indexes": [{"keys": {"a": 2}}]}`: "indexes: a: use 1 for ascending or -1 for descending",
		`{"indexes": [{"keys": ["a"]}]}`:    "there should be an object",
		`{"indexes": [{"key": {"a": 1}}]}`:  `unknown member "key"`,
		`{"indexes": [{"keys": {"": 1}}]}`:  `"" is no name of a field`,
		`{"indexes": [{"where": 1}]}`:       "",
		`{"tombstone": "gone"}`:             "does not start with a dot",
		`{"tombstoneTTL": "soon"}`:          `"soon" is no duration`,
	} {
		if _, err := parseSpec([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestParseIndexes(t *testing.T) {
	list, err := parseIndexes("index", []string{"host,-name", "a.b"}, false)
	if err != nil || len(list) != 2 || len(list[0].Keys) != 2 || list[0].Keys[1].Value != int32(-1) || list[1].Keys[0].Key != "a.b" {
		t.Errorf("%+v, %v", list, err)
	}
	for _, s := range []string{"", "a,", "-", "a,a", "$x"} {
		if _, err := parseIndexes("index", []string{s}, false); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

// FuzzSpec looks for a file that is taken and then cannot be used.
func FuzzSpec(f *testing.F) {
	f.Add(specText)
	f.Add(`{"topic": "a", "indexes": [{"keys": {"a": 1}, "where": {"a": {"$gt": 1}}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSpec([]byte(text))
		if err != nil || s.check() != nil || s.complete() != nil {
			return
		}
		o := s.options()
		e := jetbus.Event{Topic: o.Topic, Key: "k", Payload: []byte(text)}
		if o.KeyOf != nil {
			_, _ = o.KeyOf(e)
		}
		if o.Map != nil {
			if _, err := o.Map(e); err != nil {
				t.Errorf("the map of an object fails: %v", err)
			}
		}
	})
}

func TestProjectWrong(t *testing.T) {
	name := filepath.Join(t.TempDir(), "project.json")
	if err := os.WriteFile(name, []byte(`{"topic": "a", "keyOf": "b"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--file", name},
		{"--file", name + "x"},
		{"--file", name, "a", "b"},
		{"--file", name, "--key", ".a"},
		{},
		{"a", "b", "c"},
		{"A b", "c"},
		{"a", "--from", "B"},
		{"a", "--map", "x"},
		{"a", "--map", "x=y"},
		{"a", "--index", ""},
		{"a", "--hard-delete"},
		{"a", "--hard-delete", "--exclusive", "--tombstone-ttl", "1h"},
		{"a", "--key", "b"},
		{"a", "--version-of", "key"},
		{"a", "--name", ".."},
		{"a", "--for", "-1s"},
		{"a"},
		{"a", "--mongo", "http://x"},
		{"a", "-o", "xml"},
		{"a", "--rebuild", "--for", "1s"},
	} {
		got := command(t, "", append([]string{"project"}, args...)...)
		if got.code != exitUsage || got.out != "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
}
