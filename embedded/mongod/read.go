package mongod

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxViewDepth bounds views of views.
const maxViewDepth = 20

// read returns what matches in a collection or view, in an order if one is given,
// at most limit documents if limit is positive. A collection that does not exist
// has none.
func (k *call) read(name string, filter, by bson.D, limit int) ([]bson.D, error) {
	return k.readAt(name, filter, by, limit, 0)
}

func (k *call) readAt(name string, filter, by bson.D, limit, depth int) ([]bson.D, error) {
	c := k.coll(k.db, name)
	if c == nil {
		_, err := newMatcher(filter)
		return nil, err
	}
	if c.viewOn == "" {
		list, err := k.findSorted(c, filter, by, limit)
		docs := make([]bson.D, len(list))
		for i, f := range list {
			docs[i] = f.doc
		}
		return docs, err
	}
	if depth >= maxViewDepth {
		return nil, errorf(165, "ViewDepthLimitExceeded", "View depth exceeds limit of %d", maxViewDepth)
	}
	docs, err := k.readAt(c.viewOn, nil, nil, 0, depth+1)
	if err != nil {
		return nil, err
	}
	steps, err := newPipeline(append(slices.Clone(c.pipeline), bson.D{{Key: "$match", Value: orEmpty(filter)}}), forRead)
	if err != nil {
		return nil, err
	}
	if docs, err = runPipeline(docs, steps); err != nil {
		return nil, err
	}
	if len(by) > 0 {
		sortDocs(docs, by, func(d bson.D) bson.D { return d })
	}
	if limit > 0 {
		docs = docs[:min(limit, len(docs))]
	}
	return docs, nil
}

func orEmpty(d bson.D) bson.D {
	if d == nil {
		return bson.D{}
	}
	return d
}

func (k *call) findCmd() (bson.D, error) {
	if err := k.only("filter", "sort", "projection", "skip", "limit", "batchSize", "singleBatch", "hint", "noCursorTimeout",
		"allowDiskUse", "allowPartialResults", "tailable", "awaitData", "oplogReplay"); err != nil {
		return nil, err
	}
	if truth(k.field("tailable")) {
		return nil, unsupported("a tailable cursor")
	}
	by := asDoc(k.field("sort"))
	if err := checkSort(by); err != nil {
		return nil, err
	}
	fields, err := newProjection(asDoc(k.field("projection")))
	if err != nil {
		return nil, err
	}
	skip, limit := asInt(k.field("skip"), 0), asInt(k.field("limit"), 0)
	single := truth(k.field("singleBatch")) || limit < 0
	if limit < 0 {
		limit = -limit
	}
	if skip < 0 {
		return nil, errorf(51024, "", "BSON field 'skip' value must be >= 0, actual value '%d'", skip)
	}
	most := 0
	if limit > 0 && skip < 1<<40 && limit < 1<<40 {
		most = int(skip + limit)
	}
	docs, err := k.read(k.target(), asDoc(k.field("filter")), by, most)
	if err != nil {
		return nil, err
	}
	docs = docs[min(skip, int64(len(docs))):]
	if limit > 0 {
		docs = docs[:min(limit, int64(len(docs)))]
	}
	if fields != nil {
		if docs, err = perDocument(fields.apply)(docs); err != nil {
			return nil, err
		}
	}
	return k.cursorReply(k.db+"."+k.target(), docs, k.field("batchSize"), single)
}

func (k *call) count() (bson.D, error) {
	if err := k.only("query", "limit", "skip", "hint", "fields"); err != nil {
		return nil, err
	}
	docs, err := k.read(k.target(), asDoc(k.field("query")), nil, 0)
	if err != nil {
		return nil, err
	}
	n := int64(len(docs)) - asInt(k.field("skip"), 0)
	if limit := asInt(k.field("limit"), 0); limit != 0 {
		n = min(n, max(limit, -limit))
	}
	return ok(bson.E{Key: "n", Value: int32(max(n, 0))}), nil
}

func (k *call) distinct() (bson.D, error) {
	if err := k.only("key", "query", "hint"); err != nil {
		return nil, err
	}
	path := splitPath(asString(k.field("key")))
	docs, err := k.read(k.target(), asDoc(k.field("query")), nil, 0)
	if err != nil {
		return nil, err
	}
	out := bson.A{}
	seen := map[string]bool{}
	for _, d := range docs {
		for _, v := range reachOf(d, path).vals {
			for _, e := range listOf(v) {
				if key := keyOf(e); !seen[key] {
					seen[key] = true
					out = append(out, e)
				}
			}
		}
	}
	slices.SortFunc(out, compare)
	return ok(bson.E{Key: "values", Value: out}), nil
}

func (k *call) aggregate() (bson.D, error) {
	if err := k.only("pipeline", "cursor", "allowDiskUse", "hint", "bypassDocumentValidation"); err != nil {
		return nil, err
	}
	pipeline, ok := k.field("pipeline").(bson.A)
	if !ok {
		return nil, errorf(codeTypeMismatch, "TypeMismatch", "'pipeline' option must be specified as an array")
	}
	cursor, ok := k.field("cursor").(bson.D)
	if !ok {
		return nil, errorf(9, "FailedToParse", "The 'cursor' option is required, except for aggregate with the explain argument")
	}
	if len(pipeline) > 0 {
		if first := asDoc(pipeline[0]); len(first) == 1 && first[0].Key == "$changeStream" {
			return k.watch(pipeline, cursor)
		}
	}
	name, ok := k.body[0].Value.(string)
	if !ok {
		if _, err := newPipeline(pipeline, forRead); err != nil {
			return nil, err
		}
		return nil, unsupported("an aggregation that is not about a collection")
	}
	steps, err := newPipeline(pipeline, forRead)
	if err != nil {
		return nil, err
	}
	var filter bson.D
	if len(pipeline) > 0 { // the first $match is for finding documents by key
		if first := asDoc(pipeline[0]); first[0].Key == "$match" {
			filter, steps = asDoc(first[0].Value), steps[1:]
		}
	}
	docs, err := k.read(name, filter, nil, 0)
	if err != nil {
		return nil, err
	}
	if docs, err = runPipeline(docs, steps); err != nil {
		return nil, err
	}
	return k.cursorReply(k.db+"."+name, docs, field(cursor, "batchSize"), false)
}
