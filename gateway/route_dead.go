package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// enterDead lets a request in that is about the dead letters of a topic.
func (g *Gateway) enterDead(w http.ResponseWriter, r *http.Request, p Permission, topic string) (who Principal, ok bool) {
	if who, ok = g.admit(w, r, "", ""); !ok {
		return who, false
	}
	err := jetbus.ValidTopic(topic)
	if err == nil && !who.Scopes.Allow(p, topic) {
		err = forbidden(p, topic)
	}
	if err != nil {
		g.problem(w, r, err)
		return who, false
	}
	return who, true
}

// listDead serves GET /v1/dlq/{topic}: the dead letters of a topic, the oldest first, in
// pages by their positions.
func (g *Gateway) listDead(w http.ResponseWriter, r *http.Request) {
	topic := r.PathValue("topic")
	who, ok := g.enterDead(w, r, DeadRead, topic)
	if !ok {
		return
	}
	ctx, _, release, err := g.trackScan(r.Context(), who, 1)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	defer release()
	limit, err := g.limitOf(r, pollEvents)
	var query jetbus.DeadLetterQuery
	if err == nil {
		query, err = deadQuery(r, topic)
	}
	after, bad := uint64(0), error(nil)
	if text := r.URL.Query().Get("after"); text != "" && err == nil {
		if after, bad = strconv.ParseUint(text, 10, 64); bad != nil {
			err = refuse(CodeBadRequest, "after is %.40q, use a position", text)
		}
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	b := []byte(`{"deadLetters":[`)
	n, last, rest := 0, uint64(0), "]}\n"
	for d, err := range jetbus.DeadLetters(ctx, g.b, query) {
		var one []byte
		if err == nil {
			if d.Seq <= after {
				continue
			}
			one, err = d.MarshalJSON()
		}
		if err != nil {
			if errors.Is(err, jetbus.ErrNoDeadLetters) {
				break
			}
			g.problem(w, r, cause(ctx, err))
			return
		}
		if n == limit || n > 0 && len(b)+len(one) > g.c.Limits.QueueBytes {
			rest = `],"next":"` + strconv.FormatUint(last, 10) + "\"}\n"
			break
		}
		if n > 0 {
			b = append(b, ',')
		}
		b, last = append(b, one...), d.Seq
		n++
	}
	answerText(w, http.StatusOK, append(b, rest...))
}

// deadQuery reads which dead letters are meant.
func deadQuery(r *http.Request, topic string) (jetbus.DeadLetterQuery, error) {
	q := r.URL.Query()
	out := jetbus.DeadLetterQuery{Topic: topic, Group: q.Get("group"), Key: q.Get("key"), ID: q.Get("id"), Error: q.Get("error")}
	for _, reason := range q["reason"] {
		out.Reasons = append(out.Reasons, jetbus.DeadReason(reason))
	}
	var err error
	if out.Open, err = isSet(r, "open"); err != nil {
		return out, err
	}
	for _, at := range []struct {
		name string
		to   *time.Time
	}{{"since", &out.Since}, {"until", &out.Until}, {"created", &out.Created}} {
		if text := q.Get(at.name); text != "" {
			if *at.to, err = parseTime(text); err != nil {
				return out, err
			}
		}
	}
	if text := q.Get("upToSeq"); text != "" {
		if out.UpToSeq, err = strconv.ParseUint(text, 10, 64); err != nil || out.UpToSeq == 0 {
			return out, refuse(CodeBadRequest, "upToSeq is %.40q, use a position", text)
		}
	}
	return out, out.Validate()
}

// oneDead serves GET /v1/dlq/{topic}/{seq}, and GET /v1/dlq/{topic}/stats.
func (g *Gateway) oneDead(w http.ResponseWriter, r *http.Request) {
	topic := r.PathValue("topic")
	who, ok := g.enterDead(w, r, DeadRead, topic)
	if !ok {
		return
	}
	ctx, _, release, err := g.trackScan(r.Context(), who, 1)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	defer release()
	if r.PathValue("seq") == "stats" {
		summary, err := jetbus.DeadLetterStats(ctx, g.b, topic)
		if err != nil && !errors.Is(err, jetbus.ErrNoDeadLetters) {
			g.problem(w, r, cause(ctx, err))
			return
		}
		answer(w, http.StatusOK, summary)
		return
	}
	seq, err := strconv.ParseUint(r.PathValue("seq"), 10, 64)
	if err != nil || seq == 0 {
		g.problem(w, r, refuse(CodeBadRequest, "%.40q is no position of a dead letter", r.PathValue("seq")))
		return
	}
	for d, err := range jetbus.DeadLetters(ctx, g.b, jetbus.DeadLetterQuery{Topic: topic, Seqs: []uint64{seq}}) {
		var body []byte
		if err == nil {
			body, err = d.MarshalJSON()
		}
		if err != nil {
			g.problem(w, r, cause(ctx, err))
			return
		}
		answerText(w, http.StatusOK, append(body, '\n'))
		return
	}
	g.problem(w, r, refuse(CodeNotFound, "the topic %s has no dead letter %d", topic, seq))
}

// replayDead serves POST /v1/dlq/{topic}:replay, whose body are options of a replay. It
// answers with what was done; what could not be is told as details of a problem. Into another
// topic only those may replay who may read the dead letters: they could read them there.
func (g *Gateway) replayDead(w http.ResponseWriter, r *http.Request) {
	topic, verb, _ := strings.Cut(r.PathValue("call"), ":")
	who, ok := g.enterDead(w, r, DeadReplay, topic)
	if !ok {
		return
	}
	var o jetbus.ReplayOptions
	a := g.account(who)
	defer a.Close()
	err := g.readJSON(w, r, a, &o)
	switch {
	case err != nil:
	case verb != "replay":
		err = refuse(CodeNotFound, "%.40q is not replay", verb)
	case o.Topic != "" && o.Topic != topic:
		err = refuse(CodeBadRequest, "the body is about the dead letters of %.200q, the path about those of %s", o.Topic, topic)
	case o.ToTopic != "" && !who.Scopes.Allow(TopicWrite, o.ToTopic):
		err = forbidden(TopicWrite, o.ToTopic)
	case o.ToTopic != "" && !who.Scopes.Allow(DeadRead, topic):
		err = forbidden(DeadRead, topic)
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	o.Topic = topic
	most := g.c.Limits.PageEvents // one request must not run for hours: what is left is for the next one
	if o.Limit == 0 || o.Limit > most {
		o.Limit = most
	}
	ctx, _, release, err := g.trackScan(r.Context(), who, 1)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	defer release()
	stats, err := jetbus.Replay(ctx, g.b, o)
	if err != nil {
		err = cause(ctx, err)
		f := *explain(err)
		if f.Details == nil {
			f.Details = stats
		}
		g.report(r, f.Code, err)
		g.problem(w, r, &f)
		return
	}
	answer(w, http.StatusOK, stats)
}
