package changefeed_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

func valid() changefeed.Options {
	return changefeed.Options{Name: "f", Database: "d", Collection: "c", Topic: "t"}
}

func match(d ...bson.E) []bson.D { return []bson.D{{{Key: "$match", Value: bson.D(d)}}} }

func TestOptionsDefaults(t *testing.T) {
	o, err := valid().Normalize()
	if err != nil {
		t.Fatal(err)
	}
	if o.FullDocument != changefeed.UpdateLookup || o.OnHistoryLost != changefeed.Fail || o.OnInvalidate != changefeed.Continue ||
		o.OnPoison != changefeed.DeadLetter || o.ProgressInterval != 10*time.Second || o.MaxAwaitTime != time.Second || o.Log == nil {
		t.Errorf("%+v", o)
	}
	o = valid()
	o.Pipeline = match(bson.E{Key: "$or", Value: bson.A{bson.D{{Key: "ns.coll", Value: "c"}}, bson.D{{Key: "operationType", Value: "delete"}}}})
	if _, err := o.Normalize(); err != nil {
		t.Error(err)
	}
}

func TestOptionsRefused(t *testing.T) {
	for field, set := range map[string]func(*changefeed.Options){
		"Name":           func(o *changefeed.Options) { o.Name = "a.b" },
		"Database":       func(o *changefeed.Options) { o.Database = "" },
		"no change":      func(o *changefeed.Options) { o.Database = "local" },
		"Collection":     func(o *changefeed.Options) { o.Collection = "system.users" },
		"dead letters":   func(o *changefeed.Options) { o.Topic = "dlq.t" },
		"topic":          func(o *changefeed.Options) { o.Topic = "A" },
		"Mode":           func(o *changefeed.Options) { o.Mode = "parallel" },
		"FullDocument":   func(o *changefeed.Options) { o.FullDocument = "all" },
		"Before":         func(o *changefeed.Options) { o.Before = "updateLookup" },
		"Format":         func(o *changefeed.Options) { o.Format = "xml" },
		"OnHistoryLost":  func(o *changefeed.Options) { o.OnHistoryLost = changefeed.Skip },
		"OnInvalidate":   func(o *changefeed.Options) { o.OnInvalidate = changefeed.DeadLetter },
		"OnOversize":     func(o *changefeed.Options) { o.OnOversize = changefeed.Continue },
		"OnPoison":       func(o *changefeed.Options) { o.OnPoison = changefeed.KeyOnly },
		"OnMissing":      func(o *changefeed.Options) { o.OnMissing = changefeed.Fail },
		"Start":          func(o *changefeed.Options) { o.Start = changefeed.FromTimestamp(time.Time{}) },
		"token":          func(o *changefeed.Options) { o.Start = changefeed.FromToken("x") },
		"no $match":      func(o *changefeed.Options) { o.Pipeline = []bson.D{{{Key: "$project", Value: bson.D{}}}} },
		"fullDocument.n": func(o *changefeed.Options) { o.Pipeline = match(bson.E{Key: "fullDocument.n", Value: 1}) },
		"$expr": func(o *changefeed.Options) {
			o.Pipeline = match(bson.E{Key: "$nor", Value: bson.A{bson.D{{Key: "$expr", Value: 1}}}})
		},
		"LeaseTTL":         func(o *changefeed.Options) { o.LeaseTTL = 3500 * time.Millisecond },
		"ProgressInterval": func(o *changefeed.Options) { o.ProgressInterval = -1 },
		"MaxAwaitTime":     func(o *changefeed.Options) { o.MaxAwaitTime = -1 },
		"MaxInFlight":      func(o *changefeed.Options) { o.MaxInFlight = 2 },
		"MaxInFlightBytes": func(o *changefeed.Options) { o.MaxInFlightBytes = 1 },
		"CopyBatch":        func(o *changefeed.Options) { o.CopyBatch = -1 },
		"Backoff":          func(o *changefeed.Options) { o.Backoff = jetbus.Backoff{Min: -1} },
	} {
		o := valid()
		set(&o)
		if _, err := o.Normalize(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A stored position is of one collection, and a topic of one feed.
func TestPositionOfAnother(t *testing.T) {
	for name, store := range map[string]func(r *rig) changefeed.TokenStore{
		"keys": func(r *rig) changefeed.TokenStore { return changefeed.StoreInKeys(r.bus) },
		"mongo": func(r *rig) changefeed.TokenStore {
			return changefeed.StoreInMongo(r.client.Database(r.server.Database()).Collection(changefeed.DefaultTokens))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			o := r.options()
			o.TokenStore = store(r)
			f := r.start(o)
			r.insert("a")
			r.wants("insert a")
			r.until("the position is saved", func() bool {
				p, err := o.TokenStore.Load(t.Context(), "f")
				r.must(err)
				return p.Token == f.Status().Token
			})
			r.stop(f)
			other := o
			other.Collection = "others"
			_, err := changefeed.Start(t.Context(), r.bus, r.client, other)
			wantErr(t, err, changefeed.ErrOtherSource)
			other = o
			other.Name = "g"
			f = r.startOn(r.bus, other)
			r.ended(f, changefeed.ErrForeign)
			r.start(o)
			r.insert("b")
			r.wants("insert a, insert b")
			r.must(o.TokenStore.Delete(t.Context(), "f"))
		})
	}
}

// Of two who go by the same revision, one is fenced.
func TestTokenStores(t *testing.T) {
	r := newRig(t)
	for _, s := range []changefeed.TokenStore{
		changefeed.StoreInKeys(r.bus), changefeed.StoreInMongo(r.client.Database(r.server.Database()).Collection(changefeed.DefaultTokens)),
	} {
		none, err := s.Load(t.Context(), "f")
		if err != nil || none != (changefeed.Progress{}) {
			t.Errorf("%+v, %v", none, err)
		}
		p := changefeed.Progress{Token: realToken, Source: "d.c", Saved: time.UnixMilli(1000).UTC(), Created: time.UnixMilli(1).UTC(), Copy: &changefeed.CopyProgress{Start: highToken, After: "1"}}
		_, err = s.Save(t.Context(), "f", p)
		r.must(err)
		_, err = s.Save(t.Context(), "f", changefeed.Progress{Token: highToken})
		wantErr(t, err, changefeed.ErrFenced)
		got, err := s.Load(t.Context(), "f")
		r.must(err)
		if got.Token != p.Token || got.Copy == nil || *got.Copy != *p.Copy || got.Revision == 0 || !got.Saved.Equal(p.Saved) || !got.Created.Equal(p.Created) {
			t.Errorf("loaded %+v", got)
		}
		_, err = s.Save(t.Context(), "f", got)
		r.must(err)
		got.Token = highToken
		_, err = s.Save(t.Context(), "f", got)
		wantErr(t, err, changefeed.ErrFenced)
		r.must(s.Delete(t.Context(), "f"))
		r.must(s.Delete(t.Context(), "f"))
	}
}

func TestStartPoints(t *testing.T) {
	r := newRig(t)
	o := r.options()
	first := r.now()
	r.insert("before")
	began, n := first, 0
	r.until("a second has passed", func() bool { // the server's history begins in the first one
		n++
		r.update("before", n)
		began = r.now()
		return began.After(first)
	})
	r.insert("a", "b")
	o.Start = changefeed.FromTimestamp(began)
	f := r.start(o)
	r.until("it has begun", func() bool { return strings.Contains(r.ops(), "insert a, insert b") })
	token := changefeed.Token(r.events()[len(r.events())-2].Headers[changefeed.HeaderToken]) // of a
	r.stop(f)
	o.Name, o.Topic, o.Start = "g", "other.topic", changefeed.FromToken(token)
	r.topic = o.Topic
	r.start(o)
	r.wants("insert b")
}

// A time to come is waited for, across restarts too.
func TestStartInTheFuture(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.Start = changefeed.FromTimestamp(r.now().Add(time.Hour))
	var asked atomic.Int32
	client, err := mongo.Connect(options.Client().ApplyURI(r.server.URI()).SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if e.CommandName == "getMore" {
				asked.Add(1)
			}
		},
	}))
	r.must(err)
	r.Cleanup(func() { r.must(client.Disconnect(context.Background())) })
	r.client = client
	f := r.start(o)
	r.until("it has been told that there is nothing", func() bool { return asked.Load() > 3 })
	r.stop(f)
	f = r.start(o)
	r.until("it is ready", func() bool {
		return f.Status().State == changefeed.Streaming && f.Ready() == nil || f.Err() != nil
	})
	if f.Err() != nil || len(r.events()) > 0 {
		t.Errorf("%+v, %v, topic: %s", f.Status(), f.Err(), r.ops())
	}
}

// Who cancels a start is told nothing of a MongoDB or a store that did not answer for it.
func TestStartCanceled(t *testing.T) {
	for _, at := range []string{"aggregate", "find"} { // a change stream, and the position
		t.Run(at, func(t *testing.T) {
			r := newRig(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			client, err := mongo.Connect(options.Client().ApplyURI(r.server.URI()).SetMonitor(&event.CommandMonitor{
				Started: func(_ context.Context, e *event.CommandStartedEvent) {
					if e.CommandName == at {
						cancel()
					}
				},
			}))
			r.must(err)
			r.Cleanup(func() { r.must(client.Disconnect(context.Background())) })
			o := r.options()
			if at == "find" {
				o.TokenStore = changefeed.StoreInMongo(client.Database(r.server.Database()).Collection("tokens"))
			}
			var log bytes.Buffer // read when the feed has ended
			o.Log = slog.New(slog.NewTextHandler(&log, nil))
			f, err := changefeed.Start(ctx, r.bus, client, o)
			r.must(err)
			select {
			case <-f.Done():
			case <-time.After(patience):
				t.Fatalf("the feed has not ended: %+v", f.Status())
			}
			if f.Err() != nil || log.Len() > 0 {
				t.Errorf("ended with %v, says %s", f.Err(), &log)
			}
		})
	}
}

// What happens before the time is not published.
func TestStartInAMoment(t *testing.T) {
	r := newRig(t)
	o := r.options()
	begin := r.now().Add(4 * time.Second)
	o.Start = changefeed.FromTimestamp(begin)
	f := r.start(o)
	n := 0
	r.insert("early")
	r.until("it is time", func() bool {
		r.update("early", n)
		if n == 3 {
			r.must(r.coll.Drop(t.Context()))
			r.insert("early")
		}
		n++
		return !r.now().Before(begin)
	})
	r.insert("a", "b")
	r.until("it has begun", func() bool { return strings.HasSuffix(r.ops(), "insert a, insert b") })
	for _, e := range r.events() {
		if at := changefeed.Token(e.Headers[changefeed.HeaderToken]).Time(); at.Before(begin) {
			t.Errorf("%s of %s is of %v, before %v", e.Headers[changefeed.HeaderOp], e.Key, at, begin)
		}
	}
	if f.Err() != nil {
		t.Error(f.Err())
	}
}

// now is the server's time, in the second after which nothing has happened yet.
func (r *rig) now() time.Time {
	r.Helper()
	var reply struct {
		Time struct{ ClusterTime bson.Timestamp } `bson:"$clusterTime"`
	}
	r.must(r.client.Database("admin").RunCommand(r.Context(), bson.D{{Key: "ping", Value: 1}}).Decode(&reply))
	return time.Unix(int64(max(reply.Time.ClusterTime.T, 1)), 0)
}

func TestFormats(t *testing.T) {
	for format, want := range map[changefeed.Format]string{
		changefeed.Relaxed:   `{"_id":"a","n":{"$date":"1970-01-01T00:00:01Z"}}`,
		changefeed.Canonical: `{"_id":"a","n":{"$date":{"$numberLong":"1000"}}}`,
	} {
		r := newRig(t)
		o := r.options()
		o.Format = format
		r.start(o)
		_, err := r.coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}, {Key: "n", Value: time.Unix(1, 0)}})
		r.must(err)
		r.wants("insert a")
		if got := string(r.events()[0].Payload); got != want {
			t.Errorf("%s: %s", format, got)
		}
	}
	r := newRig(t)
	o := r.options()
	o.Format = changefeed.BSON
	r.start(o)
	r.insert("a")
	r.wants("insert a")
	e := r.events()[0]
	if e.ContentType() != "application/bson" || bson.Raw(e.Payload).Lookup("_id").StringValue() != "a" {
		t.Errorf("event %+v", e)
	}
}

// The broker writes into a compacted topic itself, when events end.
func TestMarkersOfTheBroker(t *testing.T) {
	r := newRig(t)
	_, err := r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{
		Name: r.topic, Compact: true, Storage: jetbus.MemoryStorage, Retention: time.Second, TombstoneTTL: time.Second, DuplicateWindow: 100 * time.Millisecond,
	})
	r.must(err)
	o := r.options()
	f := r.start(o)
	r.insert("a", "b")
	r.until("a and b are published", func() bool { return f.Stats().Published == 2 }) // they end in a second
	last := func() uint64 {
		info, err := r.bus.TopicInfo(t.Context(), r.topic)
		r.must(err)
		return info.LastSeq
	}
	r.until("there are markers", func() bool { return last() >= 4 })
	r.insert("c")
	r.until("c is published", func() bool { return f.Stats().Published == 3 })
	r.until("there is one more", func() bool { return last() >= 6 })
	r.stop(f)
	f = r.start(o)
	r.insert("d")
	r.until("d is published", func() bool { return f.Stats().Published == 1 || f.Err() != nil })
	if f.Err() != nil || f.Stats().Fenced > 0 {
		t.Errorf("%v, stats %+v", f.Err(), f.Stats())
	}
}

// A topic into whose stream others write is refused for a chain, at the start.
func TestTopicsOfOthers(t *testing.T) {
	r := newRig(t)
	for _, c := range []jetbus.TopicConfig{
		{Name: "shared", Stream: "S"}, {Name: "late", Delays: true},
	} {
		_, err := r.bus.EnsureTopic(t.Context(), c)
		r.must(err)
		o := r.options()
		o.Topic, o.Mode = c.Name, changefeed.Chain
		_, err = changefeed.Start(t.Context(), r.bus, r.client, o)
		wantErr(t, err, jetbus.ErrUnsupported)
	}
	_, err := r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "own", Compact: true})
	r.must(err)
	o := r.options()
	o.Topic, r.topic = "own", "own"
	r.start(o)
	r.insert("a", "b")
	r.remove("a")
	r.until("it holds the state alone", func() bool {
		got, err := r.bus.LatestByKey(t.Context(), "own", "a", "b")
		r.must(err)
		return len(got) == 1 && got["b"].Key == "b"
	})
}
