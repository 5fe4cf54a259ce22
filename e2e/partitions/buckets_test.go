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

// bucketCluster makes TestBucketChaos use a cluster, in which a full bucket also refuses renewals.
var bucketCluster = flag.Bool("cluster", false, "run TestBucketChaos on a cluster of three servers")

const (
	bucketParts   = 8
	bucketActors  = 4 // candidates for the lock, and as many members of the group
	fullBucket    = 256 << 10
	locksStream   = "KV_JETBUS_LOCKS"
	groupsStream  = "KV_" + partition.DefaultBucket
	holdersStream = "KV_" + jetbus.DefaultLockBucket
	// rewitnessed is how close the losses of JETBUS_LOCKS and of another bucket must be to fall
	// into the gap that README documents: 10 seconds, and a margin for slow machines.
	rewitnessed = 15 * time.Second
	askTimeout  = 5 * time.Second // of one request to the API; a cluster that elects may not answer

	codeNotAvailable jetstream.ErrorCode = 10008 // the cluster elects
)

// ledger records the current turn of the lock and of each partition, as the holders report them.
type ledger struct {
	*testing.T
	mu            sync.Mutex
	owners        map[string]context.Context
	epochs        map[string]uint64
	turns, inside int
	lockLost      time.Time            // when JETBUS_LOCKS lost its keys
	keysGone      map[string]time.Time // when another bucket lost its keys, by stream
}

// begin records a turn. It fails the test if the turn before has not ended, outside the gap that
// README documents, or if the epoch does not ascend. The stream is that of the bucket with the key.
func (l *ledger) begin(ctx context.Context, stream, what string, epoch uint64) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turns++
	if before := l.owners[what]; before != nil && before.Err() == nil {
		gone := l.keysGone[stream]
		if gone.Sub(l.lockLost).Abs() < rewitnessed && time.Since(gone) < 2*shortTTL {
			l.inside++
		} else {
			l.Errorf("%s has two holders; the last loss of keys in %s was at %v, in JETBUS_LOCKS at %v, and it is %v", what, stream, clock(gone), clock(l.lockLost), clock(time.Now()))
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

// clock formats a time of the test; the zero time is "never".
func clock(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Format("15:04:05.000")
}

// bucketChaos is a broker, the processes that compete on it, and the faults of their buckets.
type bucketChaos struct {
	*ledger
	url      string
	replicas int
	js       jetstream.JetStream
	nc       *nats.Conn
}

// TestBucketChaos purges, deletes and fills the buckets of locks and of groups at random, while
// candidates for a lock and members of a group start, stop and die. JETBUS_LOCKS loses its keys
// only in the second half: in the first half no overlap falls into the documented gap.
func TestBucketChaos(t *testing.T) {
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) //nolint:gosec // a number is a number
	}
	t.Logf("seed %d", seed)
	t.Run("JETBUS_LOCKS kept", func(t *testing.T) { newBucketChaos(t).play(seed, groupsStream, holdersStream) })
	t.Run("JETBUS_LOCKS lost", func(t *testing.T) { newBucketChaos(t).play(seed, groupsStream, holdersStream, locksStream) })
}

func newBucketChaos(t *testing.T) *bucketChaos {
	t.Helper()
	c := &bucketChaos{ledger: &ledger{T: t, owners: map[string]context.Context{}, epochs: map[string]uint64{}, keysGone: map[string]time.Time{}}, replicas: 1}
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
	return c
}

// play runs the processes and breaks the buckets of streams for half of the time of the test.
func (c *bucketChaos) play(seed uint64, streams ...string) {
	ctx, stop := context.WithTimeout(c.Context(), *chaosTime/2)
	defer stop()
	var actors sync.WaitGroup
	for i := range bucketActors {
		actors.Go(func() { c.repeat(ctx, chaos.Random(seed, uint64(2*i+1)), c.hold) })   //nolint:gosec // few
		actors.Go(func() { c.repeat(ctx, chaos.Random(seed, uint64(2*i+2)), c.member) }) //nolint:gosec // few
	}
	var faults chaos.Tally
	hand := chaos.Hand{Deeds: c.deeds(streams), Pause: shortTTL / 5, Hurt: 2 * shortTTL}
	if err := hand.Break(ctx, &faults, chaos.Random(seed, 0)); err != nil {
		c.Error(err)
	}
	actors.Wait()
	played := c.turns
	c.recovers()

	w := tabwriter.NewWriter(c.Output(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "time\t%v\nturns\t%d\noverlaps in the documented gap\t%d\n", *chaosTime/2, played, c.inside)
	must(c.T, errors.Join(faults.Print(w), w.Flush()))
	if played < bucketParts {
		c.Errorf("only %d turns during the faults: the test proves nothing", played)
	}
}

// repeat runs processes until ctx ends, one after the other and each for a random time.
func (c *bucketChaos) repeat(ctx context.Context, random *rand.Rand, process func(ctx context.Context, bus *adapter.Bus, name string)) {
	for n := 0; ctx.Err() == nil; n++ {
		life, cancel := context.WithTimeout(ctx, time.Second+time.Duration(random.Int64N(int64(6*shortTTL))))
		c.live(life, random.IntN(3) == 0, func(bus *adapter.Bus) { process(life, bus, fmt.Sprintf("p%x", random.Uint32())) })
		cancel()
	}
}

// live runs a process with its own connection until ctx ends. A process that dies loses its
// connection at that moment; another one closes its bus.
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

// hold holds the lock until ctx ends or the lock is lost.
func (c *bucketChaos) hold(ctx context.Context, bus *adapter.Bus, name string) {
	lock := jetbus.Lock{Key: "leader", Owner: name, TTL: shortTTL}
	_ = lock.Hold(ctx, bus, func(held context.Context, h jetbus.Held) (bool, error) { // lost and given up at random
		defer c.begin(held, holdersStream, "the lock", h.Epoch)()
		<-held.Done()
		return true, nil
	})
}

// member is a member of the group until ctx ends.
func (c *bucketChaos) member(ctx context.Context, bus *adapter.Bus, name string) {
	own := func(owned context.Context, turn *partition.Turn) (bool, error) {
		defer c.begin(owned, groupsStream, fmt.Sprintf("partition %d", turn.Partition), turn.Epoch)()
		select {
		case <-owned.Done():
		case <-turn.Revoked():
		}
		return true, nil
	}
	m, err := partition.Join(ctx, bus, "chaos/members", own, partition.Options{Partitions: bucketParts, Member: name, TTL: shortTTL})
	if err != nil { // the bucket may be full or deleted
		chaos.Linger(ctx, time.Second)
		return
	}
	<-m.Done()
	if err := m.Err(); err != nil && !errors.Is(err, jetbus.ErrClosed) {
		c.Errorf("member %s: %v", name, err)
	}
}

// deeds returns the faults of the buckets of streams. JETBUS_LOCKS is never filled.
func (c *bucketChaos) deeds(streams []string) []chaos.Deed {
	var out []chaos.Deed
	for _, stream := range streams {
		out = append(out,
			chaos.Deed{Name: stream + " purged", Do: func(ctx context.Context, _ time.Duration, _ *rand.Rand) error {
				return c.lose(ctx, stream, "PURGE")
			}},
			chaos.Deed{Name: stream + " deleted", Do: func(ctx context.Context, _ time.Duration, _ *rand.Rand) error {
				return c.lose(ctx, stream, "DELETE")
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

// lose purges or deletes a bucket. It locks the ledger, so that each turn is recorded either before
// the loss or after it.
func (c *bucketChaos) lose(ctx context.Context, stream, how string) error {
	if ctx.Err() != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.ask(how, stream, nil)
	if stream == locksStream {
		c.lockLost = time.Now()
	} else {
		c.keysGone[stream] = time.Now()
	}
	return err
}

// ask sends a request about a stream to the API, and repeats it while a cluster elects. It returns
// nil if the server did what it was asked for, or if the stream does not exist.
func (c *bucketChaos) ask(what, stream string, body []byte) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		m, err := c.nc.Request("$JS.API.STREAM."+what+"."+stream, body, askTimeout)
		var answer struct {
			Success bool                `json:"success"`
			Error   *jetstream.APIError `json:"error"`
		}
		if err == nil {
			err = json.Unmarshal(m.Data, &answer)
		}
		switch {
		case err == nil && (answer.Success || answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeStreamNotFound):
			return nil
		case err == nil && (answer.Error == nil || answer.Error.ErrorCode != codeNotAvailable):
			return fmt.Errorf("the server returned %s", m.Data)
		case err != nil && !errors.Is(err, nats.ErrTimeout):
			return err
		case time.Now().After(deadline):
			return fmt.Errorf("timed out after %v", limit)
		}
	}
}

func (c *bucketChaos) fillSubject(stream, last string) string {
	return "$KV." + strings.TrimPrefix(stream, "KV_") + ".fill." + last
}

// fill limits the size of a bucket and fills it to the last byte, as a program that does not use
// the bus could. It does nothing if the bucket does not exist or ctx ends.
func (c *bucketChaos) fill(ctx context.Context, stream string) error {
	err := c.tryFill(ctx, stream)
	if ctx.Err() != nil || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil //nolint:nilerr // see above
	}
	return err
}

func (c *bucketChaos) tryFill(ctx context.Context, stream string) error {
	s, err := c.js.Stream(ctx, stream)
	if err != nil {
		return fmt.Errorf("find the stream: %w", err)
	}
	config := s.CachedInfo().Config
	config.MaxBytes = fullBucket
	if _, err = c.js.UpdateStream(ctx, config); err != nil {
		return fmt.Errorf("update the stream: %w", err)
	}
	for size, n := 4096, 0; size > 0 && ctx.Err() == nil; n++ {
		answer, err := c.nc.Request(c.fillSubject(stream, fmt.Sprint(n)), make([]byte, size), limit)
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if strings.Contains(string(answer.Data), `"error"`) {
			size /= 2
		}
	}
	return nil
}

// recovers checks that a new process gets the lock and all partitions.
func (c *bucketChaos) recovers() {
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	opened := false
	for !opened && ctx.Err() == nil { // live returns if it cannot open a bus
		c.live(ctx, false, func(bus *adapter.Bus) {
			opened = true
			lock := jetbus.Lock{Key: "leader", TTL: shortTTL}
			must(c.T, lock.Hold(ctx, bus, func(held context.Context, h jetbus.Held) (bool, error) {
				c.begin(held, holdersStream, "the lock", h.Epoch)()
				return true, nil
			}))
			c.getsAllPartitions(ctx, bus)
		})
	}
	if !opened {
		c.Errorf("no bus could be opened within %v after the faults", limit)
	}
}

// getsAllPartitions checks that a new member gets all partitions before ctx ends.
func (c *bucketChaos) getsAllPartitions(ctx context.Context, bus *adapter.Bus) {
	assigned := make(chan int)
	m, err := partition.Join(ctx, bus, "chaos/members", func(owned context.Context, turn *partition.Turn) (bool, error) {
		c.begin(owned, groupsStream, fmt.Sprintf("partition %d", turn.Partition), turn.Epoch)()
		select {
		case assigned <- turn.Partition:
		case <-owned.Done():
		case <-turn.Revoked():
		}
		select {
		case <-owned.Done():
		case <-turn.Revoked():
		}
		return true, nil
	}, partition.Options{Partitions: bucketParts, TTL: shortTTL})
	must(c.T, err)
	seen := map[int]bool{} // a partition can be assigned more than once
	for len(seen) < bucketParts && ctx.Err() == nil {
		select {
		case p := <-assigned:
			seen[p] = true
		case <-ctx.Done():
		}
	}
	if len(seen) < bucketParts {
		c.Errorf("a new member has %d of %d partitions after the faults", len(seen), bucketParts)
		return // the bus is closed, and the member with it
	}
	must(c.T, m.Stop(ctx))
}

// In a cluster, a bucket that the bus has filled still lets a lock be renewed, released and acquired
// again. A server with replicas refuses every write to a full stream, so this uses the bus's reserve.
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
