package main

import (
	"context"
	"os"
	"strings"
	"testing"
)

// An interrupt that comes while a command still connects and opens is an end in order,
// for each command that works until it is interrupted.
func TestInterruptedAtStart(t *testing.T) {
	t.Parallel()
	b, o := newMongoBench(t), newSQLiteBench(t)
	b.ok(t, "", "topics", "create", "orders.paid")
	for name, args := range map[string][]string{
		"outbox":     {"outbox", "run", "--db", o.uri},
		"project":    {"project", "orders.paid", "--mongo", b.uri},
		"changefeed": {"changefeed", "run", "--mongo", b.uri, "--db", b.db.Name(), "--collection", "orders", "--topic", "orders.changed"},
		"sub":        {"sub", "orders.paid"},
		"serve":      {"serve", "--dir", t.TempDir(), "--listen", "127.0.0.1:0"},
		"dev":        {"dev", "--listen", "127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "serve" && name != "dev" { // which are servers themselves, and refuse it
				args = append([]string{"--server", b.url}, args...)
			}
			r := begin(t, nil, args...)
			if code := r.end(); code != 0 || strings.Contains(r.err.String(), context.Canceled.Error()) {
				t.Errorf("exit code %d: %s", code, r.err)
			}
		})
	}

	// A rebuild that is not done is a failure all the same.
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	out := newBuffer()
	if code := run(ctx, []string{"--server", b.url, "project", "orders.paid", "--mongo", b.uri, "--rebuild"}, strings.NewReader(""), out, out, func(string) string { return "" }); code == 0 {
		t.Errorf("exit code 0: %s", out)
	}
}

// An interrupt does not wait for the end of standard input, of which nothing may ever come.
func TestInterruptedWhileReading(t *testing.T) {
	t.Parallel()
	const unread = "jetbus: interrupted before the end of standard input: nothing was "
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"project --file -", "", 0},
		{"changefeed run --file -", "", 0},
		{"project --file - --rebuild", unread + "begun\n", exitFailure},
		{"schema register orders -", unread + "done\n", exitFailure},
		{"schema check --jsonl", "jetbus: interrupted before the end of standard input: 0 pairs answered\n", exitFailure},
		{"schema check - " + file(t, "new.json", nameSchema), unread + "done\n", exitFailure},
	} {
		t.Run(c.args, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			reading := beginReading(t, r, nil, strings.Fields(c.args)...)
			if code := reading.end(); code != c.code || reading.err.String() != c.says {
				t.Errorf("exit code %d, %q, want %d, %q", code, reading.err, c.code, c.says)
			}
		})
	}
}
