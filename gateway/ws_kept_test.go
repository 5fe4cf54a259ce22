package gateway_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestDrainEndsKeptSessions ends a gateway while sessions of connections that broke are kept:
// it waits for none of them, and what they hold goes back at once.
func TestDrainEndsKeptSessions(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		for range 3 {
			c := r.member(`"resumeGraceMs":30000,"maxInFlight":1`)
			r.publish("orders", "1")
			c.next(frame.Event)
			_ = c.ws.CloseNow()
			time.Sleep(time.Second)
		}
		begin := time.Now()
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		if err := r.g.Drain(ctx); err != nil || time.Since(begin) > time.Second {
			r.Errorf("after %v: %v", time.Since(begin), err)
		}
		got, err := r.bus.Receive(r.Context(), "orders", "g", jetbus.ReceiveOptions{Max: 10})
		if err != nil || len(got) != 3 {
			r.Fatalf("%v, %v", got, err)
		}
		for _, d := range got {
			if d.Attempt != 1 {
				r.Errorf("%s: attempt %d", d.ID, d.Attempt)
			}
		}
	})
}

// TestReadersAreNotKept asks to resume without a group: what was on its way is not known then,
// and a reader goes on behind its last offset instead.
func TestReadersAreNotKept(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.dial()
		session := c.next(frame.Hello).Session
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","opts":{"resumeGraceMs":10000}}`, frame.Err); m.Code != "bad_request" {
			r.Errorf("%+v", m)
		}
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","sub":"reader"}`, frame.OK)
		c.next(frame.CaughtUp)
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g","sub":"member","opts":{"resumeGraceMs":10000}}`, frame.OK)
		_ = c.ws.CloseNow()
		time.Sleep(time.Second)
		again := r.dial()
		again.next(frame.Hello)
		if m := again.ask(`{"op":"AUTH","session":"`+session+`"}`, frame.OK); !*m.Recovered || len(m.Subs) != 1 || m.Subs[0] != "member" {
			r.Errorf("%+v", m)
		}
	})
}

// TestKeptSessionsAreBounded leaves and comes back as another session, again and again.
func TestKeptSessionsAreBounded(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{PerPrincipal: 2}
	inBubble(t, c, func(r *wsRig) {
		const token = "ann topic:read:> group:join:>"
		var sessions []string
		for range 4 {
			c := r.dial()
			sessions = append(sessions, c.next(frame.Hello).Session)
			c.ask(`{"op":"AUTH","token":"`+token+`"}`, frame.OK)
			c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"resumeGraceMs":30000}}`, frame.OK)
			_ = c.ws.CloseNow()
			time.Sleep(time.Second)
		}
		var recovered []bool
		for _, s := range sessions {
			c := r.dial()
			c.next(frame.Hello)
			recovered = append(recovered, *c.ask(`{"op":"AUTH","token":"`+token+`","session":"`+s+`"}`, frame.OK).Recovered)
			_ = c.ws.Close(1000, "")
			time.Sleep(time.Second) // it no longer counts
		}
		if fmt.Sprint(recovered) != "[true true false false]" {
			r.Errorf("%v", recovered)
		}
	})
}
