// Package users calls the wrappers of another package (BUS001).
package users

import (
	"context"

	"github.com/seed-63e9a637/jetbus"

	"orders"
	"wrap"
)

type own struct{ *wrap.Sender }

func use(ctx context.Context, b jetbus.Bus, o own) error {
	_ = o.Send(ctx, "Sent", nil)             // want `BUS001: .*"Sent"`
	_ = o.Sender.Send(ctx, orders.Bad, nil)  // want `BUS001: .*"Orders"`
	_ = wrap.Generic(ctx, b, "Gen", 1)       // want `BUS001: .*"Gen"`
	_ = wrap.Generic[int](ctx, b, "Gen2", 1) // want `BUS001: .*"Gen2"`
	_ = again(ctx, o, "Again")               // want `BUS001: .*"Again"`
	return wrap.Prefixed(ctx, b, "Whatever")
}

func again(ctx context.Context, o own, t string) error { // want again:`takesTopic\(\[2\]\)`
	return o.Send(ctx, t, nil)
}
