package jetbus_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// typical is an event as services publish it.
func typical() jetbus.Event {
	return jetbus.Event{
		ID: "0197a3c4-5b6d-7e8f-9a0b-1c2d3e4f5a6b", SID: "boot-1", Time: time.UnixMilli(1_750_000_000_123).UTC(),
		Topic: "process.state.v2", Key: "host-1/4711", Partition: jetbus.NoPartition,
		Headers:  map[string]string{"content-type": "application/json", "x-schema-version": "2"},
		Payload:  []byte(`{"pid": 4711, "name": "nginx", "cpu": 0.25}`),
		CausedBy: []string{"0197a3c4-0000-7000-8000-000000000001"}, Tags: []string{"prod", "eu"}, Seq: 42,
	}
}

func TestEventValidate(t *testing.T) {
	many := func(n int) map[string]string {
		headers := map[string]string{}
		for i := range n {
			headers["x-"+strings.Repeat("n", i+1)] = "v"
		}
		return headers
	}
	for _, c := range []struct {
		name string
		edit func(*jetbus.Event)
		want error
	}{
		{"typical", func(*jetbus.Event) {}, nil},
		{"only a topic", func(e *jetbus.Event) { *e = jetbus.Event{Topic: "a"} }, nil},
		{"nothing", func(e *jetbus.Event) { *e = jetbus.Event{} }, jetbus.ErrInvalidTopic},
		{"topic", func(e *jetbus.Event) { e.Topic = "A" }, jetbus.ErrInvalidTopic},
		{"key", func(e *jetbus.Event) { e.Key = "a\n" }, jetbus.ErrInvalidEvent},
		{"longest id", func(e *jetbus.Event) { e.ID = strings.Repeat("i", jetbus.MaxIDBytes) }, nil},
		{"long id", func(e *jetbus.Event) { e.ID = strings.Repeat("i", jetbus.MaxIDBytes+1) }, jetbus.ErrInvalidEvent},
		{"id with spaces inside", func(e *jetbus.Event) { e.ID = "a b|c" }, nil},
		{"id with a space at its end", func(e *jetbus.Event) { e.ID = "a " }, jetbus.ErrInvalidEvent},
		{"id with a control character", func(e *jetbus.Event) { e.ID = "a\r" }, jetbus.ErrInvalidEvent},
		{"id with a C1 control", func(e *jetbus.Event) { e.ID = "a\u0085b" }, jetbus.ErrInvalidEvent},
		{"id no UTF-8", func(e *jetbus.Event) { e.ID = "\xff" }, jetbus.ErrInvalidEvent},
		{"longest sid", func(e *jetbus.Event) { e.SID = strings.Repeat("s", 512) }, nil},
		{"long sid", func(e *jetbus.Event) { e.SID = strings.Repeat("s", 513) }, jetbus.ErrInvalidEvent},
		{"sid", func(e *jetbus.Event) { e.SID = "a\x00" }, jetbus.ErrInvalidEvent},
		{"before 1970", func(e *jetbus.Event) { e.Time = time.UnixMilli(-1) }, nil},
		{"year 0", func(e *jetbus.Event) { e.Time = time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC) }, nil},
		{"year -1", func(e *jetbus.Event) { e.Time = time.Date(-1, 12, 31, 0, 0, 0, 0, time.UTC) }, jetbus.ErrInvalidEvent},
		{"year 9999", func(e *jetbus.Event) { e.Time = time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC) }, nil},
		{"year 10000 in UTC", func(e *jetbus.Event) {
			e.Time = time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -2*3600))
		}, jetbus.ErrInvalidEvent},
		{"most headers", func(e *jetbus.Event) { e.Headers = many(jetbus.MaxHeaders) }, nil},
		{"too many headers", func(e *jetbus.Event) { e.Headers = many(jetbus.MaxHeaders + 1) }, jetbus.ErrInvalidHeader},
		{"header", func(e *jetbus.Event) { e.Headers["Nats-Rollup"] = "sub" }, jetbus.ErrInvalidHeader},
		{"headers of names in other cases", func(e *jetbus.Event) { e.Headers["X-Upper"], e.Headers["x-lower"] = "1", "2" }, nil},
		{"headers that differ in case", func(e *jetbus.Event) { e.Headers["X-Upper"], e.Headers["x-upper"] = "1", "1" }, jetbus.ErrInvalidHeader},
		{"header value", func(e *jetbus.Event) { e.Headers["x-a"] = "\n" }, jetbus.ErrInvalidHeader},
		{"empty cause", func(e *jetbus.Event) { e.CausedBy = []string{""} }, jetbus.ErrInvalidEvent},
		{"cause", func(e *jetbus.Event) { e.CausedBy = []string{"a", "\n"} }, jetbus.ErrInvalidEvent},
		{"tag with comma", func(e *jetbus.Event) { e.Tags = []string{"a,b"} }, nil},
		{"tag no UTF-8", func(e *jetbus.Event) { e.Tags = []string{"\xff"} }, jetbus.ErrInvalidEvent},
		{"most tags", func(e *jetbus.Event) { e.Tags = slices.Repeat([]string{"t"}, 256) }, nil},
		{"too many tags", func(e *jetbus.Event) { e.Tags = slices.Repeat([]string{"t"}, 257) }, jetbus.ErrInvalidEvent},
		{"tags too long", func(e *jetbus.Event) { e.Tags = []string{strings.Repeat("t", 16<<10+1)} }, jetbus.ErrInvalidEvent},
		{"payload of any bytes", func(e *jetbus.Event) { e.Payload = []byte{0, 0xff} }, nil},
		{"partition and seq are ignored", func(e *jetbus.Event) { e.Partition, e.Seq = -7, 1<<63 }, nil},
	} {
		e := typical()
		c.edit(&e)
		check(t, c.name, e.Validate(), c.want)
	}
}

func TestEventContentType(t *testing.T) {
	e := jetbus.Event{}
	if got := e.ContentType(); got != "application/json" {
		t.Errorf("without a header: %q", got)
	}
	e.Headers = map[string]string{jetbus.HeaderContentType: "text/plain"}
	if got := e.ContentType(); got != "text/plain" {
		t.Errorf("with a header: %q", got)
	}
}

// Ids ascend as strings, faster than the clock ticks, and carry the time.
func TestNewID(t *testing.T) {
	last := ""
	before := time.Now().Truncate(time.Millisecond)
	for range 10_000 {
		id := jetbus.NewID()
		if id <= last || len(id) != 36 {
			t.Fatalf("%q follows %q", id, last)
		}
		last = id
	}
	at, ok := jetbus.IDTime(last)
	// 10,000 ids may run ahead of the clock by 10,000/4096 milliseconds.
	if !ok || at.Before(before) || at.After(time.Now().Add(10*time.Millisecond)) || at.Location() != time.UTC {
		t.Errorf("IDTime(%q) = %v, %v, made after %v", last, at, ok, before)
	}
	e := jetbus.Event{Topic: "a", ID: last}
	check(t, "a new id", e.Validate(), nil)
}

func TestIDTime(t *testing.T) {
	// The example of RFC 9562, appendix A.6.
	at, ok := jetbus.IDTime("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")
	if want := time.UnixMilli(0x017F22E279B0).UTC(); !ok || !at.Equal(want) {
		t.Errorf("got %v, %v, want %v", at, ok, want)
	}
	for _, id := range []string{
		"00000000-0000-7000-8000-000000000000", "ffffffff-ffff-7fff-bfff-ffffffffffff",
	} {
		if _, ok := jetbus.IDTime(id); !ok {
			t.Errorf("IDTime(%q) is not known", id)
		}
	}
	for _, id := range []string{
		"", "x", "EV_A-17", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "919108f7-52d1-4320-9bac-f847db4148a8",
		"{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}", "urn:uuid:017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "017f22e279b07cc398c4dc0c0c07398f",
		"017f22e2-79b0-7cc3-18c4-dc0c0c07398f", // another variant
	} {
		if at, ok := jetbus.IDTime(id); ok || !at.IsZero() {
			t.Errorf("IDTime(%q) = %v, %v", id, at, ok)
		}
	}
}

func BenchmarkEventValidate(b *testing.B) {
	e := typical()
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Validate(); err != nil {
			b.Fatal(err)
		}
	}
}

func TestEventValidateDoesNotAllocate(t *testing.T) {
	e := typical()
	if n := testing.AllocsPerRun(100, func() { _ = e.Validate() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkNewID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		jetbus.NewID()
	}
}
