package registry

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// maxLineBytes bounds a line of an export: a record, and what is around it.
const maxLineBytes = maxRecordBytes + 4<<10

// maxImportedID leaves room above it: a new schema gets the id behind the highest.
const maxImportedID = 900_000_000

// ImportOptions are options of Import.
type ImportOptions struct {
	// DryRun checks everything and stores nothing.
	DryRun bool
}

// ImportReport says what an import did, or with DryRun would do.
type ImportReport struct {
	Written int // records that were not there
	Equal   int // records that were there, just so
}

// export is a whole export, read.
type export struct {
	global   *Settings
	settings map[string]Settings
	ids      map[int]string
	versions map[Reference]Version
}

// Import stores what Export wrote: numbers, ids, deletions, references and settings
// as they were; who imports into an empty registry gets the same one. What is
// there already and equal is passed over, so that an import that broke off can be
// repeated; where anything differs, the import is refused before anything is
// written. Versions are not compared with each other again.
//
// The error is a jetbus.ConflictError that lists what differs, or wraps
// [ErrInvalidExport] (with the line), [ErrReadOnly] where a topic to be written is,
// jetbus.ErrUnavailable, or is that of in. After jetbus.ErrUnavailable repeat it. On
// an error the report says what was written before.
func (r *Registry) Import(ctx context.Context, in io.Reader, o ImportOptions) (ImportReport, error) {
	report, err := r.importAll(ctx, in, o)
	if err != nil {
		return report, fmt.Errorf("import: %w", err)
	}
	return report, nil
}

func (r *Registry) importAll(ctx context.Context, in io.Reader, o ImportOptions) (report ImportReport, err error) {
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return report, err
	}
	defer leave()
	x, err := readExport(in)
	if err != nil {
		return report, err
	}
	order, err := x.order()
	if err != nil {
		return report, err
	}
	if err := x.verify(order); err != nil {
		return report, err
	}
	s, err := r.fresh(ctx)
	if err != nil {
		return report, err
	}
	todo, err := x.against(s, order)
	if err != nil {
		return report, err
	}
	report.Equal = x.size() - len(todo)
	if o.DryRun {
		report.Written = len(todo)
		return report, nil
	}
	for _, step := range todo {
		if err := step(ctx, r); err != nil {
			return report, err
		}
		report.Written++
	}
	return report, nil
}

// fresh returns the cache once it has all that is stored now.
func (r *Registry) fresh(ctx context.Context) (*snapshot, error) {
	ctx, cancel := r.bound(ctx)
	defer cancel()
	return r.overtake(ctx, ">")
}

func (x *export) size() int {
	n := len(x.settings) + len(x.ids) + len(x.versions)
	if x.global != nil {
		n++
	}
	return n
}

// readExport reads all lines and checks each for itself.
func readExport(in io.Reader) (*export, error) {
	x := &export{settings: map[string]Settings{}, ids: map[int]string{}, versions: map[Reference]Version{}}
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, maxLineBytes)
	count, ended := 0, false
	for scanner.Scan() {
		if len(bytes.TrimSpace(scanner.Bytes())) == 0 {
			continue
		}
		var l line
		err := decode(scanner.Bytes(), &l)
		switch {
		case err != nil:
		case ended:
			err = errors.New("there is more after the end")
		case count == 0 && (l.Kind != lineHead || l.Format != formatVersion):
			err = fmt.Errorf("the first line must be of kind %q and format %q", lineHead, formatVersion)
		case l.Kind == lineEnd:
			ended = true
			if l.Lines != count {
				err = fmt.Errorf("%d lines are before it, and there were %d", count, l.Lines)
			}
		default:
			err = x.take(l)
		}
		count++
		if err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrInvalidExport, count, err)
		}
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%w: line %d: longer than %d bytes", ErrInvalidExport, count+1, maxLineBytes)
	case err != nil:
		return nil, err
	case !ended:
		return nil, fmt.Errorf("%w: it is cut short: the line of kind %q is missing", ErrInvalidExport, lineEnd)
	}
	return x, nil
}

// take takes in one line.
func (x *export) take(l line) error {
	twice := errors.New("it was there before")
	switch l.Kind {
	case lineHead:
		if len(x.ids)+len(x.versions)+len(x.settings) > 0 {
			return twice
		}
	case lineID:
		if l.ID < 1 || l.Fingerprint == "" {
			return errors.New("an id and a fingerprint are needed")
		}
		if l.ID > maxImportedID {
			return fmt.Errorf("id %d: at most %d is imported, as new ids follow the highest: write a lower one", l.ID, maxImportedID)
		}
		if _, ok := x.ids[l.ID]; ok {
			return twice
		}
		x.ids[l.ID] = l.Fingerprint
	case lineGlobal, lineSettings:
		if l.Settings == nil {
			return errors.New("it has no settings")
		}
		if err := l.Settings.Valid(); err != nil {
			return err
		}
		if l.Kind == lineGlobal {
			if x.global != nil {
				return twice
			}
			x.global = l.Settings
			return nil
		}
		if err := jetbus.ValidTopic(l.Topic); err != nil {
			return err
		}
		if _, ok := x.settings[l.Topic]; ok {
			return twice
		}
		x.settings[l.Topic] = *l.Settings
	case lineVersion:
		if l.Version == nil {
			return errors.New("it has no version")
		}
		return x.takeVersion(*l.Version)
	default:
		return fmt.Errorf("kind %.40q is not known", l.Kind)
	}
	return nil
}

func (x *export) takeVersion(v Version) error {
	ref, err := ParseReference(v.Reference().String())
	if err != nil {
		return err
	}
	if err := (&storedVersion{Version: v}).check(ref); err != nil {
		return err
	}
	if err := (Settings{Level: v.Level, Model: v.Model}).Valid(); err != nil {
		return err
	}
	if err := (RegisterOptions{Metadata: v.Metadata, By: v.By, Force: v.Admission == Forced && !v.Erased}).valid(); err != nil {
		return err
	}
	if _, ok := x.versions[ref]; ok {
		return fmt.Errorf("%s was there before", ref)
	}
	x.versions[ref] = v
	return nil
}

// order returns the versions so that each comes after those before it in its topic,
// and after those that it refers to.
func (x *export) order() ([]Reference, error) {
	var order []Reference
	state := map[Reference]int{} // 1: begun, 2: done
	var visit func(ref Reference) error
	visit = func(ref Reference) error {
		v, ok := x.versions[ref]
		switch {
		case state[ref] == 2:
			return nil
		case state[ref] == 1:
			return fmt.Errorf("%w: %s refers to itself", ErrInvalidExport, ref)
		case !ok:
			return fmt.Errorf("%w: %s is missing", ErrInvalidExport, ref)
		}
		state[ref] = 1
		before := v.References
		if ref.Version > 1 {
			before = append(slices.Clip(before), Reference{Topic: ref.Topic, Version: ref.Version - 1})
		}
		for _, b := range before {
			if err := visit(b); err != nil {
				return err
			}
		}
		state[ref] = 2
		order = append(order, ref)
		return nil
	}
	for _, ref := range slices.SortedFunc(maps.Keys(x.versions), compareReferences) {
		if err := visit(ref); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// verify compiles the versions and checks that they are what they say.
func (x *export) verify(order []Reference) error {
	b := emptySnapshot().change(nil)
	for _, ref := range order {
		v := x.versions[ref]
		wrong := func(err error) error {
			return fmt.Errorf("%w: version %d of %s: %w", ErrInvalidExport, ref.Version, ref.Topic, err)
		}
		t := b.topicFor(ref.Topic)
		e := &entry{Version: v}
		t.versions = append(t.versions, e) // order has them by number
		if x.ids[v.ID] != v.Fingerprint {  // both are missing where somebody removed the record
			return wrong(fmt.Errorf("its id %d is not that of its fingerprint", v.ID))
		}
		if v.Erased {
			continue
		}
		uris, err := schema.References(v.Text)
		if err != nil {
			return wrong(err)
		}
		if err := sameReferences(uris, v.References); err != nil {
			return wrong(err)
		}
		compiled, err := b.compile(e)
		if err != nil {
			return wrong(err)
		}
		if compiled.Fingerprint() != v.Fingerprint {
			return wrong(fmt.Errorf("its fingerprint is %s, and it says %.80s", compiled.Fingerprint(), v.Fingerprint))
		}
		for _, to := range v.References {
			if target := x.versions[to]; v.Live() && !target.Live() {
				return wrong(fmt.Errorf("it refers to %s, which is deleted", to))
			}
		}
	}
	return nil
}

// sameReferences checks that the references of a record are those of its text.
func sameReferences(uris []string, have []Reference) error {
	var want []Reference
	for _, uri := range uris {
		ref, err := ParseReference(uri)
		if err != nil {
			return err
		}
		want = append(want, ref)
	}
	slices.SortFunc(want, compareReferences)
	if want = slices.Compact(want); !slices.Equal(want, have) {
		return fmt.Errorf("its text refers to %v, and it says %v", want, have)
	}
	return nil
}

// step stores one record of an import.
type step func(ctx context.Context, r *Registry) error

// against compares an export with what is there, and returns what is to be stored,
// in order. Settings come last: they could forbid the rest.
func (x *export) against(s *snapshot, order []Reference) ([]step, error) {
	var todo []step
	conflict := &jetbus.ConflictError{What: "the registry", Hint: "import into an empty one, or into the one it came from"}
	differs := func(field, have, want string) {
		conflict.Differences = append(conflict.Differences, jetbus.Difference{Field: field, Have: have, Want: want})
	}
	var locked []string
	ids := s.ids.all()
	for _, id := range slices.Sorted(maps.Keys(x.ids)) {
		want := x.ids[id]
		have, taken := ids[id]
		switch known, _ := s.ids.of(want); {
		case have == want:
		case taken:
			differs(fmt.Sprintf("id %d", id), have, want)
		case known != 0 && known < id:
			differs("id of "+want, fmt.Sprint(known), fmt.Sprint(id))
		default:
			todo = append(todo, storeID(id, want))
		}
	}
	for _, ref := range order {
		v := x.versions[ref]
		switch e := s.find(ref); {
		case e == nil:
			todo = append(todo, storeVersion(v))
			if s.effective(ref.Topic).Mode == ReadOnly && !slices.Contains(locked, ref.Topic) {
				locked = append(locked, ref.Topic)
			}
		case e.broken != nil || !e.equal(v):
			differs(fmt.Sprintf("version %d of %s", ref.Version, ref.Topic), e.summary(), summary(v))
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(x.settings)) {
		todo = x.compareSettings("settings of "+topic, s.topic(topic).settings, x.settings[topic], differs, todo, storeSettings(topic, x.settings[topic]))
	}
	if x.global != nil {
		todo = x.compareSettings("global settings", s.global, *x.global, differs, todo, storeGlobal(*x.global))
	}
	switch {
	case len(conflict.Differences) > 0:
		return nil, conflict
	case len(locked) > 0:
		return nil, fmt.Errorf("%w: %s: change the mode first", ErrReadOnly, strings.Join(locked, ", "))
	}
	return todo, nil
}

func (x *export) compareSettings(what string, have ownSettings, want Settings, differs func(field, have, want string), todo []step, store step) []step {
	switch {
	case have.broken != nil:
		differs(what, "unreadable", fmt.Sprintf("%+v", want))
	case have.Settings == want:
	case have.Settings == Settings{}:
		todo = append(todo, store)
	default:
		differs(what, fmt.Sprintf("%+v", have.Settings), fmt.Sprintf("%+v", want))
	}
	return todo
}

func (e *entry) summary() string {
	if e.broken != nil {
		return "unreadable"
	}
	return summary(e.Version)
}

// summary tells two versions apart in few words, mostly.
func summary(v Version) string {
	state := "live"
	switch {
	case v.Erased:
		state = "erased"
	case !v.Live():
		state = "deleted"
	}
	return fmt.Sprintf("%.12s (id %d, %s, created %s)", v.Fingerprint, v.ID, state, v.Created.Format("2006-01-02T15:04:05.000Z07:00"))
}
