package projector

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Phase is what a projection is doing.
type Phase string

// The phases.
const (
	Filling   Phase = "filling"   // an empty sink is filled with what the topic holds
	Following Phase = "following" // events are written as they come
	Away      Phase = "away"      // the sink has failed for longer than AckTimeout; others have the events
	StandBy   Phase = "standby"   // Exclusive: another replica projects
	Ended     Phase = "ended"     // nothing runs any more
)

// Stats count what one replica of a projection did since it started.
type Stats struct {
	Phase    Phase  `json:"phase"`
	Events   uint64 `json:"events"`   // read, repeated ones included
	Batches  uint64 `json:"batches"`  // written
	Applied  uint64 `json:"applied"`  // changes that are in the sink
	Stale    uint64 `json:"stale"`    // events that something as new or newer of their key made superfluous
	Raced    uint64 `json:"raced"`    // changes written again since another writer was at the key
	Rejected uint64 `json:"rejected"` // events that cannot be projected: dead letters
	Failed   uint64 `json:"failed"`   // writes that failed and were tried again
	Held     int    `json:"held"`     // events in hand now
	// Seq is the highest sequence that was written; events before it may be in other
	// hands. With Exclusive everything up to it is in the sink.
	Seq       uint64    `json:"seq"`
	LastWrite time.Time `json:"lastWrite,omitzero"`
	// LastError is of a sink or broker that is away; empty since the last write.
	LastError string `json:"lastError,omitempty"`
}

// Lag is how far the sink is behind the topic, however many replicas there are: also
// where another one projects.
type Lag struct {
	// Events is how many events the topic has that are not in the sink for certain:
	// those nobody has taken yet, and those in hand. Events that were published a moment
	// ago may count as one, never as none. Before the sink is filled, and with
	// Exclusive, it is how far Seq is behind LastSeq, which are those of the whole
	// stream where topics share one.
	Events uint64 `json:"events"`
	// Seq is the sequence up to which all events are in the sink for certain.
	Seq     uint64 `json:"seq"`
	LastSeq uint64 `json:"lastSeq"` // of the topic's stream
}

// counters are what Stats are made of.
type counters struct {
	events, batches, applied, stale, raced, rejected, failed atomic.Uint64

	seq  atomic.Uint64 // highest sequence written
	upTo atomic.Uint64 // the sink's position, as far as this replica knows it

	mu        sync.Mutex
	phase     Phase
	lastWrite time.Time
	lastError error
}

func (c *counters) enter(phase Phase) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.phase = phase
}

func (c *counters) now() Phase {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.phase
}

// wrote counts a batch that is in the sink. That of an exclusive projection of which some was
// rejected is written again without that, and is in the sink only then.
func (c *counters) wrote(out Outcome, b Batch, exclusive bool) {
	c.batches.Add(1)
	c.applied.Add(uint64(out.Applied)) //nolint:gosec // not negative
	c.stale.Add(uint64(out.Stale))     //nolint:gosec // not negative
	c.raced.Add(uint64(out.Raced))     //nolint:gosec // not negative
	if len(out.Rejected) == 0 {
		raise(&c.upTo, b.UpTo)
		raise(&c.seq, b.UpTo)
	}
	if len(out.Rejected) == 0 || !exclusive {
		raise(&c.seq, highestWritten(out, b))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastWrite, c.lastError = time.Now(), nil
}

// highestWritten is the highest sequence of a change that was not rejected.
func highestWritten(out Outcome, b Batch) (seq uint64) {
	rejected := out.Rejected
	for i := range b.Changes {
		if len(rejected) > 0 && rejected[0].Index == i {
			rejected = rejected[1:]
			continue
		}
		seq = max(seq, b.Changes[i].Event.Seq)
	}
	return seq
}

// raise sets a number that never falls. One goroutine at a time calls it.
func raise(n *atomic.Uint64, to uint64) { n.Store(max(n.Load(), to)) }

func (c *counters) failedWrite(err error) {
	c.failed.Add(1)
	c.trouble(err)
}

func (c *counters) trouble(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastError = err
}

// Stats returns the counters.
func (p *Projection) Stats() Stats {
	c := &p.count
	s := Stats{
		Events: c.events.Load(), Batches: c.batches.Load(), Applied: c.applied.Load(), Stale: c.stale.Load(),
		Raced: c.raced.Load(), Rejected: c.rejected.Load(), Failed: c.failed.Load(), Seq: c.seq.Load(), Held: p.queue.held(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Phase, s.LastWrite = c.phase, c.lastWrite
	if c.lastError != nil {
		s.LastError = c.lastError.Error()
	}
	return s
}

// Lag asks the broker how far the sink is behind the topic. A replica that stands by asks
// the sink for its position, too, each time, if it is a [Positioner]; if not, it knows the
// position that the sink had when it was opened here last. Errors are those of the bus
// and of Positioner.Position, and [ErrNewStream].
func (p *Projection) Lag(ctx context.Context) (Lag, error) {
	info, err := p.b.TopicInfo(ctx, p.o.Topic)
	if err != nil {
		return Lag{}, fmt.Errorf("lag of projection %s: %w", p.o.Name, err)
	}
	at, err := p.at(ctx, info)
	if err != nil {
		return Lag{}, fmt.Errorf("lag of projection %s: %w", p.o.Name, err)
	}
	l := Lag{Seq: at, LastSeq: info.LastSeq}
	if !p.o.Exclusive && p.joined.Load() {
		groups, err := p.b.Groups(ctx, p.o.Topic)
		if err != nil {
			return Lag{}, fmt.Errorf("lag of projection %s: %w", p.o.Name, err)
		}
		for _, g := range groups {
			if g.Group == p.o.Name {
				return p.groupLag(ctx, l, g)
			}
		}
	}
	if l.LastSeq > l.Seq {
		l.Events = l.LastSeq - l.Seq
	}
	return l, nil
}

// at is the sink's position. Where another replica writes to it, the sink is asked.
func (p *Projection) at(ctx context.Context, info jetbus.TopicInfo) (uint64, error) {
	sink, ok := p.writer.sink.(Positioner)
	if !ok || !p.o.Exclusive || p.count.now() != StandBy {
		return p.count.upTo.Load(), nil
	}
	if info.Stream != p.source.Stream || !info.Created.Equal(p.source.Created) {
		return 0, ErrNewStream // its sequences say nothing of the sink's
	}
	ctx, cancel := context.WithTimeout(ctx, p.o.writeTimeout())
	defer cancel()
	at, err := askPosition(func() (Position, error) { return sink.Position(ctx, p.source) })
	if err != nil {
		return 0, fmt.Errorf("ask the sink: %w", err)
	}
	return at.Seq, nil
}

// groupLag is the lag of a group. The server tells its groups of an event after it has
// acknowledged the publish: for a moment a group that is behind says that it is not,
// and the topic is looked at.
func (p *Projection) groupLag(ctx context.Context, l Lag, g jetbus.GroupInfo) (Lag, error) {
	l.Seq = max(l.Seq, g.AckedSeq)
	l.Events = g.Pending + uint64(max(g.Held, 0))
	if l.Events > 0 || l.Seq >= l.LastSeq {
		return l, nil
	}
	for _, err := range p.b.Read(ctx, []string{p.o.Topic}, jetbus.ReadOptions{After: map[string]uint64{p.o.Topic: l.Seq}}) {
		if err != nil {
			return Lag{}, fmt.Errorf("lag of projection %s: %w", p.o.Name, err)
		}
		l.Events = 1
		break
	}
	return l, nil
}
