// Package schemasany registers schemas for topics that only a run can tell: all that it can name. // want package:`topics\(looped\) schemas\(bound elsewhere here literal looped missing missing.v2 orders orders.snapshot orders.v1 orders.v2 passed raw\)`
package schemasany

import (
	"context"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/registry"

	_ "schemas"
)

var topics = []jetbus.TopicConfig{{Name: "looped"}}

func register(ctx context.Context, r *registry.Registry) {
	for _, c := range topics {
		_, _ = r.Register(ctx, c.Name, "{}", registry.RegisterOptions{})
	}
}
