package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

const (
	writeTimeout = 10 * time.Second
	maxFrame     = 128 << 20 // the largest message of a broker, in base64, with room to spare
	firstFrames  = 1 << 20   // of the answers to HELLO and AUTH
)

// token asks for a token, which requests over HTTP use from then on.
func (c *Client) token(ctx context.Context) (token string, err error) {
	if c.c.Token == nil {
		return "", nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("token: %w", &jetbus.PanicError{Value: v})
		}
	}()
	if token, err = c.c.Token(ctx); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	c.mu.Lock()
	c.bearer = token
	c.mu.Unlock()
	return token, nil
}

// connect makes a connection and authenticates. The error wraps [jetbus.ErrUnavailable] or
// [jetbus.ErrDenied], and that of the close that ended it.
func (l *link) connect(ctx context.Context) (*websocket.Conn, greeting, error) {
	ctx, cancel := context.WithTimeout(ctx, l.c.c.ConnectTimeout)
	defer cancel()
	token, err := l.c.token(ctx)
	if err != nil {
		return nil, greeting{}, err
	}
	ws, response, err := websocket.Dial(ctx, l.c.socket, &websocket.DialOptions{HTTPClient: l.c.c.HTTPClient, Subprotocols: []string{frame.Subprotocol}})
	if err != nil {
		condition := jetbus.ErrUnavailable
		if response != nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusUnauthorized {
				condition = jetbus.ErrDenied
			}
		}
		return nil, greeting{}, fmt.Errorf("%w: %w", condition, err)
	}
	ws.SetReadLimit(firstFrames)
	g, err := l.greet(ctx, ws, token)
	if err != nil {
		_ = ws.CloseNow()
		return nil, g, err
	}
	ws.SetReadLimit(maxFrame)
	return ws, g, nil
}

// greet reads HELLO and authenticates.
func (l *link) greet(ctx context.Context, ws *websocket.Conn, token string) (greeting, error) {
	var g greeting
	if ws.Subprotocol() != frame.Subprotocol {
		return g, fmt.Errorf("%w: the gateway does not speak %s", jetbus.ErrUnsupported, frame.Subprotocol)
	}
	if err := next(ctx, ws, &g.hello); err != nil {
		return g, err
	}
	if g.hello.Op != frame.Hello || g.hello.V != 1 {
		return g, fmt.Errorf("%w: the gateway speaks version %d of the protocol, this client 1", jetbus.ErrUnsupported, g.hello.V)
	}
	l.mu.Lock()
	session := l.session
	l.mu.Unlock()
	text, err := requestText(&frame.Request{Op: frame.Auth, Corr: "auth", Token: token, Session: session})
	if err == nil {
		err = ws.Write(ctx, websocket.MessageText, text)
	}
	if err != nil {
		return g, fmt.Errorf("%w: %w", jetbus.ErrUnavailable, err)
	}
	for {
		if err := next(ctx, ws, &g.auth); err != nil {
			return g, err
		}
		switch {
		case g.auth.Corr != "auth":
			g.early = append(g.early, g.auth)
		case g.auth.Op == frame.OK:
			g.token = token
			return g, nil
		case g.auth.Op == frame.Err:
			refused := refusal(&g.auth)
			if err := next(ctx, ws, new(frame.Message)); err != nil {
				refused = errors.Join(refused, err) // which says whether to stay away
			}
			return g, refused
		}
	}
}

// next reads a frame.
func next(ctx context.Context, ws *websocket.Conn, m *frame.Message) error {
	_, text, err := ws.Read(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", jetbus.ErrUnavailable, err)
	}
	*m, err = frame.ParseMessage(text)
	if err != nil {
		return fmt.Errorf("%w: a frame of the gateway: %w", jetbus.ErrUnavailable, err)
	}
	return nil
}

// errSilent: nothing came for too long.
var errSilent = fmt.Errorf("%w: the gateway is silent", jetbus.ErrUnavailable)

// serve reads and writes until the connection is over, and returns why.
func (l *link) serve(ws *websocket.Conn) error {
	over, wrote := make(chan struct{}), make(chan struct{})
	go func() { // ends with over
		defer close(wrote)
		l.write(ws, over)
	}()
	defer func() {
		close(over)
		_ = ws.CloseNow() // it is closed, but for a frame that cannot be read
		<-wrote
	}()
	silence := 2*l.allowed().ping + writeTimeout // the gateway says something at each ping
	quiet := time.AfterFunc(silence, func() { _ = ws.CloseNow() })
	defer quiet.Stop()
	for {
		_, text, err := ws.Read(context.Background())
		if err != nil && !quiet.Stop() {
			return errSilent
		}
		if err != nil {
			return err
		}
		quiet.Reset(silence)
		m, err := frame.ParseMessage(text)
		if err != nil {
			return fmt.Errorf("a frame of the gateway: %w", err)
		}
		l.receive(&m)
	}
}

// write writes what is queued.
func (l *link) write(ws *websocket.Conn, over <-chan struct{}) {
	stuck := time.AfterFunc(time.Hour, func() { _ = ws.CloseNow() })
	stuck.Stop()
	for {
		l.sayAgain()
		text, again := l.take()
		if text == nil {
			var later <-chan time.Time
			var timer *time.Timer
			if again > 0 {
				timer = time.NewTimer(again)
				later = timer.C
			}
			select {
			case <-l.wake:
			case <-later:
			case <-over:
				return
			}
			if timer != nil {
				timer.Stop()
			}
			continue
		}
		stuck.Reset(writeTimeout)
		err := ws.Write(context.Background(), websocket.MessageText, text)
		stuck.Stop()
		if err != nil {
			_ = ws.CloseNow()
			<-over
			return
		}
	}
}

// receive handles a frame of the gateway.
func (l *link) receive(m *frame.Message) {
	switch m.Op {
	case frame.OK, frame.Err:
		l.answered(m)
	case frame.Ping:
		l.mu.Lock()
		l.pongs = 1
		l.mu.Unlock()
		l.signal()
	case frame.TokenExpiring:
		l.expiring(m.Exp)
	case frame.Event, frame.LeaseExpired, frame.CaughtUp, frame.Gap, frame.SubClosed, frame.Assign, frame.Revoke:
		l.mu.Lock()
		e := l.subs[m.Sub]
		l.mu.Unlock()
		switch {
		case e != nil:
			e.message(m)
		case m.Op == frame.Event: // else it is held for nobody
			l.unsubscribe(m.Sub, nil)
		}
	}
}

// tokenWait is how long to wait before a token is asked for again.
const tokenWait = 5 * time.Second

// expiring is told that the token in use ends soon.
func (l *link) expiring(ends int64) {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expires = ends
	if !l.refreshing && !l.c.closing {
		l.refreshing = true
		l.c.work.Go(l.refresh)
	}
}

// refresh asks for a fresh token until there is one that the gateway takes. Where there is none, the
// connection ends with the old one, and the next one begins with another.
func (l *link) refresh() {
	for {
		l.mu.Lock()
		wait := tokenWait - time.Since(l.asked) // Token may give what it gave before, or what ends as soon
		l.mu.Unlock()
		_ = sleep(l.ctx, max(wait, 0))
		l.mu.Lock()
		ends := l.expires
		if ends == 0 || l.ws == nil || l.ctx.Err() != nil {
			l.refreshing = false
			l.mu.Unlock()
			return
		}
		l.asked = time.Now()
		l.mu.Unlock()
		l.authenticate(ends)
	}
}

// authenticate sends a token in place of one that ends, if there is another.
func (l *link) authenticate(ends int64) {
	ctx, cancel := context.WithTimeout(l.ctx, l.c.c.ConnectTimeout)
	defer cancel()
	token, err := l.c.token(ctx)
	l.mu.Lock()
	known := token == l.token
	l.mu.Unlock()
	if err == nil && known {
		return
	}
	var answer *frame.Message
	if err == nil {
		answer, _, err = l.do(ctx, &frame.Request{Op: frame.Auth, Token: token}, true)
	}
	if err != nil {
		l.c.c.Logger.LogAttrs(ctx, slog.LevelWarn, "no fresh token for the gateway", slog.Any("err", err))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token = token
	if l.expires == ends && (answer.Exp == 0 || answer.Exp > ends) { // else that one ends soon, too
		l.expires = 0
	}
}
