package jetbus_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// lockAudit watches the turns of a lock.
type lockAudit struct {
	*testing.T
	mu      sync.Mutex
	turns   int
	lost    int
	unclean int
	epoch   uint64          // of the last turn
	running context.Context // of the last turn, to see whether it was canceled; nil: it returned
	clean   bool            // how the last turn ended
	unsure  bool            // whether the next one has heard of that
}

// begin notes the beginning of a turn.
func (a *lockAudit) begin(ctx context.Context, h jetbus.Held) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running != nil && a.running.Err() == nil {
		a.Errorf("turn %d begins while another one goes on", h.Epoch)
	}
	if h.Epoch <= a.epoch {
		a.Errorf("epoch %d after %d", h.Epoch, a.epoch)
	}
	if a.turns > 0 && h.Clean != a.clean && !a.unsure {
		a.Errorf("turn %d: clean is %t, the one before ended with %t", h.Epoch, h.Clean, a.clean)
	}
	if a.turns++; !h.Clean {
		a.unclean++
	}
	a.epoch, a.running, a.clean, a.unsure = h.Epoch, ctx, false, false
}

// end notes that a function returns, while it holds the lock still.
func (a *lockAudit) end(epoch uint64, clean bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.epoch == epoch {
		a.running, a.clean, a.unsure = nil, clean, clean
	}
}

// after notes what Hold returned.
func (a *lockAudit) after(epoch uint64, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case errors.Is(err, jetbus.ErrLockLost):
		a.lost++
		if a.epoch == epoch {
			a.clean, a.unsure = false, false
		}
	case err == nil && a.epoch == epoch:
		a.unsure = false
	}
}

// lockChaos is how long TestLockChaos goes on: make soak has more.
var lockChaos = flag.Duration("locks", 20*time.Minute, "fake time of TestLockChaos")

// Six processes compete for a lock while brokers and processes die: at no time do
// two hold it, epochs ascend, and how a turn ended is what the next one is told.
func TestLockChaos(t *testing.T) {
	inBubble(t, func(r *rig) {
		a := &lockAudit{T: r.T}
		ctx, cancel := context.WithTimeout(r.Context(), *lockChaos)
		defer cancel()
		var wg sync.WaitGroup
		for i := range 6 {
			random := rand.New(rand.NewPCG(7, uint64(i)))
			wg.Go(func() {
				for ctx.Err() == nil {
					r.competeAndDie(ctx, a, random)
				}
			})
		}
		random := rand.New(rand.NewPCG(7, 100))
		for ctx.Err() == nil {
			time.Sleep(time.Duration(random.IntN(200)) * time.Second)
			if err := r.broker.Kill(r.Context()); err != nil {
				r.Fatal(err)
			}
			time.Sleep(time.Duration(random.IntN(2000)) * testLock.TTL / 1000)
			r.ok(r.broker.Restart(r.Context()))
		}
		wg.Wait()
		if a.turns < 100 || a.lost < 10 || a.unclean < 10 {
			r.Errorf("%d turns, %d lost, %d after unclean ones: that proves nothing", a.turns, a.lost, a.unclean)
		}
	})
}

// competeAndDie is the life of a process: a few turns, and perhaps a violent end.
func (r *rig) competeAndDie(ctx context.Context, a *lockAudit, random *rand.Rand) {
	bus, cut, err := r.dial()
	if err != nil {
		time.Sleep(time.Second) // the broker is away
		return
	}
	defer cut()
	for range 1 + random.IntN(5) {
		length, dies, clean := time.Duration(random.IntN(20))*time.Second, random.IntN(6) == 0, random.IntN(3) > 0
		var epoch uint64
		err := testLock.Hold(ctx, bus, func(ctx context.Context, h jetbus.Held) (bool, error) {
			epoch = h.Epoch
			a.begin(ctx, h)
			if dies {
				time.AfterFunc(length/2, cut)
			}
			select {
			case <-ctx.Done():
			case <-time.After(length):
			}
			a.end(h.Epoch, clean && ctx.Err() == nil)
			return clean && ctx.Err() == nil, nil
		})
		if epoch != 0 {
			a.after(epoch, err)
		}
		if dies && epoch != 0 {
			return
		}
		if err != nil && !errors.Is(err, jetbus.ErrLockLost) && !errors.Is(err, jetbus.ErrUnavailable) && ctx.Err() == nil {
			a.Error(fmt.Errorf("not an outage: %w", err))
		}
	}
}
