package jetbus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

var errBroken = errors.New("dial tcp 10.0.0.7:25: connection refused")

// orders is the query of all tests here.
var orders = jetbus.DeadLetterQuery{Topic: "orders"}

// Only the group that failed gets its dead letters again, once, in their order.
func TestReplayToGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer, audit := r.join("orders", "mailer", errBroken), r.join("orders", "audit", nil)
		r.publishNumbered("orders", 1, 3)
		r.waitDead("orders", 3)
		mailer.set(nil)
		all := jetbus.ReplayStats{Read: 3, Matched: 3, Replayed: 3, LastSeq: 3}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders, DryRun: true}, all, nil)
		if got := mailer.handled(); len(got) != 0 {
			r.Errorf("after a dry run mailer got %v", got)
		}
		var progress []jetbus.ReplayStats
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders, Progress: func(s jetbus.ReplayStats) { progress = append(progress, s) }}, all, nil)
		if len(progress) != 3 || progress[0] != (jetbus.ReplayStats{Read: 1, Matched: 1, Replayed: 1, LastSeq: 1}) || progress[2] != all {
			r.Errorf("progress %+v", progress)
		}
		if diff := cmp.Diff([]string{"e1 of d1", "e2 of d2", "e3 of d3"}, mailer.handled()); diff != "" {
			r.Error(diff)
		}
		again := jetbus.ReplayStats{Matched: 3, Already: 3}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, again, nil)
		again.Read = 3 // a query with conditions looks at all of them
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "orders", Error: "refused"}}, again, nil)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "orders", Open: true}}, jetbus.ReplayStats{Read: 3}, jetbus.ErrNoDeadLetters)
		for _, d := range r.dead(orders) {
			if d.Replayed.IsZero() {
				r.Errorf("dead letter %d does not say that it was replayed", d.Seq)
			}
		}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "orders", ID: "e2"}, Force: true}, jetbus.ReplayStats{Read: 3, Matched: 1, Replayed: 1}, nil)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "orders", ID: "e2"}, Force: true}, jetbus.ReplayStats{Read: 3, Matched: 1, Replayed: 1}, nil)
		if got := mailer.handled(); len(got) != 5 || got[4] != "e2 of d2" {
			r.Errorf("after two more by force: %v", got)
		}
		if diff := cmp.Diff([]string{"e1", "e2", "e3"}, audit.handled()); diff != "" {
			r.Errorf("the other group: %s", diff)
		}
		mailer.set(errBroken)
		r.publishNumbered("orders", 4, 4)
		r.waitDead("orders", 4)
		mailer.set(nil)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Read: 1, Matched: 4, Replayed: 1, Already: 3}, nil)
		if got := mailer.handled(); got[len(got)-1] != "e4 of d4" {
			r.Errorf("a later one: %v", got)
		}
	})
}

// An event that fails again is another dead letter, which knows how often it was
// replayed; after five times it is left alone.
func TestReplayLoopGuard(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 1)
		for n := range jetbus.MaxReplays {
			list := r.waitDead("orders", n+1)
			if last := list[n]; last.Replays != n || last.Event.ID != "e1" || last.Event.Seq != 1 || last.Group != "mailer" {
				r.Fatalf("dead letter %d: %+v", n+1, last)
			}
			r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Read: 1, Matched: n + 1, Replayed: 1, Already: n}, nil)
		}
		r.waitDead("orders", jetbus.MaxReplays+1)
		guarded := jetbus.ReplayStats{Read: 1, Matched: 6, Already: 5, Guarded: 1}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, guarded, nil)
		mailer.set(nil)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, guarded, nil)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "orders", Open: true}, Force: true}, jetbus.ReplayStats{Read: 6, Matched: 1, Replayed: 1}, nil)
		if diff := cmp.Diff([]string{"e1 of d6"}, mailer.handled()); diff != "" {
			r.Error(diff)
		}
	})
}

// A replay that is interrupted is ended by the next one; two at once share the work.
func TestReplayResumes(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 30)
		r.waitDead("orders", 30)
		mailer.set(nil)
		ctx, cancel := context.WithCancel(r.Context())
		began := time.Now()
		stats, err := jetbus.Replay(ctx, r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders, Rate: 2, Progress: func(s jetbus.ReplayStats) {
			if s.Replayed == 10 {
				cancel()
			}
		}})
		if want := (jetbus.ReplayStats{Read: 11, Matched: 10, Replayed: 10, LastSeq: 10}); !errors.Is(err, context.Canceled) || stats != want {
			r.Errorf("canceled: %+v, %v", stats, err)
		}
		if took := time.Since(began); took < 4500*time.Millisecond || took > 4600*time.Millisecond {
			r.Errorf("10 events at 2 a second took %v, want 4.5s", took)
		}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "orders", Limit: 5}}, jetbus.ReplayStats{Read: 15, Matched: 15, Replayed: 5, Already: 10}, nil)
		var both [2]jetbus.ReplayStats
		var wg sync.WaitGroup
		for i := range both {
			wg.Go(func() {
				var err error
				if both[i], err = jetbus.Replay(r.Context(), r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders, Rate: 100}); err != nil {
					r.Error(err)
				}
			})
		}
		wg.Wait()
		if n := both[0].Replayed + both[1].Replayed; n != 15 || both[0].Matched != 30 || both[1].Matched != 30 {
			r.Errorf("two at once replayed %+v", both)
		}
		want := make([]string, 30)
		for i := range want {
			want[i] = fmt.Sprintf("e%d of d%d", i+1, i+1)
		}
		if diff := cmp.Diff(want, mailer.handled()); diff != "" {
			r.Error(diff)
		}
	})
}

func TestReplayTransform(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 5)
		r.waitDead("orders", 5)
		mailer.set(nil)
		o := jetbus.ReplayOptions{DeadLetterQuery: orders, Transform: func(e jetbus.Event) (jetbus.Event, error) {
			switch e.ID {
			case "e1":
				return e, errors.New("no idea")
			case "e2":
				panic("oh")
			case "e3":
				e.Topic = "payments"
			case "e4":
				e.Key = "\x00"
			}
			e.Payload, e.Seq = []byte(`"new"`), 99
			return e, nil
		}}
		want := jetbus.ReplayStats{Read: 5, Matched: 5, Replayed: 1, Failed: 4, LastSeq: 5}
		for _, o.DryRun = range []bool{true, false} {
			stats, err := jetbus.Replay(r.Context(), r.bus, o)
			if stats != want {
				r.Errorf("%+v, want %+v", stats, want)
			}
			for _, part := range []string{"4 of 5 failed", "dead letter 1 of mailer: transform: no idea", "handler panicked: oh", "payments", "invalid event"} {
				if err == nil || !strings.Contains(err.Error(), part) {
					r.Errorf("error %v does not say %q", err, part)
				}
			}
		}
		if got := mailer.handled(); !cmp.Equal(got, []string{"e5 of d5"}) || string(mailer.last.Payload) != `"new"` || mailer.last.Seq != 5 {
			r.Errorf("mailer got %v, %+v", got, mailer.last)
		}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Read: 5, Matched: 5, Replayed: 4, Already: 1}, nil)
	})
}

func TestReplayGroupIsGone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer, audit := r.join("orders", "mailer", errBroken), r.join("orders", "audit", errBroken)
		r.publishNumbered("orders", 1, 2)
		r.waitDead("orders", 4)
		audit.set(nil)
		r.ok(mailer.sub.Stop(r.Context()))
		r.ok(r.bus.DeleteGroup(r.Context(), "orders", "mailer"))
		want := jetbus.ReplayStats{Read: 4, Matched: 4, Replayed: 2, Failed: 2}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders, DryRun: true}, want, jetbus.ErrNoGroup)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, want, jetbus.ErrNoGroup)
		if got := audit.handled(); len(got) != 2 {
			r.Errorf("the group that is there got %v", got)
		}
	})
}

// With a group go its replays. Where it is made anew, and the same event fails again, its dead
// letter is as open as if it had never been replayed.
func TestReplayToAGroupMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 1)
		r.waitDead("orders", 1)
		mailer.set(nil)
		for _, want := range []jetbus.ReplayStats{{Read: 1, Matched: 1, Replayed: 1}, {Matched: 1, Already: 1}} {
			r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, want, nil)
		}
		r.ok(mailer.sub.Stop(r.Context()))
		r.ok(r.bus.DeleteGroup(r.Context(), "orders", "mailer"))
		time.Sleep(time.Second) // of the bubble: it is not made in the same millisecond
		again := r.join("orders", "mailer", errBroken)
		r.ok(r.bus.SetCursor(r.Context(), "orders", "mailer", jetbus.Cursor{}, jetbus.SeekOptions{}))
		time.Sleep(time.Minute) // of the bubble
		again.set(nil)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Read: 1, Matched: 1, Replayed: 1}, nil)
		if got := again.handled(); len(got) == 0 || got[len(got)-1] != "e1 of d1" {
			r.Errorf("the group made anew handled %v", got)
		}
	})
}

// A replay that ends at a position takes nothing behind it, and those of all begin where it
// ended. It does not count what others have replayed behind that.
func TestReplayUpTo(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 5)
		r.waitDead("orders", 5)
		mailer.set(nil)
		upTo := orders
		upTo.UpToSeq = 3
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: upTo}, jetbus.ReplayStats{Read: 3, Matched: 3, Replayed: 3, LastSeq: 3}, nil)
		if diff := cmp.Diff([]string{"e1 of d1", "e2 of d2", "e3 of d3"}, mailer.handled()); diff != "" {
			r.Error(diff)
		}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Read: 2, Matched: 5, Replayed: 2, Already: 3, LastSeq: 5}, nil)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: upTo}, jetbus.ReplayStats{Read: 3, Matched: 3, Already: 3}, nil)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Matched: 5, Already: 5}, nil)
	})
}

// A replay up to the last one that a dry run counted takes no others in the places of those that
// are gone meanwhile.
func TestReplayWhatWasCounted(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 5)
		r.waitDead("orders", 5)
		mailer.set(nil)
		o := jetbus.ReplayOptions{DeadLetterQuery: orders, Force: true, DryRun: true}
		o.Limit = 2
		r.replay(r.bus, o, jetbus.ReplayStats{Read: 2, Matched: 2, Replayed: 2, LastSeq: 2}, nil)
		o.DryRun, o.UpToSeq = false, 2
		if n, err := jetbus.PurgeDeadLetters(r.Context(), r.bus, jetbus.DeadLetterQuery{Topic: "orders", UpToSeq: 1}); n != 1 || err != nil {
			r.Errorf("removed %d, %v", n, err)
		}
		r.replay(r.bus, o, jetbus.ReplayStats{Read: 1, Matched: 1, Replayed: 1, LastSeq: 2}, nil)
		if got := mailer.handled(); !cmp.Equal(got, []string{"e2 of d2"}) {
			r.Errorf("mailer got %v", got)
		}
		if n, err := jetbus.PurgeDeadLetters(r.Context(), r.bus, jetbus.DeadLetterQuery{Topic: "orders", UpToSeq: 2}); n != 1 || err != nil {
			r.Errorf("removed %d, %v", n, err)
		}
		r.replay(r.bus, o, jetbus.ReplayStats{}, jetbus.ErrNoDeadLetters)
	})
}

// What was replayed and then removed is not counted any more.
func TestReplayAfterPurge(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer, audit := r.join("orders", "mailer", errBroken), r.join("orders", "audit", errBroken)
		r.publishNumbered("orders", 1, 3)
		list := r.waitDead("orders", 6)
		mailer.set(nil)
		audit.set(nil)
		of := jetbus.DeadLetterQuery{Topic: "orders", Group: "mailer"}
		purge := func(q jetbus.DeadLetterQuery) {
			_, err := jetbus.PurgeDeadLetters(r.Context(), r.bus, q)
			r.ok(err)
		}
		before := func(q jetbus.DeadLetterQuery, want int) {
			r.Helper()
			stats, err := jetbus.Replay(r.Context(), r.bus, jetbus.ReplayOptions{DeadLetterQuery: q})
			if stats.Matched != want || stats.Already != want || errors.Is(err, jetbus.ErrNoDeadLetters) != (want == 0) {
				r.Errorf("%+v, %v; want %d replayed before", stats, err, want)
			}
		}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Read: 6, Matched: 6, Replayed: 6}, nil)
		before(of, 3)
		one := of
		for _, d := range list {
			if d.Group == "mailer" {
				one.Seqs = []uint64{d.Seq}
			}
		}
		purge(one)
		before(orders, 5)
		before(of, 2)
		purge(of)
		before(orders, 3)
		before(of, 0)
		purge(orders)
		before(orders, 0)
	})
}

// cutShort stores dead letters without their payload, as if there were no room.
func cutShort(r *rig, topic, group string, from []jetbus.DeadLetter) {
	r.Helper()
	for _, d := range from {
		d.Truncated, d.Group, d.Replays = true, group, 1 // another key than the one that is there
		_, err := r.bus.Publish(r.Context(), d.Record())
		r.ok(err)
	}
}

func TestReplayTruncated(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 3)
		list := r.waitDead("orders", 3)
		cutShort(r, "orders", "mailer", list)
		if _, err := r.bus.RemoveEvents(r.Context(), "orders", 2, 3); err != nil {
			r.Fatal(err)
		}
		mailer.set(nil)
		q := jetbus.DeadLetterQuery{Topic: "orders", Seqs: []uint64{6, 4, 5, 5, 77}}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: q}, jetbus.ReplayStats{Read: 3, Matched: 3, Replayed: 1, Failed: 2}, jetbus.ErrPositionUnknown)
		if got := mailer.handled(); !cmp.Equal(got, []string{"e1 of d4"}) || string(mailer.last.Payload) != `{"n":1}` {
			r.Errorf("mailer got %v, %+v", got, mailer.last)
		}
	})
}

// A dead letter that cannot be handled stays where it is.
func TestDeadLettersHaveNone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		r.join("orders", "mailer", errBroken)
		r.join("dlq.orders", "watch", errBroken)
		r.publishNumbered("orders", 1, 1)
		time.Sleep(time.Minute)
		r.waitDead("orders", 1)
		for _, err := range jetbus.DeadLetters(r.Context(), r.bus, jetbus.DeadLetterQuery{Topic: "dlq.orders"}) {
			check(r.T, "dead letters of dead letters", err, jetbus.ErrInvalidTopic)
		}
	})
}

// faulty is a bus on which some calls fail.
type faulty struct {
	*adapter.Bus
	publish func(jetbus.Event) error // before it is stored
	after   func(jetbus.Event) error // it was stored
	retry   func(jetbus.Event) error
	keySet  func(value []byte) error
}

var errCut = fmt.Errorf("the process died: %w", jetbus.ErrUnavailable)

func (f *faulty) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	if f.publish != nil {
		if err := f.publish(e); err != nil {
			return jetbus.Receipt{}, err
		}
	}
	receipt, err := f.Bus.Publish(ctx, e, o...)
	if err == nil && f.after != nil {
		err = f.after(e)
	}
	return receipt, err
}

func (f *faulty) KeySet(ctx context.Context, bucket, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	if f.keySet != nil {
		if err := f.keySet(value); err != nil {
			return 0, err
		}
	}
	return f.Bus.KeySet(ctx, bucket, key, value, revision, ttl)
}

func (f *faulty) Retry(ctx context.Context, group string, e jetbus.Event, o jetbus.RetryOptions) (jetbus.Receipt, error) {
	if f.retry != nil {
		if err := f.retry(e); err != nil {
			return jetbus.Receipt{}, err
		}
	}
	return f.Bus.Retry(ctx, group, e, o)
}

func TestReplayEndsAtTheFirstOtherError(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 4)
		r.waitDead("orders", 4)
		mailer.set(nil)
		b := &faulty{Bus: r.bus, retry: func(e jetbus.Event) error {
			switch e.ID {
			case "e2":
				return errors.New("the schema says no")
			case "e4":
				return fmt.Errorf("retry: %w", jetbus.ErrUnavailable)
			}
			return nil
		}}
		want := jetbus.ReplayStats{Read: 4, Matched: 3, Replayed: 2, Failed: 1}
		r.replay(b, jetbus.ReplayOptions{DeadLetterQuery: orders}, want, jetbus.ErrUnavailable)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Read: 3, Matched: 4, Replayed: 2, Already: 2}, nil)
		if got := mailer.handled(); len(got) != 4 {
			r.Errorf("mailer got %v", got)
		}
	})
}

// After a restore of the dead letters alone their positions belong to others, which were not replayed.
func TestReplayAfterRestoreOfDeadLetters(t *testing.T) {
	for _, again := range []int{2, 3, 5} { // dead letters after the restore
		t.Run(fmt.Sprint(again), func(t *testing.T) {
			restorable(t, func(r *restoreRig) {
				r.topic("orders")
				mailer := r.join("orders", "mailer", errBroken)
				r.publishNumbered("orders", 1, 1)
				r.waitDead("orders", 1)
				backup := r.Backup(r.T)
				r.publishNumbered("orders", 2, 3)
				r.waitDead("orders", 3)
				mailer.set(nil)
				all := jetbus.ReplayStats{Read: 3, Matched: 3, Replayed: 3, LastSeq: 3}
				r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, all, nil)
				mailer.handled()

				r.RestoreStream(r.T, backup, "EV_DLQ")
				time.Sleep(time.Minute)
				mailer.set(errBroken)
				r.publishNumbered("orders", 4, 3+again)
				r.waitDead("orders", 1+again)
				mailer.set(nil)
				want := jetbus.ReplayStats{Read: 1 + again, Matched: 1 + again, Replayed: again, Already: 1}
				r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, want, nil)
				if got := mailer.handled(); len(got) != 3+again {
					r.Errorf("mailer got %v", got)
				}
				r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Matched: 1 + again, Already: 1 + again}, nil)
			})
		})
	}
}

// What was replayed in a dead-letter topic that is no more says nothing about
// the one of the same name that has the same positions again.
func TestReplayTopicMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 2)
		r.waitDead("orders", 2)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Read: 2, Matched: 2, Replayed: 2}, nil)
		r.waitDead("orders", 4)
		was, err := r.bus.TopicInfo(r.Context(), "dlq.orders")
		r.ok(err)
		b := &renewed{Bus: r.bus, created: time.Now()}
		mailer.set(nil)
		o := jetbus.ReplayOptions{DeadLetterQuery: orders}
		o.Created = was.Created
		r.replay(b, o, jetbus.ReplayStats{}, jetbus.ErrPositionUnknown)
		if n, err := jetbus.PurgeDeadLetters(r.Context(), b, o.DeadLetterQuery); n != 0 || !errors.Is(err, jetbus.ErrPositionUnknown) {
			r.Errorf("removed %d by a query of a topic that is no more, %v", n, err)
		}
		o.Created = b.created.Truncate(time.Millisecond) // as JSON has it
		r.replay(b, o, jetbus.ReplayStats{Read: 4, Matched: 4, Replayed: 4}, nil)
		r.replay(b, o, jetbus.ReplayStats{Matched: 4, Already: 4}, nil)
		o.Error = "refused"
		r.replay(b, o, jetbus.ReplayStats{Read: 4, Matched: 4, Already: 4}, nil)
		if got := mailer.handled(); len(got) != 4 {
			r.Errorf("mailer got %v", got)
		}
	})
}

// renewed is a bus whose dead-letter topics were made at another time.
type renewed struct {
	*adapter.Bus
	created time.Time
}

func (b *renewed) TopicInfo(ctx context.Context, topic string) (jetbus.TopicInfo, error) {
	info, err := b.Bus.TopicInfo(ctx, topic)
	if jetbus.IsDeadLetterTopic(topic) {
		info.Created = b.created
	}
	return info, err
}

func TestReplayOptionsValidate(t *testing.T) {
	o := func(change func(*jetbus.ReplayOptions)) jetbus.ReplayOptions {
		o := jetbus.ReplayOptions{DeadLetterQuery: orders}
		change(&o)
		return o
	}
	for name, o := range map[string]jetbus.ReplayOptions{
		"a negative rate": o(func(o *jetbus.ReplayOptions) { o.Rate = -1 }),
		"a tiny rate":     o(func(o *jetbus.ReplayOptions) { o.Rate = 1e-300 }),
		"a bad topic":     o(func(o *jetbus.ReplayOptions) { o.ToTopic = "A" }),
		"dead letters":    o(func(o *jetbus.ReplayOptions) { o.ToTopic = "dlq.orders" }),
		"a bad query":     o(func(o *jetbus.ReplayOptions) { o.Topic = "" }),
	} {
		if _, err := jetbus.Replay(t.Context(), nil, o); !errors.Is(err, jetbus.ErrInvalidOption) && !errors.Is(err, jetbus.ErrInvalidTopic) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A replay of everything begins where the ones before it ended, also after one
// that died.
func TestReplayOfMany(t *testing.T) {
	inBubble(t, func(r *rig) {
		// How far a replay came is saved each 1000 positions, which other topics' dead letters
		// take as well: it is saved at the letter behind theirs.
		const many, before, others = 170, 100, 900
		r.topic("orders")
		r.topic("payments")
		r.join("payments", "mailer", nil)
		mailer := r.join("orders", "mailer", nil)
		var list []jetbus.Event
		for i := range many {
			d := dead()
			d.Event.Topic, d.Event.Seq, d.Event.ID, d.Replays = "orders", uint64(i+1), fmt.Sprintf("e%d", i+1), 0
			if i == before {
				for j := range others {
					other := d
					other.Event.Topic, other.Event.ID = "payments", fmt.Sprintf("p%d", j+1)
					list = append(list, other.Record())
				}
			}
			list = append(list, d.Record())
		}
		_, err := r.bus.PublishBatch(r.Context(), list, jetbus.BatchOptions{})
		r.ok(err)
		ctx, die := context.WithCancel(r.Context())
		stats, err := jetbus.Replay(ctx, r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders, Progress: func(s jetbus.ReplayStats) {
			if s.Replayed == many-50 {
				die()
			}
		}})
		if !errors.Is(err, context.Canceled) || stats.Replayed != many-50 {
			r.Errorf("%+v, %v", stats, err)
		}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Read: many - before - 1, Matched: many, Replayed: 50, Already: many - 50}, nil)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Matched: many, Already: many}, nil)
		if got := mailer.handled(); len(got) != many || got[many-1] != fmt.Sprintf("e%d of d%d", many, many+others) {
			r.Errorf("mailer got %d events", len(got))
		}
		if n, err := jetbus.PurgeDeadLetters(r.Context(), r.bus, orders); n != many || err != nil {
			r.Errorf("removed %d, %v", n, err)
		}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{}, jetbus.ErrNoDeadLetters)
	})
}
