package changefeed_test

import (
	"context"
	"fmt"
	"log"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// A collection becomes a topic: first the documents there are, then every change.
func Example() {
	mirror := func(ctx context.Context, bus jetbus.Backend, client *mongo.Client) error {
		feed, err := changefeed.Start(ctx, bus, client, changefeed.Options{
			Name:       "processes",
			Database:   "shop",
			Collection: "processes",
			Topic:      "processes.changed",
			Start:      changefeed.FromCopy(),
			Filter:     func(c *changefeed.Change) bool { return c.Op != "update" || len(c.FullDocument) > 0 },
			Map: func(c *changefeed.Change, e *jetbus.Event) error {
				e.Tags = append(e.Tags, c.Collection)
				return nil
			},
			OnHistoryLost: changefeed.Resync,
		})
		if err != nil {
			return err
		}
		<-feed.Done() // ctx ended, or the feed cannot go on
		return feed.Err()
	}
	_ = mirror // main calls it with its bus and its client
}

// A resume token says when its change was.
func ExampleToken_Time() {
	token, err := changefeed.ParseToken("8263B5B0F1000000022B042C0100296E5A1004")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(token.Time())
	// Output: 2023-01-04 17:01:37 +0000 UTC
}
