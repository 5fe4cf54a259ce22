package adapter

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// StateAt implements jetbus.StateStore.
func (b *Bus) StateAt(ctx context.Context, topic string, at time.Time) (jetbus.State, error) {
	op := "state of " + topic + " at " + at.UTC().Format(time.RFC3339Nano)
	if err := b.enter(ctx); err != nil {
		return jetbus.State{}, fmt.Errorf("%s: %w", op, err)
	}
	defer b.calls.end()
	var out jetbus.State
	err := b.tied(ctx, func(ctx context.Context) (err error) {
		out, err = b.stateAt(ctx, topic, at)
		return err
	})
	if err != nil {
		return jetbus.State{}, fmt.Errorf("%s: %w", op, err)
	}
	return out, nil
}

func (b *Bus) stateAt(ctx context.Context, name string, at time.Time) (jetbus.State, error) {
	f := &fold{b: b, at: at, state: jetbus.State{Events: map[string]jetbus.Event{}}}
	var info *jetstream.StreamInfo
	err := f.bounded(ctx, func(ctx context.Context) (err error) {
		if f.t, err = b.lookup(ctx, name); err == nil {
			info, err = f.info(ctx)
		}
		return err
	})
	if err != nil {
		return f.state, err
	}
	if f.t.config.SnapshotOf != "" {
		return f.state, fmt.Errorf("%w: a snapshot has no past, ask topic %s", jetbus.ErrUnsupported, f.t.config.SnapshotOf)
	}
	last := info.State.LastSeq
	present := last == 0 || !at.Before(info.State.LastTime)
	if present && f.t.config.KeyInSubject {
		if present, err = f.present(ctx); present || err != nil {
			if err == nil {
				err = f.finish(ctx, true)
			}
			return f.state, err
		}
	}
	found := false
	if f.t.config.KeyInSubject && info.State.NumSubjects <= latestStep && info.State.NumDeleted == 0 && at.Unix() > 0 {
		found, err = f.lookUp(ctx)
	}
	if !found && err == nil {
		err = f.read(ctx, last)
	}
	if err == nil {
		err = f.finish(ctx, false)
	}
	return f.state, err
}

// fold makes the state of a topic out of its events up to a time.
type fold struct {
	b     *Bus
	t     *topic
	at    time.Time
	state jetbus.State
	first time.Time // of the earliest event that was met, if that is behind at
	next  uint64    // sequence behind the last one read; 0: not all were read in their order, or some are missing
}

// bounded runs one request.
func (f *fold) bounded(ctx context.Context, run func(context.Context) error) error {
	ctx, cancel := f.b.bound(ctx)
	defer cancel()
	return run(ctx)
}

func (f *fold) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	info, err := f.b.streamInfo(ctx, f.t.stream)
	return info, f.b.translate("", f.b.api+"STREAM.INFO."+f.t.stream, err)
}

// add counts an event, in the order of the topic.
func (f *fold) add(e jetbus.Event, seq uint64, stored time.Time) {
	if f.t.deletes(&e) {
		delete(f.state.Events, e.Key)
	} else {
		f.state.Events[e.Key] = e
	}
	f.pass(seq, stored)
}

func (f *fold) pass(seq uint64, stored time.Time) {
	f.state.AsOf, f.state.Time = seq, stored.UTC()
}

// present reads the last event of each key. It reports false where one of them is
// of after the time: then it does not tell what was there before.
func (f *fold) present(ctx context.Context) (ok bool, err error) {
	s := &latestScan{b: f.b, t: f.t}
	err = s.run(ctx, func(e jetbus.Event) error {
		f.add(e, e.Seq, time.Time{})
		return nil
	})
	if err != nil {
		return false, err
	}
	if s.at > 0 && s.time.After(f.at) {
		f.state = jetbus.State{Events: map[string]jetbus.Event{}}
		return false, nil
	}
	if s.at > 0 {
		f.pass(s.at, s.time)
	}
	return true, nil
}

// lookUp asks the server for the last event of each key up to the time. It
// reports false where the answer may not be right, because a replica lags: one
// that has the last event up to the time has all.
func (f *fold) lookUp(ctx context.Context) (done bool, err error) {
	var after uint64
	err = f.bounded(ctx, func(ctx context.Context) (err error) {
		after, err = f.b.sequenceAtTime(ctx, f.t, f.at.Add(1))
		if err != nil || after <= 1 {
			return err
		}
		done = true
		request := directRequest{MultiLast: []string{f.t.filter}, UpToSeq: after - 1}
		err = f.b.directGet(ctx, f.t.stream, request, func(m *nats.Msg, seq uint64, stored time.Time) bool {
			if done = !stored.After(f.at); !done {
				return false
			}
			if e, ok := f.b.readEvent(f.t, m, seq, stored); ok {
				f.add(e, seq, stored)
			} else {
				f.pass(seq, stored)
			}
			return true
		})
		return f.b.translate("", f.b.api+"DIRECT.GET."+f.t.stream, err)
	})
	if !done || f.state.AsOf == 0 || f.state.AsOf != after-1 { // reading finds out
		f.state = jetbus.State{Events: map[string]jetbus.Event{}}
		return false, err
	}
	return true, err
}

// read goes through the events from the first one on.
func (f *fold) read(ctx context.Context, end uint64) error {
	f.next = 1
	err := f.b.eachMessage(ctx, f.t, 1, end, scanStep, func(m *message) bool {
		if m.stored.After(f.at) {
			if f.state.AsOf == 0 {
				f.first = m.stored.UTC()
			}
			end = m.seq - 1
			return false
		}
		if m.isEvent {
			f.add(m.event, m.seq, m.stored)
		} else {
			f.pass(m.seq, m.stored)
		}
		if m.seq != f.next {
			f.next = 0
		}
		if f.next > 0 {
			f.next++
		}
		return true
	})
	if f.next != end+1 { // what is missing at the end may be of before that time
		f.next = 0
	}
	return err
}

// finish says how exact the state is. What the stream has lost is looked up last,
// since it may lose more while it is read.
func (f *fold) finish(ctx context.Context, present bool) error {
	if !f.first.IsZero() {
		return fmt.Errorf("%w: the earliest event was stored at %s", jetbus.ErrBeyondHorizon, f.first.Format(time.RFC3339Nano))
	}
	return f.bounded(ctx, func(ctx context.Context) error {
		info, err := f.info(ctx)
		if err != nil {
			return err
		}
		c := &f.t.config
		whole := info.State.LastSeq == 0 || info.State.FirstSeq <= 1 && info.State.NumDeleted == 0
		kept := present && c.Compact && c.Retention < 0 && (c.Discard == jetbus.DiscardNew || c.MaxBytes < 0 && c.MaxEvents < 0)
		gapless := f.next > 1 && f.t.alone(&info.Config)
		f.state.Exact = whole || kept || gapless
		return nil
	})
}
