package adapter

import (
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// decode turns the lease's message into an event.
func (l *lease) decode() (jetbus.Event, error) {
	if l.retry == nil {
		return decodeEvent(l.msg.Header, l.msg.Data, l.t.storedAt(l.msg.Subject, l.seq, time.Unix(0, l.stored)))
	}
	return decodeEvent(l.msg.Header, l.msg.Data, l.place())
}

// place describes where the original of what a lease holds came from.
func (l *lease) place() stored {
	o := l.origin()
	s := stored{Topic: l.t.name(), Stream: o.Stream, Seq: o.Seq, Time: time.Unix(0, o.Stored), Token: o.Token}
	if l.t.generations != nil { // retries have it in their subjects, too
		s.within(l.msg.Subject)
	}
	return s
}

// storedAt describes where a message of the topic came from.
func (t *topic) storedAt(subject string, seq uint64, at time.Time) stored {
	s := stored{Topic: t.config.Name, Stream: t.stream, Seq: seq, Time: at}
	if t.config.SnapshotOf != "" {
		s.Topic, s.Sourced = t.config.SnapshotOf, true
	}
	if t.generations != nil {
		s.within(subject)
	}
	if t.config.KeyInSubject {
		s.Token = subject[strings.LastIndexByte(subject, '.')+1:]
	}
	return s
}
