package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// round is what was learned by asking others, kept for a while, so that scrapes cost
// the same however many there are.
type round struct {
	every, timeout time.Duration
	ask            func(ctx context.Context) []prometheus.Metric

	mu    sync.Mutex
	last  []prometheus.Metric
	at    time.Time     // of last; zero: never
	asked chan struct{} // closed when the round that runs is over; nil: none runs
}

func (r *round) init(c Config, ask func(context.Context) []prometheus.Metric) {
	r.every, r.timeout, r.ask = c.AskEvery, c.Timeout, ask
}

// samples returns what is known. It begins a round where what there is has aged, and
// waits for it, but not longer than it may take: what does not stop in time holds up
// no scrape. What is too old is not known.
func (r *round) samples() []prometheus.Metric {
	r.mu.Lock()
	if r.asked == nil && (r.at.IsZero() || time.Since(r.at) >= r.every) {
		r.asked = make(chan struct{})
		go r.run(r.asked)
	}
	asked := r.asked
	r.mu.Unlock()
	if asked != nil {
		timer := time.NewTimer(r.timeout)
		defer timer.Stop()
		select {
		case <-asked:
		case <-timer.C:
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) > r.every+r.timeout {
		return nil
	}
	return r.last
}

// run is a round.
func (r *round) run(asked chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout-r.timeout/10) // so that scrapes get what was learned
	defer cancel()
	last := r.ask(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	close(asked)
	if r.asked == asked { // else what it has learned is forgotten
		r.last, r.at, r.asked = last, time.Now(), nil
	}
}

// forget makes the next scrape ask, also where a round runs that asks others.
func (r *round) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at, r.asked = time.Time{}, nil
}
