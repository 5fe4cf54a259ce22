package partition

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// trouble is what a member tries in vain, again and again.
type trouble struct{ since, last, told time.Time }

// tried notes how a request ended that is repeated when it fails. Nobody waits for it, so that
// one which has failed for a TTL goes to the log, once in each.
func (m *Membership) tried(ctx context.Context, what string, err error) {
	lasts, tell := m.note(what, err == nil || errors.Is(err, jetbus.ErrWrongSequence)) // that is an answer
	if tell && ctx.Err() == nil {
		m.o.Log.LogAttrs(ctx, slog.LevelWarn, "a member tries in vain", slog.String("what", what),
			slog.String("group", m.group), slog.String("member", m.o.Member), slog.Duration("for", lasts), slog.Any("error", err))
	}
}

// note counts an attempt. It returns for how long they have failed, and whether that is to be told.
func (m *Membership) note(what string, answered bool) (lasts time.Duration, tell bool) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if answered {
		delete(m.troubles, what)
		return 0, false
	}
	t, there := m.troubles[what]
	if !there || now.Sub(t.last) > m.o.TTL { // or of another time
		t = trouble{since: now, told: now}
	}
	t.last = now
	if tell = now.Sub(t.told) >= m.o.TTL; tell {
		t.told = now
	}
	m.troubles[what] = t
	return now.Sub(t.since), tell
}
