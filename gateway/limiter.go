package gateway

import (
	"math"
	"sync"
	"time"
)

// limiter is a token bucket. It is safe for concurrent use.
type limiter struct {
	mu    sync.Mutex
	rate  float64 // tokens a second; 0 or less: no limit
	burst float64
	have  float64
	last  time.Time
}

// newLimiter makes a full bucket.
func newLimiter(rate float64, burst int, now time.Time) *limiter {
	size := math.Max(1, float64(burst))
	return &limiter{rate: rate, burst: size, have: size, last: now}
}

// take takes n tokens, or returns how long it takes until there are that many. More than half of what the bucket
// holds are granted when it is half full, and owed: a request that took one token before can get them, too.
func (l *limiter) take(now time.Time, n int) (ok bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate <= 0 {
		return true, 0
	}
	l.fill(now)
	need := math.Min(float64(n), math.Max(1, l.burst/2))
	if l.have < need {
		return false, time.Duration((need - l.have) / l.rate * float64(time.Second))
	}
	l.have -= float64(n)
	return true, 0
}

func (l *limiter) fill(now time.Time) {
	if d := now.Sub(l.last); d > 0 {
		l.have = math.Min(l.burst, l.have+d.Seconds()*l.rate)
		l.last = now
	}
}

// idle reports whether the bucket is full, so that a new one is as good.
func (l *limiter) idle(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fill(now)
	return l.have >= l.burst
}

// limiters are buckets by subject. The zero value is ready to use.
type limiters struct {
	mu sync.Mutex
	of map[string]*limiter
}

// sweepAt is how many buckets there are before those that are full are dropped.
const sweepAt = 1024

// take takes n tokens from the subject's bucket.
func (s *limiters) take(subject string, rate float64, burst, n int) (ok bool, wait time.Duration) {
	if rate <= 0 {
		return true, 0
	}
	now := time.Now()
	s.mu.Lock()
	l := s.of[subject]
	if l == nil {
		if len(s.of) >= sweepAt && len(s.of)&(len(s.of)-1) == 0 { // at powers of 2: its cost is spread
			for name, old := range s.of {
				if old.idle(now) {
					delete(s.of, name)
				}
			}
		}
		if s.of == nil {
			s.of = map[string]*limiter{}
		}
		l = newLimiter(rate, burst, now)
		s.of[subject] = l
	}
	s.mu.Unlock()
	return l.take(now, n)
}
