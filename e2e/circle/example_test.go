package circle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
	"github.com/seed-63e9a637/jetbus/projector/processes"
	"github.com/seed-63e9a637/jetbus/registry"
)

const (
	collection = "processes"
	changed    = "processes.changed"
	snapshot   = processes.DefaultStates + ".snapshot"
	stateSeq   = "x-state-seq" // header: the position of the state that a document was made of
)

// changedSchema is that of the change feed's events: a state, null for a document that
// was deleted, or what the feed says of itself.
const changedSchema = `{"anyOf": [
	{"$ref": "schema://process.state/1"},
	{"type": "null"},
	{"type": "object", "properties": {"operationType": {"type": "string"}}, "required": ["operationType"]}
]}`

// declare declares the topics and registers their schemas. It may be called again.
func declare(ctx context.Context, bus jetbus.Topics, schemas *registry.Registry) error {
	for _, c := range []jetbus.TopicConfig{
		{Name: processes.DefaultHeartbeats},
		{Name: processes.DefaultStates, KeyInSubject: true},
		{Name: snapshot, SnapshotOf: processes.DefaultStates},
	} {
		if _, err := bus.EnsureTopic(ctx, c); err != nil {
			return err
		}
	}
	heartbeat, err := registry.Reflect[processes.Heartbeat]()
	if err != nil {
		return err
	}
	state, err := registry.Reflect[processes.Process]()
	if err != nil {
		return err
	}
	for _, topic := range [][2]string{{processes.DefaultHeartbeats, heartbeat}, {processes.DefaultStates, state}, {changed, changedSchema}} {
		if _, err := schemas.Register(ctx, topic[0], topic[1], registry.RegisterOptions{By: "circle"}); err != nil {
			return err
		}
	}
	return nil
}

// checked is a bus that neither stores nor delivers what breaks a schema.
func checked(bus jetbus.Backend, schemas *registry.Registry) jetbus.Backend {
	return registry.Normalized(registry.Validated(bus, schemas, registry.ValidatedOptions{}), schemas, registry.NormalizedOptions{})
}

// follows is a projection's map: the payload of an event that follows its schema. A
// collection that is new is filled by reading the topic, which no schema guards.
func follows(schemas *registry.Registry) func(jetbus.Event) (any, error) {
	n := registry.NewNormalizer(schemas, registry.NormalizedOptions{})
	return func(e jetbus.Event) (any, error) {
		e, err := n.Normalize(context.Background(), e)
		return json.RawMessage(e.Payload), err
	}
}

// circle is what turns heartbeats into states, states into documents, and changes of
// documents into events.
type circle struct {
	states     *processes.Projector
	projection *projector.Projection
	feed       *changefeed.Feed
}

// turn starts a circle. A process that is silent for stale has gone stale.
func turn(ctx context.Context, bus jetbus.Backend, schemas *registry.Registry, db *mongo.Database, stale time.Duration) (c circle, err error) {
	bus = checked(bus, schemas)
	sink, err := mongosink.New(db, mongosink.Options{Collection: collection})
	if err != nil {
		return c, err
	}
	if c.states, err = processes.Start(ctx, bus, processes.Options{StaleAfter: stale, Sweep: stale / 10}); err != nil {
		return c, err
	}
	c.projection, err = projector.Start(ctx, bus, sink, projector.Options{
		Name: "processes", Topic: processes.DefaultStates, From: snapshot, Map: follows(schemas), AckTimeout: time.Second,
	})
	if err != nil {
		return c, err
	}
	c.feed, err = changefeed.Start(ctx, bus, db.Client(), changefeed.Options{
		Name: "processes", Database: db.Name(), Collection: collection, Topic: changed,
		Start: changefeed.FromCopy(), Map: asState, LeaseTTL: 5 * time.Second,
	})
	return c, err
}

// asState leaves out of an event's payload what the projection keeps in a document for itself.
func asState(c *changefeed.Change, e *jetbus.Event) error {
	if seq, ok := c.FullDocument.Lookup("_seq").AsInt64OK(); ok {
		e.Headers[stateSeq] = strconv.FormatInt(seq, 10)
	}
	payload, err := state(c.FullDocument)
	e.Payload = payload
	return err
}

// state is the state that a document was made of, null where the key is deleted.
func state(doc bson.Raw) ([]byte, error) {
	if deleted, _ := doc.Lookup("_deleted").BooleanOK(); deleted || doc == nil {
		return []byte("null"), nil
	}
	fields, err := doc.Elements()
	if err != nil {
		return nil, err
	}
	own := bson.D{}
	for _, f := range fields {
		if !strings.HasPrefix(f.Key(), "_") {
			own = append(own, bson.E{Key: f.Key(), Value: f.Value()})
		}
	}
	return bson.MarshalExtJSON(own, false, false)
}

// stop ends a circle, each part when what comes before it has ended.
func (c circle) stop(ctx context.Context) error {
	return errors.Join(c.states.Stop(ctx), c.projection.Stop(ctx), c.feed.Stop(ctx))
}

// A heartbeat comes back as what it changed in the database.
func Example() {
	ctx := context.Background()
	broker, err := embedded.Start(ctx, embedded.Config{})
	check(err)
	defer func() { check(broker.Stop(ctx)) }()
	nc, err := broker.Connect()
	check(err)
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	check(err)
	defer func() { check(bus.Close(ctx)) }()
	schemas, err := registry.Open(ctx, nc, registry.Config{})
	check(err)
	defer func() { check(schemas.Close(ctx)) }()
	server, err := mongod.Start(ctx, mongod.Config{}) // a stand-in; your URI here
	check(err)
	defer server.Stop()
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI()))
	check(err)
	defer func() { check(client.Disconnect(ctx)) }()

	check(declare(ctx, bus, schemas))
	safe := checked(bus, schemas)
	c, err := turn(ctx, bus, schemas, client.Database("shop"), 5*time.Second)
	check(err)
	for e, err := range bus.Read(ctx, []string{changed}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		check(err)
		if e.Headers[changefeed.HeaderOp] == changefeed.OpCopied { // the feed follows from here on
			_, err := processes.HeartbeatTopic.Publish(ctx, safe, processes.Heartbeat{PID: 7, Name: "web", Host: "h", CPUPct: 2.5})
			check(err)
			continue
		}
		var p processes.Process
		check(json.Unmarshal(e.Payload, &p))
		fmt.Println(e.Key, "is", p.Status)
		if p.Status == processes.Stale {
			break
		}
	}
	_, err = safe.Publish(ctx, jetbus.Event{Topic: processes.DefaultHeartbeats, Payload: []byte(`{"pid":"seven"}`)})
	fmt.Println("refused:", errors.Is(err, jetbus.ErrSchema))
	check(c.stop(ctx))
	// Output:
	// h:web:7 is alive
	// h:web:7 is stale
	// refused: true
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
