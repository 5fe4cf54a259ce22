package metrics_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/gateway/client"
	"github.com/seed-63e9a637/jetbus/metrics"
	"github.com/seed-63e9a637/jetbus/partition"
)

// stage is a process with all that has metrics, and the page that shows them.
type stage struct {
	*page
	m      *metrics.Metrics
	broker *embedded.Broker
	bus    *adapter.Bus
	js     jetstream.JetStream
}

func newStage(t *testing.T) *stage {
	t.Helper()
	m, err := metrics.New(metrics.Config{AskEvery: 10 * time.Millisecond, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{m: m, broker: bustest.Start(t, embedded.Config{})}
	s.bus = bustest.Open(t, s.broker, adapter.Config{Storage: jetbus.MemoryStorage, Observer: m.Observe})
	if s.js, err = jetstream.New(bustest.Connect(t, s.broker)); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(m.Handler())
	t.Cleanup(server.Close)
	s.page = newPage(t, server.URL+"/metrics")
	return s
}

func (s *stage) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) declare(c jetbus.TopicConfig) {
	s.Helper()
	_, err := s.bus.EnsureTopic(s.Context(), c)
	s.ok(err)
}

func (s *stage) publish(topic string, keys ...string) {
	s.Helper()
	for _, key := range keys {
		_, err := s.bus.Publish(s.Context(), jetbus.Event{Topic: topic, Key: key, Payload: []byte("{}")})
		s.ok(err)
	}
}

// subscribe makes a group of its own on a topic of its own, of that name. The function that
// it returns ends it.
func (s *stage) subscribe(name string, h jetbus.Handler, o jetbus.SubscribeOptions) (stop func()) {
	s.Helper()
	s.declare(jetbus.TopicConfig{Name: name})
	o.Backoff = jetbus.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	sub, err := s.bus.Subscribe(s.Context(), name, name, h, o)
	s.ok(err)
	return func() { s.stop(sub) }
}

// stop ends something in order.
func (s *stage) stop(what interface {
	Stop(ctx context.Context) error
},
) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Context()), limit)
	defer cancel()
	s.ok(what.Stop(ctx))
}

var errCase = errors.New("the case's")

// TestEveryMetricMoves: each metric of the table is seen with more than one value, on a page
// that Prometheus's parser reads, at the latest when the thing that it is about has happened.
func TestEveryMetricMoves(t *testing.T) {
	s := newStage(t)
	s.scrape()
	if len(s.moved) > 0 {
		t.Errorf("%v moved before there was anything", s.moved)
	}
	s.topics()
	s.failures()
	s.hold()
	s.lost()
	s.noRoom()
	s.undecodable()
	s.ordered()
	s.snapshot()
	s.outbox()
	s.projection()
	s.feed()
	s.member()
	s.gateway()
	s.m.WatchFeed("broken", func() metrics.Feed { panic("it is broken") })
	s.moves("metrics_errors_total")
	s.m.WatchFeed("broken", nil)
	s.scrape() // nothing goes back
	if still := s.still(); len(still) > 0 {
		t.Errorf("not seen to move: %v", still)
	}
}

// topics are published to, and watched.
func (s *stage) topics() {
	s.declare(jetbus.TopicConfig{Name: "orders"})
	s.declare(jetbus.TopicConfig{Name: "payments"})
	s.ok(s.m.WatchTopics(s.bus, metrics.TopicOptions{MaxTopics: 1}))
	s.moves("topics_unwatched")
	s.ok(s.m.WatchTopics(s.bus, metrics.TopicOptions{}))
	s.publish("orders", "a", "b")
	if _, err := s.bus.Publish(s.Context(), jetbus.Event{Topic: "none"}); err == nil {
		s.Error("a topic that does not exist takes an event")
	}
	s.moves("events_published_total", "publish_duration_ms", "events_publish_failed_total", "topic_events", "topic_bytes", "topic_last_seq")
}

// failures are all the ways in which a handler ends.
func (s *stage) failures() {
	first := map[string]error{
		"nack": errCase, "drop": jetbus.Drop(errCase), "snooze": jetbus.Snooze(10 * time.Millisecond), "reject": jetbus.Reject(errCase),
	}
	stop := s.subscribe("failures", func(ctx context.Context, d *jetbus.Delivery) error {
		switch {
		case d.Redelivered || d.ReplayOf > 0:
			return nil
		case d.Key == "back":
			return d.GiveBack(ctx)
		}
		return first[d.Key]
	}, jetbus.SubscribeOptions{FilterFunc: func(e *jetbus.Event) bool { return e.Key != "filter" }})
	s.moves("group_waiting")
	s.publish("failures", "nack", "drop", "snooze", "reject", "back", "filter", "fine")
	s.moves("events_delivered_total", "events_redelivered_total", "events_acked_total", "events_nacked_total", "events_dropped_total",
		"events_snoozed_total", "events_dead_lettered_total", "events_given_back_total", "events_filtered_total", "dead_letters",
		"subscribe_poll_duration_ms", "delivery_wait_ms", "delivery_handler_duration_ms", "delivery_latency_ms")
	_, err := jetbus.Replay(s.Context(), s.bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "failures"}})
	s.ok(err)
	s.moves("events_replayed_total")
	s.ok(s.bus.PauseGroup(s.Context(), "failures", "failures", time.Now().Add(time.Hour)))
	s.moves("group_paused")
	stop()
}

// hold has events in hand, in the second attempt.
func (s *stage) hold() {
	free := make(chan struct{})
	stop := s.subscribe("hold", func(ctx context.Context, d *jetbus.Delivery) error {
		if d.Attempt == 1 {
			return errCase
		}
		select {
		case <-free:
		case <-ctx.Done():
		}
		return nil
	}, jetbus.SubscribeOptions{AckTimeout: 6 * time.Second, MaxAttempts: 1000})
	s.publish("hold", "a")
	s.moves("events_inflight", "group_lag_events", "group_lag_seconds", "group_held", "group_retrying", "leases_extended_total")
	close(free)
	stop()
}

// lost is a handler that is too slow.
func (s *stage) lost() {
	stop := s.subscribe("lost", func(ctx context.Context, d *jetbus.Delivery) error {
		if !d.Redelivered {
			<-ctx.Done()
		}
		return nil
	}, jetbus.SubscribeOptions{AckTimeout: time.Second, MaxLease: 2 * time.Second})
	s.publish("lost", "a")
	s.moves("leases_lost_total")
	stop()
}

// noRoom is a stream of dead letters that is full.
func (s *stage) noRoom() {
	stream, err := s.js.Stream(s.Context(), "EV_DLQ")
	s.ok(err)
	full := stream.CachedInfo().Config
	full.MaxBytes = 1
	_, err = s.js.UpdateStream(s.Context(), full)
	s.ok(err)
	stop := s.subscribe("no-room", func(context.Context, *jetbus.Delivery) error { return jetbus.Reject(errCase) }, jetbus.SubscribeOptions{})
	s.publish("no-room", "a")
	s.moves("events_dead_letter_failed_total")
	_, err = s.js.UpdateStream(s.Context(), stream.CachedInfo().Config)
	s.ok(err)
	stop()
}

// undecodable is a message of another program.
func (s *stage) undecodable() {
	s.declare(jetbus.TopicConfig{Name: "foreign"})
	_, err := s.js.PublishMsg(s.Context(), &nats.Msg{Subject: "ev.foreign._", Header: nats.Header{"content-type": {"application/cloudevents+json"}}, Data: []byte("{")})
	s.ok(err)
	for _, err := range s.bus.Scan(s.Context(), "foreign", jetbus.ScanQuery{}) {
		if !errors.Is(err, jetbus.ErrUndecodable) {
			s.Errorf("error %v", err)
		}
	}
	s.moves("events_undecodable_total")
}

// ordered is a group with one active member, which leaves.
func (s *stage) ordered() {
	stop := s.subscribe("ordered", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{Order: jetbus.Total})
	s.moves("group_taken_over_total")
	stop()
	s.moves("group_stood_down_total")
}

// snapshot is one that has no room for what is new.
func (s *stage) snapshot() {
	s.declare(jetbus.TopicConfig{Name: "state", KeyInSubject: true})
	s.declare(jetbus.TopicConfig{Name: "state.snapshot", SnapshotOf: "state", MaxEvents: 2})
	s.publish("state", "a", "b", "c", "d", "e")
	s.moves("snapshot_lag_events")
}

// member shares the partitions of a topic with another one, and is kicked out.
func (s *stage) member() {
	s.declare(jetbus.TopicConfig{Name: "parts", Partitions: 2, Retention: -1})
	handle := func(context.Context, *jetbus.Delivery) error { return nil }
	join := func(name string) *partition.Subscription {
		sub, err := partition.Subscribe(s.Context(), s.bus, "parts", "parts", handle, partition.SubscribeOptions{Member: name, TTL: 15 * time.Second})
		s.ok(err)
		return sub
	}
	a := join("a")
	s.m.WatchMember("a", a)
	s.moves("partition_owned", "partition_acquired_total")
	b := join("b")
	s.moves("partition_released_total")
	if err := partition.KickTopic(s.Context(), s.bus, "", "parts", "parts", "a"); !errors.Is(err, partition.ErrNoMember) { // it lost its session by itself
		s.ok(err)
	}
	s.moves("partition_expelled_total")
	s.m.WatchMember("a", nil)
	s.stop(a)
	s.stop(b)
}

// gateway has a client that holds an event.
func (s *stage) gateway() {
	g, err := gateway.New(s.bus, gateway.Config{})
	s.ok(err)
	server := httptest.NewServer(g)
	defer server.Close()
	s.m.WatchGateway(func() []metrics.Inflight {
		var out []metrics.Inflight
		for _, held := range g.Inflight() {
			out = append(out, metrics.Inflight(held))
		}
		return out
	})
	c, err := client.Dial(s.Context(), client.Config{URL: server.URL})
	s.ok(err)
	waiting, free := context.WithCancel(s.Context())
	defer free()
	sub, err := c.Subscribe(s.Context(), "orders", "web", func(context.Context, *jetbus.Delivery) error {
		<-waiting.Done()
		return nil
	}, jetbus.SubscribeOptions{})
	s.ok(err)
	s.publish("orders", "c")
	s.moves("ws_inflight")
	free()
	s.stop(sub)
	ctx, cancel := context.WithTimeout(s.Context(), limit)
	defer cancel()
	s.ok(c.Close(ctx))
	s.ok(g.Drain(ctx))
	s.m.WatchGateway(nil)
}

// TestMovedIsSeen: the page sees what moves, and what does not.
func TestMovedIsSeen(t *testing.T) {
	m, err := metrics.New(metrics.Config{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(m.Handler())
	defer server.Close()
	p := newPage(t, server.URL)
	p.scrape()
	m.Observe(jetbus.Observation{Kind: jetbus.Polled, Topic: "a", Group: "g", Count: 1})
	p.scrape()
	if len(p.still()) != len(p.rows)-1 || slices.Contains(p.still(), "subscribe_poll_duration_ms") {
		t.Errorf("moved: %v", p.moved)
	}
}
