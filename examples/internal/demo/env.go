package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/registry"
)

// pollInterval is how often Settled asks the broker.
const pollInterval = 50 * time.Millisecond

// Env is what an example works with. [Main] makes one. Printf may be called concurrently, the
// other methods must not.
type Env struct {
	Bus     *adapter.Bus
	Schemas *registry.Registry
	DB      *mongo.Database

	cancel  context.CancelCauseFunc // of the context of the program
	parts   []Part
	watched sync.WaitGroup
}

// Part runs until it is stopped, or fails: a subscription, a projection, a change feed.
type Part interface {
	Stop(ctx context.Context) error
	Done() <-chan struct{}
	Err() error
}

// Add takes the results of a function that starts a part, and returns the error. If the part
// ends, the context of the program is canceled. Main stops the parts at the end, the last one
// first.
func (e *Env) Add(part Part, err error) error {
	if err != nil {
		return err
	}
	e.parts = append(e.parts, part)
	e.watched.Go(func() {
		<-part.Done()
		e.cancel(part.Err())
	})
	return nil
}

// Printf prints a line to standard output.
func (e *Env) Printf(format string, args ...any) {
	fmt.Fprintf(os.Stdout, format+"\n", args...)
}

// stop stops the parts.
func (e *Env) stop(ctx context.Context) error {
	var err error
	for _, part := range slices.Backward(e.parts) {
		err = errors.Join(err, part.Stop(ctx))
	}
	e.watched.Wait()
	return err
}

// Settled waits until groups have settled every event of a topic: each was acknowledged or
// became a dead letter. It returns the error of ctx if that ends first. Only a demonstration
// needs it: a service runs until it is stopped.
func (e *Env) Settled(ctx context.Context, topic string, groups ...string) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		infos, err := e.Bus.Groups(ctx, topic)
		settled := 0
		for _, g := range infos {
			if g.Pending == 0 && g.Held == 0 && slices.Contains(groups, g.Group) {
				settled++
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("wait for the groups of %s: %w", topic, err)
		case settled == len(groups):
			return nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
