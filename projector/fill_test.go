package projector_test

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/projector"
)

// A sink that has not seen the topic is filled, in as few events as it takes.
func TestFill(t *testing.T) {
	for name, c := range map[string]struct {
		topic    jetbus.TopicConfig
		snapshot bool
		change   func(o *projector.Options)
		events   uint64 // that were read
	}{
		"log":                    {events: 103},
		"keys in subjects":       {topic: jetbus.TopicConfig{KeyInSubject: true}, events: 12},
		"compacted":              {topic: jetbus.TopicConfig{Compact: true}, events: 12},
		"snapshot":               {topic: jetbus.TopicConfig{KeyInSubject: true}, snapshot: true, events: 12},
		"snapshot with versions": {topic: jetbus.TopicConfig{KeyInSubject: true}, snapshot: true, change: versioned, events: 12},
		"versions":               {topic: jetbus.TopicConfig{KeyInSubject: true}, change: versioned, events: 103},
		"keys of its own":        {topic: jetbus.TopicConfig{KeyInSubject: true}, change: func(o *projector.Options) { o.KeyOf = func(e jetbus.Event) (string, error) { return e.Key, nil } }, events: 103},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.ok(r.bus.DeleteTopic(r.Context(), "t"))
				c.topic.Name = "t"
				r.ensure(c.topic)
				o := options()
				o.MaxBatch = 5
				if c.snapshot {
					r.ensure(jetbus.TopicConfig{Name: "t.snapshot", SnapshotOf: "t"})
					o.From = "t.snapshot"
				}
				if c.change != nil {
					c.change(&o)
				}
				r.publish(numbered(0, 100, 10)...)
				r.publish("gone:1", "bad:}", "gone:null")
				time.Sleep(time.Second)
				m := newMemory()
				s := m.sink()
				p := r.project(r.bus, s, o)
				r.caughtUp(p)
				st := p.Stats()
				r.equal("events, refused", []any{st.Events, st.Rejected}, []any{c.events, 1})
				r.equal("position", m.position(), 103)
				r.equal("delivered", r.group("p").AckedSeq, 103)
				r.publish("k0:100", "gone:2")
				r.caughtUp(p)
				m.want(t, "gone=2 k0=100 k1=91 k2=92 k3=93 k4=94 k5=95 k6=96 k7=97 k8=98 k9=99")
				r.equal("dead letters", r.dead(), []string{"102 the payload is no JSON"})
				r.stop(p)
				p = r.project(r.bus, s, o) // it is filled now
				r.caughtUp(p)
				r.equal("events after a restart", p.Stats().Events, 0)
			})
		})
	}
}

func versioned(o *projector.Options) {
	o.VersionOf = func(e jetbus.Event) (int64, error) { return int64(e.Seq), nil } //nolint:gosec // a test
}

// The group exists and is past what the sink, which is new, has never seen.
func TestFillOfANewSinkOfAnOldGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish(numbered(0, 100, 4)...)
		p := r.project(r.bus, newMemory().sink(), options())
		r.caughtUp(p)
		r.publish("a:1")
		r.caughtUp(p)
		r.stop(p)
		r.publish("b:1")
		m := newMemory()
		p = r.project(r.bus, m.sink(), options())
		r.caughtUp(p)
		m.want(t, "a=1 b=1 k0=96 k1=97 k2=98 k3=99")
	})
}

// The last event of a key cannot be projected: a sink that is filled with the last
// events only ends up with the one before it all the same, as one that was there.
func TestFillBehindRefusedEvents(t *testing.T) {
	for name, exclusive := range map[string]bool{"shared": false, "exclusive, from a snapshot": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.ok(r.bus.DeleteTopic(r.Context(), "t"))
				r.ensure(jetbus.TopicConfig{Name: "t", KeyInSubject: true})
				o := options()
				if exclusive {
					r.ensure(jetbus.TopicConfig{Name: "t.snapshot", SnapshotOf: "t"})
					o.Exclusive, o.From = true, "t.snapshot"
				}
				o.MaxBatch = 2
				r.publish("a:1", "a:2", "b:1", "a:}", "c:1", "b:null", "b:}", "d:1", "e:{", "a:{")
				time.Sleep(time.Second)
				m := newMemory()
				p := r.project(r.bus, m.sink(), o)
				r.caughtUp(p)
				m.want(t, "a=2 c=1 d=1")
				r.equal("position", m.position(), 10)
			})
		})
	}
}

// lagging is a bus whose snapshots have taken in the events up to a sequence only.
type lagging struct {
	*adapter.Bus
	upTo uint64
}

func (b lagging) ScanLatest(ctx context.Context, _ string, _ jetbus.LatestQuery, each func(jetbus.Event) error) (uint64, error) {
	for e, err := range b.Read(ctx, []string{"t"}, jetbus.ReadOptions{From: jetbus.Earliest()}) {
		if err != nil {
			return 0, err
		}
		if e.Seq > b.upTo {
			break
		}
		if err := each(e); err != nil {
			return 0, err
		}
	}
	return b.upTo, nil
}

// The group is past what the snapshot has taken in: what is between the two is read
// from the topic, since the group does not deliver it again.
func TestFillFromASnapshotBehindItsGroup(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ok(r.bus.DeleteTopic(r.Context(), "t"))
		r.ensure(jetbus.TopicConfig{Name: "t", KeyInSubject: true})
		r.ensure(jetbus.TopicConfig{Name: "t.snapshot", SnapshotOf: "t"})
		o := options()
		o.From = "t.snapshot"
		r.publish("a:1", "b:1", "a:2", "c:1")
		p := r.project(r.bus, newMemory().sink(), o)
		r.caughtUp(p)
		r.stop(p)
		m := newMemory()
		p = r.project(lagging{r.bus, 2}, m.sink(), o)
		r.caughtUp(p)
		m.want(t, "a=2 b=1 c=1")
	})
}

// The sink knows the topic, and its group was deleted: it goes on where the sink is.
func TestGroupDeletedMeanwhile(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		r.publish(numbered(0, 100, 4)...)
		p := r.project(r.bus, m.sink(), options())
		r.caughtUp(p)
		r.ok(r.bus.DeleteGroup(r.Context(), "t", "p"))
		<-p.Done()
		if err := p.Err(); !errors.Is(err, jetbus.ErrNoGroup) {
			r.Errorf("it ended with %v", err)
		}
		r.publish("a:1")
		p = r.project(r.bus, m.sink(), options())
		r.caughtUp(p)
		m.want(t, "a=1 k0=96 k1=97 k2=98 k3=99")
		r.equal("events", p.Stats().Events, 1)
	})
}

// A fill goes on when the sink is away, and when the broker is.
func TestFillThroughFailures(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s := m.sink()
		var away atomic.Bool
		writes := 0
		s.before = func(ctx context.Context, b projector.Batch) error {
			if writes++; writes == 3 {
				away.Store(true)
				r.ok(r.broker.Kill(context.WithoutCancel(ctx))) // a clean end of a broker with readers can hang in a bubble
				r.ok(r.broker.Restart(context.WithoutCancel(ctx)))
				time.AfterFunc(2*time.Minute, func() { away.Store(false) })
			}
			return fails(&away)(ctx, b)
		}
		r.publish(numbered(0, 1000, 10)...)
		o := options()
		o.MaxBatch = 100
		p := r.project(r.bus, s, o)
		r.eventually("the fill", func() bool { return p.Stats().Phase == projector.Following })
		r.caughtUp(p)
		m.want(t, "k0=990 k1=991 k2=992 k3=993 k4=994 k5=995 k6=996 k7=997 k8=998 k9=999")
	})
}

// An empty topic leaves a sink that is known at the first event.
func TestFillOfNothing(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		p := r.project(r.bus, m.sink(), options())
		r.caughtUp(p)
		r.publish("a:1")
		r.caughtUp(p)
		m.want(t, "a=1")
	})
}

// A dead letter of a stream that is no more has a position that means nothing in
// the one that is.
func TestReplayOfAnotherStream(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		var strict atomic.Bool
		strict.Store(true)
		o := options()
		o.Map = func(e jetbus.Event) (any, error) {
			if strict.Load() && string(e.Payload) == `"odd"` {
				return nil, errors.New("odd")
			}
			return string(e.Payload), nil
		}
		p := r.project(r.bus, m.sink(), o)
		r.caughtUp(p)
		r.publish("x:1", "x:2", "x:3", `a:"odd"`)
		r.caughtUp(p)
		r.stop(p)
		r.anew("t")
		m = newMemory()
		p = r.project(r.bus, m.sink(), o)
		r.caughtUp(p)
		r.publish("a:1", `b:"odd"`)
		r.caughtUp(p)
		strict.Store(false)
		stats, err := jetbus.Replay(r.Context(), r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "t"}})
		r.ok(err)
		r.equal("replayed", stats.Replayed, 2)
		r.caughtUp(p)
		r.eventually("the retries", func() bool { return p.Stats().Events >= 3 && len(r.dead()) == 3 })
		m.want(t, `a=1 b="odd"`)
		r.publish("a:2")
		r.caughtUp(p)
		m.want(t, `a=2 b="odd"`)
	})
}

// mute is a bus that cannot read dead letters for a while.
type mute struct {
	*adapter.Bus
	failures atomic.Int32
}

func (b *mute) Read(ctx context.Context, topics []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	if jetbus.IsDeadLetterTopic(topics[0]) && b.failures.Add(-1) >= 0 {
		return func(yield func(jetbus.Event, error) bool) { yield(jetbus.Event{}, jetbus.ErrUnavailable) }
	}
	return b.Bus.Read(ctx, topics, o)
}

// A replay that nobody can be asked about yet is no dead letter again.
func TestReplayWhileTheBrokerIsAway(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		var strict atomic.Bool
		strict.Store(true)
		s := m.sink()
		s.reject = func(c projector.Change) error {
			if strict.Load() && c.Key == "b" {
				return errors.New("odd")
			}
			return nil
		}
		b := &mute{Bus: r.bus}
		p := r.project(b, s, options())
		r.publish("a:1", "b:1")
		r.caughtUp(p)
		strict.Store(false)
		b.failures.Store(3)
		_, err := jetbus.Replay(r.Context(), r.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "t"}})
		r.ok(err)
		r.eventually("the retry", func() bool { return p.Stats().Events == 3 && p.Stats().Held == 0 })
		m.want(t, "a=1 b=1")
		r.equal("dead letters", len(r.dead()), 1) // the one that was replayed
	})
}

// brokenSink fails, or panics, as it is opened.
type brokenSink struct {
	projector.Sink

	err error
}

func (s brokenSink) Open(context.Context, projector.Source) (projector.Position, error) {
	if s.err == nil {
		panic("odd")
	}
	return projector.Position{}, s.err
}

func TestStartRefusesWhatCannotWork(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "keyed", KeyInSubject: true})
		r.ensure(jetbus.TopicConfig{Name: "snapshot", SnapshotOf: "keyed"})
		owned := newMemory()
		owned.owner = "another"
		good := newMemory()
		for name, c := range map[string]struct {
			o    projector.Options
			sink projector.Sink
			want error
		}{
			"options":           {projector.Options{Name: "p"}, good.sink(), jetbus.ErrInvalidTopic},
			"no topic":          {projector.Options{Name: "p", Topic: "missing"}, good.sink(), jetbus.ErrNoTopic},
			"no From":           {projector.Options{Name: "p", Topic: "keyed", From: "missing"}, good.sink(), jetbus.ErrNoTopic},
			"From is none":      {projector.Options{Name: "p", Topic: "keyed", From: "t"}, good.sink(), jetbus.ErrInvalidOption},
			"From of another":   {projector.Options{Name: "p", Topic: "t", From: "snapshot"}, good.sink(), jetbus.ErrInvalidOption},
			"Topic is snapshot": {projector.Options{Name: "p", Topic: "snapshot"}, good.sink(), jetbus.ErrUnsupported},
			"no sink":           {options(), nil, jetbus.ErrInvalidOption},
			"owned":             {options(), owned.sink(), projector.ErrOwned},
			"away":              {options(), brokenSink{err: errAway}, errAway},
			"panics":            {options(), brokenSink{}, nil},
		} {
			p, err := projector.Start(r.Context(), r.bus, c.sink, c.o)
			if p != nil || err == nil || c.want != nil && !errors.Is(err, c.want) {
				r.Errorf("%s: got %v, want %v", name, err, c.want)
			}
		}
		if groups, err := r.bus.Groups(r.Context(), "keyed"); err != nil || len(groups) != 0 {
			r.Errorf("groups %v, %v", groups, err)
		}
		if _, err := projector.Start(r.Context(), nil, good.sink(), options()); !errors.Is(err, jetbus.ErrInvalidOption) {
			r.Errorf("no bus: %v", err)
		}
	})
}

var _ projector.Backend = (*adapter.Bus)(nil)
