package processes_test

import (
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

func TestProcessID(t *testing.T) {
	tests := []struct {
		host, name string
		pid        int
		want       string
	}{
		{"web1", "nginx", 42, "web1:nginx:42"},
		{"web1", "nginx: worker process", 42, "web1:nginx%3A worker process:42"},
		{"fe80::1", "a%3Ab", 0, "fe80%3A%3A1:a%253Ab:0"},
		{"h\x00\n", "\xff\u0085", 1, "h%00%0A:%FF%C2%85:1"},
		{"größe", "日本", 1, "größe:日本:1"},
		{"a:b", "c", 1, "a%3Ab:c:1"},
		{"a", "b:c", 1, "a:b%3Ac:1"},
	}
	for _, tt := range tests {
		if got := processes.ID(tt.host, tt.name, tt.pid); got != tt.want {
			t.Errorf("ProcessID(%q, %q, %d) = %q, want %q", tt.host, tt.name, tt.pid, got, tt.want)
		}
	}
}

func TestLongProcessIDs(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{strings.Repeat("a", 300), strings.Repeat("a", 301), strings.Repeat("é", 200), strings.Repeat("a", 250)} {
		for _, host := range []string{"h", "h2"} {
			id := processes.ID(host, name, 1)
			if err := jetbus.ValidKey(id); err != nil {
				t.Error(err)
			}
			if have, ok := seen[id]; ok {
				t.Errorf("%s and %s share the id %s", have, host+name, id)
			}
			seen[id] = host + name
		}
	}
}

func FuzzProcessID(f *testing.F) {
	f.Add("web1", "nginx", 42, "web1", "nginx:", 42)
	f.Add("a:b", "c", 1, "a", "b:c", 1)
	f.Add(strings.Repeat("x", 300), "\xff", 1, "%", "\x00", -1)
	f.Fuzz(func(t *testing.T, h1, n1 string, p1 int, h2, n2 string, p2 int) {
		a, b := processes.ID(h1, n1, p1), processes.ID(h2, n2, p2)
		if err := jetbus.ValidKey(a); err != nil {
			t.Error(err)
		}
		if same := h1 == h2 && n1 == n2 && p1 == p2; same != (a == b) {
			t.Errorf("%q %q %d is %q, %q %q %d is %q", h1, n1, p1, a, h2, n2, p2, b)
		}
	})
}
