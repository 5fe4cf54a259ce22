package adapter

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
