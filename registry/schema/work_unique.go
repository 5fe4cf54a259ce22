package schema

import (
	"encoding/json"
	"math/big"
)

// The library tells the items of uniqueItems apart by a hash, and compares each
// with all before it that have the same. Its hash does not see where an array, an
// object or a string ends: [[],[]] and [[[]]] have one, and so may thousands
// of items.

const (
	// fewItems is up to how many items the library compares without a hash.
	fewItems = 20
	// pairUnit is how many comparisons of items are one unit of work.
	pairUnit = 32
)

// unique counts the comparisons that uniqueItems takes.
func (e *effort) unique(all map[*node]int, items []any) bool {
	times := 0
	for n, t := range all {
		if n.unique {
			times += t
		}
	}
	if times == 0 || len(items) <= fewItems {
		return true
	}
	pairs, alike, seen := 0, map[string]int{}, map[string]bool{}
	for _, x := range items {
		is := string(appendCanonical(nil, x))
		if seen[is] {
			break // the library stops at the first that is there twice
		}
		seen[is] = true
		hash := string(appendHashed(nil, x))
		pairs += alike[hash]
		alike[hash]++
	}
	return e.spend(times, pairs/pairUnit)
}

// appendHashed appends what the library's hash sees of a value.
func appendHashed(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 0)
	case bool:
		if v {
			return append(b, 1, 1)
		}
		return append(b, 1, 0)
	case json.Number:
		b = append(b, 2)
		if r, ok := new(big.Rat).SetString(string(v)); ok {
			b = append(append(b, r.Num().Bytes()...), r.Denom().Bytes()...)
		}
		return b
	case string:
		return append(append(b, 3), v...)
	case []any:
		b = append(b, 4)
		for _, x := range v {
			b = appendHashed(b, x)
		}
		return b
	case map[string]any:
		b = append(b, 5)
		for _, name := range sortedKeys(v) {
			b = appendHashed(appendHashed(b, name), v[name])
		}
	}
	return b
}
