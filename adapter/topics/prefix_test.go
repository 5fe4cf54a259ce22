package topics_test

import (
	"fmt"
	"testing"

	"github.com/seed-63e9a637/jetbus/adapter"
)

// TestKeysOfPrefixes: buses of each prefix have buckets of their own, but for those of the bus itself, and
// those of the default have the names that are asked for.
func TestKeysOfPrefixes(t *testing.T) {
	inBubble(t, func(r *rig) {
		_, dotted := r.Open(adapter.Config{Prefix: "a.b"})
		_, plain := r.Open(adapter.Config{Prefix: "a_b"})
		buses := []*adapter.Bus{r.Bus, dotted, plain}
		for i, b := range buses {
			must(b.KeySet(r.Context(), "b", "k", fmt.Append(nil, i), 0, 0))(r.T) // to each it is new
		}
		for i, b := range buses {
			for e, err := range b.KeyWatch(r.Context(), "b", "") {
				r.OK(err)
				if e.Synced {
					break
				}
				r.Equal("watched", string(e.Value), i)
			}
			e := must(b.KeyGet(r.Context(), "b", "k"))(r.T)
			r.Equal("read", string(e.Value), i)
			r.OK(b.KeyDelete(r.Context(), "b", "k", e.Revision))
		}
		r.Equal("messages of the default's bucket", r.Stream("KV_b").State.LastSeq, 2)

		shared := must(r.Bus.KeySet(r.Context(), "JETBUS_GROUPS", "k", nil, 0, 0))(r.T)
		r.Equal("of a bucket that all share", must(plain.KeyGet(r.Context(), "JETBUS_GROUPS", "k"))(r.T).Revision, shared)
	})
}
