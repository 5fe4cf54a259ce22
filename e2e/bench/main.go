// Command bench measures the bus beside raw nats.go and beside watermill-nats:
// the same job, server, payloads and headers in one process run. Rows are ratios,
// because machines differ and ratios hold.
//
// The jobs of a row take turns (A B, B A, ...). A job's value is its median, a
// ratio the median of the ratios of its turns, shown with the lowest and the
// highest. Every run has a stream of its own, is warmed up, starts after a
// garbage collection and, where it consumes, ends when the server's ack floor
// says that all is settled. Connections, streams, durables and the events
// themselves are made before the clock starts.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"
)

func main() {
	var (
		jsonPath = flag.String("json", "", "write one JSON object a row to this file")
		quick    = flag.Bool("quick", false, "fewer and shorter runs: a smoke test, ends within 3 minutes")
		only     = flag.String("run", "", "measure only rows whose name matches this regular expression")
		reps     = flag.Int("reps", 0, "turns of each row; 0: 11, or 3 with -quick")
		scale    = flag.Float64("scale", 1, "multiplies the number of events of a run")
		profile  = flag.String("cpuprofile", "", "write a CPU profile of the last of the bus's own runs to this file")
	)
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err == nil && flag.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	p := plan{reps: *reps, scale: *scale, match: match, profile: *profile}
	if *quick {
		p.scale *= 0.4
	}
	if p.reps == 0 {
		p.reps = 11
		if *quick {
			p.reps = 3
		}
	}
	began := time.Now()
	lines, err := p.measure(ctx)
	if len(lines) > 0 {
		printTable(os.Stdout, lines)
		fmt.Printf("\n%d turns, %v, load average %s\n", p.reps, time.Since(began).Round(time.Second), loadAverage())
	}
	if err == nil && *jsonPath != "" {
		err = writeJSON(*jsonPath, lines)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // stop has nothing left to do
	}
}
