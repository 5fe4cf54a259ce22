package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/e2e/internal/election"
)

// On a replicated topic, where the server checks at another moment: what is refused
// can be published later, and the stream goes on.
func TestChainOnCluster(t *testing.T) {
	c, bus := onCluster(t, jetbus.TopicConfig{DuplicateWindow: time.Second})
	chained := func(from, to, dups int) {
		t.Helper()
		receipts, err := bus.PublishBatch(t.Context(), links(from, to), behind(from-1))
		if err != nil {
			t.Fatal(err)
		}
		for i, receipt := range receipts {
			if want := uint64(from + i); receipt.Event.Seq != want || receipt.Duplicate != (i < dups) {
				t.Fatalf("receipt %d: seq %d, duplicate %t; want seq %d", i, receipt.Event.Seq, receipt.Duplicate, want)
			}
		}
	}
	refused := func(after int, lastID string) {
		t.Helper()
		_, err := bus.PublishBatch(t.Context(), links(3012, 3020), behind(after))
		if c, ok := errors.AsType[*jetbus.ChainError](err); !ok || c.LastID != lastID || !errors.Is(err, jetbus.ErrWrongSequence) {
			t.Errorf("got %v, want a ChainError with the last event %q", err, lastID)
		}
	}
	chained(1, 3000, 0)
	chained(2990, 3010, 11)
	for range 2 {
		refused(3011, "")
		refused(3000, "id-3010")
	}
	chained(3011, 3020, 0)
	step, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.WaitReady(step); err != nil { // while an election runs nobody can step down
		t.Fatal(err)
	}
	if err := election.StepDown(step, c, "EV_A"); err != nil { // and one may have begun since
		t.Fatal(err)
	}
	chained(3015, 3030, 6)
	next := 1
	for e, err := range bus.Scan(t.Context(), "a", jetbus.ScanQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Key != fmt.Sprint(next) {
			t.Fatalf("stored %s where %d should be", e.Key, next)
		}
		next++
	}
	if next != 3031 {
		t.Errorf("%d events are stored, want 3030", next-1)
	}
}

// What is published once a group is paused waits, also where a pause is answered before
// the one that delivers has heard of it; and a group that is resumed has been.
func TestPauseOnCluster(t *testing.T) {
	_, bus := onCluster(t, jetbus.TopicConfig{})
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	receive := func(wait time.Duration) []*jetbus.Delivery {
		t.Helper()
		ds, err := bus.Receive(ctx, "a", "g", jetbus.ReceiveOptions{Wait: wait})
		must(err)
		return ds
	}
	group := func() jetbus.GroupInfo {
		t.Helper()
		groups, err := bus.Groups(ctx, "a")
		must(err)
		if len(groups) != 1 {
			t.Fatalf("%d groups", len(groups))
		}
		return groups[0]
	}
	receive(-1)
	const rounds = 100
	for i := range rounds {
		must(bus.PauseGroup(ctx, "a", "g", time.Now().Add(time.Hour)))
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "a", Key: fmt.Sprint(i)})
		must(err)
		if ds := receive(10 * time.Millisecond); len(ds) != 0 {
			t.Errorf("round %d: received %s while paused", i, ds[0].Key)
		}
		must(bus.ResumeGroup(ctx, "a", "g"))
		if group().Paused {
			t.Errorf("round %d: the group is paused once it was resumed", i)
		}
		for _, d := range receive(patience) {
			if d.Key != fmt.Sprint(i) {
				t.Errorf("round %d: received %s", i, d.Key)
			}
			must(d.Ack(ctx))
		}
	}
	eventually(t, func() string { // an acknowledgement has no answer, and is replicated
		if g := group(); g.AckedSeq != rounds {
			return fmt.Sprintf("settled up to %d, want %d", g.AckedSeq, rounds)
		}
		return ""
	})
}
