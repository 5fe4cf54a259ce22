package adapter

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
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
		subjects[i] = eventSubject("ev", "k", keyToken(key))
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
}
