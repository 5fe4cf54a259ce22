package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// fromOffset is how a reader says that it goes on behind opts.offset.
const fromOffset jetbus.StartKind = "offset"

// Reasons of GAP frames.
const (
	gapRetention = "retention" // the topic does not keep what comes next any more
	gapReset     = "reset"     // the topic was made anew
	gapConflated = "conflated" // the client was too slow, and asked for the last event of each key then
)

// reader is a subscription without a group. It sends the events of each topic in order, and the
// client does not acknowledge them.
type reader struct {
	s     *sub
	after map[string]uint64            // by topic: sequence of the last event; missing if unknown
	last  map[string]jetbus.Checkpoint // by topic: the newest known event up to after
	infos map[string]jetbus.TopicInfo
	box   *box // nil: events are not conflated
	gaps  []gap
	alone bool // the bus is read only for this reader; see read
	needs int  // size of the event at which the client stalled
}

// gap is what a reader missed.
type gap struct {
	topic    string
	from, to uint64
	reason   string
}

// startReader finds where to begin, and reads.
func (s *sub) startReader(m *frame.Message) error {
	s.heads = map[string][]byte{}
	r := &reader{s: s, after: map[string]uint64{}, last: map[string]jetbus.Checkpoint{}, infos: map[string]jetbus.TopicInfo{}}
	if s.o.Gateway.Slow == "conflate" {
		r.box = newBox(s.ses.g.c.Limits.QueueBytes, s.account)
	}
	for _, topic := range s.topics {
		info, err := s.ses.g.b.TopicInfo(s.ctx, topic)
		if err != nil {
			return err
		}
		if at, ok := s.o.Gateway.Created[topic]; ok && at != info.Created.UnixMilli() {
			return fmt.Errorf("read %s: %w: the topic was made anew", topic, jetbus.ErrPositionUnknown)
		}
		if info.Config.SnapshotOf != "" {
			return fmt.Errorf("topic %s is a snapshot: %w: GET its snapshot, and read %s", topic, jetbus.ErrUnsupported, info.Config.SnapshotOf)
		}
		r.infos[topic], s.streams[topic], s.heads[topic] = info, streamOf(info), headOf(s.id, topic)
	}
	if err := r.begin(m); err != nil {
		return err
	}
	if err := s.o.Filter.Validate(); err != nil {
		return err
	}
	return s.run(r.run)
}

// begin finds the position of each topic, where it is not one that only the bus knows.
func (r *reader) begin(m *frame.Message) error {
	g := &r.s.o.Gateway
	tokens := slices.Clone(g.Offsets)
	if g.Offset != "" {
		tokens = append(tokens, g.Offset)
	}
	from := r.s.o.From
	if from.Kind == fromOffset {
		if len(tokens) == 0 {
			return refuse(CodeBadRequest, "from offset: the member offset is missing")
		}
		from = jetbus.Latest()
	}
	if err := from.Validate(); err != nil {
		return err
	}
	r.s.o.From = from
	if len(tokens) > len(r.s.topics) {
		return refuse(CodeBadRequest, "there are more offsets than topics")
	}
	if from.Kind == jetbus.FromLatest || from.Kind == "" {
		for topic, info := range r.infos {
			r.after[topic], r.last[topic] = info.LastSeq, endOf(info)
		}
	}
	if from.Kind == jetbus.FromAfterSeq {
		for topic := range r.infos {
			if err := r.from(topic, offset{seq: from.Seq}); err != nil {
				return err
			}
		}
	}
	if err := r.goOn(tokens); err != nil {
		return err
	}
	if _, known := r.after[r.s.topics[0]]; known && len(r.s.topics) == 1 {
		m.Offset = r.token(r.s.topics[0])
	}
	if len(tokens) > 0 {
		recovered := len(r.gaps) == 0
		m.Recovered = &recovered
	}
	return nil
}

// token returns the position in a topic as an offset token.
func (r *reader) token(topic string) string {
	return newOffset(r.s.streams[topic], r.after[topic], r.last[topic]).String()
}

// goOn begins behind offsets. One of no topic as it is now means that a topic was made anew:
// any that no offset is of may be the one, and is read from its beginning.
func (r *reader) goOn(tokens []string) error {
	var lost []offset
	found := map[string]bool{}
	for _, token := range tokens {
		at, err := parseOffset(token)
		if err != nil {
			return err
		}
		topic := ""
		for name, stream := range r.s.streams {
			if stream == at.stream {
				topic = name
			}
		}
		if topic == "" {
			lost = append(lost, at)
			continue
		}
		found[topic] = true
		if err := r.from(topic, at); err != nil {
			return err
		}
	}
	if len(lost) == 0 {
		return nil
	}
	for _, topic := range r.s.topics {
		if !found[topic] {
			r.gaps = append(r.gaps, gap{topic, lost[0].seq, r.infos[topic].FirstSeq, gapReset})
			r.after[topic] = max(r.infos[topic].FirstSeq, 1) - 1
			delete(r.last, topic)
			lost = append(lost[1:], lost[0])
		}
	}
	return nil
}

// from sets the position in a topic. It fails if the topic has not reached the position, or was restored
// to an earlier state since.
func (r *reader) from(topic string, at offset) error {
	info := r.infos[topic]
	if at.seq > info.LastSeq {
		return notReached(info, at.seq)
	}
	if err := at.verify(r.s.ctx, r.s.ses.g.b, topic); err != nil {
		return err
	}
	r.after[topic], r.last[topic] = at.seq, at.checkpoint()
	if info.FirstSeq > at.seq+1 {
		r.gaps = append(r.gaps, gap{topic, at.seq + 1, info.FirstSeq - 1, gapRetention})
		r.after[topic] = info.FirstSeq - 1 // the gap reports the events before it
	}
	return nil
}

// run reads until the subscription ends.
func (r *reader) run(ctx context.Context) error {
	select {
	case <-r.s.started:
	case <-ctx.Done():
		return nil
	}
	if r.box != nil {
		sent := make(chan struct{})
		go func() { // ends with the subscription, and run waits for it
			defer close(sent)
			r.sendBoxed()
		}()
		defer func() {
			<-sent
			r.box.drop()
		}()
		defer r.s.cancel()
	}
	for _, g := range r.gaps {
		r.tell(g)
	}
	if err := r.backlog(ctx); err != nil {
		return err
	}
	for wait := retryWait; ; {
		before := maps.Clone(r.after)
		err := r.follow(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			return nil
		case !codeOf(err).Retryable() || errors.Is(err, jetbus.ErrClosed):
			return err
		}
		if !maps.Equal(before, r.after) {
			wait = retryWait
		}
		wait = r.s.rest(wait)
	}
}

// backlog sends what there was when the client subscribed, and says when it has.
func (r *reader) backlog(ctx context.Context) error {
	for wait := retryWait; r.behind(); {
		err := r.read(ctx, r.s.topics, jetbus.ReadOptions{From: r.start(), After: maps.Clone(r.after), Last: maps.Clone(r.last), Created: r.created()}, nil)
		if err == nil {
			break
		}
		if ctx.Err() != nil || !codeOf(err).Retryable() || errors.Is(err, jetbus.ErrClosed) {
			return err // run looks whether it was ended
		}
		wait = r.s.rest(wait)
	}
	for _, topic := range r.s.topics {
		if err := r.missed(ctx, topic, r.infos[topic].LastSeq+1); err != nil { // retention was faster than the client
			return err
		}
		if info := r.infos[topic]; r.after[topic] <= info.LastSeq {
			r.after[topic], r.last[topic] = info.LastSeq, endOf(info)
		}
		m := &frame.Message{Op: frame.CaughtUp, Sub: r.s.id, Topic: topic, Offset: r.token(topic), Seq: r.after[topic]}
		if r.s.ses.sketch { // no frame of the first clients
			continue
		}
		r.push(topic, m.Text())
	}
	return nil
}

// start is where the bus begins with topics whose position is not known.
func (r *reader) start() jetbus.Start {
	if len(r.after) == len(r.s.topics) {
		return jetbus.Earliest() // it does not matter
	}
	return r.s.o.From
}

// created is when each topic was made that the positions are of.
func (r *reader) created() map[string]time.Time {
	out := map[string]time.Time{}
	for topic, info := range r.infos {
		out[topic] = info.Created
	}
	return out
}

// behind reports whether there may be events to send before new ones.
func (r *reader) behind() bool {
	for topic, info := range r.infos {
		if at, ok := r.after[topic]; !ok || at < info.LastSeq {
			return true
		}
	}
	return false
}

// follow sends what comes from now on, from the live ends of the topics. What the reader is
// too slow for there it reads alone.
func (r *reader) follow(ctx context.Context) error {
	for {
		topic, upTo, err := r.watch(ctx)
		if topic == "" || err != nil {
			return err
		}
		if stalled := upTo == 0; stalled && !r.awaitRoom() {
			return nil
		}
		info, err := r.s.ses.g.b.TopicInfo(ctx, topic)
		if err != nil {
			return err
		}
		if streamOf(info) != r.s.streams[topic] {
			return fmt.Errorf("read %s: %w", topic, jetbus.ErrPositionUnknown)
		}
		key, caughtUp := liveKey{topic, r.s.streams[topic]}, false
		o := jetbus.ReadOptions{
			After: map[string]uint64{topic: r.after[topic]}, Last: map[string]jetbus.Checkpoint{topic: r.last[topic]},
			Created: map[string]time.Time{topic: info.Created},
		}
		if err := r.read(ctx, []string{topic}, o, func() bool {
			caughtUp = r.s.ses.g.live.covers(key, r.after[topic])
			return caughtUp
		}); err != nil {
			return err
		}
		if !caughtUp && r.after[topic] < upTo { // what was there has gone
			if err := r.missed(ctx, topic, upTo+1); err != nil {
				return err
			}
			r.after[topic] = upTo
		}
	}
}

// watch sends the new events of the topics. It returns an empty topic when the subscription has ended. Otherwise it
// returns a topic that the reader must read alone. upTo is the end of that read if the live end has dropped those
// events, and 0 if the client stalled.
func (r *reader) watch(ctx context.Context) (topic string, upTo uint64, err error) {
	live := &r.s.ses.g.live
	ready := make(chan struct{}, 1)
	watchers := map[string]*watcher{}
	defer func() {
		for _, w := range watchers {
			live.leave(w)
		}
	}()
	for _, topic := range r.s.topics {
		w, upTo := live.watch(ctx, r.s.ses.g.b, liveKey{topic, r.s.streams[topic]}, r.after[topic], r.last[topic], ready)
		if w == nil {
			return topic, upTo, nil
		}
		watchers[topic] = w
	}
	batch := make([]*encoded, 0, sharedTake)
	for {
		more := false
		for topic, w := range watchers {
			batch, err = w.take(batch)
			if errors.Is(err, errBehind) {
				return topic, w.lost, nil
			}
			if err != nil {
				return "", 0, err
			}
			more = more || len(batch) > 0
			for _, e := range batch {
				ok, err := r.event(ctx, e)
				if errors.Is(err, errStalled) {
					return topic, 0, nil
				}
				if !ok || err != nil {
					return "", 0, err
				}
			}
		}
		if more {
			continue
		}
		select {
		case <-ready:
		case <-r.s.done:
			return "", 0, nil
		case <-ctx.Done():
			return "", 0, ctx.Err()
		}
	}
}

// stallTime is how long a read of the bus for a single client waits while the client does not read.
const stallTime = 250 * time.Millisecond

// errStalled ends a read of the bus whose client has not read for stallTime.
var errStalled = errors.New("the client does not read fast enough")

// read sends the events of the topics, up to their end or until enough returns true. A nil enough never
// does. When the client stalls, read ends the read of the bus, and resumes it after the client has taken the
// queued events. Otherwise each of many stalled clients would hold events that the bus has read ahead.
func (r *reader) read(ctx context.Context, topics []string, o jetbus.ReadOptions, enough func() bool) error {
	a := r.s.account
	for {
		if a.Acquire(ctx, budget.Reads, 1) != nil {
			return ctx.Err() // the connection or ctx has ended
		}
		err := r.readSome(ctx, topics, o, enough)
		a.Release(budget.Reads, 1)
		if !errors.Is(err, errStalled) {
			return err
		}
		if !r.awaitRoom() {
			return nil
		}
		o.After, o.Last = map[string]uint64{}, map[string]jetbus.Checkpoint{}
		for _, topic := range topics {
			if at, known := r.after[topic]; known {
				o.After[topic], o.Last[topic] = at, r.last[topic]
			}
		}
	}
}

// awaitRoom waits until there is room for the event at which the client stalled, without holding it. It returns
// false when the subscription has ended.
func (r *reader) awaitRoom() (ok bool) {
	if r.box != nil {
		ok, _ = r.box.within(r.s.done, 0, func() bool { return r.box.hasRoom(r.needs) })
	} else {
		ok, _ = r.s.ses.pushWithin(r.s.done, r.needs, 0, func() outgoing { return outgoing{} })
	}
	return ok
}

// readSome is like read, but returns errStalled when the client stalls.
func (r *reader) readSome(ctx context.Context, topics []string, o jetbus.ReadOptions, enough func() bool) error {
	r.alone = true
	defer func() { r.alone = false }()
	for e, err := range r.s.ses.g.b.Read(ctx, topics, o) {
		if err != nil {
			return err
		}
		if ok, err := r.event(ctx, encode(&e, r.s.streams[e.Topic])); !ok || err != nil {
			return err
		}
		if enough != nil && enough() {
			return nil
		}
	}
	return nil
}

// event sends an event if it is new and matches the client's filter. It returns false when the
// subscription has ended. If the error is errStalled, the position has not changed.
func (r *reader) event(ctx context.Context, e *encoded) (bool, error) {
	if last, known := r.after[e.Topic]; known && e.Seq <= last {
		return true, nil
	}
	if err := r.missed(ctx, e.Topic, e.Seq); err != nil {
		return false, err
	}
	if !r.s.o.From.Excludes(&e.Event) && r.s.o.Filter.Match(&e.Event) {
		if ok, err := r.send(e); !ok || err != nil {
			return false, err
		}
	}
	r.after[e.Topic], r.last[e.Topic] = e.Seq, jetbus.CheckpointOf(&e.Event)
	return true, nil
}

// missed reports a gap if retention removed events between the last event and the next one. It does
// not check topics that share a stream or are compacted, where missing sequences are normal.
func (r *reader) missed(ctx context.Context, topic string, next uint64) error {
	last, known := r.after[topic]
	config := r.infos[topic].Config
	if !known || next <= last+1 || config.Compact || config.Stream != "" {
		return nil
	}
	now, err := r.s.ses.g.b.TopicInfo(ctx, topic)
	if err != nil {
		return err
	}
	if now.FirstSeq > last+1 {
		r.after[topic] = min(now.FirstSeq, next) - 1 // so the gap is reported once, even if next is read again
		r.tell(gap{topic, last + 1, r.after[topic], gapRetention})
	}
	return nil
}

// send sends an event. It returns false when the subscription has ended. If the client stalls, it returns
// errStalled for an event that is large or was read only for this reader: a stalled reader must not hold it.
func (r *reader) send(e *encoded) (bool, error) {
	patience := time.Duration(0)
	if r.alone || e.size > sharedTakeBytes {
		patience = stallTime
	}
	var ok, stalled bool
	if r.box != nil {
		ok, stalled = r.box.putWithin(e, r.s.done, patience)
	} else {
		ok, stalled = r.s.ses.pushWithin(r.s.done, e.size, patience, func() outgoing { return r.s.readFrame(e) })
	}
	if stalled {
		r.needs = e.size
		return false, errStalled
	}
	return ok, nil
}

func (r *reader) tell(g gap) {
	if r.s.ses.sketch { // no frame of the first clients
		return
	}
	r.push(g.topic, gapFrame(r.s.id, g))
}

// push sends a frame of a topic, behind its events.
func (r *reader) push(topic string, text []byte) {
	if r.box != nil {
		r.box.mark(topic, text)
		return
	}
	r.s.ses.pushEvent(r.s.done, func() []byte { return text })
}

func gapFrame(sub string, g gap) []byte {
	m := &frame.Message{Op: frame.Gap, Sub: sub, Topic: g.topic, From: g.from, To: g.to, Reason: g.reason}
	return m.Text()
}
