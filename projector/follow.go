package projector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

const (
	handlers      = 8                // that put deliveries into the queue: after a crash each asks the broker for what is known of its event
	settlers      = 16               // that make dead letters, or give events back
	pullSize      = 1000             // events one request asks for at most
	groupBatches  = 20               // batches that all replicas together hold at most
	progressEvery = 10 * time.Second // the sink is told how far the group has got
)

// linger is Linger, 0 for none.
func (o *Options) linger() time.Duration { return max(o.Linger, 0) }

// inFlight is how many events a replica holds at most. While a batch is written their
// leases are extended, each three times within AckTimeout, which must not be more than
// the broker and this process can do beside their work.
func (o *Options) inFlight() int {
	const kept = 2000 // leases for each second of AckTimeout
	return min(2*o.MaxBatch, int(kept*o.AckTimeout/time.Second))
}

// join enters the group, for as long as ctx. One that does not exist begins behind
// a sequence.
func (p *Projection) join(ctx context.Context, after uint64) error {
	from := jetbus.Earliest()
	if after > 0 {
		from = jetbus.AfterSeq(after)
	}
	inFlight := p.o.inFlight()
	sub, err := p.b.Subscribe(ctx, p.o.Topic, p.o.Name, p.receive, jetbus.SubscribeOptions{
		From:             from,
		Concurrency:      min(handlers, inFlight),
		BatchSize:        min(pullSize, inFlight),
		MaxInFlight:      inFlight,
		GroupMaxInFlight: groupBatches * max(p.o.MaxBatch, 500),
		AckTimeout:       p.o.AckTimeout,
		MaxLease:         max(jetbus.DefaultMaxLease, 4*p.o.writeTimeout()), // longer than a batch is held before it is given back
		MaxAttempts:      -1,                                                // nothing is given up because the sink is away
		ManualAck:        true,
		Backoff:          retryBackoff,
		ShutdownTimeout:  p.o.ShutdownTimeout + leaveGrace,
	})
	if err != nil {
		return err
	}
	p.sub = sub
	p.joined.Store(true)
	return nil
}

// leaveGrace is how much longer than for a batch in hand the subscription waits for what becomes
// of it: one that ends in that moment would keep the batch from those who are there.
const leaveGrace = 5 * time.Second

// receive is the handler.
func (p *Projection) receive(ctx context.Context, d *jetbus.Delivery) error {
	if !p.queue.put(d) {
		_ = d.GiveBack(ctx) // a lease that is lost comes again all the same
	}
	return nil
}

// errLeft is the cause of what is canceled because the subscription has ended.
var errLeft = errors.New("the subscription has ended")

// follow writes what is delivered, until it is to stop or the subscription ends.
// What is in hand then goes on as long as ctx.
func (p *Projection) follow(ctx context.Context) (err error) {
	soft, release := p.untilStopped(ctx)
	defer release()
	live, cancel := context.WithCancelCause(soft)
	defer cancel(nil)
	p.writer.live = live //nolint:fatcontext // there is one turn
	leaving, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	var wg sync.WaitGroup
	wg.Go(func() { // ends with live, which ends with this function
		select {
		case <-p.sub.Done():
			cancel(errLeft)
		case <-live.Done():
		}
	})
	wg.Go(func() {
		<-live.Done()
		giveBack(ctx, p.queue.end()) // while the loop writes what it has in hand
		err := p.sub.Stop(shutdown.Firm(leaving))
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stopErr = err
	})
	defer func() {
		cancel(errLeft)
		unhook := context.AfterFunc(ctx, leave) // not before what was in hand has been given back
		wg.Wait()
		unhook()
		if errors.Is(err, errLeft) {
			err = p.left(ctx)
		}
	}()
	return p.loop(ctx, live)
}

// left says why the subscription has ended: with its group, say.
func (p *Projection) left(ctx context.Context) error {
	err := p.sub.Err()
	if errors.Is(err, jetbus.ErrNoTopic) || errors.Is(err, jetbus.ErrNoGroup) {
		if anew := p.writer.sameHistory(ctx); errors.Is(anew, ErrNewStream) {
			return anew
		}
	}
	return err
}

// loop projects batch after batch.
func (p *Projection) loop(ctx, live context.Context) error {
	tick := time.NewTimer(progressEvery)
	defer tick.Stop()
	var reported time.Time // when the sink was last told how far the group has got
	for {
		batch, wait := p.queue.take(p.o.MaxBatch)
		if live.Err() != nil {
			giveBack(ctx, batch)
			return context.Cause(live)
		}
		if len(batch) > 0 {
			upTo := uint64(0)
			if time.Since(reported) > progressEvery {
				upTo, reported = p.settledTo(live), time.Now()
			}
			if err := p.project(ctx, live, batch, upTo); err != nil {
				return err
			}
			tick.Reset(progressEvery)
			continue
		}
		if wait == 0 {
			select {
			case <-p.queue.ready:
			case <-tick.C: // quiet since the last batch
				reported = time.Now()
				if err := p.report(ctx, live); err != nil {
					return err
				}
			case <-live.Done():
			}
			continue
		}
		_ = pause(live, wait) // looked at above
	}
}

// report verifies that the topic has the history that was written, and passes the group's
// position to the sink. The position is a hint, and is not retried.
func (p *Projection) report(ctx, live context.Context) error {
	if _, err := p.writer.learn(live, p.writer.last); isFinal(err) {
		return err
	}
	if err := p.writer.sameHistory(live); err != nil {
		return err
	}
	upTo := p.settledTo(live)
	if upTo == 0 {
		return nil
	}
	b := Batch{UpTo: upTo, Last: p.writer.last}
	out, err := p.writer.write(ctx, b)
	switch {
	case err == nil:
		p.count.wrote(out, b, p.writer.source.Exclusive)
	case isFinal(err):
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// settledTo asks how far the group has got: everything up to there has been
// written, by whichever replica. 0: not known, or the sink knows.
func (p *Projection) settledTo(ctx context.Context) uint64 {
	groups, err := p.b.Groups(ctx, p.o.Topic)
	if err != nil { // it is a hint
		return 0
	}
	for _, g := range groups {
		if g.Group == p.o.Name && g.AckedSeq > p.count.upTo.Load() {
			return g.AckedSeq
		}
	}
	return 0
}

// project writes a batch and settles it, or gives it back.
func (p *Projection) project(ctx, live context.Context, batch []*jetbus.Delivery, upTo uint64) error {
	h := &hand{p: p, batch: batch}
	defer func() { h.release(ctx) }()
	if err := p.writer.sameHistory(live); err != nil {
		return err
	}
	events, err := h.events(live)
	if err != nil {
		return err
	}
	p.count.events.Add(uint64(len(events)))
	f := fold(events, &p.o)
	newest := h.newest()
	p.writer.failed = h.failed
	for rejected := []Rejection{{}}; len(rejected) > 0 && (len(f.changes) > 0 || upTo > 0); {
		if rejected, err = p.writer.persist(ctx, Batch{Changes: f.changes, UpTo: upTo, Last: newest}); err != nil {
			return err
		}
		f.refuse(rejected)
	}
	p.count.stale.Add(uint64(f.stale)) //nolint:gosec // not negative
	h.settle(ctx, f.refusals)
	return nil
}

// hand is a batch in the loop's hands.
type hand struct {
	p     *Projection
	batch []*jetbus.Delivery
	away  bool // the batch was given back, and nothing is taken in
}

// release gives back what was not settled, and takes in events again.
func (h *hand) release(ctx context.Context) {
	h.p.writer.failed = nil
	giveBack(ctx, h.batch)
	h.batch = nil
	h.p.queue.done()
	if h.away && h.p.writer.live.Err() == nil {
		h.p.queue.open()
		h.p.sub.Resume()
		h.p.count.enter(Following)
		h.p.o.Logger.LogAttrs(ctx, slog.LevelInfo, "the sink is back", slog.String("projection", h.p.o.Name))
	}
}

// failed lets the other replicas have the events where the sink stays away: it may
// be there for them. What is in hand is tried again all the same, to see when the
// sink is back; that it is then written twice does no harm.
func (h *hand) failed(ctx context.Context, away time.Duration, err error) error {
	if h.away || away < h.p.o.AckTimeout {
		return nil
	}
	h.away = true
	h.p.count.enter(Away)
	h.p.o.Logger.LogAttrs(ctx, slog.LevelError, "the sink stays away; its events go to other replicas",
		slog.String("projection", h.p.o.Name), slog.Duration("since", away), slog.Any("error", err))
	waiting := h.p.queue.close()
	h.p.sub.Pause()
	giveBack(ctx, waiting)
	giveBack(ctx, h.batch)
	h.batch = nil
	h.p.queue.done()
	return nil
}

// events returns the events of the batch. It refuses the replay of a dead letter from another
// history of the topic, because its sequence is meaningless in this one. It gives back a
// delivery from before a restore if the batch also has deliveries from after it.
func (h *hand) events(ctx context.Context) ([]jetbus.Event, error) {
	events := make([]jetbus.Event, 0, len(h.batch))
	kept := make([]*jetbus.Delivery, 0, len(h.batch))
	mixed := !isOneHistory(h.batch)
	for _, d := range h.batch {
		if mixed && d.ReplayOf == 0 {
			err := h.p.writer.verify(ctx, jetbus.CheckpointOf(&d.Event))
			if isRestored(err) {
				giveBack(ctx, []*jetbus.Delivery{d})
				continue
			}
			if err != nil {
				return nil, err
			}
		}
		if d.ReplayOf > 0 {
			is, err := h.p.ofThisStream(ctx, d)
			if err != nil {
				return nil, err
			}
			if !is {
				h.refuse(ctx, d, fmt.Errorf("it is the replay of dead letter %d, which is not known to be of the present stream (%s, made %v): its position %d means nothing there",
					d.ReplayOf, h.p.source.Stream, h.p.source.Created, d.Seq))
				continue
			}
		}
		kept = append(kept, d)
		events = append(events, d.Event)
	}
	h.batch = kept
	return events, nil
}

// newest returns the checkpoint of the newest event that was written or is in hand. Replays
// do not count, because the time when their events were stored is unknown.
func (h *hand) newest() jetbus.Checkpoint {
	last := h.p.writer.last
	for _, d := range h.batch {
		if d.ReplayOf == 0 {
			last = later(last, &d.Event)
		}
	}
	return last
}

// settle makes dead letters of what was refused and acknowledges the rest.
func (h *hand) settle(ctx context.Context, refusals []refusal) {
	if h.away { // it has been given back, and comes again
		return
	}
	var refused sync.WaitGroup
	room := make(chan struct{}, settlers)
	for _, r := range refusals {
		d := h.batch[r.event]
		h.batch[r.event] = nil
		room <- struct{}{}
		refused.Go(func() {
			h.refuse(ctx, d, r.err)
			<-room
		})
	}
	for _, d := range h.batch {
		if d != nil {
			_ = d.Ack(ctx) // one that is not acknowledged comes again, and is stale
		}
	}
	refused.Wait()
	h.batch = nil
}

// refuse makes a dead letter. Where that cannot be stored, the event comes again.
func (h *hand) refuse(ctx context.Context, d *jetbus.Delivery, cause error) {
	h.p.writer.logRefused(ctx, &d.Event, cause)
	if d.RejectWith(ctx, jetbus.RejectOptions{Reason: cause.Error(), Stack: jetbus.StackOf(cause)}) == nil {
		h.p.count.rejected.Add(1)
	}
}

// giveBack returns deliveries to the group.
func giveBack(ctx context.Context, deliveries []*jetbus.Delivery) {
	for _, d := range deliveries {
		if d != nil {
			_ = d.GiveBack(ctx) // one whose lease is lost comes again all the same
		}
	}
}

// ofThisStream reports whether the topic's present history has, or had, the event of a
// replay. It retries until the broker answers.
func (p *Projection) ofThisStream(ctx context.Context, d *jetbus.Delivery) (is bool, err error) {
	dead := jetbus.DeadLetterTopic(d.Topic)
	_ = p.writer.insist(ctx, func() error { // a dead letter that was removed cannot be checked
		for e, err := range p.b.Read(ctx, []string{dead}, jetbus.ReadOptions{After: map[string]uint64{dead: d.ReplayOf - 1}}) {
			if err != nil {
				return err
			}
			if e.Seq == d.ReplayOf {
				letter, err := jetbus.ParseDeadLetter(e)
				if err != nil || letter.Stream != p.source.Stream || !letter.StreamCreated.Equal(p.source.Created) {
					break
				}
				err = jetbus.Checkpoint{Seq: letter.Event.Seq, ID: letter.Event.ID}.Verify(ctx, p.b, p.o.Topic)
				is = err == nil
				return err
			}
			break
		}
		return nil
	})
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return is, nil
}
