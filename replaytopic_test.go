package jetbus_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
)

// events reads a topic from the start.
func (r *rig) events(topic string) []jetbus.Event {
	r.Helper()
	var list []jetbus.Event
	for e, err := range r.bus.Scan(r.Context(), topic, jetbus.ScanQuery{}) {
		r.ok(err)
		list = append(list, e)
	}
	return list
}

// To a topic each event is published once, for all groups, however many could
// not process it.
func TestReplayToTopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer, audit := r.join("orders", "mailer", errBroken), r.join("orders", "audit", errBroken)
		r.publishNumbered("orders", 1, 2)
		r.waitDead("orders", 4)
		mailer.set(nil)
		audit.set(nil)
		o := jetbus.ReplayOptions{DeadLetterQuery: orders, ToTopic: "orders", DryRun: true}
		want := jetbus.ReplayStats{Read: 4, Matched: 4, Replayed: 2, Already: 2}
		r.replay(r.bus, o, want, nil)
		o.DryRun = false
		r.replay(r.bus, o, want, nil)
		log := r.events("orders")
		if len(log) != 4 {
			r.Fatalf("%d events in the topic, want 4", len(log))
		}
		for i, e := range log[2:] {
			if e.ID == log[i].ID || !slices.Equal(e.CausedBy, []string{log[i].ID}) || e.Key != log[i].Key || string(e.Payload) != string(log[i].Payload) || !e.Time.Equal(log[i].Time) {
				r.Errorf("replayed as %+v", e)
			}
		}
		for _, g := range []*group{mailer, audit} {
			if got := g.handled(); !slices.Equal(got, []string{log[2].ID, log[3].ID}) {
				r.Errorf("a group got %v", got)
			}
		}
		none := jetbus.ReplayStats{Read: 4, Matched: 4, Already: 4}
		r.replay(r.bus, o, none, nil)
		for _, d := range r.dead(orders) {
			if d.Replayed.IsZero() {
				r.Errorf("dead letter %d of %s is open", d.Seq, d.Group)
			}
		}
		o.Force = true
		r.replay(r.bus, o, want, nil)
		if n := len(r.events("orders")); n != 6 {
			r.Errorf("%d events in the topic after one more by force, want 6", n)
		}
		// Another target is another matter.
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Read: 4, Matched: 4, Replayed: 4}, nil)
		r.topic("orders.repaired")
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders, ToTopic: "orders.repaired"}, want, nil)
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}, jetbus.ReplayStats{Matched: 4, Already: 4}, nil)
	})
}

// keys counts the keys of a bucket that start so.
func (r *rig) keys(bucket, prefix string) (n int) {
	r.Helper()
	for entry, err := range r.bus.KeyWatch(r.Context(), bucket, prefix) {
		r.ok(err)
		if entry.Synced {
			break
		}
		n++
	}
	return n
}

// Topics that keep state take old events by force only.
func TestReplayToState(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 1)
		r.waitDead("orders", 1)
		mailer.set(nil)
		r.topic("plain")
		snapshot := jetbus.TopicInfo{Config: jetbus.TopicConfig{Name: "plain.snapshot", SnapshotOf: "plain"}}
		compacted := jetbus.TopicInfo{Config: jetbus.TopicConfig{Name: "plain", Compact: true}}
		for name, b := range map[string]*stateful{
			"with a snapshot": {faulty: faulty{Bus: r.bus}, list: []jetbus.TopicInfo{snapshot}},
			"compacted":       {faulty: faulty{Bus: r.bus}, info: &compacted},
			"a snapshot":      {faulty: faulty{Bus: r.bus}, info: &snapshot},
		} {
			o := jetbus.ReplayOptions{DeadLetterQuery: orders, ToTopic: "plain"}
			if stats, err := jetbus.Replay(r.Context(), b, o); !errors.Is(err, jetbus.ErrConflict) || stats != (jetbus.ReplayStats{}) {
				r.Errorf("%s: %+v, %v", name, stats, err)
			}
			o.Force, o.DryRun = true, true
			r.replay(b, o, jetbus.ReplayStats{Read: 1, Matched: 1, Replayed: 1}, nil)
		}
		r.replay(r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders, ToTopic: "nothing"}, jetbus.ReplayStats{}, jetbus.ErrNoTopic)
		if n := len(r.events("plain")); n != 0 {
			r.Errorf("%d events were stored", n)
		}
	})
}

// stateful is a bus whose topics are said to keep state.
type stateful struct {
	faulty
	info *jetbus.TopicInfo
	list []jetbus.TopicInfo
}

func (s *stateful) TopicInfo(ctx context.Context, topic string) (jetbus.TopicInfo, error) {
	if s.info != nil && !jetbus.IsDeadLetterTopic(topic) {
		return *s.info, nil
	}
	return s.Bus.TopicInfo(ctx, topic)
}

func (s *stateful) ListTopics(context.Context) ([]jetbus.TopicInfo, error) { return s.list, nil }

// A replay that died before or after it had published an event is followed by
// one that publishes what is missing and nothing else, also long after the topic
// has forgotten the ids.
func TestReplayToTopicAfterDeath(t *testing.T) {
	for name, b := range map[string]*faulty{
		"before": {publish: func(jetbus.Event) error { return errCut }},
		"after":  {after: func(jetbus.Event) error { return errCut }},
		"noting": {keySet: func(value []byte) error {
			if strings.Contains(string(value), `"done":true`) {
				return errCut
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.topic("orders")
				r.topic("repaired")
				r.join("orders", "mailer", errBroken)
				r.publishNumbered("orders", 1, 3)
				r.waitDead("orders", 3)
				b.Bus = r.bus
				o := jetbus.ReplayOptions{DeadLetterQuery: orders, ToTopic: "repaired"}
				r.replay(b, o, jetbus.ReplayStats{Read: 1}, errCut)
				time.Sleep(time.Hour)
				want := jetbus.ReplayStats{Read: 3, Matched: 3, Replayed: 3}
				if name != "before" {
					want.Replayed, want.Already = 2, 1
				}
				o.DryRun = true
				r.replay(r.bus, o, want, nil)
				o.DryRun = false
				r.replay(r.bus, o, want, nil)
				r.replay(r.bus, o, jetbus.ReplayStats{Read: 3, Matched: 3, Already: 3}, nil)
				var causes []string
				for _, e := range r.events("repaired") {
					causes = append(causes, e.CausedBy...)
				}
				if diff := cmp.Diff([]string{"e1", "e2", "e3"}, causes); diff != "" {
					r.Error(diff)
				}
			})
		})
	}
}

// An event that the topic does not take keeps no other from it, and can be taken later.
func TestReplayToTopicRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		r.topic("repaired")
		r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 2)
		r.waitDead("orders", 2)
		b := &faulty{Bus: r.bus, publish: func(e jetbus.Event) error {
			if e.CausedBy[0] == "e1" {
				return jetbus.ErrPayloadTooLarge
			}
			return nil
		}}
		o := jetbus.ReplayOptions{DeadLetterQuery: orders, ToTopic: "repaired"}
		r.replay(b, o, jetbus.ReplayStats{Read: 2, Matched: 2, Replayed: 1, Failed: 1}, jetbus.ErrPayloadTooLarge)
		if marks := r.keys("JETBUS_REPLAYS", "mark/"); marks != 1 {
			r.Errorf("%d marks, want that of the one that was published", marks)
		}
		r.replay(r.bus, o, jetbus.ReplayStats{Read: 2, Matched: 2, Replayed: 1, Already: 1}, nil)
	})
}

// Two replays to a topic at once publish each event once.
func TestReplayToTopicTwiceAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		r.topic("repaired")
		r.join("orders", "mailer", errBroken)
		r.publishNumbered("orders", 1, 2)
		r.waitDead("orders", 2)
		o := jetbus.ReplayOptions{DeadLetterQuery: orders, ToTopic: "repaired"}
		inside := &faulty{Bus: r.bus}
		inside.publish = func(jetbus.Event) error { // the other one does all while this one is about to
			inside.publish = nil
			r.replay(r.bus, o, jetbus.ReplayStats{Read: 2, Matched: 2, Replayed: 2}, nil)
			return nil
		}
		r.replay(inside, o, jetbus.ReplayStats{Read: 2, Matched: 2, Already: 2}, nil)
		if n := len(r.events("repaired")); n != 2 {
			r.Errorf("%d events were stored, want 2", n)
		}
	})
}
