package mongod_test

import (
	"context"
	"fmt"
	"log"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// A change stream goes on behind a connection that was cut.
func Example() {
	ctx := context.Background()
	srv, err := mongod.Start(ctx, mongod.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Stop()
	client, err := mongo.Connect(options.Client().ApplyURI(srv.URI()))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Disconnect(ctx)
	c := client.Database("shop").Collection("orders")

	stream, err := c.Watch(ctx, mongo.Pipeline{})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close(ctx)
	c.InsertOne(ctx, bson.D{{Key: "_id", Value: 1}})
	srv.CutConnections()
	c.InsertOne(ctx, bson.D{{Key: "_id", Value: 2}})
	for range 2 {
		stream.Next(ctx)
		fmt.Println(stream.Current.Lookup("operationType").StringValue(), stream.Current.Lookup("documentKey"))
	}
	// Output:
	// insert {"_id": {"$numberInt":"1"}}
	// insert {"_id": {"$numberInt":"2"}}
}
