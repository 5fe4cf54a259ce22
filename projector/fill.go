package projector

import (
	"cmp"
	"context"
	"errors"
	"log/slog"

	"github.com/seed-63e9a637/jetbus"
)

func (w *writer) info(ctx context.Context) (info jetbus.TopicInfo, err error) {
	err = w.insist(ctx, func() error {
		info, err = w.b.TopicInfo(ctx, w.source.Topic)
		return err
	})
	return info, err
}

// fill writes what the topic holds to a sink that has not seen it, through all that
// passes. It returns the sequence that the sink is complete up to, which it then knows.
func (w *writer) fill(ctx context.Context) (asOf uint64, err error) {
	info, err := w.info(ctx)
	if err != nil {
		return 0, err
	}
	from := w.o.From
	if from == "" && w.latest(info) {
		from = w.o.Topic
	}
	w.o.Logger.LogAttrs(ctx, slog.LevelInfo, "the sink is empty; it is filled",
		slog.String("projection", w.o.Name), slog.String("topic", w.o.Topic), slog.String("from", from), slog.Uint64("to", info.LastSeq))
	if from != "" {
		asOf, err = w.fillLatest(ctx, from)
		if err == nil && asOf < info.LastSeq {
			// A snapshot may lag behind its topic, and the group, if it exists, may be
			// ahead of the snapshot: it would not redeliver the events between the two.
			asOf, err = w.fillLog(ctx, asOf, info.LastSeq)
		}
	} else {
		asOf, err = w.fillLog(ctx, 0, info.LastSeq)
	}
	if err != nil {
		return asOf, err
	}
	if info.LastSeq > w.last.Seq { // the message may belong to another topic in the stream
		w.last = jetbus.Checkpoint{Seq: info.LastSeq, Stored: info.LastTime}
	}
	return asOf, w.store(ctx, nil, asOf)
}

// latest reports whether a sink is filled with the last event of each key, which is
// all there is to it.
func (w *writer) latest(info jetbus.TopicInfo) bool {
	return w.o.From != "" || info.Config.KeyInSubject && w.o.KeyOf == nil && w.o.VersionOf == nil && !w.o.Every
}

// gathering makes batches of events.
type gathering struct {
	w      *writer
	events []jetbus.Event
	bytes  int
}

// add writes what was gathered when it is enough for a batch.
func (g *gathering) add(ctx context.Context, e *jetbus.Event) error {
	g.events = append(g.events, *e)
	g.bytes += len(e.Payload)
	if len(g.events) < g.w.o.MaxBatch && g.bytes < maxBatchBytes {
		return nil
	}
	return g.flush(ctx)
}

func (g *gathering) flush(ctx context.Context) error {
	if len(g.events) == 0 {
		return nil
	}
	err := g.w.store(ctx, g.events, 0)
	g.events, g.bytes = nil, 0
	return err
}

// notWrittenError is an error of a batch, and not of reading.
type notWrittenError struct{ error }

func (e notWrittenError) Unwrap() error { return e.error }

// fillLatest writes the last event of each key of a topic, tombstones included.
func (w *writer) fillLatest(ctx context.Context, from string) (asOf uint64, err error) {
	err = w.insist(ctx, func() error {
		g := &gathering{w: w}
		w.refusals = map[string]uint64{}
		w.undated = from != w.source.Topic
		defer func() { w.undated = false }()
		asOf, err = w.b.ScanLatest(ctx, from, jetbus.LatestQuery{}, func(e jetbus.Event) error {
			delete(w.refusals, e.Key) // it has changed since
			if err := g.add(ctx, &e); err != nil {
				return notWrittenError{err}
			}
			return nil
		})
		if failure, ok := errors.AsType[notWrittenError](err); ok {
			return failure.error
		}
		if err != nil {
			return err
		}
		return g.flush(ctx)
	})
	refused := w.refusals
	w.refusals = nil
	if err == nil && len(refused) > 0 {
		err = w.fillOlder(ctx, refused)
	}
	return asOf, err
}

// fillOlder writes what there is of some keys before the sequences of their last
// events, which cannot be projected: the newest of it that can be is the keys' state.
func (w *writer) fillOlder(ctx context.Context, before map[string]uint64) error {
	return w.insist(ctx, func() error {
		g := &gathering{w: w}
		for e, err := range w.b.Read(ctx, []string{w.source.Topic}, jetbus.ReadOptions{From: jetbus.Earliest()}) {
			if err != nil {
				return err
			}
			if e.Seq >= before[e.Key] {
				continue
			}
			if err := g.add(ctx, &e); err != nil {
				return err
			}
		}
		return g.flush(ctx)
	})
}

// fillLog writes all events of the topic behind a sequence. It returns that of the
// last one, or last where that is higher, which everything was read up to.
func (w *writer) fillLog(ctx context.Context, after, last uint64) (uint64, error) {
	err := w.insist(ctx, func() error {
		g := &gathering{w: w}
		o := jetbus.ReadOptions{From: jetbus.Earliest()}
		if after > 0 {
			o.After = map[string]uint64{w.source.Topic: after}
		}
		for e, err := range w.b.Read(ctx, []string{w.source.Topic}, o) {
			if err != nil {
				return err
			}
			if err := g.add(ctx, &e); err != nil {
				return err
			}
			if len(g.events) == 0 {
				after = e.Seq // written: a connection that is lost does not begin anew
			}
			last = max(last, e.Seq)
		}
		return g.flush(ctx)
	})
	if errors.Is(err, jetbus.ErrPositionUnknown) {
		err = cmp.Or(w.sameHistory(ctx), err)
	}
	return last, err
}
