package topiclint

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program is the command, built for all tests.
var program string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "jetbus-topiclint-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "topiclint")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", program, "./cmd/topiclint")
	build.Dir = filepath.Join("..", "..") // it is of the other module
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// TestVetCache: go vet keeps what a vettool found. When the catalog changes, what it
// finds must change too, in both directions, and without a hash it must find nothing.
func TestVetCache(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("go.mod", "module example.com/shop\n\ngo 1.26\n\nrequire github.com/seed-63e9a637/jetbus v0.0.0\n\nreplace github.com/seed-63e9a637/jetbus => ./jetbus\n")
	put("jetbus/go.mod", "module github.com/seed-63e9a637/jetbus\n\ngo 1.26\n")
	put("jetbus/jetbus.go", "package jetbus\n\ntype Event struct{ Topic string }\n")
	put("send/send.go", "package send\n\nimport \"github.com/seed-63e9a637/jetbus\"\n\nfunc Make(topic string) jetbus.Event { return jetbus.Event{Topic: topic} }\n")
	put("shop.go", "package shop\n\nimport \"example.com/shop/send\"\n\nvar _ = send.Make(\"orders.placed\")\n")

	catalog := filepath.Join(dir, "topics.json")
	vet := func(flags ...string) (string, error) {
		args := append([]string{"vet", "-vettool=" + program}, flags...)
		cmd := exec.CommandContext(t.Context(), "go", append(args, "./...")...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	without := `{"topics": [{"name": "orders.created"}]}`
	with := `{"topics": [{"name": "orders.created"}, {"name": "orders.placed"}]}`
	for _, text := range []string{without, with, without} {
		put("topics.json", text)
		flags, err := exec.CommandContext(t.Context(), program, "-vetflags", "-catalog", catalog).Output()
		if err != nil {
			t.Fatal(err)
		}
		out, err := vet(strings.Fields(string(flags))...)
		if text == with {
			if err != nil {
				t.Errorf("with the topic: %v\n%s", err, out)
			}
		} else if err == nil || !strings.Contains(out, "BUS002: no topic orders.placed") {
			t.Errorf("without the topic: %v\n%s", err, out)
		}
	}
	if out, err := vet("-topiclint.catalog=" + catalog); err == nil || !strings.Contains(out, "catalog without cataloghash") {
		t.Errorf("without the hash: %v\n%s", err, out)
	}
}
