package check

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// use says what is done with a topic.
type use int

const (
	declares  use = iota // by a TopicConfig
	binds                // to a Go type
	publishes            // by an Event
	otherwise            // by a parameter or another field
)

// A topicSite is an expression that becomes a topic.
type topicSite struct {
	expr ast.Expr
	use  use
	lit  *ast.CompositeLit // the Event, TopicConfig or Topic, where it is a literal
	doc  string            // of the declaration around lit
}

// sites are the places that the checks of names look at.
type sites struct {
	topics  []topicSite
	groups  []ast.Expr
	headers []headerSite
	schemas []schemaSite
	// importsSchemas is set if a whole registry is imported, for topics that are not in the source.
	importsSchemas bool
}

// A schemaSite is a topic, or a Topic or TopicConfig, for which a schema is registered.
type schemaSite struct {
	expr    ast.Expr
	isParam bool // it is a parameter of the function around it: callers select the topic
}

// A headerSite is the name of a header, and its value where that is known.
type headerSite struct{ name, value ast.Expr }

// collect finds all sites. Functions that make topics of their parameters are found
// on the way, and since they call each other, until there are no more.
func (l *linter) collect() {
	for {
		l.sites = sites{}
		found := false
		for _, f := range l.files {
			l.walk(f, func(n ast.Node, stack []ast.Node) {
				topics, schemas := len(l.sites.topics), len(l.sites.schemas)
				l.collectNode(n, stack)
				for _, s := range l.sites.topics[topics:] {
					if fn, i, ok := l.paramOf(s.expr, stack); ok && s.use != declares && s.use != binds {
						found = l.addParam(fn, i, paramsOf) || found
					}
				}
				for j := range l.sites.schemas[schemas:] {
					s := &l.sites.schemas[schemas+j]
					var fn *types.Func
					var i int
					if fn, i, s.isParam = l.paramOf(rootOf(s.expr), stack); s.isParam {
						found = l.addParam(fn, i, schemasOf) || found
					}
				}
			})
		}
		if !found {
			return
		}
	}
}

func (l *linter) collectNode(n ast.Node, stack []ast.Node) {
	switch n := n.(type) {
	case *ast.CompositeLit:
		l.collectLit(n, stack)
	case *ast.CallExpr:
		l.collectCall(n)
	case *ast.AssignStmt:
		l.collectAssign(n)
	}
}

// collectLit looks at the fields of a struct of JetBus.
func (l *linter) collectLit(lit *ast.CompositeLit, stack []ast.Node) {
	t := l.info.TypeOf(lit)
	if t == nil {
		return
	}
	if p, ok := t.Underlying().(*types.Pointer); ok { // &T left out in a list
		t = p.Elem()
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return
	}
	for i, e := range lit.Elts {
		var field *types.Var
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok {
				field, _ = l.info.Uses[key].(*types.Var)
			}
			e = kv.Value
		} else if i < s.NumFields() {
			field = s.Field(i)
		}
		if field != nil && ofBus(field) {
			l.collectField(busType(t), field.Name(), e, lit, stack)
		}
	}
}

func (l *linter) collectField(owner, field string, value ast.Expr, lit *ast.CompositeLit, stack []ast.Node) {
	doc := ""
	u := otherwise
	switch owner + "." + field {
	case "TopicConfig.Name", "Topic.Name":
		u = declares
		if owner == "Topic" {
			u = binds
		}
		doc = docAround(stack)
	case "Event.Topic":
		u = publishes
	case "Event.Headers":
		l.collectHeaders(value)
		return
	default:
		if field == "Topics" {
			l.collectList(value)
			return
		}
		if field != "Topic" && field != "SnapshotOf" || !isString(l.info.TypeOf(value)) {
			return
		}
	}
	l.sites.topics = append(l.sites.topics, topicSite{value, u, lit, doc})
}

func isString(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsString != 0
}

// collectList looks at a list of topics that is written out.
func (l *linter) collectList(value ast.Expr) {
	lit, ok := ast.Unparen(value).(*ast.CompositeLit)
	if !ok || !types.Identical(l.info.TypeOf(lit).Underlying(), types.NewSlice(types.Typ[types.String])) {
		return
	}
	for _, e := range lit.Elts {
		l.sites.topics = append(l.sites.topics, topicSite{expr: e, use: otherwise})
	}
}

func (l *linter) collectHeaders(value ast.Expr) {
	lit, ok := ast.Unparen(value).(*ast.CompositeLit)
	if !ok {
		return
	}
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			l.sites.headers = append(l.sites.headers, headerSite{kv.Key, kv.Value})
		}
	}
}

// collectCall looks at arguments for parameters of JetBus that are named topic,
// topics or group, and for those of functions that make topics of theirs.
func (l *linter) collectCall(call *ast.CallExpr) {
	var fact takesTopic
	f := l.callee(call)
	switch {
	case f == nil:
	case !ofBus(f):
		l.pass.ImportObjectFact(f, &fact)
	case !f.Exported(): // inside JetBus, where a topic can be a part of a name on the wire
		return
	}
	if f != nil && f.Name() == "Import" && ofBus(f) && f.Pkg().Path() == busPath+"/registry" {
		l.sites.importsSchemas = true
	}
	l.params(call, func(i int, p *types.Var, arg ast.Expr) {
		if slices.Contains(fact.Schemas, i) || registers(f, p) {
			l.sites.schemas = append(l.sites.schemas, schemaSite{expr: arg})
		}
		switch {
		case ofBus(p) && p.Name() == "topics":
			l.collectList(arg)
		case slices.Contains(fact.Params, i), ofBus(p) && p.Name() == "topic" && isString(p.Type()):
			l.sites.topics = append(l.sites.topics, topicSite{expr: arg, use: otherwise})
		case ofBus(p) && p.Name() == "group" && isString(p.Type()):
			l.sites.groups = append(l.sites.groups, arg)
		}
	})
}

// collectAssign looks at e.Topic = x, and at e.Headers[name] = x.
func (l *linter) collectAssign(a *ast.AssignStmt) {
	if len(a.Lhs) != len(a.Rhs) {
		return
	}
	for i, left := range a.Lhs {
		if index, ok := ast.Unparen(left).(*ast.IndexExpr); ok {
			if s, ok := ast.Unparen(index.X).(*ast.SelectorExpr); ok && l.isField(s, "Event", "Headers") {
				l.sites.headers = append(l.sites.headers, headerSite{index.Index, a.Rhs[i]})
			}
			continue
		}
		s, ok := ast.Unparen(left).(*ast.SelectorExpr)
		switch {
		case !ok:
		case l.isField(s, "Event", "Topic"):
			l.sites.topics = append(l.sites.topics, topicSite{expr: a.Rhs[i], use: publishes})
		case l.isField(s, "Event", "Headers"):
			l.collectHeaders(a.Rhs[i])
		case l.isField(s, "TopicConfig", "Name"):
			l.sites.topics = append(l.sites.topics, topicSite{expr: a.Rhs[i], use: declares})
		}
	}
}

// isField reports whether a selector is a field of a struct of the root package,
// perhaps through structs that embed it.
func (l *linter) isField(s *ast.SelectorExpr, owner, field string) bool {
	sel := l.info.Selections[s]
	if sel == nil || sel.Kind() != types.FieldVal || sel.Obj().Name() != field || !ofBus(sel.Obj()) {
		return false
	}
	t := sel.Recv()
	for _, i := range sel.Index()[:len(sel.Index())-1] {
		if p, ok := t.Underlying().(*types.Pointer); ok {
			t = p.Elem()
		}
		t = t.Underlying().(*types.Struct).Field(i).Type()
	}
	return busType(t) == owner
}

// paramsOf and schemasOf select a list of a fact.
func paramsOf(f *takesTopic) *[]int  { return &f.Params }
func schemasOf(f *takesTopic) *[]int { return &f.Schemas }

// paramOf returns the function around an expression and the index of the parameter of
// that function that the expression is.
func (l *linter) paramOf(e ast.Expr, stack []ast.Node) (fn *types.Func, index int, ok bool) {
	e = ast.Unparen(e)
	if call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 1 && l.info.Types[call.Fun].IsType() {
		e = ast.Unparen(call.Args[0]) // string(topic), of a type that is one
	}
	id, ok := e.(*ast.Ident)
	if !ok {
		return nil, 0, false
	}
	for _, n := range slices.Backward(stack) {
		decl, ok := n.(*ast.FuncDecl)
		if !ok {
			continue
		}
		fn, ok := l.info.Defs[decl.Name].(*types.Func)
		if !ok {
			return nil, 0, false
		}
		for i := range fn.Signature().Params().Len() {
			if fn.Signature().Params().At(i) == l.info.Uses[id] {
				return fn, i, true
			}
		}
	}
	return nil, 0, false
}

// addParam adds a parameter to a list of the fact about a function, and reports whether
// it is new. Variadic parameters are lists, and are not passed on.
func (l *linter) addParam(obj *types.Func, i int, list func(*takesTopic) *[]int) bool {
	var fact takesTopic
	l.pass.ImportObjectFact(obj, &fact)
	if slices.Contains(*list(&fact), i) {
		return false
	}
	fact = takesTopic{Params: slices.Clone(fact.Params), Schemas: slices.Clone(fact.Schemas)} // the stored fact keeps its lists
	params := list(&fact)
	*params = append(*params, i)
	slices.Sort(*params)
	l.pass.ExportObjectFact(obj, &fact)
	return true
}

// docAround is the comment of the innermost declaration around a node.
func docAround(stack []ast.Node) string {
	for _, n := range slices.Backward(stack) {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if n.Doc != nil {
				return n.Doc.Text()
			}
		case *ast.GenDecl:
			return n.Doc.Text()
		case *ast.FuncDecl, *ast.FuncLit:
			return ""
		}
	}
	return ""
}

// deprecation returns what a comment's paragraph "Deprecated:" says.
func deprecation(doc string) string {
	for paragraph := range strings.SplitSeq(doc, "\n\n") {
		if text, ok := strings.CutPrefix(paragraph, "Deprecated: "); ok {
			return strings.Join(strings.Fields(text), " ")
		}
	}
	return ""
}

// declarations are the topics that this package declares.
func (l *linter) declarations() []declared {
	var list []declared
	for _, s := range l.sites.topics {
		name, ok := l.constant(s.expr)
		if s.lit == nil || !ok || name == "" || s.use != declares && s.use != binds {
			continue
		}
		d := declared{Where: l.where(s.expr.Pos()), pos: s.expr.Pos(), Bound: s.use == binds}
		d.Name, d.Deprecated, d.Var = name, deprecation(s.doc), l.packageVars[s.lit]
		if s.use == binds {
			d.Payload = l.payload(s.lit)
		} else {
			d.Compacted = l.maybe(s.lit, "Compact")
			d.KeyInSubject = d.Compacted || l.maybe(s.lit, "KeyInSubject")
			d.Snapshot = valueOf(s.lit, "SnapshotOf") != nil
		}
		list = append(list, d)
	}
	return list
}

// payload names the type argument of a jetbus.Topic[T], "" where that is a parameter.
func (l *linter) payload(lit *ast.CompositeLit) string {
	t := argument(l.info.TypeOf(lit))
	if t == nil {
		return ""
	}
	if p, ok := t.(*types.Pointer); ok { // the same in JSON
		t = p.Elem()
	}
	return types.TypeString(t, nil)
}

// argument is the T of a jetbus.Topic[T], nil where that depends on a type parameter.
func argument(t types.Type) types.Type {
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.TypeArgs().Len() != 1 {
		return nil
	}
	arg := n.TypeArgs().At(0)
	if dependsOnParam(arg, 0) {
		return nil
	}
	return arg
}

func dependsOnParam(t types.Type, depth int) bool {
	switch t := types.Unalias(t).(type) {
	case *types.TypeParam:
		return true
	case *types.Pointer:
		return dependsOnParam(t.Elem(), depth)
	case *types.Slice:
		return dependsOnParam(t.Elem(), depth)
	case *types.Named:
		for arg := range t.TypeArgs().Types() {
			if depth > 8 || dependsOnParam(arg, depth+1) {
				return true
			}
		}
	}
	return false
}

// maybe reports whether a field of a literal is there and not false.
func (l *linter) maybe(lit *ast.CompositeLit, field string) bool {
	v := valueOf(lit, field)
	if v == nil {
		return false
	}
	b := l.info.Types[v].Value
	return b == nil || b.String() != "false"
}

// valueOf is the value that a literal gives a field by name.
func valueOf(lit *ast.CompositeLit, field string) ast.Expr {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == field {
				return kv.Value
			}
		}
	}
	return nil
}
