package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/projector/processes"
	"github.com/seed-63e9a637/jetbus/registry"
)

// heartbeatSchema is that of processes.Heartbeat.
const heartbeatSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "pid": {"type": "integer", "minimum": 0},
    "name": {"type": "string", "minLength": 1},
    "host": {"type": "string", "minLength": 1},
    "cpu_pct": {"type": "number"},
    "mem_mb": {"type": "number"},
    "sid": {"type": "string"}
  },
  "required": ["pid", "name", "host", "cpu_pct", "mem_mb"],
  "additionalProperties": false
}`

// stateSchema is that of processes.Process, where states that people publish by hand
// need not say how much the process uses.
const stateSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "properties": {
    "processId": {"type": "string", "minLength": 1},
    "name": {"type": "string"},
    "host": {"type": "string"},
    "pid": {"type": "integer", "minimum": 0},
    "sid": {"type": "string"},
    "cpu_pct": {"type": "number"},
    "mem_mb": {"type": "number"},
    "last_seen_ts": {"type": "integer"},
    "status": {"enum": ["alive", "stale"]}
  },
  "required": ["processId", "name", "host", "status"],
  "additionalProperties": false
}`

// changedSchema is that of the change feed's events: a state, null for a process that
// was deleted, or what the feed says of itself (see package changefeed).
const changedSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "anyOf": [
    {"$ref": "schema://%s/%d"},
    {"type": "null"},
    {"type": "object", "properties": {"operationType": {"type": "string"}}, "required": ["operationType"]}
  ]
}`

// devSchemas are the registry of a run of dev, and the bus by which it publishes and
// delivers: what is no heartbeat, state or change is refused, or a dead letter.
type devSchemas struct {
	registry *registry.Registry
	bus      jetbus.Backend
	reads    *registry.Normalizer
}

// open registers the schemas of dev's topics.
func (s *devSchemas) open(ctx context.Context, nc *nats.Conn, bus *adapter.Bus, observer jetbus.Observer, log *slog.Logger) (err error) {
	if s.registry, err = registry.Open(ctx, nc, registry.Config{Logger: log}); err != nil {
		return err
	}
	// A store may have those of another release. This one has to run on it all the same.
	o := registry.RegisterOptions{By: "jetbus dev", Force: true}
	versions := map[string]int{}
	for _, topic := range []struct{ name, schema string }{
		{processes.DefaultHeartbeats, heartbeatSchema},
		{processes.DefaultStates, stateSchema},
		{devChanged, changedSchema},
	} {
		if topic.name == devChanged {
			topic.schema = fmt.Sprintf(topic.schema, processes.DefaultStates, versions[processes.DefaultStates])
		}
		v, err := s.registry.Register(ctx, topic.name, topic.schema, o)
		if err != nil {
			return err
		}
		versions[topic.name] = v.Number
	}
	follow := registry.NormalizedOptions{Versions: versions}
	s.bus = registry.Normalized(registry.Validated(bus, s.registry, registry.ValidatedOptions{Versions: versions, Observer: observer}), s.registry, follow)
	s.reads = registry.NewNormalizer(s.registry, follow)
	return nil
}

// state is the payload of an event that follows its schema, for the projection: what
// the collection is filled with is read from the topic, and comes by no subscription.
func (s *devSchemas) state(e jetbus.Event) (any, error) {
	e, err := s.reads.Normalize(context.Background(), e)
	if errors.Is(err, jetbus.ErrSchema) {
		return nil, err
	}
	return json.RawMessage(e.Payload), nil // as it is, where it cannot be judged now
}

// close ends the registry.
func (s *devSchemas) close(ctx context.Context) error {
	if s.registry == nil {
		return nil
	}
	return s.registry.Close(ctx)
}
