package check

import (
	"fmt"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// takesTopic is the fact that some parameters of a function become topics, or the
// topics for which a schema is registered.
type takesTopic struct{ Params, Schemas []int }

// AFact marks a fact.
func (*takesTopic) AFact() {}

func (f *takesTopic) String() string {
	if len(f.Schemas) > 0 {
		return fmt.Sprintf("takesTopic(%v schemas %v)", f.Params, f.Schemas)
	}
	return fmt.Sprintf("takesTopic(%v)", f.Params)
}

// declaredTopics is the fact that a package declares topics, or registers schemas.
type declaredTopics struct {
	Topics   []declared
	Complete bool     // these, and those of the packages it imports, are all there are
	Schemas  []string // topics for which it registers a schema
}

// AFact marks a fact.
func (*declaredTopics) AFact() {}

func (f *declaredTopics) String() string {
	var names []string
	for _, t := range f.Topics {
		names = append(names, t.Name)
	}
	s := "topics(" + strings.Join(names, " ") + ")"
	if len(f.Schemas) > 0 {
		s += " schemas(" + strings.Join(f.Schemas, " ") + ")"
	}
	return s
}

// declared is a topic as one line of source declares it.
type declared struct {
	Topic
	Where    string // file and line, or byCatalog
	Bound    bool   // a jetbus.Topic[T]: it says the type, and nothing of how the topic is kept
	Snapshot bool   // it has SnapshotOf: the events, and their schema, are of another topic
	Var      string // the variable of the package with this value; "" if there is none
	pos      token.Pos
}

// byCatalog is the Where of a topic of Options.Catalog.
const byCatalog = "the catalog"

// known is what is known of all topics.
type known struct {
	complete bool
	topics   map[string][]declared
	schemas  Schemas // for which source code registers a schema
}

// gather puts together what the catalog, the packages below and this one say.
func (l *linter) gather(own []declared, complete bool) known {
	k := known{complete: complete, topics: make(map[string][]declared), schemas: make(Schemas)}
	maps.Copy(k.schemas, l.options.Schemas)
	add := func(list []declared) {
		for _, d := range list {
			k.topics[d.Name] = append(k.topics[d.Name], d)
		}
	}
	if l.options.Catalog != nil {
		k.complete = k.complete || !l.options.Catalog.Partial
		for _, t := range l.options.Catalog.Topics {
			add([]declared{{Topic: t, Where: byCatalog}})
		}
	}
	facts := l.pass.AllPackageFacts()
	slices.SortFunc(facts, func(a, b analysis.PackageFact) int { return strings.Compare(a.Package.Path(), b.Package.Path()) })
	for _, f := range facts {
		if d, ok := f.Fact.(*declaredTopics); ok && f.Package != l.pass.Pkg {
			k.complete = k.complete || d.Complete
			add(d.Topics)
			for _, name := range d.Schemas {
				k.schemas[name] = true
			}
		}
	}
	add(own)
	return k
}

// of merges what is known of one topic.
func (k *known) of(name string) (t Topic, ok bool) {
	for _, d := range k.topics[name] {
		t.Name = name
		t.Schema = max(t.Schema, d.Schema)
		t.Partitions = max(t.Partitions, d.Partitions)
		t.Compacted = t.Compacted || d.Compacted
		t.KeyInSubject = t.KeyInSubject || d.KeyInSubject
		if t.Deprecated == "" {
			t.Deprecated = d.Deprecated
		}
		ok = true
	}
	return t, ok
}

// kept reports whether somebody says how the topic is kept, and not only what it carries.
func (k *known) kept(name string) bool {
	return slices.ContainsFunc(k.topics[name], func(d declared) bool { return !d.Bound })
}

// declaredBy returns the first declaration of a topic in source code.
func (k *known) declaredBy(name string) (declared, bool) {
	for _, d := range k.topics[name] {
		if d.Where != byCatalog {
			return d, true
		}
	}
	return declared{}, false
}

// isSnapshot reports whether a topic is declared as the snapshot of another topic.
func (k *known) isSnapshot(name string) bool {
	return slices.ContainsFunc(k.topics[name], func(d declared) bool { return d.Snapshot })
}

func (k *known) names() []string {
	var names []string
	for name := range k.topics {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (l *linter) where(pos token.Pos) string {
	p := l.pass.Fset.Position(pos)
	return fmt.Sprintf("%s:%d", filepath.Base(p.Filename), p.Line)
}
