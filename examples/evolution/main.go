// Command evolution changes the schema of a topic while an old and a new release run. A dual
// write stores each heartbeat in the topic of its version as well. An upcaster turns old
// heartbeats into new ones for the consumer. Heartbeats that the consumer cannot handle become
// dead letters, and are replayed to it after it was repaired. It writes to MongoDB, and a
// change feed publishes the changes of its collection.
//
//	go run ./examples/evolution
//	go run ./examples/evolution -server nats://127.0.0.1:4222 -mongo 'mongodb://127.0.0.1:27017/?replicaSet=rs0'
//
// The first command starts a broker and a stand-in for MongoDB in its process.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/examples/internal/demo"
	"github.com/seed-63e9a637/jetbus/registry"
)

const topic, group, changed = "host.heartbeat", "inventory", "hosts.changed"

type heartbeatV1 struct {
	Host  string `json:"host"`
	MemMB int    `json:"mem_mb"`
}

type heartbeatV2 struct {
	Host   string `json:"host"`
	MemMiB int    `json:"mem_mib"`
}

func main() { demo.Main("evolution", run) }

func run(ctx context.Context, e *demo.Env) error {
	for _, name := range []string{topic, topic + ".v1", topic + ".v2"} {
		// They share a stream, so that a dual write stores both events or none.
		if _, err := e.Bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: name, Stream: "HOST_HEARTBEATS"}); err != nil {
			return err
		}
	}
	v1 := jetbus.Topic[heartbeatV1]{Name: topic, Key: func(h heartbeatV1) string { return h.Host }}
	v2 := jetbus.Topic[heartbeatV2]{Name: topic, Key: func(h heartbeatV2) string { return h.Host }} //nolint:topiclint // two releases in one program
	before, err1 := registry.Bind(ctx, e.Schemas, v1, registry.BindOptions{By: "release 1"})
	_, refused := registry.Bind(ctx, e.Schemas, v2, registry.BindOptions{By: "release 2"})
	// The upcaster lets release 2 read old heartbeats, so release 2 may force its schema.
	after, err2 := registry.Bind(ctx, e.Schemas, v2, registry.BindOptions{By: "release 2", Force: true, Upcasters: map[int]registry.Upcaster{
		1: registry.Edit{Rename: map[string]string{"mem_mb": "mem_mib"}},
	}})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if refused != nil { // in the first run
		e.Printf("release 2 forces its schema: %v", refused)
	}
	if err := e.Add(changefeed.Start(ctx, e.Bus, e.DB.Client(), changefeed.Options{
		Name: "hosts", Database: e.DB.Name(), Collection: "hosts", Topic: changed,
		OnHistoryLost: changefeed.Resync, // if this MongoDB does not have the feed's position
	})); err != nil {
		return err
	}
	hosts := &inventory{documents: e.DB.Collection("hosts")}
	o := jetbus.SubscribeOptions{From: jetbus.Earliest(), MaxAttempts: 3, Backoff: jetbus.Backoff{Min: 10 * time.Millisecond}}
	if err := e.Add(after.Subscribe(ctx, e.Bus, group, hosts.handle, o)); err != nil {
		return err
	}
	dual := registry.DualWrite(e.Bus, e.Schemas, registry.DualWriteOptions{Topics: []string{topic}, Atomic: true})
	published := map[string]bool{} // IDs
	for _, name := range []string{"web", "mail", "db"} {
		r1, err1 := before.Publish(ctx, dual, heartbeatV1{Host: name + "-1", MemMB: 1024})
		r2, err2 := after.Publish(ctx, dual, heartbeatV2{Host: name + "-2", MemMiB: 2048})
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		published[r1.Event.ID], published[r2.Event.ID] = true, true
	}
	e.Printf("published 3 heartbeats of each version")
	if err := e.Settled(ctx, topic, group); err != nil {
		return err
	}
	if err := repair(ctx, e, hosts); err != nil {
		return err
	}
	return follow(ctx, e, published)
}

// inventory keeps the memory of each host in a collection.
type inventory struct {
	documents *mongo.Collection
	repaired  atomic.Bool // stands for a release with a repaired handler
}

// handle stores a heartbeat unless a newer one of its host is stored, because a replay is late.
func (i *inventory) handle(ctx context.Context, h heartbeatV2, d *jetbus.Delivery) error {
	if strings.HasPrefix(h.Host, "db-") && !i.repaired.Load() {
		return errors.New("databases are not supported")
	}
	older := bson.D{{Key: "_id", Value: h.Host}, {Key: "time", Value: bson.D{{Key: "$lt", Value: d.Time}}}}
	state := bson.D{{Key: "mem_mib", Value: h.MemMiB}, {Key: "time", Value: d.Time}, {Key: "heartbeat", Value: d.ID}}
	_, err := i.documents.UpdateOne(ctx, older, bson.D{{Key: "$set", Value: state}}, options.UpdateOne().SetUpsert(true))
	if mongo.IsDuplicateKeyError(err) {
		return nil
	}
	return err
}

// repair shows the dead letters of the group, repairs its handler, and replays them to it.
func repair(ctx context.Context, e *demo.Env, hosts *inventory) error {
	open := jetbus.DeadLetterQuery{Topic: topic, Group: group, Open: true}
	for d, err := range jetbus.DeadLetters(ctx, e.Bus, open) {
		if err != nil {
			return err
		}
		e.Printf("dead letter: %s failed %d times: %s", d.Event.Key, d.Attempts, d.Error)
	}
	hosts.repaired.Store(true)
	stats, err := jetbus.Replay(ctx, e.Bus, jetbus.ReplayOptions{DeadLetterQuery: open})
	e.Printf("replayed %d dead letters", stats.Replayed)
	return err
}

// follow prints the changes of the collection until all these heartbeats have changed it.
func follow(ctx context.Context, e *demo.Env, heartbeats map[string]bool) error {
	for c, err := range e.Bus.Read(ctx, []string{changed}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		if err != nil {
			return err
		}
		var host struct{ Heartbeat string }
		if err := json.Unmarshal(c.Payload, &host); err != nil {
			return err
		}
		e.Printf("%s: %s %s", changed, c.Headers[changefeed.HeaderOp], c.Payload)
		if delete(heartbeats, host.Heartbeat); len(heartbeats) == 0 {
			return nil
		}
	}
	return nil
}
