package projector_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/projector"
)

// ledger is what sinks of exclusive projections write to that keep no tombstones
// and have no guard but the position: a list of the events, and documents. It is
// the model of a transaction.
type ledger struct {
	mu     sync.Mutex
	docs   map[string]string
	seqs   []uint64
	at     uint64
	writer *ledgerSink // that moved at
}

// ledgerSink is a replica's way to a ledger.
type ledgerSink struct {
	l *ledger
	// before may hold up or fail a write, after the answer to it. fail is asked for each change.
	before, after func() error
	fail          func(c projector.Change) error

	at uint64
}

func newLedger() *ledger { return &ledger{docs: map[string]string{}} }

func (s *ledgerSink) Open(context.Context, projector.Source) (projector.Position, error) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.at = s.l.at
	return projector.Position{Known: s.at > 0, Seq: s.at}, nil
}

func (s *ledgerSink) Write(_ context.Context, b projector.Batch) (projector.Outcome, error) {
	if s.before != nil {
		if err := s.before(); err != nil {
			return projector.Outcome{}, err
		}
	}
	out, err := s.write(b)
	if err == nil && s.after != nil {
		err = s.after()
	}
	return out, err
}

func (s *ledgerSink) write(b projector.Batch) (projector.Outcome, error) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	switch {
	case s.l.at != s.at && s.l.writer == s: // an answer that was lost
		s.at = s.l.at
	case s.l.at != s.at:
		return projector.Outcome{}, projector.ErrFenced
	}
	var out projector.Outcome
	for i, c := range b.Changes {
		if c.Event.Seq <= s.at {
			continue
		}
		if s.fail != nil {
			if err := s.fail(c); jetbus.DispositionOf(err).Action == jetbus.ActionReject {
				out.Rejected = append(out.Rejected, projector.Rejection{Index: i, Err: err})
				return out, nil
			} else if err != nil {
				return out, &projector.ChangeError{Index: i, Err: err}
			}
		}
		out.Applied++
		s.l.seqs = append(s.l.seqs, c.Event.Seq)
		if c.Deleted {
			delete(s.l.docs, c.Key)
		} else {
			s.l.docs[c.Key] = string(c.Doc.(json.RawMessage))
		}
		s.at, s.l.at, s.l.writer = c.Event.Seq, c.Event.Seq, s
	}
	s.at, s.l.at, s.l.writer = b.UpTo, b.UpTo, s
	return out, nil
}

// want checks that each event from the first to the last was written once, in
// order, apart from some.
func (l *ledger) want(t *testing.T, last uint64, apart ...uint64) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var want []uint64
	for seq := uint64(1); seq <= last; seq++ {
		if len(apart) > 0 && apart[0] == seq {
			apart = apart[1:]
			continue
		}
		want = append(want, seq)
	}
	if fmt.Sprint(l.seqs) != fmt.Sprint(want) {
		t.Errorf("%d events were written: %v, want %d", len(l.seqs), l.seqs, len(want))
	}
}

func exclusively(every bool) projector.Options {
	o := options()
	o.Exclusive, o.Every, o.AckTimeout = true, every, 6*time.Second
	return o
}

// cutOff is a bus whose connection can be lost for good.
type cutOff struct {
	*adapter.Bus

	cut atomic.Bool
}

func (c *cutOff) KeySet(ctx context.Context, bucket, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	if c.cut.Load() {
		return 0, jetbus.ErrUnavailable
	}
	return c.Bus.KeySet(ctx, bucket, key, value, revision, ttl)
}

func (r *rig) phase(p *projector.Projection, want projector.Phase) {
	r.Helper()
	r.eventually(string(want), func() bool { return p.Stats().Phase == want })
}

func TestExclusiveTakesTurns(t *testing.T) {
	inBubble(t, func(r *rig) {
		l := newLedger()
		a := r.project(r.open(), &ledgerSink{l: l}, exclusively(true))
		r.phase(a, projector.Following)
		b := r.project(r.open(), &ledgerSink{l: l}, exclusively(true))
		r.publish(numbered(0, 100, 10)...)
		r.caughtUp(a)
		r.equal("the other one", b.Stats().Phase, projector.StandBy)
		r.stop(a)
		stopped := time.Now()
		r.phase(b, projector.Following)
		if took := time.Since(stopped); took > time.Second {
			t.Errorf("the lock was free after %v", took)
		}
		r.publish(numbered(100, 150, 10)...)
		r.caughtUp(b)
		l.want(t, 150)
		r.equal("error", a.Err(), nil)
		r.equal("position", b.Stats().Seq, 150)
		if st := a.Stats(); st.Applied != 100 || st.Phase != projector.Ended {
			t.Errorf("stats %+v", st)
		}
	})
}

// The lag is that of the sink, also where another replica writes to it.
func TestLagOfStandBy(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		a := r.project(r.open(), m.sink(), exclusively(true))
		r.phase(a, projector.Following)
		s := m.sink()
		var away atomic.Bool
		s.before = fails(&away)
		b := r.project(r.open(), s, exclusively(true))
		r.publish(numbered(0, 10, 3)...)
		r.caughtUp(a)
		lag, err := b.Lag(r.Context())
		r.ok(err)
		r.equal("lag", lag, projector.Lag{Events: 0, Seq: 10, LastSeq: 10})
		away.Store(true)
		if _, err := b.Lag(r.Context()); !errors.Is(err, errAway) {
			t.Errorf("lag of a sink that is away: %v", err)
		}
		away.Store(false)
		r.stop(a)
		r.publish(numbered(10, 15, 3)...)
		r.caughtUp(b)
		r.equal("position", m.position(), 15)
		c := r.project(r.open(), m.sink(), exclusively(true))
		r.phase(c, projector.StandBy)
		r.ok(r.bus.DeleteTopic(r.Context(), "t"))
		_, err = r.bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "t"})
		r.ok(err)
		if _, err := c.Lag(r.Context()); !errors.Is(err, projector.ErrNewStream) {
			t.Errorf("lag of a topic that was made anew: %v", err)
		}
	})
}

// A replica is cut off from the broker, its write hangs, and comes through when
// another has taken over.
func TestExclusiveFence(t *testing.T) {
	inBubble(t, func(r *rig) {
		l := newLedger()
		var frozen atomic.Bool
		bus := &cutOff{Bus: r.open()}
		late := &ledgerSink{l: l, before: func() error {
			if frozen.Load() {
				time.Sleep(time.Minute)
			}
			return nil
		}}
		a := r.project(bus, late, exclusively(true))
		r.publish("k1:1", "k2:2")
		r.caughtUp(a)
		b := r.project(r.open(), &ledgerSink{l: l}, exclusively(true))
		frozen.Store(true)
		bus.cut.Store(true)
		r.publish("k1:null", "k2:null", "k3:3")
		r.phase(b, projector.Following)
		r.caughtUp(b)
		l.want(t, 5)
		frozen.Store(false)
		bus.cut.Store(false)
		r.phase(a, projector.StandBy)
		time.Sleep(2 * time.Minute)
		r.publish("k4:4")
		r.caughtUp(b)
		l.want(t, 6)
		r.equal("documents", len(l.docs), 2)
		r.stop(b)
		r.phase(a, projector.Following)
		r.publish("k5:5")
		r.caughtUp(a)
		l.want(t, 7)
	})
}

// Hard deletes: writes fail before and behind being stored, replicas come and go,
// and no deleted key comes back.
func TestExclusiveHardDeletes(t *testing.T) {
	inBubble(t, func(r *rig) {
		l := newLedger()
		lost := errors.New("lost")
		flaky := func() error {
			if rand.N(3) == 0 {
				return lost
			}
			return nil
		}
		start := func() *projector.Projection {
			o := exclusively(true)
			o.MaxBatch = 1 + rand.N(7)
			return r.project(r.open(), &ledgerSink{l: l, before: flaky, after: flaky}, o)
		}
		replicas := []*projector.Projection{start(), start()}
		want, n := map[string]string{}, 0
		for range 20 {
			var items []string
			for range 10 {
				key, payload := fmt.Sprint("k", rand.N(5)), fmt.Sprint(n)
				if n++; rand.N(2) == 0 {
					payload = "null"
					delete(want, key)
				} else {
					want[key] = payload
				}
				items = append(items, key+":"+payload)
			}
			r.publish(items...)
			time.Sleep(time.Duration(rand.N(int64(time.Second))))
			if i := rand.N(6); i < 2 {
				r.stop(replicas[i])
				replicas[i] = start()
			}
		}
		r.eventually("all written", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.at == uint64(n)
		})
		l.want(t, uint64(n))
		r.equal("documents", l.docs, want)
	})
}

func TestExclusiveDeadLetters(t *testing.T) {
	inBubble(t, func(r *rig) {
		l := newLedger()
		attempts := map[uint64]int{}
		sink := &ledgerSink{l: l, fail: func(c projector.Change) error {
			attempts[c.Event.Seq]++
			switch {
			case c.Event.Seq%10 == 3:
				return jetbus.Reject(errors.New("never"))
			case c.Event.Seq == 5 || c.Event.Seq == 6 || c.Event.Seq == 8 && attempts[8] < 5:
				return errors.New("not now")
			}
			return nil
		}}
		o := exclusively(true)
		o.Map = func(e jetbus.Event) (any, error) {
			if e.Seq == 17 {
				return nil, errors.New("no map")
			}
			return json.RawMessage(e.Payload), nil
		}
		r.publish(numbered(0, 30, 10)...)
		p := r.project(r.bus, sink, o)
		r.caughtUp(p)
		l.want(t, 30, 3, 5, 6, 13, 17, 23)
		dead := strings.Join(r.dead(), "; ")
		for _, part := range []string{"3 reject: never", "13 reject", "5 failed 5 times: not now", "6 failed 5 times", "17 Map: no map", "23 reject"} {
			if !strings.Contains(dead, part) {
				t.Errorf("dead letters %q, want %q", dead, part)
			}
		}
		r.equal("rejected", p.Stats().Rejected, 6)
		if attempts[5] != 5 || attempts[8] != 5 {
			t.Errorf("%v attempts", attempts)
		}
		for d, err := range jetbus.DeadLetters(r.Context(), r.bus, jetbus.DeadLetterQuery{Topic: "t"}) {
			r.ok(err)
			if want := map[bool]jetbus.DeadReason{true: jetbus.DeadMaxAttempts, false: jetbus.DeadRejected}[d.Event.Seq == 5 || d.Event.Seq == 6]; d.Reason != want {
				t.Errorf("dead letter %d has the reason %s", d.Event.Seq, d.Reason)
			}
		}
	})
}

// A change that is given up takes no others along, although a sink that fails need not have
// written them, and with states instead of each event nothing else would write them again.
func TestGivenUpAlone(t *testing.T) {
	for name, o := range map[string]projector.Options{"exclusive": exclusively(false), "shared": options()} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				l := newLedger()
				sink := &ledgerSink{l: l, fail: func(c projector.Change) error {
					if c.Event.Seq == 3 {
						return errors.New("not now")
					}
					return nil
				}}
				r.publish(numbered(0, 6, 6)...)
				p := r.project(r.bus, sink, o)
				r.eventually("a dead letter", func() bool { return p.Stats().Rejected == 1 })
				r.caughtUp(p)
				l.mu.Lock()
				defer l.mu.Unlock()
				r.equal("documents", len(l.docs), 5)
			})
		})
	}
}

// slowBurial is a bus that stores dead letters when it may.
type slowBurial struct {
	*adapter.Bus
	may chan struct{}
}

func (b *slowBurial) Bury(ctx context.Context, d jetbus.DeadLetter) error {
	<-b.may
	return b.Bus.Bury(ctx, d)
}

// What is rejected is counted once it is a dead letter, and what is behind it once it is in
// the sink.
func TestExclusiveStatsOfRejected(t *testing.T) {
	inBubble(t, func(r *rig) {
		l := newLedger()
		sink := &ledgerSink{l: l, fail: func(c projector.Change) error {
			if c.Event.Seq == 2 {
				return jetbus.Reject(errors.New("never"))
			}
			return nil
		}}
		r.publish(numbered(0, 4, 4)...)
		bus := &slowBurial{Bus: r.bus, may: make(chan struct{})}
		p := r.project(bus, sink, exclusively(true))
		time.Sleep(time.Second)
		if s := p.Stats(); s.Seq > 1 || s.Rejected != 0 {
			t.Errorf("without the dead letter: written up to %d, rejected %d", s.Seq, s.Rejected)
		}
		close(bus.may)
		r.caughtUp(p)
		if s := p.Stats(); s.Seq != 4 || s.Rejected != 1 {
			t.Errorf("in the end: written up to %d, rejected %d", s.Seq, s.Rejected)
		}
		l.want(t, 4, 2)
	})
}

// While the sink is away, the lock is kept and nothing is given up.
func TestExclusiveSinkAway(t *testing.T) {
	inBubble(t, func(r *rig) {
		l := newLedger()
		var away atomic.Bool
		sink := func() *ledgerSink {
			return &ledgerSink{l: l, before: func() error {
				if away.Load() {
					return errors.New("away")
				}
				return nil
			}}
		}
		a := r.project(r.open(), sink(), exclusively(true))
		r.phase(a, projector.Following)
		b := r.project(r.open(), sink(), exclusively(true))
		away.Store(true)
		r.publish(numbered(0, 50, 10)...)
		time.Sleep(10 * time.Minute)
		r.equal("the other one", b.Stats().Phase, projector.StandBy)
		if st := a.Stats(); st.Failed < 100 || st.LastError != "away" {
			t.Errorf("stats %+v", st)
		}
		away.Store(false)
		r.caughtUp(a)
		l.want(t, 50)
		r.equal("dead letters", len(r.dead()), 0)
		away.Store(true)
		r.publish("k:1")
		time.Sleep(time.Minute)
		began := time.Now()
		r.stop(a) // does not wait for the sink
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("stopped after %v", took)
		}
	})
}

func TestExclusiveNewStream(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		r.publish(numbered(0, 20, 5)...)
		p := r.project(r.bus, m.sink(), exclusively(false))
		r.caughtUp(p)
		r.ok(r.bus.DeleteTopic(r.Context(), "t"))
		r.ensure(jetbus.TopicConfig{Name: "t"})
		r.publish("k0:new")
		r.eventually("its end", func() bool { return p.Stats().Phase == projector.Ended })
		if err := p.Err(); !errors.Is(err, projector.ErrNewStream) && !errors.Is(err, jetbus.ErrNoTopic) { // it may look between the two
			t.Errorf("error %v", err)
		}
		_, err := projector.Start(r.Context(), r.bus, m.sink(), exclusively(false))
		if !errors.Is(err, projector.ErrNewStream) {
			t.Errorf("start: %v", err)
		}
	})
}

// Folded batches, filled from a snapshot first.
func TestExclusiveFrom(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "u", KeyInSubject: true})
		r.ensure(jetbus.TopicConfig{Name: "u.last", SnapshotOf: "u"})
		for i := range 50 {
			_, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "u", Key: fmt.Sprint("k", i%3), Payload: []byte(fmt.Sprint(i))})
			r.ok(err)
		}
		time.Sleep(time.Minute)
		m := newMemory()
		s := m.sink()
		o := exclusively(false)
		o.Topic, o.From = "u", "u.last"
		p := r.project(r.bus, s, o)
		r.caughtUp(p)
		m.want(t, "k0=48 k1=49 k2=47")
		r.equal("batches", s.written(), "[3 0]")
		_, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "u", Key: "k2", Payload: []byte("null")})
		r.ok(err)
		r.caughtUp(p)
		m.want(t, "k0=48 k1=49")
		r.equal("position", m.position(), 51)
	})
}
