package jetbus_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ofOthers are names of ARCHITECTURE.md that are not ours: nats-server's.
var ofOthers = []string{"consumer.deliverMsg", "pmsg.ts"}

// TestArchitectureNames finds the names of Go that ARCHITECTURE.md speaks of in the source: what
// is renamed there is renamed here.
func TestArchitectureNames(t *testing.T) {
	known := identifiers(t)
	named := regexp.MustCompile("`([A-Za-z_]\\w*(?:\\.[A-Za-z_]\\w*)*)(?:\\(\\))?`")
	inWords := regexp.MustCompile(`[a-z][A-Z]|^[A-Z][a-z]`) // of several words, or exported: others may be words of another language
	n := 0
	for _, m := range named.FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1) {
		if slices.Contains(ofOthers, m[1]) {
			continue
		}
		for part := range strings.SplitSeq(m[1], ".") {
			if !inWords.MatchString(part) {
				continue
			}
			if n++; !known[part] {
				t.Errorf("ARCHITECTURE.md speaks of %s, and there is no %s in the source", m[1], part)
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d names were found", n)
	}
}

var words = regexp.MustCompile(`[A-Za-z_]\w*`)

// identifiers are all names that the source uses.
func identifiers(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var s scanner.Scanner
		fset := token.NewFileSet()
		s.Init(fset.AddFile(path, fset.Base(), len(text)), text, nil, 0)
		for {
			_, tok, lit := s.Scan()
			if tok == token.EOF {
				return nil
			}
			switch tok { //nolint:exhaustive // those that hold names
			case token.IDENT:
				known[lit] = true
			case token.STRING: // names on the wire
				for _, word := range words.FindAllString(lit, -1) {
					known[word] = true
				}
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return known
}
