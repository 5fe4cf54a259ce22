package main

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// A topic whose events cannot be projected would fill a terminal, one line an event:
// of each message so many are shown in a while.
const (
	maxRecords = 5
	perWhile   = time.Minute
)

// newBriefLog makes a logger of warnings that shows only some of each message.
func newBriefLog(w io.Writer) *slog.Logger {
	text := slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn})
	return slog.New(briefHandler{text, &recordCounts{shown: map[string]int{}}})
}

// briefHandler passes on the first records of each message.
type briefHandler struct {
	slog.Handler
	counts *recordCounts
}

// Handle passes the record on, or drops it.
func (h briefHandler) Handle(ctx context.Context, r slog.Record) error {
	switch n := h.counts.count(r.Time, r.Message); {
	case n > maxRecords:
		return nil
	case n == maxRecords:
		last := slog.NewRecord(r.Time, r.Level, r.Message+" (more of these are not shown)", r.PC)
		r.Attrs(func(a slog.Attr) bool {
			last.AddAttrs(a)
			return true
		})
		r = last
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps the counts.
func (h briefHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return briefHandler{h.Handler.WithAttrs(attrs), h.counts}
}

// WithGroup keeps the counts.
func (h briefHandler) WithGroup(name string) slog.Handler {
	return briefHandler{h.Handler.WithGroup(name), h.counts}
}

// recordCounts counts the messages of the present while. It is safe for concurrent use.
type recordCounts struct {
	mu    sync.Mutex
	since time.Time
	shown map[string]int
}

func (r *recordCounts) count(now time.Time, message string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.since) > perWhile {
		r.since = now
		clear(r.shown)
	}
	r.shown[message]++
	return r.shown[message]
}
