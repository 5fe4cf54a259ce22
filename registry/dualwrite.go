package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// DualWriteOptions say what is written twice. The zero value is usable.
type DualWriteOptions struct {
	// Topics are those that are written twice. Defaults to all that have a schema.
	Topics []string
	// Versions are the versions of the schemas that this program was written for, by
	// topic, as in ValidatedOptions: an event that states none follows that one.
	// Defaults to the latest one of a topic.
	Versions map[string]int
	// Atomic stores both events or none. Both topics must share one stream
	// (TopicConfig.Stream, else jetbus.ErrConflict), and the server be 2.12 or newer.
	Atomic bool
}

// DualWrite returns a backend that stores each event twice: in its topic, and in the
// topic of its version, <topic>.v<n>, which must be declared. Both have one ID and
// time, and state the same version. The receipts are those of the event's own topic.
// Topics whose names end in a version are written once, as are dead letters, events
// of topics without a schema, and retries.
//
// The twin of a jetbus.Tombstone is a null without its header: it deletes the key where the
// topic of the version keeps state, and is a payload like any other where it does not. It is
// the event's own topic that must keep state.
//
// Without Atomic, the topic of the version is written first, so that what keeps an
// event out of that keeps it out of both. A failure of either is an error, a
// jetbus.PublishError with a [DualWriteError] in it that says what is stored. Publishing
// the same event again, with its ID, inside the duplicate window completes it.
//
// ExpectLastSeq cannot hold in two topics: it is an error (jetbus.ErrInvalidOption),
// but with Atomic, where it holds in the event's own topic. DeliverAt is an
// error with Atomic. A chained batch is refused ([jetbus.ErrConflict]): it is of one topic.
// A dry run checks both events separately. It does not check that both topics share one stream, which Atomic needs.
//
// Put Validated around it: Validated(DualWrite(b, r, ...), r, ...).
func DualWrite(b jetbus.Backend, r *Registry, o DualWriteOptions) jetbus.Backend {
	return &dualWrite{Backend: b, r: r, o: o}
}

// DualWriteError says which of two writes failed.
type DualWriteError struct {
	Stored string // the topic that holds the event for certain; "" if none does
	Failed string // the topic whose write failed
	Err    error  // why; a jetbus.PublishError says whether the event may be there all the same
}

// Error says what is stored and what is to be done.
func (e *DualWriteError) Error() string {
	if e.Stored == "" {
		return fmt.Sprintf("write to %s: %v", e.Failed, e.Err)
	}
	return fmt.Sprintf("stored in %s and not in %s: %v; publish the same event again", e.Stored, e.Failed, e.Err)
}

// Unwrap returns the reason.
func (e *DualWriteError) Unwrap() error { return e.Err }

// dualWrite is the decorator.
type dualWrite struct {
	jetbus.Backend

	r *Registry
	o DualWriteOptions
}

// twin returns the event for the topic of its version, and false where there is no
// such topic. It completes e, so that both are alike.
func (b *dualWrite) twin(ctx context.Context, e *jetbus.Event) (jetbus.Event, bool, error) {
	if jetbus.IsDeadLetterTopic(e.Topic) || endsInVersion(e.Topic) || b.o.Topics != nil && !slices.Contains(b.o.Topics, e.Topic) {
		return jetbus.Event{}, false, nil
	}
	t, err := versionFor(ctx, b.r, e, b.o.Versions)
	if err != nil {
		return jetbus.Event{}, false, err
	}
	if t.schema == nil {
		if b.o.Topics != nil && jetbus.ValidTopic(e.Topic) == nil {
			return jetbus.Event{}, false, fmt.Errorf("dual write of %s: %w", e.Topic, ErrNoSchema)
		}
		return jetbus.Event{}, false, nil
	}
	if !e.IsTombstone() {
		stamp(e, t.version)
	}
	if e.ID == "" {
		e.ID = jetbus.NewID()
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	out := *e
	out.Topic = e.Topic + ".v" + strconv.Itoa(t.version)
	unmark(&out)
	return out, true, nil
}

// unmark makes a mere null of an event that is meant as a tombstone: it would be refused
// where it deletes nothing. The map that it had is not changed.
func unmark(e *jetbus.Event) {
	if !isMeantAsTombstone(e) {
		return
	}
	e.Headers = maps.Clone(e.Headers)
	delete(e.Headers, jetbus.HeaderTombstone)
}

// endsInVersion reports whether a topic's last segment is a version.
func endsInVersion(topic string) bool {
	last := topic[strings.LastIndexByte(topic, '.')+1:]
	return len(last) > 1 && last[0] == 'v' && strings.Trim(last[1:], "0123456789") == ""
}

// Publish implements jetbus.Publisher.
func (b *dualWrite) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	other, twice, err := b.twin(ctx, &e)
	if err != nil {
		return jetbus.Receipt{}, fmt.Errorf("publish %s: %w", e.Topic, err)
	}
	if !twice || len(o) > 1 {
		return b.Backend.Publish(ctx, e, o...)
	}
	var r jetbus.Receipt
	switch err = b.checkOptions(e, other, o); {
	case err != nil:
	case len(o) == 1 && o[0].DryRun:
		r, err = b.dryRun(ctx, e, other, o[0])
	case b.o.Atomic:
		r, err = b.publishAtomic(ctx, e, other, o)
	default:
		r, err = b.publishBoth(ctx, e, other, o)
	}
	if err != nil {
		return jetbus.Receipt{}, fmt.Errorf("publish %s: %w", e.Topic, err)
	}
	return r, nil
}

// checkOptions returns an error for options with which an event cannot be written twice.
func (b *dualWrite) checkOptions(e, other jetbus.Event, o []jetbus.PublishOptions) error {
	switch {
	case len(o) == 0:
	case b.o.Atomic && !o[0].DeliverAt.IsZero():
		return fmt.Errorf("%w: an atomic dual write takes no DeliverAt", jetbus.ErrInvalidOption)
	case b.o.Atomic:
	case o[0].ExpectLastSeq != nil:
		return expectsBoth(e, other, o[0])
	case isMeantAsTombstone(&e) && !o[0].DeliverAt.IsZero():
		return fmt.Errorf("%w: a dual write of a tombstone takes no DeliverAt", jetbus.ErrInvalidOption)
	}
	return nil
}

// dryRun checks both events and stores neither. If both are refused, the error is about the one that would be sent first.
func (b *dualWrite) dryRun(ctx context.Context, e, other jetbus.Event, o jetbus.PublishOptions) (jetbus.Receipt, error) {
	if err := e.Validate(); err != nil {
		return jetbus.Receipt{}, err
	}
	r, err := b.Backend.Publish(ctx, e, o)
	o.ExpectLastSeq = nil // with Atomic, the condition is about the event's own topic
	_, twinErr := b.Backend.Publish(ctx, other, o)
	switch {
	case twinErr != nil && (err == nil || !b.o.Atomic): // without Atomic, the twin is written first
		return jetbus.Receipt{}, halfStored(e, "", other.Topic, twinErr)
	case err != nil:
		return jetbus.Receipt{}, halfStored(e, "", e.Topic, err)
	}
	return r, nil
}

// publishBoth stores one event after the other.
func (b *dualWrite) publishBoth(ctx context.Context, e, other jetbus.Event, o []jetbus.PublishOptions) (jetbus.Receipt, error) {
	if err := e.Validate(); err != nil {
		return jetbus.Receipt{}, err
	}
	if isMeantAsTombstone(&e) {
		return b.publishTombstone(ctx, e, other, o)
	}
	if _, err := b.Backend.Publish(ctx, other, o...); err != nil {
		return jetbus.Receipt{}, halfStored(e, "", other.Topic, err)
	}
	r, err := b.Backend.Publish(ctx, e, o...)
	if err != nil {
		return jetbus.Receipt{}, halfStored(e, other.Topic, e.Topic, err)
	}
	return r, nil
}

// publishTombstone stores both events as a batch, of which nothing is sent where either topic
// does not take its event: what the twin is no longer marked as, the topic of the version
// does not refuse, and the event's own topic may.
func (b *dualWrite) publishTombstone(ctx context.Context, e, other jetbus.Event, o []jetbus.PublishOptions) (jetbus.Receipt, error) {
	var asked jetbus.PublishOptions
	if len(o) > 0 {
		asked = o[0]
	}
	p := pairs{events: make([]jetbus.Event, 1)}
	p.add(0, e, other, asked, true, false)
	var batch jetbus.BatchOptions
	if len(o) > 0 {
		batch.Each = p.each
	}
	receipts, err := p.fold(b.Backend.PublishBatch(ctx, p.all, batch))
	if failed, ok := errors.AsType[*jetbus.BatchError](err); ok && len(failed.Failed) == 1 {
		err = failed.Failed[0]
	}
	if err != nil {
		return jetbus.Receipt{}, err
	}
	return receipts[0], nil
}

// expectsBoth refuses a condition on two writes of which one may be made without the other.
func expectsBoth(e, other jetbus.Event, o jetbus.PublishOptions) error {
	if o.ExpectLastSeq == nil {
		return nil
	}
	return fmt.Errorf("%w: ExpectLastSeq with a dual write: it cannot hold in both %s and %s; use DualWriteOptions.Atomic", jetbus.ErrInvalidOption, e.Topic, other.Topic)
}

// halfStored makes the error of an event of which not both writes were
// acknowledged. Where one was, that the event is not stored would be said of the
// other alone: whoever keeps its ID must not forget it.
func halfStored(e jetbus.Event, stored, failed string, err error) error {
	half := &DualWriteError{Stored: stored, Failed: failed, Err: err}
	p, sent := errors.AsType[*jetbus.PublishError](err)
	switch {
	case stored != "":
		return &jetbus.PublishError{Event: e, Stored: jetbus.StoredUnknown, Err: half}
	case sent:
		return &jetbus.PublishError{Event: e, Stored: p.Stored, Err: half}
	}
	return half
}

// publishAtomic stores both events or none. A batch that is refused since one of
// them is stored already is written one by one: that completes it.
func (b *dualWrite) publishAtomic(ctx context.Context, e, other jetbus.Event, o []jetbus.PublishOptions) (jetbus.Receipt, error) {
	batch := jetbus.BatchOptions{Atomic: true}
	var asked jetbus.PublishOptions
	if len(o) > 0 {
		asked = o[0]
		batch.Each = []jetbus.PublishOptions{asked, {TTL: asked.TTL}}
	}
	receipts, err := b.Backend.PublishBatch(ctx, []jetbus.Event{e, other}, batch)
	failed, sent := errors.AsType[*jetbus.BatchError](err)
	switch {
	case err == nil:
		return receipts[0], nil
	case !sent || len(failed.Failed) == 0:
		return jetbus.Receipt{}, err
	case errors.Is(err, jetbus.ErrConflict) && asked.ExpectLastSeq != nil:
		return b.completeExpected(ctx, e, other, asked)
	case errors.Is(err, jetbus.ErrConflict):
		return b.publishBoth(ctx, e, other, o)
	}
	return jetbus.Receipt{}, &jetbus.PublishError{
		Event: e, Stored: failed.Failed[0].Stored, Err: fmt.Errorf("with %s: %w", other.Topic, failed.Failed[0].Err),
	}
}

// completeExpected stores what is missing of two events of which one is stored already. The
// one with the condition goes first: if that is refused, nothing is stored.
func (b *dualWrite) completeExpected(ctx context.Context, e, other jetbus.Event, o jetbus.PublishOptions) (jetbus.Receipt, error) {
	r, err := b.Backend.Publish(ctx, e, o)
	if err != nil {
		return jetbus.Receipt{}, halfStored(e, "", e.Topic, err)
	}
	if _, err := b.Backend.Publish(ctx, other, jetbus.PublishOptions{TTL: o.TTL}); err != nil {
		return jetbus.Receipt{}, halfStored(e, e.Topic, other.Topic, err)
	}
	return r, nil
}
