package groups_test

import (
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// purse grants bytes up to a limit.
type purse struct {
	mu    sync.Mutex
	limit int64
	used  int64
}

func (p *purse) reserve(n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 && p.used+n > p.limit {
		return false
	}
	p.used += n
	return true
}

func (p *purse) setLimit(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = n
}

func (p *purse) got() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// A member holds no more than it has reserved, and what needs no reservation. It gives everything back.
func TestReservedBytes(t *testing.T) {
	for name, o := range map[string]jetbus.SubscribeOptions{
		"without an order":                {},
		"per key":                         {Order: jetbus.PerKey, Concurrency: 100},
		"events larger than all it holds": {MaxInFlightBytes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				const limit = 300_000
				sizes := []int{10, 100, 10_000, 20_000, 100_000, 10, 20_000, 60_000, 1, 100_000, 100_000, 100_000, 10}
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				r.putSized("a", 0, sizes...)
				purse := &purse{limit: limit}
				o.Reserve = purse.reserve
				s := r.shelve(r.Bus, o)
				time.Sleep(5 * time.Second) // an ordered member takes the topic over
				for done := range sizes {
					time.Sleep(3 * time.Second) // it asks again after a second
					held := int64(s.bytes())
					if held == 0 || held > purse.got()+2*jetbus.UnreservedBytes || purse.got() > limit {
						r.Fatalf("after %d events %d bytes are held, and %d are reserved", done, held, purse.got())
					}
					s.ack(t)
				}
				time.Sleep(time.Minute)
				if n := purse.got(); n != 0 {
					r.Errorf("nothing is held, and %d bytes are reserved", n)
				}
			})
		})
	}
}

// An event that may not be reserved does not come, and comes when it may.
func TestReservationRefused(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.putSized("a", 0, 10, 100_000, 10)
		purse := &purse{}
		s := r.shelve(r.Bus, jetbus.SubscribeOptions{Reserve: purse.reserve})
		time.Sleep(10 * time.Second)
		r.Equal("held", s.keys(), "0")
		got, err := r.Bus.Receive(r.Context(), "a", "other", jetbus.ReceiveOptions{From: jetbus.Earliest(), Reserve: purse.reserve, MaxLease: time.Minute})
		if err != nil || len(got) != 1 {
			r.Errorf("%d events, %v; want the first one", len(got), err)
		}
		began := time.Now()
		got, err = r.Bus.Receive(r.Context(), "a", "other", jetbus.ReceiveOptions{Reserve: purse.reserve, Wait: time.Minute})
		if err != nil || len(got) > 0 || time.Since(began) > time.Second {
			r.Errorf("%d events, %v after %v; want none at once", len(got), err, time.Since(began))
		}
		purse.setLimit(1 << 20)
		time.Sleep(2 * time.Second)
		r.Equal("held with room", s.keys(), "0 1 2")
		if got, err = r.Bus.Receive(r.Context(), "a", "other", jetbus.ReceiveOptions{Reserve: purse.reserve}); err != nil || len(got) != 2 {
			r.Errorf("%d events, %v; want the other two", len(got), err)
		}
	})
}
