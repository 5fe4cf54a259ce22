package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/loopback"
	"github.com/seed-63e9a637/jetbus/partition"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/rest"
)

// edgeDrainTimeout is how long clients of the gateway have to settle what they hold.
const edgeDrainTimeout = 20 * time.Second

// edge is a gateway that listens, with the buses that it serves.
type edge struct {
	conns   []*nats.Conn
	buses   []*adapter.Bus
	schemas *registry.Registry
	gateway *gateway.Gateway
	web     *web
	log     *slog.Logger
}

// startEdge opens buses at the broker and serves them; m counts what it does, and may be nil.
// Whatever it returns has to be closed.
func startEdge(ctx context.Context, b *embedded.Broker, prefix, listen string, c gateway.Config, t *tls.Config, m *meter, log *slog.Logger) (e *edge, err error) {
	e = &edge{log: log}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("gateway: %w", err), e.close(context.WithoutCancel(ctx), edgeDrainTimeout))
			e = nil
		}
	}()
	bus := edgeBus{}
	config := adapter.Config{Prefix: prefix, Logger: log, Observer: m.observer()}
	if bus.Backend, err = e.open(ctx, b, "jetbus gateway", config); err != nil {
		return e, err
	}
	if bus.publisher, err = e.open(ctx, b, "jetbus gateway publishes", config); err != nil {
		return e, err
	}
	if e.schemas, err = registry.Open(ctx, e.conns[0], registry.Config{Logger: log}); err != nil {
		return e, err
	}
	c.SchemaOf = e.schemas.Document
	c.PartitionsOf = func(ctx context.Context, topic, group string) ([]jetbus.PartitionStatus, error) {
		return partition.Status(ctx, bus, partition.DefaultBucket, topic, group)
	}
	c.Log, c.Schemas = log, rest.New(e.schemas, rest.Config{Allow: allowSchemas, By: func(r *http.Request) string { return gateway.Subject(r.Context()) }, Log: log})
	if e.gateway, err = gateway.New(registry.Validated(bus, e.schemas, registry.ValidatedOptions{Observer: m.observer()}), c); err != nil {
		return e, &usageError{err}
	}
	if t == nil && !loopback.Address(listen) {
		log.LogAttrs(ctx, slog.LevelWarn, "the gateway has no certificate: tokens can be read on their way, unless a proxy in front of it has one")
	}
	if e.web, err = listenWeb(ctx, "--gateway", listen, e.gateway, max(maxActiveConns, c.Limits.Connections), t, log); err == nil {
		m.watchGateway(e.gateway)
	}
	return e, err
}

// open opens a bus on a connection of its own.
func (e *edge) open(ctx context.Context, b *embedded.Broker, name string, c adapter.Config) (*adapter.Bus, error) {
	nc, err := b.Connect(nats.Name(name))
	if err != nil {
		return nil, err
	}
	e.conns = append(e.conns, nc)
	bus, err := adapter.Open(ctx, nc, c)
	if err != nil {
		return nil, err
	}
	e.buses = append(e.buses, bus)
	return bus, nil
}

// edgeBus publishes over a separate connection. On a shared connection, publish acknowledgements would queue
// after the events of readers.
type edgeBus struct {
	jetbus.Backend
	publisher jetbus.Backend
}

// Publish implements [jetbus.Publisher].
func (b edgeBus) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	return b.publisher.Publish(ctx, e, o...)
}

// PublishBatch implements [jetbus.Batcher].
func (b edgeBus) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	return b.publisher.PublishBatch(ctx, events, o)
}

// server is what listens, nil for a nil edge.
func (e *edge) server() *web {
	if e == nil {
		return nil
	}
	return e.web
}

// allowSchemas says what the scopes of a request allow it to do with schemas.
func allowSchemas(r *http.Request, topic string, write bool) error {
	switch {
	case topic == "" && write:
		return gateway.Authorize(r.Context(), gateway.OpsAdmin, "")
	case topic == "":
		return nil // the settings of all topics, without the name of any
	case write:
		return gateway.Authorize(r.Context(), gateway.SchemaWrite, topic)
	}
	return gateway.Authorize(r.Context(), gateway.SchemaRead, topic)
}

// close ends the gateway, in order, and what it stands on; clients have that long to settle
// what they hold. It may be called on an edge that did not start.
func (e *edge) close(ctx context.Context, drain time.Duration) (err error) {
	if e.gateway != nil {
		err = e.drain(ctx, drain)
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout-edgeDrainTimeout)
	defer cancel()
	err = errors.Join(err, e.web.close(ctx))
	if e.schemas != nil {
		err = errors.Join(err, e.schemas.Close(ctx))
	}
	for _, bus := range e.buses {
		err = errors.Join(err, bus.Close(ctx))
	}
	for _, nc := range e.conns {
		nc.Close()
	}
	return err
}

// drain ends the gateway. Clients that hold something for longer than that are cut off, which is
// an end in order: no event is lost by it.
func (e *edge) drain(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := e.gateway.Drain(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		e.log.LogAttrs(ctx, slog.LevelWarn, "clients of the gateway had no time to end and were cut off, what they held is delivered again", slog.Duration("after", within))
		return nil
	}
	return err
}
