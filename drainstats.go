package jetbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"
)

// DrainStats counts what a drainer has done since it was created, and describes what it
// waits for.
type DrainStats struct {
	Running    bool
	Published  uint64                     // rows published
	Duplicates uint64                     // published rows that the topic already had
	Retried    uint64                     // failed attempts after which the row is tried again
	Dead       uint64                     // rows that became dead
	Errors     map[DrainErrorClass]uint64 // failures by class
	// HeldTopics accept no events at present: they are full, may not be written, or do not
	// answer while others do. A topic without rows remains listed until its next retry, when
	// a claim finds nothing.
	HeldTopics []string
	// BrokerAway and OutboxAway are the times since when the broker and the outbox have not
	// been working; zero if they are working.
	BrokerAway, OutboxAway time.Time
	// Unrecorded is the number of rows that the outbox refuses to change: to claim, or to mark
	// as sent, failed or dead. They are counted neither in Retried nor in Dead. They are tried
	// again after each Lease, and block later rows of their keys.
	Unrecorded int
	// Err is the reason why the outbox or the broker is unavailable, rows are unrecorded, or
	// Outbox is out of date; nil if none of these is the case.
	Err error
	// Outbox is the last answer to OutboxStats, received at LookedAt.
	Outbox   OutboxStats
	LookedAt time.Time
}

// Stats returns what the drainer did.
func (d *Drainer) Stats() DrainStats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.Errors = maps.Clone(s.Errors)
	for topic, o := range d.hold {
		if !o.silent || d.away.since.IsZero() {
			s.HeldTopics = append(s.HeldTopics, topic)
		}
	}
	slices.Sort(s.HeldTopics)
	s.BrokerAway, s.OutboxAway = d.away.since, d.store.since
	var unrecorded error
	s.Unrecorded, unrecorded = d.countUnrecorded()
	for _, err := range []error{d.store.err, d.away.err, unrecorded, d.uncounted} {
		if s.Err == nil {
			s.Err = err
		}
	}
	return s
}

// Ready returns nil if the drainer runs, its broker and its outbox answer, the outbox can
// record the outcome of each row, and no row has waited longer than MaxAge. Otherwise the
// error gives the reason. Dead rows are not an error: see [DrainStats.Outbox].
func (d *Drainer) Ready() error {
	s := d.Stats()
	switch {
	case !s.Running:
		return errors.New("drain outbox: not running")
	case s.Err != nil:
		return fmt.Errorf("drain outbox: %w", s.Err)
	case d.o.MaxAge != -1 && s.Outbox.Age > d.o.MaxAge:
		return fmt.Errorf("drain outbox: the oldest of %d rows has been waiting for %v", s.Outbox.Pending, s.Outbox.Age.Round(time.Second))
	}
	return nil
}

// minStatsPause is between two looks at what waits, at the least.
const minStatsPause = 500 * time.Millisecond

// watch asks the outbox from time to time what waits. One that is emptied again and again,
// by rows that come one by one, is asked ahead of time less and less: the pause until then
// doubles, up to the whole interval, until one has passed in which it was not emptied.
func (d *Drainer) watch(ctx context.Context) {
	shortest := min(d.o.StatsEvery, minStatsPause)
	for pause := shortest; ctx.Err() == nil; {
		asked, cancel := context.WithTimeout(ctx, d.o.StatsEvery+time.Second)
		now, err := d.from.OutboxStats(asked)
		cancel()
		d.mu.Lock()
		switch {
		case err == nil:
			d.stats.Outbox, d.stats.LookedAt, d.uncounted = now, time.Now(), nil
		case ctx.Err() == nil:
			d.stats.Errors[DrainStore]++
			d.uncounted = fmt.Errorf("count rows: %w", err)
		}
		d.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			d.o.Logger.LogAttrs(ctx, slog.LevelWarn, "the rows of the outbox cannot be counted", slog.Any("err", err))
		}
		sleep(ctx, pause)
		if d.emptied(ctx, d.o.StatsEvery-pause) {
			pause = min(2*pause, d.o.StatsEvery)
		} else {
			pause = shortest
		}
	}
}

// emptied waits for the rest of an interval, or until the outbox has been emptied since it
// was asked, and reports whether it has.
func (d *Drainer) emptied(ctx context.Context, rest time.Duration) bool {
	select {
	case <-d.look:
		return true
	default: // of two that are ready, a select takes any
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-d.look:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// storeSaid notes whether the outbox did what it was asked.
func (d *Drainer) storeSaid(what string, err error) {
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.store = outage{}
		return
	}
	d.suffers(DrainStore, "", &d.store, fmt.Errorf("%s: %w", what, err))
}

// brokerSaid notes whether the broker answered.
func (d *Drainer) brokerSaid(err error, answered bool) {
	switch {
	case err != nil:
		d.suffers(DrainBroker, "", &d.away, err)
	case answered:
		d.mu.Lock()
		defer d.mu.Unlock()
		d.back()
	}
}

// suffers notes one more failure of an outage.
func (d *Drainer) suffers(class DrainErrorClass, topic string, o *outage, err error) {
	d.mu.Lock()
	o.failed(err, d.o.Backoff)
	d.stats.Errors[class]++
	d.mu.Unlock()
	d.o.Observer.Observe(Observation{Kind: DrainFail, Topic: topic, Reason: string(class), Err: err})
	d.o.Logger.Warn("the outbox is not drained", slog.String("class", string(class)), slog.String("topic", topic), slog.Any("err", err))
}

// isAway reports whether the broker failed last time.
func (d *Drainer) isAway() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.away.since.IsZero()
}

// pause is how long to wait for the broker or the outbox.
func (d *Drainer) pause() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	failures := max(d.away.failures, d.store.failures)
	return min(d.o.Backoff.Delay(failures), maxBrokerPause)
}
