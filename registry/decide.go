package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// How often a write is decided, and how long to wait in between, at random: those
// who race would meet again.
const (
	maxAttempts = 1000
	raceWait    = time.Millisecond
	raceWaitMax = 50 * time.Millisecond
)

// decide runs attempt on a cache that has all that is stored, until it does not meet a race.
// After one it waits until the cache has what was in the way. A write without an answer counts
// as a race: what is in the way may be that write, and attempt has to know it. An attempt that
// writes nothing, since it refuses or finds all done, meets no race: so the broker is asked
// before the first, too.
func (r *Registry) decide(ctx context.Context, attempt func(ctx context.Context, s *snapshot) error) error {
	select {
	case r.writing <- struct{}{}:
		defer func() { <-r.writing }()
	case <-ctx.Done():
		return r.outlasted(ctx, "another write of this process is still under way")
	}
	s, err := r.overtake(ctx, ">")
	if err != nil {
		return err
	}
	maybe := false
	var doubted *snapshot
	for i := range maxAttempts {
		before := s
		err := attempt(ctx, s)
		race, ok := errors.AsType[*raceError](err)
		if !ok {
			return err
		}
		maybe = maybe || race.unknown
		if s, err = r.overtake(ctx, race.guard); err == nil && i > 0 {
			limit := min(raceWait<<min(i, 10), raceWaitMax)
			if !pause(ctx, rand.N(limit)) { //nolint:gosec // to spread, not to hide
				err = r.outlasted(ctx, fmt.Sprintf("no time is left to decide it again, after %d attempts", i+1))
			}
		}
		if s == before && race.err == nil && s != doubted {
			doubted = s // others were in the way, and nothing came: it is the cache of a bucket that was there before
			r.doubt()
		}
		_, late := errors.AsType[*lateError](err)
		switch {
		case err != nil && maybe && (late || !errors.Is(err, jetbus.ErrUnavailable)):
			return fmt.Errorf("it may be stored all the same, and to repeat it is safe: %w", errors.Join(err, race))
		case err != nil && maybe:
			return fmt.Errorf("it may be stored all the same, and to repeat it is safe: %w", err)
		case err != nil:
			return errors.Join(err, race.err)
		}
	}
	return fmt.Errorf("%w: gave up after %d attempts", ErrContended, maxAttempts)
}

// outlasted is the error of a wait that ctx ended, and that was none for the server: why
// says what it was for.
func (r *Registry) outlasted(ctx context.Context, why string) error {
	err := context.Cause(ctx)
	if errors.Is(err, context.DeadlineExceeded) && !r.link.IsClosed() {
		return &lateError{why, err}
	}
	return r.translate("", err)
}

// lateError: the time of a call was over while it waited for something else than the server.
// It is to be repeated like one that was not answered, and so matches jetbus.ErrUnavailable,
// whose words would blame the broker.
type lateError struct {
	why string
	err error
}

// Error says what the wait was for.
func (e *lateError) Error() string { return e.why + ": " + e.err.Error() }

// Unwrap returns the error of the context.
func (e *lateError) Unwrap() error { return e.err }

// Is reports what it matches besides.
func (e *lateError) Is(target error) bool { return target == jetbus.ErrUnavailable }

// overtake waits until the cache has all that matches guard at the broker.
func (r *Registry) overtake(ctx context.Context, guard string) (*snapshot, error) {
	seq, err := r.lastOf(ctx, r.subject(guard))
	if err != nil {
		return nil, err
	}
	return r.reach(ctx, seq)
}

// locate returns a version, which it asks the broker for if the cache does not
// know it, and a cache that has it. The error wraps ErrNoVersion, or ErrNoSchema
// where nothing at all is known of the topic.
func (r *Registry) locate(ctx context.Context, ref Reference) (*snapshot, *entry, error) {
	s := r.now.Load()
	if e := s.find(ref); e != nil {
		return s, e, nil
	}
	if ref.Version < 1 {
		return nil, nil, fmt.Errorf("%w: %d: versions count from 1", ErrNoVersion, ref.Version)
	}
	seq, err := r.lastOf(ctx, r.subject(versionKey(ref)))
	if err != nil {
		return nil, nil, err
	}
	if s, err = r.reach(ctx, seq); err != nil {
		return nil, nil, err
	}
	if s.find(ref) == nil && seq > 0 { // it is the cache of a bucket that was there before
		r.doubt()
		if s, err = r.await(ctx, func(s *snapshot) bool { return s.find(ref) != nil }); err != nil {
			return nil, nil, err
		}
	}
	if e := s.find(ref); e != nil {
		return s, e, nil
	}
	if len(s.topic(ref.Topic).versions) == 0 {
		return nil, nil, fmt.Errorf("%w of topic %s: register one first", ErrNoSchema, ref.Topic)
	}
	return nil, nil, fmt.Errorf("%w: %d: the latest of %s is %d", ErrNoVersion, ref.Version, ref.Topic, s.topic(ref.Topic).next()-1)
}
