package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// web is an HTTP server that listens.
type web struct {
	url    string
	server *http.Server
	ended  chan error // the server's end
}

// listenWeb serves a handler at the address in a flag, over TLS if t is not nil. At most maxActive connections
// have a request.
func listenWeb(ctx context.Context, flag, listen string, h http.Handler, maxActive int, t *tls.Config, log *slog.Logger) (*web, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, listenError(addressError(err, listen), flag, listen)
	}
	conns := newWebConns(maxIdleConns, maxActive)
	w := &web{url: "http://" + l.Addr().String(), ended: make(chan error, 1), server: &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ConnState: conns.observe,
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelDebug), // errors of clients
	}}
	if t != nil {
		w.url = "https://" + l.Addr().String()
		w.server.TLSConfig = t.Clone()
	}
	l = headerListener{l, conns}
	go func() {
		if t != nil {
			w.ended <- w.server.ServeTLS(l, "", "")
			return
		}
		w.ended <- w.server.Serve(l)
	}()
	return w, nil
}

// end is where the server's end comes; who takes it puts it back. A nil one has none.
func (w *web) end() chan error {
	if w == nil {
		return nil
	}
	return w.ended
}

// close ends the server, in order as long as ctx allows. A nil one is closed.
func (w *web) close(ctx context.Context) (err error) {
	if w == nil {
		return nil
	}
	if down := w.server.Shutdown(ctx); down != nil {
		err = errors.Join(down, w.server.Close())
	}
	if end := <-w.ended; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// awaitEnd returns when ctx has ended, or one of the servers has, whose close then says why.
func awaitEnd(ctx context.Context, a, b *web) {
	select {
	case <-ctx.Done():
	case err := <-a.end():
		a.ended <- err
	case err := <-b.end():
		b.ended <- err
	}
}
