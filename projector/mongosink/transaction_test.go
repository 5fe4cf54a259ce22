package mongosink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// counting is a database whose counters a transactional projection keeps: each
// event adds its amount to the counter of its key, and appends to a journal.
type counting struct {
	*testing.T
	srv *mongotest.Server
	db  *mongo.Database

	mu    sync.Mutex
	calls int
	fail  func(ctx context.Context, seq uint64) error // called by Apply behind its writes
}

func newCounting(t *testing.T) *counting {
	t.Helper()
	beside(t)
	srv := mongotest.Start(t)
	client, err := mongo.Connect(options.Client().ApplyURI(srv.URI()).SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) })
	return &counting{T: t, srv: srv, db: client.Database(srv.Database())}
}

// standIn is the server where faults can be made.
func (c *counting) standIn() *mongod.Server {
	c.Helper()
	srv, err := mongod.Start(c.Context(), mongod.Config{})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(srv.Stop)
	client, err := mongo.Connect(options.Client().ApplyURI(srv.URI()).SetHeartbeatInterval(500 * time.Millisecond))
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(c.Context())) })
	c.db = client.Database("d")
	return srv
}

func (c *counting) apply(ctx context.Context, change projector.Change) error {
	c.mu.Lock()
	c.calls++
	fail := c.fail
	c.mu.Unlock()
	_, err := c.db.Collection("counters").UpdateOne(ctx, bson.D{{Key: "_id", Value: change.Key}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "sum", Value: change.Doc}}}}, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("count: %w", err)
	}
	_, err = c.db.Collection("journal").InsertOne(ctx, bson.D{{Key: "seq", Value: int64(change.Event.Seq)}, {Key: "key", Value: change.Key}})
	if err == nil && fail != nil {
		err = fail(ctx, change.Event.Seq)
	}
	return err
}

func (c *counting) sink() *mongosink.Transaction {
	c.Helper()
	sink, err := mongosink.NewTransaction(c.db, mongosink.TransactionOptions{
		Collections: []string{"counters", "journal"},
		Indexes:     map[string][]mongosink.Index{"journal": {{Name: "once", Keys: bson.D{{Key: "seq", Value: 1}}, Unique: true}}},
		Apply:       c.apply,
		Timeout:     patience,
	})
	if err != nil {
		c.Fatal(err)
	}
	return sink
}

// open opens a new sink and wants this position.
func (c *counting) open(want uint64) *mongosink.Transaction {
	c.Helper()
	sink := c.sink()
	p, err := sink.Open(c.Context(), counterSource)
	if err != nil {
		c.Fatal(err)
	}
	if p.Seq != want || p.Known != (want > 0) {
		c.Fatalf("opened at %+v, want %d", p, want)
	}
	return sink
}

var counterSource = projector.Source{
	Projection: "counters", Topic: "orders", Stream: "ORDERS", Created: time.Unix(1_000, 7), Exclusive: true, Every: true,
}

const counterKeys = 7

// amount is what an event adds.
func amount(seq uint64) int64 { return int64(seq*seq%101) + 1 }

// counterBatch is the batch of the events from first to last.
func counterBatch(first, last uint64) projector.Batch {
	b := projector.Batch{UpTo: last}
	for seq := first; seq <= last; seq++ {
		b.Changes = append(b.Changes, projector.Change{
			Key: fmt.Sprint("k", seq%counterKeys), Doc: amount(seq), Event: jetbus.Event{Topic: "orders", Seq: seq},
		})
	}
	return b
}

// write writes a batch as a projection does, and returns how many were applied and
// the sequences of those that were rejected.
func (c *counting) write(sink *mongosink.Transaction, b projector.Batch) (applied int, rejected []uint64) {
	c.Helper()
	for {
		out, err := sink.Write(c.Context(), b)
		if err != nil {
			c.Fatal(err)
		}
		applied += out.Applied
		if len(out.Rejected) == 0 {
			return applied, rejected
		}
		b.Changes, rejected = without(b.Changes, out.Rejected, rejected)
	}
}

func without(changes []projector.Change, bad []projector.Rejection, seqs []uint64) ([]projector.Change, []uint64) {
	var left []projector.Change
	for i, change := range changes {
		if len(bad) > 0 && bad[0].Index == i {
			seqs = append(seqs, change.Event.Seq)
			bad = bad[1:]
			continue
		}
		left = append(left, change)
	}
	return left, seqs
}

// want checks that each event up to last, apart from some, has counted once.
func (c *counting) want(last uint64, apart ...uint64) {
	c.Helper()
	skip := map[uint64]bool{}
	for _, seq := range apart {
		skip[seq] = true
	}
	sums, events := map[string]int64{}, 0
	for seq := uint64(1); seq <= last; seq++ {
		if !skip[seq] {
			sums[fmt.Sprint("k", seq%counterKeys)] += amount(seq)
			events++
		}
	}
	var docs []struct {
		ID  string `bson:"_id"`
		Sum int64  `bson:"sum"`
	}
	cur, err := c.db.Collection("counters").Find(c.Context(), bson.D{})
	if err != nil {
		c.Fatal(err)
	}
	if err := cur.All(c.Context(), &docs); err != nil {
		c.Fatal(err)
	}
	if len(docs) != len(sums) {
		c.Errorf("%d counters, want %d", len(docs), len(sums))
	}
	for _, d := range docs {
		if d.Sum != sums[d.ID] {
			c.Errorf("counter %s is %d, want %d", d.ID, d.Sum, sums[d.ID])
		}
	}
	n, err := c.db.Collection("journal").CountDocuments(c.Context(), bson.D{})
	if err != nil || n != int64(events) {
		c.Errorf("%d events in the journal (%v), want %d", n, err, events)
	}
}

func TestTransactionCounts(t *testing.T) {
	c := newCounting(t)
	sink := c.open(0)
	const last = 1_200 // three transactions: one has at most 500
	if applied, _ := c.write(sink, counterBatch(1, last)); applied != last {
		t.Errorf("%d applied", applied)
	}
	if applied, _ := c.write(sink, counterBatch(1, last)); applied != 0 {
		t.Errorf("%d applied again", applied)
	}
	if applied, _ := c.write(sink, projector.Batch{UpTo: last + 100}); applied != 0 { // events that were all refused
		t.Errorf("%d applied of none", applied)
	}
	c.want(last)
	c.write(c.open(last+100), projector.Batch{UpTo: last + 101})
	c.open(last + 101)
}

func TestTransactionRejects(t *testing.T) {
	c := newCounting(t)
	c.fail = func(_ context.Context, seq uint64) error {
		switch seq % 10 {
		case 3:
			return fmt.Errorf("count: %w", jetbus.Reject(errors.New("no such product")))
		case 4:
			return jetbus.Drop(errors.New("of no interest")) // what it wrote stays
		}
		return nil
	}
	sink := c.open(0)
	applied, rejected := c.write(sink, counterBatch(1, 100))
	if applied != 90 || len(rejected) != 10 || rejected[9] != 93 {
		t.Errorf("%d applied, rejected %v", applied, rejected)
	}
	c.want(100, rejected...)
	out, err := sink.Write(t.Context(), counterBatch(103, 103))
	if err != nil || len(out.Rejected) != 1 || out.Rejected[0].Err.Error() != "no such product" {
		t.Errorf("outcome %+v, %v", out, err)
	}
	c.open(100)
}

func TestTransactionFailingChange(t *testing.T) {
	for name, failure := range map[string]func(context.Context) error{
		"error": func(context.Context) error { return errors.New("cannot be now") },
		"panic": func(context.Context) error { panic("cannot be now") },
		"duplicate key": func(ctx context.Context) error {
			_, err := newJournal(ctx).InsertOne(ctx, bson.D{{Key: "seq", Value: int64(50)}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCounting(t)
			broken := true
			c.fail = func(ctx context.Context, seq uint64) error {
				if seq == 50 && broken {
					return failure(context.WithValue(ctx, journalKey{}, c.db.Collection("journal")))
				}
				return nil
			}
			sink := c.open(0)
			for range 3 {
				_, err := sink.Write(t.Context(), counterBatch(1, 100))
				bad, ok := errors.AsType[*projector.ChangeError](err)
				for tries := 0; err != nil && !ok && tries < 10; tries++ { // the server was too slow to show that it is there
					_, err = sink.Write(t.Context(), counterBatch(1, 100))
					bad, ok = errors.AsType[*projector.ChangeError](err)
				}
				if !ok || bad.Index != 49 {
					t.Fatalf("error %v", err)
				}
			}
			c.want(49)
			broken = false
			if applied, _ := c.write(sink, counterBatch(1, 100)); applied != 100 {
				t.Errorf("%d applied", applied)
			}
			c.want(100)
		})
	}
}

type journalKey struct{}

func newJournal(ctx context.Context) *mongo.Collection {
	return ctx.Value(journalKey{}).(*mongo.Collection)
}

func TestTransactionFence(t *testing.T) {
	c := newCounting(t)
	a, b := c.open(0), c.open(0)
	c.write(a, counterBatch(1, 10))
	if _, err := b.Write(t.Context(), counterBatch(1, 20)); !errors.Is(err, projector.ErrFenced) {
		t.Fatalf("the second replica: %v", err)
	}
	b = c.open(10)
	c.write(b, counterBatch(11, 20))
	for range 2 {
		if _, err := a.Write(t.Context(), counterBatch(11, 30)); !errors.Is(err, projector.ErrFenced) {
			t.Fatalf("the first replica: %v", err)
		}
	}
	if _, err := b.Write(t.Context(), projector.Batch{UpTo: 5}); !errors.Is(err, projector.ErrFenced) {
		t.Errorf("a position behind the stored one: %v", err)
	}
	c.want(20)
}

func TestTransactionReplicas(t *testing.T) {
	const last, size = 810, 15 // what the replicas contend for is batches
	c := newCounting(t)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			sink := c.sink()
			p, err := sink.Open(t.Context(), counterSource)
			for at := p.Seq; at < last; {
				if err == nil {
					upTo := min(at+size, last)
					if _, err = sink.Write(t.Context(), counterBatch(at+1, upTo)); err == nil {
						at = upTo
						continue
					}
				}
				if !errors.Is(err, projector.ErrFenced) && !strings.Contains(err.Error(), "WriteConflict") {
					t.Error(err)
					return
				}
				if p, err = sink.Open(t.Context(), counterSource); err == nil {
					at = p.Seq
				}
			}
		})
	}
	wg.Wait()
	c.want(last)
}

func TestTransactionOpen(t *testing.T) {
	c := newCounting(t)
	c.write(c.open(0), counterBatch(1, 10))
	other := counterSource
	other.Projection = "totals"
	topic := counterSource
	topic.Topic = "invoices"
	anew := counterSource
	anew.Created = time.Unix(2_000, 0)
	folded := counterSource
	folded.Every = false
	for name, row := range map[string]struct {
		source projector.Source
		want   error
		text   string
	}{
		"another projection": {other, projector.ErrOwned, "counters"},
		"another topic":      {topic, projector.ErrOwned, "invoices"},
		"another stream":     {anew, projector.ErrNewStream, "1970-01-01T00:33:20Z"},
		"not every event":    {folded, jetbus.ErrInvalidOption, "Every"},
	} {
		sink := c.sink()
		_, err := sink.Open(t.Context(), row.source)
		if !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.text) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := sink.Write(t.Context(), counterBatch(11, 12)); err == nil {
			t.Errorf("%s: it writes without being open", name)
		}
	}
	c.want(10)
}

func TestTransactionStandalone(t *testing.T) {
	srv, err := mongod.Start(t.Context(), mongod.Config{Standalone: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	client, err := mongo.Connect(options.Client().ApplyURI(srv.URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) })
	c := &counting{T: t, db: client.Database("d")}
	if _, err := c.sink().Open(t.Context(), counterSource); !errors.Is(err, mongosink.ErrNeedsReplicaSet) {
		t.Errorf("error %v", err)
	}
	hard, err := mongosink.New(client.Database("d"), mongosink.Options{Collection: "c", HardDelete: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hard.Open(t.Context(), exclusive()); !errors.Is(err, mongosink.ErrNeedsReplicaSet) {
		t.Errorf("HardDelete: error %v", err)
	}
	if names := srv.Databases(); len(names) != 0 {
		t.Errorf("databases %v were made", names)
	}
}

func TestTransactionOptions(t *testing.T) {
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) })
	db := client.Database("d")
	apply := func(context.Context, projector.Change) error { return nil }
	for name, row := range map[string]struct {
		db   *mongo.Database
		o    mongosink.TransactionOptions
		text string
	}{
		"no database":   {nil, mongosink.TransactionOptions{Collections: []string{"a"}, Apply: apply}, "nil"},
		"no function":   {db, mongosink.TransactionOptions{Collections: []string{"a"}}, "Apply"},
		"no collection": {db, mongosink.TransactionOptions{Apply: apply}, "Collections"},
		"empty name":    {db, mongosink.TransactionOptions{Collections: []string{""}, Apply: apply}, ""},
		"our own":       {db, mongosink.TransactionOptions{Collections: []string{"_projections"}, Apply: apply}, ""},
		"named twice":   {db, mongosink.TransactionOptions{Collections: []string{"a", "a"}, Apply: apply}, "twice"},
		"index nowhere": {db, mongosink.TransactionOptions{Collections: []string{"a"}, Indexes: map[string][]mongosink.Index{"b": nil}, Apply: apply}, "b"},
	} {
		if _, err := mongosink.NewTransaction(row.db, row.o); !errors.Is(err, jetbus.ErrInvalidOption) || !strings.Contains(err.Error(), row.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
