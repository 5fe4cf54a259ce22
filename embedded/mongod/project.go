package mongod

import (
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A projection chooses and computes fields.
type projection struct {
	exclude  bool // the named fields go, the others stay
	id       bool // _id stays
	fields   *projected
	computed bson.D // expressions by path, of an inclusion
}

// projected is the tree of the named fields; a leaf has no children.
type projected struct {
	children map[string]*projected
}

// newProjection prepares a projection; nil for one that keeps everything.
func newProjection(spec bson.D) (*projection, error) {
	if len(spec) == 0 {
		return nil, nil
	}
	p := &projection{id: true, fields: &projected{}}
	var in, out []string
	for _, f := range spec {
		if f.Key == "" || strings.HasPrefix(f.Key, "$") || strings.Contains(f.Key, ".$") {
			return nil, unsupported("the projection " + f.Key)
		}
		_, isBool := f.Value.(bool)
		flag := isBool || rank(f.Value) == rankNumber
		switch {
		case f.Key == "_id" && flag:
			p.id = truth(f.Value)
		case !flag:
			in = append(in, f.Key)
			p.computed = append(p.computed, f)
		case truth(f.Value):
			in = append(in, f.Key)
			p.fields.add(splitPath(f.Key))
		default:
			out = append(out, f.Key)
			p.fields.add(splitPath(f.Key))
		}
	}
	if len(in) > 0 && len(out) > 0 {
		return nil, errorf(31254, "", "Cannot do exclusion on field %s in inclusion projection", out[0])
	}
	p.exclude = len(out) > 0 || len(in) == 0 && !p.id
	return p, nil
}

func (n *projected) add(path []string) {
	for _, p := range path {
		if n.children == nil {
			n.children = map[string]*projected{}
		}
		c := n.children[p]
		if c == nil {
			c = &projected{}
			n.children[p] = c
		}
		n = c
	}
}

func (p *projection) apply(d bson.D) (bson.D, error) {
	if p == nil {
		return d, nil
	}
	out := bson.D{}
	for _, e := range d {
		if e.Key == "_id" {
			if p.id && p.fields.children["_id"] == nil {
				out = append(out, e)
				continue
			}
			if !p.id {
				continue
			}
		}
		if v, keep := p.keep(e, p.fields); keep {
			out = append(out, bson.E{Key: e.Key, Value: v})
		}
	}
	for _, c := range p.computed {
		v, err := evaluate(c.Value, d)
		if err != nil {
			return nil, err
		}
		if v != any(missing{}) {
			out = asDoc(forcePath(copyDoc(out), splitPath(c.Key), copyOf(v)))
		}
	}
	return out, nil
}

// keep is what remains of a field of a document whose place in the tree is n.
func (p *projection) keep(e bson.E, n *projected) (any, bool) {
	c := n.children[e.Key]
	if c == nil {
		return e.Value, p.exclude
	}
	if c.children == nil {
		return e.Value, !p.exclude
	}
	return p.inside(e.Value, c)
}

func (p *projection) inside(v any, n *projected) (any, bool) {
	switch x := v.(type) {
	case bson.D:
		out := bson.D{}
		for _, e := range x {
			if v, keep := p.keep(e, n); keep {
				out = append(out, bson.E{Key: e.Key, Value: v})
			}
		}
		return out, true
	case bson.A:
		out := bson.A{}
		for _, e := range x {
			if v, keep := p.inside(e, n); keep {
				out = append(out, v)
			}
		}
		return out, true
	}
	return v, p.exclude
}

func projectStage(arg any) (stage, error) {
	spec, err := documentArg("$project", 51272, arg)
	if err != nil {
		return nil, err
	}
	p, err := newProjection(spec)
	if err != nil {
		return nil, err
	}
	return perDocument(p.apply), nil
}
