package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// place is how a job reaches its server. The zero value is a pipe inside the
// process to a server that syncs as it does by default.
type place struct {
	tcp    bool // loopback TCP
	always bool // the server syncs every message
	memory bool // topics are kept in memory
}

// quiet keeps nats.go from printing asynchronous errors.
var quiet = nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})

// env is a server in this process and the connections of the contestants: two
// for each, where publishing and consuming go on at the same time.
type env struct {
	broker  *embedded.Broker
	conns   []*nats.Conn
	bus     *adapter.Bus // publishes
	bus2    *adapter.Bus // consumes
	raw     *nats.Conn
	raw2    *nats.Conn
	js, js2 jetstream.JetStream // of raw and raw2
	peer    *nats.Conn
	topics  int

	database *mongoEnv // nil: not needed yet
}

// The session id of all events.
const sid = "bench-0123456789abcdef"

func newEnv(ctx context.Context, at place) (*env, error) {
	config := embedded.Config{SyncAlways: at.always}
	if at.tcp {
		config.Listen = "127.0.0.1:0"
	}
	broker, err := embedded.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	e := &env{broker: broker}
	if err := e.connect(ctx, at); err != nil {
		e.close()
		return nil, err
	}
	if err := e.checkHeaders(ctx); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *env) connect(ctx context.Context, at place) error {
	for range 5 {
		dial := func() (*nats.Conn, error) { return e.broker.Connect() }
		if at.tcp {
			dial = func() (*nats.Conn, error) { return nats.Connect(e.broker.URL(), quiet) }
		}
		nc, err := dial()
		if err != nil {
			return err
		}
		e.conns = append(e.conns, nc)
	}
	e.raw, e.raw2, e.peer = e.conns[2], e.conns[3], e.conns[4]
	config := adapter.Config{SID: sid}
	if at.memory {
		config.Storage = jetbus.MemoryStorage
	}
	var err error
	if e.bus, err = adapter.Open(ctx, e.conns[0], config); err != nil {
		return err
	}
	if e.bus2, err = adapter.Open(ctx, e.conns[1], config); err != nil {
		return err
	}
	if e.js, err = jetstream.New(e.raw, jetstream.WithPublishAsyncMaxPending(rawWindow)); err != nil {
		return err
	}
	e.js2, err = jetstream.New(e.raw2)
	return err
}

func (e *env) close() {
	ctx := context.Background()
	for _, b := range []*adapter.Bus{e.bus, e.bus2} {
		if b != nil {
			_ = b.Close(ctx) // the server goes away with all that it has
		}
	}
	for _, nc := range e.conns {
		nc.Close()
	}
	if e.database != nil {
		e.database.close()
	}
	_ = e.broker.Stop(ctx)
}

// lane is a fresh topic: its stream is the bus's, whoever publishes into it.
type lane struct {
	e       *env
	topic   string
	stream  string
	subject string // of events
}

func (e *env) lane(ctx context.Context) (*lane, error) {
	return e.laneOf(ctx, jetbus.TopicConfig{})
}

// laneOf makes a lane with these settings.
func (e *env) laneOf(ctx context.Context, config jetbus.TopicConfig) (*lane, error) {
	e.topics++
	name := "bench" + strconv.Itoa(e.topics)
	config.Name = name
	if _, err := e.bus.EnsureTopic(ctx, config); err != nil {
		return nil, err
	}
	subject := "ev." + name + "._"
	stream, err := e.js.StreamNameBySubject(ctx, subject)
	if err != nil {
		return nil, err
	}
	return &lane{e: e, topic: name, stream: stream, subject: subject}, nil
}

func (l *lane) drop() { _ = l.e.bus.DeleteTopic(context.Background(), l.topic) } // else it goes with the server

// peerStream makes a stream like the bus's for the peer, whose subjects are its
// streams' names.
func (l *lane) peerStream(ctx context.Context) (jetstream.Stream, error) {
	s, err := l.e.js.Stream(ctx, l.stream)
	if err != nil {
		return nil, err
	}
	c := s.CachedInfo().Config
	c.Name = "PEER" + strconv.Itoa(l.e.topics)
	c.Subjects = []string{c.Name}
	return l.e.js.CreateStream(ctx, c)
}

// events makes n events of a topic, complete, so that nobody has to make ids.
func events(topic string, n, size int) []jetbus.Event {
	headers := map[string]string{"x-tenant": "acme"}
	now := time.Now().UTC().Truncate(time.Millisecond)
	body := payload(size)
	out := make([]jetbus.Event, n)
	for i := range out {
		out[i] = jetbus.Event{
			ID: jetbus.NewID(), SID: sid, Time: now.Add(time.Duration(i) * time.Millisecond), Topic: topic,
			Key: "user-" + strconv.Itoa(i%1000), Headers: headers, Payload: body,
		}
	}
	return out
}

// payload is a JSON document of that many bytes.
func payload(size int) []byte {
	b := append(make([]byte, 0, size), `{"v":"`...)
	x := uint32(2463534242)
	for len(b) < size-2 {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b = append(b, 'a'+byte(x%26))
	}
	return append(b, `"}`...)
}

// rawHeader is what a careful program writes by hand to store the event as the
// bus does.
func rawHeader(e *jetbus.Event) nats.Header {
	return nats.Header{
		"Nats-Msg-Id":     {e.Topic + "|" + e.ID},
		"ce-specversion":  {"1.0"},
		"ce-id":           {e.ID},
		"ce-type":         {e.Topic},
		"ce-source":       {"urn:jetbus:" + e.SID},
		"ce-time":         {e.Time.Format("2006-01-02T15:04:05.000Z")},
		"ce-partitionkey": {e.Key},
		"x-tenant":        {e.Headers["x-tenant"]},
	}
}

// checkHeaders makes sure that the raw jobs write what the bus writes.
func (e *env) checkHeaders(ctx context.Context) error {
	l, err := e.lane(ctx)
	if err != nil {
		return err
	}
	defer l.drop()
	event := events(l.topic, 1, 128)[0]
	r, err := e.bus.Publish(ctx, event)
	if err != nil {
		return err
	}
	s, err := e.js.Stream(ctx, l.stream)
	if err != nil {
		return err
	}
	m, err := s.GetMsg(ctx, r.Event.Seq)
	if err != nil {
		return err
	}
	for _, added := range []string{jetstream.StreamHeader, jetstream.SubjectHeader, jetstream.SequenceHeader, jetstream.TimeStampHeaer} {
		delete(m.Header, added) // by the server, to what it reads
	}
	if want := rawHeader(&event); m.Subject != l.subject || !maps.EqualFunc(m.Header, want, slices.Equal) {
		return fmt.Errorf("the raw jobs write %s %v, the bus writes %s %v", l.subject, want, m.Subject, m.Header)
	}
	return nil
}

// settled waits until the durable's ack floor has reached n.
func settled(ctx context.Context, js jetstream.JetStream, stream, durable string, n int) error {
	pause := time.NewTicker(500 * time.Microsecond)
	defer pause.Stop()
	for {
		c, err := js.Consumer(ctx, stream, durable)
		if err != nil {
			return err
		}
		info := c.CachedInfo()
		if info.AckFloor.Stream >= uint64(n) {
			return nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("ack floor %d of %d, %d pending: %w", info.AckFloor.Stream, n, info.NumAckPending, ctx.Err())
		}
	}
}

// durables lists the stream's consumers.
func (l *lane) durables(ctx context.Context) ([]string, error) {
	s, err := l.e.js.Stream(ctx, l.stream)
	if err != nil {
		return nil, err
	}
	var names []string
	list := s.ConsumerNames(ctx)
	for name := range list.Name() {
		names = append(names, name)
	}
	return names, list.Err()
}
