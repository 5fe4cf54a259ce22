package jetbus

import (
	"encoding/json"
	"fmt"
	"time"
)

// deadLetterJSON is the JSON form of a DeadLetter without the original.
type deadLetterJSON struct {
	ID            string     `json:"id,omitempty"`
	Seq           uint64     `json:"seq,omitempty"`
	TS            *int64     `json:"ts,omitempty"`
	Group         string     `json:"group"`
	Reason        DeadReason `json:"reason"`
	Error         string     `json:"error,omitempty"`
	Attempts      int        `json:"attempts"`
	FirstFailed   *int64     `json:"firstFailed,omitempty"`
	LastFailed    *int64     `json:"lastFailed,omitempty"`
	Replays       int        `json:"replays,omitempty"`
	ReplayOf      uint64     `json:"replayOf,omitempty"`
	Replayed      *int64     `json:"replayed,omitempty"`
	Truncated     bool       `json:"truncated,omitempty"`
	Stream        string     `json:"stream,omitempty"`
	StreamCreated time.Time  `json:"streamCreated,omitzero"`
}

// MarshalJSON gives the members id, seq and ts of the dead letter itself, then
// group, reason, error, attempts, firstFailed, lastFailed, replays,
// replayOf, replayed, truncated, stream, streamCreated and, in the member event, the original as
// [Event.MarshalJSON] gives it. Times are epoch milliseconds, but for
// streamCreated, which names the stream and is RFC 3339 with all its digits.
// Members that are empty are left out.
func (d DeadLetter) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(deadLetterJSON{
		ID: d.ID, Seq: d.Seq, TS: toEpoch(d.Time), Group: d.Group, Reason: d.Reason, Error: d.Error, Attempts: d.Attempts,
		FirstFailed: toEpoch(d.FirstFailed), LastFailed: toEpoch(d.LastFailed), Replays: d.Replays, ReplayOf: d.ReplayOf, Replayed: toEpoch(d.Replayed),
		Truncated: d.Truncated, Stream: d.Stream, StreamCreated: d.StreamCreated.UTC(),
	})
	if err != nil {
		return nil, fmt.Errorf("marshal dead letter %s: %w", d.ID, err)
	}
	text = append(text[:len(text)-len("}")], `,"event":`...)
	if text, err = AppendJSON(text, &d.Event); err != nil {
		return nil, fmt.Errorf("marshal dead letter %s: %w", d.ID, err)
	}
	return append(text, '}'), nil
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (d *DeadLetter) UnmarshalJSON(text []byte) error {
	type form struct {
		deadLetterJSON
		Event Event `json:"event"`
	}
	w, err := unmarshal[form](text, "dead letter")
	if err != nil {
		return err
	}
	*d = DeadLetter{
		Event: w.Event, ID: w.ID, Seq: w.Seq, Time: fromEpoch(w.TS), Group: w.Group, Reason: w.Reason, Error: w.Error, Attempts: w.Attempts,
		FirstFailed: fromEpoch(w.FirstFailed), LastFailed: fromEpoch(w.LastFailed), Replays: w.Replays, ReplayOf: w.ReplayOf, Replayed: fromEpoch(w.Replayed),
		Truncated: w.Truncated, Stream: w.Stream, StreamCreated: w.StreamCreated,
	}
	return nil
}

type plainDeadLetterQuery DeadLetterQuery

type deadLetterQueryJSON struct {
	plainDeadLetterQuery
	Since *int64 `json:"since,omitempty"`
	Until *int64 `json:"until,omitempty"`
}

func (q DeadLetterQuery) wire() deadLetterQueryJSON {
	return deadLetterQueryJSON{plainDeadLetterQuery(q), toEpoch(q.Since), toEpoch(q.Until)}
}

func (w deadLetterQueryJSON) query() DeadLetterQuery {
	q := DeadLetterQuery(w.plainDeadLetterQuery)
	q.Since, q.Until = fromEpoch(w.Since), fromEpoch(w.Until)
	return q
}

// MarshalJSON gives the members topic, group, reasons, since, until, key, id,
// error, seqs, open and limit, times in epoch milliseconds, leaving out what is
// zero, except topic.
func (q DeadLetterQuery) MarshalJSON() ([]byte, error) { return json.Marshal(q.wire()) }

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (q *DeadLetterQuery) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[deadLetterQueryJSON](text, "dead letter query")
	if err == nil {
		*q = w.query()
	}
	return err
}

type replayJSON struct {
	deadLetterQueryJSON
	Rate    float64 `json:"rate,omitempty"`
	DryRun  bool    `json:"dryRun,omitempty"`
	ToTopic string  `json:"toTopic,omitempty"`
	Force   bool    `json:"force,omitempty"`
}

// MarshalJSON gives the members of the query, and rate, dryRun, toTopic and
// force, leaving out what is zero, except topic. Transform and Progress have no
// JSON form.
func (o ReplayOptions) MarshalJSON() ([]byte, error) {
	return json.Marshal(replayJSON{o.wire(), o.Rate, o.DryRun, o.ToTopic, o.Force})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *ReplayOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[replayJSON](text, "replay options")
	if err == nil {
		*o = ReplayOptions{DeadLetterQuery: w.query(), Rate: w.Rate, DryRun: w.DryRun, ToTopic: w.ToTopic, Force: w.Force}
	}
	return err
}
