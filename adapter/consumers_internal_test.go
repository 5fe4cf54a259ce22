package adapter

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// ofCluster says of durables what a cluster says of them. So many times a server that has just
// come up answers first, which knows nothing of where a durable is.
type ofCluster struct {
	jetstream.JetStream

	hollow int
}

func (o *ofCluster) Consumer(ctx context.Context, stream, name string) (jetstream.Consumer, error) {
	c, err := o.JetStream.Consumer(ctx, stream, name)
	if err != nil {
		return nil, err
	}
	seen := consumerSeen{info: *c.CachedInfo()}
	if o.hollow--; o.hollow < 0 {
		seen.info.Cluster = &jetstream.ClusterInfo{}
	}
	return seen, nil
}

// What a cluster leaves out of a list, since its leader is away, is there none the less,
// and what is said of it is not what a server says that has just come up.
func TestConsumersMissing(t *testing.T) {
	_, nc, js := directStream(t)
	bus := openBus(t, nc, Config{})
	infos := map[string]*jetstream.ConsumerInfo{}
	for _, name := range []string{"a", "b", "c"} {
		c, err := js.CreateConsumer(t.Context(), "D", jetstream.ConsumerConfig{Durable: name})
		if err != nil {
			t.Fatal(err)
		}
		infos[name] = c.CachedInfo()
	}
	refused := false
	sub, err := nc.Subscribe("fake.CONSUMER.LIST.D", func(m *nats.Msg) {
		var page struct {
			Offset int `json:"offset"`
		}
		err := json.Unmarshal(m.Data, &page)
		answer := listPage[*jetstream.ConsumerInfo]{Total: 4, Limit: 3, Consumers: []*jetstream.ConsumerInfo{infos["a"]}, Missing: []string{"b", "gone"}}
		switch {
		case !refused:
			refused = true
			answer = listPage[*jetstream.ConsumerInfo]{Error: &jetstream.APIError{Code: 503, ErrorCode: codeNoLeader}}
		case page.Offset == 1: // it overlaps
			answer = listPage[*jetstream.ConsumerInfo]{Total: 4, Limit: 3, Consumers: []*jetstream.ConsumerInfo{infos["c"]}}
		}
		text, encodeErr := json.Marshal(answer)
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
	defer func(was jetstream.JetStream) { bus.js.JetStream = was }(js)
	bus.js.JetStream = &ofCluster{JetStream: js, hollow: 2}
	bus.api = "fake."
	all, err := bus.consumersOf(t.Context(), "D")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, info := range all {
		names = append(names, info.Name)
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) || all[1].Cluster == nil {
		t.Errorf("listed %q; of the one that the list left out: %+v", names, all[1])
	}
}

// Topics whose leader is away are listed, and one whose server is down is no reason to list none.
func TestStreamsMissing(t *testing.T) {
	bus, nc, js := internalBus(t)
	var streams []*jetstream.StreamInfo
	for _, name := range []string{"a", "b", "c", "down"} {
		if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: name}); err != nil {
			t.Fatal(err)
		}
		there, err := bus.lookup(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := bus.streamInfo(t.Context(), there.stream)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, info)
	}
	pages := map[string]listPage[*jetstream.StreamInfo]{
		`{"offset":0,"subject":"ev.\u003e"}`: {Total: 5, Limit: 3, Streams: streams[:1], Missing: []string{streams[1].Config.Name, "gone"}},
		`{"offset":1,"subject":"ev.\u003e"}`: {Total: 5, Limit: 4, Streams: streams[2:], Missing: []string{streams[3].Config.Name}},
	}
	if _, err := nc.Subscribe("fake.STREAM.LIST", func(m *nats.Msg) {
		page, ok := pages[string(m.Data)]
		if text, err := json.Marshal(page); !ok || err != nil || m.Respond(text) != nil {
			t.Errorf("asked %s: %v", m.Data, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	defer func(was jetstream.JetStream) { bus.js.JetStream = was }(js)
	bus.js.JetStream = offline{js, streams[3].Config.Name}
	bus.api = "fake."
	found, err := bus.topicStreams(t.Context())
	if got := slices.Sorted(maps.Keys(found)); err != nil || !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// offline is a JetStream in which a stream cannot be used.
type offline struct {
	jetstream.JetStream

	stream string
}

func (o offline) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if name == o.stream {
		return nil, &jetstream.APIError{Code: 500, ErrorCode: 10118, Description: "stream is offline"}
	}
	return o.JetStream.Stream(ctx, name)
}
