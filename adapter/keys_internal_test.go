package adapter

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus"
)

// TestKeyFilters: a watch asks the server for no less than it wants.
func TestKeyFilters(t *testing.T) {
	for _, c := range []struct {
		prefix string
		want   []string
	}{
		{"", []string{">"}},
		{"group/", []string{">"}},
		{"orders.created/billing/g1/.", []string{"orders.created/billing/g1/.>", "orders.created/billing/g1/=2E"}},
		{"mark/orders.created/", []string{"mark/orders.>"}},
		{".", []string{">"}},
		{"a..", []string{"a.>"}},
	} {
		if got := keyFilters(c.prefix); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.prefix, got, c.want)
		}
	}
	gen := rapid.StringMatching(`[.=/ax]{1,12}`).Filter(func(s string) bool { return jetbus.ValidKey(s) == nil })
	rapid.Check(t, func(t *rapid.T) {
		key := gen.Draw(t, "key")
		prefix := key[:rapid.IntRange(0, len(key)).Draw(t, "bytes of the prefix")]
		escaped := bucketKey(key)
		if !slices.ContainsFunc(keyFilters(prefix), func(f string) bool {
			start, all := strings.CutSuffix(f, ">")
			return f == escaped || all && strings.HasPrefix(escaped, start) && len(escaped) > len(start)
		}) {
			t.Fatalf("key %q, with the prefix %q, passes none of %q", escaped, prefix, keyFilters(prefix))
		}
	})
}

// TestKeyWriteInElection: what a cluster says while it elects a leader is no answer. A
// write that may have been stored before is told from somebody else's by its id.
func TestKeyWriteInElection(t *testing.T) {
	const (
		electing  = `{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`
		pending   = `{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}`
		wrong     = `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}`
		stored    = `{"stream":"KV_b","seq":7}`
		duplicate = `{"stream":"KV_b","seq":7,"duplicate":true}`
	)
	for what, c := range map[string]struct {
		answers []string // "": none
		last    string   // message id of the key's last value; "own": that of the write
		want    error
	}{
		"at once":                          {[]string{stored}, "", nil},
		"no leader, then one":              {[]string{electing, electing, stored}, "", nil},
		"no answer, but stored":            {[]string{"", duplicate}, "", nil},
		"no answer, and found":             {[]string{"", wrong}, "own", nil},
		"no answer, election, and found":   {[]string{"", electing, pending, wrong}, "own", nil},
		"on its way, and found":            {[]string{pending, wrong}, "own", nil},
		"no answer, and somebody else's":   {[]string{"", electing, wrong}, "other", jetbus.ErrWrongSequence},
		"refused at once":                  {[]string{wrong}, "own", jetbus.ErrWrongSequence},
		"refused after nothing was stored": {[]string{electing, wrong}, "own", jetbus.ErrWrongSequence},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			unanswered := 0
			for _, text := range c.answers {
				if text == "" {
					unanswered++
				}
			}
			revision, left, took, err := writeKey(t, c.answers, c.last)
			// In that time an answer came too late, and the next one went to the same question.
			for tries := 1; took >= time.Duration(unanswered+1)*askTimeout && tries < 10; tries++ {
				revision, left, took, err = writeKey(t, c.answers, c.last)
			}
			if !errors.Is(err, c.want) || err == nil && revision != 7 {
				t.Errorf("revision %d, %v, want 7, %v", revision, err, c.want)
			}
			if len(left) > 0 && c.want == nil {
				t.Errorf("answers that nobody asked for: %q", left)
			}
		})
	}
}

// writeKey writes a key at a leader that has one answer to each try, and returns those that
// were not asked for and how long it took. last is the message id of the key's last value.
func writeKey(t *testing.T, answers []string, last string) (revision uint64, left []string, took time.Duration, err error) {
	t.Helper()
	_, nc, _ := directStream(t)
	bus := openBus(t, nc, Config{})
	left, own := answers, ""
	answer := func(m *nats.Msg) { // one after the other: the two subjects are of one subscription
		text := ""
		switch {
		case strings.HasPrefix(m.Subject, "fake."):
			id := last
			if id == "own" {
				id = own
			}
			header := []byte("NATS/1.0\r\nNats-Msg-Id: " + id + "\r\n\r\n")
			body, err := json.Marshal(map[string]any{"message": map[string]any{"subject": "x", "seq": 7, "hdrs": header}})
			if err != nil {
				t.Error(err)
			}
			text = string(body)
		case len(left) > 0:
			own = m.Header.Get("Nats-Msg-Id")
			text, left = left[0], left[1:]
		}
		if text != "" && nc.Publish(m.Reply, []byte(text)) != nil {
			t.Error("not answered")
		}
	}
	messages := make(chan *nats.Msg, 100)
	for _, subject := range []string{"$KV.b.k", "fake.STREAM.MSG.GET.KV_b"} {
		if _, err := nc.ChanSubscribe(subject, messages); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case m := <-messages:
				answer(m)
			case <-done:
				return
			}
		}
	}()
	bus.api = "fake."
	began := time.Now()
	revision, err = bus.KeySet(t.Context(), "b", "k", []byte("v"), 3, 0)
	return revision, left, time.Since(began), err
}
