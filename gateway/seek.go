package gateway

import (
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// seek handles a SEEK frame, which waits for what members of the group hold.
func (c *conn) seek(req frame.Request) {
	topic, group := req.Topic, req.Group
	if req.Sub != "" {
		s, err := c.ses.find(&req)
		if err != nil {
			c.refuse(req.Corr, err)
			return
		}
		topic, group = s.topics[0], s.group
	}
	cursor, o, err := c.position(topic, group, req.To)
	if err != nil {
		c.refuse(req.Corr, err)
		return
	}
	c.later(req.Corr, func() {
		if req.To.Offset != "" {
			if err := c.verifyOffset(topic, req.To.Offset); err != nil {
				c.refuse(req.Corr, err)
				return
			}
		}
		// SetCursor is not counted in Limits.Calls, because it may wait a minute until members settle their events.
		if err := c.g.b.SetCursor(c.ctx, topic, group, cursor, o); err != nil {
			c.refuse(req.Corr, err)
			return
		}
		c.ok(frame.Message{Corr: req.Corr, Topic: topic, Group: group})
	})
}

// verifyOffset returns an error if the topic does not have the history in which the offset was created.
func (c *conn) verifyOffset(topic, offset string) error {
	if err := acquire(c.ctx, c.account, budget.Calls, 1); err != nil {
		return err
	}
	defer c.account.Release(budget.Calls, 1)
	info, err := c.g.b.TopicInfo(c.ctx, topic)
	if err != nil {
		return err
	}
	at, _ := parseOffset(offset) // position has validated it
	if at.stream != streamOf(info) {
		return refuse(CodeOffsetGone, "the offset belongs to another topic, or the topic was deleted and declared again")
	}
	return at.verify(c.ctx, c.g.b, topic)
}

// position is where a group is to go.
func (c *conn) position(topic, group string, to *frame.Position) (jetbus.Cursor, jetbus.SeekOptions, error) {
	cursor := jetbus.Cursor{Topic: topic}
	var o jetbus.SeekOptions
	who := c.principal()
	if err := jetbus.ValidTopic(topic); err != nil {
		return cursor, o, err
	}
	if err := jetbus.ValidGroup(group); err != nil {
		return cursor, o, err
	}
	if !who.maySeek(topic, group) {
		return cursor, o, forbidden(GroupSeek, group)
	}
	if to == nil || to.WaitMs < 0 || to.WaitMs > taskTime.Milliseconds()*6 {
		return cursor, o, refuse(CodeBadRequest, "SEEK needs to, and waitMs of at most %d", taskTime.Milliseconds()*6)
	}
	o.Force, o.Wait = to.Force, time.Duration(to.WaitMs)*time.Millisecond
	set := 0
	for _, is := range []bool{to.Kind != "", to.TS != nil, to.Offset != "", to.Seq != nil, to.ID != ""} {
		if is {
			set++
		}
	}
	if set != 1 || to.Kind != "" && !slices.Contains([]string{"earliest", "latest"}, to.Kind) {
		return cursor, o, refuse(CodeBadRequest, "to takes one of from (earliest or latest), ts, offset, seq and id")
	}
	o.ToLatest = to.Kind == "latest"
	cursor.LastID = to.ID
	if to.TS != nil {
		cursor.LastTime = time.UnixMilli(*to.TS).UTC()
	}
	if to.Seq != nil {
		cursor.LastSeq = *to.Seq
	}
	if to.Offset != "" {
		at, err := parseOffset(to.Offset)
		if err != nil {
			return cursor, o, err
		}
		cursor.LastSeq = at.seq
	}
	return cursor, o, nil
}

// cursor handles a CURSOR frame, which asks where a group is.
func (c *conn) cursor(req frame.Request) {
	who := c.principal()
	if !who.mayJoin(req.Topic, req.Group) && !who.maySeek(req.Topic, req.Group) {
		c.refuse(req.Corr, forbidden(GroupJoin, req.Group))
		return
	}
	c.later(req.Corr, func() {
		err := acquire(c.ctx, c.account, budget.Calls, 1)
		var at jetbus.Cursor
		if err == nil {
			at, err = c.g.b.Cursor(c.ctx, req.Topic, req.Group)
			c.account.Release(budget.Calls, 1)
		}
		if err != nil {
			c.refuse(req.Corr, err)
			return
		}
		c.ok(frame.Message{Corr: req.Corr, Topic: req.Topic, Group: req.Group, Cursor: &at})
	})
}
