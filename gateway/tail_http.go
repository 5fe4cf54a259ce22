package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// tail reads the events after a position of a topic, for a client over HTTP.
type tail struct {
	g      *Gateway
	info   jetbus.TopicInfo
	stream uint64
	filter jetbus.Filter
	from   jetbus.Start // where the client begins; with a time, events stored before it are omitted
	known  bool         // after is set
	after  uint64
	last   jetbus.Checkpoint    // newest known event up to after; zero: none is known
	gap    *gapEvent            // events missing at the start; nil: none
	lost   func(gapEvent) error // called for events missing later; an error ends reading

	account *budget.Account // of the request
}

// gapEvent says that a client missed events, and why: those from one position to another.
type gapEvent struct {
	From   uint64 `json:"from"`
	To     uint64 `json:"to"`
	Reason string `json:"reason"`
}

// openTail finds where a request wants to begin.
func (g *Gateway) openTail(ctx context.Context, r *http.Request, topic string) (*tail, error) {
	q := r.URL.Query()
	t := &tail{g: g, filter: jetbus.Filter{Key: q.Get("key"), KeyPrefix: q.Get("keyPrefix")}}
	if err := t.filter.Validate(); err != nil {
		return nil, err
	}
	token := r.Header.Get("Last-Event-ID") // newer than what the address says
	if token == "" {
		token = q.Get("after")
	}
	from, err := startOf(r)
	if err != nil {
		return nil, err
	}
	var at offset
	if token != "" {
		if at, err = parseOffset(token); err != nil {
			return nil, err
		}
	}
	if t.info, err = g.b.TopicInfo(ctx, topic); err != nil {
		return nil, err
	}
	if t.info.Config.SnapshotOf != "" {
		return nil, refuse(CodeUnsupported, "topic %s is a snapshot: GET its snapshot, and read %s", topic, t.info.Config.SnapshotOf)
	}
	t.stream, t.from = streamOf(t.info), from
	switch {
	case token != "" && at.stream != t.stream:
		t.known, t.after = true, max(t.info.FirstSeq, 1)-1
		t.gap = &gapEvent{at.seq, t.info.FirstSeq, gapReset}
	case token != "":
		if err = t.begin(at.seq); err == nil {
			t.last, err = at.checkpoint(), at.verify(ctx, g.b, topic)
		}
	case from.Kind == jetbus.FromLatest || from.Kind == "":
		t.known, t.after, t.last = true, t.info.LastSeq, endOf(t.info)
	case from.Kind == jetbus.FromAfterSeq:
		err = t.begin(from.Seq)
	case from.Kind == jetbus.FromEarliest:
		t.known, t.after = true, max(t.info.FirstSeq, 1)-1
	}
	return t, err
}

// startOf reads from, ts, afterId and afterSeq.
func startOf(r *http.Request) (jetbus.Start, error) {
	q := r.URL.Query()
	s := jetbus.Start{Kind: jetbus.StartKind(q.Get("from")), ID: q.Get("afterId")}
	var err error
	if text := q.Get("ts"); text != "" {
		if s.Time, err = parseTime(text); err != nil {
			return s, err
		}
	}
	if text := q.Get("afterSeq"); text != "" {
		if s.Seq, err = strconv.ParseUint(text, 10, 64); err != nil {
			return s, refuse(CodeBadRequest, "afterSeq is %.40q, use a sequence", text)
		}
	}
	return s, s.Validate()
}

// begin begins behind a position that the topic has reached.
func (t *tail) begin(seq uint64) error {
	if seq > t.info.LastSeq {
		return notReached(t.info, seq)
	}
	t.known, t.after = true, seq
	if t.info.FirstSeq > seq+1 {
		t.gap = &gapEvent{seq + 1, t.info.FirstSeq - 1, gapRetention}
		t.after = t.info.FirstSeq - 1 // the client is told of those before
	}
	return nil
}

// token is the position that was read up to.
func (t *tail) token() string { return newOffset(t.stream, t.after, t.last).String() }

// behind reports whether there may be events that were there when the tail was opened.
func (t *tail) behind() bool { return !t.known || t.after < t.info.LastSeq }

// caughtUp notes that all of them were read, or tells of those that retention took first.
func (t *tail) caughtUp(ctx context.Context) error {
	err := t.missed(ctx, t.info.LastSeq+1)
	if err != nil {
		return err
	}
	if !t.known || t.after < t.info.LastSeq {
		t.known, t.after, t.last = true, t.info.LastSeq, endOf(t.info)
	}
	return nil
}

// read calls each with the stored events after the position, until each returns false, or enough returns true after
// an event. A nil enough never does. While it reads the bus, it counts as one of budget.Reads. If each waits for a
// client for longer than stallTime, the read of the bus ends, and another one begins after the event.
func (t *tail) read(ctx context.Context, enough func() bool, each func(*encoded) bool) error {
	for {
		if t.account.Acquire(ctx, budget.Reads, 1) != nil {
			return ctx.Err() // the request has ended
		}
		err := t.readSome(ctx, enough, each)
		if !errors.Is(err, errStalled) {
			return err
		}
		if enough == nil && !t.behind() { // the topic may grow faster than the client reads
			return nil
		}
	}
}

// readSome is like read, but returns errStalled after an event that the client did not take within stallTime. It
// releases the acquired budget.Reads.
func (t *tail) readSome(ctx context.Context, enough func() bool, each func(*encoded) bool) error {
	topic := t.info.Config.Name
	o := jetbus.ReadOptions{From: t.from}
	if t.known {
		o.After = map[string]uint64{topic: t.after}
		o.Last = map[string]jetbus.Checkpoint{topic: t.last}
		o.Created = map[string]time.Time{topic: t.info.Created}
	}
	read, stop := iter.Pull2(t.g.b.Read(ctx, []string{topic}, o))
	// A read of the bus holds events that it has read ahead, so it must not wait for a slow client.
	end := sync.OnceFunc(func() {
		stop()
		t.account.Release(budget.Reads, 1)
	})
	defer end()
	stall := time.AfterFunc(stallTime, end)
	for stall.Stop(); ; {
		e, err, ok := read()
		if !ok || err != nil {
			return err
		}
		stall.Reset(stallTime)
		more, err := t.pass(ctx, encode(&e, t.stream), each)
		inTime := stall.Stop()
		if !more || err != nil {
			return err
		}
		if enough != nil && enough() {
			return nil
		}
		if !inTime {
			return errStalled
		}
	}
}

// pass moves the position to an event, and calls each if the event matches the client's filter.
func (t *tail) pass(ctx context.Context, e *encoded, each func(*encoded) bool) (more bool, err error) {
	if t.known && e.Seq <= t.after {
		return true, nil
	}
	if err := t.missed(ctx, e.Seq); err != nil {
		return false, err
	}
	t.known, t.after, t.last = true, e.Seq, jetbus.CheckpointOf(&e.Event)
	return t.from.Excludes(&e.Event) || !t.filter.Match(&e.Event) || each(e), nil
}

// follow calls each with the events after the position as they arrive, until each returns false or ctx ends.
// All followers of a topic share its live end. A client that is too slow for the live end reads alone until it
// has caught up.
func (t *tail) follow(ctx context.Context, each func(*encoded) bool) error {
	live, key := &t.g.live, liveKey{t.info.Config.Name, t.stream}
	ended := false
	wants := func(e *encoded) bool {
		ended = !each(e)
		return !ended
	}
	for ready := make(chan struct{}, 1); ; {
		w, upTo := live.watch(ctx, t.g.b, key, t.after, t.last, ready)
		if w != nil {
			err := t.watch(ctx, w, wants)
			live.leave(w)
			if !errors.Is(err, errBehind) {
				return err
			}
			upTo = w.lost
		}
		if err := t.current(ctx); err != nil {
			return err
		}
		caughtUp := false
		err := t.read(ctx, func() bool {
			caughtUp = live.covers(key, t.after)
			return caughtUp
		}, wants)
		if ended || err != nil {
			return err
		}
		if !caughtUp && t.after < upTo { // retention took the rest
			if err := t.missed(ctx, upTo+1); err != nil {
				return err
			}
			t.after = upTo
		}
	}
}

// watch calls each with the events of a live end.
func (t *tail) watch(ctx context.Context, w *watcher, each func(*encoded) bool) error {
	batch := make([]*encoded, 0, sharedTake)
	for {
		var err error
		if batch, err = w.take(batch); err != nil {
			return err
		}
		for _, e := range batch {
			if more, err := t.pass(ctx, e, each); !more || err != nil {
				return err
			}
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// missed looks whether retention took what lay between the last event and the next one. Where
// events of others are between them, or events go one by one, that says nothing.
func (t *tail) missed(ctx context.Context, next uint64) error {
	if !t.known || next <= t.after+1 || t.info.Config.Compact || t.info.Config.Stream != "" {
		return nil
	}
	now, err := t.g.b.TopicInfo(ctx, t.info.Config.Name)
	if err == nil && now.FirstSeq > t.after+1 {
		err = t.lost(gapEvent{t.after + 1, min(now.FirstSeq, next) - 1, gapRetention})
	}
	return err
}

// current reports whether the topic is still the one that was opened.
func (t *tail) current(ctx context.Context) error {
	info, err := t.g.b.TopicInfo(ctx, t.info.Config.Name)
	if err == nil && streamOf(info) != t.stream {
		err = jetbus.ErrPositionUnknown
	}
	return err
}

// text is the JSON of what never fails.
func text(v any) []byte {
	b, _ := json.Marshal(v)
	return b
}
