package embedded

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/seed-63e9a637/jetbus/internal/loopback"
)

const (
	defaultName = "jetbus"

	// The server sets the MaxBytes of every stream aside when it is created. A
	// limit near what the machine has would leave room for a few topics only,
	// however little they hold.
	defaultMaxMemory = 1 << 40
	defaultMaxStore  = 1 << 50

	// The server refuses a payload limit above what it buffers per client.
	maxMaxPayload = server.MAX_PENDING_SIZE
)

// Config configures a [Broker]. The zero value is a broker with a temporary
// store that accepts in-process connections only.
type Config struct {
	// Name is the server's name, a single word. Default "jetbus".
	Name string
	// Dir is the folder of the file store; it is created if missing.
	// Default "": a temporary folder that Stop removes.
	Dir string

	// Listen is the host:port on which NATS clients are served over TCP. Port 0
	// picks a free port, which is kept over Restart. Default "": in-process
	// connections only.
	Listen string
	// TLS, if set, makes TLS mandatory on Listen. In-process connections do not
	// need it. Default nil: plain TCP.
	TLS *tls.Config

	// User and Password are the credentials that every client must present, also
	// in this process. Connect presents them automatically. Default "": none.
	User, Password string
	// Token is a credential used instead of User and Password. Default "": none.
	Token string

	// WebSocket is the host:port on which the server speaks the NATS protocol
	// over WebSocket. Port 0 picks a free port, which is kept over Restart.
	// Default "": no such listener.
	WebSocket string
	// WebSocketTLS, if set, makes the WebSocket listener speak TLS (wss).
	// Default nil: plain ws.
	WebSocketTLS *tls.Config
	// WebSocketOrigins are the origins ("https://app.example.com") from which
	// browsers may connect. Default nil: only pages of the same host and port.
	// Other clients send no origin and are not restricted by it.
	//
	// A loopback listener without credentials also checks that the Host of a request
	// is a loopback name with the listener's port, to prevent DNS rebinding, and
	// refuses requests that came through a proxy.
	WebSocketOrigins []string

	// SyncAlways syncs every stored message to disk before it is acknowledged.
	// Default false: the message has been handed to the operating system, which
	// a crash of the process survives and a loss of power may not.
	SyncAlways bool
	// MaxMemory bounds the limits (MaxBytes) of all memory streams together, in
	// bytes. Default 1 TiB, which bounds nothing: each stream has its own limit.
	MaxMemory int64
	// MaxStore bounds the limits (MaxBytes) of all file streams together, in bytes.
	// Default 1 PiB, which bounds nothing: each stream has its own limit.
	MaxStore int64
	// MaxPayload bounds headers and data of one message together, in bytes; at
	// most 64 MiB. Default 1 MiB.
	MaxPayload int

	// Routes are the server's connections to the other servers of its cluster: see package
	// embedded/cluster. They belong to one broker. They need Listen, because without it a
	// clustered server waits for clients forever. Their own configuration sets their address
	// and credentials. Default nil: no cluster.
	Routes Routes

	// Logger receives the server's log lines, its notices at level Info.
	// Default nil: they are discarded.
	Logger *slog.Logger
}

// Validate reports everything that is wrong with the configuration. [Start]
// calls it. A listener that is reachable from other machines and has no
// credentials is refused.
func (c Config) Validate() error {
	errs := []error{c.validateCredentials()}
	if strings.ContainsAny(c.Name, " \t\r\n") {
		errs = append(errs, fmt.Errorf("spaces in Name %q", c.Name))
	}
	if c.MaxMemory < 0 || c.MaxStore < 0 {
		errs = append(errs, errors.New("MaxMemory and MaxStore must not be negative"))
	}
	if c.MaxPayload < 0 || c.MaxPayload > maxMaxPayload {
		errs = append(errs, fmt.Errorf("MaxPayload %d is not between 0 and %d", c.MaxPayload, maxMaxPayload))
	}
	errs = append(errs, c.validateListener("Listen", c.Listen), c.validateListener("WebSocket", c.WebSocket))
	if c.Listen == "" && c.Routes != nil {
		errs = append(errs, errors.New("Routes without Listen"))
	}
	if c.Listen == "" && c.TLS != nil {
		errs = append(errs, errors.New("TLS without Listen"))
	}
	errs = append(errs, validateTLS("TLS", c.TLS), validateTLS("WebSocketTLS", c.WebSocketTLS))
	if c.WebSocket == "" && (c.WebSocketTLS != nil || len(c.WebSocketOrigins) > 0) {
		errs = append(errs, errors.New("WebSocketTLS or WebSocketOrigins without WebSocket"))
	}
	for _, o := range c.WebSocketOrigins {
		u, err := url.Parse(o)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			errs = append(errs, fmt.Errorf("WebSocketOrigins: %q is not of the form https://host[:port]", o))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("embedded: invalid config: %w", err)
	}
	return nil
}

func (c Config) validateCredentials() error {
	switch {
	case c.Token != "" && (c.User != "" || c.Password != ""):
		return errors.New("a Token and a User or Password exclude each other")
	case c.User != "" && c.Password == "":
		return fmt.Errorf("no Password for User %q", c.User)
	case c.User == "" && c.Password != "":
		return errors.New("a Password without User")
	}
	return nil
}

// ErrReachable says that a listener would take anybody who reaches this machine, without credentials.
var ErrReachable = errors.New("is reachable from other machines")

func (c Config) validateListener(field, addr string) error {
	if addr == "" {
		return nil
	}
	if _, _, err := splitAddr(addr); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	if !loopback.Address(addr) && c.User == "" && c.Token == "" {
		return fmt.Errorf("%s %q %w: set User and Password, or Token, or listen on 127.0.0.1", field, addr, ErrReachable)
	}
	return nil
}

func validateTLS(field string, t *tls.Config) error {
	if t != nil && len(t.Certificates) == 0 && t.GetCertificate == nil && t.GetConfigForClient == nil {
		return fmt.Errorf("%s has no certificate", field)
	}
	return nil
}

// splitAddr splits host:port and checks that the port is a number.
func splitAddr(addr string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("address %s: port %q is not a number from 0 to 65535", addr, p)
	}
	return host, int(n), nil
}

// listenPort says in the server's terms which port to use: the one it got
// before, else the configured one, where 0 means any.
func listenPort(configured, before int) int {
	switch {
	case before != 0:
		return before
	case configured == 0:
		return server.RANDOM_PORT
	}
	return configured
}

// dialURL is the URL under which a listener can be dialed from this machine.
func dialURL(scheme, host string, port int) string {
	switch ip := net.ParseIP(host); {
	case host == "" || ip != nil && ip.IsUnspecified() && ip.To4() != nil:
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// ports are the ports that a broker got at its first start. 0 means none yet.
type ports struct{ client, webSocket int }

// authTimeout is how long a client may take to say who it is. The server's own 2 seconds
// are too short where many clients share few processors with it: those it turns away come
// back at once, all together.
const authTimeout = 10 * time.Second

// options are the server's options for a start on dir.
func (c Config) options(dir string, p ports) (*server.Options, error) {
	o := &server.Options{
		ServerName:         c.Name,
		DontListen:         c.Listen == "",
		NoSigs:             true,
		NoLog:              true, // the logger is set on the server itself
		MaxPayload:         int32(c.MaxPayload),
		JetStream:          true,
		StoreDir:           dir,
		JetStreamMaxMemory: c.MaxMemory,
		JetStreamMaxStore:  c.MaxStore,
		SyncAlways:         c.SyncAlways,
		AuthTimeout:        authTimeout.Seconds(),
		// The server's own default would be 1000 consumers per stream.
		JetStreamLimits:        server.JSLimitOpts{DefaultMaxConsumers: -1},
		DisableJetStreamBanner: true,
	}
	if c.Listen != "" {
		host, port, err := splitAddr(c.Listen)
		if err != nil {
			return nil, err
		}
		o.Host, o.Port = host, listenPort(port, p.client)
		if c.TLS != nil {
			o.TLSConfig, o.TLS = c.TLS.Clone(), true
		}
	}
	if c.WebSocket != "" {
		host, port, err := splitAddr(c.WebSocket)
		if err != nil {
			return nil, err
		}
		o.Websocket = server.WebsocketOpts{
			Host: host, Port: listenPort(port, p.webSocket),
			NoTLS: c.WebSocketTLS == nil,
			// Else any page in a browser on this machine could reach a loopback listener.
			SameOrigin:     len(c.WebSocketOrigins) == 0,
			AllowedOrigins: c.WebSocketOrigins,
		}
		if c.WebSocketTLS != nil {
			o.Websocket.TLSConfig = c.WebSocketTLS.Clone()
		}
	}
	return o, nil
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = defaultName
	}
	if c.Routes == nil {
		c.Routes = noRoutes{}
	}
	if c.MaxMemory == 0 {
		c.MaxMemory = defaultMaxMemory
	}
	if c.MaxStore == 0 {
		c.MaxStore = defaultMaxStore
	}
	if c.MaxPayload == 0 {
		c.MaxPayload = server.MAX_PAYLOAD_SIZE
	}
	return c
}

// storeDir is where the server keeps its files under its store folder.
func storeDir(dir string) string { return filepath.Join(dir, server.JetStreamStoreDir) }

func cutScheme(u string) (scheme, hostport string, ok bool) { return strings.Cut(u, "://") }
