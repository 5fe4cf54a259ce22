package registry

import (
	"context"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
)

// SetSettings replaces a topic's own settings, also those that cannot be read; zero
// fields are inherited. What is registered already is not judged anew. The error wraps [ErrInvalidLevel],
// [ErrInvalidModel], [ErrInvalidMode], jetbus.ErrInvalidTopic,
// jetbus.ErrInvalidOption or jetbus.ErrUnavailable.
func (r *Registry) SetSettings(ctx context.Context, topic string, s Settings) error {
	_, err := r.configure(ctx, topic, replacement(s))
	return err
}

// UpdateSettings changes some of a topic's own settings and returns them all. What
// others set meanwhile is not lost: change may be called several times. It must not
// write to the registry itself, which would wait for it. The error can also wrap
// [ErrUnreadable]: settings that cannot be read are only replaced, by SetSettings.
func (r *Registry) UpdateSettings(ctx context.Context, topic string, change func(own *Settings)) (Settings, error) {
	return r.configure(ctx, topic, settingsChange{apply: change})
}

func (r *Registry) configure(ctx context.Context, topic string, change settingsChange) (Settings, error) {
	if err := jetbus.ValidTopic(topic); err != nil {
		return Settings{}, fmt.Errorf("set: %w", err)
	}
	guard := topicPrefix(topic) + ">"
	s, err := r.update(ctx, settingsKey(topic), guard, change, func(s *snapshot) (ownSettings, uint64) {
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
	_, err := r.configureAll(ctx, replacement(s))
	return err
}

// UpdateGlobalSettings changes some of the global settings, as UpdateSettings does.
func (r *Registry) UpdateGlobalSettings(ctx context.Context, change func(global *Settings)) (Settings, error) {
	return r.configureAll(ctx, settingsChange{apply: change})
}

func (r *Registry) configureAll(ctx context.Context, change settingsChange) (Settings, error) {
	s, err := r.update(ctx, globalKey, globalKey, change, func(s *snapshot) (ownSettings, uint64) { return s.global, s.globalSeq })
	if err != nil {
		return Settings{}, fmt.Errorf("set global settings: %w", err)
	}
	return s, nil
}

// settingsChange is a change of settings.
type settingsChange struct {
	apply func(*Settings)
	whole bool // nothing of what is set remains, so that it need not be readable
}

func replacement(s Settings) settingsChange {
	return settingsChange{apply: func(own *Settings) { *own = s }, whole: true}
}

// update changes the settings under a key; now tells them and the sequence that
// must still be the last one of guard.
func (r *Registry) update(ctx context.Context, key, guard string, change settingsChange, now func(*snapshot) (ownSettings, uint64)) (next Settings, err error) {
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return next, err
	}
	defer leave()
	ctx, cancel := r.bound(ctx)
	defer cancel()
	err = r.decide(ctx, func(ctx context.Context, s *snapshot) error {
		old, last := now(s)
		if old.broken != nil && !change.whole {
			return fmt.Errorf("%w; replace them as a whole", old.broken)
		}
		next = old.Settings
		change.apply(&next)
		if err := next.Valid(); err != nil || next == old.Settings && old.broken == nil {
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
