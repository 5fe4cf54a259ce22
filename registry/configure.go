package registry

import (
	"context"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
)

// SetSettings replaces a topic's own settings; zero fields are inherited. What is
// registered already is not judged anew. The error wraps [ErrInvalidLevel],
// [ErrInvalidModel], [ErrInvalidMode], jetbus.ErrInvalidTopic,
// jetbus.ErrInvalidOption or jetbus.ErrUnavailable.
func (r *Registry) SetSettings(ctx context.Context, topic string, s Settings) error {
	_, err := r.UpdateSettings(ctx, topic, func(own *Settings) { *own = s })
	return err
}

// UpdateSettings changes some of a topic's own settings and returns them all. What
// others set meanwhile is not lost: change may be called several times. It must not
// write to the registry itself, which would wait for it.
func (r *Registry) UpdateSettings(ctx context.Context, topic string, change func(own *Settings)) (Settings, error) {
	if err := jetbus.ValidTopic(topic); err != nil {
		return Settings{}, fmt.Errorf("set: %w", err)
	}
	guard := topicPrefix(topic) + ">"
	s, err := r.update(ctx, settingsKey(topic), guard, change, func(s *snapshot) (Settings, uint64) {
		return s.topic(topic).settings, s.topic(topic).seq
	})
	if err != nil {
		return Settings{}, fmt.Errorf("set %s: %w", topic, err)
	}
	return s, nil
}

// SetGlobalSettings replaces the settings of topics that have none of their own;
// zero fields are at their defaults. A registration that is being decided meanwhile
// goes by the old or the new ones; the version says by which level. Errors are those
// of SetSettings.
func (r *Registry) SetGlobalSettings(ctx context.Context, s Settings) error {
	_, err := r.UpdateGlobalSettings(ctx, func(global *Settings) { *global = s })
	return err
}

// UpdateGlobalSettings changes some of the global settings, as UpdateSettings does.
func (r *Registry) UpdateGlobalSettings(ctx context.Context, change func(global *Settings)) (Settings, error) {
	s, err := r.update(ctx, globalKey, globalKey, change, func(s *snapshot) (Settings, uint64) { return s.global, s.globalSeq })
	if err != nil {
		return Settings{}, fmt.Errorf("set global settings: %w", err)
	}
	return s, nil
}

// update changes the settings under a key; now tells them and the sequence that
// must still be the last one of guard.
func (r *Registry) update(ctx context.Context, key, guard string, change func(*Settings), now func(*snapshot) (Settings, uint64)) (next Settings, err error) {
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return next, err
	}
	defer leave()
	ctx, cancel := r.bound(ctx)
	defer cancel()
	err = r.decide(ctx, func(ctx context.Context, s *snapshot) error {
		old, last := now(s)
		next = old
		change(&next)
		if err := next.Valid(); err != nil || next == old {
			return err
		}
		seq, err := r.put(ctx, key, next, guard, last)
		if err == nil {
			_, _ = r.reach(ctx, seq) // it is stored
		}
		return err
	})
	return next, err
}
