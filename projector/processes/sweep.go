package processes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// retryAfter is the wait before a reader that failed is started again.
const retryAfter = time.Second

// follow keeps the view up with states that other projectors publish, so that
// each of them can notice silence when the others are gone.
func (p *Projector) follow(ctx context.Context) {
	failing := false
	for {
		before := p.readTo
		err := p.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if !failing || p.readTo != before {
			p.log.LogAttrs(ctx, slog.LevelWarn, "following states failed, trying again", slog.String("topic", p.o.States), slog.Any("err", err))
		}
		failing = true
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
		info, err := p.b.TopicInfo(ctx, p.o.States)
		if err != nil {
			continue
		}
		if !info.Created.Equal(p.created) { // another topic of that name, with sequences of its own
			p.view.clear()
			p.created, p.readTo = info.Created, 0
		}
	}
}

// load takes the last state of each process into the view, not all there were.
func (p *Projector) load(ctx context.Context) error {
	asOf, err := p.b.ScanLatest(ctx, p.o.States, jetbus.LatestQuery{}, func(e jetbus.Event) error {
		p.view.apply(e, time.Now())
		return nil
	})
	if err != nil {
		return fmt.Errorf("read states: %w", err)
	}
	p.readTo = asOf
	return nil
}

// read takes states into the view as they come, from where the last read ended.
func (p *Projector) read(ctx context.Context) error {
	o := jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}
	if p.readTo > 0 {
		o.After = map[string]uint64{p.o.States: p.readTo}
		o.Created = map[string]time.Time{p.o.States: p.created}
	}
	for e, err := range p.b.Read(ctx, []string{p.o.States}, o) {
		if err != nil {
			return fmt.Errorf("read states: %w", err)
		}
		p.view.apply(e, time.Now())
		p.readTo = e.Seq
	}
	return nil
}

// sweep looks for silence until ctx ends.
func (p *Projector) sweep(ctx context.Context) {
	ticker := time.NewTicker(p.o.Sweep)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := p.sweepOnce(ctx, time.Now())
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			p.log.LogAttrs(ctx, slog.LevelWarn, "looking for silent processes failed, trying again", slog.String("topic", p.o.States), slog.Any("err", err))
		}
		failing = err != nil
	}
}

// sweepOnce publishes the stale state of each process that is silent.
func (p *Projector) sweepOnce(ctx context.Context, now time.Time) error {
	p.view.forget(now.Add(-p.o.Forget))
	since := now.Add(-p.o.StaleAfter)
	keys := p.view.silent(since)
	if len(keys) == 0 {
		p.barrier = 0
		return nil
	}
	if ready, err := p.caughtUp(ctx); err != nil || !ready {
		return err
	}
	// Beats that went to other projectors are in the topic, if not yet in the view.
	if err := p.refresh(ctx, keys...); err != nil {
		return err
	}
	for _, key := range keys {
		e := p.view.get(key)
		if !e.isSilent(since) {
			continue
		}
		last := e.seq
		e.Status = Stale
		err := p.publish(ctx, e, now, last)
		switch {
		case err == nil:
			p.stale.Add(1)
		case errors.Is(err, jetbus.ErrWrongSequence): // it beat just now, or another projector was faster: the next sweep knows
		default:
			return err
		}
	}
	return nil
}

// caughtUp reports whether the group has settled every heartbeat stored up to
// the time of this sweep or of an earlier one that asked: processes that are
// still silent then are, and not merely waiting in a backlog.
func (p *Projector) caughtUp(ctx context.Context) (bool, error) {
	beats, err := p.b.TopicInfo(ctx, p.o.Heartbeats)
	if err != nil {
		return false, err
	}
	groups, err := p.b.Groups(ctx, p.o.Heartbeats)
	if err != nil {
		return false, err
	}
	for _, g := range groups {
		if g.Group != p.o.Group {
			continue
		}
		idle := g.Pending == 0 && g.Held == 0
		if ready := idle || p.barrier > 0 && g.AckedSeq >= p.barrier || g.AckedSeq >= beats.LastSeq; ready {
			p.barrier = 0
			return true, nil
		}
		if p.barrier == 0 {
			p.barrier = beats.LastSeq
		}
		return false, nil
	}
	return false, fmt.Errorf("group %s of %s: %w", p.o.Group, p.o.Heartbeats, jetbus.ErrNoGroup)
}
