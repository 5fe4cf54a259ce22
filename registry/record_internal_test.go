package registry

import (
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

func TestKeys(t *testing.T) {
	at := Reference{Topic: "a.b", Version: 3}
	by := Reference{Topic: "c-d_e.v2", Version: 10}
	for text, want := range map[string]key{
		versionKey(at):          {kind: kindVersion, topic: "a.b", n: 3},
		settingsKey("a.b"):      {kind: kindSettings, topic: "a.b"},
		referrerKey(at, by):     {kind: kindReferrer, topic: "a.b", n: 3, by: by},
		fenceKey("a.b"):         {topic: "a.b"},
		globalKey:               {kind: kindGlobal},
		idKey(12):               {kind: kindID, n: 12},
		"s.a=2Eb.v.03":          {topic: "a.b"},
		"s.a=2Eb.v.0":           {topic: "a.b"},
		"s.a=2Eb.v.99999999999": {topic: "a.b"},
		"s.a=2Eb":               {kind: kindForeign},
		"s.a=2eb.v.1":           {kind: kindForeign}, // another spelling of the same
		"s.A.v.1":               {kind: kindForeign},
		"g.i.0":                 {kind: kindForeign},
		"g":                     {kind: kindForeign},
		"x.y":                   {kind: kindForeign},
	} {
		if got := parseKey(text); got != want {
			t.Errorf("%s is %+v, want %+v", text, got, want)
		}
	}
	if got := versionKey(Reference{Topic: "heartbeat.received", Version: 1}); got != "s.heartbeat=2Ereceived.v.1" {
		t.Errorf("the key is %s", got)
	}
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", "a", "heartbeat.received", "=2E", "a b", "\x00é\xff", "-_"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		escaped := token(s)
		if strings.ContainsFunc(escaped, func(r rune) bool { return r > '~' || r != '=' && !tokenByte(byte(r)) }) {
			t.Errorf("%q is no token", escaped)
		}
		if back, ok := parseToken(escaped); !ok || back != s {
			t.Errorf("%q came back as %q, %t", s, back, ok)
		}
		if name, ok := parseToken(s); ok && token(name) != s {
			t.Errorf("%q is a second spelling of %q", s, name)
		}
		if k := parseKey(s); k.topic != "" && jetbus.ValidTopic(k.topic) != nil {
			t.Errorf("key %q has the topic %q", s, k.topic)
		}
	})
}

func FuzzRecord(f *testing.F) {
	v := storedVersion{Version: Version{Topic: "t", Number: 1, ID: 1, Fingerprint: "f", Text: `{"<": "&"}`, Admission: First}, Nonce: "n"}
	good, err := encode(v)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"topic":"t","version":1,"erased":true}`))
	f.Add([]byte(`{"level":"full","mode":"readonly","assume_version":3}`))
	f.Add([]byte(`{"fingerprint":"x"} {}`))
	f.Add([]byte("\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ref := Reference{Topic: "t", Version: 1}
		var e entry
		if decodeVersion(data, ref, &e) == nil {
			if e.Reference() != ref || !e.Erased && (e.Text == "" || e.ID < 1 || e.Fingerprint == "") {
				t.Errorf("%q was read as %+v", data, e.Version)
			}
			again, err := encode(storedVersion{Version: e.Version, Nonce: e.nonce})
			var back entry
			if err == nil {
				err = decodeVersion(again, ref, &back)
			}
			if err != nil || !back.equal(e.Version) {
				t.Errorf("%q came back as %+v: %v", data, back.Version, err)
			}
		}
		if s, err := decodeSettings(data); err == nil && s.Valid() != nil {
			t.Errorf("%q was read as %+v", data, s)
		}
		if fingerprint, err := decodeIdentity(data); err == nil && fingerprint == "" {
			t.Errorf("%q has no fingerprint", data)
		}
		b := emptySnapshot().change(func(string, error) {})
		for i, key := range []string{"s.t.v.1", "s.t.c", "s.t.r.1.u.1", "g.c", "g.i.1"} {
			b.apply(record{key: key, value: data, seq: uint64(i + 1)}) //nolint:gosec // a few
		}
		if s := b.done(); s.seq != 5 || s.topic("t").seq != 3 || s.topic("t").next() != 2 {
			t.Errorf("%q: sequence %d, of the topic %d, next %d", data, s.seq, s.topic("t").seq, s.topic("t").next())
		}
	})
}

// The path of every event allocates nothing.
func TestCurrentAllocates(t *testing.T) {
	compiled, err := schema.Compile(`{"type": "object"}`, schema.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := &entry{Version: Version{Topic: "t", Number: 1, Text: compiled.Text()}}
	r := &Registry{life: t.Context()}
	r.now.Store(&snapshot{topics: map[string]*topicState{"t": {versions: []*entry{e}}}, ids: newIdentities()})
	for _, topic := range []string{"t", "without"} {
		if n := testing.AllocsPerRun(100, func() { _, _ = r.Current(topic) }); n != 0 {
			t.Errorf("%s: %v allocations", topic, n)
		}
	}
}

// A store that somebody tampered with does not hang its readers.
func TestReferenceCycle(t *testing.T) {
	a, b := Reference{Topic: "a", Version: 1}, Reference{Topic: "b", Version: 1}
	s := emptySnapshot()
	s.topics["a"] = &topicState{versions: []*entry{{Version: Version{Topic: "a", Number: 1, Text: "true", References: []Reference{b}}}}}
	s.topics["b"] = &topicState{versions: []*entry{{Version: Version{Topic: "b", Number: 1, Text: "true", References: []Reference{a}}}}}
	if _, err := s.compile(s.find(a)); err == nil {
		t.Error("a cycle was compiled")
	}
}

// An id that became known after the cache was looked at is the fingerprint's, and it gets
// no second one. Behind this one there is none to give.
func TestIdentifyKnowsTheIDOfARace(t *testing.T) {
	s := emptySnapshot()
	s.ids.add(maxNumber, "f")
	if id, err := (&Registry{}).identify(t.Context(), s, "f"); id != maxNumber || err != nil {
		t.Errorf("id %d and the error %v, want the one that it has, %d", id, err, maxNumber)
	}
}
