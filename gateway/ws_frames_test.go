package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestBadFrames sends what no client should; the connection stays and goes on.
func TestBadFrames(t *testing.T) {
	deep := strings.Repeat(`[`, 10_000) + strings.Repeat(`]`, 10_000)
	inBubble(t, gateway.Config{Limits: gateway.Limits{BatchEvents: 2, Subscriptions: 2}}, func(r *wsRig) {
		c := r.dial()
		c.next(frame.Hello)
		for _, one := range []struct{ text, code string }{
			{``, "bad_json"},
			{`{`, "bad_json"},
			{`[]`, "bad_json"},
			{`{"op":"PUBLISH","topic":"orders","payload":` + deep + `}`, "bad_json"},
			{`{}`, "unknown_op"},
			{`{"op":"SUBSCRIB","topic":"orders"}`, "unknown_op"},
			{`{"op":"ACK","ack_id":5}`, "bad_request"},
			{`{"op":"PUBLISH","topic":"orders","payload":1,"corr":"` + strings.Repeat("x", 65) + `"}`, "bad_request"},
			{`{"op":"PUBLISH","topic":"orders","payload":1,"opts":{"headers":{"Nats-Rollup":"all"}}}`, "bad_request"},
			{`{"op":"PUBLISH","topic":"orders","payload":1,"opts":{"headers":{"nats-rollup":"all"}}}`, "bad_request"},
			{`{"op":"PUBLISH","topic":"orders","payload":1,"opts":{"headers":{"x-a":"b\r\nNats-Rollup: all"}}}`, "bad_request"},
			{`{"op":"PUBLISH","topic":"orders","payload":1,"opts":{"key":"a\nb"}}`, "bad_request"},
			{`{"op":"PUBLISH","topic":"or ders","payload":1}`, "bad_request"},
			{`{"op":"PUBLISH","topic":"orders.*","payload":1}`, "bad_request"},
			{`{"op":"PUBLISH","topic":">","payload":1}`, "bad_request"},
			{`{"op":"PUBLISH","topic":"$JS.API.STREAM.DELETE.EV","payload":1}`, "bad_request"},
			{`{"op":"PUBLISH","payload":1}`, "bad_request"},
			{`{"op":"PUBLISH","topic":"dlq.orders","payload":1}`, "forbidden"},
			{`{"op":"PUBLISH","topic":"_bus.audit","payload":1}`, "forbidden"},
			{`{"op":"PUBLISH","topic":"none","payload":1}`, "unknown_topic"},
			{`{"op":"PUBLISH","topic":"orders","payload":1,"opts":{"expect":{"lastSeq":9}}}`, "unsupported"},
			{`{"op":"PUBLISH_BATCH","events":[]}`, "bad_request"},
			{`{"op":"PUBLISH_BATCH","events":[{"topic":"orders"},{"topic":"orders"},{"topic":"orders"}]}`, "too_large"},
			{`{"op":"SUBSCRIBE","topic":"$SYS.>","group":"g"}`, "bad_request"},
			{`{"op":"SUBSCRIBE","topic":"orders","group":"a b"}`, "bad_request"},
			{`{"op":"SUBSCRIBE","group":"g"}`, "bad_request"},
			{`{"op":"SUBSCRIBE","topic":"none","group":"g"}`, "unknown_topic"},
			{`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"ackTimeoutMs":5}}`, "bad_request"},
			{`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"maxInFlight":100000}}`, "bad_request"},
			{`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"maxInFlightBytes":-1}}`, "bad_request"},
			{`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"flow":"credit","maxInFlightBytes":-1}}`, "bad_request"},
			{`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"maxAttempts":-7}}`, "bad_request"},
			{`{"op":"SUBSCRIBE","topic":"orders","group":"g","opts":{"filter":{"expr":"1"}}}`, "unsupported"},
			{`{"op":"SUBSCRIBE","topic":"orders","opts":{"from":"offset","offset":"AAAA"}}`, "bad_request"},
			{`{"op":"SUBSCRIBE","topic":"orders","opts":{"from":"afterId","afterId":"nobody"}}`, "offset_gone"},
			{`{"op":"UNSUBSCRIBE","topic":"orders","group":"g"}`, "not_subscribed"},
			{`{"op":"UNSUBSCRIBE","sub":"s9"}`, "unknown_sub"},
			{`{"op":"FLOW","sub":"s9","messages":1}`, "unknown_sub"},
			{`{"op":"ACK","topic":"orders","group":"g","id":"1"}`, "not_subscribed"},
			{`{"op":"NACK","ack_id":"x","delay_ms":-2}`, "bad_request"},
			{`{"op":"SEEK","topic":"orders","group":"g"}`, "bad_request"},
			{`{"op":"SEEK","topic":"orders","group":"g","to":{"from":"earliest","seq":1}}`, "bad_request"},
			{`{"op":"SEEK","topic":"orders","group":"g","to":{"from":"earliest"}}`, "unknown_group"},
		} {
			if strings.Contains(one.text, "afterId") { // it is read when the client knows of the subscription
				c.ask(one.text, frame.OK)
				if m := c.next(frame.SubClosed); m.Code != one.code {
					r.Errorf("%s: %+v", one.text, m)
				}
				continue
			}
			if m := c.ask(one.text, frame.Err); m.Code != one.code || m.Msg == "" {
				r.Errorf("%.200s: %+v, want %s", one.text, m, one.code)
			}
		}
		if m := c.ask(`{"op":"PING","n":7}`, frame.Pong); m.N != 7 {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"ACK","ack_id":"x.1"}`, frame.OK); *m.Applied || m.Reason != "unknown" {
			r.Errorf("an id of nobody: %+v", m)
		}
	})
}

// TestFatalFrames sends what ends a connection. Another one goes on.
func TestFatalFrames(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{FrameBytes: 4096}}, func(r *wsRig) {
		other := r.dial()
		other.next(frame.Hello)
		for _, c := range []struct {
			name string
			kind websocket.MessageType
			text string
			code int
		}{
			{"invalid UTF-8", websocket.MessageText, "{\"op\":\"\xff\"}", 1007},
			{"binary", websocket.MessageBinary, `{"op":"PING"}`, frame.CloseProtocol},
			{"too big", websocket.MessageText, `{"op":"PING","x":"` + strings.Repeat("x", 4096) + `"}`, 1009},
		} {
			one := r.dial()
			one.next(frame.Hello)
			if err := one.ws.Write(r.Context(), c.kind, []byte(c.text)); err != nil {
				r.Logf("%s: %v", c.name, err) // it may be closed before all of it is written
			}
			if got := one.closed(); got != c.code {
				r.Errorf("%s: closed with %d, want %d (%v)", c.name, got, c.code, one.gone)
			}
		}
		other.ask(`{"op":"PING"}`, frame.Pong)
	})
}

// TestCompressedFrame sends a compressed frame, which was not agreed upon: it is not
// inflated, whatever it would become.
func TestCompressedFrame(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		raw, err := r.net.dial(r.Context(), "", "")
		if err != nil {
			r.Fatal(err)
		}
		defer raw.Close()
		in := shake(r, raw, "Sec-WebSocket-Extensions: permessage-deflate\r\n")
		bomb := []byte{0xc1, 0x80 | 5, 0, 0, 0, 0, 'x', 'x', 'x', 'x', 'x'} // FIN, RSV1, text, masked
		go func() { _, _ = raw.Write(bomb) }()                              // ends with raw
		var head [4]byte
		for {
			if _, err := io.ReadFull(in, head[:2]); err != nil {
				r.Fatal(err)
			}
			n := int64(head[1])
			if n == 126 {
				if _, err := io.ReadFull(in, head[2:]); err != nil {
					r.Fatal(err)
				}
				n = int64(head[2])<<8 | int64(head[3])
			}
			body := make([]byte, n)
			if _, err := io.ReadFull(in, body); err != nil {
				r.Fatal(err)
			}
			if head[0] == 0x88 {
				if code := int(body[0])<<8 | int(body[1]); code != 1002 {
					r.Errorf("closed with %d", code)
				}
				return
			}
		}
	})
}

// shake makes a WebSocket by hand.
func shake(r *wsRig, raw net.Conn, header string) *bufio.Reader {
	r.Helper()
	return shakeAs(r, raw, frame.Subprotocol, header)
}

func shakeAs(r *wsRig, raw net.Conn, protocol, header string) *bufio.Reader {
	r.Helper()
	go func() { // ends when the request is read
		_, _ = fmt.Fprintf(raw, "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: %s\r\n%s\r\n", protocol, header)
	}()
	in := bufio.NewReader(raw)
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		r.Fatal(err)
	}
	_ = response.Body.Close() // there is none
	if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Sec-WebSocket-Extensions") != "" {
		r.Fatalf("%s %v", response.Status, response.Header)
	}
	return in
}

func TestRateOfFrames(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{Rate: 10, Burst: 5}}, func(r *wsRig) {
		c := r.dial()
		c.next(frame.Hello)
		for range 5 {
			c.ask(`{"op":"PING"}`, frame.Pong)
		}
		m := c.ask(`{"op":"PING","corr":"x"}`, frame.Err)
		if m.Code != "rate_limited" || !m.Retryable || m.RetryAfterMs < 1 || m.Corr != "x" {
			r.Errorf("%+v", m)
		}
		time.Sleep(time.Duration(m.RetryAfterMs+1) * time.Millisecond)
		c.ask(`{"op":"PING"}`, frame.Pong)
		for range 20 {
			if c.ws.Write(r.Context(), websocket.MessageText, []byte(`{"op":"PING"}`)) != nil {
				break
			}
		}
		if code := c.closed(); code != frame.CloseRateLimited {
			r.Errorf("closed with %d", code)
		}
	})
}

func TestPublishBatch(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.dial()
		c.next(frame.Hello)
		m := c.ask(`{"op":"PUBLISH_BATCH","corr":"b","events":[{"topic":"orders","payload":1,"opts":{"id":"1"}},{"topic":"or ders","payload":2},{"topic":"orders","payload_base64":"AAE="}]}`, frame.OK)
		if len(m.Results) != 3 || m.Results[0].Seq != 1 || m.Results[1].Code != "bad_request" || m.Results[2].Seq != 2 || m.Results[2].ID == "" {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"PUBLISH_BATCH","corr":"b","atomic":true,"events":[{"topic":"orders","payload":1},{"topic":"or ders","payload":2}]}`, frame.Err); m.Code != "bad_request" {
			r.Errorf("%+v", m)
		}
		m = c.ask(`{"op":"PUBLISH_BATCH","corr":"b","atomic":true,"events":[{"topic":"orders","payload":3},{"topic":"orders","payload":4}]}`, frame.OK)
		if len(m.Results) != 2 || m.Results[1].Seq != 4 {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"PUBLISH_BATCH","corr":"b","atomic":true,"events":[{"topic":"orders","payload":5,"opts":{"key":"a","expect":{"lastSeq":7}}}]}`, frame.Err); !strings.Contains(m.Msg, "KeyInSubject") { // which it would need
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"PUBLISH_BATCH","corr":"b","chain":{"afterSeq":4},"events":[{"topic":"orders","payload":6},{"topic":"or ders"}]}`, frame.Err); m.Code != "bad_request" {
			r.Errorf("%+v", m)
		}
		m = c.ask(`{"op":"PUBLISH_BATCH","corr":"b","chain":{"afterId":"1","afterSeq":1},"events":[{"topic":"orders","payload":7,"opts":{"id":"7"}}]}`, frame.OK)
		if len(m.Results) != 1 || m.Results[0].Code != "seq_conflict" || m.Results[0].Stored != "no" || !strings.Contains(string(m.Results[0].Details), `"afterId":"1"`) {
			r.Errorf("%+v %s", m, m.Results[0].Details)
		}
		m = c.ask(`{"op":"PUBLISH_BATCH","corr":"b","chain":{"afterSeq":4},"events":[{"topic":"orders","payload":8},{"topic":"orders","payload":9}]}`, frame.OK)
		if len(m.Results) != 2 || m.Results[1].Seq != 6 {
			r.Errorf("%+v", m)
		}
		m = c.ask(`{"op":"PUBLISH_BATCH","corr":"b","events":[{"topic":"orders","payload":10,"opts":{"ttlMs":3600000}},{"topic":"orders","payload":11,"opts":{"deliverAt":4102444800000}},{"topic":"orders","payload":12,"opts":{"ttlMs":3600000}}]}`, frame.OK)
		if len(m.Results) != 3 || m.Results[0].Seq != 7 || m.Results[1].Code != "unsupported" || m.Results[2].Seq != 8 {
			r.Errorf("%+v", m)
		}
		if m := c.ask(`{"op":"PUBLISH_BATCH","corr":"b","chain":{"afterSeq":8},"events":[{"topic":"orders","payload":13,"opts":{"expectLastSeq":8}}]}`, frame.Err); m.Code != "bad_request" {
			r.Errorf("%+v", m)
		}
		var got []string
		for e, err := range r.bus.Scan(r.Context(), "orders", jetbus.ScanQuery{}) {
			if err != nil {
				r.Fatal(err)
			}
			got = append(got, string(e.Payload))
		}
		if fmt.Sprintf("%q", got) != `["1" "\x00\x01" "3" "4" "8" "9" "10" "12"]` {
			r.Errorf("stored: %q", got)
		}
	})
}

// TestManyPublishes sends more than are published together: they are stored in order, each
// with an answer of its own.
func TestManyPublishes(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.dial()
		c.next(frame.Hello)
		const n = 300
		for i := range n {
			topic := "orders"
			if i == 100 {
				topic = "none" // fails, and none of its neighbors does
			}
			c.send(fmt.Sprintf(`{"op":"PUBLISH","topic":%q,"payload":%d,"corr":"%d"}`, topic, i, i))
		}
		answers := map[string]string{}
		for range n {
			m, err := frame.ParseMessage([]byte(c.text()))
			if err != nil {
				r.Fatal(err)
			}
			answers[m.Corr] = m.Op + m.Code
		}
		for i := range n {
			want := "OK"
			if i == 100 {
				want = "ERRunknown_topic"
			}
			if got := answers[fmt.Sprint(i)]; got != want {
				r.Errorf("%d: %s", i, got)
			}
		}
		next := 0
		for e, err := range r.bus.Scan(r.Context(), "orders", jetbus.ScanQuery{}) {
			if err != nil {
				r.Fatal(err)
			}
			if next == 100 {
				next++
			}
			if string(e.Payload) != fmt.Sprint(next) {
				r.Fatalf("%s is at the place of %d", e.Payload, next)
			}
			next++
		}
		if next != n {
			r.Errorf("%d are stored", next)
		}
	})
}

// A frame that waits too long for other large bodies is refused, so that the frames behind it are handled. A
// connection whose frame has no corr to answer is closed.
func TestLargeFramesWaitForALimitedTime(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		c := r.login("ann topic:write:>")
		var held []func()
		for {
			release, err := r.g.HoldWork(fmt.Sprint("other", len(held)))
			if err != nil {
				break
			}
			held = append(held, release)
		}
		large := `"topic":"orders","payload":"` + strings.Repeat("x", 20<<10) + `"}`
		began := time.Now()
		c.send(`{"op":"PUBLISH","corr":"1",` + large)
		c.send(`{"op":"PING","n":7}`)
		if m := c.next(frame.Err); m.Corr != "1" || m.Code != string(gateway.CodeOverloaded) || !m.Retryable || m.RetryAfterMs != 1000 {
			r.Errorf("%+v", m)
		}
		if waited := time.Since(began); waited < time.Second || waited > 3*time.Second {
			r.Errorf("it waited for %v", waited)
		}
		if m := c.next(frame.Pong); m.N != 7 {
			r.Errorf("%+v", m)
		}
		c.send(`{"op":"PUBLISH",` + large)
		if code := c.closed(); code != int(websocket.StatusTryAgainLater) {
			r.Errorf("closed with %d", code)
		}
		for _, release := range held {
			release()
		}
		c = r.login("ann topic:write:>")
		c.ask(`{"op":"PUBLISH","corr":"2",`+large, frame.OK)
	})
}
