package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"runtime/metrics"
	"slices"
	"syscall"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// stoppedTurns is how often the row of a stopped reader is run, besides the warm-up.
const stoppedTurns = 5

// stopped measures what readers of the gateway get while one of them does not read any more,
// beside runs in which all read; and how much memory it takes until it is closed.
func stopped(ctx context.Context, e *env, scale float64) ([]line, error) {
	n := max(int(4_000*scale), 2_500) // more than the buffers between the gateway and one that stopped
	var rates, grown [2][]float64
	for turn := range stoppedTurns + 1 {
		for i := range 2 {
			which := (i + turn) % 2
			rate, memory, err := stoppedRun(ctx, e, n, which == 1)
			if err != nil {
				return nil, err
			}
			if turn > 0 {
				rates[which], grown[which] = append(rates[which], rate), append(grown[which], memory)
			}
		}
	}
	ratios := quotients(rates[1], rates[0])
	l := line{Name: "gateway-stopped", Value: median(rates[1]), Unit: "/s", Against: "all of them read", yardstick: median(rates[0])}
	l.Ratio = median(ratios)
	l.low, l.high = slices.Min(ratios), slices.Max(ratios)
	l.atLeast(0.9)
	more := median(grown[1]) - median(grown[0])
	return []line{l, {Name: "gateway-stopped-heap", Value: more, Unit: "MiB", Against: "all of them read", Goal: "<= 4 MiB more", Met: more <= 4}}, nil
}

// stoppedRun returns how many events a second the readers besides one got in all, and by how
// many MiB the memory that is reachable grew meanwhile, at most. That one reads, or stops in
// front of the first event and must be closed as a slow consumer.
func stoppedRun(ctx context.Context, e *env, n int, stops bool) (rate, grown float64, err error) {
	l, err := e.lane(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer l.drop()
	closed := make(codes, gatewayReaders)
	w, err := startGateway(l.e.bus2, gateway.Config{Log: slog.New(closed), Limits: gateway.Limits{WriteTimeout: 3 * time.Second}})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	readers, err := gather(ctx, w.address, l.topic, gatewayReaders-1)
	defer func() { readers.close() }()
	if err != nil {
		return 0, 0, err
	}
	var d net.Dialer
	if stops {
		d.Control = smallWindow
	}
	last, err := dialWeb(ctx, w.address, &d)
	if err != nil {
		return 0, 0, err
	}
	defer crowd{last}.close()
	if err := last.subscribe(ctx, l.topic); err != nil {
		return 0, 0, err
	}
	all := events(l.topic, n, 128)
	runtime.GC()
	before := reachable()
	watching, peak := make(chan struct{}), make(chan uint64, 1)
	go watchHeap(watching, peak)
	others := make(chan error, 2)
	began := time.Now()
	go func() { others <- l.publishBatches(ctx, all, batchSize, jetbus.BatchOptions{}) }()
	if !stops {
		go func() { _ = last.count(n) }() // ends with its connection
	}
	err = readers.count(ctx, n)
	rate = float64(n*len(readers)) / time.Since(began).Seconds()
	err = errors.Join(err, <-others)
	close(watching)
	grown = float64(max(<-peak, before)-before) / (1 << 20)
	if err == nil && stops {
		err = closed.await(ctx, frame.CloseSlow)
	}
	return rate, grown, err
}

// smallWindow lets a socket take little that its program does not read.
func smallWindow(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) //nolint:gosec // a descriptor
	})
	return errors.Join(err, failed)
}

// codes are what connections were closed with.
type codes chan int

// Enabled implements slog.Handler.
func (c codes) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (c codes) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if r.Message == "connection closed" && a.Key == "code" {
			c <- int(a.Value.Int64())
		}
		return true
	})
	return nil
}

// WithAttrs implements slog.Handler.
func (c codes) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements slog.Handler.
func (c codes) WithGroup(string) slog.Handler { return c }

// await waits until a connection is closed, which must be with that code.
func (c codes) await(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	select {
	case code := <-c:
		if code != want {
			return fmt.Errorf("a connection was closed with %d, not %d", code, want)
		}
		return nil
	case <-ctx.Done():
		return errors.New("the reader that stopped is not closed")
	}
}

// reachable is how many bytes of the heap the last garbage collection found in use.
func reachable() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// watchHeap sends the most that is reachable until done is closed.
func watchHeap(done <-chan struct{}, peak chan<- uint64) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for most := uint64(0); ; {
		most = max(most, reachable())
		select {
		case <-tick.C:
		case <-done:
			peak <- most
			return
		}
	}
}
