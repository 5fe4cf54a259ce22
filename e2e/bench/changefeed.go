package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// feedBatch is how many documents are inserted at once before the clock starts.
const feedBatch = 10_000

// history is a collection and where its change stream was before it had anything.
type history struct {
	m    *mongoEnv
	coll *mongo.Collection
	from bson.Raw // resume token
	n    int      // of changes behind it
}

// feedJob makes a job that goes through the changes of a collection of its own, which
// are there before the clock starts. The topic is as a feed declares one.
func feedJob(name string, count int, run func(ctx context.Context, l *lane, h *history, c *clock) error) job {
	return job{name: name, count: count, run: func(ctx context.Context, e *env, n int, c *clock) error {
		m, err := e.mongo(ctx)
		if err != nil {
			return err
		}
		c.result.server = m.name
		l, err := e.laneOf(ctx, jetbus.TopicConfig{Retention: -1, Discard: jetbus.DiscardNew, DuplicateWindow: 5 * time.Second})
		if err != nil {
			return err
		}
		defer l.drop()
		defer func() { _ = m.db.Drop(ctx) }() // the next run begins with none
		h, err := m.history(ctx, l.topic, n)
		if err != nil {
			return err
		}
		return run(ctx, l, h, c)
	}}
}

// history inserts n small documents into a new collection.
func (m *mongoEnv) history(ctx context.Context, collection string, n int) (*history, error) {
	h := &history{m: m, coll: m.db.Collection(collection), n: n}
	if err := m.db.CreateCollection(ctx, collection); err != nil {
		return nil, err
	}
	cs, err := h.coll.Watch(ctx, mongo.Pipeline{})
	if err != nil {
		return nil, err
	}
	h.from = cs.ResumeToken()
	if err := cs.Close(ctx); err != nil {
		return nil, err
	}
	if len(h.from) == 0 {
		return nil, errors.New("the server does not say where a change stream is")
	}
	text := string(payload(80))[8:72] // letters
	for i := 0; i < n; {
		docs := make([]any, 0, feedBatch)
		for ; i < n && len(docs) < feedBatch; i++ {
			docs = append(docs, bson.D{{Key: "_id", Value: documentID(i)}, {Key: "n", Value: i}, {Key: "state", Value: "ready"}, {Key: "text", Value: text}})
		}
		if _, err := h.coll.InsertMany(ctx, docs); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func documentID(i int) string { return fmt.Sprintf("document-%06d", i) }

// open opens the change stream that a feed opens, behind the token.
func (h *history) open(ctx context.Context, pipeline mongo.Pipeline) (*mongo.ChangeStream, error) {
	return h.coll.Watch(ctx, pipeline, options.ChangeStream().SetMaxAwaitTime(changefeed.DefaultMaxAwaitTime).
		SetFullDocument(options.UpdateLookup).SetStartAfter(h.from))
}

// feed publishes the changes by a change feed, until it has published all.
func feed(count int) job {
	return feedJob("bus", count, func(ctx context.Context, l *lane, h *history, c *clock) error {
		if err := follow(ctx, l, l.e.bus, h, c); err != nil {
			return err
		}
		return l.checkFed(ctx, h.n)
	})
}

// feedNowhere is feed on a bus that stores nothing: what the feed itself costs, which
// else shares its processors with the broker.
func feedNowhere(count int) job {
	return feedJob("bus without a broker", count, func(ctx context.Context, l *lane, h *history, c *clock) error {
		b := &nowhere{Backend: l.e.bus}
		if err := follow(ctx, l, b, h, c); err != nil {
			return err
		}
		if b.seq != uint64(h.n) { //nolint:gosec // a count
			return fmt.Errorf("%d of %d changes came", b.seq, h.n)
		}
		return nil
	})
}

// nowhere is a bus whose batches are as good as stored at once.
type nowhere struct {
	changefeed.Backend
	seq uint64
}

func (b *nowhere) PublishBatch(_ context.Context, events []jetbus.Event, _ jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	receipts := make([]jetbus.Receipt, len(events))
	for i := range events {
		b.seq++
		receipts[i].Event = events[i]
		receipts[i].Event.Seq = b.seq
	}
	return receipts, nil
}

// follow runs a feed until it has published all.
func follow(ctx context.Context, l *lane, b changefeed.Backend, h *history, c *clock) error {
	from, err := changefeed.ParseToken(h.from.Lookup("_data").StringValue())
	if err != nil {
		return err
	}
	c.start()
	f, err := changefeed.Start(ctx, b, h.m.client, changefeed.Options{
		Name: l.topic, Database: h.m.db.Name(), Collection: h.coll.Name(), Topic: l.topic, Start: changefeed.FromToken(from),
	})
	if err != nil {
		return err
	}
	defer func() { _ = f.Stop(context.Background()) }()
	pause := time.NewTicker(500 * time.Microsecond)
	defer pause.Stop()
	for f.Stats().Published < uint64(h.n) { //nolint:gosec // a count
		select {
		case <-pause.C:
		case <-f.Done():
			return fmt.Errorf("the feed ended by itself: %w", f.Err())
		case <-ctx.Done():
			return fmt.Errorf("the feed is at %+v, %+v: %w", f.Stats(), f.Status(), ctx.Err())
		}
	}
	c.stop(h.n)
	return nil
}

// drain reads the same change stream with the driver alone, and looks at nothing.
func drain(count int) job {
	return feedJob("draining the change stream", count, func(ctx context.Context, _ *lane, h *history, c *clock) error {
		c.start()
		cs, err := h.open(ctx, mongo.Pipeline{{{Key: "$changeStreamSplitLargeEvent", Value: bson.D{}}}})
		if err != nil {
			return err
		}
		defer func() { _ = cs.Close(ctx) }() // the run is over
		for n := 0; n < h.n; {
			if cs.TryNext(ctx) {
				n++
			} else if err := errors.Join(cs.Err(), ctx.Err()); err != nil {
				return err
			}
		}
		c.stop(h.n)
		return nil
	})
}

// feedByHand publishes the changes as a hand-written program would that has learned all
// that the bus does: a window of messages, each to be stored behind the one before. It
// retries nothing, and could not go on after its end.
func feedByHand(count int) job {
	return feedJob("window by hand", count, func(ctx context.Context, l *lane, h *history, c *clock) error {
		c.start()
		w, err := newWindowed(l.e.raw)
		if err != nil {
			return err
		}
		cs, err := h.open(ctx, mongo.Pipeline{{{Key: "$changeStreamSplitLargeEvent", Value: bson.D{}}}})
		if err != nil {
			return err
		}
		defer func() { _ = cs.Close(ctx) }() // the run is over
		before := ""
		for n := 0; n < h.n; {
			if !cs.TryNext(ctx) {
				if err := errors.Join(cs.Err(), ctx.Err()); err != nil {
					return err
				}
				continue
			}
			e, err := naiveEvent(l.topic, cs.Current)
			if err != nil {
				return err
			}
			e.SID, e.Time, e.ID = sid, time.Now(), cs.Current.Lookup("_id", "_data").StringValue()
			m := &nats.Msg{Subject: l.subject, Header: rawHeader(&e), Data: e.Payload}
			delete(m.Header, "x-tenant")
			if before != "" {
				m.Header[jetstream.ExpectedLastMsgIDHeader] = []string{before}
			}
			before = m.Header[jetstream.MsgIDHeader][0]
			for _, name := range []string{changefeed.HeaderOp, changefeed.HeaderClusterTime} {
				m.Header[name] = []string{e.Headers[name]}
			}
			m.Header[changefeed.HeaderToken], m.Header[changefeed.HeaderFeed] = []string{e.ID}, []string{l.topic}
			m.Header[changefeed.HeaderNamespace] = []string{h.m.db.Name() + "." + h.coll.Name()}
			if err := w.publish(m); err != nil {
				return err
			}
			n++
		}
		if err := w.finish(ctx); err != nil {
			return err
		}
		c.stop(h.n)
		return l.checkFed(ctx, h.n)
	})
}

// feedNaively publishes each change by itself, and then saves its token.
func feedNaively(count int) job {
	return feedJob("publish and save per change", count, func(ctx context.Context, l *lane, h *history, c *clock) error {
		tokens := h.m.db.Collection(changefeed.DefaultTokens)
		mine, upsert := bson.D{{Key: "_id", Value: l.topic}}, options.UpdateOne().SetUpsert(true)
		c.start()
		cs, err := h.open(ctx, mongo.Pipeline{})
		if err != nil {
			return err
		}
		defer func() { _ = cs.Close(ctx) }() // the run is over
		for n := 0; n < h.n; {
			if !cs.TryNext(ctx) {
				if err := errors.Join(cs.Err(), ctx.Err()); err != nil {
					return err
				}
				continue
			}
			e, err := naiveEvent(l.topic, cs.Current)
			if err != nil {
				return err
			}
			if _, err := l.e.bus.Publish(ctx, e); err != nil {
				return err
			}
			if _, err := tokens.UpdateOne(ctx, mine, bson.D{{Key: "$set", Value: bson.D{{Key: "token", Value: cs.ResumeToken()}}}}, upsert); err != nil {
				return err
			}
			n++
		}
		c.stop(h.n)
		return l.checkFed(ctx, h.n)
	})
}

// naiveEvent is what becomes of a change without a feed.
func naiveEvent(topic string, current bson.Raw) (jetbus.Event, error) {
	var change struct {
		Op          string         `bson:"operationType"`
		ClusterTime bson.Timestamp `bson:"clusterTime"`
		Document    bson.Raw       `bson:"fullDocument"`
		Key         struct {
			ID string `bson:"_id"`
		} `bson:"documentKey"`
	}
	if err := bson.Unmarshal(current, &change); err != nil {
		return jetbus.Event{}, err
	}
	text, err := bson.MarshalExtJSON(change.Document, false, false)
	return jetbus.Event{Topic: topic, Key: change.Key.ID, Payload: text, Headers: map[string]string{
		changefeed.HeaderOp: change.Op, changefeed.HeaderClusterTime: fmt.Sprintf("%d.%d", change.ClusterTime.T, change.ClusterTime.I),
	}}, err
}

// checkFed makes sure that the topic holds every document once, in order.
func (l *lane) checkFed(ctx context.Context, n int) error {
	i := 0
	for e, err := range l.e.bus.Scan(ctx, l.topic, jetbus.ScanQuery{}) {
		if err != nil {
			return err
		}
		if want := documentID(i); e.Key != want || len(e.Payload) < 64 {
			return fmt.Errorf("event %d is %s of %s, want %s", e.Seq, e.Payload, e.Key, want)
		}
		i++
	}
	if i != n {
		return fmt.Errorf("%d of %d changes are in the topic", i, n)
	}
	return nil
}
