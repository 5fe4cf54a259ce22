package jetbus

import (
	"hash/fnv"
	"testing"
)

// TestJump compares with values that other implementations publish: the golden
// list of Guava's consistentHash, and those of dgryski/go-jump.
func TestJump(t *testing.T) {
	for _, c := range []struct {
		hash uint64
		n    int
		want int
	}{
		{1, 1, 0},
		{42, 57, 43},
		{0xDEAD10CC, 1, 0},
		{0xDEAD10CC, 666, 361},
		{256, 1024, 520},
		{10863919174838991, 11, 6},
		{2016238256797177309, 11, 3},
		{1673758223894951030, 11, 5},
	} {
		if got := jump(c.hash, c.n); got != c.want {
			t.Errorf("jump(%d, %d) is %d, want %d", c.hash, c.n, got, c.want)
		}
	}
	for hash, want := range []int{0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83} {
		if got := jump(uint64(hash), 100); got != want {
			t.Errorf("jump(%d, 100) is %d, want %d", hash, got, want)
		}
	}
	for _, n := range []int{0, -1} {
		if got := jump(7, n); got != 0 {
			t.Errorf("jump(7, %d) is %d, want 0", n, got)
		}
	}
}

func FuzzFNV1a(f *testing.F) {
	for _, key := range []string{"", "a", "h\u00e9llo", "\xff"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		h := fnv.New64a()
		_, _ = h.Write([]byte(key)) // never fails
		if h.Sum64() != fnv1a(key) {
			t.Fatalf("fnv1a(%q) is not that of hash/fnv", key)
		}
	})
}
