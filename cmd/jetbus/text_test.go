package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"größe 日本":        "größe 日本",
		"a\x1b[2J\nb\tc":  `a\x1b[2J\nb\tc`,
		"\xff\xfe":        `\xff\xfe`,
		"\u009b31m":       `\u009b31m`,
		"\u202eevil":      `\u202eevil`,
		"\uFFFD real":     "\uFFFD real",
		"\U000E0041 tags": `\U000e0041 tags`,
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\x1b[2J", []byte(`{"a":"\u202e"}`))
	f.Fuzz(func(t *testing.T, s string, payload []byte) {
		if got := printable(s); hostile(got) {
			t.Errorf("printable(%q) = %q", s, got)
		}
		line, err := jsonLine(jetbus.Event{ID: "1", Topic: "t", Payload: payload})
		if err != nil {
			return // what the encoder refuses is not printed
		}
		if hostile(string(line[:len(line)-1])) || line[len(line)-1] != '\n' {
			t.Errorf("line %q", line)
		}
		if !json.Valid(line) {
			t.Errorf("no JSON: %q", line)
		}
	})
}

func TestPrintableJSONMeansTheSame(t *testing.T) {
	in := "{\"a\":\"x\u202e\u009b\U000E0041\x7f\"}"
	out := printableJSON([]byte(in))
	if want := `{"a":"x\u202e\u009b\udb40\udc41\u007f"}`; string(out) != want {
		t.Errorf("%s, want %s", out, want)
	}
	var a, b map[string]string
	if err := json.Unmarshal([]byte(in), &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &b); err != nil {
		t.Fatal(err)
	}
	if a["a"] != b["a"] {
		t.Errorf("%q became %q", a, b)
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]int64{"0": 0, "512": 512, "64KiB": 64 << 10, "1.5GiB": 3 << 29, "10GB": 1e10, "2m": 2 << 20, "-1": -1, "1 MiB": 1 << 20} {
		var f sizeFlag
		if err := f.Set(in); err != nil || int64(f) != want {
			t.Errorf("size %q is %d, %v, want %d", in, f, err, want)
		}
	}
	for _, in := range []string{"", "x", "1XB", "-2", "-1KiB", "1e30", "NaN", "Inf"} {
		var f sizeFlag
		if err := f.Set(in); err == nil {
			t.Errorf("size %q is %d", in, f)
		}
	}
	for in, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 29: "1.5 GiB"} {
		if got := size(in); got != want {
			t.Errorf("size(%d) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000"} {
		if got := count(in); got != want {
			t.Errorf("count(%d) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[time.Duration]string{time.Hour: "1h", 90 * time.Minute: "1h30m", 168 * time.Hour: "7 days", -1: "none", 2 * time.Minute: "2m", 10 * time.Second: "10s"} {
		if got := period(in); got != want {
			t.Errorf("period(%d) = %q, want %q", in, got, want)
		}
	}
}

func TestPeriods(t *testing.T) {
	for in, want := range map[string]time.Duration{"90s": 90 * time.Second, "30d": 30 * 24 * time.Hour, "none": -1, "-1": -1, "0": 0} {
		var f periodFlag
		if err := f.Set(in); err != nil || time.Duration(f) != want {
			t.Errorf("period %q is %v, %v, want %v", in, time.Duration(f), err, want)
		}
	}
	for _, in := range []string{"", "d", "-2d", "99999999d", "-1h", "soon"} {
		var f periodFlag
		if err := f.Set(in); err == nil {
			t.Errorf("period %q is %v", in, time.Duration(f))
		}
	}
}

func TestParseStart(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for in, want := range map[string]jetbus.Start{
		"latest":                  jetbus.Latest(),
		"earliest":                jetbus.Earliest(),
		"ts=10m":                  jetbus.AtTime(now.Add(-10 * time.Minute)),
		"ts=2026-01-02T00:00:00Z": jetbus.AtTime(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)),
		"ts=1767323045000":        jetbus.AtTime(time.UnixMilli(1767323045000)),
		"after=a=b":               jetbus.AfterID("a=b"),
		"seq=7":                   jetbus.AfterSeq(6),
		"seq=#1":                  jetbus.AfterSeq(0),
	} {
		if got, err := parseStart(in, now); err != nil || got != want {
			t.Errorf("parseStart(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
}

func TestParseFilter(t *testing.T) {
	f, err := parseFilter([]string{"key=a,b,prefix=a", "x-source=shop", "header.User-Agent=a/1,c=d"})
	if err != nil || f.Key != "a,b" || f.KeyPrefix != "a" || f.Headers["x-source"] != "shop" || f.Headers["User-Agent"] != "a/1,c=d" {
		t.Errorf("%+v, %v", f, err)
	}
}

// A time says which day it was where that is not today.
func TestEventTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 30, 0, 0, time.UTC)
	for at, want := range map[time.Time]string{
		now.Add(-20 * time.Minute): "00:10:00.000",
		now.Add(-40 * time.Minute): "2026-02-28 23:50:00.000",
		now.AddDate(1, 0, 0):       "2027-03-01 00:30:00.000",
	} {
		if got := eventTime(at, now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"./dev-store": "./dev-store", "127.0.0.1:4333": "127.0.0.1:4333", "my store": "'my store'", "it's": `'it'\''s'`, "": "''", "a?b&c": "'a?b&c'",
	} {
		if got := quoted(in); got != want {
			t.Errorf("quoted(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestListening(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"listening to a, b from latest; Ctrl-C ends it":                                                           listening([]string{"a", "b"}, "", "latest"),
		"listening to a as a member of g, which goes on where it was, or if it is new from seq=7; Ctrl-C ends it": listening([]string{"a"}, "g", "seq=7"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
