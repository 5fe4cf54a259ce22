package loopback_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/seed-63e9a637/jetbus/internal/loopback"
)

// request makes a request that came in over local with the given Host and headers, which are pairs.
func request(local, host string, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Host = host
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	addr, _ := net.ResolveTCPAddr("tcp", local)
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr))
}

func TestCheck(t *testing.T) {
	t.Parallel()
	const own = "127.0.0.1:8080"
	secure := func(r *http.Request) *http.Request {
		r.TLS = &tls.ConnectionState{}
		return r
	}
	for name, c := range map[string]struct {
		r    *http.Request
		want bool
	}{
		"address":                   {request(own, "127.0.0.1:8080"), true},
		"other address of loopback": {request(own, "127.9.9.9:8080"), true},
		"IPv6":                      {request("[::1]:8080", "[::1]:8080"), true},
		"IPv4 in IPv6":              {request(own, "[::ffff:127.0.0.1]:8080"), true},
		"name":                      {request(own, "localhost:8080"), true},
		"name in other letters":     {request(own, "LOCALHOST.:8080"), true},
		"name below it":             {request(own, "app.localhost:8080"), true},
		"port of HTTP":              {request("127.0.0.1:80", "localhost"), true},
		"port of HTTPS":             {secure(request("127.0.0.1:443", "localhost")), true},
		"port of HTTP over TLS":     {secure(request("127.0.0.1:80", "localhost")), false},
		"no port":                   {request(own, "localhost"), false},
		"other port":                {request(own, "localhost:8081"), false},
		"no host":                   {request(own, ""), false},
		"rebound name":              {request(own, "evil.test:8080"), false},
		"rebound name without port": {request("127.0.0.1:80", "evil.test"), false},
		"name that begins so":       {request(own, "localhost.evil.test:8080"), false},
		"name that begins so, too":  {request(own, "127.0.0.1.evil.test:8080"), false},
		"name that ends so":         {request(own, "evillocalhost:8080"), false},
		"any address":               {request(own, "0.0.0.0:8080"), false},
		"over another address":      {request("192.0.2.1:8080", "localhost:8080"), false},
		"typed":                     {request(own, own, "Sec-Fetch-Site", "none"), true},
		"page of the same site":     {request(own, own, "Sec-Fetch-Site", "same-site"), true},
		"page of another site":      {request(own, own, "Sec-Fetch-Site", "cross-site"), false},
		"the same in other letters": {request(own, own, "Sec-Fetch-Site", "Cross-Site"), false},
		"one of two":                {request(own, own, "Sec-Fetch-Site", "none", "Sec-Fetch-Site", "cross-site"), false},
		"with its origin":           {request(own, own, "Sec-Fetch-Site", "cross-site", "Origin", "https://app.example.com"), true},
	} {
		if err := loopback.Check(c.r); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if loopback.Check(httptest.NewRequest(http.MethodGet, "/", http.NoBody)) == nil {
		t.Error("a request of an unknown listener is accepted")
	}
}

func TestCheckRefusesProxies(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Forwarded-Server",
		"x-forwarded-anything", "X-Forwarded", "Forwarded-For", "X-Original-Forwarded-For", "X-Real-IP", "Via",
		"CF-Connecting-IP", "X-Envoy-External-Address", "Fastly-Client-IP", "Fly-Client-IP", "X-Azure-ClientIP", "CDN-Loop",
	} {
		if loopback.Check(request("127.0.0.1:80", "localhost", name, "")) == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	old := request("127.0.0.1:80", "localhost")
	old.ProtoMajor, old.ProtoMinor = 1, 0
	if loopback.Check(old) == nil {
		t.Error("HTTP/1.0 is accepted")
	}
	if err := loopback.Check(request("127.0.0.1:80", "localhost", "Accept", "*/*")); err != nil {
		t.Errorf("a client: %v", err)
	}
}

func TestHandler(t *testing.T) {
	t.Parallel()
	h := loopback.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for name, c := range map[string]struct {
		r    *http.Request
		want int
	}{
		"program":        {request("127.0.0.1:80", "localhost"), 204},
		"own page":       {request("127.0.0.1:80", "localhost", "Origin", "http://localhost:3000"), 204},
		"another's page": {request("127.0.0.1:80", "localhost", "Origin", "http://evil.test"), 403},
		"opaque page":    {request("127.0.0.1:80", "localhost", "Origin", "null"), 403},
		"no origin":      {request("127.0.0.1:80", "localhost", "Origin", "%"), 403},
		"rebound name":   {request("127.0.0.1:80", "evil.test"), 403},
		"proxy":          {request("127.0.0.1:80", "localhost", "X-Forwarded-Host", "bus.example.com"), 403},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, c.r)
		if w.Code != c.want {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.1.2.3:1": true, "[::1]:1": true, "localhost:1": true, "app.localhost:1": false, "0.0.0.0:1": false, ":1": false, "[::]:1": false, "192.0.2.1:1": false, "127.0.0.1": false,
	} {
		if got := loopback.Address(addr); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
}
