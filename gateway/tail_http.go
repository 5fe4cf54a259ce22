package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// tail reads a topic for a client over HTTP: the events behind a position.
type tail struct {
	g      *Gateway
	info   jetbus.TopicInfo
	stream uint64
	filter jetbus.Filter
	from   jetbus.Start // where the client begins; its events are left out that were stored before a time
	known  bool
	after  uint64
	gap    *gapEvent            // what is missing in front; nil: nothing
	lost   func(gapEvent) error // told of what is missing behind that; an error ends reading
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
		err = t.begin(at.seq)
	case from.Kind == jetbus.FromLatest || from.Kind == "":
		t.known, t.after = true, t.info.LastSeq
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
func (t *tail) token() string { return offset{t.stream, t.after}.String() }

// behind reports whether there may be events that were there when the tail was opened.
func (t *tail) behind() bool { return !t.known || t.after < t.info.LastSeq }

// caughtUp notes that all of them were read, or tells of those that retention took first.
func (t *tail) caughtUp(ctx context.Context) error {
	err := t.missed(ctx, t.info.LastSeq+1)
	if err == nil {
		t.known, t.after = true, max(t.after, t.info.LastSeq)
	}
	return err
}

// read calls each with the events behind the position, until it says no. Without follow it
// ends with the last one there is.
func (t *tail) read(ctx context.Context, follow bool, each func(*jetbus.Event) bool) error {
	topic := t.info.Config.Name
	o := jetbus.ReadOptions{From: t.from, Follow: follow}
	if t.known {
		o.After = map[string]uint64{topic: t.after}
		o.Created = map[string]time.Time{topic: t.info.Created}
	}
	for e, err := range t.g.b.Read(ctx, []string{topic}, o) {
		if err != nil {
			return err
		}
		if err := t.missed(ctx, e.Seq); err != nil {
			return err
		}
		t.known, t.after = true, e.Seq
		if !t.from.Excludes(&e) && t.filter.Match(&e) && !each(&e) {
			return nil
		}
	}
	return nil
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

// appendItem appends an event as clients over HTTP get it: {event, offset, seq}.
func (t *tail) appendItem(b []byte, e *jetbus.Event) ([]byte, error) {
	start := len(b)
	b, err := frame.AppendEvent(append(b, '{'), e, offset{t.stream, e.Seq}.String())
	if err != nil {
		return b[:start], err
	}
	return append(b, '}'), nil
}

// text is the JSON of what never fails.
func text(v any) []byte {
	b, _ := json.Marshal(v)
	return b
}
