package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// stopTimeout is how long an end in order may take.
const stopTimeout = 30 * time.Second

// serveOptions are the flags of serve.
type serveOptions struct {
	dir, listen, tlsCert, tlsKey string
	webSocket                    string
	webSocketOrigins             []string
	metrics                      string
	logFormat, logLevel          string
	syncAlways                   bool
	maxStore                     int64
	gateway                      gatewaySettings
}

func newServe(a *app) *cobra.Command {
	o := serveOptions{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a broker for a team",
		Long: `Runs a NATS server with JetStream in this process, on a store of its own. Any NATS
client can use it. It prints one line to standard output when it is ready, and logs
to standard error. SIGTERM or Ctrl-C ends it in order; the store stays.

Clients must present --user and --password, or --token, where they are given; an
address that other machines can reach is refused without. They are best given as
JETBUS_USER, JETBUS_PASSWORD and JETBUS_TOKEN, since the process list shows flags.

What was acknowledged survives the end of the process, however it ends. Only with
--sync-always it survives a loss of power as well; each event then costs a disk sync.

With --gateway it serves browsers, scripts and services in other languages as well, over
WebSocket and HTTP, with the same --tls-cert. They need a token, of --tokens or a JSON Web
Token of --jwks, --jwt-keys or --jwt-secret-file; without any of these the gateway answers
to this machine alone. --gateway-config names a file with these settings,

  {"listen": "127.0.0.1:8080", "origins": [], "headers": [], "tokens": "tokens.json",
   "jwt": {"issuer": "", "audience": "", "jwks": "", "keysFile": "", "secretFile": "",
           "previousSecretFile": ""}, "limits": {"inFlight": 1000, "leaseMaxMs": 600000}}

below flags and environment. When it is ended, clients have 20 seconds to settle what they
hold, and then connect anew elsewhere. Who holds something for longer is cut off, which the
log says, and what it held is delivered again; the exit code is 0 all the same.

With --metrics it serves Prometheus at /metrics of an address of its own, with the same
--tls-cert: topics, groups, how far they are behind and dead letters, which it asks the
broker for at most every 15 seconds, and what the gateway does. It asks for no token, and
tells the names of topics and groups. The line on standard output ends with its URL then.`,
		Example: `  jetbus serve --dir /var/lib/jetbus
  JETBUS_USER=shop JETBUS_PASSWORD=... jetbus serve --dir /var/lib/jetbus --listen 0.0.0.0:4222 \
      --tls-cert cert.pem --tls-key key.pem --log-format json
  jetbus serve --dir /var/lib/jetbus --gateway 0.0.0.0:8080 --tokens tokens.json --metrics 9090`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return untilInterrupted(cmd.Context(), func(open func()) error { return a.serve(cmd, o, open) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", "", "folder of the store (required)")
	f.StringVar(&o.listen, "listen", "127.0.0.1:4222", "address for NATS clients, host:port or port")
	f.StringVar(&o.tlsCert, "tls-cert", "", "file with the server's certificate chain, PEM")
	f.StringVar(&o.tlsKey, "tls-key", "", "file with the certificate's key, PEM")
	f.StringVar(&o.webSocket, "websocket", "", "address for NATS clients over WebSocket, host:port or port (default none)")
	f.StringArrayVar(&o.webSocketOrigins, "websocket-origin", nil, "origin from which browsers may connect, https://app.example.com; may be repeated")
	f.BoolVar(&o.syncAlways, "sync-always", false, "sync each event to disk before it is acknowledged")
	f.Var((*sizeFlag)(&o.maxStore), "max-store", "bound of the limits of all topics together (default none; each topic has its own)")
	o.gateway.flags(cmd)
	f.StringVar(&a.user, "user", "", "user that clients must present (env JETBUS_USER)")
	f.StringVar(&a.password, "password", "", "password of the user (env JETBUS_PASSWORD, which the process list does not show)")
	f.StringVar(&a.token, "token", "", "token that clients must present instead of user and password (env JETBUS_TOKEN)")
	f.StringVar(&a.prefix, "prefix", defaultPrefix, "first token of the bus's subjects, for --gateway and --metrics")
	f.StringVar(&o.metrics, "metrics", "", "address for Prometheus, host:port or port (env JETBUS_METRICS; default none)")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// config is the broker's configuration.
func (o serveOptions) config(a *app, stderr io.Writer) (embedded.Config, error) {
	c := embedded.Config{
		Dir: o.dir, Listen: address(o.listen), WebSocketOrigins: o.webSocketOrigins,
		User: a.env(a.user, "JETBUS_USER"), Password: a.env(a.password, "JETBUS_PASSWORD"), Token: a.env(a.token, "JETBUS_TOKEN"),
		SyncAlways: o.syncAlways, MaxStore: o.maxStore,
	}
	if o.dir == "" {
		return c, usagef("serve: name the folder of the store with --dir")
	}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		return c, usagef("serve: --tls-cert and --tls-key go together")
	}
	if o.maxStore < 0 {
		return c, usagef("serve: --max-store needs a bound")
	}
	if o.webSocket != "" {
		c.WebSocket = address(o.webSocket)
	}
	if o.tlsCert != "" {
		certificate, err := tls.LoadX509KeyPair(o.tlsCert, o.tlsKey)
		if err != nil {
			return c, usagef("serve: load the certificate: %w", err)
		}
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
		if c.WebSocket != "" {
			c.WebSocketTLS = c.TLS.Clone()
		}
	}
	logger, err := newLogger(stderr, o.logFormat, o.logLevel)
	if err != nil {
		return c, err
	}
	c.Logger = logger
	switch err := c.Validate(); {
	case errors.Is(err, embedded.ErrReachable):
		flag := "--listen " + o.listen
		if !strings.Contains(err.Error(), "Listen ") {
			flag = "--websocket " + o.webSocket
		}
		return c, usagef("serve: %s %w: give --user and --password, or --token, or listen on 127.0.0.1", flag, embedded.ErrReachable)
	case err != nil:
		return c, usagef("serve: %s", inFlags(err))
	}
	return c, nil
}

// serve runs the broker until it is interrupted; it calls open when all of it is there.
func (a *app) serve(cmd *cobra.Command, o serveOptions, open func()) error {
	c, err := o.config(a, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	edgeConfig, err := o.gateway.prepare(a, c.Logger)
	if err != nil {
		return err
	}
	if edgeConfig == nil && a.env(o.metrics, "JETBUS_METRICS") == "" { // there is no bus
		if err := refuse(cmd, "prefix"); err != nil {
			return err
		}
	}
	ctx := cmd.Context()
	log := c.Logger
	c.Logger = slog.New(demoted{log.Handler()})
	b, err := embedded.Start(ctx, c)
	if err != nil {
		return brokerError(err, c)
	}
	m, err := startMeter(ctx, b, a.prefix, address(a.env(o.metrics, "JETBUS_METRICS")), c.TLS, log)
	if err != nil {
		return errors.Join(err, stopBroker(ctx, b))
	}
	var e *edge
	if edgeConfig != nil {
		if e, err = startEdge(ctx, b, a.prefix, o.gateway.Listen, *edgeConfig, c.TLS, m, log); err != nil {
			return errors.Join(err, m.close(context.WithoutCancel(ctx)), stopBroker(ctx, b))
		}
	}
	open()
	log.LogAttrs(ctx, slog.LevelInfo, "ready", slog.String("listen", c.Listen), slog.String("url", b.URL()), slog.String("websocket", b.WebSocketURL()),
		slog.String("dir", b.Dir()), slog.Bool("auth", c.User != "" || c.Token != ""), slog.Bool("tls", c.TLS != nil))
	line := "ready " + b.URL()
	if ws := b.WebSocketURL(); ws != "" {
		line += " " + ws
	}
	if e != nil {
		log.LogAttrs(ctx, slog.LevelInfo, "gateway ready", slog.String("url", e.web.url), slog.Bool("auth", edgeConfig.Auth != nil))
		line += " " + e.web.url
	}
	if m != nil {
		log.LogAttrs(ctx, slog.LevelInfo, "metrics ready", slog.String("url", m.url()))
		line += " " + m.url()
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
		log.LogAttrs(ctx, slog.LevelWarn, "standard output is closed", slog.Any("err", err)) // no reason to end a broker
	}
	awaitEnd(ctx, e.server(), m.server())
	log.LogAttrs(ctx, slog.LevelInfo, "stopping")
	if e != nil {
		err = e.close(context.WithoutCancel(ctx), edgeDrainTimeout)
	}
	if err = errors.Join(err, m.close(context.WithoutCancel(ctx)), stopBroker(ctx, b)); err != nil {
		return err
	}
	log.LogAttrs(ctx, slog.LevelInfo, "stopped", slog.String("dir", b.Dir()))
	return nil
}

// stopBroker ends a broker in order, whether ctx has ended or not.
func stopBroker(ctx context.Context, b *embedded.Broker) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return b.Stop(ctx)
}

// demoted lowers what is said for information to debugging: the server's banner, above all.
type demoted struct{ slog.Handler }

// Enabled implements slog.Handler.
func (d demoted) Enabled(ctx context.Context, l slog.Level) bool {
	return d.Handler.Enabled(ctx, lowered(l))
}

// Handle implements slog.Handler.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = lowered(r.Level)
	return d.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (d demoted) WithAttrs(list []slog.Attr) slog.Handler { return demoted{d.Handler.WithAttrs(list)} }

// WithGroup implements slog.Handler.
func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }

func lowered(l slog.Level) slog.Level {
	if l == slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}

// newLogger makes the logger that the flags name.
func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usagef("--log-level %q: use debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, usagef("--log-format %q: use text or json", format)
}

// endAfter returns a context that ends d after now, or with ctx where d is 0. It is
// canceled and has no deadline: what talks to a database would refuse commands that it
// thinks too late for one, and that were an error, not the end that was asked for.
func endAfter(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if d > 0 {
		end := time.AfterFunc(d, cancel)
		context.AfterFunc(ctx, func() { end.Stop() })
	}
	return ctx, cancel
}
