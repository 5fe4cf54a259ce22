package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/partition"
)

// parse reads what a command printed for programs.
func parse[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// fields are the words of a table's line.
func fields(text string, line int) []string {
	lines := strings.Split(text, "\n")
	if line >= len(lines) {
		return nil
	}
	return strings.Fields(lines[line])
}

func TestGroups(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	bus := b.bus(t)
	if r := b.run(t, "", "groups"); r.code != 0 || r.out != "" || !strings.Contains(r.errOut, "no groups") {
		t.Errorf("groups without any: %+v", r)
	}
	b.ok(t, "", "topics", "create", "plain")
	b.ok(t, "", "topics", "create", "spread", "--partitions", "4")
	publish := func(topic string, n int) {
		for i := range n {
			b.ok(t, "", "pub", topic, "1", "--key", string(rune('a'+i)))
		}
	}
	late := jetbus.Event{Topic: "plain", Key: "z", Time: time.Now().Add(-time.Hour)} // it waits since it was stored
	if _, err := bus.Publish(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	publish("plain", 2)
	publish("spread", 5)
	got, err := bus.Receive(t.Context(), "plain", "slow", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 1, AckTimeout: 10 * time.Minute})
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	o := jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: jetbus.PerKey}
	if err := bus.JoinPartitions(t.Context(), "spread", "idle", o); err != nil {
		t.Fatal(err)
	}
	sub, err := partition.Subscribe(t.Context(), bus, "spread", "busy", func(context.Context, *jetbus.Delivery) error { return nil },
		partition.SubscribeOptions{PerPartition: o, Member: "mailer-0", Meta: map[string]string{"zone": "eu", "host": "h 1\u202e"}, JoinDelay: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sub.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	awaitSettled(t, bus, "spread", "busy")
	t.Run("ls", func(t *testing.T) { groupsListed(t, b) })
	t.Run("lag", func(t *testing.T) { lagTold(t, b) })
	t.Run("describe", func(t *testing.T) { groupDescribed(t, b) })
	t.Run("partitions", func(t *testing.T) { partitionsListed(t, b) })
	t.Run("kick", func(t *testing.T) { memberKicked(t, b) })
	if err := got[0].Ack(t.Context()); err != nil {
		t.Error(err)
	}
}

// awaitSettled waits until a group by partition is done with all there is, and each
// partition has somebody.
func awaitSettled(t *testing.T, bus *adapter.Bus, topic, group string) {
	t.Helper()
	late := time.After(2 * time.Minute)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		lines, err := partition.Status(t.Context(), bus, "", topic, group)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(lines, func(l jetbus.PartitionStatus) bool { return l.Member == "" || l.Pending > 0 || l.Held > 0 }) {
			return
		}
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("not settled: %+v", lines)
		}
	}
}

// TestGroupsCreate declares a group again and again.
func TestGroupsCreate(t *testing.T) {
	b := newBench(t)
	b.ok(t, "", "topics", "create", "a")
	b.ok(t, "", "pub", "a", "{}")
	for _, step := range []struct{ flags, want string }{
		{"--from earliest --ack-timeout 1m", "created\n"},
		{"", "unchanged\n"},
		{"--from latest --ack-timeout 10s", "unchanged\n"},
		{"--ack-timeout 2m --max-in-flight 5 --inactive 7d", "ack-timeout 1m -> 2m\nmax-in-flight 10,000 -> 5\ninactive none -> 7 days\n"},
		{"--inactive none", "inactive 7 days -> none\n"},
	} {
		if got := b.ok(t, "", append([]string{"groups", "create", "a", "g"}, strings.Fields(step.flags)...)...); got != step.want {
			t.Errorf("%s: %q, want %q", step.flags, got, step.want)
		}
	}
	if g := parse[jetbus.GroupInfo](t, b.ok(t, "", "groups", "create", "a", "g", "-o", "json")); g.Pending != 1 || g.AckTimeout != 2*time.Minute || g.MaxInFlight != 5 {
		t.Errorf("%+v", g)
	}
	for _, c := range []struct {
		args string
		code int
	}{
		{"a", exitUsage}, {"a g --from middle", exitUsage}, {"a g --inactive 59s", exitUsage}, {"a g*", exitUsage}, {"b g", exitNotFound},
	} {
		if r := b.run(t, "", append([]string{"groups", "create"}, strings.Fields(c.args)...)...); r.code != c.code || r.errOut == "" {
			t.Errorf("%s: %+v, want %d", c.args, r, c.code)
		}
	}
}

func groupsListed(t *testing.T, b *bench) {
	all := parse[[]jetbus.GroupInfo](t, b.ok(t, "", "groups", "ls", "-o", "json"))
	var names []string
	for _, g := range all {
		names = append(names, g.Topic+"/"+g.Group)
	}
	if got := strings.Join(names, " "); got != "plain/slow spread/busy spread/idle" {
		t.Errorf("groups %s", got)
	}
	out := b.ok(t, "", "groups", "ls", "spread")
	if strings.Count(out, "\n") != 3 || fields(out, 0)[0] != "TOPIC" || strings.Join(fields(out, 2)[:4], " ") != "spread idle 0 5" {
		t.Errorf("the table: %s", out)
	}
	if r := b.run(t, "", "groups", "ls", "nothing"); r.code != exitNotFound {
		t.Errorf("a topic that is not there: %+v", r)
	}
	if r := b.run(t, "", "groups", "kick", "spread", "idle", "a", "-o", "json"); r.code != exitUsage || !strings.Contains(r.errOut, "--output says nothing to jetbus groups kick") {
		t.Errorf("an output of what says it in words: %+v", r)
	}
	if r := b.run(t, "", "groups", "-o", "xml"); r.code != exitUsage {
		t.Errorf("an output that is none: %+v", r)
	}
}

func lagTold(t *testing.T, b *bench) {
	lags := map[string]groupLag{}
	for _, l := range parse[[]groupLag](t, b.ok(t, "", "groups", "lag", "-o", "json")) {
		lags[l.Group] = l
	}
	slow, busy, idle := lags["slow"], lags["busy"], lags["idle"]
	if slow.Events != 3 || slow.Seconds <= 0 || slow.Seconds > 1800 || slow.AckedSeq != 0 || slow.LastSeq != 3 {
		t.Errorf("slow: %+v", slow)
	}
	if busy.Events != 0 || busy.Seconds != 0 || busy.AckedSeq != 5 {
		t.Errorf("busy: %+v", busy)
	}
	if idle.Events != 5 || idle.Seconds <= 0 || idle.LastSeq != 5 {
		t.Errorf("idle: %+v", idle)
	}
	out := b.ok(t, "", "groups", "lag", "plain")
	if row := fields(out, 1); len(row) < 4 || row[1] != "slow" || row[2] != "3" || row[3] == "-" {
		t.Errorf("the table: %s", out)
	}
	if lines := strings.Count(b.ok(t, "", "groups", "lag", "-o", "ndjson"), "\n"); lines != 3 {
		t.Errorf("%d lines", lines)
	}
}

func groupDescribed(t *testing.T, b *bench) {
	d := parse[groupDescription](t, b.ok(t, "", "groups", "describe", "spread", "busy", "-o", "json"))
	if d.Group.Group != "busy" || d.Stream != "EV_SPREAD" || d.Assignment == nil || len(d.Assignment.Generations) != 1 || len(d.Assignment.Generations[0].Members) != 1 {
		t.Errorf("%+v", d)
	}
	out := b.ok(t, "", "groups", "describe", "spread", "busy")
	if !strings.Contains(out, "P1.0 P1.1 P1.2 P1.3") || !strings.Contains(out, "mailer-0") || !strings.Contains(out, "Ack timeout") {
		t.Errorf("%s", out)
	}
	if out := b.ok(t, "", "groups", "describe", "plain", "slow"); strings.Contains(out, "MEMBER") || !strings.Contains(out, "Held") {
		t.Errorf("%s", out)
	}
	if d := parse[groupDescription](t, b.ok(t, "", "groups", "describe", "spread", "busy", "--bucket", "elsewhere", "-o", "json")); d.Assignment != nil {
		t.Errorf("members in a bucket where they are not: %+v", d.Assignment)
	}
	if r := b.run(t, "", "groups", "describe", "plain", "nobody"); r.code != exitNotFound {
		t.Errorf("a group that is not there: %+v", r)
	}
	if r := b.run(t, "", "groups", "describe", "plain", "a b"); r.code != exitUsage {
		t.Errorf("a group that cannot be: %+v", r)
	}
}

func partitionsListed(t *testing.T, b *bench) {
	for _, l := range parse[[]jetbus.PartitionStatus](t, b.ok(t, "", "groups", "partitions", "spread", "busy", "-o", "json")) {
		if !l.Owned || l.Member != "mailer-0" || l.Meta["zone"] != "eu" || l.Epoch == 0 || l.LagEvents > 0 || l.LagSeconds != 0 {
			t.Errorf("%s: %q says %q: epoch %d, lag %d", l.Name, l.Member, l.Meta, l.Epoch, l.LagEvents)
		}
	}
	var pending uint64
	for _, l := range parse[[]jetbus.PartitionStatus](t, b.ok(t, "", "groups", "partitions", "spread", "idle", "-o", "json")) {
		pending += l.Pending
		if l.Owned || l.Member != "" || l.Pending != l.LagEvents || (l.Pending > 0) != (l.LagSeconds > 0) {
			t.Errorf("%s: %q, lag %d, %v s", l.Name, l.Member, l.LagEvents, l.LagSeconds)
		}
	}
	if pending != 5 {
		t.Errorf("%d pending", pending)
	}
	out := b.ok(t, "", "groups", "partitions", "spread", "busy")
	if row := fields(out, 4); len(row) < 2 || row[0] != "P1.3" || row[1] != "mailer-0" || !strings.Contains(out, `  host=h 1\u202e zone=eu`) {
		t.Errorf("the table: %s", out)
	}
	if out := b.ok(t, "", "groups", "partitions", "spread", "idle"); !strings.HasSuffix(out, "-\n") {
		t.Errorf("the table: %s", out)
	}
	if r := b.run(t, "", "groups", "partitions", "plain", "slow"); r.code != exitConflict {
		t.Errorf("a topic without partitions: %+v", r)
	}
	if r := b.run(t, "", "groups", "partitions", "spread", "nobody"); r.code != exitNotFound {
		t.Errorf("a group that is not there: %+v", r)
	}
}

func memberKicked(t *testing.T, b *bench) {
	if r := b.run(t, "3\n", "groups", "kick", "spread", "busy", "mailer-0"); r.code != exitUsage || !strings.Contains(r.errOut, "4 partitions") {
		t.Errorf("not confirmed: %+v", r)
	}
	if r := b.run(t, "", "groups", "kick", "spread", "busy", "mailer-1", "--yes"); r.code != exitNotFound {
		t.Errorf("a member that is not there: %+v", r)
	}
	if out := b.ok(t, "4\n", "groups", "kick", "spread", "busy", "mailer-0"); !strings.Contains(out, "mailer-0 is out of spread/busy") {
		t.Errorf("%s", out)
	}
}
