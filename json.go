package jetbus

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

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
