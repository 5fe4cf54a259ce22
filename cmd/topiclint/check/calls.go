package check

import (
	"go/ast"
	"go/types"
	"slices"
)

// checkResult looks at what becomes of the results of publishing and subscribing.
func (l *linter) checkResult(n ast.Node) {
	switch n := n.(type) {
	case *ast.ExprStmt:
		l.checkIgnored(n.X)
	case *ast.GoStmt:
		l.checkIgnored(n.Call)
	case *ast.DeferStmt:
		l.checkIgnored(n.Call)
	case *ast.AssignStmt:
		if len(n.Rhs) != 1 || len(n.Lhs) != 2 {
			return
		}
		if call, ok := ast.Unparen(n.Rhs[0]).(*ast.CallExpr); ok && isBlank(n.Lhs[0]) {
			l.checkEndless(call)
		}
	}
}

func isBlank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}

// checkIgnored looks at a call whose results go nowhere.
func (l *linter) checkIgnored(e ast.Expr) {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	if !ok {
		return
	}
	results, ok := l.info.TypeOf(call).(*types.Tuple)
	if !ok || results.Len() != 2 {
		return
	}
	first := results.At(0).Type()
	if s, ok := first.Underlying().(*types.Slice); ok {
		first = s.Elem()
	}
	switch busType(first) {
	case "Receipt":
		l.report("BUS006", call, "the error of the publish is ignored: the event may not have been stored")
	case "Subscription":
		l.checkEndless(call)
	}
}

// checkEndless looks at a call whose first result goes nowhere, for a subscription that
// is begun with a context that never ends.
func (l *linter) checkEndless(call *ast.CallExpr) {
	results, ok := l.info.TypeOf(call).(*types.Tuple)
	if !ok || results.Len() != 2 || busType(results.At(0).Type()) != "Subscription" || len(call.Args) == 0 {
		return
	}
	if ctx, ok := ast.Unparen(call.Args[0]).(*ast.CallExpr); ok && l.isEndless(ctx) {
		l.report("BUS013", call, "nothing can end this subscription: keep it for its Stop, or use a context that is canceled")
	}
}

func (l *linter) isEndless(call *ast.CallExpr) bool {
	return is(l.callee(call), "context", "Background", "TODO")
}

// checkCall looks at the handlers that are given to a call.
func (l *linter) checkCall(n ast.Node) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return
	}
	if tv := l.info.Types[call.Fun]; tv.IsType() && len(call.Args) == 1 && busType(tv.Type) == "Handler" {
		l.checkHandler(call.Args[0], nil)
		return
	}
	l.params(call, func(_ int, p *types.Var, arg ast.Expr) {
		if ofBus(p) && isHandler(p.Type()) {
			l.checkHandler(arg, call)
		}
	})
}

// isHandler reports whether a type is that of handlers: of functions whose last
// parameter is a *Delivery, and that return an error.
func isHandler(t types.Type) bool {
	sig, ok := t.Underlying().(*types.Signature)
	if !ok || sig.Results().Len() != 1 || sig.Params().Len() < 2 {
		return false
	}
	last, ok := sig.Params().At(sig.Params().Len() - 1).Type().(*types.Pointer)
	return ok && busType(last.Elem()) == "Delivery"
}

// body returns a function that is written in this package.
func (l *linter) body(e ast.Expr) (*ast.FuncType, *ast.BlockStmt) {
	if lit, ok := ast.Unparen(e).(*ast.FuncLit); ok {
		return lit.Type, lit.Body
	}
	if f, ok := l.object(e).(*types.Func); ok {
		if fn := l.funcs[f.Origin()]; fn != nil {
			return fn.Type, fn.Body
		}
	}
	return nil, nil
}

// checkHandler looks at the body of a handler. call is that of Subscribe, or nil.
func (l *linter) checkHandler(e ast.Expr, call *ast.CallExpr) {
	head, body := l.body(e)
	if body == nil {
		return
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt, *ast.DeferStmt: // what outlives the handler has to
			return false
		case *ast.CallExpr:
			if l.isEndless(n) {
				l.report("BUS007", n, "the handler's context ends with its lease, this one does not: use that")
			}
		case *ast.IfStmt:
			l.checkSwallowed(n)
		}
		return true
	})
	if call != nil && l.isManual(call) {
		l.checkSettled(e, head, body)
	}
}

// checkSwallowed looks for if err != nil { ...; return nil }.
func (l *linter) checkSwallowed(n *ast.IfStmt) {
	cond, ok := ast.Unparen(n.Cond).(*ast.BinaryExpr)
	if !ok || cond.Op.String() != "!=" || len(n.Body.List) == 0 {
		return
	}
	t := l.info.TypeOf(cond.X)
	if t == nil || !types.Identical(t, types.Universe.Lookup("error").Type()) || !l.info.Types[cond.Y].IsNil() {
		return
	}
	ret, ok := n.Body.List[len(n.Body.List)-1].(*ast.ReturnStmt)
	if ok && len(ret.Results) == 1 && l.info.Types[ret.Results[0]].IsNil() {
		l.report("BUS012", ret, "the event is acknowledged although handling it failed: return the error, or jetbus.Drop")
	}
}

// isManual reports whether the options of a call say ManualAck: true.
func (l *linter) isManual(call *ast.CallExpr) bool {
	return slices.ContainsFunc(call.Args, func(arg ast.Expr) bool {
		lit, ok := ast.Unparen(arg).(*ast.CompositeLit)
		if !ok || busType(l.info.TypeOf(lit)) != "SubscribeOptions" {
			return false
		}
		v := valueOf(lit, "ManualAck")
		return v != nil && l.info.Types[v].Value != nil && l.info.Types[v].Value.String() == "true"
	})
}

// checkSettled looks for a handler that gives nobody the means to settle its event: it
// reads fields of the delivery at most, and not the ID.
func (l *linter) checkSettled(at ast.Expr, head *ast.FuncType, body *ast.BlockStmt) {
	fields := head.Params.List
	names := fields[len(fields)-1].Names
	means := false
	if len(names) > 0 {
		delivery := l.info.Defs[names[len(names)-1]]
		reads := make(map[*ast.Ident]bool) // uses as d.Field
		ast.Inspect(body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				id, ok := ast.Unparen(n.X).(*ast.Ident)
				sel := l.info.Selections[n]
				if ok && sel != nil && sel.Kind() == types.FieldVal && n.Sel.Name != "ID" && n.Sel.Name != "Event" {
					reads[id] = true
				}
			case *ast.Ident:
				means = means || delivery != nil && l.info.Uses[n] == delivery && !reads[n]
			}
			return true
		})
	}
	if !means {
		l.report("BUS014", at, "with ManualAck nothing settles the event: the handler neither does nor passes it on")
	}
}
