package jetbus

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// A publish that is not answered may be the fault of the broker, or of one topic: a
// stream whose replicas have no leader is silent while all others work. So a topic that
// did not answer is tried again apart from the others: one such topic in a window, behind
// the rest, with one row at first and for a few seconds. It is the topic that is to blame
// if another one was answered since it was silent last, and the broker otherwise.

// silence is a topic that did not answer in a window.
type silence struct {
	err   error
	alone bool // it was the only one, and not one of several that were sent together
}

// failed notes one more failure. The caller holds the lock.
func (o *outage) failed(err error, wait Backoff) {
	now := time.Now()
	if o.since.IsZero() {
		o.since = now
	}
	o.failures++
	o.err, o.last = err, now
	o.until = now.Add(wait.Delay(o.failures))
}

// outageOf returns the outage of a topic, which may be a new one.
func (d *Drainer) outageOf(topic string, silent bool) *outage {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.hold[topic]
	if o == nil || o.silent != silent {
		o = &outage{silent: silent}
		d.hold[topic] = o
	}
	return o
}

// topicRefused leaves the rows of a topic where they are for a while.
func (d *Drainer) topicRefused(topic string, err error) {
	d.suffers(DrainTopic, topic, d.outageOf(topic, false), err)
}

// held lists the topics that are left alone now. Of those that did not answer only one
// is not among them, probed: the one whose turn it is.
func (d *Drainer) held() (skip []string, probed string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	var turn time.Time
	for topic, o := range d.hold {
		switch {
		case now.Before(o.until):
			skip = append(skip, topic)
		case !o.silent:
		case probed == "" || o.until.Before(turn) || o.until.Equal(turn) && topic < probed:
			if probed != "" {
				skip = append(skip, probed)
			}
			probed, turn = topic, o.until
		default:
			skip = append(skip, topic)
		}
	}
	slices.Sort(skip)
	return skip, probed
}

// take ends the turn of a topic of which nothing was claimed: if nothing else was
// either, nothing waits for it.
func (d *Drainer) take(probed string, rows []OutboxRow) {
	if probed == "" || slices.ContainsFunc(rows, func(r OutboxRow) bool { return r.Event.Topic == probed }) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(rows) == 0 {
		delete(d.hold, probed)
		return
	}
	o := d.hold[probed]
	o.until, o.last = time.Now(), time.Now()
}

// forget ends the outages of topics that refused rows, after a claim that found nothing
// though it did not skip them: mostly nothing waits for them. Where another drainer has it,
// or it is behind many rows, the topic is found out anew.
func (d *Drainer) forget(skipped []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.hold, func(topic string, o *outage) bool { return !o.silent && !slices.Contains(skipped, topic) })
}

// isSilent reports whether there are topics that did not answer.
func (d *Drainer) isSilent() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.hold {
		if o.silent {
			return true
		}
	}
	return false
}

// apart returns the rows of the topic that is tried again, and the others.
func (w *drainWindow) apart(rows []OutboxRow) (others, probed []OutboxRow) {
	if w.probed == "" {
		return rows, nil
	}
	for _, row := range rows {
		if row.Event.Topic == w.probed {
			probed = append(probed, row)
		} else {
			others = append(others, row)
		}
	}
	return others, probed
}

// probe publishes the rows of a topic that did not answer last time: if it does not
// again, after a time that gets longer each time, only the first is tried.
func (w *drainWindow) probe(ctx context.Context, rows []OutboxRow) {
	w.mu.Lock()
	patience := probeTime
	if o := w.hold[w.probed]; o != nil {
		patience <<= min(max(o.failures-1, 0), 8)
	}
	w.mu.Unlock()
	probing, cancel := context.WithTimeoutCause(ctx, patience, errProbeOver)
	w.publishAll(probing, rows[:1])
	cancel()
	w.publishAll(ctx, rows[1:])
}

// unanswered notes rows to which the broker said nothing.
func (w *drainWindow) unanswered(rows []OutboxRow, err error) {
	if errors.Is(err, ErrClosed) {
		w.err = err
		return
	}
	topics := map[string]bool{}
	for _, row := range rows {
		topics[row.Event.Topic] = true
	}
	for topic := range topics {
		w.refuse[topic] = true
		w.silent[topic] = silence{err: err, alone: len(topics) == 1}
	}
}

// blame decides whose fault it is that topics did not answer.
func (w *drainWindow) blame() {
	others := w.listen()
	for topic, s := range w.silent {
		o := w.outageOf(topic, true)
		w.mu.Lock()
		its := others || !o.last.IsZero() && w.spoke.After(o.last)
		w.mu.Unlock()
		if its {
			w.suffers(DrainTopic, topic, o, s.err)
		} else {
			w.err = s.err
		}
		w.mu.Lock()
		if o.broker = !its; !its {
			o.failed(s.err, w.o.Backoff)
			o.until = earlier(o.until, o.last.Add(maxBrokerPause))
		}
		if !s.alone { // each is tried apart, at once
			o.failures, o.until = 0, o.last
		}
		w.mu.Unlock()
	}
}

// back ends the outage of the broker. What did not answer meanwhile is tried at once. The
// caller holds the lock.
func (d *Drainer) back() {
	d.away = outage{}
	for _, o := range d.hold {
		if o.broker {
			o.failures, o.until, o.broker = 0, o.last, false
		}
	}
}

// listen notes which topics answered, and reports whether there were any that did not
// fall silent later.
func (w *drainWindow) listen() (spoke bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for topic := range w.heard {
		if _, silent := w.silent[topic]; silent {
			continue
		}
		spoke = true
		if o := w.hold[topic]; o != nil && o.silent {
			delete(w.hold, topic)
		}
	}
	if spoke {
		w.spoke, w.answered = time.Now(), true
	}
	return spoke
}
