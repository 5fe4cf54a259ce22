package changefeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/seed-63e9a637/jetbus"
)

// Progress is the position of a feed as a TokenStore holds it.
type Progress struct {
	Token  Token         `json:"token" bson:"token"`
	Source string        `json:"source" bson:"source"` // "database.collection", or the database alone
	Topic  string        `json:"topic,omitempty" bson:"topic,omitempty"`
	Copy   *CopyProgress `json:"copy,omitempty" bson:"copy,omitempty"`
	Holder string        `json:"holder,omitempty" bson:"holder,omitempty"` // a random ID of the turn that saved it
	Saved  time.Time     `json:"saved" bson:"saved"`                       // by the clock of the instance that saved it
	// Created is the creation time, to the millisecond, of the topic that has the events published
	// up to Token. A topic that was re-created since does not have them. Zero: unknown.
	Created time.Time `json:"created,omitzero" bson:"created,omitempty"`
	// Last is the newest event of the feed in the topic when Token was reached. If the broker was
	// restored to an earlier state, the topic ends before Last or has another event there, and Token
	// is ignored. Zero: unknown, because an older version saved the position; then Token is used. A
	// TokenStore must keep the nanoseconds of Stored, which a BSON date does not.
	Last jetbus.Checkpoint `json:"last,omitzero" bson:"-"`
	// Revision is the store's revision of the position; 0: none is saved yet.
	Revision uint64 `json:"-" bson:"-"`
}

// CopyProgress is how far a copy is.
type CopyProgress struct {
	Start      Token  `json:"start" bson:"start"`                               // where the stream was when it began
	Collection string `json:"collection,omitempty" bson:"collection,omitempty"` // that it is in
	After      string `json:"after,omitempty" bson:"after,omitempty"`           // the last _id in canonical extended JSON, or "bson:" and its bytes in base64; empty: no document yet
}

// TokenStore keeps the position of feeds for the times in which nothing is published:
// what was published says itself how far the feed is. Its methods are called by one
// goroutine at a time.
type TokenStore interface {
	// Load returns the position of a feed, the zero Progress where there is none.
	Load(ctx context.Context, feed string) (Progress, error)
	// Save stores p if the stored revision is p.Revision, and returns the new one;
	// otherwise the error wraps ErrFenced and nothing changed.
	Save(ctx context.Context, feed string, p Progress) (uint64, error)
	// Delete forgets the feed's position, whatever it is.
	Delete(ctx context.Context, feed string) error
}

// KeysBucket is where StoreInKeys keeps positions.
const KeysBucket = "JETBUS_CHANGEFEEDS"

// StoreInKeys keeps positions in the bucket KeysBucket. It is the default.
func StoreInKeys(k jetbus.Keys) TokenStore { return keysStore{k} }

type keysStore struct{ keys jetbus.Keys }

// Load implements TokenStore.
func (s keysStore) Load(ctx context.Context, feed string) (Progress, error) {
	entry, err := s.keys.KeyGet(ctx, KeysBucket, feed)
	if err != nil || entry.Revision == 0 {
		return Progress{}, err
	}
	var p Progress
	if err := json.Unmarshal(entry.Value, &p); err != nil {
		return Progress{}, fmt.Errorf("the position of feed %s in bucket %s: %w", feed, KeysBucket, err)
	}
	p.Revision = entry.Revision
	return p, nil
}

// Save implements TokenStore.
func (s keysStore) Save(ctx context.Context, feed string, p Progress) (uint64, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	revision, err := s.keys.KeySet(ctx, KeysBucket, feed, text, p.Revision, 0)
	if errors.Is(err, jetbus.ErrWrongSequence) {
		entry, getErr := s.keys.KeyGet(ctx, KeysBucket, feed) // an answer may have been lost
		if getErr == nil && entry.Revision > p.Revision && string(entry.Value) == string(text) {
			return entry.Revision, nil
		}
		return 0, fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return revision, err
}

// Delete implements TokenStore.
func (s keysStore) Delete(ctx context.Context, feed string) error {
	entry, err := s.keys.KeyGet(ctx, KeysBucket, feed)
	if err != nil || entry.Revision == 0 {
		return err
	}
	return s.keys.KeyDelete(ctx, KeysBucket, feed, entry.Revision)
}

// DefaultTokens is the collection that StoreInMongo is usually given.
const DefaultTokens = "changefeed_tokens"

// StoreInMongo keeps positions in a collection, one document a feed with the feed's
// name for its _id. It must not be one that a feed watches.
func StoreInMongo(c *mongo.Collection) TokenStore {
	return mongoStore{c.Clone(options.Collection().SetWriteConcern(writeconcern.Majority()))}
}

type mongoStore struct{ c *mongo.Collection }

type storedProgress struct {
	Feed     string           `bson:"_id"`
	Progress Progress         `bson:",inline"`
	Revision int64            `bson:"rev"`
	Last     storedCheckpoint `bson:"last,omitempty"`
}

// storedCheckpoint is Progress.Last.
type storedCheckpoint struct {
	Seq    int64  `bson:"seq"`
	ID     string `bson:"id"`
	Stored int64  `bson:"stored"` // nanoseconds since 1970; 0: unknown
}

// Load implements TokenStore.
func (s mongoStore) Load(ctx context.Context, feed string) (Progress, error) {
	var d storedProgress
	err := s.c.FindOne(ctx, bson.D{{Key: idField, Value: feed}}).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return Progress{}, nil
	}
	d.Progress.Revision = uint64(d.Revision)
	d.Progress.Last = jetbus.Checkpoint{Seq: uint64(d.Last.Seq), ID: d.Last.ID}
	if d.Last.Stored != 0 {
		d.Progress.Last.Stored = time.Unix(0, d.Last.Stored).UTC()
	}
	return d.Progress, err
}

// Save implements TokenStore.
func (s mongoStore) Save(ctx context.Context, feed string, p Progress) (uint64, error) {
	d := storedProgress{Feed: feed, Progress: p, Revision: int64(p.Revision) + 1}
	d.Last = storedCheckpoint{Seq: int64(p.Last.Seq), ID: p.Last.ID}
	if !p.Last.Stored.IsZero() {
		d.Last.Stored = p.Last.Stored.UnixNano()
	}
	if p.Revision == 0 {
		_, err := s.c.InsertOne(ctx, d)
		if mongo.IsDuplicateKeyError(err) {
			return s.saved(ctx, feed, p, err)
		}
		return 1, err
	}
	r, err := s.c.ReplaceOne(ctx, bson.D{{Key: idField, Value: feed}, {Key: "rev", Value: int64(p.Revision)}}, d)
	if err != nil {
		return 0, err
	}
	if r.MatchedCount == 0 {
		return s.saved(ctx, feed, p, fmt.Errorf("revision %d is not there", p.Revision))
	}
	return p.Revision + 1, nil
}

// saved finds out whether an earlier Save whose answer was lost has stored p.
func (s mongoStore) saved(ctx context.Context, feed string, p Progress, why error) (uint64, error) {
	have, err := s.Load(ctx, feed)
	if err == nil && p.Holder != "" && have.Holder == p.Holder && have.Revision == p.Revision+1 && have.Token == p.Token && have.Saved.Equal(p.Saved) {
		return have.Revision, nil
	}
	return 0, fmt.Errorf("%w: feed %s: %w", ErrFenced, feed, why)
}

// Delete implements TokenStore.
func (s mongoStore) Delete(ctx context.Context, feed string) error {
	_, err := s.c.DeleteOne(ctx, bson.D{{Key: idField, Value: feed}})
	return err
}
