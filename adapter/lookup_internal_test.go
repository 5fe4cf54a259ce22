package adapter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// torn is a cluster whose servers do not agree that there is a stream.
type torn struct {
	jetstream.JetStream

	denials int           // after which they do, or
	never   bool          // they never do,
	denied  chan struct{} // which this tells; nil: nobody listens
}

func (s *torn) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	switch {
	case s.never && s.denied != nil:
		select {
		case s.denied <- struct{}{}:
		case <-ctx.Done():
		}
	case s.never:
	case s.denials > 0:
		s.denials--
	default:
		return s.JetStream.Stream(ctx, name)
	}
	return nil, &jetstream.APIError{Code: 404, ErrorCode: jetstream.JSErrCodeStreamNotFound}
}

// A topic that one server of a cluster knows by its subject, and another not yet by its
// stream, is there.
func TestLookupWhileServersDisagree(t *testing.T) {
	t.Parallel()
	bus, g := movable(t)
	bus.forget(g.topic)
	servers := bus.js.JetStream
	bus.js.JetStream = &torn{JetStream: servers, denials: 3}
	if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "a"}); err != nil {
		t.Errorf("publish: %v", err)
	}
	bus.forget(g.topic)
	cluster := &torn{JetStream: servers, never: true, denied: make(chan struct{})}
	bus.js.JetStream = cluster
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	published := make(chan error, 1)
	go func() {
		_, err := bus.Publish(ctx, jetbus.Event{Topic: "a"})
		published <- err
	}()
	for range 5 { // it asks on
		select {
		case <-cluster.denied:
		case err := <-published:
			t.Fatalf("while they do not agree: %v", err)
		}
	}
	cancel()
	if err := <-published; !errors.Is(err, jetbus.ErrUnavailable) || errors.Is(err, jetbus.ErrNoTopic) {
		t.Errorf("when its time is over: %v, want %v", err, jetbus.ErrUnavailable)
	}
}

// Servers that never agree are not asked for ever, also where nobody waits for the answer
// who would set a deadline; what a topic that was deleted would not need is kept then.
func TestLookupWhileServersNeverAgree(t *testing.T) {
	t.Parallel()
	made, _ := movable(t)
	bus := openBus(t, made.nc, Config{})
	bus.cfg.Timeout = 300 * time.Millisecond // no sooner: to open takes an answer in that time
	bus.js = &patient{JetStream: &torn{JetStream: bus.js.JetStream, never: true}, most: bus.cfg.Timeout}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looked := make(chan error, 1)
	go func() {
		_, err := bus.droppedLease(ctx, advisory{Stream: "EV_A", Consumer: "a__g", Seq: 1})
		looked <- err
	}()
	select {
	case err := <-looked:
		if !errors.Is(err, jetbus.ErrUnavailable) {
			t.Errorf("an advisory: %v, want %v", err, jetbus.ErrUnavailable)
		}
	case <-time.After(time.Minute):
		cancel()
		t.Errorf("it asks on and on, until it is told to end: %v", <-looked)
	}
}
