package check

import (
	"fmt"
	"go/token"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// takesTopic is the fact that some parameters of a function become topics.
type takesTopic struct{ Params []int }

// AFact marks a fact.
func (*takesTopic) AFact() {}

func (f *takesTopic) String() string { return fmt.Sprintf("takesTopic(%v)", f.Params) }

// declaredTopics is the fact that a package declares topics.
type declaredTopics struct {
	Topics   []declared
	Complete bool // these, and those of the packages it imports, are all there are
}

// AFact marks a fact.
func (*declaredTopics) AFact() {}

func (f *declaredTopics) String() string {
	var names []string
	for _, t := range f.Topics {
		names = append(names, t.Name)
	}
	return "topics(" + strings.Join(names, " ") + ")"
}

// declared is a topic as one line of source declares it.
type declared struct {
	Topic
	Where string // file and line
	Bound bool   // a jetbus.Topic[T]: it says the type, and nothing of how the topic is kept
	pos   token.Pos
}

// known is what is known of all topics.
type known struct {
	complete bool
	topics   map[string][]declared
}

// gather puts together what the catalog, the packages below and this one say.
func (l *linter) gather(own []declared, complete bool) known {
	k := known{complete: complete, topics: make(map[string][]declared)}
	add := func(list []declared) {
		for _, d := range list {
			k.topics[d.Name] = append(k.topics[d.Name], d)
		}
	}
	if l.options.Catalog != nil {
		k.complete = true
		for _, t := range l.options.Catalog.Topics {
			add([]declared{{Topic: t, Where: "the catalog"}})
		}
	}
	facts := l.pass.AllPackageFacts()
	slices.SortFunc(facts, func(a, b analysis.PackageFact) int { return strings.Compare(a.Package.Path(), b.Package.Path()) })
	for _, f := range facts {
		if d, ok := f.Fact.(*declaredTopics); ok && f.Package != l.pass.Pkg {
			k.complete = k.complete || d.Complete
			add(d.Topics)
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
