package adapter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// JETBUS_GROUPS has keys of ordered groups and of partitions that do not expire: free locks,
// leases, what members agree on. They are removed with their topic or group, and by a sweep,
// since a member may write some after that.
//
// A key is removed only if no durable of its group exists, and on condition of its revision: the
// durables of a group that is being created exist before its members write keys. Keys of
// partition.Join have names that the caller chose. So the sweep leaves out what may not be the bus's.
const (
	sweepDelay = time.Minute    // from the first ordered or partitioned group of a bus to a sweep
	sweepPause = 24 * time.Hour // from one sweep to the next one
)

// What follows the name of a group in its keys.
const (
	heldKey    = "#held" // see jetbus.Lock
	configKey  = "/.c"   // see package partition, as the next one
	sessionKey = "/.m/"
)

var (
	generationName = regexp.MustCompile(`^(.+)(/g\d+|~[0-9a-f]{16})$`) // "~" and a hash end a name that was shortened
	epochSuffix    = regexp.MustCompile(`__e\d{1,9}$`)
)

// sweptKey is a key of JETBUS_GROUPS taken apart.
type sweptKey struct {
	key, stream string
	owner       string // of an ordered group: the key of its lock
	group       string // of a partitioned group, with the generation
}

// parseSwept takes a key apart. It reports false for a key that is not one of the bus's.
func parseSwept(key string) (k sweptKey, ok bool) {
	i := strings.IndexAny(key, "./")
	if i <= 0 {
		return k, false
	}
	k = sweptKey{key: key, stream: key[:i]}
	group, _, partitioned := strings.Cut(key[i+1:], "/.")
	switch {
	case key[i] == '/' && partitioned:
		k.group = group
		return k, generationName.MatchString(group)
	case key[i] == '.' && !partitioned:
		k.owner = strings.TrimSuffix(strings.TrimSuffix(key, heldKey), restKey)
		return k, strings.Contains(k.owner, "__")
	}
	return k, false
}

// sweepGroups removes the keys of groups and topics that do not exist: those in one stream, or in
// all streams of this bus's prefix where stream is "".
func (st *streams) sweepGroups(ctx context.Context, stream string) error {
	keys, err := st.keysOf(ctx, ownersBucket)
	if err != nil {
		return err
	}
	byStream := map[string][]sweptKey{}
	for _, key := range keys {
		k, ok := parseSwept(key)
		if ok && (k.stream == stream || stream == "" && isOwnStream(st.cfg.Prefix, k.stream)) {
			byStream[k.stream] = append(byStream[k.stream], k)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byStream)) {
		if err := st.sweepStream(ctx, name, byStream[name]); err != nil {
			return fmt.Errorf("sweep the keys of %s: %w", name, err)
		}
	}
	return nil
}

// isOwnStream reports whether a bus of that prefix would give a topic's stream such a name.
func isOwnStream(prefix, stream string) bool {
	name := ownStream(prefix, "x")
	at := strings.LastIndex(name, "_X") // the prefix may have one, too; the hash after it does not
	return strings.HasPrefix(stream, name[:at+1]) && strings.HasSuffix(stream, name[at+2:])
}

// sweepStream removes those of a stream's keys whose groups do not exist.
func (st *streams) sweepStream(ctx context.Context, stream string, keys []sweptKey) error {
	left, err := st.orphans(ctx, stream, keys)
	if err != nil || len(left) == 0 {
		return err
	}
	entries := make([]jetbus.KeyEntry, len(left))
	used := map[string]bool{} // groups that have a session, and locks that are held
	for i, k := range left {
		if entries[i], _, err = st.keyGetMarker(ctx, ownersBucket, k.key); err != nil {
			return err
		}
		var lock struct {
			State string `json:"state"`
		}
		if entries[i].Revision == 0 {
			continue
		}
		if strings.Contains(k.key, sessionKey) || k.key == k.owner && json.Unmarshal(entries[i].Value, &lock) == nil && lock.State == "held" {
			used[k.owner+k.group] = true
		}
	}
	still, err := st.orphans(ctx, stream, left) // after the revisions were read
	if err != nil {
		return err
	}
	for i, k := range left {
		if entries[i].Revision == 0 || used[k.owner+k.group] || !slices.Contains(still, k) {
			continue
		}
		_, err := st.writeKey(ctx, "remove "+k.key, ownersBucket, k.key, nil, purging(), entries[i].Revision)
		if err != nil && !errors.Is(err, jetbus.ErrWrongSequence) {
			return err
		}
	}
	return st.restoreConfigs(ctx, stream, left, entries)
}

// restoreConfigs writes again what members of groups agree on that have been created while their
// keys were removed: they may have found it there, and rely on it.
func (st *streams) restoreConfigs(ctx context.Context, stream string, left []sweptKey, entries []jetbus.KeyEntry) error {
	still, err := st.orphans(ctx, stream, left)
	if err != nil {
		return err
	}
	for i, k := range left {
		if entries[i].Revision == 0 || !strings.HasSuffix(k.key, configKey) || slices.Contains(still, k) {
			continue
		}
		_, err := st.writeKey(ctx, "restore "+k.key, ownersBucket, k.key, entries[i].Value, nats.Header{}, 0)
		if err != nil && !errors.Is(err, jetbus.ErrWrongSequence) {
			return err
		}
	}
	return nil
}

// orphans returns those of a stream's keys whose groups have no durable. The groups of shortened names are not known:
// their keys are orphans only if the stream is gone.
func (st *streams) orphans(ctx context.Context, stream string, keys []sweptKey) ([]sweptKey, error) {
	names, _, err := st.durableNames(ctx, stream)
	isGone := errors.Is(err, jetbus.ErrNoTopic)
	var topics []string
	if err == nil {
		var info *jetstream.StreamInfo
		if info, err = st.streamInfo(ctx, stream); err == nil {
			topics = topicsOf(&info.Config)
		}
	}
	if err != nil && !isGone {
		return nil, err
	}
	owners := map[string]bool{}
	for _, name := range names {
		owners[ownerName(stream, name)] = true
		owners[ownerName(stream, epochSuffix.ReplaceAllString(name, ""))] = true
	}
	hasDurable := func(k sweptKey) bool {
		if k.owner != "" {
			return owners[k.owner]
		}
		parts := generationName.FindStringSubmatch(k.group)
		group, isCut := parts[1], parts[2][0] == '~'
		return isCut || slices.ContainsFunc(topics, func(topic string) bool {
			return slices.ContainsFunc(names, func(name string) bool {
				_, ok := partIn(name, consumerName(topic, group))
				return ok
			})
		})
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k sweptKey) bool { return !isGone && hasDurable(k) }), nil
}

// keysOf lists the keys of a bucket, those that have expired lately, too.
func (srv *server) keysOf(ctx context.Context, bucket string) (keys []string, err error) {
	for offset := 0; ; {
		subjects, total, err := srv.subjectsIn(ctx, bucketStream(bucket), "$KV."+bucket+".>", offset)
		switch {
		case apiCode(err) == jetstream.JSErrCodeStreamNotFound:
			return nil, nil
		case err != nil:
			return nil, srv.translate("list keys of "+bucket, srv.api+"STREAM.INFO."+bucketStream(bucket), err)
		}
		for subject := range subjects {
			if key, ok := parseBucketKey(strings.TrimPrefix(subject, "$KV."+bucket+".")); ok {
				keys = append(keys, key)
			}
		}
		if offset += len(subjects); len(subjects) == 0 || offset >= total {
			slices.Sort(keys)
			return keys, nil
		}
	}
}

// sweepLater removes, once a day, keys that are left of groups and topics.
func (b *Bus) sweepLater() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sweeping || b.closing {
		return
	}
	b.sweeping = true
	b.later.Go(func() {
		for pause := sweepDelay; ; pause = sweepPause {
			select {
			case <-time.After(pause):
			case <-b.life.Done():
				return
			}
			if err := b.sweepGroups(b.life, ""); err != nil && b.life.Err() == nil {
				b.cfg.Logger.Info("keys of groups that were deleted are left", slog.String("bucket", ownersBucket), slog.Any("error", err))
			}
		}
	})
}

// sweepDeleted removes the keys of what was deleted. Where that is not permitted, it is left to a
// member's sweep.
func (b *Bus) sweepDeleted(ctx context.Context, stream string) error {
	err := b.sweepGroups(ctx, stream)
	if errors.Is(err, jetbus.ErrDenied) {
		return nil
	}
	return err
}

// ownerName is the key of the lock of an ordered group that began with a durable of that name.
func ownerName(stream, durable string) string {
	key := stream + "." + durable
	if len(key) > maxConsumerBytes {
		key = key[:maxConsumerBytes-18] + "__" + ce.ShortHash(key)
	}
	return key
}
