package proxy

import (
	"bufio"
	"bytes"
	"strings"
	"testing"
)

func TestReadFrame(t *testing.T) {
	for name, c := range map[string]struct {
		said, subject, body string
		ok                  bool
	}{
		"a line":               {"SUB a 1\r\n", "", "", true},
		"a message":            {"PUB a 2\r\nhi\r\n", "a", "hi", true},
		"with an answer":       {"PUB a b 0\r\n\r\n", "a", "", true},
		"with headers":         {"HPUB a b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", "a", "NATS/1.0\r\n\r\nhi", true},
		"half a line":          {"SUB", "", "", false},
		"half a message":       {"PUB a 20\r\nhi\r\n", "", "", false},
		"without a size":       {"PUB a b\r\nhi\r\n", "", "", false},
		"with a negative size": {"PUB a -1\r\n", "", "", false},
		"too large":            {"PUB a 99999999999\r\n", "", "", false},
	} {
		f, err := readFrame(bufio.NewReader(strings.NewReader(c.said)))
		switch {
		case (err == nil) != c.ok:
			t.Errorf("%s: %v", name, err)
		case c.ok && (string(f.Raw) != c.said || f.Subject != c.subject || f.Body != c.body):
			t.Errorf("%s: got %q, subject %q, body %q", name, f.Raw, f.Subject, f.Body)
		}
	}
}

// What is passed on is what was said, to the byte.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("PUB a 2\r\nhi\r\nPING\r\nHPUB a b 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"))
	f.Add([]byte("PUB a 7777777\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		r := bufio.NewReader(bytes.NewReader(said))
		var passed []byte
		for {
			frame, err := readFrame(r)
			if err != nil {
				break
			}
			passed = append(passed, frame.Raw...)
		}
		if !bytes.HasPrefix(said, passed) {
			t.Errorf("%q was passed on as %q", said, passed)
		}
	})
}
