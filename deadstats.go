package jetbus

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// DeadLetterSummary counts the dead letters of a topic.
type DeadLetterSummary struct {
	Topic    string            `json:"topic"`
	Total    int               `json:"total"`
	Open     int               `json:"open"`     // not replayed
	Replayed int               `json:"replayed"` // in the last 30 days
	Foreign  int               `json:"foreign"`  // events in the dead-letter topic that are no dead letters; not in Total
	Oldest   time.Time         `json:"-"`        // when the first was given up
	Newest   time.Time         `json:"-"`        // when the last was given up
	Groups   []DeadLetterCount `json:"groups"`   // by group, the most first
	Reasons  []DeadLetterCount `json:"reasons"`  // by reason, the most first
	Errors   []DeadLetterCount `json:"errors"`   // by ErrorFingerprint, the most first
}

// DeadLetterCount counts the dead letters that have something in common.
type DeadLetterCount struct {
	Name    string    `json:"name"` // the group, the reason or the fingerprint
	Total   int       `json:"total"`
	Open    int       `json:"open"`
	Oldest  time.Time `json:"-"`
	Newest  time.Time `json:"-"`
	Example string    `json:"example,omitempty"` // the error of the newest
	Seq     uint64    `json:"seq"`               // position of the newest
}

// DeadLetterStats counts the dead letters of a topic, by group, reason and kind
// of error. It reads all of them. The error is [ErrNoDeadLetters] where there are none.
func DeadLetterStats(ctx context.Context, b DeadLetterStore, topic string) (DeadLetterSummary, error) {
	s := DeadLetterSummary{Topic: topic}
	groups, reasons, errs := make(tally), make(tally), make(tally)
	q := DeadLetterQuery{Topic: topic}
	err := q.Validate()
	var w *deadWalk
	if err == nil {
		w, err = newDeadWalk(ctx, b, q)
	}
	if err == nil {
		err = w.run(ctx, func(page []DeadLetter) (bool, error) {
			for i := range page {
				d := &page[i]
				s.Total++
				if d.Replayed.IsZero() {
					s.Open++
				} else {
					s.Replayed++
				}
				groups.add(d.Group, d)
				reasons.add(string(d.Reason), d)
				errs.add(ErrorFingerprint(d.Error), d)
			}
			return true, nil
		})
	}
	if err != nil {
		return s, fmt.Errorf("dead letters of %s: %w", topic, err)
	}
	s.Foreign, s.Groups, s.Reasons, s.Errors = w.foreign, groups.list(), reasons.list(), errs.list()
	for _, c := range s.Groups {
		s.Oldest, s.Newest = earlier(s.Oldest, c.Oldest), later(s.Newest, c.Newest)
	}
	return s, nil
}

// tally counts dead letters by a name.
type tally map[string]*DeadLetterCount

func (t tally) add(name string, d *DeadLetter) {
	c := t[name]
	if c == nil {
		c = &DeadLetterCount{Name: name}
		t[name] = c
	}
	c.Total++
	if d.Replayed.IsZero() {
		c.Open++
	}
	c.Oldest = earlier(c.Oldest, d.Time)
	if c.Seq == 0 || !d.Time.Before(c.Newest) {
		c.Newest, c.Example, c.Seq = d.Time, d.Error, d.Seq
	}
}

func (t tally) list() []DeadLetterCount {
	out := make([]DeadLetterCount, 0, len(t))
	for _, c := range t {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b DeadLetterCount) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), strings.Compare(a.Name, b.Name))
	})
	return out
}

// earlier is the first of two times, where zero is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

const maxFingerprintBytes = 200

// What differs between two errors of one kind.
var (
	quotedText   = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|\\B'[^']*'|`[^`]*`")
	hexadecimal  = regexp.MustCompile(`(?i)\b(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|[0-9a-f]{8,})\b`)
	numberInText = regexp.MustCompile(`[0-9]+(?:[.:,][0-9]+)*`)
)

// ErrorFingerprint is the text of an error without what differs from one event
// to the next, so that errors of one kind count as one: quoted strings are "*",
// UUIDs, hexadecimal ids and numbers are #. It has at most 200 bytes.
func ErrorFingerprint(text string) string {
	text = strings.ToValidUTF8(text, "?")
	text = quotedText.ReplaceAllString(text, `"*"`)
	text = hexadecimal.ReplaceAllString(text, "#")
	text = numberInText.ReplaceAllString(text, "#")
	return cutText(text, maxFingerprintBytes)
}

type plainDeadLetterSummary DeadLetterSummary

type plainDeadLetterCount DeadLetterCount

// spanJSON is two times in epoch milliseconds.
type spanJSON struct {
	Oldest *int64 `json:"oldest,omitempty"`
	Newest *int64 `json:"newest,omitempty"`
}

// MarshalJSON gives the members topic, total, open, replayed, foreign, oldest,
// newest, groups, reasons and errors, times in epoch milliseconds.
func (s DeadLetterSummary) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		plainDeadLetterSummary
		spanJSON
	}{plainDeadLetterSummary(s), spanJSON{toEpoch(s.Oldest), toEpoch(s.Newest)}})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *DeadLetterSummary) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[struct {
		plainDeadLetterSummary
		spanJSON
	}](text, "dead letter summary")
	if err == nil {
		*s = DeadLetterSummary(w.plainDeadLetterSummary)
		s.Oldest, s.Newest = fromEpoch(w.spanJSON.Oldest), fromEpoch(w.spanJSON.Newest)
	}
	return err
}

// MarshalJSON gives the members name, total, open, oldest, newest, example and
// seq, times in epoch milliseconds.
func (c DeadLetterCount) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		plainDeadLetterCount
		spanJSON
	}{plainDeadLetterCount(c), spanJSON{toEpoch(c.Oldest), toEpoch(c.Newest)}})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (c *DeadLetterCount) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[struct {
		plainDeadLetterCount
		spanJSON
	}](text, "dead letter count")
	if err == nil {
		*c = DeadLetterCount(w.plainDeadLetterCount)
		c.Oldest, c.Newest = fromEpoch(w.spanJSON.Oldest), fromEpoch(w.spanJSON.Newest)
	}
	return err
}
