package embedded_test

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// TestBubbleCanary shows that a broker works under fake time as long as the
// server's access-time clock was started outside. It hangs if a new version of
// the server adds another goroutine that is never idle. Package bustest builds
// on this, and does what clients need that reconnect or flush.
func TestBubbleCanary(t *testing.T) {
	ats.Register()
	defer ats.Unregister()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var ack *jetstream.PubAck
		var published time.Time
		lifetime(t, dir, func(js jetstream.JetStream) {
			stream(t, js, 1)
			var err error
			if ack, err = js.Publish(t.Context(), "s.a", []byte("kept")); err != nil {
				t.Fatal(err)
			}
			published = time.Now()
			time.Sleep(time.Hour)
		})
		lifetime(t, dir, func(js jetstream.JetStream) {
			s, err := js.Stream(t.Context(), "S")
			if err != nil {
				t.Fatal(err)
			}
			m, err := s.GetMsg(t.Context(), ack.Sequence)
			if err != nil {
				t.Fatal(err)
			}
			if string(m.Data) != "kept" || m.Time.Sub(published).Abs() > time.Second {
				t.Errorf("found %q of %v, want that of %v", m.Data, m.Time, published)
			}
		})
		if d := time.Since(published); d < time.Hour || d > 2*time.Hour {
			t.Errorf("an hour of fake time took %v of it", d)
		}
	})
}

// lifetime runs f on a broker that starts before and stops after.
func lifetime(t *testing.T, dir string, f func(jetstream.JetStream)) {
	t.Helper()
	b := start(t, embedded.Config{Dir: dir})
	nc, err := b.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	f(js)
	nc.Close()
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestConnectBusy connects on a machine that is so busy that the server's first
// words take longer than nats.go waits by default.
func TestConnectBusy(t *testing.T) {
	ats.Register()
	defer ats.Unregister()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := start(t, embedded.Config{Dir: dir})
		nc, err := b.Connect(nats.InProcessServer(busy{b}), nats.NoReconnect())
		if err != nil {
			t.Fatal(err)
		}
		nc.Close()
		if err := b.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// busy is a broker whose first words take five seconds: the server itself gives up after ten.
type busy struct{ *embedded.Broker }

func (b busy) InProcessConn() (net.Conn, error) {
	conn, err := b.Broker.InProcessConn()
	return &slowConn{Conn: conn}, err
}

type slowConn struct {
	net.Conn
	once sync.Once
}

func (c *slowConn) Read(p []byte) (int, error) {
	c.once.Do(func() { time.Sleep(5 * time.Second) })
	return c.Conn.Read(p)
}
