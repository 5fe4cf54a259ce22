package changefeed_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
)

// restoreRig is a rig whose broker can be restored to an earlier state.
type restoreRig struct {
	*rig
	*bustest.Restorable
}

func newRestoreRig(t *testing.T, mode changefeed.Mode) *restoreRig {
	t.Helper()
	broker := bustest.StartRestorable(t)
	r := &restoreRig{newRigWith(t, mongotest.Start(t), broker.Broker), broker}
	r.mode, r.shared = mode, mode != changefeed.Chain
	r.declare(jetbus.TopicConfig{})
	return r
}

// eachModeRestored runs f in each mode, with the positions in the broker, which are restored with
// the topic, and in MongoDB, which are not.
func eachModeRestored(t *testing.T, f func(r *restoreRig, o changefeed.Options)) {
	t.Helper()
	for _, mode := range []changefeed.Mode{changefeed.Chain, changefeed.Atomic, changefeed.Serial} {
		for _, store := range []string{"keys", "mongo"} {
			t.Run(string(mode)+"/"+store, func(t *testing.T) {
				r := newRestoreRig(t, mode)
				o := r.options()
				if store == "mongo" {
					o.TokenStore = r.tokens()
				}
				f(r, o)
			})
		}
	}
}

// tokens is a store in MongoDB.
func (r *rig) tokens() changefeed.TokenStore {
	return changefeed.StoreInMongo(r.client.Database(r.server.Database() + "_tokens").Collection(changefeed.DefaultTokens))
}

// saved waits until a feed has saved a position at or after all that it has published.
func (r *rig) saved(f *changefeed.Feed, o changefeed.Options) {
	r.Helper()
	r.published(f)
	if o.TokenStore == nil {
		o.TokenStore = changefeed.StoreInKeys(r.bus)
	}
	at := f.Status().Token
	r.until("the position is saved", func() bool {
		p, err := o.TokenStore.Load(r.Context(), o.Name)
		r.must(err)
		return p.Token.Compare(at) >= 0
	})
}

func TestStoppedFeedPublishesAgainWhatARestoreLost(t *testing.T) {
	eachModeRestored(t, func(r *restoreRig, o changefeed.Options) {
		f := r.start(o)
		r.insert("a")
		r.wants("insert a")
		r.saved(f, o)
		r.stop(f)
		backup := r.Backup(r.T)
		f = r.start(o)
		r.insert("b", "c")
		r.wants("insert a, insert b, insert c")
		r.saved(f, o)
		r.stop(f)
		r.Restore(r.T, backup, nil)
		r.neighbor(ids("n", 8)...) // which uses their sequences again, and more
		r.wants("insert a")
		f = r.start(o)
		r.insert("d")
		r.wants("insert a, insert b, insert c, insert d")
		r.published(f)
		if s := f.Stats(); s.Gaps != 0 || s.Published != 3 {
			r.Errorf("stats %+v, want 3 events and no gap", s)
		}
	})
}

func TestRunningFeedPublishesAgainWhatARestoreLost(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(map[bool]string{false: "idle", true: "busy"}[busy], func(t *testing.T) {
			eachModeRestored(t, func(r *restoreRig, o changefeed.Options) {
				f := r.start(o)
				r.insert("a")
				r.wants("insert a")
				r.saved(f, o)
				backup := r.Backup(r.T)
				r.insert("b", "c")
				r.wants("insert a, insert b, insert c")
				r.saved(f, o)
				if busy { // MongoDB changes while the broker is down
					r.Restore(r.T, backup, func() { r.insertMany([]string{"d"}) })
				} else {
					r.Restore(r.T, backup, nil)
					r.wants("insert a, insert b, insert c")
					r.insert("d")
				}
				r.wants("insert a, insert b, insert c, insert d")
				if f.Err() != nil || f.Stats().Gaps != 0 {
					r.Errorf("the feed: %v, stats %+v", f.Err(), f.Stats())
				}
			})
		})
	}
}

// inFlight is a bus whose next batch is stored only after before was called.
type inFlight struct {
	changefeed.Backend
	before atomic.Pointer[func()]
	lost   bool // the answer, and all later ones
	fault  atomic.Bool
}

func (b *inFlight) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	if b.fault.Load() {
		return nil, jetbus.ErrUnavailable
	}
	before := b.before.Swap(nil)
	if before != nil {
		(*before)()
		ctx = context.WithoutCancel(ctx) // it is sent already
	}
	receipts, err := b.Backend.PublishBatch(ctx, events, o)
	if before != nil && b.lost {
		b.fault.Store(true)
		return nil, jetbus.ErrUnavailable
	}
	return receipts, err
}

// The broker is restored while an event is in flight, so that it is stored after events that
// are missing: the broker refuses that in mode Chain alone.
func TestEventInFlightAcrossARestore(t *testing.T) {
	for _, mode := range []changefeed.Mode{changefeed.Chain, changefeed.Atomic, changefeed.Serial} {
		for policy, want := range map[changefeed.Policy]string{
			changefeed.Fail:   "insert a, insert d",
			changefeed.Latest: "insert a, insert d, gap, insert e",
			changefeed.Resync: "insert a, insert d, gap, copy a, copy b, copy c, copy d, copied, insert e",
		} {
			for _, stopped := range []bool{false, true} {
				for _, store := range []string{"keys", "mongo"} {
					name := string(mode) + "/" + string(policy) + "/" + store + map[bool]string{true: "/stopped"}[stopped]
					t.Run(name, func(t *testing.T) { eventInFlight(t, mode, policy, want, store == "mongo", stopped) })
				}
			}
		}
	}
}

func eventInFlight(t *testing.T, mode changefeed.Mode, policy changefeed.Policy, want string, inMongo, stopped bool) {
	t.Helper()
	r := newRestoreRig(t, mode)
	o := r.options()
	o.OnHistoryLost = policy
	if inMongo {
		o.TokenStore = r.tokens()
	}
	b := &inFlight{Backend: r.bus, lost: stopped}
	f := r.startOn(b, o)
	r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
	r.insert("a")
	r.wants("insert a")
	r.saved(f, o)
	backup := r.Backup(t)
	r.insert("b", "c")
	r.wants("insert a, insert b, insert c")
	r.saved(f, o)
	restored := make(chan struct{})
	restore := func() {
		defer close(restored)
		r.Restore(t, backup, nil)
		r.neighbor(ids("n", 8)...) // which uses their sequences again, and more
	}
	b.before.Store(&restore)
	r.insertMany([]string{"d"})
	<-restored
	if stopped {
		r.until("the answer is lost", b.fault.Load)
		r.stop(f)
		f = r.startOn(r.bus, o)
	}
	if mode == changefeed.Chain {
		r.wants("insert a, insert b, insert c, insert d")
		return
	}
	if policy == changefeed.Fail {
		r.wants(want)
		r.ended(f, changefeed.ErrHistoryLost)
		r.ended(f, jetbus.ErrPositionUnknown)
		return
	}
	r.wants(strings.TrimSuffix(want, ", insert e"))
	r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming && f.Stats().InFlight == 0 })
	r.insert("e")
	r.wants(want)
	r.stop(f)
	f = r.start(o)
	r.insert("f")
	r.wants(want + ", insert f")
	if f.Stats().Gaps != 0 {
		t.Errorf("%d gaps at the next start", f.Stats().Gaps)
	}
}

// A topic that was restored to the state before its first event is like one that was created
// again.
func TestTopicRestoredEmpty(t *testing.T) {
	for _, tt := range []struct {
		name   string
		start  changefeed.StartPoint
		policy changefeed.Policy
		want   string
	}{
		{"fail", changefeed.FromLatest(), changefeed.Fail, ""},
		{"latest", changefeed.FromLatest(), changefeed.Latest, "gap, insert b"},
		{"resync", changefeed.FromLatest(), changefeed.Resync, "gap, copy a, copied, insert b"},
		{"copy", changefeed.FromCopy(), changefeed.Fail, "copy a, copied, insert b"},
	} {
		for _, mode := range []changefeed.Mode{changefeed.Chain, changefeed.Atomic, changefeed.Serial} {
			t.Run(tt.name+"/"+string(mode), func(t *testing.T) {
				r := newRestoreRig(t, mode)
				o := r.options()
				o.TokenStore, o.OnHistoryLost = r.tokens(), tt.policy
				backup := r.Backup(t)
				f := r.start(o)
				r.insert("a")
				r.wants("insert a")
				r.saved(f, o)
				r.stop(f)
				r.Restore(t, backup, nil)
				o.Start = tt.start
				for range 2 { // a feed that ended is not silent at its next start
					f = r.startOn(r.bus, o)
					if tt.want != "" {
						break
					}
					r.ended(f, changefeed.ErrHistoryLost)
				}
				if tt.want == "" {
					r.wants("")
					return
				}
				r.wants(tt.want[:strings.LastIndex(tt.want, ",")])
				r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming && f.Stats().InFlight == 0 })
				r.insert("b")
				r.wants(tt.want)
			})
		}
	}
}

// MongoDB no longer has what the restored topic lost.
func TestRestoreAndHistoryLost(t *testing.T) {
	broker := bustest.StartRestorable(t)
	r := &restoreRig{newRigWith(t, startStandIn(t, mongod.Config{}), broker.Broker), broker}
	o := r.options()
	o.TokenStore, o.OnHistoryLost = r.tokens(), changefeed.Resync
	f := r.start(o)
	r.insert("a")
	r.wants("insert a")
	r.saved(f, o)
	r.stop(f) // else its lock is in the backup
	backup := r.Backup(t)
	f = r.start(o)
	r.insert("b")
	r.wants("insert a, insert b")
	r.saved(f, o)
	r.stop(f)
	r.standIn().TruncateOplog()
	r.Restore(t, backup, nil)
	r.start(o)
	r.wants("insert a, gap, copy a, copy b, copied")
}

// A position that does not tell where the topic ended, as older versions saved it, counts.
func TestPositionWithoutLast(t *testing.T) {
	for _, store := range []string{"keys", "mongo"} {
		t.Run(store, func(t *testing.T) {
			r := newRestoreRig(t, changefeed.Chain)
			o := r.options()
			o.TokenStore = changefeed.StoreInKeys(r.bus)
			if store == "mongo" {
				o.TokenStore = r.tokens()
			}
			f := r.start(o)
			r.insert("a")
			r.wants("insert a")
			r.saved(f, o)
			r.stop(f)
			p, err := o.TokenStore.Load(t.Context(), o.Name)
			r.must(err)
			if e := r.events()[0]; p.Last.Seq != e.Seq || p.Last.ID != e.ID || !p.Last.Stored.Equal(e.Stored) {
				t.Errorf("the saved position is at %+v, want event %d, %s of %s", p.Last, e.Seq, e.ID, e.Stored.Format(time.RFC3339Nano))
			}
			p.Last = jetbus.Checkpoint{}
			_, err = o.TokenStore.Save(t.Context(), o.Name, p)
			r.must(err)
			f = r.start(o)
			r.insert("b")
			r.wants("insert a, insert b")
			if f.Stats().Duplicates != 0 || f.Stats().Gaps != 0 {
				t.Errorf("stats %+v", f.Stats())
			}
		})
	}
}
