package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// idleSubscriptions is how many subscriptions the row of idle ones opens.
const idleSubscriptions = 200

// idle measures what a subscription costs on which nothing happens. Its groups
// exist before, so that their durables at the server, which is in this process
// too, do not count; what the server keeps for a waiting request does.
func idle(ctx context.Context, e *env) ([]line, error) {
	l, err := e.lane(ctx)
	if err != nil {
		return nil, err
	}
	defer l.drop()
	if err := closeAll(l.subscribeAll(ctx)); err != nil {
		return nil, err
	}
	heap, goroutines := usage()
	subscriptions, err := l.subscribeAll(ctx)
	if err != nil {
		return nil, closeAll(subscriptions, err)
	}
	heap2, goroutines2 := usage()
	if err := closeAll(subscriptions, nil); err != nil {
		return nil, err
	}
	bytes := (float64(heap2) - float64(heap)) / idleSubscriptions
	running := float64(goroutines2-goroutines) / idleSubscriptions
	return []line{
		{Name: "idle-heap", Value: bytes / 1024, Unit: "KiB", Goal: "< 16", Met: bytes < 16<<10},
		{Name: "idle-goroutines", Value: running, Unit: "goroutines", Goal: "<= 3", Met: running <= 3},
	}, nil
}

func (l *lane) subscribeAll(ctx context.Context) ([]jetbus.Subscription, error) {
	var all []jetbus.Subscription
	for i := range idleSubscriptions {
		s, err := l.e.bus2.Subscribe(ctx, l.topic, "idle"+strconv.Itoa(i), func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{})
		if err != nil {
			return all, err
		}
		all = append(all, s)
	}
	return all, nil
}

func closeAll(all []jetbus.Subscription, err error) error {
	for _, s := range all {
		if stopErr := s.Stop(context.Background()); stopErr != nil && err == nil {
			err = fmt.Errorf("stop: %w", stopErr)
		}
	}
	return err
}

// usage is the heap in use and the number of goroutines, once they are at rest.
func usage() (heap uint64, goroutines int) {
	for last := -1; goroutines != last; {
		last = goroutines
		time.Sleep(200 * time.Millisecond) // nothing says when the server is at rest
		goroutines = runtime.NumGoroutine()
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, goroutines
}
