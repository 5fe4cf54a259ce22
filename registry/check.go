package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// CheckOptions override the topic's settings in a check. Zero fields do not.
type CheckOptions struct {
	Level Level
	Model schema.Model
	// Against are the numbers of the versions to compare with, which may be deleted.
	// By default they are those that the level asks for.
	Against []int
}

func (o CheckOptions) valid() error { return Settings{Level: o.Level, Model: o.Model}.Valid() }

// Report is what a check found out.
type Report struct {
	Topic string       `json:"topic"`
	Level Level        `json:"level"`
	Model schema.Model `json:"model"`
	// Compatible says that every comparison is proved. With the topic's own settings
	// that means that a registration is not refused for its incompatibility.
	Compatible bool `json:"compatible"`
	// Comparisons are in the order in which Register makes them: the newest version
	// first, and of each Backward before Forward. Empty where there is nothing to
	// compare with, and under LevelNone.
	Comparisons []Comparison `json:"comparisons,omitempty"`
}

// Err returns what Register would: an *IncompatibleError for the first comparison
// that is not proved, nil if there is none.
func (p Report) Err() error {
	for _, c := range p.Comparisons {
		if c.Verdict.Result != schema.Proved {
			return &IncompatibleError{
				Topic: p.Topic, Level: p.Level, Model: p.Model,
				Against: c.Against, Direction: c.Direction, Written: c.Written, Verdict: c.Verdict,
			}
		}
	}
	return nil
}

// Comparison is one version compared in one direction.
type Comparison struct {
	Against   int       `json:"against"` // the number of the older version
	Direction Direction `json:"direction"`
	// Written is the model in which the events are that are to be read: strict, too, where the
	// topic's is declared now and the version that wrote them is from before.
	Written schema.Model   `json:"written"`
	Verdict schema.Verdict `json:"verdict"`
}

// Check compares a schema with the versions of a topic as Register would, but all
// of them, and stores nothing. That the schema is incompatible is no error but in
// the report. Errors are those of Register for a text that is no schema, for
// references, and for unknown levels, models and versions.
func (r *Registry) Check(ctx context.Context, topic, text string, o CheckOptions) (Report, error) {
	report, err := r.check(ctx, topic, o, func(ctx context.Context) (*judge, error) {
		compiled, _, err := r.parse(ctx, text)
		return newJudge(compiled), err
	})
	if err != nil {
		return Report{}, fmt.Errorf("check %s: %w", topic, err)
	}
	return report, nil
}

// Compare compares two versions of a topic, n being the newer one, whatever their
// numbers are, in the directions of the level; o.Against must be empty. Under
// LevelNone, which has none, both are compared.
func (r *Registry) Compare(ctx context.Context, topic string, m, n int, o CheckOptions) (Report, error) {
	op := fmt.Sprintf("compare versions %d and %d of %s", m, n, topic)
	if len(o.Against) > 0 {
		return Report{}, fmt.Errorf("%s: %w: Against is of no use here", op, jetbus.ErrInvalidOption)
	}
	o.Against = []int{m}
	report, err := r.check(ctx, topic, o, func(ctx context.Context) (*judge, error) {
		s, e, err := r.locate(ctx, Reference{Topic: topic, Version: n})
		if err != nil {
			return nil, err
		}
		compiled, err := s.compile(e)
		j := newJudge(compiled)
		j.registered = &e.Version
		return j, err
	})
	if err != nil {
		return Report{}, fmt.Errorf("%s: %w", op, err)
	}
	return report, nil
}

func (r *Registry) check(ctx context.Context, topic string, o CheckOptions, newer func(context.Context) (*judge, error)) (Report, error) {
	if err := jetbus.ValidTopic(topic); err != nil {
		return Report{}, err
	}
	if err := o.valid(); err != nil {
		return Report{}, err
	}
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return Report{}, err
	}
	defer leave()
	ctx, cancel := r.bound(ctx)
	defer cancel()
	judge, err := newer(ctx)
	if err != nil {
		return Report{}, err
	}
	for _, n := range o.Against {
		if _, _, err := r.locate(ctx, Reference{Topic: topic, Version: n}); err != nil {
			return Report{}, err
		}
	}
	s := r.now.Load()
	rules := Settings{Level: o.Level, Model: o.Model}.over(s.topic(topic).settings.over(s.global.Settings)).withDefaults()
	report := Report{Topic: topic, Level: rules.Level, Model: rules.Model, Compatible: true}
	directions := rules.Level.Directions()
	if len(directions) == 0 && len(o.Against) > 0 {
		directions = []Direction{Backward, Forward}
	}
	for _, e := range s.topic(topic).against(rules.Level, o.Against) {
		for _, d := range directions {
			c, err := judge.compare(ctx, s, e, d, rules.Model)
			if err != nil {
				return Report{}, err
			}
			report.Comparisons = append(report.Comparisons, c)
			report.Compatible = report.Compatible && c.Verdict.Result == schema.Proved
		}
	}
	return report, nil
}

// against returns the versions to compare with, the newest first: those that are
// named, or those that the level asks for.
func (t *topicState) against(level Level, numbers []int) []*entry {
	var out []*entry
	for _, e := range slices.Backward(t.versions) {
		switch {
		case len(numbers) > 0 && !slices.Contains(numbers, e.Number), len(numbers) == 0 && !e.live():
			continue
		}
		out = append(out, e)
		if len(numbers) == 0 && !level.Transitive() {
			break
		}
	}
	return out
}

// judge compares one new schema with versions. It remembers its verdicts, since
// versions do not change: what races has to be decided again.
type judge struct {
	newer      *schema.Schema
	registered *Version // nil: newer is to be registered now
	verdicts   map[comparison]schema.Verdict
}

type comparison struct {
	older         *schema.Schema
	direction     Direction
	written, read schema.Model
}

// writtenIn is the model that events of a version were written in, where read is that of
// its topic now: a version that was not registered under the declared model was written
// with properties that it does not declare, and those events are there still.
func (v Version) writtenIn(read schema.Model) schema.Model {
	if v.Model != schema.Declared {
		return schema.Strict
	}
	return read
}

func newJudge(newer *schema.Schema) *judge {
	return &judge{newer: newer, verdicts: map[comparison]schema.Verdict{}}
}

func (j *judge) compare(ctx context.Context, s *snapshot, e *entry, d Direction, m schema.Model) (Comparison, error) {
	if ctx.Err() != nil { // many versions take their time
		return Comparison{}, context.Cause(ctx)
	}
	older, err := s.compile(e)
	if err != nil {
		return Comparison{}, fmt.Errorf("version %d: %w", e.Number, err)
	}
	m = cmp.Or(m, schema.Strict)
	c := comparison{older: older, direction: d, written: m, read: m}
	if writer := j.writer(e, d); writer != nil {
		c.written = writer.writtenIn(m)
	}
	v, ok := j.verdicts[c]
	if !ok {
		if d == Forward {
			v = schema.CompareModels(j.newer, older, c.written, c.read)
		} else {
			v = schema.CompareModels(older, j.newer, c.written, c.read)
		}
		j.verdicts[c] = v
	}
	return Comparison{Against: e.Number, Direction: d, Written: c.written, Verdict: v}, nil
}

// writer is the version whose events the other one reads, nil if it is to be registered.
func (j *judge) writer(e *entry, d Direction) *Version {
	if d == Forward {
		return j.registered
	}
	return &e.Version
}
