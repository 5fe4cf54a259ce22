package adapter

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

func TestParseOrigin(t *testing.T) {
	for value, want := range map[string]string{
		"EV_T 3 ev.t.* ev.s.{{wildcard(1)}} ev.t.k ident": "EV_T 3",
		"EV_T 3 ev.t.* ev.s.{{wildcard(1)}} ev.t.k":       "EV_T 3",
		"EV_T 18446744073709551615":                       "EV_T 18446744073709551615",
		"EV_T 3":                                          "EV_T 3",
		"":                                                " 0", "EV_T": " 0", "EV_T x": " 0", " 3": " 0", "EV_T 0 a b": " 0", "EV_T -1": " 0",
		"$JS.ACK.EV_T.c.1.3.1.1.0": " 0",
	} {
		if stream, seq := parseOrigin(value); fmt.Sprint(stream, " ", seq) != want {
			t.Errorf("%q is %s %d, want %s", value, stream, seq, want)
		}
	}
}

func FuzzParseOrigin(f *testing.F) {
	snapshot := &topic{stream: "EV_SNAP", config: jetbus.TopicConfig{Name: "s", SnapshotOf: "t"}}
	for _, value := range []string{"EV_T 3 ev.t.* ev.s.{{wildcard(1)}} ev.t.k ident", "EV_T 3", "", " ", "a  3", "a 99999999999999999999"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		stream, seq := parseOrigin(value)
		if (stream == "") != (seq == 0) || strings.Contains(stream, " ") {
			t.Fatalf("%q is %q %d", value, stream, seq)
		}
		if stream == "" {
			return
		}
		if s, n := parseOrigin(fmt.Sprintf("%s %d more", stream, seq)); s != stream || n != seq {
			t.Fatalf("%q is %q %d, and that is %q %d", value, stream, seq, s, n)
		}
		m := &nats.Msg{Subject: "ev.s.k", Header: nats.Header{headerOrigin: {value}}}
		e, err := ce.Decode(m.Header, nil, snapshot.messagePlace(m, 7, time.Now()))
		if err != nil || e.Seq != seq || e.Headers != nil {
			t.Fatalf("decoded: %+v, %v", e, err)
		}
		if err := e.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzSnapshotsOf(f *testing.F) {
	for _, text := range []string{`["t.snapshot"]`, `["b","a","b"]`, `{}`, ``, `null`, `{"a":1}`, `[1]`, `[]`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := jetstream.StreamConfig{Metadata: map[string]string{metaSnapshots + "t": text}}
		before := snapshotsOf(&c, "t")
		if err := noteSnapshots(&c, "t", before); err != nil {
			t.Fatal(err)
		}
		if after := snapshotsOf(&c, "t"); !slices.Equal(after, before) {
			t.Fatalf("%v became %v", before, after)
		}
	})
}

func TestTombstoneHeader(t *testing.T) {
	stream := &jetstream.StreamConfig{Metadata: map[string]string{metaSnapshots + "t": `["a","b"]`}}
	for what, c := range map[string]struct {
		config jetbus.TopicConfig
		stream *jetstream.StreamConfig
		want   string
	}{
		"no state":                {jetbus.TopicConfig{Name: "t", Retention: time.Hour}, &jetstream.StreamConfig{}, "none"},
		"compacted":               {jetbus.TopicConfig{Name: "t", Compact: true, TombstoneTTL: time.Hour}, &jetstream.StreamConfig{}, " 1h0m0s"},
		"compacted, with history": {jetbus.TopicConfig{Name: "t", Compact: true, History: 2, TombstoneTTL: time.Hour}, &jetstream.StreamConfig{}, "sub 1h0m0s"},
		"compacted, snapshot":     {jetbus.TopicConfig{Name: "t", Compact: true, TombstoneTTL: time.Hour}, stream, "sub 1h0m0s"},
		"a log":                   {jetbus.TopicConfig{Name: "t", Retention: 24 * time.Hour}, stream, " "},
		"a snapshot":              {jetbus.TopicConfig{Name: "a", SnapshotOf: "t"}, &jetstream.StreamConfig{}, " "},
		"another one's snapshot":  {jetbus.TopicConfig{Name: "u", Retention: time.Hour}, stream, "none"},
	} {
		h := tombstoneHeader(&c.config, c.stream)
		got := "none"
		if h != nil {
			got = h.Get(headerRollup) + " " + h.Get(headerTTL)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}
