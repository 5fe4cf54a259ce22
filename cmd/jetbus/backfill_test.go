package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus/registry"
)

const (
	sumSchema   = `{"type":"object","properties":{"sum":{"type":"integer"}},"required":["sum"],"additionalProperties":false}`
	totalSchema = `{"type":"object","properties":{"total":{"type":"integer"}},"required":["total"],"additionalProperties":false}`
	totalEdits  = `{"orders":{"1":{"rename":{"sum":"total"}}}}`
)

// backfillBench is a bench with a topic of n orders of version 1, one of which is
// broken, whose latest version is 2.
func backfillBench(t *testing.T, n int) *bench {
	t.Helper()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "orders")
	b.ok(t, "", "topics", "create", "orders.total")
	b.ok(t, sumSchema, "schema", "register", "orders", "-")
	b.ok(t, totalSchema, "schema", "register", "orders", "-", "--force", "--by", "test")
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, `{"sum":%d}`+"\n", i)
	}
	b.ok(t, lines.String(), "pub", "orders", "--lines", "--header", "x-schema-version=1")
	b.ok(t, "", "pub", "orders", `{"sum":"much"}`, "--header", "x-schema-version=1", "--id", "broken")
	return b
}

func TestBackfill(t *testing.T) {
	t.Parallel()
	b := backfillBench(t, 30)
	edits := file(t, "edits.json", totalEdits)
	r := b.run(t, "", "backfill", "orders", "orders.total", "--upcasters", edits, "--dry-run")
	if r.code != exitPartial || !strings.Contains(r.out, "30 events of orders would be written to orders.total, 1 invalid") || !strings.Contains(r.out, "31   broken  ") {
		t.Errorf("dry run: %+v", r)
	}
	b.shows(t, "orders.total  0", "topics")
	r = b.run(t, "", "backfill", "orders", "orders.total", "--upcasters", edits, "--limit", "12", "--rate", "10000", "-o", "ndjson")
	var s registry.BackfillStats
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || r.code != 0 || s.Written != 12 || s.Finished {
		t.Errorf("limited: %+v, %v", r, err)
	}
	r = b.run(t, "", "backfill", "orders", "orders.total", "--upcasters", edits)
	if r.code != exitPartial || !strings.Contains(r.out, "30 events of orders written to orders.total, 1 invalid") || !strings.Contains(r.errOut, "1 event of orders could not be brought to the version") {
		t.Errorf("the rest: %+v", r)
	}
	out := b.ok(t, "", "sub", "orders.total", "--from", "earliest", "--limit", "30")
	if strings.Count(out, `{"total":`) != 30 || !strings.Contains(out, `{"total":29}`) {
		t.Errorf("orders.total has:\n%s", out)
	}
	r = b.run(t, "", "backfill", "orders", "orders.total", "--upcasters", edits)
	if r.code != exitPartial || !strings.Contains(r.out, "was finished before; use another --name to do it again\n30 events of orders written to orders.total") {
		t.Errorf("once more: %+v", r)
	}
	b.fails(t, exitConflict, "use another Name", "", "backfill", "orders", "orders.total", "--since", "1h")
}

func TestBackfillRefuses(t *testing.T) {
	t.Parallel()
	b := backfillBench(t, 1)
	edits := file(t, "edits.json", totalEdits)
	for args, want := range map[string]string{
		"orders":                                     "1 argument given",
		"orders orders":                              "From and To are both orders",
		"Orders+ b":                                  "invalid topic",
		"orders orders.total -o yaml":                `--output "yaml"`,
		"orders orders.total --since never":          `--since: "never" is no time`,
		"orders orders.total --rate -1":              "Rate is -1",
		"orders orders.total --limit -1":             `"--limit" flag: use 1 or more`,
		"orders orders.total --upcasters /no/no":     "--upcasters",
		"payments orders.total --upcasters " + edits: "there is no edit for payments",
		"orders orders.total --upcasters " + file(t, "bad.json", `{"orders":{"1":{"raname":{}}}}`): "raname",
	} {
		b.fails(t, exitUsage, want, "", append([]string{"backfill"}, strings.Fields(args)...)...)
	}
	b.fails(t, exitNotFound, "no such topic", "", "backfill", "orders", "nowhere", "--upcasters", edits)
	if r := command(t, "", "backfill", "-h"); r.code != 0 || !strings.Contains(r.out, "Examples:") {
		t.Errorf("%+v", r)
	}
}
