package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

func newChangefeed(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "changefeed",
		Aliases: []string{"changefeeds", "feed"},
		Short:   "Publish what changes in a MongoDB collection to a topic",
		Long: `A change feed publishes what happens in a MongoDB collection, or in a whole database, to a
topic: each insert, update, replacement and delete is one event, in MongoDB's order, once.
jetbus changefeed run is one; status says how far the feeds of this bus are, whether they
run or not, and reset has one begin anew.`,
		Example: `  jetbus changefeed run --mongo mongodb://db.example.com/shop --collection orders --topic orders.changed --start copy
  jetbus changefeed status
  jetbus changefeed reset orders-changed --start copy --mongo mongodb://db.example.com/shop`,
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newChangefeedRun(a), newChangefeedStatus(a), newChangefeedReset(a))
	return cmd
}

// addDatabase adds the flags that name a MongoDB and a database in it.
func (f *mongoFlags) addDatabase(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.uri, "mongo", "", "MongoDB, mongodb://host:port (env MONGODB_URI, which the process list does not show)")
	flags.StringVar(&f.db, "database", "", "database (default that of the URI, else "+defaultDatabase+")")
	flags.StringVar(&f.db, "db", "", "the same")
	_ = flags.MarkHidden("db") // as the other commands call it; it is there
}

// database is the database that the flags name, without asking it anything.
func (a *app) database(f *mongoFlags) string {
	return or(f.db, databaseOf(a.env(f.uri, "MONGODB_URI")))
}

// The values of --token-store.
const (
	storeKeys  = "keys"
	storeMongo = "mongo"
)

func addTokenStore(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "token-store", storeKeys, "where the position is while nothing is published: keys, the bucket "+changefeed.KeysBucket+
		" of the bus, or mongo, the collection "+changefeed.DefaultTokens+" of the database")
}

func checkTokenStore(name string) error {
	if name != storeKeys && name != storeMongo {
		return usagef("--token-store %q: use keys or mongo", name)
	}
	return nil
}

// tokenStore is what --token-store names. db is only asked for mongo.
func tokenStore(name string, keys jetbus.Keys, db *mongo.Database) changefeed.TokenStore {
	if name == storeMongo {
		return changefeed.StoreInMongo(db.Collection(changefeed.DefaultTokens))
	}
	return changefeed.StoreInKeys(keys)
}

// errNoFeed says that the bus knows of no such feed.
var errNoFeed = errors.New("no such change feed")

// findFeed returns what the bus holds of a feed.
func findFeed(ctx context.Context, b changefeed.StoredBackend, store changefeed.TokenStore, name string) (changefeed.Stored, error) {
	list, err := changefeed.ReadStored(ctx, b, store)
	if err != nil {
		return changefeed.Stored{}, err
	}
	for _, s := range list {
		if s.Feed == name {
			return s, nil
		}
	}
	return changefeed.Stored{}, fmt.Errorf("%w: %s has no position, no lock and no event on this bus", errNoFeed, name)
}

// feedRemedy is what the user can do about an error of a feed.
func feedRemedy(err error) string {
	for _, r := range []struct {
		err    error
		remedy string
	}{
		{errNoFeed, "see jetbus changefeed status, and --token-store"},
		{changefeed.ErrHistoryLost, "start it with --on-history-lost resync to publish all documents again, or with latest to go on behind the gap"},
		{changefeed.ErrInvalidated, "start it with --on-invalidate continue to go on with a collection of that name, or with resync to publish all its documents, too"},
		{changefeed.ErrForeign, "name another topic with --topic, or the feed as it was with --name"},
		{changefeed.ErrOtherSource, "give this one another --name, or have it begin anew with jetbus changefeed reset --start"},
		{changefeed.ErrRunning, "stop it first; one that was killed lets go within its --lease"},
		{changefeed.ErrNoImage, "that is --before whenAvailable and --full-document whenAvailable"},
		{changefeed.ErrPoison, "start it with --on-poison dlq or skip"},
		{changefeed.ErrOversize, "start it with --on-oversize dlq, key or skip"},
		{changefeed.ErrLoop, "that is --allow-loop"},
	} {
		if errors.Is(err, r.err) {
			return r.remedy
		}
	}
	return ""
}
