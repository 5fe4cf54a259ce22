// Package demo runs the example programs: it parses their flags, connects them to NATS and
// MongoDB, or starts a broker and a stand-in for MongoDB in this process, and shuts down in
// order at the end or after a signal ([Main]). The programs hold what differs between them.
package demo

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
	"github.com/seed-63e9a637/jetbus/registry"
)

// mongoTimeout bounds the connect to a MongoDB, unless its URI has a serverSelectionTimeoutMS,
// and the disconnect.
const mongoTimeout = 10 * time.Second

// Main is the main function of an example. It calls run with what the flags -server, -mongo
// and -database name, and ends the process: with exit code 1 if run fails. The context of run
// is canceled by SIGINT and SIGTERM, and when a part ends that was given to [Env.Add].
func Main(name string, run func(ctx context.Context, e *Env) error) {
	// The environment variables are not the defaults of the flags, because -help would print
	// the passwords in them.
	server := flag.String("server", "", "`URL` of a NATS server with JetStream (default $NATS_URL, or else a broker in this process)")
	uri := flag.String("mongo", "", "`URI` of a MongoDB replica set (default $MONGODB_URI, or else a stand-in in this process)")
	database := flag.String("database", "jetbus_examples", "`name` of the MongoDB database")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process immediately
	err := withNATS(ctx, cmp.Or(*server, os.Getenv("NATS_URL")), func(nc *nats.Conn) error {
		return withMongo(ctx, cmp.Or(*uri, os.Getenv("MONGODB_URI")), func(client *mongo.Client) error {
			return (&Env{DB: client.Database(*database)}).run(ctx, nc, run)
		})
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// withNATS calls f with a connection to the server at url. If url is empty, it starts a broker
// in this process, which stops when f returns.
func withNATS(ctx context.Context, url string, f func(*nats.Conn) error) (err error) {
	if url == "" {
		broker, startErr := embedded.Start(ctx, embedded.Config{Listen: "127.0.0.1:0"})
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, broker.Stop(ctx)) }()
		url = broker.URL()
	}
	nc, err := nats.Connect(url, nats.Name("jetbus example"))
	if err != nil {
		return fmt.Errorf("connect to the NATS server of -server or NATS_URL: %w", err)
	}
	defer nc.Close()
	return f(nc)
}

// withMongo calls f with a client of the MongoDB at uri. If uri is empty, it starts a stand-in
// in this process, which stops when f returns.
func withMongo(ctx context.Context, uri string, f func(*mongo.Client) error) (err error) {
	if uri == "" {
		standIn, startErr := mongod.Start(ctx, mongod.Config{})
		if startErr != nil {
			return startErr
		}
		defer standIn.Stop() //nolint:contextcheck // it has no context to pass
		uri = standIn.URI()
	}
	client, err := mongo.Connect(options.Client().SetServerSelectionTimeout(mongoTimeout).ApplyURI(uri))
	if err == nil {
		defer func() {
			// The client must disconnect although ctx was canceled.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mongoTimeout)
			defer cancel()
			err = errors.Join(err, client.Disconnect(ctx))
		}()
		err = client.Ping(ctx, nil) // Connect does not wait for a server
	}
	if err != nil {
		return fmt.Errorf("connect to the MongoDB of -mongo or MONGODB_URI: %w", err)
	}
	return f(client)
}

// run opens the bus and the registry, calls f, and closes everything in reverse order: parts
// stop before the bus that they use. The calls of Close and Stop let handlers finish: a ctx
// that was canceled before the call shortens nothing, and a signal during the call cancels
// the handlers.
func (e *Env) run(ctx context.Context, nc *nats.Conn, f func(context.Context, *Env) error) (err error) {
	if e.Bus, err = adapter.Open(ctx, nc, adapter.Config{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Bus.Close(ctx)) }()
	if e.Schemas, err = registry.Open(ctx, nc, registry.Config{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Schemas.Close(ctx)) }()
	// Not ctx: parts that end cancel running, and would cancel the handlers of other parts.
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e.cancel = cancel
	defer func() { err = errors.Join(err, e.stop(ctx)) }()
	err = f(running, e)
	if err != nil && running.Err() != nil {
		return context.Cause(running) // a signal, or why a part ended: f failed because of that
	}
	return err
}
