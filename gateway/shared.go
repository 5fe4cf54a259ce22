package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// Limits of a live end, which the readers of a topic share.
const (
	sharedBytes = 2 << 20 // of the last events and their JSON, for readers that have not sent them yet
	sharedTake  = 64      // events of one take
	// sharedTakeBytes is about how many bytes one take returns. A reader that stalls holds them.
	sharedTakeBytes = 128 << 10
	sharedWait      = time.Second // how long slow readers delay the others; then they read alone
)

// live holds the live ends of the topics that readers follow.
type live struct {
	mu   sync.Mutex
	ends map[liveKey]*liveEnd
}

// liveKey identifies a topic. A topic that is deleted and re-created has another key.
type liveKey struct {
	topic  string
	stream uint64
}

// liveEnd reads new events of a topic once, for all readers that follow it. It keeps the last
// events. A reader reads older events alone and joins when it has caught up. A reader that is too
// slow for the live end reads alone again. A live end stops when its last reader leaves.
type liveEnd struct {
	b jetbus.Backend
	liveKey
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has returned
	room   chan struct{} // signaled when a reader joins, leaves, or takes events while full is set; capacity 1

	mu       sync.Mutex
	events   []*encoded
	bytes    int               // of events
	gone     uint64            // number of events that were removed from events
	base     uint64            // the first of events is the first event after this sequence
	at       uint64            // sequence of the last event that was read
	last     jetbus.Checkpoint // newest event up to at; zero: unknown
	full     bool              // it waits for readers to take events
	err      error             // why it stopped
	watchers map[*watcher]struct{}
}

// watcher is one reader at a live end.
type watcher struct {
	end   *liveEnd
	ready chan struct{} // signaled when there is something to take; capacity 1
	next  uint64        // number of the next event, from the first that was ever read; guarded by end.mu
	lost  uint64        // fell behind: the sequence up to which it has to read alone; guarded by end.mu
}

// errBehind tells a watcher to read alone.
var errBehind = errors.New("the reader is behind the live end")

// watch joins the live end of a topic after a sequence. last is the newest event up to there that the
// caller knows. If the live end does not have the next events any more, watch returns nil and the
// sequence up to which the caller must read alone.
func (l *live) watch(ctx context.Context, b jetbus.Backend, key liveKey, after uint64, last jetbus.Checkpoint, ready chan struct{}) (*watcher, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.ends[key]
	if e == nil || e.failed() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		e = &liveEnd{
			b: b, liveKey: key, cancel: cancel, base: after, at: after, last: last, ended: make(chan struct{}),
			room: make(chan struct{}, 1), watchers: map[*watcher]struct{}{},
		}
		l.ends[key] = e
		go e.run(ctx) // the last watcher waits for it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if after < e.base {
		return nil, e.base
	}
	w := &watcher{end: e, ready: ready, next: e.gone + uint64(len(e.events))}
	for i, ev := range e.events {
		if ev.Seq > after {
			w.next = e.gone + uint64(i) //nolint:gosec // no negative number
			signal(ready)
			break
		}
	}
	e.watchers[w] = struct{}{}
	signal(e.room)
	return w, 0
}

// covers reports whether a reader that read alone up to a sequence can watch now. Where nobody
// watches it reads on: a live end of its own would read ahead of a slow one time and again.
func (l *live) covers(key liveKey, after uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.ends[key]
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return after >= e.base
}

// leave ends a watcher; with the last one its live end.
func (l *live) leave(w *watcher) {
	e := w.end
	l.mu.Lock()
	e.mu.Lock()
	delete(e.watchers, w)
	last := len(e.watchers) == 0
	e.mu.Unlock()
	if last && l.ends[e.liveKey] == e {
		delete(l.ends, e.liveKey)
	}
	l.mu.Unlock()
	signal(e.room)
	if last {
		e.cancel()
		<-e.ended
	}
}

// take returns what comes next for a watcher, none where it has to wait. The error is
// errBehind, or why the live end does not go on.
func (w *watcher) take(into []*encoded) ([]*encoded, error) {
	e := w.end
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.lost > 0 {
		return nil, errBehind
	}
	from := int(w.next - e.gone) //nolint:gosec // at most len(events)
	into = into[:0]
	for size := 0; from+len(into) < len(e.events) && len(into) < sharedTake; {
		ev := e.events[from+len(into)]
		if size += ev.size; size > sharedTakeBytes && len(into) > 0 {
			break
		}
		into = append(into, ev)
	}
	if len(into) == 0 {
		return nil, e.err
	}
	w.next += uint64(len(into))
	if e.full {
		signal(e.room)
	}
	return into, nil
}

func (e *liveEnd) failed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err != nil
}

// run reads until the last watcher has left, or the bus says that there is no more to read.
func (e *liveEnd) run(ctx context.Context) {
	defer close(e.ended)
	for wait := retryWait; ; {
		before := e.at // nobody else writes it
		err := e.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && (!codeOf(err).Retryable() || errors.Is(err, jetbus.ErrClosed)) {
			e.fail(err)
			return
		}
		if e.at != before {
			wait = retryWait
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		wait = min(2*wait, retryWaitMax)
	}
}

// fail tells all watchers.
func (e *liveEnd) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
	e.wakeLocked()
}

func (e *liveEnd) wakeLocked() {
	for w := range e.watchers {
		signal(w.ready)
	}
}

// read reads what comes from now on.
func (e *liveEnd) read(ctx context.Context) error {
	info, err := e.b.TopicInfo(ctx, e.topic)
	if err != nil {
		return err
	}
	if streamOf(info) != e.stream {
		return fmt.Errorf("read %s: %w", e.topic, jetbus.ErrPositionUnknown)
	}
	o := jetbus.ReadOptions{
		Follow: true, After: map[string]uint64{e.topic: e.at}, Last: map[string]jetbus.Checkpoint{e.topic: e.last},
		Created: map[string]time.Time{e.topic: info.Created},
	}
	for ev, err := range e.b.Read(ctx, []string{e.topic}, o) {
		if err != nil {
			return err
		}
		if !e.add(ctx, encode(&ev, e.stream)) {
			return nil
		}
	}
	return nil
}

// add appends an event. It reports false when ctx has ended.
func (e *liveEnd) add(ctx context.Context, ev *encoded) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.events) > 0 && e.bytes+ev.size > sharedBytes {
		if !e.dropLocked(false) && !e.waitLocked(ctx) {
			return false
		}
	}
	e.events = append(e.events, ev)
	e.bytes += ev.size
	e.at, e.last = ev.Seq, jetbus.CheckpointOf(&ev.Event)
	e.wakeLocked()
	return true
}

// waitLocked waits until the first events can be dropped. It reports false when ctx has ended.
func (e *liveEnd) waitLocked(ctx context.Context) bool {
	late := time.NewTimer(sharedWait)
	defer late.Stop()
	e.full = true
	defer func() { e.full = false }()
	for force := false; ; {
		e.mu.Unlock()
		select {
		case <-e.room:
		case <-late.C:
			force = true
		case <-ctx.Done():
		}
		e.mu.Lock()
		switch {
		case ctx.Err() != nil:
			return false
		case e.dropLocked(force):
			return true
		}
	}
}

// dropLocked drops the first quarter of the events, if no watcher is there any more. It does
// not wait for a few that are far behind the others: those go on alone, and so does everyone
// who is there where force is set. Where nobody is there at all it does not read ahead for them. It
// reports whether it did.
func (e *liveEnd) dropLocked(force bool) bool {
	n := (len(e.events) + 3) / 4
	first, last := e.gone+uint64(n), e.gone+uint64(len(e.events)-n) //nolint:gosec // no negative numbers
	there, slow, fast := 0, 0, 0
	for w := range e.watchers {
		if w.lost > 0 {
			continue
		}
		there++
		switch {
		case w.next < first:
			slow++
		case w.next >= last:
			fast++
		}
	}
	few := slow <= max(1, len(e.watchers)/8) && slow <= fast
	if there == 0 || slow > 0 && !few && !force {
		return false
	}
	for _, ev := range e.events[:n] {
		e.bytes -= ev.size
		e.base = ev.Seq
	}
	e.events, e.gone = slices.Delete(e.events, 0, n), first
	for w := range e.watchers {
		if w.next < first && w.lost == 0 {
			w.lost = e.base
			signal(w.ready)
		}
	}
	return true
}
