package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// derived is a state that is derived from the topic.
type derived interface {
	// run keeps the state up to date until ctx ends, or until it cannot go on. It resumes where
	// the run before ended.
	run(ctx context.Context) error
	// forget drops the state after an error, as an operator does. The next run begins again.
	forget(ctx context.Context) error
	// state returns the payload of each key.
	state(ctx context.Context) (map[string]string, error)
	// keyOf returns the key under which an event of the topic is in the state.
	keyOf(e *jetbus.Event) string
}

// byKey is the keyOf of a state with the topic's own keys.
type byKey struct{}

func (byKey) keyOf(e *jetbus.Event) string { return e.Key }

// memory is a sink in memory that survives its projections, as a database does.
type memory struct {
	mu   sync.Mutex
	docs map[string]memoryDoc
	at   projector.Position
}

type memoryDoc struct {
	seq     uint64
	payload string // empty: deleted
}

// memorySink is a replica's way to a memory.
type memorySink struct {
	m         *memory
	exclusive bool
	seq       uint64 // the position that this replica knows
}

func (s *memorySink) Open(_ context.Context, src projector.Source) (projector.Position, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.exclusive, s.seq = src.Exclusive, s.m.at.Seq
	return s.m.at, nil
}

func (s *memorySink) Position(context.Context, projector.Source) (projector.Position, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.m.at, nil
}

func (s *memorySink) Write(_ context.Context, b projector.Batch) (out projector.Outcome, err error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.exclusive && b.UpTo > 0 && s.m.at.Seq != s.seq {
		return out, projector.ErrFenced
	}
	if b.Last.Seq > s.m.at.Last.Seq {
		s.m.at.Last = b.Last
	}
	for _, c := range b.Changes {
		if c.Event.Seq <= s.m.docs[c.Key].seq {
			out.Stale++
			continue
		}
		doc := memoryDoc{seq: c.Event.Seq}
		if payload, ok := c.Doc.(json.RawMessage); ok {
			doc.payload = string(payload)
		}
		s.m.docs[c.Key] = doc
		out.Applied++
	}
	if b.UpTo > 0 {
		s.m.at.Known, s.m.at.Seq = true, max(s.m.at.Seq, b.UpTo)
		s.seq = s.m.at.Seq
	}
	return out, nil
}

// projection projects the topic into a sink, with replicas on buses of their own.
type projection struct {
	byKey
	o     projector.Options
	buses []*adapter.Bus
	m     *memory // nil: in coll
	coll  *mongo.Collection
}

func (p *projection) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(p.buses))
	started := 0
	var failed error
	for _, bus := range p.buses {
		sink, err := p.sink()
		if err != nil {
			return err
		}
		replica, err := projector.Start(context.WithoutCancel(ctx), bus, sink, p.o)
		if err != nil {
			failed = err
			cancel()
			break
		}
		started++
		go func() { // waited for below
			select {
			case <-replica.Done():
			case <-ctx.Done():
			}
			ended <- errors.Join(replica.Err(), replica.Stop(context.Background()))
		}()
	}
	for range started {
		failed = errors.Join(failed, <-ended)
		cancel()
	}
	return failed
}

func (p *projection) sink() (projector.Sink, error) {
	if p.m != nil {
		return &memorySink{m: p.m}, nil
	}
	return mongosink.New(p.coll.Database(), mongosink.Options{Collection: p.coll.Name()})
}

// forget empties the memory. A collection is rebuilt by the next Start.
func (p *projection) forget(context.Context) error {
	if p.m != nil {
		p.m = &memory{docs: map[string]memoryDoc{}}
	}
	return nil
}

func (p *projection) state(ctx context.Context) (map[string]string, error) {
	state := map[string]string{}
	if p.m != nil {
		p.m.mu.Lock()
		defer p.m.mu.Unlock()
		for key, doc := range p.m.docs {
			if doc.payload != "" {
				state[key] = doc.payload
			}
		}
		return state, nil
	}
	found, err := p.coll.Find(ctx, mongosink.Live())
	if err != nil {
		return nil, err
	}
	for found.Next(ctx) {
		var doc struct {
			ID string `bson:"_id"`
			N  int64  `bson:"n"`
		}
		if err := bson.Unmarshal(found.Current, &doc); err != nil {
			return nil, err
		}
		state[doc.ID] = fmt.Sprintf(`{"n":%d}`, doc.N)
	}
	return state, errors.Join(found.Err(), found.Close(ctx))
}

// compactor keeps the last event of each group of keys.
type compactor struct {
	bus *adapter.Bus
	c   jetbus.Compactor
}

func (c *compactor) run(ctx context.Context) error { return c.c.Run(ctx, c.bus) }

func (c *compactor) forget(ctx context.Context) error {
	err := errors.Join(c.bus.DeleteTopic(ctx, c.c.Target), c.bus.DeleteGroup(ctx, c.c.Source, c.c.Group))
	_, failed := c.bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: c.c.Target, Compact: true})
	return errors.Join(err, failed)
}

func (c *compactor) state(ctx context.Context) (map[string]string, error) {
	state := map[string]string{}
	_, err := c.bus.ScanLatest(ctx, c.c.Target, jetbus.LatestQuery{}, func(e jetbus.Event) error {
		apply(state, e.Key, &e)
		return nil
	})
	return state, err
}

func (*compactor) keyOf(e *jetbus.Event) string { return "group of " + e.Key[:2] }

// reader follows the topic and folds it.
type reader struct {
	byKey
	bus *adapter.Bus

	mu   sync.Mutex
	docs map[string]string
	last jetbus.Checkpoint
}

func (r *reader) run(ctx context.Context) error {
	r.mu.Lock()
	o := jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}
	if r.last.Seq > 0 {
		o.Last = map[string]jetbus.Checkpoint{topic: r.last}
	}
	r.mu.Unlock()
	for e, err := range r.bus.Read(ctx, []string{topic}, o) {
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		r.mu.Lock()
		apply(r.docs, e.Key, &e)
		r.last = jetbus.CheckpointOf(&e)
		r.mu.Unlock()
	}
	return nil
}

func (r *reader) forget(context.Context) error {
	r.docs, r.last = map[string]string{}, jetbus.Checkpoint{}
	return nil
}

func (r *reader) state(context.Context) (map[string]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.docs), nil
}

// table is a jetbus.Table of the topic.
type table struct {
	byKey
	bus *adapter.Bus

	mu sync.Mutex
	t  *jetbus.Table
}

func (t *table) run(ctx context.Context) error {
	opened, err := jetbus.OpenTable(context.WithoutCancel(ctx), t.bus, topic, jetbus.TableOptions{})
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.t = opened
	t.mu.Unlock()
	select {
	case <-opened.Done():
	case <-ctx.Done():
		opened.Close()
	}
	return opened.Err()
}

func (*table) forget(context.Context) error { return nil }

func (t *table) state(context.Context) (map[string]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.t == nil {
		return nil, errors.New("the table was not opened yet")
	}
	state := map[string]string{}
	for key, e := range t.t.All() {
		apply(state, key, &e)
	}
	return state, nil
}

// apply makes an event part of a state.
func apply(state map[string]string, key string, e *jetbus.Event) {
	if e.IsTombstone() {
		delete(state, key)
		return
	}
	state[key] = string(e.Payload)
}

// keeper runs a derived state and notes what it reports.
type keeper struct {
	derived
	name string

	cancel context.CancelFunc
	ended  chan struct{}
	err    error // why it ended; after ended
}

// start runs the state, if it does not run.
func (k *keeper) start(t *testing.T) {
	t.Helper()
	if k.running() {
		return
	}
	if k.ended != nil && k.err != nil {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := k.forget(ctx); err != nil {
			t.Fatalf("%s: forget: %v", k.name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	k.cancel, k.ended, k.err = cancel, ended, nil
	go func() { // stop waits for it
		defer close(ended)
		if err := k.run(ctx); ctx.Err() == nil || isReport(err) { // else it is what a retry was going to overcome
			k.err = err
		}
	}()
}

func (k *keeper) running() bool {
	if k.ended == nil {
		return false
	}
	select {
	case <-k.ended:
		return false
	default:
		return true
	}
}

func (k *keeper) stop() {
	if k.ended != nil {
		k.cancel()
		<-k.ended
	}
}
