package gateway_test

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// withTokens is a gateway that asks for tokens.
func withTokens() gateway.Config { return gateway.Config{Auth: tokens{}} }

// login connects with a token.
func (r *wsRig) login(token string) *wsClient {
	r.Helper()
	c := r.dial()
	if m := c.next(frame.Hello); m.Auth != "required" {
		r.Errorf("%+v", m)
	}
	c.ask(`{"op":"AUTH","token":"`+token+`","corr":"a"}`, frame.OK)
	return c
}

func TestAuthIsNeeded(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := r.dial()
		c.next(frame.Hello)
		if m := c.ask(`{"op":"PUBLISH","topic":"orders","payload":1,"corr":"p"}`, frame.Err); m.Code != "unauthorized" || m.Corr != "p" {
			r.Errorf("%+v", m)
		}
		begin := time.Now()
		if code := c.closed(); code != frame.CloseAuthTimeout || time.Since(begin).Round(time.Second) != 5*time.Second {
			r.Errorf("closed with %d after %v", code, time.Since(begin))
		}
		c = r.dial()
		c.next(frame.Hello)
		if m := c.ask(`{"op":"AUTH","token":"bad"}`, frame.Err); m.Code != "bad_token" || strings.Contains(m.Msg, "bad ") {
			r.Errorf("%+v", m)
		}
		if code := c.closed(); code != frame.CloseUnauthorized {
			r.Errorf("closed with %d", code)
		}
		c = r.dial()
		c.next(frame.Hello)
		if m := c.ask(`{"op":"AUTH","token":"`+strings.Repeat(".", 9<<10)+`"}`, frame.Err); m.Code != "bad_token" {
			r.Errorf("a token of 9 KiB of dots: %+v", m)
		}
		c = r.dial()
		c.next(frame.Hello)
		for range 40 {
			if c.ws.Write(r.Context(), websocket.MessageText, []byte(`{"op":"PONG"}`)) != nil {
				break
			}
		}
		if code := c.closed(); code != frame.CloseUnauthorized {
			r.Errorf("closed with %d", code)
		}
	})
}

// slowIssuer takes its time, and then does not answer.
type slowIssuer struct{ tokens }

// Authenticate implements gateway.Authenticator.
func (i slowIssuer) Authenticate(ctx context.Context, token string) (gateway.Principal, error) {
	if strings.HasPrefix(token, "slow") {
		time.Sleep(8 * time.Second)
	}
	if strings.HasSuffix(token, "down") {
		return gateway.Principal{}, errors.New("the issuer does not answer")
	}
	return i.tokens.Authenticate(ctx, token)
}

// TestSlowIssuer checks tokens for longer than clients have to send theirs: nobody is told to
// stay away for that.
func TestSlowIssuer(t *testing.T) {
	inBubble(t, gateway.Config{Auth: slowIssuer{}}, func(r *wsRig) {
		r.login("slow topic:write:orders")
		for _, protocols := range [][]string{{frame.Subprotocol}, nil} {
			c := r.dialAs(protocols)
			if protocols != nil {
				c.next(frame.Hello)
			}
			if m := c.ask(`{"op":"AUTH","token":"slow down"}`, frame.Err); m.Code != "internal" {
				r.Errorf("%+v", m)
			}
			if code := c.closed(); code != frame.CloseTokenExpired {
				r.Errorf("closed with %d", code)
			}
		}
	})
}

func TestTokenWithRequest(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := r.dial("Authorization", "Bearer ann topic:write:orders")
		c.next(frame.Hello)
		c.ask(`{"op":"PUBLISH","topic":"orders","payload":1}`, frame.OK)
		c = r.dial("Authorization", "Bearer bad")
		c.next(frame.Hello)
		c.next(frame.Err)
		if code := c.closed(); code != frame.CloseUnauthorized {
			r.Errorf("closed with %d", code)
		}
		c = r.dialAs([]string{frame.Subprotocol, frame.BearerPrefix + "ann"})
		c.next(frame.Hello)
		if m := c.ask(`{"op":"PUBLISH","topic":"orders","payload":1}`, frame.Err); m.Code != "forbidden" {
			r.Errorf("a token without scopes: %+v", m)
		}
	})
}

func TestScopesOfConnection(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		for _, c := range []struct {
			token, text, want string
		}{
			{"ann topic:read:orders", `{"op":"SUBSCRIBE","topic":"orders"}`, "OK"},
			{"ann topic:read:orders", `{"op":"SUBSCRIBE","topic":"orders","group":"billing"}`, "forbidden"},
			{"ann topic:read:orders", `{"op":"SUBSCRIBE","topic":"orders","group":"u.ann.x"}`, "OK"},
			{"ann topic:read:orders", `{"op":"SUBSCRIBE","topic":"orders","group":"u.bob.x"}`, "forbidden"},
			{"ann group:join:billing", `{"op":"SUBSCRIBE","topic":"orders","group":"billing"}`, "forbidden"},
			{"ann topic:read:> group:join:billing", `{"op":"SUBSCRIBE","topic":"orders","group":"billing"}`, "OK"},
			{"ann topic:read:> group:join:billing", `{"op":"SEEK","topic":"orders","group":"billing","to":{"from":"latest"}}`, "forbidden"},
			{"ann topic:read:> group:seek:billing", `{"op":"SEEK","topic":"orders","group":"billing","to":{"from":"latest"}}`, "OK"},
			{"ann topic:read:other", `{"op":"SUBSCRIBE","topics":["other","orders"]}`, "forbidden"},
			{"ann topic:read:other", `{"op":"SUBSCRIBE","topic":"other","opts":{"topics":["orders"]}}`, "forbidden"},
			{"ann topic:read:orders", `{"op":"PUBLISH","topic":"orders","payload":1}`, "forbidden"},
			{"ann topic:write:>", `{"op":"PUBLISH","topic":"dlq.orders","payload":1}`, "forbidden"},
			{"ann topic:write:>", `{"op":"PUBLISH_BATCH","events":[{"topic":"orders","payload":1}]}`, "OK"},
		} {
			one := r.login(c.token)
			one.send(c.text)
			m, err := frame.ParseMessage([]byte(one.text()))
			if err != nil {
				r.Fatal(err)
			}
			if got := m.Op + m.Code; got != "ERR"+c.want && m.Op != c.want {
				r.Errorf("%s: %s: %+v", c.token, c.text, m)
			}
			_ = one.ws.CloseNow()
		}
	})
}

func TestRefresh(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := r.login("ann topic:read:> group:join:>")
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g","sub":"a"}`, frame.OK)
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","sub":"b"}`, frame.OK)
		c.next(frame.CaughtUp)
		if m := c.ask(`{"op":"AUTH","token":"bob topic:read:>"}`, frame.Err); m.Code != "forbidden" {
			r.Errorf("another subject: %+v", m)
		}
		if m := c.ask(`{"op":"AUTH","token":"bad"}`, frame.Err); m.Code != "bad_token" {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"AUTH","token":"ann topic:read:>"}`, frame.SubClosed); m.Sub != "a" || m.Code != "forbidden" {
			r.Errorf("%+v", m)
		}
		c.next(frame.OK)
		r.publish("orders", "1")
		if m := c.next(frame.Event); m.Sub != "b" {
			r.Errorf("%+v", m)
		}
	})
}

// TestTheEndOfATokenIsToldOnce authenticates with the token again that is about to end.
func TestTheEndOfATokenIsToldOnce(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		const token = "ann topic:read:>~150s"
		c := r.login(token)
		c.next(frame.TokenExpiring)
		c.ask(`{"op":"AUTH","token":"`+token+`"}`, frame.OK)
		c.quiet(10 * time.Second)
		if code := c.closed(); code != frame.CloseTokenExpired {
			r.Errorf("closed with %d", code)
		}
		if at := time.Since(time.Date(2000, 1, 1, 0, 2, 30, 0, time.UTC)).Round(time.Second); at != 0 {
			r.Errorf("closed %v off", at)
		}
	})
}

// TestTokenEnds holds an event when its token ends: it is told before, and the event goes to
// another member when it did nothing about it.
func TestTokenEnds(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := r.login("ann topic:read:> group:join:>~150s")
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"ackTimeoutMs":300000}}`, frame.OK)
		r.publish("orders", "1")
		c.next(frame.Event)
		if m := c.next(frame.TokenExpiring); m.Exp != time.Date(2000, 1, 1, 0, 2, 30, 0, time.UTC).Unix() {
			r.Errorf("%+v", m)
		}
		c.ask(`{"op":"AUTH","token":"ann topic:read:> group:join:>~200s"}`, frame.OK)
		c.next(frame.TokenExpiring)
		if code := c.closed(); code != frame.CloseTokenExpired {
			r.Errorf("closed with %d", code)
		}
		if at := time.Since(time.Date(2000, 1, 1, 0, 3, 20, 0, time.UTC)).Round(time.Second); at != 0 {
			r.Errorf("closed %v off", at)
		}
		other := r.login("bob topic:read:> group:join:>")
		other.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g"}`, frame.OK)
		if e := other.next(frame.Event); e.Ctx.Attempt != 1 {
			r.Errorf("%+v", e.Ctx)
		}
		late := r.dial()
		late.next(frame.Hello)
		if m := late.ask(`{"op":"AUTH","token":"ann topic:read:>~10s"}`, frame.Err); m.Code != "token_expired" || !m.Retryable {
			r.Errorf("%+v", m)
		}
	})
}

func TestOrigins(t *testing.T) {
	inBubble(t, gateway.Config{Origins: []string{"https://app.example.com"}}, func(r *wsRig) {
		for origin, want := range map[string]bool{
			"": true, "https://app.example.com": true, "http://localhost:3000": true,
			"https://evil.example.com": false, "null": false, "https://app.example.com.evil.example": false,
		} {
			var header []string
			if origin != "" {
				header = []string{"Origin", origin}
			}
			_, status, err := r.tryDial([]string{frame.Subprotocol}, header...)
			if (err == nil) != want {
				r.Errorf("%q: %v", origin, err)
			}
			if err != nil && status != http.StatusForbidden {
				r.Errorf("%q: %d", origin, status)
			}
		}
		// A page whose name was bound to 127.0.0.1 asks for another host.
		_, status, err := r.tryDial([]string{frame.Subprotocol}, "X-Forwarded-For", "192.0.2.1")
		if err == nil || status != http.StatusForbidden {
			r.Errorf("through a proxy without tokens: %v", err)
		}
	})
}

func TestConnectionLimits(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{Connections: 3, PerPrincipal: 2}
	inBubble(t, c, func(r *wsRig) {
		first := r.login("ann")
		r.login("ann")
		third := r.dial()
		third.next(frame.Hello)
		if m := third.ask(`{"op":"AUTH","token":"ann"}`, frame.Err); m.Code != "rate_limited" || m.RetryAfterMs != 1000 {
			r.Errorf("%+v", m)
		}
		if code := third.closed(); code != frame.CloseConnections {
			r.Errorf("closed with %d", code)
		}
		r.login("bob")
		fourth := r.dial()
		if code := fourth.closed(); code != frame.CloseConnections {
			r.Errorf("closed with %d", code)
		}
		_ = first.ws.CloseNow()
		time.Sleep(time.Second)
		r.login("ann")
	})
}

// TestTooManyConnections tells some that there are too many, and refuses the handshake of others.
func TestTooManyConnections(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{Connections: 1}
	inBubble(t, c, func(r *wsRig) {
		r.login("ann")
		told, refused := 0, 0
		for range 80 {
			raw, err := r.net.dial(r.Context(), "", "") // whoever is told does not answer
			if err != nil {
				r.Fatal(err)
			}
			r.Cleanup(func() { _ = raw.Close() })
			_, _ = io.WriteString(raw, "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
			answer := make([]byte, 12)
			if _, err := io.ReadFull(raw, answer); err != nil {
				r.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, raw) }() // ends with raw
			switch string(answer) {
			case "HTTP/1.1 101":
				told++
			case "HTTP/1.1 429":
				refused++
			default:
				r.Errorf("%s", answer)
			}
		}
		if told != 64 || refused != 16 {
			r.Errorf("%d are told, and %d refused", told, refused)
		}
		time.Sleep(time.Minute)
	})
}

// TestBigFrameBeforeAuth sends a batch before a token.
func TestBigFrameBeforeAuth(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		batch := `{"op":"PUBLISH_BATCH","events":[` + strings.Repeat("{},", 10_000) + `{}]}`
		c := r.login("ann topic:write:>")
		if m := c.ask(batch, frame.Err); m.Code != "too_large" {
			r.Errorf("%+v", m)
		}
		c = r.dial("Authorization", "Bearer ann topic:write:>")
		c.next(frame.Hello)
		if m := c.ask(batch, frame.Err); m.Code != "too_large" {
			r.Errorf("%+v", m)
		}
		c = r.dial()
		c.next(frame.Hello)
		_ = c.ws.Write(r.Context(), websocket.MessageText, []byte(batch)) // cut within
		if code := c.closed(); code != 1009 && code != -1 {
			r.Errorf("closed with %d", code)
		}
	})
}

func TestOtherVersion(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.dialAs([]string{"jetbus.v9.cbor"})
		if code := c.closed(); code != frame.CloseVersion {
			r.Errorf("closed with %d", code)
		}
	})
}

// TestBearerProtocolWithToken uses a token as browsers can send it.
func TestBearerProtocolWithToken(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		token := base64.RawURLEncoding.EncodeToString([]byte("ann"))
		c := r.dialAs([]string{frame.BearerPrefix + token, frame.Subprotocol})
		c.next(frame.Hello)
		c.ask(`{"op":"PUBLISH","topic":"orders","payload":1}`, frame.Err)
		if c.ws.Subprotocol() != frame.Subprotocol {
			r.Errorf("the subprotocol is %q", c.ws.Subprotocol())
		}
	})
}
