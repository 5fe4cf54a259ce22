package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
)

// serverLog passes the server's log lines on and remembers the first fatal one,
// which is how the server reports that it cannot start.
type serverLog struct {
	out *slog.Logger // nil: lines are discarded

	mu    sync.Mutex
	fatal error
	up    bool // Start has succeeded, or is about to
}

func (l *serverLog) write(level slog.Level, format string, v []any) {
	if l.out == nil {
		return
	}
	ctx := context.Background()
	if l.out.Enabled(ctx, level) {
		l.out.LogAttrs(ctx, level, "nats-server", slog.String("line", fmt.Sprintf(format, v...)))
	}
}

// Noticef implements server.Logger. A server that cannot start still says that it is ready.
func (l *serverLog) Noticef(format string, v ...any) {
	if l.err() == nil {
		l.write(slog.LevelInfo, format, v)
	}
}

// Warnf implements server.Logger.
func (l *serverLog) Warnf(format string, v ...any) { l.write(slog.LevelWarn, format, v) }

// Errorf implements server.Logger.
func (l *serverLog) Errorf(format string, v ...any) { l.write(slog.LevelError, format, v) }

// Debugf implements server.Logger.
func (l *serverLog) Debugf(format string, v ...any) { l.write(slog.LevelDebug, format, v) }

// Tracef implements server.Logger. It has no level of its own in slog.
func (l *serverLog) Tracef(format string, v ...any) { l.write(slog.LevelDebug-4, format, v) }

// Fatalf does not end the process, as the server's own logger would. What keeps the server from
// starting is the error of Start, and is not told twice.
func (l *serverLog) Fatalf(format string, v ...any) {
	level := slog.LevelError
	l.mu.Lock()
	if l.fatal == nil {
		l.fatal = fmt.Errorf(format, v...)
		if !l.up {
			level = slog.LevelDebug
		}
	}
	l.mu.Unlock()
	l.write(level, format, v)
}

// started is err, at the end of a start: what is fatal from then on is told as an error.
func (l *serverLog) started() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up = l.fatal == nil
	return l.fatal
}

// err is the first fatal line, nil if there was none.
func (l *serverLog) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}

func (l *serverLog) debug() bool {
	return l.out != nil && l.out.Enabled(context.Background(), slog.LevelDebug)
}
