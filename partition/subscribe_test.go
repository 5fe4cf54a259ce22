package partition_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/partition"
)

// world is where a service runs.
type world interface {
	publish(key string, ids ...string)
	grow(n int)
	open() int                                  // events that are not settled
	bus(seed uint64) (*line, jetbus.Partitions) // of another process
}

// service is a group of a topic in fake time, with what its handlers did.
type service struct {
	*testing.T
	world
	topic   *memTopic // it runs in; nil: on a broker
	keys    *memKeys
	ttl     time.Duration
	seeds   uint64
	loads   int
	before  map[string][]string // what load published
	crash   func()              // of the broker; nil: there is none
	members []*replica
	handles func(ctx context.Context, d *jetbus.Delivery) error // nil: takes a moment

	mu       sync.Mutex
	handled  map[string][]string // by key, the ids in the order of their first success
	done     map[string]bool
	epochs   map[jetbus.Partition]uint64
	assigned map[jetbus.Partition]string // who has it by OnAssigned
	running  map[string]<-chan struct{}  // by key, the end of the context of the handler that has it
}

// replica is one process of the service.
type replica struct {
	*partition.Subscription
	line *line
	id   string
}

func inService(t *testing.T, n int, f func(s *service)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		topic := newMemTopic(n)
		s := newService(t, topic)
		s.topic, s.keys = topic, topic.keys
		defer func() {
			s.end()
			s.wants("turns that overlap", s.topic.overlaps, 0)
		}()
		f(s)
	})
}

func newService(t *testing.T, w world) *service {
	return &service{
		T: t, world: w, before: map[string][]string{}, ttl: 15 * time.Second,
		handled: map[string][]string{}, done: map[string]bool{}, epochs: map[jetbus.Partition]uint64{}, assigned: map[jetbus.Partition]string{},
		running: map[string]<-chan struct{}{},
	}
}

func (s *service) end() {
	for _, m := range s.members {
		m.line.mend()
	}
	for _, m := range s.members {
		if err := m.Stop(context.Background()); err != nil {
			s.Error(err)
		}
	}
	s.wants("partitions with somebody in the end", len(s.assigned), 0)
}

// process is what a member uses: what it asks of keys and what it asks of partitions.
type process struct {
	*line
	jetbus.Partitions
}

func (s *service) bus() process {
	s.seeds++
	l, p := s.world.bus(s.seeds)
	return process{l, p}
}

func (s *service) options(id string) partition.SubscribeOptions {
	return partition.SubscribeOptions{
		PerPartition: jetbus.SubscribeOptions{Concurrency: 3}, // keys at a time
		Member:       id, TTL: s.ttl,
		OnAssigned: func(ctx context.Context, a partition.Assigned) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if a.Epoch <= s.epochs[a.Partition] {
				s.Errorf("%s has %v with epoch %d, after %d", id, a.Partition, a.Epoch, s.epochs[a.Partition])
			}
			s.epochs[a.Partition], s.assigned[a.Partition] = a.Epoch, id
		},
		OnRevoked: func(ctx context.Context, r partition.Revoked) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.epochs[r.Partition] == r.Epoch { // otherwise it was lost, and is another's by now
				delete(s.assigned, r.Partition)
			} else if r.Clean {
				s.Errorf("%s hands over %v with epoch %d, which has gone on with %d", id, r.Partition, r.Epoch, s.epochs[r.Partition])
			}
		},
	}
}

func (s *service) subscribe(o partition.SubscribeOptions) *replica {
	s.Helper()
	b := s.bus()
	sub, err := partition.Subscribe(s.Context(), b, "orders", "billing", s.handle, o)
	if err != nil {
		s.Fatal(err)
	}
	m := &replica{sub, b.line, o.Member}
	s.members = append(s.members, m)
	return m
}

func (s *service) start(ids ...string) []*replica {
	s.Helper()
	out := make([]*replica, len(ids))
	for i, id := range ids {
		out[i] = s.subscribe(s.options(id))
	}
	return out
}

// handle notes what succeeded first.
func (s *service) handle(ctx context.Context, d *jetbus.Delivery) error {
	s.begins(ctx, d)
	defer s.ends(ctx, d)
	if s.handles != nil {
		if err := s.handles(ctx, d); err != nil {
			return err
		}
	} else if err := sleepy(ctx, 10*time.Millisecond); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.done[d.ID] {
		s.done[d.ID] = true
		s.handled[d.Key] = append(s.handled[d.Key], d.ID)
	}
	return nil
}

// begins looks whether another handler has an event of the key, and may have it.
func (s *service) begins(ctx context.Context, d *jetbus.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.running[d.Key]:
	default:
		if s.running[d.Key] != nil {
			s.Errorf("%s is handled while another event of its key is", d.ID)
		}
	}
	s.running[d.Key] = ctx.Done()
}

func (s *service) ends(ctx context.Context, d *jetbus.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[d.Key] == ctx.Done() {
		delete(s.running, d.Key)
	}
}

// load publishes an event of each of some keys in each round, and returns what must be
// handled of each.
func (s *service) load(rounds, keys int, pause time.Duration) map[string][]string {
	s.loads++
	want := map[string][]string{}
	s.rounds(want, s.loads*1000, s.loads*1000+rounds, keys, pause)
	for key := range want { // after what is handled already
		s.mu.Lock()
		want[key] = append(slices.Clone(s.before[key]), want[key]...)
		s.before[key] = want[key]
		s.mu.Unlock()
	}
	return want
}

// rounds publishes an event of each of some keys in the rounds from from to to.
func (s *service) rounds(want map[string][]string, from, to, keys int, pause time.Duration) {
	s.Helper()
	for i := from; i < to; i++ {
		for k := range keys {
			key := fmt.Sprintf("key-%d", k)
			id := fmt.Sprintf("%s#%d", key, i)
			want[key] = append(want[key], id)
			s.publish(key, id)
		}
		time.Sleep(pause)
	}
}

// drained waits until all events are settled and looks at the order of each key.
func (s *service) drained(within time.Duration, want map[string][]string) {
	s.Helper()
	for began := time.Now(); s.open() > 0; time.Sleep(max(100*time.Millisecond, time.Since(began)/20)) {
		if time.Since(began) > within {
			s.Fatalf("%d events are open after %v", s.open(), within)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, ids := range want {
		if !slices.Equal(s.handled[key], ids) {
			s.Errorf("%s: handled %v, published %v", key, s.handled[key], ids)
		}
	}
}

// wants compares what is printed of two values.
func (s *service) wants(what string, got, want any) {
	s.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		s.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestSubscribe: replicas share the partitions, and events of a key are handled in
// their order while replicas come and go.
func TestSubscribe(t *testing.T) {
	inService(t, 8, func(s *service) {
		m := s.start("a", "b", "c")
		time.Sleep(2 * time.Second)
		var all []jetbus.Partition
		for _, m := range m {
			if n := len(m.Owned()); n < 2 || n > 3 {
				s.Errorf("%s has %v", m.id, m.Owned())
			}
			all = append(all, m.Owned()...)
		}
		s.wants("partitions", len(all), 8)
		want := s.load(50, 20, 100*time.Millisecond)
		s.drained(time.Minute, want)
		if err := m[0].Stop(s.Context()); err != nil {
			s.Error(err)
		}
		<-m[0].Done()
		s.wants("error of one that was stopped", m[0].Err(), error(nil))
		time.Sleep(time.Second)
		s.wants("partitions of the others", len(m[1].Owned())+len(m[2].Owned()), 8)
		stats := m[0].Stats()
		s.wants("what it says that it did is past", []any{stats.Active, stats.Delivered > 0, stats.Acked == stats.Delivered}, []any{false, true, true})
		s.wants("turns", m[0].Counts().Acquired, m[0].Counts().Released)
		m[1].Pause()
		m[2].Pause()
		s.publish("key-1", "late")
		time.Sleep(time.Minute)
		s.wants("open while all pause", s.open(), 1)
		s.wants("paused", m[1].Stats().Paused, true)
		m[1].Resume()
		m[2].Resume()
		s.drained(time.Second, nil)
	})
}

// TestEpochs: each delivery has the epoch of its turn.
func TestEpochs(t *testing.T) {
	inService(t, 4, func(s *service) {
		s.handles = func(_ context.Context, d *jetbus.Delivery) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if want := s.epochs[jetbus.Partition{Generation: 1, Number: d.Partition}]; d.Epoch != want || want == 0 {
				s.Errorf("%s has epoch %d, its turn %d", d.ID, d.Epoch, want)
			}
			return nil
		}
		s.start("a")
		s.drained(time.Minute, s.load(10, 10, time.Second))
		s.start("b")
		s.drained(time.Minute, s.load(10, 10, time.Second))
	})
}

// TestGrow: a topic grows from 8 to 12 and then to 13 under load. The order of each
// key holds, nothing is lost, and older generations are left when they are drained.
func TestGrow(t *testing.T) {
	inService(t, 8, func(s *service) {
		s.handles = func(ctx context.Context, d *jetbus.Delivery) error { // behind for a while
			return sleepy(ctx, 40*time.Millisecond)
		}
		m := s.start("a", "b", "c")
		want := map[string][]string{}
		s.rounds(want, 0, 40, 40, 200*time.Millisecond)
		s.grow(12)
		s.rounds(want, 40, 80, 40, 200*time.Millisecond)
		m = append(m, s.start("d")...)
		s.grow(13)
		s.rounds(want, 80, 100, 40, 200*time.Millisecond)
		s.drained(5*time.Minute, want)
		time.Sleep(20 * time.Second)
		for _, m := range m {
			for _, p := range m.Owned() {
				if p.Generation != 3 {
					s.Errorf("%s still has %v", m.id, p)
				}
			}
		}
		// A replay that went to an old generation is seen to.
		s.topic.mu.Lock()
		s.topic.storeLocked(&memEvent{Event: jetbus.Event{ID: "stale", Key: "k"}, p: jetbus.Partition{Generation: 1, Number: 5}, retry: true})
		s.topic.mu.Unlock()
		s.drained(30*time.Second, nil)
		time.Sleep(30 * time.Second)
		for _, m := range m {
			s.wants("partitions of "+m.id, slices.ContainsFunc(m.Owned(), func(p jetbus.Partition) bool { return p.Generation < 3 }), false)
		}
	})
}

// TestGrowWaits: partition j of a new generation waits for j of the old one, those that
// are new for all of them.
func TestGrowWaits(t *testing.T) {
	inService(t, 2, func(s *service) {
		s.start("a")
		time.Sleep(time.Second)
		release := make(chan struct{})
		s.handles = func(ctx context.Context, d *jetbus.Delivery) error {
			if d.ID == "slow" {
				<-release
			}
			return nil
		}
		slow := keyIn(0, 2)
		s.publish(slow, "slow")
		s.grow(3)
		s.publish(keyIn(0, 3), "0")
		s.publish(keyIn(1, 3), "1")
		s.publish(keyIn(2, 3), "2")
		time.Sleep(time.Minute)
		s.mu.Lock()
		s.wants("handled while the old one is not drained", fmt.Sprint(s.done), "map[1:true]")
		s.mu.Unlock()
		close(release)
		time.Sleep(2 * time.Second)
		s.wants("open", s.open(), 0)
	})
}

// keyIn returns a key of a partition of n.
func keyIn(p, n int) string {
	for i := 0; ; i++ {
		key := fmt.Sprintf("k%d", i)
		if at, _ := jetbus.PartitionOf(key, n); at == p {
			return key
		}
	}
}

// TestSubscribeCrash: what a replica had that died is handled by others, and it is
// told that it lost it.
func TestSubscribeCrash(t *testing.T) {
	inService(t, 4, func(s *service) {
		lost := 0
		o := s.options("a")
		revoked := o.OnRevoked
		o.OnRevoked = func(ctx context.Context, r partition.Revoked) {
			if !r.Clean && errors.Is(context.Cause(ctx), partition.ErrExpelled) {
				s.mu.Lock()
				lost++
				s.mu.Unlock()
			}
			revoked(ctx, r)
		}
		a := s.subscribe(o)
		s.start("b")
		time.Sleep(2 * time.Second)
		a.line.cut(true)
		want := s.load(10, 8, 100*time.Millisecond)
		s.drained(s.ttl+2*time.Second, want)
		s.mu.Lock()
		s.wants("partitions that it knows to be lost", lost, 2)
		s.mu.Unlock()
		s.wants("sessions lost", a.Counts().Expelled, 1)
		a.line.cut(false)
		time.Sleep(3 * time.Second)
		s.wants("partitions when it is back", len(a.Owned()), 2)
	})
}

// TestRevokedBeforeItBegan: a replica that had a partition and got nothing of it yet hands
// everything over, also where it was the first of all.
func TestRevokedBeforeItBegan(t *testing.T) {
	for name, late := range map[string]func(*memTopic){
		"not subscribed yet": func(m *memTopic) { m.refuses = jetbus.ErrUnavailable },
		"not begun yet":      func(m *memTopic) { m.slow = true },
	} {
		t.Run(name, func(t *testing.T) {
			inService(t, 2, func(s *service) {
				s.topic.mu.Lock()
				late(s.topic)
				s.topic.mu.Unlock()
				o := s.options("a")
				var clean atomic.Int32
				revoked := o.OnRevoked
				o.OnRevoked = func(ctx context.Context, r partition.Revoked) {
					if r.Clean {
						clean.Add(1)
					}
					revoked(ctx, r)
				}
				a := s.subscribe(o)
				time.Sleep(2 * time.Second)
				s.wants("partitions", len(a.Owned()), 2)
				if err := a.Stop(s.Context()); err != nil {
					s.Error(err)
				}
				s.wants("partitions that were handed over", clean.Load(), int32(2))
			})
		})
	}
}

// TestIgnoresContext: a handler that does not heed its context overlaps with the next
// owner's. The epochs of their deliveries tell which one is late, and what it says is
// not heard.
func TestIgnoresContext(t *testing.T) {
	inService(t, 1, func(s *service) {
		epochs := map[string]uint64{} // by the member that handles the event
		handler := func(id string, takes time.Duration) jetbus.Handler {
			return func(_ context.Context, d *jetbus.Delivery) error {
				s.mu.Lock()
				epochs[id] = d.Epoch
				s.mu.Unlock()
				time.Sleep(takes)
				return nil
			}
		}
		bus := s.bus()
		stuck, err := partition.Subscribe(s.Context(), bus, "orders", "billing", handler("stuck", 2*s.ttl), partition.SubscribeOptions{Member: "stuck", TTL: s.ttl})
		if err != nil {
			s.Fatal(err)
		}
		time.Sleep(time.Second)
		s.publish("k", "1")
		time.Sleep(time.Second)
		bus.cut(true)
		next, err := partition.Subscribe(s.Context(), s.bus(), "orders", "billing", handler("next", 0), partition.SubscribeOptions{Member: "next", TTL: s.ttl})
		if err != nil {
			s.Fatal(err)
		}
		s.drained(s.ttl+2*time.Second, nil)
		s.mu.Lock()
		if epochs["stuck"] == 0 || epochs["stuck"] >= epochs["next"] {
			s.Errorf("epochs: %v", epochs)
		}
		s.mu.Unlock()
		bus.mend()
		for _, sub := range []*partition.Subscription{stuck, next} {
			if err := sub.Stop(s.Context()); err != nil {
				s.Error(err)
			}
		}
	})
}

// TestKickTopic: one that hangs is kicked out; as it works, it is back at once.
func TestKickTopic(t *testing.T) {
	inService(t, 4, func(s *service) {
		m := s.start("a", "b")
		time.Sleep(2 * time.Second)
		bus := s.bus()
		if err := partition.KickTopic(s.Context(), bus, "", "orders", "billing", "nobody"); !errors.Is(err, partition.ErrNoMember) {
			s.Errorf("somebody else: %v", err)
		}
		m[0].line.cut(true)
		began := time.Now()
		if err := partition.KickTopic(s.Context(), bus, "", "orders", "billing", "a"); err != nil {
			s.Error(err)
		}
		for len(m[1].Owned()) < 4 {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took > time.Second {
			s.Errorf("b has all after %v", took)
		}
		time.Sleep(s.ttl)
		s.topic.mu.Lock()
		s.topic.overlaps = 0 // a could not know
		s.topic.mu.Unlock()
		m[0].line.cut(false)
		time.Sleep(3 * time.Second)
		s.wants("a has", len(m[0].Owned()), 2)
		if err := partition.KickTopic(s.Context(), bus, "", "orders", "billing", "a"); err != nil {
			s.Error(err)
		}
		time.Sleep(3 * time.Second)
		s.wants("a has, as it works", len(m[0].Owned()), 2)
		s.wants("sessions of a that were lost", m[0].Counts().Expelled, 2)
	})
}

// TestLookupTopic: what the bucket says is what the replicas run, over generations.
func TestLookupTopic(t *testing.T) {
	inService(t, 4, func(s *service) {
		bus := s.bus()
		if _, err := partition.LookupTopic(s.Context(), bus, "", "orders", "billing"); !errors.Is(err, jetbus.ErrNoGroup) {
			s.Errorf("before anybody came: %v", err)
		}
		release := make(chan struct{})
		s.handles = func(ctx context.Context, d *jetbus.Delivery) error {
			<-release
			return nil
		}
		m := s.start("a", "b")
		s.publish("k", "1")
		time.Sleep(time.Second)
		s.grow(6)
		time.Sleep(5 * time.Second)
		check := func(members ...int) {
			s.Helper()
			a, err := partition.LookupTopic(s.Context(), bus, "", "orders", "billing")
			if err != nil {
				s.Fatal(err)
			}
			var has []int
			for _, g := range a.Generations {
				has = append(has, len(g.Members))
				for _, p := range g.Partitions {
					i := slices.IndexFunc(m, func(m *replica) bool { return m.id == p.Member })
					if len(g.Members) == 0 && i < 0 {
						continue
					}
					if i < 0 || !slices.Contains(m[i].Owned(), jetbus.Partition{Generation: g.Generation, Number: p.Partition}) {
						s.Errorf("P%d.%d is with %q", g.Generation, p.Partition, p.Member)
					}
				}
			}
			s.wants("members", has, members)
		}
		check(2, 2)
		close(release)
		time.Sleep(20 * time.Second)
		check(0, 2)
	})
}

// TestStopInside: a handler may stop its subscription.
func TestStopInside(t *testing.T) {
	inService(t, 2, func(s *service) {
		var m *replica
		s.handles = func(ctx context.Context, d *jetbus.Delivery) error { return m.Stop(ctx) }
		m = s.start("a")[0]
		s.publish("k", "1")
		<-m.Done()
		s.wants("its error", m.Err(), error(nil))
		s.wants("open", s.open(), 0)
	})
}

// TestStopStuck: a handler that ignores its context is waited for, and Stop says that
// it was in a hurry.
func TestStopStuck(t *testing.T) {
	inService(t, 2, func(s *service) {
		s.handles = func(ctx context.Context, d *jetbus.Delivery) error {
			time.Sleep(10 * time.Second)
			return nil
		}
		m := s.start("a")[0]
		time.Sleep(time.Second)
		s.publish("k", "1")
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(s.Context(), time.Second)
		defer cancel()
		if err := m.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			s.Errorf("Stop: %v", err)
		}
		s.wants("Stop again", m.Stop(s.Context()), error(nil))
	})
}

// TestStopLate: a context that ended before the call leaves handlers their time.
func TestStopLate(t *testing.T) {
	inService(t, 2, func(s *service) {
		ended := make(chan error, 1)
		s.handles = func(ctx context.Context, d *jetbus.Delivery) error {
			time.Sleep(10 * time.Second)
			ended <- context.Cause(ctx)
			return nil
		}
		m := s.start("a")[0]
		time.Sleep(time.Second)
		s.publish("k", "1")
		time.Sleep(time.Second)
		over, end := context.WithCancel(s.Context())
		end()
		s.wants("Stop", m.Stop(over), error(nil))
		s.wants("the handler's context", <-ended, error(nil))
	})
}

// TestStopAnytime: a subscription may be stopped, by several at once, at each moment of
// its beginning, and while its topic grows.
func TestStopAnytime(t *testing.T) {
	for ms := range 60 {
		inService(t, 4, func(s *service) {
			for k := range 20 {
				s.publish(fmt.Sprint(k), fmt.Sprint(k))
			}
			ctx, cancel := context.WithCancel(s.Context())
			time.AfterFunc(time.Duration(ms*ms)*time.Millisecond, cancel) // up to 3.5 seconds
			sub, err := partition.Subscribe(ctx, s.bus(), "orders", "billing", s.handle, s.options("a"))
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					s.Error(err)
				}
				return
			}
			s.grow(6)
			<-ctx.Done()
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() {
					if err := sub.Stop(s.Context()); err != nil {
						s.Error(err)
					}
				})
			}
			all.Wait()
			<-sub.Done()
			s.wants("its error", sub.Err(), error(nil))
			s.wants("what it has", len(sub.Owned()), 0)
		})
	}
}

// TestContextStopsSubscription: the end of Subscribe's context is a Stop.
func TestContextStopsSubscription(t *testing.T) {
	inService(t, 2, func(s *service) {
		ctx, cancel := context.WithCancel(s.Context())
		sub, err := partition.Subscribe(ctx, s.bus(), "orders", "billing", s.handle, s.options("a"))
		if err != nil {
			s.Fatal(err)
		}
		time.Sleep(time.Second)
		cancel()
		<-sub.Done()
		s.wants("its error", sub.Err(), error(nil))
	})
}

// hasty notes until when it is asked.
type hasty struct {
	process
	until []time.Time
}

func (h *hasty) JoinPartitions(ctx context.Context, topic, group string, o jetbus.SubscribeOptions) error {
	until, _ := ctx.Deadline()
	h.until = append(h.until, until)
	return h.process.JoinPartitions(ctx, topic, group, o)
}

// TestSubscribeHasTime: what a bus is asked for has as long as Subscribe has.
func TestSubscribeHasTime(t *testing.T) {
	inService(t, 2, func(s *service) {
		h := &hasty{process: s.bus()}
		until := time.Now().Add(time.Hour)
		ctx, cancel := context.WithDeadline(s.Context(), until)
		defer cancel()
		for _, ctx := range []context.Context{s.Context(), ctx} {
			sub, err := partition.Subscribe(ctx, h, "orders", "billing", s.handle, s.options("a"))
			if err != nil {
				s.Fatal(err)
			}
			if err := sub.Stop(s.Context()); err != nil {
				s.Error(err)
			}
		}
		s.wants("asked until", h.until, []time.Time{{}, until})
	})
}

func TestSubscribeRefuses(t *testing.T) {
	inService(t, 4, func(s *service) {
		for _, c := range []struct {
			name, topic, group string
			o                  partition.SubscribeOptions
			want               error
			says               string
		}{
			{"no such topic", "other", "g", partition.SubscribeOptions{}, jetbus.ErrNoTopic, "other"},
			{"no partitions", "plain", "g", partition.SubscribeOptions{}, jetbus.ErrNoPartitions, "plain"},
			{"used both ways", "orders", "plain", partition.SubscribeOptions{}, jetbus.ErrConflict, "without partitions"},
			{"a bad topic", "a b", "g", partition.SubscribeOptions{}, jetbus.ErrInvalidTopic, "a b"},
			{"a bad group", "orders", "a b", partition.SubscribeOptions{}, jetbus.ErrInvalidGroup, "a b"},
			{"topics", "orders", "g", partition.SubscribeOptions{PerPartition: jetbus.SubscribeOptions{Topics: []string{"b"}}}, jetbus.ErrInvalidOption, "Topics"},
			{"order", "orders", "g", partition.SubscribeOptions{PerPartition: jetbus.SubscribeOptions{Order: "some"}}, jetbus.ErrInvalidOption, "Order"},
			{"ttl", "orders", "g", partition.SubscribeOptions{TTL: time.Second}, jetbus.ErrInvalidOption, "TTL"},
			{"static without a name", "orders", "g", partition.SubscribeOptions{Static: true}, jetbus.ErrInvalidOption, "Member"},
		} {
			_, err := partition.Subscribe(s.Context(), s.bus(), c.topic, c.group, s.handle, c.o)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				s.Errorf("%s: %v, want %v and %q", c.name, err, c.want, c.says)
			}
		}
		if _, err := partition.Subscribe(s.Context(), s.bus(), "orders", "g", nil, partition.SubscribeOptions{}); !errors.Is(err, jetbus.ErrInvalidOption) {
			s.Errorf("without a handler: %v", err)
		}
		s.keys.mu.Lock()
		s.keys.endless = true
		s.keys.mu.Unlock()
		if _, err := partition.Subscribe(s.Context(), s.bus(), "orders", "g", s.handle, partition.SubscribeOptions{}); !errors.Is(err, jetbus.ErrUnsupported) {
			s.Errorf("with a bucket whose keys do not expire: %v", err)
		}
		s.keys.mu.Lock()
		s.keys.endless = false
		s.keys.mu.Unlock()
	})
}

// TestTwoReplicasOfOneName: the second one ends, the first one goes on.
func TestTwoReplicasOfOneName(t *testing.T) {
	inService(t, 4, func(s *service) {
		a := s.start("a")[0]
		time.Sleep(2 * time.Second)
		second := s.start("a")[0]
		select {
		case <-second.Done():
		case <-time.After(s.ttl):
			s.Fatal("the second one waits for ever")
		}
		if !errors.Is(second.Err(), partition.ErrMemberExists) {
			s.Errorf("the second one ends with %v", second.Err())
		}
		s.wants("what the first one has", len(a.Owned()), 4)
	})
}

// TestStaticInAnotherOrder: what a static member leaves behind when it stops does not keep
// it from coming back with another order, at once; one that runs does, of any name.
func TestStaticInAnotherOrder(t *testing.T) {
	inService(t, 4, func(s *service) {
		o := s.options("a")
		o.Static = true
		a := s.subscribe(o)
		time.Sleep(2 * time.Second)
		o.PerPartition.Order, o.PerPartition.Concurrency = jetbus.Total, 1
		if _, err := partition.Subscribe(s.Context(), s.bus(), "orders", "billing", s.handle, o); !errors.Is(err, jetbus.ErrConflict) {
			s.Errorf("while it runs: %v", err)
		}
		s.wants("what it has", len(a.Owned()), 4)
		if err := a.Stop(s.Context()); err != nil {
			s.Error(err)
		}
		b := s.subscribe(o)
		s.drained(s.ttl, s.load(2, 8, 100*time.Millisecond))
		s.wants("what it has when it is back", []any{len(b.Owned()), b.Err()}, []any{4, nil})
	})
}

// TestTopicAnew: a topic that was deleted and declared with another number of
// partitions gets a group of that number, once nobody is in the old one.
func TestTopicAnew(t *testing.T) {
	inService(t, 4, func(s *service) {
		a := s.start("a")[0]
		time.Sleep(time.Second)
		s.topic.mu.Lock()
		s.topic.generations[0].Partitions = 6
		s.topic.mu.Unlock()
		if _, err := partition.Subscribe(s.Context(), s.bus(), "orders", "billing", s.handle, s.options("b")); !errors.Is(err, jetbus.ErrConflict) {
			s.Errorf("while a is there: %v", err)
		}
		if err := a.Stop(s.Context()); err != nil {
			s.Error(err)
		}
		b := s.start("b")[0]
		time.Sleep(2 * time.Second)
		s.wants("what b has", len(b.Owned()), 6)
	})
}

// TestPartitionFails: a partition that cannot be subscribed to is tried again, unless
// there is no point in that.
func TestPartitionFails(t *testing.T) {
	inService(t, 2, func(s *service) {
		refuse := func(err error) {
			s.topic.mu.Lock()
			defer s.topic.mu.Unlock()
			s.topic.refuses = err
		}
		refuse(jetbus.ErrUnavailable)
		a := s.start("a")[0]
		s.publish("k", "1")
		time.Sleep(10 * time.Second)
		s.wants("open", s.open(), 1)
		refuse(nil)
		s.drained(2*time.Second, nil)
		if err := a.Stop(s.Context()); err != nil {
			s.Error(err)
		}
		refuse(jetbus.ErrNoGroup)
		b := s.start("b")[0]
		<-b.Done()
		if !errors.Is(b.Err(), jetbus.ErrNoGroup) || !strings.Contains(b.Err().Error(), "orders/billing") {
			s.Errorf("ended with %v", b.Err())
		}
	})
}

// TestChaos plays services whose replicas join, leave, die, are cut off and lose
// answers, whose handlers fail and whose topic grows: no two turns overlap, nothing is
// skipped, and events of a key succeed in their order.
func TestChaos(t *testing.T) {
	for seed := range (churns() + 1) / 2 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inService(t, 8, func(s *service) { s.chaos(rand.New(rand.NewPCG(seed, 4)), 40) }) //nolint:gosec // reproducible on purpose
		})
	}
}

func (s *service) chaos(rng *rand.Rand, steps int) {
	fails := sync.Map{}
	s.handles = func(ctx context.Context, d *jetbus.Delivery) error {
		if err := sleepy(ctx, time.Duration(5+len(d.ID)%7)*time.Millisecond); err != nil {
			return err
		}
		if _, again := fails.LoadOrStore(d.ID, true); !again && d.Seq%9 == 0 {
			return errFails
		}
		return nil
	}
	live := s.start("m0", "m1", "m2")
	want := map[string][]string{}
	for step := range steps {
		s.rounds(want, step, step+1, 16, 0)
		time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
		if step == 15 || step == 30 {
			s.grow(8 + step/3)
		}
		i := rng.IntN(max(len(live), 1))
		switch what := rng.IntN(12); {
		case s.crash != nil && step%13 == 12:
			s.crash()
		case len(live) < 2 || what < 3 && len(live) < 6:
			o := s.options(fmt.Sprintf("m%d", len(s.members)))
			o.Static = rng.IntN(3) == 0
			m := s.subscribe(o)
			m.line.mu.Lock()
			m.line.loses = 0.2 * float64(rng.IntN(2))
			m.line.mu.Unlock()
			live = append(live, m)
		case what < 5:
			go func(m *replica) { _ = m.Stop(s.Context()) }(live[i]) // the service stops it again
			live = slices.Delete(live, i, i+1)
		case what < 6:
			live[i].line.die()
			live = slices.Delete(live, i, i+1)
		case what < 9:
			l := live[i].line
			l.cut(true)
			time.AfterFunc(time.Duration(500+rng.IntN(20_000))*time.Millisecond, func() { l.cut(false) })
		}
	}
	for _, m := range live {
		m.line.mend()
	}
	s.drained(5*time.Minute, want)
}
