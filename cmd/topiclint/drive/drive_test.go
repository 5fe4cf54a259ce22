package drive

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
)

var update = flag.Bool("update", false, "write the golden files")

// shop is a module that uses JetBus, or what the tests of the checks have of it.
var shop = map[string]string{
	"go.mod":         "module example.com/shop\n\ngo 1.26\n\nrequire github.com/seed-63e9a637/jetbus v0.0.0\n\nreplace github.com/seed-63e9a637/jetbus => ./jetbus\n",
	"jetbus/go.mod":  "module github.com/seed-63e9a637/jetbus\n\ngo 1.26\n",
	"plain/plain.go": "// Package plain has nothing to do with it.\npackage plain\n",
	"send/send.go": `package send

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
)

func Send(ctx context.Context, b jetbus.Bus, topic string) error {
	_, err := b.Publish(ctx, jetbus.Event{Topic: topic})
	return err
}
`,
	"shop.go": `package shop

import (
	"context"

	"github.com/seed-63e9a637/jetbus"

	"example.com/shop/send"
)

func Sell(ctx context.Context, b jetbus.Bus) error {
	b.Publish(ctx, jetbus.Event{Topic: "orders", Headers: map[string]string{"X-Shop": "1"}})
	return send.Send(ctx, b, "Orders.Created")
}
`,
}

// newShop writes the module, and what else is given, into a folder.
func newShop(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	stub, err := os.ReadFile(filepath.FromSlash("../check/testdata/src/github.com/seed-63e9a637/jetbus/jetbus.go"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "jetbus/jetbus.go", string(stub))
	for name, text := range shop {
		put(t, dir, name, text)
	}
	return dir
}

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

// TestRun takes a module through its life with the linter: what is found, what is
// known, what is new, what is mended.
func TestRun(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "")
	dir := newShop(t)
	known := filepath.Join(dir, "known.json")
	run := func(c Config, wantErr error, want string) {
		t.Helper()
		c.Dir = dir
		var out bytes.Buffer
		err := Run(t.Context(), c, &out)
		if !errors.Is(err, wantErr) {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	}
	run(Config{}, ErrFindings, `shop.go:12:2: BUS006: the error of the publish is ignored: the event may not have been stored
shop.go:12:74: BUS005: invalid header: name "X-Shop": names start with x-, or are content-type, traceparent or tracestate
shop.go:13:27: BUS001: invalid topic: "Orders.Created": segments consist of a-z, 0-9, '_' and '-', found "O"
`)
	run(Config{Baseline: known, WriteBaseline: true}, nil, "")
	put(t, dir, "more.go", "package shop\n\nimport \"github.com/seed-63e9a637/jetbus\"\n\nvar _ = jetbus.Event{Topic: \"A\"}\n")
	run(Config{Baseline: known, Format: "github"}, ErrFindings, "::error file=more.go,line=5,col=29,title=BUS001::invalid topic: \"A\": segments consist of a-z, 0-9, '_' and '-', found \"A\"\n")
	run(Config{Fix: true}, ErrFindings, "shop.go:12:2: BUS006: the error of the publish is ignored: the event may not have been stored\n")
	mended, err := os.ReadFile(filepath.Join(dir, "shop.go"))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.NewReplacer("X-Shop", "x-shop", "Orders.Created", "orders.created").Replace(shop["shop.go"]); string(mended) != want {
		t.Error(cmp.Diff(want, string(mended)))
	}
	run(Config{Patterns: []string{"./plain", "./send"}}, nil, "")
	put(t, dir, "more.go", "package shop\n\nfunc broken( {\n")
	var out bytes.Buffer
	if err := Run(t.Context(), Config{Dir: dir}, &out); err == nil || !strings.Contains(err.Error(), "load package example.com/shop: ") || out.Len() > 0 {
		t.Errorf("a package that does not compile: %v, %s", err, out.String())
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
