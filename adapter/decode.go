package adapter

import (
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// decode turns the lease's message into an event. It is called once, by whoever
// is about to use the event.
func (l *lease) decode() (jetbus.Event, error) {
	m := l.msg
	l.msg = nil
	return decodeEvent(m.Header, m.Data, l.t.storedAt(m.Subject, l.seq, time.Unix(0, l.stored)))
}

// storedAt describes where a message of the topic came from.
func (t *topic) storedAt(subject string, seq uint64, at time.Time) stored {
	s := stored{Topic: t.config.Name, Stream: t.stream, Seq: seq, Time: at}
	if t.config.KeyInSubject {
		s.Token = subject[strings.LastIndexByte(subject, '.')+1:]
	}
	return s
}
