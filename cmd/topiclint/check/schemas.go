package check

import (
	"fmt"
	"go/ast"
	"go/types"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// Schemas is the set of topics for which source code registers a schema. It is the
// result of the analyzer: the topics of the package and of the packages that it
// imports. [Options.Schemas] is the union of the results over a whole program.
type Schemas map[string]bool

var schemasType = reflect.TypeFor[Schemas]()

// registers reports whether a parameter of a function selects the topic of a schema
// that the function registers.
func registers(f *types.Func, p *types.Var) bool {
	if f == nil || f.Pkg() == nil || f.Pkg().Path() != busPath+"/registry" {
		return false
	}
	switch f.Name() {
	case "Register":
		return p.Name() == "topic"
	case "Bind":
		return busType(p.Type()) == "Topic"
	}
	return false
}

// topicOf returns the name of the topic that an expression is or describes: a
// constant, a Topic or TopicConfig literal, a variable that is initialized with such a
// literal, or the Name field of a literal or variable.
func (l *linter) topicOf(e ast.Expr) (string, bool) {
	if name, ok := l.constant(e); ok {
		return name, true
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.CompositeLit:
		if name := valueOf(e, "Name"); name != nil && describesTopic(l.info.TypeOf(e)) {
			return l.constant(name)
		}
	case *ast.SelectorExpr:
		if l.isTopicName(e) {
			return l.topicOf(e.X)
		}
	}
	v, ok := l.object(e).(*types.Var)
	if !ok {
		return "", false
	}
	if v.Pkg() == l.pass.Pkg {
		lit := l.vars[v]
		if lit == nil {
			return "", false
		}
		return l.topicOf(lit)
	}
	var imported declaredTopics
	if v.Pkg() == nil || v.Parent() != v.Pkg().Scope() || !l.pass.ImportPackageFact(v.Pkg(), &imported) {
		return "", false
	}
	for _, d := range imported.Topics {
		if d.Var == v.Name() {
			return d.Name, true
		}
	}
	return "", false
}

func (l *linter) isTopicName(e *ast.SelectorExpr) bool {
	return l.isField(e, "Topic", "Name") || l.isField(e, "TopicConfig", "Name")
}

func describesTopic(t types.Type) bool {
	name := busType(t)
	return name == "Topic" || name == "TopicConfig"
}

// collectVars finds the variables that are initialized with a Topic or TopicConfig literal, and the names of those
// of the package.
func (l *linter) collectVars() {
	l.vars, l.packageVars = make(map[types.Object]*ast.CompositeLit), make(map[*ast.CompositeLit]string)
	add := func(id *ast.Ident, value ast.Expr) {
		lit, ok := ast.Unparen(value).(*ast.CompositeLit)
		v := l.info.Defs[id]
		if !ok || v == nil || !describesTopic(l.info.TypeOf(lit)) {
			return
		}
		l.vars[v] = lit
		if v.Parent() == l.pass.Pkg.Scope() {
			l.packageVars[lit] = v.Name()
		}
	}
	for _, f := range l.files {
		l.walk(f, func(n ast.Node, _ []ast.Node) {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if len(n.Names) == len(n.Values) {
					for i, id := range n.Names {
						add(id, n.Values[i])
					}
				}
			case *ast.AssignStmt:
				if len(n.Lhs) == len(n.Rhs) {
					for i, left := range n.Lhs {
						if id, ok := left.(*ast.Ident); ok {
							add(id, n.Rhs[i])
						}
					}
				}
			}
		})
	}
}

// registered returns the topics for which this package registers schemas. If it
// registers schemas for topics that are not constants, and there is no catalog, it is
// assumed to register one for each topic that it or a package that it imports declares.
func (l *linter) registered(k known) []string {
	names := make(map[string]bool)
	all := l.sites.importsSchemas
	for _, s := range l.sites.schemas {
		name, ok := l.topicOf(s.expr)
		switch {
		case ok:
			names[name] = true
		case !s.isParam:
			all = true
		}
	}
	if all && l.options.Catalog == nil {
		for _, name := range k.names() {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// rootOf returns t for t.Name, and other expressions as they are.
func rootOf(e ast.Expr) ast.Expr {
	e = ast.Unparen(e)
	if s, ok := e.(*ast.SelectorExpr); ok && s.Sel.Name == "Name" {
		return ast.Unparen(s.X)
	}
	return e
}

// checkSchema reports a topic without a schema: where this package declares it, or,
// if no package declares it, where an event is published to it. Nothing is reported
// if it is not known which topics have a schema.
func (l *linter) checkSchema(s topicSite, name string, t Topic) {
	catalog := l.options.Catalog
	if catalog == nil && l.options.Schemas == nil {
		return
	}
	if t.Schema > 0 && s.use == publishes {
		l.checkVersion(s, t)
	}
	if t.Schema > 0 || l.known.schemas[name] || l.known.isSnapshot(name) || l.isVersionWithSchema(name) {
		return
	}
	first, isDeclared := l.known.declaredBy(name)
	switch {
	case isDeclared && first.pos != s.expr.Pos(), !isDeclared && s.use != publishes:
		return
	case catalog != nil:
		l.report("BUS003", s.expr, fmt.Sprintf("topic %s has no schema in the catalog", name))
	default:
		l.report("BUS003", s.expr, fmt.Sprintf("topic %s has no schema: the program does not register one, and no catalog is given", name))
	}
}

// isVersionWithSchema reports whether a topic is named after a version of another topic that has a schema, as
// registry.DualWrite needs it: its events follow that schema.
func (l *linter) isVersionWithSchema(name string) bool {
	base, version := jetbus.TopicVersion(name)
	if version == 1 {
		base = strings.TrimSuffix(name, ".v1")
	}
	of, _ := l.known.of(base)
	return base != name && (of.Schema > 0 || l.known.schemas[base])
}

// checkVersion compares the schema version in an event's headers with the latest version.
func (l *linter) checkVersion(s topicSite, t Topic) {
	if s.lit == nil {
		return
	}
	headers, ok := ast.Unparen(valueOf(s.lit, "Headers")).(*ast.CompositeLit)
	if !ok {
		return
	}
	for _, e := range headers.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		name, _ := l.constant(kv.Key)
		value, isConst := l.constant(kv.Value)
		if version, err := strconv.Atoi(value); name == jetbus.HeaderSchemaVersion && isConst && err == nil && version != t.Schema {
			l.report("BUS020", kv.Value, fmt.Sprintf("the event has version %d of the schema of %s, the latest is %d", version, t.Name, t.Schema))
		}
	}
}
