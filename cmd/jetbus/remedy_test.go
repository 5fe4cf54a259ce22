package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// The library names what does away with an error by its own names, and the command says what
// to do in the words of its users.
func TestRemedies(t *testing.T) {
	named := namedRemedies(t)
	if len(named) == 0 {
		t.Error("found no remedies")
	}
	for see := range named {
		if remedies[see] == "" {
			t.Errorf("the command has no word for %s", see)
		}
		for name := range strings.SplitSeq(see, ", ") {
			if !isOfLibrary(name) {
				t.Errorf("there is no %s", name)
			}
		}
	}
	for see := range remedies {
		if !named[see] {
			t.Errorf("nothing names %s", see)
		}
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{jetbus.ErrNoPartitions, "the topic has no partitions; declare another one with --partitions; see jetbus topics create --help"},
		{&jetbus.RemedyError{Err: jetbus.ErrNoTopic, See: "EnsureTopic"}, "no such topic; see jetbus topics, or declare it with jetbus topics create"},
		{&jetbus.RemedyError{Err: jetbus.ErrUnavailable, See: "Unheard.Of"}, "broker is unavailable (see Unheard.Of)"},
		{&jetbus.ConflictError{What: "topic a", Hint: "why", See: "TopicConfig.Shrink"}, "topic a exists with other settings; why; jetbus topics create --yes allows it"},
		{&jetbus.ConflictError{What: "topic a", Hint: "why", See: "Unheard.Of"}, "topic a exists with other settings; why (see Unheard.Of)"},
	} {
		var out bytes.Buffer
		report(&out, "jetbus groups lag", fmt.Errorf("lag of a: %w", c.err))
		if want := "jetbus: lag of a: " + c.want + "\n"; out.String() != want {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
	}
}

// namedRemedies are those that the source of the project names.
func namedRemedies(t *testing.T) map[string]bool {
	t.Helper()
	named := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "node_modules" || d.Name() == ".git"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			see := seeIn(n)
			if see == nil {
				return true
			}
			lit, ok := see.(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: a See that is no literal", path)
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Error(err)
			}
			named[text] = true
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return named
}

// seeIn is the See of an error that is made at a node: of a RemedyError, or a ConflictError,
// which names its fields.
func seeIn(n ast.Node) ast.Expr {
	lit, ok := n.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	for _, e := range lit.Elts {
		pair, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		if name, ok := pair.Key.(*ast.Ident); ok && name.Name == "See" {
			return pair.Value
		}
	}
	if len(lit.Elts) != 2 || !isRemedy(lit.Type) {
		return nil
	}
	return lit.Elts[1]
}

func isRemedy(e ast.Expr) bool {
	if s, ok := e.(*ast.SelectorExpr); ok {
		e = s.Sel
	}
	name, ok := e.(*ast.Ident)
	return ok && name.Name == "RemedyError"
}

// isOfLibrary reports whether the library has the field or the method.
func isOfLibrary(name string) bool {
	field, ok := strings.CutPrefix(name, "TopicConfig.")
	if ok {
		_, ok = reflect.TypeFor[jetbus.TopicConfig]().FieldByName(field)
		return ok
	}
	if field, ok = strings.CutPrefix(name, "Config."); ok {
		_, ok = reflect.TypeFor[adapter.Config]().FieldByName(field)
		return ok
	}
	_, topics := reflect.TypeFor[jetbus.Topics]().MethodByName(name)
	_, partitions := reflect.TypeFor[jetbus.Partitions]().MethodByName(name)
	return topics || partitions
}
