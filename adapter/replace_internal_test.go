package adapter

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// movable is a group of three events, as a process sees it that then does not run for
// longer than its lock of the group lives.
func movable(t *testing.T) (*Bus, *topicGroup) {
	t.Helper()
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{})
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	topic, err := bus.known(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	info, err := bus.findGroup(t.Context(), topic, "g")
	if err != nil {
		t.Fatal(err)
	}
	return bus, &topicGroup{topic: topic, group: "g", info: info}
}

func wantPosition(t *testing.T, bus *Bus, want uint64) {
	t.Helper()
	c, err := bus.Cursor(t.Context(), "a", "g")
	if err != nil || c.LastSeq != want {
		t.Errorf("the group is behind %d (%v), want %d", c.LastSeq, err, want)
	}
	topic, err := bus.known(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if all, err := bus.consumersOf(t.Context(), topic.stream); err != nil || len(all) != 1 {
		t.Errorf("%d durables, %v", len(all), err)
	}
}

// An owner that wakes up after the group was moved, once or more often, does not undo it.
func TestReplaceAfterAMove(t *testing.T) {
	for moves := 1; moves <= 3; moves++ {
		t.Run(strconv.Itoa(moves), func(t *testing.T) {
			t.Parallel()
			bus, g := movable(t)
			for seq := range moves {
				if err := bus.SetCursor(t.Context(), "a", "g", jetbus.Cursor{LastSeq: uint64(seq + 1)}, jetbus.SeekOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := bus.replaceConsumer(t.Context(), g, 1, nil); !errors.Is(err, errMoved) {
				t.Errorf("replace: %v", err)
			}
			wantPosition(t, bus, uint64(moves))
		})
	}
}

// Nor does one give a group back the order that it had: others have changed it, while it looked
// as if nobody was there.
func TestReplaceOfAGroupWithAnotherOrder(t *testing.T) {
	t.Parallel()
	_, nc, js := directStream(t)
	bus := openBus(t, nc, Config{})
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	s, err := bus.Subscribe(t.Context(), "a", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{Order: jetbus.PerKey})
	if err == nil {
		err = s.Stop(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	tr := s.(*subscription).owners[0].tracks[0]
	seen, err := bus.findGroup(t.Context(), tr.p.t, "g")
	if err != nil {
		t.Fatal(err)
	}
	changed := seen.Config
	changed.Metadata = maps.Clone(changed.Metadata)
	changed.Metadata[metaOrder] = string(jetbus.Total)
	if _, err := js.UpdateConsumer(t.Context(), "EV_A", changed); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.replaceHeld(t.Context(), &topicGroup{topic: tr.p.t, group: "g", info: seen}); !errors.Is(err, errMoved) {
		t.Errorf("replace: %v", err)
	}
	now, err := bus.findGroup(t.Context(), tr.p.t, "g")
	if err != nil || now.Name != seen.Name || now.Config.Metadata[metaOrder] != string(jetbus.Total) {
		t.Errorf("%+v, %v", now, err)
	}
}

// A mover that comes after such an owner moves the group all the same.
func TestMoveAfterAReplacement(t *testing.T) {
	t.Parallel()
	bus, g := movable(t)
	stale := *g
	if _, err := bus.replaceConsumer(t.Context(), &stale, 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := bus.putAt(t.Context(), g, 3); err != nil {
		t.Fatal(err)
	}
	wantPosition(t, bus, 2)
}

// What a mover has left that died before the old durable was deleted is replaced.
func TestReplaceOfALeftover(t *testing.T) {
	t.Parallel()
	bus, g := movable(t)
	if _, err := bus.createConsumer(t.Context(), g.topic, "g", 1, 2, jetstream.ConsumerConfig{AckWait: g.info.Config.AckWait, MaxAckPending: 7}); err != nil {
		t.Fatal(err)
	}
	if err := bus.putAt(t.Context(), g, 3); err != nil {
		t.Fatal(err)
	}
	wantPosition(t, bus, 2)
}

// overtaken has the durable of a move replaced at the moment in which it is marked.
type overtaken struct {
	jetstream.JetStream

	replace func()
}

func (o *overtaken) UpdateConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if replace := o.replace; replace != nil {
		o.replace = nil
		replace()
	}
	return o.JetStream.UpdateConsumer(ctx, stream, c)
}

// Who completes a move while its mover, which was only slow, does so too, goes on with the group
// as it has become.
func TestCompleteAMoveThatIsOver(t *testing.T) {
	t.Parallel()
	bus, g := movable(t)
	mark := moveMark{seq: 3, until: time.Now()}
	if err := bus.markMove(t.Context(), g, mark.String(), mark.until); err != nil {
		t.Fatal(err)
	}
	bus.js.JetStream = &overtaken{JetStream: bus.js.JetStream, replace: func() {
		if err := bus.putAt(t.Context(), g, 3); err != nil {
			t.Error(err)
		}
	}}
	got, err := bus.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1})
	if err != nil || len(got) != 1 || got[0].Seq != 3 {
		t.Errorf("received %d events, %v", len(got), err)
	}
	wantPosition(t, bus, 2)
}
