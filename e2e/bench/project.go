package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// mongoEnv is a database: of the server that MONGODB_URI names, else of the
// stand-in, which shares this process with everything else.
type mongoEnv struct {
	name    string // of the server and its version
	standIn *mongod.Server
	client  *mongo.Client
	db      *mongo.Database
}

// projections is the group, and the projection, of these jobs.
const projections = "bench"

// mongo returns the environment's database.
func (e *env) mongo(ctx context.Context) (*mongoEnv, error) {
	if e.database != nil {
		return e.database, nil
	}
	m, uri := &mongoEnv{}, os.Getenv("MONGODB_URI")
	var err error
	if uri == "" {
		if m.standIn, err = mongod.Start(ctx, mongod.Config{}); err != nil {
			return nil, err
		}
		uri = m.standIn.URI()
	}
	e.database = m
	if m.client, err = mongo.Connect(options.Client().ApplyURI(uri)); err != nil {
		return nil, err
	}
	m.db = m.client.Database(fmt.Sprintf("jetbus_bench_%d", os.Getpid()))
	var info struct{ Version string }
	if err := m.db.RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info); err != nil {
		return nil, err
	}
	m.name = "MongoDB " + info.Version
	if m.standIn != nil {
		m.name = "stand-in " + info.Version
	}
	return m, nil
}

// close drops the database.
func (m *mongoEnv) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if m.db != nil {
		_ = m.db.Drop(ctx) // what cannot be dropped has a name that says whose it is
	}
	if m.client != nil {
		_ = m.client.Disconnect(ctx) // nothing is under way
	}
	if m.standIn != nil {
		m.standIn.Stop()
	}
}

// projectJob makes a job that projects a topic into a collection of its own.
func projectJob(name string, count int, config jetbus.TopicConfig, run func(ctx context.Context, l *lane, m *mongoEnv, all []jetbus.Event, c *clock) error) job {
	return job{name: name, count: count, run: func(ctx context.Context, e *env, n int, c *clock) error {
		m, err := e.mongo(ctx)
		if err != nil {
			return err
		}
		c.result.server = m.name
		l, err := e.laneOf(ctx, config)
		if err != nil {
			return err
		}
		defer l.drop()
		defer func() { _ = m.db.Drop(ctx) }() // the next run begins with none
		return run(ctx, l, m, events(l.topic, n, 128), c)
	}}
}

// project catches up with what the topic holds, into an empty collection: event by
// event, or with keys in the subjects from the last event of each.
func project(count int, keyed bool) job {
	return projectJob("bus", count, jetbus.TopicConfig{KeyInSubject: keyed}, func(ctx context.Context, l *lane, m *mongoEnv, all []jetbus.Event, c *clock) error {
		if err := l.publishBatches(ctx, all, 10_000, jetbus.BatchOptions{}); err != nil {
			return err
		}
		sink, err := mongosink.New(m.db, mongosink.Options{Collection: l.topic})
		if err != nil {
			return err
		}
		c.start()
		p, err := projector.Start(ctx, l.e.bus2, sink, projector.Options{Name: projections, Topic: l.topic})
		if err != nil {
			return err
		}
		defer func() { _ = p.Stop(context.Background()) }()
		if err := projected(ctx, p, func(s *projector.Stats) bool { return s.Phase == projector.Following }); err != nil {
			return err
		}
		c.stop(len(all))
		return l.checkProjected(ctx, m, all)
	})
}

// projectLive follows a topic while events are published, until all are settled.
func projectLive(count int) job {
	return projectJob("bus", count, jetbus.TopicConfig{}, func(ctx context.Context, l *lane, m *mongoEnv, all []jetbus.Event, c *clock) error {
		sink, err := mongosink.New(m.db, mongosink.Options{Collection: l.topic})
		if err != nil {
			return err
		}
		p, err := projector.Start(ctx, l.e.bus2, sink, projector.Options{Name: projections, Topic: l.topic})
		if err != nil {
			return err
		}
		defer func() { _ = p.Stop(context.Background()) }()
		if err := projected(ctx, p, func(s *projector.Stats) bool { return s.Phase == projector.Following }); err != nil {
			return err
		}
		names, err := l.durables(ctx)
		if err != nil {
			return err
		}
		c.start()
		if err := l.publishBatches(ctx, all, batchSize, jetbus.BatchOptions{}); err != nil {
			return err
		}
		if err := settled(ctx, l.e.js, l.stream, names[0], len(all)); err != nil {
			return err
		}
		c.stop(len(all))
		return l.checkProjected(ctx, m, all)
	})
}

// projected waits until the projection is where it should be.
func projected(ctx context.Context, p *projector.Projection, there func(*projector.Stats) bool) error {
	pause := time.NewTicker(500 * time.Microsecond)
	defer pause.Stop()
	for {
		s := p.Stats()
		if there(&s) {
			return nil
		}
		select {
		case <-pause.C:
		case <-p.Done():
			return fmt.Errorf("the projection ended by itself: %w", p.Err())
		case <-ctx.Done():
			return fmt.Errorf("the projection is at %+v: %w", s, ctx.Err())
		}
	}
}

// updateOneByOne is the same by hand: a handler that writes each event with a guard.
func updateOneByOne(count int) job {
	return projectJob("guarded update per event", count, jetbus.TopicConfig{}, func(ctx context.Context, l *lane, m *mongoEnv, all []jetbus.Event, c *clock) error {
		if err := l.publishBatches(ctx, all, 10_000, jetbus.BatchOptions{}); err != nil {
			return err
		}
		coll := m.db.Collection(l.topic)
		if err := m.db.CreateCollection(ctx, l.topic); err != nil {
			return err
		}
		upsert := options.Replace().SetUpsert(true)
		handler := func(ctx context.Context, d *jetbus.Delivery) error {
			doc := bson.D{{Key: "_id", Value: d.Key}, {Key: "_seq", Value: int64(d.Seq)}} //nolint:gosec // a few
			var state bson.D
			if err := bson.UnmarshalExtJSON(d.Payload, false, &state); err != nil {
				return err
			}
			older := bson.D{{Key: "_id", Value: d.Key}, {Key: "_seq", Value: bson.D{{Key: "$not", Value: bson.D{{Key: "$gte", Value: int64(d.Seq)}}}}}} //nolint:gosec // a few
			_, err := coll.ReplaceOne(ctx, older, append(doc, state...), upsert)
			return err
		}
		c.start()
		s, err := l.e.bus2.Subscribe(ctx, l.topic, projections, handler, jetbus.SubscribeOptions{From: jetbus.Earliest()})
		if err != nil {
			return err
		}
		defer func() { _ = s.Stop(context.Background()) }()
		names, err := l.durables(ctx)
		if err != nil {
			return err
		}
		if err := settled(ctx, l.e.js, l.stream, names[0], len(all)); err != nil {
			return err
		}
		c.stop(len(all))
		return l.checkProjected(ctx, m, all)
	})
}

// checkProjected makes sure that the collection is what the events say.
func (l *lane) checkProjected(ctx context.Context, m *mongoEnv, all []jetbus.Event) error {
	cursor, err := m.db.Collection(l.topic).Find(ctx, bson.D{})
	if err != nil {
		return err
	}
	var docs []struct {
		Key string `bson:"_id"`
		Seq int    `bson:"_seq"`
	}
	if err := cursor.All(ctx, &docs); err != nil {
		return err
	}
	want := map[string]int{}
	for i := range all {
		want[all[i].Key] = i + 1
	}
	if len(docs) != len(want) {
		return fmt.Errorf("%d documents of %d keys", len(docs), len(want))
	}
	for _, d := range docs {
		if want[d.Key] != d.Seq {
			return fmt.Errorf("%s is at %d, want %d", d.Key, d.Seq, want[d.Key])
		}
	}
	return nil
}

// serverOf is the name of the server that a row was measured at; empty: none.
func serverOf(samples [][]sample) string {
	for _, s := range slices.Concat(samples...) {
		if s.server != "" {
			return s.server
		}
	}
	return ""
}
