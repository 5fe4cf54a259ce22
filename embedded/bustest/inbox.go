package bustest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// inbox is what the handlers of a behavior have succeeded with, as an idempotent service
// keeps it: what comes again is not handled again. See [Options].Repeats.
type inbox struct {
	mu   sync.Mutex
	done map[handled]bool
}

// handled is an event as a group has it.
type handled struct {
	group, topic  string
	seq, replayOf uint64
}

func newInbox() *inbox { return &inbox{done: map[handled]bool{}} }

func (i *inbox) has(e handled) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.done[e]
}

func (i *inbox) add(e handled) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.done[e] = true
}

// once is a handler that does nothing for what it has succeeded with.
func (i *inbox) once(h jetbus.Handler) jetbus.Handler {
	if i == nil {
		return h
	}
	return func(ctx context.Context, d *jetbus.Delivery) error {
		of := handled{d.Group, d.Topic, d.Seq, d.ReplayOf}
		if i.has(of) {
			return nil
		}
		err := h(ctx, d)
		if err == nil && ctx.Err() == nil {
			i.add(of)
		}
		return err
	}
}

// again says that events behind a position are to be handled again: a group is moved back,
// they are tried again, or their topic is another one now.
func (r *run) again(after uint64) {
	if r.inbox == nil {
		return
	}
	r.inbox.mu.Lock()
	defer r.inbox.mu.Unlock()
	maps.DeleteFunc(r.inbox.done, func(e handled, _ bool) bool { return e.seq > after })
}

// settledBy is settled for events that are settled by hand. Where one may come again
// nevertheless, settle is called as long as it does not stay so.
func (r *run) settledBy(topic, group string, seq uint64, settle func()) {
	r.Helper()
	r.reaches(topic, group, func(g jetbus.GroupInfo) bool {
		ok := g.Held == 0 && g.Pending == 0 && g.AckedSeq >= seq
		if !ok && r.inbox != nil {
			settle()
		}
		return ok
	}, fmt.Sprintf("settled up to %d", seq))
}

// mustSettle is must for an event that is settled by hand. Where it may come again its lease
// may be over as well, and it is settled when it comes.
func (r *run) mustSettle(err error) {
	r.Helper()
	if r.inbox == nil {
		r.must(err)
	}
}

// twice reports whether an ID settles nothing since this member has its event twice: that it was
// delivered may be lost with a leader.
func (r *run) twice(err error) bool { return r.inbox != nil && errors.Is(err, jetbus.ErrConflict) }

// insist makes a call. Where leaders change all the time it makes it again, until the test ends,
// as long as its error is the one by which it says that something was lost with a leader.
func (r *run) insist(lost error, call func() error) error {
	for {
		err := call()
		if r.inbox == nil || !errors.Is(err, lost) || r.ctx.Err() != nil {
			return err
		}
		linger(r.ctx, 2*time.Second)
	}
}

// move moves a group whose members run. An acknowledgement or a delivery that was lost holds its
// event until the move gives up: then the members get it, and the group is moved again.
func (r *run) move(bus jetbus.Cursors, topic string, c jetbus.Cursor, o jetbus.SeekOptions) error {
	return r.insist(jetbus.ErrGroupBusy, func() error { return bus.SetCursor(r.ctx, topic, "g", c, o) })
}

// moving are the options of a move that has to wait for what is held, or would have to. Where it
// may wait in vain, see move, it does not wait for long.
func (r *run) moving() jetbus.SeekOptions {
	if r.inbox == nil {
		return jetbus.SeekOptions{}
	}
	return jetbus.SeekOptions{Wait: 10 * time.Second}
}

// refused reports whether a publish that was refused says rightly that nothing is stored. Where
// its first try may get no answer it cannot know that.
func (r *run) refused(s jetbus.Stored) bool {
	return s == jetbus.StoredNo || s == jetbus.StoredUnknown && r.inbox != nil
}

// successor has B take over a group whose only member has stopped. Where events may come
// again an acknowledgement may be lost, too, and somebody has to be there who gets the event.
func (r *run) successor(topic string) {
	r.Helper()
	if r.inbox != nil {
		r.subscribe(r.B, topic, "g", r.newRecord().handle, jetbus.SubscribeOptions{})
	}
}
