package adapter

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/link"
)

// API levels of the server, by the feature they brought.
const (
	levelMinimum = 1 // 2.11: per-message TTL, consumer pause, batched direct get
	levelBatches = 2 // 2.12: atomic batches, message schedules
)

// lateFlush is how long Close still waits for the server to take in what was sent, when
// its context is over.
const lateFlush = 2 * time.Second

// server is the JetStream of a connection. The layers above use it for requests and reads that
// name a stream, a consumer or a subject. It stores nothing about topics and groups; those
// layers do. It is safe for concurrent use.
type server struct {
	cfg         Config
	nc          *nats.Conn
	js          *patient
	api         string // prefix of API subjects, with the dot
	level       int    // the server's API level
	link        *link.Link
	replies     *replies
	latestUnder chan struct{}          // one item for each request for last events in flight
	readAhead   atomic.Int64           // bytes that readers have in flight beyond the first window of each; see tailWindow
	connections atomic.Uint64          // number of connections so far; requests on an earlier one get no answer
	zeros       atomic.Pointer[[]byte] // see zeroBytes
}

// newServer asks the server for its version and limits. The caller calls letGo.
func newServer(ctx context.Context, nc *nats.Conn, cfg Config) (*server, error) {
	srv := &server{cfg: cfg, nc: nc, api: "$JS.API.", latestUnder: make(chan struct{}, latestAtOnce)}
	var js jetstream.JetStream
	var err error
	if cfg.Domain != "" {
		srv.api = "$JS." + cfg.Domain + ".API."
		js, err = jetstream.NewWithDomain(nc, cfg.Domain)
	} else {
		js, err = jetstream.New(nc)
	}
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	srv.link = link.New(nc)
	srv.js = &patient{js, cfg.Timeout, nc.ConnectedClusterName() != "", srv.link}
	srv.connections.Store(1)
	srv.link.Watch(func() { srv.connections.Add(1) }) // until the link stops
	if err := srv.probe(ctx); err != nil {
		srv.link.Stop()
		return nil, err
	}
	if srv.replies, err = newReplies(nc); err != nil {
		srv.link.Stop()
		return nil, srv.translate("open", "", err)
	}
	return srv, nil
}

// letGo ends what was begun on the connection, which is not closed.
func (srv *server) letGo() {
	srv.replies.stop()
	srv.link.Stop()
}

// probe reads the server's API level.
func (srv *server) probe(ctx context.Context) error {
	ctx, cancel := srv.bound(ctx)
	defer cancel()
	if _, err := srv.link.Wait(ctx); err != nil {
		return fmt.Errorf("open: %w: %w", jetbus.ErrUnavailable, err)
	}
	info, err := ask(ctx, srv, srv.api+"INFO", srv.js.AccountInfo)
	if err != nil {
		return srv.translate("open", srv.api+"INFO", err)
	}
	srv.level = info.API.Level
	if srv.level < levelMinimum {
		return fmt.Errorf("open: %w: server %s is too old: JetBus needs 2.11 or newer", jetbus.ErrUnavailable, srv.nc.ConnectedServerVersion())
	}
	return nil
}

// bound gives ctx a deadline if it has none.
func (srv *server) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, srv.cfg.Timeout)
}

// guard makes a context that ends when the server refuses the request: what is
// refused is not answered, and would be waited for in vain.
func (srv *server) guard(ctx context.Context, request string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() { // ends with the request, which calls release
		defer close(done)
		tick := time.NewTicker(denialCheck)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if srv.denied(request) {
					cancel(jetbus.ErrDenied)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

// needs returns an error for a feature of server 2.12 that the server does not have.
func (srv *server) needs(feature string) error {
	if srv.level >= levelBatches {
		return nil
	}
	return fmt.Errorf("%w: %s needs server 2.12 or newer, connected is %s", jetbus.ErrUnsupported, feature, srv.nc.ConnectedServerVersion())
}

// flush makes sure that what was sent without an answer, acknowledgements above
// all, has reached the server. It is not worth an error that there is no server: what
// it did not take in is delivered again.
func (srv *server) flush(ctx context.Context) error {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(srv.cfg.Timeout, lateFlush))
		defer cancel()
	}
	ctx, cancel := srv.bound(ctx)
	defer cancel()
	if err := srv.link.Flush(ctx); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}
