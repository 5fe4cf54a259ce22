package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// TestStrangersAreNoNodes dials a route port without the cluster's certificate.
func TestStrangersAreNoNodes(t *testing.T) {
	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMesh("a", ports)
	if err != nil {
		t.Fatal(err)
	}
	other, err := newMesh("a", ports)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		client *tls.Config
		ok     bool
	}{
		"node":           {m.tls[1], true},
		"other cluster":  {other.tls[1], false},
		"no certificate": {&tls.Config{RootCAs: m.tls[0].RootCAs}, false},
	} {
		if err := handshake(t, m.tls[0], tc.client); (err == nil) != tc.ok {
			t.Errorf("%s: %v, want accepted: %v", name, err, tc.ok)
		}
	}
	if len(m.routes) != 1 {
		t.Errorf("%d routes are known, want 1", len(m.routes))
	}
	m.cut(1)
	if err := handshake(t, m.tls[0], m.tls[1]); err == nil || len(m.routes) != 0 {
		t.Errorf("a cut node is accepted: %v, routes %d", err, len(m.routes))
	}
	m.open(1)
	if err := handshake(t, m.tls[0], m.tls[1]); err != nil {
		t.Error(err)
	}
}

// handshake returns the accepting end's view.
func handshake(t *testing.T, srv, client *tls.Config) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		conn, err := tls.Dial("tcp", l.Addr().String(), client)
		if err != nil {
			return // refused
		}
		defer conn.Close()
		// Until the other end, which decides, is done.
		_, _ = conn.Read(make([]byte, 1))
	})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return tls.Server(conn, srv).HandshakeContext(t.Context())
}

// TestPortTakenByRoutes makes the failure visible that the server only logs.
func TestPortTakenByRoutes(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	m, err := newMesh("a", []int{taken})
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{cfg: Config{Nodes: 1, Name: "a"}, dir: t.TempDir()}
	b, err := embedded.Start(t.Context(), c.nodeConfig(0, &routes{mesh: m}))
	if err == nil {
		c.nodes = []*embedded.Broker{b}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = errors.Join(c.WaitReady(ctx), c.Stop(t.Context()))
	}
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the port to be taken", err)
	}
	if !portTaken(err) {
		t.Errorf("%v is not recognized", err)
	}
}
