package drive

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
)

var update = flag.Bool("update", false, "write the golden files")

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	name = filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestUsage(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.json")
	tests := []struct {
		config Config
		want   error
	}{
		{Config{Format: "xml"}, ErrUsage},
		{Config{WriteBaseline: true}, ErrUsage},
		{Config{WriteBaseline: true, Baseline: missing, Fix: true}, ErrUsage},
		{Config{Baseline: missing}, ErrUsage},
		{Config{Checks: "BUS000"}, check.ErrInvalidOption},
		{Config{Catalog: missing}, check.ErrInvalidOption},
		{Config{Catalog: missing, Topics: &check.Catalog{}}, ErrUsage},
	}
	for _, tt := range tests {
		if err := Run(t.Context(), tt.config, nil); !errors.Is(err, tt.want) {
			t.Errorf("%+v: %v, want %v", tt.config, err, tt.want)
		}
	}
}

func TestSARIF(t *testing.T) {
	list := []Finding{
		{ID: "BUS001", Message: `invalid topic: "A"`, File: "a b/shop.go", Line: 3, Column: 7, edits: []edit{{line: 3, column: 7, endLine: 3, endColumn: 10, text: `"a"`}}},
		{ID: "BUS006", Message: "ignored", File: "shop.go", Line: 9, Column: 1},
		{ID: "BUS006", Message: "ignored", File: "shop.go", Line: 10, Column: 1},
	}
	var out bytes.Buffer
	if err := writeSARIF(&out, list); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "findings.sarif")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestGitHub(t *testing.T) {
	var out bytes.Buffer
	if err := writeGitHub(&out, []Finding{{ID: "BUS001", Message: "100%\nof: it", File: "a,b:c.go", Line: 1, Column: 2}}); err != nil {
		t.Fatal(err)
	}
	if want := "::error file=a%2Cb%3Ac.go,line=1,col=2,title=BUS001::100%25%0Aof: it\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestBaseline: findings that are alike are counted, and lines do not matter.
func TestBaseline(t *testing.T) {
	at := func(line int) Finding { return Finding{ID: "BUS001", Message: "m", File: "f.go", Line: line} }
	name := filepath.Join(t.TempDir(), "known.json")
	if err := writeBaseline(name, []Finding{at(1), at(2)}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := parseBaseline(text)
	if err != nil {
		t.Fatal(err)
	}
	fresh := b.unknown([]Finding{at(5), at(6), at(7), {ID: "BUS002", Message: "m", File: "f.go"}})
	if len(fresh) != 2 || fresh[0].Line != 7 || fresh[1].ID != "BUS002" {
		t.Errorf("%+v", fresh)
	}
}

func FuzzParseBaseline(f *testing.F) {
	f.Add(`{"findings": [{"file": "a.go", "check": "BUS001", "message": "m", "count": 2}]}`)
	f.Add(`{"findings": [{"count": 0}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		b, err := parseBaseline([]byte(text))
		if err != nil && !errors.Is(err, ErrUsage) {
			t.Errorf("%q: %v", text, err)
		}
		for p, n := range b {
			if n < 1 {
				t.Errorf("%q: %v is known %d times", text, p, n)
			}
		}
	})
}

// TestMendTwice: an edit that two findings ask for is made once.
func TestMendTwice(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.go")
	put(t, filepath.Dir(name), "a.go", `f("A", "B")`)
	first := edit{file: name, from: 2, to: 5, text: `"a"`}
	second := edit{file: name, from: 7, to: 10, text: `"bb"`}
	rest, err := mend([]Finding{{edits: []edit{first}}, {edits: []edit{second}}, {edits: []edit{first}}, {ID: "BUS006"}})
	if err != nil || len(rest) != 1 {
		t.Fatalf("%+v, %v", rest, err)
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != `f("a", "bb")` {
		t.Errorf("%s, %v", text, err)
	}
}
