package mongod_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/embedded/mongod"
)

// TestConcurrentWriters has clients write in bulks and transactions while
// connections are cut, and applies the change stream to a map: it ends up with
// what is in the collection.
func TestConcurrentWriters(t *testing.T) {
	r := newRig(t)
	r.insert(doc(`{"_id": 0, "n": 0}`))
	s := r.watch(r.c, options.ChangeStream().SetFullDocument(options.UpdateLookup))
	var replies sync.Map
	r.srv.OnReply(func(c mongod.Command) error { // every tenth write loses its reply, once
		if c.Name == "update" {
			if n, _ := c.Body[len(c.Body)-1].Value.(bson.A); len(n)%10 == 1 {
				if _, again := replies.LoadOrStore(len(n), true); !again {
					return mongod.ErrCut
				}
			}
		}
		return nil
	})
	var work sync.WaitGroup
	for w := range 4 {
		client := r.connect()
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			c := client.Database("d").Collection("c")
			for range 15 {
				if err := bulk(r.ctx, c, rnd); err != nil {
					t.Error(err)
				}
				if err := transfer(r.ctx, client, c, 1+rnd.IntN(20)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		work.Wait()
		_, err := r.c.DeleteOne(r.ctx, doc(`{"_id": 0}`))
		if err != nil {
			t.Error(err)
		}
		close(done)
	}()
	have := map[int64]int64{}
	for {
		d := s.next()
		id := s.Current.Lookup("documentKey", "_id").AsInt64()
		if at(d, "operationType") == "delete" {
			delete(have, id)
			if id == 0 {
				break
			}
			continue
		}
		if n, err := s.Current.LookupErr("updateDescription", "updatedFields", "n"); err == nil {
			have[id] = n.AsInt64()
		} else {
			have[id] = s.Current.Lookup("fullDocument", "n").AsInt64()
		}
	}
	<-done
	want := map[int64]int64{}
	for _, d := range r.all(r.c) {
		raw := bsonOf(t, d)
		want[raw.Lookup("_id").AsInt64()] = raw.Lookup("n").AsInt64()
	}
	if !maps.Equal(have, want) {
		t.Errorf("the stream says %v, the collection has %v", have, want)
	}
}

// bulk writes up to twenty documents.
func bulk(ctx context.Context, c *mongo.Collection, rnd *rand.Rand) error {
	var models []mongo.WriteModel
	for range 1 + rnd.IntN(20) {
		key := bson.D{{Key: "_id", Value: 1 + rnd.IntN(20)}}
		switch rnd.IntN(4) {
		case 0:
			models = append(models, mongo.NewDeleteOneModel().SetFilter(key))
		case 1:
			models = append(models, mongo.NewUpdateOneModel().SetFilter(key).SetUpdate(doc(`{"$inc": {"n": 1}}`)))
		default:
			models = append(models, mongo.NewReplaceOneModel().SetFilter(key).SetReplacement(bson.D{{Key: "n", Value: rnd.IntN(1000)}}).SetUpsert(true))
		}
	}
	_, err := c.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
	return err
}

// transfer changes two documents in one transaction.
func transfer(ctx context.Context, client *mongo.Client, c *mongo.Collection, id int) error {
	s, err := client.StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(ctx)
	_, err = s.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		for _, id := range []int{0, id} {
			if _, err := c.UpdateOne(ctx, bson.D{{Key: "_id", Value: id}}, doc(`{"$inc": {"n": 1}}`)); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	return err
}
