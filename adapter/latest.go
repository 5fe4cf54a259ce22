package adapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/ce"
)

// latestStep is how many keys one request asks for. The server finds at most
// 1,024 subjects at once.
const latestStep = 1000

// Bounds of the requests for last events: the approximate number of bytes that a request returns, which are
// in memory until they are read, and the number of concurrent requests. While the server processes such a
// request, publishes wait.
const (
	latestBytes  = 1 << 20
	latestAtOnce = 16
)

// enterLatest waits until another request may start. The caller calls leaveLatest.
func (srv *server) enterLatest(ctx context.Context) error {
	select {
	case srv.latestUnder <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (srv *server) leaveLatest() { <-srv.latestUnder }

// LatestByKey implements jetbus.StateStore.
func (b *Bus) LatestByKey(ctx context.Context, topic string, keys ...string) (map[string]jetbus.Event, error) {
	op := "latest by key " + topic
	if err := b.enter(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	ctx, cancel := b.bound(ctx)
	defer cancel()
	out := make(map[string]jetbus.Event, len(keys))
	t, err := b.keyedTopic(ctx, topic)
	for part := range slices.Chunk(keys, latestStep) {
		if err != nil {
			break
		}
		err = b.latest(ctx, t, part, out)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return out, nil
}

// latest reads the last event of up to latestStep keys. Of one that has events in more
// than one generation of partitions they come in their order. There may be too many of
// those for one request: then it is made for half of the keys at a time.
func (srv *server) latest(ctx context.Context, t *topic, keys []string, out map[string]jetbus.Event) error {
	subjects := make([]string, len(keys))
	for i, key := range keys {
		if err := jetbus.ValidKey(key); err != nil {
			return err
		}
		subjects[i] = t.subjectOf(ce.KeyToken(key)) // in all partitions: publishers may be switching to another partition
	}
	slices.Sort(subjects)
	err := srv.lastOf(ctx, t, slices.Compact(subjects), func(m *nats.Msg, seq uint64, stored time.Time) bool {
		e, ok := srv.readEvent(t, m, seq, stored)
		key, isKey := ce.ParseKeyToken(t.messagePlace(m, seq, stored).Token)
		switch {
		case !ok || !isKey:
		case t.deletes(&e):
			delete(out, key)
		default:
			out[key] = e
		}
		return true
	})
	if refused, ok := errors.AsType[*directError](err); ok && refused.status == tooManySubjects && len(keys) > 1 && t.generations != nil {
		half := len(keys) / 2
		if err = srv.latest(ctx, t, keys[:half], out); err == nil {
			err = srv.latest(ctx, t, keys[half:], out)
		}
		return err
	}
	return srv.translate("", srv.api+"DIRECT.GET."+t.stream, err)
}

// lastOf hands each the last message of every subject. Where the topic has replicas, one of
// them may lag behind what was acknowledged: then they are asked how far they are, or, for
// a single subject, the leader is asked instead of them.
func (srv *server) lastOf(ctx context.Context, t *topic, subjects []string, each func(*nats.Msg, uint64, time.Time) bool) error {
	switch {
	case t.config.Replicas <= 1:
		return srv.directGet(ctx, t.stream, directRequest{MultiLast: subjects}, each)
	case len(subjects) > 1:
		return srv.lastMessages(ctx, t.stream, subjects, each)
	}
	m, err := srv.leaderMessage(ctx, t.stream, map[string]any{"last_by_subj": subjects[0]})
	if err == nil && m.seq > 0 {
		each(&m.Msg, m.seq, m.time)
	}
	return err
}

// ScanLatest implements jetbus.StateStore.
func (b *Bus) ScanLatest(ctx context.Context, topic string, q jetbus.LatestQuery, each func(jetbus.Event) error) (asOf uint64, err error) {
	op := "scan latest " + topic
	if err := b.enter(ctx); err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	b.calls.end() // Close does not wait for the caller's function, it ends the scan
	ctx, untie := b.tie(ctx)
	defer untie()
	t, err := b.keyedTopic(ctx, topic)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	s := &latestScan{b: b, t: t}
	err = s.run(ctx, func(e jetbus.Event) error {
		if !strings.HasPrefix(e.Key, q.KeyPrefix) {
			return nil
		}
		return each(e)
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", op, err)
	}
	return s.asOf, nil
}

// keyedTopic is lookup for a topic that must have its keys in its subjects. Before it refuses a topic, it
// asks the server, because the topic may have been deleted and declared again.
func (st *streams) keyedTopic(ctx context.Context, name string) (*topic, error) {
	ctx, cancel := st.bound(ctx)
	defer cancel()
	t, err := st.lookup(ctx, name)
	if err == nil && !t.config.KeyInSubject {
		t, err = st.verify(ctx, t, true)
	}
	if err == nil && !t.config.KeyInSubject {
		err = jetbus.ErrNeedsKeySubject
	}
	return t, err
}

// latestScan reads the last event of each key, and knows when that is all.
//
// The server's consumer goes through the subjects' last messages as of its
// creation, then through what came after. A message that was replaced before the
// consumer got there is skipped, and its successor comes in its turn. So the
// state is complete at a position p if every message that was skipped has its
// successor at p or before. The successor of what was missing in a gap was there
// when the server sent the message behind the gap, in the replica that the
// consumer reads: among those that were pending then. If these come
// without another gap, the last of them is as far behind as there are; if not, it
// is the next gap that counts. And the stream's leader is asked for its end, so
// that whatever was acknowledged before the scan is in it.
type latestScan struct {
	b    *Bus
	t    *topic
	asOf uint64    // position as of which the scan is complete, of the origin for a snapshot
	time time.Time // when the last event was stored

	// Of the present consumer.
	at      uint64 // last sequence read
	gap     uint64 // first sequence read after the last gap
	goal    uint64 // where the scan may be complete; behind end if messages were pending that may not come
	end     uint64 // of the stream, when the goal was found out
	goalGap uint64 // gap as it was when that was found out
	rounds  int    // times that the goal was found out anew
}

// latestRounds bounds how often a scan goes on from an end to the next where keys
// are replaced faster than they are read. What is missing then has changed since,
// and comes to whoever follows from there.
const latestRounds = 100

// run hands the events to each. Without a deadline it gives up when nothing comes
// for Config.Timeout.
func (s *latestScan) run(ctx context.Context, each func(jetbus.Event) error) error {
	idle := func() {}
	busy := func() {}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		timer := time.AfterFunc(s.b.cfg.Timeout, func() {
			cancel(fmt.Errorf("%w: nothing came for %v", jetbus.ErrUnavailable, s.b.cfg.Timeout))
		})
		idle, busy = func() { timer.Reset(s.b.cfg.Timeout) }, func() { timer.Stop() }
		defer cancel(nil)
		defer timer.Stop()
	}
	var failed error
	err := (&tail{b: s.b, t: s.t, scan: s}).run(ctx, func(e jetbus.Event) bool {
		busy()
		defer idle()
		if s.t.config.SnapshotOf != "" {
			s.asOf = e.Seq
		}
		failed = each(e)
		return failed == nil
	})
	return errors.Join(failed, err)
}

// begin notes that a consumer begins that has so many messages for now.
func (s *latestScan) begin(ctx context.Context, pending uint64) (done bool, err error) {
	s.at, s.gap, s.rounds = 0, 0, 0
	return s.look(ctx, pending)
}

// passed notes that a message was read.
func (s *latestScan) passed(ctx context.Context, a ackReply) (done bool, err error) {
	if a.seq != s.at+1 {
		s.gap = a.seq
	}
	s.at, s.time = a.seq, time.Unix(0, a.storedNano)
	reached := s.at >= s.goal
	known := s.gap == s.goalGap || s.rounds == latestRounds
	switch {
	case reached && known:
		s.finish(s.at)
		return true, nil
	case !reached && a.pending > 0:
		return false, nil
	case !reached && known: // a goal that moved with the end might never be reached
		return s.rest(ctx)
	}
	s.rounds++
	return s.look(ctx, a.pending)
}

// look finds out how far the scan has to go, where so many messages are pending.
func (s *latestScan) look(ctx context.Context, pending uint64) (done bool, err error) {
	end, err := s.findEnd(ctx)
	if err != nil {
		return false, err
	}
	s.goal, s.end, s.goalGap = max(end, s.at+pending), end, s.gap
	switch {
	case pending > 0:
		return false, nil
	case s.at < end:
		return s.rest(ctx)
	}
	s.finish(s.at)
	return true, nil
}

// rest finds out whether anything of the topic is left up to the goal. What is
// there may be other topics', or have been removed.
func (s *latestScan) rest(ctx context.Context) (done bool, err error) {
	if s.at < s.goal {
		more, err := s.b.hasAfter(ctx, s.t, s.at)
		if more || err != nil {
			return false, err
		}
	}
	s.finish(max(s.at, s.end))
	return true, nil
}

func (s *latestScan) findEnd(ctx context.Context) (uint64, error) {
	ctx, cancel := s.b.bound(ctx)
	defer cancel()
	return s.b.endSequence(ctx, s.t)
}

func (s *latestScan) finish(at uint64) {
	if s.t.config.SnapshotOf == "" {
		s.asOf = at
	}
}

// hasAfter asks the stream's leader whether the topic has events behind a
// sequence; a replica may not have heard of them.
func (srv *server) hasAfter(ctx context.Context, t *topic, seq uint64) (bool, error) {
	ctx, cancel := srv.bound(ctx)
	defer cancel()
	first, err := srv.firstFrom(ctx, t, seq+1)
	return first > 0, err
}

// firstFrom asks the stream's leader for the sequence of the topic's first message
// from a sequence on, 0 if there is none.
func (srv *server) firstFrom(ctx context.Context, t *topic, seq uint64) (uint64, error) {
	m, err := srv.streamMessage(ctx, t.stream, map[string]any{"seq": seq, "next_by_subj": t.filter})
	return m.seq, srv.translate("", srv.api+"STREAM.MSG.GET."+t.stream, err)
}
