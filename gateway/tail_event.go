package gateway

import (
	"sync"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// encoded is an event on its way to readers. Its JSON is made when the first of them wants it,
// and is the same for all.
type encoded struct {
	jetbus.Event
	stream               uint64 // of the topic, for offsets
	size                 int    // see sizeWithJSON
	full, headers, first form   // first: the frame of the first clients
}

// form is one of the texts that an event has.
type form struct {
	once sync.Once
	text []byte
}

func encode(e *jetbus.Event, stream uint64) *encoded {
	return &encoded{Event: *e, stream: stream, size: sizeWithJSON(e)}
}

// members is the end of an EVENT frame, behind its head.
func (e *encoded) members(headersOnly bool) []byte {
	f := &e.full
	if headersOnly {
		f = &e.headers
	}
	f.once.Do(func() {
		copied := e.Event
		if headersOnly {
			copied.Payload = nil
		}
		b, err := frame.AppendEvent(make([]byte, 0, 384+len(copied.Payload)), &copied, offsetOf(e.stream, &e.Event).String())
		if err == nil { // else a string of the event is no UTF-8: no event has one
			b = append(b, '}')
			f.text = b
		}
	})
	return f.text
}

// appendItem appends the event as clients over HTTP get it: {event, offset, seq}.
func (e *encoded) appendItem(b []byte) []byte { return append(append(b, '{'), e.members(false)...) }

// sketch is the EVENT frame of the first clients.
func (e *encoded) sketch() []byte {
	e.first.once.Do(func() {
		copied := e.Event
		e.first.text = sketchEvent("", &copied, 1, 0)
	})
	return e.first.text
}

// readFrame is the EVENT frame of a reader.
func (s *sub) readFrame(e *encoded) outgoing {
	if !s.ses.sketch {
		return outgoing{head: s.heads[e.Topic], text: e.members(s.headersOnly)}
	}
	if s.headersOnly {
		copied := e.Event
		copied.Payload = nil
		return outgoing{text: sketchEvent("", &copied, 1, 0)}
	}
	return outgoing{text: e.sketch()}
}

// headOf is the beginning of a reader's EVENT frames of a topic.
func headOf(sub, topic string) []byte {
	b := frame.AppendString([]byte(`{"op":"EVENT","topic":`), topic)
	b = frame.AppendString(append(b, `,"sub":`...), sub)
	return append(b, ',')
}
