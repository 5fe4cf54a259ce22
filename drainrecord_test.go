package jetbus_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
)

// pickyBox is an outbox whose database refuses to change some rows.
type pickyBox struct {
	*memoryBox

	// failed and sent say why a row cannot be recorded as failed or as sent; nil: it can.
	failed func(f jetbus.OutboxFailure) error
	sent   func(id string) error
	counts error // of OutboxStats

	healed atomic.Bool // the database accepts all changes, and counts
}

func (b *pickyBox) Failed(ctx context.Context, failures []jetbus.OutboxFailure) error {
	var refused jetbus.OutboxRowsError
	for _, f := range failures {
		if err := b.failed(f); err != nil && !b.healed.Load() {
			refused.Add(f.Row.Ref, err)
		} else if err := b.memoryBox.Failed(ctx, []jetbus.OutboxFailure{f}); err != nil {
			return err
		}
	}
	return refused.OrNil()
}

func (b *pickyBox) Sent(ctx context.Context, rows []jetbus.OutboxRow) error {
	var refused jetbus.OutboxRowsError
	for _, row := range rows {
		if err := b.sent(row.Event.ID); err != nil && !b.healed.Load() {
			refused.Add(row.Ref, err)
		} else if err := b.memoryBox.Sent(ctx, []jetbus.OutboxRow{row}); err != nil {
			return err
		}
	}
	return refused.OrNil()
}

func (b *pickyBox) OutboxStats(ctx context.Context) (jetbus.OutboxStats, error) {
	if b.counts != nil && !b.healed.Load() {
		return jetbus.OutboxStats{}, b.counts
	}
	return b.memoryBox.OutboxStats(ctx)
}

var errRefused = errors.New("value \u2603 does not fit")

// TestDrainRecordsEachRowAlone has an outbox refuse to record single rows. The others are
// recorded, the drainer counts what is so, and Ready reports what is wrong.
func TestDrainRecordsEachRowAlone(t *testing.T) {
	hasSnow := func(f jetbus.OutboxFailure) error {
		if strings.Contains(f.Err.Error(), "\u2603") {
			return errRefused
		}
		return nil
	}
	for _, c := range []struct {
		name       string
		failed     func(f jetbus.OutboxFailure) error
		sent       func(id string) error
		refuse     error // what publishing b returns
		stored     []string
		left       []string
		dead       uint64
		unrecorded int
		ready      string // part of the error of Ready; empty: nil
	}{
		{
			name: "a reason that the database lacks characters for", failed: hasSnow, refuse: errors.Join(jetbus.ErrSchema, errRefused),
			stored: []string{"a", "c", "d"}, left: []string{"b!1", "e!1"}, dead: 2,
		},
		{
			name: "an attempt that cannot be recorded", failed: hasSnow, refuse: errRefused,
			stored: []string{"a", "c", "d"}, left: []string{"b!1", "e!1"}, dead: 2,
		},
		{
			name: "a row that cannot be changed", failed: func(f jetbus.OutboxFailure) error {
				if f.Row.Event.ID == "b" {
					return errRefused
				}
				return nil
			}, refuse: jetbus.ErrSchema,
			stored: []string{"a", "c", "d"}, left: []string{"b", "e!1"}, dead: 1, unrecorded: 1, ready: `id "b"`,
		},
		{
			name: "a published row that cannot be marked", sent: func(id string) error {
				if id == "a" {
					return errRefused
				}
				return nil
			}, refuse: jetbus.ErrSchema,
			stored: []string{"a", "c", "d"}, left: []string{"a!1", "b!1", "e!1"}, dead: 3,
		},
		{
			name: "a published row that cannot be changed", sent: func(id string) error {
				if id == "a" {
					return errRefused
				}
				return nil
			}, failed: func(f jetbus.OutboxFailure) error {
				if f.Row.Event.ID == "a" {
					return errRefused
				}
				return nil
			}, refuse: jetbus.ErrSchema,
			stored: []string{"a", "c", "d"}, left: []string{"a", "b!1", "e!1"}, dead: 2, unrecorded: 1, ready: `id "a"`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				box := &pickyBox{memoryBox: &memoryBox{}, failed: func(jetbus.OutboxFailure) error { return nil }, sent: func(string) error { return nil }}
				if c.failed != nil {
					box.failed = c.failed
				}
				if c.sent != nil {
					box.sent = c.sent
				}
				log := &memoryLog{check: func(e jetbus.Event) error {
					switch e.ID {
					case "b":
						return c.refuse
					case "e":
						return jetbus.ErrSchema
					}
					return nil
				}}
				box.add(orderRow("a", ""), orderRow("b", ""), orderRow("c", ""), orderRow("d", ""), orderRow("e", ""))
				d, stop := drained(t, box, log, jetbus.DrainOptions{})
				time.Sleep(2 * time.Minute)
				if diff := cmp.Diff(c.stored, log.stored()); diff != "" {
					t.Errorf("stored (-want +got):\n%s", diff)
				}
				if n := log.triedID("a"); n != 1 {
					t.Errorf("row a is published %d times", n)
				}
				if diff := cmp.Diff(c.left, box.left()); diff != "" {
					t.Errorf("left (-want +got):\n%s", diff)
				}
				s := d.Stats()
				if s.Dead != c.dead || s.Unrecorded != c.unrecorded || s.Outbox.Dead != int(c.dead) {
					t.Errorf("%d dead rows, %d unrecorded, %d dead in the outbox; want %d, %d, %d", s.Dead, s.Unrecorded, s.Outbox.Dead, c.dead, c.unrecorded, c.dead)
				}
				if err := d.Ready(); (err == nil) != (c.ready == "") || err != nil && (!errors.Is(err, errRefused) || !strings.Contains(err.Error(), c.ready)) {
					t.Errorf("Ready returns %v", err)
				}
				box.healed.Store(true)
				time.Sleep(2 * time.Minute)
				check(t, "Ready once the outbox accepts changes", d.Ready(), nil)
				check(t, "Run", stop(), nil)
			})
		})
	}
}

// triedID counts the batches that had an ID.
func (l *memoryLog) triedID(id string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, batch := range l.batches {
		if slices.Contains(batch, id) {
			n++
		}
	}
	return n
}

// TestDrainAttempts makes a row dead after its last attempt, whatever number the outbox has.
func TestDrainAttempts(t *testing.T) {
	for _, attempts := range []int{-1, 0, 18, 19, 20, 1<<31 - 1, 1 << 31, 1<<63 - 1} {
		synctest.Test(t, func(t *testing.T) {
			box, log := &memoryBox{}, &memoryLog{refuse: func(jetbus.Event) error { return errFlaky }}
			box.add(orderRow("a", ""))
			box.rows[0].Attempts = attempts
			d, stop := drained(t, box, log, jetbus.DrainOptions{})
			time.Sleep(3 * time.Hour)
			check(t, "Run", stop(), nil)
			if s := d.Stats(); s.Dead != 1 {
				t.Errorf("after %d attempts: %+v", attempts, s)
			}
		})
	}
}

// TestDrainNotCounted has Ready report an outbox whose rows cannot be counted, and one that
// cannot record failures while it answers claims.
func TestDrainNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := &pickyBox{memoryBox: &memoryBox{}, counts: errRefused, sent: func(string) error { return nil }}
		d, stop := drained(t, box, &memoryLog{}, jetbus.DrainOptions{})
		time.Sleep(time.Minute)
		check(t, "Ready", d.Ready(), errRefused)
		check(t, "Stats", d.Stats().Err, errRefused)
		box.healed.Store(true)
		time.Sleep(time.Minute)
		check(t, "Ready", d.Ready(), nil)
		check(t, "Run", stop(), nil)
	})
	synctest.Test(t, func(t *testing.T) {
		box := &failingBox{memoryBox: &memoryBox{}}
		box.add(orderRow("a", ""), orderRow("b", ""))
		d, stop := drained(t, box, &memoryLog{refuse: func(jetbus.Event) error { return jetbus.ErrSchema }}, jetbus.DrainOptions{})
		time.Sleep(time.Minute)
		check(t, "Ready", d.Ready(), errFlaky)
		if s := d.Stats(); s.Dead != 0 || s.Unrecorded != 2 {
			t.Errorf("stats %+v", s)
		}
		_ = stop()
	})
}

// failingBox is an outbox that cannot record failures.
type failingBox struct{ *memoryBox }

func (failingBox) Failed(context.Context, []jetbus.OutboxFailure) error { return errFlaky }

// TestDrainReleaseRefused has an outbox refuse to give back a row. That is no outage: the row is
// due again after the lease.
func TestDrainReleaseRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := &releaselessBox{memoryBox: &memoryBox{}}
		log := &memoryLog{refuse: func(jetbus.Event) error { return jetbus.ErrTopicFull }}
		box.add(orderRow("a", ""), orderRow("b", ""))
		d, stop := drained(t, box, log, jetbus.DrainOptions{StatsEvery: time.Second, PollMax: time.Hour, PollMin: time.Hour})
		time.Sleep(10 * time.Second)
		check(t, "Ready", d.Ready(), nil)
		if n := d.Stats().Errors[jetbus.DrainStore]; n != 0 || box.releases.Load() == 0 {
			t.Errorf("%d failures of the outbox, %d releases", n, box.releases.Load())
		}
		check(t, "Run", stop(), nil)
	})
}

// releaselessBox is an outbox that refuses to give back rows.
type releaselessBox struct {
	*memoryBox

	releases atomic.Int64
}

func (b *releaselessBox) Release(_ context.Context, rows []jetbus.OutboxRow) error {
	b.releases.Add(1)
	var refused jetbus.OutboxRowsError
	refused.Add(rows[0].Ref, errRefused)
	return &refused
}

// TestDrainUnreadableWithoutBroker makes a row dead that cannot be read, although the broker is
// away: an outbox may have it dead with the claim, and does not return it again.
func TestDrainUnreadableWithoutBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &memoryLog{check: func(jetbus.Event) error { return jetbus.ErrUnavailable }}
		box.add(orderRow("a", "k"), orderRow("b", "k"), orderRow("c", ""))
		box.rows[1].Err, box.rows[2].Err = jetbus.ErrInvalidEvent, jetbus.ErrInvalidEvent
		d, stop := drained(t, box, log, jetbus.DrainOptions{})
		time.Sleep(time.Second)
		if s := d.Stats(); s.Dead != 2 || s.BrokerAway.IsZero() {
			t.Errorf("%d dead rows, broker away since %v", s.Dead, s.BrokerAway)
		}
		_ = stop()
	})
}
