package adapter

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// A bucket that is filled by other keys must keep its locks and sessions. A server lets a value
// replace one of at least its size in a full stream, but not if the stream has replicas: then it
// refuses every write (nats-server 2.15). So the bus keeps a part of each bucket free for small
// values that replace others.
const (
	reservedPart = 8       // of the bytes of a bucket, one such part is reserved
	smallValue   = 2 << 10 // bytes of a value that may use the reserve
	minReserving = 1 << 20 // bytes of a bucket that has a reserve
	budgetPart   = 16      // of what is left, the bus writes one such part before it asks again
	messageBytes = 64      // that the server adds to a message, at most
	roomLook     = time.Second
)

// bucketRoom is what the bus may write to a bucket before it asks again how full that is: a part of
// what was left, because other processes write, too.
type bucketRoom struct {
	budget int64
	asked  time.Time
}

// takeRoom returns ErrBucketFull where a write would use the reserve of the bucket and must not.
// Where it cannot be found out how full the bucket is, the server decides.
func (kv *buckets) takeRoom(ctx context.Context, bucket string, m *nats.Msg, replaces bool) error {
	if replaces && len(m.Data) <= smallValue {
		return nil
	}
	size := int64(m.Size()) + messageBytes
	if kv.takeBudget(bucket, size) {
		return nil
	}
	left := int64(math.MaxInt64)
	if info, err := kv.streamInfo(ctx, bucketStream(bucket)); err == nil {
		left = leftIn(info)
	}
	if left < size {
		return jetbus.ErrBucketFull
	}
	kv.living.Lock()
	defer kv.living.Unlock()
	if kv.rooms == nil {
		kv.rooms = map[string]bucketRoom{}
	}
	kv.rooms[bucket] = bucketRoom{budget: left/budgetPart - size, asked: time.Now()}
	return nil
}

// takeBudget reports whether a write is within the budget.
func (kv *buckets) takeBudget(bucket string, size int64) bool {
	kv.living.Lock()
	defer kv.living.Unlock()
	room := kv.rooms[bucket]
	if room.budget < size || time.Since(room.asked) >= roomLook {
		return false
	}
	room.budget -= size
	kv.rooms[bucket] = room
	return true
}

// leftIn is how much a bucket takes before its reserve.
func leftIn(info *jetstream.StreamInfo) int64 {
	most := info.Config.MaxBytes
	if most < minReserving {
		return math.MaxInt64
	}
	return most - most/reservedPart - int64(min(info.State.Bytes, math.MaxInt64)) //nolint:gosec // not more
}

// sequenceText is a sequence in a header. It has the same length for each, so that a value can be
// replaced in a full bucket whatever the sequences are.
func sequenceText(seq uint64) string {
	return fmt.Sprintf("%019d", seq) // the server reads a signed number of 64 bits
}
