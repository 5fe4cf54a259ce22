package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

var (
	// ErrNotRunning is returned where a running server is needed and there is
	// none, after Kill or a Restart that failed. Restart starts it again.
	ErrNotRunning = errors.New("broker is not running")
	// ErrStopped is returned by a Broker that was stopped. Start a new one.
	ErrStopped = errors.New("broker is stopped")
	// ErrInUse is returned by Start if another running Broker, of this process
	// or another one, uses the folder.
	ErrInUse = errors.New("folder is in use by another broker")
)

// errLocked is what the lockFile of every platform returns for a taken lock.
var errLocked = errors.New("locked")

const (
	lockName = "jetbus.lock"

	reconnectWait   = 20 * time.Millisecond
	reconnectJitter = 10 * time.Millisecond

	// pipeTimeout is how long a client waits for the server's answer in a pipe, or over
	// loopback. There is no network that could lose it: what takes longer than the two seconds that
	// nats.go allows is a machine that is busy.
	pipeTimeout = 30 * time.Second
)

// Broker is a NATS server with JetStream in this process. Its methods may be
// called concurrently; Restart, Kill and Stop wait for each other. A Broker is
// made by [Start] and must be stopped.
type Broker struct {
	cfg  Config
	dir  string
	temp bool // dir is ours to remove
	lock io.Closer

	// ops holds one token while an operation changes what runs.
	ops chan struct{}

	mu      sync.RWMutex
	run     *run // nil when the server is down
	ports   ports
	stopped bool
}

// run is the server from a start to its shutdown.
type run struct {
	srv   *server.Server
	gate  *gate
	log   *serverLog
	guard *webSocketGuard // nil: the server itself accepts WebSocket clients, or there is no WebSocket listener
}

// Start starts a broker and returns when it accepts connections. If it fails,
// nothing of it is left behind. A start cannot be interrupted half way: when ctx
// ends meanwhile, the broker is taken down again and the context's error is returned.
//
// Errors are those of [Config.Validate], [ErrInUse], and what keeps the server
// from starting, such as an address that is taken.
func Start(ctx context.Context, cfg Config) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	b := &Broker{cfg: cfg.withDefaults(), ops: make(chan struct{}, 1)}
	if err := b.claimDir(); err != nil {
		return nil, fmt.Errorf("start broker: %w", err)
	}
	if err := b.boot(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start broker: %w", err), b.releaseDir())
	}
	return b, nil
}

// claimDir creates and locks the store folder, and completes what a crash in the
// middle of Kill left there.
func (b *Broker) claimDir() error {
	if b.cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "jetbus-*")
		if err != nil {
			return fmt.Errorf("temporary store folder: %w", err)
		}
		b.dir, b.temp = dir, true
	} else {
		dir, err := filepath.Abs(b.cfg.Dir)
		if err != nil {
			return fmt.Errorf("store folder %s: %w", b.cfg.Dir, err)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("store folder: %w", err)
		}
		b.dir = dir
	}
	lock, err := lockFile(filepath.Join(b.dir, lockName))
	if err != nil {
		if errors.Is(err, errLocked) {
			return fmt.Errorf("%w: %s (stop that one first, or use another folder)", ErrInUse, b.dir)
		}
		return errors.Join(fmt.Errorf("lock store folder: %w", err), b.removeTemp())
	}
	b.lock = lock
	if err := finishSwap(b.dir); err != nil {
		return errors.Join(err, b.releaseDir())
	}
	return nil
}

// releaseDir undoes claimDir.
func (b *Broker) releaseDir() error {
	return errors.Join(b.lock.Close(), b.removeTemp())
}

func (b *Broker) removeTemp() error {
	if !b.temp {
		return nil
	}
	return os.RemoveAll(b.dir)
}

// boot starts the server and publishes it as the running one.
func (b *Broker) boot(ctx context.Context) error {
	opts, err := b.cfg.options(b.dir, b.ports)
	if err != nil {
		return err
	}
	g := newGate(b.cfg)
	opts.CustomClientAuthentication = g
	b.cfg.Routes.Join(opts)
	var guard *webSocketGuard
	if b.cfg.guardsWebSocket() {
		if guard, err = listenWebSocket(ctx, b.cfg, b.ports.webSocket); err != nil {
			return err
		}
		opts.Websocket = guard.options(b.cfg)
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		guard.close()
		return err
	}
	r := &run{srv: srv, gate: g, log: &serverLog{out: b.cfg.Logger}, guard: guard}
	srv.SetLoggerV2(r.log, r.log.debug(), false, false) //nolint:contextcheck // the server logs without one
	// Start returns when every listener of clients is open and the store is
	// recovered, or after a fatal line in the log.
	srv.Start()
	if err = r.log.started(); err == nil {
		err = ctx.Err()
	}
	if err != nil {
		r.shutdown()
		return err
	}
	p := listening(srv, b.cfg)
	if guard != nil {
		_, address, _ := cutScheme(srv.WebsocketURL())
		p.webSocket = guard.port()
		guard.serve(address, b.cfg.WebSocketTLS, b.cfg.Logger) //nolint:contextcheck // it serves until it is closed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.run, b.ports = r, p
	return nil
}

// shutdown ends the server and returns when all of it is gone.
func (r *run) shutdown() {
	r.srv.Shutdown()
	r.guard.close()
	r.srv.WaitForShutdown()
}

// listening says which ports the server got.
func listening(srv *server.Server, cfg Config) ports {
	var p ports
	if a, ok := srv.Addr().(*net.TCPAddr); ok {
		p.client = a.Port
	}
	if _, hostport, ok := cutScheme(srv.WebsocketURL()); ok && cfg.WebSocket != "" {
		_, p.webSocket, _ = splitAddr(hostport)
	}
	return p
}

// Connect opens a connection to the broker through an in-process pipe, with the
// configured credentials. The connection survives Restart and Kill: it
// reconnects without limit, after about 20 ms each time. The server may take 30
// seconds to answer, on a busy machine. The options are applied after these
// defaults and may override them.
func (b *Broker) Connect(o ...nats.Option) (*nats.Conn, error) {
	if _, err := b.current(); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	opts := append([]nats.Option{nats.InProcessServer(b)}, b.cfg.ClientOptions()...)
	nc, err := nats.Connect("", append(opts, o...)...)
	if err != nil {
		return nil, fmt.Errorf("embedded: connect: %w", err)
	}
	return nc, nil
}

// ClientOptions returns the options of [Broker.Connect] without its pipe, for clients that connect
// to [Broker.URL]. They set the credentials and a timeout of 30 seconds, reconnect without limit
// after about 20 ms each time, and log asynchronous errors to Config.Logger. With TLS, clients also
// need the certificate.
func (c Config) ClientOptions() []nats.Option {
	opts := []nats.Option{
		nats.Timeout(pipeTimeout),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.ErrorHandler(c.connectionError),
	}
	switch {
	case c.Token != "":
		opts = append(opts, nats.Token(c.Token))
	case c.User != "":
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	}
	return opts
}

// connectionError logs an asynchronous error of a client's connection. Without a handler, nats.go
// writes such errors to standard error.
func (c Config) connectionError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if c.Logger == nil {
		return
	}
	attrs := []slog.Attr{slog.Any("err", err)}
	if sub != nil {
		attrs = append(attrs, slog.String("subject", sub.Subject))
	}
	c.Logger.LogAttrs(context.Background(), slog.LevelWarn, "NATS connection error", attrs...)
}

// InProcessConn opens a pipe to the server that currently runs. It makes Broker
// a [nats.InProcessConnProvider], for clients that are not made by Connect. It
// fails with [ErrNotRunning] or [ErrStopped].
func (b *Broker) InProcessConn() (net.Conn, error) {
	r, err := b.current()
	if err != nil {
		return nil, err
	}
	conn, err := r.srv.InProcessConn()
	if err != nil {
		// Only a server that is being shut down refuses.
		return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	return &pipeConn{Conn: conn}, nil
}

// URL is the address of the TCP listener, "nats://host:port" or, with TLS,
// "tls://host:port". It is "" without Config.Listen. It does not change over
// Restart and holds no credentials.
func (b *Broker) URL() string {
	if b.cfg.Listen == "" {
		return ""
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	scheme := "nats"
	if b.cfg.TLS != nil {
		scheme = "tls"
	}
	host, _, _ := splitAddr(b.cfg.Listen)
	return dialURL(scheme, host, b.ports.client)
}

// WebSocketURL is the address of the WebSocket listener, "ws://host:port" or,
// with TLS, "wss://host:port". It is "" without Config.WebSocket. It does not
// change over Restart and holds no credentials.
func (b *Broker) WebSocketURL() string {
	if b.cfg.WebSocket == "" {
		return ""
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	scheme := "ws"
	if b.cfg.WebSocketTLS != nil {
		scheme = "wss"
	}
	host, _, _ := splitAddr(b.cfg.WebSocket)
	return dialURL(scheme, host, b.ports.webSocket)
}

// Dir is the absolute path of the store folder.
func (b *Broker) Dir() string { return b.dir }

// Server is the running server, for assertions in tests; nil when it is down.
// Each Restart makes a new one. Do not shut it down.
func (b *Broker) Server() *server.Server {
	r, err := b.current()
	if err != nil {
		return nil
	}
	return r.srv
}

// Err says why the broker does not work: [ErrNotRunning], [ErrStopped], or what its server
// has given up for since it started, such as a port of its routes that was taken. Nil while it
// works.
func (b *Broker) Err() error {
	r, err := b.current()
	if err != nil {
		return err
	}
	return r.log.err()
}

// current is what runs now, or the error that says why nothing does.
func (b *Broker) current() (*run, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	switch {
	case b.stopped:
		return nil, ErrStopped
	case b.run == nil:
		return nil, ErrNotRunning
	}
	return b.run, nil
}
