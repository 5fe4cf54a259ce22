//go:build web

package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/gateway"
)

// patience bounds every wait for the broker or a gateway. It only matters where a test fails.
const patience = 2 * time.Minute

// rig is a broker and its gateways, and an address at which the suite asks for faults.
type rig struct {
	*testing.T
	broker  *embedded.Broker
	bus     *adapter.Bus
	open    front  // its connections are cut
	direct  string // another address of the same gateway, whose connections are not
	guarded front  // with tokens
	limited front  // that takes few frames a second
	control string
	results chan result
}

// result is what the suite in a browser says of a scene.
type result struct {
	Scene string `json:"scene"`
	Error string `json:"error"`
	MS    int64  `json:"ms"`
	Done  bool   `json:"done"` // of all
}

// newRig starts all of it. It ends with the test.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{T: t, results: make(chan result, 1000)}
	ctx := t.Context()
	var err error
	if r.broker, err = embedded.Start(ctx, embedded.Config{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.must(r.broker.Stop(context.Background())) })
	nc, err := r.broker.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if r.bus, err = adapter.Open(ctx, nc, adapter.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.must(r.bus.Close(context.Background())) })

	mux := http.NewServeMux()
	mux.Handle("GET /web/", http.StripPrefix("/web/", http.FileServer(http.Dir(module))))
	mux.HandleFunc("GET /rig/config", r.config)
	mux.HandleFunc("POST /rig/result", r.result)
	for name, f := range map[string]func(context.Context, topic) error{
		"topic": r.topic, "remake": r.remake, "restart": r.restart, "away": r.away, "cut": r.cut, "mute": r.mute, "replace": r.replace,
	} {
		mux.HandleFunc("POST /rig/"+name, func(w http.ResponseWriter, q *http.Request) { r.do(w, q, f) })
	}
	control := r.listen()
	r.control = "http://" + control.Addr().String()
	r.serve(&r.open, gateway.Config{})
	r.serve(&r.guarded, gateway.Config{Auth: tokens{}, Origins: []string{r.control}})
	r.serve(&r.limited, gateway.Config{Limits: gateway.Limits{Rate: 500, Burst: 500}})
	direct := r.listen()
	r.direct = direct.Addr().String()
	r.accept(direct, &r.open)
	r.accept(control, mux)
	return r
}

func (r *rig) must(err error) {
	if err != nil {
		r.Error(err)
	}
}

// front is an address with a gateway behind it, which may be replaced.
type front struct {
	address string
	gateway atomic.Pointer[gateway.Gateway]
	conns   sync.Map // of *line
}

// ServeHTTP implements http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.gateway.Load().ServeHTTP(w, r)
}

// serve starts a gateway at an address of its own.
func (r *rig) serve(f *front, c gateway.Config) {
	g, err := gateway.New(r.bus, c)
	if err != nil {
		r.Fatal(err)
	}
	f.gateway.Store(g)
	l := r.listen()
	f.address = l.Addr().String()
	r.accept(lines{l, &f.conns}, f)
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r.must(f.gateway.Load().Drain(ctx))
	})
}

func (r *rig) listen() net.Listener {
	l, err := (&net.ListenConfig{}).Listen(r.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	return l
}

// accept serves a handler until the test ends.
func (r *rig) accept(l net.Listener, h http.Handler) {
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	var served sync.WaitGroup
	served.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			r.Error(err)
		}
	})
	r.Cleanup(func() {
		_ = server.Close()
		served.Wait()
	})
}

// lines is a listener whose connections can be broken.
type lines struct {
	net.Listener
	conns *sync.Map // of *line
}

// Accept implements net.Listener.
func (l lines) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	one := &line{Conn: nc}
	l.conns.Store(one, nil)
	return one, nil
}

// line is a connection, of which what is written may be lost.
type line struct {
	net.Conn
	muted atomic.Bool
}

// Write implements net.Conn.
func (l *line) Write(p []byte) (int, error) {
	if l.muted.Load() {
		return len(p), nil
	}
	return l.Conn.Write(p)
}

// topic is what the suite asks for: a topic's name, what that needs to be, and a time.
type topic struct {
	Name     string `json:"name"`
	Compact  bool   `json:"compact"`
	WindowMS int    `json:"windowMs"` // for which it knows ids; 0: for as long as topics do
	MS       int    `json:"ms"`       // of away
}

func (r *rig) do(w http.ResponseWriter, q *http.Request, f func(context.Context, topic) error) {
	var what topic
	err := json.NewDecoder(q.Body).Decode(&what)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(q.Context()), patience)
		defer cancel()
		err = f(ctx, what)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (r *rig) topic(ctx context.Context, what topic) error {
	window := time.Duration(what.WindowMS) * time.Millisecond
	_, err := r.bus.EnsureTopic(ctx, jetbus.TopicConfig{Name: what.Name, Compact: what.Compact, DuplicateWindow: window})
	return err
}

// remake makes a topic anew.
func (r *rig) remake(ctx context.Context, what topic) error {
	if err := r.bus.DeleteTopic(ctx, what.Name); err != nil {
		return err
	}
	return r.topic(ctx, what)
}

// restart stops the broker, and starts it again on its store.
func (r *rig) restart(ctx context.Context, _ topic) error { return r.broker.Restart(ctx) }

// away kills the broker, and starts it again on its store after a while.
func (r *rig) away(ctx context.Context, what topic) error {
	if err := r.broker.Kill(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(what.MS) * time.Millisecond):
	case <-ctx.Done():
	}
	return r.broker.Restart(ctx)
}

// cut breaks all connections to the open gateway.
func (r *rig) cut(context.Context, topic) error {
	r.open.conns.Range(func(one, _ any) bool {
		r.open.conns.Delete(one)
		_ = one.(*line).Close()
		return true
	})
	return nil
}

// mute loses what the open gateway says on the connections that there are.
func (r *rig) mute(context.Context, topic) error {
	r.open.conns.Range(func(one, _ any) bool {
		one.(*line).muted.Store(true)
		return true
	})
	return nil
}

// replace starts another gateway in place of the open one, and drains that.
func (r *rig) replace(ctx context.Context, _ topic) error {
	g, err := gateway.New(r.bus, gateway.Config{})
	if err != nil {
		return err
	}
	return r.open.gateway.Swap(g).Drain(ctx)
}

func (r *rig) config(w http.ResponseWriter, _ *http.Request) {
	r.must(json.NewEncoder(w).Encode(map[string]string{
		"control": r.control,
		"open":    "ws://" + r.open.address + "/ws", "direct": "ws://" + r.direct + "/ws", "guarded": "http://" + r.guarded.address,
		"limited": "ws://" + r.limited.address + "/ws",
	}))
}

func (r *rig) result(w http.ResponseWriter, q *http.Request) {
	var one result
	if err := json.NewDecoder(q.Body).Decode(&one); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.results <- one
}

// tokens are tokens of the suite: "subject scope scope ...", with "~" and its end in seconds
// since 1970 before it.
type tokens struct{}

// Authenticate implements gateway.Authenticator.
func (tokens) Authenticate(_ context.Context, token string) (gateway.Principal, error) {
	var p gateway.Principal
	if rest, ends := strings.CutPrefix(token, "~"); ends {
		text, rest, _ := strings.Cut(rest, " ")
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return p, fmt.Errorf("%w: %w", gateway.ErrBadToken, err)
		}
		token, p.Expires = rest, time.Unix(seconds, 0)
	}
	fields := strings.Fields(token)
	if len(fields) < 2 {
		return p, gateway.ErrBadToken
	}
	if !p.Expires.IsZero() && !time.Now().Before(p.Expires) {
		return p, gateway.ErrTokenExpired
	}
	var err error
	p.Subject = fields[0]
	p.Scopes, err = gateway.ParseScopes(p.Subject, fields[1:]...)
	return p, err
}
