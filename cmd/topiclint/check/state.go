package check

import (
	"fmt"
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// checkState looks at the events of topics that keep state.
func (l *linter) checkState(n ast.Node, stack []ast.Node) {
	switch n := n.(type) {
	case *ast.CompositeLit:
		switch busType(l.info.TypeOf(n)) {
		case "Event":
			if l.isPublished(n, stack) {
				l.checkKey(n, "Topic", "the event")
			}
		case "Topic":
			l.checkKey(n, "Name", "what the Topic publishes")
		}
	case *ast.CallExpr:
		if len(n.Args) == 2 && is(l.callee(n), busPath, "Tombstone") {
			l.checkTombstone(n.Args[0])
		}
	}
}

// isPublished reports whether a literal goes as it is into a call that publishes:
// nobody can give it a key any more.
func (l *linter) isPublished(lit *ast.CompositeLit, stack []ast.Node) bool {
	if len(stack) == 0 {
		return false
	}
	call, ok := stack[len(stack)-1].(*ast.CallExpr)
	if !ok || !slices.Contains(call.Args, ast.Expr(lit)) {
		return false
	}
	results, ok := l.info.TypeOf(call).(*types.Tuple)
	return ok && results.Len() == 2 && busType(results.At(0).Type()) == "Receipt"
}

func (l *linter) checkKey(lit *ast.CompositeLit, field, what string) {
	topic := valueOf(lit, field)
	if topic == nil {
		return
	}
	name, ok := l.constant(topic)
	if t, known := l.known.of(name); !ok || !known || !t.Compacted {
		return
	}
	key := valueOf(lit, "Key")
	if key != nil {
		if text, isConst := l.constant(key); !l.info.Types[key].IsNil() && (!isConst || text != "") {
			return
		}
	}
	l.report("BUS010", lit, fmt.Sprintf("%s has no key, and topic %s is compacted: each replaces the one before", what, name))
}

func (l *linter) checkTombstone(topic ast.Expr) {
	name, ok := l.constant(topic)
	if t, known := l.known.of(name); ok && known && l.known.kept(name) && !t.Compacted && !t.KeyInSubject {
		l.report("BUS018", topic, fmt.Sprintf("topic %s keeps no state: it is not compacted, and its keys are not in its subjects", name))
	}
}

// checkPure looks for time and chance in upcasters and projections.
func (l *linter) checkPure(n ast.Node) {
	switch n := n.(type) {
	case *ast.CallExpr:
		if len(n.Args) != 1 {
			return
		}
		o := l.object(n.Fun)
		if o != nil && ofBus(o) && o.Pkg().Path() == busPath+"/registry" && strings.HasPrefix(o.Name(), "Upcast") {
			l.checkPureFunc(n.Args[0], "an upcaster")
		}
	case *ast.FuncDecl:
		if n.Name.Name == "Upcast" && n.Recv != nil && n.Body != nil && l.isUpcast(n) {
			l.checkPureBody(n.Body, "an upcaster")
		}
	case *ast.CompositeLit:
		named, ok := types.Unalias(l.info.TypeOf(n)).(*types.Named)
		if !ok || !ofBus(named.Obj()) || named.Obj().Pkg().Path() != busPath+"/projector" || named.Obj().Name() != "Options" {
			return
		}
		for _, field := range []string{"KeyOf", "Map", "Tombstone", "VersionOf"} {
			if f := valueOf(n, field); f != nil {
				l.checkPureFunc(f, "a projection")
			}
		}
	}
}

// isUpcast reports whether a method is that of registry.Upcaster.
func (l *linter) isUpcast(fn *ast.FuncDecl) bool {
	f, ok := l.info.Defs[fn.Name].(*types.Func)
	if !ok {
		return false
	}
	params, results := f.Signature().Params(), f.Signature().Results()
	return params.Len() == 2 && results.Len() == 2 && busType(params.At(1).Type()) == "Event" && busType(results.At(0).Type()) == "Event"
}

func (l *linter) checkPureFunc(e ast.Expr, what string) {
	if _, body := l.body(e); body != nil {
		l.checkPureBody(body, what)
	}
}

func (l *linter) checkPureBody(body *ast.BlockStmt, what string) {
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		f := l.callee(call)
		if f == nil || f.Pkg() == nil || f.Signature().Recv() != nil {
			return true
		}
		switch path := f.Pkg().Path(); {
		case path == "time" && slices.Contains([]string{"Now", "Since", "Until"}, f.Name()),
			path == "math/rand", path == "math/rand/v2", path == "crypto/rand",
			path == busPath && f.Name() == "NewID",
			path == "github.com/google/uuid" && strings.HasPrefix(f.Name(), "New"):
			l.report("BUS019", call, fmt.Sprintf("%s.%s in %s: each run gives another result; take it from the event", f.Pkg().Name(), f.Name(), what))
		}
		return true
	})
}
