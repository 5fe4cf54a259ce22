package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// fail lets a group reject so many events of a topic.
func (b *bench) fail(t *testing.T, topic, group, why string, events int) {
	t.Helper()
	nc, err := nats.Connect(b.url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	bus, err := adapter.Open(t.Context(), nc, adapter.Config{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := bus.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	for rejected := 0; rejected < events; {
		ds, err := bus.Receive(t.Context(), topic, group, jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: events - rejected, Wait: patience})
		if err != nil || len(ds) == 0 {
			t.Fatalf("%d events were rejected, not %d: %v", rejected, events, err)
		}
		for _, d := range ds {
			stack := "shop.charge(...)\n\t/app/\u202echarge.go:17"
			if err := d.RejectWith(t.Context(), jetbus.RejectOptions{Reason: why, Stack: stack}); err != nil {
				t.Fatal(err)
			}
			rejected++
		}
	}
}

// deadBench is a bench where mailer could not process three orders, and audit two payments.
func deadBench(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	for _, topic := range []string{"orders", "payments", "quiet"} {
		b.ok(t, "", "topics", "create", topic)
	}
	for i := range 3 {
		b.ok(t, "", "pub", "orders", fmt.Sprintf(`{"n":%d}`, i), "--id", fmt.Sprintf("o%d", i), "--key", "k\u202e", "--header", "x-source=shop")
	}
	b.ok(t, "", "pub", "payments", "1", "--count", "2")
	b.fail(t, "orders", "mailer", "dial tcp 10.0.0.7:25: connection refused", 3)
	b.fail(t, "payments", "audit", "bad amount", 2)
	return b
}

func TestDLQList(t *testing.T) {
	t.Parallel()
	b := deadBench(t)
	if out := b.ok(t, "", "dlq"); out != "TOPIC     DEAD LETTERS\norders    3\npayments  2\n" {
		t.Errorf("topics:\n%s", out)
	}
	if out := b.ok(t, "", "dlq", "ls", "-o", "ndjson"); out != `{"topic":"orders","deadLetters":3}`+"\n"+`{"topic":"payments","deadLetters":2}`+"\n" {
		t.Errorf("topics:\n%s", out)
	}
	out := b.ok(t, "", "dlq", "ls", "orders")
	if rows := strings.Split(out, "\n"); len(rows) != 5 || !strings.HasPrefix(rows[0], "SEQ  GIVEN UP") || !strings.HasPrefix(rows[1], "1 ") ||
		!strings.Contains(rows[1], `mailer  rejected  `) || !strings.Contains(rows[1], `k\u202e  open   dial tcp 10.0.0.7:25: connection refused`) {
		t.Errorf("list:\n%s", out)
	}
	for args, want := range map[string]int{
		"--group mailer": 3, "--group audit": 0, "--reason rejected,schema": 3, "--reason schema": 0, "--since 1h": 3, "--until 1h": 0,
		"--id o1": 1, "--error refused": 3, "--error REFUSED": 0, "--seq 1,3": 2, "--seq #2-9": 2, "--limit 2": 2, "--open": 3, "--key k": 0,
	} {
		out := b.ok(t, "", append([]string{"dlq", "ls", "dlq.orders", "-o", "json"}, strings.Fields(args)...)...)
		var list []jetbus.DeadLetter
		if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != want {
			t.Errorf("dlq ls orders %s: %d, want %d; %v", args, len(list), want, err)
		}
	}
	if r := b.run(t, "", "dlq", "ls", "orders", "--group", "audit"); r.code != 0 || r.out != "" || r.errOut != "no dead letter of orders matches\n" {
		t.Errorf("%+v", r)
	}
	export := b.ok(t, "", "dlq", "export", "orders")
	var d jetbus.DeadLetter
	if err := json.Unmarshal([]byte(strings.SplitN(export, "\n", 2)[0]), &d); err != nil || strings.Count(export, "\n") != 3 || hostile(strings.ReplaceAll(export, "\n", "")) {
		t.Errorf("export: %v\n%s", err, export)
	}
	if d.Event.ID != "o0" || string(d.Event.Payload) != `{"n":0}` || d.Event.Key != "k\u202e" || d.Group != "mailer" || d.Seq != 1 {
		t.Errorf("export gives %+v", d)
	}
}

// A stack, which a client of the gateway chooses, does not look like the payload.
func TestDLQShowOfForgedStack(t *testing.T) {
	t.Parallel()
	d := jetbus.DeadLetter{Stack: "f\n\nPayload:\n{\"n\":2}", Event: jetbus.Event{Payload: []byte(`{"n":1}`)}}
	if out := describeDead(d); strings.Contains(out, "\n{\"n\":2}") || strings.Count(out, "\nPayload:\n") != 1 || !strings.HasSuffix(out, "\nPayload:\n{\"n\":1}\n") {
		t.Errorf("show is\n%s", out)
	}
}

func TestDLQShowAndStats(t *testing.T) {
	t.Parallel()
	b := deadBench(t)
	out := b.ok(t, "", "dlq", "show", "orders", "2")
	for _, want := range []string{"Dead letter      2\n", "Reason           rejected\n", "Event            o1\n", "Topic            orders #2\n", "Header x-source  shop\n", "State            open\n", "\nStack:\n    shop.charge(...)\n        /app/\\u202echarge.go:17\n\nPayload:\n{\"n\":1}\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("show does not say %q:\n%s", want, out)
		}
	}
	var d jetbus.DeadLetter
	if err := json.Unmarshal([]byte(b.ok(t, "", "dlq", "show", "orders", "2", "-o", "json")), &d); err != nil || d.Event.ID != "o1" || d.Stack != "shop.charge(...)\n\t/app/\u202echarge.go:17" {
		t.Errorf("%+v, %v", d, err)
	}
	b.ok(t, "", "dlq", "replay", "orders", "--seq", "2")
	if out := b.ok(t, "", "dlq", "show", "orders", "2"); !strings.Contains(out, "State            replayed 20") {
		t.Errorf("show does not say that it was replayed:\n%s", out)
	}
	out = b.ok(t, "", "dlq", "stats", "orders")
	for _, want := range []string{"Dead letters  3\n", "Open          2\n", "  mailer\n", "  rejected\n", "  dial tcp #: connection refused\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("stats does not say %q:\n%s", want, out)
		}
	}
	var s jetbus.DeadLetterSummary
	if err := json.Unmarshal([]byte(b.ok(t, "", "dlq", "stats", "orders", "-o", "ndjson")), &s); err != nil || s.Total != 3 || s.Open != 2 || len(s.Groups) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestDLQReplay(t *testing.T) {
	t.Parallel()
	b := deadBench(t)
	steps := []struct {
		stdin, args, out string
		code             int
		errOut           string
	}{
		{"", "orders --dry-run", "3 events would be replayed\n", 0, ""},
		{"", "orders --limit 1 --rate 1000", "1 event replayed\n", 0, ""},
		{"", "orders", "2 events replayed, 1 replayed before\n", 0, ""},
		{"", "orders", "0 events replayed, 3 replayed before\n", 0, ""},
		{"", "orders --force", "", exitUsage, "3 events of orders would be replayed to their groups; type their number to go on: \njetbus: not confirmed, nothing was changed; type 3"},
		{"2\n", "orders --force", "", exitUsage, "not confirmed"},
		{"3\n", "orders --force", "3 events replayed\n", 0, "type their number"},
		{"1\n", "orders --to-topic quiet --id o2 -o json", "{\n  \"read\": 3,\n  \"matched\": 1,\n  \"replayed\": 1,\n  \"already\": 0,\n  \"guarded\": 0,\n  \"failed\": 0,\n  \"lastSeq\": 3\n}\n", 0, "1 event of orders would be replayed to quiet, for all its groups"},
		{"", "orders --to-topic nothing --yes", "", exitNotFound, "no such topic"},
		{"", "orders --group nobody", "", exitNotFound, "no such dead letters: none of 3 matches; jetbus dlq lists"},
		{"", "quiet", "", exitNotFound, "no such dead letters"},
		{"", "nothing", "", exitNotFound, "no such dead letters"},
	}
	for _, s := range steps {
		r := b.run(t, s.stdin, append([]string{"dlq", "replay"}, strings.Fields(s.args)...)...)
		if r.code != s.code || r.out != s.out || !strings.Contains(r.errOut, s.errOut) || s.errOut == "" && r.errOut != "" {
			t.Errorf("dlq replay %s: %+v, want %d, %q and %q", s.args, r, s.code, s.out, s.errOut)
		}
	}
	if got := b.payloads(t, "quiet"); !cmp.Equal(got, []string{`{"n":2}`}) {
		t.Errorf("published to a topic: %q", got)
	}
	b.fail(t, "orders", "mailer", "still refused", 6) // three replays and three by force
	if out := b.ok(t, "", "dlq", "stats", "orders"); !strings.Contains(out, "still refused") {
		t.Errorf("what was replayed did not reach the group:\n%s", out)
	}
}

func TestDLQReplayPartly(t *testing.T) {
	t.Parallel()
	b := deadBench(t)
	b.fail(t, "orders", "audit", "refused", 3)
	nc, err := nats.Connect(b.url, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	bus, err := adapter.Open(t.Context(), nc, adapter.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Close(context.WithoutCancel(t.Context()))
	if err := bus.DeleteGroup(t.Context(), "orders", "audit"); err != nil {
		t.Fatal(err)
	}
	r := b.run(t, "", "dlq", "replay", "orders")
	if r.code != exitPartial || r.out != "3 events replayed, 3 failed\n" || !strings.Contains(r.errOut, "3 of 6 failed: dead letter 6 of audit: ") || strings.Count(r.errOut, "\n") != 1 {
		t.Errorf("%+v", r)
	}
	r = b.run(t, "", "dlq", "replay", "orders", "--group", "audit")
	if r.code != exitNotFound || r.out != "0 events replayed, 3 failed\n" || !strings.Contains(r.errOut, "no such group") {
		t.Errorf("%+v", r)
	}
}

// late is standard input at whose first reading something happens.
type late struct {
	io.Reader
	happen func()
	once   sync.Once
}

func (l *late) Read(p []byte) (int, error) {
	l.once.Do(l.happen)
	return l.Reader.Read(p)
}

// What comes while somebody makes up their mind is not what they confirm.
func TestDLQConfirmed(t *testing.T) {
	t.Parallel()
	b := deadBench(t)
	n := 2
	happen := func() {
		n++
		b.ok(t, "", "pub", "orders", "1", "--id", fmt.Sprintf("o%d", n))
		b.fail(t, "orders", "mailer", "no", 1)
	}
	for _, c := range []struct{ args, number, want string }{
		{"replay orders --force", "3", "3 events replayed\n"},
		{"replay orders --to-topic quiet", "4", "4 events replayed\n"},
		{"purge orders", "5", "removed 5 dead letters of orders\n"},
	} {
		var out, errOut bytes.Buffer
		in := &late{Reader: strings.NewReader(c.number + "\n"), happen: happen}
		code := run(t.Context(), append([]string{"--server", b.url, "dlq"}, strings.Fields(c.args)...), in, &out, &errOut, func(string) string { return "" })
		if code != 0 || out.String() != c.want {
			t.Errorf("%s: exit code %d, %q, %q", c.args, code, out.String(), errOut.String())
		}
	}
	if out := b.ok(t, "", "dlq", "ls", "orders", "-o", "ndjson"); strings.Count(out, "\n") != 1 {
		t.Errorf("left:\n%s", out)
	}
}

// deadSeqs are the positions of the dead letters of orders.
func (b *bench) deadSeqs(t *testing.T) []string {
	t.Helper()
	var seqs []string
	for line := range strings.Lines(b.ok(t, "", "dlq", "ls", "orders", "-o", "ndjson")) {
		var d jetbus.DeadLetter
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, strconv.FormatUint(d.Seq, 10))
	}
	return seqs
}

// What comes does not take the place of what somebody else took away of what was counted.
func TestDLQConfirmedNotReplaced(t *testing.T) {
	t.Parallel()
	b := deadBench(t)
	n, newest := 2, ""
	happen := func() {
		b.ok(t, "", "dlq", "purge", "orders", "--yes", "--seq", b.deadSeqs(t)[0])
		n++
		b.ok(t, "", "pub", "orders", "1", "--id", fmt.Sprintf("o%d", n))
		b.fail(t, "orders", "mailer", "no", 1)
		seqs := b.deadSeqs(t)
		newest = seqs[len(seqs)-1]
	}
	for _, c := range []struct{ args, want string }{
		{"replay orders --force", "2 events replayed\n"},
		{"replay orders --to-topic quiet", "2 events replayed\n"},
		{"purge orders", "removed 2 dead letters of orders\n"},
	} {
		var out, errOut bytes.Buffer
		in := &late{Reader: strings.NewReader("3\n"), happen: happen}
		code := run(t.Context(), append([]string{"--server", b.url, "dlq"}, strings.Fields(c.args)...), in, &out, &errOut, func(string) string { return "" })
		if code != 0 || out.String() != c.want {
			t.Errorf("%s: exit code %d, %q, %q", c.args, code, out.String(), errOut.String())
		}
	}
	if left := b.deadSeqs(t); !slices.Equal(left, []string{newest}) {
		t.Errorf("left are %q, not %q alone, which came last", left, newest)
	}
}

// Of many dead letters those that were not counted stay as they are, however the command is limited.
func TestDLQLimitConfirmed(t *testing.T) {
	t.Parallel()
	b := deadBench(t)
	b.ok(t, "", "pub", "orders", "1", "--id", "o3")
	b.fail(t, "orders", "mailer", "no", 1)
	left := b.deadSeqs(t)
	for _, c := range []struct{ args, want string }{
		{"replay orders --force --limit 1", "no such dead letters: none of 3 matches"},
		{"replay orders --to-topic quiet --limit 1", "no such dead letters: none of 2 matches"},
		{"purge orders --limit 1", "no such dead letters: none matches"},
	} {
		var out, errOut bytes.Buffer
		in := &late{Reader: strings.NewReader("1\n"), happen: func() {
			b.ok(t, "", "dlq", "purge", "orders", "--yes", "--seq", left[0])
			left = left[1:]
		}}
		code := run(t.Context(), append([]string{"--server", b.url, "dlq"}, strings.Fields(c.args)...), in, &out, &errOut, func(string) string { return "" })
		if code != exitNotFound || out.String() != "" || !strings.Contains(errOut.String(), c.want) {
			t.Errorf("%s: exit code %d, %q, %q", c.args, code, out.String(), errOut.String())
		}
		if open := strings.Count(b.ok(t, "", "dlq", "ls", "orders", "--open", "-o", "ndjson"), "\n"); open != len(left) {
			t.Errorf("%s: %d dead letters were not replayed, want %d", c.args, open, len(left))
		}
	}
	if now := b.deadSeqs(t); !slices.Equal(now, left) {
		t.Errorf("left are %q, not %q", now, left)
	}
}

// What is in a stream of dead letters that was made anew is not what was counted in the old one,
// although it has the same positions.
func TestDLQMadeAnewMeanwhile(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"replay orders --force", "replay orders --to-topic quiet", "purge orders"} {
		b := deadBench(t)
		happen := func() {
			b.request(t, "$JS.API.STREAM.DELETE.EV_DLQ", "")
			b.ok(t, "", "pub", "orders", "1", "--count", "3")
			b.fail(t, "orders", "mailer", "no", 3)
		}
		var out, errOut bytes.Buffer
		in := &late{Reader: strings.NewReader("3\n"), happen: happen}
		code := run(t.Context(), append([]string{"--server", b.url, "dlq"}, strings.Fields(args)...), in, &out, &errOut, func(string) string { return "" })
		if code != exitNotFound || out.String() != "" || !strings.Contains(errOut.String(), "dlq.orders was made anew at 20") {
			t.Errorf("%s: exit code %d, %q, %q", args, code, out.String(), errOut.String())
		}
		if open := b.ok(t, "", "dlq", "ls", "orders", "--open", "-o", "ndjson"); strings.Count(open, "\n") != 3 {
			t.Errorf("%s: of three new dead letters these are left as they were:\n%s", args, open)
		}
	}
}

// Who is asked may say no by an interrupt, which does not wait for a line.
func TestConfirmInterrupted(t *testing.T) {
	t.Parallel()
	b := deadBench(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	purge := beginReading(t, r, nil, "--server", b.url, "dlq", "purge", "orders")
	purge.waitIn(t, purge.err, "type their number", 1)
	if code := purge.end(); code != exitFailure || !strings.Contains(purge.err.String(), "nothing was changed") {
		t.Errorf("exit code %d: %s", code, purge.err)
	}
	if out := b.ok(t, "", "dlq", "ls", "orders", "-o", "ndjson"); strings.Count(out, "\n") != 3 {
		t.Errorf("left:\n%s", out)
	}
}

func TestDLQPurge(t *testing.T) {
	t.Parallel()
	b := deadBench(t)
	if r := b.run(t, "", "dlq", "purge", "orders"); r.code != exitUsage || !strings.Contains(r.errOut, "3 dead letters of orders would be removed") || !strings.Contains(r.errOut, "add --yes") {
		t.Errorf("%+v", r)
	}
	if r := b.run(t, "1\n", "dlq", "purge", "orders", "--seq", "2"); r.code != 0 || r.out != "removed 1 dead letter of orders\n" {
		t.Errorf("%+v", r)
	}
	if out := b.ok(t, "", "dlq", "purge", "orders", "--yes"); out != "removed 2 dead letters of orders\n" {
		t.Errorf("%s", out)
	}
	for _, yes := range []string{"--yes", "--open"} {
		if r := b.run(t, "", "dlq", "purge", "orders", yes); r.code != exitNotFound || !strings.Contains(r.errOut, "no such dead letters") {
			t.Errorf("%+v", r)
		}
	}
	if out := b.ok(t, "", "dlq"); out != "TOPIC     DEAD LETTERS\npayments  2\n" {
		t.Errorf("left:\n%s", out)
	}
}

// lend hands out a dead letter and returns where its payload is, as long as that is kept.
//
//go:noinline
func lend(seq uint64, yield func(jetbus.DeadLetter, error) bool) weak.Pointer[byte] {
	payload := make([]byte, 64<<10)
	at := weak.Make(&payload[0])
	yield(jetbus.DeadLetter{Seq: seq, Event: jetbus.Event{Payload: payload}}, nil)
	return at
}

// Payloads that a table does not show are not kept for it.
func TestDeadRowsKeepNoPayload(t *testing.T) {
	t.Parallel()
	letters := func(yield func(jetbus.DeadLetter, error) bool) {
		for seq := range uint64(3) {
			at := lend(seq+1, yield)
			runtime.GC()
			if at.Value() != nil {
				t.Errorf("the payload of dead letter %d is kept", seq+1)
			}
		}
	}
	rows, err := collectDead(letters, deadRow)
	if err != nil || len(rows) != 3 || rows[2][0] != "3" {
		t.Errorf("%q, %v", rows, err)
	}
}

func TestDLQWithout(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if r := b.run(t, "", "dlq"); r.code != 0 || r.out != "" || r.errOut != "there are no dead letters\n" {
		t.Errorf("%+v", r)
	}
	if out := b.ok(t, "", "dlq", "ls", "-o", "json"); out != "[]\n" {
		t.Errorf("%s", out)
	}
	for _, args := range []string{"ls orders", "stats orders", "show orders 1", "replay orders", "purge orders --yes", "export orders"} {
		if r := b.run(t, "", append([]string{"dlq"}, strings.Fields(args)...)...); r.code != exitNotFound || !strings.Contains(r.errOut, "no such dead letters") || strings.Count(r.errOut, "\n") != 1 {
			t.Errorf("dlq %s: %+v", args, r)
		}
	}
}

func TestDLQUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"rn":                            `dlq has no command "rn"`,
		"ls Bad":                        "invalid topic",
		"ls a b":                        "2 arguments given",
		"ls a -o yaml":                  `--output "yaml"`,
		"purge a -o json":               "--output says nothing to jetbus dlq purge",
		"export a -o json":              "--output says nothing to jetbus dlq export",
		"ls a --since never":            `--since: "never" is no time`,
		"ls a --seq 0":                  `--seq "0"`,
		"ls a --seq 9-3":                `--seq "9-3"`,
		"ls a --seq 1-9999999":          "at most 10,000",
		"ls a --seq 1-9000,10000-19000": "at most 10,000",
		"ls --group mailer":             "--group selects dead letters of one topic: name it, jetbus dlq ls TOPIC",
		"ls -o json --limit 2":          "--limit selects dead letters of one topic",
		"ls --open":                     "--open selects dead letters of one topic",
		"ls a --limit -1":               `"--limit" flag: use 1 or more`,
		"ls a --group x/y":              "invalid group",
		"show a x":                      `"x" is no position`,
		"show a 1-2":                    `"1-2" is no position`,
		"stats dlq.dlq.a":               "invalid topic",
		"replay a --rate -1":            "Rate is -1",
		"replay a --to-topic dlq.a":     "holds dead letters",
		"replay":                        "0 arguments given",
		"purge a --since 1h --until 2h": "selects nothing",
		"export a --reason":             "flag needs an argument",
	} {
		r := command(t, "", append([]string{"dlq"}, strings.Fields(args)...)...)
		if r.code != exitUsage || !strings.Contains(r.errOut, want) || strings.Count(r.errOut, "\n") != 1 || r.out != "" {
			t.Errorf("jetbus dlq %s: %+v, want one line that says %q", args, r, want)
		}
	}
	for _, args := range []string{"dlq -h", "dlq ls -h", "dlq show -h", "dlq stats -h", "dlq replay -h", "dlq purge -h", "dlq export -h"} {
		if r := command(t, "", strings.Fields(args)...); r.code != 0 || !strings.Contains(r.out, "Examples:") {
			t.Errorf("jetbus %s: %+v", args, r)
		}
	}
}
