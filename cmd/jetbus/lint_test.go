package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestLint: what testdata/shop says of its lines is what the linter finds in them. It is
// also what holds the checks to the bus as it is.
func TestLint(t *testing.T) {
	r := command(t, "", "lint", "./testdata/shop")
	if r.code != exitFailure || !strings.Contains(r.errOut, "jetbus: the checks found something: ") {
		t.Errorf("exit code %d, %s", r.code, r.errOut)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "shop", "shop.go"))
	if err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`BUS\d{3}`)
	found := make([][]string, strings.Count(string(text), "\n"))
	place := regexp.MustCompile(`^testdata/shop/shop\.go:(\d+):\d+: (BUS\d{3}): .+$`)
	for l := range strings.Lines(r.out) {
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

func TestLintUsage(t *testing.T) {
	for args, want := range map[string]string{
		"lint --format xml":               "use text, sarif or github",
		"lint --checks BUS000":            `no check "BUS000"`,
		"lint --write-baseline":           "needs -baseline",
		"lint --catalog /does/not/exist":  "no such file",
		"lint --baseline /does/not/exist": "write it with -write-baseline",
	} {
		if r := command(t, "", strings.Fields(args)...); r.code != exitUsage || !strings.Contains(r.errOut, want) || strings.Count(r.errOut, "\n") != 1 {
			t.Errorf("jetbus %s: %+v, want %q", args, r, want)
		}
	}
}
