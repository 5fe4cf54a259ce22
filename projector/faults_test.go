package projector_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/projector"
)

// process opens a bus that ends without a word when the function is called.
func (r *rig) process() (b *adapter.Bus, die func()) {
	r.Helper()
	nc := bustest.Connect(r.T, r.broker)
	b, err := adapter.Open(r.Context(), nc, adapter.Config{})
	r.ok(err)
	r.Cleanup(func() { _ = b.Close(context.Background()) })
	return b, nc.Close
}

var errAway = errors.New("the sink is away")

// fails is a hook that fails while it says so.
func fails(away *atomic.Bool) func(context.Context, projector.Batch) error {
	return func(context.Context, projector.Batch) error {
		if away.Load() {
			return errAway
		}
		return nil
	}
}

// A change that fails while the sink is there is given up, and what shares its batch goes on.
func TestChangeIsGivenUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s := m.sink()
		s.before = func(_ context.Context, b projector.Batch) error {
			for i, c := range b.Changes {
				if c.Key == "k3" {
					return &projector.ChangeError{Index: i, Err: errors.New("it does not fit")}
				}
			}
			return nil
		}
		p := r.project(r.bus, s, options())
		r.caughtUp(p)
		r.publish(numbered(0, 7, 7)...)
		r.caughtUp(p)
		m.want(t, "k0=0 k1=1 k2=2 k4=4 k5=5 k6=6")
		r.equal("dead letters", len(r.dead()), 1)
		r.equal("failed", p.Stats().Failed, jetbus.DefaultMaxAttempts)
	})
}

// Row 6: what is known of a write is lost, and it is written again.
func TestA8Row6WrittenAgain(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s := m.sink()
		lost := 3
		s.after = func(projector.Batch) error {
			if lost--; lost >= 0 {
				return errors.New("the answer was lost")
			}
			return nil
		}
		r.publish(numbered(0, 100, 7)...)
		p := r.project(r.bus, s, options())
		r.caughtUp(p)
		m.want(t, "k0=98 k1=99 k2=93 k3=94 k4=95 k5=96 k6=97")
		st := p.Stats()
		r.equal("failed, last error", []any{st.Failed, st.LastError}, []any{3, ""})
		r.equal("dead letters", r.dead(), []string{})
	})
}

// Row 7: a process dies between the write and its acknowledgement. Its events come
// again, all in one go, and are stale.
func TestA8Row7CrashBetweenWriteAndAck(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		doomed, die := r.process()
		first := m.sink()
		first.after = func(b projector.Batch) error {
			if len(b.Changes) > 0 {
				die()
			}
			return nil
		}
		p := r.project(r.bus, newMemory().sink(), options()) // makes the group, so that nothing is filled
		r.stop(p)
		o := options()
		o.AckTimeout = time.Second
		r.publish(numbered(0, 3000, 50)...)
		p = r.project(doomed, first, o)
		r.eventually("the end of it", func() bool { return p.Stats().Phase == projector.Ended })
		if err := p.Err(); !errors.Is(err, jetbus.ErrClosed) {
			r.Errorf("it ended with %v", err)
		}
		began := time.Now()
		second := m.sink()
		p = r.project(r.bus, second, o)
		r.caughtUp(p)
		if took := time.Since(began); took > 10*time.Second {
			r.Errorf("the events came again after %v", took)
		}
		if n := len(second.written()); n > 20 {
			r.Errorf("%d batches: %v", n, second.written())
		}
		for i := range 50 {
			if want := fmt.Sprintf("k%d=%d", i, 2950+i); !strings.Contains(m.live()+" ", want+" ") {
				r.Errorf("no %s in %s", want, m.live())
			}
		}
		r.equal("dead letters", r.dead(), []string{})
	})
}

// Row 8: a write of a replica that is cut off arrives after those of another one,
// which had the same events and newer ones, deletions among them.
func TestA8Row8LateWriteOfAnotherReplica(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		o := options()
		o.AckTimeout = time.Second
		doomed, die := r.process()
		late, other := m.sink(), m.sink()
		held, entered := make(chan struct{}), make(chan struct{})
		var once sync.Once
		late.before = func(_ context.Context, b projector.Batch) error {
			if len(b.Changes) > 0 {
				once.Do(func() { close(entered); <-held })
			}
			return nil
		}
		a := r.project(doomed, late, o)
		r.eventually("following", func() bool { return a.Stats().Phase == projector.Following })
		r.publish("a:1", "b:1", "c:1", "d:1")
		<-entered
		die()
		b := r.project(r.bus, other, o)
		r.publish("a:2", "b:null", "c:null", "c:2", "e:2")
		r.caughtUp(b)
		m.want(t, "a=2 c=2 d=1 e=2")
		close(held)
		r.eventually("the end of it", func() bool { return a.Stats().Phase == projector.Ended })
		m.want(t, "a=2 c=2 d=1 e=2")
	})
}

// Row 8: two replicas share the events.
func TestA8Row8TwoReplicas(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		o := options()
		o.MaxBatch = 20
		a := r.project(r.open(), m.sink(), o)
		b := r.project(r.open(), m.sink(), o)
		for i := range 40 {
			r.publish(numbered(i*50, i*50+50, 9)...)
			time.Sleep(10 * time.Millisecond)
		}
		r.caughtUp(a)
		m.want(t, "k0=1998 k1=1999 k2=1991 k3=1992 k4=1993 k5=1994 k6=1995 k7=1996 k8=1997")
		if a.Stats().Events == 0 || b.Stats().Events == 0 {
			r.Errorf("one of them did nothing: %+v, %+v", a.Stats(), b.Stats())
		}
	})
}

// Row 10: the topic is made anew before a start, and under a projection that runs.
func TestA8Row10NewStream(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		r.publish("a:1", "b:1")
		p := r.project(r.bus, m.sink(), options())
		r.caughtUp(p)
		time.Sleep(11 * time.Second) // the sink is told how far it is
		r.equal("position", m.position(), 2)
		r.anew("t")
		<-p.Done()
		if err := p.Err(); !errors.Is(err, projector.ErrNewStream) && !errors.Is(err, jetbus.ErrNoTopic) && !errors.Is(err, jetbus.ErrNoGroup) {
			r.Errorf("it ended with %v", err)
		}
		r.publish("c:9")
		_, err := projector.Start(r.Context(), r.bus, m.sink(), options())
		if !errors.Is(err, projector.ErrNewStream) {
			r.Errorf("start: %v", err)
		}
		m.want(t, "a=1 b=1")
	})
}

// reborn is a bus whose topic seems to be made anew.
type reborn struct {
	*adapter.Bus

	anew atomic.Bool
}

func (b *reborn) TopicInfo(ctx context.Context, topic string) (jetbus.TopicInfo, error) {
	info, err := b.Bus.TopicInfo(ctx, topic)
	if b.anew.Load() {
		info.Created = info.Created.Add(time.Second)
	}
	return info, err
}

// Row 10: a subscription that came through is no proof that the stream did: nothing
// of the new one is written, or lost to it.
func TestA8Row10NewStreamUnnoticed(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		b := &reborn{Bus: r.bus}
		p := r.project(b, m.sink(), options())
		r.publish("a:1")
		r.caughtUp(p)
		b.anew.Store(true)
		r.publish("a:2", "b:2")
		<-p.Done()
		if err := p.Err(); !errors.Is(err, projector.ErrNewStream) {
			r.Errorf("it ended with %v", err)
		}
		m.want(t, "a=1")
		g := r.group("p")
		r.equal("settled", g.AckedSeq, 1)
	})
}

// Row 13: events that cannot be projected become dead letters, and what they hide
// does not.
func TestA8Row13Poison(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s := m.sink()
		s.reject = func(c projector.Change) error {
			if c.Doc == "unfit" {
				return errors.New("it does not fit")
			}
			return nil
		}
		o := options()
		o.Map = func(e jetbus.Event) (any, error) {
			switch string(e.Payload) {
			case "1":
				return nil, errors.New("cannot")
			case "2":
				panic("odd")
			case "3":
				return "unfit", nil
			}
			return string(e.Payload), nil
		}
		o.KeyOf = func(e jetbus.Event) (string, error) {
			switch e.Key {
			case "bad":
				return "", errors.New("no such key")
			case "worse":
				panic("key")
			}
			return e.Key, nil
		}
		o.VersionOf = func(e jetbus.Event) (int64, error) {
			switch string(e.Payload) {
			case "4":
				panic("version")
			case "5":
				return 0, errors.New("no version")
			}
			return e.Time.UnixNano(), nil
		}
		p := r.project(r.bus, s, o)
		r.caughtUp(p)
		r.publish("a:0", "a:1", "b:0", "b:2", "c:0", "c:3", ":7", "bad:7", "worse:7", "d:0", "d:4", "d:5", "e:1")
		r.caughtUp(p)
		m.want(t, "a=0 b=0 c=0 d=0")
		r.equal("refused", p.Stats().Rejected, 9)
		texts := []string{
			"Map: cannot", "Map: panic: odd", "it does not fit", "the event has no key", "KeyOf: no such key",
			"KeyOf: panic: key", "VersionOf: panic: version", "VersionOf: no version",
		}
		dead := map[string]bool{}
		for _, d := range r.dead() {
			seq, text, _ := strings.Cut(d, " ")
			dead[seq] = true
			if !slices.Contains(texts, text) {
				r.Errorf("dead letter %s", d)
			}
		}
		for _, seq := range []string{"2", "4", "6", "7", "8", "9", "11", "12", "13"} {
			if !dead[seq] {
				r.Errorf("event %s is no dead letter; there are %v", seq, dead)
			}
		}
		r.equal("dead letters", len(dead), 9)
	})
}

// Row 17: the lag, and the position that the sink is told.
func TestA8Row17Lag(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s := m.sink()
		var away atomic.Bool
		s.before = fails(&away)
		p := r.project(r.bus, s, options())
		r.publish(numbered(0, 10, 3)...)
		r.caughtUp(p)
		lag, err := p.Lag(r.Context())
		r.ok(err)
		r.equal("lag", lag, projector.Lag{Events: 0, Seq: 10, LastSeq: 10})
		time.Sleep(21 * time.Second)
		r.equal("position", m.position(), 10)
		away.Store(true)
		r.publish(numbered(10, 15, 3)...)
		time.Sleep(5 * time.Second)
		lag, err = p.Lag(r.Context())
		r.ok(err)
		r.equal("lag", lag, projector.Lag{Events: 5, Seq: 10, LastSeq: 15})
		if st := p.Stats(); st.Held != 5 || !strings.Contains(st.LastError, errAway.Error()) || st.Failed == 0 {
			r.Errorf("stats %+v", st)
		}
		away.Store(false)
		r.caughtUp(p)
		r.publish("z:1")
		time.Sleep(21 * time.Second)
		r.equal("position", m.position(), 16)
	})
}

// untold is a bus whose group has not been told yet of what was published last.
type untold struct {
	*adapter.Bus
	from atomic.Uint64
}

func (b *untold) Groups(ctx context.Context, topic string) ([]jetbus.GroupInfo, error) {
	groups, err := b.Bus.Groups(ctx, topic)
	for i := range groups {
		if from := b.from.Load(); from > 0 {
			groups[i].AckedSeq, groups[i].Pending, groups[i].Held = from, 0, 0
		}
	}
	return groups, err
}

// The server acknowledges a publish before it tells the groups: whoever waits for lag 0
// right after it would go on too early.
func TestLagOfWhatTheGroupDoesNotKnow(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		s := m.sink()
		var away atomic.Bool
		s.before = fails(&away)
		b := &untold{Bus: r.bus}
		p := r.project(b, s, options())
		r.publish("a:1", "b:1")
		r.caughtUp(p)
		away.Store(true)
		r.publish("a:2", "b:2")
		b.from.Store(2)
		lag, err := p.Lag(r.Context())
		r.ok(err)
		r.equal("lag", lag, projector.Lag{Events: 1, Seq: 2, LastSeq: 4})
		b.from.Store(0)
		away.Store(false)
		r.caughtUp(p)
		m.want(t, "a=2 b=2")
	})
}
