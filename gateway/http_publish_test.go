package gateway_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/caller"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// last is the newest event of orders.
func (r *wsRig) last() jetbus.Event {
	r.Helper()
	var last jetbus.Event
	for e, err := range r.bus.Scan(r.Context(), "orders", jetbus.ScanQuery{}) {
		if err != nil {
			r.Fatal(err)
		}
		last = e
	}
	return last
}

const ordersPath = "/v1/topics/orders"

func TestPublishOverHTTP(t *testing.T) {
	inBubble(t, gateway.Config{Headers: []string{"X-Tenant", "User-Agent"}}, func(r *wsRig) {
		const payload = `{"n": 9007199254740993, "f":1.10, "n":2}`
		got := r.do("POST", ordersPath, payload,
			"X-Evt-Id", "1", "X-Evt-Key", "k", "X-Evt-Ts", "1700000000000", "X-Evt-Tags", "a, b%2Cc", "X-Evt-Caused-By", "x,y", "X-Evt-Sid", "s",
			"X-Evt-Note", "n", "X-Tenant", "t", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			"Authorization", "Bearer secret", "Cookie", "a=b", "X-Other", "o", "User-Agent", "shop/1", "Content-Type", "application/json; charset=utf-8").is(201)
		if got["id"] != "1" || got["seq"] != 1.0 || got["duplicate"] != nil {
			r.Errorf("%v", got)
		}
		e := r.last()
		want := map[string]string{"x-evt-note": "n", "x-tenant": "t", "user-agent": "shop/1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
		if string(e.Payload) != payload || e.ID != "1" || e.Key != "k" || e.SID != "s" || e.Time.UnixMilli() != 1700000000000 ||
			!reflect.DeepEqual(e.Tags, []string{"a", "b,c"}) || !reflect.DeepEqual(e.CausedBy, []string{"x", "y"}) || !maps.Equal(e.Headers, want) {
			r.Errorf("%+v, %s", e, e.Payload)
		}
		if got := r.do("POST", ordersPath, `2`, "Idempotency-Key", `"1"`).is(201); got["duplicate"] != true || got["seq"] != 1.0 {
			r.Errorf("%v", got)
		}
		if got := r.do("POST", ordersPath, `2`, "Prefer", "return=minimal"); got.status != 204 || got.text != "" {
			r.Errorf("%+v", got)
		}
		r.do("POST", ordersPath, "\x00\xff", "Content-Type", "application/octet-stream").is(201)
		if e := r.last(); string(e.Payload) != "\x00\xff" || e.ContentType() != "application/octet-stream" || e.Seq != 3 {
			r.Errorf("%+v", e)
		}
	})
}

func TestPublishInstructions(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true, Delays: true})
		const path = "/v1/topics/state"
		r.do("POST", path+"?expectLastSeq=0", `1`, "X-Evt-Key", "k").is(201)
		r.do("POST", path+"?expectLastSeq=0", `2`, "X-Evt-Key", "k").refused(gateway.CodeSeqConflict)
		r.do("POST", path+"?expectLastSeq=1&ttlMs=60000", `2`, "X-Evt-Key", "k").is(201)
		if got := r.do("POST", path+fmt.Sprintf("?deliverAt=%d", time.Now().Add(time.Hour).UnixMilli()), `3`, "X-Evt-Key", "j").is(201); got["scheduled"] != true {
			r.Errorf("%v", got)
		}
		for _, bad := range []string{"expectLastSeq=x", "ttlMs=-1", "ttlMs=1.5", "ttlMs=9223372036854775807", "deliverAt=soon", "dry_run=maybe"} {
			r.do("POST", path+"?"+bad, `1`).refused(gateway.CodeBadRequest)
		}
	})
}

// TestPublishOnOneCondition: of clients that expect the same one wins each round, and each of
// the others is told.
func TestPublishOnOneCondition(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		const clients, rounds = 12, 3
		last := "0"
		for round := range rounds {
			var all sync.WaitGroup
			replies := make([]reply, clients)
			for i := range replies {
				all.Go(func() {
					replies[i] = r.do("POST", "/v1/topics/state?expectLastSeq="+last, fmt.Sprint(i), "X-Evt-Key", "k")
				})
			}
			all.Wait()
			won := 0
			for i, res := range replies {
				if res.status != 201 {
					res.refused(gateway.CodeSeqConflict)
					continue
				}
				won++
				last = fmt.Sprint(res.is(201)["seq"])
				if found, err := r.bus.LatestByKey(r.Context(), "state", "k"); err != nil || string(found["k"].Payload) != fmt.Sprint(i) {
					r.Errorf("round %d: client %d was told that it won, the topic has %s, %v", round, i, found["k"].Payload, err)
				}
			}
			if won != 1 {
				r.Fatalf("round %d: %d clients won", round, won)
			}
		}
	})
}

func TestPublishRefused(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
		for _, c := range []struct {
			name, path, body string
			header           []string
			want             gateway.Code
		}{
			{"nothing", ordersPath, ``, nil, gateway.CodeBadJSON},
			{"no JSON", ordersPath, `{`, nil, gateway.CodeBadJSON},
			{"two values", ordersPath, `1 2`, nil, gateway.CodeBadJSON},
			{"no UTF-8", ordersPath, "\"\xff\"", nil, gateway.CodeBadJSON},
			{"deep", ordersPath, deep, nil, gateway.CodeBadJSON},
			{"too long", ordersPath, `"` + strings.Repeat("x", 1<<20) + `"`, nil, gateway.CodeTooLarge},
			{"a form", ordersPath, `a=1`, []string{"Content-Type", "application/x-www-form-urlencoded"}, gateway.CodeUnsupportedEncoding},
			{"compressed", ordersPath, `1`, []string{"Content-Encoding", "gzip"}, gateway.CodeUnsupportedEncoding},
			{"another charset", ordersPath, `1`, []string{"Content-Type", "application/json; charset=latin1"}, gateway.CodeUnsupportedEncoding},
			{"no media type", ordersPath, `1`, []string{"Content-Type", ";;"}, gateway.CodeUnsupportedEncoding},
			{"CloudEvents in XML", ordersPath, `<a/>`, []string{"Content-Type", "application/cloudevents+xml"}, gateway.CodeUnsupportedEncoding},
			{"no topic", "/v1/topics/none", `1`, nil, gateway.CodeUnknownTopic},
			{"no topic, dry", "/v1/topics/none?dry_run=1", `1`, nil, gateway.CodeUnknownTopic},
			{"a topic with a space", "/v1/topics/a%20b", `1`, nil, gateway.CodeBadRequest},
			{"wildcards", "/v1/topics/orders.*", `1`, nil, gateway.CodeBadRequest},
			{"all", "/v1/topics/%3E", `1`, nil, gateway.CodeBadRequest},
			{"the broker's own", "/v1/topics/$JS.API.STREAM.PURGE.EV_ORDERS", `1`, nil, gateway.CodeBadRequest},
			{"a path in the topic", "/v1/topics/..%2Forders", `1`, nil, gateway.CodeBadRequest},
			{"dead letters", "/v1/topics/dlq.orders", `1`, nil, gateway.CodeForbidden},
			{"two ids", ordersPath, `1`, []string{"Idempotency-Key", "a", "X-Evt-Id", "b"}, gateway.CodeBadRequest},
			{"a header twice", ordersPath, `1`, []string{"X-Evt-A", "1", "X-Evt-A", "2"}, gateway.CodeBadRequest},
			{"a bad time", ordersPath, `1`, []string{"X-Evt-Ts", "noon"}, gateway.CodeBadRequest},
			{"a year", ordersPath, `1`, []string{"X-Evt-Ts", "999999999999999"}, gateway.CodeBadRequest},
			{"a long key", ordersPath, `1`, []string{"X-Evt-Key", strings.Repeat("k", 257)}, gateway.CodeBadRequest},
			{"a key with a line end", ordersPath, `1`, []string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "s", "ce-type", "t", "ce-partitionkey", "a%0D%0Ab"}, gateway.CodeBadRequest},
			{"a header with a line end", ordersPath, `1`, []string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "s", "ce-type", "t", "ce-note", "a%0D%0ANats-Rollup: all"}, gateway.CodeBadRequest},
		} {
			if got := r.do("POST", c.path, c.body, c.header...); got.refused(c.want) == nil {
				r.Errorf("%s", c.name)
			}
		}
		if e := r.last(); e.Seq != 0 {
			r.Errorf("%+v was stored", e)
		}
	})
}

func TestBrokersHeaders(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1", "2")
		for _, c := range [][2]string{
			{"POST", ordersPath},
			{"POST", "/publish/orders"},
			{"GET", ordersPath},
			{"GET", ordersPath + "/events"},
			{"GET", ordersPath + "/snapshot"},
			{"GET", ordersPath + "/state"},
			{"POST", "/v1/groups/orders/g:pull"},
			{"GET", "/v1/topics"},
			{"GET", "/livez"},
			{"GET", "/openapi.json"},
			{"GET", "/nowhere"},
		} {
			for _, name := range []string{"Nats-Rollup", "nats-msg-id", "NATS-TTL", "Nats-Expected-Last-Sequence"} {
				r.do(c[0], c[1], `1`, name, "all").refused(gateway.CodeBadRequest)
			}
		}
		if info, err := r.bus.TopicInfo(r.Context(), "orders"); err != nil || info.Events != 2 {
			r.Errorf("%+v, %v", info, err)
		}
	})
}

// TestFirstPath is what the first clients do: a JSON body, the id as the answer, and an
// object with the member error.
func TestFirstPath(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		got := r.do("POST", "/publish/orders", `{"pid":1234,"name":"stt","host":"local"}`, "Content-Type", "application/json", "User-Agent", "node")
		e := r.last()
		if got.text != `{"id":"`+e.ID+`"}`+"\n" || got.status != 200 || string(e.Payload) != `{"pid":1234,"name":"stt","host":"local"}` || len(e.Headers) != 0 {
			r.Errorf("%+v: %+v", got, e)
		}
		if d := r.do("POST", "/publish/none", `1`).refused(gateway.CodeUnknownTopic); d["error"] == "" || d["error"] != d["detail"] {
			r.Errorf("%v", d)
		}
		r.do("POST", "/publish/orders", `{`).refused(gateway.CodeBadJSON)
		r.do("POST", "/publish/orders", `1`, "Nats-Rollup", "all").refused(gateway.CodeBadRequest)
	})
}

func TestPublishBatches(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{BatchEvents: 4}}, func(r *wsRig) {
		var got struct{ Results []map[string]any }
		res := r.do("POST", ordersPath, "{\"id\":\"a\",\"key\":\"k\",\"payload\":{\"n\": 1.0}}\r\n\n{\"payload\":2}\n", "Content-Type", "application/x-ndjson", "Idempotency-Key", "b")
		res.is(200)
		if res.into(&got); len(got.Results) != 2 || got.Results[0]["id"] != "a" || got.Results[0]["seq"] != 1.0 || got.Results[1]["id"] != "b/2" || got.Results[1]["seq"] != 2.0 {
			r.Errorf("%s", res.text)
		}
		res = r.do("POST", ordersPath, "{\"id\":\"c\",\"payload\":1}\n{\"id\":\"d\"}\nx\n{\"id\":\"a\",\"payload\":1,\"headers\":{\"Nats-Rollup\":\"all\"}}", "Content-Type", "application/x-ndjson")
		res.is(207)
		res.into(&got)
		for i, want := range []string{"<nil>", "bad_request", "bad_json", "bad_request"} {
			if fmt.Sprint(got.Results[i]["code"]) != want {
				r.Errorf("%d: %v", i, got.Results[i])
			}
		}
		if e := r.last(); e.ID != "c" || e.Seq != 3 {
			r.Errorf("%+v", e)
		}
		res = r.do("POST", ordersPath, `[{"specversion":"1.0","id":"1","source":"/a","type":"orders","data":{"n": 1.0}},{"id":"2"}]`, "Content-Type", "application/cloudevents-batch+json")
		res.is(207)
		if res.into(&got); got.Results[0]["seq"] != 4.0 || got.Results[1]["code"] != "bad_request" {
			r.Errorf("%s", res.text)
		}
		if e := r.last(); string(e.Payload) != `{"n": 1.0}` || e.SID != "/a" {
			r.Errorf("%+v", e)
		}
		r.do("POST", ordersPath+"?dry_run=1", `{"payload":1}`, "Content-Type", "application/x-ndjson").is(200)
		if got := r.do("POST", ordersPath, `{"payload":1}`, "Content-Type", "application/x-ndjson", "Prefer", "return=minimal"); got.status != 204 {
			r.Errorf("%+v", got)
		}
		for body, want := range map[string]gateway.Code{
			"": gateway.CodeBadRequest, "\n\n": gateway.CodeBadRequest, strings.Repeat("{\"payload\":1}\n", 5): gateway.CodeTooLarge,
		} {
			r.do("POST", ordersPath, body, "Content-Type", "application/x-ndjson").refused(want)
		}
		for body, want := range map[string]gateway.Code{
			"": gateway.CodeBadJSON, "{}": gateway.CodeBadJSON, "null": gateway.CodeBadJSON, "[]": gateway.CodeBadRequest, "[1,2,3,4,5]": gateway.CodeTooLarge,
		} {
			r.do("POST", ordersPath, body, "Content-Type", "application/cloudevents-batch+json").refused(want)
		}
		r.do("POST", ordersPath+"?expectLastSeq=1", `{"payload":1}`, "Content-Type", "application/x-ndjson").refused(gateway.CodeUnsupported)
	})
}

func TestPublishNeedsScope(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.do("POST", ordersPath, `1`).refused(gateway.CodeUnauthorized)
		r.do("POST", ordersPath, `1`, "Authorization", "Bearer bad").refused(gateway.CodeBadToken)
		r.do("POST", ordersPath, `1`, "Authorization", "Bearer ann topic:read:>").refused(gateway.CodeForbidden)
		r.do("POST", "/publish/orders", `1`, "Authorization", "Bearer ann topic:read:>").refused(gateway.CodeForbidden)
		r.do("POST", "/v1/topics/a%20b", `1`).refused(gateway.CodeUnauthorized)
		r.do("POST", ordersPath, `1`, "Authorization", "Bearer ann topic:write:orders").is(201)
	})
}

// heldBus is a bus that publishes when it is let.
type heldBus struct {
	jetbus.Backend
	asked chan struct{} // gets one for each publish; has room for all of them
	let   chan struct{} // closed when they may go on
}

// Publish implements jetbus.Publisher.
func (b *heldBus) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	b.asked <- struct{}{}
	select {
	case <-b.let:
	case <-ctx.Done():
	}
	return b.Backend.Publish(ctx, e, o...)
}

// TestPublishesAtOnce: a subject has a bounded number of publishes under way, which are no connections.
func TestPublishesAtOnce(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		b := &heldBus{Backend: r.bus, asked: make(chan struct{}, 10), let: make(chan struct{})}
		c := withTokens()
		c.Limits = gateway.Limits{PerPrincipal: 1}
		r.serveBus(b, c)
		const ann, bob = "Bearer ann topic:read:> topic:write:>", "Bearer bob topic:write:>"
		var held sync.WaitGroup
		hold := func(token string) {
			held.Go(func() { r.do("POST", ordersPath, `1`, "Authorization", token).is(201) })
			select {
			case <-b.asked:
			case <-time.After(patience):
				r.Fatal("nothing is published")
			}
		}
		hold(ann)
		r.do("POST", ordersPath, `2`, "Authorization", ann).refused(gateway.CodeRateLimited)
		r.do("POST", ordersPath, `{"payload":2}`, "Authorization", ann, "Content-Type", "application/x-ndjson").refused(gateway.CodeRateLimited)
		r.do("POST", "/publish/orders", `2`, "Authorization", ann).refused(gateway.CodeRateLimited)
		hold(bob)
		r.events(ordersPath+"/events", "Authorization", ann).block() // one connection besides
		close(b.let)
		held.Wait()
		time.Sleep(time.Second)
		r.do("POST", ordersPath, `2`, "Authorization", ann).is(201)
		if info, err := r.bus.TopicInfo(r.Context(), "orders"); err != nil || info.Events != 3 {
			r.Errorf("the topic has %d events, %v", info.Events, err)
		}
	})
}

func TestNowhere(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.do("GET", "/nowhere", "").refused(gateway.CodeNotFound)
		r.do("GET", "/v1/topics/orders/nowhere/x/y", "").refused(gateway.CodeNotFound)
		got := r.do("GET", "/publish/orders", "")
		if got.refused(gateway.CodeBadMethod); got.header.Get("Allow") != "POST" {
			r.Errorf("%v", got.header)
		}
	})
}

// callerBus records for whom events are published.
type callerBus struct {
	jetbus.Backend
	callers chan string
}

// Publish implements jetbus.Publisher.
func (b callerBus) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	b.callers <- caller.Of(ctx)
	return b.Backend.Publish(ctx, e, o...)
}

// PublishBatch implements jetbus.Batcher.
func (b callerBus) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	b.callers <- caller.Of(ctx)
	return b.Backend.PublishBatch(ctx, events, o)
}

// The bus behind a gateway knows for whom it publishes.
func TestPublishNamesItsCaller(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		bus := callerBus{r.bus, make(chan string, 10)}
		r.serveBus(bus, withTokens())
		r.do("POST", ordersPath, `1`, "Authorization", ann).is(201)
		r.do("POST", ordersPath, `{"payload":2}`, "Authorization", ann, "Content-Type", "application/x-ndjson").is(200)
		r.do("POST", "/publish/orders", `5`, "Authorization", ann).is(200)
		c := r.login("ann topic:write:>")
		c.ask(`{"op":"PUBLISH","corr":"1","topic":"orders","payload":3}`, frame.OK)
		c.ask(`{"op":"PUBLISH_BATCH","corr":"2","events":[{"topic":"orders","payload":4}]}`, frame.OK)
		for range 5 {
			if got := <-bus.callers; got != "ann" {
				r.Errorf("an event is published for %q", got)
			}
		}
	})
}
