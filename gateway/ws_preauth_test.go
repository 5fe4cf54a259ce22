package gateway_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// silent opens n WebSockets from an address and sends nothing over them.
func (r *wsRig) silent(n int, from string) []*wsClient {
	r.Helper()
	out := make([]*wsClient, n)
	for i := range out {
		out[i] = r.dialFrom(from)
		out[i].next(frame.Hello)
	}
	return out
}

func (r *wsRig) dialFrom(from string) *wsClient {
	r.Helper()
	c, _, err := r.tryDialFrom(from, []string{frame.Subprotocol})
	if err != nil {
		r.Fatal(err)
	}
	return c
}

// isOpen reports whether a connection has not ended so far.
func (c *wsClient) isOpen() bool {
	c.r.Helper()
	time.Sleep(time.Second) // until an eviction has reached the client
	for {
		select {
		case _, ok := <-c.frames:
			if !ok {
				return false
			}
		default:
			return true
		}
	}
}

func auth(token string) string { return `{"op":"AUTH","token":"` + token + `"}` }

// TestSilentSocketsTakeNoSlots opens many more WebSockets than the gateway has room for, with
// one address for all of them, as behind a reverse proxy, and with several. Clients with a
// token are admitted each time.
func TestSilentSocketsTakeNoSlots(t *testing.T) {
	for name, from := range map[string]func(i int) string{
		"one address":     func(int) string { return "192.0.2.1:1" },
		"an IPv6 network": func(i int) string { return fmt.Sprintf("[2001:db8::%x]:1", i+1) },
		"many addresses":  func(i int) string { return fmt.Sprintf("192.0.2.%d:1", i%200+1) },
		"no addresses":    func(int) string { return "" },
	} {
		t.Run(name, func(t *testing.T) {
			c := withTokens()
			c.Limits = gateway.Limits{Connections: 8, PerPrincipal: 8, PreAuth: 5, AuthTimeout: time.Hour}
			inBubble(t, c, func(r *wsRig) {
				var silent, known []*wsClient
				for i := range 8 {
					for k := range 10 {
						silent = append(silent, r.silent(1, from(10*i+k))...)
					}
					c := r.dialFrom(from(0))
					c.next(frame.Hello)
					c.ask(auth("ann topic:read:>"), frame.OK)
					known = append(known, c)
				}
				for i, c := range silent[:len(silent)-5] {
					if code := c.closed(); code != int(websocket.StatusTryAgainLater) {
						t.Fatalf("socket %d was closed with %d", i, code)
					}
				}
				for i, c := range known {
					if !c.isOpen() {
						t.Errorf("client %d was closed", i)
					}
				}
			})
		})
	}
}

// TestSilentSocketsOfOthersEvictNobody: the address that has most of the sockets loses one, and
// the others do not notice.
func TestSilentSocketsOfOthersEvictNobody(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{PreAuth: 5, AuthTimeout: time.Hour}
	inBubble(t, c, func(r *wsRig) {
		slow := r.silent(2, "192.0.2.1:1")
		r.silent(50, "192.0.2.2:1")
		r.silent(50, "[2001:db8:1::1]:1")
		for _, c := range slow {
			if !c.isOpen() {
				t.Fatal("a client was evicted by those of other addresses")
			}
			c.ask(auth("ann topic:read:>"), frame.OK)
		}
	})
}

// TestForwardingHeadersDoNotCount: a client cannot choose its address by itself.
func TestForwardingHeadersDoNotCount(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{PreAuth: 5, AuthTimeout: time.Hour}
	inBubble(t, c, func(r *wsRig) {
		slow := r.silent(1, "192.0.2.1:1")[0]
		for i := range 50 {
			name := []string{"X-Forwarded-For", "X-Real-Ip", "Forwarded"}[i%3]
			value := fmt.Sprintf("203.0.113.%d", i)
			if name == "Forwarded" {
				value = "for=" + value
			}
			if _, _, err := r.tryDialFrom("192.0.2.2:1", []string{frame.Subprotocol}, name, value); err != nil {
				t.Fatal(err)
			}
		}
		if !slow.isOpen() {
			t.Error("a client was evicted by one that names other addresses")
		}
	})
}

// TestTokenBeingCheckedIsNotEvicted: a client that has sent its token waits for the issuer, and
// silent sockets of its own address do not end that.
func TestTokenBeingCheckedIsNotEvicted(t *testing.T) {
	for name, header := range map[string][]string{"frame": nil, "header": {"Authorization", "Bearer slow topic:read:>"}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gateway.Config{Auth: slowIssuer{}, Limits: gateway.Limits{PreAuth: 5}}, func(r *wsRig) {
				c := r.dial(header...)
				c.next(frame.Hello)
				if header == nil {
					c.send(auth("slow topic:read:>"))
				}
				time.Sleep(time.Second)
				r.silent(50, "")
				time.Sleep(10 * time.Second)
				c.ask(`{"op":"SUBSCRIBE","topic":"orders"}`, frame.OK)
			})
		})
	}
}

// TestTokensBeingCheckedEvictNobody: sockets whose tokens take long to be refused are no better
// than silent ones.
func TestTokensBeingCheckedEvictNobody(t *testing.T) {
	inBubble(t, gateway.Config{Auth: slowIssuer{}, Limits: gateway.Limits{PreAuth: 5}}, func(r *wsRig) {
		for range 10 {
			for _, c := range r.silent(5, "") {
				_ = c.ws.Write(r.Context(), websocket.MessageText, []byte(auth("slow bad"))) // it may be evicted by now
			}
			time.Sleep(100 * time.Millisecond)
			c := r.dial()
			c.next(frame.Hello)
			time.Sleep(100 * time.Millisecond)
			c.ask(auth("ann topic:read:>"), frame.OK)
		}
	})
}

// TestEvictedSocketsEnd: a socket that is closed already, or of a client that speaks another
// version, does not stay for as long as its client likes.
func TestEvictedSocketsEnd(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{PreAuth: 5, AuthTimeout: time.Second}
	for name, protocol := range map[string]string{"silent": frame.Subprotocol, "other version": "jetbus.v9.cbor"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c, func(r *wsRig) {
				var ended []<-chan struct{}
				for range 20 {
					raw, err := r.net.dial(r.Context(), "", "")
					if err != nil {
						t.Fatal(err)
					}
					r.Cleanup(func() { _ = raw.Close() })
					in := shakeAs(r, raw, protocol, "")
					gone := make(chan struct{})
					go func() { // ends with raw
						defer close(gone)
						buf := make([]byte, 100)
						for {
							if _, err := in.Read(buf); err != nil {
								return
							}
						}
					}()
					ended = append(ended, gone)
				}
				time.Sleep(900 * time.Millisecond)
				open := slices.DeleteFunc(ended, func(gone <-chan struct{}) bool {
					select {
					case <-gone:
						return true
					default:
						return false
					}
				})
				if len(open) > 5 {
					t.Errorf("%d sockets are open", len(open))
				}
				for _, gone := range open {
					<-gone
				}
			})
		})
	}
}

// TestKindsOfConnectionsDoNotStarveEachOther: what fills one kind leaves room for the others.
func TestKindsOfConnectionsDoNotStarveEachOther(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{Connections: 2}
	inBubble(t, c, func(r *wsRig) {
		const token = "Bearer mallory topic:read:> group:join:>"
		header := []string{"Authorization", token}
		for range 2 {
			r.events(ordersPath+"/events", header...).block()
			go func() { _, _ = r.client().Do(r.request("GET", ordersPath+"/events?wait=50s", "", header...)) }() //nolint:bodyclose // it ends with the test
			go func() {
				_, _ = r.client().Do(r.request("POST", "/v1/groups/orders/g:pull", `{"waitMs":50000}`, header...)) //nolint:bodyclose // the same
			}()
		}
		time.Sleep(time.Second)
		r.do("GET", ordersPath+"/events?wait=1s", "", "Authorization", "Bearer bob topic:read:>").refused(gateway.CodeRateLimited)
		r.do("GET", ordersPath+"/state?at=0", "", "Authorization", "Bearer bob topic:read:>").is(200)
		for range 2 {
			r.login("ann topic:read:>")
		}
		third := r.dial()
		if code := third.closed(); code != frame.CloseConnections {
			t.Errorf("closed with %d", code)
		}
		time.Sleep(time.Minute)
	})
}
