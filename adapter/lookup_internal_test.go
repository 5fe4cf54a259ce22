package adapter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// torn is a cluster whose servers do not agree yet that there is a stream.
type torn struct {
	jetstream.JetStream

	denials int
}

func (s *torn) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if s.denials > 0 {
		s.denials--
		return nil, &jetstream.APIError{Code: 404, ErrorCode: jetstream.JSErrCodeStreamNotFound}
	}
	return s.JetStream.Stream(ctx, name)
}

// A topic that one server of a cluster knows by its subject, and another not yet by its
// stream, is there.
func TestLookupWhileServersDisagree(t *testing.T) {
	t.Parallel()
	bus, g := movable(t)
	bus.forget(g.topic)
	servers := bus.js.JetStream
	bus.js.JetStream = &torn{servers, 3}
	if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "a"}); err != nil {
		t.Errorf("publish: %v", err)
	}
	bus.forget(g.topic)
	bus.js.JetStream = &torn{servers, 1 << 20}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := bus.Publish(ctx, jetbus.Event{Topic: "a"}); !errors.Is(err, jetbus.ErrNoTopic) {
		t.Errorf("while they do not agree: %v, want %v", err, jetbus.ErrNoTopic)
	}
}
