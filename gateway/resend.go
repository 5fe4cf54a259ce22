package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// A client whose connection broke publishes again what it has no answer to, and says how long ago
// it did so first. The broker knows what it has stored by its id, for as long as the topic's
// DuplicateWindow: what comes later than that would be stored a second time. What a frame waits for in the
// connection, until it is read, nobody counts: the queue of a connection is short, so that this is long only
// while the broker is away.

const (
	resendMargin = 250 * time.Millisecond     // what an event may take on its way to the broker
	maxAge       = 100 * 365 * 24 * time.Hour // that a client can say
)

// errForgotten is the refusal of what may be stored, and would be stored again.
var errForgotten error = &failure{
	Code: CodePublishFailed, Final: true,
	Msg: "no answer for as long as the topic knows the id of an event: look whether it is stored before you publish it again",
}

// firstSent is when a client sent first what may be stored already; zero: it has not sent it before.
func firstSent(req *frame.Request) time.Time {
	if req.AgeMs <= 0 {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(min(req.AgeMs, maxAge.Milliseconds())) * time.Millisecond)
}

// whileKnown bounds ctx by the time in which the broker knows what of a job is stored already. Where that is over, or
// cannot be found out, the error says that it may be stored.
func (c *conn) whileKnown(ctx context.Context, j *publishJob) (context.Context, context.CancelFunc, error) {
	until, bounded, err := c.knownUntil(ctx, j)
	if err == nil && bounded && !time.Now().Before(until) {
		err = errForgotten
	}
	switch {
	case err != nil:
		return ctx, func() {}, &jetbus.PublishError{Event: j.event, Stored: jetbus.StoredUnknown, Err: err}
	case !bounded:
		return ctx, func() {}, nil
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	return ctx, cancel, nil
}

// knownUntil is until when the topics of a job know the ids of what of it may be stored. bounded is false where
// nothing may be, or would be stored again.
func (c *conn) knownUntil(ctx context.Context, j *publishJob) (until time.Time, bounded bool, err error) {
	if j.first.IsZero() {
		return until, false, nil
	}
	asked := map[string]bool{}
	for _, topic := range j.repeatable() {
		if asked[topic] {
			continue
		}
		asked[topic] = true
		info, err := c.g.b.TopicInfo(ctx, topic)
		if errors.Is(err, jetbus.ErrNoTopic) { // nothing is stored there
			continue
		}
		if err != nil {
			return until, false, err
		}
		window := info.Config.DuplicateWindow
		if at := j.first.Add(window - min(resendMargin, window/2)); !bounded || at.Before(until) {
			until, bounded = at, true
		}
	}
	return until, bounded, nil
}

// repeatable lists the topics of events that the broker would store again: not those of a chain, nor those that
// expect a last event of their key, unless they end by themselves.
func (j *publishJob) repeatable() (topics []string) {
	again := func(o jetbus.PublishOptions) bool { return o.ExpectLastSeq == nil || o.TTL > 0 }
	switch {
	case j.how.Chain != nil:
		return nil
	case j.batch == nil && again(j.o):
		return []string{j.event.Topic}
	}
	for i, e := range j.batch {
		if j.bad[i] == nil && (len(j.how.Each) == 0 || again(j.how.Each[i])) {
			topics = append(topics, e.Topic)
		}
	}
	return topics
}
