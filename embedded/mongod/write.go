package mongod

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A batch is what the statements of a write command did so far.
type batch struct {
	n, modified int32
	upserted    bson.A
	errs        bson.A
}

// batch runs the statements of a write command. One that fails is reported with
// its index, and ends an ordered command.
func (k *call) batch(list any, one func(d bson.D) (outcome, error)) (*batch, error) {
	docs, ok := list.(bson.A)
	if !ok || len(docs) == 0 || len(docs) > maxWriteBatch {
		return nil, errorf(16, "InvalidLength", "Write batch sizes must be between 1 and %d. Got %d operations.", maxWriteBatch, len(docs))
	}
	ordered := true
	if o, ok := k.get("ordered"); ok {
		ordered = truth(o)
	}
	b := &batch{}
	for i, e := range docs {
		d, ok := e.(bson.D)
		if !ok {
			return nil, errorf(codeTypeMismatch, "TypeMismatch", "statement %d is no document", i)
		}
		if !k.srv.primary { // it was when the command began: what is done stays, the rest is not
			return nil, errorf(codeStepDown, "", "operation was interrupted")
		}
		o, done := k.earlier(i)
		if !done {
			var err error
			o, err = k.once(i, func() (outcome, error) { return one(d) })
			if errors.Is(err, errEndsCommand) || errors.Is(err, ErrCut) {
				return nil, err
			}
			if err != nil {
				b.fail(i, err)
				b.n += o.n // of a multi-document statement that stopped half way
				b.modified += o.modified
				if ordered || k.txn != nil {
					break
				}
				continue
			}
		}
		b.n += o.n
		b.modified += o.modified
		if o.upserted {
			b.upserted = append(b.upserted, bson.D{{Key: "index", Value: int32(i)}, {Key: "_id", Value: o.id}})
		}
	}
	return b, nil
}

// errEndsCommand is wrapped by errors of a statement that fail the command.
var errEndsCommand = errors.New("command failed")

// once runs statement i of a retryable write and remembers what it did.
func (k *call) once(i int, one func() (outcome, error)) (outcome, error) {
	var after error
	if k.retry != nil {
		if data, hit := k.srv.hit(k.conn, k.command, failWriteCommit); hit {
			cut := true
			if v, ok := get(data, "closeConnection"); ok {
				cut = truth(v)
			}
			if code, ok := get(data, "failBeforeCommitExceptionCode"); ok {
				if cut {
					return outcome{}, ErrCut
				}
				return outcome{}, errors.Join(errEndsCommand, errorf(int32(asInt(code, 0)), "", "Failing write via 'onPrimaryTransactionalWrite' failpoint"))
			}
			if cut {
				after = ErrCut
			}
		}
	}
	o, err := one()
	if err != nil {
		return o, err
	}
	k.remember(i, o)
	return o, after
}

func (b *batch) fail(i int, err error) {
	e := commandError(err)
	b.errs = append(b.errs, append(bson.D{
		{Key: "index", Value: int32(i)}, {Key: "code", Value: e.Code}, {Key: "errmsg", Value: e.Message},
	}, e.extra...))
}

func (b *batch) reply(fields ...bson.E) bson.D {
	d := ok(append([]bson.E{{Key: "n", Value: b.n}}, fields...)...)
	if len(b.upserted) > 0 {
		d = append(d, bson.E{Key: "upserted", Value: b.upserted})
	}
	if len(b.errs) > 0 {
		d = append(d, bson.E{Key: "writeErrors", Value: b.errs})
	}
	return d
}

func (k *call) insertCmd() (bson.D, error) {
	if err := k.only("documents", "ordered", "bypassDocumentValidation"); err != nil {
		return nil, err
	}
	b, err := k.batch(k.field("documents"), func(d bson.D) (outcome, error) {
		err := k.statement(k.target(), true, func(c *collection) error { return k.insert(c, k.stamp(d)) })
		if err != nil {
			return outcome{}, err
		}
		return outcome{n: 1}, nil
	})
	if err != nil {
		return nil, err
	}
	return b.reply(), nil
}

func (k *call) updateCmd() (bson.D, error) {
	if err := k.only("updates", "ordered", "bypassDocumentValidation"); err != nil {
		return nil, err
	}
	b, err := k.batch(k.field("updates"), func(d bson.D) (outcome, error) {
		s, err := newUpdateStatement(d)
		if err != nil {
			return outcome{}, err
		}
		var o outcome
		err = k.statement(k.target(), s.upsert, func(c *collection) error {
			o, err = k.runUpdate(c, s)
			return err
		})
		return o, err
	})
	if err != nil {
		return nil, err
	}
	return b.reply(bson.E{Key: "nModified", Value: b.modified}), nil
}

// An updateStatement is one statement of an update command.
type updateStatement struct {
	filter, sort  bson.D
	update        *updater
	multi, upsert bool
}

func newUpdateStatement(d bson.D) (*updateStatement, error) {
	s := &updateStatement{
		filter: asDoc(field(d, "q")), sort: asDoc(field(d, "sort")),
		multi: truth(field(d, "multi")), upsert: truth(field(d, "upsert")),
	}
	for _, e := range d {
		switch e.Key {
		case "q", "u", "multi", "upsert", "hint", "sort":
		case "collation":
			if err := checkCollation(e.Value); err != nil {
				return nil, err
			}
		case "arrayFilters":
			return nil, unsupported("the option arrayFilters")
		default:
			return nil, errorf(40415, "", "BSON field 'update.updates.%s' is an unknown field.", e.Key)
		}
	}
	if err := checkSort(s.sort); err != nil {
		return nil, err
	}
	if _, err := newMatcher(s.filter); err != nil {
		return nil, err
	}
	var err error
	if s.update, err = newUpdater(field(d, "u")); err != nil {
		return nil, err
	}
	if s.multi && s.update.replaces {
		return nil, errorf(9, "FailedToParse", "multi update is not supported for replacement-style update")
	}
	return s, nil
}

func (k *call) runUpdate(c *collection, s *updateStatement) (outcome, error) {
	for {
		o, again, err := k.tryUpdate(c, s)
		if !again {
			return o, err
		}
	}
}

// tryUpdate runs an update statement. Again says that an upsert lost a race and
// has to look for the document again.
func (k *call) tryUpdate(c *collection, s *updateStatement) (o outcome, again bool, err error) {
	limit := 1
	if s.multi {
		limit = 0
	}
	list, err := k.findSorted(c, s.filter, s.sort, limit)
	if err != nil {
		return o, false, err
	}
	if err := k.free(c, list); err != nil {
		return o, false, err
	}
	for _, f := range list {
		d, err := s.update.apply(f.doc, false)
		if err != nil {
			return o, false, err
		}
		modified, err := k.update(c, f, d, s.update.replaces)
		if err != nil {
			return o, false, err
		}
		o.n++
		if modified {
			o.modified++
		}
	}
	if len(list) > 0 || !s.upsert {
		return o, false, nil
	}
	d, err := k.upsert(c, s.filter, s.update)
	if err != nil {
		return o, retryDuplicate(err, s.filter), err
	}
	return outcome{n: 1, upserted: true, id: d[0].Value}, false, nil
}

// upsert inserts the document that an update makes of a filter.
func (k *call) upsert(c *collection, filter bson.D, u *updater) (bson.D, error) {
	seed, err := upsertSeed(filter, bson.D{})
	if err != nil {
		return nil, err
	}
	d, err := u.apply(seed, true)
	if err != nil {
		return nil, err
	}
	id, ok := get(d, "_id")
	if !ok {
		d = append(bson.D{{Key: "_id", Value: bson.NewObjectID()}}, d...)
	}
	if k.txn == nil && k.srv.raceUpsert(c.ns(), id) && k.st.colls[c.ns()] != c {
		return nil, errLocked // dropped meanwhile: begin again
	}
	if u.replaces {
		d = k.stamp(d)
	}
	if err := k.insert(c, d); err != nil {
		return nil, err
	}
	return d, nil
}

func (k *call) deleteCmd() (bson.D, error) {
	if err := k.only("deletes", "ordered"); err != nil {
		return nil, err
	}
	b, err := k.batch(k.field("deletes"), func(d bson.D) (outcome, error) {
		for _, e := range d {
			switch e.Key {
			case "q", "limit", "hint":
			case "collation":
				if err := checkCollation(e.Value); err != nil {
					return outcome{}, err
				}
			default:
				return outcome{}, errorf(40415, "", "BSON field 'delete.deletes.%s' is an unknown field.", e.Key)
			}
		}
		filter, limit := asDoc(field(d, "q")), int(asInt(field(d, "limit"), 0))
		if _, err := newMatcher(filter); err != nil {
			return outcome{}, err
		}
		var o outcome
		err := k.statement(k.target(), false, func(c *collection) error {
			list, err := k.find(c, filter, limit)
			if err != nil {
				return err
			}
			if err := k.free(c, list); err != nil {
				return err
			}
			for _, f := range list {
				if err := k.delete(c, f); err != nil {
					return err
				}
				o.n++
			}
			return nil
		})
		return o, err
	})
	if err != nil {
		return nil, err
	}
	return b.reply(), nil
}
