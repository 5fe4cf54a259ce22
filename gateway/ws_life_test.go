package gateway_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestNoPong has a client that is there and says nothing, as one behind a network that was
// cut: what it holds goes to others.
func TestNoPong(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"ackTimeoutMs":600000`)
		c.pongs = false
		r.publish("orders", "1")
		c.next(frame.Event)
		begin := time.Now()
		if code := c.closed(); code != frame.CloseNoPong {
			r.Errorf("closed with %d", code)
		}
		if d := time.Since(begin).Round(time.Second); d > 34*time.Second {
			r.Errorf("after %v", d)
		}
		other := r.member(``)
		if e := other.next(frame.Event); e.Ctx.Attempt != 1 {
			r.Errorf("%+v", e.Ctx)
		}
	})
}

// TestSlowClient has one of two readers that stops reading.
func TestSlowClient(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		slow, _ := r.reader(``)
		slow.next(frame.CaughtUp)
		fast, _ := r.reader(``)
		fast.next(frame.CaughtUp)
		slow.stall()
		payload := `"` + strings.Repeat("x", 10<<10) + `"`
		const n = 200 // 2 MB
		var events []jetbus.Event
		for range n {
			events = append(events, jetbus.Event{Topic: "orders", Payload: []byte(payload)})
		}
		before := heap()
		if _, err := r.bus.PublishBatch(r.Context(), events, jetbus.BatchOptions{}); err != nil {
			r.Fatal(err)
		}
		fast.payloads(n)
		if grown := heap() - before; grown > 32<<20 {
			r.Errorf("memory grew by %d MiB", grown>>20)
		}
		time.Sleep(12 * time.Second) // a write takes 10 at most
		slow.unstall()
		if code := slow.closed(); code != frame.CloseSlow {
			r.Errorf("closed with %d", code)
		}
		r.publish("orders", "1")
		fast.payloads(1)
	})
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestAnswersNobodyReads asks and does not read the answers.
func TestAnswersNobodyReads(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{QueueBytes: 4 << 10, Rate: -1}}, func(r *wsRig) {
		c := r.dial()
		c.next(frame.Hello)
		c.stall()
		for range 1000 {
			if c.ws.Write(r.Context(), websocket.MessageText, []byte(`{"op":"PING","corr":"0123456789"}`)) != nil {
				break
			}
		}
		c.unstall()
		if code := c.closed(); code != frame.CloseSlow && code != -1 { // -1: cut within a frame
			r.Errorf("closed with %d", code)
		}
	})
}

func TestDrain(t *testing.T) {
	over, end := context.WithCancel(context.Background())
	end()
	for name, ctx := range map[string]context.Context{"without a deadline": context.Background(), "with one that was canceled": over} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gateway.Config{}, func(r *wsRig) {
				c := r.member(`"ackTimeoutMs":60000`)
				idle := r.dial()
				idle.next(frame.Hello)
				r.publish("orders", "1")
				e := c.next(frame.Event)
				drained := make(chan error, 1)
				go func() { drained <- r.g.Drain(ctx) }() // ends below
				if m := c.next(frame.GoAway); m.DeadlineMs < 24_000 || m.DeadlineMs > 25_000 {
					r.Errorf("%+v", m)
				}
				idle.next(frame.GoAway)
				r.publish("orders", "2")
				for _, text := range []string{`{"op":"PUBLISH","topic":"orders","payload":1}`, `{"op":"SUBSCRIBE","topic":"orders"}`} {
					if m := c.ask(text, frame.Err); m.Code != "draining" || !m.Retryable {
						r.Errorf("%s: %+v", text, m)
					}
				}
				if code := idle.closed(); code != frame.CloseGoingAway {
					r.Errorf("closed with %d", code)
				}
				c.quiet(10 * time.Second)
				if m := c.ask(`{"op":"ACK","ack_id":"`+e.AckID+`","corr":"a"}`, frame.OK); !*m.Applied {
					r.Errorf("%+v", m)
				}
				if code := c.closed(); code != frame.CloseGoingAway {
					r.Errorf("closed with %d", code)
				}
				if err := <-drained; err != nil {
					r.Error(err)
				}
				if err := r.g.Drain(r.Context()); err != nil {
					r.Errorf("again: %v", err)
				}
				if _, status, err := r.tryDial([]string{frame.Subprotocol}); err == nil || status != 503 {
					r.Errorf("a connection after the end: %v", err)
				}
			})
		})
	}
}

// TestDrainGivesUp ends a gateway whose client keeps what it holds.
func TestDrainGivesUp(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"ackTimeoutMs":60000`)
		r.publish("orders", "1")
		c.next(frame.Event)
		ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		if err := r.g.Drain(ctx); err == nil {
			r.Error("no error")
		}
		if code := c.closed(); code != frame.CloseGoingAway {
			r.Errorf("closed with %d", code)
		}
		if got, err := r.bus.Receive(r.Context(), "orders", "g", jetbus.ReceiveOptions{}); err != nil || len(got) != 1 || got[0].Attempt != 1 {
			r.Errorf("%v, %v", got, err)
		}
	})
}

// slowBus lets members wait before they are some.
type slowBus struct {
	jetbus.Backend
	asked, begin chan struct{}
}

// Subscribe implements jetbus.Backend.
func (b *slowBus) Subscribe(ctx context.Context, topic, group string, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	close(b.asked)
	<-b.begin
	return b.Backend.Subscribe(ctx, topic, group, h, o)
}

// TestDrainDuringSubscribe becomes a member of a group while the gateway stops: no event comes.
func TestDrainDuringSubscribe(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		slow := &slowBus{r.bus, make(chan struct{}), make(chan struct{})}
		r.serveBus(slow, gateway.Config{})
		r.publish("orders", "1", "2", "3")
		c := r.dial()
		c.next(frame.Hello)
		c.send(`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"from":"earliest"}}`)
		<-slow.asked
		drained := make(chan error, 1)
		go func() { drained <- r.g.Drain(context.Background()) }() // ends below
		c.next(frame.GoAway)
		time.Sleep(time.Millisecond)
		close(slow.begin)
		for text := range c.frames {
			if m, err := frame.ParseMessage(text); err != nil || m.Op != frame.OK {
				r.Errorf("%s came", text)
			}
		}
		if err := <-drained; err != nil {
			r.Error(err)
		}
		got, err := r.bus.Receive(r.Context(), "orders", "g", jetbus.ReceiveOptions{Max: 10})
		if err != nil || len(got) != 3 || got[0].Attempt != 1 {
			r.Errorf("%v, %v", got, err)
		}
	})
}

// TestResume comes back for what it held, under the ids it had.
func TestResume(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		const token = "ann topic:read:> group:join:>"
		c := r.dial()
		session := c.next(frame.Hello).Session
		c.ask(`{"op":"AUTH","token":"`+token+`"}`, frame.OK)
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g","sub":"a","opts":{"resumeGraceMs":10000,"maxInFlight":2}}`, frame.OK)
		r.publish("orders", "1", "2", "3")
		first, second := c.next(frame.Event), c.next(frame.Event)
		_ = c.ws.CloseNow()
		time.Sleep(5 * time.Second)

		thief := r.login("bob topic:read:> group:join:>")
		if m := thief.ask(`{"op":"AUTH","token":"bob topic:read:> group:join:>","session":"`+session+`"}`, frame.OK); *m.Recovered {
			r.Errorf("another subject: %+v", m)
		}
		c = r.dial()
		c.next(frame.Hello)
		m := c.ask(`{"op":"AUTH","token":"`+token+`","session":"`+session+`"}`, frame.OK)
		if !*m.Recovered || !slices.Equal(m.Subs, []string{"a"}) {
			r.Errorf("%+v", m)
		}
		for _, want := range []frame.Message{first, second} {
			if e := c.next(frame.Event); e.AckID != want.AckID || e.Ctx.Attempt != 1 {
				r.Errorf("%+v", e)
			}
		}
		if m := c.ask(`{"op":"ACK","ack_id":"`+first.AckID+`","corr":"a"}`, frame.OK); !*m.Applied {
			r.Errorf("%+v", m)
		}
		if e := c.next(frame.Event); string(e.Event.Payload) != "3" {
			r.Errorf("%+v", e)
		}

		// Back before the gateway noticed that the connection broke.
		again := r.dial()
		again.next(frame.Hello)
		if m := again.ask(`{"op":"AUTH","token":"`+token+`","session":"`+session+`"}`, frame.OK); !*m.Recovered {
			r.Errorf("%+v", m)
		}
		again.next(frame.Event)
		again.next(frame.Event)
		if code := c.closed(); code != frame.CloseGoingAway {
			r.Errorf("closed with %d", code)
		}
		_ = again.ws.CloseNow()
		time.Sleep(11 * time.Second)
		late := r.dial()
		late.next(frame.Hello)
		if m := late.ask(`{"op":"AUTH","token":"`+token+`","session":"`+session+`"}`, frame.OK); *m.Recovered {
			r.Errorf("too late: %+v", m)
		}
		late.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g"}`, frame.OK)
		for range 2 {
			if e := late.next(frame.Event); e.Ctx.Attempt != 1 {
				r.Errorf("%+v", e.Ctx)
			}
		}
	})
}

// TestStorm connects again and again, now and then as a member that goes away with an event
// in hand, or before it is one: nothing is left behind.
func TestStorm(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "0")
		calm := 0 // goroutines after the first hundred, which the group itself has at the broker
		for i := range 1000 {
			if i == 100 {
				time.Sleep(time.Minute)
				calm = runtime.NumGoroutine()
			}
			c := r.dial()
			c.next(frame.Hello)
			if i%20 < 2 {
				c.send(`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"from":"earliest"}}`)
			}
			if i%20 == 0 {
				c.next(frame.OK)
				c.next(frame.Event)
			}
			_ = c.ws.CloseNow()
		}
		time.Sleep(time.Minute)
		if left := runtime.NumGoroutine(); left > calm+5 {
			r.Errorf("%d goroutines, %d before", left, calm)
		}
		c := r.dial()
		c.next(frame.Hello)
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g"}`, frame.OK)
		if e := c.next(frame.Event); e.Ctx.Attempt != 1 {
			r.Errorf("%+v", e.Ctx)
		}
	})
}

// TestHandshakeIsCut leaves in the middle of everything.
func TestHandshakeIsCut(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		raw, err := r.net.dial(r.Context(), "", "")
		if err != nil {
			r.Fatal(err)
		}
		in := shake(r, raw, "")
		go func() { _, _ = io.Copy(io.Discard, in) }()                     // ends with raw
		_, _ = fmt.Fprintf(raw, "\x81\xfe\x10\x00%s", "mask and not more") // a frame that does not end
		time.Sleep(time.Second)
		_ = raw.Close()
		time.Sleep(time.Second)
		c := r.dial()
		c.next(frame.Hello)
	})
}

// TestFrameThatDoesNotEnd is closed in the middle of a frame of its client, who does not go on.
func TestFrameThatDoesNotEnd(t *testing.T) {
	for name, c := range map[string]gateway.Config{
		"denied": {Limits: gateway.Limits{Connections: 1}},
		"served": {Limits: gateway.Limits{Connections: 2, AuthTimeout: time.Second}, Auth: slowIssuer{}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, c, func(r *wsRig) {
				r.dial().next(frame.Hello)
				raw, err := r.net.dial(r.Context(), "", "")
				if err != nil {
					r.Fatal(err)
				}
				r.Cleanup(func() { _ = raw.Close() })
				in := shake(r, raw, "")
				ended := make(chan struct{})
				go func() { // ends with raw
					_, _ = io.Copy(io.Discard, in)
					close(ended)
				}()
				go func() { // ends with raw
					if name == "served" { // the gateway is busy with a frame of AUTH
						auth := `{"op":"AUTH","token":"slow bad"}`
						_, _ = raw.Write(append([]byte{0x81, 0x80 | byte(len(auth)), 0, 0, 0, 0}, auth...))
					}
					_, _ = io.WriteString(raw, "\x81\xfe\x03\xe8mask") // 1000 bytes would follow
				}()
				select {
				case <-ended:
				case <-time.After(time.Minute):
					r.Error("the socket stays")
					_ = raw.Close()
				}
			})
		})
	}
}
