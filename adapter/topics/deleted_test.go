package topics_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
)

// What a deleted topic held does not come back with the next one of its name, nor are its IDs
// remembered, however soon that is declared and deleted again. In files: the server removes
// those behind its answer.
func TestDeletedTopicStaysEmpty(t *testing.T) {
	t.Parallel()
	b, err := embedded.Start(t.Context(), embedded.Config{Listen: "127.0.0.1:0", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	nc := must(nats.Connect(b.URL()))(t)
	defer nc.Close()
	bus := must(adapter.Open(t.Context(), nc, adapter.Config{}))(t)
	defer bus.Close(t.Context())
	for i := range 100 {
		info, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"})
		if err != nil || info.Events != 0 {
			t.Fatalf("topic %d begins with %d events, %v", i, info.Events, err)
		}
		for n := range 3 {
			if r, err := bus.Publish(t.Context(), jetbus.Event{Topic: "a", ID: fmt.Sprint(n)}); err != nil || r.Duplicate {
				t.Fatalf("topic %d, event %d: %+v, %v", i, n, r, err)
			}
		}
		if err := bus.DeleteTopic(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
}
