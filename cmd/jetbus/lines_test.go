package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/seed-63e9a637/jetbus"
)

// TestLines cuts one line end from each line, and white space only from JSON.
func TestLines(t *testing.T) {
	const text = "a\tb\t\r\n\n  c \n\r\nd\r\r\n \te"
	for exact, want := range map[bool][]string{true: {"a\tb\t", "  c ", "d\r", " \te"}, false: {"a\tb", "c", "d", "e"}} {
		var got []string
		lines := newLineReader(strings.NewReader(text), exact)
		for {
			line, err := lines.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, string(line))
		}
		if !slices.Equal(got, want) {
			t.Errorf("exact %v: lines %q, want %q", exact, got, want)
		}
	}
}

// TestLinesByteOrderMark names what makes JSON invalid.
func TestLinesByteOrderMark(t *testing.T) {
	_, err := eventsOf(jetbus.Event{Topic: "a"}, []line{{[]byte("\xef\xbb\xbf{}"), 1}}, true)
	if err == nil || !strings.Contains(err.Error(), "byte order mark") {
		t.Errorf("got error %v", err)
	}
}

// TestHeaderTwice refuses a header that would replace another.
func TestHeaderTwice(t *testing.T) {
	for _, o := range []pubOptions{
		{headers: []string{"x-a=1", "x-a=2"}, output: "text"},
		{headers: []string{"x-a=1", "x-b=2", "x-a=1"}, output: "text"},
		{headers: []string{"content-type=a/b"}, contentType: "text/plain", output: "text"},
	} {
		if _, _, err := o.event("a", time.Now()); exitCode(err) != exitUsage {
			t.Errorf("%q, %q: %v", o.headers, o.contentType, err)
		}
	}
}

// TestDashValue names -- where an argument was taken for a flag.
func TestDashValue(t *testing.T) {
	for arg, want := range map[string]bool{"-5": true, "-.5": true, "-x": false, "--x": false} {
		f := pflag.NewFlagSet("pub", pflag.ContinueOnError)
		err := flagError(f.Parse([]string{arg}))
		if err == nil || strings.Contains(err.Error(), "write -- before") != want {
			t.Errorf("%s: %v", arg, err)
		}
	}
}
