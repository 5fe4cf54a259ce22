package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// Limits of a connection.
const (
	maxTasks   = 64                     // concurrent settlements
	maxWaits   = 16                     // concurrent SEEK, CURSOR, and UNSUBSCRIBE with drain
	taskTime   = 10 * time.Second       // timeout of a request to the broker
	maxEarly   = 32                     // frames before AUTH
	earlyBytes = 1 << 10                // size of a frame before AUTH, in addition to two tokens
	flushTime  = 5 * time.Second        // to write the queued frames before a close
	evictTime  = 100 * time.Millisecond // to write the close frame of an evicted connection
	warnTime   = time.Minute            // how long before its expiry a token is reported as TOKEN_EXPIRING
)

// closing is why a connection is closed.
type closing struct {
	code   int
	reason string
}

var (
	closeNormal       = closing{int(websocket.StatusNormalClosure), ""}
	closeDone         = closing{int(websocket.StatusNormalClosure), "done"} // the client said so
	closeUTF8         = closing{int(websocket.StatusInvalidFramePayloadData), "the frame is no UTF-8"}
	closeTooBig       = closing{int(websocket.StatusMessageTooBig), "the frame is too big"}
	closeGoingAway    = closing{frame.CloseGoingAway, "going_away"}
	closeReplaced     = closing{frame.CloseGoingAway, "replaced"} // its client is back on another one
	closeSlow         = closing{frame.CloseSlow, "slow_consumer"}
	closeNoPong       = closing{frame.CloseNoPong, "no_pong"}
	closeRateLimited  = closing{frame.CloseRateLimited, "rate_limited"}
	closeEvicted      = closing{int(websocket.StatusTryAgainLater), "too many connections without AUTH"}
	closeTokenExpired = closing{frame.CloseTokenExpired, "token_expired"}
	closeProtocol     = closing{frame.CloseProtocol, "protocol_error: frames are text"}
	closeUnauthorized = closing{frame.CloseUnauthorized, "unauthorized"}
	closeForbidden    = closing{frame.CloseForbidden, "forbidden"}
	closeConnections  = closing{frame.CloseConnections, "conn_limit"}
	closeAuthTimeout  = closing{frame.CloseAuthTimeout, "auth_timeout"}
	closeVersion      = closing{frame.CloseVersion, "unsupported_version"}
)

// conn is one WebSocket. The goroutine of its request reads the frames, and a second goroutine
// writes them.
type conn struct {
	g      *Gateway
	r      *http.Request // without its header
	ws     *websocket.Conn
	nc     *corked // below ws
	sketch bool    // without the subprotocol
	out    *queue
	rate   *limiter
	place  *pending // in preAuth, until the client has authenticated
	pub    publishing
	tasks  chan struct{} // semaphore of settlements
	waits  chan struct{} // semaphore of operations that may take long
	work   sync.WaitGroup
	ctx    context.Context //nolint:containedctx // of the connection, for the requests that came over it
	cancel context.CancelFunc
	ended  chan struct{} // closed by end
	wrote  chan struct{} // closed by write, when it returns

	refusals int // consecutive frames refused for their rate; used by the reader only
	early    int // frames before AUTH; used by the reader only

	mu       sync.Mutex
	why      closing // set by end
	who      Principal
	account  *budget.Account // of the connection; nil before AUTH
	authed   bool
	checking bool // a token is being checked, which may take longer than AuthTimeout
	overdue  bool // AuthTimeout expired during the check
	ses      *session
	handling bool        // the reader is busy with a frame
	pong     *time.Timer // ends a connection that does not answer; nil before the first PING
	ping     *time.Timer
	expiry   *time.Timer // of AUTH, then of the token
	warned   time.Time   // the expiry that TOKEN_EXPIRING reported to the client
	leaving  *time.Timer // set by Drain
	cut      *time.Timer // set by evict: closes the socket
	pings    int64
}

func (g *Gateway) webSocketRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /ws", g.webSocket)
	mux.HandleFunc("GET /{$}", g.root)
}

// root is where the first clients connect to.
func (g *Gateway) root(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		g.problem(w, r, refuse(CodeNotFound, "there is nothing here; see /openapi.json, or connect a WebSocket to /ws"))
		return
	}
	g.webSocket(w, r)
}

// maxHandshakeURI limits the length of a handshake's request URI. net/http keeps the request line in memory as long as
// the connection lasts.
const maxHandshakeURI = 2 << 10

// webSocket serves a connection.
func (g *Gateway) webSocket(w http.ResponseWriter, r *http.Request) {
	if !g.originAllowed(r) {
		g.problem(w, r, refuse(CodeForbidden, "pages of this origin may not use the gateway"))
		return
	}
	if len(r.RequestURI) > maxHandshakeURI {
		g.problem(w, r, refuse(CodeTooLarge, "the request URI has %d bytes, at most %d are allowed", len(r.RequestURI), maxHandshakeURI))
		return
	}
	if err := g.enter(); err != nil {
		g.problem(w, r, err)
		return
	}
	defer g.leave()
	var who Principal
	token, authed := bearer(r), g.c.Auth == nil
	if authed {
		var err error
		if who, err = g.authenticate(r.Context(), r, token); err != nil {
			g.problem(w, r, err)
			return
		}
	}
	room := g.hasRoom(sockets)
	if !room && g.openDenied() != nil {
		g.problem(w, r, errConnections)
		return
	}
	var c *conn
	taken := &hijacked{ResponseWriter: w}
	ws, err := websocket.Accept(taken, r, &websocket.AcceptOptions{
		Subprotocols:       []string{frame.Subprotocol},
		InsecureSkipVerify: true, // see originAllowed
		OnPingReceived:     func(context.Context, []byte) bool { return c.control() },
		OnPongReceived:     func(context.Context, []byte) { c.control() },
	})
	if !room {
		defer g.closeDenied()
	}
	if err != nil {
		return // Accept has answered
	}
	others := otherVersion(r)
	r.Header = http.Header{} // not used after the handshake, but net/http keeps the request while its handler runs
	c = newConn(g, r, ws, taken.nc)
	if !room {
		c.deny(closeConnections)
		return
	}
	g.gate.preAuth.add(c.place, g.c.Limits.PreAuth)
	defer c.leavePending()
	if ws.Subprotocol() == "" && others {
		c.deny(closeVersion)
		return
	}
	c.serve(who, authed, token) //nolint:contextcheck // what the client holds is given back when the request is over
}

// otherVersion reports whether a client speaks another version of the protocol only.
func otherVersion(r *http.Request) bool {
	return slices.ContainsFunc(r.Header.Values("Sec-WebSocket-Protocol"), func(v string) bool {
		for p := range strings.SplitSeq(v, ",") {
			if strings.HasPrefix(strings.TrimSpace(p), "jetbus.") {
				return true
			}
		}
		return false
	})
}

func newConn(g *Gateway, r *http.Request, ws *websocket.Conn, nc *corked) *conn {
	c := &conn{
		g: g, r: r, ws: ws, nc: nc, sketch: ws.Subprotocol() == "",
		out:   newQueue(g.c.Limits.QueueBytes),
		rate:  newLimiter(g.c.Limits.Rate, g.c.Limits.Burst, time.Now()),
		tasks: make(chan struct{}, maxTasks), waits: make(chan struct{}, maxWaits), ended: make(chan struct{}), wrote: make(chan struct{}),
	}
	c.place = &pending{group: pendingGroup{from: addressOf(r)}, evict: c.evict}
	c.pub.room = make(chan struct{}, 1)
	ws.SetReadLimit(min(g.c.Limits.FrameBytes, 2*int64(g.c.Limits.TokenBytes)+earlyBytes)) // see admitted
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	return c
}

// deny closes a connection that does not begin. It has no session to end, so control must find it over.
func (c *conn) deny(why closing) {
	close(c.ended)
	c.cancel()
	c.closeSocket(why)
}

// evict closes a connection that has not authenticated, to make room for another one. The close frame
// tells the client to try again. The socket is closed after evictTime even if the client does not
// answer, because otherwise silent clients would pile up.
func (c *conn) evict() {
	c.mu.Lock()
	c.cut = time.AfterFunc(evictTime, func() { _ = c.nc.Close() })
	serves := c.ses != nil // otherwise deny closes the connection
	c.mu.Unlock()
	if serves {
		c.end(closeEvicted)
	}
}

// leavePending removes the connection from preAuth after its end and stops the timer of evict.
func (c *conn) leavePending() {
	c.g.gate.preAuth.remove(c.place)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut != nil {
		c.cut.Stop()
	}
}

// closeSocket tells the client and closes the socket, whether or not the client was told.
func (c *conn) closeSocket(why closing) {
	// It waits for the writer and for the client, 5 seconds each; and for good for the rest of
	// a frame that a client began.
	late := time.AfterFunc(2*flushTime, func() { _ = c.nc.Close() })
	defer late.Stop()
	if err := c.ws.Close(websocket.StatusCode(why.code), why.reason); err != nil && !errors.Is(err, io.EOF) {
		_ = c.ws.CloseNow() // closed already
	}
}

// hijacked keeps the connection that a WebSocket takes over.
type hijacked struct {
	http.ResponseWriter
	nc *corked
}

// Hijack implements http.Hijacker.
func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, buffered, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	limitSendBuffer(nc)
	h.nc = &corked{Conn: nc}
	buffered.Writer.Reset(h.nc) // nothing is in it: the handshake is out
	return h.nc, buffered, nil
}

// sendBuffer is how much of what was written to a socket the system may keep for a client that
// reads slowly. By itself it keeps some megabytes, and lets a writer that it stopped go on only when a third
// of them is gone: a client that reads steadily, but takes more than WriteTimeout for that third,
// would be taken for one that does not read.
const sendBuffer = 256 << 10

// limitSendBuffer bounds what the system keeps of a connection's bytes, where it can be told.
func limitSendBuffer(nc net.Conn) {
	if secure, ok := nc.(interface{ NetConn() net.Conn }); ok { // of TLS
		nc = secure.NetConn()
	}
	if socket, ok := nc.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = socket.SetWriteBuffer(sendBuffer) // a socket that is over says so when it is written to
	}
}

// Unwrap is for http.ResponseController.
func (h *hijacked) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// serve returns when nothing of the connection runs any more.
func (c *conn) serve(who Principal, authed bool, token string) {
	ses := newSession(c)
	c.mu.Lock()
	c.ses = ses
	c.mu.Unlock()
	c.g.mu.Lock()
	draining := c.g.draining
	c.g.conns[c] = struct{}{}
	c.g.mu.Unlock()
	c.work.Go(c.write)
	c.mu.Lock()
	c.expiry = time.AfterFunc(c.g.c.Limits.AuthTimeout, c.late)
	c.ping = time.AfterFunc(c.g.c.Limits.Ping, c.sendPing)
	c.mu.Unlock()
	c.hello()
	switch {
	case draining:
		c.end(closeGoingAway)
	case authed:
		if err := c.admitted(who); err != nil {
			c.end(closeConnections)
		}
	case token != "":
		c.auth(frame.Request{Op: frame.Auth, Token: token}, false)
	}
	c.read()
	c.work.Wait()
	c.g.mu.Lock()
	delete(c.g.conns, c)
	c.g.mu.Unlock()
	c.mu.Lock()
	who, authed = c.who, c.authed
	c.mu.Unlock()
	if authed {
		c.g.close(sockets, who.Subject)
		c.account.Close()
	}
}

// read handles the client's frames, one after the other.
func (c *conn) read() {
	for {
		kind, text, charged, err := c.readFrame()
		switch {
		case errors.Is(err, websocket.ErrMessageTooBig):
			c.end(closeTooBig)
			return
		case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
			c.end(closeDone)
			return
		case err != nil:
			c.end(closeNormal)
			return
		}
		c.busy(true)
		if kind != websocket.MessageText {
			c.end(closeProtocol)
		} else if !c.isOver() {
			c.receive(text)
		}
		c.account.Release(budget.Bytes, charged)
		c.busy(false)
	}
}

// freeBytes is how much of a frame is read before its memory is acquired.
const freeBytes = 64 << 10

// readFrame reads a frame. Before it reads the rest of a large frame, it waits until the budget has room
// for the largest frame. The caller releases charged bytes when the frame is handled.
func (c *conn) readFrame() (kind websocket.MessageType, text []byte, charged int64, err error) {
	kind, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return kind, nil, 0, err
	}
	text, err = io.ReadAll(io.LimitReader(r, freeBytes))
	if err != nil || len(text) < freeBytes {
		return kind, text, 0, err
	}
	c.busy(true) // a PONG of the client cannot be read before the rest of this frame
	charged = c.g.c.Limits.FrameBytes
	if c.account.Acquire(c.ctx, budget.Bytes, charged) != nil {
		return kind, nil, 0, net.ErrClosed // the connection has ended
	}
	c.busy(false)
	rest := bytes.NewBuffer(text)
	_, err = rest.ReadFrom(r)
	if err != nil {
		c.account.Release(budget.Bytes, charged)
		charged = 0
	}
	return kind, rest.Bytes(), charged, err
}

// busy says that the client is there, and that what it sends next waits.
func (c *conn) busy(now bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handling = now
	if now && c.pong != nil {
		c.pong.Stop()
	}
}

// isOver reports whether end was called.
func (c *conn) isOver() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// end closes the connection; of several reasons the first counts. What the client holds is
// given back at once, or kept for a while where it asked for that.
func (c *conn) end(why closing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isOver() {
		return
	}
	c.why = why
	for _, t := range []*time.Timer{c.pong, c.ping, c.expiry, c.leaving} {
		if t != nil {
			t.Stop()
		}
	}
	close(c.ended)
	c.cancel()
	ses := c.ses
	c.work.Go(func() { ses.detach(c) })
	c.work.Go(func() { c.shut(why) })
}

// shut says what is left to say, and closes the socket.
func (c *conn) shut(why closing) {
	if why == closeSlow {
		c.out.drop()
	}
	c.out.close()
	if why != closeNormal {
		c.g.c.Log.LogAttrs(c.ctx, slog.LevelDebug, "connection closed", slog.Int("code", why.code), slog.String("reason", why.reason))
	}
	late := time.NewTimer(flushTime)
	select {
	case <-c.wrote:
	case <-late.C:
	}
	late.Stop()
	c.closeSocket(why)
}

// say sends what is no event. A nil frame is none.
func (c *conn) say(m *frame.Message) {
	text := m.Text()
	if c.sketch {
		text = sketchText(m)
	}
	c.push(text, answerFrame)
}

func (c *conn) push(text []byte, kind kindOfFrame) {
	if text != nil && errors.Is(c.out.push(text, kind), errSlow) {
		c.end(closeSlow)
	}
}

// ok answers a frame.
func (c *conn) ok(m frame.Message) {
	m.Op = frame.OK
	c.say(&m)
}

// refuse answers a frame with an error.
func (c *conn) refuse(corr string, err error) {
	f := c.explain(err)
	c.say(errorFrame(corr, f))
}

// explain is what the client is told of an error; the log gets the rest.
func (c *conn) explain(err error) *failure {
	f := explain(err)
	c.g.report(c.r, f.Code, err)
	return f
}
