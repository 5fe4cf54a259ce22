package groups_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// putSized stores events of these sizes, whose keys are their numbers from the first on.
func (r *rig) putSized(topic string, first int, sizes ...int) {
	r.Helper()
	events := make([]jetbus.Event, len(sizes))
	for i, size := range sizes {
		events[i] = jetbus.Event{Topic: topic, Key: fmt.Sprint(first + i), Payload: []byte(strings.Repeat("7", size))}
	}
	must(r.Bus.PublishBatch(r.Context(), events, jetbus.BatchOptions{}))(r.T)
}

// shelf is a handler that leaves what it gets to be settled by the test.
type shelf struct {
	mu   sync.Mutex
	held []*jetbus.Delivery
	came []string // keys
}

func (s *shelf) handle(_ context.Context, d *jetbus.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = append(s.held, d)
	s.came = append(s.came, d.Key)
	return nil
}

// bytes is how much payload is held.
func (s *shelf) bytes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, d := range s.held {
		n += len(d.Payload)
	}
	return n
}

func (s *shelf) keys() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.came, " ")
}

// ack settles what came first of what is held.
func (s *shelf) ack(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	if len(s.held) == 0 {
		s.mu.Unlock()
		t.Fatal("nothing is held")
	}
	d := s.held[0]
	s.held = s.held[1:]
	s.mu.Unlock()
	if err := d.Ack(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// shelve subscribes to topic a from its beginning; nothing is settled by itself.
func (r *rig) shelve(b *adapter.Bus, o jetbus.SubscribeOptions) *shelf {
	r.Helper()
	s := &shelf{}
	o.ManualAck, o.From = true, jetbus.Earliest()
	r.Subscribe(b, s.handle, o)
	return s
}

// soon is time for what needs no waiting.
const soon = 50 * time.Millisecond

// What a member holds is bounded in bytes, and used well, as its events are settled one by one.
func TestHeldBytes(t *testing.T) {
	for name, o := range map[string]jetbus.SubscribeOptions{
		"without an order": {},
		"per key":          {Order: jetbus.PerKey, Concurrency: 100},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				const each, events, most = 90 << 10, 25, 1 << 20
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				r.putSized("a", 0, slices.Repeat([]int{each}, events)...)
				o.MaxInFlightBytes = most
				s := r.shelve(r.Bus, o)
				time.Sleep(5 * time.Second) // an ordered member takes the topic over
				for done := range events {
					time.Sleep(soon)
					held := s.bytes()
					left := (events - done) * each
					if held > most || held < min(left, most*7/8-2*each) {
						r.Fatalf("after %d events %d bytes are held", done, held)
					}
					r.Equal("held at the server", r.Group("a", "g").Held, held/each)
					s.ack(t)
				}
			})
		})
	}
}

// An event that is larger than all that may be held comes alone, and so does one that has no
// room beside what is held, when that is settled.
func TestLargeEventsComeAlone(t *testing.T) {
	inBubble(t, func(r *rig) {
		const most = 100_000
		sizes := []int{1, 300_000, 1, 300_000, 300_000, 60_000, 60_000, 1, 90_000, 1, 1, 400_000}
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.putSized("a", 0, sizes...)
		s := r.shelve(r.Bus, jetbus.SubscribeOptions{MaxInFlightBytes: most})
		for i := range sizes {
			time.Sleep(soon)
			s.mu.Lock()
			n := len(s.held)
			s.mu.Unlock()
			if n == 0 || n > 1 && s.bytes() > most {
				r.Fatalf("after %d events %d of %d bytes are held", i, n, s.bytes())
			}
			s.ack(t)
		}
		r.Equal("came", s.keys(), "0 1 2 3 4 5 6 7 8 9 10 11")
	})
}

// A request takes its part of the room. Where that is too little for the next event, all of the
// room is tried at once, whatever is held.
func TestEventLargerThanARequest(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.putSized("a", 0, 10, 300_000, 300_000, 10)
		s := r.shelve(r.Bus, jetbus.SubscribeOptions{MaxInFlightBytes: 1_000_000})
		time.Sleep(soon)
		r.Equal("held at once", s.keys(), "0 1 2 3")
	})
}

// What is too large for the room that a member has left goes to another one; the member
// hears of it, and takes what is small, whatever it holds.
func TestAnotherTakesTheLargeEvent(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.putSized("a", 0, 60_000, 60_000)
		s := r.shelve(r.Bus, jetbus.SubscribeOptions{MaxInFlightBytes: 100_000, MaxAttempts: -1})
		time.Sleep(time.Minute)
		r.Equal("held", s.keys(), "0")
		_, b := r.Open(adapter.Config{})
		other := r.shelve(b, jetbus.SubscribeOptions{MaxInFlight: 1, BatchSize: 1, MaxAttempts: -1})
		time.Sleep(5 * time.Second)
		r.Equal("the other one has", other.keys(), "1")
		r.putSized("a", 2, 10, 10)
		time.Sleep(5 * time.Second)
		r.Equal("held beside the first", s.keys(), "0 2 3")
	})
}

// A request that its events use up to the last byte ends without a word of the server. The
// next one does not wait for that.
func TestRequestUsedUpToTheLastByte(t *testing.T) {
	inBubble(t, func(r *rig) {
		const events = 5
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.putSized("a", 1, 1000, 1000, 1000, 1000, 1000)
		c := must(r.JS.CreateConsumer(r.Context(), "EV_A", jetstream.ConsumerConfig{Durable: "a__x", AckPolicy: jetstream.AckExplicitPolicy}))(r.T)
		inbox := must(r.NC.SubscribeSync(r.NC.NewInbox()))(r.T)
		r.OK(r.NC.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.EV_A."+c.CachedInfo().Name, inbox.Subject, []byte(`{"batch":1}`)))
		size := int64(must(inbox.NextMsgWithContext(r.Context()))(r.T).Size())
		most := size
		for most-most/8 < size { // which is what is not for the retries
			most++
		}
		s := r.shelve(r.Bus, jetbus.SubscribeOptions{MaxInFlightBytes: most, MaxInFlight: 10})
		for i := range events {
			time.Sleep(soon)
			r.Equal("came", len(strings.Fields(s.keys())), i+1)
			s.ack(t)
		}
	})
}

// gate is a way to the broker that can be shut.
type gate struct {
	inner nats.InProcessConnProvider
	shut  atomic.Bool
	last  atomic.Pointer[net.Conn]
}

func (g *gate) InProcessConn() (net.Conn, error) {
	if g.shut.Load() {
		return nil, net.ErrClosed
	}
	c, err := g.inner.InProcessConn()
	if err == nil {
		g.last.Store(&c)
	}
	return c, err
}

// While there is no connection nothing is asked for, though all requests are overdue: what
// is sent on the next one before it knows the inbox would bring events to nobody.
func TestNothingIsAskedForWithoutAConnection(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		g := &gate{inner: r.Broker}
		_, b := r.Open(adapter.Config{}, nats.InProcessServer(g), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
		s := r.shelve(b, jetbus.SubscribeOptions{MaxInFlight: 100})
		for round := range 5 {
			time.Sleep(time.Second)
			g.shut.Store(true)
			r.OK((*g.last.Load()).Close())
			time.Sleep(time.Minute) // longer than a request lives
			r.putSized("a", round, 10)
			g.shut.Store(false)
			time.Sleep(5 * time.Second)
			r.Equal("came", len(strings.Fields(s.keys())), round+1)
			s.ack(t)
		}
	})
}

// What is received has at most MaxBytes, and an event that is larger comes alone.
func TestReceiveBytes(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		sizes := []int{30_000, 30_000, 30_000, 30_000, 300_000, 10, 300_000, 300_000, 60_000, 10, 60_000}
		want := []string{"0 1 2", "3", "4", "5", "6", "7", "8 9", "10", ""}
		r.putSized("a", 0, sizes...)
		began := time.Now()
		for _, keys := range want {
			r.Equal("received", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{MaxBytes: 100_000, Wait: -1})), keys)
		}
		r.Equal("time", time.Since(began), time.Duration(0))

		// The same of events that come while it waits.
		for _, size := range []int{300_000, 10} {
			time.AfterFunc(time.Second, func() { r.putSized("a", 0, size, size) })
			r.Equal("received", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{MaxBytes: 100_000, Wait: time.Minute, Max: 1})), "0")
			r.Equal("received", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{MaxBytes: 100_000, Wait: time.Minute, Max: 1})), "1")
		}
	})
}

// What is used up to the last byte is all that is received, at once.
func TestReceiveUpToTheLastByte(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.putSized("a", 1, 1000, 1000, 1000)
		c := must(r.JS.CreateConsumer(r.Context(), "EV_A", jetstream.ConsumerConfig{Durable: "a__x", AckPolicy: jetstream.AckExplicitPolicy}))(r.T)
		inbox := must(r.NC.SubscribeSync(r.NC.NewInbox()))(r.T)
		r.OK(r.NC.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.EV_A."+c.CachedInfo().Name, inbox.Subject, []byte(`{"batch":1}`)))
		size := int64(must(inbox.NextMsgWithContext(r.Context()))(r.T).Size())
		began := time.Now()
		r.Equal("received", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{MaxBytes: 2 * size})), "1 2")
		r.Equal("received", deliveredKeys(r.receive("g", jetbus.ReceiveOptions{MaxBytes: size})), "3")
		r.Equal("time", time.Since(began), time.Duration(0))
	})
}
