package mongod

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// An ordered lists the slots of a collection by _id, so that reading a large
// collection piece by piece costs what is read. It is made when it is first
// asked for.
type ordered struct {
	slots []*slot // by _id; some may be forgotten by now
	fresh []*slot // new, in no order
}

// byID are the slots of a collection in the order of their _ids.
func (c *collection) byID() []*slot {
	if c.ordered == nil {
		c.ordered = &ordered{fresh: make([]*slot, 0, len(c.docs))}
		for _, s := range c.docs {
			c.ordered.fresh = append(c.ordered.fresh, s)
		}
	}
	o := c.ordered
	gone := func(s *slot) bool { return c.docs[s.key] != s }
	if len(o.slots) > 2*len(c.docs)+64 {
		o.slots = slices.DeleteFunc(o.slots, gone)
	}
	if len(o.fresh) == 0 {
		return o.slots
	}
	fresh, old := slices.DeleteFunc(o.fresh, gone), o.slots
	slices.SortFunc(fresh, func(a, b *slot) int { return compare(a.id, b.id) })
	merged := make([]*slot, 0, len(old)+len(fresh))
	for _, s := range fresh {
		n := lowerBound(old, s.id)
		merged = append(append(merged, old[:n]...), s)
		old = old[n:]
	}
	merged = append(merged, old...)
	o.slots, o.fresh = merged, nil
	return o.slots
}

// lowerBound is the number of slots at the head with an _id below id.
func lowerBound(slots []*slot, id any) int {
	n, _ := slices.BinarySearchFunc(slots, id, func(s *slot, id any) int { return compare(s.id, id) })
	return n
}

// findByID is find in the order of the _ids, ascending or descending. It returns
// false if it cannot say, because v is a transaction.
func (v *view) findByID(c *collection, filter bson.D, descending bool, limit int) ([]found, bool, error) {
	if v.txn != nil {
		return nil, false, nil
	}
	m, err := newMatcher(filter)
	if err != nil {
		return nil, true, err
	}
	slots := c.within(field(filter, "_id"))
	var out []found
	for i := range slots {
		s := slots[i]
		if descending {
			s = slots[len(slots)-1-i]
		}
		if s.head.doc == nil || c.docs[s.key] != s {
			continue
		}
		ok, err := m.match(s.head.doc)
		if err != nil {
			return nil, true, err
		}
		if ok {
			if out = append(out, found{s.key, s.head.doc}); limit > 0 && len(out) == limit {
				break
			}
		}
	}
	return out, true, nil
}

// within are the slots that a condition on the _id may let pass.
func (c *collection) within(cond any) []*slot {
	slots := c.byID()
	if !isOperators(cond) {
		return slots
	}
	for _, o := range asDoc(cond) {
		if rank(o.Value) == rankArray || isNaN(o.Value) {
			continue
		}
		switch o.Key {
		case "$gt", "$gte":
			slots = slots[lowerBound(slots, o.Value):]
		case "$lt":
			slots = slots[:lowerBound(slots, o.Value)]
		}
	}
	return slots
}

// findSorted is find in an order; limit is about what comes first in it.
func (v *view) findSorted(c *collection, filter, by bson.D, limit int) ([]found, error) {
	if len(by) == 0 {
		return v.find(c, filter, limit)
	}
	if by[0].Key == "_id" {
		if list, ok, err := v.findByID(c, filter, asInt(by[0].Value, 1) < 0, limit); ok {
			return list, err
		}
	}
	list, err := v.find(c, filter, 0)
	if err != nil {
		return nil, err
	}
	if natural, ok := get(by, "$natural"); ok {
		if asInt(natural, 1) < 0 {
			slices.Reverse(list)
		}
	} else {
		sortDocs(list, by, func(f found) bson.D { return f.doc })
	}
	if limit > 0 {
		list = list[:min(limit, len(list))]
	}
	return list, nil
}
