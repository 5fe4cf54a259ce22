package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/seed-63e9a637/jetbus/projector/processes"
)

const (
	// maxProcesses is how many processes of this machine beat: the busiest.
	maxProcesses = 200
	// namesEvery is how many samples a name is good for: a process gets a new one
	// when it runs another program, which is rare, and asking costs a file each.
	namesEvery = 10
)

// sampler measures the processes of this machine. It is used by one goroutine.
type sampler struct {
	host    string
	samples int
	known   map[int32]*tracked
}

// tracked is a process seen before, so that its use of the CPU can be told from
// the time that it used in all.
type tracked struct {
	p    *process.Process
	name string
	cpu  float64 // seconds used
	at   time.Time
	seen int // number of the last sample that had it
}

func newSampler() (*sampler, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this machine: %w", err)
	}
	return &sampler{host: host, known: make(map[int32]*tracked)}, nil
}

// sample returns one heartbeat for each of the busiest processes, by their use of
// the CPU since the last sample, then by memory. A process that ends meanwhile or
// may not be looked at is left out.
func (s *sampler) sample(ctx context.Context) ([]processes.Heartbeat, error) {
	pids, err := process.PidsWithContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	s.samples++
	beats := make([]processes.Heartbeat, 0, len(pids))
	for _, pid := range pids {
		if h, ok := s.measure(ctx, pid); ok {
			beats = append(beats, h)
		}
	}
	for pid, t := range s.known {
		if t.seen != s.samples {
			delete(s.known, pid)
		}
	}
	return busiest(beats, maxProcesses), ctx.Err()
}

// measure looks at one process.
func (s *sampler) measure(ctx context.Context, pid int32) (processes.Heartbeat, bool) {
	t := s.known[pid]
	if t == nil {
		t = &tracked{p: &process.Process{Pid: pid}}
		s.known[pid] = t
	}
	t.seen = s.samples
	times, err := t.p.TimesWithContext(ctx)
	if err != nil {
		delete(s.known, pid)
		return processes.Heartbeat{}, false
	}
	now, used := time.Now(), times.User+times.System
	if used < t.cpu { // another process of the same id
		*t = tracked{p: t.p, seen: s.samples}
	}
	if t.name == "" || s.samples%namesEvery == 0 {
		// Asked of a fresh Process, since one remembers its name.
		name, err := (&process.Process{Pid: pid}).NameWithContext(ctx)
		if err != nil || name == "" {
			delete(s.known, pid)
			return processes.Heartbeat{}, false
		}
		t.name = name
	}
	h := processes.Heartbeat{PID: int(pid), Name: t.name, Host: s.host}
	if elapsed := now.Sub(t.at).Seconds(); !t.at.IsZero() && elapsed > 0 {
		h.CPUPct = round(100*(used-t.cpu)/elapsed, 100)
	}
	t.cpu, t.at = used, now
	if memory, err := t.p.MemoryInfoWithContext(ctx); err == nil && memory != nil {
		if memory.RSS == 0 {
			return h, false // a thread of the kernel, whose name changes with its work, or a process that has ended
		}
		h.MemMB = round(float64(memory.RSS)/(1<<20), 10)
	}
	return h, true
}

func round(x, steps float64) float64 { return math.Round(x*steps) / steps }

// busiest returns at most n of the heartbeats, the busiest first.
func busiest(beats []processes.Heartbeat, n int) []processes.Heartbeat {
	slices.SortFunc(beats, func(a, b processes.Heartbeat) int {
		return cmp.Or(cmp.Compare(b.CPUPct, a.CPUPct), cmp.Compare(b.MemMB, a.MemMB), cmp.Compare(a.PID, b.PID))
	})
	return beats[:min(n, len(beats))]
}
