//go:build unix

package partitions

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
	"github.com/seed-63e9a637/jetbus/partition"
)

const (
	shortTTL = 3 * time.Second  // of members whose end is waited for
	deathTTL = 10 * time.Second // the same, of those that must not lose their session before
	longTTL  = 30 * time.Second // of those that must not lose their session on a slow machine
)

// service is a topic with partitions, those who publish to it, and a group whose
// members are processes.
type service struct {
	*testing.T
	url      string
	replicas int
	bus      *adapter.Bus // of the test, which nothing disturbs but the broker's end
	members  []*member

	mu        sync.Mutex
	published map[string][]string // acknowledged, by key, in their order
	rounds    int
}

func newService(t *testing.T, url string, replicas int) *service {
	t.Helper()
	s := &service{T: t, url: url, replicas: replicas, published: map[string][]string{}}
	s.bus = s.open()
	return s
}

// alone is a service at a broker of its own.
func alone(t *testing.T) (*service, *broker.Broker) {
	t.Helper()
	b := broker.Start(t)
	return newService(t, b.URL(), 1), b
}

// open opens a bus on a broker that may have just begun, and declares the topic.
func (s *service) open() (bus *adapter.Bus) {
	s.Helper()
	nc, err := broker.Dial(s.url)
	must(s.T, err)
	s.eventually(func() string {
		ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
		defer cancel()
		b, err := adapter.Open(ctx, nc, adapter.Config{Replicas: s.replicas, Timeout: limit})
		if err != nil {
			return fmt.Sprintf("open: %v", err)
		}
		if _, err := b.EnsureTopic(ctx, jetbus.TopicConfig{Name: topic, Partitions: partitions}); err != nil {
			_ = b.Close(ctx) // another one is opened
			return fmt.Sprintf("declare: %v", err)
		}
		bus = b
		return ""
	})
	s.Cleanup(func() { s.close(bus, nc) })
	return bus
}

func (s *service) close(bus *adapter.Bus, nc *nats.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := bus.Close(ctx); err != nil {
		s.Error(err)
	}
	nc.Close()
}

// eventually waits until ok, which says what is missing.
func (s *service) eventually(ok func() (missing string)) {
	s.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); ; <-tick.C {
		missing := ok()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			s.Fatal(missing)
		}
	}
}

// config is that of a member with a name.
func (s *service) config(name string, ttl time.Duration) memberConfig {
	return memberConfig{URL: s.url, Replicas: s.replicas, Member: name, TTL: ttl, Work: 10 * time.Millisecond}
}

// start starts a member, which is killed at the end of the test if it still lives.
func (s *service) start(c memberConfig) *member {
	s.Helper()
	m, err := s.launch(c)
	must(s.T, err)
	return m
}

func (s *service) launch(c memberConfig) (*member, error) {
	m, err := launch(c)
	if err != nil {
		return nil, err
	}
	s.members = append(s.members, m)
	s.Cleanup(func() { m.Clean(s) })
	return m, nil
}

// startAll starts members and waits until they have shared the partitions out, and
// handle events in each.
func (s *service) startAll(configs ...memberConfig) []*member {
	s.Helper()
	var out []*member
	for _, c := range configs {
		out = append(out, s.start(c))
	}
	s.balanced(out...)
	var ids []string
	for p := range partitions {
		ids = append(ids, s.publishTo("first", func(q jetbus.Partition) bool { return q.Number == p }))
	}
	s.eventually(func() string {
		for _, id := range ids {
			if !slices.ContainsFunc(out, func(m *member) bool { return m.has(isHandled, id) }) {
				return id + " is not handled"
			}
		}
		return ""
	})
	return out
}

// publishTo stores an event of a key of its own in a partition of the first generation
// that will do, and returns its id.
func (s *service) publishTo(name string, will func(p jetbus.Partition) bool) (id string) {
	s.Helper()
	for i := range 1000 {
		key := fmt.Sprintf("%s-%d", name, i)
		p, err := jetbus.PartitionOf(key, partitions)
		must(s.T, err)
		if !will(jetbus.Partition{Generation: 1, Number: p}) {
			continue
		}
		_, err = s.bus.Publish(s.Context(), jetbus.Event{Topic: topic, Key: key, ID: key, Payload: []byte("{}")})
		must(s.T, err)
		s.mu.Lock()
		s.published[key] = []string{key}
		s.mu.Unlock()
		return key
	}
	s.Fatal("no key lies there")
	return ""
}

// owned are the turns that a member has, by partition, with their epochs.
func (m *member) owned() map[jetbus.Partition]uint64 {
	all, _ := m.Reports()
	out := map[jetbus.Partition]uint64{}
	for _, r := range all {
		switch {
		case r.What == isAssigned:
			out[r.Partition] = r.Epoch
		case r.What == isRevoked && out[r.Partition] == r.Epoch:
			delete(out, r.Partition)
		}
	}
	return out
}

// balanced waits until members have all partitions of the newest generation among them,
// none more than its share, and none of older ones, and the bucket says the same.
func (s *service) balanced(members ...*member) {
	s.Helper()
	s.eventually(func() string {
		a, err := partition.LookupTopic(s.Context(), s.bus, "", topic, group)
		if err != nil {
			return fmt.Sprintf("look the group up: %v", err)
		}
		newest := len(a.Generations) - 1
		for _, older := range a.Generations[:newest] {
			if len(older.Members) > 0 {
				return fmt.Sprintf("an older generation has members: %+v", older)
			}
		}
		there := a.Generations[newest]
		return shared(there, len(there.Partitions), members)
	})
}

// shared says how what members have differs from what the bucket says, and from their
// shares of n partitions.
func shared(there partition.GenerationAssignment, n int, members []*member) (missing string) {
	all := 0
	for _, m := range members {
		have := m.owned()
		if len(have) < n/len(members) || len(have) > (n+len(members)-1)/len(members) {
			return fmt.Sprintf("%s has %v", m.config.Member, have)
		}
		for p, epoch := range have {
			if p.Generation != there.Generation {
				return fmt.Sprintf("%s has %s", m.config.Member, p)
			}
			if i := there.Partitions[p.Number]; i.Member != m.config.Member || i.Epoch != epoch {
				return fmt.Sprintf("%s has %s with epoch %d, and the bucket says %+v", m.config.Member, p, epoch, i)
			}
		}
		all += len(have)
	}
	if all != n || len(there.Members) != len(members) {
		return fmt.Sprintf("%d partitions have members; %+v", all, there)
	}
	return ""
}

// grow gives the topic more partitions.
func (s *service) grow() {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), limit)
	defer cancel()
	if _, err := s.bus.Repartition(ctx, topic, grown); err != nil {
		s.Error(err)
	}
}

// acrossGenerations checks that events were handled before the topic grew and after
// it, in partitions that it did not have before too.
func (s *service) acrossGenerations() {
	s.Helper()
	before, after, moved := 0, 0, 0
	for _, m := range s.members {
		for _, r := range m.said(isHandled) {
			switch {
			case r.Partition.Generation == 1:
				before++
			case r.Partition.Number < partitions:
				after++
			default:
				moved++
			}
		}
	}
	if before == 0 || after == 0 || moved == 0 {
		s.Errorf("%d events were handled before the topic grew, %d after it where they were before, %d elsewhere", before, after, moved)
	}
}

// names are those of keys.
func names(first string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("%s-%d", first, i))
	}
	return out
}

// publish stores an event of each of some keys, one round after the other, until ctx ends;
// each round until it is acknowledged.
func (s *service) publish(ctx context.Context, bus *adapter.Bus, keys []string, rounds int, pause time.Duration) {
	for range rounds {
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.rounds++
		round := s.rounds
		s.mu.Unlock()
		events := make([]jetbus.Event, len(keys))
		for k, key := range keys {
			events[k] = jetbus.Event{Topic: topic, Key: key, ID: fmt.Sprintf("%s#%d", key, round), Payload: []byte("{}")}
		}
		for began := time.Now(); ; {
			_, err := bus.PublishBatch(context.WithoutCancel(ctx), events, jetbus.BatchOptions{})
			if err == nil {
				break
			}
			if time.Since(began) > limit {
				s.Errorf("publish round %d: %v", round, err)
				return
			}
			chaos.Linger(context.WithoutCancel(ctx), 50*time.Millisecond) // and again, under the same ids
		}
		s.mu.Lock()
		for _, e := range events {
			s.published[e.Key] = append(s.published[e.Key], e.ID)
		}
		s.mu.Unlock()
		chaos.Linger(ctx, pause)
	}
}

// load publishes in the background until the function that it returns is called.
func (s *service) load(keys int) (stop func()) {
	s.Helper()
	return s.loadFrom(s.bus, names("key", keys))
}

// loadFrom is load with a bus and keys.
func (s *service) loadFrom(bus *adapter.Bus, keys []string) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() { s.publish(ctx, bus, keys, math.MaxInt, 50*time.Millisecond) })
	stop = func() {
		cancel()
		publishing.Wait()
	}
	s.Cleanup(stop)
	return stop
}

// hold publishes an event to a partition that a member has, and waits until its handler
// runs, which goes on until the member is given an order, or its context ends.
func (s *service) hold(m *member) report {
	s.Helper()
	for try := 0; ; try++ { // on a slow machine its session may just end, and another one gets the event
		var have map[jetbus.Partition]uint64
		s.eventually(func() string {
			if have = m.owned(); len(have) == 0 {
				return m.config.Member + " has no partition"
			}
			return ""
		})
		id := s.publishTo(fmt.Sprintf("%s-%d", m.config.Hold, try), func(p jetbus.Partition) bool { return have[p] > 0 })
		var started []report
		s.eventually(func() string {
			started = slices.DeleteFunc(m.said(isStarted), func(r report) bool { return r.ID != id })
			if len(started) > 0 || slices.ContainsFunc(s.members, func(m *member) bool { return m.has(isHandled, id) }) {
				return ""
			}
			return id + " is not handled"
		})
		if len(started) > 0 {
			return started[0]
		}
	}
}

// took waits until a member has what another one had, with later epochs.
func (s *service) took(have map[jetbus.Partition]uint64, members ...*member) {
	s.Helper()
	s.eventually(func() string {
		for p, epoch := range have {
			if !slices.ContainsFunc(members, func(m *member) bool { return m.owned()[p] > epoch }) {
				return fmt.Sprintf("nobody took partition %s, which had epoch %d", p, epoch)
			}
		}
		return ""
	})
}

// undisturbed checks that members still have what they had, in the same turns.
func (s *service) undisturbed(before []map[jetbus.Partition]uint64, members ...*member) {
	s.Helper()
	for i, m := range members {
		now := m.owned()
		for p, epoch := range before[i] {
			if now[p] != epoch {
				s.Errorf("%s had partition %s with epoch %d, and has it with %d", m.config.Member, p, epoch, now[p])
			}
		}
	}
}

func ownedBy(members ...*member) (out []map[jetbus.Partition]uint64) {
	for _, m := range members {
		out = append(out, m.owned())
	}
	return out
}

// settled waits until the group has settled all events: as long as it takes, while they
// become less.
func (s *service) settled() {
	s.Helper()
	left, moved, told := uint64(math.MaxUint64), time.Now(), false
	s.eventually(func() string {
		for {
			now, err := s.left()
			switch {
			case err == nil && now == 0:
				return ""
			case err == nil && now < left:
				left, moved, told = now, time.Now(), false
			case time.Since(moved) > limit:
				return fmt.Sprintf("the group does not go on: %d events are left, %v", now, err)
			case time.Since(moved) > 3*shortTTL && !told:
				told = true
				s.tell()
			}
			chaos.Linger(s.Context(), 50*time.Millisecond)
		}
	})
}

// tell logs where a group is that does not go on.
func (s *service) tell() {
	list, err := s.bus.GroupPartitions(s.Context(), topic, group)
	s.Logf("%s: the group stands still: %v", time.Now().Format(time.TimeOnly), err)
	for _, p := range list {
		if !p.Drained() || p.Retries > 0 {
			s.Logf("%s: %d pending, %d held, %d retries, settled up to %d", p.Partition, p.Pending, p.Held, p.Retries, p.AckedSeq)
		}
	}
	a, err := partition.LookupTopic(s.Context(), s.bus, "", topic, group)
	s.Logf("%+v, %v", a, err)
	for _, m := range s.members {
		if m.lives() {
			s.Logf("%s has %v", m.config.Member, m.owned())
		}
	}
}

// left counts the events that are not settled.
func (s *service) left() (uint64, error) {
	ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
	defer cancel()
	list, err := s.bus.GroupPartitions(ctx, topic, group)
	left := uint64(0)
	for _, p := range list {
		left += p.Pending + uint64(p.Held) + p.Retries //nolint:gosec // a count
	}
	return left, err
}

// account waits until all is settled, and says what became of every event. What was
// broken fails the test.
func (s *service) account() account {
	s.Helper()
	s.settled()
	ctx, cancel := context.WithTimeout(s.Context(), limit)
	defer cancel()
	stored := map[string]bool{}
	for e, err := range s.bus.Scan(ctx, topic, jetbus.ScanQuery{}) {
		must(s.T, err)
		if stored[e.ID] {
			s.Errorf("%s is stored twice", e.ID)
		}
		stored[e.ID] = true
	}
	j := &journal{}
	for _, m := range s.members {
		reports, _ := m.Reports()
		j.note(reports, m.dead, time.Now())
	}
	s.mu.Lock()
	a := j.settle(s.published, stored)
	s.mu.Unlock()
	if a.bad() {
		s.Error(a)
	} else {
		s.Log(a)
	}
	return a
}

// exact checks that nothing was handled twice, and no handlers overlapped at all.
func (a account) exact(t *testing.T) {
	t.Helper()
	if a.duplicates > 0 || len(a.inside) > 0 {
		t.Errorf("%v, want no duplicate and no overlap", a)
	}
}
