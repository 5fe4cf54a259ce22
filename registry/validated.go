package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// ValidatedOptions say which schema events are held to. The zero value is usable.
type ValidatedOptions struct {
	// Versions are the versions of the schemas that this program was written for, by
	// topic: an event that states none follows that one. Pin them in each release, as
	// Bind does. Defaults to the latest one of a topic at that moment: whoever registers
	// another one then changes what this program may publish while it runs.
	Versions map[string]int
	// RequireSchema refuses events of topics that have no schema. By default they pass.
	RequireSchema bool
	// Observer is told [jetbus.PublishFail] of what is refused here, which the backend's own
	// never hears of. Defaults to none.
	Observer jetbus.Observer
}

// Validated returns a backend that stores an event only if it follows the schema of its topic, under
// the topic's model. Everything else is passed to b. Stored events state the version that they follow
// in [HeaderSchemaVersion] and [HeaderDataSchema]. The caller's event is not changed.
//
// An event is validated against the version in its HeaderSchemaVersion, which must exist and not be
// deleted. Without the header, the version is the one in o.Versions, or else the latest. An event is
// refused if it has no payload, a payload that is not valid JSON, or another content type. The error
// of Publish and PublishBatch then matches jetbus.ErrSchema (see [SchemaError]) or [ErrNoVersion], and
// nothing is sent, not even the other events of a batch.
//
// Events of topics without a schema are stored, unless o.RequireSchema is set. Dead letters and events
// of jetbus.Tombstone are always stored. A null payload without the tombstone header is validated like
// any other value. Events that are replayed to a group (Retry) are not validated: see [Normalized].
//
// The validation of a payload of up to 1 MiB takes at most 100 ms of CPU and 64 MiB of memory. A
// payload that needs more is refused, and the error also matches [schema.ErrTooMuchWork]. Validations
// that take more than about 1 ms, or of payloads larger than 64 KiB, run on at most half of the
// processors, and at most 4 at a time for each Registry. The others wait for their turn, until ctx ends.
// Clients of a gateway take turns, however many events each publishes.
//
// Two headers are added: an event of a topic with a schema may have at most jetbus.MaxHeaders-2
// headers of its own.
func Validated(b jetbus.Backend, r *Registry, o ValidatedOptions) jetbus.Backend {
	return &validated{Backend: b, r: r, o: o}
}

// validated is the decorator.
type validated struct {
	jetbus.Backend

	r *Registry
	o ValidatedOptions
}

// Publish implements jetbus.Publisher.
func (b *validated) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	began := time.Now()
	if err := b.check(ctx, &e); err != nil {
		err = fmt.Errorf("publish %s: %w", e.Topic, err)
		if len(o) == 1 && o[0].DryRun {
			return jetbus.Receipt{}, err
		}
		b.o.Observer.Observe(jetbus.Observation{Kind: jetbus.PublishFail, Topic: e.Topic, ID: e.ID, Count: 1, Duration: time.Since(began), Err: err})
		return jetbus.Receipt{}, err
	}
	return b.Backend.Publish(ctx, e, o...)
}

// PublishBatch implements jetbus.Batcher.
func (b *validated) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	began := time.Now()
	events = slices.Clone(events)
	for i := range events {
		if err := b.check(ctx, &events[i]); err != nil {
			err = fmt.Errorf("publish batch: event %d: %w", i, err)
			b.o.Observer.Observe(jetbus.Observation{Kind: jetbus.PublishFail, Topic: events[i].Topic, Count: len(events), Duration: time.Since(began), Err: err})
			return nil, err
		}
	}
	return b.Backend.PublishBatch(ctx, events, o)
}

// check validates an event and makes it state its version.
func (b *validated) check(ctx context.Context, e *jetbus.Event) error {
	if jetbus.IsDeadLetterTopic(e.Topic) || isMeantAsTombstone(e) {
		return nil
	}
	t, err := versionFor(ctx, b.r, e, b.o.Versions)
	if err != nil {
		return err
	}
	if t.schema == nil {
		if err := jetbus.ValidTopic(e.Topic); err == nil && b.o.RequireSchema {
			return fmt.Errorf("%w: %s: %w", jetbus.ErrSchema, e.Topic, ErrNoSchema)
		}
		return nil
	}
	if err := b.r.validate(ctx, t, e); err != nil {
		if e.IsTombstone() && errors.Is(err, jetbus.ErrSchema) {
			err = fmt.Errorf("%w; to delete the key publish a jetbus.Tombstone", err)
		}
		return err
	}
	stamp(e, t.version)
	return nil
}

// versionFor returns the version that an event that is to be published follows. Its
// schema is nil where the topic has none.
func versionFor(ctx context.Context, r *Registry, e *jetbus.Event, versions map[string]int) (target, error) {
	current, err := r.Current(e.Topic)
	pinned := versions[e.Topic]
	switch {
	case errors.Is(err, ErrNoSchema) && pinned == 0:
		return target{topic: e.Topic}, nil
	case err != nil && !errors.Is(err, ErrNoSchema):
		return target{}, err
	}
	stated, err := statedVersion(e)
	if err != nil {
		return target{}, err
	}
	version := cmp.Or(stated, pinned)
	switch {
	case current != nil && (version == 0 || version == current.Version.Number):
		return target{e.Topic, current.Version.Number, current.Schema, current.Settings}, nil
	case version < 1:
		return target{}, fmt.Errorf("%w: Versions has %d for %s, use 1 or more", jetbus.ErrInvalidOption, version, e.Topic)
	}
	v, err := r.Version(ctx, e.Topic, version)
	if err == nil && !v.Live() {
		err = fmt.Errorf("version %d of %s is deleted: %w", version, e.Topic, ErrNoVersion)
	}
	if stated != 0 && (errors.Is(err, ErrNoVersion) || errors.Is(err, ErrNoSchema)) {
		err = fmt.Errorf("%w: the event states a version that it cannot follow: %w", jetbus.ErrSchema, err)
	}
	if err != nil {
		return target{}, err
	}
	return wanted(ctx, r, e.Topic, version)
}
