package jetbus

import "fmt"

// MaxPartitions bounds the partitions of a topic.
const MaxPartitions = 4096

// PartitionOf returns the partition of a key in a topic of n partitions, 0 to n-1:
// FNV-1a with 64 bits over the bytes of the key, then the jump consistent hash.
// Publishers in every language that do the same find the same one. Of a topic that grows
// from n to m partitions, keys move only to new partitions. The error wraps
// [ErrInvalidOption]: n is not from 1 to MaxPartitions.
func PartitionOf(key string, n int) (int, error) {
	if n < 1 || n > MaxPartitions {
		return 0, fmt.Errorf("partition of key %.100q: %w: a topic has 1 to %d partitions, not %d", key, ErrInvalidOption, MaxPartitions, n)
	}
	return jump(fnv1a(key), n), nil
}

// FNV-1a, 64 bits: offset basis and prime, as published by Fowler, Noll and Vo
// (RFC 9923).
const (
	fnvOffset = 0xcbf29ce484222325
	fnvPrime  = 0x100000001b3
)

// fnv1a is FNV-1a with 64 bits of the bytes of a key.
func fnv1a(key string) uint64 {
	h := uint64(fnvOffset)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * fnvPrime
	}
	return h
}

// jump returns a bucket from 0 to n-1 for a hash: the jump consistent hash of
// Lamping and Veach ("A Fast, Minimal Memory, Consistent Hash Algorithm", 2014). Of n
// buckets each gets a like share; when n grows, a hash stays where it is or moves
// to one of the new buckets.
func jump(hash uint64, n int) int {
	b, j := int64(-1), int64(0)
	for j < int64(n) {
		b = j
		hash = hash*2862933555777941757 + 1
		j = int64(float64(b+1) * (float64(int64(1)<<31) / float64((hash>>33)+1)))
	}
	return int(max(b, 0))
}
