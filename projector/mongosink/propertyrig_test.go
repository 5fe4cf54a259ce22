package mongosink_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
)

// world is what all scenes share: a broker, and a server with a database.
type world struct {
	testing.TB
	broker *embedded.Broker
	bus    *adapter.Bus // of the test
	db     *mongo.Database
	server *mongod.Server // nil: a real one, which cannot be told to fail
	elect  sync.Mutex     // held while the server is no primary

	mu     sync.Mutex
	faults map[string][]mongoFault // by collection, for the next updates
}

// mongoFault is what the server does instead of answering an update.
type mongoFault string

const (
	cutBefore  mongoFault = "the connection is cut before the update"
	cutAfter   mongoFault = "the reply of an update is lost"
	notPrimary mongoFault = "the server is no primary"
)

func newWorld(t testing.TB) *world {
	t.Helper()
	r := newRig(t)
	w := &world{TB: t, broker: bustest.Start(t, embedded.Config{}), db: r.db, server: r.srv.StandIn(), faults: map[string][]mongoFault{}}
	w.bus = bustest.Open(t, w.broker, adapter.Config{Timeout: time.Minute})
	if w.server != nil {
		w.server.OnCommand(func(c mongod.Command) error {
			switch w.fault(c, cutBefore, notPrimary) {
			case cutBefore:
				return mongod.ErrCut
			case notPrimary:
				return &mongod.CommandError{Code: 10107, Message: "not primary"}
			case cutAfter: // not asked for
			}
			return nil
		})
		w.server.OnReply(func(c mongod.Command) error {
			if w.fault(c, cutAfter) != "" {
				return mongod.ErrCut
			}
			return nil
		})
	}
	return w
}

// fault takes the collection's next fault, if it is one of these.
func (w *world) fault(c mongod.Command, kinds ...mongoFault) mongoFault {
	if c.Name != "update" {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	next := w.faults[c.Collection]
	if len(next) == 0 {
		return ""
	}
	for _, kind := range kinds {
		if next[0] == kind {
			w.faults[c.Collection] = next[1:]
			return kind
		}
	}
	return ""
}

// plan adds a fault to those that wait for a collection's updates.
func (w *world) plan(collection string, f mongoFault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[collection] = append(w.faults[collection], f)
}

func (w *world) forget(collection string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.faults, collection)
}

// stepDown takes the primary away for a moment, from all scenes.
func (w *world) stepDown() {
	if w.server == nil {
		return
	}
	w.elect.Lock()
	defer w.elect.Unlock()
	w.server.StepDown()
	defer w.server.StepUp()
	time.Sleep(5 * time.Millisecond)
}

// sinkFault is what happens to one Write of a replica's sink.
type sinkFault string

const (
	failBefore sinkFault = "the write fails"
	failHalf   sinkFault = "half of the batch is written, and the write fails"
	failAfter  sinkFault = "the batch is written, and the write fails all the same"
	slow       sinkFault = "the write is slow"
	dieBefore  sinkFault = "the replica dies before the write"
	dieHalf    sinkFault = "the replica dies when half of the batch is written"
	dieAfter   sinkFault = "the replica dies between the write and its acks"
	zombie     sinkFault = "the replica dies, and writes when others have its events"
)

// ackTimeout is that of the projections: what a replica that died holds is with
// others after that time.
const ackTimeout = time.Second

// replica is one of a scene's projection, with connections of its own.
type replica struct {
	name string
	note func(format string, args ...any) // takes down what it does
	nc   *nats.Conn
	bus  *adapter.Bus
	sink projector.Sink
	p    *projector.Projection

	mu     sync.Mutex
	faults []sinkFault // of the next writes
	rng    *rand.Rand
	dead   atomic.Bool
}

var errPlanned = errors.New("planned to fail")

// start starts a replica. What fails because of a planned fault is tried again.
func (w *world) start(ctx context.Context, r *replica, o projector.Options, so mongosink.Options) error {
	var err error
	if r.nc, err = w.broker.Connect(); err != nil {
		return err
	}
	if r.bus, err = adapter.Open(ctx, r.nc, adapter.Config{Timeout: time.Minute}); err != nil {
		return err
	}
	for {
		if r.sink, err = mongosink.New(w.db, so); err != nil {
			return err
		}
		r.p, err = projector.Start(ctx, r.bus, r, o)
		if err == nil || ctx.Err() != nil || errors.Is(err, jetbus.ErrInvalidOption) {
			return err
		}
		time.Sleep(20 * time.Millisecond) // the server is away for a moment
	}
}

// crash takes the replica's connection to the broker away: nothing is settled any
// more. Nor is anything written, as if its process were gone.
func (r *replica) crash() {
	r.dead.Store(true)
	r.nc.Close()
}

// stop ends the replica in order.
func (r *replica) stop(ctx context.Context) error {
	err := r.p.Stop(ctx)
	cerr := r.bus.Close(ctx)
	r.nc.Close()
	if r.dead.Load() {
		return nil
	}
	return errors.Join(err, r.p.Err(), cerr)
}

// plan adds a fault to those that wait for the replica's writes.
func (r *replica) plan(f sinkFault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, f)
}

func (r *replica) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = nil
}

// next takes the next fault, and a wait that goes with it.
func (r *replica) next() (sinkFault, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.faults) == 0 {
		return "", 0
	}
	f := r.faults[0]
	r.faults = r.faults[1:]
	return f, time.Duration(r.rng.IntN(30)) * time.Millisecond
}

// Open is that of the real sink.
func (r *replica) Open(ctx context.Context, s projector.Source) (projector.Position, error) {
	return r.sink.Open(ctx, s)
}

// Write is that of the real sink, with the next fault.
func (r *replica) Write(ctx context.Context, b projector.Batch) (out projector.Outcome, err error) {
	if r.dead.Load() {
		return projector.Outcome{}, errPlanned
	}
	fault, wait := r.next()
	began := time.Now()
	defer func() {
		var changes strings.Builder
		for i := range b.Changes {
			fmt.Fprintf(&changes, " %s@%d", b.Changes[i].Key, b.Changes[i].Event.Seq)
		}
		r.note("%s writes%s, up to %d, since %v, %s: %+v, %v", r.name, changes.String(), b.UpTo, time.Since(began), fault, out, err)
	}()
	switch fault {
	case failBefore:
		return projector.Outcome{}, errPlanned
	case failHalf, dieHalf:
		if n := len(b.Changes) / 2; n > 0 {
			_, _ = r.sink.Write(ctx, projector.Batch{Changes: b.Changes[:n]})
		}
		if fault == dieHalf {
			r.crash()
		}
		return projector.Outcome{}, errPlanned
	case failAfter:
		_, _ = r.sink.Write(ctx, b)
		return projector.Outcome{}, errPlanned
	case slow:
		time.Sleep(wait)
	case dieBefore:
		r.crash()
		return projector.Outcome{}, errPlanned
	case dieAfter:
		defer r.crash()
	case zombie:
		r.crash()
		time.Sleep(ackTimeout + 500*time.Millisecond + 10*wait)
		ctx = context.WithoutCancel(ctx)
	}
	return r.sink.Write(ctx, b)
}
