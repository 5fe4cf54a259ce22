package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// Validate validates the payload of an event as [Validated] does before it publishes the event, and stores
// nothing. version is the number of the version to validate against; 0 selects the latest. The topic's model
// applies. A null payload is validated like any other value.
//
// The error matches [jetbus.ErrSchema] if the payload does not follow the schema: see [SchemaError]. It
// wraps [ErrNoSchema] if the topic has no schema, [ErrNoVersion] for a version that does not exist or is
// deleted, jetbus.ErrInvalidTopic, jetbus.ErrInvalidOption for a negative version, jetbus.ErrClosed, or
// jetbus.ErrUnavailable if ctx ends while other validations are running. The time and memory of a validation
// are limited as Validated describes. Validate is safe for concurrent use.
func (r *Registry) Validate(ctx context.Context, topic string, payload []byte, version int) error {
	if err := r.validatePayload(ctx, topic, payload, version); err != nil {
		return fmt.Errorf("validate a payload of %.250s: %w", topic, err)
	}
	return nil
}

func (r *Registry) validatePayload(ctx context.Context, topic string, payload []byte, version int) error {
	if err := jetbus.ValidTopic(topic); err != nil {
		return err
	}
	if version < 0 {
		return fmt.Errorf("%w: version %d, use 1 or more, or 0 for the latest", jetbus.ErrInvalidOption, version)
	}
	ctx, leave, err := r.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	e := &jetbus.Event{Topic: topic, Payload: payload}
	var versions map[string]int
	if version > 0 {
		versions = map[string]int{topic: version}
	}
	t, err := versionFor(ctx, r, e, versions)
	if err == nil && t.schema == nil {
		err = ErrNoSchema
	}
	if err != nil {
		return err
	}
	return r.validate(ctx, t, e)
}

// validate validates the payload of an event against a version of its topic's schema.
func (r *Registry) validate(ctx context.Context, t target, e *jetbus.Event) error {
	if err := judgeable(e, t.version); err != nil {
		return err
	}
	err := r.gate.validate(ctx, t.schema, t.settings.Model, e.Payload)
	if errors.Is(err, schema.ErrInvalid) {
		return judgment(e.Topic, t.version, err)
	}
	return err
}
