package gateway_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestFramesOfSubjectAreBounded: many connections of a subject have a rate together, which others do not share.
func TestFramesOfSubjectAreBounded(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := withTokens()
		c.Limits = gateway.Limits{Rate: 0.001, Burst: 2}
		r.serve(c)
		for range 10 {
			ws := r.dial("Authorization", ann)
			ws.next(frame.Hello)
			for range 2 {
				ws.ask(`{"op":"PING"}`, frame.Pong)
			}
		}
		ws := r.dial("Authorization", ann)
		ws.next(frame.Hello)
		if m := ws.ask(`{"op":"PING"}`, frame.Err); m.Code != string(gateway.CodeRateLimited) || m.RetryAfterMs == 0 {
			r.Errorf("%+v", m)
		}
		other := r.dial("Authorization", bob)
		other.next(frame.Hello)
		other.ask(`{"op":"PING"}`, frame.Pong)
	})
}

// TestControlFramesCount: pings and pongs of the WebSocket protocol count as frames.
func TestControlFramesCount(t *testing.T) {
	for name, first := range map[string]byte{"ping": 0x89, "pong": 0x8a} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gateway.Config{Limits: gateway.Limits{Rate: 0.001, Burst: 5}}, func(r *wsRig) {
				raw, in := r.rawConn("")
				go func() { // ends with raw
					for range 50 {
						if _, err := raw.Write(rawFrame(first, []byte("x"))); err != nil {
							return
						}
					}
				}()
				if code := rawClose(r, in); code != frame.CloseRateLimited {
					r.Errorf("closed with %d", code)
				}
			})
		})
	}
}

// TestControlFramesOfRefusedConnection: pongs on a connection that does not begin do no harm.
func TestControlFramesOfRefusedConnection(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{Rate: 0.001, Burst: 5}}, func(r *wsRig) {
		raw, err := r.net.dial(r.Context(), "", "")
		if err != nil {
			r.Fatal(err)
		}
		defer func() { _ = raw.Close() }()
		in := shakeAs(r, raw, "jetbus.v9", "")
		go func() { // ends with raw
			for range 50 {
				if _, err := raw.Write(rawFrame(0x8a, []byte("x"))); err != nil {
					return
				}
			}
		}()
		if code := rawClose(r, in); code != frame.CloseVersion {
			r.Errorf("closed with %d", code)
		}
		time.Sleep(10 * time.Second) // longer than the gateway waits for a close frame
		r.dial().next(frame.Hello)
	})
}

// TestControlFloodIsClosed: a client whose pings exceed its rate many times is closed, though some are in time.
func TestControlFloodIsClosed(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{Rate: 100, Burst: 20}}, func(r *wsRig) {
		raw, in := r.rawConn("")
		go func() { // ends with raw
			for range 1000 {
				time.Sleep(time.Millisecond)
				if _, err := raw.Write(rawFrame(0x8a, []byte("x"))); err != nil {
					return
				}
			}
		}()
		if code := rawClose(r, in); code != frame.CloseRateLimited {
			r.Errorf("closed with %d", code)
		}
	})
}

// TestLargeHandshakeURI: a request line stays in memory as long as the connection, so a long one is refused.
func TestLargeHandshakeURI(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.do("GET", "/ws?x="+strings.Repeat("x", 2<<10), "", "Connection", "Upgrade", "Upgrade", "websocket").refused(gateway.CodeTooLarge)
	})
}

// TestConnectionKeepsNoHeader: the header of a handshake takes no memory while its connection lasts.
func TestConnectionKeepsNoHeader(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		large := strings.Repeat("x", 500<<10)
		before := heap()
		var last *wsClient
		for range 20 {
			last = r.dial("X-Large", large)
			last.next(frame.Hello)
		}
		if grown := heap() - before; grown > 5<<20 {
			r.Errorf("memory grew by %d KiB", grown>>10)
		}
		last.ask(`{"op":"AUTH","token":""}`, frame.OK)
	})
}
