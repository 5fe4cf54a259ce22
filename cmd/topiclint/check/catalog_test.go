package check

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseCatalog(t *testing.T) {
	c, err := ParseCatalog([]byte(`{"topics": [{"name": "a.b", "schema": 2, "partitions": 8, "compacted": true, "keyInSubject": true, "deprecated": "use c", "payload": "x.Y"}, {"name": "c"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Topic{Name: "a.b", Schema: 2, Partitions: 8, Compacted: true, KeyInSubject: true, Deprecated: "use c", Payload: "x.Y"}
	if len(c.Topics) != 2 || c.Topics[0] != want {
		t.Errorf("%+v", c)
	}
	for text, want := range map[string]string{
		``:                            "EOF",
		`{"topics": [{"name": "A"}]}`: `topic 1: invalid topic: "A"`,
		`{"topics": [{"name": "a"}, {"name": "a"}]}`:            "a is there twice",
		`{"topics": [{"name": "a", "owner": "me"}]}`:            `unknown field "owner"`,
		`{"topics": [{"name": "a", "schema": -1}]}`:             "schema is -1",
		`{"topics": [{"name": "a", "partitions": 2000000000}]}`: "partitions is 2000000000",
		`{"topics": []} {}`:                                     "more behind its end",
	} {
		if _, err := ParseCatalog([]byte(text)); !errors.Is(err, ErrInvalidOption) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// An export of a registry is a partial catalog of the topics with a live version.
func TestParseExport(t *testing.T) {
	const (
		head = `{"kind":"schemas","format":"1"}` + "\n"
		rest = `{"kind":"global","settings":{"level":"full"}}
{"kind":"id","id":1,"fingerprint":"ab"}
{"kind":"settings","topic":"configured","settings":{"level":"none"}}
{"kind":"version","version":{"topic":"orders","version":1,"id":1,"created":"2026-01-01T00:00:00Z"}}
{"kind":"version","version":{"topic":"orders","version":2,"id":1,"created":"2026-01-01T00:00:00Z"}}
{"kind":"version","version":{"topic":"orders","version":3,"id":1,"created":"2026-01-01T00:00:00Z","deleted":"2026-01-02T00:00:00Z"}}
{"kind":"version","version":{"topic":"carts","version":1,"id":1,"created":"2026-01-01T00:00:00Z","deleted":"2026-01-02T00:00:00Z","erased":true}}
`
		end = `{"kind":"end","lines":8}` + "\n"
	)
	c, err := ParseCatalog([]byte(head + rest + end))
	if err != nil {
		t.Fatal(err)
	}
	if !c.Partial || len(c.Topics) != 1 || c.Topics[0] != (Topic{Name: "orders", Schema: 2}) {
		t.Errorf("got %+v, want orders with version 2 in a partial catalog", c)
	}
	for text, want := range map[string]string{
		head + rest:                       "truncated after line 8",
		head + rest + end + "{}":          "unexpected data after its last line",
		head + rest + "nonsense":          "line 9: invalid character",
		head + `{"kind":"end","lines":3}`: "has 1 lines, 2 are missing",
		`{"kind":"schemas","format":"2"}`: `unknown format "2"`,
		head + `{"kind":"version","version":{"topic":"A","version":1}}`:      `line 2: invalid version 1 of topic "A"`,
		head + `{"kind":"version","version":{"topic":"a","version":"many"}}`: "line 2: json: cannot unmarshal",
	} {
		if _, err := ParseCatalog([]byte(text)); !errors.Is(err, ErrInvalidOption) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseCatalog(f *testing.F) {
	f.Add(`{"kind":"schemas","format":"1"}{"kind":"version","version":{"topic":"a","version":1}}{"kind":"end","lines":2}`)
	f.Add(`{"topics": [{"name": "a.b", "schema": 2}]}`)
	f.Add(`{"topics": [{"name": "a"}, {"name": "a"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCatalog([]byte(text))
		if (err == nil) != (c != nil) || err != nil && !errors.Is(err, ErrInvalidOption) {
			t.Errorf("%q: %v, %v", text, c, err)
		}
	})
}

// TestHash: an analyzer with flags takes a catalog of the hash it is told, and no other.
func TestHash(t *testing.T) {
	text := `{"topics": [{"name": "a"}]}`
	file := filepath.Join(t.TempDir(), "topics.json")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(text))
	if c, err := loadHashed(file, hex.EncodeToString(sum[:])); err != nil || len(c.Topics) != 1 {
		t.Errorf("%v, %v", c, err)
	}
	for hash, want := range map[string]string{"": "catalog without cataloghash", "00": "it changed meanwhile"} {
		if _, err := loadHashed(file, hash); !errors.Is(err, ErrInvalidOption) || !strings.Contains(err.Error(), want) {
			t.Errorf("hash %q: %v, want %q", hash, err, want)
		}
	}
	if _, err := loadHashed(file+"x", "00"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestSelection(t *testing.T) {
	tests := []struct {
		list, on, off string
	}{
		{"", "BUS001 BUS003 BUS019", "BUS004 BUS012 BUS020"},
		{"BUS004,-BUS001", "BUS004 BUS019", "BUS001"},
		{"-all, BUS001", "BUS001", "BUS005 BUS004"},
		{"all,-BUS019", "BUS001 BUS004 BUS017", "BUS019"},
	}
	for _, tt := range tests {
		s, err := parseSelection(tt.list)
		if err != nil {
			t.Errorf("%q: %v", tt.list, err)
			continue
		}
		for id := range strings.FieldsSeq(tt.on) {
			if !s[id] {
				t.Errorf("%q: %s is off", tt.list, id)
			}
		}
		for id := range strings.FieldsSeq(tt.off) {
			if s[id] {
				t.Errorf("%q: %s is on", tt.list, id)
			}
		}
	}
	if _, err := New(Options{Checks: "BUS015"}); !errors.Is(err, ErrInvalidOption) {
		t.Errorf("a check that is none: %v", err)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"orders.created", "orders.creates", "carts", "v"}
	for name, want := range map[string]string{
		"orders.create":  "orders.created",
		"orders.craeted": "orders.created",
		"order.creates":  "orders.creates",
		"cart":           "carts",
		"trucks":         "",
		"x":              "",
	} {
		if got := nearest(name, names); got != want {
			t.Errorf("nearest(%q) = %q, want %q", name, got, want)
		}
	}
	if d := distance("kitten", "sitting"); d != 3 {
		t.Errorf("distance is %d, want 3", d)
	}
}

func TestDeprecation(t *testing.T) {
	for doc, want := range map[string]string{
		"":                                  "",
		"A topic.\n":                        "",
		"A topic.\n\nDeprecated: use\nb.\n": "use b.",
		"It is not Deprecated: really.\n":   "",
	} {
		if got := deprecation(doc); got != want {
			t.Errorf("%q: %q, want %q", doc, got, want)
		}
	}
}
