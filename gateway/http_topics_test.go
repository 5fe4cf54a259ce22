package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

const (
	reads = "Bearer ann topic:read:orders"
	ops   = "Bearer ops ops:read"
)

// names are the names of a list of topics.
func names(body map[string]any) string {
	var out []string
	for _, t := range body["topics"].([]any) {
		out = append(out, t.(map[string]any)["config"].(map[string]any)["name"].(string))
	}
	return strings.Join(out, " ")
}

func TestTopicsOverHTTP(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "bills"})
		r.ensure(jetbus.TopicConfig{Name: "cars"})
		r.publish("orders", "1", "2")
		get := func(path, token string) reply { return r.do("GET", path, "", "Authorization", token) }
		if got := names(get("/v1/topics", reads).is(200)); got != "orders" {
			r.Errorf("%s", got)
		}
		first := get("/v1/topics?limit=2", ops).is(200)
		if got := names(first); got != "bills cars" || first["next"] != "cars" {
			r.Errorf("%v", first)
		}
		second := get("/v1/topics?limit=2&after=cars", ops).is(200)
		if got := names(second); got != "orders" || second["next"] != nil {
			r.Errorf("%v", second)
		}
		if got := names(get("/v1/topics?prefix=c", ops).is(200)); got != "cars" {
			r.Errorf("%s", got)
		}
		if got := get(ordersPath, reads); got.is(200)["events"] != 2.0 || strings.Contains(got.text, "EV_ORDERS") {
			r.Errorf("%s", got.text)
		}
		if got := get(ordersPath, ops); got.is(200)["stream"] == "" {
			r.Errorf("%s", got.text)
		}
		get("/v1/topics/bills", reads).refused(gateway.CodeForbidden)
		get("/v1/topics/none", ops).refused(gateway.CodeUnknownTopic)
		get("/v1/topics/a%20b", ops).refused(gateway.CodeBadRequest)
		get("/v1/topics?limit=0", ops).refused(gateway.CodeBadRequest)
		r.do("GET", "/v1/topics", "").refused(gateway.CodeUnauthorized)
	})
}

func TestGroupsOverHTTP(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.publish("orders", "1", "2")
		for _, group := range []string{"a", "b", "c"} {
			got, err := r.bus.Receive(r.Context(), "orders", group, jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 1})
			if err != nil || len(got) != 1 {
				r.Fatal(got, err)
			}
			if err := got[0].Ack(r.Context()); err != nil {
				r.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		get := func(path, token string) reply { return r.do("GET", path, "", "Authorization", token) }
		list := get("/v1/groups/orders?limit=2", reads).is(200)
		if groups := list["groups"].([]any); len(groups) != 2 || list["next"] != "b" {
			r.Errorf("%v", list)
		}
		if list := get("/v1/groups/orders?after=b", reads).is(200); len(list["groups"].([]any)) != 1 || list["next"] != nil {
			r.Errorf("%v", list)
		}
		one := get("/v1/groups/orders/a", reads).is(200)
		if one["group"].(map[string]any)["pending"] != 1.0 || one["cursor"].(map[string]any)["lastSeq"] != 1.0 {
			r.Errorf("%v", one)
		}
		get("/v1/groups/orders/none", reads).refused(gateway.CodeUnknownGroup)
		get("/v1/groups/orders/a%20b", reads).refused(gateway.CodeBadRequest)
		get("/v1/groups/bills/a", reads).refused(gateway.CodeForbidden)
		get("/v1/groups/none", ops).refused(gateway.CodeUnknownTopic)
	})
}

// sick are tokens that cannot be checked at the moment.
type sick struct{ tokens }

// Ready says so.
func (sick) Ready(context.Context) error { return errors.New("no key set from 10.0.0.1") }

func TestHealth(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		for range 3 {
			r.do("GET", "/livez", "").is(200)
			if got := r.do("GET", "/readyz", "").is(200); got["status"] != "ok" || fmt.Sprint(got["checks"]) != "map[auth:ok broker:ok draining:ok]" {
				r.Errorf("%v", got)
			}
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		if err := r.g.Drain(ctx); err != nil {
			r.Error(err)
		}
		if got := r.do("GET", "/readyz", "").is(503); got["checks"].(map[string]any)["draining"] != "failed" {
			r.Errorf("%v", got)
		}
		r.do("GET", "/livez", "").is(200)
	})
	inBubble(t, gateway.Config{Auth: sick{}}, func(r *wsRig) {
		if got := r.do("GET", "/readyz", ""); got.is(503)["errors"] != nil || strings.Contains(got.text, "10.0.0.1") {
			r.Errorf("%s", got.text)
		}
		if got := r.do("GET", "/readyz", "", "Authorization", ops); got.is(503)["errors"] == nil {
			r.Errorf("%s", got.text)
		}
	})
}

// TestHealthWithoutBroker: it says that the broker is away, and soon.
func TestHealthWithoutBroker(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.do("GET", "/readyz", "").is(200)
		if err := r.broker.Stop(r.Context()); err != nil {
			r.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		began := time.Now()
		if got := r.do("GET", "/readyz", "").is(503); got["checks"].(map[string]any)["broker"] != "failed" {
			r.Errorf("%v", got)
		}
		r.do("GET", "/livez", "").is(200)
		if took := time.Since(began); took > 3*time.Second {
			r.Errorf("it took %v", took)
		}
	})
}
