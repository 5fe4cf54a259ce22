package mongosink_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// rows are the concerns of a projection into MongoDB. Each has a test or more, here
// or in package projector, with its number in the name: TestA8Row04Race.
var rows = [...]string{
	1:  "a batch is folded, and acknowledged when all of it is stored",
	2:  "a guard lets only newer events through, by version where there are versions",
	3:  "a state replaces the one before, with the fields it no longer has",
	4:  "a duplicate key is a lost race, or another's document, or another index",
	5:  "what a bulk has stored in part, or not for good, is written again",
	6:  "what the network lost is written again without harm",
	7:  "a crash between write and ack repeats and changes nothing",
	8:  "several replicas out of order do not bring a deleted key back",
	9:  "readers do not see deleted keys",
	10: "a topic that was made anew is refused, not stale for ever",
	11: "indexes are made once, conflicts named",
	12: "a rebuild swaps a complete collection into the place of the old one",
	13: "an event that cannot be mapped is a dead letter",
	14: "a document that MongoDB does not store is a dead letter",
	15: "what is acknowledged survives a failover",
	16: "several sources share a collection without touching each other's keys",
	17: "the lag is known",
}

// TestEveryRowHasATest finds the tests of the rows by their names.
func TestEveryRowHasATest(t *testing.T) {
	name := regexp.MustCompile(`^TestA8Row(\d+)[A-Z]`)
	tests := map[int]int{}
	for _, pattern := range []string{"*_test.go", "../*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no tests in %s: %v", pattern, err)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range parsed.Decls {
				f, ok := decl.(*ast.FuncDecl)
				if !ok || f.Recv != nil {
					continue
				}
				if m := name.FindStringSubmatch(f.Name.Name); m != nil {
					n, _ := strconv.Atoi(m[1])
					tests[n]++
				}
			}
		}
	}
	for n, concern := range rows {
		if n > 0 && tests[n] == 0 {
			t.Errorf("row %d has no test: %s", n, concern)
		}
		delete(tests, n)
	}
	for n := range tests {
		t.Errorf("there is a test of row %d, and no such row", n)
	}
}
