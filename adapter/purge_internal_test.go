package adapter

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// late is a stream to which somebody writes while the answer to its first purge is lost.
type late struct {
	jetstream.Stream

	js    jetstream.JetStream
	calls int
}

func (s *late) Purge(ctx context.Context, o ...jetstream.StreamPurgeOpt) error {
	err := s.Stream.Purge(ctx, o...)
	if s.calls++; err != nil || s.calls > 1 {
		return err
	}
	if _, err := s.js.Publish(ctx, "d.a", nil); err != nil {
		return err
	}
	return context.DeadlineExceeded
}

// A purge that is repeated takes nothing that has come since it was asked for.
func TestPurgeAgain(t *testing.T) {
	_, _, js := directStream(t, "d.a", "d.b", "d.a")
	s, err := js.Stream(t.Context(), "D")
	if err != nil {
		t.Fatal(err)
	}
	all := &late{Stream: s, js: js}
	if err := (&patient{JetStream: js, most: time.Minute}).purge(t.Context(), all, "d.a"); err != nil || all.calls != 2 {
		t.Errorf("%d calls: %v", all.calls, err)
	}
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("d.>"))
	if err != nil {
		t.Fatal(err)
	}
	if left := info.State.Subjects; len(left) != 2 || left["d.a"] != 1 || left["d.b"] != 1 {
		t.Errorf("left: %v", left)
	}
}
