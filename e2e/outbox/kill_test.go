//go:build unix

package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed/mongobox"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/outbox"
)

var kills = flag.Int("kills", 5, "how often TestDrainerKilled kills its drainer")

// drainerConfig is that of a child process.
type drainerConfig struct {
	Driver, DSN string
	Dialect     outbox.Dialect // of a SQL database
	Database    string         // of MongoDB
	URL         string         // of the broker
	Lease       time.Duration
}

// runDrainer drains until SIGTERM. It reports how many events it has published.
func runDrainer(ctx context.Context, text []byte, p *child.Parent) error {
	var c drainerConfig
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	from, end, err := openDrained(ctx, c)
	if err != nil {
		return err
	}
	defer end()
	nc, err := broker.Dial(c.URL)
	if err != nil {
		return err
	}
	defer nc.Close()
	bus, err := adapter.Open(ctx, nc, adapter.Config{})
	if err != nil {
		return err
	}
	d, err := jetbus.NewDrainer(from, bus, jetbus.DrainOptions{
		Window: 50, Lease: c.Lease, PollMin: 10 * time.Millisecond, PollMax: 50 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.Drained {
				p.Tell(o.Count) // says that it works
			}
		},
	})
	if err != nil {
		return err
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	if b, ok := from.(*mongobox.Box); ok {
		watching.Go(func() {
			if err := b.Watch(ctx, d.Kick); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		})
	}
	return d.Run(ctx)
}

// openDrained opens the outbox that a child process drains.
func openDrained(ctx context.Context, c drainerConfig) (from jetbus.Outbox, end func(), err error) {
	if c.Database != "" {
		return openMongo(ctx, c)
	}
	db, err := sql.Open(c.Driver, c.DSN)
	if err != nil {
		return nil, nil, err
	}
	end = func() { _ = db.Close() }
	if from, err = outbox.Open(ctx, db, outbox.Options{Dialect: c.Dialect}); err != nil {
		end()
		return nil, nil, err
	}
	return from, end, nil
}

// TestDrainerKilled ends the drainer by SIGKILL again and again, while rows are added. A
// consumer with leases of a second sees every event once, after it has dropped those
// whose id it has seen.
func TestDrainerKilled(t *testing.T) {
	onDatabases(t, func(r *rig) {
		broker, err := embedded.Start(r.Context(), embedded.Config{Listen: "127.0.0.1:0", Dir: r.TempDir()})
		r.ok(err)
		nc, err := broker.Connect()
		r.ok(err)
		bus, err := adapter.Open(r.Context(), nc, adapter.Config{})
		r.ok(err)
		r.Cleanup(func() {
			nc.Close()
			r.ok(broker.Stop(context.Background()))
		})
		_, err = bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: "orders", DuplicateWindow: time.Hour, Retention: 2 * time.Hour})
		r.ok(err)
		var seen []string
		var n atomic.Int64
		sub, err := bus.Subscribe(r.Context(), "orders", "billing", func(_ context.Context, d *jetbus.Delivery) error {
			seen = append(seen, d.Key+"/"+d.ID)
			n.Add(1)
			return nil
		}, jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: time.Second, Order: jetbus.Total})
		r.ok(err)

		added := r.writeAndKill(broker.URL(), *kills)
		r.until("everything is seen", func() bool { return int(n.Load()) >= added && r.pending() == 0 })
		r.ok(sub.Stop(r.Context()))
		r.inOrder(r.stored(bus), added) // the log itself has each once
		twice := map[string]bool{}
		once := make([]string, 0, added)
		for _, s := range seen {
			if !twice[s] {
				twice[s] = true
				once = append(once, s)
			}
		}
		r.inOrder(once, added)
		r.ok(bus.Close(r.Context()))
		r.Logf("%d kills, %d events, %d deliveries", *kills, added, len(seen))
	})
}

// writeAndKill adds rows while one drainer after the other is killed at work. It leaves
// one that ends with the test, and returns how many rows there were.
func (r *rig) writeAndKill(url string, kills int) (added int) {
	r.Helper()
	writing, stop := context.WithCancel(r.Context())
	done := make(chan error, 1)
	go func() {
		for ; writing.Err() == nil; added += 20 {
			if added%1000 == 0 {
				r.keepsUp(writing)
			}
			var events []jetbus.Event
			for i := range 20 {
				events = append(events, order(fmt.Sprintf("%07d", added+i), fmt.Sprint("k", i%5)))
			}
			if err := r.tryAdd(context.WithoutCancel(writing), events...); err != nil {
				done <- err
				return
			}
			select {
			case <-time.After(5 * time.Millisecond): // leave the others room
			case <-writing.Done():
			}
		}
		done <- nil
	}()
	for range kills {
		victim := r.spawn(url, 3*time.Second) // two thirds of which a busy machine may need for one window
		select {
		case <-time.After(time.Duration(rand.IntN(100)) * time.Millisecond): // at any point of its work
		case <-writing.Done():
		}
		r.ok(victim.Err()) // it has not ended by itself
		victim.Kill()
	}
	stop()
	r.ok(<-done)
	r.add(order(fmt.Sprintf("%07d", added), "")) // so that the last one has something to say
	added++
	last := r.spawn(url, time.Minute)
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := last.End(ctx); err != nil {
			r.Error(err)
		}
	})
	return added
}

// keepsUp waits until the drainers have come close, so that the test ends soon after them.
func (r *rig) keepsUp(ctx context.Context) {
	for ctx.Err() == nil {
		s, err := r.box.OutboxStats(ctx)
		if err != nil || s.Pending < 2000 {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// spawn starts a drainer and returns when it has published something.
func (r *rig) spawn(url string, lease time.Duration) *child.Process[int] {
	r.Helper()
	config := r.drainer()
	config.URL, config.Lease = url, lease
	p, err := child.Start[int]("drainer", config)
	r.ok(err)
	r.Cleanup(p.Kill)
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	if _, err = p.Await(ctx, func(int) bool { return true }); err != nil {
		p.Kill()
		r.Fatalf("%v; it logged: %v", err, p.Err())
	}
	return p
}
