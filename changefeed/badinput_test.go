package changefeed_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// What a user may get wrong: each ends in a clear error or in what the options say,
// and never in a feed that stands still without a word. Documents that Map refuses are
// row 19, those that are too large for the broker row 18, other pipelines row 12.

// A collection that is not there, and a database that is not there, are legal.
func TestCollectionAbsent(t *testing.T) {
	for _, collection := range []string{"things", ""} {
		r := newRig(t)
		o := r.options()
		o.Collection, o.Start = collection, changefeed.FromCopy()
		f := r.start(o)
		r.wants("copied")
		r.insert("a")
		r.until("it is there", func() bool {
			return strings.HasSuffix(r.ops(), "copied, insert a") || strings.HasSuffix(r.ops(), "insert things/a")
		})
		if f.Err() != nil {
			t.Error(f.Err())
		}
	}
}

func TestStandalone(t *testing.T) {
	r := newRigOn(t, startStandIn(t, mongod.Config{Standalone: true}))
	r.client = r.connect(patience)
	_, err := changefeed.Start(t.Context(), r.bus, r.client, r.options())
	wantErr(t, err, changefeed.ErrNotReplicaSet)
	if err == nil || !strings.Contains(err.Error(), "initiate") {
		t.Errorf("no remedy in: %v", err)
	}
}

// Credentials that are none, or wrong.
func TestCredentials(t *testing.T) {
	server := startStandIn(t, mongod.Config{Username: "reader", Password: "right"})
	for name, user := range map[string]*url.Userinfo{"wrong": url.UserPassword("reader", "wrong"), "none": nil} {
		t.Run(name, func(t *testing.T) {
			uri, err := url.Parse(server.URI())
			if err != nil {
				t.Fatal(err)
			}
			uri.User = user
			r := newRigOn(t, elsewhere{server, uri.String()})
			r.client = r.connect(patience)
			_, err = changefeed.Start(t.Context(), r.bus, r.client, r.options())
			wantErr(t, err, changefeed.ErrPrivilege)
		})
	}
}

// A connection that is cut while it says who it is was not refused.
func TestConnectionCutInAuthentication(t *testing.T) {
	server := startStandIn(t, mongod.Config{Username: "reader", Password: "right"})
	r := newRigOn(t, server)
	f := r.start(r.options())
	r.insert("a")
	r.wants("insert a")
	remove := server.OnCommand(func(c mongod.Command) error {
		if c.Name == "saslStart" || c.Name == "saslContinue" {
			return mongod.ErrCut
		}
		return nil
	})
	server.CutConnections()
	r.until("it has tried again", func() bool { return f.Err() != nil || f.Stats().Reopened > 1 })
	remove()
	r.must(f.Err())
	r.until("it can write again", func() bool {
		_, err := r.coll.InsertOne(t.Context(), bson.M{"_id": "b"})
		return err == nil || mongo.IsDuplicateKeyError(err)
	})
	r.wants("insert a, insert b")
}

// elsewhere is a server that is reached by another URI.
type elsewhere struct {
	standIn
	uri string
}

func (e elsewhere) URI() string { return e.uri }

// A privilege that is taken away ends a feed that runs.
func TestPrivilegeRevoked(t *testing.T) {
	r := newRig(t)
	f := r.start(r.options())
	r.failCommand(100, bson.D{{Key: "failCommands", Value: bson.A{"getMore", "aggregate"}}, {Key: "errorCode", Value: 13}})
	r.ended(f, changefeed.ErrPrivilege)
}

// A token of another collection stands for its time.
func TestTokenOfAnotherFeed(t *testing.T) {
	r := newRig(t)
	r.start(r.options())
	r.insert("a", "b", "c")
	r.wants("insert a, insert b, insert c")
	token := changefeed.Token(r.events()[1].Headers[changefeed.HeaderToken])
	others := r.client.Database(r.server.Database()).Collection("others")
	for _, id := range []string{"x", "y"} {
		_, err := others.InsertOne(t.Context(), bson.M{"_id": id, "n": 0})
		r.must(err)
	}
	o := r.options()
	o.Name, o.Collection, o.Topic, o.Start = "g", "others", "others.changed", changefeed.FromToken(token)
	r.topic = o.Topic
	f := r.start(o)
	r.wants("insert x, insert y")
	if f.Err() != nil || f.Stats().Gaps > 0 {
		t.Errorf("%v, %+v", f.Err(), f.Stats())
	}
}

// A token of a deployment that is ahead of this one: MongoDB would say nothing until
// it has come that far. Of an event, and of a moment without one.
func TestTokenOfTheFuture(t *testing.T) {
	for _, c := range []struct {
		policy changefeed.Policy
		event  bool
		want   string
	}{
		{changefeed.Fail, true, ""},
		{changefeed.Fail, false, ""},
		{changefeed.Latest, true, "gap, insert b"},
		{changefeed.Resync, false, "gap, copy a, copied, insert b"},
	} {
		t.Run(fmt.Sprint(c.policy, c.event), func(t *testing.T) {
			r := newRig(t)
			o := r.options()
			o.Start, o.OnHistoryLost = changefeed.FromToken(r.future(c.event)), c.policy
			f := r.startOn(r.bus, o)
			if c.policy == changefeed.Fail {
				r.ended(f, changefeed.ErrHistoryLost)
				return
			}
			r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming || f.Err() != nil })
			r.insert("b")
			r.wants(c.want)
			r.stop(f)
			f = r.start(o) // the saved position is not the one of the future any more
			r.insert("c")
			r.wants(c.want + ", insert c")
			if f.Stats().Gaps > 0 {
				t.Errorf("%+v", f.Stats())
			}
		})
	}
}

// future is a token of the server whose time is to come; a document "a" is there then.
func (r *rig) future(event bool) changefeed.Token {
	r.Helper()
	stream, err := r.coll.Watch(r.Context(), bson.A{})
	r.must(err)
	defer func() { r.must(stream.Close(context.Background())) }()
	r.insert("a")
	token := stream.ResumeToken()
	if event {
		if !stream.Next(r.Context()) {
			r.Fatal(stream.Err())
		}
		token = stream.ResumeToken()
	}
	text, ok := token.Lookup("_data").StringValueOK()
	if !ok {
		r.Fatalf("token %s", token)
	}
	return changefeed.Token("82FFFFFFF0" + text[10:])
}

// Options that change what a change event carries, under a token that was stored
// with others.
func TestOptionsChangedUnderAToken(t *testing.T) {
	r := newRig(t)
	r.images()
	o := r.options()
	o.TokenStore = forgetful{}
	want := ""
	for i, change := range []func(){
		func() {},
		func() { o.FullDocument = changefeed.Required },
		func() { o.Before = changefeed.BeforeWhenAvailable },
		func() { o.Expanded = true },
		func() { o.FullDocument, o.Before = changefeed.NoDocument, changefeed.BeforeOff },
		func() { o.Filter = func(*changefeed.Change) bool { return true } },
	} {
		change()
		f := r.start(o)
		id := string(rune('a' + i))
		r.insert(id)
		want = strings.TrimPrefix(want+", insert "+id, ", ")
		r.wants(want)
		if f.Err() != nil || f.Stats().Duplicates > 0 || f.Stats().Gaps > 0 {
			t.Errorf("%d: %v, %+v", i, f.Err(), f.Stats())
		}
		r.stop(f)
	}
}

// Two feeds go by one name, and have different collections or topics: the second one
// would stand by for ever.
func TestTwoFeedsWithOneName(t *testing.T) {
	r := newRig(t)
	r.start(r.options())
	for name, set := range map[string]func(*changefeed.Options){
		"another collection": func(o *changefeed.Options) { o.Collection = "others" },
		"the database":       func(o *changefeed.Options) { o.Collection = "" },
		"another topic":      func(o *changefeed.Options) { o.Topic = "others.changed" },
		"both, and another store": func(o *changefeed.Options) {
			o.Collection, o.Topic, o.TokenStore = "others", "others.changed", forgetful{}
		},
	} {
		o := r.options()
		set(&o)
		_, err := changefeed.Start(t.Context(), r.bus, r.client, o)
		wantErr(t, err, changefeed.ErrOtherSource)
		if err == nil || !strings.Contains(err.Error(), "things") {
			t.Errorf("%s: the error does not say who: %v", name, err)
		}
	}
	r.insert("a")
	r.wants("insert a")
}

// Both are started before either leads.
func TestTwoFeedsWithOneNameAtOnce(t *testing.T) {
	r := newRig(t)
	o, other := r.options(), r.options()
	o.TokenStore, other.TokenStore = forgetful{}, forgetful{}
	other.Topic = "others.changed"
	hold := make(chan struct{})
	let := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		lock := jetbus.Lock{Key: "changefeed/f", Owner: "an operator", TTL: 30 * time.Second}
		done <- lock.Hold(r.Context(), r.bus, func(context.Context, jetbus.Held) (bool, error) { close(hold); <-let; return true, nil })
	}()
	<-hold
	a, b := r.startOn(r.bus, o), r.startOn(r.bus, other)
	close(let)
	r.must(<-done)
	r.until("one of them has ended", func() bool { return a.Err() != nil || b.Err() != nil })
	if a.Err() != nil {
		a, b = b, a
	}
	r.ended(b, changefeed.ErrOtherSource)
	r.until("the other one streams", func() bool { return a.Status().State == changefeed.Streaming })
}

// A feed is given another topic: the position says in which one the changes up to it
// are.
func TestAnotherTopicUnderAPosition(t *testing.T) {
	r := newRig(t)
	o := r.options()
	r.stop(r.start(o))
	o.Topic = "others.changed"
	_, err := changefeed.Start(t.Context(), r.bus, r.client, o)
	wantErr(t, err, changefeed.ErrOtherSource)
	r.must(changefeed.StoreInKeys(r.bus).Delete(t.Context(), o.Name))
	r.start(o)
}

// A topic to which nobody can publish is refused at the start.
func TestTopicsThatAreNoPlace(t *testing.T) {
	r := newRig(t)
	for _, c := range []jetbus.TopicConfig{{Name: "log", KeyInSubject: true}, {Name: "snap", SnapshotOf: "log"}, {Name: "all", Stream: "EV_LOG", Subject: "ev.log.>"}} {
		_, err := r.bus.EnsureTopic(t.Context(), c)
		r.must(err)
	}
	for _, topic := range []string{"snap", "all"} {
		for _, mode := range []changefeed.Mode{changefeed.Auto, changefeed.Atomic, changefeed.Serial} {
			o := r.options()
			o.Topic, o.Mode = topic, mode
			_, err := changefeed.Start(t.Context(), r.bus, r.client, o)
			wantErr(t, err, jetbus.ErrUnsupported)
		}
	}
}
