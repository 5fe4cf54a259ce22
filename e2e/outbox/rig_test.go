//go:build unix

package outbox

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// limit bounds every wait. It only matters where a test fails.
const limit = 2 * time.Minute

// postgresURI is where PostgreSQL is; empty: it is not asked for.
var postgresURI string

func TestMain(m *testing.M) {
	child.Main(map[string]child.Role{"drainer": runDrainer})
	flag.Parse()
	stop := func() {}
	if *withPostgres {
		var err error
		if postgresURI, stop, err = startPostgres(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	stop()
	os.Exit(code)
}

// box is what both implementations have.
type box interface {
	jetbus.Outbox
	jetbus.OutboxCleaner
	List(ctx context.Context, q outbox.Query) ([]outbox.Row, error)
	Retry(ctx context.Context, q outbox.Query) (int, error)
	Kill(ctx context.Context, q outbox.Query) (int, error)
	Remove(ctx context.Context, q outbox.Query) (int, error)
}

// database has the outbox of one test.
type database interface {
	open(ctx context.Context, o outbox.Options) (box, error)
	begin(ctx context.Context) (transaction, error)
	// backlog inserts rows of one key, whose ids are the numbers from first to last.
	backlog(ctx context.Context, first, last int) error
	// byHand inserts rows 1 and 2, which are events, and three that are none, as programs
	// do that do not know the package.
	byHand(ctx context.Context) error
	parallel() bool // transactions write at the same time
	quick() bool    // with thousands of rows
	drainer() drainerConfig
}

type transaction interface {
	add(ctx context.Context, b box, events ...jetbus.Event) error
	commit(ctx context.Context) error
	rollback(ctx context.Context) error
}

// onDatabases runs a test on each database there is.
func onDatabases(t *testing.T, test func(r *rig)) {
	onSQL(t, func(r *rig, _ *sqlDatabase) { test(r) })
	onMongo(t, test)
}

// rig is a database with an outbox, and a broker.
type rig struct {
	*testing.T
	database

	box box

	claiming atomic.Int64 // how long the last claim of workOn took, in nanoseconds
}

func newRig(t *testing.T, d database) *rig {
	t.Helper()
	r := &rig{T: t, database: d}
	r.box = r.openBox(outbox.Options{})
	return r
}

func (r *rig) openBox(o outbox.Options) box {
	r.Helper()
	b, err := r.open(r.Context(), o)
	r.ok(err)
	return b
}

// startBus starts a broker with the topic orders.
func (r *rig) startBus() *adapter.Bus {
	r.Helper()
	broker, err := embedded.Start(r.Context(), embedded.Config{})
	r.ok(err)
	nc, err := broker.Connect()
	r.ok(err)
	bus, err := adapter.Open(r.Context(), nc, adapter.Config{})
	r.ok(err)
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		err := bus.Close(ctx)
		nc.Close()
		if err := errors.Join(err, broker.Stop(ctx)); err != nil {
			r.Error(err)
		}
	})
	_, err = bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "orders"})
	r.ok(err)
	return bus
}

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) wantErr(what string, err, want error) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("%s: got error %v, want one that is %q", what, err, want)
	}
}

// order is an event of the topic orders.
func order(id, key string) jetbus.Event {
	return jetbus.Event{ID: id, Topic: "orders", Key: key, Payload: []byte(`{"id":"` + id + `"}`)}
}

// add commits events, one transaction for all.
func (r *rig) add(events ...jetbus.Event) {
	r.Helper()
	r.ok(r.tryAdd(r.Context(), events...))
}

func (r *rig) tryAdd(ctx context.Context, events ...jetbus.Event) error {
	return r.tryAddTo(ctx, r.box, events...)
}

func (r *rig) tryAddTo(ctx context.Context, b box, events ...jetbus.Event) error {
	tx, err := r.begin(ctx)
	if err != nil {
		return err
	}
	if err := tx.add(ctx, b, events...); err != nil {
		return errors.Join(err, tx.rollback(ctx))
	}
	return tx.commit(ctx)
}

// drain runs a drainer until stop is called.
func (r *rig) drain(from jetbus.Outbox, to jetbus.Batcher, o jetbus.DrainOptions) (d *jetbus.Drainer, stop func()) {
	r.Helper()
	if o.PollMin == 0 {
		o.PollMin, o.PollMax = 10*time.Millisecond, 50*time.Millisecond
	}
	d, err := jetbus.NewDrainer(from, to, o)
	r.ok(err)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-result; err != nil {
			r.Errorf("Run: %v", err)
		}
	})
	r.Cleanup(stop)
	return d, stop
}

// until waits for a condition.
func (r *rig) until(what string, is func() bool) {
	r.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			r.Fatalf("waited %v until %s", limit, what)
		}
	}
}

// pending counts.
func (r *rig) pending() int {
	r.Helper()
	s, err := r.box.OutboxStats(r.Context())
	r.ok(err)
	return s.Pending
}

func (r *rig) untilEmpty() {
	r.Helper()
	r.until("nothing is pending", func() bool { return r.pending() == 0 })
}

// stored returns the ids of the topic, in its order, "key/id" where there is a key.
func (r *rig) stored(bus *adapter.Bus) []string {
	r.Helper()
	var ids []string
	for e, err := range bus.Scan(r.Context(), "orders", jetbus.ScanQuery{}) {
		r.ok(err)
		if e.Key != "" {
			e.ID = e.Key + "/" + e.ID
		}
		ids = append(ids, e.ID)
	}
	return ids
}

// inOrder reports keys whose ids do not ascend, and ids that are there twice.
func (r *rig) inOrder(stored []string, want int) {
	r.Helper()
	last := map[string]string{}
	for _, s := range stored {
		key, id, ok := strings.Cut(s, "/")
		if ok && id <= last[key] {
			r.Errorf("key %s: %s behind %s", key, id, last[key])
		}
		last[key] = id
	}
	unique := slices.Compact(slices.Sorted(slices.Values(stored)))
	if len(unique) != want || len(stored) != want {
		r.Errorf("%d stored, %d of them different, want %d", len(stored), len(unique), want)
	}
}

// claim takes rows and returns their ids.
func (r *rig) claim(b jetbus.Outbox, n int, lease time.Duration, skip ...string) (ids []string, rows []jetbus.OutboxRow) {
	r.Helper()
	rows, err := b.Claim(r.Context(), jetbus.ClaimOptions{Max: n, Lease: lease, SkipTopics: skip})
	r.ok(err)
	ids = []string{}
	for i := range rows {
		ids = append(ids, rows[i].Event.ID)
	}
	return ids, rows
}

// list returns rows as "id state attempts".
func (r *rig) list(q outbox.Query) []string {
	r.Helper()
	rows, err := r.box.List(r.Context(), q)
	r.ok(err)
	out := []string{}
	for _, row := range rows {
		text := fmt.Sprintf("%s %s %d", row.Event.ID, row.State, row.Attempts)
		if !row.ClaimedUntil.IsZero() {
			text += " claimed"
		}
		out = append(out, text)
	}
	return out
}
