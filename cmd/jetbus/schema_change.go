package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

func newSchemaRegister(a *app, f *schemaFlags) *cobra.Command {
	var o registry.RegisterOptions
	var metadata []string
	cmd := &cobra.Command{
		Use:   "register TOPIC FILE|-",
		Short: "Register a schema as the next version of a topic",
		Long: `Registers a schema as the next version of a topic. It may be repeated: a schema that a
version has already is not registered again. One that is not proved to be compatible is
refused with exit code 4, unless it is forced; then the version says by whom.`,
		Example: `  jetbus schema register orders.created order.json --by ci
  jetbus schema register orders.created order.json --dry-run
  jetbus schema register orders.created order.json --force --by ann --metadata ticket=42`,
		Args: exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, m := range metadata {
				k, v, ok := strings.Cut(m, "=")
				if !ok || k == "" {
					return usagef("--metadata %q: use name=value", m)
				}
				if o.Metadata == nil {
					o.Metadata = map[string]string{}
				}
				o.Metadata[k] = v
			}
			o.By = a.env(o.By, "USER")
			return a.registerSchema(cmd, f, args[0], args[1], o)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.Force, "force", false, "let it in though it is not proved to be compatible")
	flags.StringVar(&o.By, "by", "", "who registers it (env USER)")
	flags.StringArrayVar(&metadata, "metadata", nil, "name=value to keep with the version; may be repeated")
	flags.BoolVar(&o.DryRun, "dry-run", false, "store nothing, say what would happen")
	return cmd
}

func (a *app) registerSchema(cmd *cobra.Command, f *schemaFlags, topic, name string, o registry.RegisterOptions) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	if o.Force && o.By == "" {
		return usagef("--force without --by: say who forces it")
	}
	text, err := readSchema(cmd, name)
	if err != nil {
		return err
	}
	return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
		known, _ := r.Find(cmd.Context(), topic, text) // what is wrong with it Register says, too
		v, err := r.Register(cmd.Context(), topic, text, o)
		if err != nil {
			return err
		}
		if f.output != "table" {
			return writeValue(cmd.OutOrStdout(), f.output, v)
		}
		verb := "is"
		switch {
		case known.Number == v.Number:
			verb = "is already"
		case o.DryRun:
			verb = "would be"
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s version %d: %s\n", v.Topic, verb, v.Number, admission(v))
		return err
	})
}

// admission says in words how a version came in.
func admission(v registry.Version) string {
	switch v.Admission {
	case registry.First:
		return "there was nothing to compare it with"
	case registry.Proved:
		return fmt.Sprintf("compatible (level %s, model %s)", v.Level, v.Model)
	case registry.Forced:
		return fmt.Sprintf("forced by %s", printable(v.By))
	case registry.Unchecked:
		return "not compared (level none)"
	}
	return string(v.Admission)
}

// inherit is the value of a flag that leaves a setting to those above it.
const inherit = "inherit"

func newSchemaConfig(a *app, f *schemaFlags) *cobra.Command {
	var level, model, mode, assume string
	cmd := &cobra.Command{
		Use:   "config [TOPIC]",
		Short: "Show or change the rules of a topic, or of all that have none of their own",
		Long: `Shows the rules of a topic, or changes those that are given; without a topic the rules
of all topics that have none of their own. The value "inherit" takes back what was set.
All four together replace what was set, also by a newer release that this one cannot read.
While it cannot read the rules of all topics, it changes those of none.

  level           what a new version must be: backward (it accepts what the old one
                  does), forward (the other way round), full (both), none; with
                  _transitive behind it compared with all versions, else the latest
  model           what properties mean that a schema does not declare. strict: they may
                  be there, as JSON Schema says. declared: writers do not send them,
                  which publishing checks, and readers ignore them
  mode            readwrite, or readonly: no new versions
  assume-version  the version of events that do not say theirs`,
		Example: `  jetbus schema config orders.created
  jetbus schema config orders.created --level full_transitive
  jetbus schema config --model declared
  jetbus schema config orders.created --level inherit`,
		Args: between(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := newSettingsChange(cmd, level, model, mode, assume)
			if err != nil {
				return err
			}
			return a.configSchema(cmd, f, args, change)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&level, "level", "", "none, backward, forward, full, backward_transitive, forward_transitive or full_transitive")
	flags.StringVar(&model, "model", "", "strict or declared")
	flags.StringVar(&mode, "mode", "", "readwrite or readonly")
	flags.StringVar(&assume, "assume-version", "", "number of a version")
	return cmd
}

// settingsChange is what the flags change.
type settingsChange struct {
	apply func(*registry.Settings) // nil if none is given
	whole bool                     // all are
}

// store makes the change, of a topic or, with none, of the global settings. A topic's are not
// changed where it cannot be said what holds for it then.
func (c settingsChange) store(ctx context.Context, r *registry.Registry, topic string) (err error) {
	if c.apply != nil && topic != "" {
		_, err = r.GlobalSettings(ctx)
	}
	switch {
	case errors.Is(err, registry.ErrUnreadable):
		return fmt.Errorf("set %s: %w; replace them as a whole first", topic, err)
	case err != nil:
		return err
	}
	var next registry.Settings
	if c.whole {
		c.apply(&next)
	}
	switch {
	case c.apply == nil:
	case c.whole && topic == "":
		err = r.SetGlobalSettings(ctx, next)
	case c.whole:
		err = r.SetSettings(ctx, topic, next)
	case topic == "":
		_, err = r.UpdateGlobalSettings(ctx, c.apply)
	default:
		_, err = r.UpdateSettings(ctx, topic, c.apply)
	}
	return err
}

func newSettingsChange(cmd *cobra.Command, level, model, mode, assume string) (settingsChange, error) {
	var changes []func(*registry.Settings)
	var given registry.Settings
	add := func(flag, value string, set func(s *registry.Settings, value string)) error {
		if !cmd.Flags().Changed(flag) {
			return nil
		}
		if value == "" {
			return usagef("--%s: the value is missing; %q takes it back", flag, inherit)
		}
		if value == inherit {
			value = ""
		}
		set(&given, value)
		changes = append(changes, func(s *registry.Settings) { set(s, value) })
		return nil
	}
	var version int
	if assume != "" && assume != inherit {
		var err error
		if version, err = parseVersion(assume); err != nil {
			return settingsChange{}, usagef("--assume-version: %w", err)
		}
	}
	err := errors.Join(
		add("level", level, func(s *registry.Settings, v string) { s.Level = registry.Level(v) }),
		add("model", model, func(s *registry.Settings, v string) { s.Model = schema.Model(v) }),
		add("mode", mode, func(s *registry.Settings, v string) { s.Mode = registry.Mode(v) }),
		add("assume-version", assume, func(s *registry.Settings, _ string) { s.AssumeVersion = version }),
	)
	if err == nil {
		err = given.Valid()
	}
	if err != nil || len(changes) == 0 {
		return settingsChange{}, err
	}
	return settingsChange{whole: len(changes) == 4, apply: func(s *registry.Settings) {
		for _, change := range changes {
			change(s)
		}
	}}, nil
}

func (a *app) configSchema(cmd *cobra.Command, f *schemaFlags, args []string, change settingsChange) error {
	topic := ""
	if len(args) == 1 {
		topic = args[0]
		if err := checkTopic(topic); err != nil {
			return err
		}
	}
	return a.withRegistry(cmd.Context(), f, func(r *registry.Registry) error {
		if err := change.store(cmd.Context(), r, topic); err != nil {
			return err
		}
		view, err := settingsOf(cmd.Context(), r, topic)
		if err != nil {
			return err
		}
		if f.output != "table" {
			return writeValue(cmd.OutOrStdout(), f.output, view)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), view.table())
		return err
	})
}

// settingsView is the rules of a topic, or the global ones, as they are printed.
type settingsView struct {
	Topic     string            `json:"topic,omitempty"`
	Own       registry.Settings `json:"own"` // of the topic
	Global    registry.Settings `json:"global"`
	Effective registry.Settings `json:"effective"`
}

func settingsOf(ctx context.Context, r *registry.Registry, topic string) (v settingsView, err error) {
	if v.Global, err = r.GlobalSettings(ctx); err != nil {
		return v, err
	}
	if topic == "" {
		v.Effective = v.Global
		v.Effective.Model = cmp.Or(v.Effective.Model, schema.Strict)
		v.Effective.Mode = cmp.Or(v.Effective.Mode, registry.ReadWrite)
		if v.Effective.Level == "" {
			v.Effective.Level = registry.LevelBackward
			if v.Effective.Model == schema.Declared {
				v.Effective.Level = registry.LevelBackwardTransitive
			}
		}
		return v, nil
	}
	v.Topic = topic
	if v.Own, err = r.TopicSettings(ctx, topic); err != nil {
		return v, err
	}
	v.Effective, err = r.Settings(ctx, topic)
	return v, err
}

func (v settingsView) table() string {
	number := func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
	rows := [][]string{{"SETTING", "VALUE", "FROM"}}
	for _, s := range []struct{ name, value, own, global string }{
		{"level", string(v.Effective.Level), string(v.Own.Level), string(v.Global.Level)},
		{"model", string(v.Effective.Model), string(v.Own.Model), string(v.Global.Model)},
		{"mode", string(v.Effective.Mode), string(v.Own.Mode), string(v.Global.Mode)},
		{"assume-version", or(number(v.Effective.AssumeVersion), "none"), number(v.Own.AssumeVersion), number(v.Global.AssumeVersion)},
	} {
		from := "default"
		switch {
		case s.own != "":
			from = "topic"
		case s.global != "":
			from = "global"
		}
		rows = append(rows, []string{s.name, s.value, from})
	}
	return table(rows)
}
