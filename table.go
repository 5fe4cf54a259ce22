package jetbus

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Table is the state of a topic in memory, kept up to date: the last event of each key.
// Reading it costs no request. It lags behind the topic by the time that an event takes to
// arrive from the broker; see [Table.WaitFor].
//
// Its methods may be called concurrently. The events that they return share memory with the
// table and must not be changed.
type Table struct {
	topic  string
	o      TableOptions
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu     sync.RWMutex
	events map[string]Event
	gone   map[string]uint64 // keys deleted after asOf: loading may see later events than it promises
	asOf   uint64
	last   Checkpoint // the newest event that was loaded; only follow reads it
	err    error
	wake   chan struct{} // closed when asOf grows; nil: no caller waits
}

// TableOptions configures a Table.
type TableOptions struct {
	// Snapshot is a topic declared with TopicConfig.SnapshotOf the table's topic. The table
	// is loaded from it, and only newer events are read from the topic itself. A snapshot of
	// another topic is [ErrInvalidOption]. A topic that is not compacted should have a
	// snapshot. Defaults to none.
	Snapshot string
	// KeyPrefix selects the keys. Defaults to all.
	KeyPrefix string
	// OnChange is called after each change that arrives once the table is open, with the
	// event that caused it. Calls are made one at a time in the order of the topic, each
	// before the next event is applied. OnChange may read the table, must not block, and
	// must not call Close. If it panics, the table ends. Defaults to none.
	OnChange func(key string, e Event, deleted bool)
}

// TableBus is what a [Table] needs of a [Backend].
type TableBus interface {
	StateStore
	Reader
}

// errTableClosed is the cause of a table's end after Close.
var errTableClosed = errors.New("table is closed")

// OpenTable loads the state of a topic, which needs KeyInSubject, and returns when the state
// is loaded. The table then follows the topic through lost connections and broker restarts,
// until Close or the end of ctx. The table does not notice events that the topic removes
// before the table has read them, in an outage longer than Retention or, in a compacted
// topic, TombstoneTTL: make both much longer. The error is the one that
// [StateStore.ScanLatest] returns.
func OpenTable(ctx context.Context, b TableBus, topic string, o TableOptions) (*Table, error) {
	t := &Table{topic: topic, o: o, done: make(chan struct{}), events: map[string]Event{}, gone: map[string]uint64{}}
	from := topic
	if o.Snapshot != "" {
		from = o.Snapshot
	}
	asOf, err := b.ScanLatest(ctx, from, LatestQuery{KeyPrefix: o.KeyPrefix}, func(e Event) error {
		if e.Topic != topic {
			return fmt.Errorf("%w: Snapshot is %s, which has events of topic %s", ErrInvalidOption, from, e.Topic)
		}
		if e.Seq > t.last.Seq {
			t.last = CheckpointOf(&e)
		}
		t.apply(&e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open table of %s: %w", topic, err)
	}
	t.asOf = asOf
	if from != topic {
		t.last.Stored = time.Time{} // it is the time when the snapshot stored the event
	}
	maps.DeleteFunc(t.gone, func(_ string, seq uint64) bool { return seq <= asOf }) // nothing older comes
	ctx, t.cancel = context.WithCancelCause(ctx)
	go t.run(ctx, b) // ends with ctx; Close waits for it
	return t, nil
}

// run follows the topic until ctx ends or reading fails.
func (t *Table) run(ctx context.Context, b TableBus) {
	err := t.follow(ctx, b)
	if err != nil && (ctx.Err() == nil || !errors.Is(err, context.Cause(ctx))) {
		t.mu.Lock()
		t.err = fmt.Errorf("table of %s: %w", t.topic, err)
		t.mu.Unlock()
	}
	t.cancel(nil)
	close(t.done)
}

func (t *Table) follow(ctx context.Context, b TableBus) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	o := ReadOptions{Follow: true, After: map[string]uint64{t.topic: t.AsOf()}, Last: map[string]Checkpoint{t.topic: t.last}}
	// Without a key filter: the other events advance asOf, too.
	for e, err := range b.Read(ctx, []string{t.topic}, o) {
		if err != nil {
			return err
		}
		t.next(&e)
	}
	return context.Cause(ctx)
}

// next applies the next event of the topic.
func (t *Table) next(e *Event) {
	t.mu.Lock()
	if e.Seq <= t.asOf {
		t.mu.Unlock()
		return
	}
	changed := strings.HasPrefix(e.Key, t.o.KeyPrefix) && t.apply(e)
	delete(t.gone, e.Key)
	t.asOf = e.Seq
	wake := t.wake
	t.wake = nil
	t.mu.Unlock()
	if wake != nil {
		close(wake)
	}
	if changed && t.o.OnChange != nil {
		t.o.OnChange(e.Key, *e, e.IsTombstone())
	}
}

// apply puts an event in its place unless there is a newer one, and reports
// whether that changed anything.
func (t *Table) apply(e *Event) bool {
	have, had := t.events[e.Key]
	switch {
	case max(have.Seq, t.gone[e.Key]) >= e.Seq:
		return false
	case e.IsTombstone():
		delete(t.events, e.Key)
		t.gone[e.Key] = e.Seq
		return had
	}
	delete(t.gone, e.Key)
	t.events[e.Key] = *e
	return true
}

// Get returns the last event of a key, and false where the key has none or is deleted.
func (t *Table) Get(key string) (Event, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e, ok := t.events[key]
	return e, ok
}

// Len returns the number of keys.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.events)
}

// All returns the keys and their last events in no particular order, all as they
// were at the moment when the loop began: the loop sees no change, may take its
// time and may call the table. Its memory follows the number of keys.
func (t *Table) All() iter.Seq2[string, Event] {
	return func(yield func(string, Event) bool) {
		t.mu.RLock()
		events := maps.Clone(t.events)
		t.mu.RUnlock()
		for key, e := range events {
			if !yield(key, e) {
				return
			}
		}
	}
}

// AsOf returns the position up to which the table has taken in the topic.
func (t *Table) AsOf() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.asOf
}

// WaitFor returns when the table has taken in everything up to a position, such
// as that of an event just published ([Receipt]): a program then reads its own
// writes. The error is that of ctx, or the table's where that has ended
// ([ErrClosed] after Close). An event that nothing followed and that expired
// before it came here is waited for in vain.
func (t *Table) WaitFor(ctx context.Context, seq uint64) error {
	for {
		t.mu.Lock()
		asOf, wake := t.asOf, t.wake
		if asOf < seq && wake == nil {
			wake = make(chan struct{})
			t.wake = wake
		}
		t.mu.Unlock()
		if asOf >= seq {
			return nil
		}
		select {
		case <-wake:
		case <-t.done:
			if t.AsOf() >= seq {
				return nil
			}
			if err := t.Err(); err != nil {
				return err
			}
			return fmt.Errorf("wait for event %d of %s: the table is closed: %w", seq, t.topic, ErrClosed)
		case <-ctx.Done():
			return fmt.Errorf("wait for event %d of %s, the table is at %d: %w", seq, t.topic, asOf, context.Cause(ctx))
		}
	}
}

// Close ends the table and waits until it has: OnChange is not called any more.
// What the table holds can still be read. It may be called twice, and concurrently.
func (t *Table) Close() {
	t.cancel(errTableClosed)
	<-t.done
}

// Done is closed when the table has ended, for whatever reason.
func (t *Table) Done() <-chan struct{} { return t.done }

// Err returns why the table ended: nil while it follows the topic, after Close, and after
// the end of its context. Otherwise it is the error of reading, such as [ErrNoTopic],
// [ErrPositionUnknown] if the topic was deleted and declared again, a [RestoredError] if its
// broker was restored to an earlier state, or [ErrClosed]; or it is a [PanicError] of
// OnChange. Open the table again to load the present state.
func (t *Table) Err() error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.err
}
