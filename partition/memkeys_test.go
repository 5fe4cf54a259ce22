package partition_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// memKeys is a bucket of jetbus.Keys in memory, for groups in fake time. It counts
// what members ask of it. As at the server, whoever lags is not told what was
// superseded meanwhile. A write that changes no value, which is what renews a session,
// wakes no watcher: it is told with the next one that does, so that groups of
// hundreds can be played.
type memKeys struct {
	mu       sync.Mutex
	revision uint64
	keys     map[string]*memKey
	log      []jetbus.KeyEntry // what may still have to be told
	trimmed  int               // entries that were cut off the log
	latest   map[string]uint64 // the last revision of each key, deletions included
	watchers map[*memWatcher]struct{}
	endless  bool // keys cannot expire
	writes   int  // that were stored
	told     int  // changes that are for watchers
	life     uint64
	lost     bool // the keys were lost
}

type memKey struct {
	jetbus.KeyEntry
	expiry *time.Timer
}

type memWatcher struct {
	prefix string
	next   int           // of the log, as if nothing had been cut off
	wake   chan struct{} // capacity 1
	end    chan struct{} // closed when the bucket has ended the watch
}

func newMemKeys() *memKeys {
	return &memKeys{keys: map[string]*memKey{}, latest: map[string]uint64{}, watchers: map[*memWatcher]struct{}{}}
}

func (k *memKeys) KeyGet(_ context.Context, _, key string) (jetbus.KeyEntry, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.keys[key]; e != nil {
		return e.KeyEntry, nil
	}
	return jetbus.KeyEntry{Key: key}, nil
}

// written returns the number of writes so far.
func (k *memKeys) written() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

// isLost returns whether the loss of keys was noticed.
func (k *memKeys) isLost() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lost
}

func (k *memKeys) KeySet(_ context.Context, _, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if ttl > 0 && k.endless {
		return 0, jetbus.ErrUnsupported
	}
	e := k.keys[key]
	if e == nil && revision != 0 || e != nil && e.Revision != revision {
		return 0, jetbus.ErrWrongSequence
	}
	if e != nil && e.expiry != nil {
		e.expiry.Stop()
	}
	k.revision++
	k.writes++
	next := &memKey{KeyEntry: jetbus.KeyEntry{Key: key, Value: value, Revision: k.revision}}
	if ttl > 0 {
		next.expiry = time.AfterFunc(ttl, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.keys[key] == next {
				k.removeLocked(key)
			}
		})
	}
	k.keys[key] = next
	// Renewals of sessions wake nobody, of which there are a great many. A lease that is written
	// again as it is, since the answer was lost, has another revision, which its owner has to hear of.
	renewed := e != nil && bytes.Equal(e.Value, value) && strings.Contains(key, "/.m/")
	k.tellLocked(next.KeyEntry, !renewed)
	return k.revision, nil
}

func (k *memKeys) KeyDelete(_ context.Context, _, key string, revision uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.keys[key]
	if e == nil || e.Revision != revision {
		return jetbus.ErrWrongSequence
	}
	if e.expiry != nil {
		e.expiry.Stop()
	}
	k.writes++
	k.removeLocked(key)
	return nil
}

func (k *memKeys) removeLocked(key string) {
	delete(k.keys, key)
	k.revision++
	k.tellLocked(jetbus.KeyEntry{Key: key, Revision: k.revision, Deleted: true}, true)
}

func (k *memKeys) tellLocked(e jetbus.KeyEntry, news bool) {
	k.log = append(k.log, e)
	k.latest[e.Key] = e.Revision
	if !news {
		k.told += len(k.watchers) // nearly all have the same prefix
		return
	}
	least := k.trimmed + len(k.log)
	for w := range k.watchers {
		least = min(least, w.next)
		if strings.HasPrefix(e.Key, w.prefix) {
			k.told++
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
	if least-k.trimmed > len(k.log)/2 {
		k.log = append([]jetbus.KeyEntry(nil), k.log[least-k.trimmed:]...)
		k.trimmed = least
	}
}

// news is what a watcher has to be told by now.
func (k *memKeys) news(w *memWatcher, out []jetbus.KeyEntry) []jetbus.KeyEntry {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.log[w.next-k.trimmed:] {
		if k.latest[e.Key] == e.Revision && strings.HasPrefix(e.Key, w.prefix) {
			out = append(out, e)
		}
	}
	w.next = k.trimmed + len(k.log)
	return out
}

func (k *memKeys) KeyWatch(ctx context.Context, _, prefix string) iter.Seq2[jetbus.KeyEntry, error] {
	return func(yield func(jetbus.KeyEntry, error) bool) {
		w := &memWatcher{prefix: prefix, wake: make(chan struct{}, 1), end: make(chan struct{})}
		k.mu.Lock()
		var news []jetbus.KeyEntry
		for key, e := range k.keys {
			if strings.HasPrefix(key, prefix) {
				news = append(news, e.KeyEntry)
			}
		}
		news = append(news, jetbus.KeyEntry{Synced: true, Revision: k.life, Lost: k.lost})
		w.next = k.trimmed + len(k.log)
		k.watchers[w] = struct{}{}
		k.mu.Unlock()
		defer func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			delete(k.watchers, w)
		}()
		for {
			for _, e := range news {
				if !yield(e, nil) {
					return
				}
			}
			select {
			case <-w.wake:
				news = k.news(w, news[:0])
			case <-w.end:
				yield(jetbus.KeyEntry{}, errAway)
				return
			case <-ctx.Done():
				yield(jetbus.KeyEntry{}, context.Cause(ctx))
				return
			}
		}
	}
}

// purge removes all keys. As at the server, no watcher is told; the adapter ends the watches a
// while later.
func (k *memKeys) purge() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range k.keys {
		if e.expiry != nil {
			e.expiry.Stop()
		}
	}
	clear(k.keys)
	k.revision++
	k.life, k.lost = k.revision, true
	for w := range k.watchers {
		time.AfterFunc(10*time.Second, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			if _, watches := k.watchers[w]; watches {
				delete(k.watchers, w)
				close(w.end)
			}
		})
	}
}

// recreate is purge of a bucket that somebody deleted, and that begins with higher revisions.
func (k *memKeys) recreate() {
	k.mu.Lock()
	k.revision += 1 << 40
	k.mu.Unlock()
	k.purge()
}

var errAway = errors.New("the broker does not answer")

// line is a member's connection to its bucket: it takes time, may be cut, and may
// lose answers.
type line struct {
	jetbus.Keys
	mu       sync.Mutex
	rng      *rand.Rand
	down     chan struct{} // closed while it is cut, nil otherwise
	up       chan struct{} // closed when it is not
	dead     bool          // it stays cut
	loses    float64       // share of answers that are lost
	latency  time.Duration
	blind    error // of each watch; nil: it sees
	full     bool  // the bucket has no room for leases
	watching map[*context.CancelFunc]struct{}
}

func newLine(k jetbus.Keys, seed uint64) *line {
	up := make(chan struct{})
	close(up)
	return &line{Keys: k, rng: rand.New(rand.NewPCG(seed, 2)), up: up, latency: time.Millisecond, watching: map[*context.CancelFunc]struct{}{}} //nolint:gosec // reproducible on purpose
}

// cut breaks the line, or mends it.
func (l *line) cut(broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case broken && l.down == nil:
		l.down, l.up = make(chan struct{}), make(chan struct{})
		close(l.down)
		for cancel := range l.watching {
			(*cancel)()
		}
	case !broken && l.down != nil && !l.dead:
		l.down = nil
		close(l.up)
	}
}

// die cuts the line for good, as far as the test goes.
func (l *line) die() {
	l.cut(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
}

// mend makes the line as it was at first.
func (l *line) mend() {
	l.mu.Lock()
	l.dead, l.loses, l.blind, l.full = false, 0, nil, false
	l.mu.Unlock()
	l.cut(false)
}

// suffer has watches fail, and the bucket full, from now on.
func (l *line) suffer(blind error, full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blind, l.full = blind, full
}

// pass waits until a request is through; false: its answer will be lost.
func (l *line) pass(ctx context.Context) (answered bool, err error) {
	l.mu.Lock()
	up, lost := l.up, l.rng.Float64() < l.loses
	l.mu.Unlock()
	select {
	case <-up:
	case <-ctx.Done():
		return false, errors.Join(errAway, context.Cause(ctx))
	}
	select {
	case <-time.After(l.latency):
	case <-ctx.Done():
		return false, errors.Join(errAway, context.Cause(ctx))
	}
	return !lost, nil
}

func (l *line) KeyGet(ctx context.Context, bucket, key string) (jetbus.KeyEntry, error) {
	answered, err := l.pass(ctx)
	if err != nil || !answered {
		return jetbus.KeyEntry{}, errors.Join(errAway, err)
	}
	return l.Keys.KeyGet(ctx, bucket, key)
}

func (l *line) KeySet(ctx context.Context, bucket, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	answered, err := l.pass(ctx)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	full := l.full && strings.Contains(key, "/.l/")
	l.mu.Unlock()
	if full {
		return 0, jetbus.ErrBucketFull
	}
	stored, err := l.Keys.KeySet(ctx, bucket, key, value, revision, ttl)
	if !answered {
		return 0, errAway
	}
	return stored, err
}

func (l *line) KeyDelete(ctx context.Context, bucket, key string, revision uint64) error {
	answered, err := l.pass(ctx)
	if err != nil {
		return err
	}
	err = l.Keys.KeyDelete(ctx, bucket, key, revision)
	if !answered {
		return errAway
	}
	return err
}

func (l *line) KeyWatch(ctx context.Context, bucket, prefix string) iter.Seq2[jetbus.KeyEntry, error] {
	return func(yield func(jetbus.KeyEntry, error) bool) {
		l.mu.Lock()
		up, blind := l.up, l.blind
		l.mu.Unlock()
		if blind != nil {
			yield(jetbus.KeyEntry{}, blind)
			return
		}
		select {
		case <-up:
		case <-ctx.Done():
			yield(jetbus.KeyEntry{}, context.Cause(ctx))
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		l.mu.Lock()
		l.watching[&cancel] = struct{}{}
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.watching, &cancel)
		}()
		l.Keys.KeyWatch(ctx, bucket, prefix)(yield)
	}
}
