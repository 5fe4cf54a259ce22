package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
	"github.com/seed-63e9a637/jetbus/internal/exactjson"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// callGroup serves POST /v1/groups/{topic}/{group}:{verb}.
func (g *Gateway) callGroup(w http.ResponseWriter, r *http.Request) {
	who, ok := g.admit(w, r, "", "")
	if !ok {
		return
	}
	a := g.account(who)
	defer a.Close()
	group, verb, _ := strings.Cut(r.PathValue("call"), ":")
	topic, err := topicOf(r)
	if err == nil {
		err = jetbus.ValidGroup(group)
	}
	switch {
	case err != nil:
	case !who.mayJoin(topic, group):
		err = forbidden(GroupJoin, group)
	case verb == "pull":
		err = g.pull(w, r, a, who, topic, group)
	case verb == "ack" || verb == "nack" || verb == "modack" || verb == "extend":
		err = g.settlePulls(w, r, a, who, topic, group, verb)
	default:
		err = refuse(CodeNotFound, "%.40q is none of pull, ack, nack, modack and extend", verb)
	}
	if err != nil {
		g.problem(w, r, err)
	}
}

// pullRequest is the body of a pull: what a group is asked for.
type pullRequest struct {
	jetbus.ReceiveOptions
	Wait string // "20s", in place of waitMs
}

// UnmarshalJSON reads the options of the bus, and wait.
func (p *pullRequest) UnmarshalJSON(text []byte) error {
	var own struct {
		Wait string `json:"wait"`
	}
	if err := exactjson.Unmarshal(text, &own, exactjson.RefuseVariants); err != nil {
		return err
	}
	p.Wait = own.Wait
	return json.Unmarshal(text, &p.ReceiveOptions)
}

// pull takes events of a group, at once if there are some, else when the first one comes or
// the wait is over.
func (g *Gateway) pull(w http.ResponseWriter, r *http.Request, a *budget.Account, who Principal, topic, group string) error {
	var req pullRequest
	if err := g.readJSON(w, r, a, &req); err != nil {
		return err
	}
	o, lease, err := g.pullOptions(req)
	if err != nil {
		return err
	}
	ctx, release, err := g.track(r.Context(), who, polls)
	if err != nil {
		return err
	}
	defer release()
	info, err := g.b.TopicInfo(ctx, topic)
	if err != nil {
		return cause(ctx, err)
	}
	if err := g.mayMake(ctx, who, info, group, o.From); err != nil {
		return cause(ctx, err)
	}
	kept := o.MaxLease
	o.MaxLease = 0 // see keepPulled
	p := &g.pulls
	if o.Max, err = p.reserve(who.Subject, o.Max, g.c.Limits.InFlight); err != nil {
		return err
	}
	got, err := g.receive(ctx, a, topic, group, o)
	p.unreserve(who.Subject, o.Max-len(got))
	if ctx.Err() != nil || err != nil { // nobody is there to take them
		giveBack(ctx, wrap(got))
		p.unreserve(who.Subject, len(got))
		return cause(ctx, err)
	}
	now := time.Now()
	b := []byte(`{"events":[`)
	tokens := make([]string, 0, len(got))
	for i, d := range got {
		h := &pulled{subject: who.Subject, topic: topic, group: group, d: d, since: now, deadline: now.Add(max(lease, kept)), kept: now.Add(kept), lease: lease}
		token := g.holdPulled(ctx, h)
		if token == "" {
			giveBack(ctx, wrap(got[i:]))
			p.unreserve(who.Subject, len(got)-i)
			break
		}
		tokens = append(tokens, token)
		if i > 0 {
			b = append(b, ',')
		}
		b = appendPulled(b, streamOf(info), token, h)
	}
	a.Add(budget.Bytes, int64(len(b)))
	answerText(w, http.StatusOK, append(b, "]}\n"...))
	if http.NewResponseController(w).Flush() != nil { // the answer is not on its way
		for _, token := range tokens {
			if h, _ := p.take(token, who.Subject, topic, group, true); h != nil {
				p.drop(token)
				giveBack(ctx, []*pulled{h})
			}
		}
	}
	return nil
}

// wrap makes of deliveries what settleEach takes.
func wrap(list []*jetbus.Delivery) []*pulled {
	out := make([]*pulled, len(list))
	for i, d := range list {
		out[i] = &pulled{d: d}
	}
	return out
}

// pullOptions are what the bus is asked for, and the client's own lease. MaxLease is the
// client's: the gateway itself is who extends.
func (g *Gateway) pullOptions(req pullRequest) (jetbus.ReceiveOptions, time.Duration, error) {
	l := g.c.Limits
	o := req.ReceiveOptions
	if req.Wait != "" {
		wait, err := g.waitOf(req.Wait)
		if err != nil {
			return o, 0, err
		}
		o.Wait = wait
		if wait == 0 {
			o.Wait = -1
		}
	}
	o, err := o.Normalize()
	if err != nil {
		return o, 0, err
	}
	lease := cmp.Or(o.AckTimeout, min(jetbus.DefaultAckTimeout, l.LeaseMax))
	if lease < minLease || lease > l.LeaseMax {
		return o, 0, refuse(CodeBadRequest, "ackTimeoutMs is %d, use %d to %d", lease.Milliseconds(), minLease.Milliseconds(), l.LeaseMax.Milliseconds())
	}
	if o.MaxLease > l.LeaseTotal {
		return o, 0, refuse(CodeBadRequest, "maxLeaseMs is %d, use at most %d", o.MaxLease.Milliseconds(), l.LeaseTotal.Milliseconds())
	}
	o.AckTimeout = groupAckTimeout // the broker's; see keepPulled
	o.Max = min(o.Max, l.BatchEvents)
	o.Wait = min(o.Wait, l.Wait)
	return o, lease, nil
}

// receive requests events from the bus and charges them to the account. A long wait is split into several
// requests.
func (g *Gateway) receive(ctx context.Context, a *budget.Account, topic, group string, o jetbus.ReceiveOptions) (got []*jetbus.Delivery, err error) {
	if err := acquire(ctx, a, budget.Bytes, jetbus.UnreservedBytes); err != nil {
		return nil, err
	}
	reserved := &reservation{account: a, had: jetbus.UnreservedBytes}
	o.Reserve = reserved.reserve
	until := time.Now().Add(o.Wait)
	for {
		if o.Wait != -1 {
			o.Wait = min(time.Until(until), creditWait)
			if o.Wait <= 0 {
				return nil, nil
			}
		}
		got, err = g.b.Receive(ctx, topic, group, o)
		switch {
		case len(got) > 0 || err != nil:
			return got, err
		case reserved.refused != nil:
			return nil, overBudget(reserved.refused)
		case o.Wait == -1:
			return nil, nil
		}
	}
}

// appendPulled appends an event as a client takes it.
func appendPulled(b []byte, stream uint64, token string, h *pulled) []byte {
	d := h.d
	start := len(b)
	b = append(b, `{"ack_id":"`...)
	b = append(append(b, token...), `","ctx":`...)
	b = append(b, text(frame.EventContext{
		Attempt: d.Attempt, MaxAttempts: d.MaxAttempts, AckDeadlineMs: time.Until(h.deadline).Milliseconds(),
		Redelivered: d.Redelivered, ReplayOf: d.ReplayOf, Epoch: d.Epoch,
	})...)
	b, err := frame.AppendEvent(append(b, ','), &d.Event, offsetOf(stream, &d.Event).String())
	if err != nil { // a string of the event that is no UTF-8: no event has one
		return append(b[:start], `{"ack_id":`+strconv.Quote(token)+`}`...)
	}
	return append(b, '}')
}

// settleRequest is the body of ack, nack, modack and extend.
type settleRequest struct {
	AckIDs   []string `json:"ack_ids"`
	DelayMs  int64    `json:"delay_ms"`
	ExtendMs int64    `json:"extend_ms"`
	Reason   string   `json:"reason"`
	Dead     bool     `json:"dead"`
	DeadAs   string   `json:"dead_reason"`
	Stack    string   `json:"stack"`
	Snooze   bool     `json:"snooze"`
	GiveBack bool     `json:"give_back"`
}

// settled is what became of one token.
type settled struct {
	frame.Result
	DeadlineMs int64 `json:"deadline_ms,omitempty"`
}

// settlePulls settles or extends what a client holds. Each token has its own result: one that
// is not, or no longer, the client's has applied false. What was said before of an event and applied is answered so
// again, and anything else that is said of it is not applied: it is settled.
func (g *Gateway) settlePulls(w http.ResponseWriter, r *http.Request, a *budget.Account, who Principal, topic, group, verb string) error {
	var req settleRequest
	if err := g.readJSON(w, r, a, &req); err != nil {
		return err
	}
	if err := acquire(r.Context(), a, budget.Calls, 1); err != nil { // not while the body arrives
		return err
	}
	most := g.c.Limits.InFlight
	switch n := len(req.AckIDs); {
	case n == 0:
		return refuse(CodeBadRequest, "the member ack_ids is missing: what is it about?")
	case n > most:
		return refuse(CodeTooLarge, "%d ids in one request, at most %d are allowed", n, most)
	}
	v := verdict{op: verb, reason: cut(req.Reason, maxReason), stack: cut(req.Stack, jetbus.MaxStackBytes), dead: req.Dead, as: req.DeadAs, snooze: req.Snooze, back: req.GiveBack}
	ms := req.DelayMs
	if verb == "modack" || verb == "extend" {
		ms = req.ExtendMs
	}
	if err := v.check(ms); err != nil {
		return err
	}
	results := make([]settled, len(req.AckIDs))
	for i, token := range req.AckIDs {
		results[i] = g.settleOne(r.Context(), token, who, topic, group, v)
	}
	answer(w, http.StatusOK, map[string]any{"results": results})
	return nil
}

func (g *Gateway) settleOne(ctx context.Context, token string, who Principal, topic, group string, v verdict) settled {
	yes, no := true, false
	out := settled{Result: frame.Result{AckID: cut(token, frame.MaxCorr), Applied: &no, Reason: "expired"}}
	longer := v.op == "modack" || v.op == "extend"
	h, busy := g.pulls.take(token, who.Subject, topic, group, !longer)
	if busy {
		return settled{Result: failedResult(out.AckID)}
	}
	if h == nil {
		if s, ok := g.pulls.saidOf(token, who.Subject, topic, group); ok {
			out.ID, out.Reason = s.id, "settled"
			if s.is(v) {
				out.Applied, out.Reason = &yes, ""
			}
		}
		return out
	}
	out.ID = h.d.ID
	if longer && !time.Now().Before(h.d.Deadline()) { // the group was moved by force, or the broker was away
		g.pulls.drop(token)
		return out
	}
	if longer {
		left := g.pulls.extend(h, v.by, g.c.Limits)
		if out.Reason = "limit"; left > 0 {
			out.Applied, out.Reason, out.DeadlineMs = &yes, "", left.Milliseconds()
		}
		return out
	}
	reason, err := settlePulled(ctx, h.d, v)
	if err != nil {
		g.pulls.back(h)
		out.Reason, out.Code, out.Msg, out.Retryable = "", string(CodeAckFailed), plain[CodeAckFailed], true
		return out
	}
	if out.Reason = reason; reason != "" {
		g.pulls.drop(token)
		return out
	}
	g.pulls.settled(token, h, v)
	out.Applied = &yes
	return out
}
