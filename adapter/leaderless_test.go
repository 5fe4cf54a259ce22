package adapter

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// electing refuses as a cluster without a leader does, so many times.
type electing struct {
	jetstream.JetStream

	refusals, calls int
}

func (e *electing) DeleteConsumer(context.Context, string, string) error {
	if e.calls++; e.calls <= e.refusals {
		return &jetstream.APIError{Code: 503, ErrorCode: codeNoLeader, Description: "JetStream system temporarily unavailable"}
	}
	return &jetstream.APIError{Code: 404, ErrorCode: jetstream.JSErrCodeConsumerNotFound}
}

func TestElectionIsSatOut(t *testing.T) {
	for what, c := range map[string]struct {
		refusals    int
		timeout     time.Duration // of the context
		least, most time.Duration
		want        jetstream.ErrorCode
	}{
		"short":                {3, time.Hour, 350 * time.Millisecond, 350 * time.Millisecond, jetstream.JSErrCodeConsumerNotFound},
		"longer than patience": {1000, time.Hour, 10 * time.Second, 12 * time.Second, codeNoLeader},
		"longer than context":  {1000, time.Second, time.Second, time.Second, codeNoLeader},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				began := time.Now()
				p := &patient{JetStream: &electing{refusals: c.refusals}, most: 10 * time.Second}
				err := p.DeleteConsumer(ctx, "S", "C")
				if took := time.Since(began); took < c.least || took > c.most {
					t.Errorf("took %v, want %v to %v", took, c.least, c.most)
				}
				if apiCode(err) != c.want {
					t.Errorf("ended with %v", err)
				}
				if got := (&server{}).translate("delete", "", err); errors.Is(got, jetbus.ErrUnavailable) != (c.want == codeNoLeader) {
					t.Errorf("called %v", got)
				}
			})
		})
	}
}

// crowded is a cluster that finds too few servers, so many times.
type crowded struct {
	jetstream.JetStream

	refusals, calls int
}

func (c *crowded) answer(code jetstream.ErrorCode) error {
	if c.calls++; c.calls <= c.refusals {
		return &jetstream.APIError{Code: 503, ErrorCode: code}
	}
	return nil
}

func (c *crowded) CreateStream(context.Context, jetstream.StreamConfig) (jetstream.Stream, error) {
	return nil, c.answer(codeNoPeers)
}

func (c *crowded) UpdateStream(context.Context, jetstream.StreamConfig) (jetstream.Stream, error) {
	return nil, c.answer(codeNoPeers)
}

func (c *crowded) CreateConsumer(context.Context, string, jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	return nil, c.answer(codeStoreFull)
}

// What a cluster finds too few servers for is asked for again, as long as the context
// allows, where it is to be made; where it is there already the caller goes on with that.
func TestTooFewServersAreSatOut(t *testing.T) {
	for what, c := range map[string]struct {
		make  func(context.Context, *patient) error
		again bool
	}{
		"a stream": {func(ctx context.Context, p *patient) error {
			_, err := p.CreateStream(ctx, jetstream.StreamConfig{})
			return err
		}, true},
		"a consumer": {func(ctx context.Context, p *patient) error {
			_, err := p.CreateConsumer(ctx, "S", jetstream.ConsumerConfig{})
			return err
		}, true},
		"a change": {func(ctx context.Context, p *patient) error {
			_, err := p.UpdateStream(ctx, jetstream.StreamConfig{})
			return err
		}, false},
	} {
		for _, refusals := range []int{3, 1000} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				js := &crowded{refusals: refusals}
				began := time.Now()
				err := c.make(ctx, &patient{JetStream: js, most: time.Hour})
				if refused := err != nil; refused != (refusals == 1000 || !c.again) || js.calls > 1 != c.again {
					t.Errorf("%s, refused %d times: %v after %d calls", what, refusals, err, js.calls)
				}
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("%s: took %v", what, took)
				}
				if got := (&server{}).translate("make", "", err); err != nil && (!errors.Is(got, jetbus.ErrUnavailable) || !strings.Contains(got.Error(), "too few servers")) {
					t.Errorf("%s: called %v", what, got)
				}
			})
		}
	}
}

// tidying is a server that fails to make a stream's store, so many times.
type tidying struct {
	jetstream.JetStream

	failures, calls int
}

func (s *tidying) CreateStream(context.Context, jetstream.StreamConfig) (jetstream.Stream, error) {
	if s.calls++; s.calls <= s.failures {
		return nil, &jetstream.APIError{Code: 500, ErrorCode: codeStreamCreate, Description: "error creating store for stream"}
	}
	return nil, &jetstream.APIError{Code: 500, ErrorCode: codeStreamCreate, Description: "something else"}
}

// The server may tidy up after its last stream while the next one is made.
func TestStoreIsAskedForAgain(t *testing.T) {
	for failures, want := range map[int]struct {
		calls  int
		failed bool
	}{0: {1, false}, 1: {2, false}, 2: {3, false}, 1000: {3, true}} {
		synctest.Test(t, func(t *testing.T) {
			s := &tidying{failures: failures}
			_, err := (&patient{JetStream: s, most: 10 * time.Second}).CreateStream(t.Context(), jetstream.StreamConfig{})
			if s.calls != want.calls || isStoreFailed(err) != want.failed {
				t.Errorf("%d failures: %d calls, ended with %v", failures, s.calls, err)
			}
		})
	}
}
