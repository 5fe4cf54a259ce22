package gateway_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

// unfinished sends a request without the rest of its body, and waits until the gateway waits, too.
func (r *wsRig) unfinished(method, path, sent string, header ...string) net.Conn {
	r.Helper()
	raw, err := r.net.dial(r.Context(), "", "")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = raw.Close() })
	text := fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: localhost\r\n", method, path)
	for i := 0; i < len(header); i += 2 {
		text = fmt.Appendf(text, "%s: %s\r\n", header[i], header[i+1])
	}
	if _, err := raw.Write(append(text, "\r\n"+sent...)); err != nil {
		r.Fatal(err)
	}
	synctest.Wait()
	return raw
}

// answered reads the response. It returns the status, whether the connection is closed behind it, and how long
// the client waited.
func (r *wsRig) answered(raw net.Conn) (status int, closes bool, waited time.Duration) {
	r.Helper()
	began := time.Now()
	response, err := http.ReadResponse(bufio.NewReader(raw), nil)
	if err != nil {
		r.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode, response.Close, time.Since(began)
}

// TestUnfinishedBodiesTakeNoPlaces: a request takes a place among the scans and calls when its body is there.
func TestUnfinishedBodiesTakeNoPlaces(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = gateway.Limits{Scans: 1, ScansPerPrincipal: 1, Calls: 1, CallsPerPrincipal: 1}
		c.Schemas = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.ContentLength != 2 {
				w.WriteHeader(http.StatusTeapot)
			}
		})
		r.serve(c)
		schema := r.unfinished("POST", "/v1/schemas/subjects/x", "{", "Authorization", ann, "Content-Length", "2")
		r.do("GET", "/openapi.json", "", "Authorization", eve).is(200)
		r.unfinished("POST", "/v1/groups/orders/g:ack", "", "Authorization", ann, "Content-Length", "2")
		r.do("GET", "/v1/topics", "", "Authorization", eve).is(200)
		if _, err := schema.Write([]byte("}")); err != nil {
			r.Fatal(err)
		}
		if status, _, _ := r.answered(schema); status != 200 {
			r.Errorf("status %d", status)
		}
		large := strings.Repeat(" ", 2<<20)
		r.do("POST", "/v1/schemas/subjects/x", large, "Authorization", ann).refused(gateway.CodeTooLarge)
	})
}

// TestUnreadBodiesAreNotWaitedFor: the answer to a request whose body nobody reads comes within a second, and at
// once if the request has too many header fields.
func TestUnreadBodiesAreNotWaitedFor(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		for _, path := range []string{"/livez", "/nowhere", ordersPath} {
			status, closes, waited := r.answered(r.unfinished("POST", path, "", "Content-Length", "1"))
			if status < 400 || !closes || waited > time.Second {
				r.Errorf("%s: status %d, close %v, after %v", path, status, closes, waited)
			}
		}
		status, closes, waited := r.answered(r.unfinished("GET", "/livez", "", "Content-Length", "1"))
		if status != 200 || !closes || waited > time.Second {
			r.Errorf("GET: status %d after %v", status, waited)
		}
		text := fmt.Sprintf("%x\r\n%s", 2<<20, strings.Repeat("x", 1<<20+1))
		status, closes, waited = r.answered(r.unfinished("POST", ordersPath, text, "Transfer-Encoding", "chunked", "Authorization", ann))
		if status != 413 || !closes || waited > time.Second {
			r.Errorf("the rest of a body that is too large: status %d after %v", status, waited)
		}
		var many []string
		for i := range jetbus.MaxHeaders + 60 {
			many = append(many, fmt.Sprintf("x-evt-%d", i), "")
		}
		status, _, _ = r.answered(r.unfinished("GET", "/livez", "", many...))
		if status != 200 {
			r.Errorf("status %d", status)
		}
		many = append(many, "a", "", "a", "", "a", "", "a", "", "a", "")
		status, closes, waited = r.answered(r.unfinished("POST", "/livez", "", append(many, "Content-Length", "1")...))
		if status != 413 || !closes || waited > 0 {
			r.Errorf("many header fields: status %d, close %v, after %v", status, closes, waited)
		}
	})
}
