package changefeed_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// gatedLock is a bus on which taking a lock takes until the gates are closed: before the
// broker has the lock, and before its answer arrives.
type gatedLock struct {
	*adapter.Bus
	before, after chan struct{}
	asked, stored atomic.Bool
	looks         atomic.Int32 // at the lock
}

func (g *gatedLock) KeyGet(ctx context.Context, bucket, key string) (jetbus.KeyEntry, error) {
	defer func() {
		if bucket == jetbus.DefaultLockBucket {
			g.looks.Add(1)
		}
	}()
	return g.Bus.KeyGet(ctx, bucket, key)
}

func (g *gatedLock) KeySet(ctx context.Context, bucket, key string, value []byte, after uint64, ttl time.Duration) (uint64, error) {
	if bucket != jetbus.DefaultLockBucket {
		return g.Bus.KeySet(ctx, bucket, key, value, after, ttl)
	}
	g.asked.Store(true)
	wait(ctx, g.before)
	revision, err := g.Bus.KeySet(ctx, bucket, key, value, after, ttl)
	g.stored.Store(true)
	wait(ctx, g.after)
	return revision, err
}

func wait(ctx context.Context, gate <-chan struct{}) {
	select {
	case <-gate:
	case <-ctx.Done():
	}
}

// A feed without rivals is starting until it reads, whatever its lock takes, and publishes
// what was written since Start.
func TestSoleFeedIsNotReadyBeforeItReads(t *testing.T) {
	for name, fromCopy := range map[string]bool{"latest": false, "copy": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			bus := &gatedLock{Bus: r.bus, before: make(chan struct{}), after: make(chan struct{})}
			o := r.options()
			if fromCopy {
				o.Start = changefeed.FromCopy()
			}
			f := r.startOn(bus, o)
			starting := func() {
				r.Helper()
				if s := f.Status(); s.State != changefeed.Starting || f.Ready() == nil {
					r.Errorf("a feed that does not read yet is %s, ready: %v", s.State, f.Ready())
				}
			}
			r.until("the lock is asked for", bus.asked.Load)
			starting()
			r.insert("a")
			close(bus.before)
			r.until("the broker has the lock", bus.stored.Load)
			for range 5 {
				seen := bus.looks.Load()
				r.until("it looks who leads", func() bool { return bus.looks.Load() > seen })
				starting()
			}
			r.insert("b")
			close(bus.after)
			r.until("the feed streams", func() bool { return f.Status().State == changefeed.Streaming })
			r.must(f.Ready())
			r.until("all is published", func() bool {
				state := r.state()
				return state["a"] != "" && state["b"] != ""
			})
		})
	}
}

// A feed whose position is known resumes there, wherever MongoDB is when it starts.
func TestStoredPositionGoesBeforeNow(t *testing.T) {
	r := newRig(t)
	r.stop(r.start(r.options()))
	r.insert("a")
	r.start(r.options())
	r.wants("insert a")
}

// refusing is a bus that stores no batch.
type refusing struct {
	*adapter.Bus
	is *atomic.Bool
}

func (b refusing) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	if b.is.Load() {
		return nil, jetbus.ErrWrongSequence
	}
	return b.Bus.PublishBatch(ctx, events, o)
}

// fencing is a token store that saves no position.
type fencing struct {
	changefeed.TokenStore
	is *atomic.Bool
}

func (s fencing) Save(ctx context.Context, feed string, p changefeed.Progress) (uint64, error) {
	if s.is.Load() {
		return 0, changefeed.ErrFenced
	}
	return s.TokenStore.Save(ctx, feed, p)
}

// A feed that holds the lock and is refused again and again does not stand by for anybody:
// it reports the error and is not ready, until it publishes again.
func TestLastingRefusalIsAnError(t *testing.T) {
	for _, tt := range []struct {
		mode changefeed.Mode
		want error
	}{{changefeed.Chain, jetbus.ErrWrongSequence}, {changefeed.Serial, changefeed.ErrFenced}} {
		t.Run(string(tt.mode), func(t *testing.T) {
			r := newRig(t)
			r.mode, r.shared = tt.mode, tt.mode != changefeed.Chain
			if r.shared {
				r.declare(jetbus.TopicConfig{})
			}
			refused := &atomic.Bool{}
			o := r.options()
			o.ReadyGrace = 100 * time.Millisecond
			o.TokenStore = fencing{changefeed.StoreInKeys(r.bus), refused}
			f := r.startOn(refusing{r.bus, refused}, o)
			r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming })
			refused.Store(true)
			r.insert("a")
			var turns uint64
			r.until("it was refused ten times", func() bool {
				s := f.Status()
				if s.State == changefeed.Standby {
					r.Fatalf("it stands by after %d refusals", f.Stats().Fenced)
				}
				turns = f.Stats().Fenced
				return turns >= 10
			})
			r.until("it is not ready", func() bool { return f.Ready() != nil })
			if s := f.Status(); s.State != changefeed.Reconnecting || !strings.Contains(s.Error, tt.want.Error()) {
				t.Errorf("status %+v, want the error %v", s, tt.want)
			}
			if errors.Is(f.Err(), tt.want) {
				t.Errorf("it ended: %v", f.Err())
			}
			refused.Store(false)
			r.until("it streams again", func() bool { return f.Status().State == changefeed.Streaming && f.Ready() == nil })
			r.wants("insert a")
		})
	}
}
