package gateway

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

// taken is what comes out of a box.
func (b *box) taken() string {
	var out []string
	for next, ok := b.take(); ok; next, ok = b.take() {
		switch {
		case next.lost.from != 0:
			out = append(out, fmt.Sprintf("%s:%d-%d", next.lost.topic, next.lost.from, next.lost.to))
		case next.e != nil:
			out = append(out, fmt.Sprintf("%s%d", next.e.Topic, next.e.Seq))
		default:
			out = append(out, string(next.text))
		}
	}
	return strings.Join(out, " ")
}

// TestBoxTellsWhatIsReplaced: of each topic, in its place between events and other frames.
func TestBoxTellsWhatIsReplaced(t *testing.T) {
	for puts, want := range map[string]string{
		"a1x a2y a3y":             "a1 a:2-2 a3",
		"a1x a2y a3y a4x":         "a:1-2 a3 a4",
		"a1x a2y a3z a4z":         "a1 a2 a:3-3 a4",
		"a1x a2x a3x a4y a5x":     "a:1-3 a4 a5",
		"a1x b1x b2x a2x b3y a3y": "b:1-1 b2 a:1-1 a2 b3 a3",
		"a1x b1x b| a2x b2x a3x":  "b:1-1 b| b2 a:1-2 a3",
		"a1x a| a2x a3x":          "a:1-1 a| a:2-2 a3",
		"a7x b1x b2x a8y":         "a7 b:1-1 b2 a8",
	} {
		b := newBox(1<<20, nil)
		for p := range strings.FieldsSeq(puts) {
			if p[1] == '|' {
				b.mark(p[:1], []byte(p))
				continue
			}
			b.add(encode(&jetbus.Event{Topic: p[:1], Key: p[2:], Seq: uint64(p[1] - '0')}, 0))
		}
		if got := b.taken(); got != want {
			t.Errorf("%s: %s, want %s", puts, got, want)
		}
	}
}

// TestBoxAnyOrder: whatever is put and taken, all of a topic comes in its order, as an event or
// within a gap, and the last event of each key is no gap.
func TestBoxAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 8)) //nolint:gosec // repeatable
	b := newBox(1<<20, nil)
	put, at, last, kept := map[string]uint64{}, map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
	take := func() bool {
		next, ok := b.take()
		switch {
		case !ok:
			return false
		case next.lost.from != 0:
			if next.lost.from != at[next.lost.topic]+1 || next.lost.to < next.lost.from {
				t.Fatalf("%+v behind %d", next.lost, at[next.lost.topic])
			}
			at[next.lost.topic] = next.lost.to
		default:
			if next.e.Seq != at[next.topic]+1 {
				t.Fatalf("%s%d behind %d", next.topic, next.e.Seq, at[next.topic])
			}
			at[next.topic], kept[next.key] = next.e.Seq, next.e.Seq
		}
		return true
	}
	for range 20_000 {
		if r.IntN(3) == 0 {
			take()
			continue
		}
		topic, key := string("ab"[r.IntN(2)]), string("wxyz"[r.IntN(4)])
		put[topic]++
		last[topic+"\x00"+key] = put[topic]
		b.add(encode(&jetbus.Event{Topic: topic, Key: key, Seq: put[topic]}, 0))
	}
	for take() {
	}
	if fmt.Sprint(at) != fmt.Sprint(put) || fmt.Sprint(kept) != fmt.Sprint(last) || b.bytes != 0 {
		t.Errorf("taken up to %v of %v, of keys %v of %v; %d bytes are left", at, put, kept, last, b.bytes)
	}
}
