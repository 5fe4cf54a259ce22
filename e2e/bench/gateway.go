package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// Readers of the gateway's rows, and the frames a second that all of them get, at least.
const (
	gatewayReaders = 100
	gatewayFloor   = 50_000
)

// webServer is a server of WebSockets on a loopback port.
type webServer struct {
	address string
	stop    func() error
}

func startWeb(h http.Handler) (*webServer, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ConnState: smallBuffer}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	return &webServer{address: listener.Addr().String(), stop: func() error {
		err := server.Close()
		served.Wait()
		return err
	}}, nil
}

// smallBuffer lets the socket of a connection hold little: what a client does not read comes
// back to its server early.
func smallBuffer(nc net.Conn, state http.ConnState) {
	if tcp, ok := nc.(*net.TCPConn); ok && state == http.StateNew {
		_ = tcp.SetWriteBuffer(64 << 10) // else a run takes longer
	}
}

// startGateway serves a bus.
func startGateway(b jetbus.Backend, c gateway.Config) (*webServer, error) {
	g, err := gateway.New(b, c)
	if err != nil {
		return nil, err
	}
	w, err := startWeb(g)
	if err != nil {
		return nil, err
	}
	closeServer := w.stop
	w.stop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = g.Drain(ctx) // clients that are still there are cut
		return closeServer()
	}
	return w, nil
}

// webReader is one client that counts what comes.
type webReader struct {
	ws    *websocket.Conn
	buf   []byte
	first []byte // its first EVENT frame
}

// dialWeb connects as d does.
func dialWeb(ctx context.Context, address string, d *net.Dialer) (*webReader, error) {
	ws, _, err := websocket.Dial(ctx, "ws://"+address+"/ws", &websocket.DialOptions{ //nolint:bodyclose // there is none
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}, Subprotocols: []string{frame.Subprotocol},
	})
	if err != nil {
		return nil, err
	}
	return &webReader{ws: ws, buf: make([]byte, 0, 4<<10)}, nil
}

// next reads a frame, which is valid until the next one.
func (r *webReader) next() ([]byte, error) {
	_, in, err := r.ws.Reader(context.Background())
	if err != nil {
		return nil, err
	}
	for r.buf = r.buf[:0]; ; {
		n, err := in.Read(r.buf[len(r.buf):cap(r.buf)])
		r.buf = r.buf[:len(r.buf)+n]
		switch {
		case errors.Is(err, io.EOF):
			return r.buf, nil
		case err != nil:
			return nil, err
		case len(r.buf) == cap(r.buf):
			r.buf = append(r.buf, 0)[:len(r.buf)]
		}
	}
}

// until reads up to a frame with that op.
func (r *webReader) until(op string) error {
	for {
		text, err := r.next()
		if err != nil {
			return err
		}
		if bytes.HasPrefix(text, []byte(`{"op":"`+op+`"`)) {
			return nil
		}
	}
}

// subscribe begins to read a topic, and returns when the server is ready to send.
func (r *webReader) subscribe(ctx context.Context, topic string) error {
	if err := r.ws.Write(ctx, websocket.MessageText, []byte(`{"op":"SUBSCRIBE","topic":"`+topic+`"}`)); err != nil {
		return err
	}
	return r.until(frame.CaughtUp)
}

// count reads n events.
func (r *webReader) count(n int) error {
	for n > 0 {
		text, err := r.next()
		switch {
		case err != nil:
			return fmt.Errorf("%d events are missing: %w", n, err)
		case bytes.HasPrefix(text, []byte(`{"op":"EVENT"`)):
			if r.first == nil {
				r.first = bytes.Clone(text)
			}
			n--
		case bytes.HasPrefix(text, []byte(`{"op":"PING"`)):
			if err := r.ws.Write(context.Background(), websocket.MessageText, []byte(`{"op":"PONG"}`)); err != nil {
				return err
			}
		}
	}
	return nil
}

// crowd is readers of one server.
type crowd []*webReader

// gather connects readers.
func gather(ctx context.Context, address, topic string, n int) (crowd, error) {
	var all crowd
	for range n {
		r, err := dialWeb(ctx, address, &net.Dialer{})
		if err == nil {
			all = append(all, r)
			err = r.subscribe(ctx, topic)
		}
		if err != nil {
			all.close()
			return nil, err
		}
	}
	return all, nil
}

func (c crowd) close() {
	for _, r := range c {
		_ = r.ws.CloseNow()
	}
}

// count lets all read n events, and waits for them.
func (c crowd) count(ctx context.Context, n int) error {
	defer context.AfterFunc(ctx, c.close)()
	results := make(chan error, len(c))
	for _, r := range c {
		go func() { results <- r.count(n) }()
	}
	var err error
	for range c {
		err = errors.Join(err, <-results)
	}
	return err
}

// fanOut publishes n events while readers of the gateway read them: what all of them got, from
// the first publish to the last frame.
func fanOut(count, size int) job {
	return job{name: "gateway", count: count, run: onLane(size, func(ctx context.Context, l *lane, all []jetbus.Event, c *clock) error {
		w, err := startGateway(l.e.bus2, gateway.Config{})
		if err != nil {
			return err
		}
		readers, err := gather(ctx, w.address, l.topic, gatewayReaders)
		if err != nil {
			return errors.Join(err, w.stop())
		}
		published := make(chan error, 1)
		c.start()
		go func() { published <- l.publishBatches(ctx, all, batchSize, jetbus.BatchOptions{}) }()
		err = errors.Join(readers.count(ctx, len(all)), <-published)
		c.stop(len(all) * gatewayReaders)
		if err == nil {
			err = sameFrame(readers[0].first, &all[0])
		}
		readers.close()
		return errors.Join(err, w.stop())
	})}
}

// eventFrame is what the gateway sends of an event.
func eventFrame(e *jetbus.Event, seq uint64, offset string) []byte {
	stored := *e
	stored.Seq, stored.Partition = seq, jetbus.NoPartition
	b := append([]byte(`{"op":"EVENT","topic":"`), e.Topic...)
	b, err := frame.AppendEvent(append(b, `","sub":"s1",`...), &stored, offset)
	if err != nil {
		return nil // sameFrame notices
	}
	return append(b, '}')
}

// sameFrame makes sure that the bare server sends what the gateway does.
func sameFrame(got []byte, e *jetbus.Event) error {
	m, err := frame.ParseMessage(got)
	if err != nil {
		return err
	}
	if want := eventFrame(e, m.Seq, m.Offset); !bytes.Equal(got, want) {
		return fmt.Errorf("the bare server sends %s, the gateway %s", want, got)
	}
	return nil
}

// bareFanOut sends the same bytes to as many readers with the same library, as a careful
// program does by hand: one goroutine and one bounded channel for each.
func bareFanOut(count, size int) job {
	return job{name: "bare fan-out", count: count, run: func(ctx context.Context, _ *env, n int, c *clock) error {
		frames := make([][]byte, n)
		for i, e := range events("bench1", n, size) {
			frames[i] = eventFrame(&e, uint64(i+1), "AQAAAAAAAAAAAAAAAAAAAAA") //nolint:gosec // no negative number
		}
		bare := &bareServer{}
		w, err := startWeb(bare)
		if err != nil {
			return err
		}
		var readers crowd
		defer func() { readers.close() }()
		for range gatewayReaders {
			r, err := dialWeb(ctx, w.address, &net.Dialer{})
			if err != nil {
				return errors.Join(err, w.stop())
			}
			readers = append(readers, r)
			if err := r.until(frame.CaughtUp); err != nil {
				return errors.Join(err, w.stop())
			}
		}
		c.start()
		go bare.send(ctx, frames)
		err = readers.count(ctx, n)
		c.stop(n * gatewayReaders)
		return errors.Join(err, w.stop())
	}}
}

// bareServer sends to whoever is connected.
type bareServer struct {
	mu  sync.Mutex
	all []chan []byte
}

// ServeHTTP implements http.Handler.
func (s *bareServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{frame.Subprotocol}})
	if err != nil {
		return // Accept has answered
	}
	frames := make(chan []byte, 256)
	s.mu.Lock()
	s.all = append(s.all, frames)
	s.mu.Unlock()
	ctx := ws.CloseRead(context.Background())
	err = ws.Write(context.Background(), websocket.MessageText, []byte(`{"op":"CAUGHT_UP"}`))
	for err == nil {
		select {
		case text := <-frames:
			err = ws.Write(context.Background(), websocket.MessageText, text)
		case <-ctx.Done():
			return
		}
	}
}

func (s *bareServer) send(ctx context.Context, frames [][]byte) {
	s.mu.Lock()
	all := s.all
	s.mu.Unlock()
	for _, text := range frames {
		for _, c := range all {
			select {
			case c <- text:
			case <-ctx.Done():
				return
			}
		}
	}
}
