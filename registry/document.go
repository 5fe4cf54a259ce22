package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// Document returns the latest live schema of a topic for tools that know nothing of the
// registry, such as those that read OpenAPI: what it refers to is within it; see
// [schema.Bundle]. Nil where the topic has no schema, or one that refers to that of a topic which
// may does not allow, since that would be shown with it; a nil may allows all. The error is that
// of Latest, or wraps [ErrUnreadable] where a schema that it refers to is gone.
func (r *Registry) Document(ctx context.Context, topic string, may func(topic string) bool) (json.RawMessage, error) {
	latest, err := r.Latest(ctx, topic)
	if errors.Is(err, ErrNoSchema) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	others := map[string]string{}
	queue := slices.Clone(latest.References)
	for i := 0; i < len(queue); i++ {
		uri := queue[i].String()
		if _, known := others[uri]; known {
			continue
		}
		if may != nil && queue[i].Topic != topic && !may(queue[i].Topic) {
			return nil, nil
		}
		v, err := r.Version(ctx, queue[i].Topic, queue[i].Version)
		if err == nil && v.Erased {
			err = ErrErased
		}
		if err != nil {
			return nil, fmt.Errorf("document of %s: %w: %s: %w", topic, ErrUnreadable, uri, err)
		}
		others[uri] = v.Text
		queue = append(queue, v.References...)
	}
	text, err := schema.Bundle(latest.Text, others)
	if err != nil {
		return nil, fmt.Errorf("document of %s: %w: %w", topic, ErrUnreadable, err)
	}
	return json.RawMessage(text), nil
}
