package mongobox

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// TestWatchBacksOff waits longer each time for a change stream that can be opened and
// never says anything.
func TestWatchBacksOff(t *testing.T) {
	server, err := mongod.Start(t.Context(), mongod.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(context.Background()) }()
	b, err := Open(t.Context(), client.Database("shop").Collection("outbox"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.OnCommand(func(c mongod.Command) error {
		if c.Name == "getMore" {
			return &mongod.CommandError{Code: 280, Name: "ChangeStreamFatalError", Message: "no"}
		}
		return nil
	})()
	before := watchBackoff
	defer func() { watchBackoff = before }()
	watchBackoff = jetbus.Backoff{Min: 20 * time.Millisecond, Max: time.Hour, NoJitter: true}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var opened []time.Time
	err = b.Watch(ctx, func() {
		if opened = append(opened, time.Now()); len(opened) == 5 {
			cancel()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if waited := opened[4].Sub(opened[3]); waited < 160*time.Millisecond {
		t.Errorf("the fourth wait is %v, want 160ms or more", waited)
	}
}
