// Command partitions follows processes through the bus. Heartbeats become states of
// processes, in the topic process.state with 8 partitions. A projection keeps a MongoDB
// collection up to date with the states. Two members of a group share the partitions, and
// handle the states of each process in order. Both topics have a schema.
//
//	go run ./examples/partitions
//	go run ./examples/partitions -server nats://127.0.0.1:4222 -mongo 'mongodb://127.0.0.1:27017/?replicaSet=rs0'
//
// The first command starts a broker and a stand-in for MongoDB in its process.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/examples/internal/demo"
	"github.com/seed-63e9a637/jetbus/partition"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
	"github.com/seed-63e9a637/jetbus/projector/processes"
	"github.com/seed-63e9a637/jetbus/registry"
)

const (
	projection = "processes" // the projection, its group and its collection
	analyzers  = "analyzers" // the group that shares the partitions
)

func main() { demo.Main("partitions", run) }

func run(ctx context.Context, e *demo.Env) error {
	bus, err := declare(ctx, e)
	if err != nil {
		return err
	}
	if err := e.Add(processes.Start(ctx, bus, processes.Options{})); err != nil { // heartbeats to states
		return err
	}
	if err := project(ctx, e, bus); err != nil { // states to documents
		return err
	}
	for i := range 2 { // in production, each member is a process of its own
		member := fmt.Sprintf("analyzer-%d-%d", os.Getpid(), i+1) // a name that no other process has
		if err := e.Add(partition.Subscribe(ctx, bus, processes.DefaultStates, analyzers, analyzer(e.DB, member), partition.SubscribeOptions{
			Member:       member,
			PerPartition: jetbus.SubscribeOptions{From: jetbus.Earliest()},
			OnAssigned:   func(_ context.Context, a partition.Assigned) { e.Printf("%s has partition %d", member, a.Number) },
		})); err != nil {
			return err
		}
	}
	if err := beat(ctx, e, bus); err != nil {
		return err
	}
	if err := e.Settled(ctx, processes.DefaultHeartbeats, processes.DefaultGroup); err != nil {
		return err
	}
	if err := e.Settled(ctx, processes.DefaultStates, projection, analyzers); err != nil {
		return err
	}
	n, err := e.DB.Collection(projection).CountDocuments(ctx, mongosink.Live())
	e.Printf("everything is handled: the collection has %d documents; now the members stop, one after the other", n)
	return err
}

// declare declares the topic of the states and registers both schemas, as each replica does
// when it starts. It returns a bus that neither stores nor delivers what breaks its schema.
func declare(ctx context.Context, e *demo.Env) (jetbus.Backend, error) {
	_, err1 := e.Bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: processes.DefaultStates, Partitions: 8, KeyInSubject: true})
	heartbeats, err2 := registry.Bind(ctx, e.Schemas, processes.HeartbeatTopic, registry.BindOptions{By: "examples/partitions"})
	states, err3 := registry.Bind(ctx, e.Schemas, processes.StateTopic, registry.BindOptions{By: "examples/partitions"})
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	// This release keeps to these versions when a later release registers others.
	versions := map[string]int{heartbeats.Name(): heartbeats.Version().Number, states.Name(): states.Version().Number}
	validated := registry.Validated(e.Bus, e.Schemas, registry.ValidatedOptions{Versions: versions})
	return registry.Normalized(validated, e.Schemas, registry.NormalizedOptions{Versions: versions}), nil
}

// project keeps a document for each process, with its last state.
func project(ctx context.Context, e *demo.Env, bus jetbus.Backend) error {
	sink, err := mongosink.New(e.DB, mongosink.Options{
		Collection: projection,
		Indexes: []mongosink.Index{
			{Keys: bson.D{{Key: "host", Value: 1}, {Key: "name", Value: 1}}},
			{Keys: bson.D{{Key: "status", Value: 1}}},
		},
	})
	if err != nil {
		return err
	}
	return e.Add(projector.Start(ctx, bus, sink, projector.Options{
		Name: projection, Topic: processes.DefaultStates,
		OnNewStream: projector.RebuildOnNewStream, // if the collection has states of another broker
	}))
}

// analyzer returns a handler that stores the highest CPU use of each process. $max makes it
// idempotent: an event that is redelivered changes nothing.
func analyzer(db *mongo.Database, member string) jetbus.Handler {
	return func(ctx context.Context, d *jetbus.Delivery) error {
		p, err := processes.StateTopic.Decode(d.Event)
		if err != nil {
			return jetbus.Reject(err) // every attempt would fail
		}
		_, err = db.Collection("peaks").UpdateByID(ctx, d.Key, bson.D{
			{Key: "$max", Value: bson.D{{Key: "cpu_pct", Value: p.CPUPct}, {Key: "last_seen_ts", Value: p.LastSeen}}},
			{Key: "$set", Value: bson.D{{Key: "partition", Value: d.Partition}, {Key: "member", Value: member}}},
		}, options.UpdateOne().SetUpsert(true))
		return err
	}
}

// beat publishes three heartbeats of each of 24 processes, and one that breaks the schema.
func beat(ctx context.Context, e *demo.Env, bus jetbus.Publisher) error {
	for i := range 72 {
		h := processes.Heartbeat{PID: i % 24, Name: "worker", Host: fmt.Sprintf("host-%d", i%3), CPUPct: float64(i * 37 % 100), MemMB: 64}
		if _, err := processes.HeartbeatTopic.Publish(ctx, bus, h); err != nil {
			return err
		}
	}
	_, err := bus.Publish(ctx, jetbus.Event{Topic: processes.DefaultHeartbeats, Payload: []byte(`{"pid": "seven"}`)})
	if !errors.Is(err, jetbus.ErrSchema) {
		return errors.Join(errors.New("a heartbeat that breaks the schema was not refused"), err)
	}
	e.Printf("72 heartbeats of 24 processes published, one refused: %v", err)
	return nil
}
