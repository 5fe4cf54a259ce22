package adaptertest

import (
	"net"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// Forgetful is a way to the broker on which the questions of a kind are lost for a while
// from the first one on, or behind some: a cluster that loses a leader swallows requests, and gives no
// answer for longer than one request waits.
type Forgetful struct {
	*embedded.Broker
	Question *regexp.Regexp // finds one, its kind and its size
	Lasts    time.Duration  // the silence
	Spares   int            // how many questions of a kind get through before it

	mu     sync.Mutex
	since  map[string]time.Time // by the kind of question; nil where nothing is lost
	spared map[string]int
}

// InProcessConn implements nats.InProcessConnProvider.
func (w *Forgetful) InProcessConn() (net.Conn, error) {
	c, err := w.Broker.InProcessConn()
	return &forgetfulConn{c, w}, err
}

// Forget begins, or ends.
func (w *Forgetful) Forget(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since, w.spared = nil, map[string]int{}
	if on {
		w.since = map[string]time.Time{}
	}
}

func (w *Forgetful) forgets(kind string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since == nil {
		return false
	}
	if w.spared[kind] < w.Spares {
		w.spared[kind]++
		return false
	}
	if _, ok := w.since[kind]; !ok {
		w.since[kind] = time.Now()
	}
	return time.Since(w.since[kind]) < w.Lasts
}

type forgetfulConn struct {
	net.Conn
	w *Forgetful
}

func (c *forgetfulConn) Write(p []byte) (int, error) {
	var kept []byte
	for rest := p; ; {
		m := c.w.Question.FindSubmatchIndex(rest)
		if m == nil {
			_, err := c.Conn.Write(append(kept, rest...))
			return len(p), err
		}
		size, err := strconv.Atoi(string(rest[m[4]:m[5]]))
		if err != nil {
			return 0, err
		}
		end := m[1] + size + len("\r\n")
		if c.w.forgets(string(rest[m[2]:m[3]])) {
			kept = append(kept, rest[:m[0]]...)
		} else {
			kept = append(kept, rest[:end]...)
		}
		rest = rest[end:]
	}
}
