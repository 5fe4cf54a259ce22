//go:build unix

package circle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
	"github.com/seed-63e9a637/jetbus/registry"
)

// config is that of a child process, which turns a circle.
type config struct{ Broker, Mongo, Database string }

func TestMain(m *testing.M) {
	child.Main(map[string]child.Role{"circle": runCircle})
	os.Exit(m.Run())
}

// runCircle turns a circle until SIGTERM. It reports the states of its feed.
func runCircle(ctx context.Context, text []byte, p *child.Parent) error {
	var o config
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	nc, err := broker.Dial(o.Broker)
	if err != nil {
		return err
	}
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{Timeout: patience})
	if err != nil {
		return err
	}
	schemas, err := registry.Open(ctx, nc, registry.Config{})
	if err != nil {
		return err
	}
	client, err := mongo.Connect(options.Client().ApplyURI(o.Mongo))
	if err != nil {
		return err
	}
	after := context.WithoutCancel(ctx)
	c, err := turn(after, bus, schemas, client.Database(o.Database), 2*time.Second)
	if err != nil {
		return err
	}
	if err := c.watch(ctx, p); err != nil {
		return err
	}
	return errors.Join(c.stop(after), schemas.Close(after), bus.Close(after), client.Disconnect(after))
}

// watch says what the feed is doing, until ctx ends or a part does.
func (c circle) watch(ctx context.Context, p *child.Parent) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	said := changefeed.State("")
	for {
		if now := c.feed.Status().State; now != said {
			said = now
			p.Tell(now)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		case <-c.states.Done():
			return fmt.Errorf("the states ended: %w", c.states.Err())
		case <-c.projection.Done():
			return fmt.Errorf("the projection ended: %w", c.projection.Err())
		case <-c.feed.Done():
			return fmt.Errorf("the feed ended: %w", c.feed.Err())
		}
	}
}

// process is a child that turns a circle.
type process struct {
	*child.Process[changefeed.State]
	seen int // of what it has said
}

func (r *rig) spawn() *process {
	r.Helper()
	p, err := child.Start[changefeed.State]("circle", config{r.broker.URL(), r.server.URI(), r.server.Database()})
	r.ok(err)
	r.Cleanup(func() {
		p.Kill()
		if r.Failed() {
			r.Logf("%s said:\n%s", p, p.Stderr())
		}
	})
	return &process{Process: p}
}

// becomes waits until the feed of the child is in a state, behind the last one that was
// waited for.
func (r *rig) becomes(p *process, want changefeed.State) {
	r.Helper()
	r.until(func() string {
		all, _ := p.Reports()
		if i := slices.Index(all[p.seen:], want); i >= 0 {
			p.seen += i + 1
			return ""
		}
		r.ok(p.Err())
		return fmt.Sprintf("the feed of %s is not %s, but %v", p, want, all[p.seen:])
	})
}

// end ends the process in order.
func (r *rig) end(p *process) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	r.ok(p.End(ctx))
}
