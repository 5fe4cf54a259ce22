package embedded

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
)

// Kill ends the server as a SIGKILL of its process would: what had been
// acknowledged to a client is in the store, and nothing that only a clean
// shutdown writes is. [Broker.Restart] starts it again, with the recovery that
// a crash causes. Killing a broker that is down does nothing.
//
// How: clients are cut off, so that nobody gets a further acknowledgement; then
// the store folder is copied as the operating system sees it; then the server
// is shut down and the copy takes the place of what the shutdown wrote.
//
// What this covers: everything the server keeps in memory is lost, such as
// memory streams, unwritten consumer state (so redeliveries happen) and
// unwritten indexes (rebuilt on start). What it does not cover: the copy is
// taken when the store has come to rest, so a record is never torn in the
// middle of its write; and nothing the operating system had accepted is lost,
// as it would be with the power. Messages whose acknowledgement was still under
// way may be in the store or not, as in a real crash.
//
// After an error the broker runs as before, though its clients had to
// reconnect; if it fails once the server is down, the broker is down, and
// Restart starts it from a store that also has what the shutdown wrote.
func (b *Broker) Kill(ctx context.Context) error {
	return b.do(ctx, "kill", func(ctx context.Context) error {
		if b.isStopped() {
			return ErrStopped
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		r := b.detach()
		if r == nil {
			return nil
		}
		if err := b.freeze(ctx, r); err != nil {
			r.gate.closed.Store(false)
			err = errors.Join(err, kick(r.srv)) // those still held at the gate
			b.cfg.Routes.Reconnect()
			b.attach(r)
			return err
		}
		r.shutdown()
		return swapStore(b.dir)
	})
}

// freeze cuts everybody off from the server and copies its store.
func (b *Broker) freeze(ctx context.Context, r *run) error {
	r.gate.closed.Store(true)
	b.cfg.Routes.Cut()
	if err := kick(r.srv); err != nil {
		return err
	}
	if err := copyStore(ctx, b.dir); err != nil {
		return err
	}
	// Whoever came meanwhile waits at the gate; it is let go without an answer.
	return kick(r.srv)
}

// kick disconnects every client that the server knows. A client that has passed
// the gate is among them, for the server registers it first.
func kick(srv *server.Server) error {
	// The listing is ordered by age and those at the gate come last, so the
	// margin for newcomers loses none of the older ones.
	cz, err := srv.Connz(&server.ConnzOptions{Limit: srv.NumClients() + 1024})
	if err != nil {
		return fmt.Errorf("list clients: %w", err)
	}
	for _, c := range cz.Conns {
		// The only error is that the client has left by itself.
		_ = srv.DisconnectClientByID(c.Cid)
	}
	return nil
}
