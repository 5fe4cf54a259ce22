package client

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Config says how a client connects. Only URL is required.
type Config struct {
	// URL is where the gateway is: "https://bus.example.com", or with http, ws or wss. A path
	// is where the gateway's own paths begin. Required.
	URL string
	// Token returns the token to authenticate with. It is asked at each connect and before the
	// one in use expires, on goroutines of the client's, and must be safe for concurrent use.
	// An error of it is a failed attempt to connect. Nil: the gateway needs none.
	Token func(ctx context.Context) (string, error)
	// HTTPClient makes the requests, the one that becomes a WebSocket among them; for
	// certificates and proxies. A Timeout of it must be zero. Defaults to one with a transport of its own.
	HTTPClient *http.Client
	// Reconnect is the wait before a connection is made again. Defaults to random waits of up to
	// 250 milliseconds at first and 30 seconds at last.
	Reconnect jetbus.Backoff
	// ConnectTimeout bounds one attempt to connect, from dialing to the end of the
	// authentication. Defaults to 10 seconds.
	ConnectTimeout time.Duration
	// Timeout bounds calls whose context has no deadline. Defaults to 10 seconds.
	Timeout time.Duration
	// ResumeGrace is how long the gateway keeps for this client what its handlers hold when the
	// connection breaks; after that, others get it. Defaults to 30 seconds, or what the gateway
	// allows where that is less. -1: not at all.
	ResumeGrace time.Duration
	// Buffer is how many bytes of events wait for a reader (Read, Scan) that is slower than the
	// topic; beyond it reading stops and goes on later. Defaults to 1 MiB.
	Buffer int
	// SID is the session id stamped on events that have none. Defaults to a new UUIDv7.
	SID string
	// Observer is told what the client does. Defaults to nobody.
	Observer jetbus.Observer
	// Logger gets what nobody else can be told: connections that break, handlers that fail.
	// Defaults to none.
	Logger *slog.Logger
}

// Defaults of Config.
const (
	defaultTimeout   = 10 * time.Second
	defaultGrace     = 30 * time.Second
	defaultReconnect = 250 * time.Millisecond
	maxReconnect     = 30 * time.Second
	defaultBuffer    = 1 << 20
)

// normalize fills in defaults. The error wraps [jetbus.ErrInvalidOption] and names the field.
func (c Config) normalize() (Config, error) {
	bad := func(format string, args ...any) (Config, error) {
		return c, fmt.Errorf("%w: %s", jetbus.ErrInvalidOption, fmt.Sprintf(format, args...))
	}
	if c.HTTPClient == nil {
		c.HTTPClient = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()} //nolint:forcetypeassert // it is one unless a program replaced it
	}
	if c.Reconnect == (jetbus.Backoff{}) {
		c.Reconnect = jetbus.Backoff{Min: defaultReconnect, Max: maxReconnect}
	}
	var err error
	if c.Reconnect, err = c.Reconnect.Normalize(); err != nil {
		return c, fmt.Errorf("reconnect: %w", err)
	}
	setDefault(&c.ConnectTimeout, defaultTimeout)
	setDefault(&c.Timeout, defaultTimeout)
	setDefault(&c.ResumeGrace, defaultGrace)
	setDefault(&c.Buffer, defaultBuffer)
	if c.SID == "" {
		c.SID = jetbus.NewID()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.HTTPClient.Timeout != 0:
		return bad("HTTPClient has a Timeout, which would end the connection: use ConnectTimeout")
	case c.ConnectTimeout < 0 || c.Timeout < 0:
		return bad("ConnectTimeout and Timeout are not negative")
	case c.ResumeGrace < -1:
		return bad("ResumeGrace is %v, use -1 for none", c.ResumeGrace)
	case c.Buffer < 0:
		return bad("Buffer is negative")
	}
	if err := (&jetbus.Event{Topic: "t", SID: c.SID}).Validate(); err != nil {
		return c, fmt.Errorf("%w: SID: %w", jetbus.ErrInvalidOption, err)
	}
	return c, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// addresses are where the WebSocket and the paths of HTTP are.
func addresses(text string) (socket, web string, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", "", fmt.Errorf("%w: URL: %w", jetbus.ErrInvalidOption, err)
	}
	secure := false
	switch u.Scheme {
	case "https", "wss":
		secure = true
	case "http", "ws":
	default:
		return "", "", fmt.Errorf("%w: URL %.200q: use https, or http, ws or wss", jetbus.ErrInvalidOption, text)
	}
	if u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", "", fmt.Errorf("%w: URL: a host, and perhaps a path, is all there may be; a token is for Config.Token", jetbus.ErrInvalidOption)
	}
	u.Path, u.RawPath = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/ws"), ""
	at := u.Host + u.EscapedPath()
	if secure {
		return "wss://" + at + "/ws", "https://" + at, nil
	}
	return "ws://" + at + "/ws", "http://" + at, nil
}
