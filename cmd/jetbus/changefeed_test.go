package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// feed is a command line of changefeed for the bench.
func (b *mongoBench) feed(args ...string) []string {
	return append([]string{"--server", b.url, "changefeed"}, append(args, "--mongo", b.uri, "--database", b.db.Name())...)
}

func (b *mongoBench) insert(t *testing.T, collection string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if _, err := b.db.Collection(collection).InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}}); err != nil {
			t.Fatal(err)
		}
	}
}

// ops waits until a topic holds these changes: "insert a, delete a, drop".
func (b *mongoBench) ops(t *testing.T, topic, want string) {
	t.Helper()
	got := ""
	defer func() {
		if t.Failed() {
			t.Logf("topic %s holds %s, want %s", topic, got, want)
		}
	}()
	b.until(t, "the topic holds "+want, func() bool {
		var list []string
		for e, err := range b.bus.Scan(t.Context(), topic, jetbus.ScanQuery{}) {
			if errors.Is(err, jetbus.ErrNoTopic) {
				return false // the feed will declare it
			}
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, strings.TrimSpace(e.Headers[changefeed.HeaderOp]+" "+e.Key))
		}
		got = strings.Join(list, ", ")
		return got == want
	})
}

func TestChangefeedRun(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	b.insert(t, "orders", "a", "b")
	r := begin(t, nil, b.feed("run", "--collection", "orders", "--topic", "orders.changed", "--start", "copy")...)
	r.wait(t, "3 published  2 copied")
	b.insert(t, "orders", "c")
	r.wait(t, "streaming  4 published  2 copied  lag ")
	if code := r.end(); code != 0 || r.err.String() != "" {
		t.Errorf("exit code %d: %s", code, r.err)
	}
	out := r.out.String()
	if !strings.HasPrefix(out, "collection "+b.db.Name()+".orders to orders.changed, as orders-changed, mode chain\n") || !strings.Contains(out[strings.LastIndex(strings.TrimSpace(out), "\n"):], "stopped  4 published") {
		t.Errorf("printed\n%s", out)
	}
	b.insert(t, "orders", "d")
	again := begin(t, nil, b.feed("run", "--collection", "orders", "--topic", "orders.changed", "-o", "ndjson")...)
	b.ops(t, "orders.changed", "copy a, copy b, copied, insert c, insert d")
	again.wait(t, `"published":1`)
	again.end()
	var last feedLine
	for line := range strings.Lines(again.out.String()) {
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
	}
	if again.code != 0 || last.Stats.Published != 1 || last.Status.State != changefeed.Stopped || last.Feed != "orders-changed" || last.Topic != "orders.changed" || last.Source != b.db.Name()+".orders" || last.Status.Token == "" {
		t.Errorf("exit code %d, the last line is %+v", again.code, last)
	}
	if got := command(t, "", b.feed("run", "--collection", "orders", "--topic", "orders.changed", "--for", "100ms")...); got.code != 0 {
		t.Errorf("--for: %+v", got)
	}
	// Two of them: one stands by.
	first := begin(t, nil, b.feed("run", "--collection", "orders", "--topic", "orders.changed")...)
	first.wait(t, "streaming")
	second := begin(t, nil, b.feed("run", "--collection", "orders", "--topic", "orders.changed")...)
	second.wait(t, "standby")
	if code := first.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, first.err)
	}
	second.wait(t, "streaming")
}

func TestChangefeedSelects(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	some := begin(t, nil, b.feed("run", "--topic", "some", "--ops", "insert,delete", "--filter", `{"ns.coll": {"$ne": "tmp"}}`)...)
	some.wait(t, "all of database "+b.db.Name()+" to some, as some")
	some.wait(t, "streaming")
	b.insert(t, "tmp", "x")
	b.insert(t, "orders", "a")
	if _, err := b.db.Collection("orders").UpdateByID(t.Context(), "a", bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 1}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.db.Collection("orders").DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}); err != nil {
		t.Fatal(err)
	}
	if err := b.db.Collection("orders").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.ops(t, "some", "insert orders/a, delete orders/a, drop")
	if code := some.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, some.err)
	}
}

const feedText = `{
	"collection": "orders", "topic": "orders.changed", "name": "shop", "start": "copy", "ops": ["insert"],
	"filter": {"operationType": {"$ne": "rename"}}, "fullDocument": "default", "before": "off", "expanded": false, "format": "canonical",
	"mode": "serial", "tokenStore": "mongo", "lease": "20s", "allowLoop": true,
	"onHistoryLost": "resync", "onInvalidate": "fail", "onOversize": "dlq", "onPoison": "skip", "onMissing": "skip"
}`

func TestChangefeedFile(t *testing.T) {
	t.Parallel()
	s, err := parseFeedSpec([]byte(feedText))
	if err != nil || s.check("shop") != nil {
		t.Fatal(err, s.check("shop"))
	}
	o := s.options()
	want := changefeed.Options{
		Name: "shop", Database: "shop", Collection: "orders", Topic: "orders.changed", Mode: changefeed.Serial, FullDocument: changefeed.NoDocument,
		Before: changefeed.BeforeOff, Format: changefeed.Canonical, LeaseTTL: 20 * time.Second, AllowLoop: true,
		OnHistoryLost: changefeed.Resync, OnInvalidate: changefeed.Fail, OnOversize: changefeed.DeadLetter, OnPoison: changefeed.Skip, OnMissing: changefeed.Skip,
		Start: changefeed.FromCopy(), Pipeline: o.Pipeline,
	}
	if diff := cmp.Diff(want, o, cmp.AllowUnexported(changefeed.StartPoint{}), cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })); diff != "" || len(o.Pipeline) != 2 {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for text, want := range map[string]string{
		``:                      "unexpected end of JSON input",
		`[]`:                    "the value is an array",
		`{"topics": "a"}`:       `unknown member "topics"`,
		`{} {}`:                 "after top-level value",
		`{"start": "sometime"}`: "use latest, copy, a time like",
		`{"lease": "soon"}`:     "is no duration",
		`{"filter": 1}`:         "",
	} {
		if _, err := parseFeedSpec([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}

	b := newMongoBench(t)
	b.insert(t, "orders", "a")
	name := filepath.Join(t.TempDir(), "feed.json")
	if err := os.WriteFile(name, []byte(strings.Replace(feedText, "{", `{"database": "`+b.db.Name()+`",`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	r := begin(t, nil, "--server", b.url, "changefeed", "run", "--mongo", b.uri, "--file", name)
	b.ops(t, "orders.changed", "copy a, copied")
	r.wait(t, "as shop, mode serial")
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
}

// FuzzFeedSpec looks for a file that is taken and then cannot be used.
func FuzzFeedSpec(f *testing.F) {
	f.Add(feedText)
	f.Add(`{"topic": "a", "start": "2026-01-02T15:04:05Z", "filter": {"$or": [{"ns.coll": "a"}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseFeedSpec([]byte(text))
		if err != nil || s.check("shop") != nil {
			return
		}
		if _, err := s.options().Normalize(); err != nil {
			t.Errorf("taken, and not valid: %v", err)
		}
	})
}

func TestChangefeedRefused(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	b.ok(t, "", "topics", "create", "others")
	b.put(t, "others", "a", "1")
	b.ok(t, "", "topics", "create", "shared", "--stream", "SHARED")
	r := begin(t, nil, b.feed("run", "--collection", "orders", "--topic", "orders.changed")...)
	r.wait(t, "streaming")
	b.insert(t, "orders", "a")
	b.ops(t, "orders.changed", "insert a")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--collection", "orders", "--topic", "others"}, exitConflict, "the topic has events of somebody else"},
		{[]string{"--collection", "orders", "--topic", "others"}, exitConflict, "name another topic with --topic"},
		{[]string{"--collection", "else", "--topic", "orders.changed"}, exitConflict, "give this one another --name"},
		{[]string{"--collection", "orders", "--topic", "shared", "--mode", "chain"}, exitFailure, "in a stream into which others write"},
	} {
		got := command(t, "", b.feed(append([]string{"run", "--for", "1m"}, c.args...)...)...)
		if got.code != c.code || !strings.Contains(got.errOut, c.want) {
			t.Errorf("%q: %+v, want code %d and %q", c.args, got, c.code, c.want)
		}
	}
	// One that cannot go on says why, and what to do.
	ended := begin(t, nil, b.feed("run", "--collection", "gone", "--topic", "gone", "--on-invalidate", "fail")...)
	ended.wait(t, "streaming")
	b.insert(t, "gone", "a")
	if err := b.db.Collection("gone").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-ended.done
	if text := ended.err.String(); ended.code != exitFailure || !strings.Contains(text, "jetbus: ") || !strings.Contains(text, "was dropped or renamed") || !strings.Contains(text, "start it with --on-invalidate continue") {
		t.Errorf("ended with code %d: %s", ended.code, text)
	}
	alone, err := mongod.Start(t.Context(), mongod.Config{Standalone: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(alone.Stop)
	got := command(t, "", "--server", b.url, "changefeed", "run", "--mongo", alone.URI(), "--collection", "a", "--topic", "a")
	if got.code != exitFailure || !strings.Contains(got.errOut, "not in a replica set") || !strings.Contains(got.errOut, "initiate one") {
		t.Errorf("standalone: %+v", got)
	}
}

func TestChangefeedWrong(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "feed.json")
	if err := os.WriteFile(name, []byte(`{"topic": "a", "ops": ["insert"], "format": "xml"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) []string {
		return append([]string{"run", "--mongo", "mongodb://u:geheim@127.0.0.1:1/shop", "--collection", "c", "--topic", "a"}, args...)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"follow"}, `changefeed has no command "follow"`},
		{[]string{"run"}, "name the topic with --topic, such as orders.changed"},
		{[]string{"run", "--collection", "bills"}, "name the topic with --topic, such as bills.changed"},
		{[]string{"run", "--topic", "a"}, "name the MongoDB with --mongo or MONGODB_URI"},
		{run("x"), "1 argument given"},
		{run("--topic", "A b"), "invalid topic"},
		{run("--topic", "dlq.a"), "holds dead letters"},
		{run("--name", "a b"), `--name is "a b", use 1 to 64 letters`},
		{run("--database", "admin"), `--database is "admin", which has no change streams`},
		{run("--collection", "system.x"), `--collection is "system.x", which has no change streams`},
		{run("--ops", "insert,upsert"), `--ops "upsert": use some of insert, update, replace, delete`},
		{run("--filter", "x"), "no JSON object"},
		{run("--filter", `{"fullDocument.x": 1}`), "--filter: invalid option: $match on fullDocument.x: only operationType and ns can be matched on the server; documents can be selected in a program"},
		{run("--start", "sometime"), "use latest, copy, a time like 2026-01-02T15:04:05Z, or the _data of a resume token"},
		{run("--full-document", "all"), `--full-document is "all", use one of`},
		{run("--before", "all"), `--before is "all", use one of`},
		{run("--format", "xml"), `--format is "xml", use one of`},
		{run("--mode", "fast"), `--mode is "fast", use one of`},
		{run("--on-history-lost", "x"), `--on-history-lost is "x", use one of`},
		{run("--on-invalidate", "x"), `--on-invalidate is "x", use one of`},
		{run("--on-oversize", "x"), `--on-oversize is "x", use one of`},
		{run("--on-poison", "x"), `--on-poison is "x", use one of`},
		{run("--on-missing", "x"), `--on-missing is "x", use one of`},
		{run("--lease", "soon"), "use 15s or 1m"},
		{run("--lease", "1s"), "--lease is 1s, use at least 3s"},
		{run("--token-store", "disk"), `--token-store "disk": use keys or mongo`},
		{run("--collection", "", "--token-store", "mongo"), "would publish its own position, as it watches the whole database: use keys"},
		{run("--collection", "changefeed_tokens", "--token-store", "mongo"), "would publish its own position: use keys"},
		{run("--for", "-1s"), "--for -1s: use more than 0"},
		{run("-o", "xml"), `--output "xml"`},
		{run("--file", name), "--file describes the whole feed: write --collection into it"},
		{[]string{"run", "--file", name}, `--format is "xml"`},
		{[]string{"run", "--file", name + "x"}, "--file: "},
		{[]string{"status", "a", "b"}, "2 arguments given"},
		{[]string{"status", "-o", "xml"}, `--output "xml"`},
		{[]string{"status", "--token-store", "disk"}, `--token-store "disk": use keys or mongo`},
		{[]string{"status", "--token-store", "mongo"}, "name the MongoDB with --mongo"},
		{[]string{"reset"}, "0 arguments given"},
		{[]string{"reset", "a", "--topic", "b"}, "--collection and --topic go with --start"},
		{[]string{"reset", "a", "--start", "x"}, "use latest, copy, a time"},
		{[]string{"reset", "a", "--start", "copy"}, "name the MongoDB with --mongo"},
	} {
		r := command(t, "", append([]string{"changefeed"}, c.args...)...)
		if r.code != exitUsage || !strings.Contains(r.errOut, c.want) || strings.Count(r.errOut, "\n") != 1 || r.out != "" || strings.Contains(r.errOut, "geheim") {
			t.Errorf("%q: %+v, want %q", c.args, r, c.want)
		}
	}
	for _, args := range []string{"", "run", "status", "reset"} {
		if r := command(t, "", append(append([]string{"changefeed"}, strings.Fields(args)...), "--help")...); r.code != 0 || !strings.Contains(r.out, "Examples:") {
			t.Errorf("changefeed %s --help: %+v", args, r)
		}
	}
}

func TestChangefeedStatus(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	if r := b.run(t, "", "changefeed", "status"); r.code != 0 || r.out != "" || !strings.Contains(r.errOut, "this bus knows of no change feed; start one with jetbus changefeed run") {
		t.Errorf("nothing: %+v", r)
	}
	if r := b.run(t, "", "changefeed", "status", "-o", "json"); r.out != "[]\n" {
		t.Errorf("nothing: %+v", r)
	}
	if r := b.run(t, "", "changefeed", "status", "nope"); r.code != exitNotFound || !strings.Contains(r.errOut, "no such change feed: nope") || !strings.Contains(r.errOut, "see jetbus changefeed status") {
		t.Errorf("no such feed: %+v", r)
	}
	r := begin(t, nil, b.feed("run", "--collection", "orders", "--topic", "orders.changed")...)
	r.wait(t, "streaming")
	quiet := begin(t, nil, b.feed("run", "--collection", "quiet", "--topic", "quiet.changed", "--token-store", "mongo")...)
	quiet.wait(t, "streaming")
	b.insert(t, "orders", "a")
	b.ops(t, "orders.changed", "insert a")
	table := b.ok(t, "", "changefeed", "status")
	if !regexp.MustCompile(`(?m)^orders-changed  +`+b.db.Name()+`\.orders  +orders\.changed  +#1  .* running  +[0-9a-f-]{36}$`).MatchString(table) ||
		!regexp.MustCompile(`(?m)^quiet-changed  +-  +-  +-  +-  +-  +running`).MatchString(table) {
		t.Errorf("status:\n%s", table)
	}
	if out := b.ok(t, "", b.feed("status", "--token-store", "mongo", "quiet-changed")[2:]...); !strings.Contains(out, b.db.Name()+".quiet  quiet.changed") {
		t.Errorf("status of the positions in MongoDB:\n%s", out)
	}
	for _, r := range []*running{r, quiet} {
		if code := r.end(); code != 0 {
			t.Errorf("exit code %d: %s", code, r.err)
		}
	}
	// Programs rely on these names.
	values := regexp.MustCompile(`"82[0-9A-F]+"|"20[0-9T:.\-]+Z"|[0-9]+$`)
	out := strings.ReplaceAll(b.ok(t, "", "changefeed", "status", "orders-changed", "-o", "json"), b.db.Name(), "shop")
	var got []string
	for line := range strings.Lines(out) {
		got = append(got, values.ReplaceAllString(strings.TrimRight(line, "\n"), "*"))
	}
	want := `[
  {
    "feed": "orders-changed",
    "source": "shop.orders",
    "state": "stopped",
    "saved": {
      "token": *,
      "time": *,
      "topic": "orders.changed",
      "saved": *
    },
    "topics": [
      {
        "topic": "orders.changed",
        "seq": 1,
        "published": *,
        "token": *,
        "time": *
      }
    ],
    "position": *,
    "lagMs": *
  }
]`
	if diff := cmp.Diff(want, strings.Join(got, "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestChangefeedReset(t *testing.T) {
	t.Parallel()
	b := newMongoBench(t)
	b.ok(t, "", "topics", "create", "orders.changed") // with the window of 2 minutes, in which nothing is stored again
	run := b.feed("run", "--collection", "orders", "--topic", "orders.changed")
	r := begin(t, nil, run...)
	r.wait(t, "streaming")
	b.insert(t, "orders", "a")
	b.ops(t, "orders.changed", "insert a")
	if got := b.run(t, "", "changefeed", "reset", "orders-changed", "--yes"); got.code != exitConflict || !strings.Contains(got.errOut, "an instance of the feed is running: ") || !strings.Contains(got.errOut, "stop it first") {
		t.Errorf("reset of one that runs: %+v", got)
	}
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}
	if got := b.run(t, "", "changefeed", "reset", "nope", "--yes"); got.code != exitNotFound {
		t.Errorf("reset of nothing: %+v", got)
	}
	b.insert(t, "orders", "b")

	// What would happen, and then that it does.
	got := b.run(t, "", "changefeed", "reset", "orders-changed")
	if got.code != exitUsage || got.out != "" || !strings.Contains(got.errOut, "forgets its saved position in "+b.db.Name()+".orders") ||
		!strings.Contains(got.errOut, "it goes on behind event #1 of orders.changed") || !strings.Contains(got.errOut, "add --yes to do it") {
		t.Errorf("preview: %+v", got)
	}
	if out := b.ok(t, "", "changefeed", "status"); !strings.Contains(out, b.db.Name()+".orders") {
		t.Errorf("after the preview:\n%s", out)
	}
	if out := b.ok(t, "", "changefeed", "reset", "orders-changed", "--yes"); strings.Count(out, "\n") != 2 || !strings.HasPrefix(out, "feed orders-changed forgets its saved position") {
		t.Errorf("reset:\n%s", out)
	}
	r = begin(t, nil, append(run, "--start", "latest")...) // the topic says more
	b.ops(t, "orders.changed", "insert a, insert b")
	r.wait(t, "streaming")
	if code := r.end(); code != 0 {
		t.Errorf("exit code %d: %s", code, r.err)
	}

	b.insert(t, "orders", "c")
	if got := command(t, "", b.feed("reset", "orders-changed", "--start", "copy", "--yes")...); got.code != exitConflict || !strings.Contains(got.errOut, "which would not be stored again: reset it in ") {
		t.Errorf("reset within the duplicate window: %+v", got)
	}
	if got := command(t, "", b.feed("reset", "orders-changed", "--start", "latest")...); got.code != exitUsage || !strings.Contains(got.errOut, "it goes on from latest of "+b.db.Name()+".orders, behind a gap event in orders.changed") {
		t.Errorf("preview: %+v", got)
	}
	var done resetDone
	if err := json.Unmarshal([]byte(command(t, "", b.feed("reset", "orders-changed", "--start", "latest", "--yes", "-o", "json")...).out), &done); err != nil || done.Feed != "orders-changed" || done.Start != "latest" || done.Token == "" {
		t.Errorf("reset: %+v, %v", done, err)
	}
	b.ops(t, "orders.changed", "insert a, insert b, gap")
	if out := b.ok(t, "", "changefeed", "status"); !strings.Contains(out, b.db.Name()+".orders  orders.changed  #3") {
		t.Errorf("after the reset:\n%s", out)
	}
	r = begin(t, nil, run...)
	r.wait(t, "streaming")
	b.insert(t, "orders", "d")
	b.ops(t, "orders.changed", "insert a, insert b, gap, insert d")

	// A feed that the bus has not heard of is described by the flags.
	if got := command(t, "", b.feed("reset", "new", "--start", "copy", "--yes")...); got.code != exitUsage || !strings.Contains(got.errOut, "name it with --topic") {
		t.Errorf("without a topic: %+v", got)
	}
	if got := b.run(t, "", "changefeed", "reset", "new", "--start", "copy", "--yes", "--mongo", b.uri); got.code != exitUsage || !strings.Contains(got.errOut, "say it with --database and --collection") {
		t.Errorf("without a database: %+v", got)
	}
	if got := command(t, "", b.feed("reset", "new", "--start", "copy", "--collection", "orders", "--topic", "new", "--yes")...); got.code != 0 {
		t.Errorf("reset: %+v", got)
	}
	begin(t, nil, b.feed("run", "--collection", "orders", "--topic", "new")...)
	b.ops(t, "new", "copy a, copy b, copy c, copy d, copied")
}
