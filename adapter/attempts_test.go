package adapter

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
)

func FuzzParseRetry(f *testing.F) {
	f.Add(`{"stream":"EV_T","seq":7,"stored":1,"token":"_","failed":2,"first":"2026-01-01T00:00:00Z","error":"e","replayOf":3,"replays":1}`)
	f.Add(`{"stream":"a.b","failed":-1}`)
	f.Add(`{`)
	f.Fuzz(func(t *testing.T, text string) {
		in := &topic{stream: "EV_RETRY"}
		o := parseRetry(nats.Header{headerRetry: {text}}, in, 5, 6)
		if o.Failed < 0 || o.Replays < 0 || o.Stream == "" {
			t.Fatalf("%q is %+v", text, o)
		}
		again, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(o, parseRetry(nats.Header{headerRetry: {string(again)}}, in, 0, 0)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func FuzzRecord(f *testing.F) {
	f.Add(`{"failed":2,"known":3,"stored":1,"started":4,"first":"2026-01-01T00:00:00Z","last":"2026-01-02T00:00:00Z","error":"e","dead":"rejected"}`, 5)
	f.Add(`{"failed":-1}`, 1)
	f.Add(`{"known":9223372036854775807}`, 2)
	f.Fuzz(func(t *testing.T, text string, delivery int) {
		r, ok := parseRecord([]byte(text))
		if !ok || delivery < 1 {
			return
		}
		failed, started := r.Failed, r.Started
		suspect := r.seen(delivery, time.Unix(1, 0))
		if r.Started != 0 || r.Known >= delivery || r.Failed < failed || r.Failed > failed && (started == 0 || !suspect) {
			t.Fatalf("delivery %d of %q: %+v, suspect %v", delivery, text, r, suspect)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
	})
}

// What a delivery shows about those before it.
func TestRecordSeen(t *testing.T) {
	for name, c := range map[string]struct {
		before   record
		delivery int
		want     record
		suspect  bool
	}{
		"nothing known":             {record{}, 2, record{}, true},
		"refused":                   {record{Failed: 1, Known: 1}, 2, record{Failed: 1, Known: 1}, false},
		"refused, then lost":        {record{Failed: 1, Known: 1}, 3, record{Failed: 1, Known: 1}, true},
		"started, never ended":      {record{Known: 1, Started: 2}, 3, record{Failed: 1, Known: 2, Error: errProcessDied.Error()}, true},
		"the server forgot":         {record{Failed: 3, Known: 3}, 2, record{Failed: 3, Known: 1}, true},
		"the server forgot a start": {record{Failed: 1, Known: 1, Started: 2}, 2, record{Failed: 1, Known: 1}, true},
	} {
		r := c.before
		suspect := r.seen(c.delivery, time.Time{})
		if diff := cmp.Diff(c.want, r); diff != "" || suspect != c.suspect {
			t.Errorf("%s: suspect %v\n%s", name, suspect, diff)
		}
	}
}
