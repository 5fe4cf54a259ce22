//go:build unix

package partitions

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
	"github.com/seed-63e9a637/jetbus/partition"
)

// bucketCluster has TestBucketChaos use a cluster, in which a full bucket refuses renewals, too.
var bucketCluster = flag.Bool("cluster", false, "TestBucketChaos: use a cluster of three")

const (
	bucketParts   = 8
	bucketActors  = 4 // that compete for the lock, and as many that are members of the group
	fullBucket    = 256 << 10
	locksStream   = "KV_JETBUS_LOCKS"
	groupsStream  = "KV_" + partition.DefaultBucket
	holdersStream = "KV_" + jetbus.DefaultLockBucket
	// rewitnessed is how long after the loss of JETBUS_LOCKS a bucket that is lost, too, may be
	// taken for a new one by a process that has not used it: see README, Limits.
	rewitnessed = 15 * time.Second
)

// ledger knows who has what, by their own accounts.
type ledger struct {
	*testing.T
	mu                 sync.Mutex
	owners             map[string]context.Context
	epochs             map[string]uint64
	turns, inside      int
	lockLost, keysGone time.Time // when JETBUS_LOCKS lost its keys, and when another bucket did
}

// begin notes a turn. The one before must have ended, and have had a lower epoch.
func (l *ledger) begin(ctx context.Context, what string, epoch uint64) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turns++
	if before := l.owners[what]; before != nil && before.Err() == nil {
		if l.keysGone.Sub(l.lockLost).Abs() < rewitnessed && time.Since(l.keysGone) < 2*shortTTL {
			l.inside++
		} else {
			l.Errorf("%s has two holders, %v after the last loss of keys and %v after the loss of JETBUS_LOCKS", what, time.Since(l.keysGone), time.Since(l.lockLost))
		}
	}
	if epoch <= l.epochs[what] {
		l.Errorf("%s has epoch %d after %d", what, epoch, l.epochs[what])
	}
	l.owners[what], l.epochs[what] = ctx, epoch //nolint:fatcontext // each is another turn's
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.owners[what] == ctx {
			delete(l.owners, what)
		}
	}
}

// bucketChaos is a broker, processes that compete on it, and what happens to their buckets.
type bucketChaos struct {
	*ledger
	url      string
	replicas int
	js       jetstream.JetStream
	nc       *nats.Conn
}

// TestBucketChaos purges, deletes and fills the buckets of locks and of groups at random, while
// processes that hold a lock and members of a group come, leave and die.
func TestBucketChaos(t *testing.T) {
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) //nolint:gosec // a number is a number
	}
	t.Logf("seed %d", seed)
	c := &bucketChaos{ledger: &ledger{T: t, owners: map[string]context.Context{}, epochs: map[string]uint64{}}, replicas: 1}
	if *bucketCluster {
		c.url, c.replicas = broker.StartCluster(t).URL(), 3
		newService(t, c.url, c.replicas) // waits until it works
	} else {
		c.url = broker.Start(t).URL()
	}
	nc, err := broker.Dial(c.url)
	must(t, err)
	t.Cleanup(nc.Close)
	c.nc = nc
	c.js, err = jetstream.New(nc)
	must(t, err)

	ctx, stop := context.WithTimeout(t.Context(), *chaosTime)
	defer stop()
	var actors sync.WaitGroup
	for i := range bucketActors {
		actors.Go(func() { c.repeat(ctx, chaos.Random(seed, uint64(2*i+1)), c.hold) })   //nolint:gosec // few
		actors.Go(func() { c.repeat(ctx, chaos.Random(seed, uint64(2*i+2)), c.member) }) //nolint:gosec // few
	}
	var faults chaos.Tally
	hand := chaos.Hand{Deeds: c.deeds(), Pause: shortTTL / 5, Hurt: 2 * shortTTL}
	if err := hand.Break(ctx, &faults, chaos.Random(seed, 0)); err != nil {
		t.Error(err)
	}
	actors.Wait()
	c.recovers()

	w := tabwriter.NewWriter(t.Output(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "time\t%v\nturns\t%d\noverlaps inside the documented case\t%d\n", *chaosTime, c.turns, c.inside)
	must(t, errors.Join(faults.Print(w), w.Flush()))
	if c.turns < bucketParts {
		t.Errorf("%d turns: that proves nothing", c.turns)
	}
}

// repeat lets one process after the other live for a random time.
func (c *bucketChaos) repeat(ctx context.Context, random *rand.Rand, process func(ctx context.Context, bus *adapter.Bus, name string)) {
	for n := 0; ctx.Err() == nil; n++ {
		life, cancel := context.WithTimeout(ctx, time.Second+time.Duration(random.Int64N(int64(6*shortTTL))))
		c.live(life, random.IntN(3) == 0, func(bus *adapter.Bus) { process(life, bus, fmt.Sprintf("p%x", random.Uint32())) })
		cancel()
	}
}

// live runs a process on a connection of its own until ctx ends. One that dies loses the connection
// then, and learns nothing more of the broker.
func (c *bucketChaos) live(ctx context.Context, dies bool, process func(bus *adapter.Bus)) {
	nc, err := broker.Dial(c.url)
	if err != nil {
		c.Error(err)
		return
	}
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{Replicas: c.replicas})
	if err != nil {
		chaos.Linger(ctx, time.Second)
		return
	}
	if dies {
		stop := context.AfterFunc(ctx, nc.Close)
		defer stop()
	}
	process(bus)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if err := bus.Close(closing); err != nil && !dies {
		c.Logf("close: %v", err)
	}
}

// hold holds the lock until ctx ends, or it is lost.
func (c *bucketChaos) hold(ctx context.Context, bus *adapter.Bus, name string) {
	lock := jetbus.Lock{Key: "leader", Owner: name, TTL: shortTTL}
	_ = lock.Hold(ctx, bus, func(held context.Context, h jetbus.Held) (bool, error) { // lost and given up at random
		defer c.begin(held, "the lock", h.Epoch)()
		<-held.Done()
		return true, nil
	})
}

// member is a member of the group until ctx ends.
func (c *bucketChaos) member(ctx context.Context, bus *adapter.Bus, name string) {
	own := func(owned context.Context, turn *partition.Turn) (bool, error) {
		defer c.begin(owned, fmt.Sprintf("partition %d", turn.Partition), turn.Epoch)()
		select {
		case <-owned.Done():
		case <-turn.Revoked():
		}
		return true, nil
	}
	m, err := partition.Join(ctx, bus, "chaos/members", own, partition.Options{Partitions: bucketParts, Member: name, TTL: shortTTL})
	if err != nil { // the bucket may be full, or away at this moment
		chaos.Linger(ctx, time.Second)
		return
	}
	<-m.Done()
	if err := m.Err(); err != nil && !errors.Is(err, jetbus.ErrClosed) {
		c.Errorf("member %s: %v", name, err)
	}
}

// deeds are what happens to the buckets.
func (c *bucketChaos) deeds() []chaos.Deed {
	var out []chaos.Deed
	for _, stream := range []string{groupsStream, holdersStream, locksStream} {
		out = append(out,
			chaos.Deed{Name: stream + " purged", Do: func(ctx context.Context, _ time.Duration, _ *rand.Rand) error {
				return c.lose(ctx, stream, "PURGE", nil)
			}},
			chaos.Deed{Name: stream + " deleted", Do: func(ctx context.Context, _ time.Duration, _ *rand.Rand) error {
				return c.lose(ctx, stream, "DELETE", nil)
			}})
		if stream != locksStream {
			out = append(out, chaos.Deed{Name: stream + " filled", Do: func(ctx context.Context, hurt time.Duration, _ *rand.Rand) error {
				if err := c.fill(ctx, stream); err != nil {
					return err
				}
				chaos.Linger(ctx, hurt)
				filter, err := json.Marshal(map[string]string{"filter": c.fillSubject(stream, ">")})
				if err != nil {
					return err
				}
				return c.ask("PURGE", stream, filter)
			}})
		}
	}
	return out
}

// lose has a bucket lose its keys.
func (c *bucketChaos) lose(ctx context.Context, stream, how string, body []byte) error {
	if ctx.Err() != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock() // so that turns that begin now are told from those before
	err := c.ask(how, stream, body)
	if stream == locksStream {
		c.lockLost = time.Now()
	} else {
		c.keysGone = time.Now()
	}
	return err
}

// ask sends a request to the API. A stream that does not exist at this moment is as good.
func (c *bucketChaos) ask(what, stream string, body []byte) error {
	_, err := c.nc.Request("$JS.API.STREAM."+what+"."+stream, body, limit)
	return err
}

func (c *bucketChaos) fillSubject(stream, last string) string {
	return "$KV." + strings.TrimPrefix(stream, "KV_") + ".fill." + last
}

// fill makes a bucket small, and fills it to the last bytes as a program that does not use the bus.
func (c *bucketChaos) fill(ctx context.Context, stream string) error {
	s, err := c.js.Stream(ctx, stream)
	if err != nil {
		return nil //nolint:nilerr // it was deleted, or the test ends
	}
	config := s.CachedInfo().Config
	config.MaxBytes = fullBucket
	if _, err = c.js.UpdateStream(ctx, config); err != nil {
		return nil //nolint:nilerr // as above
	}
	for size, n := 4096, 0; size > 0 && ctx.Err() == nil; n++ {
		answer, err := c.nc.Request(c.fillSubject(stream, fmt.Sprint(n)), make([]byte, size), limit)
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		if strings.Contains(string(answer.Data), `"error"`) {
			size /= 2
		}
	}
	return nil
}

// recovers checks that a new process gets the lock, and another one all partitions.
func (c *bucketChaos) recovers() {
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	c.live(ctx, false, func(bus *adapter.Bus) {
		lock := jetbus.Lock{Key: "leader", TTL: shortTTL}
		must(c.T, lock.Hold(ctx, bus, func(held context.Context, h jetbus.Held) (bool, error) {
			c.begin(held, "the lock", h.Epoch)()
			return true, nil
		}))
		var owned sync.WaitGroup
		owned.Add(bucketParts)
		m, err := partition.Join(ctx, bus, "chaos/members", func(ctx context.Context, turn *partition.Turn) (bool, error) {
			c.begin(ctx, fmt.Sprintf("partition %d", turn.Partition), turn.Epoch)()
			owned.Done()
			<-turn.Revoked()
			return true, nil
		}, partition.Options{Partitions: bucketParts, TTL: shortTTL})
		must(c.T, err)
		owned.Wait()
		must(c.T, m.Stop(ctx))
	})
}

// A lock in a bucket of a cluster that the bus has filled is renewed, taken over and released: a
// server with replicas refuses every write to a full stream, and the bus keeps a reserve.
func TestLockInAFullBucketOfACluster(t *testing.T) {
	s := newService(t, broker.StartCluster(t).URL(), 3)
	lock := jetbus.Lock{Key: "leader", TTL: longTTL / 5}
	nc, err := broker.Dial(s.url)
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	for turn := range 2 { // the second one finds the bucket full
		must(t, lock.Hold(t.Context(), s.bus, func(held context.Context, _ jetbus.Held) (bool, error) {
			if turn == 0 {
				stream, err := js.Stream(held, holdersStream)
				must(t, err)
				config := stream.CachedInfo().Config
				config.MaxBytes = 4 << 20
				_, err = js.UpdateStream(held, config)
				must(t, err)
				chaos.Linger(held, 2*time.Second) // until the bus asks for the limit again
				for n, size := 0, 100<<10; size > 0; n++ {
					_, err = s.bus.KeySet(held, jetbus.DefaultLockBucket, fmt.Sprint("fill", n), make([]byte, size), 0, 0)
					if errors.Is(err, jetbus.ErrBucketFull) {
						size /= 4
					} else if err != nil {
						t.Fatal(err)
					}
				}
			}
			chaos.Linger(held, 2*lock.TTL)
			return true, held.Err()
		}))
	}
}
