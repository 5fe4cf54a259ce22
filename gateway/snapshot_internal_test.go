package gateway

import (
	"fmt"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

// The first page leaves out keys that are deleted, but not that one was deleted which it has
// already: who reads on behind it hears no more of that.
func TestSnapshotPageOfAKeyDeletedMeanwhile(t *testing.T) {
	page := &snapshotPage{limit: 10, most: 1 << 20, first: true, at: map[string]int{}}
	for seq, e := range []jetbus.Event{
		{Key: "a", Payload: []byte("1")}, {Key: "gone", Payload: []byte("null")}, {Key: "b", Payload: []byte("1")}, {Key: "a", Payload: []byte("null")},
	} {
		e.Seq = uint64(seq) + 1
		if err := page.add(e); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, e := range page.events {
		got = append(got, fmt.Sprintf("%s %s", e.Key, e.Payload))
	}
	if fmt.Sprint(got) != "[a null b 1]" {
		t.Errorf("the page has %q", got)
	}
}
