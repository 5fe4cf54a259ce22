package jetbus_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
)

func TestDrainOptions(t *testing.T) {
	for name, o := range map[string]jetbus.DrainOptions{
		"Window":          {Window: 1001},
		"WindowBytes":     {WindowBytes: -2},
		"Lease":           {Lease: time.Millisecond},
		"MaxAttempts":     {MaxAttempts: -2},
		"PollMin":         {PollMin: time.Minute, PollMax: time.Second},
		"PollMax":         {PollMax: -1},
		"StatsEvery":      {StatsEvery: -1},
		"ShutdownTimeout": {ShutdownTimeout: -1},
		"MaxAge":          {MaxAge: -2},
		"Backoff":         {Backoff: jetbus.Backoff{Min: -1}},
	} {
		_, err := jetbus.NewDrainer(&memoryBox{}, &memoryLog{}, o)
		check(t, name, err, jetbus.ErrInvalidOption)
		if err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("the error %q does not name %s", err, name)
		}
	}
	_, err := jetbus.NewDrainer(nil, &memoryLog{}, jetbus.DrainOptions{})
	check(t, "no outbox", err, jetbus.ErrInvalidOption)
	o, err := jetbus.DrainOptions{PollMax: 100 * time.Millisecond}.Normalize()
	check(t, "short PollMax", err, nil)
	if o.PollMin != 100*time.Millisecond {
		t.Errorf("PollMin is %v with a PollMax of 100ms", o.PollMin)
	}
}

// TestDrainJudges has rows that fail in each way, and looks what became of them.
func TestDrainJudges(t *testing.T) {
	for _, c := range []struct {
		name    string
		rows    []jetbus.Event
		refuse  map[string]error // by id, after the batch was sent
		checked map[string]error // by id, before
		o       jetbus.DrainOptions
		stored  []string
		left    []string
	}{
		{
			name: "all well", rows: []jetbus.Event{orderRow("a", "k"), orderRow("b", ""), orderRow("c", "k")},
			stored: []string{"a", "b", "c"}, left: []string{},
		},
		{
			name: "poison found in a batch that is not sent", rows: []jetbus.Event{orderRow("a", ""), orderRow("b", ""), orderRow("c", ""), orderRow("d", ""), orderRow("e", "")},
			checked: map[string]error{"b": jetbus.ErrPayloadTooLarge, "e": jetbus.ErrSchema}, stored: []string{"a", "c", "d"}, left: []string{"b!1", "e!1"},
		},
		{
			name: "poison holds back its key", rows: []jetbus.Event{orderRow("a", "k"), orderRow("b", "k"), orderRow("c", "l")},
			checked: map[string]error{"a": jetbus.ErrNoTopic}, stored: []string{"c"}, left: []string{"a!1", "b"},
		},
		{
			name: "refused in the middle", rows: []jetbus.Event{orderRow("a", ""), orderRow("b", ""), orderRow("c", "")},
			refuse: map[string]error{"b": jetbus.ErrPayloadTooLarge}, stored: []string{"a", "c"}, left: []string{"b!1"},
		},
		{
			name: "an event that is none", rows: []jetbus.Event{orderRow("a", "x\n"), orderRow("b", "")},
			stored: []string{"b"}, left: []string{"a!1"},
		},
		{
			name: "given up after attempts", rows: []jetbus.Event{orderRow("a", "k"), orderRow("b", "k"), orderRow("c", "")},
			refuse: map[string]error{"a": errFlaky}, o: jetbus.DrainOptions{MaxAttempts: 3}, stored: []string{"c"}, left: []string{"a!3", "b"},
		},
		{
			name: "a topic that is full is no failure of its rows", rows: []jetbus.Event{orderRow("a", "k"), orderRow("b", ""), {ID: "c", Topic: "other"}},
			refuse: map[string]error{"a": jetbus.ErrTopicFull, "b": jetbus.ErrTopicFull}, o: jetbus.DrainOptions{MaxAttempts: 1}, stored: []string{"c"}, left: []string{"a", "b"},
		},
		{
			name: "nor is a broker that is away", rows: []jetbus.Event{orderRow("a", "k"), orderRow("b", "")},
			refuse: map[string]error{"a": jetbus.ErrUnavailable, "b": jetbus.ErrUnavailable}, o: jetbus.DrainOptions{MaxAttempts: 1}, stored: nil, left: []string{"a", "b"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				box := &memoryBox{}
				log := &memoryLog{
					refuse: func(e jetbus.Event) error { return c.refuse[e.ID] },
					check:  func(e jetbus.Event) error { return c.checked[e.ID] },
				}
				box.add(c.rows...)
				_, stop := drained(t, box, log, c.o)
				time.Sleep(time.Hour)
				if err := stop(); c.refuse["a"] != jetbus.ErrUnavailable && err != nil { //nolint:errorlint // the value of the table
					t.Errorf("Run returned %v", err)
				}
				if diff := cmp.Diff(c.stored, log.stored()); diff != "" {
					t.Errorf("stored (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(c.left, box.left()); diff != "" {
					t.Errorf("left (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestDrainRowThatCannotBeRead sets aside what the outbox cannot read.
func TestDrainRowThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &memoryLog{}
		box.add(orderRow("a", ""), orderRow("b", ""))
		box.rows[0].Err = errors.New("column headers is no JSON")
		d, stop := drained(t, box, log, jetbus.DrainOptions{})
		time.Sleep(time.Minute)
		check(t, "Run", stop(), nil)
		if diff := cmp.Diff([]string{"a!1"}, box.left()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
		if s := d.Stats(); s.Dead != 1 || s.Published != 1 || s.Errors[jetbus.DrainPoison] != 1 {
			t.Errorf("stats %+v", s)
		}
	})
}

// TestDrainKeyOrder publishes no two rows of a key in one batch: what is on its way
// behind a row that is refused would overtake it.
func TestDrainKeyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &memoryLog{}
		key := map[string]string{}
		failed := map[string]bool{}
		for i := range 200 {
			id := fmt.Sprintf("%03d", i)
			key[id] = "k" + string(id[2]%5+'0')
			box.add(orderRow(id, key[id]))
		}
		log.refuse = func(e jetbus.Event) error {
			if strings.HasSuffix(e.ID, "7") && !failed[e.ID] {
				failed[e.ID] = true
				return errFlaky
			}
			return nil
		}
		_, stop := drained(t, box, log, jetbus.DrainOptions{Window: 20})
		_, stopOther := drained(t, box, log, jetbus.DrainOptions{Window: 7})
		time.Sleep(time.Hour)
		check(t, "Run", errors.Join(stop(), stopOther()), nil)
		for _, batch := range log.batches {
			seen := map[string]bool{}
			for _, id := range batch {
				if seen[key[id]] {
					t.Fatalf("two rows of key %s in the batch %v", key[id], batch)
				}
				seen[key[id]] = true
			}
		}
		last := map[string]string{}
		for _, id := range log.stored() {
			if last[key[id]] > id {
				t.Errorf("%s is stored behind %s", id, last[key[id]])
			}
			last[key[id]] = id
		}
		if n := len(log.stored()); n != 200 || len(box.left()) > 0 {
			t.Errorf("%d of 200 stored, left %v", n, box.left())
		}
	})
}

// TestDrainTopicHeld leaves the rows of a topic that takes nothing where they are.
func TestDrainTopicHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &memoryLog{}
		log.setRefuse(func(e jetbus.Event) error {
			if e.Topic == "orders" {
				return jetbus.ErrTopicFull
			}
			return nil
		})
		for i := range 100 {
			box.add(orderRow(fmt.Sprint("a", i), ""))
		}
		d, stop := drained(t, box, log, jetbus.DrainOptions{Backoff: jetbus.Backoff{Min: time.Minute, NoJitter: true}})
		time.Sleep(30 * time.Second)
		if n := log.tried(); n != 1 {
			t.Errorf("a full topic is tried %d times within its backoff", n)
		}
		if s := d.Stats(); !slices.Equal(s.HeldTopics, []string{"orders"}) || s.Errors[jetbus.DrainTopic] != 1 {
			t.Errorf("stats %+v", s)
		}
		box.add(jetbus.Event{ID: "other", Topic: "other"})
		d.Kick()
		synctest.Wait()
		if got := log.stored(); !slices.Equal(got, []string{"other"}) {
			t.Errorf("stored %v beside a topic that is full", got)
		}
		log.setRefuse(nil)
		time.Sleep(time.Minute)
		if s := d.Stats(); len(s.HeldTopics) > 0 || s.Published != 101 {
			t.Errorf("after the topic has room: %+v", s)
		}
		check(t, "Run", stop(), nil)
	})
}

// TestDrainPolls counts looks at an outbox that is empty, and has a kick end the wait.
func TestDrainPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &memoryLog{}
		d, stop := drained(t, box, log, jetbus.DrainOptions{})
		time.Sleep(time.Minute) // at 0, 1, 3, 7, 12, ... 57
		if n := box.claimed(); n != 14 {
			t.Errorf("%d claims in an idle minute, want 14", n)
		}
		box.add(orderRow("a", ""))
		d.Kick()
		synctest.Wait()
		if got := log.stored(); len(got) != 1 {
			t.Errorf("stored %v at once after a kick", got)
		}
		check(t, "Run", stop(), nil)
		d.Kick() // of one that has ended
		d.Kick()
	})
}

// TestDrainStop finishes the window in hand, and gives back what it cannot.
func TestDrainStop(t *testing.T) {
	for _, finishes := range []bool{true, false} {
		t.Run(fmt.Sprint("finishes ", finishes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				box, log := &memoryBox{}, &memoryLog{hang: make(chan struct{})}
				box.add(orderRow("a", "k"), orderRow("b", "k"))
				d, stop := drained(t, box, log, jetbus.DrainOptions{Lease: time.Minute})
				synctest.Wait()
				if finishes {
					time.AfterFunc(5*time.Second, func() { close(log.hang) })
				}
				began := time.Now()
				err := stop()
				if took := time.Since(began); took < 5*time.Second || took > 11*time.Second {
					t.Errorf("stopped after %v", took)
				}
				want, wantErr := []string{"a", "b"}, jetbus.ErrUnavailable
				if finishes {
					want, wantErr = []string{}, nil
				}
				check(t, "Run", err, wantErr)
				if diff := cmp.Diff(want, box.left()); diff != "" {
					t.Errorf("left (-want +got):\n%s", diff)
				}
				if s := d.Stats(); s.Running {
					t.Error("still running")
				}
				if got, _ := box.Claim(t.Context(), jetbus.ClaimOptions{Max: 9, Lease: time.Minute}); len(got) != len(want) {
					t.Errorf("another one finds %d rows, want %d: they were not given back", len(got), len(want))
				}
			})
		})
	}
}

// TestDrainOutboxAway goes on when the outbox is back, and forgets nothing that it published.
func TestDrainOutboxAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &memoryLog{hang: make(chan struct{})}
		box.add(orderRow("a", ""))
		d, stop := drained(t, box, log, jetbus.DrainOptions{})
		synctest.Wait()
		box.breaks(errFlaky) // while the row is being published
		close(log.hang)
		time.Sleep(time.Hour)
		check(t, "Ready without an outbox", d.Ready(), errFlaky)
		if s := d.Stats(); s.OutboxAway.IsZero() || s.Errors[jetbus.DrainStore] < 100 {
			t.Errorf("stats %+v", s)
		}
		box.breaks(nil)
		time.Sleep(30 * time.Second)
		check(t, "Ready", d.Ready(), nil)
		if len(box.left()) > 0 || log.tried() != 1 {
			t.Errorf("left %v after %d batches", box.left(), log.tried())
		}
		box.breaks(errFlaky)
		time.Sleep(10 * time.Second)
		check(t, "Run", stop(), errFlaky)
	})
}

// TestDrainReady says what is wrong.
func TestDrainReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &memoryLog{}
		var mu sync.Mutex
		kinds := map[jetbus.ObservationKind]int{}
		d, stop := drained(t, box, log, jetbus.DrainOptions{Observer: func(o jetbus.Observation) {
			mu.Lock()
			defer mu.Unlock()
			kinds[o.Kind] += max(o.Count, 1)
		}})
		synctest.Wait()
		check(t, "Ready", d.Ready(), nil)
		check(t, "Run twice", d.Run(t.Context()), jetbus.ErrConflict)
		box.add(orderRow("a", ""))
		log.setRefuse(func(jetbus.Event) error { return errFlaky })
		time.Sleep(6 * time.Minute)
		if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "oldest of 1 rows") {
			t.Errorf("Ready with an old row: %v", err)
		}
		log.setRefuse(func(jetbus.Event) error { return jetbus.ErrUnavailable })
		time.Sleep(10 * time.Minute)
		check(t, "Ready without a broker", d.Ready(), jetbus.ErrUnavailable)
		log.setRefuse(nil)
		time.Sleep(time.Minute)
		check(t, "Ready again", d.Ready(), nil)
		check(t, "Run", stop(), nil)
		if err := d.Ready(); err == nil {
			t.Error("ready without running")
		}
		if kinds[jetbus.Drained] != 1 || kinds[jetbus.DrainFail] < 3 {
			t.Errorf("observed %v", kinds)
		}
	})
}

// TestDrainClosed ends with the bus.
func TestDrainClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box := &memoryBox{}
		box.add(orderRow("a", ""))
		err := jetbus.Drain(t.Context(), box, &memoryLog{check: func(jetbus.Event) error { return jetbus.ErrClosed }}, jetbus.DrainOptions{})
		check(t, "Drain", err, jetbus.ErrClosed)
		if diff := cmp.Diff([]string{"a"}, box.left()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
	})
}

// TestDrainBrokerAway has a real broker away for an hour, in fake time.
func TestDrainBrokerAway(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "orders"})
		box := &memoryBox{}
		d, stop := drained(r.T, box, r.bus, jetbus.DrainOptions{MaxAttempts: 1})
		box.add(orderRow("a", "k"))
		time.Sleep(10 * time.Second)
		r.ok(r.broker.Kill(r.Context()))
		for i := range 1000 {
			box.add(orderRow(fmt.Sprintf("b%03d", i), fmt.Sprint("k", i%7)))
		}
		time.Sleep(time.Hour)
		if s := d.Stats(); s.BrokerAway.IsZero() || s.Outbox.Pending != 1000 || s.Dead+s.Retried > 0 {
			r.Errorf("while the broker is away: %+v", s)
		}
		r.wantErr(d.Ready(), jetbus.ErrUnavailable)
		for _, o := range box.lastAsked(5) {
			if o.Max != 1 {
				r.Errorf("a claim of %d rows while the broker is away", o.Max)
			}
		}
		r.ok(r.broker.Restart(r.Context()))
		time.Sleep(time.Minute)
		r.ok(d.Ready())
		r.ok(stop())
		if left := box.left(); len(left) > 0 {
			r.Errorf("left %d: %v", len(left), left[:min(len(left), 5)])
		}
		last, n := map[string]string{}, 0
		for e, err := range r.bus.Scan(r.Context(), "orders", jetbus.ScanQuery{}) {
			r.ok(err)
			n++
			if last[e.Key] >= e.ID {
				r.Errorf("%s is stored behind %s", e.ID, last[e.Key])
			}
			last[e.Key] = e.ID
		}
		if n != 1001 {
			r.Errorf("%d events stored, want 1001", n)
		}
	})
}

// TestDrainLooks asks an outbox that it has emptied what waits, though it is not time.
func TestDrainLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		box, log := &memoryBox{}, &memoryLog{}
		box.add(orderRow("a", ""), orderRow("b", ""))
		d, stop := drained(t, box, log, jetbus.DrainOptions{StatsEvery: time.Hour})
		time.Sleep(2 * time.Second)
		if s := d.Stats(); s.Published != 2 || s.Outbox.Pending != 0 {
			t.Errorf("2 seconds later: %+v", s)
		}
		looked := d.Stats().LookedAt
		time.Sleep(30 * time.Minute)
		if s := d.Stats(); !s.LookedAt.Equal(looked) {
			t.Errorf("an outbox in which nothing happens was asked after %v", s.LookedAt.Sub(looked))
		}
		check(t, "Run", stop(), nil)
	})
}
