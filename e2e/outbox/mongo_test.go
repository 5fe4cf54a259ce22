//go:build unix

package outbox

import (
	"context"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
	"github.com/seed-63e9a637/jetbus/embedded/mongod/mongotest"
	"github.com/seed-63e9a637/jetbus/outbox"
)

// mongoDatabase has the collection of an outbox.
type mongoDatabase struct {
	server *mongotest.Server
	client *mongo.Client
}

func onMongo(t *testing.T, test func(r *rig)) {
	t.Run("mongodb", func(t *testing.T) {
		t.Parallel()
		d := &mongoDatabase{server: mongotest.Start(t)}
		var err error
		if d.client, err = mongo.Connect(options.Client().ApplyURI(d.server.URI())); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.client.Disconnect(context.Background()); err != nil {
				t.Error(err)
			}
		})
		test(newRig(t, d))
	})
}

// mongoCollection is the name of the collection.
const mongoCollection = "outbox"

func (d *mongoDatabase) rows() *mongo.Collection {
	return d.client.Database(d.server.Database()).Collection(mongoCollection)
}

func (d *mongoDatabase) open(ctx context.Context, o outbox.Options) (box, error) {
	return mongobox.Open(ctx, d.rows(), mongobox.Options{MaxBytes: o.MaxBytes, Check: o.Check, SkipDead: o.SkipDead, Keep: o.Keep})
}

func (d *mongoDatabase) begin(context.Context) (transaction, error) {
	session, err := d.client.StartSession()
	if err == nil {
		err = session.StartTransaction()
	}
	return mongoTransaction{session}, err
}

func (d *mongoDatabase) backlog(ctx context.Context, first, last int) error {
	var rows []any
	for i := first; i <= last; i++ {
		rows = append(rows, bson.M{"id": strconv.Itoa(i), "topic": "orders", "key": "a", "state": "pending", "pos": int64(i)})
	}
	_, err := d.rows().InsertMany(ctx, rows)
	return err
}

func (d *mongoDatabase) byHand(ctx context.Context) error {
	pos := time.Now().UnixMicro()
	_, err := d.rows().InsertMany(ctx, []any{
		bson.M{"id": "1", "topic": "orders", "state": "pending"}, // without pos it is the oldest
		bson.M{"id": "2", "topic": "orders", "key": "a", "state": "pending", "pos": pos, "headers": bson.M{"x-shop": "north"}, "tags": bson.A{"new"}},
		bson.M{"id": "3", "topic": "orders", "state": "pending", "pos": float64(pos + 1), "headers": "x-shop=north"},
		bson.M{"id": "4", "topic": "Orders!", "state": "pending", "pos": pos + 2},
		bson.M{"id": "", "topic": "orders", "state": "pending", "pos": pos + 3},
	})
	return err
}

func (d *mongoDatabase) parallel() bool { return true }

func (d *mongoDatabase) quick() bool { return d.server.StandIn() == nil } // which has no indexes

func (d *mongoDatabase) drainer() drainerConfig {
	return drainerConfig{Driver: "mongodb", DSN: d.server.URI(), Database: d.server.Database()}
}

type mongoTransaction struct{ session *mongo.Session }

func (t mongoTransaction) add(ctx context.Context, b box, events ...jetbus.Event) error {
	return b.(*mongobox.Box).Add(mongo.NewSessionContext(ctx, t.session), events...) //nolint:forcetypeassert // of open
}

func (t mongoTransaction) commit(ctx context.Context) error {
	defer t.session.EndSession(ctx)
	return t.session.CommitTransaction(ctx)
}

func (t mongoTransaction) rollback(ctx context.Context) error {
	defer t.session.EndSession(ctx)
	return t.session.AbortTransaction(ctx)
}

// openMongo opens the outbox of a child process, and follows it.
func openMongo(ctx context.Context, c drainerConfig) (b *mongobox.Box, end func(), err error) {
	client, err := mongo.Connect(options.Client().ApplyURI(c.DSN))
	if err != nil {
		return nil, nil, err
	}
	end = func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }
	if b, err = mongobox.Open(ctx, client.Database(c.Database).Collection(mongoCollection), mongobox.Options{}); err != nil {
		end()
		return nil, nil, err
	}
	return b, end, nil
}

// TestAddAlone adds without a transaction of the caller, all or none.
func TestAddAlone(t *testing.T) {
	onMongo(t, func(r *rig) {
		b := r.box.(*mongobox.Box)
		r.ok(b.Add(r.Context(), order("1", "a"), order("2", "")))
		if err := b.Add(r.Context(), order("3", "a"), order("2", "")); !mongo.IsDuplicateKeyError(err) {
			r.Errorf("an id twice: %v", err)
		}
		r.want("rows", r.list(outbox.Query{}), ids{"1 pending 0", "2 pending 0"})
		session, err := r.database.(*mongoDatabase).client.StartSession()
		r.ok(err)
		defer session.EndSession(context.Background())
		r.ok(b.Add(mongo.NewSessionContext(r.Context(), session), order("4", "a"))) // which has no transaction
		r.want("rows", r.pending(), 3)
		r.ok(b.Add(r.Context()))
		canceled, cancel := context.WithCancel(r.Context())
		cancel()
		r.wantErr("canceled", b.Add(canceled, order("5", "a")), context.Canceled)
	})
}
