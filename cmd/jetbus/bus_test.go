package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
)

// records reads the events that sub -o json printed.
func records(t *testing.T, out string) []jetbus.Event {
	t.Helper()
	var events []jetbus.Event
	for line := range strings.Lines(out) {
		var e jetbus.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		events = append(events, e)
	}
	return events
}

// payloads reads the topic from the start.
func (b *bench) payloads(t *testing.T, topic string) []string {
	t.Helper()
	var list []string
	for _, e := range records(t, b.ok(t, "", "sub", topic, "--no-follow", "-o", "json")) {
		list = append(list, string(e.Payload))
	}
	return list
}

func TestPub(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "orders", "--delays")
	if out := b.ok(t, "", "pub", "orders", `{"id": 7}`, "--key", "k", "--id", "one", "--header", "x-source=shop", "--tag", "new"); out != "orders #1 id=one\n" {
		t.Errorf("printed %q", out)
	}
	if out := b.ok(t, "", "pub", "orders", `{"id": 7}`, "--id", "one"); out != "orders #1 duplicate, nothing stored id=one\n" {
		t.Errorf("printed %q", out)
	}
	b.ok(t, "from stdin\n", "pub", "orders", "-", "--id", "two")
	b.ok(t, "", "pub", "orders", "\xff\x00", "--id", "three")
	b.ok(t, "", "pub", "orders", "--id", "four", "--ttl", "1h")
	if out := b.ok(t, "", "pub", "orders", "1", "--id", "later", "--at", "1h"); out != "orders scheduled id=later\n" {
		t.Errorf("printed %q", out)
	}
	b.ok(t, "", "pub", "orders", "2", "--count", "3")
	var receipt struct {
		ID  string
		Seq uint64
	}
	if err := json.Unmarshal([]byte(b.ok(t, "", "pub", "orders", "3", "-o", "json")), &receipt); err != nil || receipt.ID == "" || receipt.Seq == 0 {
		t.Errorf("receipt %+v, %v", receipt, err)
	}

	events := records(t, b.ok(t, "", "sub", "orders", "--no-follow", "-o", "json"))
	if len(events) != 8 {
		t.Fatalf("%d events, want 8: %v", len(events), events)
	}
	one := events[0]
	if one.ID != "one" || one.Key != "k" || one.Headers["x-source"] != "shop" || one.Tags[0] != "new" || string(one.Payload) != `{"id":7}` {
		t.Errorf("stored %+v", one)
	}
	for i, want := range []string{"application/json", "text/plain; charset=utf-8", "application/octet-stream", "application/json"} {
		if got := events[i].ContentType(); got != want {
			t.Errorf("%s has the content type %s, want %s", events[i].ID, got, want)
		}
	}
	if string(events[1].Payload) != "from stdin\n" || string(events[2].Payload) != "\xff\x00" || len(events[3].Payload) != 0 {
		t.Errorf("payloads %q, %q, %q", events[1].Payload, events[2].Payload, events[3].Payload)
	}
}

// piped is a pipe into which another program has written a text.
func piped(t *testing.T, text string) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
	_ = w.Close() // the reader sees the end, or the test fails
	return r
}

// What another program writes is the payload; a terminal, or none, is not read.
func TestPubFromAPipe(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "orders")
	publish := func(text string, args ...string) (said string) {
		t.Helper()
		var out, errOut bytes.Buffer
		args = append([]string{"--server", b.url, "pub", "orders"}, args...)
		if code := run(t.Context(), args, piped(t, text), &out, &errOut, func(string) string { return "" }); code != 0 {
			t.Errorf("%q: exit code %d: %s", args, code, errOut.String())
		}
		return errOut.String()
	}
	publish(`{"a":1}`)
	publish(`{"b":1}`, "")
	publish(`{"c":1}`, `{"d":1}`)
	publish("one line end\r\n\n") // is left out where nobody says "-"
	publish("as it is\n", "-")
	publish("\xff\n") // no text
	publish("of a type\n", "--content-type", "text/plain")
	if said := publish("1\r\n2\n"); !strings.Contains(said, "several JSON values: use --lines for an event a line\n") {
		t.Errorf("of two lines of JSON it says %q", said)
	}
	if said := publish("3\n4", "--content-type", "application/x-ndjson"); strings.Contains(said, "several") {
		t.Errorf("of lines that are meant as one payload it says %q", said)
	}
	var out, errOut bytes.Buffer
	for _, nothing := range []string{"", "\n"} {
		errOut.Reset()
		code := run(t.Context(), []string{"--server", b.url, "pub", "orders"}, piped(t, nothing), &out, &errOut, func(string) string { return "" })
		if code != exitUsage || errOut.String() != "jetbus: standard input is empty: say '' for an event without a payload; see jetbus pub --help\n" {
			t.Errorf("of a pipe with %q: exit code %d: %s", nothing, code, errOut.String())
		}
	}
	silent, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	errOut.Reset()
	if code := run(interrupted, []string{"--server", b.url, "pub", "orders"}, silent, &out, &errOut, func(string) string { return "" }); code != exitFailure || !strings.Contains(errOut.String(), "interrupted before standard input ended: nothing is published") {
		t.Errorf("interrupted: exit code %d: %s", code, errOut.String())
	}
	_ = writer.Close()
	publish(`{"e":1}`+"\n"+`{"f":1}`+"\n", "--lines")
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if isFed(file) || isFed(strings.NewReader("")) {
		t.Error("a device, or what is no file, is read")
	}
	var got []string
	for _, e := range records(t, b.ok(t, "", "sub", "orders", "--no-follow", "-o", "json")) {
		got = append(got, string(e.Payload))
	}
	if want := []string{`{"a":1}`, "", `{"d":1}`, "one line end\r\n", "as it is\n", "\xff\n", "of a type\n", "1\r\n2", "3\n4", `{"e":1}`, `{"f":1}`}; !slices.Equal(got, want) {
		t.Errorf("stored %q, want %q", got, want)
	}
}

func TestPubLines(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "orders")
	var in strings.Builder
	var want []string
	for i := range 1200 {
		fmt.Fprintf(&in, "{\"n\":%d}\r\n\n", i)
		want = append(want, fmt.Sprintf(`{"n":%d}`, i))
	}
	in.WriteString(`{"last":true}`) // without a line end
	want = append(want, `{"last":true}`)
	if out := b.ok(t, in.String(), "pub", "orders", "--lines"); out != "1,201 events stored in orders, the last is #1201\n" {
		t.Errorf("printed %q", out)
	}
	if d := cmp.Diff(want, b.payloads(t, "orders")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if out := b.ok(t, "", "pub", "orders", "--lines"); out != "0 events stored in orders\n" {
		t.Errorf("printed %q", out)
	}
	b.ok(t, "no json\n", "pub", "orders", "--lines", "--content-type", "text/plain")

	r := b.run(t, "1\n2\nnope\n4\n", "pub", "orders", "--lines")
	if r.code != exitPartial || r.errOut != "jetbus: 2 events stored, then: line 3 is not JSON; correct it, or say what the lines are with --content-type\n" {
		t.Errorf("%+v", r)
	}
	if r := b.run(t, "nope\n", "pub", "orders", "--lines"); r.code != exitFailure {
		t.Errorf("%+v", r)
	}
	if got := b.payloads(t, "orders")[len(want):]; !cmp.Equal(got, []string{"no json", "1", "2"}) {
		t.Errorf("stored %q", got)
	}
}

// A line is stored when it comes, and an interrupt does not wait for the next one.
func TestPubLinesAsTheyCome(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "orders")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	pub := beginReading(t, r, nil, "--server", b.url, "pub", "orders", "--lines", "-o", "json")
	for n := range 2 {
		if _, err := fmt.Fprintln(w, n); err != nil {
			t.Fatal(err)
		}
		pub.wait(t, fmt.Sprintf(`"seq":%d`, n+1))
	}
	if code := pub.end(); code != exitPartial || pub.err.String() != "jetbus: 2 events stored, then: interrupted before standard input ended\n" {
		t.Errorf("exit code %d: %s", code, pub.err)
	}
}

func TestNotFoundAndConflict(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tests := []struct {
		args string
		code int
		want string
	}{
		{"pub nothing 1", exitNotFound, "jetbus topics create"},
		{"sub nothing --no-follow", exitNotFound, "no such topic"},
		{"sub nothing --group g", exitNotFound, "no such topic"},
		{"topics info nothing", exitNotFound, "no such topic"},
		{"topics rm nothing --yes", exitNotFound, "no such topic"},
		{"topics create orders", 0, ""},
		{"topics create orders", 0, ""},
		{"pub orders 1", 0, ""},
		{"topics create orders --key-in-subject", exitConflict, "--key-in-subject is false, not true"},
		{"topics create orders --storage memory", exitConflict, "storage cannot be changed"},
		{"topics create orders --retention 1d", exitConflict, "--retention is 7 days, not 1 day; it would keep less than it does; jetbus topics create --yes allows it"},
		{"topics create orders --discard sometimes", exitUsage, `--discard is "sometimes", use "old" or "new"`},
		{"sub orders --from after=unknown --no-follow", exitNotFound, "pass the sequence"},
		{"pub orders 1 --at 1h", exitFailure, "not supported"},
		{"topics rm orders", exitUsage, "orders has 1 event and 0 groups, which nothing brings back; add --yes"},
		{"topics rm orders --yes -o json", exitUsage, "--output says nothing to jetbus topics rm"},
		{"topics rm orders --yes", 0, ""},
		{"topics info orders", exitNotFound, "no such topic"},
	}
	for _, tt := range tests {
		r := b.run(t, "", strings.Fields(tt.args)...)
		if r.code != tt.code || !strings.Contains(r.errOut, tt.want) || strings.Count(r.errOut, "\n") > 1 {
			t.Errorf("jetbus %s: exit code %d, want %d with one line that says %q, got %q", tt.args, r.code, tt.code, tt.want, r.errOut)
		}
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if r := b.run(t, "", "topics"); r.code != 0 || r.out != "" || !strings.Contains(r.errOut, "there are no topics") {
		t.Errorf("without topics: %+v", r)
	}
	if out := b.ok(t, "", "topics", "-o", "json"); out != "[]\n" {
		t.Errorf("without topics, json: %q", out)
	}
	out := b.ok(t, "", "topics", "create", "orders", "--retention", "48h", "--max-bytes", "1MiB", "--max-events", "100", "--description", "what\nis sold", "--key-in-subject")
	for _, want := range []string{`what\nis sold`, "2 days", "1.0 MiB", "discard old", "Key in subject  yes"} {
		if !strings.Contains(out, want) {
			t.Errorf("create does not say %q:\n%s", want, out)
		}
	}
	for _, line := range []struct{ args, want string }{
		{"log --key-in-subject", "Key in subject  yes"},
		{"state --compact --history 3 --tombstone-ttl 2h", "to 3 of a key, tombstones stay for 2h"},
		{"log.snapshot --snapshot-of log", "Snapshot of     log"},
	} {
		if out := b.ok(t, "", append([]string{"topics", "create"}, strings.Fields(line.args)...)...); !strings.Contains(out, line.want) {
			t.Errorf("create %s does not say %q:\n%s", line.args, line.want, out)
		}
	}
	for _, line := range []struct{ args, want string }{
		{"", "created\n"},
		{"", "unchanged\n"},
		{"--retention 30d --max-events 500 --yes", "retention 7 days -> 30 days\nmax-events none -> 500\n"},
		{"--description sold --discard new", "description \"\" -> \"sold\"\ndiscard old -> new\n"},
		{"--retention 30d", "unchanged\n"},
		{"--max-bytes 1MiB --yes", "max-bytes 10.0 GiB -> 1.0 MiB\n"},
	} {
		if out := b.ok(t, "", append([]string{"topics", "create", "sold"}, strings.Fields(line.args)...)...); !strings.HasPrefix(out, line.want+"Topic ") {
			t.Errorf("create sold %s does not say %q:\n%s", line.args, line.want, out)
		}
	}
	for _, name := range []string{"log.snapshot", "log", "state", "sold"} {
		b.ok(t, "", "topics", "delete", name, "--yes")
	}
	b.ok(t, "", "topics", "create", "bills")
	b.ok(t, "", "pub", "orders", "1", "--count", "5")
	b.ok(t, "", "sub", "orders", "--group", "audit", "--from", "earliest", "--no-follow", "--limit", "3")

	rows := strings.Split(b.ok(t, "", "topics", "ls"), "\n")
	if len(rows) != 4 || !strings.HasPrefix(rows[1], "bills") || !strings.HasPrefix(rows[2], "orders  5 ") {
		t.Errorf("list:\n%s", strings.Join(rows, "\n"))
	}
	var info struct {
		Config struct{ Name string }
		Events int
		Groups int
		List   []struct{ Group string } `json:"groupList"`
	}
	if err := json.Unmarshal([]byte(b.ok(t, "", "topics", "info", "orders", "-o", "json")), &info); err != nil {
		t.Fatal(err)
	}
	if info.Config.Name != "orders" || info.Events != 5 || info.Groups != 1 || len(info.List) != 1 || info.List[0].Group != "audit" {
		t.Errorf("info %+v", info)
	}
	if out := b.ok(t, "", "topics", "info", "orders"); !strings.Contains(out, "audit  3           2 ") {
		t.Errorf("info:\n%s", out)
	}
	if out := b.ok(t, "", "topics", "-o", "ndjson"); strings.Count(out, "\n") != 2 || !json.Valid([]byte(strings.SplitN(out, "\n", 2)[0])) {
		t.Errorf("ndjson:\n%s", out)
	}
	if r := b.run(t, "", "topics", "--prefix", "other"); r.out != "" {
		t.Errorf("another prefix shows %q", r.out)
	}
}

func TestSubRead(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "a")
	b.ok(t, "", "topics", "create", "b")
	for i := range 4 {
		b.ok(t, "", "pub", "a", strconv.Itoa(i), "--key", fmt.Sprintf("k%d", i%2), "--header", fmt.Sprintf("x-n=%d", i), "--id", fmt.Sprintf("id%d", i))
	}
	b.ok(t, "", "pub", "b", `"b"`)
	tests := []struct {
		args string
		want []string
	}{
		{"a", []string{"0", "1", "2", "3"}},
		{"a --limit 2", []string{"0", "1"}},
		{"a --from seq=3", []string{"2", "3"}},
		{"a --from after=id2", []string{"3"}},
		{"a --from ts=1h --filter key=k1", []string{"1", "3"}},
		{"a --filter prefix=k,x-n=2", []string{"2"}},
		{"a --from latest", nil},
		{"b", []string{`"b"`}},
	}
	for _, tt := range tests {
		var got []string
		for _, e := range records(t, b.ok(t, "", append([]string{"sub", "--no-follow", "-o", "json"}, strings.Fields(tt.args)...)...)) {
			got = append(got, string(e.Payload))
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("sub %s (-want +got):\n%s", tt.args, d)
		}
	}
	if got := records(t, b.ok(t, "", "sub", "a", "b", "--no-follow", "-o", "json")); len(got) != 5 {
		t.Errorf("%d events of two topics, want 5", len(got))
	}
}

func TestSubFollows(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "a")
	b.ok(t, "", "pub", "a", `"old"`)
	for _, extra := range [][]string{nil, {"--group", "g"}} {
		r := begin(t, nil, append([]string{"--server", b.url, "sub", "a", "--from", "earliest"}, extra...)...)
		r.wait(t, `"old"`)
		b.ok(t, "", "pub", "a", `"new`+strings.Join(extra, "")+`"`)
		r.wait(t, `"new`+strings.Join(extra, "")+`"`)
		if code := r.end(); code != 0 || r.err.String() != "" {
			t.Errorf("%v: exit code %d, %s", extra, code, r.err)
		}
	}
}

// A member of a group with a limit acknowledges what it printed and nothing else.
func TestSubGroup(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "a")
	b.ok(t, "", "pub", "a", "1", "--count", "10")
	first := b.ok(t, "", "sub", "a", "--group", "g", "--from", "earliest", "--limit", "4", "-o", "json")
	second := b.ok(t, "", "sub", "a", "--group", "g", "--no-follow", "--limit", "3", "-o", "json")
	var seqs []uint64
	for range 60 { // what was given back may be under way when nothing else comes
		second += b.ok(t, "", "sub", "a", "--group", "g", "--no-follow", "-o", "json")
		seqs = nil
		for _, e := range records(t, first+second) {
			seqs = append(seqs, e.Seq)
		}
		if len(seqs) >= 10 {
			break
		}
	}
	if len(seqs) != 10 || !slices.Equal(seqs[:4], []uint64{1, 2, 3, 4}) {
		t.Errorf("the first member was to have 1 to 4, all of them 10: %v", seqs)
	}
	slices.Sort(seqs) // what one member gives back may come to the next one in another order
	if d := cmp.Diff([]uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, seqs); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if out := b.ok(t, "", "topics", "info", "a"); !strings.Contains(out, "g      10          0        0     0") {
		t.Errorf("the server does not have all acknowledged:\n%s", out)
	}
}

func TestHostilePayload(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "a")
	b.ok(t, "\x1b]0;owned\x07\r\nfake line", "pub", "a", "-", "--key", "\u202ekey")
	b.ok(t, "\"\u009b2J\"", "pub", "a", "-")
	text := b.ok(t, "", "sub", "a", "--no-follow")
	if hostile(strings.ReplaceAll(text, "\n", "")) || strings.Count(text, "\n") != 2 {
		t.Errorf("text %q", text)
	}
	out := b.ok(t, "", "sub", "a", "--no-follow", "-o", "json")
	if hostile(strings.ReplaceAll(out, "\n", "")) {
		t.Errorf("json %q", out)
	}
	if got := records(t, out); string(got[0].Payload) != "\x1b]0;owned\x07\r\nfake line" || got[0].Key != "\u202ekey" {
		t.Errorf("json means %+v", got[0])
	}
}

// closedPipe is standard output after head has seen enough.
type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
}

func TestClosedPipeIsQuiet(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "a")
	b.ok(t, "", "pub", "a", "1", "--count", "3")
	for _, args := range []string{"sub a --no-follow", "sub a --from earliest", "sub a --group g --from earliest", "sub a --group h --from earliest --no-follow", "topics", "pub a 2", "topics info a -o json"} {
		var errOut strings.Builder
		code := run(t.Context(), append([]string{"--server", b.url}, strings.Fields(args)...), strings.NewReader(""), closedPipe{}, &errOut, func(string) string { return "" })
		if code != 0 || errOut.Len() > 0 {
			t.Errorf("jetbus %s: exit code %d, %q", args, code, errOut.String())
		}
	}
	if _, err := io.WriteString(closedPipe{}, "x"); exitCode(err) != 0 {
		t.Error("the pipe of this test is not closed")
	}
	// What could not be printed is no failed attempt: the event comes again as it was.
	bus := b.bus(t)
	for _, group := range []string{"g", "h"} {
		for seen := map[uint64]bool{}; len(seen) < 4; {
			list, err := bus.Receive(t.Context(), "a", group, jetbus.ReceiveOptions{Wait: patience})
			if err != nil || len(list) == 0 {
				t.Fatalf("group %s has no more than the events %v: %v", group, seen, err)
			}
			for _, d := range list {
				if seen[d.Seq] = true; d.Attempt != 1 {
					t.Errorf("group %s has event %d as attempt %d", group, d.Seq, d.Attempt)
				}
			}
		}
	}
}
