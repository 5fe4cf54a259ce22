package adapter

import (
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// decode turns the lease's message into an event.
func (l *lease) decode() (jetbus.Event, error) {
	if l.retry == nil {
		return ce.Decode(l.msg.Header, l.msg.Data, l.t.messagePlace(l.msg, l.seq, l.storedTime()))
	}
	return ce.Decode(l.msg.Header, l.msg.Data, l.place())
}

// place describes where the original of what a lease holds came from.
func (l *lease) place() ce.Place {
	o := l.origin()
	p := ce.Place{Topic: l.t.name(), Stream: o.Stream, Seq: o.Seq, Time: l.storedTime(), Token: o.Token}
	if l.t.generations != nil { // retries have it in their subjects, too
		partitionInto(&p, l.msg.Subject)
	}
	return p
}

// messagePlace describes where a message of the topic came from. What the server has copied
// from another stream is where it was there.
func (t *topic) messagePlace(m *nats.Msg, seq uint64, at time.Time) ce.Place {
	p := ce.Place{Topic: t.config.Name, Stream: t.stream, Seq: seq, Time: at}
	if t.config.SnapshotOf != "" {
		p.Topic = t.config.SnapshotOf
		p.Stream, p.Seq = originOf(m.Header)
		partitionInto(&p, originSubject(m.Header))
	}
	if t.generations != nil {
		partitionInto(&p, m.Subject)
	}
	if t.config.KeyInSubject {
		p.Token = m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	}
	return p
}

// partitionInto notes the partition that a subject of a topic with partitions names.
func partitionInto(p *ce.Place, subject string) {
	if in, ok := parsePartition(subject); ok {
		p.Partition, p.Partitioned = in.Number, true
	}
}
