//go:build unix

package partitions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/e2e/internal/broker"
	"github.com/seed-63e9a637/jetbus/e2e/internal/chaos"
	"github.com/seed-63e9a637/jetbus/e2e/internal/child"
	"github.com/seed-63e9a637/jetbus/partition"
)

const (
	topic      = "orders"
	group      = "billing"
	partitions = 8
	grown      = 12 // partitions of a topic that grew
)

const (
	pulse = 20 * time.Millisecond
	// stall is how long a process must not have run to tell of it.
	stall = 200 * time.Millisecond
)

// memberConfig is that of a member.
type memberConfig struct {
	URL      string
	Replicas int
	Member   string
	Static   bool
	TTL      time.Duration
	Work     time.Duration // of a handler: up to that
	Leave    time.Duration // of what is done at the end of a turn
	Fails    int           // one of so many tries does; 0: none
	// Hold is what the key of an event begins with whose first handler runs until the
	// member is given an order, or its context ends. Empty: there is none.
	Hold string
	// HoldAgain: so do those that follow.
	HoldAgain bool
	// Stubborn: that handler does not heed its context.
	Stubborn bool
}

// worker is a member in its own process.
type worker struct {
	memberConfig
	p       *child.Parent
	release chan struct{}
	turns   sync.Map // by epoch: its partition
}

func runMember(ctx context.Context, text []byte, p *child.Parent) error {
	w := &worker{p: p, release: make(chan struct{})}
	if err := json.Unmarshal(text, &w.memberConfig); err != nil {
		return err
	}
	go w.pulse()
	nc, err := persist(ctx, func() (*nats.Conn, error) { // one that is frozen meanwhile is turned away
		nc, err := broker.Dial(w.URL)
		if err != nil {
			err = fmt.Errorf("%w: %w", jetbus.ErrUnavailable, err)
		}
		return nc, err
	})
	if nc == nil {
		return err
	}
	defer nc.Close()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	bus, err := persist(ctx, func() (*adapter.Bus, error) {
		return adapter.Open(ctx, nc, adapter.Config{Replicas: w.Replicas, Logger: log})
	})
	if bus == nil {
		return err
	}
	s, err := persist(ctx, func() (*partition.Subscription, error) { return w.subscribe(context.WithoutCancel(ctx), bus, log) })
	if s == nil {
		return errors.Join(err, bus.Close(context.Background()))
	}
	w.tell(report{What: isReady})
	go func() {
		<-p.Orders()
		close(w.release)
	}()
	select {
	case <-ctx.Done():
	case <-s.Done():
		return fmt.Errorf("the subscription ended by itself: %w", s.Err())
	}
	return errors.Join(s.Stop(context.Background()), bus.Close(context.Background()))
}

// persist tries until the broker can be reached. It returns nil when ctx ends before.
func persist[T any](ctx context.Context, try func() (*T, error)) (*T, error) {
	for {
		switch v, err := try(); {
		case err == nil:
			return v, nil
		case ctx.Err() != nil:
			return nil, nil //nolint:nilerr // nobody waits for it any more
		case !errors.Is(err, jetbus.ErrUnavailable):
			return nil, err
		}
		chaos.Linger(ctx, 50*time.Millisecond)
	}
}

// subscribe makes the process a member.
func (w *worker) subscribe(ctx context.Context, bus *adapter.Bus, log *slog.Logger) (*partition.Subscription, error) {
	return partition.Subscribe(ctx, bus, topic, group, w.handle, partition.SubscribeOptions{
		Member: w.Member, Static: w.Static, TTL: w.TTL, Log: log,
		PerPartition: jetbus.SubscribeOptions{
			From: jetbus.Earliest(), Concurrency: 4, MaxAttempts: 1000, // with an end, so that what comes again after a crash comes one by one
			Backoff: jetbus.Backoff{Min: 20 * time.Millisecond, Max: 200 * time.Millisecond},
		},
		OnAssigned: func(_ context.Context, a partition.Assigned) {
			w.turns.Store(a.Epoch, a.Partition)
			w.tell(report{What: isAssigned, Partition: a.Partition, Epoch: a.Epoch})
		},
		OnRevoked: func(ctx context.Context, r partition.Revoked) {
			chaos.Linger(ctx, w.Leave)
			w.tell(report{What: isRevoked, Partition: r.Partition, Epoch: r.Epoch, Clean: r.Clean})
		},
	})
}

func (w *worker) tell(r report) {
	r.At = time.Now()
	w.p.Tell(r)
}

// pulse tells when the process does not get to run: who is frozen, or starved, may
// overlap with others.
func (w *worker) pulse() {
	last := time.Now()
	for range time.Tick(pulse) { // what it says is when the tick was made, not when it came
		now := time.Now()
		if gap := now.Sub(last); gap > stall {
			w.tell(report{What: isStalled, For: gap})
		}
		last = now
	}
}

func (w *worker) handle(ctx context.Context, d *jetbus.Delivery) error {
	turn, _ := w.turns.Load(d.Epoch)
	p, ok := turn.(jetbus.Partition)
	if !ok || p.Number != d.Partition {
		return jetbus.Reject(fmt.Errorf("%s of partition %d came in a turn of epoch %d, which has %v", d.ID, d.Partition, d.Epoch, turn))
	}
	r := report{Partition: p, Epoch: d.Epoch, Key: d.Key, ID: d.ID}
	say := func(what string) {
		r.What = what
		w.tell(r)
	}
	say(isStarted)
	if err := w.work(ctx, d); err != nil {
		r.Err = err.Error()
		say(isCanceled)
		return err
	}
	say(isHandled)
	return nil
}

// work takes its time.
func (w *worker) work(ctx context.Context, d *jetbus.Delivery) error {
	done := time.After(rand.N(max(w.Work, 1)))
	if w.Hold != "" && strings.HasPrefix(d.Key, w.Hold) && (w.HoldAgain || d.Attempt == 1 && !d.Redelivered) {
		done = nil
	}
	if done == nil && w.Stubborn {
		<-w.release
		return nil
	}
	select {
	case <-done:
	case <-w.release:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if w.Fails > 0 && rand.IntN(w.Fails) == 0 {
		return errors.New("on purpose")
	}
	return nil
}
