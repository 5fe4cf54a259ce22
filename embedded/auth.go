package embedded

import (
	"crypto/sha256"
	"crypto/subtle"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// gate decides which clients one run of the server admits. It does so in the
// server's authentication step, because that is where every connection passes,
// in process, over TCP and over WebSocket.
type gate struct {
	user, password, token string
	closed                atomic.Bool
}

func newGate(c Config) *gate {
	return &gate{user: c.User, password: c.Password, token: c.Token}
}

// Check implements [server.Authentication].
func (g *gate) Check(c server.ClientAuthentication) bool {
	if c.Kind() != server.CLIENT {
		return false
	}
	if g.closed.Load() {
		hold(c)
		return false
	}
	o := c.GetOpts()
	switch {
	case g.token != "":
		return same(g.token, o.Token)
	case g.user != "":
		// Both comparisons run, so that timing does not tell which one failed.
		u, p := same(g.user, o.Username), same(g.password, o.Password)
		return u && p
	}
	return true
}

// hold keeps a client that arrives at a closed gate waiting until the server
// drops its connection. An authorization error would be the wrong answer: a
// client that gets it twice never reconnects.
func hold(c server.ClientAuthentication) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for c.RemoteAddress() != nil {
		<-tick.C
	}
}

func same(want, got string) bool {
	a, b := sha256.Sum256([]byte(want)), sha256.Sum256([]byte(got))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
