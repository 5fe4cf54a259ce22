package adapter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// A group is moved by replacing its durable, in four steps, each of which the
// next caller can take up: the mark is written into the old durable's metadata
// and its delivery paused (move.begin); held events are waited for (awaitUnheld);
// the next epoch's durable is created at the target, and the old one is deleted
// (putAt, by replaceConsumer). Members find their durable gone and attach to the
// new one (puller.rejoin). A group by partition has all its durables moved at once,
// by the same steps: partitionmove.go. Resetting the durable in place would be
// shorter, but the server counts a late acknowledgement of an event held from
// before for the event delivered anew, and cannot go back before the group's start.

const (
	// How often held events are counted: more and more seldom, as most are held for moments,
	// and some for long.
	movePoll    = 20 * time.Millisecond
	movePollMax = 500 * time.Millisecond
	// pauseAgain is how long a pause that was answered is looked for before it is asked for
	// again: elections take a few seconds.
	pauseAgain = 5 * time.Second
	// moveForget is how long after its mover's death a move is still what anybody
	// expects. The members of the group have gone on by then.
	moveForget = 10 * time.Minute
)

// Cursor implements jetbus.Cursors.
func (b *Bus) Cursor(ctx context.Context, topic, group string) (jetbus.Cursor, error) {
	out := jetbus.Cursor{Topic: topic}
	err := b.onGroup(ctx, "cursor", topic, group, func(ctx context.Context, t *topicGroup) error {
		out.LastSeq = settledByAll(t.durables(), t.end)
		if out.LastSeq == 0 {
			return nil
		}
		e, err := b.eventAt(ctx, t.topic, out.LastSeq)
		out.LastID, out.LastTime = e.ID, e.Stored
		return err
	})
	return out, err
}

// SetCursor implements jetbus.Cursors. A mover that dies between its steps
// leaves a group that the next subscriber, or the next SetCursor, completes.
func (b *Bus) SetCursor(ctx context.Context, topic, group string, c jetbus.Cursor, o jetbus.SeekOptions) error {
	if err := checkMove(topic, c, o); err != nil {
		return fmt.Errorf("set cursor %s/%s: %w", topic, group, err)
	}
	if _, ok := ctx.Deadline(); !ok { // the wait for held events is on top of what requests take
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.cfg.Timeout+o.Wait+jetbus.DefaultMaxLease)
		defer cancel()
	}
	return b.onGroup(ctx, "set cursor", topic, group, func(ctx context.Context, t *topicGroup) error {
		next, err := b.cursorSequence(ctx, t.topic, c, o)
		if err != nil {
			return err
		}
		to := &seek{next: next, wait: o.Wait, force: o.Force, begun: map[string]string{}}
		return b.again(ctx, func() error {
			if t.parts != nil {
				return b.moveParts(ctx, t, to)
			}
			return b.moveGroup(ctx, t, to)
		})
	})
}

func checkMove(topic string, c jetbus.Cursor, o jetbus.SeekOptions) error {
	if c.Topic != "" && c.Topic != topic {
		return fmt.Errorf("%w: the cursor is one of topic %s", jetbus.ErrInvalidOption, c.Topic)
	}
	return o.Validate(c)
}

// cursorSequence is the sequence of the first event behind a cursor.
func (dur *durables) cursorSequence(ctx context.Context, t *topic, c jetbus.Cursor, o jetbus.SeekOptions) (uint64, error) {
	switch {
	case o.ToLatest:
		return dur.startSequence(ctx, t, jetbus.Latest())
	case c.LastSeq > 0:
		return dur.startSequence(ctx, t, jetbus.AfterSeq(c.LastSeq))
	case c.LastID != "":
		return dur.startSequence(ctx, t, jetbus.AfterID(c.LastID))
	case !c.LastTime.IsZero():
		return dur.groupStart(ctx, t, jetbus.AtTime(c.LastTime.Add(1)))
	default:
		return 1, nil
	}
}

// moveGroup moves a group, one mover at a time.
func (dur *durables) moveGroup(ctx context.Context, t *topicGroup, to *seek) error {
	to.wait = cmp.Or(to.wait, t.info.Config.AckWait)
	m, ctx := dur.newMove(ctx, to, 1)
	defer m.end(ctx)
	held, err := dur.lockMove(ctx, t, m.life, to.held)
	if err != nil {
		return err
	}
	m.keep(held)
	to.held = true
	if t.info, err = dur.findGroup(ctx, t.topic, t.group); err == nil && !m.isOver(t) { // it may have been moved since
		err = m.carryOut(ctx, t, to.force)
	}
	return m.result(ctx, err)
}

// groupLock is the lock that a mover of the group has, and for a moment whoever changes
// its durable otherwise. A mover's ends with the mark, so that it does not outlive one
// that died.
func groupLock(t *topicGroup) string {
	return "group." + t.stream + "." + groupName(t.topic, t.group)
}

// carryOut moves a group whose lock the move has.
func (m *move) carryOut(ctx context.Context, t *topicGroup, force bool) error {
	err := m.begin(ctx, t)
	if err == nil && !force {
		err = m.dur.awaitUnheld(ctx, t, m.to.wait)
	}
	if err = m.decide(ctx, err); err != nil {
		return err
	}
	return m.dur.putAt(ctx, t, m.to.next)
}

// putAt puts a durable at next in the place of the group's present one, and of the one
// that an owner, frozen for longer than its lock lives, has put there meanwhile.
func (dur *durables) putAt(ctx context.Context, t *topicGroup, next uint64) error {
	for {
		_, err := dur.replaceConsumer(ctx, t, next, movedTo(t, next))
		if !errors.Is(err, errMoved) {
			return err
		}
		if t.info, err = dur.findGroup(ctx, t.topic, t.group); err != nil {
			return err
		}
	}
}

// movedTo is what a group's durable says of itself after a move.
func movedTo(t *topicGroup, next uint64) map[string]string {
	metadata := kin(t.info)
	metadata[metaMove] = jetbus.NewID()
	if t.isPart() {
		metadata[metaStart] = strconv.FormatUint(next, 10)
	}
	return metadata
}

// kin is what a durable passes on to the one in its place.
func kin(info *jetstream.ConsumerInfo) map[string]string {
	out := map[string]string{}
	for _, name := range []string{metaOrder, metaStart, metaMove} {
		out[name] = info.Config.Metadata[name]
	}
	return out
}

// resumeTime is until when the group is to stay paused once a move is over: a
// PauseGroup outlives it, and its mover.
func resumeTime(info *jetstream.ConsumerInfo) time.Time {
	if mark, moving := readMoveMark(info.Config.Metadata); moving {
		return mark.pause
	}
	return pauseEnd(info)
}

// pauseEnd is until when a durable is paused, by whomever.
func pauseEnd(info *jetstream.ConsumerInfo) time.Time {
	if info.Config.PauseUntil == nil {
		return time.Time{}
	}
	return *info.Config.PauseUntil
}

// markMove writes or, with an empty mark, removes a group's mark, and pauses the
// group until the given time.
func (srv *server) markMove(ctx context.Context, t *topicGroup, mark string, pause time.Time) error {
	if err := srv.writeMark(ctx, t, mark); err != nil {
		return err
	}
	if mark != "" {
		return srv.pauseAtLeastUntil(ctx, t, pause)
	}
	return srv.pauseUntil(ctx, t, pause)
}

func (srv *server) writeMark(ctx context.Context, t *topicGroup, mark string) error {
	config := t.info.Config
	config.Metadata = maps.Clone(config.Metadata)
	if config.Metadata == nil {
		config.Metadata = map[string]string{}
	}
	config.Metadata[metaMark] = mark
	config.PauseUntil = nil
	if mark == "" {
		delete(config.Metadata, metaMark)
	}
	request := srv.api + "CONSUMER.CREATE." + t.stream + "." + t.info.Name + "." + config.FilterSubject
	guarded, release := srv.guard(ctx, request)
	defer release()
	_, err := srv.js.UpdateConsumer(guarded, t.stream, config)
	return srv.translate("mark the move", request, err)
}

// pauseUntil pauses a durable or, with a time that has passed, resumes it.
func (srv *server) pauseUntil(ctx context.Context, t *topicGroup, until time.Time) error {
	return srv.pause(ctx, t, until, func(info *jetstream.ConsumerInfo) bool {
		paused := until.After(time.Now())
		return info.Paused == paused && (!paused || isAlike(until, pauseEnd(info)))
	})
}

// pauseAtLeastUntil is pauseUntil for a mover, which makes the pause longer and longer: it may
// have done so again before this one is seen. One that is over before it is seen is not waited
// for any more: a mover that has not renewed it has lost its locks, and ends by that.
func (srv *server) pauseAtLeastUntil(ctx context.Context, t *topicGroup, until time.Time) error {
	return srv.pause(ctx, t, until, func(info *jetstream.ConsumerInfo) bool {
		return !until.After(time.Now()) || info.Paused && !pauseEnd(info).Before(until)
	})
}

// pause asks for a pause, and waits until the durable is as it should be. In a cluster the
// answer to the request comes before its leader has heard of it, and what was answered may be
// lost with who answered: it is asked for again then.
func (srv *server) pause(ctx context.Context, t *topicGroup, until time.Time, isAsAsked func(*jetstream.ConsumerInfo) bool) error {
	poll := time.NewTicker(movePoll)
	defer poll.Stop()
	var asked time.Time
	for {
		if time.Since(asked) > pauseAgain {
			if _, err := srv.js.PauseConsumer(ctx, t.stream, t.info.Name, until); err != nil {
				return srv.translate("pause "+t.info.Name, srv.api+"CONSUMER.PAUSE."+t.stream+"."+t.info.Name, err)
			}
			asked = time.Now()
		}
		c, err := srv.consumer(ctx, t.topic, t.info.Name)
		switch {
		case err != nil:
			return srv.translate("see the pause of "+t.info.Name, srv.api+"CONSUMER.INFO."+t.stream+"."+t.info.Name, err)
		case isAsAsked(c.CachedInfo()):
			return nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return srv.translate("see the pause of "+t.info.Name, "", context.Cause(ctx))
		}
	}
}

// awaitUnheld waits until no member holds an event of the group.
func (srv *server) awaitUnheld(ctx context.Context, t *topicGroup, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for poll := movePoll; ; poll = min(2*poll, movePollMax) {
		c, err := srv.consumer(ctx, t.topic, t.info.Name)
		if err != nil {
			return srv.translate("count held events", srv.api+"CONSUMER.INFO."+t.stream+"."+t.info.Name, err)
		}
		held := c.CachedInfo().NumAckPending
		if held == 0 {
			return nil
		}
		select {
		case <-time.After(poll):
		case <-deadline.C:
			return &jetbus.GroupBusyError{Topic: t.name(), Group: t.group, Held: held}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// replaceConsumer creates the next epoch's durable at next and deletes the old
// one. Doing it twice changes nothing; after somebody else did, it is errMoved. The
// metadata are those of the new one, besides what says whose it is.
func (dur *durables) replaceConsumer(ctx context.Context, t *topicGroup, next uint64, metadata map[string]string) (*jetstream.ConsumerInfo, error) {
	like := t.info.Config
	like.PauseUntil, like.Metadata = nil, metadata
	if until := resumeTime(t.info); until.After(time.Now()) {
		like.PauseUntil = &until
	}
	epoch := epochOf(t.info) + 1
	info, err := dur.createConsumer(ctx, t.topic, t.group, epoch, next, like)
	exists := isConsumerExists(err) // of a mover that died on the way to another position: nobody uses it while the old one is there
	if err == nil || exists {
		if gone := dur.stillPresent(ctx, t); gone != nil {
			return nil, errors.Join(gone, dur.withdraw(ctx, t, info))
		}
	}
	if exists {
		if err = dur.js.DeleteConsumer(ctx, t.stream, epochName(t.topic, t.group, epoch)); err == nil || apiCode(err) == jetstream.JSErrCodeConsumerNotFound {
			info, err = dur.createConsumer(ctx, t.topic, t.group, epoch, next, like)
		}
	}
	if err != nil {
		return nil, dur.translate("create the moved durable", dur.api+"CONSUMER.CREATE."+t.stream+".", err)
	}
	err = dur.js.DeleteConsumer(ctx, t.stream, t.info.Name)
	if apiCode(err) == jetstream.JSErrCodeConsumerNotFound {
		err = nil
	}
	if err == nil {
		dur.present.see(t.stream, epochName(t.topic, t.group, 0), info)
	}
	return info, dur.translate("delete the old durable", dur.api+"CONSUMER.DELETE."+t.stream+"."+t.info.Name, err)
}

// stillPresent returns errMoved if the durable of a group is not there any more.
func (srv *server) stillPresent(ctx context.Context, t *topicGroup) error {
	c, err := srv.consumer(ctx, t.topic, t.info.Name)
	switch {
	case apiCode(err) == jetstream.JSErrCodeConsumerNotFound:
		return errMoved
	case err != nil:
		return srv.translate("look for the durable", srv.api+"CONSUMER.INFO."+t.stream+"."+t.info.Name, err)
	case !c.CachedInfo().Created.Equal(t.info.Created): // one of a group that was deleted and made anew
		return errMoved
	}
	return nil
}

// withdraw deletes a durable that was made for a group which was moved further meanwhile:
// nobody else makes one of that epoch any more. made is nil where somebody else made it.
func (srv *server) withdraw(ctx context.Context, t *topicGroup, made *jetstream.ConsumerInfo) error {
	if made == nil {
		return nil
	}
	c, err := srv.consumer(ctx, t.topic, made.Name)
	if apiCode(err) == jetstream.JSErrCodeConsumerNotFound || err == nil && !c.CachedInfo().Created.Equal(made.Created) {
		return nil
	}
	if err == nil {
		err = srv.js.DeleteConsumer(ctx, t.stream, made.Name)
	}
	return srv.translate("withdraw a durable", srv.api+"CONSUMER.DELETE."+t.stream+"."+made.Name, err)
}

// finishMove takes up a move that somebody began: it lets a mover that may be alive
// finish, then finishes in its place. Whoever asked looks at the group again: a mover that
// is alive, and waits, has renewed its mark.
func (dur *durables) finishMove(ctx context.Context, t *topic, group string, info *jetstream.ConsumerInfo, mark moveMark) error {
	g := &topicGroup{topic: t, group: group, info: info}
	alive := max(time.Until(mark.until), 0) // its mover, perhaps
	bounded, cancel := context.WithTimeout(ctx, alive+info.Config.AckWait+keptLife+dur.cfg.Timeout)
	defer cancel()
	m, bounded := dur.newMove(bounded, &seek{next: mark.seq, wait: info.Config.AckWait}, 1)
	defer m.end(bounded)
	err := m.hold(bounded, groupLock(g))
	if err != nil && ctx.Err() == nil {
		if still, lookErr := dur.stillMarked(ctx, g, mark); lookErr == nil && !still {
			return nil
		}
	}
	if err == nil {
		err = m.result(bounded, m.finish(bounded, g, mark))
	}
	if err != nil {
		return fmt.Errorf("finish its move: %w", err)
	}
	return nil
}

// stillMarked looks whether a group has the very mark.
func (dur *durables) stillMarked(ctx context.Context, g *topicGroup, mark moveMark) (bool, error) {
	info, err := dur.findGroup(ctx, g.topic, g.group)
	if err != nil {
		return false, err
	}
	g.info = info
	now, ok := readMoveMark(info.Config.Metadata)
	return ok && now == mark, nil
}

// finish is finishMove for who has the group's lock.
func (m *move) finish(ctx context.Context, g *topicGroup, mark moveMark) error {
	still, err := m.dur.stillMarked(ctx, g, mark)
	if err != nil || !still { // its mover, or another, was here
		return err
	}
	log := m.dur.cfg.Logger.With(slog.String("topic", g.name()), slog.String("group", g.group))
	if time.Since(mark.until) > moveForget {
		log.WarnContext(ctx, "a move of a group that was begun long ago is dropped")
		return m.dur.markMove(ctx, g, "", resumeTime(g.info))
	}
	log.InfoContext(ctx, "finishing the move of a group that its mover left behind")
	switch err = m.carryOut(ctx, g, false); {
	case errors.Is(err, jetbus.ErrGroupBusy): // nobody was told that the move succeeded: it may as well not
		log.WarnContext(ctx, "the move of a group was given up", slog.Any("error", err))
		return nil
	case errors.Is(err, jetbus.ErrNoGroup): // its mover was alive after all, or the lock is another's: who asked looks again
		return nil
	}
	return err
}
