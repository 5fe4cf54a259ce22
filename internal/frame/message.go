package frame

import (
	"encoding/json"
	"strconv"

	"github.com/seed-63e9a637/jetbus"
)

// Message is a frame of the gateway, as a client reads it; which members count goes by
// Op. The gateway writes those of Op and no others.
type Message struct {
	Op   string `json:"op"`
	Corr string `json:"corr,omitempty"`

	// OK
	ID         string         `json:"id,omitempty"`
	Seq        uint64         `json:"seq,omitempty"`
	TS         *int64         `json:"ts,omitempty"` // PUBLISH: the time that was stored
	Duplicate  bool           `json:"duplicate,omitempty"`
	Scheduled  bool           `json:"scheduled,omitempty"`
	Partition  *int           `json:"partition,omitempty"`
	SID        string         `json:"sid,omitempty"`
	Sub        string         `json:"sub,omitempty"`
	Recovered  *bool          `json:"recovered,omitempty"` // AUTH with session: there was one; SUBSCRIBE with offset: nothing is missing
	Applied    *bool          `json:"applied,omitempty"`   // ACK, NACK, MODACK
	AckID      string         `json:"ack_id,omitempty"`
	Reason     string         `json:"reason,omitempty"`
	DeadlineMs int64          `json:"deadline_ms,omitempty"` // MODACK: from now; GOAWAY: until the connection is closed
	Exp        int64          `json:"exp,omitempty"`         // AUTH, TOKEN_EXPIRING: epoch seconds
	Subs       []string       `json:"subs,omitempty"`        // AUTH with session: what goes on
	Results    []Result       `json:"results,omitempty"`
	Cursor     *jetbus.Cursor `json:"cursor,omitempty"` // CURSOR

	// ERR, SUB_CLOSED
	Code         string          `json:"code,omitempty"`
	Msg          string          `json:"msg,omitempty"`
	Retryable    bool            `json:"retryable,omitempty"`
	RetryAfterMs int64           `json:"retry_after_ms,omitempty"`
	Details      json.RawMessage `json:"details,omitempty"`

	// EVENT, CAUGHT_UP, GAP
	Topic  string        `json:"topic,omitempty"`
	Group  string        `json:"group,omitempty"`
	Event  *jetbus.Event `json:"event,omitempty"`
	Offset string        `json:"offset,omitempty"` // of an OK: where a reader of one topic begins, if that is known
	Ctx    *EventContext `json:"ctx,omitempty"`
	From   uint64        `json:"from,omitempty"`
	To     uint64        `json:"to,omitempty"`

	// HELLO
	V       int             `json:"v,omitempty"`
	Server  string          `json:"server,omitempty"`
	Session string          `json:"session,omitempty"`
	Limits  json.RawMessage `json:"limits,omitempty"`
	PingMs  int64           `json:"pingMs,omitempty"`
	Auth    string          `json:"auth,omitempty"` // required or none

	// PING, PONG
	N int64 `json:"n,omitempty"`
}

// Result is what became of one event of a PUBLISH_BATCH, or of one id of ACKS.
type Result struct {
	ID        string `json:"id,omitempty"`
	Seq       uint64 `json:"seq,omitempty"`
	TS        *int64 `json:"ts,omitempty"`
	Partition *int   `json:"partition,omitempty"`
	SID       string `json:"sid,omitempty"`
	Duplicate bool   `json:"duplicate,omitempty"`
	AckID     string `json:"ack_id,omitempty"`
	Applied   *bool  `json:"applied,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Code      string `json:"code,omitempty"`
	Msg       string `json:"msg,omitempty"`
	Retryable bool   `json:"retryable,omitempty"`
	Stored    string `json:"stored,omitempty"` // no or unknown

	Details json.RawMessage `json:"details,omitempty"` // of Code
}

// EventContext is what a delivery has besides its event.
type EventContext struct {
	Attempt       int    `json:"attempt"`
	MaxAttempts   int    `json:"maxAttempts,omitempty"`
	AckDeadlineMs int64  `json:"ack_deadline_ms"`
	Redelivered   bool   `json:"redelivered,omitempty"`
	ReplayOf      uint64 `json:"replay_of,omitempty"`
	Epoch         uint64 `json:"epoch,omitempty"`
}

// ParseMessage reads a frame of the gateway.
func ParseMessage(text []byte) (Message, error) {
	var m Message
	err := parse(text, &m)
	return m, err
}

// Text is the frame. HTML is not escaped.
func (m *Message) Text() []byte {
	var out appender
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(m); err != nil { // a RawMessage that is no JSON, or an Event: neither is written so
		return []byte(`{"op":"ERR","code":"internal","msg":"the frame cannot be written"}`)
	}
	return out[:len(out)-len("\n")]
}

// AppendEvent appends an event and its position to a frame, as the members event, offset and seq.
func AppendEvent(b []byte, e *jetbus.Event, offset string) ([]byte, error) {
	b = append(b, `"event":`...)
	b, err := jetbus.AppendJSON(b, e)
	if err != nil {
		return b, err
	}
	b = append(b, `,"offset":"`...)
	b = append(b, offset...)
	b = append(b, `","seq":`...)
	return strconv.AppendUint(b, e.Seq, 10), nil
}

// AppendString appends a JSON string.
func AppendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x80 {
			text, _ := json.Marshal(s) // a string never fails
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// appender is an io.Writer that appends.
type appender []byte

// Write appends p and never fails.
func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}
