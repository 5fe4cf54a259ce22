package jetbus

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Cursor is a group's position in a topic.
type Cursor struct {
	Topic string `json:"topic"`
	// LastSeq is the position up to which everything is settled. SetCursor goes by
	// it where it is set; 0 with no other field set means before the first event.
	LastSeq uint64 `json:"lastSeq,omitempty"`
	// LastID is the id of the event at LastSeq while the topic still has it.
	LastID string `json:"lastId,omitempty"`
	// LastTime is when the broker stored that event, by its clock, and not the event's own
	// Time; zero where that is not known. SetCursor with nothing else in its cursor goes
	// on directly behind the event. In JSON it has whole milliseconds: what was stored in
	// the same one comes again, the event too.
	LastTime time.Time `json:"-"`
}

type plainCursor Cursor

type cursorJSON struct {
	plainCursor
	LastTS *int64 `json:"lastTs,omitempty"`
}

// MarshalJSON gives the members topic, lastSeq, lastId and lastTs (epoch
// milliseconds), leaving out what is zero, except topic.
func (c Cursor) MarshalJSON() ([]byte, error) {
	return json.Marshal(cursorJSON{plainCursor(c), toEpoch(c.LastTime)})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Cursor) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[cursorJSON](text, "cursor")
	if err != nil {
		return err
	}
	*c = Cursor(w.plainCursor)
	c.LastTime = fromEpoch(w.LastTS)
	return nil
}

// Cursors read and move the positions of groups.
type Cursors interface {
	// Cursor returns the group's position: the event up to which all are settled,
	// whatever was settled after it. With replicas it is the one that most of them know
	// of, which may be moments behind. [ErrNoGroup] if the group never subscribed.
	Cursor(ctx context.Context, topic, group string) (Cursor, error)
	// SetCursor moves the group: the next event is the first behind c. It goes by
	// c.LastSeq, else c.LastID ([ErrPositionUnknown]), else c.LastTime (the first event stored after it),
	// else to the beginning. It pauses the group and waits for the events its members hold; see SeekOptions.
	// Where the cluster elects for so long that somebody else may have taken the move up, it
	// waits for that one, and begins anew unless the group has been moved meanwhile.
	SetCursor(ctx context.Context, topic, group string, c Cursor, o SeekOptions) error
}

// SeekOptions say how SetCursor treats events that members hold.
type SeekOptions struct {
	// Wait is how long to wait for held events to be settled before the error is a
	// [GroupBusyError] and nothing has changed. Defaults to the group's AckTimeout.
	Wait time.Duration `json:"-"`
	// Force moves without waiting. What members hold at that moment is lost to
	// them: their later acknowledgements have no effect.
	Force bool `json:"force,omitempty"`
	// ToLatest moves behind the last event; the cursor's other fields must be empty.
	ToLatest bool `json:"toLatest,omitempty"`
}

// Validate reports a negative Wait, or ToLatest beside a cursor that names a
// position itself. The error wraps [ErrInvalidOption].
func (o SeekOptions) Validate(c Cursor) error {
	switch {
	case o.Wait < 0:
		return fmt.Errorf("%w: Wait is %v, use 0 for the default, or Force to move without waiting", ErrInvalidOption, o.Wait)
	case o.ToLatest && (c.LastSeq != 0 || c.LastID != "" || !c.LastTime.IsZero()):
		return fmt.Errorf("%w: ToLatest is set and so is a position of the cursor; choose one", ErrInvalidOption)
	}
	return nil
}

type plainSeekOptions SeekOptions

type seekJSON struct {
	plainSeekOptions
	WaitMs millis `json:"waitMs,omitempty"`
}

// MarshalJSON gives the members waitMs, force and toLatest, leaving out what is zero.
func (o SeekOptions) MarshalJSON() ([]byte, error) {
	return json.Marshal(seekJSON{plainSeekOptions(o), millis(o.Wait)})
}

// UnmarshalJSON reads what MarshalJSON writes. It does not validate.
func (o *SeekOptions) UnmarshalJSON(text []byte) error {
	w, err := unmarshal[seekJSON](text, "seek options")
	if err != nil {
		return err
	}
	*o = SeekOptions(w.plainSeekOptions)
	o.Wait = time.Duration(w.WaitMs)
	return nil
}
