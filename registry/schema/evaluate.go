package schema

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrTooMuchWork matches the error of a payload whose validation takes more than MaxWork steps. The
// error also matches ErrInvalid.
var ErrTooMuchWork = errors.New("too much work")

// evaluation validates one value against the nodes of a schema. It stops at the first violation, or
// after MaxViolations if reporting is set. It counts its work, and panics with exhausted when no work
// is left. The limit is needed because a payload can make any schema with a union or a recursion take
// exponential time, and can cause a violation for each of its items.
type evaluation struct {
	left      int // remaining work
	depth     int // of eval
	reporting bool
	found     []Violation
	recorded  int // number of violations, including duplicates
	path      []step
	naming    bool // the value is the name of a member
	scoped    bool // the schema has dynamic references
	scope     []scoped
	marks     []int // members or items that were evaluated, see mark
	key       []byte
	matching  map[*matcher]*matching
}

// step leads from a value to one of its members or items.
type step struct {
	name  string // of the member; empty for an item
	index int    // of the item; -1 for a member
}

// scoped is a schema that is being evaluated, for dynamic references. While its then or else is
// evaluated, the schema has left the scope, and the search for an anchor ends there.
type scoped struct {
	of   *node
	left bool
}

type exhausted struct{}

const (
	// maxFrames bounds the depth of the recursion and so the memory of the stack.
	maxFrames = 20_000
	// every is a mark for all members or items.
	every = -1
)

// accepts reports whether n accepts a value that is part of a schema or was made by a proof.
func accepts(n *node, v any) (bool, error) {
	return (&evaluation{left: MaxWork}).accepts(n, objectsOf(v))
}

// accepts reports whether n accepts the value. The error is ErrTooMuchWork, or reports a panic of this
// package or of a format.
func (e *evaluation) accepts(n *node, v any) (ok bool, err error) {
	defer e.recover(&err)
	e.scoped = n.opaque
	return e.eval(n, v, false), nil
}

func (e *evaluation) recover(err *error) {
	switch r := recover(); r.(type) {
	case nil:
	case exhausted:
		*err = ErrTooMuchWork
	default:
		*err = fmt.Errorf("the value cannot be validated: %v", r)
	}
}

// violations returns the violations of n in the value that are found within work steps. It returns at
// least one.
func violations(n *node, v any, work int) []Violation {
	e := &evaluation{left: work, reporting: true}
	_, _ = e.accepts(n, v)
	if len(e.found) == 0 {
		return []Violation{{KeywordPath: "#", Message: "does not fit the schema; finding out why takes too much work"}}
	}
	return tidy(e.found)
}

// spend subtracts from the remaining work, and panics with exhausted if nothing is left.
func (e *evaluation) spend(work int) {
	if e.left -= work; e.left < 0 {
		panic(exhausted{})
	}
}

// fail records a violation of a keyword if the evaluation reports. It always returns false.
func (e *evaluation) fail(n *node, keyword string, v any) bool {
	if e.reporting {
		e.violate(n, keyword, word(n, keyword, v))
	}
	return false
}

// violate records a violation of a keyword. An empty keyword stands for the schema itself.
func (e *evaluation) violate(n *node, keyword, message string) {
	at := n.at
	if keyword != "" {
		at += "/" + keyword
	}
	e.record(at, message)
}

func (e *evaluation) record(at, message string) {
	size := len(at) + len(message)
	for _, s := range e.path {
		size += len(s.name) + 8
	}
	e.spend(100 + size/8)
	e.recorded++
	if e.naming {
		message = "the name of the property " + message
	}
	one := Violation{InstancePath: e.pointer(), KeywordPath: at, Message: message}
	if slices.Contains(e.found, one) { // a schema can be applied to the same value more than once
		return
	}
	e.found = append(e.found, one)
	e.reporting = len(e.found) < MaxViolations
}

// pointer returns the JSON pointer of the current value.
func (e *evaluation) pointer() string {
	var b strings.Builder
	for _, s := range e.path {
		b.WriteByte('/')
		if s.index >= 0 {
			b.WriteString(itoa(s.index))
		} else {
			b.WriteString(escape(s.name))
		}
	}
	return b.String()
}

// eval reports whether n accepts the value. With track, it leaves marks for the members or items that
// it evaluated.
func (e *evaluation) eval(n *node, v any, track bool) bool {
	e.spend(2)
	if n.always != nil {
		if !*n.always && e.reporting {
			e.violate(n, "", "is not allowed")
		}
		return *n.always
	}
	if e.depth++; e.depth > maxFrames {
		panic(exhausted{})
	}
	if e.scoped {
		e.scope = append(e.scope, scoped{of: n})
	}
	marks := len(e.marks)
	ok := e.check(n, v, track, marks)
	if !ok || !track {
		e.marks = e.marks[:marks]
	}
	if e.scoped {
		e.scope = e.scope[:len(e.scope)-1]
	}
	e.depth--
	return ok
}

// check does the work of eval, which maintains depth, scope and marks. The marks of this schema begin
// at index marks.
func (e *evaluation) check(n *node, v any, track bool, marks int) bool {
	kind := typeOf(v)
	if n.types&kind == 0 || n.integer && kind == tNum && !e.isInteger(v) {
		return e.fail(n, "type", v)
	}
	ok := n.allowed == nil || e.isAllowed(n, v)
	if !ok {
		keyword := "enum"
		if n.constant {
			keyword = "const"
		}
		e.fail(n, keyword, v)
	}
	if n.isFormat != nil && !e.hasFormat(n, v) {
		ok = e.fail(n, "format", v)
	}
	if !ok && !e.reporting {
		return false
	}
	track = track || n.unevaluatedProperties != nil && kind == tObj || n.unevaluatedItems != nil && kind == tArr
	ok = e.parts(n, v, track) && ok
	if n.applies && (ok || e.reporting) {
		ok = e.inPlace(n, v, track) && ok
	}
	if !ok && !e.reporting {
		return false
	}
	return e.unevaluated(n, v, marks) && ok
}

// parts evaluates the keywords for the type of the value.
func (e *evaluation) parts(n *node, v any, track bool) bool {
	switch v := v.(type) {
	case object:
		return e.object(n, v, track)
	case []any:
		return e.array(n, v, track)
	case string:
		return e.text(n, v)
	case nil, bool:
		return true
	}
	return e.number(n, v)
}

// below evaluates a member or an item of the current value.
func (e *evaluation) below(n *node, v any, s step) bool {
	e.path = append(e.path, s)
	ok := e.eval(n, v, false)
	e.path = e.path[:len(e.path)-1]
	return ok
}

// quietly evaluates without reporting.
func (e *evaluation) quietly(n *node, v any, track bool) bool {
	reporting := e.reporting
	e.reporting = false
	ok := e.eval(n, v, track)
	e.reporting = reporting
	return ok
}

// inPlace evaluates the schemas that n applies to the same value.
func (e *evaluation) inPlace(n *node, v any, track bool) bool {
	ok := true
	all := func(x *node) bool { // returns false if the evaluation must stop
		ok = e.eval(x, v, track) && ok
		return ok || e.reporting
	}
	if n.ref != nil && !all(n.ref) {
		return false
	}
	if n.target != nil && !all(e.dynamicTarget(n)) {
		return false
	}
	for _, x := range n.allOf {
		if !all(x) {
			return false
		}
	}
	for _, d := range n.dependent {
		if o, is := v.(object); is && o.has(d.name) && !all(d.of) {
			return false
		}
	}
	if n.not != nil && e.quietly(n.not, v, false) {
		ok = e.fail(n, "not", v)
	}
	if n.anyOf != nil && (ok || e.reporting) {
		ok = e.anyOf(n, v, track) && ok
	}
	if n.oneOf != nil && (ok || e.reporting) {
		ok = e.oneOf(n, v, track) && ok
	}
	if n.cond != nil && (ok || e.reporting) {
		ok = e.conditional(n, v, track) && ok
	}
	return ok
}

func (e *evaluation) anyOf(n *node, v any, track bool) bool {
	matched := false
	for _, x := range n.anyOf {
		if e.quietly(x, v, track) {
			if matched = true; !track {
				break
			}
		}
	}
	return matched || e.failed(n, "anyOf", n.anyOf, v)
}

func (e *evaluation) oneOf(n *node, v any, track bool) bool {
	first := -1
	for i, x := range n.oneOf {
		switch {
		case !e.quietly(x, v, track):
		case first < 0:
			first = i
		default:
			if e.reporting {
				e.violate(n, "oneOf", fmt.Sprintf("fits the alternatives %d and %d of oneOf, counted from 0, and may fit only one", first, i))
			}
			return false
		}
	}
	return first >= 0 || e.failed(n, "oneOf", n.oneOf, v)
}

// failed records why none of the branches accepts the value, if the evaluation reports. It always
// returns false.
func (e *evaluation) failed(n *node, keyword string, branches []*node, v any) bool {
	recorded := e.recorded
	for _, x := range branches {
		if e.reporting {
			e.eval(x, v, false)
		}
	}
	if e.reporting && e.recorded == recorded {
		e.violate(n, keyword, "must fit one of "+keyword)
	}
	return false
}

func (e *evaluation) conditional(n *node, v any, track bool) bool {
	if n.then == nil && n.els == nil && !track {
		return true
	}
	branch := n.els
	if e.quietly(n.cond, v, track) {
		branch = n.then
	}
	if branch == nil {
		return true
	}
	if e.scoped {
		own := len(e.scope) - 1
		e.scope[own].left = true
		defer func() { e.scope[own].left = false }()
	}
	return e.eval(branch, v, track)
}

// dynamicTarget returns the schema that the dynamic or recursive reference of n refers to.
func (e *evaluation) dynamicTarget(n *node) *node {
	e.spend(len(e.scope))
	if n.anchor == "" {
		for _, s := range e.scope {
			for _, a := range s.of.anchors {
				if a.name == "" {
					return a.of
				}
			}
		}
		return n.target
	}
	target := n.target
	for _, s := range slices.Backward(e.scope) {
		if s.left {
			break
		}
		e.spend(len(s.of.anchors))
		for _, a := range s.of.anchors {
			if a.name == n.anchor && a.of != n.target {
				target = a.of
				break
			}
		}
	}
	return target
}

// mark records that a member or an item was evaluated, or all of them if index is every.
func (e *evaluation) mark(index int) {
	e.spend(1)
	e.marks = append(e.marks, index)
}

// unevaluated applies unevaluatedProperties or unevaluatedItems to the members or items that have no
// mark.
func (e *evaluation) unevaluated(n *node, v any, marks int) bool {
	switch v := v.(type) {
	case object:
		if n.unevaluatedProperties != nil {
			return e.rest(n.unevaluatedProperties, len(v), marks, func(i int) (any, step) { return v[i].value, step{v[i].name, -1} })
		}
	case []any:
		if n.unevaluatedItems != nil {
			return e.rest(n.unevaluatedItems, len(v), marks, func(i int) (any, step) { return v[i], step{"", i} })
		}
	}
	return true
}

func (e *evaluation) rest(n *node, size, marks int, part func(i int) (any, step)) bool {
	own := e.marks[marks:]
	if slices.Contains(own, every) {
		return true
	}
	e.spend(len(own) + size/8 + 4)
	done := make([]bool, size)
	for _, i := range own {
		done[i] = true
	}
	ok := true
	for i := range size {
		if done[i] {
			continue
		}
		v, s := part(i)
		if ok = e.below(n, v, s) && ok; !ok && !e.reporting {
			return false
		}
	}
	e.mark(every)
	return ok
}
