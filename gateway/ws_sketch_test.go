package gateway_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

// TestFirstClients replays what a client of the first design sends, which asks for no
// subprotocol, and compares what it gets member by member.
func TestFirstClients(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := r.dialAs(nil)
		quiet := func() { c.quiet(2 * time.Minute) }
		step := func(send string, want ...string) {
			r.Helper()
			if send != "" {
				c.send(send)
			}
			for _, w := range want {
				got := object(r.T, c.text())
				if e, ok := got["event"].(map[string]any); ok { // what no client can foretell
					delete(e, "sid")
					if id, ok := e["id"].(string); !ok || id == "" {
						r.Errorf("no id: %v", e)
					}
				}
				if want := object(r.T, w); !reflect.DeepEqual(got, want) {
					r.Errorf("%s: %v came, not %v", send, got, want)
				}
			}
		}
		step(`{"op":"PUBLISH","topic":"orders","payload":1,"corr":"0"}`, `{"op":"ERR","code":"unauthorized","msg":"Call AUTH first.","corr":"0"}`)
		step(`hello`, `{"op":"ERR","code":"bad_json","msg":"Invalid JSON"}`)
		step(`{"op":"AUTH","token":"bad","corr":"1a"}`, `{"op":"ERR","code":"bad_token","msg":"the token does not count here","corr":"1a"}`)
		step(`{"op":"AUTH","token":"ann topic:read:> topic:write:> group:join:>","corr":"8f3a"}`, `{"op":"OK","corr":"8f3a"}`)
		step(`{"op":"SUBSCRIBE","topic":"orders","group":"ops","opts":{"from":"earliest","ackTimeoutMs":5000,"maxInFlight":1000000,"batchSize":100},"corr":"2"}`, `{"op":"OK","corr":"2"}`)
		step(`{"op":"SUBSCRIBE","topic":"orders","group":"ops","corr":"3"}`, `{"op":"ERR","code":"already_subscribed","msg":"orders::ops","corr":"3"}`)

		if _, err := r.bus.Publish(r.Context(), jetbus.Event{ID: "e1", Topic: "orders", Key: "k", Time: time.UnixMilli(5), Payload: []byte(`{"a": [1, 2]}`), Tags: []string{"t"}}); err != nil {
			r.Fatal(err)
		}
		const e1 = `{"op":"EVENT","topic":"orders","group":"ops","event":{"id":"e1","ts":5,"topic":"orders","key":"k","payload":{"a":[1,2]},"tags":["t"]},"ctx":{"attempt":%d,"ack_deadline_ms":5000}}`
		step(``, fmt.Sprintf(e1, 1))
		step(`{"op":"NACK","topic":"orders","group":"ops","id":"e1","reason":"no"}`, `{"op":"OK"}`, fmt.Sprintf(e1, 2))
		step(`{"op":"MODACK","topic":"orders","group":"ops","id":"e1","extend_ms":60000,"corr":"4"}`, `{"op":"OK","corr":"4"}`)
		c.quiet(30 * time.Second)
		step(`{"op":"ACK","topic":"orders","group":"ops","id":"e1"}`, `{"op":"OK"}`)
		step(`{"op":"ACK","topic":"orders","group":"ops","id":"e1"}`, `{"op":"OK"}`) // of what was settled
		step(`{"op":"MODACK","topic":"orders","group":"ops","id":"e1","extend_ms":1,"corr":"5"}`, `{"op":"ERR","code":"unknown_id","msg":"no inflight to extend","corr":"5"}`)
		step(`{"op":"ACK","topic":"orders","group":"other","id":"e1","corr":"6"}`, `{"op":"ERR","code":"not_subscribed","msg":"orders::other","corr":"6"}`)
		quiet() // no PING as JSON, nothing comes twice

		c.send(`{"op":"PUBLISH","topic":"none","payload":1,"corr":"7"}`)
		if got := object(r.T, c.text()); got["op"] != "ERR" || got["code"] != "publish_failed" || got["corr"] != "7" || len(got) != 4 {
			r.Errorf("%v", got)
		}
		step(`{"op":"UNSUBSCRIBE","topic":"orders","group":"ops","corr":"8"}`, `{"op":"OK","corr":"8"}`)
		step(`{"op":"UNSUBSCRIBE","topic":"orders","group":"ops","corr":"9"}`, `{"op":"ERR","code":"not_subscribed","msg":"orders::ops","corr":"9"}`)
		step(`{"op":"PUBLISH","topic":"orders","payload":{"x":1},"opts":{"id":"mine","key":"k"},"corr":"10"}`, `{"op":"OK","corr":"10","id":"mine"}`)
	})
}

// TestFirstClientsLease has a client that is too late: the event comes again, and nothing
// that it does not know is sent.
func TestFirstClientsLease(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.dialAs(nil)
		c.send(`{"op":"SUBSCRIBE","topic":"orders","group":"ops","opts":{"ackTimeoutMs":1000},"corr":"1"}`)
		if got := c.text(); got != `{"op":"OK","corr":"1"}` {
			r.Error(got)
		}
		r.publish("orders", "1")
		for attempt := 1; attempt < 3; attempt++ {
			if got := c.text(); !strings.Contains(got, fmt.Sprintf(`"ctx":{"attempt":%d,`, attempt)) {
				r.Error(got)
			}
		}
	})
}

// TestFirstClientsRead reads without a group: nothing comes but events.
func TestFirstClientsRead(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1")
		c := r.dialAs(nil)
		c.send(`{"op":"SUBSCRIBE","topic":"orders","opts":{"from":"earliest"},"corr":"1"}`)
		if got := c.text(); got != `{"op":"OK","corr":"1"}` {
			r.Error(got)
		}
		if got := c.text(); !strings.Contains(got, `"op":"EVENT"`) {
			r.Error(got)
		}
		c.quiet(time.Minute)
	})
}
