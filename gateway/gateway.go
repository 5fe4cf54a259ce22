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

// Config configures a gateway. The zero value serves programs on the same machine, without
// tokens, and refuses all other clients.
type Config struct {
	// Auth authenticates tokens. If it is nil, every program on this machine may do
	// everything. The gateway then refuses requests that do not come over a loopback address,
	// that do not name a loopback host and the listener's port, that a proxy has sent, or that
	// pages of other sites have made.
	Auth Authenticator
	// Origins lists the origins whose pages may use the gateway from browsers, for example
	// "https://app.example.com". A "*" in front of a domain matches its subdomains. Without
	// Auth, pages of loopback hosts may use it too.
	Origins []string
	// Headers names the HTTP headers that become headers of events, in addition to "x-evt-..."
	// and the headers of trace context, all in lower case. Each must be a valid event header
	// ([jetbus.ValidHeader]), and not one for credentials (Authorization, Cookie).
	Headers []string
	// Limits bounds what clients may use. Defaults to the defaults of its fields.
	Limits Limits
	// Schemas serves the paths below /v1/schemas. Nil: these paths are not served.
	Schemas http.Handler
	// SchemaOf returns the JSON Schema of a topic's payloads for /openapi.json and
	// /asyncapi.json, or nil if the topic has none. The schema must be self-contained: its
	// references are pointers within it, such as "#/$defs/a". It is called for topics whose
	// schemas the client may read. If the schema includes schemas of other topics, it must
	// return nil unless may allows them all. If it fails, the schema is omitted and the error
	// logged. Nil: the documents do not describe payloads.
	SchemaOf func(ctx context.Context, topic string, may func(topic string) bool) (json.RawMessage, error)
	// PartitionsOf returns the partitions of a group for /v1/groups/{topic}/{group}/partitions,
	// ordered by generation and number. It is called for clients with [OpsRead], concurrently;
	// its context ends with the request. Clients receive its errors like errors of the bus.
	// Usually it calls partition.Status. If nil, the path is not served.
	PartitionsOf func(ctx context.Context, topic, group string) ([]jetbus.PartitionStatus, error)
	// Log receives errors that are not sent to a client. Defaults to none.
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

const (
	// maxFields is how many header fields a request may have: those of an event, and others of the client
	// and of proxies. A field without a value takes 5 bytes to send and about 100 bytes of memory.
	maxFields = jetbus.MaxHeaders + 64
	// unreadTime is how long a client may take to send a body that no handler reads. net/http waits for the
	// body before it responds.
	unreadTime = time.Second
)

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w = g.inPieces(w)
	rc := http.NewResponseController(w)
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		_ = rc.SetReadDeadline(time.Now().Add(unreadTime)) // readBody extends it. Writers of tests have no deadlines
	}
	if fields(r.Header) > maxFields {
		_ = rc.SetReadDeadline(time.Now()) // do not wait for a body: the header stays in memory until the response is complete
		w.Header().Set("Connection", "close")
		g.problem(w, r, refuse(CodeTooLarge, "the request has more than %d header fields", maxFields))
		return
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

// fields returns the number of header fields.
func fields(h http.Header) (n int) {
	for _, values := range h {
		n += len(values)
	}
	return n
}
