package gateway

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// The frames of the bus's first clients, which ask for no subprotocol: OK, ERR and EVENT,
// with exactly these members. Other frames they do not get.

type sketchOK struct {
	Op   string `json:"op"`
	Corr string `json:"corr,omitempty"`
	ID   string `json:"id,omitempty"`
}

type sketchErr struct {
	Op   string `json:"op"`
	Code string `json:"code"`
	Msg  string `json:"msg"`
	Corr string `json:"corr,omitempty"`
}

// sketchText is a frame as those clients know it; nil where they do not.
func sketchText(m *frame.Message) []byte {
	var v any
	switch m.Op {
	case frame.OK:
		v = sketchOK{m.Op, m.Corr, m.ID}
	case frame.Err:
		v = sketchErr{m.Op, m.Code, m.Msg, m.Corr}
	case frame.Pong:
		return m.Text() // one that asks gets its answer
	default:
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil // strings never fail
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// sketchEvent is an EVENT frame of those clients.
func sketchEvent(group string, e *jetbus.Event, attempt int, left int64) []byte {
	e.Seq = 0 // no member of theirs
	b := append(make([]byte, 0, 256+len(e.Payload)), `{"op":"EVENT","topic":`...)
	b = frame.AppendString(b, e.Topic)
	b = append(b, `,"group":`...)
	b = frame.AppendString(b, group)
	b = append(b, `,"event":`...)
	b, err := jetbus.AppendJSON(b, e)
	if err != nil { // a string of the event that is no UTF-8: no event has one
		return nil
	}
	b = append(b, `,"ctx":{"attempt":`...)
	b = strconv.AppendInt(b, int64(attempt), 10)
	b = append(b, `,"ack_deadline_ms":`...)
	b = strconv.AppendInt(b, left, 10)
	return append(b, '}', '}')
}
