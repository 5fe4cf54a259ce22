package jetbus_test

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

// golden are keys and their partitions of 8, 16, 64 and 256. They hold for good:
// publishers of other versions and languages go by the same.
var golden = []struct {
	key string
	in  [4]int
}{
	{"", [4]int{1, 13, 17, 90}},
	{"a", [4]int{2, 12, 31, 163}},
	{"user-1", [4]int{7, 12, 47, 110}},
	{"order:42", [4]int{3, 3, 55, 188}},
	{"host:name:1234", [4]int{5, 5, 55, 233}},
	{"héllo", [4]int{4, 4, 52, 244}},
}

func TestPartitionOf(t *testing.T) {
	for _, g := range golden {
		for i, n := range []int{8, 16, 64, 256} {
			if p, err := jetbus.PartitionOf(g.key, n); err != nil || p != g.in[i] {
				t.Errorf("PartitionOf(%q, %d) is %d (%v), want %d", g.key, n, p, err, g.in[i])
			}
		}
	}
	for _, n := range []int{-1, 0, jetbus.MaxPartitions + 1} {
		if _, err := jetbus.PartitionOf("k", n); err == nil {
			t.Errorf("PartitionOf takes %d partitions", n)
		}
	}
}

// FuzzPartitionOf checks that a partition is one there is, and that growing moves keys to new partitions only.
func FuzzPartitionOf(f *testing.F) {
	for _, g := range golden {
		f.Add(g.key, uint16(8), uint16(4))
	}
	f.Fuzz(func(t *testing.T, key string, n, more uint16) {
		from := 1 + int(n)%jetbus.MaxPartitions
		to := min(from+int(more), jetbus.MaxPartitions)
		before, err := jetbus.PartitionOf(key, from)
		if err != nil || before < 0 || before >= from {
			t.Fatalf("PartitionOf(%q, %d) is %d: %v", key, from, before, err)
		}
		after, err := jetbus.PartitionOf(key, to)
		if err != nil || after != before && after < from {
			t.Fatalf("of %d partitions %q is in %d, of %d in %d: %v", from, key, before, to, after, err)
		}
	})
}

// TestPartitionOfSpreads counts keys as people choose them: no partition has a quarter more
// than its share of 100,000.
func TestPartitionOfSpreads(t *testing.T) {
	for name, key := range map[string]func(i int) string{
		"numbers": strconv.Itoa,
		"users":   func(i int) string { return "user-" + strconv.Itoa(i) },
		"hosts":   func(i int) string { return "host-" + strconv.Itoa(i%50) + ":stt:" + strconv.Itoa(i) },
		"hex":     func(i int) string { return strconv.FormatInt(int64(i)<<12, 16) },
	} {
		for _, n := range []int{8, 16, 64, 256} {
			counts := make([]int, n)
			for i := range 100_000 {
				p, err := jetbus.PartitionOf(key(i), n)
				if err != nil {
					t.Fatal(err)
				}
				counts[p]++
			}
			for p, c := range counts {
				if share := 100_000 / n; c > share+share/4 || c < share-share/4 {
					t.Errorf("%s: partition %d of %d has %d keys, its share is %d", name, p, n, c, share)
				}
			}
		}
	}
}

func BenchmarkPartitionOf(b *testing.B) {
	key := strconv.FormatUint(rand.Uint64(), 36)
	for b.Loop() {
		if _, err := jetbus.PartitionOf(key, 64); err != nil {
			b.Fatal(err)
		}
	}
}
