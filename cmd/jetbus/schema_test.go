package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus/registry"
)

// fails runs a command that must fail with a code and one line that says something.
func (b *bench) fails(t *testing.T, code int, want, stdin string, args ...string) {
	t.Helper()
	r := b.run(t, stdin, args...)
	if r.code != code || !strings.Contains(r.errOut, want) || strings.Count(r.errOut, "\n") != 1 {
		t.Errorf("jetbus %s: exit code %d, %q, want %d with one line that says %q", strings.Join(args, " "), r.code, r.errOut, code, want)
	}
}

// shows runs a command that must succeed and say something.
func (b *bench) shows(t *testing.T, want string, args ...string) {
	t.Helper()
	if out := b.ok(t, "", args...); !strings.Contains(out, want) {
		t.Errorf("jetbus %s: no %q in:\n%s", strings.Join(args, " "), want, out)
	}
}

func TestSchemaRegister(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	name, longer, more := file(t, "a.json", nameSchema), file(t, "b.json", longNameSchema), file(t, "c.json", moreSchema)
	if r := b.run(t, "", "schema"); r.code != 0 || r.out != "" || !strings.Contains(r.errOut, "no topic has a schema") {
		t.Errorf("%+v", r)
	}
	b.fails(t, exitNotFound, "see jetbus schema ls", "", "schema", "get", "orders")
	b.shows(t, "orders would be version 1: there was nothing to compare it with", "schema", "register", "orders", name, "--dry-run")
	b.shows(t, "orders is version 1: there was nothing to compare it with", "schema", "register", "orders", name, "--by", "ci")
	b.shows(t, "orders is already version 1", "schema", "register", "orders", name)
	b.shows(t, "orders is version 2: compatible (level backward, model strict)", "schema", "register", "orders", more, "--metadata", "ticket=7", "--metadata", "a=b=c")
	b.fails(t, exitConflict, `{"name":""}`, "", "schema", "register", "orders", longer)
	b.fails(t, exitUsage, "--force without --by", "", "schema", "register", "orders", longer, "--force")
	b.fails(t, exitUsage, "register orders: invalid schema", "{", "schema", "register", "orders", "-")
	b.shows(t, "orders is version 3: forced by ann", "schema", "register", "orders", longer, "--force", "--by", "ann")

	if out := b.ok(t, "", "schema", "get", "orders", "1"); out != nameSchema+"\n" {
		t.Errorf("get: %q", out)
	}
	if out := b.ok(t, "", "schema", "get", "orders", "latest"); out != longNameSchema+"\n" {
		t.Errorf("get latest: %q", out)
	}
	var v registry.Version
	if err := json.Unmarshal([]byte(b.ok(t, "", "schema", "get", "orders", "2", "-o", "json")), &v); err != nil || v.Number != 2 || v.Metadata["a"] != "b=c" || v.Text != moreSchema {
		t.Errorf("%+v, %v", v, err)
	}
	rows := strings.Split(b.ok(t, "", "schema", "ls", "orders"), "\n")
	for i, want := range []string{"VERSION", "first", "proved", "forced"} {
		if !strings.Contains(rows[i], want) {
			t.Errorf("row %d: %q, want %s", i, rows[i], want)
		}
	}
	b.shows(t, "orders  3       3         backward  strict", "schema", "ls")
	b.shows(t, `"versions":3`, "schema", "ls", "-o", "ndjson")
	b.shows(t, "forward: this event is valid now, and whoever reads with the old schema refuses it: {\"name\":\"\"}", "schema", "diff", "orders", "3", "1")
}

func TestSchemaCheckTopic(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	name, longer, more := file(t, "a.json", nameSchema), file(t, "b.json", longNameSchema), file(t, "c.json", moreSchema)
	b.shows(t, "topic orders has no schema yet: this would be its version 1\n", "schema", "check", "--topic", "orders", name, "--allow-new")
	b.shows(t, `"compatible":true`, "schema", "check", "--topic", "orders", name, "-o", "ndjson", "--allow-new")
	for _, output := range []string{"table", "ndjson"} {
		b.fails(t, exitNotFound, "no such topic or schema: typo", "", "schema", "check", "--topic", "typo", name, "-o", output)
	}
	b.fails(t, exitNotFound, "versions of orders: no schema", "", "schema", "ls", "orders")
	b.ok(t, "", "schema", "register", "orders", name)
	b.shows(t, "there is nothing to compare with under level none", "schema", "check", "--topic", "orders", more, "--level", "none")
	b.ok(t, "", "schema", "register", "gone", name)
	b.ok(t, "", "schema", "rm", "gone", "1", "--yes")
	b.shows(t, "topic gone has no schema that is not deleted: this would be its version 2\n", "schema", "check", "--topic", "gone", more)
	b.fails(t, exitNotFound, "versions of gone: no schema", "", "schema", "ls", "gone", "-o", "json")
	b.shows(t, "deleted", "schema", "ls", "gone", "--deleted")
	b.shows(t, "version 1, backward: compatible", "schema", "check", "--topic", "orders", more)
	r := b.run(t, "", "schema", "check", "--topic", "orders", longer)
	if r.code != exitFailure || !strings.Contains(r.out, "version 1, backward: this event was valid before and is not now") || !strings.Contains(r.errOut, "is not compatible with orders (level backward, model strict)") {
		t.Errorf("%+v", r)
	}
	r = b.run(t, "", "schema", "check", "--topic", "orders", more, "--level", "full", "-o", "ndjson")
	var view reportView
	if err := json.Unmarshal([]byte(r.out), &view); err != nil || r.code != exitFailure || view.Compatible || len(view.Comparisons) != 2 || view.Comparisons[1].Direction != registry.Forward || view.Comparisons[1].Witness == nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestSchemaConfig(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	setting := func(want string, args ...string) {
		t.Helper()
		out := b.ok(t, "", append([]string{"schema", "config"}, args...)...)
		if words := strings.Join(strings.Fields(out), " "); !strings.Contains(words, want) {
			t.Errorf("config %q: no %q in:\n%s", args, want, out)
		}
	}
	setting("level backward default")
	setting("level full topic", "orders", "--level", "full")
	setting("level backward_transitive default", "--model", "declared")
	setting("model declared global", "orders")
	setting("assume-version 3 topic", "orders", "--assume-version", "3", "--mode", "readonly")
	setting("mode readonly topic", "orders")
	b.fails(t, exitConflict, "read-only", nameSchema, "schema", "register", "orders", "-")
	setting("level backward_transitive default", "orders", "--level", "inherit", "--mode", "inherit")
	setting(`"effective":{"level":"backward_transitive","model":"declared","mode":"readwrite","assume_version":3}`, "orders", "-o", "ndjson")
	for args, want := range map[string]string{
		"orders --level most":       "no such compatibility level",
		"orders --model x":          "no such model",
		"orders --mode x":           "no such mode",
		"orders --assume-version x": "--assume-version",
		"orders --assume-version 0": "--assume-version",
		"orders --level=":           "the value is missing",
		"a b":                       "2 arguments given",
		"or/ders":                   "invalid topic",
		"orders --bucket SCH.MAS":   "Bucket",
		"orders --timeout 0s":       "--timeout",
	} {
		b.fails(t, exitUsage, want, "", append([]string{"schema", "config"}, strings.Fields(args)...)...)
	}
}

// unreadable puts settings of a newer release at a key.
func (b *bench) unreadable(t *testing.T, key string) {
	t.Helper()
	b.request(t, "$KV.SCHEMAS."+key, `{"level":"of the future"}`)
}

// Settings of a newer release are not changed as if they had been read, and can be replaced.
func TestSchemaConfigUnreadable(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, nameSchema, "schema", "register", "orders", "-")
	for topic, key := range map[string]string{"orders": "s.orders.c", "": "g.c"} {
		b.unreadable(t, key)
		config := append([]string{"schema", "config"}, strings.Fields(topic)...)
		b.fails(t, exitFailure, "unreadable record", "", config...)
		b.fails(t, exitFailure, "replace them as a whole", "", append(config, "--level", "full")...)
		b.fails(t, exitFailure, "unreadable record", "", "schema", "export")
		b.shows(t, "full", append(config, "--level", "full", "--model", "inherit", "--mode", "inherit", "--assume-version", "2")...)
		b.shows(t, `"assume_version":2`, "schema", "export")
	}
}

// While the global settings cannot be read, those of a topic are not changed either: nothing is
// stored by a command that fails.
func TestSchemaConfigGlobalUnreadable(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, nameSchema, "schema", "register", "orders", "-")
	b.unreadable(t, "g.c")
	whole := []string{"--level", "full", "--model", "declared", "--mode", "readonly", "--assume-version", "1"}
	for _, flags := range [][]string{{"--level", "full"}, whole} {
		b.fails(t, exitFailure, "set orders: global settings: ", "", append([]string{"schema", "config", "orders"}, flags...)...)
	}
	b.ok(t, "", "schema", "config", "--level", "none", "--model", "inherit", "--mode", "inherit", "--assume-version", "inherit")
	b.shows(t, `"own":{}`, "schema", "config", "orders", "-o", "ndjson")
	b.shows(t, `"own":{"level":"full"}`, "schema", "config", "orders", "--level", "full", "-o", "ndjson")
}

func TestSchemaRemove(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, nameSchema, "schema", "register", "orders", "-")
	b.ok(t, moreSchema, "schema", "register", "orders", "-")
	b.ok(t, `{"$ref":"schema://orders/1"}`, "schema", "register", "refunds", "-")
	b.fails(t, exitUsage, "version 2 of orders would be deleted; add --yes", "", "schema", "rm", "orders", "2")
	b.fails(t, exitUsage, "2 versions of orders would be deleted; add --yes", "", "schema", "rm", "orders")
	b.fails(t, exitNotFound, "no such version", "", "schema", "rm", "orders", "9", "--yes")
	b.fails(t, exitConflict, "referred to by schema://refunds/1", "", "schema", "rm", "orders", "1", "--yes")
	b.fails(t, exitConflict, "not deleted yet", "", "schema", "rm", "orders", "2", "--hard", "--yes")
	b.shows(t, "deleted version 2 of orders", "schema", "rm", "orders", "2", "--yes")
	b.shows(t, "deleted", "schema", "ls", "orders", "--deleted")
	if out := b.ok(t, "", "schema", "get", "orders", "2"); out != moreSchema+"\n" {
		t.Errorf("a deleted version: %q", out)
	}
	b.fails(t, exitUsage, "version 2 of orders would be erased", "", "schema", "rm", "orders", "2", "--hard")
	b.shows(t, "erased version 2 of orders", "schema", "rm", "orders", "2", "--hard", "--yes")
	b.fails(t, exitNotFound, "deleted for good", "", "schema", "get", "orders", "2")
	b.shows(t, "deleted version 1 of refunds", "schema", "rm", "refunds", "--yes")
}

func TestSchemaDiff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, nameSchema, "schema", "register", "orders", "-")
	b.ok(t, moreSchema, "schema", "register", "orders", "-")
	want := `  ...
    "additionalProperties": false,
    "properties": {
+     "n": {
+       "type": "integer"
+     },
      "name": {
        "type": "string"
  ...

backward: compatible: whatever the old schema accepts, the new one accepts

forward: this event is valid now, and whoever reads with the old schema refuses it: `
	if out := b.ok(t, "", "schema", "diff", "orders", "1", "2"); !strings.HasPrefix(out, want) {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	b.shows(t, "the texts do not differ", "schema", "diff", "orders", "2", "2")
	b.shows(t, `"direction":"forward","verdict":"proved"`, "schema", "diff", "orders", "v1", "v2", "--model", "declared", "-o", "ndjson")
	b.shows(t, "backward (of events from before the declared model, which may have any property): compatible", "schema", "diff", "orders", "v1", "v2", "--model", "declared")
	b.fails(t, exitNotFound, "no such version", "", "schema", "diff", "orders", "1", "3")
	b.fails(t, exitUsage, `"x" is no version`, "", "schema", "diff", "orders", "1", "x")
}

func TestSchemaDiffLines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ older, newer, want string }{
		{"a", "a", ""},
		{"a", "b", "- a\n+ b\n"},
		{"a b c", "a c", "  a\n- b\n  c\n"},
		{"", "a", "- \n+ a\n"},
		{"1 2 3 4 5 6 7 8", "1 2 3 4 x 5 6 7 8", "  ...\n  3\n  4\n+ x\n  5\n  6\n  ...\n"},
		{"a b 1 2 3 4 5 c", "b 1 2 3 4 5 d", "- a\n  b\n  1\n  ...\n  4\n  5\n- c\n+ d\n"},
	} {
		if got := diff(strings.Split(tt.older, " "), strings.Split(tt.newer, " ")); got != tt.want {
			t.Errorf("diff of %q and %q:\n%s\nwant\n%s", tt.older, tt.newer, got, tt.want)
		}
	}
}

func TestSchemaExportImport(t *testing.T) {
	t.Parallel()
	from, to := newBench(t), newBench(t)
	from.ok(t, nameSchema, "schema", "register", "orders", "-", "--by", "ci")
	from.ok(t, moreSchema, "schema", "register", "orders", "-")
	from.ok(t, "", "schema", "rm", "orders", "1", "--yes")
	from.ok(t, "", "schema", "config", "orders", "--level", "full")
	name := filepath.Join(t.TempDir(), "schemas.ndjson")
	from.ok(t, "", "schema", "export", name)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if out := from.ok(t, "", "schema", "export"); out != string(text) {
		t.Errorf("to standard output:\n%s\nto the file:\n%s", out, text)
	}
	to.shows(t, "would be written, 0 there already", "schema", "import", name, "--dry-run")
	if r := to.run(t, "", "schema", "ls"); r.out != "" {
		t.Errorf("a dry run has written: %s", r.out)
	}
	to.shows(t, "written, 0 there already", "schema", "import", name)
	to.shows(t, "0 records written", "schema", "import", name)
	if out := to.ok(t, "", "schema", "export"); out != string(text) {
		t.Errorf("the copy:\n%s\nthe original:\n%s", out, text)
	}
	to.fails(t, exitUsage, "invalid export", string(text[:len(text)/2]), "schema", "import", "-")
	to.fails(t, exitConflict, "orders", strings.Replace(string(text), "ci", "cd", 1), "schema", "import", "-")
	to.fails(t, exitUsage, "there is no file /does/not/exist", "", "schema", "import", "/does/not/exist")
	to.fails(t, exitUsage, "no such file", "", "schema", "export", "/does/not/exist")
}

func TestSchemaHelp(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", "ls", "get", "register", "check", "diff", "config", "rm", "export", "import"} {
		if r := command(t, "", append([]string{"schema"}, strings.Fields(args+" -h")...)...); r.code != 0 || !strings.Contains(r.out, "Examples:") {
			t.Errorf("jetbus schema %s -h: %+v", args, r)
		}
	}
	// The declared model is not transitive: an example that sets it keeps a level that is.
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	const example = "jetbus schema config orders.created --level full_transitive --model declared\n"
	if help := command(t, "", "schema", "-h").out; !strings.Contains(help, example) || !strings.Contains(string(readme), example) {
		t.Errorf("the examples of the help and of README.md are not both %s", example)
	}
	for args, want := range map[string]string{
		"nonsense":                  `schema has no command "nonsense"`,
		"get":                       "0 arguments given",
		"get a 0":                   `"0" is no version`,
		"register a - --metadata x": `--metadata "x"`,
		"ls -o yaml":                `--output "yaml"`,
		"rm a x --yes":              `"x" is no version`,
		"rm a --yes -o json":        "--output says nothing to jetbus schema rm",
		"export -o json":            "--output says nothing to jetbus schema export",
	} {
		r := command(t, "", append([]string{"schema"}, strings.Fields(args)...)...)
		if r.code != exitUsage || !strings.Contains(r.errOut, want) || strings.Count(r.errOut, "\n") != 1 {
			t.Errorf("jetbus schema %s: %+v, want one line that says %q", args, r, want)
		}
	}
}
