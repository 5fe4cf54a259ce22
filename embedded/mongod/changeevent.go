package mongod

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// events are what a change becomes behind the pipeline: none, one, or the
// fragments of one.
func (cs *changeStream) events(st *store, e *change) ([]pending, error) {
	d, err := cs.event(st, e)
	if err != nil {
		return nil, err
	}
	return cs.through(d, token{ts: e.ts, txIdx: e.txIdx, kind: tokenEvent})
}

// through runs an event through the pipeline.
func (cs *changeStream) through(d bson.D, tok token) ([]pending, error) {
	docs, err := runPipeline([]bson.D{d}, cs.stages)
	if err != nil || len(docs) == 0 {
		return nil, err
	}
	out := docs[0]
	if !same(field(out, "_id"), field(d, "_id")) {
		return nil, streamFatal("Encountered an event whose _id field, which contains the resume token, was modified by the pipeline. Modifying the _id field of an event makes it impossible to resume the stream from that point. Only transformations that retain the unmodified _id field are allowed.")
	}
	if n := sizeOf(out); n > cs.maxEvent {
		if cs.split {
			return cs.fragments(out, tok)
		}
		return nil, tooLarge(n, cs.maxEvent)
	}
	return []pending{{out, tok}}, nil
}

func tooLarge(n, limit int) error {
	e := errorf(codeTooLarge, "", "BSONObj size: %d is invalid. Size must be between 0 and %d", n, limit)
	e.Labels = []string{labelNotResumable}
	return e
}

// fragmentOverhead is what _id and splitEvent take in a fragment, in bytes.
const fragmentOverhead = 256

// fragments splits an event by its fields.
func (cs *changeStream) fragments(d bson.D, tok token) ([]pending, error) {
	var parts []bson.D
	var part bson.D
	size := fragmentOverhead
	for _, f := range d {
		if f.Key == "_id" {
			continue
		}
		n := sizeOf(bson.D{f})
		if n+fragmentOverhead > cs.maxEvent {
			return nil, tooLarge(n, cs.maxEvent)
		}
		if size+n > cs.maxEvent && len(part) > 0 {
			parts = append(parts, part)
			part, size = nil, fragmentOverhead
		}
		part = append(part, f)
		size += n
	}
	parts = append(parts, part)
	out := make([]pending, len(parts))
	for i, p := range parts {
		tok.fragment = uint16(i + 1)
		out[i] = pending{append(bson.D{
			{Key: "_id", Value: tok.doc()},
			{Key: "splitEvent", Value: bson.D{{Key: "fragment", Value: int32(i + 1)}, {Key: "of", Value: int32(len(parts))}}},
		}, p...), tok}
	}
	return out, nil
}

func invalidateEvent(e *change, tok token) bson.D {
	return bson.D{
		{Key: "_id", Value: tok.doc()},
		{Key: "operationType", Value: "invalidate"},
		{Key: "clusterTime", Value: e.ts},
		{Key: "wallTime", Value: bson.NewDateTimeFromTime(e.wall)},
	}
}

// event is a change as the stream shows it.
func (cs *changeStream) event(st *store, e *change) (bson.D, error) {
	d := bson.D{
		{Key: "_id", Value: token{ts: e.ts, txIdx: e.txIdx, kind: tokenEvent}.doc()},
		{Key: "operationType", Value: e.op},
		{Key: "clusterTime", Value: e.ts},
	}
	if cs.expanded && len(e.uuid.Data) > 0 {
		d = append(d, bson.E{Key: "collectionUUID", Value: e.uuid})
	}
	d = append(d, bson.E{Key: "wallTime", Value: bson.NewDateTimeFromTime(e.wall)})
	if e.lsid != nil {
		d = append(d, bson.E{Key: "lsid", Value: e.lsid}, bson.E{Key: "txnNumber", Value: e.txnNumber})
	}
	d, err := cs.addFull(d, st, e)
	if err != nil {
		return nil, err
	}
	ns := bson.D{{Key: "db", Value: e.db}}
	if e.coll != "" {
		ns = append(ns, bson.E{Key: "coll", Value: e.coll})
	}
	d = append(d, bson.E{Key: "ns", Value: ns})
	switch e.op {
	case "insert", "update", "replace", "delete":
		d = append(d, bson.E{Key: "documentKey", Value: bson.D{{Key: "_id", Value: e.id}}})
	case "rename":
		d = append(d, bson.E{Key: "to", Value: bson.D{{Key: "db", Value: e.toDB}, {Key: "coll", Value: e.to}}})
	}
	if e.op == "update" {
		d = append(d, bson.E{Key: "updateDescription", Value: cs.describe(e)})
	}
	if d, err = cs.addBefore(d, e); err != nil {
		return nil, err
	}
	if cs.expanded && e.desc != nil {
		d = append(d, bson.E{Key: "operationDescription", Value: e.desc})
	}
	if e.nsType != "" {
		d = append(d, bson.E{Key: "nsType", Value: e.nsType})
	}
	return d, nil
}

// addFull adds the document after the change.
func (cs *changeStream) addFull(d bson.D, st *store, e *change) (bson.D, error) {
	var full any
	switch {
	case e.op == "insert" || e.op == "replace":
		full = e.post
	case e.op != "update" || cs.full == "" || cs.full == "default":
		return d, nil
	case cs.full == "updateLookup": // the document as it is now
		if c := st.colls[e.db+"."+e.coll]; c != nil {
			if cur := c.live(keyOf(e.id)); cur != nil {
				full = cur
			}
		}
	case e.images:
		full = e.post
	case cs.full == "required":
		return nil, noImage("post-image for all update events")
	}
	return append(d, bson.E{Key: "fullDocument", Value: full}), nil
}

// addBefore adds the document before the change.
func (cs *changeStream) addBefore(d bson.D, e *change) (bson.D, error) {
	var before any
	switch {
	case e.pre == nil || cs.before == "" || cs.before == "off":
		return d, nil
	case e.images:
		before = e.pre
	case cs.before == "required":
		return nil, noImage("pre-image for all update, delete and replace events")
	}
	return append(d, bson.E{Key: "fullDocumentBeforeChange", Value: before}), nil
}

func noImage(what string) error {
	e := errorf(47, "NoMatchingDocument", "Executor error during getMore :: caused by :: Change stream was configured to require a %s, but it was not found for an event: enable changeStreamPreAndPostImages on the collection", what)
	e.Labels = []string{labelNotResumable}
	return e
}

func (cs *changeStream) describe(e *change) bson.D {
	x := describe(e.pre, e.post)
	d := bson.D{
		{Key: "updatedFields", Value: x.updated},
		{Key: "removedFields", Value: x.removed},
		{Key: "truncatedArrays", Value: x.truncated},
	}
	if cs.expanded {
		d = append(d, bson.E{Key: "disambiguatedPaths", Value: x.ambiguous})
	}
	return d
}
