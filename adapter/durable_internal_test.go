package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// openBus opens a bus on a connection, and closes it when the test is over.
func openBus(t *testing.T, nc *nats.Conn, cfg Config) *Bus {
	t.Helper()
	bus, err := Open(t.Context(), nc, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bus.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return bus
}

// internalBus opens a bus on a server of its own.
func internalBus(t *testing.T) (*Bus, *nats.Conn, jetstream.JetStream) {
	t.Helper()
	_, nc, js := directStream(t)
	bus := openBus(t, nc, Config{})
	return bus, nc, js
}

// A group that was moved is found by the names of its durables, also where it is moved
// again after they were asked for, and where they come in pages; never by the list, which
// leaves out what is replaced, or whose leader is away, at that moment.
func TestGroupIsFoundByName(t *testing.T) {
	bus, nc, js := internalBus(t)
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	topic, err := bus.lookup(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a__g__e2", "a__g__e10", "a__other"} {
		if _, err := js.CreateConsumer(t.Context(), "EV_A", jetstream.ConsumerConfig{Durable: name, AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex // a question that is given up may be answered later
	var answers [][]listPage[string]
	asked := 0
	api := bus.api
	defer func() { bus.api = api }()
	bus.api = "fake."
	sub, err := nc.Subscribe("fake.CONSUMER.NAMES.EV_A", func(m *nats.Msg) {
		var request struct {
			Offset int `json:"offset"`
		}
		err := json.Unmarshal(m.Data, &request)
		mu.Lock()
		defer mu.Unlock()
		pages := answers[min(asked, len(answers)-1)]
		page := pages[0]
		if request.Offset > 0 {
			page = pages[1]
		}
		if request.Offset > 0 || len(pages) == 1 {
			asked++
		}
		text, encodeErr := json.Marshal(page)
		if err != nil || encodeErr != nil || m.Respond(text) != nil {
			t.Errorf("asked %s: %v, %v", m.Data, err, encodeErr)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := sub.Unsubscribe(); err != nil {
			t.Error(err)
		}
	}()
	page := func(names ...string) []listPage[string] {
		return []listPage[string]{{Total: len(names), Limit: 1024, Consumers: names}}
	}
	unknown := []listPage[string]{{Error: &jetstream.APIError{Code: 404, ErrorCode: jetstream.JSErrCodeStreamNotFound}}}
	pages := func(a, b string) []listPage[string] {
		return []listPage[string]{{Total: 2, Limit: 1, Consumers: []string{a}}, {Total: 2, Limit: 1, Consumers: []string{b}}}
	}
	for what, c := range map[string]struct {
		answers [][]listPage[string]
		found   string
		want    error
		asked   int
	}{
		"it is there":            {[][]listPage[string]{page("a__g__e10", "a__other")}, "a__g__e10", nil, 1},
		"it is being moved":      {[][]listPage[string]{page("a__g__e10", "a__g__e2", "a__other")}, "a__g__e2", nil, 1},
		"it was moved":           {[][]listPage[string]{page("a__g__e1", "a__other"), page("a__g__e2", "a__other")}, "a__g__e2", nil, 2},
		"its stream is unknown":  {[][]listPage[string]{unknown, unknown, page("a__g__e2")}, "a__g__e2", nil, 3},
		"it is not there":        {[][]listPage[string]{page("a__g__e123456789012345", "a__g__e02", "a__g2__e2", "a__other")}, "", jetbus.ErrNoGroup, 1},
		"no names":               {[][]listPage[string]{page()}, "", jetbus.ErrNoGroup, 1},
		"another has its name":   {[][]listPage[string]{page("a__g__p1_0__0123456789012345", "a__g__p1__0123456789012345", "a__g__prod__0123456789abcdef", "a__g__p1_0__e0123456789012345")}, "", jetbus.ErrNoGroup, 1},
		"it has many partitions": {[][]listPage[string]{page("a__g__p12_345")}, "", jetbus.ErrConflict, 1},
		"it has partitions":      {[][]listPage[string]{page("a__g__p1_0__e3")}, "", jetbus.ErrConflict, 1},
		"on the second page":     {[][]listPage[string]{pages("a__f", "a__g__e2")}, "a__g__e2", nil, 1},
		"between two pages":      {[][]listPage[string]{pages("a__f", "a__h"), pages("a__f", "a__g__e10")}, "a__g__e10", nil, 2},
		"on none of the pages":   {[][]listPage[string]{pages("a__f", "a__h")}, "", jetbus.ErrNoGroup, namesLooks},
	} {
		t.Run(what, func(t *testing.T) {
			var info *jetstream.ConsumerInfo
			var err error
			for range 10 {
				mu.Lock()
				bus.present.seen, answers, asked = nil, c.answers, 0
				mu.Unlock()
				began := time.Now()
				info, err = bus.findGroup(t.Context(), topic, "g")
				if time.Since(began) < askTimeout { // else it may have asked again since an answer came late
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if !errors.Is(err, c.want) || err == nil && info.Name != c.found || asked != c.asked {
				t.Errorf("found %+v (%v), asked %d times, want %q (%v) after %d", info, err, asked, c.found, c.want, c.asked)
			}
		})
	}
}

// speechless cannot say what streams there are.
type speechless struct {
	jetstream.JetStream

	err error
}

func (f speechless) Stream(context.Context, string) (jetstream.Stream, error) { return nil, f.err }

// That a stream is gone takes two: who has the names of its durables, and the stream's leader.
func TestStreamIsGone(t *testing.T) {
	bus, nc, js := internalBus(t)
	bus.api = "fake."
	if _, err := nc.Subscribe("fake.CONSUMER.NAMES.D", func(m *nats.Msg) {
		if err := m.Respond([]byte(`{"error":{"code":404,"err_code":10059}}`)); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	bus.js.most = 300 * time.Millisecond // how long it is asked again
	for name, c := range map[string]struct {
		js   jetstream.JetStream
		want error
	}{
		"both say so":       {speechless{js, jetstream.ErrStreamNotFound}, jetbus.ErrNoTopic},
		"they disagree":     {js, jetbus.ErrUnavailable},
		"the other is away": {speechless{js, nats.ErrNoResponders}, jetbus.ErrUnavailable},
	} {
		bus.js.JetStream = c.js
		if _, _, err := bus.durableNames(t.Context(), "D"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// stalled makes the first durable of a group late, after others have made the group, used
// it, and moved it.
type stalled struct {
	jetstream.JetStream

	name      string
	meanwhile func() error
}

func (f *stalled) CreateConsumer(ctx context.Context, stream string, c jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	if meanwhile := f.meanwhile; meanwhile != nil && c.Durable == f.name {
		f.meanwhile = nil
		if err := meanwhile(); err != nil {
			return nil, err
		}
	}
	return f.JetStream.CreateConsumer(ctx, stream, c)
}

// A member that stood still between its look for the group and the making of it does not
// bring back what the group has handled.
func TestCreatedLate(t *testing.T) {
	bus, nc, js := internalBus(t)
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "a"}); err != nil {
		t.Fatal(err)
	}
	other := openBus(t, nc, Config{})
	earliest := jetbus.ReceiveOptions{From: jetbus.Earliest(), Wait: -1}
	bus.js.JetStream = &stalled{JetStream: js, name: "a__g", meanwhile: func() error {
		if _, err := other.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}); err != nil {
			return err
		}
		return other.SetCursor(t.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{ToLatest: true})
	}}
	got, err := bus.Receive(t.Context(), "a", "g", earliest)
	if err != nil || len(got) != 0 {
		t.Errorf("received %d events (%v), which the group has behind it", len(got), err)
	}
	var names []string
	all, _, err := bus.durableNames(t.Context(), "EV_A")
	for _, name := range all {
		if strings.HasPrefix(name, "a__g") {
			names = append(names, name)
		}
	}
	if err != nil || !slices.Equal(names, []string{"a__g__e1"}) {
		t.Errorf("the group has %q (%v)", names, err)
	}
}

// The durable of a partition that is replaced while the list is made is not in it, and there
// all the same.
func TestPartsOfLeavesNoneOut(t *testing.T) {
	bus, nc, js := internalBus(t)
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a", Partitions: 3}); err != nil {
		t.Fatal(err)
	}
	if err := bus.JoinPartitions(t.Context(), "a", "g", jetbus.SubscribeOptions{Order: jetbus.PerKey}); err != nil {
		t.Fatal(err)
	}
	parts, err := bus.existingParts(t.Context(), "a", "g")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bus.replaceConsumer(t.Context(), parts[1], 1, parts[1].info.Config.Metadata); err != nil {
		t.Fatal(err)
	}
	list, err := nc.Subscribe("fake.CONSUMER.LIST."+parts[0].stream, func(m *nats.Msg) {
		text, err := json.Marshal(listPage[*jetstream.ConsumerInfo]{Total: 2, Limit: 100, Consumers: []*jetstream.ConsumerInfo{parts[0].info, parts[2].info}})
		if err != nil || m.Respond(text) != nil {
			t.Errorf("not answered: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	stream, err := js.Stream(t.Context(), parts[0].stream)
	if err != nil {
		t.Fatal(err)
	}
	for name := range stream.ConsumerNames(t.Context()).Name() {
		all = append(all, name)
	}
	named, err := nc.Subscribe("fake.CONSUMER.NAMES."+parts[0].stream, func(m *nats.Msg) {
		text, err := json.Marshal(listPage[string]{Total: len(all), Limit: 1024, Consumers: all})
		if err != nil || m.Respond(text) != nil {
			t.Errorf("not answered: %v", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	api := bus.api
	bus.api = "fake."
	found, err := bus.partsOf(t.Context(), parts[0].topic, "g")
	bus.api = api
	if err != nil || len(found) != 3 || found[1].info.Name != "a__g__p1_1__e1" {
		t.Errorf("found %d parts, %v", len(found), err)
	}
	if err := errors.Join(list.Unsubscribe(), named.Unsubscribe()); err != nil {
		t.Error(err)
	}
}
