package mongod

import (
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// A modification is a findAndModify command.
type modification struct {
	filter, sort  bson.D
	fields        *projection
	update        *updater // nil: the document is removed
	upsert, after bool
}

func (k *call) newModification() (*modification, error) {
	if err := k.only("query", "sort", "fields", "update", "remove", "upsert", "new", "hint", "bypassDocumentValidation"); err != nil {
		return nil, err
	}
	m := &modification{
		filter: asDoc(k.field("query")), sort: asDoc(k.field("sort")),
		upsert: truth(k.field("upsert")), after: truth(k.field("new")),
	}
	if err := checkSort(m.sort); err != nil {
		return nil, err
	}
	_, err := newMatcher(m.filter)
	if err != nil {
		return nil, err
	}
	if m.fields, err = newProjection(asDoc(k.field("fields"))); err != nil {
		return nil, err
	}
	u, hasUpdate := k.get("update")
	remove := truth(k.field("remove"))
	switch {
	case remove && hasUpdate:
		return nil, errorf(9, "FailedToParse", "Cannot specify both an update and remove=true")
	case remove && (m.upsert || m.after):
		return nil, errorf(9, "FailedToParse", "Cannot specify upsert=true or new=true with remove=true")
	case !remove && !hasUpdate:
		return nil, errorf(9, "FailedToParse", "Either an update or remove=true must be specified")
	case hasUpdate:
		m.update, err = newUpdater(u)
	}
	return m, err
}

func (k *call) findAndModify() (bson.D, error) {
	m, err := k.newModification()
	if err != nil {
		return nil, err
	}
	if k.retry != nil && k.retry.reply != nil {
		return k.retry.reply, nil
	}
	var reply bson.D
	if reply, err = m.reply(bson.D{{Key: "n", Value: int32(0)}}, nil); err != nil { // of a collection that does not exist
		return nil, err
	}
	_, err = k.once(0, func() (outcome, error) {
		err := k.statement(k.target(), m.upsert, func(c *collection) error {
			for {
				r, again, err := k.modify(c, m)
				if !again {
					reply = r
					return err
				}
			}
		})
		if err == nil && k.retry != nil && k.retry.txnNumber == k.txnNumber {
			k.retry.reply = reply
		}
		return outcome{}, err
	})
	if errors.Is(err, errEndsCommand) {
		return nil, commandError(err)
	}
	return reply, err
}

// modify runs a modification; see tryUpdate for again.
func (k *call) modify(c *collection, m *modification) (reply bson.D, again bool, err error) {
	list, err := k.findSorted(c, m.filter, m.sort, 1)
	if err != nil {
		return nil, false, err
	}
	switch {
	case len(list) == 0 && m.upsert:
		d, err := k.upsert(c, m.filter, m.update)
		if err != nil {
			return nil, retryDuplicate(err, m.filter), err
		}
		last := bson.D{{Key: "n", Value: int32(1)}, {Key: "updatedExisting", Value: false}, {Key: "upserted", Value: d[0].Value}}
		if !m.after {
			d = nil
		}
		reply, err = m.reply(last, d)
		return reply, false, err
	case len(list) == 0:
		last := bson.D{{Key: "n", Value: int32(0)}}
		if m.update != nil {
			last = append(last, bson.E{Key: "updatedExisting", Value: false})
		}
		reply, err = m.reply(last, nil)
		return reply, false, err
	case m.update == nil:
		if err := k.delete(c, list[0]); err != nil {
			return nil, false, err
		}
		reply, err = m.reply(bson.D{{Key: "n", Value: int32(1)}}, list[0].doc)
		return reply, false, err
	}
	d, err := m.update.apply(list[0].doc, false)
	if err != nil {
		return nil, false, err
	}
	if _, err := k.update(c, list[0], d, m.update.replaces); err != nil {
		return nil, false, err
	}
	if !m.after {
		d = list[0].doc
	}
	reply, err = m.reply(bson.D{{Key: "n", Value: int32(1)}, {Key: "updatedExisting", Value: true}}, d)
	return reply, false, err
}

func (m *modification) reply(last, d bson.D) (bson.D, error) {
	var value any
	if d != nil {
		shown, err := m.fields.apply(d)
		if err != nil {
			return nil, err
		}
		value = shown
	}
	return ok(bson.E{Key: "lastErrorObject", Value: last}, bson.E{Key: "value", Value: value}), nil
}
