package topiclint

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
	"github.com/seed-63e9a637/jetbus/cmd/topiclint/drive"
)

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
	stub, err := os.ReadFile(filepath.Join(testdata(t), "src", "github.com", "seed-63e9a637", "jetbus", "jetbus.go"))
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
	run := func(c drive.Config, wantErr error, want string) {
		t.Helper()
		c.Dir = dir
		var out bytes.Buffer
		err := drive.Run(t.Context(), c, &out)
		if !errors.Is(err, wantErr) {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	}
	run(drive.Config{}, drive.ErrFindings, `shop.go:12:2: BUS006: the error of the publish is ignored: the event may not have been stored
shop.go:12:74: BUS005: header "X-Shop": names of your own start with x-, and are lower case a-z, 0-9, '_', '-' and '.'
shop.go:13:27: BUS001: invalid topic: "Orders.Created": segments consist of a-z, 0-9, '_' and '-', found "O"
`)
	run(drive.Config{Baseline: known, WriteBaseline: true}, nil, "")
	put(t, dir, "more.go", "package shop\n\nimport \"github.com/seed-63e9a637/jetbus\"\n\nvar _ = jetbus.Event{Topic: \"A\"}\n")
	run(drive.Config{Baseline: known, Format: "github"}, drive.ErrFindings, "::error file=more.go,line=5,col=29,title=BUS001::invalid topic: \"A\": segments consist of a-z, 0-9, '_' and '-', found \"A\"\n")
	run(drive.Config{Fix: true}, drive.ErrFindings, "shop.go:12:2: BUS006: the error of the publish is ignored: the event may not have been stored\n")
	mended, err := os.ReadFile(filepath.Join(dir, "shop.go"))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.NewReplacer("X-Shop", "x-shop", "Orders.Created", "orders.created").Replace(shop["shop.go"]); string(mended) != want {
		t.Error(cmp.Diff(want, string(mended)))
	}
	run(drive.Config{Patterns: []string{"./plain", "./send"}}, nil, "")
	put(t, dir, "more.go", "package shop\n\nfunc broken( {\n")
	var out bytes.Buffer
	if err := drive.Run(t.Context(), drive.Config{Dir: dir}, &out); err == nil || !strings.Contains(err.Error(), "load package example.com/shop: ") || out.Len() > 0 {
		t.Errorf("a package that does not compile: %v, %s", err, out.String())
	}
}

// TestRunFindsMissingSchemas: a package that declares topics is told nothing of topics for
// which the packages that import it register schemas.
func TestRunFindsMissingSchemas(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "")
	dir := newShop(t)
	stub, err := os.ReadFile(filepath.Join(testdata(t), "src", "github.com", "seed-63e9a637", "jetbus", "registry", "registry.go"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, dir, "jetbus/registry/registry.go", string(stub))
	put(t, dir, "shop.go", "package shop\n")
	put(t, dir, "topics/topics.go", `package topics

import "github.com/seed-63e9a637/jetbus"

var (
	Orders  = jetbus.Topic[int]{Name: "orders"}
	Refunds = jetbus.Topic[int]{Name: "refunds"}
	Frames  = jetbus.Topic[[]byte]{Name: "frames"} //nolint:topiclint // JPEG has no schema
)
`)
	put(t, dir, "cmd/sell/main.go", `package main

import (
	"context"

	"github.com/seed-63e9a637/jetbus/registry"

	"example.com/shop/topics"
)

func main() {
	_, _ = registry.Bind(context.Background(), &registry.Registry{}, topics.Orders, registry.BindOptions{})
}
`)
	put(t, dir, "schemas.ndjson", `{"kind":"schemas","format":"1"}
{"kind":"version","version":{"topic":"refunds","version":1}}
{"kind":"end","lines":2}
`)
	run := func(c drive.Config, want string) {
		t.Helper()
		c.Dir = dir
		var out bytes.Buffer
		if err := drive.Run(t.Context(), c, &out); errors.Is(err, drive.ErrFindings) != (want != "") || err != nil && want == "" {
			t.Fatalf("error %v", err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Error(diff)
		}
	}
	run(drive.Config{}, "topics/topics.go:7:36: BUS003: topic refunds has no schema: the program does not register one, and no catalog is given\n")
	run(drive.Config{Checks: "-BUS003"}, "")
	run(drive.Config{Catalog: filepath.Join(dir, "schemas.ndjson")}, "")
	run(drive.Config{Topics: &check.Catalog{Partial: true}}, "topics/topics.go:7:36: BUS003: topic refunds has no schema in the catalog\n")
}
