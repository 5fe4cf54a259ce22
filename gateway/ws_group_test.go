package gateway_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// join subscribes to orders as a member of g.
func (c *wsClient) join(opts string) frame.Message {
	c.r.Helper()
	return c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g","corr":"s","opts":{`+opts+`}}`, frame.OK)
}

func (r *wsRig) member(opts string) *wsClient {
	r.Helper()
	c := r.dial()
	c.next(frame.Hello)
	c.join(opts)
	return c
}

func TestLeaseRunsOut(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"ackTimeoutMs":2000`)
		r.publish("orders", "1")
		first := c.next(frame.Event)
		if first.Ctx.AckDeadlineMs < 1900 || first.Ctx.AckDeadlineMs > 2000 {
			r.Errorf("%+v", first.Ctx)
		}
		begin := time.Now()
		m := c.next(frame.LeaseExpired)
		if m.AckID != first.AckID || m.ID != first.Event.ID || time.Since(begin).Round(100*time.Millisecond) != 2*time.Second {
			r.Errorf("%+v after %v", m, time.Since(begin))
		}
		for _, op := range []string{"ACK", "NACK", "MODACK"} {
			if m := c.ask(`{"op":"`+op+`","ack_id":"`+first.AckID+`"}`, frame.OK); *m.Applied || m.Reason != "expired" || m.AckID != first.AckID {
				r.Errorf("%s: %+v", op, m)
			}
		}
		second := c.next(frame.Event)
		if second.Ctx.Attempt != 2 || second.AckID == first.AckID || second.Event.ID != first.Event.ID {
			r.Errorf("%+v", second)
		}
	})
}

// TestLongLease holds an event for longer than the group's own leases, and extends that.
func TestLongLease(t *testing.T) {
	for _, flow := range []string{"push", "credit"} {
		t.Run(flow, func(t *testing.T) {
			inBubble(t, gateway.Config{}, func(r *wsRig) {
				c := r.member(`"ackTimeoutMs":120000,"flow":"` + flow + `","credit":` + map[string]string{"push": "0", "credit": "10"}[flow])
				r.publish("orders", "1")
				e := c.next(frame.Event)
				c.quiet(110 * time.Second)
				if m := c.ask(`{"op":"MODACK","ack_id":"`+e.AckID+`","extend_ms":60000,"corr":"x"}`, frame.OK); !*m.Applied || m.DeadlineMs != 60000 {
					r.Errorf("%+v", m)
				}
				c.quiet(50 * time.Second)
				if m := c.ask(`{"op":"ACK","ack_id":"`+e.AckID+`","confirm":true}`, frame.OK); !*m.Applied {
					r.Errorf("%+v", m)
				}
				c.quiet(2 * time.Minute)
			})
		})
	}
}

func TestExtendIsBounded(t *testing.T) {
	limits := gateway.Limits{LeaseMax: 10 * time.Second, LeaseTotal: 15 * time.Second}
	inBubble(t, gateway.Config{Limits: limits}, func(r *wsRig) {
		c := r.member(`"ackTimeoutMs":10000`)
		r.publish("orders", "1")
		e := c.next(frame.Event)
		time.Sleep(8 * time.Second)
		if m := c.ask(`{"op":"MODACK","ack_id":"`+e.AckID+`","extend_ms":999999,"corr":"x"}`, frame.OK); !*m.Applied || m.DeadlineMs > 7000 || m.DeadlineMs < 6900 {
			r.Errorf("%+v", m)
		}
		begin := time.Now()
		c.next(frame.LeaseExpired)
		if d := time.Since(begin); d > 7*time.Second {
			r.Errorf("it lasted %v", d)
		}
	})
}

func TestNack(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"maxAttempts":3`)
		r.publish("orders", "1")
		e := c.next(frame.Event)
		begin := time.Now()
		c.ask(`{"op":"NACK","ack_id":"`+e.AckID+`","delay_ms":5000,"reason":"not now","corr":"n"}`, frame.OK)
		e = c.next(frame.Event)
		if d := time.Since(begin); e.Ctx.Attempt != 2 || d < 5*time.Second || d > 6*time.Second {
			r.Errorf("%+v after %v", e.Ctx, d)
		}
		c.ask(`{"op":"NACK","ack_id":"`+e.AckID+`","snooze":true,"delay_ms":1000,"corr":"n"}`, frame.OK)
		if e = c.next(frame.Event); e.Ctx.Attempt != 2 {
			r.Errorf("a snooze is no attempt: %+v", e.Ctx)
		}
		for _, bad := range []string{`"dead_reason":"schema"`, `"dead":true,"dead_reason":"` + strings.Repeat("x", 101) + `"`} {
			if m := c.ask(`{"op":"NACK","ack_id":"`+e.AckID+`",`+bad+`,"corr":"n"}`, frame.Err); m.Code != "bad_request" {
				r.Errorf("%s: %+v", bad, m)
			}
		}
		c.ask(`{"op":"NACK","ack_id":"`+e.AckID+`","dead":true,"dead_reason":"schema","reason":"never","stack":"`+strings.Repeat(`f\n`, 9000)+`","corr":"n"}`, frame.OK)
		n := 0
		for letter, err := range r.bus.Scan(r.Context(), "dlq.orders", jetbus.ScanQuery{}) {
			if err != nil {
				r.Fatal(err)
			}
			n++
			if d, err := jetbus.ParseDeadLetter(letter); err != nil || d.Group != "g" || d.Reason != jetbus.DeadSchema || d.Error != "never" || !strings.HasPrefix(d.Stack, "f\nf\n") || len(d.Stack) > jetbus.MaxStackBytes {
				r.Errorf("%+v, %v", d, err)
			}
		}
		if n != 1 {
			r.Errorf("%d dead letters", n)
		}
	})
}

func TestAcks(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(``)
		r.publish("orders", "1", "2", "3")
		var ids []string
		for range 3 {
			ids = append(ids, c.next(frame.Event).AckID)
		}
		m := c.ask(fmt.Sprintf(`{"op":"ACKS","corr":"a","ack":[%q,"nobody"],"nack":[{"ack_id":%q,"delay_ms":1000}],"mod":[{"ack_id":%q,"extend_ms":60000}]}`, ids[0], ids[1], ids[2]), frame.OK)
		if len(m.Results) != 1 || m.Results[0].AckID != "nobody" || *m.Results[0].Applied {
			r.Errorf("%+v", m)
		}
		if e := c.next(frame.Event); string(e.Event.Payload) != "2" || e.Ctx.Attempt != 2 {
			r.Errorf("%+v", e)
		} else {
			c.send(`{"op":"ACK","ack_id":"` + e.AckID + `"}`)
		}
		c.quiet(40 * time.Second) // the third is held for longer than 30 seconds
	})
}

// TestAckOfAnother acknowledges what another connection holds.
func TestAckOfAnother(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(``)
		other := r.dial()
		other.next(frame.Hello)
		r.publish("orders", "1")
		e := c.next(frame.Event)
		if m := other.ask(`{"op":"ACK","ack_id":"`+e.AckID+`"}`, frame.OK); *m.Applied || m.Reason != "unknown" {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"ACK","ack_id":"`+e.AckID+`","corr":"1"}`, frame.OK); !*m.Applied {
			r.Errorf("%+v", m)
		}
	})
}

// TestDisconnectGivesBack cuts a connection that holds events: another member gets them at
// once, and it was no attempt.
func TestDisconnectGivesBack(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(``)
		r.publish("orders", "1", "2")
		c.next(frame.Event)
		c.next(frame.Event)
		begin := time.Now()
		_ = c.ws.CloseNow()
		other := r.member(``)
		for range 2 {
			if e := other.next(frame.Event); e.Ctx.Attempt != 1 {
				r.Errorf("%+v", e.Ctx)
			}
		}
		if d := time.Since(begin); d > time.Second {
			r.Errorf("it took %v", d)
		}
	})
}

func TestCredit(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"flow":"credit","from":"earliest","maxInFlight":3`)
		r.publish("orders", "1", "2", "3", "4", "5", "6")
		c.quiet(time.Minute) // no credit, no event
		c.send(`{"op":"FLOW","sub":"s1","messages":1}`)
		e := c.next(frame.Event)
		c.ask(`{"op":"ACK","ack_id":"`+e.AckID+`","corr":"a"}`, frame.OK)
		c.quiet(time.Minute) // an acknowledgement is no credit
		c.ask(`{"op":"FLOW","sub":"s1","messages":9223372036854775807,"corr":"f"}`, frame.OK)
		c.send(`{"op":"FLOW","sub":"s1","messages":9223372036854775807}`)
		var held []string
		for range 3 {
			held = append(held, c.next(frame.Event).AckID)
		}
		c.quiet(10 * time.Second) // as many as it may have
		if m := c.ask(`{"op":"FLOW","sub":"s1","messages":-1}`, frame.Err); m.Code != "bad_request" {
			r.Errorf("%+v", m)
		}
		c.ask(`{"op":"ACK","ack_id":"`+held[0]+`","corr":"a"}`, frame.OK)
		c.send(`{"op":"FLOW","sub":"s1","messages":1}`)
		c.next(frame.Event)
	})
}

// What is held by credit is bounded in bytes as a whole, and not each time that the bus is
// asked; a larger event comes alone.
func TestCreditIsBoundedInBytes(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"flow":"credit","credit":100,"from":"earliest","maxInFlight":100,"maxInFlightBytes":100000`)
		sizes := []int{30_000, 30_000, 30_000, 30_000, 60_000, 10, 300_000, 10, 90_000}
		for _, size := range sizes {
			r.publish("orders", strings.Repeat("7", size))
		}
		var held []frame.Message
		for done := range sizes {
			time.Sleep(time.Second)
			synctest.Wait()
			for len(c.early)+len(c.frames) > 0 {
				held = append(held, c.next(frame.Event))
			}
			bytes := 0
			for _, m := range held {
				bytes += sizes[m.Event.Seq-1]
			}
			if len(held) == 0 || len(held) > 1 && bytes > 100_000 {
				r.Fatalf("after %d events %d are held, of %d bytes", done, len(held), bytes)
			}
			c.ask(`{"op":"ACK","ack_id":"`+held[0].AckID+`","corr":"a"}`, frame.OK)
			held = held[1:]
		}
	})
}

// TestNothingIsTakenThatCannotBeHeld looks at what the group holds while its member does
// nothing.
func TestNothingIsTakenThatCannotBeHeld(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"maxInFlight":2`)
		r.publish("orders", "1", "2", "3", "4", "5")
		c.next(frame.Event)
		c.next(frame.Event)
		c.quiet(20 * time.Second)
		groups, err := r.bus.Groups(r.Context(), "orders")
		if err != nil || len(groups) != 1 || groups[0].Held != 2 || groups[0].Pending != 3 {
			r.Errorf("%+v, %v", groups, err)
		}
	})
}

func TestSubscribeTwice(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{Subscriptions: 2}}, func(r *wsRig) {
		c := r.member(``)
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g"}`, frame.Err); m.Code != "already_subscribed" {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","sub":"s1"}`, frame.Err); m.Code != "already_subscribed" {
			r.Errorf("%+v", m)
		}
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g2","sub":"mine"}`, frame.OK)
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g3"}`, frame.Err); m.Code != "too_many_subs" {
			r.Errorf("%+v", m)
		}
		c.ask(`{"op":"UNSUBSCRIBE","sub":"mine"}`, frame.OK)
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g3"}`, frame.OK)
		c.ask(`{"op":"UNSUBSCRIBE","topic":"orders","group":"g"}`, frame.OK)
		c.join(``)
	})
}

// TestUnsubscribeDrains waits for what is held, and answers then.
func TestUnsubscribeDrains(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(``)
		r.publish("orders", "1", "2")
		a, b := c.next(frame.Event), c.next(frame.Event)
		c.send(`{"op":"UNSUBSCRIBE","sub":"s1","drain":true,"corr":"u"}`)
		c.quiet(time.Second)
		r.publish("orders", "3")
		c.quiet(time.Second)
		c.ask(`{"op":"ACK","ack_id":"`+a.AckID+`","corr":"a"}`, frame.OK)
		c.send(`{"op":"ACK","ack_id":"` + b.AckID + `"}`)
		if m := c.next(frame.OK); m.Corr != "u" {
			r.Errorf("%+v", m)
		}
		c.join(``)
		if e := c.next(frame.Event); string(e.Event.Payload) != "3" || e.Ctx.Attempt != 1 {
			r.Errorf("%+v", e)
		}
	})
}

func TestSeek(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"from":"earliest"`)
		r.publish("orders", "1", "2")
		a, b := c.next(frame.Event), c.next(frame.Event)
		c.ask(`{"op":"ACKS","ack":["`+a.AckID+`","`+b.AckID+`"],"corr":"a"}`, frame.OK)
		c.send(`{"op":"SEEK","sub":"s1","to":{"from":"earliest"},"corr":"k"}`)
		seen := map[string]int{}
		for range 3 {
			m, err := frame.ParseMessage([]byte(c.text()))
			if err != nil {
				r.Fatal(err)
			}
			seen[m.Op+m.Corr]++
		}
		if seen["OKk"] != 1 || seen["EVENT"] != 2 {
			r.Errorf("%v", seen)
		}
		if m := c.ask(`{"op":"CURSOR","topic":"orders","group":"g","corr":"c"}`, frame.OK); m.Cursor == nil || m.Cursor.LastSeq != 0 {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"CURSOR","topic":"orders","group":"nobody","corr":"c"}`, frame.Err); m.Code != "unknown_group" {
			r.Errorf("%+v", m)
		}
	})
}

// TestGroupGoes deletes a group under its member.
func TestGroupGoes(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(``)
		if err := r.bus.DeleteGroup(r.Context(), "orders", "g"); err != nil {
			r.Fatal(err)
		}
		if m := c.next(frame.SubClosed); m.Sub != "s1" || m.Code != "unknown_group" || m.Retryable {
			r.Errorf("%+v", m)
		}
		c.join(``)
	})
}

func TestFilterAndHeadersOnly(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"filter":{"key":"b"},"headersOnly":true`)
		for _, key := range []string{"a", "b"} {
			if _, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "orders", Key: key, Payload: []byte("1")}); err != nil {
				r.Fatal(err)
			}
		}
		if e := c.next(frame.Event); e.Event.Key != "b" || len(e.Event.Payload) != 0 {
			r.Errorf("%+v", e.Event)
		}
		c.quiet(time.Second)
	})
}

// TestOrderOfKeys has a group whose events of one key come one after the other.
func TestOrderOfKeys(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"order":"per_key"`)
		for i, key := range []string{"a", "a", "b"} {
			if _, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "orders", Key: key, Payload: fmt.Appendf(nil, "%d", i)}); err != nil {
				r.Fatal(err)
			}
		}
		first, other := c.next(frame.Event), c.next(frame.Event)
		if string(first.Event.Payload) != "0" || string(other.Event.Payload) != "2" {
			r.Errorf("%s, then %s", first.Event.Payload, other.Event.Payload)
		}
		c.quiet(10 * time.Second)
		c.send(`{"op":"NACK","ack_id":"` + first.AckID + `"}`)
		if e := c.next(frame.Event); string(e.Event.Payload) != "0" || e.Ctx.Attempt != 2 {
			r.Errorf("%+v", e)
		} else {
			c.send(`{"op":"ACK","ack_id":"` + e.AckID + `"}`)
		}
		if e := c.next(frame.Event); string(e.Event.Payload) != "1" {
			r.Errorf("%+v", e)
		}
	})
}

// TestActiveMember: members of an ordered group that ask for it hear which one is active, over
// each connection anew.
func TestActiveMember(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		const join = `{"op":"SUBSCRIBE","corr":"s","sub":"s","topic":"orders","group":"g","opts":{"order":"per_key","assign":true,"resumeGraceMs":20000}}`
		first := r.dial()
		session := first.next(frame.Hello).Session
		first.ask(join, frame.OK)
		if m := first.next(frame.Assign); m.Sub != "s" {
			r.Errorf("%+v", m)
		}
		second := r.dial()
		second.next(frame.Hello)
		second.ask(join, frame.OK)
		second.quiet(10 * time.Second)
		first.quiet(time.Second)
		first.send(`{"op":"FLOW","sub":"s","pause":true}`)
		first.next(frame.Revoke)
		second.next(frame.Assign)
		second.ask(`{"op":"UNSUBSCRIBE","sub":"s","corr":"u"}`, frame.OK)
		first.send(`{"op":"FLOW","sub":"s","pause":false}`)
		first.next(frame.Assign)
		_ = first.ws.CloseNow()
		again := r.dial()
		again.next(frame.Hello)
		again.ask(`{"op":"AUTH","corr":"a","session":"`+session+`"}`, frame.OK)
		again.next(frame.Assign)
		for _, bad := range []string{`"assign":true`, `"order":"per_key","assign":1`} {
			if m := again.ask(`{"op":"SUBSCRIBE","corr":"s","topic":"orders","group":"h","opts":{`+bad+`}}`, frame.Err); m.Code != "bad_request" {
				r.Errorf("%s: %+v", bad, m)
			}
		}
	})
}

func TestGroupOfTopics(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "bills"})
		c := r.dial()
		c.next(frame.Hello)
		c.ask(`{"op":"SUBSCRIBE","topics":["orders","bills"],"group":"g"}`, frame.OK)
		r.publish("orders", "1")
		r.publish("bills", "2")
		seen := map[string]bool{}
		for range 2 {
			seen[c.next(frame.Event).Topic] = true
		}
		if !seen["orders"] || !seen["bills"] {
			r.Errorf("%v", seen)
		}
	})
}

// TestBrokerIsAway publishes and acknowledges while there is no broker: the connection
// stays, the client is told, and what it held comes again.
func TestBrokerIsAway(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"ackTimeoutMs":600000`)
		r.publish("orders", "1")
		held := c.next(frame.Event)
		if err := r.broker.Kill(r.Context()); err != nil {
			r.Fatal(err)
		}
		begin := time.Now()
		if m := c.ask(`{"op":"PUBLISH","topic":"orders","payload":2,"opts":{"id":"two"},"corr":"p"}`, frame.Err); !m.Retryable || m.Corr != "p" {
			r.Errorf("%+v", m)
		}
		if d := time.Since(begin); d > 11*time.Second {
			r.Errorf("told after %v", d)
		}
		if m := c.ask(`{"op":"ACK","ack_id":"`+held.AckID+`","corr":"a"}`, frame.Err); m.Code != "ack_failed" || !m.Retryable {
			r.Errorf("%+v", m)
		}
		if err := r.broker.Restart(r.Context()); err != nil {
			r.Fatal(err)
		}
		c.ask(`{"op":"PING"}`, frame.Pong)
		time.Sleep(5 * time.Second)
		if m := c.ask(`{"op":"PUBLISH","topic":"orders","payload":2,"opts":{"id":"two"},"corr":"p"}`, frame.OK); m.ID != "two" {
			r.Errorf("%+v", m)
		}
	})
}

// TestHeldBytes has members that read, and settle nothing: what they hold is bounded in bytes,
// and each of their subscriptions gets something.
func TestHeldBytes(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{LeaseTotal: time.Hour}}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "bills"})
		c := r.member(`"ackTimeoutMs":600000,"maxInFlight":100`)
		payload := `"` + strings.Repeat("x", 900<<10) + `"`
		r.bulk = payload
		for range 8 {
			r.publish("orders", payload)
		}
		var held []string
		for range 4 {
			held = append(held, c.next(frame.Event).AckID)
		}
		c.quiet(time.Minute)
		c.ask(`{"op":"SUBSCRIBE","topic":"bills","group":"g","opts":{"ackTimeoutMs":600000,"flow":"credit","credit":10}}`, frame.OK)
		r.publish("bills", payload, payload)
		if e := c.next(frame.Event); e.Topic != "bills" {
			r.Errorf("an event of %s", e.Topic)
		} else {
			c.ask(`{"op":"ACK","corr":"a","ack_id":"`+e.AckID+`"}`, frame.OK)
		}
		if e := c.next(frame.Event); e.Topic != "bills" {
			r.Errorf("an event of %s", e.Topic)
		} else {
			c.ask(`{"op":"ACK","corr":"a","ack_id":"`+e.AckID+`"}`, frame.OK)
		}
		for range 4 {
			c.ask(`{"op":"ACK","corr":"a","ack_id":"`+held[0]+`"}`, frame.OK)
			e := c.next(frame.Event)
			if e.Topic != "orders" || e.Ctx.Attempt != 1 {
				r.Errorf("an event of %s, attempt %d", e.Topic, e.Ctx.Attempt)
			}
			held = append(held[1:], e.AckID)
		}
		c.quiet(time.Minute)
	})
}

// TestResendIsBounded comes back for more than a connection may have in its queue.
func TestResendIsBounded(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{QueueBytes: 16 << 10}}, func(r *wsRig) {
		c := r.dial()
		session := c.next(frame.Hello).Session
		c.join(`"ackTimeoutMs":600000,"resumeGraceMs":30000,"maxInFlight":50`)
		payload := `"` + strings.Repeat("x", 10<<10) + `"`
		var ids []string
		for range 50 {
			r.publish("orders", payload)
			ids = append(ids, c.next(frame.Event).AckID)
		}
		_ = c.ws.CloseNow()
		time.Sleep(time.Second)
		again := r.dial()
		again.next(frame.Hello)
		again.ask(`{"op":"AUTH","session":"`+session+`"}`, frame.OK)
		for _, id := range ids {
			if e := again.next(frame.Event); e.AckID != id {
				r.Fatalf("%s came, not %s", e.AckID, id)
			}
		}
		again.ask(`{"op":"ACK","corr":"a","ack_id":"`+ids[0]+`"}`, frame.OK)
	})
}

// TestCreditOfSlowClient takes more with credit than its client has room for: nothing that
// waits is an attempt.
func TestCreditOfSlowClient(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.dial()
		c.next(frame.Hello)
		payload := `"` + strings.Repeat("x", 900<<10) + `"`
		r.bulk = payload
		const n = 8
		for range n {
			r.publish("orders", payload)
		}
		c.join(`"from":"earliest","flow":"credit","credit":50,"ackTimeoutMs":600000`)
		var held []string
		for range 4 {
			held = append(held, c.next(frame.Event).AckID)
		}
		c.quiet(5 * time.Minute) // the rest is taken, and waits
		for range n - 4 {
			c.ask(`{"op":"ACK","corr":"a","ack_id":"`+held[0]+`"}`, frame.OK)
			e := c.next(frame.Event)
			if e.Ctx.Attempt != 1 {
				r.Errorf("%+v", e.Ctx)
			}
			held = append(held[1:], e.AckID)
		}
		_ = c.ws.CloseNow()
		other := r.member(``)
		for range 4 {
			if e := other.next(frame.Event); e.Ctx.Attempt != 1 {
				r.Errorf("%+v", e.Ctx)
			}
		}
	})
}

// TestGroupsAreBounded makes groups of its own, which stay at the broker.
func TestGroupsAreBounded(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{Groups: 2}
	inBubble(t, c, func(r *wsRig) {
		c := r.login("ann topic:read:orders")
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"u.ann.1"}`, frame.OK)
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"u.ann.2","opts":{"flow":"credit"}}`, frame.OK)
		for _, opts := range []string{``, `"flow":"credit"`} {
			if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"u.ann.3","opts":{`+opts+`}}`, frame.Err); m.Code != "too_many_subs" {
				r.Errorf("%+v", m)
			}
		}
		again := r.login("ann topic:read:orders")
		again.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"u.ann.1"}`, frame.OK)
		if groups, err := r.bus.Groups(r.Context(), "orders"); err != nil || len(groups) != 2 {
			r.Errorf("%+v, %v", groups, err)
		}
	})
}
