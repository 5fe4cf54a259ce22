//go:build conformance

package mongod_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// The modules of the official driver with their tests. The zip of version 2 has
// the tests and not the specifications that some of them read; that of version 1
// has both, in the unified format and in the one before it.
const (
	driver1 = "go.mongodb.org/mongo-driver@v1.17.10"
	driver2 = "go.mongodb.org/mongo-driver/v2@v2.9.3"
)

// specifications are copied from the module of version 1 to where the tests of
// version 2 look for them.
var specifications = map[string]string{
	"testdata/change-streams":           "testdata/specifications/source/change-streams/tests/unified",
	"testdata/transactions/unified":     "testdata/specifications/source/transactions/tests/unified",
	"testdata/retryable-writes/unified": "testdata/specifications/source/retryable-writes/tests/unified",
}

// suites are what is run, each against a stand-in of its own.
var suites = []struct {
	name, module, pkg, run string
	least                  int // tests that have to pass at least, so that a suite that is not found is noticed
}{
	{"v2 change streams", driver2, "internal/integration", "^TestChangeStream", 25},
	{"v2 change streams, specified", driver2, "internal/integration/unified", "^TestUnifiedSpec$/^change-streams$", 60},
	{"v2 transactions, specified", driver2, "internal/integration/unified", "^TestUnifiedSpec$/^transactions$", 1},
	{"v2 retryable writes, specified", driver2, "internal/integration/unified", "^TestUnifiedSpec$/^retryable-writes$", 2},
	{"v2 sessions and retries", driver2, "internal/integration", "^Test(Session|Transaction|Retryable|CausalConsistency|ConnectionsSurvive|WriteErrors|ErrorsCodeName|Errors$)", 60},
	{"v1 change streams", driver1, "mongo/integration", "^TestChangeStream", 25},
	{"v1 transactions", driver1, "mongo/integration", "^TestUnifiedSpecs$/^transactions$", 100},
	{"v1 transactions, convenient", driver1, "mongo/integration", "^TestUnifiedSpecs$/^convenient-transactions$", 20},
	{"v1 retryable writes", driver1, "mongo/integration", "^TestRetryableWrites", 100},
}

// TestConformance runs the official driver's own suites against the stand-in.
// Tests that are known to fail are listed in testdata/conformance.txt, with the
// reason; one that is listed and passes is an error as well. Nothing of the
// driver is kept: it is copied from the module cache to a temporary folder.
func TestConformance(t *testing.T) {
	known := readKnown(t)
	src := map[string]string{driver1: fetch(t, driver1), driver2: fetch(t, driver2)}
	for from, to := range specifications {
		to = filepath.Join(src[driver2], to)
		if err := os.CopyFS(to, os.DirFS(filepath.Join(src[driver1], from))); err != nil {
			t.Fatal(err)
		}
	}
	binaries := map[string]string{}
	for _, s := range suites {
		key := s.module + s.pkg
		if binaries[key] == "" {
			binaries[key] = filepath.Join(t.TempDir(), "suite.test")
			run(t, src[s.module], "go", "test", "-c", "-o", binaries[key], "./"+s.pkg)
		}
	}
	for _, s := range suites {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			srv := start(t, mongod.Config{})
			cmd := exec.CommandContext(t.Context(), "go", "tool", "test2json", binaries[s.module+s.pkg], "-test.v=test2json", "-test.run", s.run)
			cmd.Dir = filepath.Join(src[s.module], filepath.FromSlash(s.pkg))
			cmd.Env = append(os.Environ(), "GOWORK=off", "MONGODB_URI="+srv.URI())
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			err := cmd.Run()
			if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
				t.Fatal(err) // that tests fail is told by what they say
			}
			judge(t, s.name, s.least, out.Bytes(), known)
		})
	}
}

// An expected failure is a line of the list.
type expected struct {
	suite  string
	test   *regexp.Regexp
	reason string
}

// readKnown reads the list: lines of suite, regular expression and reason,
// separated by " | ".
func readKnown(t *testing.T) []expected {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "conformance.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var list []expected
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, " | ")
		if len(parts) != 3 {
			t.Fatalf("testdata/conformance.txt: %q: want suite | test | reason", line)
		}
		re, err := regexp.Compile("^(?:" + parts[1] + ")$")
		if err != nil {
			t.Fatalf("testdata/conformance.txt: %q: %v", line, err)
		}
		list = append(list, expected{parts[0], re, parts[2]})
	}
	return list
}

// judge compares what a suite did with the list.
func judge(t *testing.T, suite string, least int, out []byte, known []expected) {
	t.Helper()
	results, text := map[string]string{}, map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 64<<20) // events of 16 MB are shown
	for lines.Scan() {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Test == "" {
			continue
		}
		switch e.Action {
		case "pass", "fail", "skip":
			results[e.Test] = e.Action
		case "output":
			text[e.Test] += e.Output
		}
	}
	counts := map[string]int{}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range results {
			if !yield(name) {
				return
			}
		}
	}) {
		if othersSpeak(name, results) {
			continue
		}
		i := slices.IndexFunc(known, func(k expected) bool { return k.suite == suite && k.test.MatchString(name) })
		result := results[name]
		counts[result]++
		switch {
		case result == "fail" && i < 0:
			t.Errorf("%s fails:\n%s", name, text[name])
		case result == "fail":
			t.Logf("%s fails as expected: %s", name, known[i].reason)
		case result == "pass" && i >= 0:
			t.Errorf("%s passes: take it from testdata/conformance.txt", name)
		}
	}
	t.Logf("%d passed, %d failed, %d skipped by the suite", counts["pass"], counts["fail"], counts["skip"])
	if counts["pass"] < least {
		t.Errorf("only %d tests passed, want %d:\n%s", counts["pass"], least, out[max(0, len(out)-3000):])
	}
}

// othersSpeak says whether the tests within a test say all about it: it passes,
// or fails because one of them does.
func othersSpeak(name string, results map[string]string) bool {
	parent := false
	for other, result := range results {
		if strings.HasPrefix(other, name+"/") {
			parent = true
			if result == "fail" {
				return true
			}
		}
	}
	return parent && results[name] != "fail"
}

// fetch copies a module to a folder that can be written to.
func fetch(t *testing.T, module string) string {
	t.Helper()
	out := run(t, t.TempDir(), "go", "mod", "download", "-json", module)
	var info struct{ Dir string }
	if err := json.Unmarshal(out, &info); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "driver")
	if err := os.CopyFS(dir, os.DirFS(info.Dir)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o600)
		if e.IsDir() {
			mode = 0o700
		}
		return os.Chmod(path, mode)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func run(t *testing.T, dir string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", fmt.Sprint(args), err, out, stderr.Bytes())
	}
	return out
}
