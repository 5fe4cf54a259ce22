package changefeed_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
)

// Rows of the list of failure modes.

// failCommand makes commands fail some times.
func (r *rig) failCommand(times int, data bson.D) {
	r.Helper()
	mongotest.FailCommand(r, r.server.URI(), bson.M{"times": times}, data)
}

// failGetMore makes the next getMores fail with a code.
func (r *rig) failGetMore(times int, code int32, labels ...string) {
	r.Helper()
	r.failCommand(times, bson.D{{Key: "failCommands", Value: bson.A{"getMore"}}, {Key: "errorCode", Value: code}, {Key: "errorLabels", Value: append([]string{}, labels...)}})
}

func TestA7Row01NetworkCutInGetMore(t *testing.T) {
	r := newStandInRig(t)
	r.start(r.options())
	all := ids("k", 20)
	for i, id := range all {
		r.insert(id)
		if i%8 == 4 {
			r.standIn().CutConnections()
		}
	}
	r.wants(inserts(all))
	r.inOrder()
}

func TestA7Row02ElectionsAndKilledCursors(t *testing.T) {
	r := newStandInRig(t)
	f := r.start(r.options())
	s := r.standIn()
	r.insert("a")
	s.StepDown()
	s.StepUp()
	r.insert("b")
	s.KillCursors()
	r.insert("c")
	const label = "ResumableChangeStreamError"
	for i, code := range []int32{10107, 11602, 43, 91, 13435} { // NotWritablePrimary, InterruptedDueToReplStateChange, CursorNotFound, ShutdownInProgress, NotPrimaryNoSecondaryOk
		r.failGetMore(1, code, label)
		r.insert(string(rune('d' + i)))
	}
	r.wants(inserts(strings.Split("abcdefgh", "")))
	r.inOrder()
	if err := f.Err(); err != nil {
		t.Error(err)
	}
}

func TestA7Row03ServerAwayForLong(t *testing.T) {
	r := newStandInRig(t)
	o := r.options()
	o.ReadyGrace = 50 * time.Millisecond
	f := r.start(o)
	r.insert("a")
	r.wants("insert a")
	r.standIn().Suspend()
	r.until("it is reconnecting and not ready", func() bool {
		return f.Status().State == changefeed.Reconnecting && f.Ready() != nil
	})
	r.standIn().Resume()
	r.until("it streams again", func() bool { return f.Status().State == changefeed.Streaming && f.Ready() == nil })
	r.insert("b")
	r.wants("insert a, insert b")
	r.failGetMore(3, 11601) // not resumable: the driver gives up at once
	r.failCommand(3, bson.D{{Key: "failCommands", Value: bson.A{"aggregate", "getMore"}}, {Key: "errorCode", Value: 11601}})
	r.until("the change stream was opened again", func() bool { return f.Stats().Reopened >= 1 })
	r.insert("c")
	r.wants("insert a, insert b, insert c")
	if f.Stats().Reopened < 1 {
		t.Errorf("stats %+v", f.Stats())
	}
}

// No deadline reaches the change stream while nothing happens. Where the client has
// one of its own, which ends a change stream for good, it is opened again.
func TestA7Row04Deadlines(t *testing.T) {
	r := newRig(t)
	f := r.start(r.options())
	r.until("it has waited for a while", func() bool { return time.Since(f.Status().Since) > 300*time.Millisecond })
	r.insert("a")
	r.wants("insert a")
	if f.Stats().Reopened > 0 {
		t.Errorf("stats %+v", f.Stats())
	}
	r.stop(f)
	client, err := mongo.Connect(options.Client().ApplyURI(r.server.URI()).SetTimeout(500 * time.Millisecond))
	r.must(err)
	defer func() { r.must(client.Disconnect(context.Background())) }()
	o := r.options()
	o.MaxAwaitTime = 2 * time.Second
	f, err = changefeed.Start(t.Context(), r.bus, client, o)
	r.must(err)
	defer r.stop(f)
	r.until("its change stream has ended", func() bool { return f.Stats().Reopened > 0 })
	r.insert("b")
	r.wants("insert a, insert b")
}

// forgetful is a token store that never gets to save, as if the process died before.
type forgetful struct{}

func (forgetful) Load(context.Context, string) (changefeed.Progress, error) {
	return changefeed.Progress{}, nil
}

func (forgetful) Save(_ context.Context, _ string, p changefeed.Progress) (uint64, error) {
	return p.Revision + 1, nil
}

func (forgetful) Delete(context.Context, string) error { return nil }

func (r *rig) startOn(b changefeed.Backend, o changefeed.Options) *changefeed.Feed {
	r.Helper()
	f, err := changefeed.Start(r.Context(), b, r.client, o)
	r.must(err)
	r.Cleanup(func() { r.stop(f) })
	return f
}

func TestA7Row06BrokerDown(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.MaxInFlight = 30
	f := r.start(o)
	r.insert("first")
	r.wants("insert first")
	r.must(r.broker.Kill(t.Context()))
	all := ids("k", 300)
	docs := make([]any, len(all))
	for i, id := range all {
		docs[i] = bson.M{"_id": id}
	}
	_, err := r.coll.InsertMany(t.Context(), docs)
	r.must(err)
	r.until("it holds what it may", func() bool { return f.Stats().InFlight > 10 })
	for range 20 {
		if n := f.Stats().InFlight; n > o.MaxInFlight {
			t.Errorf("%d in flight, at most %d are allowed", n, o.MaxInFlight)
		}
	}
	r.must(r.broker.Restart(t.Context()))
	r.wants(inserts(append([]string{"first"}, all...)))
	r.inOrder()
}

func TestA7Row10IdleCollection(t *testing.T) {
	r := newStandInRig(t)
	o := r.options()
	f := r.start(o)
	r.insert("a")
	r.wants("insert a")
	r.published(f)
	was := f.Status().Token
	r.standIn().TruncateOplog() // the change of "a" is gone; what the store will say is not
	store := changefeed.StoreInKeys(r.bus)
	other := r.client.Database(r.server.Database()).Collection("others")
	_, err := other.InsertOne(t.Context(), bson.M{"_id": 1})
	r.must(err)
	r.until("the position moves", func() bool {
		p, err := store.Load(t.Context(), "f")
		r.must(err)
		return p.Token.Compare(was) > 0
	})
	r.stop(f)
	r.start(o)
	r.insert("b")
	r.wants("insert a, insert b")
}

func TestA7Row11HistoryLost(t *testing.T) {
	for policy, want := range map[changefeed.Policy]string{
		changefeed.Fail:   "insert a",
		changefeed.Latest: "insert a, gap, insert c",
		changefeed.Resync: "insert a, gap, copy a, copy b, copied, insert c",
	} {
		t.Run(string(policy), func(t *testing.T) {
			r := newStandInRig(t)
			o := r.options()
			o.OnHistoryLost = policy
			f := r.start(o)
			r.insert("a")
			r.wants("insert a")
			r.stop(f)
			r.insert("b")
			r.standIn().TruncateOplog()
			f = r.startOn(r.bus, o)
			if policy == changefeed.Fail {
				r.ended(f, changefeed.ErrHistoryLost)
				return
			}
			r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming && f.Stats().InFlight == 0 })
			r.insert("c")
			r.wants(want)
			if f.Stats().Gaps != 1 || !strings.Contains(string(r.events()[1].Payload), `"policy":"`+string(policy)+`"`) {
				t.Errorf("stats %+v, gap %s", f.Stats(), r.events()[1].Payload)
			}
			r.stop(f)
			f = r.start(o) // the gap is behind it
			r.insert("d")
			r.wants(want + ", insert d")
			if f.Stats().Gaps != 0 {
				t.Errorf("stats %+v", f.Stats())
			}
		})
	}
}

func TestA7Row12AnotherPipeline(t *testing.T) {
	r := newRig(t)
	o := r.options()
	f := r.start(o)
	r.insert("a", "b")
	r.wants("insert a, insert b")
	r.stop(f)
	o.TokenStore = forgetful{} // so that the position is that of an insert
	o.Pipeline = []bson.D{{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "delete"}}}}}
	r.remove("a")
	f = r.start(o)
	r.insert("c")
	r.remove("b")
	r.wants("insert a, insert b, delete a, delete b")
	r.inOrder()
	if f.Stats().Gaps != 0 {
		t.Errorf("stats %+v", f.Stats())
	}
}

// A change stream that always ends with 280 is given up, whatever it tells before that.
func TestStreamFatalForGood(t *testing.T) {
	r := newRig(t)
	f := r.start(r.options())
	r.insert("a", "b")
	r.wants("insert a, insert b")
	r.failGetMore(1_000_000, 280)
	r.ended(f, changefeed.ErrHistoryLost)
}
