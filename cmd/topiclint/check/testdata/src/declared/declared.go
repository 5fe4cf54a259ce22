// Package declared declares topics. // want package:`topics\(carts clicks prices\)`
package declared

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
)

func Declare(ctx context.Context, b jetbus.Bus) error {
	_ = b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "carts", KeyInSubject: true})
	_ = b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "clicks", Compact: false})
	return b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "prices", Compact: true})
}
