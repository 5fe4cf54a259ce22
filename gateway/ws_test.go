package gateway_test

import (
	"testing"

	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

func TestPublishAndSubscribe(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.dial()
		hello := c.next(frame.Hello)
		if hello.V != 1 || hello.Session == "" || hello.Auth != "none" {
			r.Errorf("%+v", hello)
		}
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g","corr":"1"}`, frame.OK); m.Corr != "1" || m.Sub == "" {
			r.Errorf("%+v", m)
		}
		c.send(`{"op":"PUBLISH","topic":"orders","payload": {"n":9007199254740993, "f":1.10} ,"opts":{"id":"a","key":"k","headers":{"x-a":"b"}},"corr":"2"}`)
		var ok, event frame.Message
		for range 2 {
			m, err := frame.ParseMessage([]byte(c.text()))
			if err != nil {
				r.Fatal(err)
			}
			if m.Op == frame.OK {
				ok = m
			} else {
				event = m
			}
		}
		if ok.ID != "a" || ok.Seq != 1 || ok.Corr != "2" {
			r.Errorf("%+v", ok)
		}
		if event.Op != frame.Event || string(event.Event.Payload) != `{"n":9007199254740993, "f":1.10}` || event.Group != "g" || event.AckID == "" || event.Ctx.Attempt != 1 || event.Event.Headers["x-a"] != "b" {
			r.Errorf("%+v", event)
		}
		if m := c.ask(`{"op":"ACK","ack_id":"`+event.AckID+`","corr":"3"}`, frame.OK); !*m.Applied {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"ACK","ack_id":"`+event.AckID+`","corr":"4"}`, frame.OK); *m.Applied || m.Reason != "settled" {
			r.Errorf("a second ACK: %+v", m)
		}
		if m := c.ask(`{"op":"PUBLISH","topic":"orders","payload":1,"opts":{"id":"a"},"corr":"5"}`, frame.OK); !m.Duplicate || m.Seq != 1 {
			r.Errorf("published twice: %+v", m)
		}
	})
}
