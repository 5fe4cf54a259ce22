package changefeed_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// The driver resumes with resumeAfter, which is refused behind an invalidate event.
func TestA7Row13CutBehindInvalidate(t *testing.T) {
	r := newStandInRig(t)
	f := r.start(r.options())
	r.insert("a")
	r.must(r.coll.Drop(t.Context()))
	r.wants("insert a, drop, invalidate")
	r.failGetMore(1, 43)
	r.standIn().CutConnections()
	r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
	r.insert("a", "b")
	r.wants("insert a, drop, invalidate, insert a, insert b")
	if f.Err() != nil {
		t.Error(f.Err())
	}
}

func TestA7Row14DropAndRename(t *testing.T) {
	r := newRig(t)
	o := r.options()
	f := r.start(o) // the collection is not there yet
	r.insert("a")
	r.must(r.coll.Drop(t.Context()))
	r.insert("b")
	db := r.client.Database(r.server.Database())
	rename := bson.D{{Key: "renameCollection", Value: db.Name() + ".things"}, {Key: "to", Value: db.Name() + ".was"}}
	r.must(r.client.Database("admin").RunCommand(t.Context(), rename).Err())
	r.insert("c")
	want := "insert a, drop, invalidate, insert b, rename, invalidate, insert c"
	r.wants(want)
	if rename := string(r.events()[4].Payload); !strings.Contains(rename, `"to":{"db":"`+db.Name()+`","coll":"was"}`) {
		t.Errorf("rename %s", rename)
	}
	r.stop(f)
	r.must(r.coll.Drop(t.Context()))
	f = r.start(o) // behind the drop, and then behind the invalidate event
	r.wants(want + ", drop, invalidate")
	r.stop(f)
	r.insert("d")
	o.OnInvalidate = changefeed.Fail
	f = r.start(o)
	r.must(r.coll.Drop(t.Context()))
	r.wants(want + ", drop, invalidate, insert d, drop, invalidate")
	r.ended(f, changefeed.ErrInvalidated)
}

// The change stream ends with an invalidate event, whatever Pipeline selects.
func TestA7Row14DropThatPipelineHides(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.Pipeline = []bson.D{{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}}}
	f := r.start(o)
	r.insert("a")
	r.must(r.coll.Drop(t.Context()))
	r.insert("b")
	r.wants("insert a, invalidate, insert b")
	r.stop(f)
	o.OnInvalidate = changefeed.Fail
	f = r.start(o)
	r.must(r.coll.Drop(t.Context()))
	r.ended(f, changefeed.ErrInvalidated)
}

func TestA7Row14DropDatabase(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.Collection = ""
	r.start(o)
	db := r.client.Database(r.server.Database())
	r.insert("a")
	_, err := db.Collection("others").InsertOne(t.Context(), bson.M{"_id": "a"})
	r.must(err)
	r.wants("insert things/a, insert others/a")
	r.must(db.Drop(t.Context()))
	r.insert("b")
	r.until("it goes on", func() bool { return strings.HasSuffix(r.ops(), "dropDatabase, invalidate, insert things/b") })
}

func TestA7Row15RecreatedCollection(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.Expanded = true
	o.Pipeline = []bson.D{{{Key: "$match", Value: bson.D{{Key: "operationType", Value: bson.D{{Key: "$in", Value: bson.A{"insert", "drop", "invalidate"}}}}}}}}
	r.start(o)
	r.insert("a")
	r.must(r.coll.Drop(t.Context()))
	r.insert("a")
	r.wants("insert a, drop, invalidate, insert a")
	events := r.events()
	first, second := events[0].Headers[changefeed.HeaderCollectionUUID], events[3].Headers[changefeed.HeaderCollectionUUID]
	if first == "" || first == second || events[0].ID == events[3].ID {
		t.Errorf("collections %q and %q, events %s and %s", first, second, events[0].ID, events[3].ID)
	}
}

func TestA7Row16DocumentIsGone(t *testing.T) {
	r := newRig(t)
	o := r.options()
	f := r.start(o)
	r.insert("a")
	r.wants("insert a")
	r.stop(f)
	r.update("a", 1)
	r.remove("a")
	f = r.start(o)
	r.wants("insert a, update a, delete a")
	if e := r.events()[1]; e.Headers[changefeed.HeaderOmitted] != "missing" || string(e.Payload) != `{"_id":"a"}` {
		t.Errorf("update %s %v", e.Payload, e.Headers)
	}
	r.stop(f)
	r.insert("b")
	r.update("b", 1)
	r.remove("b")
	o.OnMissing = changefeed.Skip
	r.start(o)
	r.wants("insert a, update a, delete a, insert b, delete b")
}

// images makes MongoDB keep the documents before and after each change.
func (r *rig) images() {
	r.Helper()
	create := bson.D{{Key: "create", Value: r.coll.Name()}, {Key: "changeStreamPreAndPostImages", Value: bson.M{"enabled": true}}}
	r.must(r.client.Database(r.server.Database()).RunCommand(r.Context(), create).Err())
}

// A change event of more than 16 MB comes in fragments.
func TestA7Row17SplitEvent(t *testing.T) {
	r := newRig(t)
	r.images()
	o := r.options()
	o.FullDocument, o.Before = changefeed.WhenAvailable, changefeed.BeforeWhenAvailable
	var before, after int
	o.Map = func(c *changefeed.Change, e *jetbus.Event) error {
		before, after = len(c.Before), len(c.FullDocument)
		e.Payload = []byte("{}")
		return nil
	}
	f := r.start(o)
	const size = 9 << 20
	_, err := r.coll.InsertOne(t.Context(), bson.M{"_id": "a", "text": strings.Repeat("x", size)})
	r.must(err)
	r.update("a", 1)
	r.wants("insert a, update a")
	if before < size || after < size {
		t.Errorf("before %d bytes, after %d", before, after)
	}
	r.stop(f)
	r.start(o)
	r.remove("a")
	r.wants("insert a, update a, delete a")
}

func TestA7Row18LargerThanTheBrokerTakes(t *testing.T) {
	for policy, want := range map[changefeed.Policy]string{
		changefeed.Fail:       "insert a",
		changefeed.Skip:       "insert a, insert c",
		changefeed.DeadLetter: "insert a, insert c",
		changefeed.KeyOnly:    "insert a, insert b, insert c",
	} {
		t.Run(string(policy), func(t *testing.T) {
			r := newRig(t)
			o := r.options()
			o.OnOversize = policy
			f := r.start(o)
			r.insert("a")
			r.wants("insert a")
			_, err := r.coll.InsertOne(t.Context(), bson.M{"_id": "b", "text": strings.Repeat("x", 5<<18)})
			r.must(err)
			if policy == changefeed.Fail {
				r.ended(f, changefeed.ErrOversize)
				r.wants(want)
				return
			}
			r.insert("c")
			r.wants(want)
			r.until("it is counted", func() bool { return f.Stats().Oversize == 1 })
			if policy == changefeed.KeyOnly && (string(r.events()[1].Payload) != `{"_id":"b"}` || r.events()[1].Headers[changefeed.HeaderOmitted] != "oversize") {
				t.Errorf("event %s %v", r.events()[1].Payload, r.events()[1].Headers)
			}
			r.dead(map[bool]int{true: 1, false: 0}[policy == changefeed.DeadLetter])
		})
	}
}

// dead checks how many dead letters the topic has, and returns them.
func (r *rig) dead(n int) (out []jetbus.Event) {
	r.Helper()
	for e, err := range r.bus.Scan(r.Context(), jetbus.DeadLetterTopic(r.topic), jetbus.ScanQuery{}) {
		if errors.Is(err, jetbus.ErrNoTopic) {
			break
		}
		r.must(err)
		out = append(out, e)
	}
	if len(out) != n {
		r.Errorf("%d dead letters, want %d", len(out), n)
	}
	return out
}

func TestA7Row19PoisonChanges(t *testing.T) {
	refuse := func(c *changefeed.Change, e *jetbus.Event) error {
		switch c.Key {
		case "b":
			return errRefused
		case "c":
			panic("no such thing")
		case "d":
			e.Key = "\x00"
		}
		return nil
	}
	for policy, want := range map[changefeed.Policy]string{
		changefeed.Fail:       "insert a",
		changefeed.Skip:       "insert a, insert e",
		changefeed.DeadLetter: "insert a, insert e",
	} {
		t.Run(string(policy), func(t *testing.T) {
			r := newRig(t)
			o := r.options()
			o.OnPoison, o.Map = policy, refuse
			f := r.start(o)
			r.insert("a")
			r.wants("insert a")
			r.insert("b")
			if policy == changefeed.Fail {
				r.ended(f, changefeed.ErrPoison)
				r.ended(f, errRefused)
				return
			}
			r.insert("c", "d", "e")
			r.wants(want)
			if f.Stats().Poisoned != 3 {
				t.Errorf("stats %+v", f.Stats())
			}
			if policy == changefeed.DeadLetter {
				dead := r.dead(3)
				if string(dead[0].Payload) != `{"_id":"b","n":0}` || dead[0].Headers[changefeed.HeaderOp] != "insert" {
					t.Errorf("dead letter %s %v", dead[0].Payload, dead[0].Headers)
				}
				for i, want := range []string{"", "changefeed_test.TestA7Row19PoisonChanges", ""} {
					if stack := dead[i].Headers["x-dlq-stack"]; (stack == "") != (want == "") || !strings.HasPrefix(stack, "github.com/seed-63e9a637/jetbus/"+want) && want != "" {
						t.Errorf("dead letter %d has the stack %q", i, stack)
					}
				}
			}
		})
	}
}

// A change that is refused again after a crash is one dead letter.
// A panic of Filter ends the feed, and leaves nothing behind.
func TestFilterPanics(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.Filter = func(c *changefeed.Change) bool {
		if c.Key == "b" {
			panic("no such thing")
		}
		return true
	}
	f := r.start(o)
	r.insert("a", "b")
	r.wants("insert a")
	select {
	case <-f.Done():
	case <-time.After(patience):
		t.Fatalf("the feed has not ended: %+v", f.Status())
	}
	if _, ok := errors.AsType[*jetbus.PanicError](f.Err()); !ok {
		t.Error(f.Err())
	}
}

func TestA7Row19PoisonAfterCrash(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.TokenStore = forgetful{}
	o.Map = func(c *changefeed.Change, _ *jetbus.Event) error {
		if c.Key == "b" {
			return errRefused
		}
		return nil
	}
	f := r.start(o)
	r.insert("a")
	r.wants("insert a")
	r.insert("b")
	r.until("it is dead", func() bool { return f.Stats().Poisoned == 1 && f.Stats().InFlight == 0 })
	r.stop(f)
	f = r.start(o)
	r.insert("c")
	r.wants("insert a, insert c")
	r.dead(1)
	if f.Stats().Poisoned != 1 {
		t.Errorf("stats %+v", f.Stats())
	}
}

func TestA7Row20FilteredChangesMoveThePosition(t *testing.T) {
	r := newStandInRig(t)
	o := r.options()
	o.Filter = func(c *changefeed.Change) bool { return !strings.HasPrefix(c.Key, "x") }
	f := r.start(o)
	r.insert("a")
	r.wants("insert a")
	r.published(f)
	was := f.Status().Token
	r.standIn().TruncateOplog() // the change of "a" is gone; what the store will say is not
	r.insert(ids("x", 10)...)
	r.until("the position moves", func() bool {
		p, err := changefeed.StoreInKeys(r.bus).Load(t.Context(), "f")
		r.must(err)
		return p.Token.Compare(was) > 0 && f.Stats().Filtered == 10
	})
	r.stop(f)
	r.start(o)
	r.insert("b")
	r.wants("insert a, insert b")
}

func TestA7Row21Transactions(t *testing.T) {
	r := newRig(t)
	r.start(r.options())
	r.insert("a")
	session, err := r.coll.Database().Client().StartSession()
	r.must(err)
	defer session.EndSession(t.Context())
	r.must(session.StartTransaction())
	ctx := newSessionContext(t.Context(), session)
	for _, n := range []int{1, 2, 3} {
		_, err := r.coll.UpdateByID(ctx, "a", bson.M{"$set": bson.M{"n": n}})
		r.must(err)
	}
	_, err = r.coll.InsertOne(ctx, bson.M{"_id": "b"})
	r.must(err)
	r.must(session.CommitTransaction(t.Context()))
	r.insert("c")
	r.wants("insert a, update a, update a, update a, insert b, insert c")
	r.inOrder()
	events := r.events()
	txn := events[1].Headers[changefeed.HeaderTransaction]
	for i, e := range events {
		if in := i >= 1 && i <= 4; (e.Headers[changefeed.HeaderTransaction] == txn && txn != "") != in || in && e.Headers[changefeed.HeaderClusterTime] != events[1].Headers[changefeed.HeaderClusterTime] {
			t.Errorf("event %d: %v", i, e.Headers)
		}
	}
}

func TestA7Row22NoImage(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.Before = changefeed.BeforeRequired
	f := r.start(o)
	r.insert("a")
	r.update("a", 1)
	r.ended(f, changefeed.ErrNoImage)
	r.wants("insert a")
}

func TestA7Row22Images(t *testing.T) {
	r := newRig(t)
	r.images()
	o := r.options()
	o.FullDocument, o.Before = changefeed.Required, changefeed.BeforeRequired
	o.Map = func(c *changefeed.Change, e *jetbus.Event) error {
		if c.Op == "delete" {
			e.Payload = []byte(c.Before.String())
		}
		return nil
	}
	f := r.start(o)
	r.insert("a")
	r.wants("insert a")
	r.stop(f)
	r.update("a", 1)
	r.remove("a")
	r.start(o)
	r.wants("insert a, update a, delete a")
	if p := string(r.events()[1].Payload); p != `{"_id":"a","n":1}` {
		t.Errorf("the update carries %s", p)
	}
	if p := string(r.events()[2].Payload); !strings.Contains(p, `"_id": "a"`) && !strings.Contains(p, `"_id":"a"`) {
		t.Errorf("the delete carries %s", p)
	}
}

func TestA7Row23RefusedAtStart(t *testing.T) {
	for code, want := range map[int32]error{
		40573: changefeed.ErrNotReplicaSet, 13: changefeed.ErrPrivilege, 40324: changefeed.ErrStream, 20: changefeed.ErrStream, 40415: changefeed.ErrStream,
		59: changefeed.ErrStream, 115: changefeed.ErrStream, 238: changefeed.ErrStream, // of servers that are not MongoDB, as FerretDB
	} {
		r := newRig(t)
		r.client = r.connect(patience)
		r.failCommand(1, bson.D{{Key: "failCommands", Value: bson.A{"aggregate"}}, {Key: "errorCode", Value: code}})
		_, err := changefeed.Start(t.Context(), r.bus, r.client, r.options())
		wantErr(t, err, want)
	}
}

// MongoDB shows nothing as long as it has no majority, and says nothing either.
func TestA7Row24MajorityLost(t *testing.T) {
	r := newStandInRig(t)
	f := r.start(r.options())
	r.insert("a")
	r.wants("insert a")
	r.standIn().LoseMajority()
	r.until("it lags", func() bool {
		_, err := r.coll.UpdateByID(t.Context(), "a", bson.M{"$inc": bson.M{"n": 1}})
		r.must(err)
		return f.Status().Lag >= time.Second
	})
	r.wants("insert a")
	r.standIn().RegainMajority()
	r.until("it has caught up", func() bool { return f.Status().Lag == 0 && len(r.events()) > 1 })
}
