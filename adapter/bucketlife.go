package adapter

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// A bucket can be deleted or purged while locks and sessions in it are held. Two properties must
// survive that.
//
// Revisions ascend. Databases use them as epochs to reject a former owner, and writes use them as
// conditions: if a holder's revision were assigned again, the holder could replace its successor's
// lock. A purge keeps the sequence of the stream. A new stream starts at firstRevision.
//
// An absent key is not treated as a free lock. Its holder notices the loss when it renews the
// lock, and stops when its time has run out, so a process that finds no key waits that long. Two
// records tell it to wait. lifeKey is in the bucket and is lost with the other keys. witnessKey is
// in JETBUS_LOCKS and shows that the bucket was in use before. If both are lost, only a bus that
// has read the former lifeKey detects the loss.
const (
	lifeKey    = "\x00life" // cannot be a caller's key, which has no control characters
	lifeFirst  = "first"    // the bucket was never in use before
	lifeAgain  = "again"    // the bucket had keys that are lost
	witnessKey = "bucket/"
	// doubtFor is how long a loss is reported, which is at least the TTL of every lock and session.
	doubtFor = time.Hour
)

// bucketLife is the state of a bucket's lifeKey as far as the bus has observed it.
type bucketLife struct {
	revision  uint64    // of the lifeKey that was read last; 0: none
	lost      time.Time // when this bus learned of a loss; zero: never
	witnessed time.Time // when the witnessKey was last checked
	wasUsed   bool      // the bucket was in use before the bus used it
	expiring  bool      // the bus sets keys in the bucket that expire
	denied    bool      // the lifeKey could not be written: no permission, or no room
}

// hasLost reports whether the bucket lost keys within doubtFor.
func (l bucketLife) hasLost() bool { return !l.lost.IsZero() && time.Since(l.lost) < doubtFor }

// firstRevision returns the first sequence of a new bucket. For the bus's own buckets, and for
// others with keys that expire, it is the clock's time in microseconds. This exceeds all revisions
// of earlier buckets of the name, which also started with the microsecond in which they were
// created, because a stream never takes a million writes in each second of its life.
func (kv *buckets) firstRevision(bucket string) uint64 {
	if _, known := kv.lifeOf(bucket); !known && !strings.HasPrefix(bucket, "JETBUS_") {
		return 0
	}
	return uint64(max(time.Now().UnixMicro(), 1)) //nolint:gosec // positive
}

// lifeOf returns the bus's record of a bucket. known is true if the bus watches the bucket or sets
// keys in it that expire.
func (kv *buckets) lifeOf(bucket string) (l bucketLife, known bool) {
	kv.living.Lock()
	defer kv.living.Unlock()
	l, known = kv.lives[bucket]
	return l, known
}

// noteLife changes the bus's record of a bucket.
func (kv *buckets) noteLife(bucket string, change func(*bucketLife)) bucketLife {
	kv.living.Lock()
	defer kv.living.Unlock()
	if kv.lives == nil {
		kv.lives = map[string]bucketLife{}
	}
	l := kv.lives[bucket]
	change(&l)
	kv.lives[bucket] = l
	return l
}

// startLife is readLife for a bucket in which the bus will set a key that expires. If the bucket
// has no lifeKey, it writes one.
func (kv *buckets) startLife(ctx context.Context, bucket string) error {
	l, _ := kv.lifeOf(bucket)
	if l.revision != 0 || l.denied || bucket == locksBucket { // the bus holds its own locks only for moments
		return nil
	}
	kv.noteLife(bucket, func(l *bucketLife) { l.expiring = true })
	_, err := kv.readLife(ctx, bucket)
	return err
}

// readLife reads the lifeKey of a bucket, and writes a new one if it was lost.
func (kv *buckets) readLife(ctx context.Context, bucket string) (bucketLife, error) {
	ctx, cancel := kv.bound(ctx)
	defer cancel()
	for {
		m, err := kv.keyMessage(ctx, bucket, lifeKey)
		if err != nil {
			return bucketLife{}, kv.translate("", kv.api+"STREAM.MSG.GET."+bucketStream(bucket), err)
		}
		if m.seq != 0 {
			l := kv.noteLife(bucket, func(l *bucketLife) { l.found(m) })
			return kv.keepWitness(ctx, bucket, l), nil
		}
		l, _ := kv.lifeOf(bucket)
		if l.denied {
			return l, nil
		}
		wasUsed := l.revision != 0
		if !wasUsed {
			if wasUsed, err = kv.noteWitness(ctx, bucket); err != nil {
				return bucketLife{}, err
			}
		}
		if !wasUsed && !l.expiring {
			return l, nil
		}
		if err := kv.writeLife(ctx, bucket, wasUsed); err != nil {
			return bucketLife{}, err
		}
	}
}

// found records the lifeKey that was read.
func (l *bucketLife) found(m keyMessage) {
	isAnother := l.revision != 0 && l.revision != m.seq
	isRecent := l.revision == 0 && string(m.Data) == lifeAgain && time.Since(m.time) < doubtFor
	if isAnother || isRecent {
		l.lost = time.Now()
	}
	l.revision = m.seq
}

// hasWitness reports whether the bucket was in use before. It returns false if the bus has no
// permission to read the witnessKey.
func (kv *buckets) hasWitness(ctx context.Context, bucket string) (bool, error) {
	witness, err := kv.keyMessage(ctx, locksBucket, witnessKey+bucket)
	err = kv.translate("", kv.api+"STREAM.MSG.GET."+bucketStream(locksBucket), err)
	if errors.Is(err, jetbus.ErrDenied) {
		return false, nil
	}
	return witness.seq != 0, err
}

// noteWitness is hasWitness, and records that the bucket was in use.
func (kv *buckets) noteWitness(ctx context.Context, bucket string) (wasUsed bool, err error) {
	if wasUsed, err = kv.hasWitness(ctx, bucket); err == nil {
		kv.noteLife(bucket, func(l *bucketLife) { l.wasUsed = l.wasUsed || wasUsed })
	}
	return wasUsed, err
}

// writeLife writes the lifeKey of a bucket that has none. It returns nil if another process writes
// it first.
func (kv *buckets) writeLife(ctx context.Context, bucket string, wasUsed bool) error {
	life := lifeFirst
	if wasUsed {
		life = lifeAgain
	}
	_, err := kv.writeKey(ctx, "note bucket "+bucket, bucket, lifeKey, []byte(life), nats.Header{}, 0)
	switch {
	case errors.Is(err, jetbus.ErrWrongSequence):
		return nil
	case errors.Is(err, jetbus.ErrDenied), errors.Is(err, jetbus.ErrBucketFull): // later losses are not detected
		kv.noteLife(bucket, func(l *bucketLife) {
			if wasUsed {
				l.lost = time.Now()
			}
			l.revision, l.denied = 0, true
		})
		return nil
	}
	return err
}

// keepWitness checks from time to time that the bucket's witnessKey exists, and writes it if it
// does not. Errors are ignored: it is checked again after bucketLook.
func (kv *buckets) keepWitness(ctx context.Context, bucket string, l bucketLife) bucketLife {
	if time.Since(l.witnessed) < bucketLook {
		return l
	}
	if there, err := kv.hasWitness(ctx, bucket); err == nil && !there {
		_, _ = kv.writeKey(ctx, "note bucket "+bucket, locksBucket, witnessKey+bucket, nil, nats.Header{}, 0)
	}
	return kv.noteLife(bucket, func(l *bucketLife) { l.witnessed = time.Now() })
}
