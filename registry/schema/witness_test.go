package schema

import (
	"strings"
	"testing"
)

// Looking up one of many properties does not go through all of them: the search
// does so for each property of each value that it makes.
func TestPropertySchemasOfAWideObject(t *testing.T) {
	var wide strings.Builder
	for i := range 900 {
		wide.WriteString(`"p` + itoa(i) + `":{"type":"string"},`)
	}
	docs := documentsOf(compiled(t, `{"properties":{`+wide.String()+`"z":{}}}`))
	g := newGenerator(docs, docs, false, 1)
	flat := []spot{docs.root}
	if n := testing.AllocsPerRun(10, func() {
		if out, open := g.propertySchemas(flat, "p7"); len(out) != 1 || !open {
			t.Errorf("propertySchemas: %v, %v", out, open)
		}
	}); n > 1 {
		t.Errorf("%v allocations, want only that of the list of schemas", n)
	}
}
