package gateway_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

// set stores events of a key each, and payloads: "k=1".
func (r *wsRig) set(topic string, pairs ...string) {
	r.Helper()
	for _, pair := range pairs {
		key, payload, _ := strings.Cut(pair, "=")
		e := jetbus.Event{Topic: topic, Key: key, Payload: []byte(payload)}
		if payload == "null" {
			e = jetbus.Tombstone(topic, key)
		}
		if _, err := r.bus.Publish(r.Context(), e); err != nil {
			r.Fatal(err)
		}
	}
}

// pairs are the events of an answer, as set has them.
func pairs(body map[string]any) string {
	var out []string
	for _, e := range body["events"].([]any) {
		e := e.(map[string]any)
		out = append(out, fmt.Sprintf("%v=%v", e["key"], e["payload"]))
	}
	return strings.Join(out, " ")
}

const statePath = "/v1/topics/state"

func TestSnapshotOverHTTP(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		empty := r.do("GET", statePath+"/snapshot", "")
		if got := empty.is(200); pairs(got) != "" || got["as_of"] != 0.0 || got["offset"] == "" {
			r.Errorf("%v", got)
		}
		r.set("state", "a=1", "b=1", "a=2", "c=1", "b=null", "d/é=1")
		full := r.do("GET", statePath+"/snapshot", "")
		got := full.is(200)
		if pairs(got) != "a=2 c=1 d/é=1" || got["as_of"] != 6.0 || got["next"] != nil || full.header.Get("X-As-Of") != "6" || full.header.Get("Cache-Control") != "no-cache" {
			r.Errorf("%s, %v", full.text, full.header)
		}
		tag := full.header.Get("ETag")
		if tag == "" || tag == empty.header.Get("ETag") {
			r.Errorf("the tag is %s, it was %s", tag, empty.header.Get("ETag"))
		}
		for _, header := range []string{tag, "W/" + tag, `"x", ` + tag, "*"} {
			if res := r.do("GET", statePath+"/snapshot", "", "If-None-Match", header); res.status != 304 || res.text != "" || res.header.Get("ETag") != tag {
				r.Errorf("%s: %+v", header, res)
			}
		}
		if res := r.do("GET", statePath+"/snapshot", "", "If-None-Match", empty.header.Get("ETag")); res.status != 200 {
			r.Errorf("%+v", res)
		}
		if got := r.do("GET", statePath+"/snapshot?prefix=d", "").is(200); pairs(got) != "d/é=1" {
			r.Errorf("%v", got)
		}
		c := r.events(statePath + "/events?after=" + got["offset"].(string)) // nothing lies between
		c.block()
		r.set("state", "a=null")
		if next := c.next("caught_up"); object(r.T, next.data)["seq"] != 6.0 {
			r.Errorf("%+v", next)
		}
		if e := object(r.T, c.next("event").data); e["seq"] != 7.0 {
			r.Errorf("%v", e)
		}
		if res := r.do("GET", statePath+"/snapshot", "", "If-None-Match", tag); res.status != 200 || pairs(object(r.T, res.text)) != "c=1 d/é=1" {
			r.Errorf("a key that was deleted: %+v", res)
		}
	})
}

func TestSnapshotPages(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		r.set("state", "a=1", "b=1", "c=1", "d=1", "e=1", "x=1", "x=null")
		state := map[string]string{}
		var all []string
		cursor, pages := "", 0
		for {
			got := r.do("GET", statePath+"/snapshot?limit=2&cursor="+cursor, "").is(200)
			for pair := range strings.SplitSeq(pairs(got), " ") {
				key, payload, _ := strings.Cut(pair, "=")
				state[key] = payload
				all = append(all, pair)
			}
			if pages++; pages == 1 {
				r.set("state", "a=null", "c=2", "f=1")
			}
			if got["next"] == nil {
				if got["as_of"] != 10.0 {
					r.Errorf("%v", got)
				}
				break
			}
			cursor = got["next"].(string)
		}
		delete(state, "x") // a tombstone that nobody needed
		if fmt.Sprint(state) != "map[a:<nil> b:1 c:2 d:1 e:1 f:1]" {
			r.Errorf("%v of %v", state, all)
		}
		if err := r.bus.DeleteTopic(r.Context(), "state"); err != nil {
			r.Fatal(err)
		}
		time.Sleep(time.Second)
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		r.do("GET", statePath+"/snapshot?cursor="+cursor, "").refused(gateway.CodeOffsetGone)
	})
}

func TestSnapshotBounds(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{QueueBytes: 4 << 10, PageEvents: 3}}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		big := `"` + strings.Repeat("x", 8<<10) + `"`
		r.set("state", "a="+big, "b="+big, "c=1", "d=1", "e=1", "f=1")
		n := func(body map[string]any) int { return len(body["events"].([]any)) }
		first := r.do("GET", statePath+"/snapshot?limit=100", "").is(200)
		second := r.do("GET", statePath+"/snapshot?limit=100&cursor="+first["next"].(string), "").is(200)
		third := r.do("GET", statePath+"/snapshot?limit=100&cursor="+second["next"].(string), "").is(200)
		if n(first) != 1 || n(second) != 1 || n(third) != 3 || third["next"] == nil {
			r.Errorf("%d, %d, %d events", n(first), n(second), n(third))
		}
		for query, want := range map[string]gateway.Code{"cursor=x": gateway.CodeBadRequest, "limit=0": gateway.CodeBadRequest} {
			r.do("GET", statePath+"/snapshot?"+query, "").refused(want)
		}
		r.do("GET", "/v1/topics/none/snapshot", "").refused(gateway.CodeUnknownTopic)
		r.do("GET", ordersPath+"/snapshot", "").refused(gateway.CodeUnsupported)
	})
}

// TestSnapshotOfATopicMadeAnew: what was kept of a topic that is no more is not taken for what
// one of its name holds, though both have come equally far.
func TestSnapshotOfATopicMadeAnew(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		tags := map[string]string{}
		ask := func(path string) reply {
			res := r.do("GET", statePath+path, "", "If-None-Match", tags[path])
			tags[path] = res.header.Get("ETag")
			return res
		}
		for _, value := range []string{"1", "2"} {
			r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
			r.set("state", "a="+value)
			for _, path := range []string{"/snapshot", "/snapshot/a"} {
				if res := ask(path); res.status != 200 || !strings.Contains(res.text, `"payload":`+value) {
					r.Errorf("%s of topic %s: %+v", path, value, res)
				}
				if res := ask(path); res.status != 304 {
					r.Errorf("%s of topic %s, unchanged: %+v", path, value, res)
				}
			}
			if err := r.bus.DeleteTopic(r.Context(), "state"); err != nil {
				r.Fatal(err)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestSnapshotTopic: that of a topic that is the snapshot of another says where to read on there.
func TestSnapshotTopic(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "moves", KeyInSubject: true})
		r.ensure(jetbus.TopicConfig{Name: "places", SnapshotOf: "moves"})
		r.set("moves", "a=1", "b=1", "a=2")
		time.Sleep(10 * time.Second)
		got := r.do("GET", "/v1/topics/places/snapshot", "").is(200)
		if pairs(got) != "b=1 a=2" {
			r.Errorf("%v", got)
		}
		r.set("moves", "b=2")
		poll := r.do("GET", "/v1/topics/moves/events?limit=10&after="+got["offset"].(string), "").is(200)
		if poll["gap"] != nil || len(poll["events"].([]any)) != 1 {
			r.Errorf("%v", poll)
		}
		r.do("GET", "/v1/topics/places/events?limit=1", "").refused(gateway.CodeUnsupported)
	})
}

func TestSnapshotKey(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		r.set("state", "a=1", "d/é 1=2", "x=1", "x=null")
		if got := r.do("GET", statePath+"/snapshot/"+url.PathEscape("d/é 1"), "").is(200); got["payload"] != 2.0 || got["key"] != "d/é 1" {
			r.Errorf("%v", got)
		}
		one := r.do("GET", statePath+"/snapshot/a", "")
		tag := one.header.Get("ETag")
		r.set("state", "b=1")
		if res := r.do("GET", statePath+"/snapshot/a", "", "If-None-Match", tag); res.status != 304 {
			r.Errorf("%+v", res)
		}
		r.set("state", "a=2")
		if res := r.do("GET", statePath+"/snapshot/a", "", "If-None-Match", tag); res.status != 200 {
			r.Errorf("%+v", res)
		}
		for _, key := range []string{"none", "x"} {
			r.do("GET", statePath+"/snapshot/"+key, "").refused(gateway.CodeNotFound)
		}
		r.do("GET", statePath+"/snapshot/a%0Ab", "").refused(gateway.CodeBadRequest)
	})
}

func TestStateOverHTTP(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "log"})
		const path = "/v1/topics/log/state"
		before := time.Now()
		time.Sleep(time.Second)
		r.set("log", "a=1", "b=1")
		then := time.Now()
		time.Sleep(time.Minute)
		r.set("log", "a=2", "b= null", "c=1") // a log deletes nothing
		at := func(t time.Time) string { return fmt.Sprintf("?at=%d", t.UnixMilli()) }
		if got := r.do("GET", path+at(then), "").is(200); pairs(got) != "a=1 b=1" || got["as_of"] != 2.0 || got["exact"] != true {
			r.Errorf("%v", got)
		}
		if got := r.do("GET", path+"?at="+url.QueryEscape(time.Now().Add(time.Hour).Format(time.RFC3339)), "").is(200); pairs(got) != "a=2 b=<nil> c=1" || got["as_of"] != 5.0 {
			r.Errorf("%v", got)
		}
		first := r.do("GET", path+at(then)+"&limit=1", "").is(200)
		second := r.do("GET", path+at(then)+"&limit=1&cursor="+first["next"].(string), "").is(200)
		if pairs(first) != "a=1" || pairs(second) != "b=1" || second["next"] != nil {
			r.Errorf("%v, %v", first, second)
		}
		if got := r.do("GET", path+at(then)+"&prefix=b", "").is(200); pairs(got) != "b=1" {
			r.Errorf("%v", got)
		}
		r.do("GET", path+at(before), "").refused(gateway.CodeOffsetGone)
		for _, query := range []string{"", "?at=noon", "?at=1&limit=0"} {
			r.do("GET", path+query, "").refused(gateway.CodeBadRequest)
		}
		r.do("GET", "/v1/topics/none/state?at=1", "").refused(gateway.CodeUnknownTopic)
	})
}

func TestStateNeedsScope(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		for _, path := range []string{"/snapshot", "/snapshot/k", "/state?at=1"} {
			r.do("GET", ordersPath+path, "").refused(gateway.CodeUnauthorized)
			r.do("GET", ordersPath+path, "", "Authorization", "Bearer ann topic:write:>").refused(gateway.CodeForbidden)
		}
	})
}

// TestSnapshotOfManyKeys: an answer about keys has as many bytes as it may, or one event; it is
// charged by how many they are.
func TestSnapshotOfManyKeys(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{QueueBytes: 4 << 10, Rate: 0.001, Burst: 8}}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		r.set("state", `a="`+strings.Repeat("1", 8<<10)+`"`, `b="`+strings.Repeat("2", 2<<10)+`"`, `c="`+strings.Repeat("3", 2<<10)+`"`, "d=4")
		n := func(query string) int {
			return len(r.do("GET", statePath+"/snapshot?"+query, "").is(200)["events"].([]any))
		}
		if got := n("key=a&key=x&key=a"); got != 1 {
			r.Errorf("%d events", got)
		}
		if got := n("key=b&key=d"); got != 2 {
			r.Errorf("%d events", got)
		}
		if d := r.do("GET", statePath+"/snapshot?key=b&key=c", "").refused(gateway.CodeTooLarge); !strings.Contains(fmt.Sprint(d["detail"]), "fewer keys") {
			r.Errorf("%v", d)
		}
		query := strings.Repeat("key=d&", 4*64)
		if got := n(query); got != 1 { // 4 of the 5 that are left
			r.Errorf("%d events", got)
		}
		r.do("GET", statePath+"/snapshot?"+query, "").refused(gateway.CodeRateLimited)
	})
}

// TestPagesCountHeaders: pages of events with large headers are as small as others.
func TestPagesCountHeaders(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		const n = 120
		headers := map[string]string{}
		for i := range 4 {
			headers[fmt.Sprint("x-", i)] = strings.Repeat("x", 8<<10)
		}
		query := url.Values{}
		var events []jetbus.Event
		for i := range n {
			key := fmt.Sprintf("k%03d", i)
			query.Add("key", key)
			events = append(events, jetbus.Event{Topic: "state", Key: key, Payload: []byte("1"), Headers: headers})
		}
		if _, err := r.bus.PublishBatch(r.Context(), events, jetbus.BatchOptions{}); err != nil {
			r.Fatal(err)
		}
		for _, path := range []string{"/snapshot?limit=1000", "/state?at=2100-01-01T00:00:00Z&limit=1000"} {
			got := 0
			for cursor := ""; ; {
				page := r.do("GET", statePath+path+cursor, "")
				body := page.is(200)
				if len(page.text) > 1<<20+8<<10 {
					r.Errorf("%s: a page has %d bytes", path, len(page.text))
				}
				got += len(body["events"].([]any))
				if body["next"] == nil {
					break
				}
				cursor = "&cursor=" + url.QueryEscape(body["next"].(string))
			}
			if got != n {
				r.Errorf("%s: %d events of %d", path, got, n)
			}
		}
		r.do("GET", statePath+"/snapshot?"+query.Encode(), "").refused(gateway.CodeTooLarge)
	})
}
