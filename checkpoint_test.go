package jetbus_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// restoreRig is a rig whose broker can be restored.
type restoreRig struct {
	*rig
	*bustest.Restorable
}

func restorable(t *testing.T, f func(r *restoreRig)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) }) // the file store writes with a delay
		broker := bustest.StartRestorable(t)
		r := &rig{T: t, broker: broker.Broker, bus: bustest.Open(t, broker, adapter.Config{})}
		f(&restoreRig{r, broker})
		time.Sleep(time.Second) // until every connection is restored: nats.go leaves goroutines otherwise
	})
}

// fill publishes events to a topic, with the keys from up to to.
func (r *restoreRig) fill(topic, value string, from, to int) {
	r.Helper()
	for i := from; i <= to; i++ {
		r.set(topic, fmt.Sprintf("k%d", i), fmt.Sprintf("%q", value))
	}
}

// read reads the events of a topic after a checkpoint.
func (r *restoreRig) read(topic string, last jetbus.Checkpoint) (events []jetbus.Event, err error) {
	o := jetbus.ReadOptions{Last: map[string]jetbus.Checkpoint{topic: last}}
	for e, err := range r.bus.Read(r.Context(), []string{topic}, o) {
		if err != nil {
			return events, err
		}
		events = append(events, e)
	}
	return events, nil
}

func (r *restoreRig) wantRestored(what string, err error) {
	r.Helper()
	if _, ok := errors.AsType[*jetbus.RestoredError](err); !ok || !errors.Is(err, jetbus.ErrPositionUnknown) {
		r.Errorf("%s: got error %v, want a RestoredError", what, err)
	}
}

func TestReaderDoesNotResumeInAnotherHistory(t *testing.T) {
	for name, c := range map[string]jetbus.TopicConfig{
		"plain":  {Name: "t"},
		"keyed":  {Name: "t", KeyInSubject: true},
		"shared": {Name: "t", Stream: "ALL"},
	} {
		t.Run(name, func(t *testing.T) {
			restorable(t, func(r *restoreRig) {
				r.ensure(c)
				r.fill("t", "old", 1, 3)
				backup := r.Backup(r.T)
				r.fill("t", "old", 4, 6)
				events, err := r.read("t", jetbus.Checkpoint{})
				r.ok(err)
				if len(events) != 6 {
					r.Fatalf("read %d events, want 6", len(events))
				}
				kept, lost := jetbus.CheckpointOf(&events[2]), jetbus.CheckpointOf(&events[5])
				r.ok(lost.Verify(r.Context(), r.bus, "t"))

				r.Restore(r.T, backup, nil)
				for _, stored := range []int{0, 2, 3, 5} { // the topic ends before, at and after the position
					r.fill("t", "new", 4, 3+stored)
					_, err = r.read("t", lost)
					r.wantRestored(fmt.Sprintf("resume with %d new events", stored), err)
					r.wantRestored("verify", lost.Verify(r.Context(), r.bus, "t"))
					r.ok(kept.Verify(r.Context(), r.bus, "t"))
				}
				if events, err = r.read("t", kept); err != nil || len(events) == 0 {
					r.Errorf("resumed at an event that is there: %d events, %v", len(events), err)
				}
			})
		})
	}
}

func TestCheckpointOfAnEventThatIsGone(t *testing.T) {
	restorable(t, func(r *restoreRig) {
		r.ensure(jetbus.TopicConfig{Name: "t", Compact: true})
		r.fill("t", "old", 1, 3)
		backup := r.Backup(r.T)
		r.fill("t", "old", 4, 6)
		events, err := r.read("t", jetbus.Checkpoint{})
		r.ok(err)
		last := jetbus.CheckpointOf(&events[5])
		r.fill("t", "newer", 6, 6) // replaces it
		r.ok(last.Verify(r.Context(), r.bus, "t"))
		if events, err = r.read("t", last); err != nil || len(events) != 1 {
			r.Errorf("read %d events behind one that was compacted away, %v", len(events), err)
		}
		r.Restore(r.T, backup, nil)
		r.fill("t", "new", 4, 6)
		r.fill("t", "newer", 6, 6) // so does the new history
		r.wantRestored("verify", last.Verify(r.Context(), r.bus, "t"))
		r.ok(jetbus.Checkpoint{Seq: 2}.Verify(r.Context(), r.bus, "t"))
		r.wantRestored("a sequence alone", jetbus.Checkpoint{Seq: 70}.Verify(r.Context(), r.bus, "t"))
	})
}

func TestOtherTopicsTakeLostSequences(t *testing.T) {
	for name, c := range map[string]jetbus.TopicConfig{"plain": {Name: "t", Stream: "ALL"}, "compacted": {Name: "t", Stream: "ALL", Compact: true}} {
		t.Run(name, func(t *testing.T) {
			restorable(t, func(r *restoreRig) {
				r.ensure(c)
				r.ensure(jetbus.TopicConfig{Name: "u", Stream: "ALL", Compact: c.Compact})
				r.fill("t", "old", 1, 3)
				backup := r.Backup(r.T)
				r.fill("t", "old", 4, 6)
				events, err := r.read("t", jetbus.Checkpoint{})
				r.ok(err)
				lost := jetbus.CheckpointOf(&events[len(events)-1])
				r.ok(lost.Verify(r.Context(), r.bus, "t"))

				r.Restore(r.T, backup, nil)
				r.fill("u", "new", 1, 3)
				r.wantRestored("verify at the end of the topic", lost.Verify(r.Context(), r.bus, "t"))
				_, err = r.read("t", lost)
				r.wantRestored("resume", err)
				r.fill("t", "new", 7, 9)
				r.wantRestored("verify before new events", lost.Verify(r.Context(), r.bus, "t"))
			})
		})
	}
}

func TestVerifyTakesOneRequest(t *testing.T) {
	restorable(t, func(r *restoreRig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		r.fill("t", "old", 1, 3)
		events, err := r.read("t", jetbus.Checkpoint{})
		r.ok(err)
		requests, err := bustest.Connect(r.T, r.Restorable).SubscribeSync("$JS.API.>")
		r.ok(err)
		synctest.Wait()
		last := jetbus.CheckpointOf(&events[1])
		r.ok(last.Verify(r.Context(), r.bus, "t"))
		synctest.Wait()
		if n, _, err := requests.Pending(); n != 1 || err != nil {
			r.Errorf("%d requests, %v; want 1", n, err)
		}
	})
}

func TestFollowingReaderNoticesRestore(t *testing.T) {
	for name, stored := range map[string]int{"idle": 0, "shorter": 2, "longer": 9} {
		for _, began := range []jetbus.Start{jetbus.Earliest(), jetbus.Latest()} {
			t.Run(name+" from "+began.String(), func(t *testing.T) {
				restorable(t, func(r *restoreRig) {
					r.ensure(jetbus.TopicConfig{Name: "t"})
					r.fill("t", "old", 1, 3)
					backup := r.Backup(r.T)
					r.fill("t", "old", 4, 6)
					ctx, cancel := context.WithCancel(r.Context())
					defer cancel()
					ended := make(chan error, 1)
					go func() { // ends with the reader
						var failed error
						for _, err := range r.bus.Read(ctx, []string{"t"}, jetbus.ReadOptions{From: began, Follow: true}) {
							failed = err
						}
						ended <- failed
					}()
					synctest.Wait()
					time.Sleep(time.Second)
					other := bustest.Open(r.T, r.Restorable, adapter.Config{})
					r.Restore(r.T, backup, nil)
					for i := range stored {
						_, err := other.Publish(r.Context(), jetbus.Event{Topic: "t", Key: fmt.Sprint(i), Payload: []byte(`"new"`)})
						r.ok(err)
					}
					select {
					case err := <-ended:
						r.wantRestored("the reader", err)
					case <-time.After(time.Minute):
						r.Error("the reader goes on in another history")
					}
				})
			})
		}
	}
}

func TestTableNoticesRestore(t *testing.T) {
	for _, stored := range []int{0, 2, 9} {
		t.Run(fmt.Sprint(stored), func(t *testing.T) {
			restorable(t, func(r *restoreRig) {
				r.ensure(jetbus.TopicConfig{Name: "t", Compact: true})
				r.fill("t", "old", 1, 3)
				backup := r.Backup(r.T)
				r.fill("t", "old", 4, 6)
				loaded := r.table("t", jetbus.TableOptions{})
				r.fill("t", "old", 7, 8)
				r.ok(loaded.WaitFor(r.Context(), 8))
				r.Restore(r.T, backup, nil)
				r.fill("t", "new", 1, stored)
				select {
				case <-loaded.Done():
					r.wantRestored("the table", loaded.Err())
				case <-time.After(time.Minute):
					r.Errorf("the table goes on in another history: %s", state(loaded))
				}
			})
		})
	}
}

// lateBus stores events after a table was loaded and before it follows its topic.
type lateBus struct {
	jetbus.TableBus
	late func()
}

func (b lateBus) ScanLatest(ctx context.Context, topic string, q jetbus.LatestQuery, each func(jetbus.Event) error) (uint64, error) {
	asOf, err := b.TableBus.ScanLatest(ctx, topic, q, each)
	b.late()
	return asOf, err
}

// A table is loaded up to the end of its topic's stream. A restore may spare its newest event, and lose what came after
// that: events of other keys or of other topics.
func TestTableNoticesRestoreAfterItsNewestEvent(t *testing.T) {
	opens := map[string]func(r *restoreRig) *jetbus.Table{
		"other keys": func(r *restoreRig) *jetbus.Table {
			r.fill("t", "old", 1, 5)
			return r.table("t", jetbus.TableOptions{KeyPrefix: "a/"})
		},
		"another topic": func(r *restoreRig) *jetbus.Table {
			r.fill("u", "old", 1, 5)
			return r.table("t", jetbus.TableOptions{})
		},
		"still growing": func(r *restoreRig) *jetbus.Table {
			r.fill("u", "old", 1, 5)
			table, err := jetbus.OpenTable(r.Context(), lateBus{r.bus, func() { r.fill("u", "old", 6, 7) }}, "t", jetbus.TableOptions{})
			r.ok(err)
			r.Cleanup(table.Close)
			return table
		},
		"compacted": func(r *restoreRig) *jetbus.Table {
			r.fill("u", "old", 1, 5)
			table, err := jetbus.OpenTable(r.Context(), lateBus{r.bus, func() { r.fill("u", "newer", 1, 5) }}, "t", jetbus.TableOptions{})
			r.ok(err)
			r.Cleanup(table.Close)
			return table
		},
	}
	for name, open := range opens {
		for _, stored := range []int{0, 2, 9} {
			t.Run(fmt.Sprint(name, " ", stored), func(t *testing.T) {
				restorable(t, func(r *restoreRig) {
					r.ensure(jetbus.TopicConfig{Name: "t", Stream: "ALL", Compact: true})
					r.ensure(jetbus.TopicConfig{Name: "u", Stream: "ALL", Compact: true})
					r.set("t", "a/1", `"old"`)
					backup := r.Backup(r.T)
					table := open(r)
					time.Sleep(time.Second)
					r.Restore(r.T, backup, nil)
					r.fill("t", "new", 1, stored)
					select {
					case <-table.Done():
						r.wantRestored("the table", table.Err())
					case <-time.After(time.Minute):
						r.Errorf("the table goes on in another history: %s", state(table))
					}
				})
			})
		}
	}
}

// A reader that began after a sequence, and one of a snapshot, have read no event of the topic that could be compared.
func TestReaderWithoutEventNoticesRestore(t *testing.T) {
	for _, c := range []struct {
		topic  string
		o      jetbus.ReadOptions
		lost   string // topic of the events that the restore removes
		stored int    // events after it
	}{
		{"t", jetbus.ReadOptions{Follow: true, After: map[string]uint64{"t": 6}}, "u", 0},
		{"t", jetbus.ReadOptions{Follow: true, After: map[string]uint64{"t": 6}}, "u", 9},
		{"s", jetbus.ReadOptions{Follow: true, From: jetbus.Earliest()}, "t", 0}, // for more, see Limits in the README
	} {
		t.Run(fmt.Sprint(c.topic, " ", c.stored), func(t *testing.T) {
			restorable(t, func(r *restoreRig) {
				r.ensure(jetbus.TopicConfig{Name: "t", Stream: "ALL", KeyInSubject: true})
				r.ensure(jetbus.TopicConfig{Name: "u", Stream: "ALL"})
				r.ensure(jetbus.TopicConfig{Name: "s", SnapshotOf: "t"})
				r.fill("t", "old", 1, 3)
				time.Sleep(time.Second)
				backup := r.Backup(r.T)
				r.fill(c.lost, "old", 4, 8)
				ctx, cancel := context.WithCancel(r.Context())
				defer cancel()
				ended := make(chan error, 1)
				go func() { // ends with the reader
					var failed error
					for _, err := range r.bus.Read(ctx, []string{c.topic}, c.o) {
						failed = err
					}
					ended <- failed
				}()
				time.Sleep(time.Second)
				r.Restore(r.T, backup, nil)
				r.fill("t", "new", 1, c.stored)
				select {
				case err := <-ended:
					r.wantRestored("the reader", err)
				case <-time.After(time.Minute):
					r.Error("the reader goes on in another history")
				}
			})
		})
	}
}
