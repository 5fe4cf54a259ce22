package mongobox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
)

// TestLargest adds what a document takes together with what becomes of the row later, and
// refuses what is larger.
func TestLargest(t *testing.T) {
	r := newRig(t)
	b := r.open(mongobox.Options{MaxBytes: -1})
	event := func(id string, n int) jetbus.Event {
		return jetbus.Event{ID: id, Topic: "orders", Payload: []byte(strings.Repeat("x", n))}
	}
	for id, n := range map[string]int{"full": 16<<20 - 500, "over": 16 << 20} {
		r.wantErr(id, b.Add(r.Context(), event(id, n)), jetbus.ErrPayloadTooLarge)
	}
	r.ok(b.Add(r.Context(), event("large", 15<<20-1000)))
	_, rows := r.claim(b, 10, time.Minute)
	for _, row := range rows {
		r.ok(b.Failed(r.Context(), []jetbus.OutboxFailure{{Row: row, Err: errors.New(strings.Repeat("e", 1000)), Dead: true}}))
	}
	r.want("dead", r.list(mongobox.Query{State: mongobox.Dead}), ids{"large"})
}

// TestNoRoom sets rows aside that fill their documents, as other programs may write them,
// and goes on with the rest.
func TestNoRoom(t *testing.T) {
	for _, room := range []int{0, 50, 1000} {
		t.Run(fmt.Sprint(room, " bytes left"), func(t *testing.T) {
			r := newRig(t)
			row := bson.D{
				{Key: "id", Value: "huge"},
				{Key: "topic", Value: "orders"},
				{Key: "key", Value: "a"},
				{Key: "state", Value: "pending"},
				{Key: "pos", Value: int64(1)},
				{Key: "_id", Value: int32(1)},
				{Key: "payload", Value: ""},
			}
			raw, err := bson.Marshal(row)
			r.ok(err)
			row[6].Value = strings.Repeat("x", 16<<20-room-len(raw))
			_, err = r.coll.InsertOne(r.Context(), row)
			r.ok(err)
			r.ok(r.box.Add(r.Context(), order("next", "a"), order("free", "")))

			got, rows := r.claim(r.box, 10, time.Minute)
			r.want("claimed", got[:1], ids{"huge"})
			r.wantErr("the row", rows[0].Err, jetbus.ErrPayloadTooLarge)
			r.ok(r.box.Failed(r.Context(), []jetbus.OutboxFailure{{Row: rows[0], Err: rows[0].Err, Dead: true}}))
			r.ok(r.box.Release(r.Context(), rows[1:]))
			dead, err := r.box.List(r.Context(), mongobox.Query{State: mongobox.Dead})
			r.ok(err)
			r.want("dead rows", len(dead), 1)
			r.wantErr("a row that is listed", dead[0].Err, jetbus.ErrPayloadTooLarge)
			got, rows = r.claim(r.box, 10, time.Minute)
			r.want("claimed behind it", got, ids{"free"})
			r.ok(r.box.Release(r.Context(), rows))

			n, err := r.box.Retry(r.Context(), mongobox.Query{})
			r.ok(err)
			r.want("rows that may be retried", n, 2)
			n, err = r.box.Remove(r.Context(), mongobox.Query{IDs: ids{"huge"}})
			r.ok(err)
			r.want("removed", n, 1)
			got, _ = r.claim(r.box, 10, time.Minute)
			r.want("claimed without it", got, ids{"next", "free"})
		})
	}
}
