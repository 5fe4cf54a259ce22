package jetbus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
)

// byCustomer compacts orders, whose key is their number, by customer, which is
// what the payload starts with. Orders of nobody do not belong there.
var byCustomer = jetbus.Compactor{
	Source: "orders", Target: "customers", Group: "by-customer",
	KeyOf: func(e jetbus.Event) (string, bool) {
		if customer := e.Headers["x-customer"]; customer != "" {
			return customer, true
		}
		customer, _, _ := strings.Cut(strings.Trim(string(e.Payload), `"`), ":")
		return customer, customer != "nobody"
	},
}

// compactor runs a compactor until stop is called, which returns what Run returned.
func (r *rig) compactor(c jetbus.Compactor, b jetbus.CompactorBus) (stop func() error) {
	ctx, cancel := context.WithCancel(r.Context())
	result := make(chan error, 1)
	go func() { result <- c.Run(ctx, b) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	r.Cleanup(func() { _ = stop() })
	return stop
}

func (r *rig) order(number int, customer string) uint64 {
	r.Helper()
	key := strconv.Itoa(number)
	return r.publish(jetbus.Event{Topic: "orders", Key: key, Payload: []byte(`"` + customer + ":" + key + `"`)})
}

// quit deletes a customer.
func (r *rig) quit(customer string) uint64 {
	r.Helper()
	return r.publish(jetbus.Event{Topic: "orders", Headers: map[string]string{"x-customer": customer}, Payload: []byte("null")})
}

// declareOrders keeps them in memory, where fake time makes tombstones age.
func (r *rig) declareOrders() {
	r.Helper()
	r.ensure(jetbus.TopicConfig{Name: "orders", Storage: jetbus.MemoryStorage, MaxBytes: 1 << 24})
	r.ensure(jetbus.TopicConfig{Name: "customers", Compact: true, Storage: jetbus.MemoryStorage, MaxBytes: 1 << 24})
}

// settled waits until the group is done with everything up to a position.
func (r *rig) settled(seq uint64) {
	r.Helper()
	for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(max(100*time.Millisecond, time.Since(start)/20)) {
		if c, err := r.bus.Cursor(r.Context(), "orders", "by-customer"); err == nil && c.LastSeq >= seq {
			return
		}
	}
	r.Fatalf("the compactor does not come to %d", seq)
}

// customers is the target: "ann=7 bob=9" of the last orders, deleted ones as "-".
func (r *rig) customers() string {
	r.Helper()
	last := map[string]string{}
	for e, err := range r.bus.Scan(r.Context(), "customers", jetbus.ScanQuery{}) {
		r.ok(err)
		_, number, _ := strings.Cut(strings.Trim(string(e.Payload), `"`), ":")
		if e.IsTombstone() {
			number = "-"
		}
		last[e.Key] = number
	}
	return listed(last)
}

func (r *rig) wantCustomers(want string) {
	r.Helper()
	if got := r.customers(); got != want {
		r.Errorf("got customers %q, want %q", got, want)
	}
}

// listed lists customers: "ann:7 bob:9".
func listed(customers map[string]string) string {
	return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(customers), "map["), "]")
}

// created is when a topic was made, as the header says it.
func (r *rig) created(topic string) string {
	r.Helper()
	info, err := r.bus.TopicInfo(r.Context(), topic)
	r.ok(err)
	return fmt.Sprint(info.Created.UnixMilli())
}

// written is how many events the target has ever had.
func (r *rig) written() uint64 {
	r.Helper()
	info, err := r.bus.TopicInfo(r.Context(), "customers")
	r.ok(err)
	return info.LastSeq
}

func TestCompactor(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declareOrders()
		r.order(1, "ann")
		r.order(2, "bob")
		first := r.order(3, "ann")
		r.order(4, "nobody")
		stop := r.compactor(byCustomer, r.bus)
		r.settled(first + 1)
		r.wantCustomers("ann:3 bob:2")
		if got := r.written(); got != 2 {
			r.Errorf("%d events written for two customers", got)
		}
		r.order(5, "bob")
		r.settled(r.order(6, "bob"))
		r.wantCustomers("ann:3 bob:6")
		if got := r.written(); got > 4 {
			r.Errorf("%d events written: an unchanged customer is written again", got)
		}
		r.settled(r.quit("ann"))
		r.wantCustomers("ann:- bob:6")
		time.Sleep(time.Hour)
		if n := r.written(); n > 5 {
			r.Errorf("%d events written while nothing happened", n)
		}
		r.ok(stop())
		if g, err := r.bus.Groups(r.Context(), "orders"); err != nil || len(g) != 1 || g[0].Held != 0 || g[0].Pending != 0 {
			r.Errorf("groups %+v, %v", g, err)
		}

		// Another one goes on, at once, and repeats nothing.
		last, n := r.order(7, "cid"), r.written()
		began := time.Now()
		other, _ := r.open()
		stop = r.compactor(byCustomer, other)
		r.settled(last)
		r.took("went on", time.Since(began), 0, time.Second)
		r.wantCustomers("ann:- bob:6 cid:7")
		if got := r.written(); got != n+1 {
			r.Errorf("%d events written for one order", got-n)
		}
		r.ok(stop())
	})
}

func TestCompactorRecord(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declareOrders()
		source := jetbus.Event{
			ID: "o-7", SID: "till", Topic: "orders", Key: "7", Time: time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC),
			Headers: map[string]string{"x-shop": "north", "content-type": "text/plain"}, Payload: []byte("ann:7"), Tags: []string{"new"}, CausedBy: []string{"visit"},
		}
		seq := r.publish(source)
		r.compactor(byCustomer, r.bus)
		r.settled(seq)
		found, err := r.bus.LatestByKey(r.Context(), "customers", "ann")
		r.ok(err)
		got := found["ann"]
		if got.ID == source.ID || got.ID == "" {
			r.Errorf("id %q", got.ID)
		}
		want := source
		want.ID, want.Topic, want.Key, want.CausedBy, want.Partition, want.Seq = got.ID, "customers", "ann", []string{"o-7"}, jetbus.NoPartition, 1
		want.Stored = got.Stored // which is later than that of the source
		want.Headers = map[string]string{"x-shop": "north", "content-type": "text/plain", jetbus.HeaderCompactedSeq: fmt.Sprint(seq), jetbus.HeaderCompactedCreated: r.created("orders")}
		for e, err := range r.bus.Scan(r.Context(), "orders", jetbus.ScanQuery{From: jetbus.AfterSeq(seq - 1)}) {
			r.ok(err)
			want.Headers[jetbus.HeaderCompactedLast] = fmt.Sprint(seq, e.Stored.UnixNano())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			r.Error(diff)
		}
	})
}

// What a source that was made anew has is newer than all of the one before, whatever its numbers:
// it deletes, and brings back what was deleted.
func TestCompactorOfASourceMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declareOrders()
		for i := range 20 {
			r.order(i, []string{"ann", "bob", "eve"}[i%3])
		}
		last := r.quit("eve")
		stop := r.compactor(byCustomer, r.bus)
		r.settled(last)
		r.wantCustomers("ann:18 bob:19 eve:-")
		r.ok(stop())
		for _, customer := range []string{"ann", "bob"} {
			time.Sleep(time.Minute)
			r.ok(r.bus.DeleteTopic(r.Context(), "orders"))
			r.declareOrders()
			r.quit("bob")
			r.order(100, customer)
			last = r.order(101, "eve")
			stop = r.compactor(byCustomer, r.bus)
			r.settled(last)
			r.ok(stop())
		}
		r.wantCustomers("ann:100 bob:100 eve:101")
		r.publish(jetbus.Event{Topic: "customers", Key: "ann", Headers: map[string]string{ // of a source that is not made yet
			jetbus.HeaderCompactedSeq: "1", jetbus.HeaderCompactedCreated: fmt.Sprint(time.Now().Add(time.Hour).UnixMilli()),
		}, Payload: []byte("1")})
		r.order(102, "ann")
		ended := make(chan error, 1)
		go func() { ended <- byCustomer.Run(r.Context(), r.bus) }()
		if err := <-ended; !errors.Is(err, jetbus.ErrPositionUnknown) {
			t.Errorf("behind a later source: %v", err)
		}
	})
}

// A group that is moved back to the beginning writes nothing that is older than
// what is there, and brings no deleted customer back.
func TestCompactorNeverGoesBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declareOrders()
		c := byCustomer
		c.BatchSize = 2 // so that old events come without the newer ones
		stop := r.compactor(c, r.bus)
		for i := range 5 {
			r.order(3*i, "ann")
			r.order(3*i+1, "bob")
			r.order(3*i+2, "cid")
		}
		last := r.quit("bob")
		r.settled(last)
		const want = "ann:12 bob:- cid:14"
		r.wantCustomers(want)
		n := r.written()
		r.ok(stop())
		r.ok(r.bus.SetCursor(r.Context(), "orders", "by-customer", jetbus.Cursor{}, jetbus.SeekOptions{}))
		watch, err := jetbus.OpenTable(r.Context(), r.bus, "customers", jetbus.TableOptions{OnChange: func(key string, e jetbus.Event, _ bool) {
			r.Errorf("%s changed to %s", key, e.Payload)
		}})
		r.ok(err)
		stop = r.compactor(c, r.bus)
		r.settled(last)
		r.wantCustomers(want)
		if got := r.written(); got != n {
			r.Errorf("%d events written", got-n)
		}
		watch.Close()
		r.settled(r.order(20, "bob")) // who may come back, of course
		r.wantCustomers("ann:12 bob:20 cid:14")
		r.ok(stop())
	})
}

// What somebody else wrote gives way to the next event.
func TestCompactorOverwritesOthers(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declareOrders()
		r.set("customers", "ann", "other")
		r.publish(jetbus.Tombstone("customers", "bob"))
		r.order(1, "ann")
		last := r.order(2, "bob")
		r.compactor(byCustomer, r.bus)
		r.settled(last)
		r.wantCustomers("ann:1 bob:2")
	})
}

// Of two compactors one works. When it dies, the other goes on, and when neither
// respects the lock the target is right all the same.
func TestCompactorsTwo(t *testing.T) {
	for _, locked := range []bool{true, false} {
		t.Run(fmt.Sprintf("locked %t", locked), func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.declareOrders()
				random := rand.New(rand.NewPCG(3, 4))
				want := map[string]string{}
				var working [2]bool
				var mu sync.Mutex
				mortal, cut := r.open()
				for i, b := range []jetbus.CompactorBus{mortal, r.bus} {
					c := byCustomer
					c.BatchSize, c.Interval = 3, 10*time.Millisecond
					c.KeyOf = func(e jetbus.Event) (string, bool) {
						mu.Lock()
						working[i] = true
						mu.Unlock()
						return byCustomer.KeyOf(e)
					}
					if !locked {
						c.Lock.Key = fmt.Sprint(i)
					}
					stop := r.compactor(c, b)
					if i == 1 {
						defer func() { r.ok(stop()) }()
					}
					if i == 0 { // the mortal one has the lock when the other comes
						r.settled(r.order(0, "c0"))
						want["c0"] = "0"
					}
					synctest.Wait()
				}
				var last uint64
				for i := range 300 {
					customer := fmt.Sprint("c", random.IntN(4))
					if random.IntN(5) == 0 {
						last, want[customer] = r.quit(customer), "-"
					} else {
						last, want[customer] = r.order(i, customer), fmt.Sprint(i)
					}
					time.Sleep(20 * time.Millisecond)
					if i == 100 {
						mu.Lock()
						if locked && (!working[0] || working[1]) || !locked && (!working[0] || !working[1]) {
							r.Errorf("working: %t", working)
						}
						mu.Unlock()
						cut()
					}
				}
				time.Sleep(3 * time.Minute) // what the dead one held comes back
				r.settled(last)
				r.wantCustomers(listed(want))
				if !working[1] {
					r.Error("nobody took over")
				}
			})
		})
	}
}

// The broker is away for longer than the lock lasts.
func TestCompactorOutage(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "orders"})
		r.ensure(jetbus.TopicConfig{Name: "customers", Compact: true})
		stop := r.compactor(byCustomer, r.bus)
		r.settled(r.order(1, "ann"))
		r.ok(r.broker.Kill(r.Context()))
		time.Sleep(10 * time.Minute)
		r.ok(r.broker.Restart(r.Context()))
		r.settled(r.order(2, "ann"))
		r.wantCustomers("ann:2")
		r.ok(stop())

		stop = r.compactor(byCustomer, r.bus)
		r.settled(r.order(3, "ann"))
		r.ok(r.broker.Kill(r.Context()))
		time.Sleep(time.Minute)
		r.wantErr(stop(), jetbus.ErrUnavailable)
		r.ok(r.broker.Restart(r.Context()))
	})
}

// The broker is away when Run begins.
func TestCompactorStartsWithoutBroker(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "orders"})
		r.ensure(jetbus.TopicConfig{Name: "customers", Compact: true})
		last := r.order(1, "ann")
		r.ok(r.broker.Kill(r.Context()))
		stop := r.compactor(byCustomer, r.bus)
		time.Sleep(10 * time.Minute)
		r.ok(r.broker.Restart(r.Context()))
		r.settled(last)
		r.wantCustomers("ann:1")
		r.ok(stop())
	})
}

// A process that died holds an event for longer than a deletion after it takes.
func TestCompactorBringsNoKeyBack(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declareOrders()
		r.order(1, "ann")
		held, err := r.bus.Receive(r.Context(), "orders", "by-customer", jetbus.ReceiveOptions{
			From: jetbus.Earliest(), Max: 1, AckTimeout: 2 * time.Minute, MaxAttempts: -1,
		})
		r.ok(err)
		if len(held) != 1 {
			r.Fatalf("%d events", len(held))
		}
		last := r.quit("ann")
		stop := r.compactor(byCustomer, r.bus)
		time.Sleep(5 * time.Minute)
		r.settled(last)
		r.wantCustomers("ann:-")
		r.ok(stop())
	})
}

// failing fails to publish to the target as long as the test says so.
type failing struct {
	jetbus.CompactorBus
	err func() error
}

func (f failing) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	if err := f.err(); err != nil {
		return jetbus.Receipt{}, err
	}
	return f.CompactorBus.Publish(ctx, e, o...)
}

func TestCompactorFailures(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declareOrders()
		// Passing ones are overcome.
		n := 0
		stop := r.compactor(byCustomer, failing{r.bus, func() error {
			if n++; n < 8 {
				return jetbus.ErrTopicFull
			}
			return nil
		}})
		r.settled(r.order(1, "ann"))
		r.ok(stop())
		r.wantCustomers("ann:1")

		// Others end Run after a while, and the event is not lost.
		last, n := r.order(2, "ann"), 0
		began := time.Now()
		err := byCustomer.Run(r.Context(), failing{r.bus, func() error { n++; return jetbus.ErrTopicFull }})
		r.wantErr(err, jetbus.ErrTopicFull)
		if n != 10 || time.Since(began) > 5*time.Minute {
			r.Errorf("%d tries in %v", n, time.Since(began))
		}
		for _, c := range []struct {
			keyOf func(jetbus.Event) (string, bool)
			want  error
		}{
			{func(jetbus.Event) (string, bool) { panic(io.EOF) }, io.EOF},
			{func(jetbus.Event) (string, bool) { return "", true }, jetbus.ErrInvalidEvent},
			{func(jetbus.Event) (string, bool) { return "a\n", true }, jetbus.ErrInvalidEvent},
		} {
			bad := byCustomer
			bad.KeyOf = c.keyOf
			began := time.Now()
			err := bad.Run(r.Context(), r.bus)
			r.wantErr(err, c.want)
			if !strings.Contains(err.Error(), fmt.Sprint("orders ", last)) {
				r.Errorf("the error does not name the event: %v", err)
			}
			r.took("ended", time.Since(began), 0, time.Second)
		}
		// The failure that is not overcome when the context ends is told.
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		r.wantErr(byCustomer.Run(ctx, failing{r.bus, func() error { return jetbus.ErrTopicFull }}), jetbus.ErrTopicFull)

		stop = r.compactor(byCustomer, r.bus)
		r.settled(last)
		r.wantCustomers("ann:2")
		r.ok(stop())
	})
}

// An event that has no room in the target ends Run, or is skipped.
func TestCompactorSkips(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declareOrders()
		r.order(1, "ann")
		e := jetbus.Event{Topic: "orders", Key: "2", Headers: map[string]string{"x-customer": "ann"}}
		n := 1 << 20
		for ; ; n-- {
			e.Payload = make([]byte, n)
			if _, err := r.bus.Publish(r.Context(), e); err == nil {
				break
			} else if !errors.Is(err, jetbus.ErrPayloadTooLarge) {
				r.Fatal(err)
			}
		}
		last := r.order(3, "bob")
		r.wantErr(byCustomer.Run(r.Context(), r.bus), jetbus.ErrPayloadTooLarge)

		careless := byCustomer
		careless.OnSkip = func(jetbus.Event, error) { panic(io.EOF) }
		r.wantErr(careless.Run(r.Context(), r.bus), io.EOF)

		var skipped []string
		skipping := byCustomer
		skipping.BatchSize = 1 // so that the first event of ann is not folded into the second
		skipping.OnSkip = func(e jetbus.Event, err error) {
			skipped = append(skipped, fmt.Sprint(e.Topic, e.Seq, errors.Is(err, jetbus.ErrPayloadTooLarge)))
		}
		stop := r.compactor(skipping, r.bus)
		r.settled(last)
		r.ok(stop())
		r.wantCustomers("ann:1 bob:3")
		if diff := cmp.Diff([]string{"orders2 true"}, skipped); diff != "" {
			r.Error(diff)
		}
	})
}

func TestCompactorRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declareOrders()
		r.ensure(jetbus.TopicConfig{Name: "log"})
		r.ensure(jetbus.TopicConfig{Name: "short", Compact: true, TombstoneTTL: 30 * time.Minute})
		for name, c := range map[string]struct {
			change func(*jetbus.Compactor)
			want   error
		}{
			"no source":    {func(c *jetbus.Compactor) { c.Source = "" }, jetbus.ErrInvalidTopic},
			"no target":    {func(c *jetbus.Compactor) { c.Target = "" }, jetbus.ErrInvalidTopic},
			"no group":     {func(c *jetbus.Compactor) { c.Group = "" }, jetbus.ErrInvalidGroup},
			"no KeyOf":     {func(c *jetbus.Compactor) { c.KeyOf = nil }, jetbus.ErrInvalidOption},
			"same":         {func(c *jetbus.Compactor) { c.Source = c.Target }, jetbus.ErrInvalidOption},
			"interval":     {func(c *jetbus.Compactor) { c.Interval = -1 }, jetbus.ErrInvalidOption},
			"batch":        {func(c *jetbus.Compactor) { c.BatchSize = -1 }, jetbus.ErrInvalidOption},
			"lock":         {func(c *jetbus.Compactor) { c.Lock.TTL = time.Second }, jetbus.ErrInvalidOption},
			"no such":      {func(c *jetbus.Compactor) { c.Target = "other" }, jetbus.ErrNoTopic},
			"nothing":      {func(c *jetbus.Compactor) { c.Source = "other" }, jetbus.ErrNoTopic},
			"tombstones":   {func(c *jetbus.Compactor) { c.Target = "short" }, jetbus.ErrInvalidOption},
			"no compacted": {func(c *jetbus.Compactor) { c.Target = "log" }, jetbus.ErrNoState},
		} {
			bad := byCustomer
			c.change(&bad)
			if err := bad.Run(r.Context(), r.bus); !errors.Is(err, c.want) {
				r.Errorf("%s: got %v", name, err)
			}
		}
	})
}
