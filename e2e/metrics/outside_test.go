package metrics_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/metrics"
	"github.com/seed-63e9a637/jetbus/outbox"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// line is a bus that can fail, and wait, in the middle of a batch.
type line struct {
	jetbus.Backend

	refuse atomic.Pointer[error] // what the next batch fails with
	lose   atomic.Bool           // the answer of the next batch is lost
	gate   atomic.Pointer[chan struct{}]
}

func (l *line) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	if gate := l.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := l.refuse.Swap(nil); err != nil {
		return nil, *err
	}
	receipts, err := l.Backend.PublishBatch(ctx, events, o)
	if err == nil && l.lose.Swap(false) {
		return nil, jetbus.ErrUnavailable
	}
	return receipts, err
}

// fails makes the next batch fail.
func (l *line) fails(err error) { l.refuse.Store(&err) }

// hold makes batches wait until free is called.
func (l *line) hold() (free func()) {
	gate := make(chan struct{})
	l.gate.Store(&gate)
	return func() {
		l.gate.Store(nil)
		close(gate)
	}
}

// box is an outbox that can be away.
type box struct {
	*outbox.Box

	away atomic.Bool
}

func (b *box) Claim(ctx context.Context, o jetbus.ClaimOptions) ([]jetbus.OutboxRow, error) {
	if b.away.Load() {
		return nil, errCase
	}
	return b.Box.Claim(ctx, o)
}

// outbox is a table in SQLite that is drained.
func (s *stage) outbox() {
	ctx := s.Context()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.TempDir(), "db")+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_txlock=immediate")
	s.ok(err)
	defer func() { s.ok(db.Close()) }()
	s.ok(outbox.Create(ctx, db, outbox.SQLite, ""))
	inner, err := outbox.Open(ctx, db, outbox.Options{Dialect: outbox.SQLite})
	s.ok(err)
	from, to := &box{Box: inner}, &line{Backend: s.bus}
	add := func(topic string, ids ...string) {
		for _, id := range ids {
			s.ok(from.Add(ctx, db, jetbus.Event{Topic: topic, ID: id, Payload: []byte("{}")}))
		}
	}
	drainer, err := jetbus.NewDrainer(from, to, jetbus.DrainOptions{
		PollMin: 10 * time.Millisecond, PollMax: 50 * time.Millisecond, StatsEvery: 100 * time.Millisecond,
		Backoff: jetbus.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}, Observer: s.m.Observe,
	})
	s.ok(err)
	s.m.WatchOutbox("orders", drainer)
	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- drainer.Run(running) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, errCase) {
			s.Error(err)
		}
	}()
	s.moves("outbox_running")

	_, err = s.bus.Publish(ctx, jetbus.Event{Topic: "orders", ID: "twice", Payload: []byte("{}")})
	s.ok(err)
	add("orders", "twice", "once")
	s.moves("outbox_published_total", "outbox_window_duration_ms", "outbox_duplicates_total")

	to.fails(errCase)
	add("orders", "again")
	s.moves("outbox_retried_total", "outbox_failed_total")

	add("none", "poison")
	s.moves("outbox_set_aside_total", "outbox_dead")

	s.declare(jetbus.TopicConfig{Name: "full", MaxEvents: 1, Discard: jetbus.DiscardNew})
	s.publish("full", "a")
	add("full", "waits")
	s.moves("outbox_held_topics", "outbox_pending", "outbox_oldest_seconds")

	from.away.Store(true)
	s.moves("outbox_away")
	from.away.Store(false)
	s.m.WatchOutbox("orders", nil)
}

// stand starts a stand-in for MongoDB and a client of it.
func (s *stage) stand() (server *mongod.Server, client *mongo.Client, end func()) {
	s.Helper()
	server, err := mongod.Start(s.Context(), mongod.Config{})
	s.ok(err)
	client, err = mongo.Connect(options.Client().ApplyURI(server.URI()).SetHeartbeatInterval(500 * time.Millisecond))
	s.ok(err)
	return server, client, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), limit)
		defer cancel()
		s.ok(client.Disconnect(ctx))
		server.Stop()
	}
}

// things is the collection of projection and feed.
const things = "things"

// writes calls f before each write to things.
func writes(server *mongod.Server, f func() error) (remove func()) {
	return server.OnCommand(func(c mongod.Command) error {
		if c.Name == "update" && c.Collection == things {
			return f()
		}
		return nil
	})
}

// mapped makes states of payloads, but not of those that say so.
func mapped(e jetbus.Event) (any, error) {
	if bytes.Contains(e.Payload, []byte("bad")) {
		return nil, errCase
	}
	return json.RawMessage(e.Payload), nil
}

// versionOf is the version that a payload states.
func versionOf(e jetbus.Event) (int64, error) {
	var v struct{ V int64 }
	err := json.Unmarshal(e.Payload, &v)
	return v.V, err
}

// projection writes a topic to a collection.
func (s *stage) projection() {
	ctx := s.Context()
	server, client, end := s.stand()
	defer end()
	s.declare(jetbus.TopicConfig{Name: "things"})
	sink, err := mongosink.New(client.Database("e2e"), mongosink.Options{Collection: things})
	s.ok(err)
	p, err := projector.Start(ctx, s.bus, sink, projector.Options{Name: "things", Topic: "things", Linger: -1, Map: mapped, VersionOf: versionOf})
	s.ok(err)
	put := func(key string, version int, more string) {
		payload := []byte(`{"v":` + strconv.Itoa(version) + `,"more":"` + more + `"}`)
		_, err := s.bus.Publish(ctx, jetbus.Event{Topic: "things", Key: key, Payload: payload})
		s.ok(err)
	}
	s.m.WatchProjection("things", p)
	put("a", 2, "")
	s.moves("projector_phase", "projector_events_total", "projector_batches_total", "projector_applied_total")

	put("a", 1, "")
	s.moves("projector_stale_total")

	put("b", 1, "bad")
	s.moves("projector_rejected_total")

	waiting, free := context.WithCancel(ctx)
	defer free()
	remove := writes(server, func() error {
		<-waiting.Done()
		return nil
	})
	put("c", 1, "")
	s.moves("projector_held", "projector_lag_events")
	free()
	remove()

	remove = writes(server, func() error { return &mongod.CommandError{Code: 11601, Message: "the case's"} })
	put("d", 1, "")
	s.moves("projector_failed_total")
	remove()

	info, err := s.bus.TopicInfo(ctx, "things")
	s.ok(err)
	rival, err := mongosink.New(client.Database("e2e"), mongosink.Options{Collection: things})
	s.ok(err)
	_, err = rival.Open(ctx, projector.Source{Projection: "things", Topic: "things", Stream: info.Stream, Created: info.Created, Versioned: true})
	s.ok(err)
	var raced atomic.Bool
	var lost atomic.Pointer[error]
	remove = server.OnUpsert(func(_ string, id any) {
		if id != "e" || raced.Swap(true) {
			return
		}
		change := projector.Change{Key: "e", Doc: json.RawMessage(`{}`), Version: 1, Versioned: true, Event: jetbus.Event{Topic: "things", Key: "e", Seq: 1}}
		if _, err := rival.Write(ctx, projector.Batch{Changes: []projector.Change{change}}); err != nil {
			lost.Store(&err)
		}
	})
	put("e", 2, "")
	s.moves("projector_raced_total")
	remove()
	if err := lost.Load(); err != nil {
		s.Errorf("the rival: %v", *err)
	}
	s.m.WatchProjection("things", nil)
	s.stop(p)
}

// feed publishes what changes in a collection.
func (s *stage) feed() {
	ctx := s.Context()
	server, client, end := s.stand()
	defer end()
	coll := client.Database("e2e").Collection(things)
	insert := func(id, text string) {
		_, err := coll.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "text", Value: text}})
		s.ok(err)
	}
	insert("before", "")
	to := &line{Backend: s.bus}
	f, err := changefeed.Start(ctx, to, client, changefeed.Options{
		Name: "things", Database: "e2e", Collection: things, Topic: "things.changed", Start: changefeed.FromCopy(),
		OnInvalidate: changefeed.Resync, OnOversize: changefeed.KeyOnly,
		MaxAwaitTime: 50 * time.Millisecond, ProgressInterval: 50 * time.Millisecond, LeaseTTL: 30 * time.Second,
		Backoff: jetbus.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		Filter:  func(c *changefeed.Change) bool { return c.FullDocument.Lookup("_id").StringValue() != "filtered" },
		Map: func(c *changefeed.Change, _ *jetbus.Event) error {
			if c.FullDocument.Lookup("_id").StringValue() == "poison" {
				return errCase
			}
			return nil
		},
	})
	s.ok(err)
	s.m.WatchFeed("things", func() metrics.Feed {
		now := f.Status()
		return metrics.Feed{State: string(now.State), Lag: now.Lag, Stats: metrics.FeedStats(f.Stats())}
	})
	s.moves("changefeed_state", "changefeed_copied_total", "changefeed_published_total")

	insert("filtered", "")
	insert("poison", "")
	insert("large", string(bytes.Repeat([]byte("x"), 2<<20)))
	s.moves("changefeed_filtered_total", "changefeed_poisoned_total", "changefeed_oversize_total")

	to.lose.Store(true)
	insert("twice", "")
	s.moves("changefeed_duplicates_total")

	to.fails(jetbus.ErrWrongSequence)
	insert("fenced", "")
	s.moves("changefeed_fenced_total")

	free := to.hold()
	insert("waits", "")
	s.moves("changefeed_inflight")
	free()

	server.LoseMajority() // MongoDB shows no changes
	s.until(func() { insert(jetbus.NewID(), "") }, "changefeed_lag_seconds")
	server.RegainMajority()

	remove := server.OnCommand(func(c mongod.Command) error {
		if c.Name == "getMore" || c.Name == "aggregate" {
			return &mongod.CommandError{Code: 11601, Message: "the case's", Labels: []string{}}
		}
		return nil
	})
	s.moves("changefeed_reopened_total")
	remove()

	s.ok(coll.Drop(ctx))
	s.until(func() { insert(jetbus.NewID(), "") }, "changefeed_gaps_total")
	s.m.WatchFeed("things", nil)
	if err := f.Err(); err != nil && !errors.Is(err, context.Canceled) {
		s.Errorf("the feed has ended: %v", err)
	}
	s.stop(f)
}
