package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
)

// snapshotTag is the ETag of what a topic holds: it changes with every event that is
// stored or removed.
func snapshotTag(info jetbus.TopicInfo) string {
	return fmt.Sprintf(`"%x-%d-%d-%d"`, streamOf(info), info.FirstSeq, info.LastSeq, info.Events)
}

// unchanged answers 304 where the client has what there is.
func unchanged(w http.ResponseWriter, r *http.Request, tag string) bool {
	w.Header().Set("ETag", tag)
	w.Header().Set("Cache-Control", "no-cache") // kept, but asked for each time
	for _, v := range r.Header.Values("If-None-Match") {
		for one := range strings.SplitSeq(v, ",") {
			if one = strings.TrimSpace(one); one == "*" || strings.TrimPrefix(one, "W/") == tag {
				w.WriteHeader(http.StatusNotModified)
				return true
			}
		}
	}
	return false
}

// snapshotPage is a page of the last events of keys, in the order of the topic.
type snapshotPage struct {
	after  uint64 // the page begins behind it
	first  bool   // of all pages: there is nobody yet to be told that a key is gone
	limit  int
	most   int // bytes; the first event always has room
	bytes  int
	events []jetbus.Event
	at     map[string]int // of events, by key
}

// errPageFull ends reading: there is another page.
var errPageFull = errors.New("the page is full")

// add takes an event.
func (p *snapshotPage) add(e jetbus.Event) error {
	if e.Seq <= p.after {
		return nil
	}
	if i, ok := p.at[e.Key]; ok { // it changed meanwhile, or all comes again
		p.bytes += sizeOf(&e) - sizeOf(&p.events[i])
		p.events[i] = e
		return nil
	}
	if p.first && e.IsTombstone() {
		return nil
	}
	if len(p.events) == p.limit || len(p.events) > 0 && p.bytes+sizeOf(&e) > p.most {
		return errPageFull
	}
	p.at[e.Key] = len(p.events)
	p.events = append(p.events, e)
	p.bytes += sizeOf(&e)
	return nil
}

// snapshot serves GET /v1/topics/{topic}/snapshot: the last event of each key, in the order of the
// topic, page by page. A key that changes between two pages appears again on a later page, as a
// tombstone if it was deleted, so the last event of each key counts. The last page has the offset
// from which to continue reading. With ?tombstones, the first page also has deleted keys. With one
// or more ?key=, the response has only these keys.
func (g *Gateway) snapshot(w http.ResponseWriter, r *http.Request) {
	who, topic, ok := g.enterTopic(w, r, TopicRead)
	if !ok {
		return
	}
	ctx, a, release, err := g.trackScan(r.Context(), who, 1)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	defer release()
	if keys := r.URL.Query()["key"]; len(keys) > 0 {
		g.snapshotKeys(ctx, w, r, a, who, topic, keys)
		return
	}
	limit, err := g.limitOf(r, pollEvents)
	var info, origin jetbus.TopicInfo
	if err == nil {
		info, origin, err = g.stateTopic(ctx, topic)
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	page := &snapshotPage{limit: limit, most: g.c.Limits.QueueBytes, first: !r.URL.Query().Has("tombstones"), at: map[string]int{}}
	if token := r.URL.Query().Get("cursor"); token != "" {
		at, err := parseOffset(token)
		if err == nil && at.stream != streamOf(info) {
			err = refuse(CodeOffsetGone, "the topic was made anew; begin with its first page")
		}
		if err == nil && info.Config.SnapshotOf == "" { // a snapshot stores its events at other times
			err = at.verify(ctx, g.b, topic)
		}
		if err != nil {
			g.problem(w, r, err)
			return
		}
		page.after, page.first = at.seq, false
	}
	if unchanged(w, r, snapshotTag(info)) {
		return
	}
	asOf, err := g.b.ScanLatest(ctx, topic, jetbus.LatestQuery{KeyPrefix: r.URL.Query().Get("prefix")}, page.add)
	a.Release(budget.Scans, 1) // while a slow client reads the response, only the page is charged
	more := errors.Is(err, errPageFull)
	if err != nil && !more {
		g.problem(w, r, cause(ctx, err))
		return
	}
	slices.SortFunc(page.events, func(a, b jetbus.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	if more {
		next := offsetOf(streamOf(info), &page.events[len(page.events)-1]).String()
		w.Header().Set("X-Next", next)
		g.answerEvents(w, r, a, page.events, fmt.Appendf(nil, `"next":"%s"`, next))
		return
	}
	at, err := g.offsetAt(ctx, origin, asOf)
	if err != nil {
		g.problem(w, r, cause(ctx, err))
		return
	}
	w.Header().Set("X-As-Of", fmt.Sprint(asOf))
	g.answerEvents(w, r, a, page.events, fmt.Appendf(nil, `"as_of":%d,"offset":"%s"`, asOf, at))
}

// offsetAt returns the offset of a position in a topic. It has the time of the event if the topic still
// has the event.
func (g *Gateway) offsetAt(ctx context.Context, info jetbus.TopicInfo, seq uint64) (offset, error) {
	at := newOffset(streamOf(info), seq, endOf(info))
	if at.stored != 0 || seq == 0 {
		return at, nil
	}
	for e, err := range g.b.Scan(ctx, info.Config.Name, jetbus.ScanQuery{From: jetbus.AfterSeq(seq - 1), Limit: 1}) {
		if err != nil && !errors.Is(err, jetbus.ErrUnsupported) {
			return at, err
		}
		at = newOffset(at.stream, seq, jetbus.CheckpointOf(&e))
	}
	return at, nil
}

const (
	// keysAtOnce is how many keys count for a request.
	keysAtOnce = 64
	// keysPerRead is the largest number of keys that are read before the size of their events is checked.
	keysPerRead = 8
)

// snapshotKeys responds with the last events of the given keys.
func (g *Gateway) snapshotKeys(ctx context.Context, w http.ResponseWriter, r *http.Request, a *budget.Account, who Principal, topic string, keys []string) {
	var err error
	if most := g.c.Limits.PageEvents; len(keys) > most {
		err = refuse(CodeTooLarge, "%d keys, at most %d are allowed", len(keys), most)
	}
	for _, key := range keys {
		if err == nil {
			err = jetbus.ValidKey(key)
		}
	}
	if err == nil {
		err = g.charge(who, (len(keys)-1)/keysAtOnce)
	}
	var events []jetbus.Event
	bytes := 0
	left := slices.Compact(slices.Sorted(slices.Values(keys)))
	for n := 1; err == nil && len(left) > 0; n = min(2*n, keysPerRead) { // few keys at a time, because their events may be large
		part := left[:min(n, len(left))]
		left = left[len(part):]
		var found map[string]jetbus.Event
		found, err = g.b.LatestByKey(ctx, topic, part...)
		for _, e := range found {
			events = append(events, e)
			bytes += sizeOf(&e)
		}
		if most := g.c.Limits.QueueBytes; bytes > most && len(events) > 1 {
			err = refuse(CodeTooLarge, "the last events of %d keys take more than %d bytes; ask for fewer keys at a time", len(keys), most)
		}
	}
	a.Release(budget.Scans, 1)
	if err != nil {
		g.problem(w, r, cause(ctx, err))
		return
	}
	slices.SortFunc(events, func(a, b jetbus.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	g.answerEvents(w, r, a, events, fmt.Appendf(nil, `"keys":%d`, len(keys)))
}

// stateTopic looks up a topic, and the one whose positions its events have: itself, or the
// one that it is the snapshot of.
func (g *Gateway) stateTopic(ctx context.Context, topic string) (info, origin jetbus.TopicInfo, err error) {
	if info, err = g.b.TopicInfo(ctx, topic); err != nil {
		return info, info, err
	}
	if info.Config.SnapshotOf == "" {
		return info, info, nil
	}
	origin, err = g.b.TopicInfo(ctx, info.Config.SnapshotOf)
	return info, origin, err
}

// answerEvents answers with events, and further members of the object. It clears the events, so that only the text
// is in memory while a slow client reads it.
func (g *Gateway) answerEvents(w http.ResponseWriter, r *http.Request, a *budget.Account, events []jetbus.Event, rest []byte) {
	b := []byte(`{"events":[`)
	for i := range events {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = jetbus.AppendJSON(b, &events[i]); err != nil {
			g.problem(w, r, err)
			return
		}
		events[i] = jetbus.Event{}
	}
	b = append(append(append(b, "],"...), rest...), "}\n"...)
	a.Add(budget.Bytes, int64(len(b))-g.pageBytes()) // if it is larger than a page, because it has one large event
	answerText(w, http.StatusOK, b)
}

// snapshotKey serves GET /v1/topics/{topic}/snapshot/{key}: the last event of one key.
func (g *Gateway) snapshotKey(w http.ResponseWriter, r *http.Request) {
	who, topic, ok := g.enterTopic(w, r, TopicRead)
	if !ok {
		return
	}
	a, ok := g.call(w, r, who)
	if !ok {
		return
	}
	defer a.Close()
	key := r.PathValue("key")
	err := jetbus.ValidKey(key)
	var found map[string]jetbus.Event
	if err == nil {
		found, err = g.b.LatestByKey(r.Context(), topic, key)
	}
	e, there := found[key]
	if err == nil && (!there || e.IsTombstone()) {
		err = refuse(CodeNotFound, "the topic %s has nothing of this key", topic)
	}
	if err == nil {
		err = acquire(r.Context(), a, budget.Bytes, int64(sizeWithJSON(&e)))
	}
	var body []byte
	if err == nil {
		body, err = jetbus.AppendJSON(nil, &e)
	}
	var info jetbus.TopicInfo
	if err == nil {
		info, err = g.b.TopicInfo(r.Context(), topic)
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	if unchanged(w, r, fmt.Sprintf(`"%x-%d"`, streamOf(info), e.Seq)) {
		return
	}
	answerText(w, http.StatusOK, append(body, '\n'))
}

const (
	// stateCost is the assumed memory of a state as a multiple of its topic's bytes. Events with many short headers
	// take more, most events take less.
	stateCost = 4
	// stateStep is for how many bytes of its topic a state counts as one more request.
	stateStep = 64 << 10
)

// chargeState charges who for the size of a topic whose state is requested. It returns how many scans the state
// counts for. The bus builds a state of all keys in memory. The count limits all concurrent states to Limits.Bytes
// together.
func (g *Gateway) chargeState(ctx context.Context, who Principal, topic string) (int64, error) {
	info, err := g.b.TopicInfo(ctx, topic)
	most, scans := uint64(g.c.Limits.Bytes)/stateCost, uint64(g.c.Limits.Scans) //nolint:gosec // they are positive
	switch {
	case err != nil:
		return 0, err
	case info.Bytes > most:
		return 0, refuse(CodeTooLarge, "topic %s has %d bytes, and states of topics with more than %d are not served; page through its snapshot", topic, info.Bytes, most)
	}
	return int64(max(1, (info.Bytes*scans+most-1)/most)), g.charge(who, int(info.Bytes/stateStep)) //nolint:gosec // at most Scans, and less than most
}

// stateAt serves GET /v1/topics/{topic}/state: the last event of each key as of a time, page by page in
// the order of the keys.
func (g *Gateway) stateAt(w http.ResponseWriter, r *http.Request) {
	who, topic, ok := g.enterTopic(w, r, TopicRead)
	if !ok {
		return
	}
	scans, err := g.chargeState(r.Context(), who, topic)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	ctx, a, release, err := g.trackScan(r.Context(), who, scans)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	defer release()
	q := r.URL.Query()
	limit, err := g.limitOf(r, pollEvents)
	if err == nil && q.Get("at") == "" {
		err = refuse(CodeBadRequest, "at is missing: epoch milliseconds, or RFC 3339")
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	at, err := parseTime(q.Get("at"))
	if err != nil {
		g.problem(w, r, err)
		return
	}
	state, err := g.b.StateAt(ctx, topic, at)
	if err != nil {
		g.problem(w, r, cause(ctx, err))
		return
	}
	var events []jetbus.Event
	next, bytes := "", 0
	for _, key := range slices.Sorted(maps.Keys(state.Events)) {
		if q.Has("cursor") && key <= q.Get("cursor") || !strings.HasPrefix(key, q.Get("prefix")) {
			continue
		}
		e := state.Events[key]
		if n := len(events); n == limit || n > 0 && bytes+sizeOf(&e) > g.c.Limits.QueueBytes {
			next = events[n-1].Key
			break
		}
		events = append(events, e)
		bytes += sizeOf(&e)
	}
	state.Events = nil // its scans are released below
	rest := fmt.Appendf(nil, `"as_of":%d,"exact":%t`, state.AsOf, state.Exact)
	if !state.Time.IsZero() {
		rest = fmt.Appendf(rest, `,"ts":%d,"time":"%s"`, state.Time.UnixMilli(), state.Time.UTC().Format(time.RFC3339Nano))
	}
	if next != "" {
		rest = append(append(rest, `,"next":`...), text(next)...)
	}
	w.Header().Set("X-As-Of", fmt.Sprint(state.AsOf))
	a.Release(budget.Scans, scans) // while a slow client reads the response, only the page is charged
	g.answerEvents(w, r, a, events, rest)
}
