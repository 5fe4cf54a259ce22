package changefeed

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
)

// Any text in JSON can be a header, means what it did, and is as it was where that could be.
func TestEscaped(t *testing.T) {
	var all []rune
	for c := range rune(utf8.MaxRune + 1) {
		if utf8.ValidRune(c) {
			all = append(all, c)
		}
	}
	for len(all) > 0 {
		n := min(len(all), 1000)
		want := string(all[:n])
		all = all[n:]
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		value := escaped(text)
		if err := jetbus.ValidHeader(HeaderCopy, value); err != nil {
			t.Errorf("%q: %v", want, err)
		}
		if jetbus.ValidHeader(HeaderCopy, string(text)) == nil && value != string(text) {
			t.Errorf("%s has become %s", text, value)
		}
		var got string
		if err := json.Unmarshal([]byte(value), &got); err != nil || got != want {
			t.Errorf("%q is %q, %v", want, got, err)
		}
	}
}

// How far a copy is comes back from the header, whatever the id and the collection are.
func TestCopyHeader(t *testing.T) {
	for _, want := range []CopyProgress{
		{Start: "82", Collection: "a\nb", After: `"a\u007f"`},
		{Start: "82", Collection: "c\u0085 ", After: "\"a\x7f\u009f\ufdd0\U0001ffff\""},
	} {
		text, err := copyHeader(&want)
		if err != nil || jetbus.ValidHeader(HeaderCopy, text) != nil {
			t.Errorf("header %q, %v", text, err)
		}
		got, err := parseCopy(text)
		if err != nil || *got != want {
			t.Errorf("%+v is %+v, %v", want, got, err)
		}
	}
}

// Ids and headers that could be written are as they always were: a feed goes on behind what
// an older version published.
func TestWrittenAsEver(t *testing.T) {
	f := &Feed{o: Options{Name: "f"}}
	for what, want := range map[string]string{
		"8265":                   "cf.f.8265",
		`copy.82.cö.{"a": "\n"}`: `cf.f.copy.82.cö.{"a": "\n"}`,
		strings.Repeat("x", 195): "cf.f." + strings.Repeat("x", 195),
		strings.Repeat("x", 196): "cf.f.he1e8d8b142d1103921b4da9776c5a5d9965a2d3ece9e18767bd61f123f25849a",
	} {
		if got := f.eventID(what); got != want {
			t.Errorf("id %s, want %s", got, want)
		}
	}
	if text, err := copyHeader(&CopyProgress{Start: "82", Collection: "cö", After: `{"a":"\n<é>"}`}); err != nil || text != `{"start":"82","collection":"cö","after":"{\"a\":\"\\n\u003cé\u003e\"}"}` {
		t.Errorf("copy %s, %v", text, err)
	}
	if got := namespaceHeader(&Change{Database: "db", Collection: `c\u0085 ö`}); got != `db.c\u0085 ö` {
		t.Errorf("namespace %s", got)
	}
	seen := map[string]string{}
	for _, what := range []string{"a\x7f", `a\u007f`, "a\u0085", "a ", "a", "a\xff"} {
		id := f.eventID(what)
		if e := (jetbus.Event{Topic: "t", ID: id}); e.Validate() != nil || seen[id] != "" {
			t.Errorf("%q has the id %q: %v; so has %q", what, id, e.Validate(), seen[id])
		}
		seen[id] = what
	}
}

// What keeps a change from being published does not keep it from being buried, once.
func TestDeadLetterOfUnprintable(t *testing.T) {
	f := &Feed{o: Options{Name: "f"}, created: time.Unix(1, 0)}
	for _, id := range []string{"cf.f.a\x7f", "cf.f.b\u0085", "cf.f.c ", "cf.f.d\xff", "cf.f." + strings.Repeat("e", jetbus.MaxIDBytes)} {
		one := &outgoing{poison: jetbus.ErrInvalidHeader, event: jetbus.Event{
			Topic: "t", ID: id, Payload: []byte("{}"),
			Headers: map[string]string{HeaderCopy: "\x7f", HeaderNamespace: "db.a ", HeaderOp: "copy", "ce-id": "reserved", "no token": "1"},
		}}
		d := f.deadLetter(one)
		if err := d.Validate(); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		if again := f.deadLetter(one); again.Key() != d.Key() || again.Event.ID != d.Event.ID {
			t.Errorf("%q: %s and %s", id, d.Key(), again.Key())
		}
		if len(d.Event.Headers) != 1 || len(one.event.Headers) != 5 || one.event.ID != id {
			t.Errorf("%q: headers %v of the dead letter, event %+v", id, d.Event.Headers, one.event)
		}
	}
}
