package adapter

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// silent is a JetStream that does not answer its first requests.
type silent struct {
	jetstream.JetStream

	left     int          // requests that it does not answer
	breaks   func() error // breaks the connection under each of them; nil: it holds
	asked    []time.Time  // when requests came
	timeouts int          // requests that ended by their deadline
}

// wait returns the error of a request that is not answered, nil for one that is.
func (s *silent) wait(ctx context.Context) error {
	s.asked = append(s.asked, time.Now())
	if s.left == 0 {
		return nil
	}
	s.left--
	if s.breaks != nil {
		if err := s.breaks(); err != nil {
			return err
		}
	}
	<-ctx.Done()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.timeouts++
	}
	return ctx.Err()
}

func (s *silent) AccountInfo(ctx context.Context) (*jetstream.AccountInfo, error) {
	return &jetstream.AccountInfo{}, s.wait(ctx)
}

func (s *silent) Stream(ctx context.Context, _ string) (jetstream.Stream, error) {
	return streamMade{info: &jetstream.StreamInfo{}}, s.wait(ctx)
}

func (s *silent) StreamNameBySubject(ctx context.Context, _ string) (string, error) {
	return "S", s.wait(ctx)
}

func (s *silent) Consumer(ctx context.Context, _, _ string) (jetstream.Consumer, error) {
	return consumerSeen{}, s.wait(ctx)
}

func (s *silent) KeyValue(ctx context.Context, _ string) (jetstream.KeyValue, error) {
	return nil, s.wait(ctx)
}

func (s *silent) CreateStream(ctx context.Context, _ jetstream.StreamConfig) (jetstream.Stream, error) {
	return streamMade{info: &jetstream.StreamInfo{}}, s.wait(ctx)
}

func (s *silent) UpdateStream(ctx context.Context, _ jetstream.StreamConfig) (jetstream.Stream, error) {
	return streamMade{info: &jetstream.StreamInfo{}}, s.wait(ctx)
}

func (s *silent) CreateConsumer(ctx context.Context, _ string, _ jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	return consumerSeen{}, s.wait(ctx)
}

func (s *silent) UpdateConsumer(ctx context.Context, _ string, _ jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	return consumerSeen{}, s.wait(ctx)
}

func (s *silent) DeleteConsumer(ctx context.Context, _, _ string) error { return s.wait(ctx) }

func (s *silent) PauseConsumer(ctx context.Context, _, _ string, _ time.Time) (*jetstream.ConsumerPauseResponse, error) {
	return &jetstream.ConsumerPauseResponse{}, s.wait(ctx)
}

// Requests by whether they ask or change something.
var (
	questions = map[string]func(context.Context, *patient) error{
		"account":  func(ctx context.Context, p *patient) error { _, err := p.AccountInfo(ctx); return err },
		"stream":   func(ctx context.Context, p *patient) error { _, err := p.Stream(ctx, "S"); return err },
		"subject":  func(ctx context.Context, p *patient) error { _, err := p.StreamNameBySubject(ctx, "s"); return err },
		"consumer": func(ctx context.Context, p *patient) error { _, err := p.Consumer(ctx, "S", "c"); return err },
		"bucket":   func(ctx context.Context, p *patient) error { _, err := p.KeyValue(ctx, "B"); return err },
	}
	changes = map[string]func(context.Context, *patient) error{
		"create stream": func(ctx context.Context, p *patient) error {
			_, err := p.CreateStream(ctx, jetstream.StreamConfig{})
			return err
		},
		"create consumer": func(ctx context.Context, p *patient) error {
			_, err := p.CreateConsumer(ctx, "S", jetstream.ConsumerConfig{})
			return err
		},
		"update consumer": func(ctx context.Context, p *patient) error {
			_, err := p.UpdateConsumer(ctx, "S", jetstream.ConsumerConfig{})
			return err
		},
		"delete consumer": func(ctx context.Context, p *patient) error { return p.DeleteConsumer(ctx, "S", "c") },
		"update stream": func(ctx context.Context, p *patient) error {
			_, err := p.change(ctx, &jetstream.StreamInfo{}, jetstream.StreamConfig{Name: "S", Description: "changed"})
			return err
		},
		"pause consumer": func(ctx context.Context, p *patient) error {
			_, err := p.PauseConsumer(ctx, "S", "c", time.Time{})
			return err
		},
	}
)

// A question without an answer is asked again soon, so that no leader is missed that is there
// for a few seconds.
func TestQuestionsAreAskedAgainSoon(t *testing.T) {
	for what, ask := range questions {
		synctest.Test(t, func(t *testing.T) {
			js := &silent{left: 5}
			if err := ask(t.Context(), &patient{JetStream: js, most: time.Minute}); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for i, at := range js.asked[1:] {
				if pause := at.Sub(js.asked[i]); pause > askTimeout+publishRetryMax {
					t.Errorf("%s: asked again after %v, want at most %v", what, pause, askTimeout+publishRetryMax)
				}
			}
		})
	}
}

// A request whose connection breaks is sent again on the next connection. It does not wait for
// an answer that cannot come.
func TestRequestsDoNotOutliveTheirConnection(t *testing.T) {
	bus, nc, _ := internalBus(t)
	for _, all := range []map[string]func(context.Context, *patient) error{questions, changes} {
		for what, request := range all {
			js := &silent{left: 2, breaks: func() error { return nc.ForceReconnect() }}
			err := request(t.Context(), &patient{JetStream: js, most: time.Minute, link: bus.link})
			if err != nil || js.timeouts != 0 || len(js.asked) < 3 {
				t.Errorf("%s: %v after %d requests, of which %d timed out; want one more, which is answered", what, err, len(js.asked), js.timeouts)
			}
		}
	}
}
