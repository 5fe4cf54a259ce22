package client

import (
	"context"
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
)

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// token is what the clients of the suite authenticate with.
const token = "the token of the suite"

func withToken(context.Context) (string, error) { return token, nil }

// serve serves a bus by a gateway until the end of the test, and returns where.
func serve(t *testing.T, b jetbus.Backend) string {
	t.Helper()
	// A gateway without tokens accepts its own port alone, and the proxy has another one.
	auth, err := gateway.StaticTokens(gateway.Token{Token: token, Subject: "suite", Scopes: []string{"topic:read:>", "topic:write:>", "group:join:>", "schema:read:>", "ops:admin"}})
	if err != nil {
		t.Fatal(err)
	}
	// Nothing that the suite does exceeds the limits.
	g, err := gateway.New(b, gateway.Config{Auth: auth, Limits: gateway.Limits{Rate: -1, FrameBytes: 4 << 20, BatchEvents: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	on, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: g, ReadHeaderTimeout: time.Minute}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(on) })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := g.Drain(ctx); err != nil {
			t.Errorf("drain: %v", err)
		}
		_ = server.Close()
		served.Wait()
	})
	return on.Addr().String()
}

// dial makes a client until the end of the test.
func dial(t *testing.T, c client.Config) *client.Client {
	t.Helper()
	c.Token = withToken
	bus, err := client.Dial(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := bus.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return bus
}

// rig is a gateway over a broker, with a proxy in front of its socket.
type rig struct {
	*testing.T
	bus   *adapter.Bus
	proxy *proxy
}

// start starts a gateway with the topic "orders".
func start(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, bus: bustest.Open(t, bustest.Start(t, embedded.Config{}), adapter.Config{})}
	if _, err := r.bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders", KeyInSubject: true}); err != nil {
		t.Fatal(err)
	}
	r.proxy = startProxy(t, serve(t, r.bus), 0)
	return r
}

// config reconnects fast.
func (r *rig) config() client.Config {
	return client.Config{URL: r.proxy.url(), Reconnect: jetbus.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}}
}

func (r *rig) publish(n int) {
	r.Helper()
	for i := range n {
		if _, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "orders", Key: fmt.Sprint(i), Payload: fmt.Append(nil, i)}); err != nil {
			r.Fatal(err)
		}
	}
}

// settled waits until a group is done with everything up to seq.
func (r *rig) settled(group string, seq uint64) {
	r.Helper()
	for late := time.Now().Add(patience); ; <-time.After(5 * time.Millisecond) {
		at, err := r.bus.Cursor(r.Context(), "orders", group)
		if err == nil && at.LastSeq >= seq {
			return
		}
		if time.Now().After(late) {
			r.Fatalf("the group is at %+v, %v", at, err)
		}
	}
}

// get waits for the next of a channel.
func get[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
		panic("unreachable")
	}
}
