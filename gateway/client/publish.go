package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// Publish implements [jetbus.Publisher]. With DryRun the error is [jetbus.ErrUnsupported], and the observer is not called.
func (c *Client) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	began := time.Now()
	receipt, err := c.publish(ctx, e, o)
	if len(o) == 1 && o[0].DryRun {
		return receipt, err
	}
	what := jetbus.Observation{Kind: jetbus.Published, Topic: e.Topic, ID: receipt.Event.ID, Seq: receipt.Event.Seq, Duration: time.Since(began), Version: e.Headers[jetbus.HeaderSchemaVersion]}
	if err != nil {
		what.Kind, what.Err, what.ID = jetbus.PublishFail, err, e.ID
	}
	c.c.Observer.Observe(what)
	return receipt, err
}

func (c *Client) publish(ctx context.Context, e jetbus.Event, list []jetbus.PublishOptions) (jetbus.Receipt, error) {
	var o jetbus.PublishOptions
	switch len(list) {
	case 0:
	case 1:
		o = list[0]
	default:
		return jetbus.Receipt{}, fmt.Errorf("publish %s: %w: more than one PublishOptions", e.Topic, jetbus.ErrInvalidOption)
	}
	err := e.Validate()
	if err == nil {
		err = o.Validate()
	}
	if err == nil && o.DryRun { // a gateway that does not know the member would store the event
		err = fmt.Errorf("%w: DryRun over WebSocket: use POST /v1/topics/{topic}?dry_run=1", jetbus.ErrUnsupported)
	}
	var l *link
	if err == nil {
		l, err = c.main()
	}
	if err != nil {
		return jetbus.Receipt{}, fmt.Errorf("publish %s: %w", e.Topic, err)
	}
	fresh := e.ID == ""
	e = c.complete(e)
	item, err := itemOf(e, o)
	if err != nil {
		return jetbus.Receipt{}, fmt.Errorf("publish %s: %w", e.Topic, err)
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	if err := c.enter(ctx); err != nil {
		return jetbus.Receipt{}, &jetbus.PublishError{Event: e, Err: err}
	}
	defer c.exit()
	var t tries
	for wait := retryWait; ; wait = min(2*wait, maxRetryWait) {
		req := &frame.Request{Op: frame.Publish, Topic: item.Topic, Payload: item.Payload, PayloadBase64: item.PayloadBase64, Opts: item.Opts}
		if most := l.allowed().MaxMessage; most > 0 && len(e.Payload)+len(item.Opts) > most {
			return jetbus.Receipt{}, fmt.Errorf("publish %s: %w: the gateway takes frames of %d bytes (Limits.FrameBytes)", e.Topic, jetbus.ErrPayloadTooLarge, most)
		}
		m, wrote, err := l.try(ctx, req, false, &t)
		if err == nil {
			receipt := receiptOf(e, m)
			receipt.Duplicate = receipt.Duplicate && !fresh // else it is what this call published, before the connection broke
			return receipt, nil
		}
		if wrote {
			t.failed(storedBy(err))
		}
		if passes(err) {
			if sleep(ctx, max(wait, retryAfter(err))) == nil {
				continue
			}
			err = errors.Join(err, cause(ctx))
		}
		return jetbus.Receipt{}, publishError(e, t.stored(), err)
	}
}

const maxRetryWait = 5 * time.Second

// publishError wraps what went wrong with a valid event. What the gateway found wrong with the
// event or the topic stands for itself, as it does beside the broker.
func publishError(e jetbus.Event, stored jetbus.Stored, err error) error {
	for _, early := range []error{jetbus.ErrNoTopic, jetbus.ErrPayloadTooLarge, jetbus.ErrInvalidEvent, jetbus.ErrInvalidOption, jetbus.ErrUnsupported, jetbus.ErrNoState} {
		if errors.Is(err, early) {
			return fmt.Errorf("publish %s: %w", e.Topic, err)
		}
	}
	return &jetbus.PublishError{Event: e, Stored: stored, Err: err}
}

// storedBy is what an error says about whether the event is in the log all the same.
func storedBy(err error) jetbus.Stored {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return jetbus.StoredUnknown
	}
	var d struct{ Stored string }
	if json.Unmarshal(e.details, &d) == nil && d.Stored != "" {
		if d.Stored == jetbus.StoredNo.String() {
			return jetbus.StoredNo
		}
		return jetbus.StoredUnknown
	}
	if e.Code == "publish_failed" || e.Code == "internal" || e.Code == "broker_unavailable" {
		return jetbus.StoredUnknown
	}
	return jetbus.StoredNo
}

func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// sleep waits, no longer than ctx allows.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enter waits until one more publish may be under way.
func (c *Client) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return cause(ctx)
	}
	select {
	case c.publishes <- struct{}{}:
		return nil
	case <-c.over:
		return jetbus.ErrClosed
	case <-ctx.Done():
		return cause(ctx)
	}
}

func (c *Client) exit() { <-c.publishes }

// complete fills in what Publish may leave out, so that a repetition is the same event.
func (c *Client) complete(e jetbus.Event) jetbus.Event {
	if e.ID == "" {
		e.ID = jetbus.NewID()
	}
	if e.SID == "" {
		e.SID = c.c.SID
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.Truncate(time.Millisecond).UTC()
	e.Partition, e.Seq, e.Stored = jetbus.NoPartition, 0, time.Time{}
	return e
}

// itemOf is an event as it travels.
func itemOf(e jetbus.Event, o jetbus.PublishOptions) (frame.PublishItem, error) {
	ts := e.Time.UnixMilli()
	opts := frame.PublishOptions{
		ID: e.ID, SID: e.SID, TS: &ts, Key: e.Key, Headers: e.Headers, CausedBy: e.CausedBy, Tags: e.Tags,
		ExpectLastSeq: o.ExpectLastSeq, TTLMs: o.TTL.Milliseconds(),
	}
	if !o.DeliverAt.IsZero() {
		at := o.DeliverAt.UnixMilli()
		opts.DeliverAt = &at
	}
	text, err := plainText(opts)
	item := frame.PublishItem{Topic: e.Topic, Opts: text}
	switch {
	case len(e.Payload) == 0:
	case embeddable(e.Payload):
		item.Payload = e.Payload
	default:
		base := base64.StdEncoding.EncodeToString(e.Payload)
		item.PayloadBase64 = &base
	}
	return item, err
}

// embeddable reports whether a payload keeps its bytes as a part of a JSON text.
func embeddable(p []byte) bool {
	space := func(b byte) bool { return b == ' ' || b == '\t' || b == '\r' || b == '\n' }
	return !space(p[0]) && !space(p[len(p)-1]) && json.Valid(p) && utf8.Valid(p) && frame.Depth(p) <= frame.MaxPayloadDepth
}

// receiptOf is the answer to a PUBLISH.
func receiptOf(e jetbus.Event, m *frame.Message) jetbus.Receipt {
	r := jetbus.Receipt{Event: e, Duplicate: m.Duplicate, Scheduled: m.Scheduled}
	fill(&r.Event, m.ID, m.SID, m.TS, m.Partition, m.Seq)
	return r
}

// fill sets what the gateway says of an event that was stored.
func fill(e *jetbus.Event, id, sid string, ts *int64, partition *int, seq uint64) {
	if id != "" {
		e.ID = id
	}
	if sid != "" {
		e.SID = sid
	}
	if ts != nil {
		e.Time = time.UnixMilli(*ts).UTC()
	}
	if partition != nil {
		e.Partition = *partition
	}
	e.Seq = seq
}
