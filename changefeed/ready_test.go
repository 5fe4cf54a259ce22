package changefeed_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus/changefeed"
)

// away is a token store that cannot be asked for a while.
type away struct {
	changefeed.TokenStore
	is *atomic.Bool
}

func (a away) Load(ctx context.Context, feed string) (changefeed.Progress, error) {
	if a.is.Load() {
		return changefeed.Progress{}, errors.New("the store is away")
	}
	return a.TokenStore.Load(ctx, feed)
}

// A feed that cannot begin is not ready, however often it tries; and it is again once
// it has begun, with nothing to publish.
func TestReadyBehindFailures(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.ReadyGrace = time.Second // longer than what is between two attempts
	store := away{changefeed.StoreInKeys(r.bus), &atomic.Bool{}}
	o.TokenStore = store
	store.is.Store(true)
	f := r.startOn(r.bus, o)
	r.until("it is reconnecting and not ready", func() bool {
		return f.Status().State == changefeed.Reconnecting && f.Ready() != nil
	})
	store.is.Store(false)
	r.until("it streams", func() bool { return f.Status().State == changefeed.Streaming && f.Ready() == nil })
}

// Who stands by cannot know without the broker whether anybody leads.
func TestReadyInStandby(t *testing.T) {
	r := newRig(t)
	o := r.options()
	o.ReadyGrace = time.Millisecond
	r.start(o)
	f := r.startOn(r.bus, o)
	r.until("it stands by", func() bool { return f.Status().State == changefeed.Standby && f.Ready() == nil })
	r.must(r.broker.Kill(t.Context()))
	r.until("it is not ready", func() bool { return f.Status().State == changefeed.Reconnecting && f.Ready() != nil })
	r.must(r.broker.Restart(t.Context()))
	r.until("it is again", func() bool {
		s := f.Status().State
		return (s == changefeed.Standby || s == changefeed.Streaming) && f.Ready() == nil
	})
}

// slow is a token store that takes its time to say that it cannot save.
type slow struct {
	changefeed.TokenStore
	tries, saved *atomic.Int32
}

func (s slow) Save(ctx context.Context, feed string, p changefeed.Progress) (uint64, error) {
	if s.tries.Add(1) == 1 {
		select {
		case <-time.After(300 * time.Millisecond): // a feed that does not wait streams by then
		case <-ctx.Done():
		}
		return 0, errors.New("the store is away")
	}
	revision, err := s.TokenStore.Save(ctx, feed, p)
	if err == nil {
		s.saved.Add(1)
	}
	return revision, err
}

// A feed that streams misses nothing from then on, whatever becomes of it: where it
// begins is stored first.
func TestStreamingMeansStored(t *testing.T) {
	r := newRig(t)
	o := r.options()
	store := slow{changefeed.StoreInKeys(r.bus), &atomic.Int32{}, &atomic.Int32{}}
	o.TokenStore = store
	r.start(o)
	if store.saved.Load() == 0 {
		t.Errorf("the feed streams after %d tries to store where it begins", store.tries.Load())
	}
}
