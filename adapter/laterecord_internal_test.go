package adapter

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// What a lease that has run out makes of what is there, where that is not what it knew.
func TestLateRecordOf(t *testing.T) {
	_, nc, js := directStream(t)
	bus := openBus(t, nc, Config{})
	const stored = 7
	for seq, c := range []struct {
		what         string
		known, there *record // of the lease; nil: none
		delivery     int
		again        bool // the first answer was lost
		want         record
	}{
		{what: "nobody else", known: &record{}, delivery: 1, want: record{Failed: 1, Known: 1}},
		{what: "stored, and the answer lost", known: &record{Failed: 1, Known: 1}, delivery: 2, again: true, want: record{Failed: 2, Known: 2}},
		{what: "a retry whose record has gone", known: &record{Failed: 4}, delivery: 2, want: record{Failed: 5, Known: 2}},
		{what: "given back by the next", known: &record{}, there: &record{Known: 2, Stored: stored}, delivery: 1, want: record{Failed: 1, Known: 2}},
		{what: "running alone now", known: &record{}, there: &record{Started: 2, Stored: stored}, delivery: 1, want: record{Failed: 1, Known: 1, Started: 2}},
		{what: "counted by the next", known: &record{Started: 1}, there: &record{Failed: 1, Known: 2, Stored: stored}, delivery: 1, want: record{Failed: 1, Known: 2}},
		{what: "a process has died before", known: &record{}, there: &record{Started: 1, Stored: stored}, delivery: 3, want: record{Failed: 2, Known: 3}},
		{what: "of an earlier event", known: &record{Failed: 1}, there: &record{Failed: 9, Stored: stored - 1}, delivery: 2, want: record{Failed: 2, Known: 2}},
		{what: "of a later event", known: &record{Failed: 1}, there: &record{Failed: 9, Stored: stored + 1}, delivery: 2, want: record{Failed: 9}},
	} {
		t.Run(c.what, func(t *testing.T) {
			l := &lease{t: &topic{stream: "D"}, consumer: "g", seq: uint64(seq + 1), stored: stored, deliveries: c.delivery, record: c.known}
			l.base = 999 // what was known has gone
			if c.there != nil {
				if _, err := bus.writeKey(t.Context(), "put", attemptsBucket, l.attemptKey(), mustJSON(t, c.there), expiring(time.Hour), 0); err != nil {
					t.Fatal(err)
				}
			}
			r, _ := l.record.ranOut(l, time.Now())
			if c.again {
				l.base = 0
				if refused, err := bus.writeLateOnce(t.Context(), []*lease{l}, []record{r}); err != nil || len(refused) > 0 {
					t.Fatal(refused, err)
				}
			}
			if err := bus.writeLate(t.Context(), []*lease{l}, []record{r}); err != nil {
				t.Fatal(err)
			}
			kv, err := js.KeyValue(t.Context(), attemptsBucket)
			if err != nil {
				t.Fatal(err)
			}
			got := recordAt(t, kv, l.attemptKey())
			if got.Failed != c.want.Failed || got.Known != c.want.Known || got.Started != c.want.Started {
				t.Errorf("record %+v, want %+v", got, c.want)
			}
		})
	}
}

// Attempts that could not be read when an event came are not forgotten when it is refused.
func TestUnreadRecord(t *testing.T) {
	_, nc, js := directStream(t)
	bus := openBus(t, nc, Config{})
	for seq, c := range []struct {
		what  string
		there *record
		retry *retryOrigin
		want  int // failed
	}{
		{what: "nothing there", want: 1},
		{what: "three attempts", there: &record{Failed: 3, Known: 3}, want: 4},
		{what: "a retry", there: &record{Failed: 5}, retry: &retryOrigin{Failed: 4}, want: 6},
		{what: "a retry, nothing there", retry: &retryOrigin{Failed: 4}, want: 5},
		{what: "of an earlier event", there: &record{Failed: 3, Stored: 6}, want: 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			l := &lease{t: &topic{stream: "D"}, consumer: "g", seq: uint64(seq + 1), stored: 7, deliveries: 4, unread: true, retry: c.retry, record: &record{}}
			if c.retry != nil {
				l.record.Failed = c.retry.Failed
			}
			if c.there != nil {
				if c.there.Stored == 0 {
					c.there.Stored = l.stored
				}
				if _, err := bus.writeKey(t.Context(), "put", attemptsBucket, l.attemptKey(), mustJSON(t, c.there), expiring(time.Hour), 0); err != nil {
					t.Fatal(err)
				}
			}
			l.record.fail(errLost, time.Now())
			for range 2 { // what is written again is not counted again
				if _, err := bus.keepRecords(t.Context(), []*lease{l}, 0); err != nil {
					t.Fatal(err)
				}
			}
			kv, err := js.KeyValue(t.Context(), attemptsBucket)
			if err != nil {
				t.Fatal(err)
			}
			if got := recordAt(t, kv, l.attemptKey()); got.Failed != c.want || l.record.Failed != c.want || l.unread {
				t.Errorf("record %+v, in hand %+v, unread %v; want %d failed", got, *l.record, l.unread, c.want)
			}
		})
	}
}

// A record that says that its event was started alone stays where the one that says how that
// ended cannot be written: this process has not died of it.
func TestUnwrittenEnd(t *testing.T) {
	_, nc, js := directStream(t)
	bus := openBus(t, nc, Config{})
	delivery := func(n int) *lease {
		return &lease{t: &topic{stream: "D"}, consumer: "g", seq: 1, stored: 7, deliveries: n, p: &puller{}}
	}
	first := delivery(2)
	bus.recall(t.Context(), first)
	bus.startAlone(t.Context(), first)
	if first.revision == 0 {
		t.Fatal("not recorded")
	}
	bucket, err := js.Stream(t.Context(), bucketStream(attemptsBucket))
	if err != nil {
		t.Fatal(err)
	}
	config := bucket.CachedInfo().Config
	config.Sealed = true
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	first.record.fail(errLost, time.Now())
	if _, err := bus.keepRecords(t.Context(), []*lease{first}, 0); err == nil {
		t.Fatal("what is sealed was written")
	}
	again := delivery(3)
	if bus.recall(t.Context(), again); again.suspect {
		t.Errorf("suspected of having ended a process that goes on: %+v", *again.record)
	}
	other := delivery(3)
	if openBus(t, nc, Config{}).recall(t.Context(), other); !other.suspect {
		t.Errorf("not suspected where nobody knows how it ended: %+v", *other.record)
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func recordAt(t *testing.T, kv jetstream.KeyValue, key string) record {
	t.Helper()
	entry, err := kv.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	r, ok := parseRecord(entry.Value())
	if !ok {
		t.Fatalf("record %s", entry.Value())
	}
	return r
}
