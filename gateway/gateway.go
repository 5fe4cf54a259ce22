package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// Config says how a gateway serves. The zero value is that of a program on its own
// machine: no tokens, and nobody else is answered.
type Config struct {
	// Auth tells whom a token stands for. Nil: every program on this machine may do
	// everything. Requests are refused that come over another than a loopback address, under
	// another than a loopback name with the listener's port, through a proxy, or from pages
	// of other sites.
	Auth Authenticator
	// Origins may use the gateway from browsers, "https://app.example.com"; "*" in front of
	// a domain stands for its subdomains. Without Auth, pages of loopback hosts may too.
	Origins []string
	// Headers are names of HTTP headers that become headers of events, besides "x-evt-..."
	// and those of trace context, all in lower case. Each must be one that an event may carry
	// ([jetbus.ValidHeader]), and none that has credentials (Authorization, Cookie).
	Headers []string
	// Limits bound what clients may use. Defaults to those of Limits.
	Limits Limits
	// Schemas serves /v1/schemas, below that path. Nil: there is none.
	Schemas http.Handler
	// SchemaOf returns the JSON Schema of a topic's payloads, nil where it has none, for
	// /openapi.json and /asyncapi.json. It is complete in itself: references are pointers
	// within it, "#/$defs/a". It is asked for topics whose schemas the client may read; one that
	// shows those of others, too, is nil unless may allows them. One that cannot be told is
	// left out and logged. Nil: the documents say nothing about payloads.
	SchemaOf func(ctx context.Context, topic string, may func(topic string) bool) (json.RawMessage, error)
	// Log gets what nobody else can be told. Defaults to none.
	Log *slog.Logger
}

// Gateway serves a bus to clients that do not speak NATS. It is safe for concurrent use.
// The bus stays its owner's: close it after Drain.
type Gateway struct {
	b    jetbus.Backend
	c    Config
	gate *gate // see newGate
	mux  *http.ServeMux
	life
	health health
	pulls  pulls
	live   live
	budget *budget.Budget
}

// New makes a gateway over a bus. The error wraps [jetbus.ErrInvalidOption] and names the
// field. Nothing runs before the first request; end it with Drain.
func New(b jetbus.Backend, c Config) (*Gateway, error) {
	if b == nil {
		return nil, fmt.Errorf("new gateway: %w: no bus", jetbus.ErrInvalidOption)
	}
	if err := c.normalize(); err != nil {
		return nil, fmt.Errorf("new gateway: %w", err)
	}
	gate, err := newGate(c)
	if err != nil {
		return nil, fmt.Errorf("new gateway: %w", err)
	}
	g := &Gateway{b: b, c: c, gate: gate, mux: http.NewServeMux(), budget: newBudget(c)}
	g.init()
	g.pulls.init()
	g.live.ends = map[liveKey]*liveEnd{}
	g.routes()
	return g, nil
}

// normalize fills in defaults.
func (c *Config) normalize() error {
	for _, name := range c.Headers {
		if err := allowable(strings.ToLower(name)); err != nil {
			return fmt.Errorf("%w: Headers: %w", jetbus.ErrInvalidOption, err)
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	var err error
	c.Limits, err = c.Limits.normalize()
	return err
}

// allowable reports an HTTP header that is not to become one of events, which are kept and
// which others read.
func allowable(name string) error {
	switch name {
	case "authorization", "proxy-authorization", "cookie", "set-cookie":
		return fmt.Errorf("%w: %s has credentials of its sender", jetbus.ErrInvalidHeader, name)
	}
	return jetbus.ValidHeader(name, "v")
}

// routes says which path is whose.
func (g *Gateway) routes() {
	g.webSocketRoutes(g.mux)
	g.schemaRoutes(g.mux)
	g.httpRoutes(g.mux)
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w = g.inPieces(w)
	if r.ContentLength != 0 { // before it answers net/http reads what nobody has read
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTime)) // what has no deadlines is a test's
	}
	if !g.cross(w, r) {
		return
	}
	if err := refuseHeaders(r.Header); err != nil {
		g.problem(w, r, err)
		return
	}
	g.mux.ServeHTTP(w, r)
}
