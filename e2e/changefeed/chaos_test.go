//go:build unix

package changefeed

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
	"github.com/seed-63e9a637/jetbus/e2e/internal/proxy"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

var (
	// chaosTime is short in the suite; `make chaos-feed` gives it longer.
	chaosTime = flag.Duration("chaos", 15*time.Second, "how long TestChaos breaks things")
	chaosSeed = flag.Uint64("seed", 0, "what TestChaos draws its accidents from; 0: the time")
)

const (
	ids      = 20
	sentinel = "the last one"
)

// broken is a MongoDB, a broker, writers and two instances of a feed, to which
// accidents happen.
type broken struct {
	*testing.T
	server  *mongod.Server
	coll    *mongo.Collection
	from    bson.Raw // resume token of before the first change
	writers []*writer

	broker *broker.Broker
	proxy  *proxy.Proxy // between the feeds and the broker
	config feedConfig
	feeds  [2]*instance // those that live
	past   []*instance  // those that do not
	faults chaos.Tally
}

// TestChaos writes to a collection while everything between it and its topic is
// killed, frozen, cut off and restarted at random, and then compares the two.
func TestChaos(t *testing.T) {
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) //nolint:gosec // a number is a number
	}
	t.Logf("seed %d", seed)
	for i, mode := range []changefeed.Mode{changefeed.Chain, changefeed.Atomic, changefeed.Serial} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			runChaos(t, mode, seed+uint64(i))
		})
	}
}

func runChaos(t *testing.T, mode changefeed.Mode, seed uint64) {
	t.Helper()
	streams := uint64(0)
	draw := func() *rand.Rand {
		streams++
		return chaos.Random(seed, streams)
	}
	c := newChaos(t, mode)
	ctx, stop := context.WithTimeout(t.Context(), *chaosTime)
	defer stop()
	var hands, writing sync.WaitGroup
	const hurt = 3100 * time.Millisecond
	for _, h := range []chaos.Hand{
		{Deeds: c.feedDeeds(), Pause: 700 * time.Millisecond, Hurt: hurt},
		{Deeds: c.brokerDeeds(), Pause: time.Second, Hurt: hurt},
		{Deeds: c.mongoDeeds(), Pause: 300 * time.Millisecond, Hurt: hurt},
	} {
		random := draw()
		hands.Go(func() {
			if err := h.Break(ctx, &c.faults, random); err != nil {
				c.Error(err)
			}
		})
	}
	for i := range ids {
		w := &writer{id: strconv.Itoa(i), coll: c.coll, random: draw()}
		c.writers = append(c.writers, w)
		writing.Go(func() { w.run(ctx) })
	}
	if mode != changefeed.Chain {
		bus := c.open()
		writing.Go(func() { c.noise(ctx, bus) })
	}
	hands.Wait()
	writing.Wait()
	c.account()
}

func newChaos(t *testing.T, mode changefeed.Mode) *broken {
	t.Helper()
	c := &broken{T: t, broker: broker.Start(t)}
	var err error
	c.server, err = mongod.Start(t.Context(), mongod.Config{OplogBytes: 1 << 30})
	c.must(err)
	t.Cleanup(c.server.Stop)
	client, err := connectMongo(c.server.URI())
	c.must(err)
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) }) // nothing is under way
	c.coll = client.Database("chaos").Collection(collection)
	cs, err := c.coll.Watch(t.Context(), mongo.Pipeline{})
	c.must(err)
	c.from = cs.ResumeToken()
	c.must(cs.Close(t.Context()))

	c.proxy = c.broker.Proxy(t)
	t.Cleanup(c.killFeeds)
	c.config = feedConfig{URL: c.proxy.URL(), Mongo: c.server.URI(), Database: "chaos", Mode: mode}
	c.declare(mode)
	for i := range c.feeds {
		c.must(c.startFeed(i))
	}
	c.await("one leads", func() bool {
		return slices.ContainsFunc(c.feeds[:], func(f *instance) bool { return f.Last().State == changefeed.Streaming })
	})
	return c
}

// declare makes the topic, unless the feed is to do so: a chain needs a stream of its
// own, and the other modes are for streams that others publish to as well.
func (c *broken) declare(mode changefeed.Mode) {
	c.Helper()
	if mode == changefeed.Chain {
		return
	}
	bus := c.open()
	for _, name := range []string{topic, "noise"} {
		_, err := bus.EnsureTopic(c.Context(), jetbus.TopicConfig{Name: name, Stream: "shared"})
		c.must(err)
	}
}

// open opens a bus in this process, which nothing disturbs but the broker's end.
func (c *broken) open() *adapter.Bus {
	c.Helper()
	nc, err := broker.Dial(c.broker.URL())
	c.must(err)
	bus, err := adapter.Open(c.Context(), nc, adapter.Config{})
	c.must(err)
	c.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		_ = bus.Close(ctx) // only looks were taken
		nc.Close()
	})
	return bus
}

// noise publishes to the other topic of a shared stream.
func (c *broken) noise(ctx context.Context, bus *adapter.Bus) {
	for ctx.Err() == nil {
		_, _ = bus.Publish(ctx, jetbus.Event{Topic: "noise", Payload: []byte("{}")}) // or not, while the broker is away
		chaos.Linger(ctx, 5*time.Millisecond)
	}
}

func (c *broken) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// await waits for a condition.
func (c *broken) await(what string, is func() bool) {
	c.Helper()
	for began := time.Now(); !is(); chaos.Linger(c.Context(), 20*time.Millisecond) {
		if time.Since(began) > limit {
			c.Fatalf("after %v it is not so that %s", limit, what)
		}
	}
}

// startFeed starts an instance in place of another one, which has ended.
func (c *broken) startFeed(i int) error {
	f, err := startInstance(c.Context(), c.config)
	if err != nil {
		return err
	}
	if c.feeds[i] != nil {
		c.past = append(c.past, c.feeds[i])
	}
	c.feeds[i] = f
	return nil
}

// killFeeds leaves no process behind.
func (c *broken) killFeeds() {
	for _, f := range c.feeds {
		if f == nil {
			continue
		}
		f.Kill()
		if said := f.Stderr(); c.Failed() && said != "" {
			c.Logf("%s said:\n%s", f, said)
		}
	}
}

// account waits until the topic has all changes, and compares.
func (c *broken) account() {
	for !mongo.IsDuplicateKeyError(c.insertLast()) { // by then it is there
		chaos.Linger(c.Context(), 100*time.Millisecond)
	}
	past, err := history(c.Context(), c.coll, c.from, sentinel)
	c.must(err)
	bus := c.open()
	c.awaitTopic(bus, past)
	for _, f := range c.feeds {
		if err := f.end(); err != nil {
			c.Error(err)
		}
	}
	events, err := stored(c.Context(), bus, c.config.Mode == changefeed.Chain)
	c.must(err)
	for _, d := range differences(past, events) {
		c.Error(d)
	}
	docs, err := documents(c.Context(), c.coll)
	c.must(err)
	if have := state(events); !maps.Equal(have, docs) {
		c.Errorf("the topic ends with %v, the collection has %v", have, docs)
	}
	c.accountWrites(past)
	c.print(past, events)
}

func (c *broken) insertLast() error {
	_, err := c.coll.InsertOne(c.Context(), bson.D{{Key: "_id", Value: sentinel}, {Key: "n", Value: 0}})
	return err
}

// awaitTopic waits until the topic ends with the last change, for as long as it grows.
func (c *broken) awaitTopic(bus *adapter.Bus, past []change) {
	var had uint64
	for moved := time.Now(); ; chaos.Linger(c.Context(), 100*time.Millisecond) {
		info, err := bus.TopicInfo(c.Context(), topic)
		if err == nil && info.LastSeq > had {
			had, moved = info.LastSeq, time.Now()
			for e, err := range bus.Scan(c.Context(), topic, jetbus.ScanQuery{From: jetbus.AfterSeq(had - 1), Limit: 1}) {
				if err == nil && e.Headers[changefeed.HeaderToken] == string(past[len(past)-1].token) {
					return
				}
			}
		}
		if time.Since(moved) > limit {
			c.Errorf("the topic has %d events and does not go on to %d (%v); the feeds are %+v and %+v", had, len(past), err, c.feeds[0].Last(), c.feeds[1].Last())
			return
		}
	}
}

// accountWrites compares what the writers were told with what MongoDB made of it.
func (c *broken) accountWrites(past []change) {
	of := map[string][]change{}
	for _, h := range past {
		of[h.key] = append(of[h.key], h)
	}
	for _, w := range c.writers {
		if err := explains(w.log, of[w.id]); err != nil {
			c.Errorf("document %s: %v", w.id, err)
		}
	}
}

// print says what happened.
func (c *broken) print(past, events []change) {
	w := tabwriter.NewWriter(c.Output(), 0, 0, 2, ' ', 0)
	outcomes, ops := map[string]int{}, map[string]int{}
	for _, wr := range c.writers {
		for _, l := range wr.log {
			outcomes[l.outcome]++
		}
	}
	for _, h := range past {
		ops[h.op]++
	}
	fmt.Fprintf(w, "time\t%v\nwrites\t%v\nchanges in MongoDB\t%d %v\nevents in the topic\t%d\n", *chaosTime, outcomes, len(past), ops, len(events))
	if err := c.faults.Print(w); err != nil {
		c.Error(err)
	}
	var sum changefeed.Stats
	turns := 0
	for _, f := range append(c.past, c.feeds[:]...) {
		r := f.Last()
		turns += f.turns()
		sum.Published += r.Stats.Published
		sum.Duplicates += r.Stats.Duplicates
		sum.Reopened += r.Stats.Reopened
		sum.Fenced += r.Stats.Fenced
	}
	fmt.Fprintf(w, "feed processes\t%d\n  began to lead\t%d\n", len(c.past)+len(c.feeds), turns)
	fmt.Fprintf(w, "  published, as far as they could tell\t%d\n  found stored already\t%d\n  refused or lost the lock\t%d\n  change streams opened again\t%d\n", sum.Published, sum.Duplicates, sum.Fenced, sum.Reopened)
	if err := w.Flush(); err != nil {
		c.Error(err)
	}
}
