package adapter

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// The server sends so many bytes of last messages and no more: the others are asked for,
// and keys that have events do not look as if they had none.
func TestLatestBeyondWhatTheServerSends(t *testing.T) {
	t.Parallel()
	bus, _ := movable(t)
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "k", KeyInSubject: true}); err != nil {
		t.Fatal(err)
	}
	keys := strings.Split("abcde", "")
	subjects := make([]string, len(keys))
	for i, key := range keys {
		subjects[i] = "ev.k.K." + ce.KeyToken(key)
		if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "k", Key: key, Payload: []byte(`"0123456789"`)}); err != nil {
			t.Fatal(err)
		}
	}
	for most, stop := range map[int]int{1: 0, 1000: 0, 1 << 20: 0, 2: 3} {
		var got []string
		err := bus.directGet(t.Context(), "EV_K", directRequest{MultiLast: subjects, MaxBytes: most}, func(m *nats.Msg, _ uint64, _ time.Time) bool {
			got = append(got, m.Subject)
			return len(got) != stop
		})
		want := subjects
		if stop > 0 {
			want = subjects[:stop]
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%d bytes at once: %v, %v", most, got, err)
		}
	}
	for atLeast, want := range map[uint64]error{1: nil, 5: nil, 6: errBehind} { // each answer says how far it is
		request := directRequest{MultiLast: subjects, MaxBytes: 1, atLeast: atLeast}
		err := bus.directGet(t.Context(), "EV_K", request, func(*nats.Msg, uint64, time.Time) bool { return true })
		if !errors.Is(err, want) {
			t.Errorf("as of %d at least: %v, want %v", atLeast, err, want)
		}
	}
}

// The server may count a message as pending that it then passes over. A scan that comes to
// the end all the same is as of the end, and not of a position that nobody has stored yet:
// whoever went on from there would be refused, or miss an event.
func TestLatestPendingThatNeverComes(t *testing.T) {
	t.Parallel()
	bus, _ := movable(t)
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "k", KeyInSubject: true}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b", "c"} {
		if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "k", Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	topic, err := bus.keyedTopic(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	s := &latestScan{b: bus, t: topic}
	for seq, pending := range []uint64{3, 2, 1, 1} { // of a consumer that begins, then behind each message
		step := func() (bool, error) { return s.passed(t.Context(), ackReply{seq: uint64(seq), pending: pending}) }
		if seq == 0 {
			step = func() (bool, error) { return s.begin(t.Context(), pending) }
		}
		done, err := step()
		if err != nil || done != (seq == 3) {
			t.Fatalf("behind %d: done %t, %v", seq, done, err)
		}
	}
	if s.asOf != 3 {
		t.Errorf("as of %d, want 3", s.asOf)
	}
	// A gap has the goal found out anew, with one pending that does not come.
	s = &latestScan{b: bus, t: topic, at: 2, gap: 2, goal: 4, end: 3, goalGap: 2}
	if done, err := s.passed(t.Context(), ackReply{seq: 3}); !done || err != nil || s.asOf != 3 {
		t.Errorf("done %t as of %d, %v; want 3", done, s.asOf, err)
	}
}

// A replica that answers is not there yet: a server has just come up, or knows of none.
func TestDirectGetAwaitsWhoAnswers(t *testing.T) {
	bus, nc, js := internalBus(t)
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "a"}); err != nil {
		t.Fatal(err)
	}
	looks := 0
	bus.api, bus.js.JetStream = "fake.", watched{js, func() {
		if looks++; looks == 2 { // it has been asked twice in vain
			if _, err := nc.Subscribe("fake.DIRECT.GET.EV_A", func(m *nats.Msg) {
				if err := nc.PublishRequest("$JS.API.DIRECT.GET.EV_A", m.Reply, m.Data); err != nil {
					t.Error(err)
				}
			}); err != nil {
				t.Error(err)
			}
		}
	}}
	defer func() { bus.api, bus.js.JetStream = "$JS.API.", js }()
	var got []uint64
	err := bus.directGet(t.Context(), "EV_A", directRequest{Seq: 1, NextBySubject: "ev.a.>", Batch: 1}, func(_ *nats.Msg, seq uint64, _ time.Time) bool {
		got = append(got, seq)
		return true
	})
	if err != nil || !slices.Equal(got, []uint64{1}) || looks != 2 {
		t.Errorf("got %v, %v, after %d looks at the stream", got, err, looks)
	}
}

// watched is a JetStream that tells that a stream is looked up.
type watched struct {
	jetstream.JetStream

	tell func()
}

func (w watched) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	w.tell()
	return w.JetStream.Stream(ctx, name)
}
