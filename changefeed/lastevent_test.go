package changefeed

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// tape is a stream with a topic, a character for each position: e is an event of it, m a
// marker of the broker, and anything else has left it, or is of another topic.
type tape struct {
	text string
	read int // how many events a bus would have brought
}

// Scan implements scanner. As a bus does, it brings a page of the events that the limit
// leaves before it hands out the first of them.
func (l *tape) Scan(_ context.Context, _ string, q jetbus.ScanQuery) iter.Seq2[jetbus.Event, error] {
	const page = 500
	return func(yield func(jetbus.Event, error) bool) {
		brought, given := 0, 0
		for seq := q.From.Seq + 1; seq <= uint64(len(l.text)) && (q.Limit == 0 || given < q.Limit); seq++ {
			e := jetbus.Event{Seq: seq, Key: "k"}
			switch l.text[seq-1] {
			case 'e':
				e.ID, e.Payload, e.Headers = fmt.Sprintf("cf.f.%d", seq), []byte("null"), map[string]string{HeaderOp: "delete"}
			case 'm':
				e.ID, e.Payload = fmt.Sprintf("S-%d", seq), []byte("null")
			default:
				continue
			}
			if given == brought {
				more := l.events(seq, page)
				if q.Limit > 0 {
					more = min(more, q.Limit-given)
				}
				brought += more
				l.read += more
			}
			given++
			if !yield(e, nil) {
				return
			}
		}
	}
}

// events counts the events and markers from a position on, up to a number.
func (l *tape) events(seq uint64, most int) (n int) {
	for _, c := range l.text[seq-1:] {
		if n == most {
			break
		}
		if c == 'e' || c == 'm' {
			n++
		}
	}
	return n
}

// What is behind the last event costs what there is of it, and not what the topic holds.
func TestLastEvent(t *testing.T) {
	own, compacted := jetbus.TopicConfig{Name: "t"}, jetbus.TopicConfig{Name: "t", Compact: true}
	shared := jetbus.TopicConfig{Name: "t", Stream: "S"}
	const many = 100_000
	long := strings.Repeat("e", many)
	for name, tt := range map[string]struct {
		config jetbus.TopicConfig
		text   string
		want   uint64 // its position; 0: there is none
		most   int    // that may be read
	}{
		"no event yet":                 {compacted, "", 0, 0},
		"at the end":                   {compacted, "eee", 3, 1},
		"a marker":                     {compacted, "eem", 2, 10},
		"a tombstone that ended":       {compacted, "ee-", 2, 10},
		"both":                         {compacted, "em-m-", 1, 10},
		"markers alone":                {compacted, "mmm", 0, 10},
		"nothing left":                 {compacted, strings.Repeat("-", many), 0, 0},
		"many markers":                 {compacted, long + strings.Repeat("m", 1000), many, 3000},
		"markers that ended":           {compacted, long + strings.Repeat("-", many), many, 100},
		"markers between":              {compacted, strings.Repeat("em", 1000) + "m", 1999, 100},
		"a log":                        {own, "eee", 3, 1},
		"a log that is empty":          {own, "---", 0, 0},
		"others behind it":             {shared, "ee" + strings.Repeat("-", many), 2, 100},
		"others and markers behind it": {shared, "ee--m--m-", 2, 20},
	} {
		t.Run(name, func(t *testing.T) {
			l := &tape{text: tt.text}
			info := jetbus.TopicInfo{Config: tt.config, Stream: "S", LastSeq: uint64(len(tt.text))}
			e, found, err := lastEvent(t.Context(), l, &info)
			if err != nil || e.Seq != tt.want || found != (tt.want > 0) {
				t.Errorf("found event %d (%v), %v, want %d", e.Seq, found, err, tt.want)
			}
			if l.read > tt.most {
				t.Errorf("%d events were read, at most %d may be", l.read, tt.most)
			}
		})
	}
}

// A position is saved with the topic that has what was published up to there: one that was
// made anew has not, until something is published into it.
func TestCreatedGoesWithThePosition(t *testing.T) {
	before, now := time.UnixMilli(1).UTC(), time.UnixMilli(2).UTC()
	store := &kept{}
	f := &Feed{o: Options{Name: "f", TokenStore: store}, created: now.Add(time.Microsecond)}
	w := &writer{f: f, token: "820000000A0000000A", created: before}
	if err := w.saveNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.batch(t.Context(), batch{upTo: "820000000A0000000B"}); err != nil {
		t.Fatal(err)
	}
	if len(store.saved) != 2 || !store.saved[0].Created.Equal(before) || !store.saved[1].Created.Equal(now) {
		t.Errorf("saved %+v", store.saved)
	}
}
