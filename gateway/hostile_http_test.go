package gateway_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestHostile09BombOverHTTP sends bodies that would become 20 MB, to all that takes a body.
func TestHostile09BombOverHTTP(t *testing.T) {
	var member bytes.Buffer
	w := gzip.NewWriter(&member)
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	bomb := bytes.Repeat(member.Bytes(), 20) // a body of gzip may have many members
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		before := heap()
		for _, path := range []string{ordersPath, "/publish/orders", "/v1/groups/orders/g:pull", "/v1/groups/orders/g:ack", "/v1/dlq/orders:replay"} {
			raw, err := r.net.dial(r.Context(), "", "")
			if err != nil {
				r.Fatal(err)
			}
			head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n", path, len(bomb))
			go func() { _, _ = raw.Write(append([]byte(head), bomb...)) }() // ends with raw
			response, err := http.ReadResponse(bufio.NewReader(raw), nil)
			if err != nil {
				r.Fatalf("%s: %v", path, err)
			}
			text, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != 415 || !strings.Contains(string(text), `"unsupported_encoding"`) {
				r.Errorf("%s: %d %s, %v", path, response.StatusCode, text, err)
			}
			_ = response.Body.Close()
			_ = raw.Close()
		}
		if grown := heap() - before; grown > 4<<20 {
			r.Errorf("memory grew by %d KiB", grown>>10)
		}
	})
}

// paths are all that the gateway says it has, with names in the place of the braces, and what
// the document does not have.
func (r *wsRig) paths() [][2]string {
	r.Helper()
	var doc struct {
		Paths map[string]map[string]any
	}
	r.do("GET", "/openapi.json", "").into(&doc)
	names := strings.NewReplacer("{topic}", "orders", "{group}", "g", "{key}", "k", "{seq}", "1")
	all := [][2]string{{"GET", "/ws"}, {"GET", "/"}, {"GET", "/v1/schemas"}, {"POST", "/v1/schemas/subjects/orders/versions"}, {"GET", "/nowhere"}, {"OPTIONS", ordersPath}}
	for path, methods := range doc.Paths {
		for method := range methods {
			all = append(all, [2]string{strings.ToUpper(method), names.Replace(path)})
		}
	}
	if len(all) < 25 {
		r.Fatalf("the document has %d operations", len(all))
	}
	return all
}

// TestHostile25EveryPath sends instructions to the broker to all that there is.
func TestHostile25EveryPath(t *testing.T) {
	asked := 0
	schemas := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ })
	inBubble(t, gateway.Config{Schemas: schemas}, func(r *wsRig) {
		r.publish("orders", "1", "2")
		for _, p := range r.paths() {
			for _, name := range []string{"Nats-Rollup", "nAtS-mSG-iD", "Nats-"} {
				upgrade := []string{name, "all"}
				if p[1] == "/ws" {
					upgrade = append(upgrade, "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
				}
				if got := r.do(p[0], p[1], `1`, upgrade...); got.refused(gateway.CodeBadRequest) == nil {
					r.Errorf("%s %s with %s", p[0], p[1], name)
				}
			}
		}
		if info, err := r.bus.TopicInfo(r.Context(), "orders"); err != nil || info.Events != 2 || asked != 0 {
			r.Errorf("%+v, %v, %d requests were passed on", info, err, asked)
		}
	})
}

// TestHostile26LineEnds puts line ends into every text of an event, and of what is said about
// one, that becomes a header at the broker.
func TestHostile26LineEnds(t *testing.T) {
	const evil = `a\r\nNats-Rollup: all\r\n`
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1", "2")
		c := r.member(`"from":"earliest"`)
		held := []string{c.next(frame.Event).AckID, c.next(frame.Event).AckID}
		for _, opts := range []string{
			`"id":"` + evil + `"`, `"key":"` + evil + `"`, `"sid":"` + evil + `"`, `"tags":["` + evil + `"]`, `"caused_by":["` + evil + `"]`,
			`"headers":{"x-a":"` + evil + `"}`, `"headers":{"` + evil + `":"x"}`, `"headers":{"x-a\u0000":"x"}`, `"headers":{"x-a":"\u0000"}`, `"headers":{"x a":"x"}`, `"headers":{"":"x"}`,
		} {
			for _, text := range []string{
				`{"op":"PUBLISH","topic":"orders","payload":1,"corr":"p","opts":{` + opts + `}}`,
				`{"op":"PUBLISH_BATCH","atomic":true,"corr":"p","events":[{"topic":"orders","payload":1,"opts":{` + opts + `}}]}`,
			} {
				if strings.Contains(opts, "tags") || strings.Contains(opts, "caused_by") || strings.Contains(opts, "sid") || strings.Contains(opts, `"id"`) || strings.Contains(opts, `"key"`) {
					// Either is well: refused, or stored as it was sent and nothing else.
					c.send(text)
					if m := c.parsed(c.text()); m.Op != frame.OK && m.Code != "bad_request" {
						r.Errorf("%s: %+v", text, m)
					} else if m.Op == frame.OK {
						if e := c.next(frame.Event); len(e.Event.Headers) != 0 {
							r.Errorf("%s became %+v", text, e.Event)
						}
					}
					continue
				}
				if m := c.ask(text, frame.Err); m.Code != "bad_request" {
					r.Errorf("%s: %+v", text, m)
				}
			}
		}
		c.ask(`{"op":"NACK","ack_id":"`+held[0]+`","dead":true,"reason":"`+evil+`","corr":"n"}`, frame.OK)
		c.ask(`{"op":"NACK","ack_id":"`+held[1]+`","delay_ms":1000,"reason":"`+evil+`","corr":"n"}`, frame.OK)
		c.next(frame.Event)
		letters := 0
		for e, err := range r.bus.Scan(r.Context(), "dlq.orders", jetbus.ScanQuery{}) {
			letters++
			if err != nil {
				r.Fatal(err)
			}
			if d, err := jetbus.ParseDeadLetter(e); err != nil || d.Group != "g" || strings.ContainsAny(fmt.Sprint(e.Headers), "\r\n") {
				r.Errorf("%+v, %v", e, err)
			}
		}
		for _, m := range []string{`"group":"` + evil + `"`, `"group":"g9","opts":{"filter":{"key":"` + evil + `"}}`} {
			c.send(`{"op":"SUBSCRIBE","topic":"orders",` + m + `}`)
			if got := c.parsed(c.text()); got.Op != frame.OK && got.Code != "bad_request" {
				r.Errorf("%s: %+v", m, got)
			}
		}
		if info, err := r.bus.TopicInfo(r.Context(), "orders"); err != nil || info.Events < 2 || info.FirstSeq != 1 || letters != 1 {
			r.Errorf("%+v, %v, %d dead letters", info, err, letters)
		}
	})
}

// TestHostile26Smuggling sends requests whose heads are not what they seem: each is refused, and
// nothing behind it is taken for another request.
func TestHostile26Smuggling(t *testing.T) {
	const second = "POST /v1/topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nX-Evt-Id: smuggled\r\n\r\n1"
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		for name, head := range map[string]string{
			"two lengths":           "Content-Length: 1\r\nContent-Length: 2\r\n\r\n1" + second,
			"a list of lengths":     "Content-Length: 1, 2\r\n\r\n1" + second,
			"a signed length":       "Content-Length: +1\r\n\r\n1" + second,
			"a negative length":     "Content-Length: -1\r\n\r\n1" + second,
			"an unknown coding":     "Transfer-Encoding: xchunked\r\nContent-Length: 1\r\n\r\n1" + second,
			"two codings":           "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + second,
			"a chunk of no number":  "Transfer-Encoding: chunked\r\n\r\n0x1\r\n1\r\n0\r\n\r\n" + second,
			"a space in a name":     "Content-Length : 1\r\n\r\n1" + second,
			"a name that begins so": " Nats-Rollup: all\r\nContent-Length: 1\r\n\r\n1" + second,
			"a bare CR":             "X-Evt-Note: a\rNats-Rollup: all\r\nContent-Length: 1\r\n\r\n1" + second,
			"a NUL":                 "X-Evt-Note: a\x00b\r\nContent-Length: 1\r\n\r\n1" + second,
			"no name":               ": a\r\nContent-Length: 1\r\n\r\n1" + second,
			"two hosts":             "Host: evil.example\r\nContent-Length: 1\r\n\r\n1" + second,
		} {
			raw, err := r.net.dial(r.Context(), "", "")
			if err != nil {
				r.Fatal(err)
			}
			go func() { _, _ = io.WriteString(raw, "POST /v1/topics/orders HTTP/1.1\r\nHost: localhost\r\n"+head) }() // ends with raw
			response, err := http.ReadResponse(bufio.NewReader(raw), nil)
			if err != nil {
				r.Errorf("%s: %v", name, err)
				_ = raw.Close()
				continue
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if s := response.StatusCode; s != 400 && s != 501 || !response.Close {
				r.Errorf("%s: status %d, closes %v", name, s, response.Close)
			}
			_ = raw.Close()
		}
		if e := r.last(); e.Seq != 0 {
			r.Errorf("%+v was stored", e)
		}
	})
}

// TestHostile27Names uses names that are subjects, wildcards, or paths at the broker, wherever
// a name is taken.
func TestHostile27Names(t *testing.T) {
	names := []string{ // each with what it would be at the broker or in a path
		"*", ">", "orders.*", "orders.>", "$JS.API.STREAM.DELETE.EV_ORDERS", "$SYS.REQ.SERVER.PING", "$KV.x.y", "or ders", "orders\t", " orders",
		"orders\r\nPUB x 1\r\n1", "orders\x00", "ORDERS/../x", strings.Repeat("a.", 200) + "a", "ördérs",
	}
	topics := append([]string{"_INBOX.x", "orders.", ".orders", "or..ders"}, names...) // which a group may have: it is one token there, escaped
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1")
		c := r.dial()
		c.next(frame.Hello)
		for name, list := range map[string][]string{"topic": topics, "group": names} {
			for _, value := range list {
				c.refusesName(name, value)
				r.refusesName(name, value)
			}
		}
		list, err := r.bus.ListTopics(r.Context())
		if err != nil || len(list) != 1 || list[0].Groups != 0 || list[0].Events != 1 {
			r.Errorf("%+v, %v", list, err)
		}
	})
}

// refusesName sends all frames that have a name of that kind.
func (c *wsClient) refusesName(kind, value string) {
	c.r.Helper()
	frames := map[string][]string{
		"topic": {
			`{"op":"PUBLISH","topic":%s,"payload":1}`, `{"op":"PUBLISH_BATCH","atomic":true,"events":[{"topic":%s,"payload":1}]}`,
			`{"op":"SUBSCRIBE","topic":%s}`, `{"op":"SUBSCRIBE","topic":%s,"group":"g"}`, `{"op":"SUBSCRIBE","topics":["orders",%s],"group":"g"}`,
			`{"op":"SUBSCRIBE","topic":"orders","opts":{"topics":[%s]}}`, `{"op":"SEEK","topic":%s,"group":"g","to":{"seq":0}}`, `{"op":"CURSOR","topic":%s,"group":"g"}`,
			`{"op":"UNSUBSCRIBE","topic":%s,"group":"g"}`, `{"op":"ACK","topic":%s,"group":"g","id":"1"}`,
		},
		"group": {
			`{"op":"SUBSCRIBE","topic":"orders","group":%s}`, `{"op":"SUBSCRIBE","topic":"orders","group":%s,"opts":{"flow":"credit"}}`,
			`{"op":"SEEK","topic":"orders","group":%s,"to":{"seq":0}}`, `{"op":"CURSOR","topic":"orders","group":%s}`,
			`{"op":"UNSUBSCRIBE","topic":"orders","group":%s}`, `{"op":"ACK","topic":"orders","group":%s,"id":"1"}`,
		},
	}
	text, err := json.Marshal(value)
	if err != nil {
		c.r.Fatal(err)
	}
	for _, f := range frames[kind] {
		switch m := c.ask(fmt.Sprintf(f, text), frame.Err); m.Code {
		case "bad_request", "forbidden", "not_subscribed": // internal topics are somebody's, and not a client's
		default:
			c.r.Errorf("%s with %q: %+v", f, value, m)
		}
	}
}

// refusesName requests all paths that have a name of that kind.
func (r *wsRig) refusesName(kind, value string) {
	r.Helper()
	paths := map[string][]string{
		"topic": {
			"POST /v1/topics/%s", "POST /publish/%s", "GET /v1/topics/%s", "GET /v1/topics/%s/events?wait=0", "GET /v1/topics/%s/snapshot", "GET /v1/topics/%s/snapshot/k", "GET /v1/topics/%s/state?at=0",
			"GET /v1/groups/%s", "GET /v1/groups/%s/g", "POST /v1/groups/%s/g:pull", "POST /v1/groups/%s/g:ack", "GET /v1/dlq/%s", "GET /v1/dlq/%s/1", "GET /v1/dlq/%s/stats", "POST /v1/dlq/%s:replay",
		},
		"group": {"GET /v1/groups/orders/%s", "POST /v1/groups/orders/%s:pull", "POST /v1/groups/orders/%s:ack"},
	}
	escaped := url.PathEscape(value)
	for _, p := range paths[kind] {
		method, path, _ := strings.Cut(fmt.Sprintf(p, escaped), " ")
		got := r.do(method, path, `{}`)
		var d struct{ Code gateway.Code }
		if got.into(&d); d.Code != gateway.CodeBadRequest && d.Code != gateway.CodeForbidden {
			r.Errorf("%s %q: %d %s", method, path, got.status, got.text)
		}
	}
}

// TestHostile28Deep nests ten thousand deep wherever JSON is read.
func TestHostile28Deep(t *testing.T) {
	deep := strings.Repeat(`{"a":[`, 5000) + `1` + strings.Repeat(`]}`, 5000)
	open := strings.Repeat("[", 500_000)
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c := r.dial()
		c.next(frame.Hello)
		for _, at := range []string{
			`%s`, `{"op":%s}`, `{"op":"PUBLISH","topic":"orders","payload":1,"opts":%s}`, `{"op":"PUBLISH_BATCH","events":[{"topic":"orders","payload":%s}]}`,
			`{"op":"SUBSCRIBE","topic":"orders","opts":{"filter":%s}}`, `{"op":"SEEK","to":%s}`, `{"op":"ACKS","ack":%s}`, `{"op":"PING","other":%s}`,
		} {
			for _, text := range []string{deep, open} {
				if m := c.ask(fmt.Sprintf(at, text), frame.Err); m.Code != "bad_json" {
					r.Errorf("%s: %+v", at, m)
				}
			}
		}
		for _, one := range [][3]string{
			{ordersPath, "", `%s`},
			{ordersPath, "application/x-ndjson", `{"payload":%s}`},
			{ordersPath, "application/cloudevents-batch+json", `[%s]`},
			{ordersPath, "application/cloudevents+json", `{"specversion":"1.0","id":"1","source":"s","type":"t","data":%s}`},
			{ordersPath, "application/cloudevents+json", `{"specversion":"1.0","id":"1","source":"s","type":"t","x":%s}`},
			{"/publish/orders", "", `%s`},
			{"/v1/groups/orders/g:pull", "", `{"filter":%s}`},
			{"/v1/groups/orders/g:ack", "", `{"ack_ids":%s}`},
			{"/v1/dlq/orders:replay", "", `{"filter":%s}`},
		} {
			for _, text := range []string{deep, open} {
				got := r.do("POST", one[0], fmt.Sprintf(one[2], text), "Content-Type", one[1])
				if got.status != 400 && got.status != 207 || !strings.Contains(got.text, `"bad_json"`) {
					r.Errorf("%s %s: %d %.300s", one[0], one[1], got.status, got.text)
				}
			}
		}
		if e := r.last(); e.Seq != 0 {
			r.Errorf("%+v was stored", e)
		}
	})
}

// TestHostile29MembersTwice sends members twice and in other letters. They are refused, so that
// a proxy that checks them and the gateway cannot see different values.
func TestHostile29MembersTwice(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "secrets"})
		const scopes = "ann topic:write:orders topic:read:orders"
		c := r.login(scopes)
		for _, text := range []string{
			`{"op":"PUBLISH","topic":"orders","topic":"secrets","payload":1}`, `{"op":"PUBLISH","topic":"orders","Topic":"secrets","payload":1}`,
			`{"op":"PUBLISH_BATCH","atomic":true,"events":[{"topic":"orders","TOPIC":"secrets","payload":1}]}`,
			`{"op":"SUBSCRIBE","topic":"orders","topic":"secrets"}`, `{"op":"SUBSCRIBE","topic":"orders","opts":{"topics":["orders"],"Topics":["secrets"]}}`,
			`{"op":"SUBSCRIBE","topic":"orders","group":"u.ann","Group":"others"}`, `{"op":"SUBSCRIBE","topic":"orders","opts":{"from":"latest","from":"earliest"}}`,
			`{"op":"PUBLISH","topic":"orders","payload":0,"payload":1}`, `{"op":"PUBLISH","topic":"orders","payload":1,"opts":{"headers":{"x-a":"1","x-a":"2"}}}`,
			`{"op":"PUBLISH","topic":"orders","payload":1,"opts":{"EXPECT":{"lastSeq":7}}}`,
		} {
			if m := c.ask(text, frame.Err); m.Code != "bad_request" {
				r.Errorf("%s: %+v", text, m)
			}
		}
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","topics":["secrets"]}`, frame.Err); m.Code != "forbidden" {
			r.Errorf("both topic and topics: %+v", m)
		}
		for _, body := range []string{`{"payload":1,"topic":"orders","topic":"secrets"}`, `{"payload":1,"topic":"orders","Topic":"secrets"}`, `{"payload":1,"ID":"x"}`, `{"payload":1,"payload":2}`} {
			got := r.do("POST", ordersPath, body, "Content-Type", "application/x-ndjson", "Authorization", "Bearer "+scopes)
			if got.status != 207 || !strings.Contains(got.text, "bad_request") {
				r.Errorf("%s: %+v", body, got)
			}
		}
		const payload = `{"a":1,"a":{"a":2,"A":3},"a":null}`
		m := c.ask(`{"op":"PUBLISH","topic":"orders","payload":`+payload+`,"opts":{"id":"y"},"future":1,"future":2}`, frame.OK)
		if e := r.last(); m.ID != "y" || e.ID != "y" || e.Seq != 1 || string(e.Payload) != payload {
			r.Errorf("%+v: %+v, %s", m, e, e.Payload)
		}
		if info, err := r.bus.TopicInfo(r.Context(), "secrets"); err != nil || info.Events != 0 {
			r.Errorf("%+v, %v", info, err)
		}
	})
}

// TestHostile30Bytes publishes payloads that a decoder would change, by every way in, and reads
// them by every way out.
func TestHostile30Bytes(t *testing.T) {
	payloads := []string{
		`9007199254740993`, `123456789012345678901234567890.10`, `1e400`, `-0`, `-0.0`, `1.0E+2`, `"\u0041\/\ud83d\ude00 <&> \u2028"`, `{"z":1,"a":2,"z":3}`, "{ \"a\" :\t[ ] }", `"\ud800"`, `null`, `""`,
	}
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		reader, _ := r.reader(``)
		reader.next(frame.CaughtUp)
		member := r.member(``)
		for _, p := range payloads {
			for way, publish := range map[string]func() string{
				"frame": func() string { return reader.r.sent(`{"op":"PUBLISH","topic":"orders","payload":` + p + `}`) },
				"batch": func() string {
					return reader.r.sent(`{"op":"PUBLISH_BATCH","corr":"b","events":[{"topic":"orders","payload":` + p + `}]}`)
				},
				"HTTP":       func() string { return r.do("POST", ordersPath, p).text },
				"first path": func() string { return r.do("POST", "/publish/orders", p).text },
				"lines": func() string {
					return r.do("POST", ordersPath, `{"payload":`+p+`}`, "Content-Type", "application/x-ndjson").text
				},
				"structured": func() string {
					return r.do("POST", ordersPath, `{"specversion":"1.0","id":"`+jetbus.NewID()+`","source":"s","type":"t","datacontenttype":"application/json","data":`+p+`}`, "Content-Type", "application/cloudevents+json").text
				},
			} {
				answer := publish()
				if e := r.last(); string(e.Payload) != p {
					r.Errorf("%s: %s is stored as %s (%s)", way, p, e.Payload, answer)
				}
				text := reader.text()
				if !strings.Contains(text, `"payload":`+p) {
					r.Errorf("%s: %s came as %s", way, p, text)
				}
				e := member.text()
				if !strings.Contains(e, `"payload":`+p) {
					r.Errorf("%s: %s came as %s", way, p, e)
				}
				member.send(`{"op":"ACK","ack_id":"` + member.parsed(e).AckID + `"}`)
				if got := r.do("GET", fmt.Sprintf("%s/events?wait=0&from=afterSeq&afterSeq=%d", ordersPath, reader.parsed(text).Seq-1), ""); !strings.Contains(got.text, `"payload":`+p) {
					r.Errorf("%s: %s came by poll as %s", way, p, got.text)
				}
			}
		}
	})
}

// sent publishes over a connection of its own.
func (r *wsRig) sent(text string) string {
	r.Helper()
	c := r.dial()
	c.next(frame.Hello)
	c.send(text)
	answer := c.text()
	_ = c.ws.CloseNow()
	return answer
}

// TestSlowBody: who sends a body that never ends, or none, is answered, and keeps neither a
// connection nor the end of the server waiting; with a token or without one.
func TestSlowBody(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		for what, head := range map[string]string{
			"without a token": "Content-Length: 10\r\n\r\n",
			"in pieces":       "Transfer-Encoding: chunked\r\n\r\n5\r\n[1,2,",
			"with a token":    "Authorization: Bearer ann topic:write:>\r\nContent-Length: 10\r\n\r\n1",
		} {
			for _, path := range []string{"/v1/topics/orders", "/v1/schemas/orders/check", "/nowhere"} {
				c, err := r.net.dial(r.Context(), "tcp", "")
				if err != nil {
					r.Fatal(err)
				}
				began := time.Now()
				if _, err := c.Write([]byte("POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + head)); err != nil {
					r.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, c) // until the connection is over
				if took := time.Since(began); took > 40*time.Second {
					r.Errorf("%s, %s: over after %v", path, what, took)
				}
				_ = c.Close()
			}
		}
	})
}
