package bustest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// stateBehaviors are about topics that keep the state of their keys.
var stateBehaviors = []Behavior{
	{Name: "a compacted topic has the last event of each key, and of a deleted one nothing", Cases: []int{66}, Needs: NeedStore, play: compaction},
	{Name: "a tombstone that would delete nothing is refused, however it is published", Cases: []int{66}, Needs: NeedStore | NeedBatch, play: tombstonesRefused},
	{Name: "an event that ends by its TTL leaves a tombstone", Cases: []int{66}, Needs: NeedStore | NeedFakeTime | NeedAging, play: expiryMarker},
	{Name: "a scan of the state is that as of its position, whatever is published meanwhile", Cases: []int{66}, Needs: NeedStore, play: scanLatestAsOf},
	{Name: "the state of any number of keys is found, whatever they consist of", Cases: []int{66}, Needs: NeedStore | NeedBatch | NeedPower, play: manyKeys},
	{Name: "a snapshot has the state of its topic, and the positions", Cases: []int{66}, Needs: NeedStore | NeedTopics, play: snapshotTopic},
	{Name: "the state at a time is exact, or says that it is not", Cases: []int{66}, Needs: NeedStore, play: stateAtTime},
}

// store is A as a store.
func (r *run) store() jetbus.Store { return r.A.(jetbus.Store) }

// put stores an event of a key with a payload, by A.
func (r *run) put(topic, key, payload string, o ...jetbus.PublishOptions) jetbus.Event {
	r.Helper()
	receipt, err := r.A.Publish(r.ctx, jetbus.Event{Topic: topic, Key: key, Payload: []byte(payload)}, o...)
	r.must(err)
	return receipt.Event
}

// bury deletes a key, by A.
func (r *run) bury(topic, key string) {
	r.Helper()
	_, err := r.A.Publish(r.ctx, jetbus.Tombstone(topic, key))
	r.must(err)
}

// stateIs waits until LatestByKey finds what is wanted: in a cluster a replica
// may answer that has yet to hear of the last event.
func (r *run) stateIs(topic, want string, keys ...string) {
	r.Helper()
	r.eventually("the state of "+topic, func() error {
		state, err := r.store().LatestByKey(r.ctx, topic, keys...)
		if got := stateText(state); err == nil && got != want {
			err = fmt.Errorf("got %s, want %s", got, want)
		}
		return err
	})
}

// scanIs compares what ScanLatest hands out, tombstones included.
func (r *run) scanIs(topic, want string) (asOf uint64) {
	r.Helper()
	state := map[string]jetbus.Event{}
	asOf, err := r.store().ScanLatest(r.ctx, topic, jetbus.LatestQuery{}, func(e jetbus.Event) error {
		state[e.Key] = e
		return nil
	})
	r.must(err)
	if got := stateText(state); got != want {
		r.Errorf("scan of %s: got %s, want %s", topic, got, want)
	}
	return asOf
}

// stateText is a state as text: a=1 b=2.
func stateText(state map[string]jetbus.Event) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(state)) {
		out = append(out, key+"="+string(state[key].Payload))
	}
	return strings.Join(out, " ")
}

func compaction(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Compact: true})
	r.put(topic, "a", "1")
	r.put(topic, "b", "2")
	last := r.put(topic, "a", "3")
	r.stateIs(topic, "a=3 b=2", "a", "b", "none")
	if asOf := r.scanIs(topic, "a=3 b=2"); asOf != last.Seq {
		r.Errorf("the scan is as of %d, want %d", asOf, last.Seq)
	}
	sameKeys(r.T, "stored", r.stored(topic), []string{"b", "a"})
	r.bury(topic, "b")
	r.stateIs(topic, "a=3", "a", "b")
	r.scanIs(topic, "a=3 b=null")
	r.put(topic, "b", "4")
	r.stateIs(topic, "a=3 b=4", "a", "b")
	r.scanIs(topic, "a=3 b=4")
}

func tombstonesRefused(r *run) {
	plain := r.declare("plain", jetbus.TopicConfig{KeyInSubject: true})
	state := r.declare("state", jetbus.TopicConfig{Compact: true})
	other := jetbus.Tombstone(state, "a")
	other.Payload = []byte("{}")
	for _, c := range []struct {
		what string
		e    jetbus.Event
		want error
	}{
		{"in a topic without state", jetbus.Tombstone(plain, "a"), jetbus.ErrNoState},
		{"without a key", jetbus.Tombstone(state, ""), jetbus.ErrInvalidEvent},
		{"with a payload", other, jetbus.ErrInvalidEvent},
	} {
		_, err := r.A.Publish(r.ctx, c.e)
		wantErr(r.T, "a tombstone "+c.what, err, c.want)
		for _, atomic := range []bool{false, true} {
			_, err := r.A.(jetbus.Batcher).PublishBatch(r.ctx, []jetbus.Event{c.e}, jetbus.BatchOptions{Atomic: atomic})
			wantErr(r.T, "in a batch, a tombstone "+c.what, err, c.want)
		}
	}
	if stored := append(r.stored(plain), r.stored(state)...); len(stored) > 0 {
		r.Errorf("refused tombstones are stored: %+v", stored)
	}
	r.put(plain, "a", "null") // a payload like any other
	r.stateIs(plain, "a=null", "a")
}

func expiryMarker(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Compact: true, TombstoneTTL: time.Hour})
	r.put(topic, "a", "1", jetbus.PublishOptions{TTL: time.Minute})
	r.put(topic, "b", "2")
	r.pause(30 * time.Second)
	r.stateIs(topic, "a=1 b=2", "a", "b")
	r.pause(time.Minute)
	r.stateIs(topic, "b=2", "a", "b")
	r.scanIs(topic, "a=null b=2")
	if last := r.stored(topic); len(last) != 2 || !last[1].IsTombstone() || last[1].Key != "a" {
		r.Errorf("stored: %+v", last)
	}
	r.pause(2 * time.Hour)
	r.scanIs(topic, "b=2")
}

func scanLatestAsOf(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Compact: true})
	var log []jetbus.Event
	write := func(bus jetbus.Publisher, n int) {
		for range n {
			i := len(log)
			receipt, err := bus.Publish(r.ctx, jetbus.Event{Topic: topic, Key: fmt.Sprint(i % 50), Payload: fmt.Append(nil, i)})
			r.wantNil(err)
			log = append(log, receipt.Event)
		}
	}
	write(r.A, 120)
	scans := map[uint64]map[string]jetbus.Event{}
	var writer sync.WaitGroup
	writer.Go(func() { write(r.B, 200) })
	for range 5 {
		state := map[string]jetbus.Event{}
		asOf, err := r.store().ScanLatest(r.ctx, topic, jetbus.LatestQuery{}, func(e jetbus.Event) error {
			state[e.Key] = e
			return nil
		})
		r.wantNil(err)
		scans[asOf] = state
	}
	writer.Wait()
	for asOf, state := range scans {
		want := map[string]jetbus.Event{}
		for _, e := range log {
			if e.Seq <= asOf {
				want[e.Key] = e
			}
		}
		if stateText(state) != stateText(want) {
			r.Errorf("as of %d: got %s, want %s", asOf, stateText(state), stateText(want))
		}
	}
}

func manyKeys(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{Compact: true})
	odd := []string{"_", "S", "P1", ".", "a.b", "*", ">", "%", "%41", "a b", "\u00fc", "\u2603", strings.Repeat("k", jetbus.MaxKeyBytes)}
	all := append(keys(1025-len(odd)), odd...)
	events := make([]jetbus.Event, len(all))
	for i, key := range all {
		events[i] = jetbus.Event{Topic: topic, Key: key, Payload: fmt.Appendf(nil, "%q", key)}
	}
	_, err := r.A.(jetbus.Batcher).PublishBatch(r.ctx, events, jetbus.BatchOptions{})
	r.must(err)
	for _, n := range []int{0, 1023, 1024, 1025} {
		r.eventually(fmt.Sprint(n, " keys"), func() error {
			state, err := r.store().LatestByKey(r.ctx, topic, all[len(all)-n:]...)
			for key, e := range state {
				if e.Key != key || string(e.Payload) != fmt.Sprintf("%q", key) {
					err = errors.Join(err, fmt.Errorf("key %q has %+v", key, e))
				}
			}
			if err == nil && len(state) != n {
				err = fmt.Errorf("%d keys, want %d", len(state), n)
			}
			return err
		})
	}
	n := 0
	_, err = r.store().ScanLatest(r.ctx, topic, jetbus.LatestQuery{KeyPrefix: "%"}, func(jetbus.Event) error { n++; return nil })
	r.must(err)
	if n != 2 {
		r.Errorf("%d keys begin with %%, want 2", n)
	}
}

func snapshotTopic(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{KeyInSubject: true, Retention: -1}) // files in a bubble would age
	r.put(topic, "a", "1")
	r.put(topic, "b", "2")
	snapshot := r.declare("t.snapshot", jetbus.TopicConfig{SnapshotOf: topic})
	last := r.put(topic, "a", "3")
	topics := r.A.(jetbus.Topics)
	r.eventually("the snapshot", func() error {
		info, err := topics.TopicInfo(r.ctx, snapshot)
		if err == nil && (info.Lag != 0 || info.Events != 2) {
			err = fmt.Errorf("info %+v", info)
		}
		return err
	})
	r.stateIs(snapshot, "a=3 b=2", "a", "b")
	if asOf := r.scanIs(snapshot, "a=3 b=2"); asOf != last.Seq {
		r.Errorf("the scan is as of %d, want %d", asOf, last.Seq)
	}
	state, err := r.store().LatestByKey(r.ctx, snapshot, "a")
	r.must(err)
	if e := state["a"]; e.Seq != last.Seq || e.Topic != topic || e.ID != last.ID {
		r.Errorf("event %+v, want %+v", e, last)
	}
	_, err = r.A.Publish(r.ctx, jetbus.Event{Topic: snapshot, Key: "a"})
	wantErr(r.T, "publish to a snapshot", err, jetbus.ErrUnsupported)
	for _, err := range r.store().Scan(r.ctx, snapshot, jetbus.ScanQuery{From: jetbus.AfterSeq(1)}) {
		wantErr(r.T, "a position in a snapshot", err, jetbus.ErrUnsupported)
	}
	_, err = r.A.Subscribe(r.ctx, snapshot, "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{})
	wantErr(r.T, "a group of a snapshot", err, jetbus.ErrUnsupported)
	wantErr(r.T, "delete a topic with a snapshot", topics.DeleteTopic(r.ctx, topic), jetbus.ErrConflict)
	r.bury(topic, "a")
	r.stateIs(snapshot, "b=2", "a", "b")
	r.must(topics.DeleteTopic(r.ctx, snapshot))
	r.must(topics.DeleteTopic(r.ctx, topic))
}

func stateAtTime(r *run) {
	topic := r.declare("t", jetbus.TopicConfig{KeyInSubject: true})
	at := func(t time.Time) jetbus.State {
		r.Helper()
		s, err := r.store().StateAt(r.ctx, topic, t)
		r.must(err)
		return s
	}
	if s := at(time.Now()); len(s.Events) != 0 || !s.Exact {
		r.Errorf("without events: %+v", s)
	}
	r.put(topic, "a", "1")
	first := at(time.Now().Add(time.Hour))
	r.pause(20 * time.Millisecond)
	second := r.put(topic, "b", "2")
	r.put(topic, "a", "3")
	for when, want := range map[time.Time]string{
		first.Time:                            "a=1", // by the broker's clock, itself included
		first.Time.Add(1):                     "a=1",
		first.Time.Add(1000 * 24 * time.Hour): "a=3 b=2",
	} {
		if s := at(when); stateText(s.Events) != want || !s.Exact {
			r.Errorf("at %v after the first: %s, want %s, exact %v", when.Sub(first.Time), stateText(s.Events), want, s.Exact)
		}
	}
	if first.AsOf >= second.Seq || !first.Exact {
		r.Errorf("the first state: %+v", first)
	}
	_, err := r.store().StateAt(r.ctx, topic, first.Time.Add(-1))
	wantErr(r.T, "before the first event", err, jetbus.ErrBeyondHorizon)
	compacted := r.declare("c", jetbus.TopicConfig{Compact: true})
	r.put(compacted, "z", "0")
	r.put(compacted, "a", "1")
	topic = compacted
	then := at(time.Now().Add(time.Hour))
	r.pause(20 * time.Millisecond)
	r.put(compacted, "a", "2")
	if s := at(then.Time); s.Exact || stateText(s.Events) != "z=0" {
		r.Errorf("what has given way: %s, exact %v", stateText(s.Events), s.Exact)
	}
}
