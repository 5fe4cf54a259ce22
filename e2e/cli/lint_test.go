//go:build unix

package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// TestLint: what cmd/jetbus/testdata/shop says of its lines is what the linter finds in them. It is
// also what holds the checks to the bus as it is.
func TestLint(t *testing.T) {
	dir := filepath.Join("..", "..", "cmd", "jetbus")
	var out, errOut bytes.Buffer
	lint := exec.CommandContext(t.Context(), program, "lint", "./testdata/shop")
	lint.Dir, lint.Stdout, lint.Stderr = dir, &out, &errOut
	if err := lint.Run(); lint.ProcessState.ExitCode() != 1 || !strings.Contains(errOut.String(), "jetbus: the checks found something: ") {
		t.Fatalf("%v: %s", err, errOut.String())
	}
	text, err := os.ReadFile(filepath.Join(dir, "testdata", "shop", "shop.go"))
	if err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`BUS\d{3}`)
	found := make([][]string, strings.Count(string(text), "\n"))
	place := regexp.MustCompile(`^testdata/shop/shop\.go:(\d+):\d+: (BUS\d{3}): .+$`)
	for l := range strings.Lines(out.String()) {
		m := place.FindStringSubmatch(strings.TrimSpace(l))
		if m == nil {
			t.Fatalf("%q is no finding", l)
		}
		n, err := strconv.Atoi(m[1])
		if err != nil || n > len(found) {
			t.Fatal(l)
		}
		found[n-1] = append(found[n-1], m[2])
	}
	i := 0
	for l := range strings.Lines(string(text)) {
		_, comment, _ := strings.Cut(l, "//")
		want := id.FindAllString(comment, -1)
		slices.Sort(want)
		slices.Sort(found[i])
		if !slices.Equal(found[i], want) {
			t.Errorf("line %d: found %v, want %v: %s", i+1, found[i], want, l)
		}
		i++
	}
}

// TestLintWithRegistry checks a module against a running registry, and against its export.
func TestLintWithRegistry(t *testing.T) {
	broker := bustest.Start(t, embedded.Config{Listen: "127.0.0.1:0"})
	server := []string{"--server", broker.URL()}
	dir := t.TempDir()
	schema, exported := filepath.Join(dir, "any.json"), filepath.Join(dir, "schemas.ndjson")
	if err := os.WriteFile(schema, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"prices", "carts", "logs"} {
		ok(t, append(server, "schema", "register", topic, schema)...)
	}
	ok(t, append(server, "schema", "rm", "carts", "--yes")...)
	ok(t, append(server, "schema", "export", exported)...)

	lint := func(args ...string) string {
		t.Helper()
		var out bytes.Buffer
		lint := exec.CommandContext(t.Context(), program, append([]string{"lint", "--checks", "-all,BUS003", "./testdata/shop"}, args...)...)
		lint.Dir, lint.Stdout = filepath.Join("..", "..", "cmd", "jetbus"), &out
		if err := lint.Run(); lint.ProcessState.ExitCode() != 1 {
			t.Fatal(err)
		}
		return out.String()
	}
	running := lint(server...)
	if strings.Contains(running, "prices") || !strings.Contains(running, "BUS003: topic carts has no schema in the catalog\n") || !strings.Contains(running, "topic bads ") {
		t.Errorf("of a registry with prices:\n%s", running)
	}
	if offline := lint("--catalog", exported); offline != running {
		t.Errorf("with the export:\n%swith the registry:\n%s", offline, running)
	}
	if alone := lint(); !strings.Contains(alone, "BUS003: topic prices has no schema: the program does not register one") {
		t.Errorf("without a registry:\n%s", alone)
	}
	for _, args := range []string{"--server " + broker.URL() + " --catalog " + exported, "--catalog " + schema + "x"} {
		refused := start(t, append([]string{"lint"}, strings.Fields(args)...)...)
		<-refused.ended
		if refused.cmd.ProcessState.ExitCode() != 2 || strings.Count(refused.stderr.String(), "\n") != 1 {
			t.Errorf("jetbus lint %s: %v: %s", args, refused.err, refused.stderr.String())
		}
	}
}
