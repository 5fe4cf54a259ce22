package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// Current is what a publisher needs to know of a topic. It does not change: ask
// again for each event.
type Current struct {
	Version  Version        // the latest live one
	Schema   *schema.Schema // of it
	Settings Settings       // those that hold for the topic

	globalSeq uint64
}

// Current returns the latest live version of a topic, compiled, and the settings
// that hold. It is for the path of every event: it reads memory alone, waits for
// nobody, and allocates nothing but after a change. The error wraps [ErrNoSchema]
// (and is that itself where the topic has no version), jetbus.ErrClosed or
// [ErrUnreadable]. Topics are not checked for their grammar; a bad one has no
// schema.
func (r *Registry) Current(topic string) (*Current, error) {
	if r.life.Err() != nil {
		return nil, jetbus.ErrClosed
	}
	s := r.now.Load()
	t, ok := s.topics[topic]
	if !ok {
		return nil, ErrNoSchema
	}
	if c := t.current.Load(); c != nil && c.globalSeq == s.globalSeq {
		return c, nil
	}
	e := t.latest()
	if e == nil {
		return nil, ErrNoSchema
	}
	compiled, err := s.compile(e)
	if err != nil {
		return nil, fmt.Errorf("current schema of %s: %w", topic, err)
	}
	c := &Current{Version: e.Version, Schema: compiled, Settings: s.effective(topic), globalSeq: s.globalSeq}
	t.current.Store(c)
	return c, nil
}

// Version returns a version, deleted ones too, which it asks the broker for if it
// does not know it. The error wraps [ErrNoVersion], or [ErrNoSchema] where the
// topic has none at all, jetbus.ErrInvalidTopic or [ErrUnreadable].
func (r *Registry) Version(ctx context.Context, topic string, n int) (Version, error) {
	_, e, err := r.versionOf(ctx, topic, n)
	if err == nil {
		err = e.broken
	}
	if err != nil {
		return Version{}, fmt.Errorf("version %d of %s: %w", n, topic, err)
	}
	return e.Version, nil
}

// Compiled returns a version, compiled, as Version does; deleted ones too, for
// events of the past. It compiles once. The error can also wrap [ErrErased].
func (r *Registry) Compiled(ctx context.Context, topic string, n int) (*schema.Schema, error) {
	s, e, err := r.versionOf(ctx, topic, n)
	if err == nil {
		var compiled *schema.Schema
		if compiled, err = s.compile(e); err == nil {
			return compiled, nil
		}
	}
	return nil, fmt.Errorf("version %d of %s: %w", n, topic, err)
}

func (r *Registry) versionOf(ctx context.Context, topic string, n int) (*snapshot, *entry, error) {
	s := r.now.Load()
	if e := s.find(Reference{Topic: topic, Version: n}); e != nil && r.life.Err() == nil && ctx.Err() == nil {
		return s, e, nil
	}
	if err := jetbus.ValidTopic(topic); err != nil {
		return nil, nil, err
	}
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	ctx, cancel := r.bound(ctx)
	defer cancel()
	return r.locate(ctx, Reference{Topic: topic, Version: n})
}

// Latest returns the live version of a topic with the highest number. The error
// wraps [ErrNoSchema] where there is none.
func (r *Registry) Latest(ctx context.Context, topic string) (Version, error) {
	t, _, err := r.readTopic(ctx, "latest version of", topic)
	if err != nil {
		return Version{}, err
	}
	e := t.latest()
	switch {
	case e == nil:
		return Version{}, fmt.Errorf("latest version of %s: %w", topic, ErrNoSchema)
	case e.broken != nil:
		return Version{}, fmt.Errorf("latest version of %s: %d: %w", topic, e.Number, e.broken)
	}
	return e.Version, nil
}

// Versions returns the live versions of a topic by number, with includeDeleted all
// of them; none where the topic has none. The error wraps [ErrUnreadable] where one
// cannot be read.
func (r *Registry) Versions(ctx context.Context, topic string, includeDeleted bool) ([]Version, error) {
	t, _, err := r.readTopic(ctx, "versions of", topic)
	if err != nil {
		return nil, err
	}
	var out []Version
	for _, e := range t.versions {
		if e.broken != nil {
			return nil, fmt.Errorf("versions of %s: %d: %w", topic, e.Number, e.broken)
		}
		if includeDeleted || e.live() {
			out = append(out, e.Version)
		}
	}
	return out, nil
}

// Topics returns the topics that have a live version, with includeDeleted those
// that have any, in order.
func (r *Registry) Topics(ctx context.Context, includeDeleted bool) ([]string, error) {
	s, err := r.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("topics: %w", err)
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(s.topics)) {
		if t := s.topics[name]; t.latest() != nil || includeDeleted && len(t.versions) > 0 {
			out = append(out, name)
		}
	}
	return out, nil
}

// Find returns the live version of a topic whose schema is that of text, however
// it is spaced and ordered. The error wraps [ErrNoSchema] or [ErrNoVersion] where
// there is none, or is that of a text that is no schema.
func (r *Registry) Find(ctx context.Context, topic, text string) (Version, error) {
	return r.findText(ctx, topic, text, false)
}

// FindDeleted is Find among all versions whose text is not gone: a live one, or else one that
// is deleted.
func (r *Registry) FindDeleted(ctx context.Context, topic, text string) (Version, error) {
	return r.findText(ctx, topic, text, true)
}

func (r *Registry) findText(ctx context.Context, topic, text string, deleted bool) (Version, error) {
	op := "find in " + topic
	if err := jetbus.ValidTopic(topic); err != nil {
		return Version{}, fmt.Errorf("find: %w", err)
	}
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return Version{}, fmt.Errorf("%s: %w", op, err)
	}
	defer leave()
	ctx, cancel := r.bound(ctx)
	defer cancel()
	compiled, _, err := r.parse(ctx, text)
	if err != nil {
		return Version{}, fmt.Errorf("%s: %w", op, err)
	}
	t := r.now.Load().topic(topic)
	e := t.equal(compiled.Fingerprint())
	known := t.latest() != nil
	if deleted && e == nil {
		for _, old := range slices.Backward(t.versions) {
			known = known || !old.Erased
			if e == nil && old.broken == nil && !old.Erased && old.Fingerprint == compiled.Fingerprint() {
				e = old
			}
		}
	}
	switch {
	case e != nil:
		return e.Version, nil
	case !known:
		return Version{}, fmt.Errorf("%s: %w", op, ErrNoSchema)
	}
	return Version{}, fmt.Errorf("%s: %w: none is like this", op, ErrNoVersion)
}

// equal returns the newest live version with a fingerprint, nil if there is none.
func (t *topicState) equal(fingerprint string) *entry {
	for _, e := range slices.Backward(t.versions) {
		if e.broken == nil && e.live() && e.Fingerprint == fingerprint {
			return e
		}
	}
	return nil
}

// ByID returns the versions with an id, in the order of topics and numbers: several
// where topics share a schema, and deleted ones too, but not those whose text is
// gone. The error wraps [ErrNoSchema] where there is none.
func (r *Registry) ByID(ctx context.Context, id int) ([]Version, error) {
	s, err := r.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("schema with id %d: %w", id, err)
	}
	fingerprint := s.ids.fingerprint(id)
	var out []Version
	for _, name := range slices.Sorted(maps.Keys(s.topics)) {
		for _, e := range s.topics[name].versions {
			if fingerprint != "" && e.Fingerprint == fingerprint && !e.Erased {
				out = append(out, e.Version)
			}
		}
	}
	if out == nil {
		return nil, fmt.Errorf("schema with id %d: %w", id, ErrNoSchema)
	}
	return out, nil
}

// ReferencedBy returns the versions that refer to one, in order; those that are
// deleted and not erased too. The error is that of Version.
func (r *Registry) ReferencedBy(ctx context.Context, topic string, n int) ([]Reference, error) {
	s, e, err := r.versionOf(ctx, topic, n)
	if err != nil {
		return nil, fmt.Errorf("references to version %d of %s: %w", n, topic, err)
	}
	by, _ := s.referrers(e.Reference(), true)
	return by, nil
}

// referrers returns who refers to a version, and who was about to when it was last
// heard of: those versions do not exist, and may come into being at any moment.
// Deleted referrers count on request. One that cannot be read counts.
func (s *snapshot) referrers(to Reference, deleted bool) (by, pending []Reference) {
	for _, ref := range s.topic(to.Topic).referrers[to.Version] {
		e := s.find(ref)
		switch {
		case e == nil:
			pending = append(pending, ref)
		case e.broken != nil, (e.live() || deleted) && slices.Contains(e.References, to):
			by = append(by, ref)
		}
	}
	slices.SortFunc(by, compareReferences)
	return by, pending
}

// compile returns a version, compiled.
func (s *snapshot) compile(e *entry) (*schema.Schema, error) {
	if c := e.compiled.Load(); c != nil {
		return c, nil
	}
	switch {
	case e.broken != nil:
		return nil, e.broken
	case e.Erased:
		return nil, ErrErased
	}
	references, err := s.resolve(e.References)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.compiled.Load(); c != nil {
		return c, nil
	}
	c, err := schema.Compile(e.Text, schema.Options{Draft: e.Draft, References: references})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	e.compiled.Store(c)
	return c, nil
}

// resolve returns the schemas that are referred to, and those that they refer to
// in turn, by URI.
func (s *snapshot) resolve(refs []Reference) (map[string]*schema.Schema, error) {
	out := map[string]*schema.Schema{}
	begun := map[Reference]bool{}
	var visit func(refs []Reference) error
	visit = func(refs []Reference) error {
		for _, ref := range refs {
			if begun[ref] {
				if out[ref.String()] == nil {
					return fmt.Errorf("%w: %s refers to itself", ErrUnreadable, ref)
				}
				continue
			}
			begun[ref] = true
			e := s.find(ref)
			if e == nil || e.Erased {
				return fmt.Errorf("%w: %s: %w", ErrInvalidReference, ref, ErrNoVersion)
			}
			if err := visit(e.References); err != nil { // first, so that compile finds them done
				return err
			}
			c, err := s.compile(e)
			if err != nil {
				return fmt.Errorf("%s: %w", ref, err)
			}
			out[ref.String()] = c
		}
		return nil
	}
	if err := visit(refs); err != nil {
		return nil, err
	}
	return out, nil
}

// parse compiles a text that is to be registered or compared, and returns what it
// refers to. References must be live; those that the cache does not know the broker
// is asked for.
func (r *Registry) parse(ctx context.Context, text string) (*schema.Schema, []Reference, error) {
	uris, err := schema.References(text)
	if err != nil {
		return nil, nil, err
	}
	var refs []Reference
	for _, uri := range uris {
		ref, err := ParseReference(uri)
		if err != nil {
			return nil, nil, err
		}
		_, e, err := r.locate(ctx, ref)
		switch {
		case errors.Is(err, ErrNoVersion), errors.Is(err, ErrNoSchema):
			return nil, nil, fmt.Errorf("%w: %s: %w", ErrInvalidReference, ref, err)
		case err != nil:
			return nil, nil, fmt.Errorf("%s: %w", ref, err)
		case !e.live():
			return nil, nil, fmt.Errorf("%w: %s is deleted: %w", ErrInvalidReference, ref, ErrNoVersion)
		}
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, compareReferences)
	refs = slices.Compact(refs)
	references, err := r.now.Load().resolve(refs)
	if err != nil {
		return nil, nil, err
	}
	compiled, err := schema.Compile(text, schema.Options{References: references})
	return compiled, refs, err
}
