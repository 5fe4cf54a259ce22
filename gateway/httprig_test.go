package gateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/seed-63e9a637/jetbus/gateway"
)

// reply is an answer over HTTP.
type reply struct {
	r      *wsRig
	status int
	header http.Header
	text   string
}

// client makes requests to the gateway.
func (r *wsRig) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: r.dialNet, DisableKeepAlives: true}}
}

// client2 makes them over HTTP/2.
func (r *wsRig) client2() *http.Client {
	transport := &http.Transport{DialContext: r.dialNet, Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	r.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (r *wsRig) dialNet(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := r.net.dial(ctx, network, address)
	return socket{c}, err
}

// socket takes what the other end does not read any more, as the buffer of a socket does: a
// client that is refused before it has sent its body finds the answer.
type socket struct{ net.Conn }

func (s socket) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	if errors.Is(err, io.ErrClosedPipe) {
		return len(p), nil
	}
	return n, err
}

func (r *wsRig) request(method, path, body string, header ...string) *http.Request {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return req
}

// do makes a request. header are pairs.
func (r *wsRig) do(method, path, body string, header ...string) reply {
	r.Helper()
	res, err := r.client().Do(r.request(method, path, body, header...))
	if err != nil {
		r.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatalf("%s %s: %v", method, path, err)
	}
	return reply{r, res.StatusCode, res.Header, string(text)}
}

// is fails unless the answer has that status, and returns it as an object.
func (p reply) is(status int) map[string]any {
	p.r.Helper()
	if p.status != status {
		p.r.Errorf("status %d, not %d: %s", p.status, status, p.text)
	}
	if p.text == "" {
		return nil
	}
	return object(p.r.T, p.text)
}

// refused fails unless the answer is a problem document with that code.
func (p reply) refused(code gateway.Code) map[string]any {
	p.r.Helper()
	if p.header.Get("Content-Type") != "application/problem+json" {
		p.r.Errorf("no problem document: %d %s", p.status, p.text)
		return nil
	}
	d := p.is(code.Status())
	if d["code"] != string(code) || d["retryable"] != code.Retryable() || d["status"] != float64(p.status) {
		p.r.Errorf("%s, not %s", p.text, code)
	}
	return d
}

// into reads the answer.
func (p reply) into(v any) {
	p.r.Helper()
	if err := json.Unmarshal([]byte(p.text), v); err != nil {
		p.r.Fatalf("%s: %v", p.text, err)
	}
}
