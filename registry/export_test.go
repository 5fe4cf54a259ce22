package registry_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// filled registers something of everything.
func filled(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.ok(r.reg.SetSettings(t.Context(), "z.first", registry.Settings{Level: registry.LevelFullTransitive, AssumeVersion: 1}))
	r.ok(r.reg.SetSettings(t.Context(), "a.second", registry.Settings{Mode: registry.ReadOnly, Model: schema.Declared}))
	r.ok(r.reg.SetSettings(t.Context(), "a.second", registry.Settings{Model: schema.Declared}))
	target := r.register("z.first", object("a!", "<&>")).Reference()
	must(r.reg.Register(t.Context(), "z.first", object("b!"), registry.RegisterOptions{Force: true, By: "ana", Metadata: map[string]string{"k": "v"}}))(t)
	r.register("a.second", referring("x", target))
	r.register("a.second", referring("x", registry.Reference{Topic: "a.second", Version: 1}))
	for _, title := range []string{"1", "2", "3"} {
		r.register("gone", `{"title": "`+title+`"}`)
	}
	must(r.reg.Delete(t.Context(), "gone", 1, registry.DeleteOptions{}))(t)
	must(r.reg.Delete(t.Context(), "gone", 2, registry.DeleteOptions{}))(t)
	must(r.reg.Delete(t.Context(), "gone", 2, registry.DeleteOptions{Permanent: true}))(t)
	r.ok(r.reg.SetSettings(t.Context(), "a.second", registry.Settings{Mode: registry.ReadOnly, Model: schema.Declared}))
	r.ok(r.reg.SetGlobalSettings(t.Context(), registry.Settings{Level: registry.LevelForward, Mode: registry.ReadOnly}))
	return r
}

func export(t *testing.T, reg *registry.Registry) string {
	t.Helper()
	var b bytes.Buffer
	if err := reg.Export(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func load(reg *registry.Registry, text string, o registry.ImportOptions) (registry.ImportReport, error) {
	return reg.Import(context.Background(), strings.NewReader(text), o)
}

func TestExportImport(t *testing.T) {
	r := filled(t)
	text := export(t, r.reg)
	to := newRig(t)
	records := strings.Count(text, "\n") - 2 // but the first and the last line
	to.nothingStored(func() {
		report := must(load(to.reg, text, registry.ImportOptions{DryRun: true}))(t)
		if report != (registry.ImportReport{Written: records}) {
			t.Errorf("tried: %+v, want %d written", report, records)
		}
	})
	if report := must(load(to.reg, text, registry.ImportOptions{}))(t); report != (registry.ImportReport{Written: records}) {
		t.Errorf("imported: %+v, want %d written", report, records)
	}
	for _, reg := range []*registry.Registry{to.reg, to.open(registry.Config{})} {
		if diff := cmp.Diff(strings.Split(text, "\n"), strings.Split(export(t, reg), "\n")); diff != "" {
			t.Errorf("exported again: %s", diff)
		}
	}
	to.nothingStored(func() {
		if report := must(load(to.reg, text, registry.ImportOptions{}))(t); report != (registry.ImportReport{Equal: records}) {
			t.Errorf("imported twice: %+v", report)
		}
	})

	// What was imported works as before: references hold, and numbers and ids go on.
	to.ok(to.reg.SetGlobalSettings(t.Context(), registry.Settings{}))
	_, err := to.reg.Delete(t.Context(), "z.first", 1, registry.DeleteOptions{})
	to.is(err, registry.ErrReferenced)
	if v := to.register("gone", `{"title": "4"}`); v.Number != 4 || v.ID != 8 {
		t.Errorf("registered %+v", v)
	}
}

// An import that broke off goes on where it was.
func TestImportResumed(t *testing.T) {
	text := export(t, filled(t).reg)
	records := strings.Count(text, "\n") - 2
	for _, at := range []string{"$KV.SCHEMAS.g.i.3 ", "$KV.SCHEMAS.s.z=2Efirst.v.2 ", "$KV.SCHEMAS.s.a=2Esecond.v.2 ", "$KV.SCHEMAS.s.z=2Efirst.c ", "$KV.SCHEMAS.g.c "} {
		to := newRig(t)
		p := &tap{broker: to.broker}
		ctx, cancel := context.WithCancel(t.Context())
		p.on(at, nil, cancel)
		broken := openOn(t, p.connect(t), registry.Config{})
		first, err := broken.Import(ctx, strings.NewReader(text), registry.ImportOptions{})
		to.is(err, context.Canceled)
		second := must(load(to.reg, text, registry.ImportOptions{}))(t)
		if second.Equal < first.Written || second.Equal+second.Written != records {
			t.Errorf("broken off at %s after %+v, then %+v of %d", at, first, second, records)
		}
		if diff := cmp.Diff(strings.Split(text, "\n"), strings.Split(export(t, to.reg), "\n")); diff != "" {
			t.Errorf("broken off at %s: %s", at, diff)
		}
	}
}

// What differs is refused before anything is written.
func TestImportRefused(t *testing.T) {
	text := export(t, filled(t).reg)
	tests := []struct {
		name  string
		there func(r *rig)
		want  error
		says  string
	}{
		{"another text under a number", func(r *rig) { r.register("z.first", object("c")) }, jetbus.ErrConflict, "version 1 of z.first"},
		{"another fingerprint under an id", func(r *rig) { r.register("other", object("c")) }, jetbus.ErrConflict, "id 1"},
		{"another level", func(r *rig) {
			r.ok(r.reg.SetSettings(r.Context(), "z.first", registry.Settings{Level: registry.LevelNone}))
		}, jetbus.ErrConflict, "settings of z.first"},
		{"another global level", func(r *rig) {
			r.ok(r.reg.SetGlobalSettings(r.Context(), registry.Settings{Level: registry.LevelNone}))
		}, jetbus.ErrConflict, "global settings"},
		{"read-only", func(r *rig) {
			r.ok(r.reg.SetSettings(r.Context(), "gone", registry.Settings{Mode: registry.ReadOnly}))
		}, registry.ErrReadOnly, "gone"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			test.there(r)
			r.nothingStored(func() {
				_, err := load(r.reg, text, registry.ImportOptions{})
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %v, want %v about %s", err, test.want, test.says)
				}
			})
		})
	}
}

func TestImportInvalid(t *testing.T) {
	text := export(t, filled(t).reg)
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	first, last := lines[0], len(lines)-1
	replace := func(old, with string) string {
		if !strings.Contains(text, old) {
			t.Fatalf("%s is not in the export", old)
		}
		return strings.Replace(text, old, with, 1)
	}
	r := newRig(t)
	for name, bad := range map[string]string{
		"nothing":                   "",
		"no JSON":                   "x\n",
		"two values in a line":      strings.Replace(text, "}\n", "} {}\n", 1),
		"cut in the middle":         text[:len(text)/2],
		"without the end":           strings.Join(lines[:last], ""),
		"without the beginning":     strings.Join(lines[1:], ""),
		"a line is missing":         first + strings.Join(lines[2:], ""),
		"a line is there twice":     first + lines[1] + strings.Join(lines[1:last], "") + `{"kind":"end","lines":` + "99}\n",
		"more after the end":        text + first,
		"another format":            replace(`"format":"1"`, `"format":"2"`),
		"a kind that is not known":  replace(`"kind":"id"`, `"kind":"idea"`),
		"another fingerprint":       replace(`"fingerprint":"`, `"fingerprint":"0`),
		"a level that is not known": replace(`"level":"forward"`, `"level":"fore"`),
		"a topic that is none":      replace(`"topic":"z.first"`, `"topic":"Z"`),
		"another text":              replace(`\"b\": {\"type\"`, `\"c\": {\"type\"`),
		"other references":          replace(`"references":[{"topic":"z.first","version":1}]`, `"references":[{"topic":"gone","version":3}]`),
		"a number is missing":       replace(`"topic":"gone","version":3`, `"topic":"gone","version":5`),
		"no schema":                 replace(`{\"title\": \"1\"}`, `{\"type\": \"1\"}`),
		"an id without a key":       strings.ReplaceAll(text, `"id":3,`, `"id":1000000000,`),
		"the last id":               strings.ReplaceAll(text, `"id":3,`, `"id":999999999,`),
		"too long a line":           first + `"` + strings.Repeat("x", 300<<10) + `"` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			r.nothingStored(func() {
				if _, err := load(r.reg, bad, registry.ImportOptions{}); !errors.Is(err, registry.ErrInvalidExport) {
					t.Errorf("got %v, want %v", err, registry.ErrInvalidExport)
				}
			})
		})
	}
}

// Settings that come into being during an import stay.
func TestImportKeepsSettings(t *testing.T) {
	text := export(t, filled(t).reg)
	for at, set := range map[string]func(r *rig) error{
		"$KV.SCHEMAS.s.z=2Efirst.c ": func(r *rig) error {
			return r.reg.SetSettings(r.Context(), "z.first", registry.Settings{Level: registry.LevelNone})
		},
		"$KV.SCHEMAS.g.c ": func(r *rig) error {
			return r.reg.SetGlobalSettings(r.Context(), registry.Settings{Level: registry.LevelNone})
		},
	} {
		r := newRig(t)
		p := &tap{broker: r.broker}
		p.on(at, func() { r.ok(set(r)) }, nil)
		_, err := load(openOn(t, p.connect(t), registry.Config{}), text, registry.ImportOptions{})
		r.is(err, jetbus.ErrConflict)
		topic := must(r.open(registry.Config{}).Settings(t.Context(), "z.first"))(t)
		global := must(r.open(registry.Config{}).GlobalSettings(t.Context()))(t)
		if topic.Level != registry.LevelNone && global.Level != registry.LevelNone {
			t.Errorf("%s: %+v, %+v", at, topic, global)
		}
	}
}
