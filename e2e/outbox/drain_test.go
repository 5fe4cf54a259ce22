//go:build unix

package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// TestRollback publishes what was committed, and nothing of what was not.
func TestRollback(t *testing.T) {
	onDatabases(t, func(r *rig) {
		bus := r.startBus()
		r.drain(r.box, bus, jetbus.DrainOptions{})
		tx, err := r.begin(r.Context())
		r.ok(err)
		r.ok(tx.add(r.Context(), r.box, order("lost", "a"), order("lost too", "")))
		r.ok(tx.rollback(r.Context()))
		r.add(order("kept", "a"))
		r.untilEmpty()
		r.want("stored", r.stored(bus), ids{"a/kept"})
	})
}

// TestEventTravels publishes an event as it was added.
func TestEventTravels(t *testing.T) {
	onDatabases(t, func(r *rig) {
		bus := r.startBus()
		at := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
		want := jetbus.Event{
			ID: "o-7", SID: "till", Topic: "orders", Key: "é/7", Time: at, Partition: jetbus.NoPartition,
			Headers: map[string]string{"x-shop": "north", "content-type": "text/plain"}, Payload: []byte("a\x00\xff"),
			Tags: []string{"new", "a,b"}, CausedBy: []string{"visit"}, Seq: 1,
		}
		r.add(want, jetbus.Event{Topic: "orders"})
		d, stop := r.drain(r.box, bus, jetbus.DrainOptions{})
		r.untilEmpty()
		stop()
		var got []jetbus.Event
		for e, err := range bus.Scan(r.Context(), "orders", jetbus.ScanQuery{}) {
			r.ok(err)
			got = append(got, e)
		}
		want.Stored = got[0].Stored
		r.want("event", got[0], want)
		if e := got[1]; e.ID == "" || time.Since(e.Time) > time.Hour || len(e.Payload) > 0 {
			r.Errorf("an event with nothing but a topic: %+v", e)
		}
		r.want("published", d.Stats().Published, uint64(2))
	})
}

// TestLateCommit sends a row whose number is older than what was sent before.
func TestLateCommit(t *testing.T) {
	onDatabases(t, func(r *rig) {
		bus := r.startBus()
		d, _ := r.drain(r.box, bus, jetbus.DrainOptions{PollMin: time.Minute, PollMax: time.Minute})
		if r.parallel() {
			old, err := r.begin(r.Context())
			r.ok(err)
			r.ok(old.add(r.Context(), r.box, order("old", "a")))
			r.add(order("new", "b"))
			d.Kick()
			r.untilEmpty()
			r.ok(old.commit(r.Context()))
		} else { // has one writer at a time
			r.add(order("new", "b"))
			d.Kick()
			r.untilEmpty()
			_, err := r.database.(*sqlDatabase).db.ExecContext(r.Context(), `INSERT INTO outbox (pos, id, topic, "key") VALUES (-7, 'old', 'orders', 'a')`)
			r.ok(err)
		}
		d.Kick()
		r.untilEmpty()
		r.want("stored", r.stored(bus), ids{"b/new", "a/old"})
	})
}

// meeting is a bus that publishes nothing for one until all have something.
type meeting struct {
	jetbus.Batcher

	once sync.Once
	all  *sync.WaitGroup
}

func (m *meeting) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	m.once.Do(m.all.Done)
	m.all.Wait()
	return m.Batcher.PublishBatch(ctx, events, o)
}

// TestTwoDrainers share the work: each row is published by one of them.
func TestTwoDrainers(t *testing.T) {
	onDatabases(t, func(r *rig) {
		rows := 400
		if r.quick() {
			rows = 2000
		}
		bus := r.startBus()
		var events []jetbus.Event
		for i := range rows {
			events = append(events, order(fmt.Sprintf("%05d", i), fmt.Sprint("k", i%20)))
		}
		var both sync.WaitGroup
		both.Add(2)
		a, _ := r.drain(r.box, &meeting{Batcher: bus, all: &both}, jetbus.DrainOptions{Window: 10})
		b, _ := r.drain(r.openBox(outbox.Options{}), &meeting{Batcher: bus, all: &both}, jetbus.DrainOptions{Window: 10})
		for len(events) > 0 {
			r.add(events[:100]...)
			events = events[100:]
		}
		r.untilEmpty()
		r.until("it is counted", func() bool { return a.Stats().Published+b.Stats().Published == uint64(rows) })
		r.inOrder(r.stored(bus), rows)
		sa, sb := a.Stats(), b.Stats()
		if sa.Published == 0 || sb.Published == 0 || sa.Duplicates+sb.Duplicates > 0 {
			r.Errorf("published %d and %d, of them twice %d", sa.Published, sb.Published, sa.Duplicates+sb.Duplicates)
		}
	})
}

// forgetful is an outbox whose drainer dies before it notes what was sent.
type forgetful struct {
	jetbus.Outbox

	forgot atomic.Int64
}

func (f *forgetful) Sent(_ context.Context, rows []jetbus.OutboxRow) error {
	f.forgot.Add(int64(len(rows)))
	return nil
}

// TestCrashBeforeSent publishes rows again, which stores nothing.
func TestCrashBeforeSent(t *testing.T) {
	onDatabases(t, func(r *rig) {
		bus := r.startBus()
		r.add(order("1", "a"), order("2", "a"), order("3", ""))
		f := &forgetful{Outbox: r.box}
		_, stop := r.drain(f, bus, jetbus.DrainOptions{Lease: time.Second})
		r.until("they are published", func() bool { return f.forgot.Load() >= 3 })
		stop()
		r.want("pending", r.pending(), 3)
		d, _ := r.drain(r.box, bus, jetbus.DrainOptions{})
		r.untilEmpty()
		r.inOrder(r.stored(bus), 3)
		r.until("it is counted", func() bool { return d.Stats().Duplicates == 3 })
	})
}

// slow is a bus that takes its time.
type slow struct {
	jetbus.Batcher

	entered chan struct{} // told of each batch
	leave   chan struct{} // closed to let them go
}

func (s *slow) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	s.entered <- struct{}{}
	<-s.leave // whatever ctx says
	return s.Batcher.PublishBatch(context.WithoutCancel(ctx), events, o)
}

// TestExpiresWhilePublishing has a drainer that publishes for longer than its lease, so
// that another one does its work; what it publishes in the end is there already.
func TestExpiresWhilePublishing(t *testing.T) {
	onDatabases(t, func(r *rig) {
		bus := r.startBus()
		r.add(order("1", "a"), order("2", "a"))
		s := &slow{Batcher: bus, entered: make(chan struct{}, 10), leave: make(chan struct{})}
		d, stop := r.drain(r.box, s, jetbus.DrainOptions{Lease: time.Second})
		<-s.entered
		_, stopOther := r.drain(r.box, bus, jetbus.DrainOptions{})
		r.untilEmpty()
		stopOther()
		r.add(order("3", "a"))
		close(s.leave)
		r.untilEmpty()
		stop()
		r.want("stored", r.stored(bus), ids{"a/1", "a/2", "a/3"})
		if n := d.Stats().Duplicates; n == 0 {
			r.Error("the slow one published nothing twice")
		}
	})
}

// TestPoison sets a row aside, which holds back its key and nothing else, until somebody mends it.
func TestPoison(t *testing.T) {
	onDatabases(t, func(r *rig) {
		bus := r.startBus()
		d, _ := r.drain(r.box, bus, jetbus.DrainOptions{})
		r.add(jetbus.Event{ID: "1", Topic: "unknown", Key: "a"}, jetbus.Event{ID: "2", Topic: "unknown", Key: "a"}, order("3", "a"))
		r.until("one is dead", func() bool { return d.Stats().Dead == 1 })
		r.until("the other topic goes on", func() bool { return r.pending() == 1 })
		r.want("rows", r.list(outbox.Query{}), ids{"1 dead 1", "2 pending 0"})
		rows, err := r.box.List(r.Context(), outbox.Query{State: outbox.Dead})
		r.ok(err)
		if !strings.Contains(rows[0].LastError, jetbus.ErrNoTopic.Error()) {
			r.Errorf("the row says %q", rows[0].LastError)
		}
		_, err = bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "unknown"})
		r.ok(err)
		n, err := r.box.Retry(r.Context(), outbox.Query{Topic: "unknown", State: outbox.Dead})
		r.ok(err)
		r.want("retried", n, 1)
		r.untilEmpty()
		info, err := bus.TopicInfo(r.Context(), "unknown")
		r.ok(err)
		r.want("events of the topic", int(info.Events), 2)
	})
}

// TestRowsByHand sends what a trigger inserts, and sets aside what is no event.
func TestRowsByHand(t *testing.T) {
	onDatabases(t, func(r *rig) {
		bus := r.startBus()
		r.ok(r.byHand(r.Context()))
		d, _ := r.drain(r.box, bus, jetbus.DrainOptions{})
		r.untilEmpty()
		r.want("stored", r.stored(bus), ids{"1", "a/2"})
		r.want("left", r.list(outbox.Query{}), ids{"3 dead 1", "4 dead 1", " dead 1"})
		r.until("it is counted", func() bool { return d.Stats().Errors[jetbus.DrainPoison] == 3 })
	})
}

// TestAddRefuses checks events inside of the transaction, all before the first is written.
func TestAddRefuses(t *testing.T) {
	onDatabases(t, func(r *rig) {
		errSchema := errors.New("no total")
		b := r.openBox(outbox.Options{MaxBytes: 2000, Check: func(_ context.Context, e jetbus.Event) error {
			switch string(e.Payload) {
			case "schema":
				return fmt.Errorf("%w: %w", jetbus.ErrSchema, errSchema)
			case "panic":
				panic("no")
			}
			return nil
		}})
		for _, c := range []struct {
			name string
			bad  jetbus.Event
			want error
		}{
			{"topic", jetbus.Event{Topic: "Orders"}, jetbus.ErrInvalidTopic},
			{"key", jetbus.Event{Topic: "orders", Key: "\n"}, jetbus.ErrInvalidEvent},
			{"header", jetbus.Event{Topic: "orders", Headers: map[string]string{"Nats-Rollup": "all"}}, jetbus.ErrInvalidHeader},
			{"size", jetbus.Event{Topic: "orders", Payload: make([]byte, 2000)}, jetbus.ErrPayloadTooLarge},
			{"schema", jetbus.Event{Topic: "orders", Payload: []byte("schema")}, errSchema},
		} {
			r.wantErr(c.name, r.tryAddTo(r.Context(), b, order("good", ""), c.bad), c.want)
			if b, ok := b.(*outbox.Box); ok {
				_, _, err := b.Insert(r.Context(), c.bad)
				r.wantErr("insert "+c.name, err, c.want)
			}
		}
		err := r.tryAddTo(r.Context(), b, jetbus.Event{Topic: "orders", Payload: []byte("panic")})
		if _, ok := errors.AsType[*jetbus.PanicError](err); !ok {
			r.Errorf("a panic of Check is %v", err)
		}
		if b, ok := b.(*outbox.Box); ok {
			r.wantErr("no transaction", b.Add(r.Context(), nil, order("good", "")), jetbus.ErrInvalidOption)
			_, _, err = b.Insert(r.Context())
			r.wantErr("no events", err, jetbus.ErrInvalidOption)
		}
		r.want("rows", r.list(outbox.Query{}), ids{})
		var many []jetbus.Event
		for i := range 1001 {
			many = append(many, order(fmt.Sprintf("%04d", i), "a"))
		}
		r.ok(r.tryAddTo(r.Context(), b, many...))
		r.want("rows of three statements", r.pending(), 1001)
		if err := r.tryAddTo(r.Context(), b, order("0007", "a")); err == nil {
			r.Error("an id twice is no error")
		}
		got, _ := r.claim(r.box, 1000, time.Minute)
		r.want("last", got[999], "0999")
	})
}

// TestKeep keeps rows for a while after they were sent.
func TestKeep(t *testing.T) {
	onDatabases(t, func(r *rig) {
		b := r.openBox(outbox.Options{Keep: 50 * time.Millisecond})
		r.add(order("1", "a"), order("2", "a"))
		_, rows := r.claim(b, 1, time.Minute)
		r.ok(b.Sent(r.Context(), rows))
		r.want("kept", r.list(outbox.Query{State: outbox.Sent}), ids{"1 sent 0"})
		kept, err := r.openBox(outbox.Options{Keep: time.Hour}).Clean(r.Context())
		r.ok(err)
		r.want("cleaned too early", kept, 0)
		r.until("it is cleaned", func() bool {
			n, err := b.Clean(r.Context())
			r.ok(err)
			return n == 1
		})
		r.want("what is left", r.list(outbox.Query{}), ids{"2 pending 0"})
		s, err := b.OutboxStats(r.Context())
		r.ok(err)
		if s.Pending != 1 || s.Dead != 0 || s.Age <= 0 || s.Age > time.Hour {
			r.Errorf("stats %+v", s)
		}
		_, err = r.box.List(r.Context(), outbox.Query{State: "lost"})
		r.wantErr("state", err, jetbus.ErrInvalidOption)
	})
}

// TestOpenRefuses names what is wrong with a database.
func TestOpenRefuses(t *testing.T) {
	onSQL(t, func(r *rig, d *sqlDatabase) {
		_, err := d.db.ExecContext(r.Context(), `CREATE TABLE legacy (id TEXT, topic TEXT, "key" TEXT, payload TEXT, state INTEGER)`)
		r.ok(err)
		other := outbox.PostgreSQL
		if d.dialect == other {
			other = outbox.SQLite
		}
		for _, c := range []struct {
			o    outbox.Options
			want error
			says string
		}{
			{outbox.Options{Dialect: "mysql"}, jetbus.ErrInvalidOption, `"mysql"`},
			{outbox.Options{Dialect: d.dialect, Table: "a; DROP TABLE b"}, jetbus.ErrInvalidOption, "DROP"},
			{outbox.Options{Dialect: d.dialect, MaxBytes: -2}, jetbus.ErrInvalidOption, "MaxBytes"},
			{outbox.Options{Dialect: d.dialect, Keep: -2}, jetbus.ErrInvalidOption, "Keep"},
			{outbox.Options{Dialect: d.dialect, Table: "missing"}, outbox.ErrNoTable, "missing"},
			{outbox.Options{Dialect: d.dialect, Table: "legacy"}, jetbus.ErrConflict, "column due_at is missing"},
			{outbox.Options{Dialect: d.dialect, Table: "legacy"}, jetbus.ErrConflict, "column state is integer, not text"},
			{outbox.Options{Dialect: other}, jetbus.ErrUnsupported, string(other)},
		} {
			_, err := outbox.Open(r.Context(), d.db, c.o)
			r.wantErr(fmt.Sprintf("%+v", c.o), err, c.want)
			if err != nil && !strings.Contains(err.Error(), c.says) {
				r.Errorf("the error %q does not say %q", err, c.says)
			}
		}
	})
}
