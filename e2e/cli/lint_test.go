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
