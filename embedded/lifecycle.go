package embedded

import (
	"context"
	"fmt"

	"github.com/seed-63e9a637/jetbus/internal/shutdown"
)

// Restart stops the server cleanly if it runs, and starts it again on the same
// store and the same ports. Connections made by Connect come back by
// themselves. After an error the broker is down and Restart may be tried again;
// after Stop the error is [ErrStopped].
func (b *Broker) Restart(ctx context.Context) error {
	return b.do(ctx, "restart", func(ctx context.Context) error {
		if b.isStopped() {
			return ErrStopped
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if r := b.detach(); r != nil {
			r.shutdown()
		}
		if err := finishSwap(b.dir); err != nil { // that of a Kill that failed in it
			return err
		}
		return b.boot(ctx)
	})
}

// Stop shuts the server down cleanly, closes the store and removes the folder
// if it is a temporary one. It may be called again, concurrently and after
// Kill; calls after the first do nothing. If ctx ends while it waits, its error is
// returned while the shutdown goes on, and a further Stop waits for it. A ctx that
// was canceled before the call shortens nothing.
func (b *Broker) Stop(ctx context.Context) error {
	ctx, release := shutdown.Context(ctx, 0)
	defer release()
	return b.do(ctx, "stop", func(context.Context) error {
		if b.isStopped() {
			return nil
		}
		r := b.detach()
		b.mu.Lock()
		b.stopped = true
		b.mu.Unlock()
		if r != nil {
			r.shutdown()
		}
		return b.releaseDir()
	})
}

// do runs one operation at a time. It returns early when ctx ends; the
// operation then still comes to its end, and the next one waits for that.
func (b *Broker) do(ctx context.Context, op string, f func(context.Context) error) error {
	if err := b.acquire(ctx); err != nil {
		return fmt.Errorf("%s broker: %w", op, err)
	}
	done := make(chan error, 1)
	go func() {
		err := f(ctx)
		<-b.ops
		done <- err
	}()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		default:
			err = ctx.Err()
		}
	}
	if err != nil {
		return fmt.Errorf("%s broker: %w", op, err)
	}
	return nil
}

// acquire takes the token of ops. It takes a free one even if ctx has ended, so
// that Stop begins in any case.
func (b *Broker) acquire(ctx context.Context) error {
	select {
	case b.ops <- struct{}{}:
		return nil
	default:
	}
	select {
	case b.ops <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// detach makes the broker appear down and returns what ran, nil if nothing did.
func (b *Broker) detach() *run {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.run
	b.run = nil
	return r
}

// attach undoes detach.
func (b *Broker) attach(r *run) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.run = r
}

func (b *Broker) isStopped() bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.stopped
}
