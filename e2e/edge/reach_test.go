//go:build linux

package edge

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// send writes a request by hand, as an attacker's program or browser does, and returns the status of
// its answer. A "*" in its lines is the port of the address.
func (s *serveProcess) send(address string, lines ...string) int {
	s.Helper()
	conn, err := net.DialTimeout("tcp", address, limit)
	if err != nil {
		s.Fatal(err)
	}
	defer conn.Close()
	_, port, _ := net.SplitHostPort(address)
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(conn, strings.ReplaceAll(strings.Join(lines, "\r\n"), ":*", ":"+port)+"\r\n\r\n"); err != nil {
		s.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.Fatalf("%q: %v", lines, err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// upgrade are the lines of a WebSocket's handshake.
var upgrade = []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}

func TestRebindingAgainstServe(t *testing.T) {
	s := startServe(t, serveOptions{anonymous: true, flags: []string{"--websocket", "127.0.0.1:0", "--metrics", "127.0.0.1:0"}})
	if len(s.urls) != 4 {
		t.Fatalf("jetbus serve printed %q", s.urls)
	}
	broker, edge, metrics := hostOf(s.urls[1]), hostOf(s.urls[2]), hostOf(s.urls[3])
	for _, l := range []struct {
		name, address, get string
		webSocket          bool
		want               int // of what may
	}{
		{"broker", broker, "GET / HTTP/1.1", true, 101},
		{"gateway's WebSocket", edge, "GET /ws HTTP/1.1", true, 101},
		{"gateway", edge, "GET /v1/topics HTTP/1.1", false, 200},
		{"schemas", edge, "GET /v1/schemas/subjects HTTP/1.1", false, 200},
		{"metrics", metrics, "GET /metrics HTTP/1.1", false, 200},
	} {
		for _, c := range []struct {
			lines []string
			fine  bool
		}{
			{[]string{"Host: 127.0.0.1:*"}, true},
			{[]string{"Host: localhost:*"}, true},
			{[]string{"Host: 127.0.0.1:*", "Origin: http://127.0.0.1:*"}, true},
			{[]string{"Host: evil.test:*", "Origin: http://evil.test:*"}, false},
			{[]string{"Host: evil.test", "Origin: http://evil.test"}, false},
			{[]string{"Host: evil.test:*"}, false},
			{[]string{"Host: localhost.evil.test:*"}, false},
			{[]string{"Host: 127.0.0.1.evil.test:*"}, false},
			{[]string{"Host: 0.0.0.0:*"}, false},
			{[]string{"Host: localhost:1"}, false},
			{[]string{"Host: localhost"}, false},
			{[]string{"Host: 127.0.0.1:*", "Origin: http://evil.test"}, false},
			{[]string{"Host: 127.0.0.1:*", "Origin: null"}, false},
			{[]string{"Host: 127.0.0.1:*", "Sec-Fetch-Site: cross-site"}, false},
		} {
			lines := append([]string{l.get}, c.lines...)
			if l.webSocket {
				lines = append(lines, upgrade...)
			}
			if got := s.send(l.address, lines...); c.fine != (got == l.want) || !c.fine && got != http.StatusForbidden {
				t.Errorf("%s, %q: %d", l.name, c.lines, got)
			}
		}
	}
	nc, err := nats.Connect("ws://"+broker, nats.Timeout(limit)) // a program without a browser
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Request("$JS.API.INFO", nil, limit); err != nil {
		t.Error(err)
	}
}

// A proxy in front of a gateway without tokens does not let the world in.
func TestProxyAgainstServe(t *testing.T) {
	s := startServe(t, serveOptions{anonymous: true})
	for _, lines := range [][]string{
		{"GET /v1/topics HTTP/1.1", "Host: 127.0.0.1:*", "X-Forwarded-For: 192.0.2.1"},
		{"GET /v1/topics HTTP/1.1", "Host: 127.0.0.1:*", "X-Forwarded-Host: bus.example.com"},
		{"GET /v1/topics HTTP/1.1", "Host: 127.0.0.1:*", "X-Forwarded-Proto: https"},
		{"GET /v1/topics HTTP/1.1", "Host: 127.0.0.1:*", "x-forwarded-port: 443"},
		{"GET /v1/topics HTTP/1.1", "Host: 127.0.0.1:*", "Via: 1.1 proxy"},
		{"GET /v1/topics HTTP/1.1", "Host: 127.0.0.1:*", "Forwarded: host=bus.example.com"},
		{"GET /v1/topics HTTP/1.1", "Host: 127.0.0.1", "Connection: close"},
		{"GET /v1/topics HTTP/1.0", "Host: 127.0.0.1:*", "Connection: close"}, // nginx with nothing but proxy_pass
	} {
		if got := s.send(s.address, lines...); got != http.StatusForbidden {
			t.Errorf("%q: %d", lines, got)
		}
	}
}

func TestForgedClaimsAgainstServe(t *testing.T) {
	secret := strings.Repeat("s", 32)
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startServe(t, serveOptions{anonymous: true, flags: []string{"--jwt-secret-file", file, "--jwt-issuer", "id", "--jwt-audience", "bus"}})
	sign := func(claims string) string {
		text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	soon := time.Now().Add(time.Hour).Unix()
	for _, c := range []struct {
		claims string
		want   int
	}{
		{`{"iss":"id","aud":"bus","sub":"ann","exp":%d,"scope":"ops:admin"}`, 200},
		{`{"iss":"id","aud":"bus","sub":"ann","exp":%d,"scope":"ops:admin","SCOPE":1,"BUS":[],"NBF":1e300,"future":{"sub":1}}`, 200},
		{`{"iss":"id","aud":"bus","sub":"ann","exp":%d,"SCOPE":"ops:admin"}`, 403},
		{`{"iss":"id","aud":"bus","sub":"ann","exp":%d,"\u0053cope":"ops:admin"}`, 403},
		{`{"iss":"id","aud":"bus","SUB":"ann","exp":%d,"scope":"ops:admin"}`, 401},
		{`{"iss":"id","AUD":"bus","sub":"ann","exp":%d,"scope":"ops:admin"}`, 401},
		{`{"Iss":"id","aud":"bus","sub":"ann","exp":%d,"scope":"ops:admin"}`, 401},
		{`{"iss":"id","aud":"bus","sub":"ann","EXP":%d,"scope":"ops:admin"}`, 401},
		{`{"iss":"id","aud":"bus","sub":"eve","sub":"ann","exp":%d,"scope":"ops:admin"}`, 401},
		{`{"iss":"id","aud":"bus","sub":"ann","exp":%d,"scope":"","scope":"ops:admin"}`, 401},
		{`{"iss":"id","aud":"bus","sub":"ann","exp":%d,"nbf":9223372036854775807,"scope":"ops:admin"}`, 401},
		{`{"iss":"id","aud":"bus","sub":"ann","exp":%d,"nbf":1e300,"scope":"ops:admin"}`, 401},
		{`{"iss":"id","aud":"bus","sub":"ann","exp":%d,"iat":1e300,"scope":"ops:admin"}`, 401},
		{`{"iss":"id","aud":"bus","sub":"ann","exp":%d,"iat":9223372036854775807,"scope":"ops:admin"}`, 401},
		{`{"iss":"id","aud":"bus","sub":"ann","exp":%d0000000000,"scope":"ops:admin"}`, 401},
	} {
		claims := fmt.Sprintf(c.claims, soon)
		if got := s.send(s.address, "GET /v1/schemas/config HTTP/1.1", "Host: bus.example.com", "Authorization: Bearer "+sign(claims)); got != 200 && c.want == 200 || c.want == 401 && got != 401 {
			t.Errorf("%s: %d", claims, got)
		}
		want := c.want
		if want == 200 {
			want = 404 // allowed, and there is no such topic
		}
		if got := s.send(s.address, "GET /v1/topics/orders HTTP/1.1", "Host: bus.example.com", "Authorization: Bearer "+sign(strings.ReplaceAll(claims, "ops:admin", "topic:read:orders"))); got != want {
			t.Errorf("%s, reading a topic: %d, want %d", claims, got, want)
		}
	}
}
