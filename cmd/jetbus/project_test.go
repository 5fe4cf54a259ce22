package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// mongoBench is a bench with a MongoDB beside it.
type mongoBench struct {
	*bench
	bus *adapter.Bus
	uri string
	db  *mongo.Database
}

func newMongoBench(t *testing.T) *mongoBench {
	t.Helper()
	b := &mongoBench{bench: newBench(t)}
	srv := mongotest.Start(t)
	b.uri = srv.URI()
	b.db = openMongo(t, srv.URI()).Database(srv.Database())
	nc, err := nats.Connect(b.url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if b.bus, err = adapter.Open(t.Context(), nc, adapter.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.bus.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return b
}

func openMongo(t *testing.T, uri string) *mongo.Client {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(uri))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Disconnect(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return client
}

// args is a command line of project for the bench.
func (b *mongoBench) args(args ...string) []string {
	return append([]string{"--server", b.url, "project", "--mongo", b.uri, "--db", b.db.Name()}, args...)
}

func (b *mongoBench) project(t *testing.T, args ...string) result {
	t.Helper()
	return command(t, "", b.args(args...)...)
}

func (b *mongoBench) begin(t *testing.T, args ...string) *running {
	t.Helper()
	return begin(t, nil, b.args(args...)...)
}

// put publishes events of the topic: keys with payloads.
func (b *mongoBench) put(t *testing.T, topic string, pairs ...string) {
	t.Helper()
	var events []jetbus.Event
	for i := 0; i < len(pairs); i += 2 {
		events = append(events, jetbus.Event{Topic: topic, Key: pairs[i], Payload: []byte(pairs[i+1])})
	}
	if _, err := b.bus.PublishBatch(t.Context(), events, jetbus.BatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// documents are the documents of a collection by key, those of deleted keys apart,
// without what the sink needs itself.
func documents(ctx context.Context, c *mongo.Collection) (map[string]string, error) {
	cursor, err := c.Find(ctx, mongosink.Live())
	if err != nil {
		return nil, err
	}
	var list []bson.D
	if err := cursor.All(ctx, &list); err != nil {
		return nil, err
	}
	docs := map[string]string{}
	for _, d := range list {
		key := ""
		d = slices.DeleteFunc(d, func(e bson.E) bool {
			if e.Key == "_id" {
				key = fmt.Sprint(e.Value)
			}
			return strings.HasPrefix(e.Key, "_")
		})
		text, err := bson.MarshalExtJSON(d, false, false)
		if err != nil {
			return nil, err
		}
		docs[key] = string(text)
	}
	return docs, nil
}

// become waits until a collection has these documents.
func (b *mongoBench) become(t *testing.T, collection string, want map[string]string) {
	t.Helper()
	diff := ""
	defer func() {
		if t.Failed() {
			t.Logf("collection %s: %s", collection, diff)
		}
	}()
	b.until(t, "the collection is as it should be", func() bool {
		docs, err := documents(t.Context(), b.db.Collection(collection))
		if err != nil {
			t.Fatal(err)
		}
		diff = cmp.Diff(want, docs)
		return diff == ""
	})
}

// until waits until something is so.
func (b *mongoBench) until(t *testing.T, what string, so func() bool) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(2 * time.Minute); !so(); {
		if time.Now().After(deadline) {
			t.Fatalf("not so after 30 seconds: %s", what)
		}
		select {
		case <-ticker.C:
		case <-t.Context().Done():
		}
	}
}

// settled says whether a group has settled all that its topic has.
func (b *mongoBench) settled(t *testing.T, topic, group string) bool {
	t.Helper()
	info, err := b.bus.TopicInfo(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := b.bus.Groups(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if g.Group == group {
			return g.Pending == 0 && g.Held == 0 && g.AckedSeq == info.LastSeq
		}
	}
	return false
}

// watchSeqs looks at the sequences of the documents of a collection until stop is
// called, which reports how often it looked and each document that went back.
func watchSeqs(t *testing.T, c *mongo.Collection) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	looked := 0
	wg.Go(func() {
		last := map[string]int64{}
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for range ticker.C {
			if ctx.Err() != nil {
				return
			}
			cursor, err := c.Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "_seq", Value: 1}}))
			if err != nil {
				continue
			}
			var list []struct {
				ID  string `bson:"_id"`
				Seq int64  `bson:"_seq"`
			}
			if err := cursor.All(ctx, &list); err != nil {
				continue
			}
			for _, d := range list {
				if d.Seq < last[d.ID] {
					t.Errorf("document %s went back from %d to %d", d.ID, last[d.ID], d.Seq)
				}
				last[d.ID] = d.Seq
			}
			looked++
		}
	})
	return func() int {
		cancel()
		wg.Wait()
		return looked
	}
}

// From the snapshot an empty collection has what the log has lost long ago; then it
// follows the log, beside another replica, through a restart, while events keep
// coming, and no document goes back.
func TestProjectFromSnapshot(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	b.ok(t, "", "topics", "create", "process.state", "--key-in-subject", "--max-events", "20")
	b.ok(t, "", "topics", "create", "process.state.snapshot", "--snapshot-of", "process.state")
	b.put(t, "process.state", "old", `{"n":-1}`, "gone", `{"n":-2}`)
	b.until(t, "the snapshot has them", func() bool {
		info, err := b.bus.TopicInfo(t.Context(), "process.state.snapshot")
		return err == nil && info.Events == 2
	})
	want := map[string]string{"old": `{"n":-1}`}
	n := 0
	more := func(rounds int) {
		for range rounds {
			var pairs []string
			for k := range 7 {
				n++
				pairs = append(pairs, "k"+strconv.Itoa(k), fmt.Sprintf(`{"n":%d}`, n))
				want["k"+strconv.Itoa(k)] = fmt.Sprintf(`{"n":%d}`, n)
			}
			b.put(t, "process.state", pairs...)
		}
	}
	more(10)
	b.put(t, "process.state", "gone", "null")
	if info, err := b.bus.TopicInfo(t.Context(), "process.state"); err != nil || info.Events != 20 || info.FirstSeq < 3 {
		t.Fatalf("the log still has all: %+v, %v", info, err)
	}
	stop := watchSeqs(t, b.db.Collection("processes"))
	first := b.begin(t, "process.state", "processes", "--from", "process.state.snapshot")
	first.wait(t, "process.state to collection processes of database "+b.db.Name()+", as processes\n")
	more(20)
	b.become(t, "processes", want)
	second := b.begin(t, "process.state", "processes", "--from", "process.state.snapshot")
	second.wait(t, "as processes\n")
	more(20)
	if code := first.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, first.err)
	}
	more(20)
	b.become(t, "processes", want)
	b.until(t, "the group has no older event in hand", func() bool { return b.settled(t, "process.state", "processes") })
	if code := second.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, second.err)
	}
	more(1)
	third := b.begin(t, "process.state", "processes", "--from", "process.state.snapshot")
	b.become(t, "processes", want)
	if code := third.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, third.err)
	}
	if looked := stop(); looked < 10 {
		t.Errorf("looked %d times only", looked)
	}
	if !strings.Contains(third.out.String(), "  7 events  ") {
		t.Errorf("the last one did not go on where the others were:\n%s", third.out)
	}

	// Without a topic and a collection it is the topic of the snapshot, and its name.
	r := b.begin(t, "--from", "process.state.snapshot")
	r.wait(t, "process.state to collection process.state of database")
	b.become(t, "process.state", want)
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
}

func TestProjectFile(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	b.ok(t, "", "topics", "create", "orders")
	b.put(t, "orders",
		"", `{"order":{"id":7},"host":"a","cpu":{"pct":1.5},"v":2}`,
		"", `{"order":{"id":7},"host":"late","v":1}`,
		"", `{"order":{"id":"x"},"host":"b","v":1}`,
		"", `{"order":{"id":"x"},"status":"gone","v":2}`,
		"", `{"host":"nobody's","v":1}`,
		"", `no JSON`,
		"", `{"order":{"id":8},"host":"c","v":"new"}`,
		"", `{"order":{"id":9},"host":"a","v":3}`,
	)
	spec := file(t, "project.json", `{
		"topic": "orders", "collection": "shop", "name": "shop-orders",
		"keyOf": ".order.id", "map": {"host": ".host", "load": ".cpu.pct"}, "tombstone": ".status=gone", "versionOf": ".v",
		"indexes": [{"keys": {"host": 1, "load": -1}}, {"keys": {"host": 1}, "unique": true, "name": "one"}]
	}`)
	r := b.begin(t, "--file", spec)
	b.become(t, "shop", map[string]string{"7": `{"host":"a","load":1.5}`})
	r.wait(t, "8 events")
	b.put(t, "orders", "", `{"order":{"id":7},"host":"d","v":3}`)
	b.become(t, "shop", map[string]string{"7": `{"host":"d"}`})
	if code := r.end(); code != 0 || !strings.HasSuffix(r.out.String(), "see jetbus dlq ls orders --group shop-orders\n") {
		t.Errorf("exit code %d: %s%s", code, r.err, r.out)
	}
	b.shows(t, "shop-orders", "dlq", "ls", "orders", "--group", "shop-orders")
	var dead []string
	for line := range strings.Lines(b.ok(t, "", "dlq", "ls", "orders", "--group", "shop-orders", "-o", "ndjson")) {
		var d struct{ Error string }
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatal(err)
		}
		dead = append(dead, d.Error)
	}
	for _, want := range []string{"the payload has no .order.id", "the payload is no JSON", ".v is a string: a version is an integer", "one"} {
		if !slices.ContainsFunc(dead, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("no dead letter says %q: %q", want, dead)
		}
	}
	if len(dead) != 4 {
		t.Errorf("dead letters: %q", dead)
	}
	specs, err := b.db.Collection("shop").Indexes().ListSpecifications(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range specs {
		names[s.Name] = true
	}
	if !names["one"] || !names["host_1_load_-1"] {
		t.Errorf("indexes %q", slices.Sorted(maps.Keys(names)))
	}
}

func TestProjectRefused(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	b.ok(t, "", "topics", "create", "orders")
	b.put(t, "orders", "a", `{"n":1}`)
	if r := b.project(t, "orders", "shop", "--index", "n", "--for", "100ms"); r.code != 0 || r.errOut != "" {
		t.Fatalf("%+v", r)
	}
	b.ok(t, "", "topics", "create", "shots", "--key-in-subject")
	b.ok(t, "", "topics", "create", "shots.snapshot", "--snapshot-of", "shots")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"nope"}, exitNotFound, "no such topic"},
		{[]string{"--from", "nope"}, exitNotFound, "no such topic"},
		{[]string{"--from", "orders"}, exitUsage, "--from orders: it is no snapshot: name the topic to project"},
		{[]string{"orders", "--from", "shots.snapshot"}, exitUsage, "no snapshot of orders"},
		{[]string{"shots.snapshot"}, exitFailure, "it is a snapshot"},
		{[]string{"orders", "shop", "--name", "other"}, exitConflict, "owned by another projection: shop"},
		{[]string{"orders", "shop", "--unique-index", "n"}, exitConflict, `wanted {"key":{"n":1}`},
		{[]string{"orders", "shop", "--tombstone-ttl", "-5s"}, exitUsage, "is no duration"},
		{[]string{"orders", "_projections", "--name", "x"}, exitUsage, "that is where projections are recorded"},
		{[]string{"orders", "a$b", "--name", "x"}, exitUsage, "a name has no $"},
		{[]string{"orders", "a$b"}, exitUsage, "name it with --name"},
	} {
		r := b.project(t, c.args...)
		if r.code != c.code || !strings.Contains(r.errOut, c.want) || strings.Count(r.errOut, "\n") != 1 {
			t.Errorf("%q: %+v, want code %d and %q", c.args, r, c.code, c.want)
		}
	}
	r := command(t, "", "--server", b.url, "--timeout", "5s", "project", "orders", "--mongo", "mongodb://u:geheim@127.0.0.1:1/")
	if r.code != exitFailure || !strings.Contains(r.errOut, "connect to mongodb://127.0.0.1:1/: no primary answers there") || strings.Contains(r.errOut, "geheim") {
		t.Errorf("%+v", r)
	}

	// A topic that was deleted and made anew is not taken for the old one.
	b.ok(t, "", "topics", "rm", "orders", "--yes")
	b.ok(t, "", "topics", "create", "orders")
	b.put(t, "orders", "b", `{"n":2}`)
	r = b.project(t, "orders", "shop", "--index", "n")
	if r.code != exitConflict || !strings.Contains(r.errOut, "another history") || !strings.Contains(r.errOut, "jetbus project --rebuild") {
		t.Errorf("%+v", r)
	}
	b.shows(t, "topic was made anew", b.args("ls")[2:]...)
	if r = b.project(t, "orders", "shop", "--index", "n", "--rebuild"); r.code != 0 || !strings.HasPrefix(r.out, "shop rebuilt in ") {
		t.Errorf("%+v", r)
	}
	b.become(t, "shop", map[string]string{"b": `{"n":2}`})

	// Neither is one that was restored to a state before the newest event of the collection.
	restored := bson.D{{Key: "$set", Value: bson.D{{Key: "sources.orders.last.seq", Value: 99}}}}
	if _, err := b.db.Collection("_projections").UpdateByID(t.Context(), "shop", restored); err != nil {
		t.Fatal(err)
	}
	b.shows(t, "topic was restored", b.args("ls")[2:]...)
	r = b.project(t, "orders", "shop", "--index", "n")
	if r.code != exitConflict || !strings.Contains(r.errOut, "restored to an earlier state") || !strings.Contains(r.errOut, "jetbus project --rebuild") {
		t.Errorf("%+v", r)
	}
}

func TestProjectRebuild(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	b.ok(t, "", "topics", "create", "orders")
	b.put(t, "orders", "a", `{"n":1}`, "b", `{"n":1}`, "a", `{"n":2}`, "c", `x`)
	live := b.begin(t, "orders", "shop")
	b.become(t, "shop", map[string]string{"a": `{"n":2}`, "b": `{"n":1}`})
	if _, err := b.db.Collection("shop").DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "b"}}); err != nil {
		t.Fatal(err)
	}
	r := b.project(t, "orders", "shop", "--rebuild", "-o", "json")
	var s struct{ Read, Total, Written, Rejected uint64 }
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || r.code != 0 || s.Written < 2 || s.Read < 4 || s.Rejected != 1 {
		t.Errorf("%+v, %v, %+v", r, err, s)
	}
	b.become(t, "shop", map[string]string{"a": `{"n":2}`, "b": `{"n":1}`})
	b.put(t, "orders", "b", `{"n":3}`)
	b.become(t, "shop", map[string]string{"a": `{"n":2}`, "b": `{"n":3}`})
	if code := live.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, live.err)
	}
}

func TestProjectList(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	r := b.project(t, "ls")
	if r.code != 0 || r.out != "" || !strings.Contains(r.errOut, "no projection has used database "+b.db.Name()) {
		t.Errorf("%+v", r)
	}
	b.ok(t, "", "topics", "create", "orders")
	b.ok(t, "", "topics", "create", "payments")
	b.put(t, "orders", "a", `{"n":1}`, "b", `{"n":1}`)
	live := b.begin(t, "orders", "shop")
	b.become(t, "shop", map[string]string{"a": `{"n":1}`, "b": `{"n":1}`})
	b.until(t, "a row that says running", func() bool {
		return strings.Contains(b.project(t, "ls").out, "shop        shop        orders  2          2         2     0    running")
	})
	if code := live.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, live.err)
	}
	b.put(t, "orders", "c", `{"n":1}`)
	if r := b.project(t, "payments", "--exclusive", "--for", "1s"); r.code != 0 {
		t.Errorf("%+v", r)
	}
	r = b.project(t, "ls", "-o", "ndjson")
	var list []projectedCollection
	for line := range strings.Lines(r.out) {
		var p projectedCollection
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatal(err)
		}
		p.LastAck = nil
		list = append(list, p)
	}
	if len(list) != 2 || r.code != 0 {
		t.Fatalf("%+v", r)
	}
	want := projectedCollection{Collection: "shop", Projection: "shop", Topic: "orders", Stream: "EV_ORDERS", Documents: 2, Position: 2, LastSeq: 3, Lag: 1}
	if diff := cmp.Diff(want, list[1]); diff != "" {
		t.Error(diff)
	}
	b.ok(t, "", "topics", "rm", "orders", "--yes")
	b.shows(t, "topic is gone", b.args("ls")[2:]...)
}

// --for counts from when the projection runs, and not the time that it takes to get there.
func TestProjectFor(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	b.ok(t, "", "topics", "create", "orders")
	if r := b.project(t, "orders", "shop", "--for", "1ms"); r.code != 0 || r.errOut != "" || !strings.HasPrefix(r.out, "orders to collection shop of database ") {
		t.Errorf("%+v", r)
	}
	b.shows(t, "shop", b.args("ls")[2:]...)
}

func TestProjectForPrograms(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	b.ok(t, "", "topics", "create", "orders")
	b.put(t, "orders", "a", `{"n":1}`, "b", `{"n":1}`)
	r := b.begin(t, "orders", "-o", "ndjson")
	r.wait(t, `"lag":{"events":0,`)
	r.end()
	var last projectLine
	for line := range strings.Lines(r.out.String()) {
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	if r.code != 0 || last.Stats.Applied != 2 || last.Lag == nil || last.Lag.Events != 0 || last.Collection != "orders" {
		t.Errorf("exit code %d: %s\n%s", r.code, r.err, r.out)
	}
}

func TestBriefLog(t *testing.T) {
	t.Parallel()
	out := newBuffer()
	log := newBriefLog(out).With(slog.String("projection", "p"))
	for i := range 100 {
		log.LogAttrs(t.Context(), slog.LevelWarn, "refused", slog.Int("seq", i))
	}
	log.LogAttrs(t.Context(), slog.LevelWarn, "something else")
	log.LogAttrs(t.Context(), slog.LevelInfo, "of no interest")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != maxRecords+1 || !strings.Contains(lines[maxRecords-1], "refused (more of these are not shown)") || !strings.Contains(lines[maxRecords-1], "projection=p seq=4") || !strings.Contains(lines[maxRecords], "something else") {
		t.Errorf("%d lines:\n%s", len(lines), out)
	}
}
