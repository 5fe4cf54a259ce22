package changefeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus"
)

// reader makes events of what the fetcher reads and hands batches to the writer. All of
// it runs on one goroutine.
type reader struct {
	f   *Feed
	w   *writer
	pos position // behind what was handed over or put into next

	next     batch // being filled
	bytes    int   // of its changes
	idle     time.Time
	copied   time.Time // when the copy had its turn
	part     bson.D    // of a split event, whose fragments come one by one
	parts    int
	fatals   int    // 280 since the last change
	copyText string // HeaderCopy of the last event of a copy
	forward  bool   // the stream made progress since it was opened
	due      bool   // the next batch is to be handed over as soon as the writer wants it

	kept, filtered int // of the changes of a page: those in batches, and those of them without an event
}

// errReopen ends a change stream that is to be opened again at once.
var errReopen = errors.New("open the change stream again")

// errEnded: the change stream is over, and no invalidate event said so.
var errEnded = errors.New("MongoDB has ended the change stream without an error")

// errAhead: MongoDB has not come to the position, and would say nothing until then.
var errAhead = errors.New("MongoDB is not as far as the feed's position, which is of another deployment, or from before this one was restored")

// aheadSlack is how many seconds the routers of a sharded cluster may differ by.
const aheadSlack = 60

// run opens change streams until ctx ends or there is no way on.
func (r *reader) run(ctx context.Context) error {
	if r.pos.unsaid {
		if err := r.gap(ctx, r.pos.token, Resync); err != nil {
			return err
		}
	}
	for attempt := 1; ; attempt++ {
		r.forward = false
		err := r.begin(ctx)
		if err == nil {
			err = r.read(ctx)
		}
		if flushErr := r.flush(ctx, false); ctx.Err() != nil || flushErr != nil {
			return context.Cause(ctx)
		}
		r.part, r.parts = nil, 0
		if errors.Is(err, errReopen) {
			attempt = 0
			continue
		}
		if err = r.judge(ctx, err); err != nil {
			return err
		}
		if r.forward {
			attempt = 1
		}
		sleep(ctx, r.f.o.Backoff.Delay(attempt))
	}
}

// judge decides how to go on after an error; one that it returns ends the feed.
func (r *reader) judge(ctx context.Context, err error) error {
	f := r.f
	code := codeOf(err)
	if refused := refusal(err); refused != nil {
		return refused
	}
	if isFinal(err) {
		return err
	}
	f.status.reading(err)
	f.o.Log.LogAttrs(ctx, slog.LevelWarn, "change feed: change stream ended", slog.String("feed", f.o.Name), slog.Any("error", err))
	switch {
	case code == codeStreamFatal && r.fatals == 0 && r.pos.token != "":
		// The token cannot be found, since another pipeline hides its change. Its time can,
		// and what is not behind the token is dropped.
		r.fatals++
		ts := r.pos.token.Timestamp()
		r.pos.at, r.pos.upTo = &ts, r.pos.token
		return nil
	case code == codeHistoryLost, code == codeCappedLost, code == codeStreamFatal, errors.Is(err, errAhead), errors.Is(err, errTopicLost):
		return r.historyLost(ctx, err)
	}
	return nil // 260, too: the driver resumes behind an invalidate token in a way that is refused, and we do not
}

// historyLost goes on with a gap, where that is wanted.
func (r *reader) historyLost(ctx context.Context, err error) error {
	f := r.f
	if f.o.OnHistoryLost == Fail {
		return fmt.Errorf("%w: position %s of %v: %w", ErrHistoryLost, r.pos.token, r.pos.token.Time(), err)
	}
	lost := r.pos.token
	token, err := f.present(ctx)
	if err != nil {
		f.status.reading(err)
		return nil // it will be found out again
	}
	r.pos.token, r.pos.at, r.pos.upTo, r.pos.copy, r.pos.lost, r.fatals = token, nil, "", nil, nil, 0
	if f.o.OnHistoryLost == Resync {
		r.pos.copy = &CopyProgress{Start: token}
	}
	return r.gap(ctx, lost, f.o.OnHistoryLost)
}

// gap says that changes are missing between a token and the position.
func (r *reader) gap(ctx context.Context, from Token, policy Policy) error {
	f, to := r.f, r.pos.token
	payload, err := json.Marshal(map[string]any{
		"operationType": OpGap, "from": string(from), "fromTime": from.Time(), "to": string(to), "toTime": to.Time(), "policy": policy,
	})
	if err != nil {
		return err
	}
	c := &Change{Op: OpGap, Database: f.o.Database, Collection: f.o.Collection, ClusterTime: to.Timestamp(), Token: to}
	e, err := f.event(c, time.Now())
	if err != nil {
		return err
	}
	e.ID, e.Payload = f.eventID("gap."+string(from)+"."+string(to)), payload
	f.status.count(func(s *Stats) { s.Gaps++; s.InFlight++ })
	if err := r.put(ctx, outgoing{event: e, change: c}, 0); err != nil {
		return err
	}
	return r.flush(ctx, true) // a saved position may be ahead of it, and would count
}

// begin makes sure that there is a position, and that it is stored: changes from
// here on would be missed otherwise, if the feed ended before the first one.
func (r *reader) begin(ctx context.Context) error {
	start := r.f.o.Start
	if r.pos.lost != nil {
		if start.mode != startCopy || r.pos.end.at.Seq > 0 {
			return r.pos.lost
		}
		r.pos.token, r.pos.copy, r.pos.lost = "", nil, nil // the topic has no event: a copy publishes everything
	}
	if r.pos.token != "" || r.pos.at != nil {
		return nil
	}
	switch start.mode {
	case startToken:
		r.pos.token = start.token
	case startTime:
		r.pos.at = &bson.Timestamp{T: uint32(start.at.Unix()), I: 1} // the first of that second
		return nil
	default:
		token := r.f.now
		if token == "" {
			var err error
			if token, err = r.f.present(ctx); err != nil {
				return err
			}
		}
		r.pos.token = token
		if start.mode == startCopy {
			r.pos.copy = &CopyProgress{Start: token}
		}
	}
	return r.flush(ctx, true)
}

// read follows one change stream until it ends.
func (r *reader) read(ctx context.Context) error {
	f := r.f
	await := f.o.MaxAwaitTime
	if r.pos.copy != nil {
		await = min(await, copyAwait)
	}
	if !f.split { // it may have been away when the feed started
		split, err := f.canSplit(ctx)
		if err != nil {
			return err
		}
		f.split = split
	}
	session, err := f.client.StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		return err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	inSession := mongo.NewSessionContext(ctx, session)
	cs, err := f.watch(inSession, r.pos, await)
	if err != nil {
		return err
	}
	defer func() { _ = cs.Close(context.WithoutCancel(inSession)) }() // its cursor ends by itself otherwise
	now := clusterNow(session)
	if at := r.pos.token.Timestamp(); now.T > 0 && at.T > now.T+aheadSlack {
		return fmt.Errorf("%w: the position is of %v, and MongoDB is at %v", errAhead, r.pos.token.Time(), time.Unix(int64(now.T), 0).UTC())
	}
	f.status.open(await, r.pos.copy != nil)
	fetch := &fetcher{
		cs: cs, session: session, count: f.o.MaxInFlight / inFlightShares, bytes: f.o.MaxInFlightBytes / inFlightShares,
		pages: make(chan page), rested: make(chan struct{}),
	}
	var fetching sync.WaitGroup
	defer fetching.Wait()
	inSession, stop := context.WithCancel(inSession)
	defer stop()
	fetching.Go(func() { fetch.run(inSession) })
	return r.follow(ctx, fetch)
}

// follow takes pages, and hands batches over when the writer wants one: while it is busy
// they grow.
func (r *reader) follow(ctx context.Context, fetch *fetcher) error {
	for {
		var ready chan<- batch
		if r.due {
			ready = r.w.in
			select { // the writer goes before pages
			case ready <- r.batch():
				r.handedOver()
				continue
			default:
			}
		}
		select {
		case ready <- r.batch():
			r.handedOver()
			continue
		case p := <-fetch.pages:
			if err := r.page(ctx, &p); err != nil {
				return err
			}
			if len(p.changes) > 0 {
				continue
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case fetch.rested <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// page goes through what was fetched.
func (r *reader) page(ctx context.Context, p *page) error {
	s := &r.f.status
	switch {
	case p.err != nil:
		return p.err
	case len(p.changes) == 0:
		return r.wait(ctx, p)
	}
	s.answered(p.now)
	s.count(func(s *Stats) { s.InFlight += len(p.changes) })
	r.kept, r.filtered = 0, 0
	err := func() error {
		if r.next.out == nil {
			r.next.out = make([]outgoing, 0, len(p.changes))
		}
		for _, raw := range p.changes {
			if err := r.take(ctx, raw); err != nil {
				return err
			}
		}
		return nil
	}()
	s.count(func(s *Stats) { s.InFlight -= len(p.changes) - r.kept; s.Filtered += uint64(r.filtered) })
	if err != nil || p.more {
		return err
	}
	r.due = r.next.changes > 0
	if r.pos.copy == nil || time.Since(r.copied) <= copyTurn {
		return nil
	}
	if err := r.flush(ctx, false); err != nil {
		return err
	}
	return r.copyMore(ctx)
}

// wait is what there is to do when there is no change.
func (r *reader) wait(ctx context.Context, p *page) error {
	if r.part == nil {
		token, err := tokenOf(p.token)
		if err == nil && token.Compare(r.pos.token) > 0 && token.Compare(r.pos.upTo) >= 0 && !r.toCome(token, p.now) {
			r.pos.token, r.pos.at = token, nil
			if len(r.next.out) > 0 || r.next.changes > 0 {
				r.next.upTo = token
			}
		}
	}
	r.f.status.idle(p.now, r.pos.token.Timestamp())
	if r.pos.copy != nil {
		if err := r.flush(ctx, false); err != nil {
			return err
		}
		return r.copyMore(ctx)
	}
	if r.next.changes == 0 {
		if time.Since(r.idle) < r.f.o.ProgressInterval {
			return nil
		}
		r.next.upTo = r.pos.token
	}
	r.idle = time.Now()
	return r.flush(ctx, false)
}

// toCome reports whether the feed waits for the time at which it is to begin: a token of
// the future is one of another deployment to whoever finds it.
func (r *reader) toCome(token Token, now bson.Timestamp) bool {
	at := token.Timestamp()
	return r.pos.at != nil && (at.T > now.T || at.Before(*r.pos.at))
}

// take puts a change into the next batch.
func (r *reader) take(ctx context.Context, raw bson.Raw) error {
	whole, err := r.assemble(raw)
	if err != nil || whole == nil {
		return err
	}
	c, at, err := r.f.readChange(whole)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStream, err)
	}
	r.forward = true
	if r.pos.at != nil && c.ClusterTime.Before(*r.pos.at) { // the feed waits for that time
		if c.Op == opInvalidate {
			return errReopen
		}
		return nil
	}
	if r.pos.upTo != "" && c.Token.Compare(r.pos.upTo) <= 0 {
		return nil // published before the stream was opened by time
	}
	r.fatals, r.pos.token, r.pos.at, r.pos.upTo = 0, c.Token, nil, ""
	again := r.f.isSwap(c)
	if again { // the event itself says so: what is behind it may not be stored
		r.pos.copy = &CopyProgress{Start: c.Token}
	}
	if err := r.pass(ctx, c, at, len(whole)); err != nil {
		return err
	}
	if again {
		if err := r.gap(ctx, c.Token, Resync); err != nil {
			return err
		}
	}
	switch {
	case c.Op == opInvalidate && r.f.o.OnInvalidate == Fail:
		return fmt.Errorf("%w: %s", ErrInvalidated, r.f.source())
	case c.Op == opInvalidate, again:
		return errReopen // a copy has another MaxAwaitTime
	}
	return nil
}

// pass makes an event of a change, or leaves it out.
func (r *reader) pass(ctx context.Context, c *Change, at time.Time, bytes int) error {
	f := r.f
	left := c.Op == "update" && c.FullDocument == nil && f.o.FullDocument == UpdateLookup && f.o.OnMissing == Skip
	if !left && c.isDocument() {
		wanted, err := f.wants(c)
		if err != nil {
			return err
		}
		left = !wanted
	}
	if left {
		r.kept++
		r.filtered++
		r.next.changes++
		r.next.upTo = c.Token
		return r.limit(ctx)
	}
	e, err := f.event(c, at)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStream, err)
	}
	r.kept++
	return r.put(ctx, f.outgoing(c, e), bytes)
}

// wants reports whether a document's change is to be published. A panic of Filter is an
// error.
func (f *Feed) wants(c *Change) (wanted bool, err error) {
	if f.o.Filter != nil {
		defer func() {
			if v := recover(); v != nil {
				err = &jetbus.PanicError{Value: v, Stack: debug.Stack()}
			}
		}()
		if !f.o.Filter(c) {
			return false, nil
		}
	}
	if f.isLoop(c) {
		return false, fmt.Errorf("%w: %s of %s was projected from stream %s; set AllowLoop if that is meant", ErrLoop, c.Key, c.namespace(), f.stream)
	}
	return true, nil
}

// outgoing applies Map to the event of a document.
func (f *Feed) outgoing(c *Change, e jetbus.Event) outgoing {
	if !c.isDocument() || f.o.Map == nil {
		return outgoing{event: e, change: c}
	}
	mapped := e
	mapped.Headers = maps.Clone(e.Headers)
	if err := f.remap(c, &mapped); err != nil {
		return outgoing{event: e, change: c, poison: err}
	}
	return outgoing{event: mapped, change: c}
}

// put adds an event to the next batch, with how far a copy is. Stats.InFlight has it
// already.
func (r *reader) put(ctx context.Context, out outgoing, bytes int) error {
	if err := r.noteCopy(); err != nil {
		return err
	}
	if r.copyText != "" {
		out.event.Headers[HeaderCopy] = r.copyText
	}
	r.next.out = append(r.next.out, out)
	r.next.changes++
	r.next.upTo = r.pos.token
	r.bytes += bytes + len(out.event.Payload)
	return r.limit(ctx)
}

// limit hands the batch over when it is full.
func (r *reader) limit(ctx context.Context) error {
	if r.next.changes < r.f.o.MaxInFlight/inFlightShares && r.bytes < r.f.o.MaxInFlightBytes/inFlightShares {
		return nil
	}
	return r.flush(ctx, false)
}

// flush hands the batch over, and waits for room. With save, it waits until the writer
// has stored the position.
func (r *reader) flush(ctx context.Context, save bool) error {
	b := r.batch()
	var saved chan struct{} // nil: nothing to wait for
	if save {
		saved = make(chan struct{})
		b.upTo, b.saved = r.pos.token, saved
	}
	if b.upTo == "" {
		return ctx.Err()
	}
	select {
	case r.w.in <- b:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	r.handedOver()
	if !save {
		return nil
	}
	select {
	case <-saved:
		return nil
	case <-ctx.Done(): // also when the writer ends
		return context.Cause(ctx)
	}
}

// batch is the next batch as it is now.
func (r *reader) batch() batch {
	b := r.next
	b.copy = r.pos.copy
	return b
}

func (r *reader) handedOver() { r.next, r.bytes, r.due = batch{}, 0, false }
