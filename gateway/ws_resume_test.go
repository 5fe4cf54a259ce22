package gateway_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// kept makes a member whose session is kept, and returns that.
func (r *wsRig) kept(opts string) (c *wsClient, session string) {
	r.Helper()
	c = r.dial()
	session = c.next(frame.Hello).Session
	c.join(`"resumeGraceMs":30000` + opts)
	return c, session
}

// free returns the events that nobody holds.
func (r *wsRig) free() []*jetbus.Delivery {
	r.Helper()
	got, err := r.bus.Receive(r.Context(), "orders", "g", jetbus.ReceiveOptions{Max: 10, Wait: -1})
	if err != nil {
		r.Fatal(err)
	}
	return got
}

func TestAPauseOutlivesItsConnection(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c, session := r.kept("")
		c.ask(`{"op":"FLOW","topic":"orders","group":"g","pause":true,"corr":"p"}`, frame.OK)
		time.Sleep(time.Minute) // what was asked for before may still be given back
		_ = c.ws.CloseNow()
		time.Sleep(time.Second)
		again := r.dial()
		again.next(frame.Hello)
		if m := again.ask(`{"op":"AUTH","session":"`+session+`"}`, frame.OK); !*m.Recovered {
			r.Fatalf("%+v", m)
		}
		r.publish("orders", "1")
		again.quiet(time.Minute)
		again.ask(`{"op":"FLOW","topic":"orders","group":"g","pause":false,"corr":"r"}`, frame.OK)
		again.next(frame.Event)
	})
}

// TestAClientThatTakesItsLeaveKeepsNothing: it closes its connection, which did not break.
func TestAClientThatTakesItsLeaveKeepsNothing(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c, session := r.kept("")
		r.publish("orders", "1")
		c.next(frame.Event)
		if err := c.ws.Close(websocket.StatusNormalClosure, ""); err != nil {
			r.Error(err)
		}
		time.Sleep(time.Second)
		if got := r.free(); len(got) != 1 || got[0].Attempt != 1 {
			r.Errorf("free are %+v", got)
		}
		again := r.dial()
		again.next(frame.Hello)
		if m := again.ask(`{"op":"AUTH","session":"`+session+`"}`, frame.OK); *m.Recovered {
			r.Errorf("%+v", m)
		}
	})
}

// TestAResumeThatBreaks: the connection breaks again while it is told what its client holds.
func TestAResumeThatBreaks(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c, session := r.kept(`,"maxInFlight":10,"ackTimeoutMs":600000`)
		large := `"` + strings.Repeat("x", 200<<10) + `"`
		r.publish("orders", large, large, large, large)
		for range 4 {
			c.next(frame.Event)
		}
		_ = c.ws.CloseNow()
		time.Sleep(time.Second)
		again := r.dial()
		again.next(frame.Hello)
		again.stall()
		again.send(`{"op":"AUTH","session":"` + session + `"}`)
		time.Sleep(time.Second) // there is no room for all that is held
		again.unstall()
		_ = again.ws.CloseNow()
		time.Sleep(time.Second)
		r.publish("orders", "1")
		time.Sleep(time.Second)
		if got := r.free(); len(got) != 1 || string(got[0].Payload) != "1" {
			r.Errorf("%d events are free", len(got))
		}
	})
}

// slowJoin is a bus whose members wait until somebody says whether they are refused.
type slowJoin struct {
	jetbus.Backend
	verdict chan error
}

func (b slowJoin) Subscribe(ctx context.Context, topic, group string, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	select {
	case err := <-b.verdict:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return b.Backend.Subscribe(ctx, topic, group, h, o)
}

// TestResumeBesideASubscribe: the connection breaks while a subscription is made. The client that
// comes back is told of it when it is there, so that no event it publishes then is too early
// for the group; and is not told of one that was refused.
func TestResumeBesideASubscribe(t *testing.T) {
	for _, verdict := range []error{nil, jetbus.ErrUnavailable} {
		inBubble(t, gateway.Config{}, func(r *wsRig) {
			bus := slowJoin{Backend: r.bus, verdict: make(chan error)}
			r.serveBus(bus, gateway.Config{})
			c := r.dial()
			session := c.next(frame.Hello).Session
			c.send(`{"op":"SUBSCRIBE","sub":"one","topic":"orders","group":"g","opts":{"resumeGraceMs":30000},"corr":"s"}`)
			time.Sleep(time.Second)
			_ = c.ws.CloseNow()
			time.Sleep(time.Second)
			again := r.dial()
			again.next(frame.Hello)
			again.send(`{"op":"AUTH","session":"` + session + `"}`)
			again.quiet(time.Second)
			bus.verdict <- verdict
			m := again.next(frame.OK)
			if !*m.Recovered || slices.Contains(m.Subs, "one") != (verdict == nil) {
				r.Fatalf("%v: %+v", verdict, m)
			}
			if verdict == nil {
				r.publish("orders", "1")
				again.next(frame.Event)
			}
		})
	}
}

// TestResumeBesideASubscribeBreaks: the second connection breaks as well, before its client is told.
func TestResumeBesideASubscribeBreaks(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		bus := slowJoin{Backend: r.bus, verdict: make(chan error)}
		r.serveBus(bus, gateway.Config{})
		c := r.dial()
		session := c.next(frame.Hello).Session
		c.send(`{"op":"SUBSCRIBE","sub":"one","topic":"orders","group":"g","opts":{"resumeGraceMs":30000},"corr":"s"}`)
		time.Sleep(time.Second)
		for range 2 {
			_ = c.ws.CloseNow()
			time.Sleep(time.Second)
			c = r.dial()
			c.next(frame.Hello)
			c.send(`{"op":"AUTH","session":"` + session + `"}`)
			time.Sleep(time.Second)
		}
		bus.verdict <- nil
		if m := c.next(frame.OK); !*m.Recovered || !slices.Contains(m.Subs, "one") {
			r.Fatalf("%+v", m)
		}
		r.publish("orders", "1")
		c.next(frame.Event)
	})
}

// TestALeaseThatRanOutIsNeverSettled: however often the client asks.
func TestALeaseThatRanOutIsNeverSettled(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c, e := r.outlived()
		for range 2 {
			if m := c.ask(`{"op":"ACK","ack_id":"`+e.AckID+`","corr":"x"}`, frame.OK); *m.Applied || m.Reason != "expired" {
				r.Errorf("%+v", m)
			}
		}
	})
}

// TestAnAckUnderWayIsNotSettled: a client that comes back and says again what it has no answer to
// learns what became of it, and not that it is settled while it is not known.
func TestAnAckUnderWayIsNotSettled(t *testing.T) {
	for what, say := range map[string]string{"ACK": `{"op":"ACK","ack_id":%q,"corr":"x"}`, "ACKS": `{"op":"ACKS","ack":[%q],"corr":"x"}`} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, gateway.Config{}, func(r *wsRig) {
				c, session := r.kept(`,"ackTimeoutMs":600000`)
				r.publish("orders", "1")
				e := c.next(frame.Event)
				if err := r.broker.Kill(r.Context()); err != nil {
					r.Fatal(err)
				}
				c.send(fmt.Sprintf(say, e.AckID))
				time.Sleep(time.Second)
				_ = c.ws.CloseNow()
				time.Sleep(time.Second)
				again := r.dial()
				again.next(frame.Hello)
				if m := again.ask(`{"op":"AUTH","session":"`+session+`"}`, frame.OK); !*m.Recovered {
					r.Fatalf("%+v", m)
				}
				restarted := make(chan error, 1)
				time.AfterFunc(13*time.Second, func() { restarted <- r.broker.Restart(r.Context()) }) // the first one has failed by then
				if m := again.ask(fmt.Sprintf(say, e.AckID), frame.OK); m.Applied != nil && !*m.Applied || len(m.Results) > 0 {
					r.Errorf("%+v", m)
				}
				if err := <-restarted; err != nil {
					r.Fatal(err)
				}
				time.Sleep(time.Minute)
				if got := r.free(); len(got) > 0 {
					r.Errorf("%d events are free", len(got))
				}
			})
		})
	}
}
