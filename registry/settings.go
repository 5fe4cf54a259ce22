package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// Level says which versions a new one must be compatible with, and how.
type Level string

// The levels. Backward: what the older version accepts, the new one accepts, so
// that readers may move first. Forward: the other way round, writers move first.
// Full: both. The plain levels compare with the latest version, the transitive
// ones with all that are not deleted.
const (
	LevelNone               Level = "none" // anything goes
	LevelBackward           Level = "backward"
	LevelForward            Level = "forward"
	LevelFull               Level = "full"
	LevelBackwardTransitive Level = "backward_transitive"
	LevelForwardTransitive  Level = "forward_transitive"
	LevelFullTransitive     Level = "full_transitive"
)

// Levels returns all levels.
func Levels() []Level {
	return []Level{
		LevelNone, LevelBackward, LevelForward, LevelFull,
		LevelBackwardTransitive, LevelForwardTransitive, LevelFullTransitive,
	}
}

// Valid returns an error that wraps [ErrInvalidLevel] and names the levels, unless
// l is one.
func (l Level) Valid() error {
	if slices.Contains(Levels(), l) {
		return nil
	}
	var names []string
	for _, known := range Levels() {
		names = append(names, string(known))
	}
	return fmt.Errorf("%w: %.40q: use %s", ErrInvalidLevel, string(l), strings.Join(names, ", "))
}

// Transitive reports whether a new version is compared with all live versions.
func (l Level) Transitive() bool { return strings.HasSuffix(string(l), "_transitive") }

// Directions returns how versions are compared, Backward first. Nil for LevelNone.
func (l Level) Directions() []Direction {
	switch l {
	case LevelBackward, LevelBackwardTransitive:
		return []Direction{Backward}
	case LevelForward, LevelForwardTransitive:
		return []Direction{Forward}
	case LevelFull, LevelFullTransitive:
		return []Direction{Backward, Forward}
	case LevelNone:
	}
	return nil
}

// Direction is one way to compare two versions.
type Direction = schema.Direction

// The directions.
const (
	Backward = schema.Backward // what the older accepts, the newer accepts
	Forward  = schema.Forward  // what the newer accepts, the older accepts
)

// Mode says whether a topic takes new versions.
type Mode string

// The modes.
const (
	ReadWrite Mode = "readwrite"
	ReadOnly  Mode = "readonly" // versions are neither added nor deleted
)

// Settings are the rules of a topic, or of all topics that have none of their own.
// A zero field is inherited: a topic's from the global settings, and those from
// the defaults.
type Settings struct {
	// Level is what new versions are held to. The default is LevelBackward with the
	// strict model, and LevelBackwardTransitive with the declared one, which is not
	// transitive by itself.
	Level Level `json:"level,omitempty"`
	// Model says what properties mean that a schema does not declare, both where
	// versions are compared and where events are validated. The default is
	// schema.Strict. A version that was registered under the strict model counts as
	// written with further properties as long as it is live, also when the model is
	// schema.Declared by now. What is written while a topic is strict for a while, by a
	// version that was registered under the declared model, is not known of.
	Model schema.Model `json:"model,omitempty"`
	// Mode is ReadWrite by default.
	Mode Mode `json:"mode,omitempty"`
	// AssumeVersion is the version of events that do not say theirs. By default
	// there is none: such an event is refused where its version is needed.
	AssumeVersion int `json:"assume_version,omitempty"`
}

// Valid returns an error that wraps [ErrInvalidLevel], [ErrInvalidModel],
// [ErrInvalidMode] or jetbus.ErrInvalidOption for the first field that is neither
// zero nor known.
func (s Settings) Valid() error {
	if s.Level != "" {
		if err := s.Level.Valid(); err != nil {
			return err
		}
	}
	switch {
	case s.Model != "" && s.Model != schema.Strict && s.Model != schema.Declared:
		return fmt.Errorf("%w: %.40q", ErrInvalidModel, string(s.Model))
	case s.Mode != "" && s.Mode != ReadWrite && s.Mode != ReadOnly:
		return fmt.Errorf("%w: %.40q", ErrInvalidMode, string(s.Mode))
	case s.AssumeVersion < 0:
		return fmt.Errorf("%w: AssumeVersion is %d, use a version, or 0 to inherit", jetbus.ErrInvalidOption, s.AssumeVersion)
	}
	return nil
}

// over returns s with what it does not say taken from base.
func (s Settings) over(base Settings) Settings {
	return Settings{
		Level: cmp.Or(s.Level, base.Level), Model: cmp.Or(s.Model, base.Model),
		Mode: cmp.Or(s.Mode, base.Mode), AssumeVersion: cmp.Or(s.AssumeVersion, base.AssumeVersion),
	}
}

// withDefaults returns s with what it does not say at its default.
func (s Settings) withDefaults() Settings {
	s = s.over(Settings{Model: schema.Strict, Mode: ReadWrite})
	if s.Level == "" {
		s.Level = LevelBackward
		if s.Model == schema.Declared {
			s.Level = LevelBackwardTransitive
		}
	}
	return s
}

// Settings returns what holds for a topic: its own settings over the global ones
// over the defaults. Only AssumeVersion can be zero. A topic that was never heard
// of has settings, too.
func (r *Registry) Settings(ctx context.Context, topic string) (Settings, error) {
	_, s, err := r.readTopic(ctx, "settings of", topic)
	if err != nil {
		return Settings{}, err
	}
	return s.effective(topic), nil
}

// TopicSettings returns a topic's own settings; what is inherited is zero. The error wraps
// [ErrUnreadable] where they cannot be read; then the topic is read-only, as Settings says.
func (r *Registry) TopicSettings(ctx context.Context, topic string) (Settings, error) {
	t, _, err := r.readTopic(ctx, "settings of", topic)
	if err != nil {
		return Settings{}, err
	}
	if err := t.settings.broken; err != nil {
		return Settings{}, fmt.Errorf("settings of %s: %w", topic, err)
	}
	return t.settings.Settings, nil
}

// GlobalSettings returns the settings of topics that have none of their own; what
// is at its default is zero. The error is that of TopicSettings.
func (r *Registry) GlobalSettings(ctx context.Context) (Settings, error) {
	s, err := r.read(ctx)
	if err != nil {
		return Settings{}, fmt.Errorf("global settings: %w", err)
	}
	if err := s.global.broken; err != nil {
		return Settings{}, fmt.Errorf("global settings: %w", err)
	}
	return s.global.Settings, nil
}
