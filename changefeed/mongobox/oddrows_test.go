package mongobox_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
)

// memoryBus stores the ids of events, but for those that refuse names.
type memoryBus struct {
	refuse map[string]error

	mu  sync.Mutex
	ids ids
}

func (b *memoryBus) PublishBatch(_ context.Context, events []jetbus.Event, _ jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	receipts := make([]jetbus.Receipt, len(events))
	for i, e := range events {
		if err := b.refuse[e.ID]; err != nil {
			out := &jetbus.BatchError{Total: len(events)}
			for _, left := range events[i:] {
				out.Failed = append(out.Failed, &jetbus.PublishError{Event: left, Err: err})
			}
			return receipts, out
		}
		b.ids = append(b.ids, e.ID)
		receipts[i] = jetbus.Receipt{Event: e}
		receipts[i].Event.Seq = uint64(len(b.ids))
	}
	return receipts, nil
}

func (b *memoryBus) stored() ids {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(slices.Values(b.ids))
}

// drain drains the outbox until the end of the test.
func (r *rig) drain(b *mongobox.Box, bus *memoryBus, window int) *jetbus.Drainer {
	r.Helper()
	d, err := jetbus.NewDrainer(b, bus, jetbus.DrainOptions{
		Window: window, PollMin: 10 * time.Millisecond, PollMax: 50 * time.Millisecond, StatsEvery: 50 * time.Millisecond, Lease: time.Second,
		MaxAttempts: 2, Backoff: jetbus.Backoff{Min: time.Millisecond, Max: time.Millisecond},
	})
	r.ok(err)
	r.run(d.Run)
	return d
}

func decimal(r *rig, text string) bson.Decimal128 {
	r.Helper()
	d, err := bson.ParseDecimal128(text)
	r.ok(err)
	return d
}

// TestOddRowsFailAlone has rows of other programs with values that cannot be read. Each becomes
// dead with a reason. All other rows are published and counted. A row without a readable position
// does not hold back its key.
func TestOddRowsFailAlone(t *testing.T) {
	const whole, dead, keyed = "published", "dead", "dead, and holds back its key"
	for field, values := range map[string]map[string][]any{
		"pos": {
			whole: {int32(7), int64(math.MaxInt64), int64(math.MinInt64), 7.0, "decimal 7", "decimal 7.00", "decimal 1.7E15", nil},
			dead: {
				math.Inf(1), math.Inf(-1), math.NaN(), 1e300, 7.5, "decimal Infinity", "decimal -Infinity", "decimal NaN", "decimal 1E6000",
				"decimal 7.5", "decimal 1E19", "seven", "", true,
				bson.A{int64(1), int64(2)},
				bson.A{},
				bson.D{},
				bson.NewObjectID(),
				bson.Binary{Data: []byte("7")},
				bson.NewDateTimeFromTime(time.Now()),
				bson.Timestamp{T: 1},
				bson.Regex{Pattern: "x"},
				bson.MinKey{},
				bson.MaxKey{},
				bson.Symbol("x"),
			},
		},
		"created_at": {
			whole: {nil, bson.DateTime(0)},
			keyed: {"today", "", int64(7), math.Inf(1), true, bson.A{"x"}, bson.D{}, bson.Timestamp{T: 1}, bson.MaxKey{}, bson.MinKey{}, bson.DateTime(math.MaxInt64), bson.DateTime(math.MinInt64)},
		},
		"due_at": {
			whole: {nil, bson.DateTime(0)},
			keyed: {"soon", "", int64(7), math.Inf(1), "decimal NaN", true, bson.A{"x"}, bson.Timestamp{T: 1 << 31}, bson.Regex{Pattern: "x"}, bson.MaxKey{}, bson.DateTime(math.MaxInt64)},
		},
		"attempts": {
			whole: {nil, int64(math.MaxInt64), int64(math.MinInt64), 3.0, "decimal 4"},
			keyed: {"many", math.Inf(1), math.NaN(), 0.5, "decimal 0.5", bson.DateTime(0), bson.A{}, bson.D{}, true},
		},
		"state": {keyed: {bson.A{"pending"}, bson.A{"dead", "pending"}}},
		"topic": {dead: {bson.A{"orders"}, int32(7)}},
		"key":   {dead: {bson.A{"k"}, int32(7)}},
		"_id":   {whole: {math.Inf(1), math.NaN(), bson.D{{Key: "a", Value: math.Inf(-1)}}, "decimal 1", "x"}},
	} {
		t.Run(field, func(t *testing.T) {
			r := newRig(t)
			stored, odd := ids{}, ids{}
			n := 0
			for result, list := range values {
				for _, value := range list {
					if text, ok := value.(string); ok {
						if number, ok := strings.CutPrefix(text, "decimal "); ok {
							value = decimal(r, number)
						}
					}
					n++
					id, key := fmt.Sprintf("%02d", n), fmt.Sprintf("k%02d", n)
					row := bson.M{"id": id, "topic": "orders", "key": key, "state": "pending", "pos": int64(1000 * n)}
					row[field] = value
					_, err := r.coll.InsertOne(r.Context(), row)
					r.ok(err)
					_, err = r.coll.InsertOne(r.Context(), bson.M{"id": id + " next", "topic": "orders", "key": key, "state": "pending", "pos": int64(1000*n + 1)})
					r.ok(err)
					_, err = r.coll.InsertOne(r.Context(), bson.M{"id": id + " free", "topic": "orders", "state": "pending", "pos": int64(1000*n + 2)})
					r.ok(err)
					stored = append(stored, id+" free")
					if result == whole {
						stored = append(stored, id)
					} else {
						odd = append(odd, id)
					}
					if result != keyed {
						stored = append(stored, id+" next")
					}
				}
			}
			s, err := r.box.OutboxStats(r.Context())
			r.ok(err)
			r.want("pending", s.Pending, 3*n)
			bus := &memoryBus{}
			d := r.drain(r.box, bus, 3)
			slices.Sort(stored)
			slices.Sort(odd)
			r.until("all rows that can be are published", func() bool { return len(bus.stored()) >= len(stored) && d.Stats().Outbox.Dead >= len(odd) })
			r.want("stored", bus.stored(), stored)
			rows, err := r.box.List(r.Context(), mongobox.Query{State: mongobox.Dead, Limit: -1})
			r.ok(err)
			got := ids{}
			for _, row := range rows {
				got = append(got, row.Event.ID)
				if !strings.Contains(row.LastError, "field "+field) {
					r.Errorf("row %s is dead because of %q", row.Event.ID, row.LastError)
				}
			}
			slices.Sort(got)
			r.want("dead", got, odd)
			r.want("dead rows of the drainer", int(d.Stats().Dead), len(odd))
			r.ok(d.Ready())
		})
	}
}

// TestOddPositionsInSteps fills a step of a claim with rows whose positions cannot be read. The
// claim finds the rows after it.
func TestOddPositionsInSteps(t *testing.T) {
	r := newRig(t)
	const many = 1200 // more than a step
	var rows []any
	for i := range many {
		rows = append(rows, bson.M{"id": fmt.Sprintf("odd%d", i), "topic": "orders", "key": "k", "state": "dead", "pos": math.Inf(-1)},
			bson.M{"id": fmt.Sprintf("low%d", i), "topic": "orders", "key": "k", "state": "pending", "pos": math.Inf(-1)})
	}
	rows = append(rows, bson.M{"id": "good", "topic": "orders", "key": "k", "state": "pending", "pos": int64(7)})
	_, err := r.coll.InsertMany(r.Context(), rows)
	r.ok(err)
	_, claimed := r.claim(r.box, 5000, time.Minute)
	r.want("claimed", len(claimed), many+1)
	r.want("the last", claimed[len(claimed)-1].Event.ID, "good")
}

// TestRowsThatCannotBeMarked settles all rows but those that a validator protects.
func TestRowsThatCannotBeMarked(t *testing.T) {
	r, _ := newFaultyRig(t)
	r.ok(r.box.Add(r.Context(), order("1", "a"), order("stuck", "b"), order("poison", "c"), order("kept", "d"), order("2", "")))
	_, err := r.coll.InsertOne(r.Context(), bson.M{"id": "frozen", "topic": "orders", "key": "e", "state": "pending", "pos": int64(1), "frozen": true})
	r.ok(err)
	r.protect(`{"$nor": [{"id": "stuck", "state": {"$ne": "pending"}}, {"id": "kept", "state": "sent"}, {"frozen": true}]}`)
	bus := &memoryBus{refuse: map[string]error{"stuck": jetbus.ErrSchema, "poison": errors.New("temporary")}}
	d := r.drain(r.open(mongobox.Options{Keep: time.Hour}), bus, 10)
	r.until("the other rows are settled", func() bool { return len(bus.stored()) == 3 && d.Stats().Dead == 2 })
	r.until("Ready names the row", func() bool {
		err := d.Ready()
		return err != nil && strings.Contains(err.Error(), "stuck")
	})
	r.want("dead", r.list(mongobox.Query{State: mongobox.Dead}), ids{"poison", "kept"})
	r.want("pending", r.list(mongobox.Query{State: mongobox.Pending}), ids{"frozen", "stuck"})
	r.ok(r.box.Add(r.Context(), order("3", "")))
	r.protect(`{}`)
	r.until("no row is pending", func() bool { return r.pending() == 0 })
	r.want("stored", bus.stored(), ids{"1", "2", "3", "frozen", "kept"})
	r.until("the drainer is ready", func() bool { return d.Ready() == nil })
	r.want("dead rows of the drainer", d.Stats().Dead, uint64(3))
}

// protect sets the validator of the collection.
func (r *rig) protect(validator string) {
	r.Helper()
	r.ok(r.db.RunCommand(r.Context(), bson.D{{Key: "collMod", Value: "outbox"}, {Key: "validator", Value: doc(validator)}}).Err())
}

// TestRowsThatCannotBeClaimed publishes all rows but those that a validator refuses to let change
// at all, and those after them of their keys. Ready names one. When the server accepts changes
// again, they are published in order.
func TestRowsThatCannotBeClaimed(t *testing.T) {
	r, _ := newFaultyRig(t)
	for i := range 7 { // more than a window, and more than a claim looks again
		r.ok(r.box.Add(r.Context(), order(fmt.Sprintf("stuck%d", i), fmt.Sprint("k", i)), order(fmt.Sprintf("z%d", i), fmt.Sprint("k", i))))
	}
	r.ok(r.box.Add(r.Context(), order("1", "a"), order("2", "a"), order("3", "")))
	_, err := r.coll.InsertOne(r.Context(), bson.M{"id": "stuck7", "topic": "orders", "key": "odd", "state": "pending", "pos": int64(1), "due_at": "soon"})
	r.ok(err)
	_, err = r.coll.InsertOne(r.Context(), bson.M{"id": "stuck8", "topic": "orders", "state": "pending", "pos": int64(2), "payload": strings.Repeat("x", 16<<20-1000)})
	r.ok(err)
	r.protect(`{"id": {"$not": {"$regex": "^stuck"}}}`)
	bus := &memoryBus{}
	d := r.drain(r.box, bus, 1)
	r.until("the other rows are published", func() bool { return len(bus.stored()) == 3 })
	r.until("Ready names the rows", func() bool {
		err := d.Ready()
		return err != nil && strings.Contains(err.Error(), "stuck") && d.Stats().Unrecorded == 9
	})
	r.want("dead rows", d.Stats().Dead, uint64(0))
	r.protect(`{}`)
	r.until("all rows but the odd ones are published", func() bool { return r.pending() == 0 && len(bus.stored()) == 17 })
	r.until("the drainer is ready", func() bool { return d.Ready() == nil })
	r.want("dead", r.list(mongobox.Query{State: mongobox.Dead}), ids{"stuck7", "stuck8"})
}

// TestRowsThatCannotBeReleased gives back the rows that the server lets change, and names the others.
func TestRowsThatCannotBeReleased(t *testing.T) {
	r, _ := newFaultyRig(t)
	r.ok(r.box.Add(r.Context(), order("stuck", ""), order("1", ""), order("2", "")))
	_, rows := r.claim(r.box, 3, time.Hour)
	r.protect(`{"id": {"$ne": "stuck"}}`)
	refused, ok := errors.AsType[*jetbus.OutboxRowsError](r.box.Release(r.Context(), rows))
	if !ok {
		r.Fatal("Release does not name the row")
	}
	r.want("refused", refused.Refs, ids{rows[0].Ref})
	got, _ := r.claim(r.box, 3, time.Hour)
	r.want("claimed", got, ids{"1", "2"})
}

// TestOddTimeStaysOdd keeps a row dead whose due_at is not a time, although the drainer that
// claimed it died.
func TestOddTimeStaysOdd(t *testing.T) {
	r, _ := newFaultyRig(t)
	_, err := r.coll.InsertOne(r.Context(), bson.M{"id": "odd", "topic": "orders", "key": "k", "state": "pending", "pos": int64(1), "due_at": "soon"})
	r.ok(err)
	r.ok(r.box.Add(r.Context(), order("next", "k"), order("free", "")))
	got, rows := r.claim(r.box, 10, time.Millisecond)
	r.want("claimed", got[0], "odd")
	if rows[0].Err == nil {
		r.Error("the row has no error")
	}
	bus := &memoryBus{}
	r.drain(r.box, bus, 10)
	r.until("the free row is published", func() bool { return len(bus.stored()) == 1 })
	dead, err := r.box.List(r.Context(), mongobox.Query{State: mongobox.Dead})
	r.ok(err)
	if len(dead) != 1 || !strings.Contains(dead[0].LastError, "due_at") {
		r.Errorf("dead rows: %+v", dead)
	}
	r.want("stored", bus.stored(), ids{"free"})
}
