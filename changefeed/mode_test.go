package changefeed_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// Rows about what is between the feed and its topic, in each mode.

// lossy is a bus whose answers get lost: what it was given is stored, and it says that
// it does not know.
type lossy struct {
	changefeed.Backend
	losses atomic.Int64  // how many more
	gate   chan struct{} // not nil: each batch waits for one
	cut    int           // of each batch, only so many are stored; 0: all
}

func (l *lossy) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	if l.gate != nil {
		select {
		case <-l.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if l.losses.Add(-1) < 0 {
		return l.Backend.PublishBatch(ctx, events, o)
	}
	if l.cut > 0 && l.cut < len(events) {
		events = events[:l.cut]
	}
	if _, err := l.Backend.PublishBatch(ctx, events, o); err != nil {
		return nil, err
	}
	return nil, jetbus.ErrUnavailable
}

func TestA7Row05CrashBeforeTheTokenIsSaved(t *testing.T) {
	eachMode(t, func(r *rig) {
		o := r.options()
		o.TokenStore = forgetful{}
		all := ids("k", 60)
		r.stop(r.start(o)) // nothing yet, so that there is no position either
		for i := 0; i < len(all); i += 20 {
			f := r.start(o)
			r.insert(all[i : i+10]...)
			r.wants(inserts(all[:i+10]))
			r.stop(f)
			r.insert(all[i+10 : i+20]...)
		}
		f := r.start(o)
		r.wants(inserts(all))
		r.inOrder()
		if f.Stats().Duplicates > 0 || f.Status().Mode != r.mode {
			r.Errorf("stats %+v, %+v", f.Stats(), f.Status())
		}
	})
}

// The process dies with a batch on its way, which is stored after that.
func TestA7Row05CrashWithABatchOnItsWay(t *testing.T) {
	eachMode(t, func(r *rig) {
		b := &lossy{Backend: r.bus, cut: 7}
		o := r.options()
		all := ids("k", 90)
		for i := 0; i < len(all); i += 30 {
			f := r.startOn(b, o)
			r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
			b.losses.Store(3)
			r.insertMany(all[i : i+30])
			r.until("some of it is stored", func() bool { return len(r.events()) > i })
			r.stop(f)
		}
		b.losses.Store(0)
		r.startOn(b, o)
		r.wants(inserts(all))
		r.inOrder()
	})
}

func TestA7Row07AnswersLost(t *testing.T) {
	eachMode(t, func(r *rig) {
		b := &lossy{Backend: r.bus}
		b.losses.Store(5)
		f := r.startOn(b, r.options())
		r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
		all := ids("k", 50)
		r.insert(all...)
		r.wants(inserts(all))
		r.until("it knows of duplicates", func() bool { return f.Stats().Duplicates > 0 && f.Stats().InFlight == 0 })
		r.inOrder()
		if f.Stats().Published+f.Stats().Duplicates != uint64(len(all)) || f.Stats().Fenced > 0 {
			r.Errorf("stats %+v", f.Stats())
		}
	})
}

// The answer is lost, and the broker has forgotten the ids when it is asked again.
func TestA7Row07AnswersLostForLong(t *testing.T) {
	eachModeWith(t, false, jetbus.TopicConfig{DuplicateWindow: 100 * time.Millisecond}, func(r *rig) {
		b := &lossy{Backend: r.bus}
		o := r.options()
		o.Backoff = jetbus.Backoff{Min: 500 * time.Millisecond, Max: 500 * time.Millisecond}
		f := r.startOn(b, o)
		r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
		all := ids("k", 12)
		for i := 0; i < len(all); i += 4 {
			b.cut = 4 - i/4 // all of a batch, or some of it
			b.losses.Store(1)
			r.insertMany(all[i : i+4])
			r.until("they are published", func() bool { return len(r.events()) == i+4 && f.Stats().InFlight == 0 })
		}
		r.wants(inserts(all))
		r.inOrder()
	})
}

// Some of a batch is stored and the rest refused: the feed goes on behind what is
// stored, and never leaves a hole.
func TestA7Row08PartOfABatch(t *testing.T) {
	eachModeWith(t, true, jetbus.TopicConfig{MaxEvents: 7, Discard: jetbus.DiscardNew}, func(r *rig) {
		b := &lossy{Backend: r.bus, cut: 3}
		b.losses.Store(1)
		o := r.options()
		o.ReadyGrace = 500 * time.Millisecond
		f := r.startOn(b, o)
		r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
		all := ids("k", 20)
		r.insertMany(all)
		var s changefeed.Status // a moment later it may be that an answer did not come in time
		r.until("the topic is full, for long", func() bool {
			s = f.Status()
			return f.Ready() != nil && strings.Contains(s.Error, jetbus.ErrTopicFull.Error()) // and no longer an answer lost
		})
		if s.State != changefeed.Reconnecting {
			r.Errorf("status %+v", s)
		}
		if r.mode != changefeed.Atomic { // a batch that does not fit is not stored at all
			r.wants(inserts(all[:7]))
		}
		r.declare(jetbus.TopicConfig{MaxEvents: -1})
		r.wants(inserts(all))
		r.inOrder()
	})
}

// A batch of which the broker refuses the middle is refused as a whole, and goes
// when there is room for it; one by one, what there is room for goes at once.
func TestA7Row08AtomicBatchIsWholeOrNot(t *testing.T) {
	r := newRig(t)
	r.mode, r.shared, r.alone = changefeed.Atomic, true, true
	r.declare(jetbus.TopicConfig{MaxEvents: 7, Discard: jetbus.DiscardNew})
	b := &lossy{Backend: r.bus, gate: make(chan struct{}, 1000)}
	f := r.startOn(b, r.options())
	r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
	all := ids("k", 20)
	r.insertMany(all)
	r.until("all are read", func() bool { return f.Stats().InFlight == len(all) })
	for range 3 {
		b.gate <- struct{}{}
	}
	r.until("the topic is full", func() bool { return f.Status().State == changefeed.Reconnecting && len(b.gate) == 0 })
	if n := len(r.events()); n != 0 {
		t.Errorf("%d events of a batch of %d are stored, where there is room for 7", n, len(all))
	}
	r.declare(jetbus.TopicConfig{MaxEvents: -1})
	for range 100 {
		b.gate <- struct{}{}
	}
	r.wants(inserts(all))
	r.inOrder()
}

// otherLocks is a bus whose locks are elsewhere: two feeds on such buses both lead.
type otherLocks struct {
	deeper
	jetbus.Keys
}

type deeper struct{ changefeed.Backend }

// A leader wakes up after another one has taken over. With a store that both
// forget, and with one that keeps them apart.
func TestA7Row09TwoLeaders(t *testing.T) {
	for _, store := range []string{"forgetful", "keys"} {
		t.Run(store, func(t *testing.T) {
			eachMode(t, func(r *rig) {
				o := r.options()
				o.TokenStore = forgetful{}
				if store == "keys" {
					o.TokenStore = changefeed.StoreInKeys(r.bus)
				}
				twoLeaders(r, o)
			})
		})
	}
}

func twoLeaders(r *rig, o changefeed.Options) {
	r.Helper()
	elsewhere := bustest.Open(r.T, bustest.Start(r.T, embedded.Config{}), adapter.Config{})
	slow := &lossy{Backend: r.bus, gate: make(chan struct{}, 1000)}
	zombie := r.startOn(slow, o)
	r.until("it streams", func() bool { return zombie.Status().State == changefeed.Streaming })
	r.insert("a")
	slow.gate <- struct{}{}
	r.wants("insert a")
	leader := r.startOn(otherLocks{deeper{r.bus}, elsewhere}, o)
	r.until("it streams", func() bool { return leader.Status().State == changefeed.Streaming })
	all := append([]string{"a"}, ids("k", 30)...)
	r.insert(all[1:16]...)
	r.wants(inserts(all[:16]))
	r.until("the other one has some as well", func() bool { return zombie.Stats().InFlight > 0 || zombie.Stats().Fenced > 0 })
	for range 200 {
		slow.gate <- struct{}{}
	}
	r.insert(all[16:]...)
	r.wants(inserts(all))
	r.inOrder()
	r.until("one of them was told", func() bool {
		return zombie.Stats().Duplicates+zombie.Stats().Fenced+leader.Stats().Fenced+leader.Stats().Duplicates > 0
	})
}

// One instance leads, and the next one takes over where it was.
func TestA7Row09StandbyTakesOver(t *testing.T) {
	eachMode(t, func(r *rig) {
		first := r.start(r.options())
		second := r.startOn(r.bus, r.options())
		r.until("it stands by", func() bool { return second.Status().State == changefeed.Standby })
		if second.Ready() != nil {
			r.Error(second.Ready())
		}
		r.insert("a")
		r.wants("insert a")
		r.stop(first)
		r.insert("b")
		r.wants("insert a, insert b")
		r.until("it knows that", func() bool { return second.Stats().Published > 0 })
		if n := second.Stats().Published; n != 1 || first.Status().State != changefeed.Stopped {
			r.Errorf("the second published %d", n)
		}
	})
}

// What one instance has saved keeps the other from its next batch, whatever the
// broker remembers of ids.
func TestFenceWithoutIDs(t *testing.T) {
	for _, mode := range []changefeed.Mode{changefeed.Atomic, changefeed.Serial} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t)
			r.mode, r.shared = mode, true
			r.declare(jetbus.TopicConfig{})
			o := r.options()
			o.TokenStore = changefeed.StoreInKeys(r.bus)
			o.ProgressInterval = time.Hour // so that nothing but the fence saves
			f := r.start(o)
			r.insert("a")
			r.wants("insert a")
			p, err := o.TokenStore.Load(t.Context(), o.Name)
			r.must(err)
			r.until("another one has saved", func() bool {
				p, err = o.TokenStore.Load(t.Context(), o.Name)
				r.must(err)
				p.Holder = "another"
				_, err = o.TokenStore.Save(t.Context(), o.Name, p)
				return err == nil
			})
			r.until("it is told", func() bool {
				r.insert("b" + jetbus.NewID())
				return f.Stats().Fenced > 0
			})
			r.until("it has all", func() bool { return f.Status().State == changefeed.Streaming && f.Stats().InFlight == 0 })
			r.inOrder()
			r.same()
		})
	}
}

// The position is the last event of the topic, however much of others is behind it.
func TestPositionInASharedStream(t *testing.T) {
	for _, behind := range []int{0, 1, 2, 7, 100} {
		r := newRig(t)
		r.shared = true
		r.declare(jetbus.TopicConfig{KeyInSubject: behind%2 == 0})
		o := r.options()
		o.TokenStore = forgetful{}
		r.neighbor(ids("before", behind)...)
		r.stop(r.start(o)) // the topic has nothing
		f := r.start(o)
		r.insert("a", "b")
		r.wants("insert a, insert b")
		r.stop(f)
		r.neighbor(ids("behind", behind)...)
		r.insert("c")
		f = r.start(o)
		r.wants("insert a, insert b, insert c")
		if f.Status().Mode != changefeed.Atomic || f.Stats().Duplicates > 0 {
			t.Errorf("%d: %+v, %+v", behind, f.Status(), f.Stats())
		}
		r.stop(f)
	}
}

// A feed in a shared stream is reset, behind events of others.
func TestResetInASharedStream(t *testing.T) {
	r := newRig(t)
	r.shared = true
	r.declare(jetbus.TopicConfig{})
	r.stop(r.start(r.options()))
	f := r.start(r.options())
	r.insert("a", "b")
	r.wants("insert a, insert b")
	r.stop(f)
	r.insert("c", "d")
	if s := r.stored(); len(s.Topics) != 1 || s.Topics[0].Token != changefeed.Token(r.events()[1].Headers[changefeed.HeaderToken]) {
		t.Errorf("stored %+v", s)
	}
	latest := changefeed.FromLatest()
	r.reset(&latest)
	r.start(r.options())
	r.insert("e")
	r.wants("insert a, insert b, gap, insert e")
}

// A batch has more events than the server takes at once.
func TestAtomicBatchesOfManyEvents(t *testing.T) {
	r := newRig(t)
	r.shared = true
	r.declare(jetbus.TopicConfig{})
	all := ids("k", 2500)
	r.insertMany(all)
	o := r.options()
	o.Start, o.CopyBatch, o.MaxInFlight = changefeed.FromCopy(), 2500, 9000
	f := r.start(o)
	r.same()
	r.published(f)
	if n := len(r.events()); n != len(all)+1 || f.Stats().Published != uint64(len(all)+1) {
		t.Errorf("%d events, %+v", n, f.Stats())
	}
}

// noBatches is a bus on a server that is too old for atomic batches.
type noBatches struct {
	changefeed.Backend
	refused atomic.Int64
}

func (b *noBatches) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	if o.Atomic {
		b.refused.Add(1)
		return nil, jetbus.ErrUnsupported
	}
	return b.Backend.PublishBatch(ctx, events, o)
}

func TestNoAtomicBatches(t *testing.T) {
	r := newRig(t)
	r.shared = true
	r.declare(jetbus.TopicConfig{})
	b := &noBatches{Backend: r.bus}
	f := r.startOn(b, r.options())
	r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
	all := ids("k", 30)
	r.insert(all...)
	r.wants(inserts(all))
	r.inOrder()
	if f.Status().Mode != changefeed.Serial || b.refused.Load() != 1 {
		t.Errorf("%+v, %d times refused", f.Status(), b.refused.Load())
	}
	r.stop(f)
	r.mode = changefeed.Atomic
	f = r.startOn(b, r.options())
	r.insert("last")
	r.ended(f, jetbus.ErrUnsupported)
	r.wants(inserts(all))
}

// The stream is somebody else's, and takes no atomic batches.
func TestAdoptedStream(t *testing.T) {
	r := newRig(t)
	nc := bustest.Connect(t, r.broker)
	answer, err := nc.Request("$JS.API.STREAM.CREATE.LEGACY", []byte(`{"name":"LEGACY","subjects":["legacy.>"],"allow_direct":true,"storage":"memory"}`), patience)
	r.must(err)
	if strings.Contains(string(answer.Data), `"error"`) {
		t.Fatalf("%s", answer.Data)
	}
	_, err = r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: r.topic, Stream: "LEGACY", Subject: "legacy.things"})
	r.must(err)
	o := r.options()
	o.TokenStore = forgetful{}
	var all []string
	r.stop(r.start(o)) // the topic has nothing
	for i := range 3 {
		f := r.start(o)
		now := ids(string(rune('a'+i)), 5)
		all = append(all, now...)
		r.insertMany(now)
		r.wants(inserts(all))
		if f.Status().Mode != changefeed.Serial || f.Stats().Duplicates > 0 {
			t.Errorf("%+v, %+v", f.Status(), f.Stats())
		}
		r.stop(f)
		for range 3 {
			_, err := nc.Request("legacy.other", []byte("of others"), patience)
			r.must(err)
		}
	}
	r.inOrder()
}

// Auto goes by the topic's stream.
func TestModes(t *testing.T) {
	for _, c := range []struct {
		config jetbus.TopicConfig
		mode   changefeed.Mode
		want   changefeed.Mode
	}{
		{jetbus.TopicConfig{}, "", changefeed.Chain},
		{jetbus.TopicConfig{}, changefeed.Auto, changefeed.Chain},
		{jetbus.TopicConfig{}, changefeed.Serial, changefeed.Serial},
		{jetbus.TopicConfig{}, changefeed.Atomic, changefeed.Atomic},
		{jetbus.TopicConfig{Stream: "S"}, "", changefeed.Atomic},
		{jetbus.TopicConfig{Stream: "S"}, changefeed.Serial, changefeed.Serial},
		{jetbus.TopicConfig{Delays: true}, "", changefeed.Atomic},
	} {
		t.Run(fmt.Sprintf("%s%v of %q", c.config.Stream, c.config.Delays, c.mode), func(t *testing.T) {
			r := newRig(t)
			r.mode, c.config.Name = c.mode, r.topic
			_, err := r.bus.EnsureTopic(t.Context(), c.config)
			r.must(err)
			f := r.start(r.options())
			r.insert("a", "b")
			r.wants("insert a, insert b")
			if got := f.Status().Mode; got != c.want {
				t.Errorf("mode %s, want %s", got, c.want)
			}
		})
	}
}

// Poison and what is too large for the broker do not keep back what is around them.
func TestPoisonInEachMode(t *testing.T) {
	eachMode(t, func(r *rig) {
		o := r.options()
		o.OnOversize = changefeed.KeyOnly
		o.Map = func(c *changefeed.Change, e *jetbus.Event) error {
			switch c.Key {
			case "k00003":
				return errRefused
			case "k00005":
				e.Payload = []byte(`"` + strings.Repeat("x", 5<<18) + `"`)
			}
			return nil
		}
		f := r.start(o)
		all := ids("k", 10)
		r.insertMany(all)
		r.wants(inserts(slices.Delete(slices.Clone(all), 3, 4)))
		r.inOrder()
		r.dead(1)
		if s := f.Stats(); s.Poisoned != 1 || s.Oversize != 1 {
			r.Errorf("stats %+v", s)
		}
	})
}

// The topic's events have left it; what the store says is all there is.
func TestEmptiedTopicInASharedStream(t *testing.T) {
	for _, mode := range []changefeed.Mode{changefeed.Atomic, changefeed.Serial} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t)
			r.mode, r.shared = mode, true
			r.declare(jetbus.TopicConfig{MaxEvents: 3})
			o := r.options()
			f := r.start(o)
			r.insert("a", "b")
			r.until("they are published", func() bool { return f.Stats().Published == 2 && f.Stats().InFlight == 0 })
			r.stop(f)
			r.neighbor(ids("n", 5)...)
			if n := len(r.events()); n != 0 {
				t.Fatalf("%d events are left", n)
			}
			f = r.startOn(r.bus, o)
			r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
			r.insertMany([]string{"c"})
			r.wants("insert c")
			if f.Stats().Duplicates > 0 || f.Err() != nil {
				t.Errorf("stats %+v", f.Stats())
			}
		})
	}
}
