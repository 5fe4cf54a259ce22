package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
)

// brokerRestores is the number of restores of one broker. The test reads whole topics, so it starts a
// new broker before they grow long.
const brokerRestores = 10

// feedArena is an arena whose topics are filled by change feeds of one collection.
type feedArena struct {
	*arena
	coll  *mongo.Collection
	feeds []*feed
}

// feed is a change feed that is stopped and started.
type feed struct {
	bus     *adapter.Bus
	o       changefeed.Options
	running *changefeed.Feed // nil: stopped
	gaps    int              // gap events in its topic when it last settled
}

// TestFeedRestore restores the broker under change feeds of each mode. Each topic has every write to the
// collection, or a gap event that reports the loss. In the end each topic has the documents of the collection.
func TestFeedRestore(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-seed %d", *seed)
	lost, gaps := 0, 0
	for begun := 0; begun < *restores; begun += brokerRestores {
		t.Run(fmt.Sprintf("from %d", begun), func(t *testing.T) {
			a := newFeedArena(t, rand.New(rand.NewPCG(*seed, uint64(begun)))) //nolint:gosec // a number is a number
			defer func() { a.stop(a.feeds...) }()
			for round := range min(brokerRestores, *restores-begun) {
				if a.round(); t.Failed() {
					t.Fatalf("in round %d", begun+round+1)
				}
			}
			lost += a.lost
			for _, f := range a.feeds {
				gaps += f.gaps
			}
		})
	}
	t.Logf("%d restores, %d of them lost events; %d gap events", *restores, lost, gaps)
	if lost == 0 {
		t.Error("no restore lost events")
	}
}

func newFeedArena(t *testing.T, r *rand.Rand) *feedArena {
	t.Helper()
	a := &feedArena{arena: &arena{T: t, broker: bustest.StartRestorable(t), r: r}}
	a.bus = a.open()
	mongod := mongotest.Start(t)
	client, err := mongo.Connect(options.Client().ApplyURI(mongod.URI()))
	a.ok(err)
	a.Cleanup(func() { _ = client.Disconnect(context.Background()) }) // nothing is under way
	db := client.Database(mongod.Database())
	a.coll = db.Collection("things")
	// In a shared stream the sequences that one topic lost can become another topic's.
	a.ensure(jetbus.TopicConfig{Name: "neighbor", Stream: "SHARED"})
	stores := []struct { // in a fixed order, so that the seed determines which feeds are stopped
		name  string
		store changefeed.TokenStore
	}{{"keys", nil}, {"mongo", changefeed.StoreInMongo(db.Collection(changefeed.DefaultTokens))}}
	for _, mode := range []changefeed.Mode{changefeed.Chain, changefeed.Atomic, changefeed.Serial} {
		for _, tokens := range stores {
			f := &feed{bus: a.open(), o: changefeed.Options{
				Name: string(mode) + "-" + tokens.name, Database: db.Name(), Collection: a.coll.Name(), Topic: string(mode) + "." + tokens.name, Mode: mode,
				TokenStore: tokens.store, OnHistoryLost: changefeed.Resync, ProgressInterval: 50 * time.Millisecond, LeaseTTL: 3 * time.Second,
				MaxAwaitTime: 50 * time.Millisecond,
			}}
			c := jetbus.TopicConfig{Name: f.o.Topic}
			if mode != changefeed.Chain {
				c.Stream = "SHARED"
			}
			a.ensure(c)
			a.feeds = append(a.feeds, f)
			a.start(f)
		}
	}
	return a
}

func (a *feedArena) start(f *feed) {
	a.Helper()
	running, err := changefeed.Start(a.Context(), f.bus, a.coll.Database().Client(), f.o)
	a.ok(err)
	f.running = running
}

func (a *feedArena) stop(feeds ...*feed) {
	for _, f := range feeds {
		if f.running != nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			a.ok(f.running.Stop(ctx))
			cancel()
			f.running = nil
		}
	}
}

// round restores the broker once, while documents are written and some feeds do not run.
func (a *feedArena) round() {
	stop := a.writing()
	a.pause()
	a.backups = append(a.backups, a.broker.Backup(a.T))
	a.backups = a.backups[max(0, len(a.backups)-3):]
	a.pause()
	var stopped []*feed
	for _, f := range a.feeds {
		if a.r.IntN(4) == 0 {
			a.stop(f)
			stopped = append(stopped, f)
		}
	}
	a.pause()
	if a.r.IntN(2) == 0 {
		stop()
		stop = func() {}
		a.pause()
	}
	before := a.end(a.feeds[0])
	at := a.r.IntN(len(a.backups))
	a.broker.Restore(a.T, a.backups[at], nil)
	a.backups = a.backups[:at+1] // the others are of another history
	for range a.r.IntN(30) {
		_, err := a.bus.Publish(a.Context(), jetbus.Event{Topic: "neighbor", Payload: []byte("1")})
		a.ok(err)
	}
	if a.r.IntN(2) == 0 {
		stop()
		stop = a.writing()
		a.pause()
	}
	for _, f := range stopped {
		a.start(f)
	}
	a.pause()
	stop()
	a.settle()
	if after := a.at(a.feeds[0], before.Seq); after.ID != before.ID || !after.Stored.Equal(before.Stored) {
		a.lost++
	}
}

// writing replaces documents until stop is called.
func (a *feedArena) writing() (stop func()) {
	ctx, cancel := context.WithCancel(a.Context())
	r := rand.New(rand.NewPCG(a.r.Uint64(), 2))
	var written sync.WaitGroup
	written.Go(func() {
		for ; ctx.Err() == nil; a.n++ {
			key := fmt.Sprintf("k%d", r.IntN(keys)+10)
			if _, err := a.coll.ReplaceOne(a.Context(), bson.D{{Key: "_id", Value: key}}, bson.D{{Key: "n", Value: a.n}}, options.Replace().SetUpsert(true)); err != nil {
				a.Error(err)
				return
			}
			time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		written.Wait()
	})
}

// settle waits until each topic has all writes, or a gap event that reports a loss.
func (a *feedArena) settle() {
	want := a.documents()
	for _, f := range a.feeds {
		var why string
		for began := time.Now(); time.Since(began) < settleTime; time.Sleep(50 * time.Millisecond) {
			if err := f.running.Err(); err != nil {
				a.Errorf("%s ended: %v", f.o.Name, err)
				return
			}
			if f.gaps, why = a.compare(f, want); why == "" {
				break
			}
		}
		if why != "" {
			a.Errorf("%s: %s; %v", f.o.Name, why, f.running.Status())
		}
	}
}

// compare returns the number of gap events in a feed's topic. If writes are missing without a gap event,
// or the topic differs from the collection, why is the reason.
func (a *feedArena) compare(f *feed, want map[string]int) (gaps int, why string) {
	got, seen := map[string]int{}, map[int]bool{}
	newest, covered := -1, -1 // a copy after a gap event makes up for all writes up to covered
	inGap := false
	for e, err := range a.bus.Scan(a.Context(), f.o.Topic, jetbus.ScanQuery{}) {
		a.ok(err)
		switch e.Headers[changefeed.HeaderOp] {
		case changefeed.OpGap:
			gaps++
			inGap = true
			continue
		case changefeed.OpCopied:
			inGap, covered = false, newest
			continue
		}
		var doc struct {
			N int `json:"n"`
		}
		a.ok(json.Unmarshal(e.Payload, &doc))
		got[e.Key], seen[doc.N] = doc.N, true
		newest = max(newest, doc.N)
	}
	if inGap {
		return gaps, "the copy after a gap is not complete"
	}
	for n := covered + 1; n < a.n; n++ {
		if !seen[n] {
			return gaps, fmt.Sprintf("write %d of %d is missing, and no gap event reports that", n, a.n)
		}
	}
	if !maps.Equal(got, want) {
		return gaps, fmt.Sprintf("the topic has %v, the collection %v", got, want)
	}
	return gaps, ""
}

// documents returns n of each document, by the key of its events.
func (a *feedArena) documents() map[string]int {
	a.Helper()
	var docs []struct {
		ID string `bson:"_id"`
		N  int    `bson:"n"`
	}
	found, err := a.coll.Find(a.Context(), bson.D{})
	a.ok(err)
	a.ok(found.All(a.Context(), &docs))
	out := map[string]int{}
	for _, d := range docs {
		out[d.ID] = d.N
	}
	return out
}

// end returns the last event of a feed's topic, the zero Event if there is none.
func (a *feedArena) end(f *feed) (last jetbus.Event) {
	a.Helper()
	for e, err := range a.bus.Scan(a.Context(), f.o.Topic, jetbus.ScanQuery{}) {
		a.ok(err)
		last = e
	}
	return last
}

// at returns the event of a feed's topic at a sequence, the zero Event if there is none. The topic may end before it:
// after a restore, a gap event and a copy can be fewer events than were lost.
func (a *feedArena) at(f *feed, seq uint64) jetbus.Event {
	a.Helper()
	for e, err := range a.bus.Scan(a.Context(), f.o.Topic, jetbus.ScanQuery{From: jetbus.AfterSeq(max(seq, 1) - 1), Limit: 1}) {
		if errors.Is(err, jetbus.ErrPositionUnknown) {
			break
		}
		a.ok(err)
		if e.Seq == seq {
			return e
		}
	}
	return jetbus.Event{}
}
