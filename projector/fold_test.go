package projector

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

func normal(t testing.TB, o Options) *Options {
	t.Helper()
	o.Name, o.Topic = "p", "t"
	o, err := o.normalize()
	if err != nil {
		t.Fatal(err)
	}
	return &o
}

// script makes events of "key:payload" with the sequences 1, 2, ...
func script(items ...string) []jetbus.Event {
	events := make([]jetbus.Event, len(items))
	for i, item := range items {
		key, payload, _ := strings.Cut(item, ":")
		events[i] = jetbus.Event{Topic: "t", Key: key, Seq: uint64(i + 1), Payload: []byte(payload)}
	}
	return events
}

// tell writes what a fold came to: "a@3={..}", "b@4 deleted".
func tell(changes []Change) string {
	var out []string
	for _, c := range changes {
		s := c.Key + "@" + strconv.FormatUint(c.Event.Seq, 10)
		if c.Versioned {
			s += "v" + strconv.FormatInt(c.Version, 10)
		}
		switch doc := c.Doc.(type) {
		case nil:
			s += "!"
		case json.RawMessage:
			s += "=" + string(doc)
		default:
			s += "=" + fmt.Sprint(doc)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func tellRefused(f *folded) string {
	var out []string
	for _, r := range f.refusals {
		out = append(out, strconv.Itoa(r.event)+" "+r.err.Error())
	}
	return strings.Join(out, "; ")
}

// ofFeed makes an event as a change feed publishes it that has no document for its payload.
func ofFeed(e jetbus.Event, why string) jetbus.Event {
	e.Headers = map[string]string{"x-mongo-feed": "f", "x-mongo-op": "update", "x-mongo-omitted": why}
	return e
}

func version(e jetbus.Event) (int64, error) { return strconv.ParseInt(string(e.Payload), 10, 64) }

func TestFold(t *testing.T) {
	broken := errors.New("broken")
	feed := script("a:1", "a:2", "b:3", "b:null", "c:5")
	for i, why := range map[int]string{1: "missing", 2: "missing", 4: "oversize"} {
		feed[i] = ofFeed(feed[i], why)
	}
	noOdd := func(e jetbus.Event) (any, error) {
		switch string(e.Payload) {
		case "1":
			return nil, broken
		case "panic":
			panic("odd")
		case "nothing":
			return nil, nil
		}
		return "<" + string(e.Payload) + ">", nil
	}
	for name, c := range map[string]struct {
		o       Options
		events  []jetbus.Event
		changes string
		refused string
		stale   int
	}{
		"none":                     {},
		"the last of each key":     {events: script("a:1", "b:2", "a:3", "c:4", "b:5"), changes: "a@3=3 c@4=4 b@5=5", stale: 2},
		"out of order":             {events: []jetbus.Event{script("", "a:2")[1], script("a:1")[0]}, changes: "a@2=2", stale: 1},
		"twice":                    {events: slices.Concat(script("a:1"), script("a:1")), changes: "a@1=1", stale: 1},
		"tombstones":               {events: script("a:1", "b:2", "a:null", `b:{"_deleted":true}`, "c:"), changes: "a@3! b@4! c@5!", stale: 2},
		"by version":               {o: Options{VersionOf: version}, events: script("a:7", "a:9", "a:8", "b:1", "b:1"), changes: "b@5v1=1 a@2v9=9", stale: 3},
		"versions that fail":       {o: Options{VersionOf: version}, events: script("a:7", "a:x"), changes: "a@1v7=7", refused: `1 VersionOf: strconv.ParseInt: parsing "x": invalid syntax`},
		"every one":                {o: Options{Every: true, Exclusive: true, VersionOf: version}, events: script("a:7", "a:9", "a:8"), changes: "a@1v7=7 a@2v9=9 a@3v8=8"},
		"no key":                   {events: script(":1", "a:2"), changes: "a@2=2", refused: "0 the event has no key"},
		"no JSON":                  {events: script("a:1", "a:{", "b:}"), changes: "a@1=1", refused: "1 the payload is no JSON; 2 the payload is no JSON"},
		"keys that fail":           {o: Options{KeyOf: func(e jetbus.Event) (string, error) { return map[string]string{"b": "B", "u": "\xff"}[e.Key], nil }}, events: script("a:1", "b:2", "u:3"), changes: "B@2=2", refused: `0 the event has no key; 2 KeyOf: the key "\xff" is no UTF-8`},
		"keys that are errors":     {o: Options{KeyOf: func(jetbus.Event) (string, error) { return "k", broken }}, events: script("a:1"), refused: "0 KeyOf: broken"},
		"keys that panic":          {o: Options{KeyOf: func(jetbus.Event) (string, error) { panic("odd") }}, events: script("a:1"), refused: "0 KeyOf: panic: odd"},
		"map":                      {o: Options{Map: noOdd}, events: script("a:2", "b:null"), changes: "a@1=<2> b@2!"},
		"map fails, older is left": {o: Options{Map: noOdd}, events: script("a:2", "a:1", "a:panic", "a:nothing", "b:1"), changes: "a@1=<2>", refused: "3 Map: it returned nothing: let Tombstone say what deletes a key; 2 Map: panic: odd; 1 Map: broken; 4 Map: broken"},
		"tombstones of one's own":  {o: Options{Tombstone: func(e jetbus.Event) bool { return string(e.Payload) == "0" }}, events: script("a:0", "b:1", "c:null"), changes: "a@1! b@2=1 c@3!"},
		"no document":              {events: feed, changes: "a@1=1 b@4!", refused: "4 the change feed published no document (x-mongo-omitted: oversize): use Map", stale: 1},
		"no document, every one":   {o: Options{Every: true, Exclusive: true}, events: feed, changes: "a@1=1 b@4!", refused: "4 the change feed published no document (x-mongo-omitted: oversize): use Map"},
		"no document, map":         {o: Options{Map: noOdd}, events: feed, changes: "a@2=<2> b@4! c@5=<5>", stale: 2},
		"tombstones that panic":    {o: Options{Tombstone: func(jetbus.Event) bool { panic("odd") }}, events: script("a:0"), refused: "0 Tombstone: panic: odd"},
	} {
		t.Run(name, func(t *testing.T) {
			f := fold(c.events, normal(t, c.o))
			if got := tell(f.changes); got != c.changes {
				t.Errorf("changes are %s, want %s", got, c.changes)
			}
			if got := tellRefused(f); got != c.refused {
				t.Errorf("refused is %s, want %s", got, c.refused)
			}
			if f.stale != c.stale {
				t.Errorf("%d are superfluous, want %d", f.stale, c.stale)
			}
		})
	}
}

func TestFoldRefuse(t *testing.T) {
	f := fold(script("a:1", "b:2", "a:3", "b:4", "c:5", "a:6"), normal(t, Options{}))
	bad := errors.New("bad")
	for i, step := range []struct {
		changes string
		reject  []Rejection
	}{
		{"b@4=4 c@5=5 a@6=6", []Rejection{{1, bad}, {2, bad}}},
		{"a@3=3", []Rejection{{0, bad}}},
		{"a@1=1", []Rejection{{0, bad}}},
		{"", nil},
	} {
		if got := tell(f.changes); got != step.changes {
			t.Errorf("step %d: changes are %s, want %s", i, got, step.changes)
		}
		f.refuse(step.reject)
	}
	if got := tellRefused(f); got != "4 bad; 5 bad; 2 bad; 0 bad" || f.stale != 1 {
		t.Errorf("refused is %s, superfluous %d", got, f.stale)
	}
	f = fold(script("a:1", "b:2", "a:3", "b:4"), normal(t, Options{Every: true, Exclusive: true}))
	f.refuse([]Rejection{{0, bad}, {2, bad}})
	if got := tell(f.changes); got != "b@2=2 b@4=4" {
		t.Errorf("with Every %s is left", got)
	}
	f.refuse(nil)
	if got := tell(f.changes); got != "b@2=2 b@4=4" {
		t.Errorf("with Every and nothing refused %s is left", got)
	}
}

// TestFoldEqualsOneByOne: whatever a sink rejects, and wherever batches begin and
// end, the sink ends up the same.
func TestFoldEqualsOneByOne(t *testing.T) {
	write := func(state map[string]Change, changes []Change) (rejected []Rejection) {
		for i, c := range changes {
			have, ok := state[c.Key]
			switch {
			case c.Event.Seq%5 == 0:
				rejected = append(rejected, Rejection{i, errors.New("bad")})
			case ok && newer(prepared{event: &have.Event, version: have.Version}, prepared{event: &c.Event, version: c.Version}) >= 0:
			default:
				state[c.Key] = c
			}
		}
		return rejected
	}
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
		var items []string
		for range 40 {
			items = append(items, fmt.Sprintf("%c:%d", 'a'+rune(random.IntN(4)), random.IntN(20)))
		}
		o := normal(t, Options{Map: func(e jetbus.Event) (any, error) {
			if e.Seq%7 == 0 {
				return nil, errors.New("bad")
			}
			return string(e.Payload), nil
		}})
		if seed%2 == 0 {
			o.VersionOf = version
		}
		events := script(items...)
		want, got := map[string]Change{}, map[string]Change{}
		wantRefused, gotRefused := 0, 0
		run := func(state map[string]Change, batch []jetbus.Event) int {
			f := fold(batch, o)
			for len(f.changes) > 0 {
				f.refuse(write(state, f.changes))
			}
			return len(f.refusals)
		}
		for i := range events {
			wantRefused += run(want, events[i:i+1])
		}
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		for len(events) > 0 {
			n := 1 + random.IntN(len(events))
			gotRefused += run(got, events[:n])
			events = events[n:]
		}
		if fmt.Sprint(want) != fmt.Sprint(got) || gotRefused > wantRefused {
			t.Fatalf("seed %d: got %v and %d refused, want %v and %d", seed, got, gotRefused, want, wantRefused)
		}
	}
}

func TestIsTombstone(t *testing.T) {
	for payload, want := range map[string]bool{
		"": true, " \n": true, "null": true, " null\n": true, "nullx": false, "0": false, "{}": false, `"null"`: false,
		`{"_deleted":true}`: true, `{"a":{"_deleted":true}}`: false, `{"_deleted":"true"}`: false, `{"_deleted": true ,"a":1}`: true,
		`{"_DELETED":true}`: false, `{"\u005fdeleted":true}`: true, `{"_deleted":true`: false, `["_deleted",true]`: false, `{"_deleted":false}`: false,
	} {
		if got := IsTombstone(jetbus.Event{Payload: []byte(payload)}); got != want {
			t.Errorf("%s: got %v, want %v", payload, got, want)
		}
	}
	if !IsTombstone(jetbus.Tombstone("t", "k")) || !IsTombstone(jetbus.Event{Payload: []byte("{}"), Headers: map[string]string{jetbus.HeaderTombstone: "1"}}) {
		t.Error("what was meant as a tombstone is none")
	}
}

func TestOptionsNormalize(t *testing.T) {
	for field, o := range map[string]Options{
		"empty name":      {Topic: "t"},
		"bad name":        {Name: "a b", Topic: "t"},
		"topic":           {Name: "p"},
		"From":            {Name: "p", Topic: "t", From: "A"},
		"From and Topic":  {Name: "p", Topic: "t", From: "t"},
		"MaxBatch":        {Name: "p", Topic: "t", MaxBatch: 10_001},
		"MaxBatch is":     {Name: "p", Topic: "t", MaxBatch: -1},
		"Linger":          {Name: "p", Topic: "t", Linger: -2},
		"Linger is":       {Name: "p", Topic: "t", Linger: 31e9},
		"AckTimeout":      {Name: "p", Topic: "t", AckTimeout: 999e6, Linger: -1},
		"lock":            {Name: "p", Topic: "t", AckTimeout: 2e9, Exclusive: true},
		"whole seconds":   {Name: "p", Topic: "t", AckTimeout: 3500e6, Exclusive: true},
		"Every needs":     {Name: "p", Topic: "t", Every: true},
		"Every takes":     {Name: "p", Topic: "t", Every: true, Exclusive: true, From: "s"},
		"OnNewStream":     {Name: "p", Topic: "t", OnNewStream: "ask"},
		"ShutdownTimeout": {Name: "p", Topic: "t", ShutdownTimeout: -1},
	} {
		if _, err := o.normalize(); err == nil || !errors.Is(err, jetbus.ErrInvalidOption) && !errors.Is(err, jetbus.ErrInvalidGroup) && !errors.Is(err, jetbus.ErrInvalidTopic) {
			t.Errorf("%s: got %v", field, err)
		}
	}
	once, err := Options{Name: "p", Topic: "t", Linger: -1, From: "s"}.normalize()
	if err != nil {
		t.Fatal(err)
	}
	twice, err := once.normalize()
	if err != nil || fmt.Sprint(once) != fmt.Sprint(twice) || once.Linger != -1 || once.MaxBatch != DefaultMaxBatch {
		t.Errorf("got %+v and %+v, %v", once, twice, err)
	}
}

func BenchmarkFold(b *testing.B) {
	const n = DefaultMaxBatch
	events := make([]jetbus.Event, n)
	for i := range events {
		events[i] = jetbus.Event{
			Topic: "t", Key: "process:" + strconv.Itoa(i*7919%1000), Seq: uint64(i + 1),
			Payload: []byte(`{"host":"web1","name":"nginx","pid":` + strconv.Itoa(i) + `,"cpu_pct":1.5,"mem_mb":64,"status":"alive"}`),
		}
	}
	o := normal(b, Options{})
	b.ReportAllocs()
	for b.Loop() {
		if f := fold(events, o); len(f.changes) != 1000 {
			b.Fatal(len(f.changes))
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
