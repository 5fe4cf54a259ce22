package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/gateway/client"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// absence is how long a gateway is away: for longer than a topic knows what it has stored.
const absence = 3 * time.Minute

// deaf takes the first frame of an op and says nothing, and says of the next that it comes too late.
func deaf(op, tooLate string) func(c *line, r *frame.Request) string {
	return func(c *line, r *frame.Request) string {
		switch {
		case r.Op != op:
			return yes(r)
		case c.n == 1:
			return ""
		}
		return fmt.Sprintf(tooLate, r.Corr)
	}
}

// leave breaks the connection once a frame of that op has come, and is back after the absence.
func (s *standIn) leave(c *line, op string) {
	s.said(op)
	s.away.Store(true)
	c.cut()
	time.AfterFunc(absence, func() { s.away.Store(false) })
}

// wantAges checks how old the frames of an op say that they are: the first nothing, the second
// that the gateway was away meanwhile.
func (s *standIn) wantAges(op string) {
	s.Helper()
	said := s.said(op)
	if len(said) != 2 || said[0].AgeMs != 0 || said[1].AgeMs < absence.Milliseconds() || said[1].AgeMs > 2*absence.Milliseconds() {
		s.Errorf("said %+v", said)
	}
}

// TestARepeatedPublishSaysHowOldItIs: the gateway decides whether it comes too late, and the caller is told that the
// event may be stored.
func TestARepeatedPublishSaysHowOldItIs(t *testing.T) {
	const tooLate = `{"op":"ERR","corr":%q,"code":"publish_failed","msg":"too late","details":{"stored":"unknown"}}`
	inScript(t, deaf(frame.Publish, tooLate), func(s *standIn) {
		bus, c := s.dial(nil)
		ctx, cancel := context.WithTimeout(s.Context(), time.Hour)
		defer cancel()
		result := make(chan error, 1)
		go func() {
			_, err := bus.Publish(ctx, jetbus.Event{Topic: "orders"})
			result <- err
		}()
		s.leave(c, frame.Publish)
		err := <-result
		if p, ok := errors.AsType[*jetbus.PublishError](err); !ok || p.Stored != jetbus.StoredUnknown || !errors.Is(err, jetbus.ErrUnavailable) {
			s.Errorf("got %v", err)
		}
		s.wantAges(frame.Publish)
	})
}

// TestARepeatedBatchSaysHowOldItIs: as a single publish does.
func TestARepeatedBatchSaysHowOldItIs(t *testing.T) {
	const tooLate = `{"op":"OK","corr":%q,"results":[{"code":"publish_failed","msg":"too late","stored":"unknown"},{"code":"publish_failed","msg":"too late","stored":"unknown"}]}`
	inScript(t, deaf(frame.PublishBatch, tooLate), func(s *standIn) {
		bus, c := s.dial(nil)
		ctx, cancel := context.WithTimeout(s.Context(), time.Hour)
		defer cancel()
		result := make(chan error, 1)
		go func() {
			_, err := bus.PublishBatch(ctx, []jetbus.Event{{Topic: "orders"}, {Topic: "orders"}}, jetbus.BatchOptions{})
			result <- err
		}()
		s.leave(c, frame.PublishBatch)
		err := <-result
		b, ok := errors.AsType[*jetbus.BatchError](err)
		if !ok || len(b.Failed) != 2 || b.Failed[0].Stored != jetbus.StoredUnknown || b.Failed[1].Stored != jetbus.StoredUnknown {
			s.Errorf("got %v", err)
		}
		s.wantAges(frame.PublishBatch)
	})
}

// TestAgesAreOfWhatMayBeStored: what was refused is not stored, and is as new when it is said again; what may be
// stored counts from the first time.
func TestAgesAreOfWhatMayBeStored(t *testing.T) {
	for code, old := range map[string]bool{"rate_limited": false, "broker_unavailable": true} {
		t.Run(code, func(t *testing.T) {
			frames := 0
			inScript(t, func(_ *line, r *frame.Request) string {
				if r.Op != frame.Publish {
					return yes(r)
				}
				if frames++; frames <= 2 {
					return fmt.Sprintf(`{"op":"ERR","corr":%q,"code":%q,"msg":"no","retryable":true,"retry_after_ms":1000}`, r.Corr, code)
				}
				return yes(r)
			}, func(s *standIn) {
				bus, _ := s.dial(nil)
				if _, err := bus.Publish(s.Context(), jetbus.Event{Topic: "orders"}); err != nil {
					s.Fatal(err)
				}
				for i, r := range s.said(frame.Publish) {
					least := int64(0)
					if old {
						least = int64(i) * 1000
					}
					if r.AgeMs < least || r.AgeMs > least+100 {
						s.Errorf("frame %d says %d ms, not %d", i, r.AgeMs, least)
					}
				}
			})
		})
	}
}

// cutNet is a pipeNet that can be away.
type cutNet struct {
	*pipeNet

	mu    sync.Mutex
	away  bool
	conns []net.Conn
}

func (n *cutNet) dial(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	away := n.away
	n.mu.Unlock()
	if away {
		return nil, errors.New("away")
	}
	c, err := n.pipeNet.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, c)
	return c, nil
}

// set breaks all connections, and lets new ones be made or not.
func (n *cutNet) set(away bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = away
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

// mute is a bus the answer to whose first publish is lost.
type mute struct {
	jetbus.Backend
	lose func()
	once sync.Once
}

func (m *mute) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	receipt, err := m.Backend.Publish(ctx, e, o...)
	m.once.Do(m.lose)
	return receipt, err
}

// TestNothingIsStoredTwice: the answer to a publish is lost with the gateway, which is away until the topic has
// forgotten the event's id.
func TestNothingIsStoredTwice(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) }) // what the server writes behind
		bus := bustest.Open(t, bustest.Start(t, embedded.Config{}), adapter.Config{})
		if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders"}); err != nil {
			t.Fatal(err)
		}
		network := &cutNet{pipeNet: newPipeNet()}
		lose := func() {
			network.set(true)
			time.AfterFunc(absence, func() { network.set(false) })
		}
		serve(t, &mute{Backend: bus, lose: lose}, gateway.Config{Limits: limits()}, network)
		edge := dial(t, client.Config{
			URL: "http://localhost", HTTPClient: &http.Client{Transport: &http.Transport{DialContext: network.dial, DisableKeepAlives: true}},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := edge.Publish(ctx, jetbus.Event{Topic: "orders"})
		if p, ok := errors.AsType[*jetbus.PublishError](err); !ok || p.Stored != jetbus.StoredUnknown {
			t.Errorf("got %v", err)
		}
		if info, err := bus.TopicInfo(t.Context(), "orders"); err != nil || info.Events != 1 {
			t.Errorf("the topic has %d events, %v", info.Events, err)
		}
	})
}
