//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/proxy"
	"github.com/seed-63e9a637/jetbus/e2e/internal/rig"
)

// What the groups of these tests have behind them, and where they are moved.
const (
	moveEvents = 20
	moveAt     = 10 // settled before the move
	moveTarget = 3
	moveWait   = time.Second
	moveLease  = 15 * time.Second // none ends while its event is settled
)

// moveFixture is a group that is about to be moved by a process behind a proxy.
type moveFixture struct {
	topic string
	bus   *adapter.Bus
	js    jetstream.JetStream
	mover *rig.Process
	proxy *proxy.Proxy
}

// newMove makes a topic of 20 events with a group that has settled the first ones.
func newMove(t *testing.T, b *broker.Broker, topic string, settled int) *moveFixture {
	t.Helper()
	f := &moveFixture{topic: topic, bus: rig.OpenBus(t, b.URL()), proxy: b.Proxy(t)}
	rig.Declare(t, f.bus, jetbus.TopicConfig{Name: topic})
	rig.Publish(t, f.bus, topic, "e", moveEvents)
	for left := settled; left > 0; {
		ds, err := f.bus.Receive(t.Context(), topic, "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: left, Wait: time.Second, AckTimeout: moveLease})
		if err != nil && !errors.Is(err, jetbus.ErrUnavailable) { // it is slow, as may be
			t.Fatal(err)
		}
		for _, d := range ds {
			settle, one := d.Ack, 1
			if d.Seq > uint64(settled) { // it overtook one that comes again
				settle, one = d.GiveBack, 0
			}
			switch err := settle(t.Context()); {
			case errors.Is(err, jetbus.ErrLeaseExpired): // it comes again
			case err != nil:
				t.Fatal(err)
			default:
				left -= one
			}
		}
	}
	rig.Eventually(t, func() string {
		if g, err := rig.Group(t, f.bus, topic, "g"); err != nil || g.AckedSeq != uint64(settled) {
			return fmt.Sprintf("the group is at %+v, %v", g, err)
		}
		return ""
	})
	var err error
	if f.js, err = jetstream.New(rig.Connect(t, b.URL())); err != nil {
		t.Fatal(err)
	}
	f.mover = rig.Spawn(t, "mover", moverConfig{URL: f.proxy.URL(), Topic: topic, Group: "g", Seq: moveTarget, Wait: moveWait})
	f.mover.First(t, "ready")
	return f
}

// requests calls f with the number of each request to the API, from 1 on, before
// it is passed on.
func (f *moveFixture) requests(each func(n int, subject string)) {
	n := 0
	f.proxy.Watch(func(fr proxy.Frame) {
		if strings.HasPrefix(fr.Subject, "$JS.API.") {
			n++
			each(n, fr.Subject)
		}
	})
}

// durables returns the consumers of the topic's stream.
func (f *moveFixture) durables(t *testing.T) []*jetstream.ConsumerInfo {
	t.Helper()
	s, err := f.js.Stream(t.Context(), "EV_"+strings.ToUpper(strings.ReplaceAll(f.topic, ".", "_")))
	if err != nil {
		t.Fatal(err)
	}
	var out []*jetstream.ConsumerInfo
	list := s.ListConsumers(t.Context())
	for c := range list.Info() {
		out = append(out, c)
	}
	if err := list.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// whole waits until nothing of a move is left at the server: one durable, not
// paused, without a mark.
func (f *moveFixture) whole(t *testing.T) {
	t.Helper()
	rig.Eventually(t, func() string {
		all := f.durables(t)
		if len(all) != 1 {
			return fmt.Sprintf("the group has %d durables", len(all))
		}
		c := all[0]
		if c.Paused || c.Config.PauseUntil != nil && c.Config.PauseUntil.After(time.Now()) {
			return fmt.Sprintf("%s is paused until %v", c.Name, c.Config.PauseUntil)
		}
		for key, value := range c.Config.Metadata {
			if strings.Contains(key, "seek") {
				return fmt.Sprintf("%s still says %s: %s", c.Name, key, value)
			}
		}
		return ""
	})
}

// member joins the group in this process.
func (f *moveFixture) member(t *testing.T, seen chan<- uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Limit)
	t.Cleanup(cancel)
	s, err := f.bus.Subscribe(ctx, f.topic, "g", func(_ context.Context, d *jetbus.Delivery) error {
		seen <- d.Seq
		return nil
	}, jetbus.SubscribeOptions{AckTimeout: moveLease})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop(context.Background()) }) // the bus would, too
}

// collect returns the sequences that come until last has, the broker has nothing
// left for the group, and nothing follows.
func (f *moveFixture) collect(t *testing.T, seen <-chan uint64, last uint64) []uint64 {
	t.Helper()
	var out []uint64
	quiet := time.NewTimer(rig.Limit)
	defer quiet.Stop()
	for {
		select {
		case seq := <-seen:
			out = append(out, seq)
			if slices.Contains(out, last) {
				rig.AwaitSettled(t, f.bus, f.topic, "g")
				quiet.Reset(500 * time.Millisecond)
			}
		case <-quiet.C:
			for len(seen) > 0 { // both were ready
				out = append(out, <-seen)
			}
			slices.Sort(out)
			return out
		}
	}
}

// after lists the sequences behind one, up to another.
func after(seq, last uint64) []uint64 {
	var out []uint64
	for seq++; seq <= last; seq++ {
		out = append(out, seq)
	}
	return out
}

// countRequests moves a group undisturbed, and returns what it asked of the API.
func countRequests(t *testing.T, b *broker.Broker, topic string) []string {
	t.Helper()
	f := newMove(t, b, topic, moveAt)
	var (
		mu       sync.Mutex
		subjects []string
	)
	f.requests(func(_ int, subject string) {
		mu.Lock()
		defer mu.Unlock()
		subjects = append(subjects, subject)
	})
	f.mover.Order(t, "go")
	if r := f.mover.First(t, "moved"); r.Err != "" {
		t.Fatalf("undisturbed: %s", r.Err)
	}
	f.mover.Gone(t)
	seen := make(chan uint64, 100)
	f.member(t, seen)
	if diff := cmp.Diff(after(moveTarget, moveEvents), f.collect(t, seen, moveEvents)); diff != "" {
		t.Errorf("undisturbed (-want +got):\n%s", diff)
	}
	f.whole(t)
	mu.Lock()
	defer mu.Unlock()
	return subjects
}

// TestMoverKilled ends a process by SIGKILL when the server has answered the n-th
// request of its SetCursor, and before it sees the answer, for every n.
func TestMoverKilled(t *testing.T) {
	t.Parallel()
	b := broker.Start(t)
	countRequests(t, b, "move.first") // it creates the bucket of locks, too
	subjects := countRequests(t, b, "move.whole")
	if len(subjects) < 4 {
		t.Fatalf("a move takes %d requests: %v; the test shows nothing", len(subjects), subjects)
	}
	for i, subject := range subjects {
		n := i + 1
		parts := strings.Split(subject, ".")
		kind := strings.ToLower(strings.Join(parts[2:min(4, len(parts))], "-"))
		t.Run(fmt.Sprintf("%d-%s/alone", n, kind), func(t *testing.T) {
			t.Parallel()
			moverKilled(t, b, n, n == len(subjects))
		})
		t.Run(fmt.Sprintf("%d-%s/beside a member", n, kind), func(t *testing.T) {
			t.Parallel()
			moverKilledBesideMember(t, b, n, n == len(subjects))
		})
	}
}

// killAt moves the group and kills the mover at its n-th request. It reports that the move
// is done where it took fewer this time: how often it looks and renews depends on how long
// it takes.
func (f *moveFixture) killAt(t *testing.T, n int) (done bool) {
	t.Helper()
	reached := make(chan struct{})
	f.requests(func(at int, _ string) {
		if at == n {
			f.proxy.Hole(proxy.ToClient)
			close(reached)
		}
	})
	f.mover.Order(t, "go")
	select {
	case <-reached:
	case <-f.mover.Ended():
		if r := f.mover.First(t, "moved"); r.Err != "" || f.mover.Err() != nil {
			t.Fatalf("the mover ended before its request %d: %v, %s", n, f.mover.Err(), r.Err)
		}
		return true
	case <-time.After(rig.Limit):
		t.Fatalf("the mover does not come to its request %d", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), rig.Limit)
	defer cancel()
	if err := f.proxy.AwaitHeld(ctx, proxy.ToClient); err != nil {
		t.Fatal(err)
	}
	f.mover.Kill()
	if r := f.mover.Said("moved"); len(r) > 0 {
		t.Fatalf("the mover was done before it was killed: %+v", r)
	}
	f.proxy.Cut()
	return false
}

// moverKilled: the next subscriber finds the group moved, or where it was.
func moverKilled(t *testing.T, b *broker.Broker, n int, done bool) {
	t.Helper()
	f := newMove(t, b, fmt.Sprintf("move.alone%d", n), moveAt)
	done = f.killAt(t, n) || done
	seen := make(chan uint64, 100)
	f.member(t, seen)
	got := f.collect(t, seen, moveEvents)
	stands, moved := after(moveAt, moveEvents), after(moveTarget, moveEvents)
	want := moved
	if slices.Equal(got, stands) && !done {
		want = stands
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the group is neither where it was nor where it was moved (-want +got):\n%s", diff)
	}
	f.whole(t)
}

// moverKilledBesideMember: a member that has settled everything is there all the
// time, and one joins afterwards. Together they see what is behind the target
// once more, or nothing; and either way what is published next, once.
func moverKilledBesideMember(t *testing.T, b *broker.Broker, n int, done bool) {
	t.Helper()
	f := newMove(t, b, fmt.Sprintf("move.beside%d", n), moveEvents)
	seen := make(chan uint64, 100)
	f.member(t, seen)
	done = f.killAt(t, n) || done
	f.member(t, seen)
	rig.Publish(t, f.bus, f.topic, "next", 1)
	got := f.collect(t, seen, moveEvents+1)
	want := after(moveTarget, moveEvents+1)
	if !done && len(got) == 1 {
		want = want[len(want)-1:]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the group is neither where it was nor where it was moved (-want +got):\n%s", diff)
	}
	f.whole(t)
}

// TestMoveOfBusyGroup moves a group of which another process holds events: that
// is refused, and changes nothing.
func TestMoveOfBusyGroup(t *testing.T) {
	t.Parallel()
	b := broker.Start(t)
	f := newMove(t, b, "busy", moveAt)
	held := fmt.Sprintf("e-%d", moveAt)
	holder := rig.Spawn(t, "consumer", consumerConfig{URL: b.URL(), Topic: "busy", Group: "g", AckTimeout: moveLease, Hold: held})
	holder.Of(t, "started", held)
	before := f.durables(t)

	f.mover.Order(t, "go")
	if r := f.mover.First(t, "moved"); r.Is != "group busy" || r.Count < 1 {
		t.Errorf("the move gave %q with %d held, want a GroupBusyError", r.Err, r.Count)
	}
	f.mover.Gone(t)
	f.whole(t)
	same := cmp.Comparer(func(a, b *jetstream.ConsumerInfo) bool {
		return a.Name == b.Name && a.Created.Equal(b.Created) && cmp.Equal(a.Config, b.Config)
	})
	if diff := cmp.Diff(before, f.durables(t), same); diff != "" {
		t.Errorf("the refused move changed the group (-before +after):\n%s", diff)
	}
	if c, err := f.bus.Cursor(t.Context(), "busy", "g"); err != nil || c.LastSeq != moveAt {
		t.Errorf("the cursor is %+v, %v, want %d", c, err, moveAt)
	}

	holder.Order(t, "release")
	var ids []string
	for i := range moveEvents - moveAt {
		ids = append(ids, fmt.Sprintf("e-%d", moveAt+i))
	}
	rig.AwaitHandled(t, ids, holder)
	rig.AwaitSettled(t, f.bus, "busy", "g")
	if r := holder.Said("started"); len(r) != len(ids) {
		t.Errorf("the member got %d events, want %d", len(r), len(ids))
	}
	if r := holder.Said("canceled"); len(r) > 0 {
		t.Errorf("the handler was canceled: %+v", r)
	}
}
