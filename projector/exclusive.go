package projector

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// maxLockKey is how long the name of a lock may be.
const maxLockKey = 240

// lockKey is the name of a projection's lock.
func lockKey(kind string, o *Options) string {
	key := kind + "/" + o.Name + "/" + o.Topic
	if len(key) <= maxLockKey {
		return key
	}
	digest := sha256.Sum256([]byte(key))
	return kind + "/" + hex.EncodeToString(digest[:])
}

// runExclusive projects while this replica holds the lock, and stands by while it
// does not. It ends with ctx, which is p.soft, or with an error that a turn of
// another replica would have as well.
//
// Two replicas may write at once all the same, where one was frozen between asking
// whether it holds the lock and its write: that one the sink refuses by its
// position, ErrFenced.
func (p *Projection) runExclusive(ctx context.Context) error {
	lock := jetbus.Lock{Key: lockKey("projection", &p.o), TTL: p.o.AckTimeout}
	for attempt := 1; ; attempt++ {
		p.count.enter(StandBy)
		began := time.Now()
		err := lock.Hold(ctx, p.b, func(held context.Context, _ jetbus.Held) (bool, error) {
			return true, p.turn(held)
		})
		if ctx.Err() != nil {
			return context.Cause(ctx) // a lock that could not be released ends by itself
		}
		again := errors.Is(err, ErrFenced) || errors.Is(err, jetbus.ErrLockLost) || isAway(err)
		if err != nil && !again {
			return err
		}
		p.count.trouble(err)
		p.o.Logger.LogAttrs(ctx, slog.LevelWarn, "another replica may project; this one stands by",
			slog.String("projection", p.o.Name), slog.Any("error", err))
		if time.Since(began) > time.Minute {
			attempt = 1
		}
		if err := pause(ctx, retryBackoff.Delay(attempt)); err != nil {
			return err
		}
	}
}

// turn projects from the position of the sink until held ends or that is of no
// use any more. A batch in hand is finished when the projection is to stop, and
// given up when the lock is lost.
func (p *Projection) turn(held context.Context) error {
	hard, cancel := context.WithCancelCause(p.hard)
	defer cancel(nil)
	unwatch := context.AfterFunc(held, func() {
		if cause := context.Cause(held); errors.Is(cause, jetbus.ErrLockLost) {
			cancel(cause)
		}
	})
	defer unwatch()
	w := p.writer
	w.live = held
	at, err := p.reopen(held, &w)
	if err != nil {
		return err
	}
	w.last = at.checkpoint()
	if !at.Known && p.o.From != "" {
		p.count.enter(Filling)
		if at.Seq, err = w.fill(held); err != nil {
			return err
		}
	}
	p.count.enter(Following)
	return p.readOn(held, hard, &w, at.Seq)
}

// reopen asks the sink for its position, which another replica may have moved,
// through all that passes.
func (p *Projection) reopen(ctx context.Context, w *writer) (Position, error) {
	for attempt := 1; ; attempt++ {
		short, cancel := context.WithTimeout(ctx, p.o.writeTimeout())
		at, err := open(short, w.sink, w.source)
		cancel()
		switch {
		case err == nil:
			p.count.upTo.Store(at.Seq)
			return at, nil
		case ctx.Err() != nil:
			return at, context.Cause(ctx)
		case isFinal(err) && !errors.Is(err, ErrFenced), errors.Is(err, jetbus.ErrInvalidOption):
			return at, err
		}
		p.count.failedWrite(err)
		if attempt == 1 {
			p.o.Logger.LogAttrs(ctx, slog.LevelWarn, "the sink does not say how far it is; it is asked again",
				slog.String("projection", p.o.Name), slog.Any("error", err))
		}
		if err := pause(ctx, retryBackoff.Delay(attempt)); err != nil {
			return at, err
		}
	}
}

// readOn writes the events after a sequence in order, as they arrive.
func (p *Projection) readOn(held, hard context.Context, w *writer, at uint64) error {
	for attempt := 1; ; attempt++ {
		from := at
		err := p.readFrom(held, hard, w, &at)
		switch {
		case held.Err() != nil:
			return context.Cause(held)
		case errors.Is(err, jetbus.ErrPositionUnknown), errors.Is(err, jetbus.ErrNoTopic):
			if anew := w.sameHistory(held); anew != nil {
				return anew
			}
			if !isRestored(err) { // else the topic only lost events that were not written
				return err
			}
		case err != nil && !isAway(err):
			return err
		}
		if at > from {
			attempt = 1
		}
		p.count.trouble(err)
		if err := pause(held, retryBackoff.Delay(attempt)); err != nil {
			return err
		}
	}
}

// readFrom is readOn until reading fails. at moves with what is written.
func (p *Projection) readFrom(held, hard context.Context, w *writer, at *uint64) error {
	if err := w.sameHistory(held); err != nil {
		return err
	}
	reading, stop := context.WithCancel(held)
	after, last := *at, w.last
	waiting := newBacklog() // closed by the reader
	var readErr error       // set before that
	go func() {             // ends with reading; waited for below
		defer close(waiting.events)
		readErr = p.read(reading, after, last, waiting)
	}()
	defer func() {
		stop()
		for range waiting.events { // until the reader has ended
		}
	}()
	g := &gatherer{waiting: waiting, linger: p.o.linger(), most: p.o.MaxBatch}
	for {
		batch := g.next()
		if len(batch) > 0 && held.Err() == nil {
			if _, err := w.sameTopic(hard); err != nil {
				return err
			}
			upTo := batch[len(batch)-1].Seq
			if err := w.storeRead(hard, batch, upTo); err != nil {
				return err
			}
			*at = upTo
		}
		if g.ended {
			return readErr
		}
	}
}

// read passes on the events after a sequence until ctx ends. It returns a RestoredError if
// the topic lost the event of last, or an event that was passed on.
func (p *Projection) read(ctx context.Context, after uint64, last jetbus.Checkpoint, waiting *backlog) error {
	o := jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}
	if after > 0 {
		o.After = map[string]uint64{p.o.Topic: after}
		o.Last = map[string]jetbus.Checkpoint{p.o.Topic: last}
		o.Created = map[string]time.Time{p.o.Topic: p.source.Created}
	}
	for e, err := range p.b.Read(ctx, []string{p.o.Topic}, o) {
		if err != nil {
			return err
		}
		if err := waiting.put(ctx, e); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: reading %s has ended", jetbus.ErrUnavailable, p.o.Topic)
}

// gatherer makes batches of events as they come: one that comes after a silence is
// a batch at once, with what came along with it.
type gatherer struct {
	waiting *backlog
	linger  time.Duration
	most    int
	last    time.Time     // when the last event came
	over    *jetbus.Event // had no room in the batch before
	ended   bool          // there are no more
}

// next waits for a batch. It is empty at the end only.
func (g *gatherer) next() []jetbus.Event {
	var batch []jetbus.Event
	bytes := 0
	if g.over != nil {
		batch, bytes, g.over = append(batch, *g.over), len(g.over.Payload), nil
	} else {
		e, ok := <-g.waiting.events
		if !ok {
			g.ended = true
			return nil
		}
		g.waiting.took(&e)
		batch, bytes = append(batch, e), len(e.Payload)
	}
	quiet := time.Since(g.last) > g.linger
	timer := time.NewTimer(g.linger)
	defer timer.Stop()
	if quiet || g.linger <= 0 {
		timer.Stop()
	}
	for len(batch) < g.most {
		e, ok, waited := g.more(timer, quiet || g.linger <= 0)
		if waited {
			break
		}
		if !ok {
			g.ended = true
			break
		}
		g.waiting.took(&e)
		if bytes += len(e.Payload); bytes > maxBatchBytes {
			g.over = &e
			break
		}
		batch = append(batch, e)
	}
	g.last = time.Now()
	return batch
}

// more waits for another event, or takes one that is there. waited: none came.
func (g *gatherer) more(timer *time.Timer, atOnce bool) (e jetbus.Event, ok, waited bool) {
	if atOnce {
		select {
		case e, ok = <-g.waiting.events:
			return e, ok, false
		default:
			return e, false, true
		}
	}
	select {
	case e, ok = <-g.waiting.events:
		return e, ok, false
	case <-timer.C:
		return e, false, true
	}
}
