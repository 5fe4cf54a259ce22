package jetbus_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is the path of this module; the root room is ".".
const module = "github.com/seed-63e9a637/jetbus"

// Limits of production files. The aim is lower, so that there is room for a
// change that should not have to split anything.
const (
	maxFileLines = 600
	aimFileLines = 500
	maxFuncLines = 100
	aimFuncLines = 80
)

// A room is one package of this module and what it may import. The standard
// library is always allowed, except for testing. Packages of other modules are
// named by path; "p/..." is p and everything below it.
type room struct {
	rooms []string // rooms of this module it may import; everyRoom for all that are not kits
	heavy []string // packages of other modules it may import
	tests []string // rooms and packages its _test.go files may import as well
	kit   bool     // made for tests: it may import testing, and only tests and kits may import it
}

const everyRoom = "*"

// rooms is the map of this module. A line of code lives in the room of the
// heaviest thing it must import, and arrows point at the root. A row may stand
// here before its folder exists; a folder may not exist before its row. The
// nested module e2e is not on the map: it may import everything.
var rooms = map[string]room{
	".": {rooms: []string{"internal/deadline", "internal/exactjson"}, heavy: []string{"github.com/google/uuid"}, tests: []string{"internal/deadline/deadlinetest"}},

	"adapter": {
		rooms: []string{".", "adapter/ce", "internal/deadline", "internal/link", "internal/shutdown"},
		heavy: []string{"github.com/nats-io/nats.go", "github.com/nats-io/nats.go/jetstream"},
		tests: []string{
			"github.com/nats-io/nats-server/v2/...", // servers that embedded does not offer: without JetStream, with few permissions
			"internal/deadline/deadlinetest", "adapter/adaptertest",
		},
	},
	"registry": {
		rooms: []string{".", "registry/schema", "internal/caller", "internal/exactjson", "internal/link", "internal/shutdown"},
		heavy: []string{
			"github.com/nats-io/nats.go", "github.com/nats-io/nats.go/jetstream",
			"github.com/invopop/jsonschema",
		},
		tests: []string{"adapter/adaptertest"}, // a server that denies
	},
	"internal/deadline":              {tests: []string{"internal/deadline/deadlinetest"}}, // what leases, locks and sessions have in common
	"internal/deadline/deadlinetest": {kit: true},
	"internal/exactjson":             {}, // what decodes the JSON of others, by the exact names of members
	"internal/leaktest":              {heavy: []string{"go.uber.org/goleak"}, kit: true},
	"internal/caller":                {}, // names the client for which the gateway publishes
	"internal/loopback":              {}, // the check of every HTTP listener that trusts its own machine
	"internal/mongolink":             {heavy: []string{"go.mongodb.org/mongo-driver/v2/mongo"}},
	"internal/shutdown":              {},                                                                                                            // by what context all that stops is stopped
	"internal/link":                  {rooms: []string{"."}, heavy: []string{"github.com/nats-io/nats.go", "github.com/nats-io/nats.go/jetstream"}}, // its watchers of keys outlive connections
	"registry/schema":                {heavy: []string{"github.com/santhosh-tekuri/jsonschema/..."}},
	"partition":                      {rooms: []string{".", "internal/deadline", "internal/shutdown"}, tests: []string{"internal/deadline/deadlinetest"}},
	"projector":                      {rooms: []string{".", "internal/shutdown"}},
	"projector/processes":            {rooms: []string{"."}},
	"projector/mongosink": {
		rooms: []string{".", "projector", "internal/mongolink"},
		heavy: []string{"go.mongodb.org/mongo-driver/v2/..."},
		// Faults of the stand-in; connections that die with a replica; an example with something to project.
		tests: []string{"embedded/mongod", "embedded/mongod/mongotest", "github.com/nats-io/nats.go", "projector/processes"},
	},
	"changefeed": {
		rooms: []string{".", "internal/shutdown"},
		heavy: []string{"go.mongodb.org/mongo-driver/v2/..."},
		// Faults that only the stand-in has; a collection that is filled from a feed's topic.
		tests: []string{"embedded/mongod", "embedded/mongod/mongotest", "projector", "projector/mongosink"},
	},
	"changefeed/mongobox": {
		rooms: []string{".", "outbox", "internal/outrow", "internal/mongolink"}, // the nouns of an outbox, so that programs show and mend both kinds alike
		heavy: []string{"go.mongodb.org/mongo-driver/v2/..."},
		tests: []string{"embedded/mongod", "embedded/mongod/mongotest"},
	},
	"outbox":          {rooms: []string{".", "internal/outrow"}},
	"internal/outrow": {rooms: []string{"."}},
	"metrics":         {rooms: []string{".", "partition", "projector"}, heavy: []string{"github.com/prometheus/client_golang/..."}},
	"tracing":         {rooms: []string{"."}, heavy: []string{"go.opentelemetry.io/otel/..."}, tests: []string{"partition"}}, // whose handlers are traced, too
	"gateway": {
		rooms: []string{".", "gateway/internal/budget", "internal/caller", "internal/exactjson", "internal/frame", "internal/loopback", "internal/shutdown"},
		heavy: []string{"github.com/coder/websocket/...", "github.com/golang-jwt/jwt/v5/..."},
		// The tests compare dry runs with publishes on topics with schemas and on a broker with users and limits, and
		// show the partitions of real members.
		tests: []string{"gateway/client", "adapter/adaptertest", "registry", "partition", "github.com/nats-io/nats.go/...", "github.com/nats-io/nats-server/v2/..."},
	},
	"gateway/internal/budget": {},
	"gateway/client": {
		rooms: []string{".", "internal/frame", "internal/shutdown"},
		heavy: []string{"github.com/coder/websocket/..."},
		tests: []string{"gateway"},
	},
	"internal/frame": {rooms: []string{".", "internal/exactjson"}},
	"registry/rest":  {rooms: []string{".", "registry", "internal/exactjson"}},

	"embedded": {
		rooms: []string{"internal/loopback", "internal/shutdown"},
		heavy: []string{"github.com/nats-io/nats-server/v2/...", "github.com/nats-io/nats.go/..."},
		tests: []string{"."},
	},
	"adapter/ce":       {rooms: []string{"."}, heavy: []string{"github.com/nats-io/nats.go"}},
	"adapter/contract": {tests: []string{"."}}, // nothing but tests, as the next three are
	"adapter/groups":   {tests: []string{".", "adapter/adaptertest", "github.com/nats-io/nats.go/..."}},
	"adapter/reads":    {tests: []string{".", "adapter/adaptertest", "github.com/nats-io/nats.go/...", "github.com/nats-io/nats-server/v2/..."}},
	"adapter/topics":   {tests: []string{".", "adapter/adaptertest", "github.com/nats-io/nats.go/...", "github.com/nats-io/nats-server/v2/..."}},
	"adapter/adaptertest": {
		rooms: []string{".", "adapter", "embedded", "embedded/bustest"},
		heavy: []string{"github.com/nats-io/nats-server/v2/...", "github.com/nats-io/nats.go/..."},
		kit:   true,
	},
	"embedded/cluster": {
		rooms: []string{"embedded", "internal/shutdown"},
		heavy: []string{"github.com/nats-io/nats-server/v2/...", "github.com/nats-io/nats.go/..."},
		kit:   true,
	},
	"embedded/bustest": {
		rooms: []string{".", "adapter", "embedded"},
		// The server's clock has to run before a bubble begins, and the suite runs
		// servers that embedded does not offer.
		heavy: []string{"github.com/nats-io/nats-server/v2/...", "github.com/nats-io/nats.go/...", "pgregory.net/rapid/...", "github.com/google/go-cmp/..."},
		kit:   true,
	},
	"embedded/mongod": {
		heavy: []string{"go.mongodb.org/mongo-driver/v2/bson/..."},
		tests: []string{"go.mongodb.org/mongo-driver/v2/...", "embedded/mongod/mongotest"},
	},
	"embedded/mongod/mongotest": {
		rooms: []string{"embedded/mongod"},
		heavy: []string{"go.mongodb.org/mongo-driver/v2/bson/..."},
		tests: []string{"go.mongodb.org/mongo-driver/v2/..."},
		kit:   true,
	},

	"cmd/jetbus": {
		rooms: []string{everyRoom},
		heavy: []string{
			"github.com/spf13/cobra/...", "github.com/spf13/pflag", "github.com/shirou/gopsutil/v4/...", "golang.org/x/term",
			"go.mongodb.org/mongo-driver/v2/...",
			"github.com/jackc/pgx/v5/stdlib", "modernc.org/sqlite", // drivers of jetbus outbox, which package outbox does not bring
			"github.com/nats-io/nats.go/...", // it makes the connection that adapter.Open is given
		},
		tests: []string{"embedded/mongod/mongotest"},
	},
	// The examples show several rooms at work together; demo is their plumbing.
	"examples/internal/demo": {
		rooms: []string{"adapter", "registry", "embedded", "embedded/mongod"},
		heavy: []string{"github.com/nats-io/nats.go", "go.mongodb.org/mongo-driver/v2/mongo/..."},
	},
	"examples/partitions": {
		rooms: []string{".", "examples/internal/demo", "partition", "projector", "projector/mongosink", "projector/processes", "registry"},
		heavy: []string{"go.mongodb.org/mongo-driver/v2/..."},
	},
	"examples/evolution": {
		rooms: []string{".", "changefeed", "examples/internal/demo", "registry"},
		heavy: []string{"go.mongodb.org/mongo-driver/v2/..."},
	},
	"cmd/topiclint": {
		rooms: []string{"cmd/topiclint/check", "cmd/topiclint/drive"},
		heavy: []string{"golang.org/x/tools/go/analysis/unitchecker"},
	},
	"cmd/topiclint/check": {
		rooms: []string{"."}, // the rules of names
		heavy: []string{"golang.org/x/tools/go/analysis/..."},
	},
	"cmd/topiclint/drive": {
		rooms: []string{"cmd/topiclint/check"},
		heavy: []string{"golang.org/x/tools/go/analysis/...", "golang.org/x/tools/go/packages"},
	},
	"cmd/topiclint/plugin": {
		rooms: []string{"cmd/topiclint/check"},
		heavy: []string{"golang.org/x/tools/go/analysis", "github.com/golangci/plugin-module-register/register"},
	},
}

// anyTest is what the _test.go files of every room may import.
var anyTest = []string{
	"adapter", "embedded", "embedded/bustest", "internal/leaktest",
	"github.com/google/go-cmp/...", "go.uber.org/goleak", "pgregory.net/rapid/...",
}

func TestRooms(t *testing.T) {
	for _, p := range checkRows(rooms) {
		t.Error(p)
	}
	problems, packages, err := checkTree(".", rooms)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(packages, ".") {
		t.Errorf("found the packages %q, without the root: the check does not see the tree", packages)
	}
	for _, p := range problems {
		t.Error(p)
	}
}

// checkRows reports rows that name a room that has no row.
func checkRows(rooms map[string]room) []string {
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(rooms)) {
		r := rooms[name]
		for _, to := range slices.Concat(r.rooms, r.tests) {
			if _, ok := rooms[to]; !ok && to != everyRoom && !thirdParty(to) {
				problems = append(problems, fmt.Sprintf("rooms[%q] allows %q, which is no room: correct its row in rooms_test.go", name, to))
			}
		}
	}
	return problems
}

// A checker collects what is wrong with one tree of Go files.
type checker struct {
	rooms    map[string]room
	fset     *token.FileSet
	packages map[string]*pkg // by folder, relative to the root, with slashes
	problems []string
}

// A pkg is what has been seen of one folder.
type pkg struct {
	name       string // of its production files, or of its tests if it has no others
	production bool   // it has a production file
	documented bool   // one of its production files has a package comment
}

// checkTree checks the module at root against rooms and the house limits. It
// returns what is wrong, one line each in the order of the tree, and the folders
// that hold production packages.
func checkTree(root string, rooms map[string]room) (problems, packages []string, err error) {
	c := &checker{rooms: rooms, fset: token.NewFileSet(), packages: make(map[string]*pkg)}
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && skipFolder(name) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || hidden(d.Name()) {
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		c.checkFile(filepath.ToSlash(rel), src)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("check %s: %w", root, err)
	}
	return c.problems, c.checkPackages(), nil
}

// hidden says whether the go command ignores a file or folder of this name.
func hidden(base string) bool {
	return strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")
}

// skipFolder says whether a folder below the root holds no package of this
// module: the go command ignores it, or it is a module of its own.
func skipFolder(dir string) bool {
	base := filepath.Base(dir)
	if hidden(base) || base == "testdata" || base == "vendor" {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func (c *checker) problemf(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// checkFile checks one file and notes what it says about its package.
func (c *checker) checkFile(name string, src []byte) {
	file, err := parser.ParseFile(c.fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		c.problemf("%v: the file does not parse", err)
		return
	}
	dir := path.Dir(name)
	p := c.packages[dir]
	if p == nil {
		p = &pkg{name: strings.TrimSuffix(file.Name.Name, "_test")}
		c.packages[dir] = p
	}
	test := strings.HasSuffix(name, "_test.go")
	if !test {
		p.name, p.production = file.Name.Name, true
		p.documented = p.documented || strings.TrimSpace(file.Doc.Text()) != ""
		c.checkSizes(name, src, file)
	}
	if _, ok := c.rooms[dir]; ok { // checkPackages reports the others, once each
		for _, spec := range file.Imports {
			c.checkImport(dir, test, file, spec)
		}
	}
}

func (c *checker) checkSizes(name string, src []byte, file *ast.File) {
	if n := bytes.Count(src, []byte("\n")); n > maxFileLines {
		c.problemf("%s: %d lines, at most %d (aim for %d): split it by what its parts do", name, n, maxFileLines, aimFileLines)
	}
	for _, d := range file.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		first := c.fset.Position(fn.Pos()).Line
		if n := c.fset.Position(fn.End()).Line - first + 1; n > maxFuncLines {
			c.problemf("%s:%d: func %s has %d lines, at most %d (aim for %d): give its steps names of their own",
				name, first, fn.Name.Name, n, maxFuncLines, aimFuncLines)
		}
	}
}

// checkImport checks one import of a file of the room dir.
func (c *checker) checkImport(dir string, test bool, file *ast.File, spec *ast.ImportSpec) {
	at := c.fset.Position(spec.Pos()).String()
	imported, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		c.problemf("%s: import %s: %v", at, spec.Path.Value, err)
		return
	}
	at += ": imports " + imported
	to, standard := target(imported)
	switch {
	case test && !standard:
		c.checkTestImport(dir, at, to, file.Name.Name)
	case test:
	case standard:
		if (to == "testing" || strings.HasPrefix(to, "testing/")) && !c.rooms[dir].kit {
			c.problemf("%s in production code: move what needs it to a _test.go file or to a kit such as embedded/bustest", at)
		}
	default:
		c.checkProductionImport(dir, at, to)
	}
}

func (c *checker) checkProductionImport(dir, at, to string) {
	r := c.rooms[dir]
	if c.rooms[to].kit && !r.kit {
		c.problemf("%s, a kit for tests, in production code: move what needs it to a _test.go file", at)
		return
	}
	if !c.allows(slices.Concat(r.rooms, r.heavy), to) {
		c.problemf("%s, which the room %q may not (%s): move the code, ask for a small interface instead, "+
			"or add the import to this room's row in rooms_test.go and say why in the commit", at, dir, c.whoMay(to))
	}
}

func (c *checker) checkTestImport(dir, at, to, name string) {
	r := c.rooms[dir]
	if to == "embedded/bustest" && !strings.HasSuffix(name, "_test") {
		c.problemf("%s in package %s: make this an external test, package %s_test", at, name, name)
		return
	}
	if to != dir && !c.allows(slices.Concat(r.rooms, r.heavy, r.tests, anyTest), to) {
		c.problemf("%s, which tests of the room %q may not: move the test to e2e, "+
			"or add the import to the tests of this room's row in rooms_test.go and say why in the commit", at, dir)
	}
}

// allows says whether patterns allow the import of to, which is not of the
// standard library. Whether to is a kit is for the caller.
func (c *checker) allows(patterns []string, to string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if p == everyRoom {
			_, ok := c.rooms[to]
			return ok
		}
		below, ok := strings.CutSuffix(p, "/...")
		return to == p || ok && (to == below || strings.HasPrefix(to, below+"/"))
	})
}

// whoMay names the rooms whose production files may import to.
func (c *checker) whoMay(to string) string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(c.rooms)) {
		if r := c.rooms[name]; c.allows(slices.Concat(r.rooms, r.heavy), to) {
			names = append(names, name)
		}
	}
	if names == nil {
		return "no room may"
	}
	return "may: " + strings.Join(names, ", ")
}

// checkPackages checks what takes a whole package to know, and returns the
// folders of the production packages.
func (c *checker) checkPackages() []string {
	var production []string
	for _, dir := range slices.Sorted(maps.Keys(c.packages)) {
		p := c.packages[dir]
		if _, ok := c.rooms[dir]; !ok {
			c.problemf("%s: package %s has no room: move its code to the room it belongs to, "+
				"or add a row to rooms in rooms_test.go that says what it may import", dir, p.name)
		}
		for _, name := range append(strings.Split(dir, "/"), p.name) {
			if vague.MatchString(name) {
				c.problemf("%s: %q says nothing about what the package holds: name it after that", dir, name)
				break
			}
		}
		if !p.production {
			continue
		}
		production = append(production, dir)
		if !p.documented {
			c.problemf("%s: package %s has no package comment: say above a package clause what it promises", dir, p.name)
		}
	}
	return production
}

// vague matches names of packages that become attics.
var vague = regexp.MustCompile(`(?i)(util|helper|common|manager)s?$`)

// target is an import path as the rows spell it, where packages of this module
// are relative to its root, and whether it is of the standard library.
func target(imported string) (to string, standard bool) {
	if imported == module {
		return ".", false
	}
	if rel, ok := strings.CutPrefix(imported, module+"/"); ok {
		return rel, false
	}
	return imported, !thirdParty(imported)
}

// thirdParty says whether a path begins with a host, as the paths of other
// modules do.
func thirdParty(to string) bool {
	host, _, _ := strings.Cut(to, "/")
	return host != "." && strings.Contains(host, ".")
}

// good is a small tree without a fault. The cases below spoil it.
var good = map[string]string{
	"go.mod":                       "module " + module + "\n",
	"doc.go":                       "// Package jetbus is documented.\npackage jetbus\n",
	"event.go":                     source("jetbus", "time", "github.com/google/uuid"),
	"event_test.go":                source("jetbus_test", "testing", module, module+"/embedded/bustest"),
	"adapter/adapter.go":           "// Package adapter is documented.\n" + source("adapter", module, "github.com/nats-io/nats.go/jetstream"),
	"adapter/in_test.go":           source("adapter", "testing", module+"/embedded", "github.com/google/go-cmp/cmp", "pgregory.net/rapid"),
	"embedded/bustest/contract.go": "// Package bustest is documented.\n" + source("bustest", "testing", "testing/synctest", module+"/adapter"),
	"cmd/jetbus/main.go":           "// Command jetbus is documented.\n" + source("main", module+"/adapter", "github.com/spf13/cobra"),
	"adapter/testdata/bad.go":      "not Go",
	"adapter/_old.go":              "not Go",
	".cache/bad.go":                "not Go",
	"e2e/go.mod":                   "module " + module + "/e2e\n",
	"e2e/bench/main.go":            source("main", "github.com/some/peer"),
}

// source is a file of package name with the given imports.
func source(name string, imports ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n\n", name)
	for _, i := range imports {
		fmt.Fprintf(&b, "import _ %q\n", i)
	}
	return b.String()
}

// lines is a function of n lines.
func lines(n int) string {
	return "func f() {\n" + strings.Repeat("\t_ = 0\n", n-2) + "}\n"
}

// treeCases spoil the good tree by one file each.
var treeCases = []struct {
	name, file, src string
	want            []string // the problem's parts; none if the tree is still good
}{
	{name: "good tree", file: "errors.go", src: source("jetbus", "errors")},
	{
		"heavy import in the root", "nats.go", source("jetbus", "fmt", "github.com/nats-io/nats.go"),
		[]string{"nats.go:4:8: imports github.com/nats-io/nats.go,", `the room "." may not (may: adapter, adapter/adaptertest, adapter/ce, cmd/jetbus,`, "move the code", "rooms_test.go"},
	},
	{
		"sibling of a listed package", "adapter/micro.go", source("adapter", "github.com/nats-io/nats.go/micro"),
		[]string{"adapter/micro.go:3:8: imports github.com/nats-io/nats.go/micro,", `"adapter"`},
	},
	{
		"path that only begins like a listed one", "gateway/ws.go", "// Package gateway is documented.\n" + source("gateway", "github.com/coder/websocketry"),
		[]string{"gateway/ws.go:4:8: imports github.com/coder/websocketry,", "(no room may)"},
	},
	{
		"arrow away from the root", "bus.go", source("jetbus", module+"/adapter"),
		[]string{"bus.go:3:8: imports " + module + "/adapter,", `"."`},
	},
	{
		"nested module", "cmd/jetbus/bench.go", source("main", module+"/e2e/bench"),
		[]string{"cmd/jetbus/bench.go:3:8: imports " + module + "/e2e/bench,", "(no room may)"},
	},
	{
		"testing in production", "adapter/check.go", source("adapter", "testing"),
		[]string{"adapter/check.go:3:8: imports testing in production code", "_test.go"},
	},
	{
		"a package of testing in production", "cmd/jetbus/time.go", source("main", "testing/synctest"),
		[]string{"cmd/jetbus/time.go:3:8: imports testing/synctest in production code"},
	},
	{
		"kit in production", "cmd/jetbus/kit.go", source("main", module+"/embedded/bustest"),
		[]string{"cmd/jetbus/kit.go:3:8: imports " + module + "/embedded/bustest, a kit for tests"},
	},
	{
		"heavy import in a test", "partition/p_test.go", source("partition_test", module+"/partition", "github.com/nats-io/nats.go"),
		[]string{"partition/p_test.go:4:8: imports github.com/nats-io/nats.go,", `tests of the room "partition" may not`, "e2e"},
	},
	{
		"kit in an internal test", "partition/p_test.go", source("partition", module+"/embedded/bustest"),
		[]string{"partition/p_test.go:3:8: imports " + module + "/embedded/bustest in package partition", "package partition_test"},
	},
	{
		"no room", "somewhere/new/new.go", "// Package fresh is documented.\n" + source("fresh", "github.com/some/thing"),
		[]string{"somewhere/new: package fresh has no room", "add a row"},
	},
	{
		"no package comment", "outbox/outbox.go", source("outbox", "database/sql"),
		[]string{"outbox: package outbox has no package comment"},
	},
	{
		"vague name", "embedded/net.go", "// Package netutils is documented.\n" + source("netutils"),
		[]string{`embedded: "netutils" says nothing`},
	},
	{
		"file at the limit", "long.go", source("jetbus") + strings.Repeat("//\n", maxFileLines-2),
		nil,
	},
	{
		"file over the limit", "long.go", source("jetbus") + strings.Repeat("//\n", maxFileLines-1),
		[]string{"long.go: 601 lines, at most 600 (aim for 500)", "split"},
	},
	{name: "long test file", file: "long_test.go", src: source("jetbus") + lines(maxFileLines+1)},
	{name: "function at the limit", file: "f.go", src: source("jetbus") + "// f is\n// documented.\n" + lines(maxFuncLines)},
	{
		"function over the limit", "f.go", source("jetbus") + lines(maxFuncLines+1),
		[]string{"f.go:3: func f has 101 lines, at most 100 (aim for 80)"},
	},
	{
		"broken file", "adapter/broken.go", "package adapter\n\nfunc {\n",
		[]string{"adapter/broken.go:3:", "does not parse"},
	},
}

func TestCheckTree(t *testing.T) {
	for _, tt := range treeCases {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			writeTree(t, dir, good)
			writeTree(t, dir, map[string]string{tt.file: tt.src})
			problems, _, err := checkTree(dir, rooms)
			if err != nil {
				t.Fatal(err)
			}
			if len(tt.want) == 0 && len(problems) != 0 || len(tt.want) != 0 && len(problems) != 1 {
				t.Fatalf("problems = %q, want one of %q", problems, tt.want)
			}
			for _, part := range tt.want {
				if !strings.Contains(problems[0], part) {
					t.Errorf("problem %q lacks %q", problems[0], part)
				}
			}
		})
	}
}

func TestCheckTreeFindsPackages(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, good)
	_, packages, err := checkTree(dir, rooms)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{".", "adapter", "cmd/jetbus", "embedded/bustest"}
	if !slices.Equal(packages, want) {
		t.Errorf("packages = %q, want %q", packages, want)
	}
	if _, _, err := checkTree(filepath.Join(dir, "absent"), rooms); err == nil {
		t.Error("a tree that does not exist passes")
	}
}

func TestCheckRows(t *testing.T) {
	problems := checkRows(map[string]room{
		".":       {heavy: []string{"example.com/m"}, tests: []string{"example.com/m"}},
		"adapter": {rooms: []string{".", "adapterr"}, tests: []string{"kit"}},
		"cmd/x":   {rooms: []string{everyRoom}},
	})
	if len(problems) != 2 || !strings.Contains(problems[0], `"adapterr"`) || !strings.Contains(problems[1], `"kit"`) {
		t.Errorf("problems = %q, want one for adapterr and one for kit", problems)
	}
}

func writeTree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, src := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(src), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
