package main

import (
	"strings"
	"testing"
)

// The suite of the outbox on a real PostgreSQL is in e2e; here it is the driver, and what
// is said where nobody answers.
func TestOutboxPostgres(t *testing.T) {
	for _, c := range []struct{ uri, want string }{
		{"postgres://shop:geheim@127.0.0.1:1/shop", "connect to the database: "},
		{"postgresql://127.0.0.1:1/shop?user=shop&password=geheim", "connect to the database: "},
		{"postgres://shop:geheim with space@127.0.0.1:1/shop", "connect to the database: "},
	} {
		r := command(t, "", "outbox", "stats", "--db", c.uri)
		if r.code != exitFailure || !strings.Contains(r.errOut, c.want) || strings.Contains(r.errOut, "unknown driver") ||
			!strings.Contains(r.errOut, "check --db") || strings.Contains(r.errOut, "geheim") || strings.Count(r.errOut, "\n") != 1 {
			t.Errorf("%s: %+v", c.uri, r)
		}
	}
}
