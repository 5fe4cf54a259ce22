package changefeed_test

import (
	"crypto/rand"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// standInOnly are the tests of what only the stand-in can be made to do: cut
// connections, hold elections, lose its majority or its history at a given moment. They
// run against it, in this process, wherever MONGODB_URI points. All the others take the
// server of MONGODB_URI as it is; some of those set its failpoints (enableTestCommands).
var standInOnly = []string{
	"TestA7Row01NetworkCutInGetMore",
	"TestA7Row02ElectionsAndKilledCursors",
	"TestA7Row03ServerAwayForLong",
	"TestA7Row10IdleCollection",
	"TestA7Row11HistoryLost",
	"TestA7Row13CutBehindInvalidate",
	"TestA7Row20FilteredChangesMoveThePosition",
	"TestA7Row24MajorityLost",
	"TestA7Row26WritesDuringCopy",
	"TestChangeInTheMomentOfTheStart",
	"TestConnectionCutInAuthentication",
	"TestCredentials",
	"TestRestoreAndHistoryLost",
	"TestStandalone",
}

// standIn is the stand-in, with a database for the test.
type standIn struct {
	*mongod.Server
	db string
}

func (s standIn) Database() string { return s.db }

// startStandIn starts a stand-in that ends with the test.
func startStandIn(t *testing.T, c mongod.Config) standIn {
	t.Helper()
	s, err := mongod.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return standIn{Server: s, db: "test_" + strings.ToLower(rand.Text()[:12])}
}

// newStandInRig is newRig for the tests of standInOnly.
func newStandInRig(t *testing.T) *rig {
	t.Helper()
	return newRigOn(t, startStandIn(t, mongod.Config{}))
}

// standIn is what makes the faults.
func (r *rig) standIn() *mongod.Server {
	r.Helper()
	s, ok := r.server.(standIn)
	if !ok {
		r.Fatal("faults are those of the stand-in: use newStandInRig")
	}
	return s.Server
}

// The list has the tests that start the stand-in, and no others.
func TestStandInOnly(t *testing.T) {
	calls := map[string][]string{} // of each function
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && id != f.Name {
					calls[f.Name.Name] = append(calls[f.Name.Name], id.Name)
				}
				return true
			})
		}
	}
	users := map[string]bool{"startStandIn": true}
	for more := true; more; {
		more = false
		for name, list := range calls {
			if !users[name] && slices.ContainsFunc(list, func(called string) bool { return users[called] }) {
				users[name], more = true, true
			}
		}
	}
	maps.DeleteFunc(users, func(name string, _ bool) bool { return !strings.HasPrefix(name, "Test") })
	if got := slices.Sorted(maps.Keys(users)); !slices.Equal(got, standInOnly) {
		t.Errorf("tests that start the stand-in:\n%s\nlisted:\n%s", strings.Join(got, "\n"), strings.Join(standInOnly, "\n"))
	}
	t.Logf("only against the stand-in: %s", strings.Join(standInOnly, ", "))
}
