package adapter

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// keyFake is the leader of a bucket with one key, which does not answer the first write.
type keyFake struct {
	mu   sync.Mutex
	id   string // of the write that is there; "": none is
	seq  int
	said []string // what was asked
}

// answer returns what the leader says; "": nothing.
func (k *keyFake) answer(m *nats.Msg) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	stored := fmt.Sprintf(`{"stream":"KV_JETBUS_LOCKS","seq":%d}`, k.seq+1)
	switch {
	case m.Header.Get("KV-Operation") != "":
		k.seq, k.id, k.said = k.seq+1, "", append(k.said, "delete")
		return stored
	case m.Header.Get("Nats-Msg-Id") != "" && k.id != "":
		k.said = append(k.said, "again")
		return fmt.Sprintf(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: %d"}}`, k.seq)
	case m.Header.Get("Nats-Msg-Id") != "":
		k.seq, k.id, k.said = k.seq+1, m.Header.Get("Nats-Msg-Id"), append(k.said, "set")
		if len(k.said) == 1 {
			return ""
		}
		return stored
	case k.id == "":
		return `{"error":{"code":404,"err_code":10037,"description":"no message found"}}`
	}
	header := []byte("NATS/1.0\r\nNats-Msg-Id: " + k.id + "\r\n\r\n")
	text, _ := json.Marshal(map[string]any{"message": map[string]any{"subject": "x", "seq": k.seq, "hdrs": header}}) // it has no value that cannot be
	return string(text)
}

// A lock that is confirmed when its life is nearly over would be another's while its
// holder relies on it: it is taken anew.
func TestLockConfirmedLate(t *testing.T) {
	t.Parallel()
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{})
	var k keyFake
	for _, subject := range []string{"$KV.JETBUS_LOCKS.x", "fake.STREAM.MSG.GET.KV_JETBUS_LOCKS"} {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
			if text := k.answer(m); text != "" && nc.Publish(m.Reply, []byte(text)) != nil {
				t.Error("not answered")
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	bus.api = "fake."
	held, err := bus.hold(t.Context(), "x", 2*askTimeout-time.Second)
	if err != nil {
		t.Fatal(err)
	}
	held.unlock(t.Context())
	k.mu.Lock()
	defer k.mu.Unlock()
	said := slices.Compact(slices.Clone(k.said)) // what is answered late is asked for again
	if want := []string{"set", "again", "delete", "set"}; len(said) < len(want) || !slices.Equal(said[:len(want)], want) {
		t.Errorf("asked for %v, want %v", k.said, want)
	}
}

// A lock is extended also behind an extension whose answer was lost, and one that is
// another's by now is not.
func TestLockExtended(t *testing.T) {
	t.Parallel()
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{})
	held, err := bus.hold(t.Context(), "x", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.KeySet(t.Context(), locksBucket, "x", []byte(held.value), held.revision, time.Minute); err != nil {
		t.Fatal(err)
	}
	was := held.until
	if err := held.extend(t.Context()); err != nil || !held.until.After(was) {
		t.Errorf("error %v, until %v, before %v", err, held.until, was)
	}
	if _, err := bus.KeySet(t.Context(), locksBucket, "x", []byte("another's"), held.revision, time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := held.extend(t.Context()); err == nil || !held.until.IsZero() {
		t.Errorf("error %v, until %v", err, held.until)
	}
	held.unlock(t.Context())
	if m, err := bus.keyMessage(t.Context(), locksBucket, "x"); err != nil || string(m.Data) != "another's" {
		t.Errorf("%q, error %v", m.Data, err)
	}
}
