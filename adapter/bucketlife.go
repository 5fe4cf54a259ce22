package adapter

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// A bucket can be deleted or purged while locks and sessions in it are held. Two things must
// survive that.
//
// Revisions ascend, because they are the epochs with which databases refuse a former owner, and
// the conditions of writes: a holder whose revision is used again would replace the lock of its
// successor. A purge keeps the sequence of the stream. A new stream starts at firstRevision.
//
// An absent key is not taken for a free lock. Its holder notices the loss when it renews, and
// stops when its time is over, so that a process that finds no key waits for that long. Two
// records tell it to. lifeKey is in the bucket and is lost with the other keys. witnessKey is in
// JETBUS_LOCKS and shows that the bucket was in use before. Where both are lost, only a bus that
// has seen the former lifeKey knows.
const (
	lifeKey    = "\x00life" // not a key of a caller, which has no control characters
	lifeFirst  = "first"    // the bucket was never in use before
	lifeAgain  = "again"    // the bucket had keys that are lost
	witnessKey = "bucket/"
	// doubtFor is how long a loss is reported. It exceeds the TTL of locks and sessions.
	doubtFor = time.Hour
)

// bucketLife is what a bus knows of the lifeKey of a bucket.
type bucketLife struct {
	revision  uint64    // of the lifeKey that was read last; 0: there is none
	lost      time.Time // when this bus learned of a loss; zero: never
	witnessed time.Time // when the witnessKey was last asked for
	expiring  bool      // the bus sets keys in the bucket that expire
	denied    bool      // the lifeKey could not be written: no permission, or no room
}

// hasLost reports whether the bucket lost keys within doubtFor.
func (l bucketLife) hasLost() bool { return !l.lost.IsZero() && time.Since(l.lost) < doubtFor }

// firstRevision is the first sequence of a new bucket. For the bus's own buckets, and others with
// keys that expire, it is the microseconds of the clock. They exceed all revisions of former
// buckets of the name, which started with the microsecond in which they were created: no stream
// takes a million writes in each second of its life.
func (kv *buckets) firstRevision(bucket string) uint64 {
	if _, known := kv.lifeOf(bucket); !known && !strings.HasPrefix(bucket, "JETBUS_") {
		return 0
	}
	return uint64(max(time.Now().UnixMicro(), 1)) //nolint:gosec // positive
}

// lifeOf returns what the bus knows of a bucket, and whether it watches the bucket or sets keys in
// it that expire.
func (kv *buckets) lifeOf(bucket string) (l bucketLife, known bool) {
	kv.living.Lock()
	defer kv.living.Unlock()
	l, known = kv.lives[bucket]
	return l, known
}

// noteLife changes what the bus knows of a bucket.
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

// startLife is readLife of a bucket in which the bus is about to set a key that expires. There it
// writes the lifeKey.
func (kv *buckets) startLife(ctx context.Context, bucket string) error {
	l, _ := kv.lifeOf(bucket)
	if l.revision != 0 || l.denied || bucket == locksBucket { // its own locks are held for moments
		return nil
	}
	kv.noteLife(bucket, func(l *bucketLife) { l.expiring = true })
	_, err := kv.readLife(ctx, bucket)
	return err
}

// readLife reads the lifeKey of a bucket. Where that is lost it writes one again.
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
			if wasUsed, err = kv.hasWitness(ctx, bucket); err != nil {
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

// found notes the lifeKey that was read.
func (l *bucketLife) found(m keyMessage) {
	isAnother := l.revision != 0 && l.revision != m.seq
	isRecent := l.revision == 0 && string(m.Data) == lifeAgain && time.Since(m.time) < doubtFor
	if isAnother || isRecent {
		l.lost = time.Now()
	}
	l.revision = m.seq
}

// hasWitness reports whether the bucket was in use before, as far as the bus is allowed to know.
func (kv *buckets) hasWitness(ctx context.Context, bucket string) (bool, error) {
	witness, err := kv.keyMessage(ctx, locksBucket, witnessKey+bucket)
	err = kv.translate("", kv.api+"STREAM.MSG.GET."+bucketStream(locksBucket), err)
	if errors.Is(err, jetbus.ErrDenied) {
		return false, nil
	}
	return witness.seq != 0, err
}

// writeLife writes the lifeKey of a bucket that has none. Another process may be faster.
func (kv *buckets) writeLife(ctx context.Context, bucket string, wasUsed bool) error {
	life := lifeFirst
	if wasUsed {
		life = lifeAgain
	}
	_, err := kv.writeKey(ctx, "note bucket "+bucket, bucket, lifeKey, []byte(life), nats.Header{}, 0)
	switch {
	case errors.Is(err, jetbus.ErrWrongSequence):
		return nil
	case errors.Is(err, jetbus.ErrDenied), errors.Is(err, jetbus.ErrBucketFull): // later losses go unnoticed
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

// keepWitness makes sure, from time to time, that there is a witnessKey of the bucket. An error
// is not the caller's: the next call tries again.
func (kv *buckets) keepWitness(ctx context.Context, bucket string, l bucketLife) bucketLife {
	if time.Since(l.witnessed) < bucketLook {
		return l
	}
	if there, err := kv.hasWitness(ctx, bucket); err == nil && !there {
		_, _ = kv.writeKey(ctx, "note bucket "+bucket, locksBucket, witnessKey+bucket, nil, nats.Header{}, 0)
	}
	return kv.noteLife(bucket, func(l *bucketLife) { l.witnessed = time.Now() })
}
