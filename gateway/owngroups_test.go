package gateway_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// groups returns the names of the groups of a topic.
func (r *wsRig) groups(topic string) []string {
	r.Helper()
	all, err := r.bus.Groups(r.Context(), topic)
	if err != nil {
		r.Fatal(err)
	}
	var out []string
	for _, one := range all {
		out = append(out, one.Group)
	}
	return out
}

func subscribeTo(topic, group, opts string) string {
	return fmt.Sprintf(`{"op":"SUBSCRIBE","topic":%q,"group":%q,"opts":{%s}}`, topic, group, opts)
}

const mallory = "mallory topic:read:>"

// TestReaderMakesManyGroups: a reader makes as many groups of its own as it can, in each way that
// there is. It has its quota, and locks out neither other readers nor services.
func TestReaderMakesManyGroups(t *testing.T) {
	const quota = 5
	header := []string{"Authorization", "Bearer " + mallory}
	ways := map[string]func(r *wsRig) func(n int) (refused bool){
		"push": func(r *wsRig) func(n int) bool {
			c := r.login(mallory)
			return func(n int) bool { return c.mustSubscribeOrBeRefused(fmt.Sprintf("u.mallory.%d", n), ``) }
		},
		"credit": func(r *wsRig) func(n int) bool {
			c := r.login(mallory)
			return func(n int) bool {
				return c.mustSubscribeOrBeRefused(fmt.Sprintf("u.mallory.a.%d", n), `"flow":"credit"`)
			}
		},
		"pull": func(r *wsRig) func(n int) bool {
			return func(n int) bool {
				a := r.do("POST", fmt.Sprintf("/v1/groups/orders/u.mallory.%d:pull", n), `{"wait":"0"}`, header...)
				if a.status == 429 {
					a.refused(gateway.CodeTooManySubs)
					return true
				}
				a.is(200)
				return false
			}
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			c := withTokens()
			c.Limits = gateway.Limits{Groups: 20, OwnGroups: quota}
			inBubble(t, c, func(r *wsRig) {
				add, refused := way(r), 0
				for n := range 30 {
					if add(n) {
						refused++
					}
				}
				if made := r.groups("orders"); len(made) != quota || refused != 30-quota {
					t.Errorf("%d groups, %d refused: %v", len(made), refused, made)
				}
				r.login("ann topic:read:>").ask(subscribeTo("orders", "u.ann", ``), frame.OK)
				r.login("billing topic:read:> group:join:billing").ask(subscribeTo("orders", "billing", ``), frame.OK)
				r.ensure(jetbus.TopicConfig{Name: "other"})
				r.login(mallory).ask(subscribeTo("other", "u.mallory", ``), frame.OK) // the quota is of a topic
			})
		})
	}
}

// mustSubscribeOrBeRefused subscribes to orders, leaves again, and reports whether that was refused.
func (c *wsClient) mustSubscribeOrBeRefused(group, opts string) (refused bool) {
	c.r.Helper()
	c.send(subscribeTo("orders", group, opts))
	text := c.text()
	m := c.parsed(text)
	switch {
	case m.Op == frame.Err && m.Code == "too_many_subs":
		return true
	case m.Op != frame.OK:
		c.r.Fatalf("%s", text)
	}
	c.ask(`{"op":"UNSUBSCRIBE","sub":"`+m.Sub+`"}`, frame.OK)
	return false
}

// TestGroupsMadeAtOnce: many connections of one subject make groups at the same moment.
func TestGroupsMadeAtOnce(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{OwnGroups: 3}
	inBubble(t, c, func(r *wsRig) {
		var all []*wsClient
		for range 20 {
			all = append(all, r.login(mallory))
		}
		var making sync.WaitGroup
		for i, c := range all {
			making.Go(func() { c.send(subscribeTo("orders", fmt.Sprintf("u.mallory.%d", i), ``)) })
		}
		making.Wait()
		for _, c := range all {
			_ = c.text()
		}
		if made := r.groups("orders"); len(made) != 3 {
			t.Errorf("%v", made)
		}
	})
}

// TestGroupsOfManySubjects: subjects together cannot lock out the groups of services, and the
// other way round.
func TestGroupsOfManySubjects(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{Groups: 3, OwnGroups: 2}
	inBubble(t, c, func(r *wsRig) {
		can := func(subject, group string, want bool) {
			t.Helper()
			c := r.login(subject + " topic:read:> group:join:>")
			if refused := c.mustSubscribeOrBeRefused(group, ``); refused == want {
				t.Errorf("%s as %s: refused %v", group, subject, refused)
			}
		}
		can("a", "u.a.1", true)
		can("a", "u.a.2", true)
		can("a", "u.a.3", false)
		can("b", "u.b", true)
		can("c", "u.c", false)
		can("a", "u.b.1", false) // by a scope: it counts for the topic all the same
		for i := range 3 {
			can("a", fmt.Sprintf("svc%d", i), true)
		}
		can("a", "svc3", false)
		can("a", "svc0", true) // it exists
		can("b", "u.b", true)
	})
}

// TestOwnGroupsExpire: the broker deletes a group of a subject that nobody uses, and no other.
func TestOwnGroupsExpire(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{GroupIdle: time.Hour}
	inBubble(t, c, func(r *wsRig) {
		if _, err := r.bus.EnsureGroup(r.Context(), "orders", jetbus.GroupConfig{Group: "u.ann.kept"}); err != nil {
			t.Fatal(err)
		}
		c := r.login("ann topic:read:> group:join:shared")
		for group, opts := range map[string]string{"u.ann.push": ``, "u.ann.credit": `"flow":"credit"`, "u.ann.ordered": `"order":"per_key"`, "u.ann.kept": ``, "shared": ``} {
			c.ask(subscribeTo("orders", group, opts), frame.OK)
		}
		pull := func(group string) {
			t.Helper()
			r.do("POST", "/v1/groups/orders/"+group+":pull", `{"wait":"0"}`, "Authorization", "Bearer ann topic:read:> group:join:shared").is(200)
		}
		pull("u.ann.pulled")
		stays := r.login("ann topic:read:>")
		stays.ask(subscribeTo("orders", "u.ann.stays", ``), frame.OK)
		_ = c.ws.CloseNow()
		for range 10 {
			time.Sleep(30 * time.Minute)
			pull("u.ann.pulled")
		}
		if left := r.groups("orders"); !slices.Equal(left, []string{"shared", "u.ann.kept", "u.ann.pulled", "u.ann.stays"}) {
			t.Errorf("%v", left)
		}
	})
}

// TestOwnGroupsOnPartitions: a group of a subject on a topic by partition.
func TestOwnGroupsOnPartitions(t *testing.T) {
	inBubble(t, withTokens(), func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "parts", Partitions: 4})
		c := r.login("ann topic:read:>")
		c.ask(subscribeTo("parts", "u.ann", ``), frame.OK)
		r.publish("parts", "1")
		if e := c.next(frame.Event); string(e.Event.Payload) != "1" {
			t.Errorf("%+v", e)
		}
	})
}

// TestDeleteOwnGroup deletes groups over HTTP: those of the subject, and with ops:admin any.
func TestDeleteOwnGroup(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{OwnGroups: 1}
	inBubble(t, c, func(r *wsRig) {
		remove := func(topic, group, token string) reply {
			t.Helper()
			return r.do("DELETE", "/v1/groups/"+topic+"/"+group, "", "Authorization", "Bearer "+token)
		}
		member := r.login("ann topic:read:> group:join:billing")
		sub := member.ask(subscribeTo("orders", "u.ann.tab", ``), frame.OK).Sub
		member.ask(subscribeTo("orders", "billing", ``), frame.OK)
		for token, groups := range map[string][]string{
			"bob topic:read:> group:join:> group:seek:>": {"u.ann.tab", "billing"},
			"ann topic:read:> group:join:>":              {"billing", "u.annex", "u"},
			"ann topic:write:>":                          {"u.ann.tab"},
			"an topic:read:>":                            {"u.ann.tab"},
			"ops ops:read":                               {"u.ann.tab", "billing"},
		} {
			for _, group := range groups {
				remove("orders", group, token).refused(gateway.CodeForbidden)
			}
		}
		r.do("DELETE", "/v1/groups/orders/u.ann.tab", "").refused(gateway.CodeUnauthorized)
		if have := r.groups("orders"); len(have) != 2 {
			t.Fatalf("%v", have)
		}
		if m := member.ask(subscribeTo("orders", "u.ann.next", ``), frame.Err); m.Code != "too_many_subs" {
			t.Errorf("%+v", m)
		}
		if a := remove("orders", "u.ann.tab", "ann topic:read:orders"); a.status != 204 || a.text != "" {
			t.Errorf("%d %s", a.status, a.text)
		}
		if m := member.next(frame.SubClosed); m.Sub != sub || m.Code != "unknown_group" {
			t.Errorf("%+v", m)
		}
		member.ask(subscribeTo("orders", "u.ann.next", ``), frame.OK)
		remove("orders", "u.ann.tab", "ann topic:read:orders").refused(gateway.CodeUnknownGroup)
		remove("none", "u.ann.tab", "ann topic:read:>").refused(gateway.CodeUnknownTopic)
		remove("orders", "u.ann.*", "ann topic:read:>").refused(gateway.CodeBadRequest)
		remove("orders", "billing", "ops ops:admin")
		remove("orders", "u.ann.next", "ops ops:admin")
		if have := r.groups("orders"); len(have) != 0 {
			t.Errorf("%v", have)
		}
	})
}

// TestMakingGroupsIsRated makes and deletes a group in turn: each counts for 100 requests.
func TestMakingGroupsIsRated(t *testing.T) {
	c := withTokens()
	c.Limits = gateway.Limits{Rate: 500, Burst: 1000}
	inBubble(t, c, func(r *wsRig) {
		began, deleted := time.Now(), 0
		header := []string{"Authorization", "Bearer " + mallory}
		for time.Since(began) < 10*time.Second {
			r.do("POST", "/v1/groups/orders/u.mallory:pull", `{"wait":"0"}`, header...)
			if a := r.do("DELETE", "/v1/groups/orders/u.mallory", "", header...); a.status == 204 {
				deleted++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if most := (1000 + 10*500) / 200; deleted < 5 || deleted > most {
			t.Errorf("%d groups were made and deleted, want %d at most", deleted, most)
		}
	})
}
