package changefeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus"
)

// ErrRunning says that an instance of the feed holds its lock. One that died has it until
// its LeaseTTL is over.
var ErrRunning = errors.New("an instance of the feed is running")

// ResetOptions say which feed is to forget its position. Name has no default.
type ResetOptions struct {
	Name string
	// TokenStore is the feed's. Defaults to StoreInKeys of the bus.
	TokenStore TokenStore
	// Start is where the feed goes on. Without it only the saved position is forgotten: the
	// feed then goes on behind the last event of its topic, which is its checkpoint, and
	// only one whose topic has no event begins at its Options.Start.
	Start *StartPoint
	// Database, Collection and Topic are those of the feed's Options. They are only asked
	// for with Start.
	Database, Collection, Topic string
}

// resetWait is how long Reset waits for a lock that seemed free.
const resetWait = 5 * time.Second

// Reset has a feed forget its position, while no instance of it runs ([ErrRunning]).
//
// With Start it makes the feed go on there, whatever its topic holds: it publishes a gap
// event ([OpGap], "policy": "reset") behind the topic's last one, which says so to who
// reads the topic, and is the checkpoint from then on. Nothing is taken from the topic:
// changes behind an earlier Start are published once more, and those up to a later one are
// missing, unless it is FromCopy. What would be published again within the topic's
// DuplicateWindow would not be stored: Reset refuses that ([jetbus.ErrConflict]), and says
// how long to wait. Whether MongoDB still has the changes behind an earlier Start may only
// show when the feed runs ([ErrHistoryLost]). A time to come is refused. Where the topic has had no event yet, or
// there is none, the saved position alone says where the feed goes on. The client is needed
// for every Start but FromToken.
//
// It returns where the feed goes on, the empty Token without Start. Where it is cut short,
// the feed goes on behind its topic's last event, as without Start.
func Reset(ctx context.Context, b Backend, client *mongo.Client, o ResetOptions) (Token, error) {
	token, err := reset(ctx, b, client, o)
	if err != nil {
		return "", fmt.Errorf("reset change feed %s: %w", o.Name, err)
	}
	return token, nil
}

func reset(ctx context.Context, b Backend, client *mongo.Client, o ResetOptions) (token Token, err error) {
	if !validName.MatchString(o.Name) {
		return "", fmt.Errorf("%w: Name is %.100q, use 1 to 64 letters, digits, '-' and '_'", jetbus.ErrInvalidOption, o.Name)
	}
	if o.TokenStore == nil {
		o.TokenStore = StoreInKeys(b)
	}
	f := &Feed{o: Options{Name: o.Name, TokenStore: o.TokenStore}, b: b, client: client}
	if o.Start != nil {
		f.o.Database, f.o.Collection, f.o.Topic, f.o.Start = o.Database, o.Collection, o.Topic, *o.Start
		if f.o, err = f.o.Normalize(); err != nil {
			return "", err
		}
	}
	entry, err := b.KeyGet(ctx, jetbus.DefaultLockBucket, lockPrefix+o.Name)
	if err != nil {
		return "", err
	}
	if holder, renewed, held := holderOf(entry); held {
		return "", fmt.Errorf("%w: %s has its lock, which it renewed at %s", ErrRunning, holder, renewed.UTC().Format(time.RFC3339))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(resetWait, func() { cancel(ErrRunning) })
	defer late.Stop()
	lock := jetbus.Lock{Key: lockPrefix + o.Name, Owner: "reset"}
	err = lock.Hold(ctx, b, func(ctx context.Context, _ jetbus.Held) (bool, error) {
		if !late.Stop() {
			return true, ErrRunning
		}
		token, err = f.reset(ctx, o.Start != nil)
		return err == nil, err
	})
	return token, err
}

// reset forgets the position and, if begin, makes another one. The lock is held.
func (f *Feed) reset(ctx context.Context, begin bool) (Token, error) {
	if !begin {
		return "", f.o.TokenStore.Delete(ctx, f.o.Name)
	}
	p, wait, err := f.ends(ctx)
	if err != nil {
		return "", err
	}
	token, err := f.startingToken(ctx)
	if err != nil {
		return "", err
	}
	if wait > 0 && (f.o.Start.mode == startCopy || token.Compare(p.token) < 0) {
		return "", fmt.Errorf("%w: topic %s has events of less than its DuplicateWindow ago, which would not be stored again: reset it in %v", jetbus.ErrConflict, f.o.Topic, wait)
	}
	progress := Progress{Token: token, Source: f.source(), Topic: f.o.Topic, Saved: time.Now().UTC().Truncate(time.Millisecond), Created: f.made()}
	if f.o.Start.mode == startCopy {
		progress.Copy = &CopyProgress{Start: token}
	}
	if err := f.o.TokenStore.Delete(ctx, f.o.Name); err != nil {
		return "", err
	}
	if p.chain.AfterSeq > 0 {
		if progress.Last, err = f.putGap(ctx, p, progress); err != nil {
			return "", err
		}
		if err := f.o.TokenStore.Delete(ctx, f.o.Name); err != nil { // what publishing has left there
			return "", err
		}
	}
	_, err = f.o.TokenStore.Save(ctx, f.o.Name, progress)
	return token, err
}

// ends finds the end of the topic, how far the feed is there, and for how long the ids
// of its events are remembered.
func (f *Feed) ends(ctx context.Context) (p position, wait time.Duration, err error) {
	info, err := f.b.TopicInfo(ctx, f.o.Topic)
	if errors.Is(err, jetbus.ErrNoTopic) {
		return p, 0, nil
	}
	if err != nil {
		return p, 0, err
	}
	if info.LastSeq > 0 {
		wait = (info.Config.DuplicateWindow - time.Since(info.LastTime)).Round(time.Second) + time.Second
	}
	p, err = f.locate(ctx)
	if errors.Is(err, ErrOtherSource) {
		err = nil // that position is to be forgotten
	}
	return p, wait, err
}

// putGap publishes the gap event that records where the feed resumes, and returns its
// checkpoint.
func (f *Feed) putGap(ctx context.Context, p position, to Progress) (jetbus.Checkpoint, error) {
	payload, err := json.Marshal(map[string]any{
		"operationType": OpGap, "from": string(p.token), "fromTime": p.token.Time(), "to": string(to.Token), "toTime": to.Token.Time(), "policy": "reset",
	})
	if err != nil {
		return jetbus.Checkpoint{}, err
	}
	c := &Change{Op: OpGap, Database: f.o.Database, Collection: f.o.Collection, ClusterTime: to.Token.Timestamp(), Token: to.Token}
	e, err := f.event(c, time.Now())
	if err != nil {
		return jetbus.Checkpoint{}, err
	}
	e.ID, e.Payload = f.eventID("reset."+jetbus.NewID()), payload
	if to.Copy != nil {
		if e.Headers[HeaderCopy], err = copyHeader(to.Copy); err != nil {
			return jetbus.Checkpoint{}, err
		}
	}
	w := newWriter(f, &p)
	err = w.publish(ctx, []outgoing{{event: e, change: c}})
	return w.end.at, err
}

// startingToken is the token of Options.Start.
func (f *Feed) startingToken(ctx context.Context) (Token, error) {
	stage := bson.D{}
	switch start := f.o.Start; {
	case start.mode == startToken:
		return start.token, nil
	case f.client == nil:
		return "", fmt.Errorf("%w: no client, which every Start but FromToken needs", jetbus.ErrInvalidOption)
	case start.mode == startTime:
		stage = bson.D{{Key: "startAtOperationTime", Value: bson.Timestamp{T: uint32(start.at.Unix()), I: 1}}} // the first of that second
	}
	// A batch of no changes: the server says where the change stream begins, and nothing is
	// behind that yet.
	target := any(1)
	if f.o.Collection != "" {
		target = f.o.Collection
	}
	session, err := f.client.StartSession() // a cursor belongs to the one in which it was opened
	if err != nil {
		return "", err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	ctx = mongo.NewSessionContext(ctx, session)
	db := f.client.Database(f.o.Database)
	var answer struct {
		Cursor struct {
			ID    int64    `bson:"id"`
			NS    string   `bson:"ns"`
			Token bson.Raw `bson:"postBatchResumeToken"`
		} `bson:"cursor"`
	}
	err = db.RunCommand(ctx, bson.D{
		{Key: "aggregate", Value: target},
		{Key: "pipeline", Value: bson.A{bson.D{{Key: "$changeStream", Value: stage}}}},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}).Decode(&answer)
	switch refused := refusal(err); {
	case refused != nil:
		return "", refused
	case codeOf(err) == codeHistoryLost || codeOf(err) == codeCappedLost:
		return "", fmt.Errorf("%w: Start: %w", ErrHistoryLost, err)
	case err != nil:
		return "", fmt.Errorf("ask MongoDB where the change stream begins: %w", err)
	}
	_, collection, _ := strings.Cut(answer.Cursor.NS, ".")
	// The cursor would end by itself; that it is ended here is a courtesy.
	_ = db.RunCommand(ctx, bson.D{{Key: "killCursors", Value: collection}, {Key: "cursors", Value: bson.A{answer.Cursor.ID}}}).Err()
	if len(answer.Cursor.Token) == 0 {
		return "", fmt.Errorf("%w: the server does not say where a change stream is (4.0.7 and newer do)", ErrStream)
	}
	token, err := tokenOf(answer.Cursor.Token)
	if now, at := clusterNow(session), token.Timestamp(); err == nil && f.o.Start.mode == startTime && now.T > 0 && at.T > now.T+aheadSlack {
		return "", fmt.Errorf("%w: Start is %v, which is to come", jetbus.ErrInvalidOption, token.Time())
	}
	return token, err
}
