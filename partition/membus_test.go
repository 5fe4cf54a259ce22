package partition_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// memTopic is a topic with partitions in memory, and one group of it, for tests in
// fake time. It hands events out at least once, those of a partition one by one.
type memTopic struct {
	keys        *memKeys
	mu          sync.Mutex
	generations []jetbus.Generation
	joined      int // generations that the group is in
	log         []*memEvent
	news        chan struct{} // closed when there are new events
	turns       map[jetbus.Partition]*memPart
	overlaps    int // turns that began before the one before was over
	joins       int // calls of JoinPartitions
	refuses     error
	slow        bool // members do not begin
}

type memEvent struct {
	jetbus.Event
	p       jetbus.Partition
	settled bool
	retry   bool // a replay of a dead letter
}

func newMemTopic(n int) *memTopic {
	return &memTopic{
		keys: newMemKeys(), generations: []jetbus.Generation{{Generation: 1, Partitions: n}}, news: make(chan struct{}),
		turns: map[jetbus.Partition]*memPart{},
	}
}

// publish stores events of a key in the newest generation.
func (t *memTopic) publish(key string, ids ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.generations[len(t.generations)-1]
	n, err := jetbus.PartitionOf(key, g.Partitions)
	if err != nil {
		panic(err)
	}
	for _, id := range ids {
		t.storeLocked(&memEvent{Event: jetbus.Event{ID: id, Key: key}, p: jetbus.Partition{Generation: g.Generation, Number: n}})
	}
}

func (t *memTopic) storeLocked(e *memEvent) {
	e.Topic, e.Partition, e.Seq = "orders", e.p.Number, uint64(len(t.log)+1)
	t.log = append(t.log, e)
	close(t.news)
	t.news = make(chan struct{})
}

// open counts the events that are not settled.
func (t *memTopic) open() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, e := range t.log {
		if !e.settled {
			n++
		}
	}
	return n
}

func (t *memTopic) bus(seed uint64) (*line, jetbus.Partitions) {
	l := newLine(t.keys, seed)
	return l, &memBus{l, t}
}

func (t *memTopic) grow(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.generations = append(t.generations, jetbus.Generation{Generation: len(t.generations) + 1, Partitions: n})
}

// memBus is a member's way to a memTopic.
type memBus struct {
	line  *line
	topic *memTopic
}

// pass waits until a request is through.
func (b *memBus) pass(ctx context.Context) error {
	_, err := b.line.pass(ctx)
	return err
}

func (b *memBus) Generations(ctx context.Context, topic string) ([]jetbus.Generation, error) {
	if err := b.pass(ctx); err != nil {
		return nil, err
	}
	b.topic.mu.Lock()
	defer b.topic.mu.Unlock()
	switch {
	case topic == "plain":
		return nil, jetbus.ErrNoPartitions
	case topic != "orders":
		return nil, jetbus.ErrNoTopic
	}
	return slices.Clone(b.topic.generations), nil
}

func (b *memBus) Repartition(_ context.Context, _ string, n int) ([]jetbus.Generation, error) {
	b.topic.grow(n)
	return nil, nil
}

func (b *memBus) JoinPartitions(ctx context.Context, _, group string, _ jetbus.SubscribeOptions) error {
	if err := b.pass(ctx); err != nil {
		return err
	}
	b.topic.mu.Lock()
	defer b.topic.mu.Unlock()
	if group == "plain" {
		return &jetbus.ConflictError{What: "group orders/plain", Hint: "it has members without partitions"}
	}
	b.topic.joins++
	b.topic.joined = len(b.topic.generations)
	return nil
}

func (b *memBus) GroupPartitions(ctx context.Context, _, _ string) ([]jetbus.PartitionInfo, error) {
	if err := b.pass(ctx); err != nil {
		return nil, err
	}
	b.topic.mu.Lock()
	defer b.topic.mu.Unlock()
	var out []jetbus.PartitionInfo
	for _, g := range b.topic.generations[:b.topic.joined] {
		for p := range g.Partitions {
			i := jetbus.PartitionInfo{Partition: jetbus.Partition{Generation: g.Generation, Number: p}}
			for _, e := range b.topic.log {
				switch {
				case e.settled || e.p != i.Partition:
				case e.retry:
					i.Retries++
				default:
					i.Pending++
				}
			}
			out = append(out, i)
		}
	}
	return out, nil
}

// memPart is a turn.
type memPart struct {
	b       *memBus
	turn    jetbus.PartitionTurn
	group   string
	handler jetbus.Handler
	ctx     context.Context // of the turn
	quit    chan struct{}   // closed by Stop
	done    chan struct{}   // closed when it is over
	hurry   context.CancelCauseFunc

	mu      sync.Mutex
	stopped bool
	paused  bool
	began   bool // it does, or not
	clean   bool
	stats   jetbus.SubscriptionStats
}

func (b *memBus) SubscribePartition(ctx context.Context, _, group string, turn jetbus.PartitionTurn, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.PartitionSubscription, error) {
	if err := b.pass(ctx); err != nil {
		return nil, err
	}
	if o.Order != jetbus.PerKey && o.Order != jetbus.Total || turn.Epoch == 0 {
		return nil, fmt.Errorf("%w: order %q, turn %+v", jetbus.ErrInvalidOption, o.Order, turn)
	}
	b.topic.mu.Lock()
	defer b.topic.mu.Unlock()
	if b.topic.refuses != nil {
		return nil, b.topic.refuses
	}
	if before := b.topic.turns[turn.Partition]; before != nil && before.ctx.Err() == nil && !before.over() {
		b.topic.overlaps++
	}
	p := &memPart{b: b, turn: turn, group: group, handler: h, quit: make(chan struct{}), done: make(chan struct{}), began: !b.topic.slow}
	p.ctx, p.hurry = context.WithCancelCause(ctx)
	b.topic.turns[turn.Partition] = p
	go p.run()
	return p, nil
}

func (p *memPart) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// run handles one event after the other. One that fails is tried again.
func (p *memPart) run() {
	defer close(p.done)
	if !p.began {
		select {
		case <-p.quit:
		case <-p.ctx.Done():
		}
		p.clean = p.turn.Clean // nobody reads it before
		return
	}
	for p.ctx.Err() == nil {
		e, news := p.next()
		if e == nil {
			select {
			case <-news:
			case <-p.quit:
				p.hand()
				return
			case <-p.ctx.Done():
			}
			continue
		}
		d := jetbus.NewDelivery(e.Event, p.group, 1, 5, nil)
		d.Epoch = p.turn.Epoch
		err := p.handler(p.ctx, d)
		if p.b.pass(p.ctx) != nil {
			return
		}
		p.b.topic.mu.Lock()
		e.settled = e.settled || err == nil && p.ctx.Err() == nil
		p.b.topic.mu.Unlock()
		p.mu.Lock()
		p.stats.Delivered++
		if err == nil {
			p.stats.Acked++
		}
		p.mu.Unlock()
		select {
		case <-p.quit:
			p.hand()
			return
		default:
		}
	}
}

// hand notes that the partition was handed over.
func (p *memPart) hand() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clean = p.ctx.Err() == nil
}

// next is the first event that is not settled, or what tells of new ones.
func (p *memPart) next() (*memEvent, <-chan struct{}) {
	p.b.topic.mu.Lock()
	defer p.b.topic.mu.Unlock()
	p.mu.Lock()
	paused := p.paused
	p.mu.Unlock()
	for _, e := range p.b.topic.log {
		if !paused && !e.settled && e.p == p.turn.Partition {
			return e, nil
		}
	}
	return nil, p.b.topic.news
}

func (p *memPart) Stop(ctx context.Context) error {
	p.mu.Lock()
	if !p.stopped {
		p.stopped = true
		close(p.quit)
	}
	p.mu.Unlock()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	p.hurry(jetbus.ErrStopped)
	<-p.done
	return context.Cause(ctx)
}

func (p *memPart) Began() bool { return p.began }

func (p *memPart) Clean() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clean
}

func (p *memPart) setPaused(paused bool) {
	p.b.topic.mu.Lock() // first: whoever looks for an event sees it with the news
	defer p.b.topic.mu.Unlock()
	p.mu.Lock()
	p.paused = paused
	p.mu.Unlock()
	close(p.b.topic.news)
	p.b.topic.news = make(chan struct{})
}

func (p *memPart) Done() <-chan struct{} { return p.done }
func (p *memPart) Err() error            { return nil }
func (p *memPart) Pause()                { p.setPaused(true) }
func (p *memPart) Resume()               { p.setPaused(false) }

func (p *memPart) Stats() jetbus.SubscriptionStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

var errFails = errors.New("it fails this time")

// sleepy waits, unless ctx ends first.
func sleepy(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
