package check

import (
	"bytes"
	"go/ast"
	"go/token"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// silence is where nothing is to be said.
type silence struct {
	tests     map[string]bool // files that are not looked at
	generated map[string]bool // files of which nothing is told
	lines     map[line]bool   // with //nolint:topiclint
	dynamic   map[line]bool   // with //topiclint:dynamic
}

type line struct {
	file   string
	number int
}

func newSilence(pass *analysis.Pass, tests bool) silence {
	s := silence{make(map[string]bool), make(map[string]bool), make(map[line]bool), make(map[line]bool)}
	kit := false // a package for tests
	for _, f := range pass.Files {
		kit = kit || !strings.HasSuffix(pass.Fset.Position(f.Pos()).Filename, "_test.go") && importsTesting(f)
	}
	for _, f := range pass.Files {
		name := pass.Fset.Position(f.Pos()).Filename
		s.tests[name] = !tests && (kit || strings.HasSuffix(name, "_test.go"))
		s.generated[name] = ast.IsGenerated(f)
		var source []byte
		for _, group := range f.Comments {
			for _, c := range group.List {
				marks := s.lines
				if strings.HasPrefix(c.Text, "//topiclint:dynamic") {
					marks = s.dynamic
				} else if !silences(c.Text) {
					continue
				}
				if source == nil {
					source, _ = pass.ReadFile(name) // without it no comment is alone
				}
				at := pass.Fset.Position(c.Pos())
				marks[line{at.Filename, at.Line}] = true
				if alone(source, pass.Fset.PositionFor(c.Pos(), false)) {
					marks[line{at.Filename, at.Line + 1}] = true
				}
			}
		}
	}
	return s
}

// importsTesting reports whether a file imports testing, as kits for tests do.
func importsTesting(f *ast.File) bool {
	for _, spec := range f.Imports {
		if spec.Path.Value == `"testing"` {
			return true
		}
	}
	return false
}

// silences reports whether a comment is a //nolint that names this linter.
func silences(comment string) bool {
	list, ok := strings.CutPrefix(comment, "//nolint:")
	if !ok {
		return false
	}
	list, _, _ = strings.Cut(list, " ")
	for name := range strings.SplitSeq(list, ",") {
		if name == Name || name == "all" {
			return true
		}
	}
	return false
}

// alone reports whether nothing but space is before a position in its line.
func alone(source []byte, at token.Position) bool {
	if at.Offset > len(source) {
		return false
	}
	before := source[:at.Offset]
	before = before[bytes.LastIndexByte(before, '\n')+1:]
	return source != nil && len(bytes.TrimSpace(before)) == 0
}

func (s *silence) at(fset *token.FileSet, pos token.Pos) bool {
	p := fset.Position(pos)
	return s.tests[p.Filename] || s.generated[p.Filename] || s.lines[line{p.Filename, p.Line}]
}

func (s *silence) isDynamic(fset *token.FileSet, pos token.Pos) bool {
	p := fset.Position(pos)
	return s.dynamic[line{p.Filename, p.Line}]
}
