package outbox

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
)

func TestRebind(t *testing.T) {
	for query, want := range map[string]string{"": "", "a = ?": "a = $1", "?, ? and ?": "$1, $2 and $3"} {
		if got := dialects[PostgreSQL].rebind(query); got != want {
			t.Errorf("rebind(%q) = %q, want %q", query, got, want)
		}
		if got := dialects[SQLite].rebind(query); got != query {
			t.Errorf("rebind(%q) = %q for SQLite", query, got)
		}
	}
	if strings.Contains(schemaText, "?") {
		t.Error("the schema has a question mark, which is a parameter")
	}
}

func TestTableNames(t *testing.T) {
	for _, c := range []struct {
		d     Dialect
		table string
		ok    bool
	}{
		{SQLite, "", true},
		{SQLite, "shop_outbox2", true},
		{SQLite, "shop.outbox", false},
		{PostgreSQL, "shop.outbox", true},
		{PostgreSQL, "a.b.c", false},
		{PostgreSQL, "Outbox", false},
		{PostgreSQL, `o"; DROP TABLE x`, false},
		{PostgreSQL, "2", false},
		{PostgreSQL, strings.Repeat("x", maxTable), true},
		{PostgreSQL, strings.Repeat("x", maxTable+1), false},
		{"oracle", "outbox", false},
	} {
		text, err := Schema(c.d, c.table)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("Schema(%s, %q): error %v", c.d, c.table, err)
		}
		if c.ok && strings.Contains(text, "{") {
			t.Errorf("Schema(%s, %q) has a place that is not filled in:\n%s", c.d, c.table, text)
		}
	}
}

// FuzzRecord reads columns that anybody may have written.
func FuzzRecord(f *testing.F) {
	f.Add("", "", "")
	f.Add(`{"x-shop":"north"}`, `["a"]`, `["b","c"]`)
	f.Add(`[]`, `{}`, `null`)
	f.Add(`{"a":1}`, `[1]`, "\xff")
	f.Fuzz(func(t *testing.T, headers, causedBy, tags string) {
		r := record{pos: 1, id: "1", topic: "orders", headers: text(headers), causedBy: text(causedBy), tags: text(tags)}
		e, err := r.event()
		if err != nil {
			if !errors.Is(err, jetbus.ErrInvalidEvent) {
				t.Fatalf("error %v is not ErrInvalidEvent", err)
			}
			return
		}
		if e.Validate() != nil || !utf8.ValidString(headers+causedBy+tags) {
			return // for the drainer to judge
		}
		for column, v := range map[string]struct {
			text string
			v    any
			n    int
		}{"headers": {headers, e.Headers, len(e.Headers)}, "caused_by": {causedBy, e.CausedBy, len(e.CausedBy)}, "tags": {tags, e.Tags, len(e.Tags)}} {
			if _, err := textOf(v.v, v.n); err != nil {
				t.Fatalf("column %s: %q was read and cannot be written: %v", column, v.text, err)
			}
		}
	})
}
