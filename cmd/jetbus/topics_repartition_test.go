package main

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

func TestTopicsRepartition(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if out := b.ok(t, "", "topics", "create", "orders", "--partitions", "8"); !strings.Contains(out, "Partitions      8\n") {
		t.Errorf("create says\n%s", out)
	}
	b.ok(t, "", "topics", "create", "plain")
	b.ok(t, "", "topics", "create", "state", "--partitions", "4", "--compact")
	for i := range 20 {
		b.ok(t, "", "pub", "orders", "1", "--key", strconv.Itoa(i))
	}
	bus := b.bus(t)
	ctx := t.Context()
	if err := bus.JoinPartitions(ctx, "orders", "mailer", jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: jetbus.PerKey}); err != nil {
		t.Fatal(err)
	}
	b.ok(t, "", "sub", "orders", "--group", "audit", "--from", "earliest", "--no-follow", "--limit", "3")

	out := b.ok(t, "", "topics", "repartition", "orders", "12")
	for _, want := range []string{
		"orders has 8 partitions and would get 12, as generation 2", "33% would move, to the new partitions 8 to 11",
		"nothing was changed; add --yes", "mailer  1           ", " of 8           20       0     0\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the preview does not say %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "audit") {
		t.Errorf("the preview lists a group without partitions:\n%s", out)
	}
	var planned, done growth
	if err := json.Unmarshal([]byte(b.ok(t, "", "topics", "repartition", "orders", "12", "-o", "json")), &planned); err != nil {
		t.Fatal(err)
	}
	if !planned.Planned || len(planned.Generations) != 2 || len(planned.Left) != 1 || planned.Left[0].Pending != 20 {
		t.Errorf("planned %+v", planned)
	}
	if list, err := bus.Generations(ctx, "orders"); err != nil || len(list) != 1 {
		t.Fatalf("a preview made generations %v, %v", list, err)
	}
	for range 2 { // it may be repeated
		if err := json.Unmarshal([]byte(b.ok(t, "", "topics", "repartition", "orders", "12", "--yes", "-o", "json")), &done); err != nil {
			t.Fatal(err)
		}
		if done.Planned || len(done.Generations) != 2 || len(done.Left) != 1 || done.Left[0] != planned.Left[0] {
			t.Errorf("done %+v", done)
		}
	}
	if rows := strings.Split(b.ok(t, "", "topics", "ls"), "\n"); !strings.HasSuffix(rows[1], "12, before 8") || !strings.HasSuffix(rows[2], "-") {
		t.Errorf("list:\n%s", strings.Join(rows, "\n"))
	}

	waiting := begin(t, nil, "--server", b.url, "topics", "repartition", "orders", "12", "--wait")
	waiting.wait(t, "of 8")
	for i := range 8 {
		turn := jetbus.PartitionTurn{Partition: jetbus.Partition{Generation: 1, Number: i}, Epoch: 1, Clean: true}
		s, err := bus.SubscribePartition(ctx, "orders", "mailer", turn, func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{Order: jetbus.PerKey})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Stop(context.WithoutCancel(ctx)); err != nil {
				t.Error(err)
			}
		}()
	}
	waiting.wait(t, "no group has anything left")
	<-waiting.done
	if waiting.code != 0 {
		t.Errorf("waiting ended with code %d: %s", waiting.code, waiting.err)
	}

	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"orders 8", exitConflict, "never has fewer"},
		{"orders 8 --yes", exitConflict, "never has fewer"},
		{"orders x", exitUsage, "no number"},
		{"orders 0", exitUsage, "1 to 4096"},
		{"orders 16 --wait", exitUsage, "--yes"},
		{"plain 8", exitConflict, "no partitions"},
		{"state 8", exitConflict, "--compact is true"},
		{"none 8", exitNotFound, "no such topic"},
	} {
		r := b.run(t, "", append([]string{"topics", "repartition"}, strings.Fields(c.args)...)...)
		if r.code != c.code || !strings.Contains(r.errOut, c.want) {
			t.Errorf("repartition %s: code %d, want %d with %q, got %q", c.args, r.code, c.code, c.want, r.errOut)
		}
	}
}
