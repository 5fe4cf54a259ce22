package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// An error at the terminal is one operation, what it is about, why it failed, and what to do, in
// the words of the command.
func TestErrorTexts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.ok(t, "", "topics", "create", "orders")
	const declare = "; see jetbus topics, or declare it with jetbus topics create"
	for _, c := range []struct{ args, want string }{
		{"pub nosuch 1", "publish nosuch: no such topic" + declare},
		{"sub nosuch", "read nosuch: no such topic" + declare},
		{"sub orders nosuch --no-follow", "read orders, nosuch: topic nosuch: no such topic" + declare},
		{"sub nosuch --group g", "subscribe nosuch/g: no such topic" + declare},
		{"topics info nosuch", "topic info nosuch: no such topic" + declare},
		{"topics rm nosuch", "delete topic nosuch: no such topic; see jetbus topics"},
		{"topics rm nosuch --yes", "delete topic nosuch: no such topic; see jetbus topics"},
		{"groups partitions orders g", "partitions of orders/g: the topic has no partitions; declare another one with --partitions; see jetbus topics create --help"},
		{
			"dlq ls orders",
			"dead letters of orders: no such dead letters: there are none; jetbus dlq lists the topics that have some, and jetbus dlq ls those of one",
		},
		{"topics create q --replicas 9", "ensure topic q: invalid option: --replicas is 9, use 1 to 5"},
		{
			"topics create q --replicas 3",
			"ensure topic q: replicas need a cluster, and this server is alone; leave out --replicas, or connect to a cluster",
		},
		{
			"topics create q --compact --tombstone-ttl 1500ms",
			"ensure topic q: invalid option: --tombstone-ttl is 1.5s, use whole seconds from 1s to 3,650 days",
		},
		{
			"topics create q --delays --max-bytes 1GiB",
			"ensure topic q: invalid option: --delays excludes limits, and --max-bytes is 1073741824 and --max-events -1: " +
				"a full topic would drop events that wait for their time; use -1 for both; that is --max-bytes -1 --max-events -1",
		},
		{"topics create dlq.orders", "ensure topic dlq.orders: invalid topic: dead letters are kept by the bus itself; see Config.DeadLetterRetention"},
		{"topics create q --snapshot-of nosuch", "ensure topic q: a snapshot of nosuch: no such topic" + declare},
		{"topics create orders --partitions 4", "topic orders exists with other settings: --partitions is 0, not 4; what a topic is cannot be changed; delete the topic first"},
		{
			"topics create orders --retention 1h --max-bytes 1MiB",
			"topic orders exists with other settings: --retention is 7 days, not 1h, --max-bytes is 10.0 GiB, not 1.0 MiB; it would keep less than it does; jetbus topics create --yes allows it",
		},
	} {
		if r := b.run(t, "", strings.Fields(c.args)...); r.code == 0 || r.errOut != "jetbus: "+c.want+"\n" {
			t.Errorf("jetbus %s: exit code %d\nprinted %swant    jetbus: %s", c.args, r.code, r.errOut, c.want)
		}
	}
}

// What two settings differ by is shown, however little it is.
func TestConflictWords(t *testing.T) {
	for _, c := range []struct{ given, want jetbus.Difference }{
		{jetbus.Difference{Field: "Retention", Have: "none", Want: "2h0m0s"}, jetbus.Difference{Field: "--retention", Have: "none", Want: "2h"}},
		{jetbus.Difference{Field: "DuplicateWindow", Have: "-1ns", Want: "2m0s"}, jetbus.Difference{Field: "--duplicate-window", Have: "none", Want: "2m"}},
		{jetbus.Difference{Field: "MaxBytes", Have: "1048577", Want: "1048576"}, jetbus.Difference{Field: "--max-bytes", Have: "1048577", Want: "1048576"}},
		{jetbus.Difference{Field: "MaxEvents", Have: "100000", Want: "1"}, jetbus.Difference{Field: "--max-events", Have: "100,000", Want: "1"}},
		{jetbus.Difference{Field: "Stream", Have: "", Want: "S"}, jetbus.Difference{Field: "--stream", Have: "none", Want: "S"}},
		{jetbus.Difference{Field: "its snapshot", Have: "s", Want: "gone"}, jetbus.Difference{Field: "its snapshot", Have: "s", Want: "gone"}},
	} {
		if got := differenceWords(c.given); got != c.want {
			t.Errorf("%+v in words: %+v, want %+v", c.given, got, c.want)
		}
	}
	group := &jetbus.ConflictError{What: "group a/g", Differences: []jetbus.Difference{{Field: "Partitions", Have: "each", Want: "none"}}}
	if got := conflictWords(group); got != group.Error() {
		t.Errorf("of a group: %s", got)
	}
}

// Each setting that is named in an error has its flag, and what is the user's stays as it is.
func TestTopicWords(t *testing.T) {
	output := ""
	flags := newTopicsCreate(nil, &output).Flags()
	for field, flag := range topicFields {
		if name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), " "); flags.Lookup(name) == nil {
			t.Errorf("%s: there is no %s", field, flag)
		}
	}
	for text, want := range map[string]string{
		`Stream is "Orders \" Stream 1m0s": Streams have none`:                   `--stream is "Orders \" Stream 1m0s": Streams have none`,
		"TopicConfig.Delays needs it; see Config.DeadLetterRetention":            "--delays needs it; see Config.DeadLetterRetention",
		"topic sla.15m0s of up-1h0m0s has Retention 1m0s":                        "topic sla.15m0s of up-1h0m0s has --retention 1m",
		"SnapshotOf excludes Compact, Stream and Subject":                        "--snapshot-of excludes --compact and --stream",
		"DuplicateWindow is 2h0m0s, use at most Retention (1m0s), or DiscardNew": "--duplicate-window is 2h, use at most --retention (1m), or --discard new",
	} {
		err := fmt.Errorf("%w: %s", jetbus.ErrInvalidOption, text)
		if got := topicError(err).Error(); got != "invalid option: "+want {
			t.Errorf("%s: got %s", text, got)
		}
	}
}

// What a system, a library or a server says is told by what it means, and can be asked for.
func TestErrorsOfOthers(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "user.creds")
	_, noFile := os.Stat(missing)
	noHost := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "foo", IsNotFound: true}}
	noPort := &net.OpError{Op: "listen", Net: "tcp", Err: &net.DNSError{Err: "unknown port", Name: "tcp/bar", IsNotFound: true}}
	late := &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	for _, c := range []struct {
		err, is error
		want    string
	}{
		{fileError(noFile), fs.ErrNotExist, "there is no file " + missing},
		{connectError(noHost), noHost, "there is no host foo; name another with --server"},
		{connectError(late), late, "no server answers there in time; name another with --server, or wait longer with --timeout"},
		{connectError(nats.ErrTimeout), nats.ErrTimeout, "no server answers there in time; name another with --server, or wait longer with --timeout"},
		{connectError(nats.ErrAuthorization), jetbus.ErrDenied, "permission denied by the broker"},
		{connectError(nats.ErrAuthorization), nats.ErrAuthorization, "permission denied by the broker"},
		{addressError(noPort, "foo:bar"), noPort, "foo:bar is no address to listen on: use host:port, or a port"},
		{addressError(noHost, "foo:80"), noHost, "listen on foo:80: there is no host foo"},
	} {
		if c.err.Error() != c.want || !errors.Is(fmt.Errorf("x: %w", c.err), c.is) {
			t.Errorf("%q, want %q, which is %v", c.err, c.want, c.is)
		}
	}
	if r := command(t, "", "topics", "--creds", missing); r.code != exitUsage || !strings.HasPrefix(r.errOut, "jetbus: --creds: there is no file "+missing+"; see ") {
		t.Errorf("%+v", r)
	}
}
