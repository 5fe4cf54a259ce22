package jetbus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

func TestDeadLetterQueryValidate(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		q    jetbus.DeadLetterQuery
		want error
	}{
		"the topic alone":      {orders, nil},
		"all of it":            {jetbus.DeadLetterQuery{Topic: "a", Group: "g", Since: now, Until: now.Add(1), Seqs: []uint64{9, 1}, UpToSeq: 1, Created: now, Limit: 1}, nil},
		"no topic":             {jetbus.DeadLetterQuery{}, jetbus.ErrInvalidTopic},
		"a dead-letter topic":  {jetbus.DeadLetterQuery{Topic: "dlq.a"}, jetbus.ErrInvalidTopic},
		"a bad group":          {jetbus.DeadLetterQuery{Topic: "a", Group: "a b"}, jetbus.ErrInvalidGroup},
		"a negative limit":     {jetbus.DeadLetterQuery{Topic: "a", Limit: -1}, jetbus.ErrInvalidOption},
		"position 0":           {jetbus.DeadLetterQuery{Topic: "a", Seqs: []uint64{1, 0}}, jetbus.ErrInvalidOption},
		"none up to there":     {jetbus.DeadLetterQuery{Topic: "a", Seqs: []uint64{3, 2}, UpToSeq: 1}, jetbus.ErrInvalidOption},
		"made in a far year":   {jetbus.DeadLetterQuery{Topic: "a", Created: time.UnixMilli(1 << 52)}, jetbus.ErrInvalidOption},
		"times turned around":  {jetbus.DeadLetterQuery{Topic: "a", Since: now, Until: now}, jetbus.ErrInvalidOption},
		"a year of six digits": {jetbus.DeadLetterQuery{Topic: "a", Since: time.UnixMilli(1 << 52)}, jetbus.ErrInvalidOption},
	} {
		check(t, name, tt.q.Validate(), tt.want)
		if tt.want == nil {
			continue
		}
		for _, err := range jetbus.DeadLetters(t.Context(), nil, tt.q) {
			check(t, name, err, tt.want)
		}
	}
}

func TestReplayOptionsJSON(t *testing.T) {
	const text = `{"topic":"orders","group":"mailer","reasons":["schema"],"key":"k","id":"i","error":"x","seqs":[1,2],"upToSeq":9,"open":true,"limit":3,` +
		`"since":1750000000000,"until":1750000000001,"created":1750000000002,"rate":0.5,"dryRun":true,"toTopic":"b","force":true}`
	var o jetbus.ReplayOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	check(t, "options", o.Validate(), nil)
	if got, err := json.Marshal(o); err != nil || string(got) != text {
		t.Errorf("got  %s, %v\nwant %s", got, err, text)
	}
	var q jetbus.DeadLetterQuery
	if err := json.Unmarshal([]byte(text), &q); err != nil || !cmp.Equal(q, o.DeadLetterQuery) {
		t.Errorf("%v: %s", err, cmp.Diff(o.DeadLetterQuery, q))
	}
	if got, err := json.Marshal(jetbus.DeadLetterQuery{}); err != nil || string(got) != `{"topic":""}` {
		t.Errorf("%s, %v", got, err)
	}
	if json.Unmarshal([]byte(`{"since":"x"}`), &q) == nil || json.Unmarshal([]byte(`{"rate":"x"}`), &o) == nil {
		t.Error("a text was read as a number")
	}
}

func TestDeadLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		for err := range r.errorsOf(orders) {
			check(r.T, "nothing yet", err, jetbus.ErrNoDeadLetters)
		}
		mailer := r.join("orders", "mailer", errBroken)
		audit := r.join("orders", "audit", nil)
		r.publishNumbered("orders", 1, 3)
		r.waitDead("orders", 3)
		time.Sleep(time.Hour)
		middle := time.Now()
		mailer.set(errors.New("customer 'Jane' is unknown"))
		audit.set(errBroken)
		r.publishNumbered("orders", 4, 5)
		r.waitDead("orders", 7)
		mailer.set(nil)
		_, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "dlq.orders", Key: "x", Payload: []byte(`1`)}) // no dead letter
		r.ok(err)
		if _, err := jetbus.Replay(r.Context(), r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "orders", Seqs: []uint64{2}}}); err != nil {
			r.Fatal(err)
		}
		info, err := r.bus.TopicInfo(r.Context(), "dlq.orders")
		r.ok(err)
		for err := range r.errorsOf(jetbus.DeadLetterQuery{Topic: "orders", Created: info.Created.Add(time.Millisecond)}) {
			check(r.T, "of another topic of that name", err, jetbus.ErrPositionUnknown)
		}
		for name, tt := range map[string]struct {
			q    jetbus.DeadLetterQuery
			want []string
		}{
			"all":        {jetbus.DeadLetterQuery{}, []string{"e1", "e2", "e3", "e4", "e4", "e5", "e5"}},
			"group":      {jetbus.DeadLetterQuery{Group: "mailer"}, []string{"e1", "e2", "e3", "e4", "e5"}},
			"open":       {jetbus.DeadLetterQuery{Group: "mailer", Open: true}, []string{"e1", "e3", "e4", "e5"}},
			"reason":     {jetbus.DeadLetterQuery{Reasons: []jetbus.DeadReason{jetbus.DeadSchema, jetbus.DeadRejected}, Group: "audit"}, []string{"e4", "e5"}},
			"no reason":  {jetbus.DeadLetterQuery{Reasons: []jetbus.DeadReason{jetbus.DeadSchema}}, nil},
			"since":      {jetbus.DeadLetterQuery{Since: middle, Group: "mailer"}, []string{"e4", "e5"}},
			"until":      {jetbus.DeadLetterQuery{Until: middle}, []string{"e1", "e2", "e3"}},
			"later":      {jetbus.DeadLetterQuery{Since: time.Now().Add(time.Hour)}, nil},
			"key":        {jetbus.DeadLetterQuery{Key: "k0", Group: "mailer"}, []string{"e2", "e4"}},
			"id":         {jetbus.DeadLetterQuery{ID: "e3"}, []string{"e3"}},
			"error":      {jetbus.DeadLetterQuery{Error: "refused"}, []string{"e1", "e2", "e3", "e4", "e5"}},
			"positions":  {jetbus.DeadLetterQuery{Seqs: []uint64{3, 1, 3, 99, 8}}, []string{"e1", "e3"}},
			"up to":      {jetbus.DeadLetterQuery{UpToSeq: 3}, []string{"e1", "e2", "e3"}},
			"some of it": {jetbus.DeadLetterQuery{Seqs: []uint64{3, 1, 2}, UpToSeq: 2}, []string{"e1", "e2"}},
			"to the end": {jetbus.DeadLetterQuery{UpToSeq: 99, Group: "mailer"}, []string{"e1", "e2", "e3", "e4", "e5"}},
			"created":    {jetbus.DeadLetterQuery{Created: info.Created.Truncate(time.Millisecond), Limit: 1}, []string{"e1"}},
			"limit":      {jetbus.DeadLetterQuery{Limit: 2}, []string{"e1", "e2"}},
		} {
			tt.q.Topic = "orders"
			got := ids(r.dead(tt.q))
			if name == "all" { // there is no order between groups
				slices.Sort(got)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				r.Errorf("%s: %s", name, diff)
			}
		}
		for d, err := range jetbus.DeadLetters(r.Context(), r.bus, orders) {
			r.ok(err)
			if d.Event.Seq != 1 || d.Group != "mailer" || d.Reason != jetbus.DeadRejected || d.Error != errBroken.Error() || d.Stream == "" || d.StreamCreated.IsZero() || d.ID == "" {
				r.Errorf("%+v", d)
			}
			break
		}
		r.stats()
	})
}

// errorsOf returns the errors of a query.
func (r *rig) errorsOf(q jetbus.DeadLetterQuery) func(func(error) bool) {
	return func(yield func(error) bool) {
		for _, err := range jetbus.DeadLetters(r.Context(), r.bus, q) {
			if !yield(err) {
				return
			}
		}
	}
}

// stats checks the counts of what TestDeadLetters left.
func (r *rig) stats() {
	r.Helper()
	s, err := jetbus.DeadLetterStats(r.Context(), r.bus, "orders")
	r.ok(err)
	if s.Total != 7 || s.Open != 6 || s.Replayed != 1 || s.Foreign != 1 || !s.Newest.After(s.Oldest.Add(time.Hour)) {
		r.Errorf("%+v", s)
	}
	short := func(list []jetbus.DeadLetterCount) (out []string) {
		for _, c := range list {
			out = append(out, fmt.Sprintf("%s: %d, %d open", c.Name, c.Total, c.Open))
		}
		return out
	}
	want := [][]string{
		{"mailer: 5, 4 open", "audit: 2, 2 open"},
		{"rejected: 7, 6 open"},
		{"dial tcp #: connection refused: 5, 4 open", `customer "*" is unknown: 2, 2 open`},
	}
	if diff := cmp.Diff(want, [][]string{short(s.Groups), short(s.Reasons), short(s.Errors)}); diff != "" {
		r.Error(diff)
	}
	if c := s.Errors[1]; c.Example != "customer 'Jane' is unknown" || c.Seq == 0 || c.Newest.IsZero() {
		r.Errorf("%+v", c)
	}
	text, err := json.Marshal(s)
	r.ok(err)
	var again jetbus.DeadLetterSummary
	r.ok(json.Unmarshal(text, &again))
	if diff := cmp.Diff(s, again, cmpopts.EquateApproxTime(time.Millisecond)); diff != "" {
		r.Error(diff)
	}
	_, err = jetbus.DeadLetterStats(r.Context(), r.bus, "payments")
	check(r.T, "a topic without dead letters", err, jetbus.ErrNoDeadLetters)
	if got, want := fmt.Sprint(err), "dead letters of payments: no such dead letters: there are none"; got != want {
		r.Errorf("a topic without dead letters: %s, want %s", got, want)
	}
	_, err = jetbus.DeadLetterStats(r.Context(), r.bus, "dlq.orders")
	check(r.T, "a topic of dead letters", err, jetbus.ErrInvalidTopic)
}

func TestPurgeDeadLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		r.topic("payments")
		r.join("orders", "mailer", errBroken)
		r.join("payments", "mailer", errBroken)
		r.publishNumbered("orders", 1, 230)
		r.publishNumbered("payments", 1, 2)
		r.waitDead("orders", 230)
		r.waitDead("payments", 2)
		purge := func(q jetbus.DeadLetterQuery, want, left int, wantErr error) {
			r.Helper()
			n, err := jetbus.PurgeDeadLetters(r.Context(), r.bus, q)
			check(r.T, "purge", err, wantErr)
			if now := len(r.dead(orders)); n != want || now != left {
				r.Errorf("removed %d, want %d; %d are left, want %d", n, want, now, left)
			}
		}
		purge(jetbus.DeadLetterQuery{Topic: "orders", Group: "audit"}, 0, 230, jetbus.ErrNoDeadLetters)
		purge(jetbus.DeadLetterQuery{Topic: "orders", ID: "e7"}, 1, 229, nil)
		purge(jetbus.DeadLetterQuery{Topic: "orders", UpToSeq: r.dead(orders)[9].Seq}, 10, 219, nil)
		purge(jetbus.DeadLetterQuery{Topic: "orders", Limit: 105}, 105, 114, nil)
		purge(orders, 114, 0, nil)
		purge(orders, 0, 0, jetbus.ErrNoDeadLetters)
		if got := ids(r.dead(jetbus.DeadLetterQuery{Topic: "payments"})); len(got) != 2 {
			r.Errorf("of another topic %v are left", got)
		}
	})
}

// Purges side by side remove each dead letter once, and keep no replay from its work.
func TestPurgeBesideOthers(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.topic("orders")
		mailer := r.join("orders", "mailer", errBroken)
		const many = 150 // more than a page
		r.publishNumbered("orders", 1, many)
		r.waitDead("orders", many)
		mailer.set(nil)
		other, _ := r.open()
		var removed [2]int
		var replayed jetbus.ReplayStats
		var all sync.WaitGroup
		for i, b := range []*adapter.Bus{r.bus, other} {
			all.Go(func() {
				n, err := jetbus.PurgeDeadLetters(r.Context(), b, orders)
				var want error
				if n == 0 { // the other was quicker with each of them
					want = jetbus.ErrNoDeadLetters
				}
				check(r.T, fmt.Sprintf("purge %d that removed %d", i, n), err, want)
				removed[i] = n
			})
		}
		all.Go(func() {
			var err error
			if replayed, err = jetbus.Replay(r.Context(), r.bus, jetbus.ReplayOptions{DeadLetterQuery: orders}); err != nil {
				r.Errorf("replay: %v", err)
			}
		})
		all.Wait()
		if left := len(r.dead(orders)); removed[0]+removed[1] != many || left != 0 {
			r.Errorf("removed %v of %d, %d are left", removed, many, left)
		}
		if got := mailer.handled(); len(got) != replayed.Replayed || replayed.Replayed != replayed.Matched {
			r.Errorf("mailer got %d events, the replay says %+v", len(got), replayed)
		}
	})
}

func TestErrorFingerprint(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"no room":                       "no room",
		"order 17 of 4,711 is bad":      "order # of # is bad",
		`user "Jane \"J\" Doe" unknown`: `user "*" unknown`,
		"can't find 'x', won't try":     `can't find "*", won't try`,
		"row `a b` locked":              `row "*" locked`,
		"event 0197A3C4-5b6d-7e8f-9a0b-1c2d3e4f5a6b": "event #",
		"commit deadbeefcafe at 0x1F":                "commit # at #",
		"after 1.5s, 10.0.0.7:4222":                  "after #s, #",
		"face the facade":                            "face the facade",
		"\xff":                                       "?",
	} {
		if got := jetbus.ErrorFingerprint(text); got != want {
			t.Errorf("fingerprint of %q is %q, want %q", text, got, want)
		}
	}
	long := strings.Repeat("\u00e9 x ", 100)
	if got := jetbus.ErrorFingerprint(long); len(got) > 200 || len(got) < 195 {
		t.Errorf("a fingerprint of %d bytes", len(got))
	}
}
