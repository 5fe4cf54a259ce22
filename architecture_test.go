package jetbus_test

import (
	"go/ast"
	"go/parser"
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

// ofOthers are names of ARCHITECTURE.md that are not ours: nats-server's, and nats.go's.
var ofOthers = []string{"consumer.deliverMsg", "consumer.processAck", "consumer.purge", "pmsg.ts", "processReplicatedAck", "sub.Drain"}

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

// TestArchitectureMembers finds each Type.member of ARCHITECTURE.md among the methods and fields
// of a type of that name.
func TestArchitectureMembers(t *testing.T) {
	members := members(t)
	n := 0
	for _, m := range regexp.MustCompile("`([A-Za-z]\\w*)\\.([A-Za-z]\\w*)(?:\\(\\))?`").FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1) {
		of, ok := members[m[1]]
		if !ok || m[2] == "go" || slices.Contains(ofOthers, m[1]+"."+m[2]) {
			continue
		}
		if n++; !of[m[2]] {
			t.Errorf("ARCHITECTURE.md speaks of %s.%s, and no %s has a %s", m[1], m[2], m[1], m[2])
		}
	}
	if n < 50 {
		t.Errorf("only %d members were found", n)
	}
}

// members are the methods and fields of all types, by the name of the type.
func members(t *testing.T) map[string]map[string]bool {
	t.Helper()
	out := map[string]map[string]bool{}
	add := func(typ, member string) {
		if out[typ] == nil {
			out[typ] = map[string]bool{}
		}
		out[typ][member] = true
	}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			membersOf(decl, add)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func membersOf(decl ast.Decl, add func(typ, member string)) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return
		}
		typ := d.Recv.List[0].Type
		if star, ok := typ.(*ast.StarExpr); ok {
			typ = star.X
		}
		if generic, ok := typ.(*ast.IndexExpr); ok {
			typ = generic.X
		}
		if name, ok := typ.(*ast.Ident); ok {
			add(name.Name, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			typ, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			var fields *ast.FieldList
			switch of := typ.Type.(type) {
			case *ast.StructType:
				fields = of.Fields
			case *ast.InterfaceType:
				fields = of.Methods
			default:
				continue
			}
			for _, field := range fields.List {
				for _, name := range field.Names {
					add(typ.Name.Name, name.Name)
				}
			}
		}
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
