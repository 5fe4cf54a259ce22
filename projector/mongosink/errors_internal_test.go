package mongosink

import (
	"errors"
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// cleared is how the driver says that a connection broke under another call: it has none of
// the labels of the error that call got.
type cleared struct{}

func (cleared) Error() string   { return "connection pool was cleared" }
func (cleared) Retryable() bool { return true }

func TestClearedPoolIsUnreachable(t *testing.T) {
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://127.0.0.1:1"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Disconnect(t.Context()) }()
	if err := explain(fmt.Errorf("update: %w", cleared{}), client.Database("shop")); !errors.Is(err, ErrUnreachable) {
		t.Errorf("error %v", err)
	}
}
