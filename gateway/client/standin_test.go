package client_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/gateway/client"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// standIn is a gateway that says what a test wants, in a bubble of fake time.
type standIn struct {
	*testing.T
	net   *pipeNet
	lines chan *line // connections that AUTH was answered on
	reply func(c *line, r *frame.Request) string

	away atomic.Bool      // nobody is let in
	web  http.HandlerFunc // answers what is no connection; nil: none comes

	mu   sync.Mutex
	got  []frame.Request
	made int
}

// line is one connection of a standIn, and which, from 1 on.
type line struct {
	s  *standIn
	ws *websocket.Conn
	n  int
}

// inScript runs f with a gateway that answers each frame with what reply returns; "" is
// nothing. reply is called for one frame at a time, the first of a connection is AUTH.
func inScript(t *testing.T, reply func(c *line, r *frame.Request) string, f func(s *standIn)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		s := &standIn{T: t, net: newPipeNet(), lines: make(chan *line, 1000), reply: reply}
		server := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
		var served sync.WaitGroup
		served.Go(func() { _ = server.Serve(s.net) })
		t.Cleanup(func() {
			_ = server.Close()
			served.Wait()
		})
		f(s)
	})
}

// ServeHTTP serves one connection.
func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.away.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if s.web != nil && r.Method == http.MethodPost {
		s.web(w, r)
		return
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{frame.Subprotocol}})
	if err != nil {
		return
	}
	defer func() { _ = ws.CloseNow() }()
	c := &line{s: s, ws: ws}
	c.say(`{"op":"HELLO","v":1,"session":"one","limits":{"resumeGraceMs":30000},"pingMs":3600000}`)
	for {
		_, text, err := ws.Read(context.Background())
		if err != nil {
			return
		}
		r, err := frame.ParseRequest(text)
		if err != nil {
			s.Errorf("%s: %v", text, err)
			return
		}
		s.mu.Lock()
		s.got = append(s.got, r)
		first := c.n == 0
		if first {
			s.made++
			c.n = s.made
		}
		answer := s.reply(c, &r)
		s.mu.Unlock()
		if answer != "" {
			c.say("%s", answer)
		}
		if first {
			s.lines <- c
		}
	}
}

// say sends a frame.
func (c *line) say(format string, args ...any) {
	_ = c.ws.Write(context.Background(), websocket.MessageText, fmt.Appendf(nil, format, args...)) // the client may be gone
}

// event pushes an event.
func (c *line) event(sub, ackID string, seq int) {
	c.say(`{"op":"EVENT","topic":"orders","group":"g","sub":%q,"ack_id":%q,"ctx":{"attempt":1,"maxAttempts":5,"ack_deadline_ms":86400000},`+
		`"event":{"id":"e%d","ts":1,"topic":"orders","payload":%d},"offset":"o%d","seq":%d}`, sub, ackID, seq, seq, seq, seq)
}

// cut breaks the connection.
func (c *line) cut() { _ = c.ws.CloseNow() }

// dial makes a client until the end of the test, and returns the connection to it.
func (s *standIn) dial(change func(*client.Config)) (*client.Client, *line) {
	s.Helper()
	c := s.net.config()
	if change != nil {
		change(&c)
	}
	return dial(s.T, c), get(s.T, "the connection", s.lines)
}

// said waits until nothing happens any more, and returns the frames with that op.
func (s *standIn) said(op string) []frame.Request {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []frame.Request
	for _, r := range s.got {
		if r.Op == op {
			out = append(out, r)
		}
	}
	return out
}

// yes is the answer OK to what has one.
func yes(r *frame.Request) string {
	if r.Op == frame.Pong {
		return ""
	}
	return fmt.Sprintf(`{"op":"OK","corr":%q}`, r.Corr)
}

// limited refuses a frame for its rate.
func limited(r *frame.Request) string {
	return fmt.Sprintf(`{"op":"ERR","corr":%q,"code":"rate_limited","msg":"too many frames at once","retryable":true,"retry_after_ms":100}`, r.Corr)
}

// answer answers everything with OK.
func answer(_ *line, r *frame.Request) string { return yes(r) }
