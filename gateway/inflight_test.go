package gateway_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestInflight counts what clients hold: in a group, until it is settled or given back, also
// while a client is away that may come back, and nothing of those that read.
func TestInflight(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		want := func(what string, want ...gateway.Inflight) {
			r.Helper()
			synctest.Wait()
			if d := cmp.Diff(want, r.g.Inflight()); d != "" {
				r.Errorf("%s (-want +got):\n%s", what, d)
			}
		}
		orders := func(n int) gateway.Inflight { return gateway.Inflight{Topic: "orders", Group: "g", Events: n} }
		if got := r.g.Inflight(); len(got) != 0 {
			r.Errorf("nobody is there, and %v", got)
		}
		c := r.member(`"resumeGraceMs":5000`)
		want("a member", orders(0))
		reader := r.dial()
		reader.next(frame.Hello)
		reader.ask(`{"op":"SUBSCRIBE","topic":"orders","corr":"r"}`, frame.OK)
		reader.next(frame.CaughtUp)
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"none","group":"made-up","corr":"m"}`, frame.Err); m.Code == "" {
			r.Errorf("%+v", m)
		}
		r.publish("orders", "1", "2", "3")
		var acks []string
		for range 3 {
			acks = append(acks, c.next(frame.Event).AckID)
		}
		want("three are held", orders(3))
		c.ask(`{"op":"ACK","ack_id":"`+acks[0]+`","corr":"a"}`, frame.OK)
		want("one is settled", orders(2))
		_ = c.ws.CloseNow()
		time.Sleep(time.Second)
		want("the client is away", orders(2))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := r.g.Inflight(); len(got) != 0 {
			r.Errorf("the client did not come back, and %v", got)
		}
	})
}
