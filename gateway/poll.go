package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// pollEvents is how many events an answer has where the client does not say.
const pollEvents = 100

// readTopic serves GET /v1/topics/{topic}/events: a stream of events, or one answer for a
// client that asks for JSON, or says how long to wait or how many it wants.
func (g *Gateway) readTopic(w http.ResponseWriter, r *http.Request) {
	who, topic, ok := g.enterTopic(w, r, TopicRead)
	if !ok {
		return
	}
	k := polls
	if wantsStream(r) {
		k = streams
	}
	ctx, release, err := g.track(r.Context(), who, k)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	defer release()
	w.Header().Set("Vary", "Origin, Accept")
	t, err := g.openTail(ctx, r, topic)
	if err == nil {
		t.account = g.account(who)
		defer t.account.Close()
		if k == polls {
			err = g.poll(ctx, w, r, t)
		} else if err = t.current(ctx); err == nil {
			g.stream(ctx, w, t)
		}
	}
	if err != nil {
		g.problem(w, r, cause(ctx, err))
	}
}

// cause is why a request failed: an error, or what ended its context.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, errDraining) {
		return refuse(CodeDraining, "the gateway stops; use another one")
	}
	return err
}

// wantsStream reports whether a request is for a stream of events.
func wantsStream(r *http.Request) bool {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	if strings.Contains(accept, "text/event-stream") {
		return true
	}
	q := r.URL.Query()
	return !q.Has("wait") && !q.Has("limit") && !strings.Contains(accept, "application/json")
}

// waitOf reads how long a client waits: "20s", or milliseconds; at most what the limits say.
func (g *Gateway) waitOf(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if ms, bad := strconv.ParseInt(text, 10, 32); bad == nil {
		d, err = time.Duration(ms)*time.Millisecond, nil
	}
	if err != nil || d < 0 {
		return 0, refuse(CodeBadRequest, "wait is %.40q, use 20s or milliseconds", text)
	}
	return min(d, g.c.Limits.Wait), nil
}

// page is the answer to a poll, as it grows.
type page struct {
	t           *tail
	text        []byte
	n           int
	limit, most int   // events and bytes; the first event always has room
	charged     int64 // bytes that the account counts for the page
	err         error
}

// add takes an event, and reports whether there is room for more.
func (p *page) add(ctx context.Context, e *encoded) bool {
	more := max(int64(len(p.text)+e.size)-p.charged, 0)
	if p.n > 0 {
		p.t.account.Add(budget.Bytes, more) // the position is already after this event, so the page must have it
		p.text = append(p.text, ',')
	} else if p.err = acquire(ctx, p.t.account, budget.Bytes, more); p.err != nil {
		return false
	}
	p.charged += more
	p.text = e.appendItem(p.text)
	p.n++
	return p.n < p.limit && len(p.text) < p.most
}

// settle releases what the account counts beyond the text.
func (p *page) settle() {
	p.t.account.Release(budget.Bytes, p.charged-int64(len(p.text)))
	p.charged = int64(len(p.text))
}

// backlog takes what there is. A filter can let nothing pass for long: after that time the
// answer says how far it came.
func (p *page) backlog(ctx context.Context, most time.Duration) error {
	reading, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	full := false
	err := p.t.read(reading, nil, func(e *encoded) bool {
		full = !p.add(ctx, e)
		return !full
	})
	switch {
	case err != nil && p.t.known && reading.Err() != nil && ctx.Err() == nil:
		return nil
	case err == nil && !full:
		err = p.t.caughtUp(ctx)
	}
	return err
}

// first waits for an event.
func (p *page) first(ctx context.Context, wait time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err := p.t.follow(waiting, func(e *encoded) bool {
		p.add(ctx, e)
		return false
	})
	if waiting.Err() != nil && (ctx.Err() == nil || errors.Is(context.Cause(ctx), errDraining)) {
		return nil // it is over, and nothing is lost
	}
	return err
}

// poll responds with the events after a position. If there are none, it waits until the first one
// arrives or the client's wait expires.
func (g *Gateway) poll(ctx context.Context, w http.ResponseWriter, r *http.Request, t *tail) error {
	wait, err := g.waitOf(r.URL.Query().Get("wait"))
	if err != nil {
		return err
	}
	limit, err := g.limitOf(r, pollEvents)
	if err != nil {
		return err
	}
	p := &page{t: t, text: []byte(`{"events":[`), limit: limit, most: g.c.Limits.QueueBytes}
	t.lost = func(lost gapEvent) error {
		if t.gap != nil {
			return errPageFull // the next response reports it
		}
		t.gap = &lost
		return nil
	}
	if t.behind() {
		if err = acquire(ctx, t.account, budget.Bytes, g.pageBytes()); err == nil {
			p.charged = g.pageBytes()
			err = p.backlog(ctx, max(wait, taskTime))
			p.settle()
		}
	} else {
		err = t.current(ctx)
	}
	if err == nil && p.err == nil && p.n == 0 && wait > 0 && !t.behind() {
		err = p.first(ctx, wait)
	}
	if err != nil && !errors.Is(err, errPageFull) {
		return err
	}
	if p.err != nil {
		return p.err
	}
	p.settle() // the text is counted until it is written
	b := fmt.Appendf(p.text, `],"next":"%s"`, t.token())
	if t.gap != nil {
		b = append(append(b, `,"gap":`...), text(t.gap)...)
	}
	w.Header().Set("X-Next", t.token())
	answerText(w, http.StatusOK, append(b, '}', '\n'))
	return nil
}
