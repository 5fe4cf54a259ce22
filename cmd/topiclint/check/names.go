package check

import (
	"fmt"
	"go/ast"
	"go/types"
	"strings"

	"github.com/seed-63e9a637/jetbus"
)

// checkNames looks at what is said of topics, groups and headers by name.
func (l *linter) checkNames() {
	for _, s := range l.sites.topics {
		name, ok := l.constant(s.expr)
		if !ok {
			l.checkDynamic(s)
			continue
		}
		if name == "" { // no topic yet, or any
			continue
		}
		if err := jetbus.ValidTopic(name); err != nil {
			l.report("BUS001", s.expr, err.Error(), l.lowered(s.expr, jetbus.ValidTopic)...)
			continue
		}
		l.checkKnown(s, name)
	}
	for _, e := range l.sites.groups {
		if name, ok := l.constant(e); ok && name != "" {
			if err := jetbus.ValidGroup(name); err != nil {
				l.report("BUS011", e, err.Error())
			}
		}
	}
	for _, h := range l.sites.headers {
		if name, ok := l.constant(h.name); ok {
			if err := validHeader(name); err != nil {
				l.report("BUS005", h.name, err.Error(), l.lowered(h.name, validHeader)...)
			}
		}
	}
}

// validHeader reports a name that the bus refuses, or that may meet one of somebody else's:
// the bus takes what other systems write, in headers that are copied from theirs.
func validHeader(name string) error {
	if err := jetbus.ValidHeader(name, "v"); err != nil {
		return err
	}
	switch name {
	case jetbus.HeaderContentType, jetbus.HeaderTraceParent, jetbus.HeaderTraceState:
		return nil
	}
	rest, ok := strings.CutPrefix(name, "x-")
	if !ok || rest == "" || strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz0123456789_-.") != "" {
		return fmt.Errorf("header %q: names of your own start with x-, and are lower case a-z, 0-9, '_', '-' and '.'", name)
	}
	return nil
}

// checkDynamic looks at a topic that is not constant. One that is a parameter is looked
// at where the function is called; one of a Topic or TopicConfig, where that is declared.
func (l *linter) checkDynamic(s topicSite) {
	if s.use == declares || s.use == binds || l.silence.isDynamic(l.pass.Fset, s.expr.Pos()) {
		return
	}
	switch e := ast.Unparen(s.expr).(type) {
	case *ast.Ident:
		if v, ok := l.info.Uses[e].(*types.Var); ok && v.Kind() == types.ParamVar {
			return
		}
	case *ast.SelectorExpr:
		if l.isField(e, "Topic", "Name") || l.isField(e, "TopicConfig", "Name") || l.isField(e, "Event", "Topic") {
			return
		}
	case *ast.CallExpr:
		if len(e.Args) == 1 && l.info.Types[e.Fun].IsType() { // string(topic)
			l.checkDynamic(topicSite{expr: e.Args[0], use: s.use})
			return
		}
		if is(l.callee(e), busPath, "DeadLetterTopic") {
			return
		}
	}
	l.report("BUS004", s.expr, "the topic is not known before the program runs: use a constant, of constants with + between them, or say //topiclint:dynamic")
}

// checkKnown looks at a valid topic against what is known of it.
func (l *linter) checkKnown(s topicSite, name string) {
	origin := strings.TrimPrefix(name, jetbus.DeadLetterTopic(""))
	t, ok := l.known.of(origin)
	if origin == name && (ok || l.options.Catalog != nil && l.options.Catalog.Partial) {
		l.checkSchema(s, name, t)
	}
	if !ok {
		_, version := jetbus.TopicVersion(origin)
		versioned := !l.options.Strict && (version > 1 || strings.HasSuffix(origin, ".v1"))
		if l.known.complete && s.use != declares && !versioned {
			hint := ""
			if near := nearest(origin, l.known.names()); near != "" {
				hint = ", did you mean " + near + "?"
			}
			l.report("BUS002", s.expr, fmt.Sprintf("no topic %s is declared%s", origin, hint))
		}
		return
	}
	if t.Deprecated != "" && s.use != declares && s.use != binds {
		l.report("BUS016", s.expr, fmt.Sprintf("topic %s is deprecated: %s", origin, t.Deprecated))
	}
}
