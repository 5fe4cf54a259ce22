package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// mayLook reports whether the principal may see a topic and its groups, without the events.
func (p Principal) mayLook(topic string) bool {
	return p.Scopes.Allow(OpsRead, "") || p.Scopes.Allow(TopicRead, topic)
}

// enterLook lets a request in that looks at the topic of its path.
func (g *Gateway) enterLook(w http.ResponseWriter, r *http.Request) (who Principal, topic string, ok bool) {
	if who, ok = g.admit(w, r, "", ""); !ok {
		return who, "", false
	}
	topic, err := topicOf(r)
	if err == nil && !who.mayLook(topic) {
		err = forbidden(TopicRead, topic)
	}
	if err != nil {
		g.problem(w, r, err)
		return who, topic, false
	}
	return who, topic, true
}

// described is a topic as a client sees it: where it is kept is for those with OpsRead.
func described(who Principal, info jetbus.TopicInfo) jetbus.TopicInfo {
	if !who.Scopes.Allow(OpsRead, "") {
		info.Stream, info.Config.Stream, info.Config.Subject = "", "", ""
	}
	return info
}

// seen are the topics that a client may see.
func (g *Gateway) seen(r *http.Request, who Principal) ([]jetbus.TopicInfo, error) {
	all, err := g.b.ListTopics(r.Context())
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(info jetbus.TopicInfo) bool { return !who.mayLook(info.Config.Name) }), nil
}

// listTopics serves GET /v1/topics, in pages by name.
func (g *Gateway) listTopics(w http.ResponseWriter, r *http.Request) {
	who, ok := g.admit(w, r, "", "")
	if !ok {
		return
	}
	a, ok := g.call(w, r, who)
	if !ok {
		return
	}
	defer a.Close()
	limit, err := g.limitOf(r, g.c.Limits.PageEvents)
	if err == nil {
		err = acquire(r.Context(), a, budget.Bytes, g.pageBytes())
	}
	var list []jetbus.TopicInfo
	if err == nil {
		list, err = g.seen(r, who)
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	after, prefix := r.URL.Query().Get("after"), r.URL.Query().Get("prefix")
	out := []jetbus.TopicInfo{} // an array, also an empty one
	body := map[string]any{}
	for _, info := range list {
		if name := info.Config.Name; name <= after || !strings.HasPrefix(name, prefix) {
			continue
		}
		if len(out) == limit {
			body["next"] = out[limit-1].Config.Name
			break
		}
		out = append(out, described(who, info))
	}
	body["topics"] = out
	answer(w, http.StatusOK, body)
}

// describeTopic serves GET /v1/topics/{topic}.
func (g *Gateway) describeTopic(w http.ResponseWriter, r *http.Request) {
	who, topic, ok := g.enterLook(w, r)
	if !ok {
		return
	}
	a, ok := g.call(w, r, who)
	if !ok {
		return
	}
	defer a.Close()
	info, err := g.b.TopicInfo(r.Context(), topic)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	answer(w, http.StatusOK, described(who, info))
}

// listGroups serves GET /v1/groups/{topic}, in pages by name.
func (g *Gateway) listGroups(w http.ResponseWriter, r *http.Request) {
	who, topic, ok := g.enterLook(w, r)
	if !ok {
		return
	}
	a, ok := g.call(w, r, who)
	if !ok {
		return
	}
	defer a.Close()
	limit, err := g.limitOf(r, g.c.Limits.PageEvents)
	if err == nil {
		err = acquire(r.Context(), a, budget.Bytes, g.pageBytes())
	}
	var list []jetbus.GroupInfo
	if err == nil {
		list, err = g.b.Groups(r.Context(), topic)
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	after := r.URL.Query().Get("after")
	out := []jetbus.GroupInfo{}
	body := map[string]any{}
	for _, info := range list {
		if info.Group <= after {
			continue
		}
		if len(out) == limit {
			body["next"] = out[limit-1].Group
			break
		}
		out = append(out, info)
	}
	body["groups"] = out
	answer(w, http.StatusOK, body)
}

// describeGroup serves GET /v1/groups/{topic}/{group}: the group, and its cursor.
func (g *Gateway) describeGroup(w http.ResponseWriter, r *http.Request) {
	who, topic, ok := g.enterLook(w, r)
	if !ok {
		return
	}
	a, ok := g.call(w, r, who)
	if !ok {
		return
	}
	defer a.Close()
	group := r.PathValue("group")
	err := jetbus.ValidGroup(group)
	var list []jetbus.GroupInfo
	if err == nil {
		list, err = g.b.Groups(r.Context(), topic)
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	for _, info := range list {
		if info.Group == group {
			cursor, err := g.b.Cursor(r.Context(), topic, group)
			if err != nil {
				g.problem(w, r, err)
				return
			}
			answer(w, http.StatusOK, map[string]any{"group": info, "cursor": cursor})
			return
		}
	}
	g.problem(w, r, refuse(CodeUnknownGroup, "the group %s never subscribed to %s", group, topic))
}
