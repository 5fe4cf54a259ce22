package changefeed

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
)

// kept is a store that keeps what is saved.
type kept struct {
	TokenStore
	saved []Progress
}

func (k *kept) Save(_ context.Context, _ string, p Progress) (uint64, error) {
	k.saved = append(k.saved, p)
	return p.Revision + 1, nil
}

// A server's token may be of any length; a store keeps the one before.
func TestLongTokenIsNotSaved(t *testing.T) {
	text := "82" + strings.Repeat("0A", maxSaved)
	doc, err := bson.Marshal(bson.D{{Key: "_data", Value: text}})
	if err != nil {
		t.Fatal(err)
	}
	long, err := tokenOf(doc)
	if err != nil || string(long) != text {
		t.Fatalf("%d bytes, %v", len(long), err)
	}
	const short = Token("820000000A0000000A")
	store := &kept{}
	w := &writer{f: &Feed{o: Options{Name: "f", TokenStore: store}}, token: long, saved: Progress{Token: short, Revision: 7}}
	if err := w.save(t.Context()); err != nil || len(store.saved) != 0 {
		t.Errorf("%d saved, %v", len(store.saved), err)
	}
	if err := w.saveNow(t.Context()); err != nil || len(store.saved) != 1 || store.saved[0].Token != short || w.saved.Revision != 8 {
		t.Errorf("%d saved, %v", len(store.saved), err)
	}
	w.token = short + "0B"
	if err := w.save(t.Context()); err != nil || len(store.saved) != 2 || store.saved[1].Token != w.token {
		t.Errorf("%d saved, %v", len(store.saved), err)
	}
}

// What is too long for a header of any event does not keep a dead letter from being stored.
func TestDeadLetterOfLongToken(t *testing.T) {
	f := &Feed{o: Options{Name: "f"}, created: time.Unix(1, 0)}
	long := strings.Repeat("0A", jetbus.MaxHeaderValueBytes/2+1)
	one := &outgoing{poison: jetbus.ErrInvalidHeader, event: jetbus.Event{
		Topic: "t", ID: "1", Headers: map[string]string{HeaderToken: long, HeaderCopy: long, HeaderOp: "insert"}, Payload: []byte("{}"),
	}}
	d := f.deadLetter(one)
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
	if len(d.Event.Headers) != 1 || len(one.event.Headers) != 3 {
		t.Errorf("%d headers of the dead letter, %d of the event", len(d.Event.Headers), len(one.event.Headers))
	}
}

// How far a copy is stays with the last document of which there is room for it.
func TestCopyOfLongIDs(t *testing.T) {
	r := &reader{f: &Feed{o: Options{MaxInFlight: 1000, MaxInFlightBytes: 1 << 20}}}
	long := strings.Repeat("k", jetbus.MaxHeaderValueBytes)
	for _, c := range []struct {
		copy *CopyProgress
		want string
	}{
		{&CopyProgress{Start: "82", Collection: "c", After: long}, `{"start":"82"}`},
		{&CopyProgress{Start: "82", Collection: "c", After: "1"}, `{"start":"82","collection":"c","after":"1"}`},
		{&CopyProgress{Start: "82", Collection: "c", After: long}, `{"start":"82","collection":"c","after":"1"}`},
		{nil, ""},
		{&CopyProgress{Start: "83", Collection: "c", After: long}, `{"start":"83"}`},
	} {
		r.pos.copy = c.copy
		if err := r.put(t.Context(), outgoing{event: jetbus.Event{Headers: map[string]string{}}}, 0); err != nil {
			t.Fatal(err)
		}
		if got := r.next.out[len(r.next.out)-1].event.Headers[HeaderCopy]; got != c.want {
			t.Errorf("header %.100s, want %s", got, c.want)
		}
	}
}
