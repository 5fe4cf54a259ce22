package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

const (
	// devChanged is the topic of what changes in the collection.
	devChanged = devCollection + ".changed"
	// headerStateSeq says which event of the states the document was made of.
	headerStateSeq = "x-state-seq"
	// codeHistoryLost is what MongoDB answers to a position that it has no history of.
	codeHistoryLost = 286
)

// devFeed is the change feed of a run of dev, from the collection to its topic. That
// it does not run is no reason to end: everything else does its work.
type devFeed struct {
	name string // of the feed, and so of the MongoDB that its positions are in
	gap  bool   // the topic goes on behind changes that nobody has any more
	feed *changefeed.Feed
	err  error // why it was not started
}

// prepare makes the topic fit the MongoDB that is going to be followed. Positions are
// worth nothing in another one: with a real one of another address the topic begins
// anew. A stand-in has the name of the last one and none of its history, which it says
// of positions before its start: so it has to start in a later second than they are in.
func (f *devFeed) prepare(ctx context.Context, bus *adapter.Bus, uri string) error {
	f.name = devFeedName(uri)
	position, of, err := devPosition(ctx, bus)
	if err != nil {
		return err
	}
	positions := changefeed.StoreInKeys(bus)
	if of != f.name && (of == devCollection || strings.HasPrefix(of, devCollection+"-")) {
		// The position goes first: a topic without it would be taken for one that aged.
		if err := positions.Delete(ctx, f.name); err != nil {
			return err
		}
		return bus.DeleteTopic(ctx, devChanged)
	}
	if uri != "" {
		return nil
	}
	saved, err := positions.Load(ctx, f.name)
	if err != nil {
		return err
	}
	if saved.Token.Compare(position) > 0 {
		position = saved.Token
	}
	f.gap = position != ""
	return awaitSecondAfter(ctx, position.Time())
}

// devFeedName is the name of the feed from the MongoDB of a URI.
func devFeedName(uri string) string {
	if uri == "" {
		return devCollection
	}
	sum := sha256.Sum256([]byte(mongoAddress(uri) + databaseOf(uri)))
	return devCollection + "-" + hex.EncodeToString(sum[:4])
}

// devPosition is the position in the last event of the topic, and the feed that it is of.
func devPosition(ctx context.Context, bus *adapter.Bus) (changefeed.Token, string, error) {
	info, err := bus.TopicInfo(ctx, devChanged)
	if errors.Is(err, jetbus.ErrNoTopic) || err == nil && info.Events == 0 {
		return "", "", nil
	}
	if err != nil {
		return "", "", err
	}
	for e, err := range bus.Scan(ctx, devChanged, jetbus.ScanQuery{From: jetbus.AfterSeq(info.LastSeq - 1), Limit: 1}) {
		if err != nil {
			return "", "", err
		}
		return changefeed.Token(e.Headers[changefeed.HeaderToken]), e.Headers[changefeed.HeaderFeed], nil
	}
	return "", "", nil
}

// awaitSecondAfter waits until the second of a time is over, unless that is further
// away than the next second: then the clock was set back.
func awaitSecondAfter(ctx context.Context, second time.Time) error {
	wait := time.Until(second.Add(time.Second))
	if wait <= 0 || wait > time.Second {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start follows the collection.
func (f *devFeed) start(ctx context.Context, bus jetbus.Backend, m *devMongo, log *slog.Logger) {
	if m.standIn != nil {
		log = slog.New(forgetful{log.Handler()})
	}
	f.feed, f.err = changefeed.Start(ctx, bus, m.client, changefeed.Options{
		Name: f.name, Database: m.db.Name(), Collection: devCollection, Topic: devChanged,
		Start:         changefeed.FromCopy(),
		OnHistoryLost: changefeed.Resync,
		OnMissing:     changefeed.Skip, // the delete that follows says it all
		Map:           stateChanged,
		// The end waits for the position, which without changes moves only so often.
		ProgressInterval: time.Second,
		Log:              log,
	})
	if f.err != nil {
		log.LogAttrs(ctx, slog.LevelError, "no change feed", slog.Any("error", f.err))
	}
}

// stateChanged makes the payload what the state's event had: the document without the
// fields of the projection, null for a key that is deleted.
func stateChanged(c *changefeed.Change, e *jetbus.Event) error {
	if c.FullDocument == nil {
		return nil
	}
	if seq, ok := c.FullDocument.Lookup("_seq").AsInt64OK(); ok {
		e.Headers[headerStateSeq] = strconv.FormatInt(seq, 10)
	}
	if deleted, _ := c.FullDocument.Lookup("_deleted").BooleanOK(); deleted {
		e.Payload = []byte("null")
		return nil
	}
	elements, err := c.FullDocument.Elements()
	if err != nil {
		return err
	}
	state := bson.D{}
	for _, field := range elements {
		if name := field.Key(); !strings.HasPrefix(name, "_") {
			state = append(state, bson.E{Key: name, Value: field.Value()})
		}
	}
	e.Payload, err = bson.MarshalExtJSON(state, false, false)
	return err
}

// forgetful is a log in which a stand-in's lost history is no news: it never has one.
type forgetful struct{ slog.Handler }

// Handle implements slog.Handler.
func (h forgetful) Handle(ctx context.Context, r slog.Record) error {
	known := false
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			refused, is := errors.AsType[mongo.CommandError](err)
			known = known || is && refused.Code == codeHistoryLost
		}
		return !known
	})
	if known {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// feedState is the feed as the live view shows it.
type feedState struct {
	topic     string
	published uint64
	dead      uint64 // changes that are no state of a process
	lag       time.Duration
	state     changefeed.State // empty: it is not known yet
}

// look says how the feed is.
func (f *devFeed) look() feedState {
	if f.feed == nil {
		return feedState{topic: devChanged, state: changefeed.Failed}
	}
	now, stats := f.feed.Status(), f.feed.Stats()
	return feedState{topic: devChanged, published: stats.Published, dead: stats.Poisoned, lag: now.Lag, state: cmp.Or(now.State, changefeed.Starting)}
}

// stop lets the feed publish what is in the collection, as long as that takes no more
// than drainTimeout, and ends it.
func (f *devFeed) stop(ctx context.Context, m *devMongo) error {
	if f.feed == nil {
		return nil
	}
	f.drain(ctx, m)
	return f.feed.Stop(ctx)
}

// drain waits until the feed has passed the changes that MongoDB has now.
func (f *devFeed) drain(ctx context.Context, m *devMongo) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	until, err := m.clusterTime(ctx)
	if err != nil {
		return
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		now := f.feed.Status()
		if now.State == changefeed.Standby || now.Token.Timestamp().Compare(until) >= 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-f.feed.Done():
			return
		case <-ticker.C:
		}
	}
}

// clusterTime is the time of the newest change.
func (m *devMongo) clusterTime(ctx context.Context) (bson.Timestamp, error) {
	session, err := m.client.StartSession()
	if err != nil {
		return bson.Timestamp{}, err
	}
	defer session.EndSession(ctx)
	err = m.client.Database("admin").RunCommand(mongo.NewSessionContext(ctx, session), bson.D{{Key: "ping", Value: 1}}).Err()
	if t := session.OperationTime(); err == nil && t != nil {
		return *t, nil
	}
	return bson.Timestamp{}, err
}

// summary says what the feed did, and what comes of it.
func (f *devFeed) summary(standIn bool) string {
	now := f.look()
	text := fmt.Sprintf("feed    %s published in %s", plural(now.published, "event"), devChanged)
	if now.dead > 0 {
		text += ", " + plural(now.dead, "dead letter")
	}
	if err := f.failure(); err != nil {
		return text + "; it ended: " + printable(err.Error())
	}
	if standIn {
		text += "; the next start goes on with a gap and a copy"
	}
	return text
}

// failure is why the feed does not run, nil where it does or was stopped.
func (f *devFeed) failure() error {
	if f.feed == nil {
		return f.err
	}
	return f.feed.Err()
}
