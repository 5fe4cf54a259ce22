package adapter

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

const (
	// groupFresh is how long Receive goes by what it knows of a group before it asks again.
	groupFresh = time.Second
	// retriesEvery is how long events of the topic go before those of its retries at most.
	retriesEvery = 100 * time.Millisecond
)

// groupKey names a group as one Receive asks for it.
type groupKey struct {
	topic, group string
	ackTimeout   time.Duration // that was asked for
}

// knownGroup is what Receive has found out about a group, so that the next one need not ask
// the server: who takes one event at a time pays one way there and back for it.
type knownGroup struct {
	key        groupKey
	t          *topic
	ackTimeout time.Duration // how long a lease lasts
	asked      time.Time
	on         uint64 // on which of the bus's connections

	mu            sync.Mutex
	main, retries source    // with the room that is left
	looked        time.Time // when the retries were asked and had nothing
}

// recentGroup returns what is known of a group, if that is new and enough: it may hold as
// many events as are asked for.
func (b *Bus) recentGroup(t *topic, group string, o jetbus.ReceiveOptions) (*knownGroup, bool) {
	b.mu.Lock()
	g := b.groups[groupKey{t.name(), group, o.AckTimeout}]
	b.mu.Unlock()
	if g == nil || g.t != t || time.Since(g.asked) >= groupFresh {
		return nil, false
	}
	retries, main := g.sources()
	return g, o.Max <= min(retries.room, main.room)
}

// askGroup asks the server for a group, and makes it where it is not there.
func (b *Bus) askGroup(ctx context.Context, t *topic, group string, o jetbus.ReceiveOptions) (*knownGroup, error) {
	asked, on := time.Now(), b.connections.Load()
	info, err := b.joinGroup(ctx, t, group, o.From, groupSettings{ackTimeout: o.AckTimeout, receive: true})
	if err != nil {
		return nil, err
	}
	rt := b.retryTopic(t, group)
	retries, err := b.joinRetries(ctx, rt, group, settingsOfGroup(info))
	if err != nil {
		return nil, err
	}
	g := &knownGroup{
		key: groupKey{t.name(), group, o.AckTimeout}, t: t, asked: asked, on: on, main: b.source(t, info), retries: b.source(rt, retries),
		ackTimeout: min(info.Config.AckWait, retries.Config.AckWait), // others may have lengthened one of them
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if asked.Sub(b.swept) >= groupFresh {
		b.swept = asked
		maps.DeleteFunc(b.groups, func(_ groupKey, old *knownGroup) bool { return asked.Sub(old.asked) >= groupFresh })
	}
	b.groups[g.key] = g
	return g, nil
}

// forgetGroup has the next Receive ask.
func (b *Bus) forgetGroup(g *knownGroup) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.groups[g.key] == g {
		delete(b.groups, g.key)
	}
}

func (g *knownGroup) sources() (retries, main source) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.retries, g.main
}

// took notes that so many more events are held. What is settled is known when the server is
// asked again.
func (g *knownGroup) took(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.main.room, g.retries.room = max(g.main.room-n, 0), max(g.retries.room-n, 0)
}

// retriesDue reports whether the retries go before the topic now.
func (g *knownGroup) retriesDue(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return now.Sub(g.looked) >= retriesEvery
}

// lookedAtRetries notes whether there were any.
func (g *knownGroup) lookedAtRetries(now time.Time, some bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.looked = now; some {
		g.looked = time.Time{}
	}
}
