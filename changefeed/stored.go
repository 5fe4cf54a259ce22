package changefeed

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Stored is what a bus holds of a feed, whether an instance of it runs or not.
type Stored struct {
	Feed string
	// Saved is the position in the TokenStore, the zero Progress where there is none.
	Saved Progress
	// Holder is who has the feed's lock, by its Owner; empty: nobody. One that died has it
	// until its LeaseTTL is over. Renewed is when it last said so, by its own clock.
	Holder  string
	Renewed time.Time
	// Topics are those whose last event is one of the feed. It is one, unless the feed was
	// given another Topic meanwhile.
	Topics []StoredTopic
}

// StoredTopic is the checkpoint of a feed in its topic.
type StoredTopic struct {
	Topic string
	Seq   uint64    // of the last event
	Time  time.Time // of the last event
	Token Token     // the position behind it
	Copy  bool      // a copy was under way
}

// Token returns where the feed resumes if it starts in this topic: after the topic's last
// event, or at the saved position if that is later. Token does not detect a topic that was
// restored to an earlier state; a feed resumes after its last event.
func (s *Stored) Token(topic StoredTopic) Token {
	if s.Saved.Token.Compare(topic.Token) > 0 {
		return s.Saved.Token
	}
	return topic.Token
}

// StoredBackend is what ReadStored needs of a bus; every jetbus.Backend has it.
type StoredBackend interface {
	jetbus.Keys
	ListTopics(ctx context.Context) ([]jetbus.TopicInfo, error)
	Scan(ctx context.Context, topic string, q jetbus.ScanQuery) iter.Seq2[jetbus.Event, error]
}

// ReadStored returns the feeds that a bus knows of, sorted by name: those with a saved
// position, a held lock, or a topic that ends with an event of theirs. store defaults to
// StoreInKeys of the bus; one that cannot be listed is asked for the feeds that have run
// on this bus. It reads the last event of each topic, and changes nothing.
func ReadStored(ctx context.Context, b StoredBackend, store TokenStore) ([]Stored, error) {
	list, err := readStored(ctx, b, store)
	if err != nil {
		return nil, fmt.Errorf("read stored change feeds: %w", err)
	}
	return list, nil
}

func readStored(ctx context.Context, b StoredBackend, store TokenStore) ([]Stored, error) {
	feeds := map[string]*Stored{}
	get := func(name string) *Stored {
		if feeds[name] == nil {
			feeds[name] = &Stored{Feed: name}
		}
		return feeds[name]
	}
	if store == nil {
		store = StoreInKeys(b)
	}
	if _, ok := store.(keysStore); ok {
		saved, err := entries(ctx, b, KeysBucket, "")
		if err != nil {
			return nil, err
		}
		for _, entry := range saved {
			get(entry.Key)
		}
	}
	locks, err := entries(ctx, b, jetbus.DefaultLockBucket, lockPrefix)
	if err != nil {
		return nil, err
	}
	for _, entry := range locks {
		name := strings.TrimPrefix(entry.Key, lockPrefix)
		if held, marked := strings.CutSuffix(name, "#held"); marked { // it stays for good once there was a lock
			name, entry.Value = held, nil
		}
		s := get(name)
		if holder, renewed, held := holderOf(entry); held {
			s.Holder, s.Renewed = holder, renewed
		}
	}
	topics, err := storedTopics(ctx, b)
	if err != nil {
		return nil, err
	}
	for name, list := range topics {
		get(name).Topics = list
	}
	var out []Stored
	for _, name := range slices.Sorted(maps.Keys(feeds)) {
		s := feeds[name]
		if s.Saved, err = store.Load(ctx, name); err != nil {
			return nil, err
		}
		if s.Saved.Token != "" || s.Holder != "" || len(s.Topics) > 0 {
			out = append(out, *s)
		}
	}
	return out, nil
}

// lockPrefix is before the name of a feed in the key of its lock.
const lockPrefix = "changefeed/"

// entries are the entries of a bucket.
func entries(ctx context.Context, k jetbus.Keys, bucket, prefix string) (out []jetbus.KeyEntry, err error) {
	for entry, err := range k.KeyWatch(ctx, bucket, prefix) {
		if err != nil {
			return nil, err
		}
		if entry.Synced {
			break
		}
		out = append(out, entry)
	}
	return out, nil
}

// holderOf reads who has a lock, as jetbus.Lock says it to people who look.
func holderOf(entry jetbus.KeyEntry) (holder string, renewed time.Time, held bool) {
	var v struct {
		State, Owner string
		Since        time.Time
	}
	if len(entry.Value) == 0 {
		return "", time.Time{}, false
	}
	if err := json.Unmarshal(entry.Value, &v); err != nil || v.State == "" {
		return "somebody who is no change feed", time.Time{}, true // a Lock waits for that, too
	}
	return v.Owner, v.Since, v.State != "free"
}

// storedTopics finds the topics that end with an event of a feed.
func storedTopics(ctx context.Context, b StoredBackend) (map[string][]StoredTopic, error) {
	infos, err := b.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string][]StoredTopic{}
	for _, info := range infos {
		name := info.Config.Name
		if info.LastSeq == 0 || info.Config.SnapshotOf != "" || jetbus.IsDeadLetterTopic(name) {
			continue
		}
		e, found, err := lastEvent(ctx, b, &info)
		if err != nil {
			return nil, err
		}
		feed := e.Headers[HeaderFeed]
		token, err := ParseToken(e.Headers[HeaderToken])
		if !found || err != nil || !validName.MatchString(feed) || !strings.HasPrefix(e.ID, "cf."+feed+".") {
			continue // somebody else's, or a copy of a feed's that somebody else made
		}
		out[feed] = append(out[feed], StoredTopic{Topic: name, Seq: e.Seq, Time: e.Time, Token: token, Copy: e.Headers[HeaderCopy] != ""})
	}
	return out, nil
}
