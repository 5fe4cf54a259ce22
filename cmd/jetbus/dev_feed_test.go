package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/projector/processes"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// log is what a topic holds.
func (b *bench) log(t *testing.T, topic string) []jetbus.Event {
	t.Helper()
	return records(t, b.ok(t, "", "sub", topic, "--no-follow", "-o", "json"))
}

// states folds the last payload of each key of a topic; what is deleted is left out.
func states(events []jetbus.Event) map[string]string {
	last := map[string]string{}
	for _, e := range events {
		switch {
		case e.IsTombstone():
			delete(last, e.Key)
		case e.Key != "":
			last[e.Key] = string(e.Payload)
		}
	}
	return last
}

// notYet are the keys whose last state is newer than all that the changes are of.
func notYet(t *testing.T, states, changes []jetbus.Event) (keys []string) {
	t.Helper()
	newest := uint64(0)
	for _, e := range changes {
		if text := e.Headers[headerStateSeq]; text != "" {
			seq, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			newest = max(newest, seq)
		}
	}
	for _, e := range states {
		if e.Seq > newest && e.Key != "" {
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// controls are the operations of a topic that are about no document.
func controls(events []jetbus.Event) (ops []string) {
	for _, e := range events {
		if e.Key == "" {
			ops = append(ops, e.Headers[changefeed.HeaderOp])
		}
	}
	return ops
}

// devBench is a bench for a dev that runs.
func devBench(t *testing.T, r *running) *mongoBench {
	t.Helper()
	out := r.follows(t)
	return &mongoBench{bench: &bench{addressOf(t, out, "broker")}, uri: addressOf(t, out, "mongo")}
}

// onCollection runs f on the collection of a dev that runs, and disconnects: a client that
// outlives the server looks for it for half a minute.
func (b *mongoBench) onCollection(t *testing.T, f func(c *mongo.Collection) error) {
	t.Helper()
	client, err := mongo.Connect(options.Client().ApplyURI(b.uri))
	if err != nil {
		t.Fatal(err)
	}
	err = f(client.Database(defaultDatabase).Collection(devCollection))
	if err := errors.Join(err, client.Disconnect(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// The circle closes: a state becomes a document, and the document an event again.
func TestDevFeed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := begin(t, nil, "dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--plain")
	b := devBench(t, r)
	ghost := func(op string) jetbus.Event {
		var found jetbus.Event
		b.until(t, "the ghost's change is there: "+op, func() bool {
			for _, e := range b.log(t, devChanged) {
				if e.Key == "ghost" && e.Headers[changefeed.HeaderOp] == op {
					found = e
				}
			}
			return found.Seq > 0
		})
		return found
	}
	const state = `{"processId":"ghost","name":"ghost","host":"h","status":"stale"}`
	b.ok(t, "", "pub", processes.DefaultStates, state, "--key", "ghost")
	e := ghost("insert")
	if string(e.Payload) != state || e.Headers[headerStateSeq] == "" || e.Headers["x-schema-version"] != "1" {
		t.Errorf("the state %s came around as %+v", state, e)
	}
	b.ok(t, "", "pub", processes.DefaultStates, "null", "--key", "ghost")
	b.until(t, "the ghost is gone", func() bool { return states(b.log(t, devChanged))["ghost"] == "" })

	// What follows no schema gets nowhere, and holds up nothing.
	for _, topic := range []string{processes.DefaultHeartbeats, processes.DefaultStates} {
		b.ok(t, "", "pub", topic, `{"pid":-1}`, "--key", "bad")
	}
	b.onCollection(t, func(c *mongo.Collection) error {
		_, err := c.InsertOne(t.Context(), bson.M{"_id": "bad", "pid": -1})
		return err
	})
	for _, topic := range []string{processes.DefaultHeartbeats, processes.DefaultStates, devChanged} {
		b.until(t, "the dead letter of "+topic, func() bool {
			dead := b.run(t, "", "sub", "dlq."+topic, "--no-follow", "-o", "json")
			return dead.code == 0 && strings.Contains(dead.out, `"x-dlq-reason":"schema"`)
		})
		b.shows(t, topic+" ", "schema", "ls")
	}
	b.ok(t, "", "pub", processes.DefaultStates, state, "--key", "ghost")
	b.until(t, "the feed goes on", func() bool { return states(b.log(t, devChanged))["ghost"] == state })
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
	if said := lineWith(t, r.out.String(), "feed "); !strings.Contains(said, " events published in processes.changed, 1 dead letter; the next start") {
		t.Errorf("says %q", said)
	}

	// Nor is a collection filled with it.
	r = begin(t, nil, "dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--plain")
	b = devBench(t, r)
	n := int64(0)
	b.onCollection(t, func(c *mongo.Collection) (err error) {
		n, err = c.CountDocuments(t.Context(), bson.M{"_id": bson.M{"$in": bson.A{"bad", "ghost"}}})
		return err
	})
	if code := r.end(); n != 1 || code != 0 {
		t.Errorf("%d of bad and ghost are there, want the ghost; exit code %d: %s", n, code, r.err)
	}
}

// A stand-in forgets the collection: the topic goes on with a gap and a copy, however
// often, and says the same as the states in the end.
func TestDevFeedForgotten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := []string{"copied"}
	for n := range 3 {
		r := begin(t, nil, "dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--plain")
		b := devBench(t, r)
		b.until(t, "the copy is complete", func() bool { return cmp.Equal(want, controls(b.log(t, devChanged))) })
		forgot := strings.Contains(r.out.String(), "feed    the stand-in forgot the collection")
		if forgot != (n > 0) {
			t.Errorf("start %d says that the stand-in forgot: %v", n, forgot)
		}
		if code := r.end(); code != 0 || r.complaints() != "" {
			t.Errorf("exit code %d: %s", code, r.err)
		}
		want = append(want, "gap", "copied")
	}
	r := begin(t, nil, "serve", "--dir", dir, "--listen", "0")
	line, _, _ := strings.Cut(r.wait(t, "\n"), "\n")
	b := &bench{strings.TrimPrefix(line, "ready ")}
	changes := b.log(t, devChanged)
	was := b.log(t, processes.DefaultStates)
	wants, got := states(was), states(changes)
	for _, key := range notYet(t, was, changes) { // dev does not wait long for them at its end
		delete(wants, key)
		delete(got, key)
	}
	if diff := cmp.Diff(wants, got); diff != "" || len(got) == 0 {
		t.Errorf("%d changes are not what the states are:\n%s", len(got), diff)
	}
	var last changefeed.Token
	seen := map[string]bool{}
	for _, e := range changes {
		token := changefeed.Token(e.Headers[changefeed.HeaderToken])
		if token.Compare(last) < 0 || seen[e.ID] {
			t.Errorf("event %d, %s, is there twice or out of order", e.Seq, e.ID)
		}
		last, seen[e.ID] = token, true
	}
}

// In a MongoDB that keeps what it has the feed goes on where it was; in another one the
// topic begins anew, since positions of the one mean nothing in the other.
func TestDevMongoFeedKept(t *testing.T) {
	t.Parallel()
	srv := mongotest.Start(t)
	to := []string{"--mongo", strings.Replace(srv.URI(), "/?", "/"+srv.Database()+"?", 1)}
	dir := t.TempDir()
	first := func(mongo ...string) string {
		r := begin(t, nil, append([]string{"dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--plain"}, mongo...)...)
		b := &mongoBench{bench: &bench{addressOf(t, r.follows(t), "broker")}}
		var log []jetbus.Event
		b.until(t, "the copy is complete, and there is no gap", func() bool {
			log = b.log(t, devChanged)
			return cmp.Equal([]string{"copied"}, controls(log)) && len(log) > 1
		})
		if code := r.end(); code != 0 || r.complaints() != "" {
			t.Errorf("exit code %d: %s", code, r.err)
		}
		return log[0].ID
	}
	one := first(to...)
	if again := first(to...); again != one {
		t.Errorf("the topic began with %s, and now with %s", one, again)
	}
	other := first()
	if back := first(to...); other == one || back == one || back == other {
		t.Errorf("the topic began with %s, in another MongoDB with %s, and back with %s", one, other, back)
	}
}

// Without a feed dev does all the rest: with a MongoDB that has no change streams, and
// where somebody else has published in the feed's topic.
func TestDevWithoutFeed(t *testing.T) {
	t.Parallel()
	srv, err := mongod.Start(t.Context(), mongod.Config{Standalone: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	r := begin(t, nil, "dev", "--gateway", "0", "--dir", t.TempDir(), "--listen", "0", "--plain", "--mongo", srv.URI())
	r.wait(t, "s (failed)  collection processes")
	if code := r.end(); code != 0 || !strings.Contains(r.err.String(), "no change feed") || !strings.Contains(r.out.String(), "it ended: change feed processes-") {
		t.Errorf("exit code %d: %s\n%s", code, r.err, r.out)
	}

	dir := t.TempDir()
	for range 2 {
		r = begin(t, nil, "dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--plain")
		b := devBench(t, r)
		b.ok(t, "", "pub", devChanged, "{}")
		r.wait(t, "s (failed)  collection processes")
		if code := r.end(); code != 0 || !strings.Contains(r.err.String(), changefeed.ErrForeign.Error()) {
			t.Errorf("exit code %d: %s", code, r.err)
		}
	}
}

func TestStateChanged(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, doc, want, seq string
	}{
		{"a state", `{"_id":"h:a:1","processId":"h:a:1","pid":1,"cpu_pct":2.0,"last_seen_ts":{"$numberLong":"1700000000000"},"_seq":{"$numberLong":"7"},"_ts":{"$date":"2026-01-01T00:00:00Z"},"_src":"EV_PROCESS_STATE"}`, `{"processId":"h:a:1","pid":1,"cpu_pct":2.0,"last_seen_ts":1700000000000}`, "7"},
		{"a deleted key", `{"_id":"h:a:1","_seq":{"$numberLong":"8"},"_deleted":true}`, `null`, "8"},
		{"what somebody else wrote", `{"_id":"x","pid":"no"}`, `{"pid":"no"}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d bson.D
			if err := bson.UnmarshalExtJSON([]byte(tt.doc), false, &d); err != nil {
				t.Fatal(err)
			}
			doc, err := bson.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			e := jetbus.Event{Headers: map[string]string{}}
			if err := stateChanged(&changefeed.Change{Op: "insert", FullDocument: doc}, &e); err != nil {
				t.Fatal(err)
			}
			if string(e.Payload) != tt.want || e.Headers[headerStateSeq] != tt.seq {
				t.Errorf("payload %s of state %q, want %s of %q", e.Payload, e.Headers[headerStateSeq], tt.want, tt.seq)
			}
		})
	}
	e := jetbus.Event{Payload: []byte("null")}
	if err := stateChanged(&changefeed.Change{Op: "delete"}, &e); err != nil || string(e.Payload) != "null" {
		t.Errorf("a delete became %s, %v", e.Payload, err)
	}
}

// The schemas are those of the types.
func TestDevSchemas(t *testing.T) {
	t.Parallel()
	heartbeat, state := processes.Heartbeat{PID: 1, Name: "n", Host: "h", CPUPct: 1.5, MemMB: 2, SID: "s"},
		processes.Process{ProcessID: "p", Name: "n", Host: "h", PID: 1, SID: "s", CPUPct: 1.5, MemMB: 2, LastSeen: 3, Status: processes.Alive}
	for _, tt := range []struct {
		name, schema string
		value        any
		ok           bool
	}{
		{"a heartbeat", heartbeatSchema, heartbeat, true},
		{"the least heartbeat", heartbeatSchema, processes.Heartbeat{Name: "n", Host: "h"}, true},
		{"a heartbeat of nobody", heartbeatSchema, processes.Heartbeat{PID: 1}, false},
		{"a state", stateSchema, state, true},
		{"a state of no process", stateSchema, processes.Process{Status: processes.Alive}, false},
		{"a state that is none", stateSchema, map[string]string{"processId": "p", "name": "n", "host": "h", "status": "dead"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := schema.Compile(tt.schema, schema.Options{})
			if err != nil {
				t.Fatal(err)
			}
			text, err := json.Marshal(tt.value)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(text); (err == nil) != tt.ok {
				t.Errorf("%s: %v", text, err)
			}
		})
	}
}

func TestAwaitSecondAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(250 * time.Millisecond)
		now := time.Now()
		for _, tt := range []struct {
			name   string
			second time.Time
			want   time.Duration
		}{
			{"no position", time.Time{}, 0},
			{"a second that is over", now.Truncate(time.Second).Add(-time.Second), 0},
			{"the clock was set back", now.Add(time.Hour), 0},
			{"this second", now.Truncate(time.Second), 750 * time.Millisecond},
		} {
			if err := awaitSecondAfter(t.Context(), tt.second); err != nil || time.Since(now) != tt.want {
				t.Errorf("%s: waited %v, want %v: %v", tt.name, time.Since(now), tt.want, err)
			}
		}
	})
}

func TestForgetful(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	log := slog.New(forgetful{slog.NewTextHandler(&text, nil)})
	lost := fmt.Errorf("read: %w", mongo.CommandError{Code: codeHistoryLost, Message: "lost"})
	log.Warn("ended", slog.Any("error", lost))
	log.Warn("ended", slog.String("feed", "f"), slog.Any("error", errors.New("another")))
	log.Warn("nothing wrong")
	if got := text.String(); strings.Contains(got, "lost") || strings.Count(got, "\n") != 2 || !strings.Contains(got, "another") {
		t.Errorf("logged %s", got)
	}
}

func TestPictureOfFeed(t *testing.T) {
	t.Parallel()
	p := picture{feed: feedState{topic: devChanged, published: 1234, lag: 3 * time.Second, state: changefeed.Reconnecting}}
	if line := p.line(); !strings.Contains(line, "  feed processes lag 3s (reconnecting)  processes 0 alive") {
		t.Errorf("line %q", line)
	}
	if text := strings.Join(p.screen(80, 24), "\n"); !strings.Contains(text, "processes.changed               1,234         3s  reconnecting") {
		t.Errorf("the screen does not show the feed:\n%s", text)
	}
	p.feed.state = changefeed.Streaming
	if line := p.line(); !strings.Contains(line, "  feed processes lag 3s  processes 0 alive") {
		t.Errorf("line %q", line)
	}
}
