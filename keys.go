package jetbus

import (
	"context"
	"iter"
	"time"
)

// Keys is a small store of named values with conditional writes, for leases, sessions, resume tokens
// and the like. It is not meant for events. Buckets are created at the first write, with 64 MiB
// each; their names consist of letters, digits, '_' and '-'. A key is any non-empty UTF-8 text of at
// most 256 bytes without control characters.
type Keys interface {
	// KeyGet returns the value and its revision, or revision 0 and no error where
	// the key does not exist. It reads from the leader, not from a replica.
	KeyGet(ctx context.Context, bucket, key string) (KeyEntry, error)
	// KeySet stores value and returns the new revision if the key's current revision is the given
	// one; 0 means that the key does not exist. Otherwise nothing is changed, and the error is
	// [ErrWrongSequence], or [ErrBucketFull] if the bucket has no room for the value. The last
	// eighth of a bucket is reserved for values of at most 2 KiB that replace another value. With a
	// ttl of at least 1 second, the key expires that long after this write; 0 means that it never
	// expires.
	KeySet(ctx context.Context, bucket, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error)
	// KeyDelete removes the key if its revision is the given one ([ErrWrongSequence]).
	KeyDelete(ctx context.Context, bucket, key string, revision uint64) error
	// KeyWatch returns the present entries of the bucket whose keys start with prefix, then one
	// entry with Synced set, then every change until ctx ends or the caller stops. Deleted and
	// expired keys have Revision set and Deleted true. If changes may have been missed, for example
	// because the connection was lost, it ends with [ErrUnavailable]: watch again, and compare.
	KeyWatch(ctx context.Context, bucket, prefix string) iter.Seq2[KeyEntry, error]
}

// KeyEntry is one key's state.
type KeyEntry struct {
	Key      string
	Value    []byte
	Revision uint64 // ascending over the bucket
	Deleted  bool   // the key was deleted or expired
	Synced   bool   // marks the end of the present entries; no key
	// Lost reports that the bucket was deleted or purged within the last hour. It is set in entries
	// without a value and in the Synced entry. An absent key may have existed, and the process that
	// wrote it may not have noticed the loss yet. Lost is only set for callers that watch the bucket
	// or set keys with a ttl in it. In a Synced entry, Revision changes with each loss.
	Lost bool
}
