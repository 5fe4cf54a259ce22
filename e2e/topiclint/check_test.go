package topiclint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
)

// testdata is the folder with the packages that the checks look at.
func testdata(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", "cmd", "topiclint", "check", "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestChecks runs each check over packages that say what it must find, and nothing
// else. Packages are loaded together: loading is what takes the time.
func TestChecks(t *testing.T) {
	tests := []struct {
		name     string
		options  check.Options
		packages []string
	}{
		{"what the source says", check.Options{Checks: "all"}, []string{
			"names", "users", "wrap", "dynamic", "results", "handlers", "payloads", "bound", "bound2", "declared", "state", "pure", "listed", "catalog", "silent",
		}},
		{"a catalog in a file", check.Options{Checks: "BUS020", Strict: true, Tests: true, Schemas: check.Schemas{"orders": true}, Catalog: &check.Catalog{Topics: []check.Topic{
			{Name: "orders", Schema: 3, Compacted: true, Payload: "file.order"},
			{Name: "logs"},
			{Name: "older", Schema: 1, Deprecated: "use orders"},
		}}}, []string{"file", "intests"}},
		{"schemas that the program registers", check.Options{Schemas: check.Schemas{"bound": true, "passed": true, "elsewhere": true}}, []string{
			"schemas", "schemas2", "schemasany", "schemasimport",
		}},
		{"the schemas of a registry", check.Options{Catalog: &check.Catalog{Partial: true, Topics: []check.Topic{
			{Name: "orders", Schema: 2},
		}}}, []string{"partial"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, err := check.New(tt.options)
			if err != nil {
				t.Fatal(err)
			}
			analysistest.Run(t, testdata(t), a, tt.packages...)
		})
	}
}

func TestFixes(t *testing.T) {
	a, err := check.New(check.Options{})
	if err != nil {
		t.Fatal(err)
	}
	analysistest.RunWithSuggestedFixes(t, testdata(t), a, "headers")
}

// TestEveryCheckIsTested finds a check that no package of testdata asks for.
func TestEveryCheckIsTested(t *testing.T) {
	var all strings.Builder
	err := filepath.WalkDir(filepath.Join(testdata(t), "src"), func(name string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") {
			return err
		}
		text, err := os.ReadFile(name)
		all.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range check.Rules() {
		if !strings.Contains(all.String(), "`"+r.ID) {
			t.Errorf("no package in testdata wants %s (%s)", r.ID, r.Name)
		}
	}
}
