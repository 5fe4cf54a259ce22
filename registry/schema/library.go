package schema

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"slices"
	"sort"
	"strings"

	js "github.com/santhosh-tekuri/jsonschema/v5"
)

// The validator library compiles schemas. Only this file uses it. It does not validate payloads,
// because it does not stop at a violation and bounds neither time nor memory. The builder makes
// nodes from the compiled schemas, not from the text. The evaluation and the proof read the nodes.
// A test compares the results of the evaluation with those of the library.

// source is one document as the library gets it.
type source struct {
	uri  string
	text string
}

// refused is the loader's answer: nothing is ever loaded.
type refused struct{ uri string }

func (e *refused) Error() string { return "reference to " + e.uri }

// library is one compilation.
type library struct {
	compiler *js.Compiler
	root     *js.Schema
	main     string // the URI before the fragment in the locations of the main document
}

var libraryDrafts = map[Draft]*js.Draft{
	Draft4: js.Draft4, Draft6: js.Draft6, Draft7: js.Draft7, Draft2019: js.Draft2019, Draft2020: js.Draft2020,
}

// compileLibrary compiles the first of the documents. A panic of the library is
// an error: some keywords that a draft does not know are used unchecked.
func compileLibrary(draft Draft, docs []source) (l *library, err error) {
	defer func() {
		if r := recover(); r != nil {
			l, err = nil, fmt.Errorf("%v", r)
		}
	}()
	c := js.NewCompiler()
	c.Draft = libraryDrafts[draft]
	c.AssertFormat = true
	c.LoadURL = func(uri string) (io.ReadCloser, error) { return nil, &refused{uri} }
	// The library would compile the expression, which takes 128 MiB at worst.
	c.Formats["regex"] = isExpression
	for _, d := range docs {
		if err := c.AddResource(d.uri, strings.NewReader(d.text)); err != nil {
			return nil, err
		}
	}
	root, err := c.Compile(docs[0].uri)
	if err != nil {
		return nil, err
	}
	main, _, _ := strings.Cut(root.Location, "#")
	return &library{compiler: c, root: root, main: main}, nil
}

// isExpression reports whether a value is a regular expression or not a string.
func isExpression(v any) bool {
	s, ok := v.(string)
	return !ok || !badExpression(s)
}

// at is a location as people read it: without the main document's own URI, and
// without percent signs.
func (l *library) at(location string) string {
	doc, fragment, _ := strings.Cut(location, "#")
	if doc == l.main {
		doc = ""
	}
	return doc + "#" + plain(fragment)
}

// plain undoes the percent signs of a pointer.
func plain(pointer string) string {
	if p, err := url.PathUnescape(pointer); err == nil {
		return p
	}
	return pointer
}

// remark is one violation of a metaschema.
type remark struct {
	instance string // JSON pointer
	at       string // location of the keyword, or of a schema that is false
	message  string
}

// remarks returns the violations that the library reports for a schema that its metaschema does not
// accept. The messages are the library's, in no particular order. ok is false for other errors.
func remarks(err error) (found []remark, ok bool) {
	var ve *js.ValidationError
	if !errors.As(err, &ve) {
		return nil, false
	}
	seen := map[remark]bool{} // the library can report the same violation more than once
	var walk func(ve *js.ValidationError)
	walk = func(ve *js.ValidationError) {
		for _, c := range ve.Causes {
			walk(c)
		}
		r := remark{instance: plain(ve.InstanceLocation), at: ve.AbsoluteKeywordLocation, message: ve.Message}
		if len(ve.Causes) == 0 && !seen[r] {
			seen[r] = true
			found = append(found, r)
		}
	}
	walk(ve)
	return found, true
}

// builder makes the nodes of one compilation.
type builder struct {
	*library
	docs    map[string]any // parsed documents, by the URI before "#" in node.at
	nodes   map[*js.Schema]*node
	all     []*node // in the order in which they were made
	dynamic map[*node]string
	anchors map[string][]*node // by the name of $dynamicAnchor; "" is $recursiveAnchor
	failed  error              // the first thing that is wrong
}

func (b *builder) fail(err error) {
	if b.failed == nil {
		b.failed = err
	}
}

// build makes the nodes. The anchors are the locations of what dynamic references
// may come to, be it reached by others or not.
func (l *library) build(anchors []string, docs map[string]any) (b *builder, err error) {
	defer func() {
		if r := recover(); r != nil {
			b, err = nil, fmt.Errorf("%v", r)
		}
	}()
	b = &builder{library: l, docs: docs, nodes: map[*js.Schema]*node{}, dynamic: map[*node]string{}, anchors: map[string][]*node{}}
	b.node(l.root)
	for _, a := range anchors {
		if s, err := l.compiler.Compile(a); err == nil { // else nothing can refer to it
			b.node(s)
		}
	}
	for n, name := range b.dynamic {
		for _, a := range b.anchors[name] {
			if !slices.Contains(n.dynamic, a) {
				n.dynamic = append(n.dynamic, a)
			}
		}
	}
	markOpaque(b.all)
	for _, n := range b.all {
		n.prepare()
	}
	b.placeAnchors()
	l.compiler = nil // it holds the documents
	return b, b.failed
}

// byLocation returns the nodes that the library has a schema for.
func (b *builder) byLocation() map[string]*node {
	m := make(map[string]*node, len(b.nodes))
	for _, n := range b.nodes {
		m[n.at] = n
	}
	return m
}

// constant makes the node of true or false where the library keeps the boolean.
func (b *builder) constant(at string, value bool) *node {
	return b.add(&node{at: at, always: &value})
}

func (b *builder) add(n *node) *node {
	if n.types == 0 {
		n.types = tAll
	}
	n.maxLength, n.maxItems, n.maxProperties, n.maxContains = orNone(n.maxLength), orNone(n.maxItems), orNone(n.maxProperties), orNone(n.maxContains)
	n.id = len(b.all)
	n.accepts = func(v any) bool { ok, err := accepts(n, v); return ok && err == nil }
	b.all = append(b.all, n)
	return n
}

func orNone(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// node makes the node of a schema. The library finds schemas under additionalItems in
// draft 2020-12 too, whose metaschema does not know that keyword: what a $ref reaches
// there was checked by nobody. What the library does not mind there, and the proof
// relies on, is refused here.
func (b *builder) node(s *js.Schema) *node {
	if s == nil {
		return nil
	}
	if n, ok := b.nodes[s]; ok {
		return n
	}
	n := b.add(&node{at: b.at(s.Location), always: s.Always})
	b.nodes[s] = n
	b.counts(n, s)
	b.general(n, s)
	b.applicators(n, s)
	b.numbers(n, s)
	b.strings(n, s)
	b.array(n, s)
	b.object(n, s)
	slices.Sort(n.beyond)
	return n
}

// counts refuses what was too large for an int, and became something else.
func (b *builder) counts(n *node, s *js.Schema) {
	of := map[string]int{
		"minLength": s.MinLength, "maxLength": s.MaxLength, "minItems": s.MinItems, "maxItems": s.MaxItems,
		"minProperties": s.MinProperties, "maxProperties": s.MaxProperties, "minContains": s.MinContains, "maxContains": s.MaxContains,
	}
	for _, keyword := range sortedKeys(of) {
		switch c := of[keyword]; {
		case c == math.MinInt, c > MaxCount: // the smallest is what too large a number becomes
			b.fail(tooLarge(n.at+"/"+keyword, fmt.Sprintf("at most %d is allowed", MaxCount)))
		case c < -1: // -1 is none
			b.fail(invalid(n.at+"/"+keyword, keywordWords[keyword]))
		}
	}
}

func (b *builder) list(of []*js.Schema) []*node {
	if of == nil {
		return nil
	}
	out := make([]*node, len(of))
	for i, s := range of {
		out[i] = b.node(s)
	}
	return out
}

func (b *builder) general(n *node, s *js.Schema) {
	if len(s.Types) > 0 {
		var known bool
		if n.types, n.integer, known = typesOf(s.Types); !known {
			b.fail(invalid(n.at+"/type", keywordWords["type"]))
		}
	}
	if n.values = s.Enum; s.Enum != nil && len(s.Enum) == 0 {
		b.fail(invalid(n.at+"/enum", "must have at least one value")) // the library would ignore it
	}
	if s.RecursiveAnchor {
		b.anchors[""] = append(b.anchors[""], n)
	}
	if s.DynamicAnchor != "" && s.Draft == js.Draft2020 {
		b.anchors[s.DynamicAnchor] = append(b.anchors[s.DynamicAnchor], n)
	}
	if len(s.Extensions) > 0 {
		n.beyond = append(n.beyond, "extensions")
	}
	if n.expressions = s.RegexProperties; n.expressions {
		n.beyond = append(n.beyond, "regexProperties")
	}
}

func (b *builder) applicators(n *node, s *js.Schema) {
	n.ref = b.node(s.Ref)
	n.allOf, n.anyOf, n.oneOf, n.not = b.list(s.AllOf), b.list(s.AnyOf), b.list(s.OneOf), b.node(s.Not)
	if s.If != nil {
		n.cond, n.then, n.els = b.node(s.If), b.node(s.Then), b.node(s.Else)
	}
	if len(s.Constant) > 0 {
		if n.values == nil {
			n.values, n.constant = s.Constant[:1], true
		} else {
			n.allOf = append(slices.Clone(n.allOf), b.constNode(n.at, s.Constant[:1]))
		}
	}
	// A recursive or dynamic reference whose target has no anchor is a plain one.
	if r := s.RecursiveRef; r != nil {
		if r.RecursiveAnchor {
			b.dynamic[n] = ""
			n.target = b.node(r)
			n.beyond = append(n.beyond, "$recursiveRef")
			n.dynamic = append(n.dynamic, b.node(r))
		} else {
			n.allOf = append(slices.Clone(n.allOf), b.node(r))
		}
	}
	if r := s.DynamicRef; r != nil {
		if r.DynamicAnchor != "" && b.names(n, r.DynamicAnchor) {
			b.dynamic[n] = r.DynamicAnchor
			n.target, n.anchor = b.node(r), r.DynamicAnchor
			n.beyond = append(n.beyond, "$dynamicRef")
			n.dynamic = append(n.dynamic, b.node(r))
		} else {
			n.allOf = append(slices.Clone(n.allOf), b.node(r))
		}
	}
}

// names reports whether the $dynamicRef of n names the anchor. A $dynamicRef with a JSON pointer is a
// plain reference, even if it refers to a schema that has an anchor.
func (b *builder) names(n *node, anchor string) bool {
	uri, pointer, _ := strings.Cut(n.at, "#")
	of, ok := lookup(b.docs[uri], pointer).(map[string]any)
	if !ok { // a metaschema, in which all references name anchors
		return true
	}
	text, _ := of["$dynamicRef"].(string)
	_, fragment, _ := strings.Cut(text, "#")
	return fragment == anchor
}

// placeAnchors adds each anchor to its own node and to all nodes around that node. If several anchors
// have the same name, the innermost comes first. Anchors of recursive references are added only to
// their own node.
func (b *builder) placeAnchors() {
	byLocation := b.byLocation()
	for _, name := range sortedKeys(b.anchors) {
		at := slices.Clone(b.anchors[name])
		slices.SortFunc(at, func(a, b *node) int { return strings.Compare(b.at, a.at) })
		for _, n := range at {
			n.anchors = append(n.anchors, namedNode{name, n})
			if name == "" { // a recursive reference needs the schema itself
				continue
			}
			for around := n.at; strings.Contains(around, "/"); {
				around = around[:strings.LastIndexByte(around, '/')]
				if outer := byLocation[around]; outer != nil {
					outer.anchors = append(outer.anchors, namedNode{name, n})
				}
			}
		}
	}
}

// constNode is the node of a const beside an enum.
func (b *builder) constNode(at string, value []any) *node {
	return b.add(&node{at: at, values: value, evaluated: evaluated{constant: true}})
}

func (b *builder) numbers(n *node, s *js.Schema) {
	n.minimum, n.exclusiveMinimum, n.maximum, n.exclusiveMaximum = s.Minimum, s.ExclusiveMinimum, s.Maximum, s.ExclusiveMaximum
	if n.multipleOf = s.MultipleOf; n.multipleOf != nil && n.multipleOf.Sign() <= 0 {
		b.fail(invalid(n.at+"/multipleOf", keywordWords["multipleOf"]))
	}
}

func (b *builder) strings(n *node, s *js.Schema) {
	n.minLength, n.maxLength = max(s.MinLength, 0), s.MaxLength
	n.pattern = s.Pattern
	if _, ok := js.Formats[s.Format]; ok {
		n.format = s.Format
		if n.isFormat = js.Formats[s.Format]; s.Format == "regex" {
			n.isFormat = isExpression
		}
	}
	if s.Draft != js.Draft7 { // before it is unknown, after it an annotation
		return
	}
	// Draft 7 has no such keyword, and the library would read it. Its metaschema, which
	// all compilations share, has none, and so is not written to.
	if s.ContentSchema != nil {
		s.ContentSchema = nil
	}
	if s.ContentEncoding == "base64" {
		n.base64 = true
		n.beyond = append(n.beyond, "contentEncoding")
	}
	if s.ContentMediaType == "application/json" {
		n.json = true
		n.beyond = append(n.beyond, "contentMediaType")
	}
}

func (b *builder) array(n *node, s *js.Schema) {
	n.minItems, n.maxItems, n.unique = max(s.MinItems, 0), s.MaxItems, s.UniqueItems
	switch items := s.Items.(type) {
	case *js.Schema:
		n.items = b.node(items)
	case []*js.Schema:
		n.prefix = b.list(items)
		n.items = b.schemaOrBool(s.AdditionalItems, n.at+"/additionalItems")
	}
	if s.PrefixItems != nil {
		n.prefix = b.list(s.PrefixItems)
	}
	if s.Items2020 != nil {
		n.items = b.node(s.Items2020)
	}
	if s.Contains != nil {
		n.contains, n.minContains, n.maxContains = b.node(s.Contains), max(s.MinContains, 0), s.MaxContains
		n.containsEvaluates = s.ContainsEval
	}
	n.unevaluatedItems = b.node(s.UnevaluatedItems)
}

// schemaOrBool is nil where the keyword is absent.
func (b *builder) schemaOrBool(v any, at string) *node {
	switch v := v.(type) {
	case bool:
		return b.constant(at, v)
	case *js.Schema:
		return b.node(v)
	}
	return nil
}

func (b *builder) object(n *node, s *js.Schema) {
	n.minProperties, n.maxProperties, n.required = max(s.MinProperties, 0), s.MaxProperties, s.Required
	if s.Properties != nil {
		n.properties = make(map[string]*node, len(s.Properties))
		for _, name := range sortedKeys(s.Properties) {
			n.properties[name] = b.node(s.Properties[name])
		}
	}
	for re := range s.PatternProperties {
		n.patterns = append(n.patterns, patternNode{re: re})
	}
	sort.Slice(n.patterns, func(i, j int) bool { return n.patterns[i].re.String() < n.patterns[j].re.String() })
	for i := range n.patterns {
		n.patterns[i].of = b.node(s.PatternProperties[n.patterns[i].re])
	}
	n.additional = b.schemaOrBool(s.AdditionalProperties, n.at+"/additionalProperties")
	n.names = b.node(s.PropertyNames)
	n.unevaluatedProperties = b.node(s.UnevaluatedProperties)
	for _, name := range sortedKeys(s.DependentRequired) {
		b.dependent(n, "dependentRequired", name, s.DependentRequired[name])
	}
	for _, name := range sortedKeys(s.DependentSchemas) {
		b.dependent(n, "dependentSchemas", name, s.DependentSchemas[name])
	}
	for _, name := range sortedKeys(s.Dependencies) {
		b.dependent(n, "dependencies", name, s.Dependencies[name])
	}
}

// dependent adds to dependentRequired or dependentSchemas; dependencies, which is
// both, may stand beside them.
func (b *builder) dependent(n *node, keyword, name string, on any) {
	switch on := on.(type) {
	case []string:
		n.needs = append(n.needs, need{keyword, name, on})
		if n.dependentRequired == nil {
			n.dependentRequired = map[string][]string{}
		}
		n.dependentRequired[name] = append(slices.Clone(n.dependentRequired[name]), on...)
	case *js.Schema:
		if n.dependentSchemas == nil {
			n.dependentSchemas = map[string]*node{}
		}
		add := b.node(on)
		if is := n.dependentSchemas[name]; is != nil {
			add = b.add(&node{at: n.at, allOf: []*node{is, add}})
		}
		n.dependentSchemas[name] = add
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
