package ce

import (
	"fmt"
	"strings"
	"testing"
	"unicode"

	"github.com/seed-63e9a637/jetbus"
)

func TestKeyToken(t *testing.T) {
	for key, want := range map[string]string{
		"":               "_",
		"_":              "%5F",
		"__":             "__",
		"m-17":           "m-17",
		"Ops/eu:1@x$#!~": "Ops/eu:1@x$#!~",
		"a.b":            "a%2Eb",
		"*":              "%2A",
		">":              "%3E",
		"%":              "%25",
		"%2E":            "%252E",
		"a b%é":          "a%20b%25%C3%A9",
		"S":              "%53",
		"S1":             "%531",
		"P":              "%50",
		"P10":            "%5010",
		"P1x":            "P1x",
		"Sam":            "Sam",
		"s":              "s",
		"p1":             "p1",
		"\x00\n\x7f":     "%00%0A%7F",
	} {
		if got := KeyToken(key); got != want {
			t.Errorf("keyToken(%q) = %q, want %q", key, got, want)
		}
		if got, ok := ParseKeyToken(want); !ok || got != key {
			t.Errorf("parseKeyToken(%q) = %q, %v, want %q", want, got, ok, key)
		}
	}
	for _, token := range []string{"", "S", "P1", "a.b", "a b", "%41", "%2e", "%", "%2", "%GG", "é", "a*"} {
		if key, ok := ParseKeyToken(token); ok {
			t.Errorf("parseKeyToken(%q) = %q, but KeyToken does not make it", token, key)
		}
	}
}

func TestKeyTokenIsBounded(t *testing.T) {
	key := strings.Repeat("\xff", jetbus.MaxKeyBytes)
	if got := len(KeyToken(key)); got != 3*jetbus.MaxKeyBytes {
		t.Errorf("the longest token has %d bytes, want %d", got, 3*jetbus.MaxKeyBytes)
	}
}

// checkToken fails unless token is one legal subject token without wildcards
// that is none of ours.
func checkToken(t *testing.T, key, token string) {
	t.Helper()
	bad := strings.IndexFunc(token, func(r rune) bool {
		return r > unicode.MaxASCII || unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(".*>", r)
	})
	switch {
	case token == "" || bad >= 0:
		t.Fatalf("keyToken(%q) = %q is no legal token", key, token)
	case len(token) > max(1, 3*len(key)):
		t.Fatalf("keyToken(%q) has %d bytes, more than three times as many", key, len(token))
	case token == "_" && key != "" || token == "S" || token[0] == 'P' && strings.Trim(token[1:], "0123456789") == "":
		t.Fatalf("keyToken(%q) = %q has a meaning", key, token)
	}
}

func FuzzKeyToken(f *testing.F) {
	for _, key := range []string{"", "_", "a", "a.b", "S", "P12", "%5F", "a b%é", "\xff"} {
		f.Add(key, "%"+key)
	}
	f.Fuzz(func(t *testing.T, key, other string) {
		token := KeyToken(key)
		checkToken(t, key, token)
		if got, ok := ParseKeyToken(token); !ok || got != key {
			t.Fatalf("parseKeyToken(KeyToken(%q)) = %q, %v", key, got, ok)
		}
		if (KeyToken(other) == token) != (other == key) {
			t.Fatalf("keys %q and %q, tokens %q and %q", key, other, token, KeyToken(other))
		}
		if parsed, ok := ParseKeyToken(other); ok && KeyToken(parsed) != other {
			t.Fatalf("parseKeyToken accepts %q, which is not the token of %q", other, parsed)
		}
	})
}

func BenchmarkKeyToken(b *testing.B) {
	for _, key := range []string{"machine-0017", "a b%é"} {
		b.Run(fmt.Sprintf("%q", key), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				KeyToken(key)
			}
		})
	}
}
