package check

import (
	"fmt"
	"go/ast"
	"go/types"
	"reflect"
	"strings"
)

// checkTypes looks at the Go types that topics carry.
func (l *linter) checkTypes(own []declared) {
	for _, s := range l.sites.topics {
		if s.use != binds || s.lit == nil {
			continue
		}
		for _, d := range own {
			if d.pos == s.expr.Pos() {
				l.checkBound(s, d)
			}
		}
		t := argument(l.info.TypeOf(s.lit))
		if t == nil {
			continue
		}
		if valueOf(s.lit, "Codec") == nil {
			j := jsonChecker{seen: make(map[types.Type]bool)}
			if why := j.refuses(t, "the payload"); why != "" {
				l.report("BUS008", s.lit.Type, why)
			}
		}
		l.checkSecrets(s.lit, t, make(map[types.Type]bool))
	}
}

// checkBound looks for another type of the same topic, in who binds it first.
func (l *linter) checkBound(s topicSite, d declared) {
	for _, first := range l.known.topics[d.Name] {
		if first.Payload == "" || d.Payload == "" {
			continue
		}
		if first.Payload != d.Payload {
			l.report("BUS009", s.lit.Type, fmt.Sprintf("topic %s carries %s by %s, here %s", d.Name, first.Payload, first.Where, d.Payload))
		}
		return
	}
}

// jsonChecker finds what encoding/json refuses in a type.
type jsonChecker struct{ seen map[types.Type]bool }

// refuses says why a type cannot be a payload; "" if it can, as far as types tell.
func (j *jsonChecker) refuses(t types.Type, what string) string {
	if j.seen[t] || marshals(t) {
		return ""
	}
	j.seen[t] = true
	switch u := t.Underlying().(type) {
	case *types.Chan, *types.Signature:
		return fmt.Sprintf("%s is a %s, which has no JSON", what, kindOf(u))
	case *types.Basic:
		if u.Info()&types.IsComplex != 0 || u.Kind() == types.UnsafePointer {
			return fmt.Sprintf("%s is a %s, which has no JSON", what, u)
		}
	case *types.Pointer:
		return j.refuses(u.Elem(), what)
	case *types.Slice:
		return j.refuses(u.Elem(), "an item of "+what)
	case *types.Array:
		return j.refuses(u.Elem(), "an item of "+what)
	case *types.Map:
		if key, ok := u.Key().Underlying().(*types.Basic); (!ok || key.Info()&(types.IsString|types.IsInteger) == 0) && !marshals(u.Key()) {
			return fmt.Sprintf("%s is a map with keys of type %s, which JSON has not", what, short(u.Key()))
		}
		return j.refuses(u.Elem(), "a value of "+what)
	case *types.Struct:
		return j.refusesStruct(t, u, what)
	}
	return ""
}

func (j *jsonChecker) refusesStruct(t types.Type, u *types.Struct, what string) string {
	written := u.NumFields() == 0
	for i := range u.NumFields() {
		f := u.Field(i)
		if !f.Exported() && !f.Embedded() {
			continue
		}
		written = true
		if name, _, _ := strings.Cut(reflect.StructTag(u.Tag(i)).Get("json"), ","); name == "-" {
			continue
		}
		if why := j.refuses(f.Type(), "field "+f.Name()+" of "+short(t)); why != "" {
			return why
		}
	}
	if !written {
		return fmt.Sprintf("%s is a %s, which has no exported field: its JSON is {}", what, short(t))
	}
	return ""
}

func kindOf(t types.Type) string {
	if _, ok := t.(*types.Chan); ok {
		return "channel"
	}
	return "function"
}

func short(t types.Type) string {
	return types.TypeString(t, func(p *types.Package) string { return p.Name() })
}

// marshals reports whether a type says itself what its JSON is.
func marshals(t types.Type) bool {
	if _, ok := t.Underlying().(*types.Interface); ok {
		return true // what is in it decides
	}
	for _, name := range []string{"MarshalJSON", "MarshalText"} {
		if o, _, _ := types.LookupFieldOrMethod(t, true, nil, name); o != nil {
			if _, ok := o.(*types.Func); ok {
				return true
			}
		}
	}
	return false
}

// secret are the words that fields with secrets have in their names.
var secret = []string{"password", "passwd", "secret", "apikey", "privatekey", "accesstoken", "refreshtoken", "creditcard", "cardnumber", "ssn"}

// checkSecrets looks at the names of the fields of a payload.
func (l *linter) checkSecrets(lit *ast.CompositeLit, t types.Type, seen map[types.Type]bool) {
	if seen[t] { // a type may consist of itself
		return
	}
	seen[t] = true
	switch u := t.Underlying().(type) {
	case *types.Pointer:
		l.checkSecrets(lit, u.Elem(), seen)
	case *types.Slice:
		l.checkSecrets(lit, u.Elem(), seen)
	case *types.Struct:
		for i := range u.NumFields() {
			f, tag := u.Field(i), reflect.StructTag(u.Tag(i))
			if tag.Get("json") == "-" || tag.Get("bus") == "redact" || !f.Exported() {
				continue
			}
			name := strings.ToLower(f.Name())
			for _, word := range secret {
				if name == word || len(word) > 3 && strings.Contains(name, word) {
					l.report("BUS017", lit.Type, fmt.Sprintf("field %s of %s reads like a secret, and events are kept", f.Name(), short(t)))
					break
				}
			}
			l.checkSecrets(lit, f.Type(), seen)
		}
	}
}
