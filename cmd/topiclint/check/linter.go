package check

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

const (
	busPath = "github.com/seed-63e9a637/jetbus"
	e2ePath = busPath + "/e2e" // another module
)

// IsBus reports whether a package is of JetBus.
func IsBus(path string) bool {
	return path == busPath || strings.HasPrefix(path, busPath+"/") && path != e2ePath && !strings.HasPrefix(path, e2ePath+"/")
}

// linter is one pass over one package.
type linter struct {
	pass    *analysis.Pass
	info    *types.Info
	options Options
	on      selection
	known   known
	silence silence
	files   []*ast.File // with code of people
	funcs   map[*types.Func]*ast.FuncDecl
	sites   sites
	vars    map[types.Object]*ast.CompositeLit // see collectVars

	packageVars map[*ast.CompositeLit]string // names of package variables, by their values
}

func newLinter(pass *analysis.Pass, o Options, on selection) *linter {
	return &linter{pass: pass, info: pass.TypesInfo, options: o, on: on, funcs: make(map[*types.Func]*ast.FuncDecl)}
}

func (l *linter) run() {
	l.silence = newSilence(l.pass, l.options.Tests)
	complete := false
	for _, f := range l.pass.Files {
		if l.silence.tests[l.file(f.Pos())] {
			continue
		}
		complete = complete || declaresCatalog(f)
		l.files = append(l.files, f)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				if obj, ok := l.info.Defs[fn.Name].(*types.Func); ok {
					l.funcs[obj] = fn
				}
			}
		}
	}
	l.collectVars()
	l.collect()
	own := l.declarations()
	l.known = l.gather(own, complete)
	schemas := l.registered(l.known)
	if len(own) > 0 || complete || len(schemas) > 0 {
		l.pass.ExportPackageFact(&declaredTopics{Topics: own, Complete: complete, Schemas: schemas})
	}
	for _, name := range schemas {
		l.known.schemas[name] = true
	}
	l.checkNames()
	l.checkTypes(own)
	for _, f := range l.files {
		l.walk(f, func(n ast.Node, stack []ast.Node) {
			l.checkCall(n)
			l.checkResult(n)
			l.checkPure(n)
			l.checkState(n, stack)
		})
	}
}

// declaresCatalog reports whether a file says that the topics of its package are all.
func declaresCatalog(f *ast.File) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.Text == "//topiclint:catalog" {
				return true
			}
		}
	}
	return false
}

// walk calls visit for each node of a file, with the nodes around it, outermost first.
func (l *linter) walk(f *ast.File, visit func(n ast.Node, stack []ast.Node)) {
	var stack []ast.Node
	ast.Inspect(f, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		visit(n, stack)
		stack = append(stack, n)
		return true
	})
}

// report tells a finding of a check that is on.
func (l *linter) report(id string, at ast.Node, message string, fixes ...analysis.SuggestedFix) {
	if !l.on[id] || l.silence.at(l.pass.Fset, at.Pos()) {
		return
	}
	l.pass.Report(analysis.Diagnostic{Pos: at.Pos(), End: at.End(), Category: id, Message: id + ": " + message, SuggestedFixes: fixes})
}

func (l *linter) file(pos token.Pos) string { return l.pass.Fset.Position(pos).Filename }

// constant returns the string that an expression always is.
func (l *linter) constant(e ast.Expr) (string, bool) {
	v := l.info.Types[e].Value
	if v == nil || v.Kind() != constant.String {
		return "", false
	}
	return constant.StringVal(v), true
}

// lowered offers an expression that is a literal in small letters, where that is valid.
func (l *linter) lowered(e ast.Expr, valid func(string) error) []analysis.SuggestedFix {
	lit, ok := ast.Unparen(e).(*ast.BasicLit)
	text, isConst := l.constant(e)
	small := strings.ToLower(text)
	if !ok || !isConst || valid(small) != nil || strings.ToLower(lit.Value) == lit.Value {
		return nil
	}
	return []analysis.SuggestedFix{{
		Message:   "write " + small,
		TextEdits: []analysis.TextEdit{{Pos: lit.Pos(), End: lit.End(), NewText: []byte(strings.ToLower(lit.Value))}},
	}}
}

// busType returns the name of a type of JetBus's root package, "" for all others.
func busType(t types.Type) string {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil || n.Obj().Pkg().Path() != busPath {
		return ""
	}
	return n.Obj().Name()
}

// ofBus reports whether an object is of JetBus.
func ofBus(o types.Object) bool { return o != nil && o.Pkg() != nil && IsBus(o.Pkg().Path()) }

// is reports whether an object is a function of a package, one of some names.
func is(o types.Object, path string, names ...string) bool {
	f, ok := o.(*types.Func)
	return ok && f != nil && f.Pkg() != nil && f.Pkg().Path() == path && f.Signature().Recv() == nil && slices.Contains(names, f.Name())
}

// callee returns the function that is called, nil where that is a variable.
func (l *linter) callee(call *ast.CallExpr) *types.Func {
	f, _ := l.object(call.Fun).(*types.Func)
	if f != nil {
		f = f.Origin()
	}
	return f
}

// object returns what a name, qualified or instantiated, stands for.
func (l *linter) object(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		return l.info.Uses[e]
	case *ast.SelectorExpr:
		return l.info.Uses[e.Sel]
	case *ast.IndexExpr:
		return l.object(e.X)
	case *ast.IndexListExpr:
		return l.object(e.X)
	}
	return nil
}

// params calls each for the arguments of a call with their parameters. Those of a
// variadic parameter have it all. Conversions and built-in functions have none.
func (l *linter) params(call *ast.CallExpr, each func(i int, p *types.Var, arg ast.Expr)) {
	tv := l.info.Types[call.Fun]
	if tv.IsType() || tv.Type == nil {
		return
	}
	sig, ok := tv.Type.Underlying().(*types.Signature)
	if !ok || sig.Params().Len() == 0 {
		return
	}
	for i, arg := range call.Args {
		i = min(i, sig.Params().Len()-1)
		each(i, sig.Params().At(i), arg)
	}
}
