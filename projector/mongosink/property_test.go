package mongosink_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

var (
	seeds   = flag.Int("seeds", 80, "how many scenes TestProperty plays")
	oneSeed = flag.Int("seed", -1, "play this scene of TestProperty alone")
)

// Scenes are played at once: most of the time they wait for the leases of replicas that
// died. They share a few brokers and servers, whose faults are then everybody's.
const (
	worlds   = 5
	together = 4 // in each
)

// sceneTime bounds a scene, with room for a busy machine.
const sceneTime = 5 * time.Minute

// TestProperty plays scenes: a topic with a few keys that are written, deleted and
// written again, projected by two replicas, while these, the broker's group and the
// server fail in every way there is. In the end the collection is the fold of the
// topic. A seed decides what happens; it does not decide who is first.
func TestProperty(t *testing.T) {
	play := make(chan int)
	go func() {
		defer close(play)
		if *oneSeed >= 0 {
			play <- *oneSeed
			return
		}
		for seed := range *seeds {
			play <- seed
		}
	}()
	var players sync.WaitGroup
	var w *world
	for i := range worlds * together {
		if i%together == 0 {
			w = newWorld(t)
		}
		in := w
		players.Go(func() {
			for seed := range play {
				s := newScene(in, seed)
				if err := s.play(t.Context()); err != nil {
					t.Errorf("seed %d: %v\nwhat happened:\n\t%s\n(-seed %d plays it alone)", seed, err, strings.Join(s.log, "\n\t"), seed)
				}
			}
		})
	}
	players.Wait()
}

// scene is one run with one seed.
type scene struct {
	*world
	seed       int
	rng        *rand.Rand
	topic      jetbus.TopicConfig
	collection string
	o          projector.Options
	keys       int
	poison     bool // there are events that cannot be stored
	began      time.Time

	live    []*replica
	entered int            // replicas so far
	ended   sync.WaitGroup // of replicas that died: one may yet write
	want    map[string]state
	seqs    uint64
	bad     map[uint64]bool // sequences of events that cannot be projected

	mu   sync.Mutex
	log  []string // what happened
	errs []error
}

// state is what a key should have in the end.
type state struct {
	version int64
	seq     uint64
	payload string // "": deleted
}

// show is what mongosink_test's show says of the document.
func (s state) show(key string, versioned bool) string {
	at := fmt.Sprintf("%s@%d", key, s.seq)
	if versioned {
		at += fmt.Sprintf("v%d", s.version)
	}
	return at + " " + s.payload
}

func newScene(w *world, seed int) *scene {
	s := &scene{world: w, seed: seed, began: time.Now(), rng: rand.New(rand.NewPCG(uint64(seed), 1)), want: map[string]state{}, bad: map[uint64]bool{}} //nolint:gosec // not negative
	name := fmt.Sprintf("scene%d", seed)
	s.topic = jetbus.TopicConfig{Name: name, Storage: jetbus.MemoryStorage}
	s.collection, s.keys = name, 1+s.rng.IntN(12)
	s.o = projector.Options{
		Name: "p", Topic: name, AckTimeout: ackTimeout, ShutdownTimeout: 5 * time.Second,
		MaxBatch: []int{2, 5, 20, 0}[s.rng.IntN(4)], Linger: []time.Duration{0, -1, time.Millisecond}[s.rng.IntN(3)],
	}
	switch s.rng.IntN(6) {
	case 0:
		s.o.VersionOf = versionOf
	case 1:
		s.o.VersionOf, s.topic.KeyInSubject = versionOf, true
	case 2:
		s.topic.KeyInSubject = true
	case 3:
		s.topic.Compact = true
	}
	// Where the sink is filled with the last event of each key, or the topic keeps
	// no others, one that cannot be stored leaves the key without a state.
	s.poison = s.o.VersionOf != nil || !s.topic.KeyInSubject && !s.topic.Compact
	return s
}

func (s *scene) chance(oneIn int) bool { return s.rng.IntN(oneIn) == 0 }

// note takes down what happens, for whoever has to find out why a scene failed.
func (s *scene) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf("%7.3f ", time.Since(s.began).Seconds())+fmt.Sprintf(format, args...))
}

// versionOf reads the header that the scenes write versions to.
func versionOf(e jetbus.Event) (v int64, err error) {
	_, err = fmt.Sscan(e.Headers["x-version"], &v)
	return v, err
}

func (s *scene) play(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sceneTime)
	defer cancel()
	if _, err := s.bus.EnsureTopic(ctx, s.topic); err != nil {
		return err
	}
	defer func() { _ = s.bus.DeleteTopic(context.WithoutCancel(ctx), s.topic.Name) }() // it goes with the broker
	if s.chance(2) {                                                                   // something to fill the sink with
		if err := s.publish(ctx, 1+s.rng.IntN(30)); err != nil {
			return err
		}
	}
	err := s.act(ctx)
	if err == nil {
		err = s.settle(ctx)
	}
	for len(s.live) > 0 {
		err = errors.Join(err, s.leave(ctx, 0))
	}
	s.ended.Wait()
	if err := errors.Join(append(s.errs, err)...); err != nil {
		return err
	}
	return s.check(ctx)
}

// act is the scene itself.
func (s *scene) act(ctx context.Context) error {
	for range 8 + s.rng.IntN(14) {
		var err error
		switch n := s.rng.IntN(100); {
		case len(s.live) == 0 || len(s.live) == 1 && n < 30:
			err = s.enter(ctx)
		case n < 60:
			err = s.publish(ctx, 1+s.rng.IntN(5))
		case n < 65:
			err = s.publish(ctx, 10+s.rng.IntN(30))
		case n < 82:
			s.planSink()
		case n < 90:
			f := []mongoFault{cutBefore, cutAfter, notPrimary}[s.rng.IntN(3)]
			times := 1 + s.rng.IntN(4) // the driver tries again by itself
			s.note("%s, %d times", f, times)
			for range times {
				s.plan(s.collection, f)
			}
		case n < 91:
			s.note("step-down")
			s.stepDown()
		case n < 93:
			err = s.leave(ctx, s.rng.IntN(len(s.live)))
		case n < 95:
			err = s.seek(ctx)
		default:
			s.pause()
		}
		if err != nil {
			return err
		}
		s.bury(ctx)
	}
	if len(s.live) == 0 {
		return nil
	}
	s.pause() // what comes last is not overwritten any more: a good moment to fail
	if s.chance(2) {
		s.note("the connection is cut before the update, 4 times")
		for range 4 {
			s.plan(s.collection, cutBefore)
		}
	} else {
		s.planSink()
		s.planSink()
	}
	err := s.publish(ctx, 1+s.rng.IntN(8))
	time.Sleep(60 * time.Millisecond) // the faults are over at the end
	s.bury(ctx)
	return err
}

// pause lets things happen.
func (s *scene) pause() { time.Sleep(time.Duration(s.rng.IntN(40)) * time.Millisecond) }

// publish stores some events at once.
func (s *scene) publish(ctx context.Context, n int) error {
	events := make([]jetbus.Event, n)
	for i := range events {
		events[i] = s.event()
	}
	receipts, err := s.bus.PublishBatch(ctx, events, jetbus.BatchOptions{})
	if err != nil {
		return err
	}
	for i := range receipts {
		s.fold(&receipts[i].Event)
	}
	s.note("%d events, to %d", n, s.seqs)
	return nil
}

// event makes one: of four, one deletes its key.
func (s *scene) event() jetbus.Event {
	key := fmt.Sprintf("k%d", s.rng.IntN(s.keys))
	e := jetbus.Event{Topic: s.topic.Name, Key: key}
	n := s.rng.IntN(12)
	switch {
	case n == 2:
		e.Payload = []byte(`{"_deleted":true}`)
	case n < 2:
		e.Payload = []byte("null")
	case n == 3 && s.poison: // never to be stored
		e.Payload = []byte([]string{"no JSON", "[1]", `{"_seq":1}`}[s.rng.IntN(3)])
	case n < 6: // what a newer state lacks goes
		e.Payload = fmt.Appendf(nil, `{"b":%d}`, s.rng.IntN(1e6))
	default:
		e.Payload = fmt.Appendf(nil, `{"a":%d,"c":"x"}`, s.rng.IntN(1e6))
	}
	if s.o.VersionOf != nil {
		e = withVersion(e, s.rng.IntN(40))
	}
	return e
}

func withVersion(e jetbus.Event, v int) jetbus.Event {
	headers := map[string]string{"x-version": fmt.Sprint(v)}
	maps.Copy(headers, e.Headers)
	e.Headers = headers
	return e
}

// fold notes what an event makes of its key.
func (s *scene) fold(e *jetbus.Event) {
	s.seqs = max(s.seqs, e.Seq)
	now := state{seq: e.Seq, payload: string(e.Payload)}
	switch {
	case projector.IsTombstone(*e):
		now.payload = ""
	case !strings.HasPrefix(now.payload, `{"a"`) && !strings.HasPrefix(now.payload, `{"b"`):
		s.bad[e.Seq] = true
		return
	}
	if s.o.VersionOf != nil {
		now.version, _ = versionOf(*e)
	}
	if have, ok := s.want[e.Key]; !ok || now.version > have.version || now.version == have.version && now.seq > have.seq {
		s.want[e.Key] = now
	}
}

// enter starts another replica.
func (s *scene) enter(ctx context.Context) error {
	s.entered++
	r := &replica{name: fmt.Sprintf("replica %d", s.entered), note: s.note, rng: rand.New(rand.NewPCG(s.rng.Uint64(), 2))}
	if err := s.start(ctx, r, s.o, mongosink.Options{Collection: s.collection}); err != nil {
		return fmt.Errorf("start %s: %w", r.name, err)
	}
	s.note("%s has started", r.name)
	s.live = append(s.live, r)
	return nil
}

// leave stops a replica in order.
func (s *scene) leave(ctx context.Context, i int) error {
	r := s.live[i]
	s.note("%s stops", r.name)
	s.live = slices.Delete(s.live, i, i+1)
	if err := r.stop(ctx); err != nil {
		return fmt.Errorf("stop a replica: %w", err)
	}
	return nil
}

// planSink has something happen to one of the next writes of a replica.
func (s *scene) planSink() {
	faults := []sinkFault{failBefore, failHalf, failAfter, slow, slow, dieBefore, dieHalf, dieAfter, dieAfter, zombie}
	f, r := faults[s.rng.IntN(len(faults))], s.live[s.rng.IntN(len(s.live))]
	s.note("planned for %s: %s", r.name, f)
	r.plan(f)
}

// bury parts with the replicas that died.
func (s *scene) bury(ctx context.Context) {
	s.live = slices.DeleteFunc(s.live, func(r *replica) bool {
		if !r.dead.Load() {
			return false
		}
		s.note("%s has died", r.name)
		s.ended.Go(func() {
			if err := r.stop(context.WithoutCancel(ctx)); err != nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.errs = append(s.errs, err)
			}
		})
		return true
	})
}

// seek moves the group to somewhere before, so that events come again.
func (s *scene) seek(ctx context.Context) error {
	g, err := s.group(ctx)
	if err != nil || g == nil || g.AckedSeq == 0 {
		return err
	}
	to := s.rng.Uint64N(g.AckedSeq)
	s.note("the group goes back from %d to %d", g.AckedSeq, to)
	if err := s.bus.SetCursor(ctx, s.topic.Name, s.o.Name, jetbus.Cursor{LastSeq: to}, jetbus.SeekOptions{Force: true}); err != nil {
		return fmt.Errorf("seek: %w", err)
	}
	return nil
}

// group is that of the projection, nil while the sink is being filled.
func (s *scene) group(ctx context.Context) (*jetbus.GroupInfo, error) {
	groups, err := s.bus.Groups(ctx, s.topic.Name)
	if err != nil {
		return nil, fmt.Errorf("groups: %w", err)
	}
	if i := slices.IndexFunc(groups, func(g jetbus.GroupInfo) bool { return g.Group == s.o.Name }); i >= 0 {
		return &groups[i], nil
	}
	return nil, nil
}

// settle ends all faults and waits until nothing is left to project.
func (s *scene) settle(ctx context.Context) error {
	s.note("the end")
	s.forget(s.collection)
	for _, r := range s.live {
		r.forget()
	}
	s.ended.Wait() // what the dead write comes before the end, too
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, ackTimeout) {
		s.bury(ctx)
		if len(s.live) == 0 {
			if err := s.enter(ctx); err != nil {
				return err
			}
		}
		g, err := s.group(ctx)
		if err != nil {
			return err
		}
		if g != nil && g.Pending == 0 && g.Held == 0 && g.AckedSeq >= s.seqs {
			return nil
		}
		for _, r := range s.live {
			select {
			case <-r.p.Done():
				if !r.dead.Load() {
					return fmt.Errorf("a replica has ended by itself: %w", r.p.Err())
				}
			default:
			}
		}
		if ctx.Err() != nil {
			stats := make([]projector.Stats, len(s.live))
			for i, r := range s.live {
				stats[i] = r.p.Stats()
			}
			return fmt.Errorf("the projection does not catch up with %d: group %+v, replicas %+v", s.seqs, g, stats)
		}
		time.Sleep(wait)
	}
}

// check compares the collection with the fold of the topic, and the dead letters
// with the events that nobody could have projected.
func (s *scene) check(ctx context.Context) error {
	docs, err := s.documents(ctx)
	for tries := 1; err != nil && tries < 10; tries++ { // other scenes cut connections
		docs, err = s.documents(ctx)
	}
	if err != nil {
		return err
	}
	got := make([]string, 0, len(docs))
	for _, d := range docs {
		got = append(got, show(d))
	}
	var want []string
	for key, state := range s.want {
		if state.payload != "" {
			want = append(want, state.show(key, s.o.VersionOf != nil))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the collection is\n\t%s\nand the topic says\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	for d, err := range jetbus.DeadLetters(ctx, s.bus, jetbus.DeadLetterQuery{Topic: s.topic.Name}) {
		if errors.Is(err, jetbus.ErrNoDeadLetters) {
			break
		}
		if err != nil {
			return fmt.Errorf("dead letters: %w", err)
		}
		if !s.bad[d.Event.Seq] {
			return fmt.Errorf("event %d is a dead letter: %s", d.Event.Seq, d.Error)
		}
	}
	return nil
}

func (s *scene) documents(ctx context.Context) ([]bson.M, error) {
	cursor, err := s.db.Collection(s.collection).Find(ctx, mongosink.Live())
	if err != nil {
		return nil, err
	}
	var docs []bson.M
	return docs, cursor.All(ctx, &docs)
}
