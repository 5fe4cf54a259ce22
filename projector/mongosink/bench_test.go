package mongosink_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

const benchKeys = 1000

func benchState(i int) json.RawMessage {
	return fmt.Appendf(nil, `{"name": "thing %d", "host": "web-%d", "cpu": 12.5, "mem": %d, "tags": ["a", "b"], "at": {"rack": %d}}`, i, i%7, i*3, i%11)
}

// BenchmarkWrite writes 1,000 keys a bulk; an op is an event.
func BenchmarkWrite(b *testing.B) {
	r := newRig(b)
	s := r.open(mongosink.Options{}, source())
	changes := make([]projector.Change, benchKeys)
	seq := uint64(0)
	written := 0
	b.ReportAllocs()
	for b.Loop() {
		if seq%benchKeys == 0 { // an iteration is one event: every 1,000th pays for all
			for i := range changes {
				changes[i] = projector.Change{Key: fmt.Sprintf("k%04d", i), Doc: benchState(i), Event: event("", seq+uint64(i)+1)}
			}
			written += r.write(s, changes...).Applied
		}
		seq++
	}
	b.ReportMetric(float64(written)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkReplaceOne is what BenchmarkWrite is compared with: one guarded
// replacement for each event.
func BenchmarkReplaceOne(b *testing.B) {
	r := newRig(b)
	r.open(mongosink.Options{}, source())
	c := r.db.Collection("things")
	seq := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		seq++
		i := int(seq) % benchKeys
		key := fmt.Sprintf("k%04d", i)
		var state bson.D
		if err := bson.UnmarshalExtJSON(benchState(i), false, &state); err != nil {
			b.Fatal(err)
		}
		filter := bson.D{{Key: "_id", Value: key}, {Key: "_seq", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gte", Value: seq}}}}}}
		doc := append(bson.D{{Key: "_id", Value: key}, {Key: "_key", Value: key}, {Key: "_seq", Value: seq}}, state...)
		if _, err := c.ReplaceOne(b.Context(), filter, doc, options.Replace().SetUpsert(true)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(seq)/b.Elapsed().Seconds(), "events/s")
}
