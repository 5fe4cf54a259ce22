package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/seed-63e9a637/jetbus"
)

const (
	backfillWriters = 16 // keys that are written at once
	backfillRounds  = 5  // decisions on an event in a topic that others change
)

// keyState is the last event of a key in To.
type keyState struct {
	seq  uint64 // 0: there is none
	of   uint64 // the position in From that it was made of
	ours bool   // a backfill of this From wrote it
	mine bool   // this backfill did
}

func (f *backfill) stateOf(e *jetbus.Event) keyState {
	of, mine, ours := f.origin(e)
	return keyState{seq: e.Seq, of: of, ours: ours, mine: mine}
}

// outcome is what became of an item.
type outcome struct {
	written, kept bool
	err           error
}

// writeState stores items in a compacted topic: each on condition that the last
// event of its key is the one that it may follow. The items of a key are stored in
// their order, those of different keys at once.
func (f *backfill) writeState(ctx context.Context, items []item) error {
	byKey := map[string][]int{}
	var keys []string
	for i := range items {
		key := items[i].event.Key
		if byKey[key] == nil {
			keys = append(keys, key)
		}
		byKey[key] = append(byKey[key], i)
	}
	have, err := f.b.LatestByKey(ctx, f.To, keys...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make([]outcome, len(items))
	slots := make(chan struct{}, backfillWriters)
	var writers sync.WaitGroup
	for _, key := range keys {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		var now keyState
		if e, ok := have[key]; ok {
			now = f.stateOf(&e)
		}
		writers.Go(func() {
			defer func() { <-slots }()
			for _, i := range byKey[key] {
				now, outcomes[i] = f.writeKey(ctx, items[i], now)
				if err := outcomes[i].err; err != nil && !isInvalid(err) {
					cancel() // of no use to go on
					return
				}
			}
		})
	}
	writers.Wait()
	return f.count(ctx, items, outcomes)
}

// count counts what became of items; the first error that ends the run is returned.
func (f *backfill) count(ctx context.Context, items []item, outcomes []outcome) error {
	failed := slices.IndexFunc(outcomes, func(o outcome) bool {
		return o.err != nil && !isInvalid(o.err) && !errors.Is(o.err, context.Canceled)
	})
	if failed >= 0 {
		return fmt.Errorf("key %.100q: %w", items[failed].event.Key, outcomes[failed].err)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for i, o := range outcomes {
		switch {
		case o.err != nil:
			f.problem(items[i].seq, items[i].event.CausedBy[0], o.err)
		case o.written:
			f.rec.Stats.Written++
		case o.kept:
			f.rec.Stats.Kept++
		}
	}
	return nil
}

// writeKey stores one item over what its key is now, unless that is to stay, and
// returns what it is then.
func (f *backfill) writeKey(ctx context.Context, i item, now keyState) (keyState, outcome) {
	for range backfillRounds {
		switch {
		case now.seq > 0 && !now.ours:
			return now, outcome{kept: true}
		case now.mine && now.of >= i.seq: // a run before this one wrote it, and perhaps later ones
			return now, outcome{written: true}
		case now.ours && now.of > i.seq: // another backfill of From is ahead
			return now, outcome{kept: true}
		}
		if f.DryRun {
			return keyState{seq: 1, of: i.seq, ours: true, mine: true}, outcome{written: true}
		}
		receipt, err := f.b.Publish(ctx, i.event, jetbus.PublishOptions{ExpectLastSeq: &now.seq})
		if err == nil && !receipt.Duplicate {
			return keyState{seq: receipt.Event.Seq, of: i.seq, ours: true, mine: true}, outcome{written: true}
		}
		if err != nil && !errors.Is(err, jetbus.ErrWrongSequence) {
			return now, outcome{err: err}
		}
		if now, err = f.lookAgain(ctx, i.event.Key); err != nil {
			return now, outcome{err: err}
		}
	}
	return now, outcome{err: fmt.Errorf("changed by others %d times: %w", backfillRounds, jetbus.ErrWrongSequence)}
}

// lookAgain returns what a key is, tombstones included, which LatestByKey leaves out.
func (f *backfill) lookAgain(ctx context.Context, key string) (keyState, error) {
	have, err := f.b.LatestByKey(ctx, f.To, key)
	if err != nil {
		return keyState{}, err
	}
	if e, ok := have[key]; ok {
		return f.stateOf(&e), nil
	}
	var now keyState
	_, err = f.b.ScanLatest(ctx, f.To, jetbus.LatestQuery{KeyPrefix: key}, func(e jetbus.Event) error {
		if e.Key == key {
			now = f.stateOf(&e)
		}
		return nil
	})
	return now, err
}
