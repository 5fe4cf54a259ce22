package mongod

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A modifier is one operator applied to one path.
type modifier struct {
	op   string
	name string
	path []string
	arg  any
	pull func(v any) (bool, error) // of $pull
}

var modifierOps = []string{"$set", "$setOnInsert", "$unset", "$inc", "$mul", "$min", "$max", "$currentDate", "$rename", "$push", "$addToSet", "$pull", "$pullAll", "$pop"}

// modifiers prepares an update by operators. MongoDB applies them in the
// lexicographic order of their paths, across operators; new fields appear in
// that order.
func modifiers(ops bson.D) ([]modifier, error) {
	list := []modifier{}
	for _, op := range ops {
		if !slices.Contains(modifierOps, op.Key) {
			if op.Key == "$bit" {
				return nil, unsupported("the update operator $bit")
			}
			return nil, errorf(9, "FailedToParse", "Unknown modifier: %s. Expected a valid update modifier or pipeline-style update specified as an array", op.Key)
		}
		fields, ok := op.Value.(bson.D)
		if !ok {
			return nil, errorf(9, "FailedToParse", "Modifiers operate on fields but we found type %s instead", typeName(op.Value))
		}
		for _, f := range fields {
			m := modifier{op: op.Key, name: f.Key, path: splitPath(f.Key), arg: f.Value}
			if err := m.check(); err != nil {
				return nil, err
			}
			list = append(list, m)
		}
	}
	paths := make([]modifier, 0, len(list))
	for _, m := range list {
		paths = append(paths, m)
		if m.op == "$rename" {
			to := asString(m.arg)
			paths = append(paths, modifier{name: to, path: splitPath(to)})
		}
	}
	slices.SortStableFunc(paths, func(a, b modifier) int { return comparePaths(a.path, b.path) })
	for i := 1; i < len(paths); i++ {
		a, b := paths[i-1], paths[i]
		if len(a.path) <= len(b.path) && slices.Equal(a.path, b.path[:len(a.path)]) {
			return nil, errorf(40, "ConflictingUpdateOperators", "Updating the path '%s' would create a conflict at '%s'", b.name, a.name)
		}
	}
	slices.SortStableFunc(list, func(a, b modifier) int { return comparePaths(a.path, b.path) })
	return list, nil
}

// comparePaths orders paths by component, numbers by value.
func comparePaths(a, b []string) int {
	return slices.CompareFunc(a, b, func(x, y string) int {
		i, xErr := strconv.Atoi(x)
		j, yErr := strconv.Atoi(y)
		if xErr == nil && yErr == nil && i != j {
			return cmp.Compare(i, j)
		}
		return strings.Compare(x, y)
	})
}

// check refuses a modifier that could not be applied to any document.
func (m *modifier) check() error {
	for _, p := range m.path {
		switch {
		case p == "":
			return errorf(56, "EmptyFieldName", "The update path '%s' contains an empty field name, which is not allowed.", m.name)
		case strings.HasPrefix(p, "$"):
			return unsupported("the positional operator in '" + m.name + "'")
		}
	}
	switch m.op {
	case "$inc", "$mul":
		if rank(m.arg) != rankNumber {
			return errorf(codeTypeMismatch, "TypeMismatch", "Cannot %s with non-numeric argument: {%s: %s}", map[string]string{"$inc": "increment", "$mul": "multiply"}[m.op], m.name, jsonOf(m.arg))
		}
	case "$rename":
		to, ok := m.arg.(string)
		if !ok || to == "" || to == m.name {
			return badValue("The source and target field for $rename must differ, and the target must be a field name")
		}
	case "$pop":
		if n := asInt(m.arg, 0); n != 1 && n != -1 {
			return errorf(9, "FailedToParse", "$pop expects 1 or -1, found: %s", jsonOf(m.arg))
		}
	case "$pullAll":
		if _, ok := m.arg.(bson.A); !ok {
			return badValue("$pullAll requires an array argument but was given a %s", typeName(m.arg))
		}
	case "$push", "$addToSet":
		return m.checkPush()
	case "$pull":
		return m.preparePull()
	}
	return nil
}

func (m *modifier) checkPush() error {
	if !isOperators(m.arg) {
		return nil
	}
	each, ok := field(asDoc(m.arg), "$each").(bson.A)
	if !ok || each == nil {
		return badValue("The argument to $each in %s must be an array", m.op)
	}
	for _, o := range asDoc(m.arg) {
		switch o.Key {
		case "$each":
		case "$slice", "$position", "$sort":
			if m.op == "$addToSet" {
				return badValue("Found unexpected fields after $each in $addToSet: %s", o.Key)
			}
		default:
			return badValue("Unrecognized clause in %s: %s", m.op, o.Key)
		}
	}
	return nil
}

// preparePull makes the condition of $pull: a filter for documents, a condition
// or value for everything else.
func (m *modifier) preparePull() error {
	if cond, ok := m.arg.(bson.D); ok && !isOperators(cond) {
		filter, err := newMatcher(cond)
		if err != nil {
			return err
		}
		m.pull = func(v any) (bool, error) {
			d, ok := v.(bson.D)
			if !ok {
				return false, nil
			}
			return filter.match(d)
		}
		return nil
	}
	tests, err := fieldTests(m.arg)
	if err != nil {
		return err
	}
	m.pull = func(v any) (bool, error) {
		for _, t := range tests {
			if ok, err := t(reach{vals: []any{v}}); err != nil || !ok {
				return false, err
			}
		}
		return true, nil
	}
	return nil
}

// apply applies the modifier to d, which it may change.
func (m *modifier) apply(d bson.D, inserting bool) (bson.D, error) {
	cur, exists := plainPath(d, m.path)
	set := func(v any) (bson.D, error) { return setDocPath(d, m.path, v) }
	switch m.op {
	case "$setOnInsert":
		if inserting {
			return set(copyOf(m.arg))
		}
	case "$set":
		return set(copyOf(m.arg))
	case "$unset":
		return asDoc(unsetPath(d, m.path)), nil
	case "$inc", "$mul":
		return m.calculate(d, cur, exists)
	case "$min", "$max":
		c := compare(m.arg, cur)
		if !exists || m.op == "$min" && c < 0 || m.op == "$max" && c > 0 {
			return set(copyOf(m.arg))
		}
	case "$currentDate":
		now := time.Now()
		if asString(field(asDoc(m.arg), "$type")) == "timestamp" {
			return set(bson.Timestamp{T: uint32(now.Unix()), I: 1})
		}
		return set(bson.NewDateTimeFromTime(now))
	case "$rename":
		if exists {
			d = asDoc(unsetPath(d, m.path))
			return setDocPath(d, splitPath(asString(m.arg)), cur)
		}
	default:
		return m.array(d, cur, exists)
	}
	return d, nil
}

func (m *modifier) calculate(d bson.D, cur any, exists bool) (bson.D, error) {
	op := "$add"
	if m.op == "$mul" {
		op = "$multiply"
	}
	if !exists {
		if m.op == "$inc" {
			return setDocPath(d, m.path, m.arg)
		}
		cur = int32(0)
	}
	if rank(cur) != rankNumber {
		return nil, errorf(codeTypeMismatch, "TypeMismatch", "Cannot apply %s to a value of non-numeric type. {_id: %s} has the field '%s' of non-numeric type %s",
			m.op, jsonOf(field(d, "_id")), m.path[len(m.path)-1], typeName(cur))
	}
	v, err := arithmetic(op, cur, m.arg)
	if err != nil {
		return nil, err
	}
	return setDocPath(d, m.path, v)
}

// array applies the operators of arrays.
func (m *modifier) array(d bson.D, cur any, exists bool) (bson.D, error) {
	a, ok := cur.(bson.A)
	if exists && !ok {
		return nil, badValue("The field '%s' must be an array but is of type %s in document {_id: %s}", m.name, typeName(cur), jsonOf(field(d, "_id")))
	}
	switch m.op {
	case "$push":
		a = m.push(slices.Clone(a))
	case "$addToSet":
		a = slices.Clone(a)
		for _, v := range m.items() {
			if !slices.ContainsFunc(a, func(e any) bool { return compare(e, v) == 0 }) {
				a = append(a, copyOf(v))
			}
		}
	default:
		if !exists {
			return d, nil
		}
		var err error
		if a, err = m.remove(a); err != nil {
			return nil, err
		}
	}
	if a == nil {
		a = bson.A{}
	}
	return setDocPath(d, m.path, a)
}

// items are the values that $push and $addToSet add.
func (m *modifier) items() bson.A {
	if isOperators(m.arg) {
		return asArray(field(asDoc(m.arg), "$each"))
	}
	return bson.A{m.arg}
}

func (m *modifier) push(a bson.A) bson.A {
	var opts bson.D
	if isOperators(m.arg) {
		opts = asDoc(m.arg)
	}
	at := len(a)
	if p, ok := get(opts, "$position"); ok {
		at = int(asInt(p, 0))
		if at < 0 {
			at = max(0, len(a)+at)
		}
		at = min(at, len(a))
	}
	a = slices.Insert(a, at, asArray(copyOf(m.items()))...)
	switch by := field(opts, "$sort").(type) {
	case nil:
	case bson.D:
		sortDocs(a, by, asDoc)
	default:
		slices.SortStableFunc(a, func(x, y any) int { return compare(x, y) * sign(int(asInt(by, 1))) })
	}
	if s, ok := get(opts, "$slice"); ok {
		n := int(asInt(s, 0))
		if n >= 0 {
			return a[:min(n, len(a))]
		}
		return a[max(0, len(a)+n):]
	}
	return a
}

func (m *modifier) remove(a bson.A) (bson.A, error) {
	switch m.op {
	case "$pop":
		if len(a) == 0 {
			return a, nil
		}
		if asInt(m.arg, 1) < 0 {
			return slices.Clone(a[1:]), nil
		}
		return slices.Clone(a[:len(a)-1]), nil
	case "$pullAll":
		gone := asArray(m.arg)
		return slices.DeleteFunc(slices.Clone(a), func(v any) bool {
			return slices.ContainsFunc(gone, func(g any) bool { return compare(g, v) == 0 })
		}), nil
	}
	out := bson.A{}
	for _, v := range a {
		ok, err := m.pull(v)
		if err != nil {
			return nil, err
		}
		if !ok {
			out = append(out, v)
		}
	}
	return out, nil
}
