package gateway_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

func TestGiveBackIsNoAttempt(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member("")
		r.publish("orders", "1", "2")
		one, two := c.next(frame.Event), c.next(frame.Event)
		if m := c.ask(`{"op":"NACK","ack_id":"`+one.AckID+`","give_back":true,"corr":"x"}`, frame.OK); !*m.Applied {
			r.Errorf("%+v", m)
		}
		if again := c.next(frame.Event); again.Ctx.Attempt != 1 || again.Event.ID != one.Event.ID || again.AckID == one.AckID {
			r.Errorf("came back as %+v", again)
		}
		c.ask(`{"op":"ACKS","nack":[{"ack_id":"`+two.AckID+`","give_back":true}],"corr":"y"}`, frame.OK)
		if again := c.next(frame.Event); again.Ctx.Attempt != 1 || again.Event.ID != two.Event.ID {
			r.Errorf("came back as %+v", again)
		}
	})
}

func TestFlowPausesAGroup(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"ackTimeoutMs":600000`)
		c.ask(`{"op":"FLOW","topic":"orders","group":"g","pause":true,"corr":"p"}`, frame.OK)
		c.quiet(time.Minute) // what was asked for before may still be given back
		r.publish("orders", "1")
		c.quiet(time.Minute)
		c.ask(`{"op":"FLOW","topic":"orders","group":"g","pause":false,"corr":"r"}`, frame.OK)
		if e := c.next(frame.Event); e.Ctx.Attempt != 1 {
			r.Errorf("%+v", e)
		}
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","sub":"reader","corr":"s"}`, frame.OK)
		c.next(frame.CaughtUp)
		if m := c.ask(`{"op":"FLOW","sub":"reader","pause":true,"corr":"q"}`, frame.Err); m.Code != "unsupported" {
			r.Errorf("%+v", m)
		}
	})
}

// outlived joins a group and gets an event, whose lease at the broker is lost before the client's.
func (r *wsRig) outlived() (c *wsClient, e frame.Message) {
	r.Helper()
	c = r.member(`"ackTimeoutMs":600000`)
	r.publish("orders", "1")
	e = c.next(frame.Event)
	c.ask(`{"op":"FLOW","topic":"orders","group":"g","pause":true,"corr":"p"}`, frame.OK)
	if err := r.bus.SetCursor(r.Context(), "orders", "g", jetbus.Cursor{}, jetbus.SeekOptions{Force: true}); err != nil {
		r.Fatal(err)
	}
	c.quiet(time.Minute)
	return c, e
}

func TestExtensionTellsThatTheBrokersLeaseIsLost(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c, e := r.outlived()
		if m := c.ask(`{"op":"MODACK","ack_id":"`+e.AckID+`","corr":"x"}`, frame.OK); *m.Applied || m.Reason != "expired" {
			r.Errorf("%+v", m)
		}
	})
}

func TestBusyGroupSaysHowBusy(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member("")
		r.publish("orders", "1")
		c.next(frame.Event)
		m := c.ask(`{"op":"SEEK","topic":"orders","group":"g","to":{"from":"earliest","waitMs":10},"corr":"x"}`, frame.Err)
		if m.Code != "group_busy" || !strings.Contains(string(m.Details), `"held":1`) {
			r.Errorf("%+v, %s", m, m.Details)
		}
	})
}
