package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"syscall"
	"time"
)

// plan says what to measure.
type plan struct {
	reps    int
	scale   float64 // of the number of events a run has
	match   *regexp.Regexp
	profile string
}

// job is one way to do the work of a row. It sets up, calls start and then stop
// on the clock, and cleans up.
type job struct {
	name  string
	count int // events of a full run
	run   func(ctx context.Context, e *env, n int, c *clock) error
}

// row is the bus's job and what it is measured against.
type row struct {
	name   string
	at     place
	bus    job
	raw    []job   // the fastest of them is the yardstick
	goal   float64 // of the ratio to the yardstick; 0: informative
	floor  float64 // goal of the bus's own rate; 0: none
	peer   *job
	peers  float64 // goal of the ratio to the peer
	allocs string  // name of the row that says how many allocations an event costs above the yardstick; empty: none
}

// allocsGoal is how many allocations an event may cost above raw.
const allocsGoal = 8

// clock measures one run, without its setup.
type clock struct {
	began   time.Time
	cpu     time.Duration
	mallocs uint64
	profile *os.File // of the runs that are profiled
	result  sample
}

// sample is what one run gave, per event.
type sample struct {
	rate   float64 // events a second
	cpu    float64 // seconds of CPU time, of the server too
	allocs float64 // of the server too
	server string  // the database that it was at, where there is one
}

func (c *clock) start() {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	c.mallocs = m.Mallocs
	if c.profile != nil {
		if err := pprof.StartCPUProfile(c.profile); err != nil {
			fmt.Fprintln(os.Stderr, "bench: profile:", err)
		}
	}
	c.cpu, c.began = cpuTime(), time.Now()
}

// stop ends the run of n events.
func (c *clock) stop(n int) {
	took, cpu := time.Since(c.began), cpuTime()-c.cpu
	if c.profile != nil {
		pprof.StopCPUProfile()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	c.result.rate, c.result.cpu = float64(n)/took.Seconds(), cpu.Seconds()/float64(n)
	c.result.allocs = float64(m.Mallocs-c.mallocs) / float64(n)
}

// cpuTime is what this process used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure runs all rows that match and returns their lines.
func (p *plan) measure(ctx context.Context) ([]line, error) {
	var lines []line
	envs := map[place]*env{}
	defer func() {
		for _, e := range envs {
			e.close()
		}
	}()
	at := func(where place) (*env, error) {
		if envs[where] == nil {
			e, err := newEnv(ctx, where)
			if err != nil {
				return nil, err
			}
			envs[where] = e
		}
		return envs[where], nil
	}
	for _, r := range rows() {
		if !p.match.MatchString(r.name) {
			continue
		}
		e, err := at(r.at)
		if err != nil {
			return lines, err
		}
		fmt.Fprintf(os.Stderr, "%s ...\n", r.name)
		more, err := p.row(ctx, e, &r)
		if err != nil {
			return lines, fmt.Errorf("%s: %w", r.name, err)
		}
		lines = append(lines, more...)
	}
	if p.match.MatchString("partitions-take-over") {
		more, err := takeOver(ctx)
		if err != nil {
			return lines, fmt.Errorf("partitions-take-over: %w", err)
		}
		lines = append(lines, more...)
	}
	if p.match.MatchString("gateway-stopped") {
		e, err := at(place{})
		if err != nil {
			return lines, err
		}
		more, err := stopped(ctx, e, p.scale)
		if err != nil {
			return lines, fmt.Errorf("gateway-stopped: %w", err)
		}
		lines = append(lines, more...)
	}
	if p.match.MatchString("gateway-idle") {
		e, err := at(place{})
		if err != nil {
			return lines, err
		}
		more, err := idleGateway(ctx, e)
		if err != nil {
			return lines, fmt.Errorf("gateway-idle: %w", err)
		}
		lines = append(lines, more...)
	}
	if p.match.MatchString("idle-subscription") {
		e, err := at(place{})
		if err != nil {
			return lines, err
		}
		more, err := idle(ctx, e)
		if err != nil {
			return lines, fmt.Errorf("idle-subscription: %w", err)
		}
		lines = append(lines, more...)
	}
	return lines, nil
}

// row takes turns with the jobs of a row; the first turn is the warm-up.
func (p *plan) row(ctx context.Context, e *env, r *row) ([]line, error) {
	jobs := append([]job{r.bus}, r.raw...)
	if r.peer != nil {
		jobs = append(jobs, *r.peer)
	}
	samples := make([][]sample, len(jobs))
	for turn := range p.reps + 1 {
		order := make([]int, len(jobs))
		for i := range order {
			order[i] = i
		}
		if turn%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			s, err := p.once(ctx, e, &jobs[i], i == 0 && turn == p.reps)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", jobs[i].name, err)
			}
			if turn > 0 {
				samples[i] = append(samples[i], s)
			}
		}
	}
	return r.lines(jobs, samples), nil
}

func (p *plan) once(ctx context.Context, e *env, j *job, profile bool) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var c clock
	if profile && p.profile != "" {
		f, err := os.Create(p.profile)
		if err != nil {
			return sample{}, err
		}
		defer func() { _ = f.Close() }()
		c.profile = f
	}
	err := j.run(ctx, e, max(int(float64(j.count)*p.scale), 100), &c)
	return c.result, err
}

// lines makes the comparisons of a row. samples[0] are the bus's, the last ones
// the peer's, if there is one.
func (r *row) lines(jobs []job, samples [][]sample) []line {
	rates := func(i int) []float64 { return pick(samples[i], func(s sample) float64 { return s.rate }) }
	best := 1
	for i := 2; i <= len(r.raw); i++ {
		if median(rates(i)) > median(rates(best)) {
			best = i
		}
	}
	compare := func(with int, goal float64) line {
		l := line{Name: r.name, Value: median(rates(0)), Unit: "/s", Against: jobs[with].name, yardstick: median(rates(with))}
		ratios := quotients(rates(0), rates(with))
		l.Ratio, l.low, l.high = median(ratios), slices.Min(ratios), slices.Max(ratios)
		if server := serverOf(samples); server != "" {
			l.Against += ", " + server
		}
		cpu := func(i int) []float64 { return pick(samples[i], func(s sample) float64 { return s.cpu }) }
		l.cpu = median(quotients(cpu(0), cpu(with)))
		l.atLeast(goal)
		return l
	}
	lines := []line{compare(best, r.goal)}
	if r.floor > 0 {
		rate := median(rates(0))
		lines = append(lines, line{Name: r.name + "-rate", Value: rate, Unit: "/s", Goal: fmt.Sprintf(">= %g /s", r.floor), Met: rate >= r.floor})
	}
	if r.peer != nil {
		lines = append(lines, compare(len(jobs)-1, r.peers))
	}
	if r.allocs != "" {
		allocs := func(i int) float64 { return median(pick(samples[i], func(s sample) float64 { return s.allocs })) }
		bus, raw := allocs(0), allocs(best)
		lines = append(lines, line{
			Name: r.allocs, Value: bus - raw, Unit: "allocs above raw", Against: jobs[best].name,
			Goal: fmt.Sprintf("<= %d", allocsGoal), Met: bus-raw <= allocsGoal,
		})
	}
	return lines
}

func pick(samples []sample, f func(sample) float64) []float64 {
	out := make([]float64, 0, len(samples))
	for _, s := range samples {
		out = append(out, f(s))
	}
	return out
}

// quotients divides turn by turn.
func quotients(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}
