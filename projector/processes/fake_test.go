package processes_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// fakeBus is a bus in memory that keeps the promises the projector builds on:
// conditional publishes, refused duplicates, redelivery. Its hooks break what a
// real one may break.
type fakeBus struct {
	mu      sync.Mutex
	topics  map[string]*fakeTopic
	changed chan struct{} // closed and replaced at every change

	// lost reports that the answer to this publish gets lost: the event is stored and the caller does not know.
	lost func(jetbus.Event) bool
	// unacked reports that the acknowledgement of this delivery gets lost: it comes again.
	unacked func(*jetbus.Delivery) bool
	// before runs ahead of each publish, without the lock.
	before func(jetbus.Event)
	// read counts the events that Read has given.
	read atomic.Int64
}

type fakeTopic struct {
	config  jetbus.TopicConfig
	created time.Time
	events  []jetbus.Event
	ids     map[string]uint64
	groups  map[string]*fakeGroup
}

type fakeGroup struct {
	waiting []jetbus.Event // for redelivery
	next    int            // index of the first event never delivered
	held    map[uint64]bool
	tries   map[uint64]int
}

func newFakeBus() *fakeBus {
	return &fakeBus{topics: map[string]*fakeTopic{}, changed: make(chan struct{})}
}

func (b *fakeBus) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *fakeBus) topic(name string) (*fakeTopic, error) {
	t := b.topics[name]
	if t == nil {
		return nil, fmt.Errorf("topic %s: %w", name, jetbus.ErrNoTopic)
	}
	return t, nil
}

func (t *fakeTopic) last(key string) (jetbus.Event, bool) {
	for _, e := range slices.Backward(t.events) {
		if e.Key == key {
			return e, true
		}
	}
	return jetbus.Event{}, false
}

func (b *fakeBus) Publish(_ context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	if b.before != nil {
		b.before(e)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := e.Validate(); err != nil {
		return jetbus.Receipt{}, err
	}
	t, err := b.topic(e.Topic)
	if err != nil {
		return jetbus.Receipt{}, err
	}
	if e.ID == "" {
		e.ID = jetbus.NewID()
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.Truncate(time.Millisecond)
	last, _ := t.last(e.Key)
	if len(o) > 0 && o[0].ExpectLastSeq != nil && *o[0].ExpectLastSeq != last.Seq {
		return jetbus.Receipt{}, &jetbus.PublishError{Event: e, Err: jetbus.ErrWrongSequence}
	}
	if seq := t.ids[e.ID]; seq != 0 {
		e.Seq = seq
		return jetbus.Receipt{Event: e, Duplicate: true}, nil
	}
	e.Seq = uint64(len(t.events) + 1)
	t.events = append(t.events, e)
	t.ids[e.ID] = e.Seq
	b.wake()
	if b.lost != nil && b.lost(e) {
		return jetbus.Receipt{}, &jetbus.PublishError{Event: e, Stored: jetbus.StoredUnknown, Err: jetbus.ErrUnavailable}
	}
	return jetbus.Receipt{Event: e}, nil
}

func (b *fakeBus) EnsureTopic(_ context.Context, c jetbus.TopicConfig) (jetbus.TopicInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.topics[c.Name] == nil {
		b.topics[c.Name] = &fakeTopic{config: c, created: time.Now(), ids: map[string]uint64{}, groups: map[string]*fakeGroup{}}
	}
	return b.info(c.Name)
}

func (b *fakeBus) TopicInfo(_ context.Context, topic string) (jetbus.TopicInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.info(topic)
}

func (b *fakeBus) info(topic string) (jetbus.TopicInfo, error) {
	t, err := b.topic(topic)
	if err != nil {
		return jetbus.TopicInfo{}, err
	}
	return jetbus.TopicInfo{Config: t.config, Created: t.created, Events: uint64(len(t.events)), LastSeq: uint64(len(t.events))}, nil
}

func (b *fakeBus) Groups(_ context.Context, topic string) ([]jetbus.GroupInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.topic(topic)
	if err != nil {
		return nil, err
	}
	var infos []jetbus.GroupInfo
	for name, g := range t.groups {
		floor := uint64(g.next)
		for seq := range g.held {
			floor = min(floor, seq-1)
		}
		infos = append(infos, jetbus.GroupInfo{Topic: topic, Group: name, Pending: uint64(len(t.events) - g.next), Held: len(g.held), AckedSeq: floor})
	}
	return infos, nil
}

func (b *fakeBus) LatestByKey(_ context.Context, topic string, keys ...string) (map[string]jetbus.Event, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.topic(topic)
	if err != nil {
		return nil, err
	}
	latest := map[string]jetbus.Event{}
	for _, key := range keys {
		if e, ok := t.last(key); ok {
			latest[key] = e
		}
	}
	return latest, nil
}

func (b *fakeBus) ScanLatest(_ context.Context, topic string, _ jetbus.LatestQuery, each func(jetbus.Event) error) (uint64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.topic(topic)
	if err != nil {
		return 0, err
	}
	for _, e := range t.events {
		if last, _ := t.last(e.Key); last.Seq != e.Seq {
			continue
		}
		if err := each(e); err != nil {
			return 0, err
		}
	}
	return uint64(len(t.events)), nil
}

func (b *fakeBus) Read(ctx context.Context, topics []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	return func(yield func(jetbus.Event, error) bool) {
		for after := o.After[topics[0]]; ; {
			b.mu.Lock()
			t, err := b.topic(topics[0])
			changed := b.changed
			var events []jetbus.Event
			if t != nil {
				events = slices.Clone(t.events[after:])
			}
			b.mu.Unlock()
			if err != nil {
				yield(jetbus.Event{}, err)
				return
			}
			for _, e := range events {
				after = e.Seq
				b.read.Add(1)
				if !yield(e, nil) {
					return
				}
			}
			if !o.Follow {
				return
			}
			select {
			case <-ctx.Done():
				yield(jetbus.Event{}, ctx.Err())
				return
			case <-changed:
			}
		}
	}
}

func (b *fakeBus) Subscribe(ctx context.Context, topic, group string, h jetbus.Handler, _ jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, err := b.topic(topic)
	if err != nil {
		return nil, err
	}
	g := t.groups[group]
	if g == nil {
		g = &fakeGroup{held: map[uint64]bool{}, tries: map[uint64]int{}}
		t.groups[group] = g
	}
	s := &fakeSubscription{stop: make(chan struct{}), done: make(chan struct{})}
	context.AfterFunc(ctx, s.end)
	go s.run(context.WithoutCancel(ctx), b, t, g, group, h)
	return s, nil
}

// take returns the next event for a member, or the channel to wait on.
func (b *fakeBus) take(t *fakeTopic, g *fakeGroup, group string) (*jetbus.Delivery, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var e jetbus.Event
	switch {
	case len(g.waiting) > 0:
		e, g.waiting = g.waiting[0], g.waiting[1:]
	case g.next < len(t.events):
		e = t.events[g.next]
		g.next++
	default:
		return nil, b.changed
	}
	g.held[e.Seq] = true
	g.tries[e.Seq]++
	return jetbus.NewDelivery(e, group, g.tries[e.Seq], -1, nil), nil
}

// settle ends a delivery, or has it come again after a while.
func (b *fakeBus) settle(g *fakeGroup, d *jetbus.Delivery, err error) {
	again := err != nil || b.unacked != nil && b.unacked(d)
	if again {
		time.Sleep(100 * time.Millisecond)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if again {
		g.waiting = append(g.waiting, d.Event)
	} else {
		delete(g.held, d.Seq)
	}
	b.wake()
}

type fakeSubscription struct {
	jetbus.Subscription // the methods that nothing here calls
	once                sync.Once
	stop, done          chan struct{}
}

func (s *fakeSubscription) run(ctx context.Context, b *fakeBus, t *fakeTopic, g *fakeGroup, group string, h jetbus.Handler) {
	defer close(s.done)
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		d, changed := b.take(t, g, group)
		if d != nil {
			b.settle(g, d, h(ctx, d))
			continue
		}
		select {
		case <-s.stop:
			return
		case <-changed:
		}
	}
}

func (s *fakeSubscription) end() { s.once.Do(func() { close(s.stop) }) }

func (s *fakeSubscription) Stop(context.Context) error {
	s.end()
	<-s.done
	return nil
}

func (s *fakeSubscription) Done() <-chan struct{} { return s.done }
func (s *fakeSubscription) Err() error            { return nil }

// stored returns the events of a topic.
func (b *fakeBus) stored(t *testing.T, topic string) []jetbus.Event {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.topics[topic].events)
}
