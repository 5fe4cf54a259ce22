package mongod

import (
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A description is the updateDescription of a change event.
type description struct {
	updated   bson.D // new values by path
	removed   bson.A // paths
	truncated bson.A // arrays that became shorter, with their new size
	ambiguous bson.D // paths that could be read in two ways, by component
}

// A step is a component of a path.
type step struct {
	name  string
	index bool // into an array
}

// describe finds what an update changed.
func describe(pre, post bson.D) *description {
	d := &description{updated: bson.D{}, removed: bson.A{}, truncated: bson.A{}, ambiguous: bson.D{}}
	d.docs(nil, pre, post)
	return d
}

func (d *description) docs(at []step, a, b bson.D) {
	for _, e := range a {
		if _, ok := get(b, e.Key); !ok {
			at := append(slices.Clip(at), step{name: e.Key})
			d.removed = append(d.removed, pathOf(at))
			d.note(at)
		}
	}
	for _, e := range b {
		at := append(slices.Clip(at), step{name: e.Key})
		if old, ok := get(a, e.Key); ok {
			d.values(at, old, e.Value)
		} else {
			d.set(at, e.Value)
		}
	}
}

func (d *description) values(at []step, a, b any) {
	if same(a, b) {
		return
	}
	if x, ok := a.(bson.D); ok {
		if y, ok := b.(bson.D); ok {
			d.docs(at, x, y)
			return
		}
	}
	x, xOK := a.(bson.A)
	y, yOK := b.(bson.A)
	if !xOK || !yOK {
		d.set(at, b)
		return
	}
	for i, v := range y {
		at := append(slices.Clip(at), step{strconv.Itoa(i), true})
		if i < len(x) {
			d.values(at, x[i], v)
		} else {
			d.set(at, v)
		}
	}
	if len(y) < len(x) {
		d.truncated = append(d.truncated, bson.D{{Key: "field", Value: pathOf(at)}, {Key: "newSize", Value: int32(len(y))}})
	}
}

func (d *description) set(at []step, v any) {
	d.updated = append(d.updated, bson.E{Key: pathOf(at), Value: v})
	d.note(at)
}

// note adds a path to the ambiguous ones if a field of it looks like an index or
// has a dot.
func (d *description) note(at []step) {
	ambiguous := false
	parts := make(bson.A, len(at))
	for i, s := range at {
		n, err := strconv.Atoi(s.name)
		if s.index {
			parts[i] = int32(n)
			continue
		}
		parts[i] = s.name
		ambiguous = ambiguous || i > 0 && err == nil || strings.Contains(s.name, ".")
	}
	if ambiguous {
		d.ambiguous = append(d.ambiguous, bson.E{Key: pathOf(at), Value: parts})
	}
}

func pathOf(at []step) string {
	names := make([]string, len(at))
	for i, s := range at {
		names[i] = s.name
	}
	return strings.Join(names, ".")
}
