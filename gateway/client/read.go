package client

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// Read implements [jetbus.Reader]. Each topic takes one subscription of a connection. Where
// the connection breaks while it reads what there was when it began, or [Config.Buffer] is
// full, it may go on to what came since.
func (c *Client) Read(ctx context.Context, topics []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	return func(yield func(jetbus.Event, error) bool) {
		r, err := c.newReading(topics, o)
		if err == nil {
			err = r.begin(ctx)
		}
		if err != nil {
			yield(jetbus.Event{}, fmt.Errorf("read %s: %w", strings.Join(topics, ", "), err))
			return
		}
		defer r.end()
		for {
			e, err := r.next(ctx)
			switch {
			case err != nil:
				yield(jetbus.Event{}, fmt.Errorf("read %s: %w", strings.Join(topics, ", "), err))
				return
			case e == nil || !yield(*e, nil):
				return
			}
		}
	}
}

// reading is one Read.
type reading struct {
	c     *Client
	o     jetbus.ReadOptions
	parts []*part
	ready chan struct{} // signaled when there is something to do; capacity 1

	mu     sync.Mutex
	queue  []jetbus.Event
	bytes  int
	err    error
	closed bool
}

// part is the reading of one topic: an endpoint.
type part struct {
	r     *reading
	l     *link
	topic string
	id    string

	// Guarded by reading.mu.
	offset string // of the last event; "": none yet
	asked  bool
	caught bool // what was there at the beginning is read
	parked bool // there was no room for more
	retry  time.Time
}

func (c *Client) newReading(topics []string, o jetbus.ReadOptions) (*reading, error) {
	if len(topics) == 0 {
		return nil, fmt.Errorf("%w: no topics", jetbus.ErrInvalidOption)
	}
	if o.From.Kind == "" && !o.Follow {
		o.From = jetbus.Earliest()
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	r := &reading{c: c, o: o, ready: make(chan struct{}, 1)}
	for i, topic := range topics {
		if err := jetbus.ValidTopic(topic); err != nil {
			return nil, err
		}
		if slices.Contains(topics[:i], topic) {
			return nil, fmt.Errorf("%w: topic %s is named twice", jetbus.ErrInvalidOption, topic)
		}
		r.parts = append(r.parts, &part{r: r, topic: topic})
	}
	for _, topic := range slices.Concat(slices.Collect(maps.Keys(o.After)), slices.Collect(maps.Keys(o.Last)), slices.Collect(maps.Keys(o.Created))) {
		if !slices.Contains(topics, topic) {
			return nil, fmt.Errorf("%w: After, Last or Created names %s, which is not read", jetbus.ErrInvalidOption, topic)
		}
	}
	r.o.After, r.o.Last, r.o.Created = maps.Clone(o.After), maps.Clone(o.Last), maps.Clone(o.Created)
	return r, nil
}

// positions implements [jetbus.CheckpointBus] for [jetbus.Checkpoint.Verify].
type positions struct{ *Client }

// SequenceAt implements [jetbus.CheckpointBus]. It finds events of the topic only: a gateway reports
// nothing about other topics in the same stream.
func (p positions) SequenceAt(ctx context.Context, topic string, at time.Time) (uint64, error) {
	for e, err := range p.Scan(ctx, topic, jetbus.ScanQuery{From: jetbus.AtTime(at), Limit: 1}) {
		return e.Seq, err
	}
	return 0, nil
}

func (r *reading) begin(ctx context.Context) error {
	ctx, cancel := r.c.bound(ctx)
	defer cancel()
	for topic, last := range r.o.Last {
		if err := last.Verify(ctx, positions{r.c}, topic); err != nil {
			return err
		}
	}
	r.c.mu.Lock()
	closing := r.c.closing
	if !closing {
		r.c.readers[r] = struct{}{}
	}
	r.c.mu.Unlock()
	if closing {
		return jetbus.ErrClosed
	}
	for _, p := range r.parts {
		if err := p.start(ctx); err != nil {
			r.end()
			return err
		}
	}
	return nil
}

// start asks for the events of a topic, under a name of its own: what comes for an older one
// is not wanted any more.
func (p *part) start(ctx context.Context) error {
	id := p.r.c.name()
	sub := &readSub{p: p, id: id}
	p.r.mu.Lock()
	p.id, p.asked, p.parked, p.retry = id, false, false, time.Time{}
	p.r.mu.Unlock()
	l, err := p.r.c.place(ctx, id, sub, nil)
	if err != nil {
		return err
	}
	p.r.mu.Lock()
	p.l = l
	p.r.mu.Unlock()
	l.subscribe(id, sub)
	return nil
}

// stop gives the subscription of a part up.
func (p *part) stop() {
	p.r.mu.Lock()
	l, id := p.l, p.id
	p.l, p.id = nil, ""
	p.r.mu.Unlock()
	if l != nil {
		l.unsubscribe(id, nil)
		p.r.c.leave(l, id)
	}
}

func (r *reading) end() {
	r.mu.Lock()
	r.closed, r.queue, r.bytes = true, nil, 0
	r.mu.Unlock()
	for _, p := range r.parts {
		p.stop()
	}
	r.c.mu.Lock()
	delete(r.c.readers, r)
	r.c.mu.Unlock()
}

// next returns the next event; nil without an error: there is none any more.
func (r *reading) next(ctx context.Context) (*jetbus.Event, error) {
	for {
		if ctx.Err() != nil {
			return nil, cause(ctx)
		}
		e, parked, wait, err := r.look()
		if e != nil || err != nil {
			return e, err
		}
		for _, p := range parked {
			p.stop()
			within, cancel := r.c.bound(ctx)
			err := p.start(within)
			cancel()
			if err != nil {
				return nil, err
			}
		}
		if wait == 0 {
			return nil, nil //nolint:nilnil // as it says
		}
		if len(parked) > 0 {
			continue
		}
		var timer *time.Timer
		var later <-chan time.Time
		if wait > 0 {
			timer = time.NewTimer(wait)
			later = timer.C
		}
		select {
		case <-r.ready:
		case <-later:
		case <-ctx.Done():
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// look returns the next event, or what is to be done where there is none: parts to be started
// again, and how long to wait; 0: everything is read, -1: until something happens.
func (r *reading) look() (e *jetbus.Event, again []*part, wait time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.queue) > 0 {
		first := r.queue[0]
		r.queue[0] = jetbus.Event{}
		r.queue = r.queue[1:]
		r.bytes -= size(&first)
		return &first, nil, 0, nil
	}
	if r.err != nil {
		return nil, nil, 0, r.err
	}
	done := !r.o.Follow
	wait = -1
	for _, p := range r.parts {
		done = done && p.caught
		if !p.parked {
			continue
		}
		if left := time.Until(p.retry); left > 0 {
			if wait < 0 || left < wait {
				wait = left
			}
			continue
		}
		again = append(again, p)
	}
	if done {
		return nil, nil, 0, nil
	}
	return nil, again, wait, nil
}

func size(e *jetbus.Event) int { return len(e.Payload) + 256 }

func (r *reading) signal() {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// failed ends the reading, after what was read.
func (r *reading) failed(err error) {
	r.mu.Lock()
	if r.err == nil {
		r.err = err
	}
	r.mu.Unlock()
	r.signal()
}

// readSub is one subscription of a part.
type readSub struct {
	p  *part
	id string
}

// on implements endpoint. The part knows its link itself.
func (s *readSub) on(*link) {}

// request implements endpoint.
func (s *readSub) request() *frame.Request {
	r, p := s.p.r, s.p
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || (p.asked || p.parked) && p.id == s.id { // next starts what is parked
		return nil
	}
	p.asked = true
	var o frame.SubscribeOptions
	o.Filter = r.o.Filter
	after, known := r.o.After[p.topic]
	if last := r.o.Last[p.topic]; !known && last.Seq > 0 {
		after, known = last.Seq, true
	}
	switch {
	case p.offset != "":
		o.Gateway.Offset = p.offset
		if !known && r.o.From.Kind == jetbus.FromTime { // the time may be in the future
			o.From = r.o.From
		}
	case known:
		o.From = jetbus.AfterSeq(after)
	default:
		o.From = r.o.From
	}
	if at, ok := r.o.Created[p.topic]; ok {
		o.Gateway.Created = map[string]int64{p.topic: at.UnixMilli()}
	}
	text, err := plainText(o)
	if err != nil { // of a time that was looked at
		return nil
	}
	return &frame.Request{Topic: p.topic, Opts: text}
}

// subscribed implements endpoint.
func (s *readSub) subscribed(m *frame.Message, err error) {
	r, p := s.p.r, s.p
	if isTaken(err) && strings.Contains(err.Error(), `"`+s.id+`"`) {
		err = nil // it was asked twice, as a member may be
	}
	r.mu.Lock()
	mine := p.id == s.id
	if mine {
		p.asked = false
		if err == nil && m != nil && p.offset == "" {
			p.offset = m.Offset // of what is latest now
		}
		if passes(err) {
			p.parked, p.retry = true, time.Now().Add(max(retryAfter(err), retryWait))
			err = nil
		}
	}
	r.mu.Unlock()
	if mine && err != nil {
		r.failed(err)
		return
	}
	r.signal()
}

// down implements endpoint.
func (s *readSub) down(time.Duration) {}

// restored implements endpoint.
func (s *readSub) restored(bool) {
	s.p.r.mu.Lock()
	defer s.p.r.mu.Unlock()
	if s.p.id == s.id {
		s.p.asked = false
	}
}

// failed implements endpoint.
func (s *readSub) failed(err error) { s.p.r.failed(err) }

// message implements endpoint.
func (s *readSub) message(f *frame.Message) {
	r, p := s.p.r, s.p
	r.mu.Lock()
	if p.id != s.id || p.parked || r.closed || r.err != nil {
		r.mu.Unlock()
		return
	}
	var err error
	switch f.Op {
	case frame.Event:
		if f.Event == nil || p.caught && !r.o.Follow { // it came since
			break
		}
		if len(r.queue) > 0 && r.bytes+size(f.Event) > r.c.c.Buffer {
			p.parked = true // it is asked for again when there is room
			break
		}
		p.offset = f.Offset
		r.bytes += size(f.Event)
		r.queue = append(r.queue, *f.Event)
	case frame.CaughtUp:
		p.offset, p.caught = f.Offset, true
	case frame.Gap:
		if f.Reason == "reset" {
			err = fmt.Errorf("topic %s was made anew: %w", p.topic, jetbus.ErrPositionUnknown)
		}
	case frame.SubClosed:
		if err = refusal(f); passes(err) {
			p.parked, p.retry, err = true, time.Now().Add(retryWait), nil
		}
	}
	parked, l := p.parked, p.l
	if err != nil && r.err == nil {
		r.err = err
	}
	r.mu.Unlock()
	if parked && l != nil {
		l.unsubscribe(s.id, nil)
	}
	r.signal()
}
