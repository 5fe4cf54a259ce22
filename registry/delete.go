package registry

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// DeleteOptions say how to delete.
type DeleteOptions struct {
	// Permanent erases what was deleted before: the text and all that belongs to it
	// is gone for readers, the number and the fingerprint stay. Earlier revisions
	// stay in the bucket's history, since nothing is purged.
	Permanent bool
}

// Delete deletes a version: it is no longer the latest and not compared with, while
// events of the past can still be read with it. Registering the same schema again
// makes a new version. With Permanent it erases a deleted one. What is done already
// is no error. It returns the version as it is then.
//
// The error is a [ReferencedError] where live versions refer to it (with Permanent:
// any that are not erased), or wraps [ErrNoVersion], [ErrNoSchema], [ErrNotDeleted],
// [ErrErased], [ErrReadOnly], jetbus.ErrInvalidTopic or jetbus.ErrUnavailable.
func (r *Registry) Delete(ctx context.Context, topic string, n int, o DeleteOptions) (Version, error) {
	if err := jetbus.ValidTopic(topic); err != nil {
		return Version{}, fmt.Errorf("delete: %w", err)
	}
	v, err := r.delete(ctx, Reference{Topic: topic, Version: n}, o)
	if err != nil {
		return Version{}, fmt.Errorf("delete version %d of %s: %w", n, topic, err)
	}
	return v, nil
}

func (r *Registry) delete(ctx context.Context, ref Reference, o DeleteOptions) (v Version, err error) {
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return v, err
	}
	defer leave()
	ctx, cancel := r.bound(ctx)
	defer cancel()
	if _, _, err := r.locate(ctx, ref); err != nil {
		return v, err
	}
	err = r.decide(ctx, func(ctx context.Context, s *snapshot) (err error) {
		v, err = r.attemptDelete(ctx, s, ref, o)
		return err
	})
	return v, err
}

// attemptDelete decides a deletion on the cache, and stores it on condition that
// the cache is what the broker has.
func (r *Registry) attemptDelete(ctx context.Context, s *snapshot, ref Reference, o DeleteOptions) (Version, error) {
	e := s.find(ref)
	switch {
	case e == nil:
		return Version{}, ErrNoVersion
	case e.broken != nil:
		return Version{}, e.broken
	case e.Erased && !o.Permanent:
		return Version{}, ErrErased
	case e.Erased, !e.live() && !o.Permanent:
		return e.Version, nil
	case e.live() && o.Permanent:
		return Version{}, ErrNotDeleted
	case s.effective(ref.Topic).Mode == ReadOnly:
		return Version{}, fmt.Errorf("%w: change its mode first", ErrReadOnly)
	}
	by, pending := s.referrers(ref, o.Permanent)
	if len(by) > 0 {
		return Version{}, &ReferencedError{Topic: ref.Topic, Version: ref.Version, By: by}
	}
	if err := r.fence(ctx, s, ref.Topic, pending); err != nil {
		return Version{}, err
	}
	v := e.Version
	if o.Permanent {
		v = Version{
			Topic: v.Topic, Number: v.Number, ID: v.ID, Fingerprint: v.Fingerprint, Admission: v.Admission,
			Created: v.Created, Deleted: v.Deleted, Erased: true,
		}
	} else {
		v.Deleted = time.Now().UTC().Truncate(time.Millisecond)
	}
	seq, err := r.put(ctx, versionKey(ref), storedVersion{Version: v, Nonce: e.nonce}, topicPrefix(ref.Topic)+">", s.topic(ref.Topic).seq)
	if err != nil {
		return Version{}, err
	}
	_, _ = r.reach(ctx, seq) // it is stored
	return v, nil
}

// fence makes sure that none of the versions that were about to refer to a version
// of a topic comes into being: their registrations depend on the sequence of their
// topics. Those of the topic itself depend on what is written next anyway.
func (r *Registry) fence(ctx context.Context, s *snapshot, topic string, pending []Reference) error {
	var fenced []string
	for _, ref := range pending {
		if ref.Topic == topic || slices.Contains(fenced, ref.Topic) {
			continue
		}
		if _, err := r.put(ctx, fenceKey(ref.Topic), mark{Why: "deletion in " + topic}, topicPrefix(ref.Topic)+">", s.topic(ref.Topic).seq); err != nil {
			return err
		}
		fenced = append(fenced, ref.Topic)
	}
	return nil
}

// DeleteTopic deletes all live versions of a topic, the newest first, and returns
// their numbers; with Permanent it erases all of its versions, none of which may be
// live. The settings stay. Versions that refer to each other are no hindrance. It
// is not one step: after an error some may be deleted, whose numbers are returned
// with it, and repeating goes on. The errors are those of Delete; ErrReferenced,
// ErrNotDeleted and ErrReadOnly come before anything is deleted, but for races.
func (r *Registry) DeleteTopic(ctx context.Context, topic string, o DeleteOptions) ([]int, error) {
	op := "delete " + topic
	if _, _, err := r.readTopic(ctx, "delete", topic); err != nil {
		return nil, err
	}
	s, err := r.fresh(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	t := s.topic(topic)
	if len(t.versions) == 0 {
		return nil, fmt.Errorf("%s: %w", op, ErrNoSchema)
	}
	var todo []int
	for _, e := range slices.Backward(t.versions) {
		switch {
		case e.broken != nil:
			return nil, fmt.Errorf("%s: version %d: %w", op, e.Number, e.broken)
		case e.Erased, !o.Permanent && !e.live():
			continue
		case o.Permanent && e.live():
			return nil, fmt.Errorf("%s: version %d: %w", op, e.Number, ErrNotDeleted)
		}
		by, _ := s.referrers(e.Reference(), o.Permanent)
		by = slices.DeleteFunc(by, func(ref Reference) bool { return ref.Topic == topic })
		if len(by) > 0 {
			return nil, fmt.Errorf("%s: %w", op, &ReferencedError{Topic: topic, Version: e.Number, By: by})
		}
		todo = append(todo, e.Number)
	}
	for i, n := range todo {
		if _, err := r.delete(ctx, Reference{Topic: topic, Version: n}, o); err != nil {
			return todo[:i:i], fmt.Errorf("%s: version %d: %w", op, n, err)
		}
	}
	return todo, nil
}
