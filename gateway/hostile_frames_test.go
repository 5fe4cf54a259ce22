package gateway_test

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// rawFrame is a WebSocket frame of a client: its first byte, and a payload with a mask of zeros.
func rawFrame(first byte, payload []byte) []byte {
	b := []byte{first, 0x80 | 127}
	b = binary.BigEndian.AppendUint64(b, uint64(len(payload)))
	return append(append(b, 0, 0, 0, 0), payload...)
}

// rawClose reads frames of the gateway until one closes the connection, and returns its code;
// 0 where the connection ended without one.
func rawClose(r *wsRig, in io.Reader) int {
	r.Helper()
	for {
		var head [2]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return 0
		}
		n := int64(head[1])
		if n == 126 {
			var long [2]byte
			if _, err := io.ReadFull(in, long[:]); err != nil {
				return 0
			}
			n = int64(binary.BigEndian.Uint16(long[:]))
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(in, body); err != nil {
			return 0
		}
		if head[0] == 0x88 && n >= 2 {
			return int(binary.BigEndian.Uint16(body))
		}
	}
}

// rawConn is a WebSocket whose frames the test makes by hand.
func (r *wsRig) rawConn(header string) (net.Conn, io.Reader) {
	r.Helper()
	raw, err := r.net.dial(r.Context(), "", "")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = raw.Close() })
	return raw, shake(r, raw, header)
}

// TestHostile08Fragments sends a frame in pieces: many that are too much together, and empty
// ones that never end. Both are closed, the second as a client that says nothing.
func TestHostile08Fragments(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		other := r.dial()
		other.next(frame.Hello)
		before := heap()
		for _, c := range []struct {
			name  string
			piece []byte
			want  int
		}{
			{"much", bytes.Repeat([]byte("x"), 64<<10), int(websocket.StatusMessageTooBig)},
			{"empty", nil, frame.CloseNoPong},
		} {
			raw, in := r.rawConn("")
			over := make(chan struct{})
			go func() { // ends with raw
				defer close(over)
				if _, err := raw.Write(rawFrame(0x01, []byte(`{"op":"`))); err != nil {
					return
				}
				for {
					if _, err := raw.Write(rawFrame(0x00, c.piece)); err != nil {
						return
					}
					if len(c.piece) == 0 {
						time.Sleep(10 * time.Millisecond)
					}
				}
			}()
			if code := rawClose(r, in); code != c.want {
				r.Errorf("%s: closed with %d, want %d", c.name, code, c.want)
			}
			_ = raw.Close()
			<-over
		}
		if grown := heap() - before; grown > 8<<20 {
			r.Errorf("memory grew by %d KiB", grown>>10)
		}
		other.ask(`{"op":"PING"}`, frame.Pong)
	})
}

// deflated is what becomes that many MiB of the letter x. One is compressed, and comes again and
// again.
func deflated(t *testing.T, mib int) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(bytes.Repeat([]byte("x"), 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil { // what is behind it does not refer to what is in front
		t.Fatal(err)
	}
	return bytes.Repeat(out.Bytes(), mib)
}

// TestHostile09Bomb sends 25 KB that would become 20 MB: nothing was agreed upon, and nothing
// is inflated.
func TestHostile09Bomb(t *testing.T) {
	bomb := deflated(t, 20)
	if len(bomb) > 25<<10 {
		t.Fatalf("the bomb has %d bytes", len(bomb))
	}
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		other := r.dial()
		other.next(frame.Hello)
		for _, offer := range []string{"", "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"} {
			raw, in := r.rawConn(offer)
			before := heap()
			go func() { _, _ = raw.Write(rawFrame(0xc1, bomb)) }() // ends with raw
			if code := rawClose(r, in); code != int(websocket.StatusProtocolError) {
				r.Errorf("closed with %d", code)
			}
			if grown := heap() - before; grown > 4<<20 {
				r.Errorf("memory grew by %d KiB", grown>>10)
			}
		}
		other.ask(`{"op":"PING"}`, frame.Pong)
	})
}

// TestHostile12HalfOpen has a member that is there and takes in nothing, as one whose network is
// gone: what it holds is another's before its own deadline.
func TestHostile12HalfOpen(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"ackTimeoutMs":600000`)
		r.publish("orders", "1")
		c.next(frame.Event)
		c.stall()
		other := r.member(`"ackTimeoutMs":600000`)
		begin := time.Now()
		if e := other.next(frame.Event); e.Ctx.Attempt != 1 {
			r.Errorf("%+v", e.Ctx)
		}
		if d := time.Since(begin); d > 45*time.Second { // ping, then pong or write
			r.Errorf("after %v", d)
		}
		c.unstall()
		if code := c.closed(); code != frame.CloseNoPong && code != frame.CloseSlow && code != -1 { // -1: cut within a frame
			r.Errorf("closed with %d", code)
		}
	})
}

// TestHostile15Credit gives credit that no number holds, and takes it back.
func TestHostile15Credit(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(`"flow":"credit","maxInFlight":2,"credit":9223372036854775807`)
		for range 3 {
			c.ask(`{"op":"FLOW","sub":"s1","messages":9223372036854775807,"corr":"f"}`, frame.OK)
		}
		for _, n := range []string{"9223372036854775808", "1e30", "-9223372036854775808", `"1"`, "1.5"} {
			if m := c.ask(`{"op":"FLOW","sub":"s1","messages":`+n+`,"corr":"f"}`, frame.Err); m.Code != "bad_request" || m.Corr != "f" {
				r.Errorf("%s: %+v", n, m)
			}
		}
		r.publish("orders", "1", "2", "3")
		c.payloads(2)
		c.quiet(20 * time.Second)
	})
}

// TestHostile17AckTwice settles events again and again, in all ways at once: the first counts.
func TestHostile17AckTwice(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.member(``)
		r.publish("orders", "1", "2")
		a, b := c.next(frame.Event).AckID, c.next(frame.Event).AckID
		m := c.ask(fmt.Sprintf(`{"op":"ACKS","corr":"a","ack":[%q,%q],"nack":[{"ack_id":%q}],"mod":[{"ack_id":%q}]}`, a, a, a, a), frame.OK)
		if len(m.Results) != 3 {
			r.Errorf("%+v", m)
		}
		for _, one := range m.Results {
			if one.AckID != a || *one.Applied || one.Reason != "settled" {
				r.Errorf("%+v", one)
			}
		}
		for range 20 { // faster than the broker answers
			c.send(`{"op":"NACK","ack_id":"` + b + `","dead":true,"corr":"n"}`)
		}
		applied := 0
		for range 20 {
			if *c.next(frame.OK).Applied {
				applied++
			}
		}
		if applied != 1 {
			r.Errorf("%d are applied", applied)
		}
		c.quiet(time.Minute)
		groups, err := r.bus.Groups(r.Context(), "orders")
		if err != nil || len(groups) != 1 || groups[0].Held != 0 || groups[0].Pending != 0 {
			r.Errorf("%+v, %v", groups, err)
		}
		letters := 0
		for _, err := range r.bus.Scan(r.Context(), "dlq.orders", jetbus.ScanQuery{}) {
			if letters++; err != nil {
				r.Fatal(err)
			}
		}
		if letters != 1 {
			r.Errorf("%d dead letters", letters)
		}
	})
}

// TestHostile18AckOfAnother settles what another connection holds: one of the same subject, one
// of another, one over HTTP, and the other way round.
func TestHostile18AckOfAnother(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		const rights = " topic:read:> group:join:>"
		c := r.login("ann" + rights)
		c.join(``)
		r.publish("orders", "1", "2")
		held := c.next(frame.Event)
		rest := c.next(frame.Event)
		c.ask(`{"op":"NACK","ack_id":"`+rest.AckID+`","delay_ms":1000,"corr":"n"}`, frame.OK)
		for _, who := range []string{"ann", "bob"} {
			other := r.login(who + rights)
			for _, op := range []string{"ACK", "NACK", "MODACK"} {
				if m := other.ask(`{"op":"`+op+`","ack_id":"`+held.AckID+`","corr":"x"}`, frame.OK); *m.Applied || m.Reason != "unknown" {
					r.Errorf("%s: %s: %+v", who, op, m)
				}
			}
			auth := "Bearer " + who + rights
			var got struct{ Results []frame.Result }
			r.do("POST", "/v1/groups/orders/g:ack", `{"ack_ids":["`+held.AckID+`"]}`, "Authorization", auth).into(&got)
			if len(got.Results) != 1 || *got.Results[0].Applied {
				r.Errorf("%s over HTTP: %+v", who, got)
			}
		}
		c.ask(`{"op":"ACK","ack_id":"`+held.AckID+`","corr":"x"}`, frame.OK)
		c.ask(`{"op":"UNSUBSCRIBE","sub":"s1"}`, frame.OK)
		var pulled struct {
			Events []struct {
				AckID string `json:"ack_id"`
			}
		}
		r.do("POST", "/v1/groups/orders/g:pull", `{"wait":"10s"}`, "Authorization", "Bearer ann"+rights).into(&pulled)
		if len(pulled.Events) != 1 {
			r.Fatalf("%+v", pulled)
		}
		token := pulled.Events[0].AckID
		if m := c.ask(`{"op":"ACK","ack_id":"`+token+`","corr":"x"}`, frame.OK); *m.Applied {
			r.Errorf("over the WebSocket: %+v", m)
		}
		var got struct{ Results []frame.Result }
		r.do("POST", "/v1/groups/orders/g:ack", `{"ack_ids":["`+token+`"]}`, "Authorization", "Bearer bob"+rights).into(&got)
		if *got.Results[0].Applied {
			r.Errorf("bob: %+v", got)
		}
		r.do("POST", "/v1/groups/orders/g:ack", `{"ack_ids":["`+token+`"]}`, "Authorization", "Bearer ann"+rights).into(&got)
		if !*got.Results[0].Applied {
			r.Errorf("ann: %+v", got)
		}
	})
}

// TestHostile20Names gives subscriptions the names that the gateway would, and ones that are
// none.
func TestHostile20Names(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.dial()
		c.next(frame.Hello)
		names := map[string]bool{}
		for _, sub := range []string{`,"sub":"s1"`, ``, `,"sub":"s3"`, ``, ``} {
			m := c.ask(`{"op":"SUBSCRIBE","topic":"orders"`+sub+`}`, frame.OK)
			if names[m.Sub] {
				r.Errorf("two subscriptions are %q", m.Sub)
			}
			names[m.Sub] = true
			c.next(frame.CaughtUp)
		}
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","sub":"`+strings.Repeat("x", 65)+`"}`, frame.Err); m.Code != "bad_request" {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"SUBSCRIBE","topics":["orders","orders"],"group":"g"}`, frame.Err); m.Code != "bad_request" {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"SUBSCRIBE","topics":[`+strings.Repeat(`"orders",`, 10_000)+`"orders"],"group":"g"}`, frame.Err); m.Code != "bad_request" {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"filter":{"key":"`+strings.Repeat("k", 500_000)+`"}}}`, frame.Err); m.Code != "bad_request" || len(m.Msg) > 2000 {
			r.Errorf("a filter of 500 KB: %.300s", m.Msg)
		}
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","opts":{"filter":{"headers":{"x-a":"`+strings.Repeat("k", 500_000)+`"}}}}`, frame.Err); m.Code != "bad_request" || len(m.Msg) > 2000 {
			r.Errorf("a filter of 500 KB: %.300s", m.Msg)
		}
	})
}

// TestHostile34Disconnect lets members go away in all ways: what they hold is another's at
// once, and it was no attempt. MODACK of what nobody holds is told.
func TestHostile34Disconnect(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		for name, leave := range map[string]func(c *wsClient){
			"closed":        func(c *wsClient) { _ = c.ws.Close(websocket.StatusNormalClosure, "") },
			"cut":           func(c *wsClient) { _ = c.ws.CloseNow() },
			"no text":       func(c *wsClient) { _ = c.ws.Write(r.Context(), websocket.MessageBinary, []byte("x")) },
			"no UTF-8":      func(c *wsClient) { _ = c.ws.Write(r.Context(), websocket.MessageText, []byte("\xff")) },
			"too big":       func(c *wsClient) { _ = c.ws.Write(r.Context(), websocket.MessageText, make([]byte, 2<<20)) },
			"unsubscribed":  func(c *wsClient) { c.ask(`{"op":"UNSUBSCRIBE","sub":"s1"}`, frame.OK) },
			"with the rest": func(c *wsClient) { c.send(`{"op":"MODACK","ack_id":"x","extend_ms":600000}`); _ = c.ws.CloseNow() },
		} {
			c := r.member(`"ackTimeoutMs":600000`)
			e := r.publish("orders", "1")[0]
			if got := c.next(frame.Event); got.Event.ID != e.ID {
				r.Fatalf("%s: %+v", name, got)
			}
			begin := time.Now()
			leave(c)
			other := r.member(``)
			got := other.next(frame.Event)
			if got.Event.ID != e.ID || got.Ctx.Attempt != 1 || time.Since(begin) > 11*time.Second {
				r.Errorf("%s: %+v after %v", name, got, time.Since(begin))
			}
			other.ask(`{"op":"ACK","ack_id":"`+got.AckID+`","confirm":true}`, frame.OK)
			if m := other.ask(`{"op":"MODACK","ack_id":"nobody","corr":"m"}`, frame.OK); *m.Applied || m.Reason != "unknown" {
				r.Errorf("%+v", m)
			}
			_ = other.ws.CloseNow()
			_ = c.ws.CloseNow()
			time.Sleep(time.Second)
		}
		first := r.dialAs(nil)
		first.send(`{"op":"SUBSCRIBE","topic":"orders","group":"first"}`)
		first.next(frame.OK)
		if m := first.ask(`{"op":"MODACK","topic":"orders","group":"first","id":"nobody","extend_ms":1000}`, frame.Err); m.Code != "unknown_id" {
			r.Errorf("%+v", m)
		}
	})
}
