package jetbus

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
)

// record is the JSON form of an Event. The names are those of the bus's first
// clients and do not change.
type record struct {
	ID            string            `json:"id"`
	SID           string            `json:"sid,omitempty"`
	TS            int64             `json:"ts"` // epoch milliseconds
	Topic         string            `json:"topic"`
	Key           string            `json:"key,omitempty"`
	Partition     *int              `json:"partition,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Payload       json.RawMessage   `json:"payload,omitempty"`
	PayloadBase64 *string           `json:"payload_base64,omitempty"` // a payload that is no JSON
	CausedBy      []string          `json:"caused_by,omitempty"`
	Tags          []string          `json:"tags,omitempty"`
	Seq           uint64            `json:"seq,omitempty"`
}

// MarshalJSON gives the event as an object {id, sid, ts, topic, key, partition,
// headers, payload, caused_by, tags, seq}: ts in epoch milliseconds, members
// that are empty left out. A payload that is JSON stands there as it is, byte
// for byte when encoded with [AppendJSON] (json.Marshal itself compacts what
// this method returns); any other is base64 text in the member payload_base64,
// and an empty payload has no member.
func (e Event) MarshalJSON() ([]byte, error) { return AppendJSON(nil, &e) }

// AppendJSON appends the JSON form of e to b; see [Event.MarshalJSON]. The bytes
// of a JSON payload, white space included, are copied unchanged.
func AppendJSON(b []byte, e *Event) ([]byte, error) {
	r := record{
		ID: e.ID, SID: e.SID, TS: e.Time.UnixMilli(), Topic: e.Topic, Key: e.Key,
		Headers: e.Headers, CausedBy: e.CausedBy, Tags: e.Tags, Seq: e.Seq,
	}
	if e.Time.IsZero() {
		r.TS = 0
	}
	if e.Partition >= 0 {
		r.Partition = &e.Partition
	}
	isJSON := len(e.Payload) > 0 && json.Valid(e.Payload)
	if len(e.Payload) > 0 && !isJSON {
		text := base64.StdEncoding.EncodeToString(e.Payload)
		r.PayloadBase64 = &text
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("marshal event %s: %w", e.ID, err)
	}
	out := bytes.TrimRight(buf.Bytes(), "\n")
	if !isJSON {
		return append(b, out...), nil
	}
	b = append(b, out[:len(out)-1]...) // without the closing brace: encoding/json would compact the payload
	b = append(b, `,"payload":`...)
	b = append(b, e.Payload...)
	return append(b, '}'), nil
}

// UnmarshalJSON reads what MarshalJSON writes. The payload keeps the bytes it
// has in the text; an object without ts has the zero time, one without partition
// has NoPartition. It does not validate the event.
func (e *Event) UnmarshalJSON(text []byte) error {
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("unmarshal event: %w", err)
	}
	*e = Event{
		ID: r.ID, SID: r.SID, Topic: r.Topic, Key: r.Key, Partition: NoPartition,
		Headers: r.Headers, Payload: r.Payload, CausedBy: r.CausedBy, Tags: r.Tags, Seq: r.Seq,
	}
	if r.TS != 0 {
		e.Time = time.UnixMilli(r.TS).UTC()
	}
	if r.Partition != nil {
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
	return nil
}
