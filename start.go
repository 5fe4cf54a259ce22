package jetbus

import (
	"encoding/json"
	"fmt"
	"time"
)

// StartKind names a way to choose the first event.
type StartKind string

// The ways to choose the first event, as spelled in JSON.
const (
	FromLatest   StartKind = "latest"   // events stored from now on
	FromEarliest StartKind = "earliest" // every event the topic still has
	FromTime     StartKind = "ts"       // events stored at or after a time
	FromAfterID  StartKind = "afterId"  // events after the one with an id
	FromAfterSeq StartKind = "afterSeq" // events after a sequence
)

// Start says where reading begins. The zero value is [Latest]. A group that
// exists goes on where it was and ignores it.
type Start struct {
	Kind StartKind
	Time time.Time // with FromTime: the broker's time of storage, not Event.Time; milliseconds in JSON
	ID   string    // with FromAfterID
	Seq  uint64    // with FromAfterSeq
}

// Latest starts with events stored from now on.
func Latest() Start { return Start{Kind: FromLatest} }

// Earliest starts with the oldest event the topic still has.
func Earliest() Start { return Start{Kind: FromEarliest} }

// AtTime starts with the first event stored at or after t, by the broker's clock. A reader may
// start at a time in the future, and gets no event that was stored before it. A group may start
// only a few seconds in the future, to allow for differing clocks: it waits until then. A later
// time is [ErrInvalidOption].
func AtTime(t time.Time) Start { return Start{Kind: FromTime, Time: t} }

// Excludes reports whether e was stored before the time of a start [AtTime]. Implementations of
// [Reader] and [Store] skip such events: the first sequence after a time in the future is not
// known yet.
func (s Start) Excludes(e *Event) bool { return s.Kind == FromTime && e.Stored.Before(s.Time) }

// AfterID starts after the event with that ID. If the ID is not found, the error is
// [ErrPositionUnknown]: reading never starts at the beginning instead.
func AfterID(id string) Start { return Start{Kind: FromAfterID, ID: id} }

// AfterSeq starts after a sequence, which the topic may no longer have.
func AfterSeq(seq uint64) Start { return Start{Kind: FromAfterSeq, Seq: seq} }

// Validate reports a kind that does not exist, or one whose value is missing or
// accompanied by another's. The error wraps [ErrInvalidOption].
func (s Start) Validate() error {
	hasTime, hasID, hasSeq := !s.Time.IsZero(), s.ID != "", s.Seq != 0
	bad := func(why string) error { return fmt.Errorf("%w: from %s: %s", ErrInvalidOption, s.Kind, why) }
	switch s.Kind {
	case "", FromLatest, FromEarliest:
		if hasTime || hasID || hasSeq {
			return bad("a time, an id or a sequence is set too; choose one")
		}
	case FromTime:
		if !hasTime || hasID || hasSeq {
			return bad("takes a time and nothing else")
		}
		if !yearInRange(s.Time) {
			return bad("takes a time whose year has four digits")
		}
	case FromAfterID:
		if !hasID || hasTime || hasSeq {
			return bad("takes an id and nothing else")
		}
	case FromAfterSeq:
		if hasTime || hasID {
			return bad("takes a sequence and nothing else")
		}
	default:
		return fmt.Errorf("%w: from %q: use latest, earliest, ts, afterId or afterSeq", ErrInvalidOption, s.Kind)
	}
	return nil
}

// String gives the start for messages: "earliest", "afterSeq 17".
func (s Start) String() string {
	switch s.Kind {
	case FromTime:
		return "ts " + s.Time.UTC().Format(time.RFC3339Nano)
	case FromAfterID:
		return "afterId " + s.ID
	case FromAfterSeq:
		return fmt.Sprintf("afterSeq %d", s.Seq)
	case "":
		return string(FromLatest)
	default:
		return string(s.Kind)
	}
}

// startJSON spreads a Start over the members that clients know.
type startJSON struct {
	From     StartKind `json:"from,omitempty"`
	TS       *int64    `json:"ts,omitempty"` // epoch milliseconds
	AfterID  string    `json:"afterId,omitempty"`
	AfterSeq *uint64   `json:"afterSeq,omitempty"`
}

func (s Start) wire() startJSON {
	w := startJSON{From: s.Kind, TS: toEpoch(s.Time), AfterID: s.ID}
	if s.Kind == FromAfterSeq || s.Seq != 0 {
		w.AfterSeq = &s.Seq
	}
	return w
}

// start refuses what Validate could not see any more: a sequence that is missing
// would read as 0, the beginning.
func (w startJSON) start() (Start, error) {
	s := Start{Kind: w.From, Time: fromEpoch(w.TS), ID: w.AfterID}
	if w.AfterSeq != nil {
		s.Seq = *w.AfterSeq
	} else if w.From == FromAfterSeq {
		return Start{}, fmt.Errorf("%w: from afterSeq: the member afterSeq is missing", ErrInvalidOption)
	}
	return s, nil
}

// MarshalJSON gives {"from":...} with ts, afterId or afterSeq beside it.
func (s Start) MarshalJSON() ([]byte, error) { return json.Marshal(s.wire()) }

// UnmarshalJSON reads what MarshalJSON writes. It does not validate, but for an
// afterSeq that is missing: [ErrInvalidOption].
func (s *Start) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[startJSON](text, "start")
	if err != nil {
		return err
	}
	*s, err = w.start()
	return err
}
