package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
	"github.com/seed-63e9a637/jetbus/internal/caller"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// firstPath is where the first clients publish.
const firstPath = "/publish/"

// attributeBytes is how many bytes the JSON of an event may have besides its payload.
const attributeBytes = 64 << 10

// batchBodies is how many times as long as an event's payload the body of a batch may be.
const batchBodies = 8

// Headers of requests that are fields of the event, and become no headers of it.
const (
	headerID       = "X-Evt-Id"
	headerKey      = "X-Evt-Key"
	headerTime     = "X-Evt-Ts"
	headerTags     = "X-Evt-Tags"
	headerCausedBy = "X-Evt-Caused-By"
	headerSID      = "X-Evt-Sid"
	evtPrefix      = "X-Evt-"
)

// published is the answer to a publish: a result of a batch, or the one of an event.
type published struct {
	frame.Result
	Scheduled bool `json:"scheduled,omitempty"`
	DryRun    bool `json:"dry_run,omitempty"`
}

// publishTopic serves POST /v1/topics/{topic}.
func (g *Gateway) publishTopic(w http.ResponseWriter, r *http.Request) {
	who, topic, ok := g.enterTopic(w, r, TopicWrite)
	if !ok {
		return
	}
	if err := g.enterPost(who.Subject); err != nil {
		g.problem(w, r, err)
		return
	}
	defer g.leavePost(who.Subject)
	r = r.WithContext(caller.With(r.Context(), who.Subject))
	a := g.account(who)
	defer a.Close()
	kind, err := mediaType(r.Header)
	if err != nil {
		g.problem(w, r, err)
		return
	}
	switch kind {
	case cloudEventsType, "application/x-ndjson", "application/ndjson", "application/jsonl":
		g.publishBatch(w, r, a, who, topic, kind == cloudEventsType)
	default:
		g.publishOne(w, r, a, topic, kind)
	}
}

// publishOne answers the publish of one event.
func (g *Gateway) publishOne(w http.ResponseWriter, r *http.Request, a *budget.Account, topic, kind string) {
	e, err := g.readEvent(w, r, a, topic, kind)
	var o jetbus.PublishOptions
	if err == nil {
		o, err = instructions(r)
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), taskTime)
	defer cancel()
	receipt, err := g.b.Publish(ctx, e, o)
	if err != nil {
		g.problem(w, r, withStored(err))
		return
	}
	if minimal(r) {
		w.Header().Set("Preference-Applied", "return=minimal")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, http.StatusCreated, published{Result: resultOf(receipt), Scheduled: receipt.Scheduled, DryRun: o.DryRun})
}

// publishFirst serves POST /publish/{topic}, as the first clients know it: a JSON body, and
// the id as the answer. What their HTTP library adds to headers does not get into the event.
func (g *Gateway) publishFirst(w http.ResponseWriter, r *http.Request) {
	who, topic, ok := g.enterTopic(w, r, TopicWrite)
	if !ok {
		return
	}
	if err := g.enterPost(who.Subject); err != nil {
		g.problem(w, r, err)
		return
	}
	defer g.leavePost(who.Subject)
	a := g.account(who)
	defer a.Close()
	e, err := g.readEvent(w, r, a, topic, "application/json")
	var dry bool
	if err == nil {
		_, dry, err = publishQuery(r)
	}
	if dry {
		err = refuse(CodeUnsupported, "dry_run is for POST /v1/topics/{topic}")
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(caller.With(r.Context(), who.Subject), taskTime)
		defer cancel()
		var receipt jetbus.Receipt
		if receipt, err = g.b.Publish(ctx, e); err == nil {
			answer(w, http.StatusOK, published{Result: frame.Result{ID: receipt.Event.ID}})
			return
		}
		err = withStored(err)
	}
	g.problem(w, r, err)
}

// readEvent reads the one event of a request.
func (g *Gateway) readEvent(w http.ResponseWriter, r *http.Request, a *budget.Account, topic, kind string) (jetbus.Event, error) {
	switch kind {
	case "application/x-www-form-urlencoded", "multipart/form-data":
		return jetbus.Event{}, refuse(CodeUnsupportedEncoding, "the body is a form; send Content-Type: application/json, or another type that the payload has")
	}
	most := g.c.Limits.FrameBytes
	if kind == cloudEventType {
		most += attributeBytes
	}
	body, err := readBody(w, r, a, most, bodyCost)
	if err != nil {
		return jetbus.Event{}, err
	}
	var e jetbus.Event
	err = parse(r.Context(), a, len(body), func() (err error) {
		e, err = g.parseEvent(topic, kind, r.Header, body)
		return err
	})
	if err != nil {
		return e, err
	}
	if err := idempotent(&e, r.Header); err != nil {
		return e, err
	}
	if int64(len(e.Payload)) > g.c.Limits.FrameBytes {
		return e, refuse(CodeTooLarge, "the payload has %d bytes, at most %d are allowed", len(e.Payload), g.c.Limits.FrameBytes)
	}
	return e, e.Validate()
}

// parseEvent makes an event of headers and body, whatever mode they are in.
func (g *Gateway) parseEvent(topic, kind string, h http.Header, body []byte) (jetbus.Event, error) {
	var e jetbus.Event
	binary, err := false, error(nil)
	switch {
	case kind == cloudEventType:
		e, err = structuredCloudEvent(topic, body)
		binary = true
	case strings.HasPrefix(kind, cloudEventsAny):
		return e, refuse(CodeUnsupportedEncoding, "the content type %s is not supported; use %s or %s", kind, cloudEventType, cloudEventsType)
	default:
		e, binary, err = binaryCloudEvent(topic, h, body)
	}
	if err == nil && !binary {
		e = jetbus.Event{Topic: topic, Partition: jetbus.NoPartition, Payload: body}
		if isJSONType(kind) {
			if err := validJSON(body); err != nil {
				return e, err
			}
		}
		if kind != "" && kind != "application/json" {
			err = setContentType(&e, h.Get("Content-Type"))
		}
	}
	if err == nil {
		err = g.takeHeaders(&e, h)
	}
	return e, err
}

// takeHeaders takes the headers that an event may have from a request, and no others.
func (g *Gateway) takeHeaders(e *jetbus.Event, h http.Header) error {
	for name, values := range h {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if !g.isEventHeader(name) {
			continue
		}
		if len(values) > 1 {
			return refuse(CodeBadRequest, "the header %.100s is there %d times", name, len(values))
		}
		value := values[0]
		switch name {
		case headerID:
			e.ID = value
		case headerKey:
			e.Key = value
		case headerSID:
			e.SID = value
		case headerTags:
			e.Tags = splitList(value)
		case headerCausedBy:
			e.CausedBy = splitList(value)
		case headerTime:
			t, err := parseTime(value)
			if err != nil {
				return err
			}
			e.Time = t.Truncate(time.Millisecond) // what an event has
		default:
			setHeader(e, strings.ToLower(name), value)
		}
	}
	return nil
}

// isEventHeader reports whether a header of a request is one for the event.
func (g *Gateway) isEventHeader(name string) bool {
	switch strings.ToLower(name) {
	case jetbus.HeaderTraceParent, jetbus.HeaderTraceState:
		return true
	case jetbus.HeaderContentType: // said by the payload's mode
		return false
	}
	return strings.HasPrefix(name, evtPrefix) || slices.ContainsFunc(g.c.Headers, func(own string) bool { return strings.EqualFold(own, name) })
}

// idempotent makes the key of a request the id of its event.
func idempotent(e *jetbus.Event, h http.Header) error {
	key := idempotencyKey(h)
	switch {
	case key == "":
	case e.ID != "" && e.ID != key:
		return refuse(CodeBadRequest, "Idempotency-Key and the event's id differ; send one of them")
	default:
		e.ID = key
	}
	return nil
}

// idempotencyKey is what the header says, which may be in quotes.
func idempotencyKey(h http.Header) string {
	key := h.Get("Idempotency-Key")
	if len(key) > 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = key[1 : len(key)-1]
	}
	return key
}

// instructions are what the query tells the broker about an event.
func instructions(r *http.Request) (jetbus.PublishOptions, error) {
	var o jetbus.PublishOptions
	q, dry, err := publishQuery(r)
	if err != nil {
		return o, err
	}
	o.DryRun = dry
	if text := q.Get("expectLastSeq"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return o, refuse(CodeBadRequest, "expectLastSeq is %.40q, use a sequence, or 0 for none", text)
		}
		o.ExpectLastSeq = &n
	}
	if text := q.Get("ttlMs"); text != "" {
		ms, err := strconv.ParseInt(text, 10, 64)
		if err != nil || ms < 0 || ms > int64(time.Duration(1<<63-1)/time.Millisecond) {
			return o, refuse(CodeBadRequest, "ttlMs is %.40q, use milliseconds", text)
		}
		o.TTL = time.Duration(ms) * time.Millisecond
	}
	if text := q.Get("deliverAt"); text != "" {
		t, err := parseTime(text)
		if err != nil {
			return o, err
		}
		o.DeliverAt = t
	}
	return o, o.Validate()
}

// publishQuery returns the query of a publish, and whether it asks for a dry run. It refuses a query that is not
// valid, and a dry run that is spelled differently: if they were ignored, the event would be stored.
func publishQuery(r *http.Request) (q url.Values, dry bool, err error) {
	if q, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return nil, false, refuse(CodeBadRequest, "invalid query: %v", err)
	}
	for name, values := range q {
		switch {
		case name == "dry_run" && len(values) > 1:
			return nil, false, refuse(CodeBadRequest, "dry_run is there %d times", len(values))
		case name != "dry_run" && strings.EqualFold(strings.NewReplacer("_", "", "-", "").Replace(name), "dryrun"):
			return nil, false, refuse(CodeBadRequest, "unknown parameter %.40q, use dry_run", name)
		}
	}
	dry, err = isSet(r, "dry_run")
	return q, dry, err
}

// minimal reports whether the client wants no body (RFC 7240).
func minimal(r *http.Request) bool {
	for _, v := range r.Header.Values("Prefer") {
		for preference := range strings.SplitSeq(v, ",") {
			preference, _, _ = strings.Cut(preference, ";")
			if name, value, _ := strings.Cut(strings.TrimSpace(preference), "="); strings.EqualFold(name, "return") && strings.Trim(value, `"`) == "minimal" {
				return true
			}
		}
	}
	return false
}

// batch is several events of one request, and why some of them are none.
type batch struct {
	events []jetbus.Event
	bad    []error
}

// publishBatch answers a batch, with one result an event: 200 where all are stored, else 207.
func (g *Gateway) publishBatch(w http.ResponseWriter, r *http.Request, a *budget.Account, who Principal, topic string, clouds bool) {
	b, err := g.readBatch(w, r, a, topic, clouds)
	if err == nil && len(b.events) > 1 {
		err = g.charge(who, len(b.events)-1)
	}
	var q url.Values
	var dry bool
	if err == nil {
		q, dry, err = publishQuery(r)
	}
	if err == nil && q.Has("expectLastSeq") {
		err = refuse(CodeUnsupported, "expectLastSeq is for one event")
	}
	if err != nil {
		g.problem(w, r, err)
		return
	}
	results := make([]published, len(b.events))
	ctx, cancel := context.WithTimeout(r.Context(), taskTime)
	defer cancel()
	if dry {
		g.dryRun(ctx, b, results)
	} else {
		g.store(ctx, b, results)
	}
	status := http.StatusOK
	for i, err := range b.bad {
		if err != nil {
			g.report(r, codeOf(err), err)
			f := explain(err)
			results[i] = published{Result: frame.Result{ID: b.events[i].ID, Code: string(f.Code), Msg: f.Msg, Retryable: f.retryable(), Stored: storedOf(err)}}
			status = http.StatusMultiStatus
		}
	}
	if status == http.StatusOK && minimal(r) {
		w.Header().Set("Preference-Applied", "return=minimal")
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, status, map[string]any{"results": results})
}

// store publishes what of a batch is good, and notes why the rest is not.
func (g *Gateway) store(ctx context.Context, b batch, results []published) {
	var events []jetbus.Event
	var at []int
	for i, e := range b.events {
		if b.bad[i] == nil {
			events, at = append(events, e), append(at, i)
		}
	}
	if len(events) == 0 {
		return
	}
	receipts, err := g.b.PublishBatch(ctx, events, jetbus.BatchOptions{})
	failed := failures(err)
	_, together := errors.AsType[*jetbus.BatchError](err)
	for n, i := range at {
		switch {
		case n < len(receipts) && receipts[n].Event.Seq != 0:
			results[i].Result = resultOf(receipts[n])
		case err != nil && !together && !codeOf(err).Retryable(): // nothing was sent, for the sake of one of them
			receipt, err := g.b.Publish(ctx, events[n])
			if results[i].Result = resultOf(receipt); err != nil {
				b.bad[i] = err
			}
		case failed[events[n].ID] != nil:
			b.bad[i] = failed[events[n].ID]
		default:
			b.bad[i] = err
		}
	}
}

// dryRun checks each valid event of a batch separately, and stores none. It records why an event would be refused.
func (g *Gateway) dryRun(ctx context.Context, b batch, results []published) {
	var all sync.WaitGroup
	turns := make(chan struct{}, maxTogether)
	for i := range b.events {
		if b.bad[i] != nil {
			continue
		}
		turns <- struct{}{}
		all.Go(func() {
			receipt, err := g.b.Publish(ctx, b.events[i], jetbus.PublishOptions{DryRun: true})
			results[i], b.bad[i] = published{Result: resultOf(receipt), DryRun: true}, err
			<-turns
		})
	}
	all.Wait()
}

// readBatch reads the events of a batch. The error is one of all of it.
func (g *Gateway) readBatch(w http.ResponseWriter, r *http.Request, a *budget.Account, topic string, clouds bool) (batch, error) {
	body, err := readBody(w, r, a, batchBodies*g.c.Limits.FrameBytes, bodyCost)
	if err != nil {
		return batch{}, err
	}
	var b batch
	err = parse(r.Context(), a, len(body), func() (err error) {
		b, err = g.parseBatch(body, r.Header, topic, clouds)
		return err
	})
	return b, err
}

// parseBatch parses the body of a batch. The error concerns the whole batch.
func (g *Gateway) parseBatch(body []byte, h http.Header, topic string, clouds bool) (batch, error) {
	items, err := split(body, clouds, g.c.Limits.BatchEvents)
	if err != nil {
		return batch{}, err
	}
	b := batch{make([]jetbus.Event, len(items)), make([]error, len(items))}
	key := idempotencyKey(h)
	seen := make(map[string]bool, len(items))
	parse := lineEvent
	if clouds {
		parse = structuredCloudEvent
	}
	most := g.c.Limits.FrameBytes/3*4 + attributeBytes // a payload in base64
	for i, item := range items {
		var e jetbus.Event
		var err error
		if int64(len(item)) > most {
			err = refuse(CodeTooLarge, "the event has %d bytes, at most %d are allowed", len(item), most)
		} else {
			e, err = parse(topic, item)
		}
		b.events[i] = e
		one := &b.events[i]
		if one.ID == "" && key != "" {
			one.ID = key + "/" + strconv.Itoa(i+1) // the same when the batch is sent again
		}
		if one.ID == "" {
			one.ID = jetbus.NewID()
		}
		switch {
		case err != nil:
		case int64(len(one.Payload)) > g.c.Limits.FrameBytes:
			err = refuse(CodeTooLarge, "the payload has %d bytes, at most %d are allowed", len(one.Payload), g.c.Limits.FrameBytes)
		case seen[one.ID]:
			err = refuse(CodeBadRequest, "the batch has two events with the id %.200q", one.ID)
		default:
			err = one.Validate()
		}
		if err != nil {
			*one = jetbus.Event{ID: one.ID} // the rest may be large
		}
		b.bad[i], seen[one.ID] = err, true
	}
	return b, nil
}

// split takes a batch apart: lines, or the elements of a JSON array.
func split(body []byte, clouds bool, most int) ([][]byte, error) {
	var items [][]byte
	var err error
	if clouds {
		items, err = elements(body, most)
	} else {
		items, err = lines(body, most)
	}
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, refuse(CodeBadRequest, "the batch has no events")
	}
	return items, nil
}

// elements splits a JSON array into at most most elements. It fails at the first one beyond, so that a large batch of
// small elements takes little memory.
func elements(body []byte, most int) ([][]byte, error) {
	if err := validJSON(body); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if begin, err := d.Token(); err != nil || begin != json.Delim('[') {
		return nil, refuse(CodeBadJSON, "a batch of CloudEvents is a JSON array")
	}
	var out [][]byte
	for d.More() {
		if len(out) == most {
			return nil, tooMany(most)
		}
		var element json.RawMessage
		if err := d.Decode(&element); err != nil {
			return nil, refuse(CodeBadJSON, "a batch of CloudEvents is a JSON array")
		}
		out = append(out, element)
	}
	return out, nil
}
