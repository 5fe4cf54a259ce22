package jetbus

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// NoPartition is the Partition of an event whose topic has no partitions.
const NoPartition = -1

// Event is one fact in a topic. The same struct travels everywhere: it is what
// a publisher fills in, what is stored, and what a handler gets.
type Event struct {
	// ID identifies the event within its topic: publishing it again within the
	// duplicate window stores nothing. At most 200 bytes of printable
	// UTF-8 without spaces at its ends.
	// Publish sets a UUIDv7 where it is empty.
	ID string
	// SID is the boot or session id of the publisher, at most 512 bytes of printable
	// UTF-8. Publish sets that of the bus where it is empty.
	SID string
	// Time is when the fact came about. Publish drops what is finer than a
	// millisecond, and sets the current time where it is zero. It need not agree
	// with the order of the log. Its year, in UTC, has at most four digits.
	Time time.Time
	// Topic is where the event belongs; see ValidTopic.
	Topic string
	// Key groups events that are about one thing: order, compaction and partitions
	// go by it. At most 256 bytes of UTF-8 without control characters; may be empty.
	Key string
	// Partition is set on events that were stored, NoPartition where the topic has
	// no partitions. Publish ignores it.
	Partition int
	// Headers come back as they are written; see ValidHeader. Nil and empty mean the same.
	Headers map[string]string
	// Payload is opaque to the bus and stored as it is. JSON unless the header
	// content-type says otherwise. Nil and empty mean the same.
	Payload []byte
	// CausedBy lists ids of events that led to this one: at most 256 in 16 KiB,
	// printable UTF-8, none empty.
	CausedBy []string
	// Tags are free labels, within the bounds of CausedBy.
	Tags []string
	// Seq is the event's position in its topic, ascending and with gaps, set on
	// events that were stored. Publish ignores it.
	Seq uint64
	// Stored is when the broker stored the event, by its clock: set on what is read and
	// delivered. It ascends with Seq as far as the clocks of its servers do. Of a retry it is when the
	// event was stored that is tried again, and in a snapshot when that took it over. Zero
	// where that is not known: of a receipt, through a gateway, in replays and in dead letters.
	// Publish ignores it, and the JSON form does not have it.
	Stored time.Time
}

// ContentType returns the media type of the payload, "application/json" where
// the event does not say.
func (e *Event) ContentType() string {
	if t := e.Headers[HeaderContentType]; t != "" {
		return t
	}
	return "application/json"
}

// maxListItems and maxListBytes bound CausedBy and Tags, which travel in headers.
const (
	maxListItems = 256
	maxListBytes = 16 << 10
	maxSIDBytes  = 512
)

// Validate reports what keeps the event from being published: its topic, key,
// id, time, headers or lists. Size limits of the broker are not known here. The
// error wraps [ErrInvalidTopic], [ErrInvalidHeader] or [ErrInvalidEvent].
func (e *Event) Validate() error {
	if err := ValidTopic(e.Topic); err != nil {
		return err
	}
	if err := ValidKey(e.Key); err != nil {
		return err
	}
	switch {
	case len(e.ID) > MaxIDBytes:
		return fmt.Errorf("%w: id has %d bytes, at most %d are allowed", ErrInvalidEvent, len(e.ID), MaxIDBytes)
	case !printable(e.ID) || strings.TrimSpace(e.ID) != e.ID:
		return fmt.Errorf("%w: id %q has control characters or spaces at its ends, or is no UTF-8", ErrInvalidEvent, e.ID)
	case len(e.SID) > maxSIDBytes || !printable(e.SID):
		return fmt.Errorf("%w: sid has more than %d bytes or control characters, or is no UTF-8", ErrInvalidEvent, maxSIDBytes)
	case !yearInRange(e.Time):
		return fmt.Errorf("%w: time %v has no year of four digits", ErrInvalidEvent, e.Time)
	case len(e.Headers) > MaxHeaders:
		return fmt.Errorf("%w: %d headers, at most %d are allowed", ErrInvalidHeader, len(e.Headers), MaxHeaders)
	}
	if err := validHeaders(e.Headers); err != nil {
		return err
	}
	if err := validList("caused_by", e.CausedBy); err != nil {
		return err
	}
	return validList("tags", e.Tags)
}

// ValidKey reports whether key may be an event's key: at most 256 bytes of UTF-8
// without control characters. The empty key is valid. The error wraps
// [ErrInvalidEvent].
func ValidKey(key string) error {
	switch {
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("%w: key has %d bytes, at most %d are allowed", ErrInvalidEvent, len(key), MaxKeyBytes)
	case !printable(key):
		return fmt.Errorf("%w: key %q has control characters or is no UTF-8", ErrInvalidEvent, key)
	}
	return nil
}

func validList(name string, items []string) error {
	bytes := 0
	for _, item := range items {
		bytes += len(item)
		if item == "" || !printable(item) {
			return fmt.Errorf("%w: %s has an item that is empty, has control characters or is no UTF-8", ErrInvalidEvent, name)
		}
	}
	if len(items) > maxListItems || bytes > maxListBytes {
		return fmt.Errorf("%w: %s has %d items in %d bytes, at most %d in %d are allowed", ErrInvalidEvent, name, len(items), bytes, maxListItems, maxListBytes)
	}
	return nil
}

// yearInRange reports whether t can be written in RFC 3339.
func yearInRange(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 0 && year <= 9999
}

// printable reports whether s is UTF-8 without control characters (C0, DEL and
// C1) and without noncharacters: what CloudEvents allows in a string. Line and
// paragraph separators (U+2028, U+2029) are allowed there, and here.
func printable(s string) bool {
	ascii := true
	for i := range len(s) {
		switch c := s[i]; {
		case c >= utf8.RuneSelf:
			ascii = false
		case c < ' ' || c == 0x7f:
			return false
		}
	}
	return ascii || utf8.ValidString(s) && strings.IndexFunc(s, unprintable) < 0
}

func unprintable(r rune) bool {
	return unicode.IsControl(r) || r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef
}

// NewID returns a new event id: a UUIDv7, whose first 48 bits are the time in
// milliseconds, so that a position in a topic can be found by id. The ids of one
// process ascend as strings; where many are made within a millisecond, or the
// clock is set back, their time runs ahead of the clock for as long as it takes.
func NewID() string {
	id, err := uuid.NewV7()
	if err != nil { // the system has no randomness; Go's reader does not return errors
		panic("jetbus: " + err.Error())
	}
	return id.String()
}

// IDTime returns the time inside a UUIDv7, in milliseconds and UTC, and false for
// any other id.
func IDTime(id string) (time.Time, bool) {
	u, err := uuid.Parse(id)
	if err != nil || len(id) != 36 || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(u[:8]) >> 16)).UTC(), true
}

// record is the JSON form of an Event. The names are those of the bus's first
// clients and do not change.
type record struct {
	ID            string            `json:"id"`
	SID           string            `json:"sid,omitempty"`
	TS            *int64            `json:"ts,omitempty"` // epoch milliseconds
	Topic         string            `json:"topic"`
	Key           string            `json:"key,omitempty"`
	Partition     *int              `json:"partition,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Payload       json.RawMessage   `json:"payload,omitempty"`
	PayloadSpace  *[2]string        `json:"payload_space,omitempty"`  // the white space before and behind a payload that is JSON
	PayloadBase64 *string           `json:"payload_base64,omitempty"` // a payload that is no JSON
	CausedBy      []string          `json:"caused_by,omitempty"`
	Tags          []string          `json:"tags,omitempty"`
	Seq           uint64            `json:"seq,omitempty"`
}

// MarshalJSON gives the event as an object {id, sid, ts, topic, key, partition,
// headers, payload, caused_by, tags, seq}: ts in epoch milliseconds, members
// that are empty left out, ts where the time is zero. A payload that is JSON in
// UTF-8, nested at most 1,000 deep, stands there as it is, byte for byte when
// encoded with [AppendJSON] (json.Marshal itself compacts what this method
// returns and escapes '<', '>' and '&'). White space around it, which is no part
// of a JSON value, is in the member payload_space, a list of what is before and what
// is behind it, where there is some. Any other payload is base64 text in the member
// payload_base64, and an empty one has no member.
func (e Event) MarshalJSON() ([]byte, error) { return AppendJSON(nil, &e) }

// AppendJSON appends the JSON form of e to b; see [Event.MarshalJSON]. The bytes
// of a JSON payload, white space and line ends within it included, are copied
// unchanged. No other part of the text has white space or line ends outside of strings.
func AppendJSON(b []byte, e *Event) ([]byte, error) {
	r := record{
		ID: e.ID, SID: e.SID, TS: toEpoch(e.Time), Topic: e.Topic, Key: e.Key,
		Headers: e.Headers, CausedBy: e.CausedBy, Tags: e.Tags, Seq: e.Seq,
	}
	if e.Partition >= 0 {
		r.Partition = &e.Partition
	}
	isJSON := embeddable(e.Payload)
	if len(e.Payload) > 0 && !isJSON {
		text := base64.StdEncoding.EncodeToString(e.Payload)
		r.PayloadBase64 = &text
	}
	value := e.Payload
	if isJSON {
		value = bytes.TrimLeft(value, jsonSpace)
		before := len(e.Payload) - len(value)
		value = bytes.TrimRight(value, jsonSpace)
		if len(value) < len(e.Payload) {
			r.PayloadSpace = &[2]string{string(e.Payload[:before]), string(e.Payload[before+len(value):])}
		}
	}
	out := appender(b)
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return b, fmt.Errorf("marshal event %s: %w", e.ID, err)
	}
	b = out[:len(out)-len("\n")]
	if !isJSON {
		return b, nil
	}
	b = b[:len(b)-len("}")] // encoding/json would compact the payload
	b = append(b, `,"payload":`...)
	b = append(b, value...)
	return append(b, '}'), nil
}

// jsonSpace is white space around a JSON value.
const jsonSpace = " \t\r\n"

// UnmarshalJSON reads what MarshalJSON writes. The payload keeps the bytes it
// has in the text, but for white space around it, which is what payload_space
// says; an object without ts has the zero time, one without partition has
// NoPartition. It does not validate the event.
func (e *Event) UnmarshalJSON(text []byte) error {
	r, err := unmarshal[record](text, "event")
	if err != nil {
		return err
	}
	*e = Event{
		ID: r.ID, SID: r.SID, Topic: r.Topic, Key: r.Key, Partition: NoPartition,
		Time: fromEpoch(r.TS), Headers: r.Headers, Payload: r.Payload, CausedBy: r.CausedBy, Tags: r.Tags, Seq: r.Seq,
	}
	if r.Partition != nil && *r.Partition >= 0 {
		e.Partition = *r.Partition
	}
	if r.PayloadBase64 != nil {
		if len(r.Payload) > 0 {
			return fmt.Errorf("unmarshal event %s: %w: payload and payload_base64 are both set", r.ID, ErrInvalidEvent)
		}
		raw, err := base64.StdEncoding.DecodeString(*r.PayloadBase64)
		if err != nil {
			return fmt.Errorf("unmarshal event %s: payload_base64: %w", r.ID, err)
		}
		e.Payload = raw
	}
	if space := r.PayloadSpace; space != nil {
		if len(r.Payload) == 0 || strings.Trim(space[0]+space[1], jsonSpace) != "" {
			return fmt.Errorf("unmarshal event %s: %w: payload_space is white space around payload", r.ID, ErrInvalidEvent)
		}
		e.Payload = slices.Concat([]byte(space[0]), r.Payload, []byte(space[1]))
	}
	return nil
}

// maxPayloadDepth leaves readers, encoding/json with its 10,000 among them, room
// for what an event is wrapped in.
const maxPayloadDepth = 1000

// embeddable reports whether a payload can stand in a JSON text.
func embeddable(payload []byte) bool {
	return len(payload) > 0 && json.Valid(payload) && utf8.Valid(payload) && depth(payload) <= maxPayloadDepth
}

// depth returns how deep objects and arrays nest in a valid JSON text.
func depth(text []byte) int {
	deepest, now, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted:
			if c == '\\' {
				i++ // what is escaped may be a quote
			}
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

// appender is an io.Writer that appends.
type appender []byte

// Write appends p and never fails.
func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}
