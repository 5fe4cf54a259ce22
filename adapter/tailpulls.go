package adapter

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// tailPulls is the account of a tail's requests at one consumer: what they can still
// bring, in events and, each by itself, in bytes.
type tailPulls struct {
	bytes   int    // that a request may bring; 0: any number
	asked   int    // events that are asked for and have not come
	seen    uint64 // deliveries of the consumer
	refused uint64 // seen when the server last said that a request has no room for the next event
	large   bool   // none has: the next event is asked for alone
}

// request is the body of the request to send now; nil: those that are open will do. The
// server goes on while their events are read.
func (p *tailPulls) request() []byte {
	n, bytes := tailBatch-p.asked, p.bytes
	switch {
	case p.large && p.asked > 0, p.asked > tailBatch/2:
		return nil
	case p.large:
		n, bytes = 1, 0
	}
	p.asked += n
	return pullBody(n, bytes, pullExpiry, pullHeartbeat)
}

// event accounts for an event that came.
func (p *tailPulls) event() { p.asked, p.seen, p.large = p.asked-1, p.seen+1, false }

// status handles what the server says instead of an event: it reports whether nothing comes
// for now. The error says that the consumer is of no more use.
func (p *tailPulls) status(m *nats.Msg) (idle bool, err error) {
	code, description := m.Header.Get("Status"), m.Header.Get("Description")
	switch {
	case code == "100":
		return true, nil
	case code == "409" && description == statusCompleted:
		return false, nil
	case code == "409" && description == statusFull:
		p.large = p.refused == p.seen+1 // it had no room for a single one
		p.refused = p.seen + 1
	case code == "408", code == "404":
		idle = true
	default:
		return false, errTailBroken
	}
	n, err := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
	if err != nil {
		n = p.asked
	}
	p.asked = max(p.asked-n, 0)
	return idle, nil
}

// What the server says of a request with a limit in bytes.
const (
	statusFull      = "Message Size Exceeds MaxBytes" // there is no room for the next event
	statusCompleted = "Batch Completed"               // it has brought all events, and there would be room for more
)

// pullBody is the body of a pull request for n messages of so many bytes together, 0 for any.
func pullBody(n, bytes int, expires, heartbeat time.Duration) []byte {
	b := make([]byte, 0, 128)
	b = strconv.AppendInt(append(b, `{"batch":`...), int64(n), 10)
	if bytes > 0 {
		b = strconv.AppendInt(append(b, `,"max_bytes":`...), int64(bytes), 10)
	}
	b = strconv.AppendInt(append(b, `,"expires":`...), int64(expires), 10)
	if heartbeat > 0 {
		b = strconv.AppendInt(append(b, `,"idle_heartbeat":`...), int64(heartbeat), 10)
	}
	return append(b, '}')
}
