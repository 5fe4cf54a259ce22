package gateway_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
)

const groupPath = "/v1/groups/orders/g:"

// taken is an event of a pull.
type taken struct {
	AckID string `json:"ack_id"`
	Seq   uint64
	Event jetbus.Event
	Ctx   struct {
		Attempt       int
		AckDeadlineMs int64 `json:"ack_deadline_ms"`
	}
}

// pull takes events of the group g. header are pairs.
func (r *wsRig) pull(body string, header ...string) []taken {
	r.Helper()
	res := r.do("POST", groupPath+"pull", body, header...)
	res.is(200)
	var got struct{ Events []taken }
	res.into(&got)
	return got.Events
}

// settle asks for one token, and returns the result: "applied", or why not.
func (r *wsRig) settle(verb, ackID, rest string, header ...string) string {
	r.Helper()
	got := r.do("POST", groupPath+verb, `{"ack_ids":["`+ackID+`"]`+rest+`}`, header...).is(200)
	one := got["results"].([]any)[0].(map[string]any)
	if one["applied"] == true {
		return "applied"
	}
	return fmt.Sprint(one["reason"])
}

func TestPull(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", `{"n": 1.0}`, "2", "3")
		got := r.pull(`{"from":"earliest","max":2,"waitMs":1000}`)
		if len(got) != 2 || string(got[0].Event.Payload) != `{"n": 1.0}` || got[0].Ctx.Attempt != 1 || got[0].Ctx.AckDeadlineMs != 30_000 || got[1].Seq != 2 || got[0].AckID == got[1].AckID {
			r.Fatalf("%+v", got)
		}
		if s := r.settle("ack", got[0].AckID, ``); s != "applied" {
			r.Errorf("ack: %s", s)
		}
		if s := r.settle("nack", got[1].AckID, `,"delay_ms":-1,"reason":"no"`); s != "applied" {
			r.Errorf("nack: %s", s)
		}
		got = r.pull(``)
		if len(got) == 1 { // the retry comes with the next one, or before it
			got = append(got, r.pull(``)...)
		}
		if len(got) != 2 || got[0].Event.Seq+got[1].Event.Seq != 5 || got[0].Ctx.Attempt+got[1].Ctx.Attempt != 3 {
			r.Errorf("%+v", got)
		}
		for _, e := range got {
			r.settle("ack", e.AckID, ``)
		}
		began := time.Now()
		if got := r.pull(`{"wait":"20s"}`); len(got) != 0 || time.Since(began) < 20*time.Second || time.Since(began) > 21*time.Second {
			r.Errorf("%v after %v", got, time.Since(began))
		}
		time.AfterFunc(15*time.Second, func() { r.publish("orders", "4") })
		if got := r.pull(`{"wait":"20s"}`); len(got) != 1 || r.settle("nack", got[0].AckID, `,"dead":true,"dead_reason":"odd","reason":"bad","stack":"f\n\tf.js:1"`) != "applied" {
			r.Errorf("%+v", got)
		}
		if got := r.pull(`{"wait":"0"}`); len(got) != 0 {
			r.Errorf("%+v", got)
		}
		for d, err := range jetbus.DeadLetters(r.Context(), r.bus, jetbus.DeadLetterQuery{Topic: "orders"}) {
			if err != nil || d.Event.Seq != 4 || d.Reason != "odd" || d.Error != "bad" || d.Stack != "f\n\tf.js:1" {
				r.Errorf("%+v, %v", d, err)
			}
		}
	})
}

// TestPullLeases: a lease ends by itself, at the time that the client was told, and lasts for
// longer than the broker's own where the client asked for that.
func TestPullLeases(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1")
		got := r.pull(`{"from":"earliest","ackTimeoutMs":120000}`)
		time.Sleep(110 * time.Second)
		if again := r.pull(`{"wait":"0"}`); len(again) != 0 {
			r.Errorf("%+v is held", again)
		}
		if s := r.settle("extend", got[0].AckID, `,"extend_ms":300000`); s != "applied" {
			r.Errorf("extend: %s", s)
		}
		time.Sleep(290 * time.Second)
		if s := r.settle("modack", got[0].AckID, `,"extend_ms":5000`); s != "applied" {
			r.Errorf("modack: %s", s)
		}
		time.Sleep(5*time.Second + time.Millisecond)
		for _, verb := range []string{"ack", "nack", "extend"} {
			if s := r.settle(verb, got[0].AckID, ``); s != "expired" {
				r.Errorf("%s: %s", verb, s)
			}
		}
		again := r.pull(`{"wait":"60s"}`)
		if len(again) != 1 || again[0].Ctx.Attempt != 2 || again[0].AckID == got[0].AckID {
			r.Errorf("%+v", again)
		}
		r.settle("ack", again[0].AckID, ``)
	})
}

// TestPullTellsThatTheBrokersLeaseIsLost: who has lost an event to others is not told that the
// lease is longer.
func TestPullTellsThatTheBrokersLeaseIsLost(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1")
		got := r.pull(`{"from":"earliest","ackTimeoutMs":600000}`)
		if err := r.bus.SetCursor(r.Context(), "orders", "g", jetbus.Cursor{}, jetbus.SeekOptions{Force: true}); err != nil {
			r.Fatal(err)
		}
		time.Sleep(time.Minute)
		for _, verb := range []string{"extend", "ack"} {
			if s := r.settle(verb, got[0].AckID, ``); s != "expired" {
				r.Errorf("%s: %s", verb, s)
			}
		}
	})
}

// TestPullMaxLease: a lease is kept for as long as the client asked for, whatever it says meanwhile.
func TestPullMaxLease(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1")
		got := r.pull(`{"from":"earliest","ackTimeoutMs":5000,"maxLeaseMs":1200000}`)
		if len(got) != 1 || got[0].Ctx.AckDeadlineMs != 1_200_000 {
			r.Fatalf("%+v", got)
		}
		time.Sleep(10 * time.Minute)
		if s := r.settle("extend", got[0].AckID, ``); s != "applied" {
			r.Errorf("extend: %s", s)
		}
		time.Sleep(9 * time.Minute)
		if again := r.pull(`{"wait":"0"}`); len(again) != 0 {
			r.Errorf("%+v is held", again)
		}
		time.Sleep(time.Minute)
		if s := r.settle("ack", got[0].AckID, ``); s != "expired" {
			r.Errorf("ack after it: %s", s)
		}
		again := r.pull(`{"wait":"60s"}`)
		if len(again) != 1 || again[0].Ctx.Attempt != 2 {
			r.Fatalf("%+v", again)
		}
		r.settle("ack", again[0].AckID, ``)
		r.do("POST", groupPath+"pull", `{"maxLeaseMs":3600001}`).is(400)
		r.do("POST", groupPath+"pull", `{"maxLeaseMs":1}`).is(400)
	})
}

// TestPullLeaseTotal: extensions end.
func TestPullLeaseTotal(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{LeaseMax: time.Minute, LeaseTotal: 90 * time.Second}}, func(r *wsRig) {
		r.publish("orders", "1")
		got := r.pull(`{"from":"earliest"}`)
		time.Sleep(20 * time.Second)
		res := r.do("POST", groupPath+"extend", `{"ack_ids":["`+got[0].AckID+`"],"extend_ms":600000}`).is(200)
		if one := res["results"].([]any)[0].(map[string]any); one["deadline_ms"] != 60_000.0 {
			r.Errorf("%v", one)
		}
		time.Sleep(50 * time.Second)
		res = r.do("POST", groupPath+"extend", `{"ack_ids":["`+got[0].AckID+`"]}`).is(200)
		if one := res["results"].([]any)[0].(map[string]any); one["deadline_ms"] != 20_000.0 {
			r.Errorf("%v", one)
		}
	})
}

// TestPullTokens: a token is of one client, topic and group.
func TestPullTokens(t *testing.T) {
	const (
		ann = "Bearer ann topic:read:> group:join:>"
		bob = "Bearer bob topic:read:> group:join:>"
	)
	inBubble(t, withTokens(), func(r *wsRig) {
		r.publish("orders", "1")
		got := r.pull(`{"from":"earliest"}`, "Authorization", ann)
		if s := r.settle("ack", got[0].AckID, ``, "Authorization", bob); s != "expired" {
			r.Errorf("another client: %s", s)
		}
		other := r.do("POST", "/v1/groups/orders/h:ack", `{"ack_ids":["`+got[0].AckID+`"]}`, "Authorization", ann).is(200)
		if other["results"].([]any)[0].(map[string]any)["applied"] != false {
			r.Errorf("%v", other)
		}
		if s := r.settle("ack", "AAAAAAAAAAAAAAAAAAAAAA", ``, "Authorization", ann); s != "expired" {
			r.Errorf("a token of nobody: %s", s)
		}
		if s := r.settle("ack", got[0].AckID, ``, "Authorization", ann); s != "applied" {
			r.Errorf("its own: %s", s)
		}
		for token, want := range map[string]gateway.Code{
			"Bearer ann topic:read:>": gateway.CodeForbidden, "Bearer ann group:join:>": gateway.CodeForbidden, "Bearer bad": gateway.CodeBadToken, "": gateway.CodeUnauthorized,
		} {
			r.do("POST", groupPath+"pull", ``, "Authorization", token).refused(want)
		}
		r.do("POST", "/v1/groups/orders/u.ann:pull", `{"wait":"0"}`, "Authorization", "Bearer ann topic:read:>").is(200)
		r.do("POST", "/v1/groups/orders/u.bob:pull", `{"wait":"0"}`, "Authorization", "Bearer ann topic:read:>").refused(gateway.CodeForbidden)
	})
}

// TestPullSaidAgain: a client whose answer was lost says the same again, and is answered as the first time, for a
// while. Anything else that is said of what is settled is not applied.
func TestPullSaidAgain(t *testing.T) {
	const (
		ann = "Bearer ann topic:read:> group:join:>"
		bob = "Bearer bob topic:read:> group:join:>"
	)
	inBubble(t, withTokens(), func(r *wsRig) {
		r.publish("orders", "1", "2")
		got := r.pull(`{"from":"earliest"}`, "Authorization", ann)
		if len(got) != 2 {
			r.Fatalf("%+v", got)
		}
		for _, c := range []struct{ verb, id, rest, who, want string }{
			{"ack", got[0].AckID, ``, ann, "applied"},
			{"ack", got[0].AckID, ``, ann, "applied"},
			{"nack", got[0].AckID, ``, ann, "settled"},
			{"extend", got[0].AckID, ``, ann, "settled"},
			{"ack", got[0].AckID, ``, bob, "expired"},
			{"nack", got[1].AckID, `,"delay_ms":30000,"reason":"no"`, ann, "applied"},
			{"nack", got[1].AckID, `,"delay_ms":30000,"reason":"not now"`, ann, "applied"},
			{"nack", got[1].AckID, `,"delay_ms":1000,"reason":"no"`, ann, "settled"},
			{"nack", got[1].AckID, `,"dead":true`, ann, "settled"},
			{"ack", got[1].AckID, ``, ann, "settled"},
		} {
			if s := r.settle(c.verb, c.id, c.rest, "Authorization", c.who); s != c.want {
				r.Errorf("%s of %s%s by %s: %s, not %s", c.verb, c.id, c.rest, c.who, s, c.want)
			}
		}
		time.Sleep(time.Minute)
		again := r.pull(`{"wait":"30s"}`, "Authorization", ann)
		if len(again) != 1 || again[0].Seq != 2 || again[0].Ctx.Attempt != 2 { // it was refused once
			r.Fatalf("%+v", again)
		}
		time.Sleep(4*time.Minute + time.Second)
		for id, want := range map[string]string{got[0].AckID: "expired", again[0].AckID: "expired"} { // forgotten, too late
			if s := r.settle("ack", id, ``, "Authorization", ann); s != want {
				r.Errorf("ack after 5 minutes: %s, not %s", s, want)
			}
		}
		for _, e := range r.pull(`{"wait":"60s"}`, "Authorization", ann) {
			r.settle("ack", e.AckID, ``, "Authorization", ann)
		}
	})
}

func TestPullRefused(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{InFlight: 2}}, func(r *wsRig) {
		for _, c := range []struct {
			path, body string
			want       gateway.Code
		}{
			{"/v1/groups/none/g:pull", ``, gateway.CodeUnknownTopic},
			{"/v1/groups/a%20b/g:pull", ``, gateway.CodeBadRequest},
			{"/v1/groups/orders/a%20b:pull", ``, gateway.CodeBadRequest},
			{"/v1/groups/orders/g:take", ``, gateway.CodeNotFound},
			{"/v1/groups/orders/g", ``, gateway.CodeNotFound},
			{groupPath + "pull", `{`, gateway.CodeBadJSON},
			{groupPath + "pull", `[]`, gateway.CodeBadRequest},
			{groupPath + "pull", `{"max":"x"}`, gateway.CodeBadRequest},
			{groupPath + "pull", `{"max":-1}`, gateway.CodeBadRequest},
			{groupPath + "pull", `{"wait":"soon"}`, gateway.CodeBadRequest},
			{groupPath + "pull", `{"ackTimeoutMs":10}`, gateway.CodeBadRequest},
			{groupPath + "pull", `{"ackTimeoutMs":3600000}`, gateway.CodeBadRequest},
			{groupPath + "pull", `{"from":"afterSeq"}`, gateway.CodeBadRequest},
			{groupPath + "ack", ``, gateway.CodeBadRequest},
			{groupPath + "ack", `{"ack_ids":["1","2","3"]}`, gateway.CodeTooLarge},
			{groupPath + "nack", `{"ack_ids":["1"],"delay_ms":-2}`, gateway.CodeBadRequest},
			{groupPath + "extend", `{"ack_ids":["1"],"extend_ms":99999999999999}`, gateway.CodeBadRequest},
			{groupPath + "ack", `{"ack_ids":"1"}`, gateway.CodeBadRequest},
		} {
			if r.do("POST", c.path, c.body).refused(c.want) == nil {
				r.Errorf("%s %s", c.path, c.body)
			}
		}
		r.publish("orders", "1", "2", "3")
		got := r.pull(`{"from":"earliest","max":100}`)
		if len(got) != 2 {
			r.Errorf("%+v", got)
		}
		if m := r.do("POST", groupPath+"pull", `{"wait":"0"}`).refused(gateway.CodeTooManyInFlight); m["retry_after_ms"] != 1000.0 {
			r.Errorf("%v", m)
		}
		r.settle("ack", got[0].AckID, ``)
		last := r.pull(`{"wait":"0"}`)
		if len(last) != 1 || last[0].Seq != 3 {
			r.Errorf("%+v", last)
		}
		for _, e := range append(last, got[1]) {
			r.settle("ack", e.AckID, ``)
		}
	})
}

// A pull has at most maxBytes, and a larger event comes alone.
func TestPullIsBoundedInBytes(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		for _, size := range []int{30_000, 30_000, 30_000, 300_000, 10} {
			r.publish("orders", `"`+strings.Repeat("x", size)+`"`)
		}
		for _, want := range []int{2, 1, 1, 1} {
			if got := r.pull(`{"from":"earliest","maxBytes":80000,"wait":"0"}`); len(got) != want {
				r.Errorf("%d events came, not %d", len(got), want)
			}
		}
		r.do("POST", groupPath+"pull", `{"maxBytes":-1}`).refused(gateway.CodeBadRequest)
	})
}

// TestPullAndDrain: what is held can be acknowledged for a while, and is given back then. A client that goes away while it waits takes nothing with it.
func TestPullAndDrain(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1", "2")
		got := r.pull(`{"from":"earliest"}`)
		if len(got) != 2 {
			r.Fatalf("%+v", got)
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Second)
		defer cancel()
		if res, err := r.client().Do(r.request("POST", groupPath+"pull", `{"wait":"50s"}`).WithContext(ctx)); err == nil {
			_ = res.Body.Close()
			r.Error("an answer came")
		}
		time.Sleep(time.Second)

		drained := make(chan error, 1)
		began := time.Now()
		go func() { // ends below
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			drained <- r.g.Drain(ctx)
		}()
		time.Sleep(4 * time.Second)
		r.do("POST", groupPath+"pull", ``).refused(gateway.CodeDraining)
		if s := r.settle("ack", got[0].AckID, ``); s != "applied" {
			r.Errorf("ack: %s", s)
		}
		if err := <-drained; err != nil || time.Since(began) != 5*time.Second {
			r.Errorf("%v after %v", err, time.Since(began))
		}
		back, err := r.bus.Receive(r.Context(), "orders", "g", jetbus.ReceiveOptions{Wait: -1})
		if err != nil || len(back) != 1 || back[0].Seq != 2 || back[0].Attempt != 1 {
			r.Errorf("%+v, %v", back, err)
		}
	})
}

// TestPullReason: what a client says goes no further than it may.
func TestPullReason(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1")
		got := r.pull(`{"from":"earliest"}`)
		if s := r.settle("nack", got[0].AckID, `,"dead":true,"reason":"`+strings.Repeat("é", 100_000)+`"`); s != "applied" {
			r.Errorf("%s", s)
		}
		for d, err := range jetbus.DeadLetters(r.Context(), r.bus, jetbus.DeadLetterQuery{Topic: "orders"}) {
			if err != nil || len(d.Error) > 1<<10 {
				r.Errorf("%d bytes, %v", len(d.Error), err)
			}
		}
	})
}

func TestPulledGroupsAreBounded(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{Groups: 1}}, func(r *wsRig) {
		r.publish("orders", "1")
		for _, e := range r.pull(`{"from":"earliest","max":1}`) {
			r.settle("ack", e.AckID, ``)
		}
		r.do("POST", "/v1/groups/orders/other:pull", `{"wait":"0"}`).refused(gateway.CodeTooManySubs)
		r.pull(`{"wait":"0"}`) // the one that is there may go on
	})
}
