package jetbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

// Headers of the events that a [Compactor] publishes.
const (
	// HeaderCompactedSeq is the Seq of the source event that one was made of.
	HeaderCompactedSeq = "x-compacted-seq"
	// HeaderCompactedCreated is when the stream was made that this is a position in, in
	// milliseconds since 1970. Events without it are taken for ones of the present stream.
	HeaderCompactedCreated = "x-compacted-created"
	// HeaderCompactedLast identifies the newest source event that had been compacted when this
	// event was published: its Seq and its Stored time in nanoseconds since 1970.
	HeaderCompactedLast = "x-compacted-last"
)

// Compactor keeps the last event of each key of a topic in another, compacted topic, under a
// key that is not the event's own key: for example the last order of each customer. If it is
// the event's own key, no compactor is needed: declare the topic with TopicConfig.Compact, or
// add a topic with TopicConfig.SnapshotOf.
//
// Any number of processes may run the same compactor. One of them works and the others stand
// by. A new worker resumes where the last one stopped.
//
// An event of the target is the source event with another Key and its own ID. CausedBy holds
// the ID of the source event; [HeaderCompactedSeq], [HeaderCompactedCreated] and
// [HeaderCompactedLast] are set. A source event whose payload is the JSON value null deletes
// its key in the target.
//
// An older source event never replaces an event of the target, even if the group is moved back
// with SetCursor, a compactor crashes, or two of them work concurrently. If the source is
// deleted and declared again, all its events are newer than the events of the deleted topic.
//
// A tombstone protects a deleted key for the target's TombstoneTTL, which must be 1 hour or
// more: a process that dies may hold an older event for 2 minutes, and a process that cannot
// reach the broker may hold one until it can. An older event that is redelivered after the
// tombstone has expired restores its key permanently. If the group is moved back to before a
// deletion whose tombstone has expired, the key reappears until the group reaches the deletion
// again.
//
// A target must have one source. Events of the target without these headers are replaced by any
// event of the source.
type Compactor struct {
	Source string // the topic that is read; no default
	Target string // the topic that is kept, declared with TopicConfig.Compact; no default
	// Group is the compactor's group on Source; it starts with the oldest event. Compactors
	// with different targets need different groups. No default.
	Group string
	// KeyOf returns the key of an event in Target, and false for an event that does not belong
	// there. It is called for tombstones, too. If the key is empty or invalid ([ValidKey]), or
	// KeyOf panics, Run ends. No default.
	KeyOf func(e Event) (key string, keep bool)
	// Interval is the pause after a batch that was not full, so that several changes of a key
	// become one. Defaults to 1 second.
	Interval time.Duration
	// BatchSize is the maximum number of events in a batch. Defaults to 500.
	BatchSize int
	// Lock is held by the process that works. Its Key defaults to "compactor/" and Target.
	Lock Lock
	// OnSkip is called with a source event that has no room in Target, since its
	// event there is larger by a few headers ([ErrPayloadTooLarge],
	// [ErrInvalidHeader]): Target keeps what it has of the key. It is called again
	// where the batch is; a panic ends Run. Nil: such an event ends Run, and every
	// Run after it until the group is moved on with SetCursor.
	OnSkip func(e Event, err error)
	// Logger gets failures that are tried again. Defaults to none.
	Logger *slog.Logger
}

// CompactorBus is what a [Compactor] needs of a [Backend].
type CompactorBus interface {
	Publisher
	Receiver
	StateStore
	Keys
	CheckpointBus
}

// Defaults and bounds of Compactor.
const (
	DefaultCompactorInterval  = time.Second
	DefaultCompactorBatchSize = 500

	compactorLease    = 2 * time.Minute // of the events of a batch
	compactorSettle   = 5 * time.Second // to settle them after the end of the context
	compactorWriters  = 16              // keys that are published at once
	compactorRounds   = 5               // comparisons of a key with a target that others change
	compactorFailures = 10              // in a row that end Run

	minCompactorTombstone = time.Hour // TopicConfig.TombstoneTTL of the target
)

// normalize returns the compactor with defaults filled in.
func (c Compactor) normalize() (Compactor, error) {
	setDefault(&c.Interval, DefaultCompactorInterval)
	setDefault(&c.BatchSize, DefaultCompactorBatchSize)
	setDefault(&c.Lock.Key, "compactor/"+c.Target)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := ValidTopic(c.Source); err != nil {
		return c, fmt.Errorf("option Source: %w", err)
	}
	if err := ValidTopic(c.Target); err != nil {
		return c, fmt.Errorf("option Target: %w", err)
	}
	if err := ValidGroup(c.Group); err != nil {
		return c, err
	}
	switch {
	case c.Source == c.Target:
		return c, fmt.Errorf("%w: Source and Target are both %s", ErrInvalidOption, c.Source)
	case c.KeyOf == nil:
		return c, fmt.Errorf("%w: no KeyOf", ErrInvalidOption)
	case c.Interval < 0:
		return c, fmt.Errorf("%w: Interval is %v", ErrInvalidOption, c.Interval)
	case c.BatchSize < 1 || c.BatchSize > maxBatchSize:
		return c, fmt.Errorf("%w: BatchSize is %d, use 1 to %d", ErrInvalidOption, c.BatchSize, maxBatchSize)
	}
	var err error
	c.Lock, err = c.Lock.normalize()
	return c, err
}

// Run compacts until ctx ends. It then returns nil, or the failure that it was retrying. It
// waits while the broker is unavailable, and retries after other failures, up to 10 in a row.
// The error wraps [ErrNoState] if Target is not compacted, [ErrNoTopic], [ErrPositionUnknown]
// if Target was made from a newer Source than the existing one, or [ErrInvalidOption], also if
// Target's TombstoneTTL is shorter than 1 hour. It is a [RestoredError] if Source was restored
// to an earlier state and Target still has what was made from the lost events: delete Target
// and the group.
func (c Compactor) Run(ctx context.Context, b CompactorBus) error {
	c, err := c.normalize()
	if err == nil {
		err = (&compaction{Compactor: c, b: b}).run(ctx)
	}
	if err != nil {
		return fmt.Errorf("compact %s to %s: %w", c.Source, c.Target, err)
	}
	return nil
}

// compaction is one call of Run.
type compaction struct {
	Compactor
	b       CompactorBus
	checked bool      // the target is as it must be
	created time.Time // the source's stream; zero: not known yet

	loaded bool       // last is known
	last   Checkpoint // the newest source event from which the target may have been made
}

// check looks at the target, once.
func (c *compaction) check(ctx context.Context) error {
	if c.checked {
		return nil
	}
	info, err := c.b.TopicInfo(ctx, c.Target)
	switch {
	case err != nil:
		return err
	case !info.Config.Compact:
		return fmt.Errorf("%w: %s is not compacted", ErrNoState, c.Target)
	case info.Config.TombstoneTTL < minCompactorTombstone:
		return fmt.Errorf("%w: TombstoneTTL of %s is %v, a compactor needs at least %v: keys that were deleted would come back",
			ErrInvalidOption, c.Target, info.Config.TombstoneTTL, minCompactorTombstone)
	}
	c.checked = true
	return nil
}

// sameHistory reports whether the source still has the events from which the target was made.
// It must be called after a batch is received and before the batch is stored; see
// projector/history.go. If the source and the target were both restored, they may agree again,
// but the batch may belong to either history: sameHistory returns false, and the batch must be
// given back. If they do not agree, the error is a RestoredError.
func (c *compaction) sameHistory(ctx context.Context) (same bool, err error) {
	if !c.loaded {
		if err := c.load(ctx); err != nil {
			return false, err
		}
	}
	err = c.last.Verify(ctx, c.b, c.Source)
	if _, restored := errors.AsType[*RestoredError](err); !restored {
		return err == nil, err
	}
	if err := c.load(ctx); err != nil {
		return false, err
	}
	return false, c.last.Verify(ctx, c.b, c.Source)
}

// load reads the newest source event from which the target was made. It is recorded in the last
// event that a compactor published; other programs may have published later events.
func (c *compaction) load(ctx context.Context) error {
	c.last, c.loaded = Checkpoint{}, false
	info, err := c.b.TopicInfo(ctx, c.Target)
	if err != nil {
		return err
	}
	for step := uint64(1); !c.loaded; step *= 4 {
		after := info.LastSeq - min(step, info.LastSeq)
		for e, err := range c.b.Scan(ctx, c.Target, ScanQuery{From: AfterSeq(after)}) {
			if errors.Is(err, ErrPositionUnknown) {
				return fmt.Errorf("%w: %s was restored while its end was read", ErrUnavailable, c.Target)
			}
			if err != nil {
				return err
			}
			if last := c.lastOf(&e); last.Seq > c.last.Seq {
				c.last = last
			}
		}
		c.loaded = c.last.Seq > 0 || after == 0
	}
	return nil
}

// lastOf parses HeaderCompactedLast. It returns zero if e was made from another stream, or not
// by a compactor.
func (c *compaction) lastOf(e *Event) (last Checkpoint) {
	var stored int64
	_, err := fmt.Sscanf(e.Headers[HeaderCompactedLast], "%d %d", &last.Seq, &stored)
	if err != nil || e.Headers[HeaderCompactedCreated] != strconv.FormatInt(c.created.UnixMilli(), 10) {
		return Checkpoint{}
	}
	last.Stored = time.Unix(0, stored).UTC()
	return last
}

func (c *compaction) run(ctx context.Context) (err error) {
	for err == nil {
		err = c.Lock.Hold(ctx, c.b, func(ctx context.Context, _ Held) (bool, error) {
			c.loaded = false // another process may have worked in the meantime
			err := c.work(ctx)
			return err == nil, err
		})
		switch {
		case ctx.Err() != nil:
			if errors.Is(err, context.Cause(ctx)) && !errors.Is(err, ErrUnavailable) {
				return nil
			}
			return err
		case errors.Is(err, ErrLockLost):
			c.Logger.LogAttrs(ctx, slog.LevelWarn, "compactor lost its lock", slog.String("target", c.Target), slog.Any("err", err))
			err = nil
		}
	}
	return err
}

// work compacts batch by batch until ctx ends. It returns the failure that it
// has not overcome, if there is one.
func (c *compaction) work(ctx context.Context) error {
	backoff := Backoff{Min: lockPause, Max: 30 * time.Second}
	var failure error
	for failures := 0; ; {
		n, err := c.step(ctx)
		switch {
		case ctx.Err() != nil:
			return failure
		case err == nil:
			failures, failure = 0, nil
			if n > 0 && n < c.BatchSize {
				sleep(ctx, c.Interval)
			}
			continue
		case isHopeless(err):
			return err
		}
		if failures++; failures >= compactorFailures && !errors.Is(err, ErrUnavailable) {
			return fmt.Errorf("%d times in a row: %w", failures, err)
		}
		failure = err
		c.Logger.LogAttrs(ctx, slog.LevelWarn, "compactor tries again", slog.String("target", c.Target), slog.Any("err", err))
		sleep(ctx, backoff.Delay(failures))
	}
}

// isHopeless reports whether the same batch would fail again.
func isHopeless(err error) bool {
	if _, ok := errors.AsType[*PanicError](err); ok || isFinal(err) {
		return true
	}
	for _, reason := range []error{ErrInvalidEvent, ErrInvalidHeader, ErrPayloadTooLarge, ErrNoTopic, ErrNoState, ErrNeedsKeySubject, ErrPositionUnknown} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// step compacts one batch and returns how many events it had. They are
// acknowledged when everything is stored, and given back where it is not.
func (c *compaction) step(ctx context.Context) (n int, err error) {
	if err := c.check(ctx); err != nil {
		return 0, err
	}
	if c.created.IsZero() {
		if _, err := c.madeAnew(ctx); err != nil {
			return 0, err
		}
	}
	batch, err := c.b.Receive(ctx, c.Source, c.Group, ReceiveOptions{
		From: Earliest(), Max: c.BatchSize, AckTimeout: compactorLease, MaxAttempts: -1,
	})
	if err != nil {
		return 0, err
	}
	same := false
	anew, err := c.madeAnew(ctx)
	if err == nil {
		c.loaded = c.loaded && !anew
		same, err = c.sameHistory(ctx)
	}
	if same = same && !anew; same { // else the events may belong to either stream
		err = c.store(ctx, batch)
	}
	settling, cancel := context.WithTimeout(context.WithoutCancel(ctx), compactorSettle)
	defer cancel()
	for _, d := range batch {
		if err != nil || !same {
			_ = d.GiveBack(settling) // it comes back in any case
			continue
		}
		if failed := d.Ack(settling); failed != nil && !errors.Is(failed, ErrLeaseExpired) { // an expired one comes again, and is found to be done
			err = fmt.Errorf("acknowledge %s: %w", d.ID, failed)
		}
	}
	return len(batch), err
}

// store compacts a batch.
func (c *compaction) store(ctx context.Context, batch []*Delivery) error {
	for _, d := range batch {
		if d.ReplayOf == 0 && d.Seq > c.last.Seq && !d.Stored.IsZero() { // a replayed event does not have its original Stored time
			c.last = CheckpointOf(&d.Event)
		}
	}
	last, err := c.fold(batch)
	if err != nil {
		return err
	}
	return c.apply(ctx, last)
}

// madeAnew reads when the source's stream was created, and reports whether it has been
// re-created since the last call: its sequences then start at 1 again.
func (c *compaction) madeAnew(ctx context.Context) (bool, error) {
	info, err := c.b.TopicInfo(ctx, c.Source)
	if err != nil {
		return false, err
	}
	before := c.created
	c.created = info.Created
	return !before.IsZero() && !before.Equal(info.Created), nil
}

// fold returns the last event of each key.
func (c *compaction) fold(batch []*Delivery) (map[string]Event, error) {
	last := make(map[string]Event, len(batch))
	for _, d := range batch {
		key, keep, err := c.keyOf(d.Event)
		if err == nil && keep {
			if err = ValidKey(key); key == "" {
				err = fmt.Errorf("%w: KeyOf returned no key", ErrInvalidEvent)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("key of event %s (%s %d): %w", d.ID, d.Topic, d.Seq, err)
		}
		if have, ok := last[key]; keep && (!ok || d.Seq > have.Seq) {
			last[key] = d.Event
		}
	}
	return last, nil
}

// keyOf calls KeyOf and makes an error of its panic.
func (c *compaction) keyOf(e Event) (key string, keep bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	key, keep = c.KeyOf(e)
	return key, keep, nil
}

// apply stores what is newer than the target has.
func (c *compaction) apply(ctx context.Context, last map[string]Event) error {
	todo := slices.Sorted(maps.Keys(last))
	for round := range compactorRounds {
		if len(todo) == 0 {
			return nil
		}
		have, err := c.b.LatestByKey(ctx, c.Target, todo...)
		if err == nil && round > 0 {
			err = c.addDeleted(ctx, todo, have)
		}
		if err == nil {
			todo, err = c.publishNewer(ctx, todo, last, have)
		}
		if err != nil {
			return err
		}
	}
	if len(todo) == 0 {
		return nil
	}
	return fmt.Errorf("%d keys, such as %q, were changed by others %d times: %w", len(todo), todo[0], compactorRounds, ErrWrongSequence)
}

// addDeleted adds the tombstones of keys to what LatestByKey found. They are
// rarely asked for: where an event of a key that seems to be new was refused.
func (c *compaction) addDeleted(ctx context.Context, keys []string, have map[string]Event) error {
	missing := map[string]bool{}
	first, last := "", ""
	for _, key := range keys { // sorted
		if _, ok := have[key]; !ok {
			missing[key] = true
			if last = key; len(missing) == 1 {
				first = key
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	_, err := c.b.ScanLatest(ctx, c.Target, LatestQuery{KeyPrefix: commonPrefix(first, last)}, func(e Event) error {
		if missing[e.Key] {
			have[e.Key] = e
		}
		return nil
	})
	return err
}

// commonPrefix returns what two strings, and all between them, start with.
func commonPrefix(a, b string) string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	for !utf8.ValidString(a[:n]) { // not in the middle of a character
		n--
	}
	return a[:n]
}

// publishNewer publishes the events that are newer than those of the target, on
// condition that these are still there, and returns the keys for which they are not.
func (c *compaction) publishNewer(ctx context.Context, keys []string, last, have map[string]Event) (conflicts []string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var writers sync.WaitGroup
	skipped := map[string]error{}
	slots := make(chan struct{}, compactorWriters)
	for _, key := range keys {
		in := have[key]
		seq, later := c.compactedSeq(&in)
		if later != nil {
			mu.Lock()
			err = cmp.Or(err, later)
			mu.Unlock()
			break
		}
		if seq >= last[key].Seq {
			continue
		}
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		writers.Go(func() {
			defer func() { <-slots }()
			_, failed := c.b.Publish(ctx, c.record(key, last[key]), PublishOptions{ExpectLastSeq: &in.Seq})
			if failed == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(failed, ErrWrongSequence):
				conflicts = append(conflicts, key)
			case c.OnSkip != nil && (errors.Is(failed, ErrPayloadTooLarge) || errors.Is(failed, ErrInvalidHeader)):
				skipped[key] = failed
			case err == nil:
				err = failed
				cancel()
			}
		})
	}
	writers.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	for _, key := range slices.Sorted(maps.Keys(skipped)) {
		if err == nil {
			err = c.skip(last[key], skipped[key])
		}
	}
	slices.Sort(conflicts)
	return conflicts, err
}

// skip calls OnSkip and makes an error of its panic.
func (c *compaction) skip(e Event, reason error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	c.OnSkip(e, reason)
	return nil
}

// compactedSeq is the Seq of the source event that an event of the target was made
// of; 0 where it was not, or of one of an earlier stream of that name: whatever is in the present
// one is newer. One of a later stream is an error: the source was put back to what it was before.
func (c *compaction) compactedSeq(e *Event) (uint64, error) {
	seq, err := strconv.ParseUint(e.Headers[HeaderCompactedSeq], 10, 64)
	if err != nil {
		return 0, nil //nolint:nilerr // it was made by somebody else
	}
	made, err := strconv.ParseInt(e.Headers[HeaderCompactedCreated], 10, 64)
	switch now := c.created.UnixMilli(); {
	case err != nil: // of a compactor that did not say
		return seq, nil //nolint:nilerr // see above
	case made < now:
		return 0, nil
	case made > now:
		return 0, fmt.Errorf("%w: key %q of %s is of the %s that was made at %v, and that was made at %v: was it restored? make the target anew",
			ErrPositionUnknown, e.Key, c.Target, c.Source, time.UnixMilli(made).UTC(), c.created.UTC())
	}
	return seq, nil
}

// record makes the event of the target.
func (c *compaction) record(key string, e Event) Event {
	e.CausedBy = []string{e.ID}
	e.ID, e.Topic, e.Key = "", c.Target, key
	e.Headers = maps.Clone(e.Headers)
	if e.Headers == nil {
		e.Headers = map[string]string{}
	}
	e.Headers[HeaderCompactedSeq] = strconv.FormatUint(e.Seq, 10)
	e.Headers[HeaderCompactedCreated] = strconv.FormatInt(c.created.UnixMilli(), 10)
	if c.last.Seq > 0 {
		e.Headers[HeaderCompactedLast] = fmt.Sprint(c.last.Seq, c.last.Stored.UnixNano())
	}
	if e.IsTombstone() {
		e.Headers[HeaderTombstone] = "1"
	}
	return e
}
