package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

func TestRegister(t *testing.T) {
	r := newRig(t)
	o := registry.RegisterOptions{Metadata: map[string]string{"owner": "ops"}, By: "ana"}
	v := must(r.reg.Register(t.Context(), "a.b", object("x!"), o))(t)
	want := registry.Version{
		Topic: "a.b", Number: 1, ID: 1, Fingerprint: v.Fingerprint, Text: object("x!"), Draft: schema.Draft2020,
		Metadata: o.Metadata, Level: registry.LevelBackward, Model: schema.Strict, Admission: registry.First, By: "ana", Created: v.Created,
	}
	if diff := cmp.Diff(want, v); diff != "" || len(v.Fingerprint) != 64 || v.Created.IsZero() {
		t.Errorf("registered %+v: %s", v, diff)
	}
	for name, read := range map[string]func() (registry.Version, error){
		"Version": func() (registry.Version, error) { return r.reg.Version(t.Context(), "a.b", 1) },
		"Latest":  func() (registry.Version, error) { return r.reg.Latest(t.Context(), "a.b") },
		"Find":    func() (registry.Version, error) { return r.reg.Find(t.Context(), "a.b", " "+object("x!")) },
		"again": func() (registry.Version, error) {
			return r.reg.Register(t.Context(), "a.b", object("x!")+"\n", registry.RegisterOptions{})
		},
	} {
		if diff := cmp.Diff(v, must(read())(t)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	second := r.register("a.b", object("x"))
	if second.Number != 2 || second.ID != 2 || second.Admission != registry.Proved {
		t.Errorf("the second version is %+v", second)
	}
	other := r.register("other", object("x!"))
	if other.Number != 1 || other.ID != v.ID {
		t.Errorf("the same schema in another topic is %+v, want number 1 and id %d", other, v.ID)
	}
	if got := must(r.reg.ByID(t.Context(), v.ID))(t); len(got) != 2 || got[0].Topic != "a.b" || got[1].Topic != "other" {
		t.Errorf("by id: %+v", got)
	}
	if got := must(r.reg.Topics(t.Context(), false))(t); !cmp.Equal(got, []string{"a.b", "other"}) {
		t.Errorf("topics: %q", got)
	}
}

func TestIncompatible(t *testing.T) {
	tests := []struct {
		name      string
		level     registry.Level
		older     []string // oldest first
		newer     string
		against   int // 0: compatible
		direction registry.Direction
	}{
		{"backward", registry.LevelBackward, []string{object("a")}, object("a!"), 1, registry.Backward},
		{"backward, loosened", registry.LevelBackward, []string{object("a!")}, object("a"), 0, ""},
		{"forward", registry.LevelForward, []string{object("a!")}, object("a"), 1, registry.Forward},
		{"forward, tightened", registry.LevelForward, []string{object("a")}, object("a!"), 0, ""},
		{"full, loosened", registry.LevelFull, []string{object("a!")}, object("a"), 1, registry.Forward},
		{"full, tightened", registry.LevelFull, []string{object("a")}, object("a!"), 1, registry.Backward},
		{"none", registry.LevelNone, []string{object("a")}, object("a!"), 0, ""},
		{"the latest only", registry.LevelForward, []string{object("a!", "b!"), object("a!", "b")}, object("a!"), 0, ""},
		{"all", registry.LevelForwardTransitive, []string{object("a!", "b!"), object("a!", "b")}, object("a!"), 1, registry.Forward},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			r.ok(r.reg.SetSettings(t.Context(), "t", registry.Settings{Level: registry.LevelNone}))
			for _, text := range test.older {
				r.register("t", text)
			}
			r.ok(r.reg.SetSettings(t.Context(), "t", registry.Settings{Level: test.level}))
			if test.against == 0 {
				r.register("t", test.newer)
				return
			}
			r.nothingStored(func() {
				_, err := r.reg.Register(t.Context(), "t", test.newer, registry.RegisterOptions{})
				r.is(err, registry.ErrIncompatible)
				bad, ok := errors.AsType[*registry.IncompatibleError](err)
				if !ok {
					t.Fatal(err)
				}
				if bad.Topic != "t" || bad.Level != test.level || bad.Model != schema.Strict || bad.Against != test.against ||
					bad.Direction != test.direction || bad.Verdict.Result != schema.Refuted {
					t.Errorf("got %+v", bad)
				}
				for _, part := range []string{"register t: ", string(test.level), fmt.Sprint("version ", test.against), string(bad.Verdict.Witness)} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("the error lacks %q: %v", part, err)
					}
				}
			})
			report := must(r.reg.Check(t.Context(), "t", test.newer, registry.CheckOptions{}))(t)
			r.is(report.Err(), registry.ErrIncompatible)
			if report.Compatible || report.Level != test.level {
				t.Errorf("the report is %+v", report)
			}
			v := must(r.reg.Register(t.Context(), "t", test.newer, registry.RegisterOptions{Force: true, By: "ana"}))(t)
			if v.Admission != registry.Forced || v.ForcedBy() != "ana" || v.Number != len(test.older)+1 {
				t.Errorf("forced: %+v", v)
			}
		})
	}
}

// Force says nothing about what needs none.
func TestForceUnneeded(t *testing.T) {
	r := newRig(t)
	o := registry.RegisterOptions{Force: true, By: "ana"}
	for i, want := range []registry.Admission{registry.First, registry.Proved} {
		v := must(r.reg.Register(t.Context(), "t", object([]string{"a!", "a"}[i]), o))(t)
		if v.Admission != want || v.ForcedBy() != "" {
			t.Errorf("got %+v, want it %s", v, want)
		}
	}
}

func TestTransitive(t *testing.T) {
	r := newRig(t)
	r.ok(r.reg.SetSettings(t.Context(), "t", registry.Settings{Level: registry.LevelNone}))
	r.register("t", object("a"))
	r.register("t", object("a!", "b"))
	r.register("t", object("a!"))
	report := must(r.reg.Check(t.Context(), "t", object("a!"), registry.CheckOptions{Level: registry.LevelFullTransitive}))(t)
	var got []string
	for _, c := range report.Comparisons {
		got = append(got, fmt.Sprint(c.Against, c.Direction, c.Verdict.Result))
	}
	want := []string{"3backwardproved", "3forwardproved", "2backwardrefuted", "2forwardproved", "1backwardrefuted", "1forwardproved"}
	if diff := cmp.Diff(want, got); diff != "" || report.Compatible {
		t.Errorf("compatible %t: %s", report.Compatible, diff)
	}
	bad, ok := errors.AsType[*registry.IncompatibleError](report.Err())
	if !ok || bad.Against != 2 {
		t.Errorf("the first refusal is %+v", bad)
	}
	if _, err := r.reg.Delete(t.Context(), "t", 2, registry.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	report = must(r.reg.Check(t.Context(), "t", object("a"), registry.CheckOptions{Level: registry.LevelBackwardTransitive}))(t)
	if !report.Compatible || len(report.Comparisons) != 2 {
		t.Errorf("a deleted version counts: %+v", report)
	}
}

func TestCompare(t *testing.T) {
	r := newRig(t)
	r.register("t", object("a!"))
	r.register("t", object("a"))
	report := must(r.reg.Compare(t.Context(), "t", 1, 2, registry.CheckOptions{Level: registry.LevelFull}))(t)
	if report.Compatible || len(report.Comparisons) != 2 || report.Comparisons[0].Verdict.Result != schema.Proved ||
		report.Comparisons[1].Verdict.Result != schema.Refuted || report.Comparisons[0].Against != 1 {
		t.Errorf("from 1 to 2: %+v", report)
	}
	report = must(r.reg.Compare(t.Context(), "t", 2, 1, registry.CheckOptions{}))(t)
	if report.Compatible || len(report.Comparisons) != 1 || report.Comparisons[0].Against != 2 {
		t.Errorf("from 2 to 1: %+v", report)
	}
	_, err := r.reg.Compare(t.Context(), "t", 1, 3, registry.CheckOptions{})
	r.is(err, registry.ErrNoVersion)
	_, err = r.reg.Compare(t.Context(), "t", 3, 1, registry.CheckOptions{})
	r.is(err, registry.ErrNoVersion)
	_, err = r.reg.Compare(t.Context(), "t", 1, 2, registry.CheckOptions{Level: "backwards"})
	r.is(err, registry.ErrInvalidLevel)
	_, err = r.reg.Compare(t.Context(), "t", 1, 2, registry.CheckOptions{Against: []int{1}})
	r.is(err, jetbus.ErrInvalidOption)
}

func TestDryRun(t *testing.T) {
	r := newRig(t)
	r.nothingStored(func() {
		v := must(r.reg.Register(t.Context(), "t", object("a"), registry.RegisterOptions{DryRun: true}))(t)
		if v.Number != 1 || v.ID != 0 || v.Admission != registry.First {
			t.Errorf("got %+v", v)
		}
		_, err := r.reg.Latest(t.Context(), "t")
		r.is(err, registry.ErrNoSchema)
	})
}

// Whatever is wrong with a call is said, and nothing is stored.
func TestBadInput(t *testing.T) {
	r := newRig(t)
	r.register("t", object("a"))
	r.register("gone", object("a"))
	must(r.reg.Delete(t.Context(), "gone", 1, registry.DeleteOptions{}))(t)
	ctx := t.Context()
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	register := func(topic, text string, o registry.RegisterOptions) func() error {
		return func() error {
			_, err := r.reg.Register(ctx, topic, text, o)
			return err
		}
	}
	text := func(text string) func() error { return register("t", text, registry.RegisterOptions{}) }
	tests := []struct {
		name string
		call func() error
		want error
	}{
		{"not JSON", text(`{"type":`), schema.ErrInvalidSchema},
		{"nothing", text(""), schema.ErrInvalidSchema},
		{"not a schema", text(`[1]`), schema.ErrInvalidSchema},
		{"a bad keyword", text(`{"type": "strnig"}`), schema.ErrInvalidSchema},
		{"an unknown draft", text(`{"$schema": "https://example.com/draft"}`), schema.ErrInvalidSchema},
		{"a part that is missing", text(`{"$ref": "#/$defs/nope"}`), schema.ErrInvalidSchema},
		{"a remote reference", text(`{"$ref": "https://example.com/s.json"}`), schema.ErrInvalidSchema},
		{"a file", text(`{"$ref": "file:///etc/passwd"}`), schema.ErrInvalidSchema},
		{"a reference to a topic without schemas", text(`{"$ref": "schema://nope/1"}`), registry.ErrInvalidReference},
		{"a reference to a version that is missing", text(`{"$ref": "schema://t/9"}`), registry.ErrInvalidReference},
		{"a reference without a version", text(`{"$ref": "schema://t"}`), registry.ErrInvalidReference},
		{"a reference to version 0", text(`{"$ref": "schema://t/0"}`), registry.ErrInvalidReference},
		{"a reference to no topic", text(`{"$ref": "schema://T/1"}`), registry.ErrInvalidReference},
		{"a reference to a deleted version", text(`{"$ref": "schema://gone/1"}`), registry.ErrInvalidReference},
		{"too large", text(`{"description": "` + strings.Repeat("x", schema.MaxText) + `"}`), schema.ErrTooLarge},
		{"a bad topic", register("A", object("a"), registry.RegisterOptions{}), jetbus.ErrInvalidTopic},
		{"no topic", register("", object("a"), registry.RegisterOptions{}), jetbus.ErrInvalidTopic},
		{"force by nobody", register("t", object("b!"), registry.RegisterOptions{Force: true}), jetbus.ErrInvalidOption},
		{"a control character in By", register("t", object("b!"), registry.RegisterOptions{By: "a\nb"}), jetbus.ErrInvalidOption},
		{"too long a By", register("t", object("b!"), registry.RegisterOptions{By: strings.Repeat("x", 201)}), jetbus.ErrInvalidOption},
		{"metadata without a name", register("t", object("b"), registry.RegisterOptions{Metadata: map[string]string{"": "x"}}), jetbus.ErrInvalidOption},
		{"metadata that is no text", register("t", object("b"), registry.RegisterOptions{Metadata: map[string]string{"x": "\xff"}}), jetbus.ErrInvalidOption},
		{"too much metadata", register("t", object("b"), registry.RegisterOptions{Metadata: map[string]string{"x": strings.Repeat("x", 17<<10)}}), jetbus.ErrInvalidOption},
		{"a level that does not exist", func() error { return r.reg.SetSettings(ctx, "t", registry.Settings{Level: "BACKWARD"}) }, registry.ErrInvalidLevel},
		{"a global level that does not exist", func() error { return r.reg.SetGlobalSettings(ctx, registry.Settings{Level: "x"}) }, registry.ErrInvalidLevel},
		{"a model that does not exist", func() error { return r.reg.SetSettings(ctx, "t", registry.Settings{Model: "x"}) }, registry.ErrInvalidModel},
		{"a mode that does not exist", func() error { return r.reg.SetSettings(ctx, "t", registry.Settings{Mode: "x"}) }, registry.ErrInvalidMode},
		{"version -1 assumed", func() error { return r.reg.SetSettings(ctx, "t", registry.Settings{AssumeVersion: -1}) }, jetbus.ErrInvalidOption},
		{"settings of no topic", func() error { return r.reg.SetSettings(ctx, "T", registry.Settings{}) }, jetbus.ErrInvalidTopic},
		{"reading settings of no topic", func() error { _, err := r.reg.Settings(ctx, "T"); return err }, jetbus.ErrInvalidTopic},
		{"checking for no topic", func() error { _, err := r.reg.Check(ctx, "T", object("a"), registry.CheckOptions{}); return err }, jetbus.ErrInvalidTopic},
		{"checking what is no schema", func() error { _, err := r.reg.Check(ctx, "t", "x", registry.CheckOptions{}); return err }, schema.ErrInvalidSchema},
		{"checking against what is missing", func() error {
			_, err := r.reg.Check(ctx, "t", object("a"), registry.CheckOptions{Against: []int{7}})
			return err
		}, registry.ErrNoVersion},
		{"version 0", func() error { _, err := r.reg.Version(ctx, "t", 0); return err }, registry.ErrNoVersion},
		{"version 2", func() error { _, err := r.reg.Compiled(ctx, "t", 2); return err }, registry.ErrNoVersion},
		{"a version of a topic without schemas", func() error { _, err := r.reg.Version(ctx, "nope", 1); return err }, registry.ErrNoSchema},
		{"a version of no topic", func() error { _, err := r.reg.Version(ctx, "T", 1); return err }, jetbus.ErrInvalidTopic},
		{"the latest of a topic whose versions are deleted", func() error { _, err := r.reg.Latest(ctx, "gone"); return err }, registry.ErrNoSchema},
		{"the current one of the same", func() error { _, err := r.reg.Current("gone"); return err }, registry.ErrNoSchema},
		{"finding what is missing", func() error { _, err := r.reg.Find(ctx, "t", object("zzz")); return err }, registry.ErrNoVersion},
		{"finding in a topic without schemas", func() error { _, err := r.reg.Find(ctx, "nope", object("a")); return err }, registry.ErrNoSchema},
		{"an id that nothing has", func() error { _, err := r.reg.ByID(ctx, 99); return err }, registry.ErrNoSchema},
		{"deleting what is missing", func() error { _, err := r.reg.Delete(ctx, "t", 2, registry.DeleteOptions{}); return err }, registry.ErrNoVersion},
		{"deleting a topic without schemas", func() error { _, err := r.reg.DeleteTopic(ctx, "nope", registry.DeleteOptions{}); return err }, registry.ErrNoSchema},
		{"erasing what is live", func() error {
			_, err := r.reg.Delete(ctx, "t", 1, registry.DeleteOptions{Permanent: true})
			return err
		}, registry.ErrNotDeleted},
		{"a context that is over", func() error {
			_, err := r.reg.Register(canceled, "t", object("b"), registry.RegisterOptions{})
			return err
		}, context.Canceled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r.nothingStored(func() {
				if err := test.call(); !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
			})
		})
	}
}
