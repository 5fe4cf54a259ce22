package drive

import (
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/packages"

	"github.com/seed-63e9a637/jetbus/cmd/topiclint/check"
)

// load returns the packages to check, and those of other modules whose facts they need.
func (c *Config) load(ctx context.Context) ([]*packages.Package, error) {
	patterns := c.Patterns
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	const outline = packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedModule
	all, err := c.list(ctx, outline, nil, patterns)
	if err != nil {
		return nil, err
	}
	wanted, folders := using(all)
	if len(wanted) == 0 {
		return nil, nil
	}
	const types = outline | packages.NeedCompiledGoFiles | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo
	pkgs, err := c.list(ctx, types, headsOnly(folders), wanted)
	if err != nil {
		return nil, err
	}
	prune(pkgs)
	return pkgs, nil
}

// headsOnly parses files, and drops the bodies of functions of those that are not in
// the folders: of other packages only the types are needed. To have these from the
// compiler, all would have to be built first, which takes many times as long.
func headsOnly(folders map[string]bool) func(*token.FileSet, string, []byte) (*ast.File, error) {
	return func(fset *token.FileSet, name string, text []byte) (*ast.File, error) {
		if folders[filepath.Dir(name)] {
			return parser.ParseFile(fset, name, text, parser.AllErrors|parser.ParseComments|parser.SkipObjectResolution)
		}
		file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return file, err
		}
		for _, d := range file.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				fn.Body = nil
			}
		}
		return file, nil
	}
}

func (c *Config) list(ctx context.Context, mode packages.LoadMode, parse func(*token.FileSet, string, []byte) (*ast.File, error), patterns []string) ([]*packages.Package, error) {
	config := &packages.Config{Context: ctx, Mode: mode, Dir: c.Dir, Tests: c.Tests, ParseFile: parse}
	if c.Tags != "" {
		config.BuildFlags = []string{"-tags=" + c.Tags}
	}
	pkgs, err := packages.Load(config, patterns...)
	if err != nil {
		return nil, fmt.Errorf("load packages: %w", err)
	}
	for _, p := range pkgs {
		if len(p.Errors) > 0 {
			return nil, fmt.Errorf("load package %s: %w", p.PkgPath, p.Errors[0])
		}
	}
	return pkgs, nil
}

// using returns the paths of those of the packages, and of what they import, that use
// JetBus in whatever way and are worth a look: not the packages of JetBus themselves,
// unless asked for.
// The folders are theirs.
func using(pkgs []*packages.Package) (paths []string, folders map[string]bool) {
	asked := make(map[string]bool)
	for _, p := range pkgs {
		asked[p.PkgPath] = true
	}
	uses := make(map[*packages.Package]bool)
	folders = make(map[string]bool)
	packages.Visit(pkgs, nil, func(p *packages.Package) { // after what it imports
		uses[p] = check.IsBus(p.PkgPath)
		for _, below := range p.Imports {
			uses[p] = uses[p] || uses[below]
		}
		path := strings.TrimSuffix(p.PkgPath, "_test")
		if strings.HasSuffix(path, ".test") || !asked[path] && (!uses[p] || check.IsBus(path)) {
			return
		}
		if uses[p] {
			paths = append(paths, path)
			for _, file := range p.GoFiles {
				folders[filepath.Dir(file)] = true
			}
		}
	})
	slices.Sort(paths)
	return slices.Compact(paths), folders
}

// prune removes imports of packages that are not checked: there are no facts about
// them. And that these have errors is known: imports that no function uses any more.
func prune(pkgs []*packages.Package) {
	loaded := make(map[*packages.Package]bool)
	for _, p := range pkgs {
		loaded[p] = true
	}
	for _, p := range pkgs {
		p.IllTyped = false
		for path, below := range p.Imports {
			if !loaded[below] {
				delete(p.Imports, path)
			}
		}
	}
}

// isTarget reports whether findings in a package are told: not those in other modules.
func isTarget(p *packages.Package) bool { return p.Module == nil || p.Module.Main }

func finding(dir string, p *packages.Package, d analysis.Diagnostic) Finding {
	at := p.Fset.Position(d.Pos)
	f := Finding{ID: d.Category, Message: strings.TrimPrefix(d.Message, d.Category+": "), Line: at.Line, Column: at.Column, File: shown(dir, at.Filename)}
	for _, fix := range d.SuggestedFixes[:min(1, len(d.SuggestedFixes))] {
		for _, e := range fix.TextEdits {
			f.edits = append(f.edits, newEdit(p.Fset, e))
		}
	}
	return f
}

func shown(dir, file string) string {
	if rel, err := filepath.Rel(dir, file); err == nil && filepath.IsLocal(rel) {
		file = rel
	}
	return filepath.ToSlash(file)
}

func newEdit(fset *token.FileSet, e analysis.TextEdit) edit {
	from, to := fset.PositionFor(e.Pos, false), fset.PositionFor(e.End, false)
	return edit{file: from.Filename, from: from.Offset, to: to.Offset, line: from.Line, column: from.Column, endLine: to.Line, endColumn: to.Column, text: string(e.NewText)}
}

// ordered sorts findings by place, and drops those of a file that is in several packages.
func ordered(list []Finding) []Finding {
	slices.SortFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Message, b.Message))
	})
	return slices.CompactFunc(list, func(a, b Finding) bool {
		return a.File == b.File && a.Line == b.Line && a.Column == b.Column && a.ID == b.ID && a.Message == b.Message
	})
}
