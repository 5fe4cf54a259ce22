package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

// addressOf is where a line of dev says that something is.
func addressOf(t *testing.T, out, name string) string {
	t.Helper()
	return strings.Fields(lineWith(t, out, name+" "))[1]
}

// processIDs are the keys of the collection of dev.
func processIDs(t *testing.T, c *mongo.Collection, filter bson.D) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var ids []string
	if err := c.Distinct(ctx, "processId", filter).Decode(&ids); err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	return ids
}

// follows waits until dev says that the collection has documents and is not being filled.
func (r *running) follows(t *testing.T) string {
	t.Helper()
	for n := 1; ; n++ {
		out := r.waitTimes(t, " documents lag ", n)
		if regexp.MustCompile(`collection processes [1-9][0-9,]* documents lag [0-9,]+  processes [1-9]`).MatchString(out) {
			return out
		}
	}
}

// The collection has the real processes of this machine. The stand-in forgets it; the
// next start has the same processes again, those that beat no more among them.
func TestDevMongo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := begin(t, nil, "dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--plain")
	out := first.follows(t)
	if !strings.Contains(out, "?replicaSet=rs0  (stand-in for development: no database, in memory)\n") {
		t.Errorf("does not say that the MongoDB is none:\n%s", out)
	}
	b := &mongoBench{bench: &bench{addressOf(t, out, "broker")}, uri: addressOf(t, out, "mongo")}
	b.db = openMongo(t, b.uri).Database(defaultDatabase)
	b.ok(t, "", "pub", processes.DefaultStates, `{"processId":"ghost","name":"ghost","host":"h","status":"stale"}`, "--key", "ghost")
	b.until(t, "the ghost is there", func() bool {
		return slices.Contains(processIDs(t, b.db.Collection(devCollection), mongosink.Live()), "ghost")
	})
	b.shows(t, "processes   processes   process.state  ", b.args("ls")[2:]...)
	alive := processIDs(t, b.db.Collection(devCollection), bson.D{{Key: "status", Value: processes.Alive}, {Key: "pid", Value: bson.D{{Key: "$gt", Value: 0}}}})
	before := processIDs(t, b.db.Collection(devCollection), mongosink.Live())
	if len(alive) == 0 || len(before) <= 1 {
		t.Errorf("no processes: %q", before)
	}
	if code := first.end(); code != 0 || first.complaints() != "" {
		t.Errorf("exit code %d: %s", code, first.err)
	}
	if kept := lineWith(t, first.out.String(), "mongo "); !strings.Contains(kept, " documents in processes") || !strings.Contains(kept, "; the stand-in forgets them") {
		t.Errorf("says %q", kept)
	}

	second := begin(t, nil, "dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--plain")
	out = second.follows(t)
	b.db = openMongo(t, addressOf(t, out, "mongo")).Database(defaultDatabase)
	b.until(t, "the collection has the same processes again", func() bool {
		now := processIDs(t, b.db.Collection(devCollection), mongosink.Live())
		return !slices.ContainsFunc(before, func(id string) bool { return !slices.Contains(now, id) })
	})
	if code := second.end(); code != 0 || second.complaints() != "" {
		t.Errorf("exit code %d: %s", code, second.err)
	}
}

// With a MongoDB that keeps what it has, dev goes on where it was; with another store
// it fills the collection anew.
func TestDevMongoKept(t *testing.T) {
	t.Parallel()
	srv := mongotest.Start(t)
	uri := strings.Replace(srv.URI(), "/?", "/"+srv.Database()+"?", 1)
	c := openMongo(t, uri).Database(srv.Database()).Collection(devCollection)
	dir := t.TempDir()
	for i, dir := range []string{dir, dir, t.TempDir()} {
		r := begin(t, nil, "dev", "--gateway", "0", "--dir", dir, "--listen", "0", "--plain", "--mongo", uri)
		out := r.follows(t)
		if want := "/  database " + srv.Database() + ", collection processes\n"; !strings.Contains(out, want) {
			t.Errorf("does not say %q:\n%s", want, out)
		}
		ghost := slices.Contains(processIDs(t, c, mongosink.Live()), "ghost")
		if want := i == 1; ghost != want {
			t.Errorf("run %d: the document of the first store is there: %v", i, ghost)
		}
		if i == 0 {
			b := &bench{addressOf(t, out, "broker")}
			b.ok(t, "", "pub", processes.DefaultStates, `{"processId":"ghost","name":"ghost","host":"h","status":"stale"}`, "--key", "ghost")
		}
		if code := r.end(); code != 0 || r.complaints() != "" {
			t.Errorf("exit code %d: %s", code, r.err)
		}
	}
}

func TestDevMongoAway(t *testing.T) {
	t.Parallel()
	r := command(t, "", "dev", "--gateway", "0", "--dir", t.TempDir(), "--listen", "0", "--mongo", "mongodb://u:geheim@127.0.0.1:1/?serverSelectionTimeoutMS=200")
	if r.code != exitFailure || !strings.Contains(r.errOut, "no primary answers there") || strings.Contains(r.errOut+r.out, "geheim") {
		t.Errorf("%+v", r)
	}
}
