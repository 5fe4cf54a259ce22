package mongod_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// A rig is a server with a client and a collection.
type rig struct {
	*testing.T
	ctx    context.Context
	srv    *mongod.Server
	client *mongo.Client
	db     *mongo.Database
	c      *mongo.Collection
}

func start(t *testing.T, cfg mongod.Config) *mongod.Server {
	t.Helper()
	srv, err := mongod.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	return srv
}

func newRig(t *testing.T) *rig { return newRigWith(t, mongod.Config{}) }

func newRigWith(t *testing.T, cfg mongod.Config) *rig {
	t.Helper()
	srv := start(t, cfg)
	r := &rig{T: t, ctx: t.Context(), srv: srv}
	r.client = r.connect()
	r.db = r.client.Database("d")
	r.c = r.db.Collection("c")
	return r
}

// connect makes a client that ends with the test.
func (r *rig) connect(opts ...*options.ClientOptions) *mongo.Client {
	r.Helper()
	all := append([]*options.ClientOptions{options.Client().ApplyURI(r.srv.URI()).SetHeartbeatInterval(500 * time.Millisecond)}, opts...)
	client, err := mongo.Connect(all...)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), time.Minute)
		defer cancel()
		if err := client.Disconnect(ctx); err != nil {
			r.Error(err)
		}
	})
	return client
}

// must fails the test on an error that is not among those that are fine.
func (r *rig) must(err error, fine ...error) {
	r.Helper()
	for _, f := range fine {
		if errors.Is(err, f) {
			return
		}
	}
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) insert(docs ...any) {
	r.Helper()
	_, err := r.c.InsertMany(r.ctx, docs)
	r.must(err)
}

// all are the documents of the collection by _id.
func (r *rig) all(c *mongo.Collection) []bson.D {
	r.Helper()
	cur, err := c.Find(r.ctx, bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	r.must(err)
	var out []bson.D
	r.must(cur.All(r.ctx, &out))
	return out
}

func (r *rig) wantDocs(c *mongo.Collection, want ...string) {
	r.Helper()
	got := r.all(c)
	if len(got) != len(want) {
		r.Fatalf("%d documents %s, want %v", len(got), show(got...), want)
	}
	for i, d := range got {
		if show(d) != want[i] {
			r.Errorf("document %d is %s, want %s", i, show(d), want[i])
		}
	}
}

// show is documents as relaxed extended JSON.
func show(docs ...bson.D) string {
	parts := make([]string, len(docs))
	for i, d := range docs {
		j, err := bson.MarshalExtJSON(d, false, false)
		if err != nil {
			return err.Error()
		}
		parts[i] = string(j)
	}
	return strings.Join(parts, " ")
}

// doc is a document written as extended JSON.
func doc(s string) bson.D {
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(s), false, &d); err != nil {
		panic(s + ": " + err.Error())
	}
	return d
}

// pipeline is a pipeline written as extended JSON.
func pipeline(s string) bson.A {
	a, ok := doc(`{"p": ` + s + `}`)[0].Value.(bson.A)
	if !ok {
		panic(s + " is no array")
	}
	return a
}

// code is the number of a server's error, 0 for none.
func code(err error) int {
	if se, ok := errors.AsType[mongo.ServerError](err); ok {
		if codes := se.ErrorCodes(); len(codes) > 0 {
			return codes[0]
		}
	}
	return 0
}

func (r *rig) wantCode(err error, want int) {
	r.Helper()
	if code(err) != want || want != 0 && err == nil {
		r.Errorf("error %v, want code %d", err, want)
	}
}
