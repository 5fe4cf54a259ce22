package client

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// Cursor implements [jetbus.Cursors].
func (c *Client) Cursor(ctx context.Context, topic, group string) (jetbus.Cursor, error) {
	m, err := c.ask(ctx, topic, group, &frame.Request{Op: frame.Cursor, Topic: topic, Group: group}, 0)
	if err == nil && m.Cursor == nil {
		err = fmt.Errorf("%w: the gateway's answer has no cursor", jetbus.ErrUnavailable)
	}
	if err != nil {
		return jetbus.Cursor{}, fmt.Errorf("cursor %s %s: %w", topic, group, err)
	}
	return *m.Cursor, nil
}

// maxSeekWait is how long a gateway waits for a group.
const maxSeekWait = time.Minute

// SetCursor implements [jetbus.Cursors]. o.Wait is a minute at most. Where the connection breaks
// before the answer it moves the group again, so that what came behind the position meanwhile comes again.
func (c *Client) SetCursor(ctx context.Context, topic, group string, at jetbus.Cursor, o jetbus.SeekOptions) error {
	err := o.Validate(at)
	if err == nil && at.Topic != "" && at.Topic != topic {
		err = fmt.Errorf("%w: the cursor is one of topic %s", jetbus.ErrInvalidOption, at.Topic)
	}
	if err == nil && o.Wait > maxSeekWait {
		err = fmt.Errorf("%w: Wait is %v, a gateway waits %v at most: call again", jetbus.ErrUnsupported, o.Wait, maxSeekWait)
	}
	if err == nil {
		to := &frame.Position{Force: o.Force, WaitMs: milliseconds(o.Wait)}
		switch {
		case o.ToLatest:
			to.Kind = string(jetbus.FromLatest)
		case at.LastSeq != 0:
			to.Seq = &at.LastSeq
		case at.LastID != "":
			to.ID = at.LastID
		case !at.LastTime.IsZero():
			ts := at.LastTime.UnixMilli()
			to.TS = &ts
		default:
			to.Kind = string(jetbus.FromEarliest)
		}
		wait := o.Wait
		if wait == 0 {
			wait = jetbus.DefaultAckTimeout
		}
		_, err = c.ask(ctx, topic, group, &frame.Request{Op: frame.Seek, Topic: topic, Group: group, To: to}, wait)
	}
	if err != nil {
		return fmt.Errorf("set cursor %s %s: %w", topic, group, err)
	}
	return nil
}

// ask makes a request about a group, again while it may pass. longer is how much longer than
// other requests it may take.
func (c *Client) ask(ctx context.Context, topic, group string, req *frame.Request, longer time.Duration) (*frame.Message, error) {
	if err := jetbus.ValidTopic(topic); err != nil {
		return nil, err
	}
	if err := jetbus.ValidGroup(group); err != nil {
		return nil, err
	}
	l, err := c.main()
	if err != nil {
		return nil, err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.c.Timeout+longer)
		defer cancel()
	}
	if ctx.Err() != nil {
		return nil, cause(ctx)
	}
	for wait := retryWait; ; wait = min(2*wait, maxRetryWait) {
		m, _, err := l.do(ctx, req, false)
		if err == nil || !passes(err) || sleep(ctx, max(wait, retryAfter(err))) != nil {
			return m, err
		}
	}
}
