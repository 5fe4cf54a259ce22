package registry

import (
	"context"
	"io"
)

// What the tests of this room, which are outside of it since they need a broker, see of its inside.

// MaxAttempts is how often a write is decided.
const MaxAttempts = maxAttempts

// DecideAmongOthers decides what others are always in the way of, and returns how often it tried.
func DecideAmongOthers(ctx context.Context, r *Registry) (tries int, err error) {
	err = r.decide(ctx, func(context.Context, *snapshot) error {
		tries++
		return &raceError{guard: ">"}
	})
	return tries, err
}

// ImportWith is Import, with something that happens between its look at what is there and its writes.
func ImportWith(ctx context.Context, r *Registry, exported io.Reader, meanwhile func() error) error {
	x, err := readExport(exported)
	if err != nil {
		return err
	}
	order, err := x.order()
	if err != nil {
		return err
	}
	s, err := r.fresh(ctx)
	if err != nil {
		return err
	}
	todo, err := x.against(s, order)
	if err == nil {
		err = meanwhile()
	}
	for i := 0; err == nil && i < len(todo); i++ {
		err = todo[i](ctx, r)
	}
	return err
}
