package main

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

// heart publishes the heartbeats of this machine's processes.
type heart struct {
	bus      jetbus.Batcher
	sample   func(context.Context) ([]processes.Heartbeat, error)
	interval time.Duration
	log      *slog.Logger

	published, lost atomic.Uint64
}

// run beats until ctx ends. A beat that fails is not made up for: the next one
// says more than the one that is missing.
func (h *heart) run(ctx context.Context) {
	ticker := time.NewTicker(h.interval)
	defer ticker.Stop()
	for {
		h.beat(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// beat publishes one heartbeat of each process.
func (h *heart) beat(ctx context.Context) {
	beats, err := h.sample(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		h.log.LogAttrs(ctx, slog.LevelWarn, "processes not measured", slog.Any("err", err))
		return
	}
	now := time.Now()
	events := make([]jetbus.Event, 0, len(beats))
	for _, b := range beats {
		e, err := processes.HeartbeatTopic.Event(b)
		if err != nil {
			h.log.LogAttrs(ctx, slog.LevelWarn, "heartbeat not published", slog.String("process", b.ProcessID()), slog.Any("err", err))
			continue
		}
		e.Time = now
		events = append(events, e)
	}
	// A batch that has begun is finished, so that the counters are right at the end.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	receipts, err := h.bus.PublishBatch(ctx, events, jetbus.BatchOptions{})
	stored := uint64(0)
	for _, r := range receipts {
		if r.Event.Seq > 0 {
			stored++
		}
	}
	h.published.Add(stored)
	if err != nil {
		h.lost.Add(uint64(len(events)) - stored)
		h.log.LogAttrs(ctx, slog.LevelWarn, "heartbeats not published", slog.Any("err", err))
	}
}
