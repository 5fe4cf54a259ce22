package mongobox

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
)

// TestScanLong ends a scan that takes long and finds nothing, before the claim is out of
// time; the next one goes on there.
func TestScanLong(t *testing.T) {
	server := mongotest.Start(t)
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.Background()) }()
	coll := client.Database(server.Database()).Collection("outbox")
	rows := []any{bson.M{fieldID: "dead", fieldTopic: "orders", fieldKey: "a", fieldState: string(Dead), fieldPos: int64(1)}}
	for i := range (scanSteps + 1) * scanRows {
		rows = append(rows, bson.M{fieldID: strconv.Itoa(i), fieldTopic: "orders", fieldKey: "a", fieldState: string(Pending), fieldPos: int64(i + 2)})
	}
	rows = append(rows, bson.M{fieldID: "free", fieldTopic: "orders", fieldState: string(Pending), fieldPos: int64(len(rows) + 2)})
	if _, err := coll.InsertMany(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	b, err := Open(t.Context(), coll, Options{})
	if err != nil {
		t.Fatal(err)
	}
	b.scan.patience = time.Nanosecond
	o := jetbus.ClaimOptions{Max: 10, Lease: time.Minute}
	for i, want := range []int{0, 1} {
		if got, err := b.Claim(t.Context(), o); err != nil || len(got) != want {
			t.Errorf("claim %d got %d rows, %v; want %d", i, len(got), err, want)
		}
	}
}

// TestScanAnew: where there is always enough behind the place where a claim was cut short,
// the rows ahead of it have their turn all the same.
func TestScanAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s scanFrom
		begins := func(want int64) {
			t.Helper()
			if from, _ := s.begin(); from != want {
				t.Errorf("a claim begins at %d, want %d", from, want)
			}
		}
		s.cut(5, nil)
		for range 10 {
			begins(5)
			s.filled()
			time.Sleep(time.Second)
		}
		s.cut(9, nil) // the time counts from the first one
		begins(9)
		time.Sleep(time.Second)
		begins(9)
		s.filled()
		begins(oldest)
		s.cut(7, nil)
		s.filled()
		begins(7)
	})
}
