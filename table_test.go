package jetbus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
)

// state is what a table holds: "a=1 b=2".
func state(t *jetbus.Table) string {
	var items []string
	for key, e := range t.All() {
		items = append(items, key+"="+string(e.Payload))
	}
	slices.Sort(items)
	return strings.Join(items, " ")
}

func (r *rig) wantState(t *jetbus.Table, want string) {
	r.Helper()
	if got := state(t); got != want {
		r.Errorf("the table holds %q, want %q", got, want)
	}
}

func (r *rig) set(topic, key, value string) uint64 {
	r.Helper()
	return r.publish(jetbus.Event{Topic: topic, Key: key, Payload: []byte(value)})
}

func (r *rig) table(topic string, o jetbus.TableOptions) *jetbus.Table {
	r.Helper()
	t, err := jetbus.OpenTable(r.Context(), r.bus, topic, o)
	r.ok(err)
	r.Cleanup(t.Close)
	return t
}

func TestTable(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.ensure(jetbus.TopicConfig{Name: "stock", Compact: true})
		empty := r.table("stock", jetbus.TableOptions{})
		if empty.Len() != 0 || empty.AsOf() != 0 {
			r.Errorf("a table of nothing has %d keys as of %d", empty.Len(), empty.AsOf())
		}
		r.set("stock", "tea", "1")
		r.set("stock", "cup", "1")
		r.set("stock", "tea", "2")
		r.set("stock", "pot", "1")
		last := r.publish(jetbus.Tombstone("stock", "pot"))
		var mu sync.Mutex
		var changes []string
		full := r.table("stock", jetbus.TableOptions{OnChange: func(key string, e jetbus.Event, deleted bool) {
			mu.Lock()
			defer mu.Unlock()
			changes = append(changes, fmt.Sprintf("%s %s %t", key, e.Payload, deleted))
		}})
		r.wantState(full, "cup=1 tea=2")
		if full.AsOf() < last {
			r.Errorf("loaded as of %d, the topic is at %d", full.AsOf(), last)
		}
		if _, ok := full.Get("pot"); ok {
			r.Error("a deleted key is there")
		}
		r.set("stock", "pot", "2")
		r.publish(jetbus.Tombstone("stock", "cup"))
		r.publish(jetbus.Tombstone("stock", "mug")) // which never was
		last = r.set("stock", "tea", "3")
		for _, table := range []*jetbus.Table{full, empty} {
			r.ok(table.WaitFor(ctx, last))
			r.wantState(table, "pot=2 tea=3")
			if e, ok := table.Get("tea"); !ok || e.Seq != last || e.Topic != "stock" || table.AsOf() != last || table.Len() != 2 {
				r.Errorf("got %+v, as of %d, %d keys", e, table.AsOf(), table.Len())
			}
		}
		synctest.Wait()
		full.Close()
		full.Close()
		if diff := cmp.Diff([]string{"pot 2 false", "cup null true", "tea 3 false"}, changes); diff != "" {
			r.Errorf("changes (-want +got):\n%s", diff)
		}
		last = r.set("stock", "tea", "4")
		r.ok(empty.WaitFor(ctx, last))
		r.wantState(full, "pot=2 tea=3")
		r.ok(full.WaitFor(ctx, last-1))
		r.wantErr(full.WaitFor(ctx, last), jetbus.ErrClosed)
		r.ok(full.Err())
	})
}

func TestTablePrefix(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "stock", Compact: true})
		r.set("stock", "a/1", "1")
		r.set("stock", "b/1", "1")
		table := r.table("stock", jetbus.TableOptions{KeyPrefix: "a/"})
		r.set("stock", "a/2", "2")
		last := r.set("stock", "b/2", "2")
		r.ok(table.WaitFor(r.Context(), last)) // of a key that is not in it, too
		r.wantState(table, "a/1=1 a/2=2")
	})
}

// A table of a log is loaded from the log's snapshot and follows the log.
func TestTableOfSnapshot(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "stock.moved", KeyInSubject: true})
		r.ensure(jetbus.TopicConfig{Name: "stock.moved.snapshot", SnapshotOf: "stock.moved"})
		for i := range 50 {
			r.set("stock.moved", fmt.Sprint(i%5), fmt.Sprint(i))
		}
		table := r.table("stock.moved", jetbus.TableOptions{Snapshot: "stock.moved.snapshot"})
		last := r.set("stock.moved", "0", "50")
		r.ok(table.WaitFor(r.Context(), last))
		r.wantState(table, "0=50 1=46 2=47 3=48 4=49")
		r.publish(jetbus.Tombstone("stock.moved", "3"))
		last = r.set("stock.moved", "1", "51")
		r.ok(table.WaitFor(r.Context(), last))
		r.wantState(table, "0=50 1=51 2=47 4=49")
		again := r.table("stock.moved", jetbus.TableOptions{Snapshot: "stock.moved.snapshot"})
		r.ok(again.WaitFor(r.Context(), last))
		r.wantState(again, "0=50 1=51 2=47 4=49")
	})
}

// Tables that are opened while the topic changes, and live through a crash of
// the broker, end up with what was written last.
func TestTableConverges(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "stock", Compact: true})
		random := rand.New(rand.NewPCG(1, 2))
		want := map[string]string{}
		var last uint64
		var tables []*jetbus.Table
		for i := range 600 {
			key := fmt.Sprint(random.IntN(20))
			if random.IntN(4) == 0 {
				delete(want, key)
				last = r.publish(jetbus.Tombstone("stock", key))
			} else {
				want[key] = fmt.Sprint(i)
				last = r.set("stock", key, fmt.Sprint(i))
			}
			if i%60 == 0 {
				tables = append(tables, r.table("stock", jetbus.TableOptions{}))
			}
			if i == 330 {
				r.ok(r.broker.Kill(r.Context())) // stopped cleanly it sleeps under a lock that readers wait for, and time stands still
				r.ok(r.broker.Restart(r.Context()))
			}
		}
		for i, table := range tables {
			r.ok(table.WaitFor(r.Context(), last))
			got := map[string]string{}
			for key, e := range table.All() {
				got[key] = string(e.Payload)
			}
			if !maps.Equal(got, want) {
				r.Errorf("table %d: %s", i, cmp.Diff(want, got))
			}
		}
	})
}

func TestTableEnds(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "stock", Compact: true})
		r.set("stock", "tea", "1")

		ctx, cancel := context.WithCancelCause(r.Context())
		canceled, err := jetbus.OpenTable(ctx, r.bus, "stock", jetbus.TableOptions{})
		r.ok(err)
		cancel(io.EOF)
		<-canceled.Done()
		r.ok(canceled.Err())
		r.wantState(canceled, "tea=1")

		broken := r.table("stock", jetbus.TableOptions{OnChange: func(string, jetbus.Event, bool) { panic(io.EOF) }})
		last := r.set("stock", "tea", "2")
		<-broken.Done()
		r.wantErr(broken.Err(), io.EOF)
		r.wantErr(broken.WaitFor(r.Context(), last+1), io.EOF)

		bus, cut := r.open()
		cutOff, err := jetbus.OpenTable(r.Context(), bus, "stock", jetbus.TableOptions{})
		r.ok(err)
		orphan := r.table("stock", jetbus.TableOptions{})
		waiting, stop := context.WithTimeoutCause(r.Context(), time.Minute, io.EOF)
		defer stop()
		r.wantErr(orphan.WaitFor(waiting, last+1), io.EOF)
		cut()
		r.wantErr(cutOff.WaitFor(r.Context(), last+1), jetbus.ErrClosed)
		r.wantErr(cutOff.Err(), jetbus.ErrClosed)
		r.ok(r.bus.DeleteTopic(r.Context(), "stock"))
		r.wantErr(orphan.WaitFor(r.Context(), last+1), jetbus.ErrNoTopic)
		<-orphan.Done()
		orphan.Close()
		r.wantErr(orphan.Err(), jetbus.ErrNoTopic)

		_, err = jetbus.OpenTable(r.Context(), r.bus, "stock", jetbus.TableOptions{})
		r.wantErr(err, jetbus.ErrNoTopic)
		r.ensure(jetbus.TopicConfig{Name: "other", Compact: true})
		r.set("other", "x", "1")
		_, err = jetbus.OpenTable(r.Context(), r.bus, "stock", jetbus.TableOptions{Snapshot: "other"})
		r.wantErr(err, jetbus.ErrInvalidOption)
		_, err = jetbus.OpenTable(r.Context(), r.bus, "other", jetbus.TableOptions{Snapshot: "none"})
		r.wantErr(err, jetbus.ErrNoTopic)
		r.ensure(jetbus.TopicConfig{Name: "plain"})
		_, err = jetbus.OpenTable(r.Context(), r.bus, "plain", jetbus.TableOptions{})
		r.wantErr(err, jetbus.ErrNeedsKeySubject)
	})
}

// stagedState is a bus whose state and events are what the test says.
type stagedState struct {
	jetbus.StateStore
	load   []jetbus.Event
	asOf   uint64
	events chan jetbus.Event
	after  uint64 // what Read was asked for
}

func (s *stagedState) ScanLatest(_ context.Context, _ string, _ jetbus.LatestQuery, each func(jetbus.Event) error) (uint64, error) {
	for _, e := range s.load {
		if err := each(e); err != nil {
			return 0, err
		}
	}
	return s.asOf, nil
}

func (s *stagedState) Read(ctx context.Context, topics []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	s.after = o.After[topics[0]]
	return func(yield func(jetbus.Event, error) bool) {
		for {
			select {
			case e, open := <-s.events:
				if !open {
					yield(jetbus.Event{}, io.ErrUnexpectedEOF)
					return
				}
				if !yield(e, nil) {
					return
				}
			case <-ctx.Done():
				yield(jetbus.Event{}, context.Cause(ctx))
				return
			}
		}
	}
}

// Loading may show more than it promises, and reading may repeat: what is older
// than what a key has changes nothing, a deletion included.
func TestTableIgnoresTheOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(seq uint64, key, value string) jetbus.Event {
			return jetbus.Event{Topic: "t", Seq: seq, Key: key, Payload: []byte(value)}
		}
		bus := &stagedState{
			load:   []jetbus.Event{at(3, "a", "3"), at(9, "b", "9"), at(12, "c", "null"), at(11, "a", "11"), at(8, "a", "8"), at(2, "", "2"), at(11, "c", "11")},
			asOf:   9,
			events: make(chan jetbus.Event),
		}
		var changes []string
		table, err := jetbus.OpenTable(t.Context(), bus, "t", jetbus.TableOptions{OnChange: func(key string, e jetbus.Event, deleted bool) {
			changes = append(changes, fmt.Sprintf("%s@%d %t", key, e.Seq, deleted))
		}})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range []jetbus.Event{at(5, "z", "5"), at(9, "b", "null"), at(10, "c", "10"), at(11, "a", "11"), at(12, "c", "null"), at(13, "c", "13"), at(13, "c", "null"), at(14, "", "14")} {
			bus.events <- e
		}
		if err := table.WaitFor(t.Context(), 14); err != nil {
			t.Fatal(err)
		}
		for range table.All() {
			break // which is fine
		}
		if got, want := state(table), "=14 a=11 b=9 c=13"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		close(bus.events)
		<-table.Done()
		if diff := cmp.Diff([]string{"c@13 false", "@14 false"}, changes); diff != "" {
			t.Error(diff)
		}
		if bus.after != 9 || !errors.Is(table.Err(), io.ErrUnexpectedEOF) {
			t.Errorf("read after %d, ended with %v", bus.after, table.Err())
		}
	})
}
