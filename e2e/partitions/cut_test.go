//go:build unix

package partitions

import (
	"context"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
	"github.com/seed-63e9a637/jetbus/e2e/internal/proxy"
	"github.com/seed-63e9a637/jetbus/partition"
)

// TestCut: a connection that breaks and comes back moves nothing.
func TestCut(t *testing.T) {
	t.Parallel()
	s, b := alone(t)
	p := b.Proxy(t)
	c := s.config("b", longTTL)
	c.URL = p.URL()
	m := s.startAll(s.config("a", longTTL), c)
	stop := s.load(keys)
	had := ownedBy(m...)
	for range 3 {
		p.Cut()
		chaos.Linger(t.Context(), 300*time.Millisecond)
	}
	stop()
	a := s.account()
	s.undisturbed(had, m...)
	if len(a.inside) > 0 {
		t.Errorf("%v, want no overlap", a)
	}
}

// TestCutSettingUp: the connection of a member breaks at each kind of request, once before
// it is at the server and once before its answer is back, while the member joins a group
// that nobody has made, while it takes over from one that died, and while it takes over
// from one that stops. It ends up with what it should have.
func TestCutSettingUp(t *testing.T) {
	t.Parallel()
	s, b := alone(t)
	scissors := &scissors{Proxy: b.Proxy(t)}
	stop := s.load(keys)
	c := s.config("b", longTTL)
	c.URL = scissors.URL()
	began := time.Now()
	scissors.open(t.Context())
	m := s.start(c)
	s.balanced(m)
	t.Logf("joined after %d cuts, %v", scissors.close(t), time.Since(began))

	a := s.start(s.config("a", deathTTL))
	s.balanced(m, a)
	had := a.owned()
	began = time.Now()
	scissors.open(t.Context())
	a.kill()
	s.took(had, m)
	s.balanced(m)
	t.Logf("took over from one that died after %d cuts, %v", scissors.close(t), time.Since(began))

	a = s.start(s.config("a", longTTL))
	s.balanced(m, a)
	had = a.owned()
	began = time.Now()
	scissors.open(t.Context())
	a.stop(t)
	s.took(had, m)
	s.balanced(m)
	t.Logf("took over from one that stopped after %d cuts, %v", scissors.close(t), time.Since(began))
	stop()
	if a := s.account(); len(a.inside) > 0 {
		t.Errorf("%v, want no overlap", a)
	}
}

// number is what tells the requests of one kind from each other.
var number = regexp.MustCompile("[0-9]+")

// topicStream is the stream of the topic.
const topicStream = "EV_ORDERS"

// scissors cut connections at requests of kinds that they have not seen.
type scissors struct {
	*proxy.Proxy
	mu   sync.Mutex
	seen map[string]int // by kind
	cuts int
}

// open begins to cut, and close ends it and says how often that was.
func (c *scissors) open(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen, c.cuts = map[string]int{}, 0
	c.Watch(func(f proxy.Frame) { c.look(ctx, f) })
}

func (c *scissors) close(t *testing.T) (cuts int) {
	t.Helper()
	c.Watch(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cuts == 0 {
		t.Error("nothing was cut")
	}
	return c.cuts
}

// look cuts the connection before a request goes on to the server, or, when that has
// happened to it, before the answer comes back.
func (c *scissors) look(ctx context.Context, f proxy.Frame) {
	if !strings.Contains(f.Subject, topicStream) && !strings.HasPrefix(f.Subject, "$KV."+partition.DefaultBucket) || strings.Contains(f.Subject, ".DELETE.") {
		return
	}
	what := number.ReplaceAllString(f.Subject, "#")
	if api, stream, ok := strings.Cut(what, ".KV_"); ok { // behind it, names may be new each time
		bucket, _, _ := strings.Cut(stream, ".")
		what = api + bucket
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.seen[what]++; c.seen[what] {
	case 1:
		c.cuts++
		c.Cut()
	case 2:
		c.cuts++
		c.Hole(proxy.ToClient)
		go func() {
			chaos.Linger(ctx, 20*time.Millisecond) // by then it is answered
			c.Cut()
			c.Restore()
		}()
	}
}
