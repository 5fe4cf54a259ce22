package changefeed

import (
	"strings"
	"testing"

	"github.com/seed-63e9a637/jetbus"
)

// Different documents of a database have different keys, whatever the names of their
// collections are; those of names without a slash or percent sign stay what they were.
func TestScopedKeys(t *testing.T) {
	long := strings.Repeat("k", jetbus.MaxKeyBytes-len("a%2Fb/"))
	database := &Feed{}
	seen := map[string]string{}
	for _, c := range []struct{ collection, key, want string }{
		{"a", "b/c", "a/b/c"},
		{"a/b", "c", "a%2Fb/c"},
		{"a%2Fb", "c", "a%252Fb/c"},
		{"a%2fb", "c", "a%252fb/c"},
		{"a%", "2Fb/c", "a%25/2Fb/c"},
		{"a", "100%/c", "a/100%/c"},
		{"/", "/", "%2F//"},
		{"a.b", `{"$numberInt":"2"}`, `a.b/{"$numberInt":"2"}`},
		{"a/b", long, "a%2Fb/" + long},
		{"a", "b/" + long + "kk", "a/b/" + long + "kk"},
		{"a/b", long + "kkk", ""}, // too long
		{"a", "b/" + long + "kkk", ""},
	} {
		got := database.scoped(c.collection, c.key)
		if c.want == "" && !strings.HasPrefix(got, hashedMark) || c.want != "" && got != c.want {
			t.Errorf("%s of %s has the key %s, want %s", c.key, c.collection, got, c.want)
		}
		if who := c.key + " of " + c.collection; seen[got] != "" || jetbus.ValidKey(got) != nil {
			t.Errorf("%s has the key %s, as %s", who, got, seen[got])
		} else {
			seen[got] = who
		}
		one := &Feed{o: Options{Collection: c.collection}}
		if got := one.scoped(c.collection, c.key); got != c.key {
			t.Errorf("%s has the key %s in the feed of a collection", c.key, got)
		}
	}
}
