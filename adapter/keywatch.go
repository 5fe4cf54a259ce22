package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/link"
)

// How soon a watch asks again for the last message while it waits for that, and whether the
// bucket is still the one that it watches.
const (
	keysLook   = 100 * time.Millisecond
	bucketLook = 10 * time.Second
)

// KeyWatch implements jetbus.Keys.
func (b *Bus) KeyWatch(ctx context.Context, bucket, prefix string) iter.Seq2[jetbus.KeyEntry, error] {
	return sequence(ctx, b, "watch keys "+bucket+"/"+prefix, func(ctx context.Context, yield func(jetbus.KeyEntry, error) bool) error {
		if err := validKey(bucket, cmp.Or(prefix, "x")); err != nil {
			return err
		}
		w, present, err := b.watchKeys(ctx, bucketOf(b.cfg.Prefix, bucket), prefix)
		if err != nil {
			return err
		}
		defer w.end()
		for _, entry := range present {
			if !yield(entry, nil) {
				return nil
			}
		}
		return w.follow(ctx, yield)
	})
}

// Why a watch ends that may have missed something.
var (
	errWatchLost  = fmt.Errorf("%w: the connection was lost; watch again", jetbus.ErrUnavailable)
	errWatchEnded = fmt.Errorf("%w: the server ended it; watch again", jetbus.ErrUnavailable)
	errKeysLost   = fmt.Errorf("%w: the bucket was deleted or purged; watch again", jetbus.ErrUnavailable)
)

// keyWatch is one watch of keys, on one connection: nats.go's watcher would go on with the
// next one, and would not tell of the markers of keys that have ended their lives meanwhile.
type keyWatch struct {
	jetstream.KeyWatcher
	kv             *buckets
	bucket, prefix string
	created        time.Time       // the bucket
	lost           <-chan struct{} // closed when the connection is
	seen           uint64          // revision: the newest that came
	life           bucketLife
	cancel         context.CancelFunc
}

// watchKeys begins a watch. If the connection is lost, or the bucket loses its keys, before all
// present entries have arrived, it begins again: those entries may be from before the loss.
func (kv *buckets) watchKeys(ctx context.Context, bucket, prefix string) (*keyWatch, []jetbus.KeyEntry, error) {
	for {
		w, err := kv.openWatch(ctx, bucket, prefix)
		var present []jetbus.KeyEntry
		if err == nil {
			present, err = w.present(ctx)
			if err == nil {
				err = w.checkLife(ctx)
			}
			if err == nil {
				return w, present, nil
			}
			w.end()
		}
		if !errors.Is(err, errWatchLost) && !errors.Is(err, errKeysLost) {
			return nil, nil, err
		}
	}
}

func (kv *buckets) openWatch(ctx context.Context, bucket, prefix string) (*keyWatch, error) {
	bounded, cancel := kv.bound(ctx)
	defer cancel()
	info := kv.api + "STREAM.INFO." + bucketStream(bucket)
	lost, err := kv.link.Wait(bounded)
	if err != nil {
		return nil, kv.translate("open bucket", info, err)
	}
	kv.noteLife(bucket, func(*bucketLife) {}) // for firstRevision
	watched, err := kv.js.KeyValue(bounded, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		if _, err := kv.noteWitness(bounded, bucket); err != nil {
			return nil, fmt.Errorf("open bucket: %w", err)
		}
		if err = kv.createBucket(bounded, bucket); err == nil {
			watched, err = kv.js.KeyValue(bounded, bucket)
		}
	}
	if err != nil {
		return nil, kv.translate("open bucket", info, err)
	}
	stream, err := kv.streamInfo(bounded, bucketStream(bucket))
	if err != nil {
		return nil, kv.translate("open bucket", info, err)
	}
	kv.noteExists(bucket)
	life, err := kv.readLife(bounded, bucket)
	if err != nil {
		return nil, fmt.Errorf("open bucket: %w", err)
	}
	w := &keyWatch{kv: kv, bucket: bucket, prefix: prefix, created: stream.Created, lost: lost, life: life}
	if err := w.begin(ctx, watched); err != nil {
		return nil, kv.translate("watch", kv.api+"CONSUMER.CREATE."+bucketStream(bucket)+".", err) // the name and the filter follow
	}
	return w, nil
}

// begin makes the watcher, which lives as long as ctx. Its request is not answered any more
// when the connection is lost.
func (w *keyWatch) begin(ctx context.Context, bucket jetstream.KeyValue) (err error) {
	ctx, w.cancel = context.WithCancel(ctx)
	made := make(chan struct{})
	var guard sync.WaitGroup
	guard.Go(func() {
		select {
		case <-w.lost:
			w.cancel()
		case <-made:
		}
	})
	w.KeyWatcher, err = bucket.WatchFiltered(ctx, keyFilters(w.prefix))
	close(made)
	guard.Wait()
	if err != nil {
		w.cancel()
		select {
		case <-w.lost:
			err = errWatchLost
		default:
		}
	}
	return err
}

// end stops the watcher.
func (w *keyWatch) end() { link.EndWatch(w.cancel, w.KeyWatcher) }

// follow yields what the watcher brings behind what was present, until that is not all any more.
func (w *keyWatch) follow(ctx context.Context, yield func(jetbus.KeyEntry, error) bool) error {
	look := time.NewTicker(bucketLook)
	defer look.Stop()
	for entry, ok := (jetbus.KeyEntry{Synced: true, Revision: w.life.revision, Lost: w.life.hasLost()}), true; ; {
		if ok && !yield(entry, nil) {
			return nil
		}
		update, came, err := w.next(ctx, look.C)
		if err == nil && !came {
			err = w.check(ctx)
		}
		if err != nil {
			return err
		}
		entry, ok = keyEntry(update, w.prefix)
	}
}

// present returns what is there when the watch begins. The server counts the keys that are
// there then, and one that is written again from then on is not among those that it sends
// first: its new message comes behind them. So all are present when the last message of all
// that there is after the count has come, or one behind it.
func (w *keyWatch) present(ctx context.Context) ([]jetbus.KeyEntry, error) {
	look := time.NewTicker(keysLook)
	defer look.Stop()
	var entries []jetbus.KeyEntry
	var last uint64 // revision: the one to wait for
	var counted bool
	for !counted || w.seen < last {
		update, came, err := w.next(ctx, look.C)
		switch {
		case err != nil:
			return nil, err
		case came && update != nil:
			if entry, ok := keyEntry(update, w.prefix); ok {
				entries = append(entries, entry)
			}
		case came:
			if last, err = w.lastWritten(ctx); err != nil {
				return nil, err
			}
			counted = true
		case counted: // what is waited for may have been removed without a trace
			now, err := w.lastWritten(ctx)
			if err != nil {
				return nil, err
			}
			last = min(last, now)
		}
	}
	return newest(entries), nil
}

// newest leaves of each key the last entry, unless it was deleted.
func newest(entries []jetbus.KeyEntry) []jetbus.KeyEntry {
	last := make(map[string]uint64, len(entries))
	for _, e := range entries {
		last[e.Key] = e.Revision
	}
	return slices.DeleteFunc(entries, func(e jetbus.KeyEntry) bool { return e.Deleted || last[e.Key] != e.Revision })
}

// next waits for what the watcher brings, which is nil when the server has sent what it
// counted. It comes back without where tick is first.
func (w *keyWatch) next(ctx context.Context, tick <-chan time.Time) (update jetstream.KeyValueEntry, came bool, err error) {
	select {
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	case <-w.lost:
		return nil, false, w.over(ctx)
	case <-tick:
		return nil, false, nil
	case update, open := <-w.Updates():
		if !open {
			return nil, false, w.over(ctx)
		}
		if update != nil {
			w.seen = max(w.seen, update.Revision())
		}
		return update, true, nil
	}
}

// over says why nothing comes any more.
func (w *keyWatch) over(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case w.kv.link.IsOver(), w.kv.nc.IsClosed():
		return jetbus.ErrClosed
	}
	select {
	case <-w.lost:
		return errWatchLost
	default:
		return errWatchEnded // nats.go could not make its consumer again
	}
}

// check returns an error that ends the watch if its bucket was deleted, created again, restored to an
// earlier state or purged. nats.go's watcher would wait until a new bucket has as many messages as it
// has seen, and the server does not report a purge to watchers. If a request fails, for example
// during an election, the next check repeats it.
func (w *keyWatch) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := w.kv.streamInfo(ctx, bucketStream(w.bucket))
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: the bucket was deleted; watch again", jetbus.ErrUnavailable)
	case err != nil:
		return nil
	case !info.Created.Equal(w.created) || info.State.LastSeq < w.seen:
		return fmt.Errorf("%w: the bucket was created again, or set back; watch again", jetbus.ErrUnavailable)
	}
	if err = w.checkLife(ctx); errors.Is(err, errKeysLost) {
		return err
	}
	return nil
}

// checkLife returns errKeysLost if the bucket lost its keys since the watch began.
func (w *keyWatch) checkLife(ctx context.Context) error {
	life, err := w.kv.readLife(ctx, w.bucket)
	switch {
	case err != nil || life.revision == w.life.revision:
	case w.life.revision != 0 || life.hasLost():
		return errKeysLost
	default: // the first key that expires was set in the meantime
		w.life = life
	}
	return err
}

// lastWritten is the revision of the last message of all keys with the prefix; 0 where there is none.
func (w *keyWatch) lastWritten(ctx context.Context) (last uint64, err error) {
	stream := bucketStream(w.bucket)
	for _, filter := range keyFilters(w.prefix) {
		m, err := w.kv.leaderMessage(ctx, stream, map[string]any{"last_by_subj": "$KV." + w.bucket + "." + filter})
		if err != nil {
			return 0, w.kv.translate("watch", w.kv.api+"STREAM.MSG.GET."+stream, err)
		}
		last = max(last, m.seq)
	}
	return last, nil
}

// keyFilters are the filters that let through all keys with a prefix, as narrow as
// subjects allow: up to the last dot of the prefix, in front of which nothing differs.
func keyFilters(prefix string) []string {
	const more = "x" // any character: it decides how the last one of the prefix is written
	escaped := strings.TrimSuffix(bucketKey(prefix+more), more)
	i := strings.LastIndexByte(escaped, '.')
	filters := []string{escaped[:i+1] + ">"}
	if i >= 0 && i == len(escaped)-1 { // the key that is the prefix ends in no dot: it would be another token
		filters = append(filters, bucketKey(prefix))
	}
	return filters
}

// keyEntry turns a watcher's update into an entry, if the prefix wants it.
func keyEntry(update jetstream.KeyValueEntry, prefix string) (jetbus.KeyEntry, bool) {
	if update == nil {
		return jetbus.KeyEntry{}, false
	}
	key, ok := parseBucketKey(update.Key())
	if !ok || !strings.HasPrefix(key, prefix) || key == lifeKey {
		return jetbus.KeyEntry{}, false
	}
	return jetbus.KeyEntry{
		Key: key, Value: update.Value(), Revision: update.Revision(), Deleted: update.Operation() != jetstream.KeyValuePut,
	}, true
}
