package main

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/gateway"
)

// A client that keeps what it holds for longer than a gateway waits at its end is cut off. That is
// said, it is no failure, and somebody else gets the event.
func TestEdgeCutsOff(t *testing.T) {
	t.Parallel()
	broker, err := embedded.Start(t.Context(), embedded.Config{Listen: "127.0.0.1:0", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	bus := (&bench{broker.URL()}).bus(t)
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "orders", Payload: []byte("7")}); err != nil {
		t.Fatal(err)
	}
	said := newBuffer()
	e, err := startEdge(t.Context(), broker, "", "127.0.0.1:0", gateway.Config{}, nil, nil, slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	if status, got := fetch(t, c, http.MethodPost, e.web.url+"/v1/groups/orders/billing:pull", "", `{"from":"earliest","waitMs":60000}`); status != http.StatusOK || !strings.Contains(got, `"ack_id"`) {
		t.Errorf("%d %s", status, got)
	}
	if err := e.close(context.WithoutCancel(t.Context()), time.Millisecond); err != nil {
		t.Errorf("the end: %v", err)
	}
	if text := said.String(); strings.Count(text, "cut off") != 1 || !strings.Contains(text, "after=1ms") {
		t.Errorf("the log does not say once that a client was cut off:\n%s", text)
	}
	got, err := bus.Receive(t.Context(), "orders", "billing", jetbus.ReceiveOptions{Wait: patience})
	if err != nil || len(got) != 1 || got[0].Seq != 1 || got[0].Attempt != 1 {
		t.Errorf("delivered again: %v, %v", got, err)
	}
}

// The gateway publishes over a connection of its own, where acknowledgements do not wait behind the events of readers.
func TestGatewayPublishesOnItsOwnConnection(t *testing.T) {
	broker, err := embedded.Start(t.Context(), embedded.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = broker.Stop(context.WithoutCancel(t.Context())) }() // what is tested is over
	e, err := startEdge(t.Context(), broker, "", "127.0.0.1:0", gateway.Config{}, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.close(context.WithoutCancel(t.Context()), patience) }() // nothing is held
	if _, err := e.buses[0].EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "orders"}); err != nil {
		t.Fatal(err)
	}
	published := func() (n int64) {
		conns, err := broker.Server().Connz(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range conns.Conns {
			if c.Name == "jetbus gateway publishes" {
				n += c.InMsgs
			}
		}
		return n
	}
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	for kind, body := range map[string]string{"application/json": "1", "application/x-ndjson": "{\"payload\":1}\n{\"payload\":2}\n"} {
		before := published()
		answer, err := c.Post(e.web.url+"/v1/topics/orders", kind, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close() // it is not read
		if n := published() - before; answer.StatusCode/100 != 2 || n < 1 {
			t.Errorf("%s: %s, %d messages on the connection for publishes", kind, answer.Status, n)
		}
	}
}
