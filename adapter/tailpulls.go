package adapter

// tailPulls is the account of a tail's requests at one consumer: what they can still
// bring, in events and, each by itself, in bytes.
type tailPulls struct {
	bytes   int64  // that a request may bring; 0: any number
	asked   int    // events that are asked for and have not come
	seen    uint64 // deliveries of the consumer
	refused uint64 // seen when the server last said that a request has no room for the next event
	large   bool   // none has: the next event is asked for alone
}

// request is what to ask for now; no events: those requests that are open will do. The
// server goes on while their events are read.
func (p *tailPulls) request() pullOrder {
	n, bytes := tailBatch-p.asked, p.bytes
	switch {
	case p.large && p.asked > 0, p.asked > tailBatch/2:
		return pullOrder{}
	case p.large:
		n, bytes = 1, 0
	}
	p.asked += n
	return pullOrder{events: n, bytes: bytes, expires: pullExpiry, heartbeat: pullHeartbeat}
}

// event accounts for an event that came.
func (p *tailPulls) event() { p.asked, p.seen, p.large = p.asked-1, p.seen+1, false }

// status handles what the server says instead of an event: it reports whether nothing comes
// for now. The error says that the consumer is of no more use.
func (p *tailPulls) status(w pullWord) (idle bool, err error) {
	switch w.kind {
	case pullBeat:
		return true, nil
	case pullDone:
		return false, nil
	case pullFull:
		p.large = p.refused == p.seen+1 // it had no room for a single one
		p.refused = p.seen + 1
	case pullOver:
		idle = true
	default:
		return false, errTailBroken
	}
	n := w.events
	if n < 0 {
		n = p.asked
	}
	p.asked = max(p.asked-n, 0)
	return idle, nil
}
