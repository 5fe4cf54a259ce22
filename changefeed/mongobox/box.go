package mongobox

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/mongolink"
	"github.com/seed-63e9a637/jetbus/internal/outrow"
)

// Options say what an outbox is. The zero value is ready for use.
type Options struct {
	// MaxBytes is how large an event may be that is added, its headers included, so
	// that the transaction learns of it and not the drainer. Defaults to 1 MiB, which
	// is what a NATS server takes unless told otherwise; -1 means any that a document
	// takes, about 15 MiB.
	MaxBytes int
	// Check is asked about each event that is added; an error refuses it. It is the
	// place to validate schemas. Defaults to none.
	Check func(ctx context.Context, e jetbus.Event) error
	// SkipDead publishes later rows of a key whose row is dead. The default holds them
	// back, until the dead row is retried or removed.
	SkipDead bool
	// Keep is how long rows stay after they were sent, for people who look. By default
	// they are deleted at once.
	Keep time.Duration
	// Logger gets the failures of Watch. Defaults to none.
	Logger *slog.Logger
}

// DefaultMaxBytes is Options.MaxBytes where it is zero.
const DefaultMaxBytes = 1 << 20

// normalize returns the options with defaults filled in.
func (o Options) normalize() (Options, error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.MaxBytes < -1:
		return o, fmt.Errorf("%w: MaxBytes is %d, use 1 or more, or -1 for any", jetbus.ErrInvalidOption, o.MaxBytes)
	case o.Keep < 0:
		return o, fmt.Errorf("%w: Keep is %v", jetbus.ErrInvalidOption, o.Keep)
	}
	return o, nil
}

// Box is an outbox in a collection. It is a [jetbus.Outbox]. All methods may be
// called from several goroutines at once, and by any number of processes on one
// collection.
type Box struct {
	o    Options
	rows *mongo.Collection
	keys *mongo.Collection // counters by topic and key
	name string            // database.collection, for errors

	scan    scanFrom
	refused outrow.Refused
}

var (
	_ jetbus.Outbox        = (*Box)(nil)
	_ jetbus.OutboxCleaner = (*Box)(nil)
)

// keysSuffix makes the name of the collection with the counters.
const keysSuffix = ".keys"

// openTime is how long Open is tried again while connections break under it.
const openTime = 30 * time.Second

// Open returns the outbox in a collection, which is created with its indexes where it
// does not exist. Options of the collection that concern durability are not used:
// writes wait for a majority, reads go to the primary. The error wraps
// [jetbus.ErrInvalidOption]; [jetbus.ErrUnsupported] for a server that is too old, or no
// replica set; [jetbus.ErrConflict] for a collection of another shape; or it is the
// server's. The caller disconnects the client, when nothing uses the Box any more.
func Open(ctx context.Context, coll *mongo.Collection, o Options) (*Box, error) {
	if coll == nil {
		return nil, fmt.Errorf("open outbox: %w: no collection", jetbus.ErrInvalidOption)
	}
	safe := options.Collection().SetWriteConcern(writeconcern.Majority()).SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary())
	db := coll.Database()
	b := &Box{
		rows: db.Collection(coll.Name(), safe), keys: db.Collection(coll.Name()+keysSuffix, safe),
		name: db.Name() + "." + coll.Name(),
		scan: scanFrom{patience: scanTime},
	}
	var err error
	if b.o, err = o.normalize(); err == nil {
		retrying, cancel := context.WithTimeout(ctx, openTime)
		defer cancel()
		err = mongolink.Persist(retrying, func() error { return b.prepare(alone(ctx)) })
	}
	if err != nil {
		return nil, fmt.Errorf("open outbox %s: %w", b.name, err)
	}
	return b, nil
}
