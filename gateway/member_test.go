package gateway_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// What members hold counts in the budget of their subject, however they take it: another member gets
// small events, and larger ones when there is room.
func TestMembersAreBoundedInBytes(t *testing.T) {
	for name, opts := range map[string]string{
		"push":   `"from":"earliest","maxInFlight":100,"ackTimeoutMs":600000`,
		"credit": `"from":"earliest","maxInFlight":100,"flow":"credit","credit":100,"ackTimeoutMs":600000`,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gateway.Config{Limits: gateway.Limits{Bytes: 1 << 20, BytesPerPrincipal: 1 << 20, BytesPerConnection: 1 << 20}}, func(r *wsRig) {
				const size, events = 100_000, 30
				for range events {
					r.publish("orders", `"`+strings.Repeat("x", size)+`"`)
				}
				c := r.member(opts)
				var held []frame.Message
				for range events {
					time.Sleep(3 * time.Second) // it asks again after a second
					for len(c.early)+len(c.frames) > 0 {
						held = append(held, c.next(frame.Event))
					}
					if n := len(held) * size; n == 0 || n > 1<<20 {
						r.Fatalf("%d events are held", len(held))
					}
					c.ask(`{"op":"ACK","ack_id":"`+held[0].AckID+`","corr":"a"}`, frame.OK)
					held = held[1:]
				}
			})
		})
	}
}

// What is pulled over HTTP counts in the same way. A pull that finds no room is refused, and another one
// gets the event when there is.
func TestPullsAreBoundedInBytes(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{Bytes: 1 << 20, BytesPerPrincipal: 1 << 20, BytesPerConnection: 1 << 20}}, func(r *wsRig) {
		const size = 100_000
		for range 30 {
			r.publish("orders", `"`+strings.Repeat("x", size)+`"`)
		}
		first := r.pull(`{"from":"earliest","max":30,"ackTimeoutMs":600000}`)
		if len(first) == 0 || len(first)*size > 1<<20 {
			r.Fatalf("%d events came", len(first))
		}
		for n := len(first); n*size <= 1<<20; {
			answer := r.do("POST", groupPath+"pull", `{"max":30,"wait":"0"}`)
			if answer.status != 200 {
				answer.refused(gateway.CodeRateLimited)
				break
			}
			n++
		}
		r.settle("ack", first[0].AckID, ``)
		if got := r.pull(`{"max":30,"wait":"0"}`); len(got) == 0 {
			r.Error("no event comes when there is room again")
		}
	})
}
