package jetbus_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestModules checks what go mod tidy would say of the modules that this project itself
// imports, without the network that tidy may need: each is required, none of them as
// indirect, and nothing else is required as if it were imported.
func TestModules(t *testing.T) {
	for _, dir := range []string{".", "e2e"} {
		problems, err := checkModule(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: run go mod tidy", filepath.Join(dir, "go.mod"), p)
		}
	}
}

func TestCheckModule(t *testing.T) {
	const imports = "package a\n\nimport _ \"x.io/direct/v2/sub\"\n"
	cases := []struct {
		name, goMod, want string
	}{
		{"tidy", "require (\n\tx.io/direct/v2 v2.0.0\n\tx.io/other v1.0.0 // indirect\n)\n", ""},
		{"alone", "require x.io/direct/v2 v2.0.0\n", ""},
		{"indirect", "require x.io/direct/v2 v2.0.0 // indirect\n", "x.io/direct/v2 is imported and required as indirect"},
		{"unused", "require (\n\tx.io/direct/v2 v2.0.0\n\tx.io/other v1.0.0\n)\n", "x.io/other is required and not imported"},
		{"missing", "require x.io/dir v1.0.0 // indirect\n", "x.io/direct/v2/sub is imported, of a module that is not required"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"go.mod": "module x.io/m\n\n" + tc.goMod, "a.go": imports} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			problems, err := checkModule(dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(problems, "; "); !strings.HasPrefix(got, tc.want) || tc.want == "" && got != "" {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// checkModule returns what is wrong with the requirements of the module in a folder.
func checkModule(dir string) (problems []string, err error) {
	own, direct, err := readModule(filepath.Join(dir, "go.mod"))
	if err != nil {
		return nil, err
	}
	imports, err := importsBelow(dir, own)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, imported := range imports {
		m := moduleOf(imported, direct)
		if m == "" {
			problems = append(problems, imported+" is imported, of a module that is not required")
		}
		used[m] = true
	}
	for _, m := range slices.Sorted(maps.Keys(direct)) {
		switch {
		case used[m] && !direct[m]:
			problems = append(problems, m+" is imported and required as indirect")
		case direct[m] && !used[m]:
			problems = append(problems, m+" is required and not imported")
		}
	}
	return problems, nil
}

// readModule returns the path of a go.mod's module, and of each module that it requires
// whether it does so directly.
func readModule(goMod string) (own string, direct map[string]bool, err error) {
	text, err := os.ReadFile(goMod)
	if err != nil {
		return "", nil, err
	}
	direct = map[string]bool{}
	block := false
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == ")":
			block = false
		case words[0] == "module" && len(words) > 1:
			own = words[1]
		case words[0] == "require" && len(words) > 1 && words[1] == "(":
			block = true
		case words[0] == "require" && len(words) > 2:
			direct[words[1]] = !strings.Contains(line, "// indirect")
		case block && len(words) > 1:
			direct[words[0]] = !strings.Contains(line, "// indirect")
		}
	}
	return own, direct, nil
}

// importsBelow are the packages of other modules that the files of a module import, on any
// system and with any tags, in order.
func importsBelow(root, own string) ([]string, error) {
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && skipFolder(name):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || hidden(d.Name()):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if thirdParty(imported) && imported != own && !strings.HasPrefix(imported, own+"/") {
				found[imported] = true
			}
		}
		return nil
	})
	return slices.Sorted(maps.Keys(found)), err
}

// moduleOf is the module, of those required, that a package is of; "" if of none.
func moduleOf(imported string, required map[string]bool) string {
	best := ""
	for m := range required {
		if (imported == m || strings.HasPrefix(imported, m+"/")) && len(m) > len(best) {
			best = m
		}
	}
	return best
}
