package gateway_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

const deadPath = "/v1/dlq/orders"

// bury makes dead letters of the group g, of new events.
func (r *wsRig) bury(n int) {
	r.Helper()
	for range n {
		r.publish("orders", `{"n": 1.0}`)
	}
	for range n {
		got, err := r.bus.Receive(r.Context(), "orders", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 1})
		if err != nil || len(got) != 1 {
			r.Fatal(got, err)
		}
		if err := got[0].RejectWith(r.Context(), jetbus.RejectOptions{Reason: "bad luck", Stack: "main.f()\n\t/app/main.go:12"}); err != nil {
			r.Fatal(err)
		}
	}
}

func TestDeadLettersOverHTTP(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		list := func(query string) []any {
			r.Helper()
			return r.do("GET", deadPath+query, "").is(200)["deadLetters"].([]any)
		}
		if got := list(""); len(got) != 0 {
			r.Errorf("%v", got)
		}
		r.do("GET", deadPath+"/stats", "").is(200)
		r.do("GET", deadPath+"/1", "").refused(gateway.CodeNotFound)
		r.do("POST", deadPath+":replay", ``).refused(gateway.CodeNotFound)
		r.bury(3)
		all := list("")
		if len(all) != 3 {
			r.Fatalf("%v", all)
		}
		one := all[0].(map[string]any)
		if one["group"] != "g" || one["error"] != "bad luck" || one["stack"] != "main.f()\n\t/app/main.go:12" || fmt.Sprint(one["event"].(map[string]any)["payload"]) != "map[n:1]" {
			r.Errorf("%v", one)
		}
		first := r.do("GET", deadPath+"?limit=2", "").is(200)
		if rest := list("?limit=2&after=" + first["next"].(string)); len(rest) != 1 || len(first["deadLetters"].([]any)) != 2 {
			r.Errorf("%v, then %v", first, rest)
		}
		info, err := r.bus.TopicInfo(r.Context(), "dlq.orders")
		if err != nil {
			r.Fatal(err)
		}
		made := func(later time.Duration) string { return fmt.Sprint("?created=", info.Created.Add(later).UnixMilli()) }
		r.do("GET", deadPath+made(time.Millisecond), "").refused(gateway.CodeOffsetGone)
		for query, n := range map[string]int{"?group=g": 3, "?group=other": 0, "?reason=rejected": 3, "?reason=schema&reason=undecodable": 0, "?error=luck": 3, "?key=k": 0, "?since=0&until=1": 0, "?open=1": 3, "?upToSeq=2": 2, made(0): 3} {
			if got := list(query); len(got) != n {
				r.Errorf("%s: %d", query, len(got))
			}
		}
		if got := r.do("GET", fmt.Sprintf("%s/%v", deadPath, one["seq"]), "").is(200); got["id"] != one["id"] || got["stack"] != one["stack"] {
			r.Errorf("%v", got)
		}
		if got := r.do("GET", deadPath+"/stats", "").is(200); got["total"] != 3.0 || got["open"] != 3.0 {
			r.Errorf("%v", got)
		}
	})
}

func TestReplayOverHTTP(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.bury(2)
		if got := r.do("POST", deadPath+":replay", `{"dryRun":true}`).is(200); got["replayed"] != 2.0 {
			r.Errorf("%v", got)
		}
		if got := r.do("POST", deadPath+":replay", `{"dryRun":true,"upToSeq":1}`).is(200); got["replayed"] != 1.0 || got["lastSeq"] != 1.0 {
			r.Errorf("%v", got)
		}
		r.do("POST", deadPath+":replay", `{"created":1}`).refused(gateway.CodeOffsetGone)
		if got := r.do("POST", deadPath+":replay", `{"limit":1}`).is(200); got["replayed"] != 1.0 {
			r.Errorf("%v", got)
		}
		if got := r.do("POST", deadPath+":replay", ``).is(200); got["replayed"] != 1.0 || got["already"] != 1.0 {
			r.Errorf("%v", got)
		}
		if got := r.do("GET", deadPath+"?open=1", "").is(200); len(got["deadLetters"].([]any)) != 0 {
			r.Errorf("%v", got)
		}
		if got := r.do("POST", deadPath+":replay", `{"toTopic":"none"}`).refused(gateway.CodeUnknownTopic); got["details"] == nil {
			r.Errorf("%v", got)
		}
		back, err := r.bus.Receive(r.Context(), "orders", "g", jetbus.ReceiveOptions{})
		if err != nil || len(back) != 2 || back[0].ReplayOf == 0 {
			r.Errorf("%v, %v", back, err)
		}
		for _, d := range back {
			if err := d.Ack(r.Context()); err != nil {
				r.Error(err)
			}
		}
	})
}

func TestDeadLettersRefused(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		for _, c := range []struct {
			method, path, body, scopes string
			want                       gateway.Code
		}{
			{"GET", deadPath, ``, "topic:read:> dlq:replay:>", gateway.CodeForbidden},
			{"GET", deadPath + "/1", ``, "topic:read:>", gateway.CodeForbidden},
			{"GET", "/v1/dlq/bills", ``, "dlq:read:orders", gateway.CodeForbidden},
			{"POST", deadPath + ":replay", ``, "dlq:read:> topic:write:>", gateway.CodeForbidden},
			{"POST", deadPath + ":replay", `{"toTopic":"bills"}`, "dlq:replay:>", gateway.CodeForbidden},
			{"POST", deadPath + ":replay", `{"toTopic":"bills"}`, "dlq:replay:> topic:write:> topic:read:>", gateway.CodeForbidden},
			{"POST", deadPath + ":replay", `{"topic":"bills"}`, "dlq:replay:>", gateway.CodeBadRequest},
			{"POST", deadPath + ":replay", `{"rate":-1}`, "dlq:replay:>", gateway.CodeBadRequest},
			{"POST", deadPath + ":replay", `{`, "dlq:replay:>", gateway.CodeBadJSON},
			{"POST", deadPath + ":purge", ``, "dlq:replay:>", gateway.CodeNotFound},
			{"GET", "/v1/dlq/dlq.orders", ``, "dlq:read:>", gateway.CodeBadRequest},
			{"GET", "/v1/dlq/a%20b", ``, "dlq:read:>", gateway.CodeBadRequest},
			{"GET", deadPath + "?after=x", ``, "dlq:read:>", gateway.CodeBadRequest},
			{"GET", deadPath + "?since=x", ``, "dlq:read:>", gateway.CodeBadRequest},
			{"GET", deadPath + "?created=x", ``, "dlq:read:>", gateway.CodeBadRequest},
			{"GET", deadPath + "?upToSeq=x", ``, "dlq:read:>", gateway.CodeBadRequest},
			{"GET", deadPath + "?upToSeq=0", ``, "dlq:read:>", gateway.CodeBadRequest},
			{"GET", deadPath + "?open=x", ``, "dlq:read:>", gateway.CodeBadRequest},
			{"GET", deadPath + "?limit=0", ``, "dlq:read:>", gateway.CodeBadRequest},
			{"GET", deadPath + "/0", ``, "dlq:read:>", gateway.CodeBadRequest},
		} {
			if r.do(c.method, c.path, c.body, "Authorization", "Bearer ann "+c.scopes).refused(c.want) == nil {
				r.Errorf("%s %s %s", c.method, c.path, c.body)
			}
		}
		r.do("GET", deadPath, "").refused(gateway.CodeUnauthorized)
	})
}
