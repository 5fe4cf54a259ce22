package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/projector"
	"github.com/seed-63e9a637/jetbus/projector/mongosink"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

const (
	// devCollection is the collection of process states, and the name of its projection.
	devCollection = "processes"
	// mongoTimeout bounds the connect to a MongoDB, and each look at it.
	mongoTimeout = 10 * time.Second
)

// devMongo is the MongoDB of a run of dev, and the projection into it.
type devMongo struct {
	standIn    *mongod.Server // nil: a real one
	uri        string
	client     *mongo.Client
	db         *mongo.Database
	projection *projector.Projection
}

// open connects to the MongoDB of the URI, or starts the stand-in where that is empty.
func (m *devMongo) open(ctx context.Context, d *devRun) (err error) {
	if m.uri == "" {
		if m.standIn, err = mongod.Start(ctx, mongod.Config{Log: d.log}); err != nil {
			return err
		}
		m.uri = m.standIn.URI()
	}
	if m.client, err = connectMongo(ctx, d.out, m.uri, mongoTimeout); err != nil {
		return err
	}
	m.db = m.client.Database(databaseOf(m.uri))
	return nil
}

// start projects the states of processes into their collection. A store that was
// removed begins its topics anew, and so does the collection.
func (m *devMongo) start(ctx context.Context, bus jetbus.Backend, d *devRun) error {
	sink, err := mongosink.New(m.db, mongosink.Options{
		Collection: devCollection,
		Indexes: []mongosink.Index{
			{Keys: bson.D{{Key: "host", Value: 1}, {Key: "name", Value: 1}}},
			{Keys: bson.D{{Key: "status", Value: 1}}},
		},
	})
	if err != nil {
		return err
	}
	m.projection, err = projector.Start(ctx, bus, sink, projector.Options{
		Name: devCollection, Topic: processes.DefaultStates, From: devSnapshot,
		Map: d.schemas.state, OnNewStream: projector.RebuildOnNewStream, Logger: d.log,
	})
	return err
}

// intro says where it is.
func (m *devMongo) intro() string {
	if m.standIn != nil {
		return "mongo   " + m.uri + "  (stand-in for development: no database, in memory)"
	}
	return "mongo   " + mongoAddress(m.uri) + "  database " + m.db.Name() + ", collection " + devCollection
}

// collectionCount is the collection as the live view shows it.
type collectionCount struct {
	name      string
	documents int64 // of keys that are not deleted
	lag       uint64
	phase     projector.Phase // empty: there is no projection
}

// count looks at the collection. What cannot be known at the moment stays as it was:
// a MongoDB that is away is no reason to end.
func (m *devMongo) count(ctx context.Context, before collectionCount) collectionCount {
	ctx, cancel := context.WithTimeout(ctx, viewEvery)
	defer cancel()
	now := before
	now.name, now.phase = devCollection, cmp.Or(m.projection.Stats().Phase, "starting")
	if n, err := m.db.Collection(devCollection).CountDocuments(ctx, mongosink.Live()); err == nil {
		now.documents = n
	}
	if lag, err := m.projection.Lag(ctx); err == nil {
		now.lag = lag.Events
	}
	return now
}

// summary says what becomes of the collection.
func (m *devMongo) summary(ctx context.Context) string {
	c := m.count(ctx, collectionCount{})
	text := fmt.Sprintf("mongo   %s in %s", plural(c.documents, "document"), devCollection)
	if c.lag > 0 {
		text += fmt.Sprintf(", %s behind", plural(c.lag, "event"))
	}
	if m.standIn != nil {
		text += "; the stand-in forgets them, and the next start fills it again"
	}
	return text
}

// close ends the connection and the stand-in.
func (m *devMongo) close(ctx context.Context) error {
	var err error
	if m.client != nil {
		err = m.client.Disconnect(ctx)
	}
	if m.standIn != nil {
		m.standIn.Stop() //nolint:contextcheck // it logs its end, whatever ctx says
	}
	return err
}
