package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// commandEnv makes the test binary be the command, so that go vet can start it.
const commandEnv = "TOPICLINT_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func command(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), args, &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

func TestCommandLine(t *testing.T) {
	tests := []struct {
		args, out, errOut string
		code              int
	}{
		{"-rules", "BUS001 invalid topic\n", "", 0},
		{"-h", "", "usage: topiclint [flags] [packages]", 0},
		{"-nonsense", "", "not defined: -nonsense", 2},
		{"-format xml", "", `topiclint: wrong command line: -format "xml"`, 2},
		{"-vetflags -checks BUS004 -tests -strict", "-topiclint.checks=BUS004 -topiclint.tests=true -topiclint.strict=true\n", "", 0},
		{"-vetflags -catalog /does/not/exist", "", "no such file", 2},
		{"-C /does/not/exist", "", "topiclint: load packages: ", 1},
	}
	for _, tt := range tests {
		code, out, errOut := command(t, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(errOut, tt.errOut) || (tt.errOut == "") != (errOut == "") {
			t.Errorf("topiclint %s: code %d, %q, %q", tt.args, code, out, errOut)
		}
	}
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
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	vet := func(flags ...string) (string, error) {
		args := append([]string{"vet", "-vettool=" + self}, flags...)
		cmd := exec.CommandContext(t.Context(), "go", append(args, "./...")...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), commandEnv+"=1", "GOFLAGS=", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	without := `{"topics": [{"name": "orders.created"}]}`
	with := `{"topics": [{"name": "orders.created"}, {"name": "orders.placed"}]}`
	for _, text := range []string{without, with, without} {
		put("topics.json", text)
		_, flags, _ := command(t, "-vetflags", "-catalog", catalog)
		out, err := vet(strings.Fields(flags)...)
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
