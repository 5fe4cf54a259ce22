//go:build linux

package edge

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// Bounds of the attack with silent sockets.
const (
	silentRoom   = 1_000  // connections that the gateway has room for, fewer than by default: so the attack is shorter
	silentMakers = 8      // goroutines
	silentEach   = 500    // sockets that each of them keeps open
	silentMost   = 30_000 // in all
	silentTries  = 30     // by a client with a token during the attack
	silentRSS    = 512    // MiB of the server, at most
)

// TestSilentSocketsOverTCP opens WebSockets to jetbus serve that send nothing, as fast as it can
// and from one address, as behind a reverse proxy. A client with a token connects within 5 seconds
// each time.
func TestSilentSocketsOverTCP(t *testing.T) {
	s := startServe(t, serveOptions{settings: fmt.Sprintf(`{"limits":{"connections":%d}}`, silentRoom)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var made atomic.Int64
	var makers sync.WaitGroup
	for range silentMakers {
		makers.Go(func() { makeSilent(ctx, s.address, &made) })
	}
	for made.Load() < 2*silentRoom {
		time.Sleep(10 * time.Millisecond)
	}
	var slowest time.Duration
	in := 0
	for i := range silentTries {
		began := time.Now()
		if err := authenticateWithin(ctx, s.address, 5*time.Second); err != nil {
			t.Errorf("try %d: %v", i+1, err)
			continue
		}
		in++
		slowest = max(slowest, time.Since(began))
		time.Sleep(100 * time.Millisecond)
	}
	rss := s.peakRSS() >> 20
	cancel()
	makers.Wait()
	t.Logf("%d of %d tries of a client with a token, the slowest in %v, beside %d silent sockets; RSS at most %d MiB", in, silentTries, slowest, made.Load(), rss)
	if rss > silentRSS {
		t.Errorf("the server had %d MiB, want %d at most", rss, silentRSS)
	}
}

// makeSilent opens WebSockets that send nothing. When it has silentEach of them, it closes the
// oldest one for each that it opens.
func makeSilent(ctx context.Context, address string, made *atomic.Int64) {
	var open []net.Conn
	defer func() {
		for _, nc := range open {
			_ = nc.Close()
		}
	}()
	for ctx.Err() == nil && made.Load() < silentMost {
		nc, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", address)
		if err != nil {
			continue
		}
		_ = nc.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = io.WriteString(nc, "GET /ws HTTP/1.1\r\nHost: "+address+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: "+frame.Subprotocol+"\r\n\r\n")
		if err == nil {
			_, err = nc.Read(make([]byte, 512))
		}
		if open = append(open, nc); err != nil || len(open) > silentEach {
			_ = open[0].Close()
			open = open[1:]
		}
		made.Add(1)
	}
}

// authenticateWithin connects once and authenticates.
func authenticateWithin(ctx context.Context, address string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ws, _, err := websocket.Dial(ctx, "ws://"+address+"/ws", &websocket.DialOptions{ //nolint:bodyclose // an answer that became a WebSocket has no body to close
		Subprotocols: []string{frame.Subprotocol},
		HTTPClient:   &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	})
	if err != nil {
		return err
	}
	defer func() { _ = ws.CloseNow() }()
	if err := ws.Write(ctx, websocket.MessageText, []byte(`{"op":"AUTH","corr":"a","token":"`+token+`"}`)); err != nil {
		return err
	}
	for {
		_, text, err := ws.Read(ctx)
		if err != nil {
			return err
		}
		m, err := frame.ParseMessage(text)
		switch {
		case err != nil:
			return err
		case m.Op == frame.OK:
			return nil
		case m.Op != frame.Hello:
			return fmt.Errorf("%s", text)
		}
	}
}
