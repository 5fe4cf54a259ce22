package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// newDoor makes a gateway that has no bus: what lets clients in needs none.
func newDoor(t *testing.T, c Config) *Gateway {
	t.Helper()
	gate, err := newGate(c)
	if err != nil {
		t.Fatal(err)
	}
	return &Gateway{c: c, gate: gate}
}

// knock is a request that came in over an address.
func knock(local, host string, header ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/v1/topics/orders", nil)
	r.Host = host
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	addr, _ := net.ResolveTCPAddr("tcp", local)
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr))
}

func TestWithoutTokens(t *testing.T) {
	g := newDoor(t, Config{})
	for _, c := range []struct {
		r    *http.Request
		want bool
	}{
		{knock("127.0.0.1:8080", "127.0.0.1:8080"), true},
		{knock("127.0.0.1:8080", "localhost:8080"), true},
		{knock("127.0.0.1:8080", "LOCALHOST.:8080"), true},
		{knock("127.0.0.1:80", "localhost"), true},
		{knock("127.0.0.1:8080", "localhost"), false},
		{knock("127.0.0.1:8080", "localhost:8081"), false},
		{knock("127.0.0.1:8080", "app.localhost:8080"), true},
		{knock("[::1]:8080", "[::1]:8080"), true},
		{knock("[::1]:80", "[::1]"), true},
		{knock("192.0.2.1:8080", "192.0.2.1:8080"), false},
		{knock("192.0.2.1:8080", "localhost:8080"), false},
		{knock("127.0.0.1:8080", "evil.example.com"), false},
		{knock("127.0.0.1:8080", "127.0.0.1.evil.example.com"), false},
		{knock("127.0.0.1:8080", "localhost.evil.example.com"), false},
		{knock("127.0.0.1:8080", ""), false},
		{knock("127.0.0.1:8080", "0.0.0.0:8080"), false},
		{knock("127.0.0.1:8080", "127.0.0.1:8080", "X-Forwarded-For", "192.0.2.1"), false},
		{knock("127.0.0.1:8080", "127.0.0.1:8080", "X-Forwarded-Host", "bus.example.com"), false},
		{knock("127.0.0.1:8080", "127.0.0.1:8080", "X-Forwarded-Proto", "https"), false},
		{knock("127.0.0.1:8080", "127.0.0.1:8080", "Forwarded", "for=192.0.2.1"), false},
		{knock("127.0.0.1:8080", "127.0.0.1:8080", "Sec-Fetch-Site", "cross-site"), false},
		{knock("127.0.0.1:8080", "127.0.0.1:8080", "Sec-Fetch-Site", "none"), true},
		{httptest.NewRequest(http.MethodGet, "http://localhost/", nil), false}, // over nobody knows what
	} {
		who, err := g.authenticate(t.Context(), c.r, "")
		if (err == nil) != c.want || who.Scopes.Allow(TopicRead, "orders") != c.want {
			t.Errorf("%v over %v, %v: %v", c.r.Host, c.r.Context().Value(http.LocalAddrContextKey), c.r.Header, err)
		}
		if err != nil && codeOf(err) != CodeForbidden {
			t.Errorf("%s: %v", c.r.Host, err)
		}
	}
}

func TestBearer(t *testing.T) {
	for _, c := range []struct {
		header []string
		want   string
	}{
		{nil, ""},
		{[]string{"Authorization", "Bearer abc"}, "abc"},
		{[]string{"Authorization", "bEARER  abc "}, "abc"},
		{[]string{"Authorization", "Basic abc"}, ""},
		{[]string{"Authorization", "Bearer"}, ""},
		{[]string{"Authorization", "Bearerabc"}, ""},
		{[]string{"Authorization", "Bearer a", "Authorization", "Bearer b"}, ""},
		{[]string{"Sec-WebSocket-Protocol", "jetbus.v1.json, bearer.a.b.c"}, "a.b.c"},
		{[]string{"Sec-WebSocket-Protocol", "jetbus.v1.json", "Sec-WebSocket-Protocol", "bearer.abc"}, "abc"},
		{[]string{"Sec-WebSocket-Protocol", "bearer.a, bearer.b"}, ""},
		{[]string{"Authorization", "Bearer a", "Sec-WebSocket-Protocol", "bearer.b"}, ""},
		{[]string{"Cookie", "token=abc"}, ""},
	} {
		if got := bearer(knock("127.0.0.1:1", "localhost", c.header...)); got != c.want {
			t.Errorf("%v: %q", c.header, got)
		}
	}
}

func TestAuthenticate(t *testing.T) {
	r := knock("192.0.2.1:443", "bus.example.com")
	for _, c := range []struct {
		auth  Authenticator
		token string
		want  Code
	}{
		{fixed{who: Principal{Subject: "ann"}}, "x", ""},
		{fixed{who: Principal{Subject: "ann"}}, "", ""}, // it decides who needs one
		{fixed{err: ErrBadToken}, "", CodeUnauthorized},
		{fixed{err: ErrBadToken}, "x", CodeBadToken},
		{fixed{err: ErrTokenExpired}, "x", CodeTokenExpired},
		{fixed{who: Principal{Subject: "ann", Expires: time.Now().Add(-time.Second)}}, "x", CodeTokenExpired},
		{fixed{err: errors.New("dial tcp 10.0.0.1:443: refused")}, "x", CodeInternal},
		{fixed{who: Principal{Subject: "ann"}}, strings.Repeat(".", 9<<10), CodeBadToken},
	} {
		who, err := newDoor(t, Config{Auth: c.auth}).authenticate(t.Context(), r, c.token)
		switch {
		case c.want == "" && (err != nil || who.Subject != "ann"):
			t.Errorf("%.10q: %v, %v", c.token, who, err)
		case c.want != "" && (err == nil || codeOf(err) != c.want || who.Subject != ""):
			t.Errorf("%.10q: %v, %v, want %s", c.token, who, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "10.0.0.1") {
			t.Errorf("the error names an address: %v", err)
		}
	}
}

func TestAdmit(t *testing.T) {
	g := newDoor(t, Config{Auth: fixed{who: Principal{Subject: "ann", Scopes: scopes(t, "ann", "topic:read:orders")}}})
	for _, c := range []struct {
		p    Permission
		name string
		want int
	}{
		{TopicRead, "orders", 200},
		{"", "", 200},
		{TopicRead, "other", 403},
		{TopicWrite, "orders", 403},
		{OpsRead, "", 403},
	} {
		w := httptest.NewRecorder()
		who, ok := g.admit(w, knock("192.0.2.1:443", "bus", "Authorization", "Bearer x"), c.p, c.name)
		if ok != (c.want == 200) || w.Code != c.want || ok != (who.Subject == "ann") {
			t.Errorf("%s %s: %v, %d %s", c.p, c.name, ok, w.Code, w.Body)
		}
	}
}

func TestAdmitRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newDoor(t, Config{Auth: fixed{who: Principal{Subject: "ann"}}, Limits: Limits{Rate: 2, Burst: 3}})
		r := knock("192.0.2.1:443", "bus", "Authorization", "Bearer x")
		for i := range 4 {
			w := httptest.NewRecorder()
			_, ok := g.admit(w, r, "", "")
			if ok != (i < 3) {
				t.Fatalf("request %d: %v", i, ok)
			}
			if !ok && (w.Code != 429 || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), `"retry_after_ms":500`)) {
				t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
			}
		}
		time.Sleep(500 * time.Millisecond)
		if _, ok := g.admit(httptest.NewRecorder(), r, "", ""); !ok {
			t.Error("refused after the time that it was told")
		}
		if err := g.charge(Principal{Subject: "bob"}, 1); err != nil {
			t.Errorf("another subject: %v", err)
		}
	})
}

func TestLimiter(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newLimiter(10, 5, now)
	if ok, _ := l.take(now, 100); !ok {
		t.Error("a full bucket grants what is more than it holds")
	}
	if ok, wait := l.take(now, 1); ok || wait != 9600*time.Millisecond {
		t.Errorf("owed: %v, %v", ok, wait)
	}
	if ok, _ := l.take(now.Add(-time.Hour), 1); ok {
		t.Error("a clock that goes back fills it")
	}
	if ok, _ := l.take(now.Add(9600*time.Millisecond), 1); !ok {
		t.Error("not filled after the time that it said")
	}
	if ok, _ := newLimiter(-1, 0, now).take(now, 1e9); !ok {
		t.Error("-1 limits")
	}
	var s limiters
	for i := range 5000 {
		if ok, _ := s.take(fmt.Sprint(i), 1e9, 1, 1); !ok {
			t.Fatal(i)
		}
	}
	if len(s.of) > 4096 {
		t.Errorf("%d buckets are kept that are full", len(s.of))
	}
}

func TestOrigins(t *testing.T) {
	g := newDoor(t, Config{Auth: fixed{}, Origins: []string{"https://app.example.com", "https://*.example.org", "http://dev.example.net:3000"}})
	for _, c := range []struct {
		origin string
		want   bool
	}{
		{"", true},
		{"https://app.example.com", true},
		{"https://APP.example.com:443", true},
		{"https://bus.example.com", true}, // its own
		{"https://bus.example.com:8443", false},
		{"http://app.example.com", false},
		{"https://app.example.com:8443", false},
		{"https://app.example.com.evil.net", false},
		{"https://evil-app.example.com", false},
		{"https://a.example.org", true},
		{"https://a.b.example.org", true},
		{"https://example.org", false},
		{"https://aexample.org", false},
		{"http://dev.example.net:3000", true},
		{"http://dev.example.net", false},
		{"http://localhost:3000", false},
		{"null", false},
		{"file://", false},
		{"https://", false},
		{"https://app.example.com/", false},
		{"https://a@app.example.com", false},
		{"https://app.example.com?", false},
		{"https://app.example.com#", false},
		{"chrome-extension://abc", false},
	} {
		r := knock("192.0.2.1:443", "bus.example.com")
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		if got := g.originAllowed(r); got != c.want {
			t.Errorf("%q: %v", c.origin, got)
		}
	}
	twice := knock("192.0.2.1:443", "bus.example.com", "Origin", "https://app.example.com", "Origin", "https://app.example.com")
	if g.originAllowed(twice) {
		t.Error("two origins are allowed")
	}
	own := newDoor(t, Config{})
	for origin, want := range map[string]bool{"http://localhost:3000": true, "http://127.0.0.1:5173": true, "https://app.example.com": false, "null": false} {
		if got := own.originAllowed(knock("127.0.0.1:8080", "localhost:8080", "Origin", origin)); got != want {
			t.Errorf("without tokens, %s: %v", origin, got)
		}
	}
	for _, bad := range []string{"", "*", "app.example.com", "https://a/b", "https://*", "https://a.*.b", "ftp://a", "https://*.*.a"} {
		if _, err := newGate(Config{Origins: []string{bad}}); !errors.Is(err, jetbus.ErrInvalidOption) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestCross(t *testing.T) {
	g := newDoor(t, Config{Auth: fixed{}, Origins: []string{"https://app.example.com"}})
	w := httptest.NewRecorder()
	if g.cross(w, knock("192.0.2.1:443", "bus", "Origin", "https://evil.example.com")) || w.Code != 403 || w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("another page: %d %v", w.Code, w.Header())
	}
	w = httptest.NewRecorder()
	if !g.cross(w, knock("192.0.2.1:443", "bus", "Origin", "https://app.example.com")) || w.Header().Get("Access-Control-Allow-Origin") != "https://app.example.com" || w.Header().Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("a listed page: %d %v", w.Code, w.Header())
	}
	r := knock("192.0.2.1:443", "bus", "Origin", "https://app.example.com", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization")
	r.Method = http.MethodOptions
	w = httptest.NewRecorder()
	if g.cross(w, r) || w.Code != 204 || w.Header().Get("Access-Control-Allow-Headers") != "authorization" {
		t.Errorf("asked before: %d %v", w.Code, w.Header())
	}
}

// detail is an error with details.
type detail struct{ v any }

func (d detail) Error() string { return "it breaks\nits schema" }
func (d detail) Details() any  { return d.v }
func (d detail) Unwrap() error { return jetbus.ErrSchema }

func TestProblem(t *testing.T) {
	var log bytes.Buffer
	g := newDoor(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	ask := func(err error) (*httptest.ResponseRecorder, map[string]any) {
		t.Helper()
		w := httptest.NewRecorder()
		g.problem(w, knock("127.0.0.1:1", "localhost"), err)
		var m map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil || w.Header().Get("Content-Type") != "application/problem+json" || m["status"] != float64(w.Code) || m["title"] == "" {
			t.Errorf("%s: %v", w.Body, err)
		}
		return w, m
	}
	w, m := ask(fmt.Errorf("publish: %w", detail{[]string{"/id"}}))
	if w.Code != 422 || m["code"] != "schema_invalid" || m["retryable"] != false || m["detail"] != "publish: it breaks its schema" || fmt.Sprint(m["details"]) != "[/id]" {
		t.Errorf("%d %v", w.Code, m)
	}
	if _, m := ask(detail{func() {}}); m["code"] != "schema_invalid" || m["details"] != nil {
		t.Errorf("details that are no JSON: %v", m)
	}
	if w, _ := ask(refuse(CodeUnauthorized, "a token is needed")); w.Code != 401 || w.Header().Get("WWW-Authenticate") != `Bearer realm="jetbus"` {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if w, _ := ask(refuse(CodeTokenExpired, "it has")); w.Code != 401 || !strings.Contains(w.Header().Get("WWW-Authenticate"), "invalid_token") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}
	// What names the broker is logged, and not told.
	w, m = ask(fmt.Errorf("publish: dial nats://10.0.0.7:4222: %w", jetbus.ErrUnavailable))
	if w.Code != 503 || m["retryable"] != true || strings.Contains(w.Body.String(), "10.0.0.7") || !strings.Contains(log.String(), "10.0.0.7") {
		t.Errorf("%d %s, log %s", w.Code, w.Body, &log)
	}
	if _, m := ask(fmt.Errorf("%w: %s", jetbus.ErrInvalidTopic, strings.Repeat("\xff", 1<<20))); len(fmt.Sprint(m["detail"])) > 2*maxMessageBytes {
		t.Error("a long message is not cut")
	}
}

func TestCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Code
	}{
		{&jetbus.PublishError{Err: jetbus.ErrUnavailable}, CodeBrokerUnavailable},
		{&jetbus.PublishError{Err: errors.New("odd")}, CodePublishFailed},
		{&jetbus.PublishError{Err: jetbus.ErrWrongSequence}, CodeSeqConflict},
		{&jetbus.ConflictError{What: "group orders/billing"}, CodeGroupConfigConflict},
		{&jetbus.ConflictError{What: "topic orders"}, CodeConflict},
		{&jetbus.GroupBusyError{}, CodeGroupBusy},
		{&jetbus.PanicError{Value: 1}, CodeInternal},
		{&http.MaxBytesError{}, CodeTooLarge},
		{json.Unmarshal([]byte("{"), new(any)), CodeBadJSON},
		{io.ErrUnexpectedEOF, CodeInternal},
		{fmt.Errorf("a: %w", refuse(CodeTooManySubs, "b")), CodeTooManySubs},
		{jetbus.ValidTopic("A B"), CodeBadRequest},
		{jetbus.ErrNoTopic, CodeUnknownTopic},
		{jetbus.ErrDenied, CodeForbidden},
		{context.DeadlineExceeded, CodeBrokerUnavailable},
	} {
		if got := codeOf(c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
	for c := range statuses {
		if s := c.Status(); s < 400 || http.StatusText(s) == "" || c.Retryable() && s < 429 && c != CodeTokenExpired && c != CodeGroupBusy {
			t.Errorf("%s: %d", c, s)
		}
	}
	if Code("odd").Status() != 500 {
		t.Error("a code that is not listed")
	}
}

func FuzzOrigins(f *testing.F) {
	for _, s := range []string{"https://app.example.com", "https://*.example.com", "null", "http://[::1]:1", "https://a:b@c", "https://\xff"} {
		f.Add(s, "https://x.example.com")
	}
	f.Fuzz(func(t *testing.T, listed, sent string) {
		list, err := parseOrigins([]string{listed})
		if err != nil {
			return
		}
		o, ok := parseOrigin(sent)
		if !ok || !list[0].covers(o) {
			return
		}
		if o.scheme != list[0].scheme || o.host != list[0].host && !strings.HasSuffix(o.host, "."+list[0].host) {
			t.Fatalf("%q covers %q", listed, sent)
		}
	})
}

// nobody gives no subject.
type nobody struct{}

// Authenticate implements Authenticator.
func (nobody) Authenticate(context.Context, string) (Principal, error) {
	return Principal{Scopes: AllScopes()}, nil
}

func TestSubjectIsNeeded(t *testing.T) {
	g := idleGateway(t, Config{Auth: nobody{}})
	if p, err := g.authenticate(t.Context(), httptest.NewRequest("GET", "/", nil), "token"); codeOf(err) != CodeInternal {
		t.Errorf("%+v, %v", p, err)
	}
}
