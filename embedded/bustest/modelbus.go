package bustest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// modelBus is one topic with one group in memory: what becomes of events, by the
// documentation alone. Whoever drives it says what was done and when, and asks what
// must have come of it.
type modelBus struct {
	events  []*modelEvent
	items   []*modelItem // that the group is not done with
	dead    []*modelDead
	names   map[string]bool
	cursor  uint64    // the last event delivered to the group, or where it was moved to
	started time.Time // the broker, the last time; zero: it is the first one
}

// modelEvent is what the topic holds at a position.
type modelEvent struct {
	id, key string
	at      time.Time
}

// modelItem is an event on its way through the group: from the topic, or one of
// the group's retries.
type modelItem struct {
	seq       uint64 // of the event in its topic
	retry     bool
	mark      string // what tells a named retry from its original
	replayOf  uint64
	replays   int
	failed    int
	err       string
	delivered bool
	leased    bool      // until a lease ends, and not because it was put off
	from      time.Time // it may be delivered from then on,
	sure      time.Time // and will be from then on
}

// modelLease is one delivery.
type modelLease struct {
	item    *modelItem
	max     int // attempts
	settled bool
	lost    bool
	stale   bool      // the group was moved by force since
	until   time.Time // by the broker's account
}

// modelDead is a dead letter.
type modelDead struct {
	seq      uint64
	mark     string
	replays  int
	replayOf uint64 // the dead letter whose replay it follows
	reason   jetbus.DeadReason
	attempts int
	err      string
	replayed bool
	at       uint64 // in the dead-letter topic, once seen: the order of those given up at once is not fixed
	since    time.Time
	or       *modelDead // given up at the same moment: either may be the first
}

const (
	modelTimeout = 25 * time.Second
	modelWindow  = 2 * time.Minute // of duplicates
	modelSlack   = 2 * time.Second // for what happens at the next tick
	longWait     = time.Minute     // waits beyond it are spent among the retries
)

// publish stores an event, unless it is a duplicate. It reports false where that
// cannot be known.
func (m *modelBus) publish(id, key string, now time.Time) (seq uint64, duplicate, known bool) {
	for i, e := range slices.Backward(m.events) {
		if e.id != id {
			continue
		}
		switch age := now.Sub(e.at); {
		case age < modelWindow-modelSlack:
			return uint64(i + 1), true, true
		case age < modelWindow+modelSlack, m.foundAgain(e, now):
			return 0, false, false
		}
		break
	}
	m.events = append(m.events, &modelEvent{id, key, now})
	seq = uint64(len(m.events))
	m.items = append(m.items, &modelItem{seq: seq})
	return seq, false, true
}

// foundAgain reports whether a broker that was restarted may still know the id of an event,
// whose window is over: it looks for ids that it finds in the stream, then, for the first time
// when a window has passed since its start.
func (m *modelBus) foundAgain(e *modelEvent, now time.Time) bool {
	return m.started.Sub(e.at) < modelWindow+modelSlack && now.Sub(m.started) < modelWindow+modelSlack
}

// retry puts an event before the group again.
func (m *modelBus) retry(i modelItem) {
	i.retry = true
	m.items = append(m.items, &i)
}

// find returns the item of a delivery that may be made now.
func (m *modelBus) find(d *jetbus.Delivery, mark string, now time.Time) *modelItem {
	for _, i := range m.items {
		if i.seq == d.Seq && i.mark == mark && i.replayOf == d.ReplayOf && !now.Before(i.from) {
			return i
		}
	}
	return nil
}

// available counts the items that must, and those that may be delivered now.
// hopeless: some of them have had their attempts.
func (m *modelBus) available(now time.Time, limit int) (sure, maybe int, hopeless bool) {
	for _, i := range m.items {
		if now.Before(i.from) {
			continue
		}
		hopeless = hopeless || limit > 0 && i.failed >= limit
		if now.Before(i.sure) {
			maybe++
		} else {
			sure++
		}
	}
	return sure, maybe, hopeless
}

// deliver hands an item out.
func (m *modelBus) deliver(i *modelItem, limit int, now time.Time) *modelLease {
	i.delivered, i.leased = true, true
	if !i.retry {
		m.cursor = max(m.cursor, i.seq)
	}
	i.from, i.sure = now.Add(modelTimeout-modelSlack/2), now.Add(modelTimeout+modelSlack)
	return &modelLease{item: i, max: limit, until: now.Add(modelTimeout)}
}

// extend makes a lease last for another while.
func (m *modelBus) extend(l *modelLease, now time.Time) {
	l.until = now.Add(modelTimeout)
	l.item.from, l.item.sure = l.until.Add(-modelSlack/2), l.until.Add(modelSlack)
}

// done ends an item.
func (m *modelBus) done(i *modelItem) {
	for n, other := range m.items {
		if other == i {
			m.items = append(m.items[:n], m.items[n+1:]...)
			return
		}
	}
}

// fail counts a failed attempt, and gives the item up after the last one.
func (m *modelBus) fail(l *modelLease, err string, wait time.Duration, now time.Time) {
	l.item.failed++
	l.item.err = err
	if l.max > 0 && l.item.failed >= l.max {
		m.bury(l.item, jetbus.DeadMaxAttempts, now)
		return
	}
	m.putOff(l.item, wait, now)
}

// putOff lets an item come back after a wait.
func (m *modelBus) putOff(i *modelItem, wait time.Duration, now time.Time) {
	i.from, i.sure, i.leased = now.Add(wait), now.Add(wait), false
	if wait > 0 {
		i.sure = i.sure.Add(modelSlack)
	}
	if wait <= longWait {
		return
	}
	m.done(i)
	later := *i
	later.delivered = false
	m.retry(later)
}

// bury makes a dead letter of an item, unless there is one of that event and
// that number of replays.
func (m *modelBus) bury(i *modelItem, reason jetbus.DeadReason, now time.Time) {
	m.done(i)
	letter := &modelDead{seq: i.seq, mark: i.mark, replays: i.replays, replayOf: i.replayOf, reason: reason, attempts: i.failed, err: i.err, since: now}
	for _, d := range m.dead { // in their order, so that what follows a replayed one comes behind it
		switch {
		case d.seq != letter.seq || d.replays != letter.replays || d.replayOf != letter.replayOf:
		case d.replayed: // the event has failed anew
			letter.replayOf = d.at
		default:
			if d.at == 0 && d.since.Equal(now) {
				letter.or, d.or = d.or, letter
			}
			return
		}
	}
	m.dead = append(m.dead, letter)
}

// agrees reports whether a dead letter is this, or one given up at the same
// moment, which then takes its place.
func (d *modelDead) agrees(is *jetbus.DeadLetter) bool {
	for o := d; o != nil; o = o.or {
		if o.reason == is.Reason && o.attempts == is.Attempts && o.err == is.Error && o.mark == string(is.Event.Payload) {
			d.reason, d.attempts, d.err, d.mark, d.or = o.reason, o.attempts, o.err, o.mark, nil
			d.at = is.Seq
			return true
		}
	}
	return false
}

// held counts what the group holds of the topic, delayed events included.
func (m *modelBus) held() (held int) {
	for _, i := range m.items {
		if !i.retry && i.delivered {
			held++
		}
	}
	return held
}

// pending counts what the topic has for the group that was not delivered yet.
func (m *modelBus) pending() (pending int) {
	for _, i := range m.items {
		if !i.retry && !i.delivered {
			pending++
		}
	}
	return pending
}

// settled is the position up to which the group is done with the topic.
func (m *modelBus) settled() uint64 {
	settled := m.cursor
	for _, i := range m.items {
		if !i.retry && i.delivered {
			settled = min(settled, i.seq-1)
		}
	}
	return settled
}

// ambiguous reports whether a move to a position would put events before the group
// that it has among its retries too, and that could not be told from these.
func (m *modelBus) ambiguous(to uint64) bool {
	for _, i := range m.items {
		if i.retry && i.seq > to && i.mark == "" && i.replayOf == 0 {
			return true
		}
	}
	return false
}

// move puts the group behind a position. What it held of the topic is forgotten.
func (m *modelBus) move(to uint64) {
	var items []*modelItem
	for _, i := range m.items {
		if i.retry {
			items = append(items, i)
		}
	}
	for seq := to + 1; seq <= uint64(len(m.events)); seq++ {
		items = append(items, &modelItem{seq: seq})
	}
	m.items, m.cursor = items, to
}

// restarted says that the broker was restarted. It writes down when it stored what it
// delivered, and not when it did, so that a lease that was not extended may be
// over at once; that an event was refused it knows as the end of its lease,
// and all that to a second.
func (m *modelBus) restarted(now time.Time, extended map[*modelItem]bool) {
	m.started = now
	for _, i := range m.items {
		if i.delivered {
			i.from = i.from.Add(-modelSlack / 2)
			if i.leased && !extended[i] {
				i.from = minTime(i.from, now)
			}
			if sure := now.Add(modelTimeout + modelSlack); sure.After(i.sure) {
				i.sure = sure
			}
		}
	}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// String describes what the group is not done with, times from now on.
func (m *modelBus) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the group is not done with %d:", len(m.items))
	for _, i := range m.items {
		fmt.Fprintf(&b, " [event %d, retry %v %q, replay %d of %d, %d failed, delivered %v, due in %v to %v]",
			i.seq, i.retry, i.mark, i.replays, i.replayOf, i.failed, i.delivered, time.Until(i.from), time.Until(i.sure))
	}
	return b.String()
}
