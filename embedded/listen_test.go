package embedded_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// certificate makes a self-signed certificate for 127.0.0.1, as a server's and
// as a client's configuration.
func certificate(t *testing.T) (srv, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, &tls.Config{RootCAs: pool}
}

// roundTrip connects and sends a message to itself.
func roundTrip(t *testing.T, url string, o ...nats.Option) {
	t.Helper()
	nc, err := nats.Connect(url, append(o, nats.Timeout(patience))...)
	if err != nil {
		t.Fatalf("connect to %s: %v", url, err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("x")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Publish("x", []byte("payload")); err != nil {
		t.Fatal(err)
	}
	if m, err := sub.NextMsgWithContext(t.Context()); err != nil || string(m.Data) != "payload" {
		t.Fatalf("got %v, %v", m, err)
	}
}

func TestNoListener(t *testing.T) {
	b := start(t, embedded.Config{})
	if b.URL() != "" || b.WebSocketURL() != "" {
		t.Errorf("URL() = %q, WebSocketURL() = %q, want none", b.URL(), b.WebSocketURL())
	}
	if a := b.Server().Addr(); a != nil {
		t.Errorf("the server listens on %v", a)
	}
}

func TestCredentials(t *testing.T) {
	user := embedded.Config{User: "u", Password: "p"}
	token := embedded.Config{Token: "t"}
	for name, tc := range map[string]struct {
		cfg  embedded.Config
		opts []nats.Option
		ok   bool
	}{
		"user":               {user, []nats.Option{nats.UserInfo("u", "p")}, true},
		"user, wrong pass":   {user, []nats.Option{nats.UserInfo("u", "q")}, false},
		"user, wrong name":   {user, []nats.Option{nats.UserInfo("v", "p")}, false},
		"user, no pass":      {user, []nats.Option{nats.UserInfo("u", "")}, false},
		"user, nothing":      {user, nil, false},
		"user, but a token":  {user, []nats.Option{nats.Token("p")}, false},
		"token":              {token, []nats.Option{nats.Token("t")}, true},
		"token, wrong":       {token, []nats.Option{nats.Token("tt")}, false},
		"token, nothing":     {token, nil, false},
		"token, but a user":  {token, []nats.Option{nats.UserInfo("t", "t")}, false},
		"none, nothing":      {embedded.Config{}, nil, true},
		"none, superfluous":  {embedded.Config{}, []nats.Option{nats.UserInfo("u", "p")}, true},
		"none, spare tokens": {embedded.Config{}, []nats.Option{nats.Token("t")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cfg.Listen, tc.cfg.WebSocket = "127.0.0.1:0", "127.0.0.1:0"
			b := start(t, tc.cfg)
			for _, way := range []struct {
				url  string
				opts []nats.Option
			}{
				{b.URL(), nil},
				{b.WebSocketURL(), nil},
				{"", []nats.Option{nats.InProcessServer(b)}},
			} {
				if tc.ok {
					roundTrip(t, way.url, append(way.opts, tc.opts...)...)
					continue
				}
				nc, err := nats.Connect(way.url, slices.Concat(way.opts, tc.opts, []nats.Option{nats.Timeout(patience)})...)
				// Over TCP the client may miss the answer, when it still writes.
				if err == nil || way.url == "" && !errors.Is(err, nats.ErrAuthorization) {
					t.Errorf("%q: %v, want ErrAuthorization", way.url, err)
				}
				nc.Close()
			}
			connect(t, b) // has the right ones
			roundTrip(t, b.URL(), tc.cfg.ClientOptions()...)
		})
	}
}

func TestTLS(t *testing.T) {
	srv, client := certificate(t)
	b := start(t, embedded.Config{Listen: "127.0.0.1:0", TLS: srv, WebSocket: "127.0.0.1:0", WebSocketTLS: srv, Token: "t"})
	if !strings.HasPrefix(b.URL(), "tls://") || !strings.HasPrefix(b.WebSocketURL(), "wss://") {
		t.Errorf("URL() = %q, WebSocketURL() = %q", b.URL(), b.WebSocketURL())
	}
	roundTrip(t, b.URL(), nats.Secure(client), nats.Token("t"))
	roundTrip(t, b.WebSocketURL(), nats.Secure(client), nats.Token("t"))
	connect(t, b)
	for _, url := range []string{b.URL(), b.WebSocketURL()} {
		if _, err := nats.Connect(url, nats.Token("t")); err == nil {
			t.Errorf("%s: an unknown certificate is accepted", url)
		}
	}
	plain, err := net.Dial("tcp", strings.TrimPrefix(b.URL(), "tls://"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := plain.Write([]byte("CONNECT {}\r\nPING\r\n")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for n, err := plain.Read(buf); err == nil; n, err = plain.Read(buf) {
		if strings.Contains(string(buf[:n]), "PONG") {
			t.Fatal("the TLS port serves plain text")
		}
	}
}

func TestPortsAreKeptOverRestart(t *testing.T) { onKeptPorts(t, keepPorts) }

func keepPorts(t *testing.T) error {
	t.Helper()
	b := start(t, embedded.Config{Listen: "127.0.0.1:0", WebSocket: "127.0.0.1:0"})
	url, ws := b.URL(), b.WebSocketURL()
	nc, err := nats.Connect(url, nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, restart := range []func() error{
		func() error { return b.Restart(t.Context()) },
		func() error { return errors.Join(b.Kill(t.Context()), b.Restart(t.Context())) },
	} {
		if err := restart(); err != nil {
			return err
		}
		if b.URL() != url || b.WebSocketURL() != ws {
			t.Fatalf("now at %s and %s, before at %s and %s", b.URL(), b.WebSocketURL(), url, ws)
		}
		roundTrip(t, url)
		roundTrip(t, ws)
		comesBack(t, nc)
	}
	return nil
}

func TestWebSocketOrigins(t *testing.T) {
	const evil, listed = "https://evil.example", "https://app.example"
	for name, tc := range map[string]struct {
		token   string
		origins []string
		host    string // empty: the listener's; "*" is its port
		origin  string
		ok      bool
	}{
		"default, other page":        {"", nil, "", evil, false},
		"default, opaque page":       {"", nil, "", "null", false},
		"default, own page":          {"", nil, "localhost:*", "http://localhost:*", true},
		"default, no browser":        {"", nil, "", "", true},
		"listed":                     {"", []string{listed}, "", listed, true},
		"not listed":                 {"", []string{listed}, "", evil, false},
		"rebound":                    {"", nil, "evil.test:*", "http://evil.test:*", false},
		"rebound, without port":      {"", nil, "evil.test", "http://evil.test", false},
		"rebound, no origin":         {"", nil, "evil.test:*", "", false},
		"rebound, listed":            {"", []string{listed}, "evil.test:*", listed, false},
		"name of loopback":           {"", nil, "localhost:*", "", true},
		"other address of loopback":  {"", nil, "127.0.0.2:*", "", true},
		"other port":                 {"", nil, "localhost:1", "http://localhost:1", false},
		"no port":                    {"", nil, "localhost", "http://localhost", false},
		"with a token, other name":   {"t", []string{listed}, "bus.example", listed, true},
		"with a token, other origin": {"t", []string{listed}, "bus.example", evil, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, embedded.Config{WebSocket: "127.0.0.1:0", WebSocketOrigins: tc.origins, Token: tc.token})
			_, port, err := net.SplitHostPort(strings.TrimPrefix(b.WebSocketURL(), "ws://"))
			if err != nil {
				t.Fatal(err)
			}
			tc.host, tc.origin = strings.ReplaceAll(tc.host, "*", port), strings.ReplaceAll(tc.origin, "*", port)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http"+strings.TrimPrefix(b.WebSocketURL(), "ws"), nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{
				"Connection": {"Upgrade"}, "Upgrade": {"websocket"},
				"Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
			}
			req.Host = tc.host
			if tc.origin != "" {
				req.Header.Set("Origin", tc.origin)
			}
			tr := &http.Transport{DisableKeepAlives: true}
			defer tr.CloseIdleConnections()
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got := resp.StatusCode == http.StatusSwitchingProtocols; got != tc.ok {
				t.Errorf("status %s, want accepted: %v", resp.Status, tc.ok)
			}
		})
	}
}

// A proxy on this machine would open a listener without credentials to the network.
func TestWebSocketRefusesProxies(t *testing.T) {
	for _, token := range []string{"", "t"} {
		b := start(t, embedded.Config{WebSocket: "127.0.0.1:0", Token: token})
		proxied := nats.WebSocketConnectionHeaders(http.Header{"X-Forwarded-For": {"192.0.2.1"}})
		nc, err := nats.Connect(b.WebSocketURL(), proxied, nats.Token(token), nats.Timeout(patience))
		if (err == nil) != (token != "") {
			t.Errorf("through a proxy, with the token %q: %v", token, err)
		}
		nc.Close()
	}
}

// The guard closes a new connection if too many were not upgraded. The others stay open.
func TestWebSocketGuardBoundsConnections(t *testing.T) {
	b := start(t, embedded.Config{WebSocket: "127.0.0.1:0"})
	host := strings.TrimPrefix(b.WebSocketURL(), "ws://")
	dial := func() net.Conn {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	conns := make([]net.Conn, 1001)
	for i := range conns {
		conns[i] = dial()
	}
	if n, err := conns[1000].Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection too many reads %d bytes, %v", n, err)
	}
	if _, err := conns[0].Write([]byte("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, len("HTTP/1.1 400"))
	if _, err := io.ReadFull(conns[0], answer); err != nil || string(answer) != "HTTP/1.1 400" {
		t.Errorf("the first connection reads %q, %v", answer, err)
	}
}

// The guard of the WebSocket listener forwards TLS, clients and large messages, and refuses what
// is no WebSocket. Its connections end with the broker.
func TestWebSocketGuard(t *testing.T) {
	srv, client := certificate(t)
	b := start(t, embedded.Config{WebSocket: "127.0.0.1:0", WebSocketTLS: srv})
	if !strings.HasPrefix(b.WebSocketURL(), "wss://") {
		t.Errorf("WebSocketURL() = %q", b.WebSocketURL())
	}
	roundTrip(t, b.WebSocketURL(), nats.Secure(client))
	if _, err := nats.Connect(b.WebSocketURL()); err == nil {
		t.Error("an unknown certificate is accepted")
	}
	over := make(chan struct{})
	nc, err := nats.Connect(b.WebSocketURL(), nats.Secure(client), nats.Timeout(patience), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(over) }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	sub, err := nc.SubscribeSync("x")
	if err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 1<<20)
	for range 8 {
		if err := nc.Publish("x", []byte(large)); err != nil {
			t.Fatal(err)
		}
	}
	for range 8 {
		if m, err := sub.NextMsgWithContext(t.Context()); err != nil || string(m.Data) != large {
			t.Fatalf("%v", err)
		}
	}
	tr := &http.Transport{TLSClientConfig: client}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https"+strings.TrimPrefix(b.WebSocketURL(), "wss"), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a request that is no WebSocket: %s, %v", resp.Status, err)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-over
}
