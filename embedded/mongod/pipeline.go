package mongod

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A stage is a step of an aggregation pipeline that was checked and prepared. It
// does not change the documents it is given.
type stage func(in []bson.D) ([]bson.D, error)

// A use is what a pipeline is for; it decides which stages are allowed.
type use int

const (
	forRead use = iota
	forUpdate
	forChangeStream
)

var stages = map[string]func(arg any) (stage, error){
	"$match": matchStage, "$addFields": addFieldsStage, "$set": addFieldsStage, "$unset": unsetStage,
	"$project": projectStage, "$replaceRoot": replaceRootStage, "$replaceWith": replaceWithStage,
	"$sort": sortStage, "$limit": limitStage, "$skip": skipStage, "$count": countStage,
	"$unwind": unwindStage, "$group": groupStage, splitStageName: splitStage,
}

// splitStageName is the stage that splits events that are too large for one.
const splitStageName = "$changeStreamSplitLargeEvent"

var stagesOfUse = map[use][]string{
	forUpdate:       {"$addFields", "$set", "$unset", "$project", "$replaceRoot", "$replaceWith"},
	forChangeStream: {"$match", "$project", "$addFields", "$set", "$unset", "$replaceRoot", "$replaceWith", splitStageName},
}

// unknownStages are stages of MongoDB that the stand-in refuses.
var unknownStages = []string{"$bucket", "$bucketAuto", "$collStats", "$currentOp", "$densify", "$documents", "$facet", "$fill", "$geoNear", "$graphLookup", "$indexStats", "$listLocalSessions", "$listSessions", "$lookup", "$merge", "$out", "$planCacheStats", "$redact", "$sample", "$search", "$setWindowFields", "$sortByCount", "$unionWith"}

// newPipeline prepares a pipeline. One that MongoDB would refuse is refused here.
func newPipeline(p bson.A, u use) ([]stage, error) {
	out := make([]stage, 0, len(p))
	for i, st := range p {
		d, ok := st.(bson.D)
		if !ok || len(d) != 1 {
			return nil, errorf(40323, "", "A pipeline stage specification object must contain exactly one field.")
		}
		name := d[0].Key
		if name == "$changeStream" {
			return nil, errorf(40602, "", "$changeStream is only valid as the first stage in a pipeline")
		}
		f, known := stages[name]
		switch {
		case !known && slices.Contains(unknownStages, name) && u != forChangeStream:
			return nil, unsupported("the stage " + name)
		case !known && !slices.Contains(unknownStages, name):
			return nil, errorf(40324, "", "Unrecognized pipeline stage name: '%s'", name)
		case u == forChangeStream && !slices.Contains(stagesOfUse[u], name):
			return nil, errorf(codeIllegalOperation, "IllegalOperation", "%s is not permitted in a $changeStream pipeline", name)
		case u == forUpdate && !slices.Contains(stagesOfUse[u], name):
			return nil, errorf(codeInvalidOptions, "InvalidOptions", "%s is not allowed to be used within an update", name)
		case name == splitStageName && u != forChangeStream:
			return nil, errorf(codeIllegalOperation, "IllegalOperation", "%s is only allowed in a $changeStream pipeline", name)
		case name == splitStageName && i != len(p)-1:
			return nil, errorf(7182802, "", "%s must be the last stage in the pipeline", name)
		}
		s, err := f(d[0].Value)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func runPipeline(in []bson.D, stages []stage) ([]bson.D, error) {
	for _, s := range stages {
		var err error
		if in, err = s(in); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// perDocument is a stage that makes one document of each.
func perDocument(f func(bson.D) (bson.D, error)) stage {
	return func(in []bson.D) ([]bson.D, error) {
		out := make([]bson.D, len(in))
		for i, d := range in {
			var err error
			if out[i], err = f(d); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
}

// documentArg is the argument of a stage that takes a document with fields.
func documentArg(name string, code int32, arg any) (bson.D, error) {
	d, ok := arg.(bson.D)
	if !ok || len(d) == 0 {
		return nil, errorf(code, "", "%s specification must be an object with at least one field", name)
	}
	return d, nil
}

func matchStage(arg any) (stage, error) {
	filter, ok := arg.(bson.D)
	if !ok {
		return nil, errorf(15959, "", "the match filter must be an expression in an object")
	}
	m, err := newMatcher(filter)
	if err != nil {
		return nil, err
	}
	return func(in []bson.D) ([]bson.D, error) {
		out := make([]bson.D, 0, len(in))
		for _, d := range in {
			ok, err := m.match(d)
			if err != nil {
				return nil, err
			}
			if ok {
				out = append(out, d)
			}
		}
		return out, nil
	}, nil
}

func addFieldsStage(arg any) (stage, error) {
	fields, err := documentArg("$addFields", 40272, arg)
	if err != nil {
		return nil, err
	}
	return perDocument(func(d bson.D) (bson.D, error) {
		out := copyDoc(d)
		for _, f := range fields {
			v, err := evaluate(f.Value, d)
			if err != nil {
				return nil, err
			}
			if v == any(missing{}) {
				out = asDoc(cutPath(out, splitPath(f.Key)))
			} else {
				out = asDoc(forcePath(out, splitPath(f.Key), copyOf(v)))
			}
		}
		return out, nil
	}), nil
}

func unsetStage(arg any) (stage, error) {
	var paths [][]string
	for _, f := range listOf(arg) {
		s, ok := f.(string)
		if !ok || s == "" {
			return nil, errorf(31120, "", "$unset specification must be a string or an array of strings")
		}
		paths = append(paths, splitPath(s))
	}
	return perDocument(func(d bson.D) (bson.D, error) {
		out := copyDoc(d)
		for _, p := range paths {
			out = asDoc(cutPath(out, p))
		}
		return out, nil
	}), nil
}

func replaceRootStage(arg any) (stage, error) {
	root, ok := get(asDoc(arg), "newRoot")
	if !ok {
		return nil, errorf(40231, "", "no newRoot specified for the $replaceRoot stage")
	}
	return replaceWithStage(root)
}

func replaceWithStage(arg any) (stage, error) {
	return perDocument(func(d bson.D) (bson.D, error) {
		v, err := evaluate(arg, d)
		if err != nil {
			return nil, err
		}
		root, ok := v.(bson.D)
		if !ok {
			return nil, errorf(40228, "", "'newRoot' expression must evaluate to an object, but resulting value was of type %s", typeName(v))
		}
		return root, nil
	}), nil
}

func sortStage(arg any) (stage, error) {
	spec, err := documentArg("$sort", 15976, arg)
	if err != nil {
		return nil, err
	}
	if err := checkSort(spec); err != nil {
		return nil, err
	}
	return func(in []bson.D) ([]bson.D, error) {
		out := slices.Clone(in)
		sortDocs(out, spec, func(d bson.D) bson.D { return d })
		return out, nil
	}, nil
}

func checkSort(spec bson.D) error {
	for _, e := range spec {
		if n := asInt(e.Value, 0); n != 1 && n != -1 {
			return errorf(15975, "", "$sort key ordering must be 1 (for ascending) or -1 (for descending)")
		}
		if e.Key == "" || strings.HasPrefix(e.Key, "$") && e.Key != "$natural" {
			return badValue("FieldPath field names may not start with '$' or be empty")
		}
	}
	return nil
}

// sortDocs sorts stably; an array sorts by its least element, or descending by
// its greatest.
func sortDocs[T any](list []T, spec bson.D, doc func(T) bson.D) {
	type entry struct {
		item T
		keys []any
	}
	entries := make([]entry, len(list))
	for i, item := range list {
		entries[i] = entry{item, make([]any, len(spec))}
	}
	for j, by := range spec {
		path, descending := splitPath(by.Key), asInt(by.Value, 1) < 0
		for i := range entries {
			entries[i].keys[j] = sortKey(reachOf(doc(entries[i].item), path), descending)
		}
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		for j, by := range spec {
			if c := compare(a.keys[j], b.keys[j]); c != 0 {
				return c * sign(int(asInt(by.Value, 1)))
			}
		}
		return 0
	})
	for i, e := range entries {
		list[i] = e.item
	}
}

// sortKey is the value by which a document is sorted.
func sortKey(r reach, descending bool) any {
	var key any
	first := true
	for _, v := range r.vals {
		for _, e := range listOf(v) {
			if c := compare(e, key); first || c < 0 != descending && c != 0 {
				key, first = e, false
			}
		}
	}
	return key
}

// countArg is the argument of $limit and $skip.
func countArg(name string, arg any, least int64) (int, error) {
	f, ok := number(arg)
	if n := asInt(arg, -1); ok && float64(n) == f && n >= least {
		return int(min(n, 1<<40)), nil
	}
	return 0, errorf(2107201, "", "invalid argument to %s stage: Expected a whole number of at least %d", name, least)
}

func limitStage(arg any) (stage, error) {
	n, err := countArg("$limit", arg, 1)
	return func(in []bson.D) ([]bson.D, error) { return in[:min(n, len(in))], nil }, err
}

func skipStage(arg any) (stage, error) {
	n, err := countArg("$skip", arg, 0)
	return func(in []bson.D) ([]bson.D, error) { return in[min(n, len(in)):], nil }, err
}

func countStage(arg any) (stage, error) {
	name := asString(arg)
	if name == "" || strings.ContainsAny(name, "$.") {
		return nil, errorf(40156, "", "the count field must be a non-empty string without '$' and '.'")
	}
	return func(in []bson.D) ([]bson.D, error) {
		if len(in) == 0 {
			return nil, nil
		}
		return []bson.D{{{Key: name, Value: int32(len(in))}}}, nil
	}, nil
}

func unwindStage(arg any) (stage, error) {
	spec, isDoc := arg.(bson.D)
	name := asString(arg)
	if isDoc {
		name = asString(field(spec, "path"))
		for _, e := range spec {
			if e.Key != "path" && e.Key != "preserveNullAndEmptyArrays" {
				return nil, unsupported("the option " + e.Key + " of $unwind")
			}
		}
	}
	name, ok := strings.CutPrefix(name, "$")
	if !ok || name == "" {
		return nil, errorf(28818, "", "path option to $unwind stage should be prefixed with a '$'")
	}
	preserve := truth(field(spec, "preserveNullAndEmptyArrays"))
	path := splitPath(name)
	return func(in []bson.D) ([]bson.D, error) {
		var out []bson.D
		for _, d := range in {
			v, _ := plainPath(d, path)
			a, isArray := v.(bson.A)
			switch {
			case len(a) > 0:
				for _, e := range a {
					out = append(out, asDoc(forcePath(copyDoc(d), path, copyOf(e))))
				}
			case isArray && preserve:
				out = append(out, asDoc(unsetPath(copyDoc(d), path)))
			case !isArray && (rank(v) != rankNull || preserve):
				out = append(out, d)
			}
		}
		return out, nil
	}, nil
}

// splitStage passes events on: the change stream splits them behind the pipeline.
func splitStage(arg any) (stage, error) {
	if d, ok := arg.(bson.D); !ok || len(d) > 0 {
		return nil, errorf(7182800, "", "%s spec should be an empty object", splitStageName)
	}
	return func(in []bson.D) ([]bson.D, error) { return in, nil }, nil
}
