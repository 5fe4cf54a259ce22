package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
)

// printable makes text safe to show on a terminal: what is no printable
// character (escape sequences, line ends, marks that change the direction of
// writing, bytes that are no UTF-8) stands there as an escape of Go.
func printable(s string) string {
	if !hostile(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteString(s[i : i+size])
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		i += size
	}
	return b.String()
}

func hostile(s string) bool {
	for i, r := range s {
		if !unicode.IsPrint(r) || r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD") {
			return true
		}
	}
	return false
}

// printableJSON escapes in JSON what printable escapes in text, without
// changing what it means: outside of strings JSON is ASCII.
func printableJSON(text []byte) []byte {
	if !hostile(string(text)) {
		return text
	}
	var b bytes.Buffer
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\ufffd`) // what every decoder makes of it
		case unicode.IsPrint(r):
			b.Write(text[:size])
		case r > 0xffff:
			hi := 0xd800 + (r-0x10000)>>10
			lo := 0xdc00 + (r-0x10000)&0x3ff
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		text = text[size:]
	}
	return b.Bytes()
}

// jsonLine is a value as one line of JSON that is safe to show.
func jsonLine(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return append(printableJSON(bytes.TrimRight(b.Bytes(), "\n")), '\n'), nil
}

// eventLine is an event as one line for people.
func eventLine(e *jetbus.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s #%d", eventTime(e.Time.Local(), time.Now()), e.Topic, e.Seq)
	if e.Key != "" {
		fmt.Fprintf(&b, " key=%s", e.Key)
	}
	if len(e.Payload) > 0 {
		b.WriteByte(' ')
		b.Write(e.Payload)
	}
	return printable(b.String()) + "\n"
}

// eventTime is a time for people, with the date where that is not today's.
func eventTime(t, now time.Time) string {
	const clock = "15:04:05.000"
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(clock)
	}
	return t.Format(time.DateOnly + " " + clock)
}

// table is rows with aligned columns, safe to show. The first row is the heading.
func table(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			fmt.Fprint(w, printable(cell))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // a strings.Builder does not fail
	return b.String()
}

// count is a number with separators: 12,345.
func count[T ~int | ~int64 | ~uint64](n T) string {
	s := fmt.Sprint(n)
	sign := ""
	if s[0] == '-' {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// plural is a count with its noun: "1 event", "2 events".
func plural[T ~int | ~int64 | ~uint64](n T, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return count(n) + " " + noun + "s"
}

var units = []struct {
	name string
	size float64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// size is a number of bytes for people: 1.5 MiB.
func size[T ~int64 | ~uint64](n T) string {
	for _, u := range units {
		if float64(n) >= u.size {
			return strconv.FormatFloat(float64(n)/u.size, 'f', 1, 64) + " " + u.name
		}
	}
	return strconv.FormatFloat(float64(n), 'f', 0, 64) + " B"
}

// sizeFlag is a flag in bytes, with a unit or without: 512, 64KiB, 1.5GiB, 10GB.
type sizeFlag int64

func (f *sizeFlag) String() string { return strconv.FormatInt(int64(*f), 10) }
func (f *sizeFlag) Type() string   { return "size" }

func (f *sizeFlag) Set(s string) error {
	number := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	factor, ok := map[string]float64{
		"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
		"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	}[strings.ToLower(strings.TrimSpace(s[len(number):]))]
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !ok || n*factor > 1<<62 || n < 0 && (n != -1 || factor != 1) {
		return fmt.Errorf("%q is no size: use bytes, 64KiB, 1.5GiB, or -1 for no limit", s)
	}
	*f = sizeFlag(n * factor)
	return nil
}

// limitFlag is a flag that is a number of 1 or more; none is given by leaving it out.
type limitFlag int

func (f *limitFlag) String() string { return "" } // no default to show
func (f *limitFlag) Type() string   { return "int" }

func (f *limitFlag) Set(s string) error {
	n, err := strconv.Atoi(s)
	switch {
	case errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(s, "-"):
		return err // which says that
	case err != nil || n < 1:
		return errors.New("use 1 or more")
	}
	*f = limitFlag(n)
	return nil
}

// periodFlag is a flag that is a duration, which may be in days or have no end: 12h, 30d, none.
type periodFlag time.Duration

func (f *periodFlag) String() string { return period(time.Duration(*f)) }
func (f *periodFlag) Type() string   { return "duration" }

func (f *periodFlag) Set(s string) error {
	if s == "none" || s == "-1" {
		*f = -1
		return nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 15); err == nil {
			*f = periodFlag(time.Duration(n) * 24 * time.Hour) //nolint:gosec // 15 bits
			return nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is no duration: use 90s, 12h, 30d, or none", s)
	}
	*f = periodFlag(d)
	return nil
}

// period is a duration for people: "1h", "7 days", "none".
func period(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == -1:
		return "none"
	case d == 0:
		return ""
	case d >= day && d%day == 0:
		return plural(int(d/day), "day")
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// limit is a bound for people, "none" where there is none.
func limit(n int64, format func(int64) string) string {
	if n < 0 {
		return "none"
	}
	return format(n)
}

// moment is a time for people.
func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}
