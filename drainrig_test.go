package jetbus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// memoryBox is an outbox without a database, by the clock of the test.
type memoryBox struct {
	mu     sync.Mutex
	rows   []*memoryRow // in their order
	claims int
	asked  []jetbus.ClaimOptions
	broken error // what every method returns; nil: they work
}

type memoryRow struct {
	jetbus.OutboxRow

	due   time.Time
	added time.Time
	dead  bool
	last  error
}

func (b *memoryBox) add(events ...jetbus.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range events {
		if e.ID == "" {
			e.ID = jetbus.NewID()
		}
		b.rows = append(b.rows, &memoryRow{OutboxRow: jetbus.OutboxRow{Ref: e.Topic + "|" + e.ID, Event: e}, added: time.Now()})
	}
}

func (b *memoryBox) breaks(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = err
}

func (b *memoryBox) Claim(_ context.Context, o jetbus.ClaimOptions) ([]jetbus.OutboxRow, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, o)
	if b.broken != nil {
		return nil, b.broken
	}
	b.claims++
	waits := map[string]bool{}
	var out []jetbus.OutboxRow
	for _, r := range b.rows {
		lane := r.Event.Topic + "|" + r.Event.Key
		if r.dead || time.Now().Before(r.due) || slices.Contains(o.SkipTopics, r.Event.Topic) || len(out) == o.Max || waits[lane] {
			waits[lane] = r.Event.Key != ""
			continue
		}
		r.due, r.Claim = time.Now().Add(o.Lease), strconv.Itoa(b.claims)
		out = append(out, r.OutboxRow)
	}
	return out, nil
}

// change calls f for the rows that are still there.
func (b *memoryBox) change(rows []jetbus.OutboxRow, anyClaim bool, f func(i int, r *memoryRow)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return b.broken
	}
	for i, row := range rows {
		at := slices.IndexFunc(b.rows, func(r *memoryRow) bool { return r.Ref == row.Ref })
		if at >= 0 && (anyClaim || b.rows[at].Claim == row.Claim) {
			f(i, b.rows[at])
		}
	}
	return nil
}

func (b *memoryBox) Sent(_ context.Context, rows []jetbus.OutboxRow) error {
	return b.change(rows, true, func(_ int, r *memoryRow) {
		b.rows = slices.DeleteFunc(b.rows, func(other *memoryRow) bool { return other == r })
	})
}

func (b *memoryBox) Release(_ context.Context, rows []jetbus.OutboxRow) error {
	return b.change(rows, false, func(_ int, r *memoryRow) { r.due, r.Claim = time.Time{}, "" })
}

func (b *memoryBox) Failed(_ context.Context, failures []jetbus.OutboxFailure) error {
	rows := make([]jetbus.OutboxRow, len(failures))
	for i := range failures {
		rows[i] = failures[i].Row
	}
	return b.change(rows, false, func(i int, r *memoryRow) {
		f := failures[i]
		r.Claim, r.Attempts, r.dead, r.last, r.due = "", r.Attempts+1, f.Dead, f.Err, time.Now().Add(f.RetryIn)
	})
}

func (b *memoryBox) OutboxStats(context.Context) (jetbus.OutboxStats, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.broken != nil {
		return jetbus.OutboxStats{}, b.broken
	}
	var s jetbus.OutboxStats
	for _, r := range b.rows {
		if r.dead {
			s.Dead++
			continue
		}
		s.Pending++
		s.Age = max(s.Age, time.Since(r.added))
	}
	return s, nil
}

// lastAsked returns what the last n claims asked for.
func (b *memoryBox) lastAsked(n int) []jetbus.ClaimOptions {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.asked[max(len(b.asked)-n, 0):])
}

// claimed counts the claims that were answered.
func (b *memoryBox) claimed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.claims
}

// left lists what is in the outbox: "a" pending, "a!" dead, with "3" failed attempts.
func (b *memoryBox) left() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := []string{}
	for _, r := range b.rows {
		text := r.Event.ID
		if r.dead {
			text += "!"
		}
		if r.Attempts > 0 {
			text += strconv.Itoa(r.Attempts)
		}
		out = append(out, text)
	}
	return out
}

// memoryLog is a bus that stores what it is given, but for what refuse refuses.
type memoryLog struct {
	mu      sync.Mutex
	ids     []string        // stored, in their order
	batches [][]string      // as they came
	known   map[string]bool // ids
	// refuse says why an event is not stored once it was sent; nil: it is.
	refuse func(e jetbus.Event) error
	// check says why a batch is not sent at all.
	check func(e jetbus.Event) error
	// hang is closed when batches may go on; nil: at once.
	hang chan struct{}
}

func (l *memoryLog) PublishBatch(ctx context.Context, events []jetbus.Event, _ jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	l.mu.Lock()
	hang := l.hang
	l.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var came []string
	for i, e := range events {
		came = append(came, e.ID)
		if l.check != nil {
			if err := l.check(e); err != nil {
				return nil, fmt.Errorf("event %d: %w", i, err)
			}
		}
	}
	l.batches = append(l.batches, came)
	receipts := make([]jetbus.Receipt, len(events))
	for i, e := range events {
		if l.refuse != nil {
			if err := l.refuse(e); err != nil {
				return receipts, l.failed(events[i:], len(events), err)
			}
		}
		if l.known == nil {
			l.known = map[string]bool{}
		}
		receipts[i] = jetbus.Receipt{Event: e, Duplicate: l.known[e.ID]}
		receipts[i].Event.Seq = uint64(len(l.ids) + 1)
		if !l.known[e.ID] {
			l.known[e.ID] = true
			l.ids = append(l.ids, e.ID)
		}
	}
	return receipts, nil
}

func (l *memoryLog) failed(events []jetbus.Event, total int, err error) error {
	out := &jetbus.BatchError{Total: total}
	for _, e := range events {
		out.Failed = append(out.Failed, &jetbus.PublishError{Event: e, Err: err})
	}
	return out
}

func (l *memoryLog) stored() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ids)
}

// tried counts the batches that were sent.
func (l *memoryLog) tried() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.batches)
}

func (l *memoryLog) setRefuse(f func(e jetbus.Event) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = f
}

// orderRow is an event of the topic orders.
func orderRow(id, key string) jetbus.Event {
	return jetbus.Event{ID: id, Topic: "orders", Key: key, Payload: []byte("{}")}
}

// drained runs a drainer until the test ends or stop is called.
func drained(t *testing.T, from jetbus.Outbox, to jetbus.Batcher, o jetbus.DrainOptions) (d *jetbus.Drainer, stop func() error) {
	t.Helper()
	d, err := jetbus.NewDrainer(from, to, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- d.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() { _ = stop() })
	return d, stop
}

var errFlaky = errors.New("flaky")
