package adapter

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
)

// present knows what the durables of groups, of their partitions and of their retries were
// when they were seen last, so that each is asked for by its name also where it is not the
// one that the group began with: to look for it in the list of all would cost each Receive
// of a group that was moved what all groups cost, and would make n times n of the take-over
// of n partitions. Its zero value is ready.
type present struct {
	mu    sync.Mutex
	seen  map[[2]string]sighting // by stream and the name of the first durable
	lists map[string]*sharedList // by stream, while somebody asks
}

// sighting is a durable that was the group's. As long as it is there, the very same, it
// is: the one in its place is made before it goes.
type sighting struct {
	name    string
	created time.Time
}

func (p *present) see(stream, first string, info *jetstream.ConsumerInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == nil {
		p.seen = map[[2]string]sighting{}
	}
	p.seen[[2]string{stream, first}] = sighting{info.Name, info.Created}
}

// last returns what was seen last; the zero value: nothing.
func (p *present) last(stream, first string) sighting {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[[2]string{stream, first}]
}

// keep forgets what was seen of a stream and is in no list of all its durables. One that
// was just being replaced is looked for in the next list.
func (p *present) keep(stream string, all []*jetstream.ConsumerInfo) {
	there := make(map[string]bool, len(all))
	for _, info := range all {
		there[firstName(info)] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.seen, func(name [2]string, _ sighting) bool { return name[0] == stream && !there[name[1]] })
}

// firstName is the name of the durable that a group began with.
func firstName(info *jetstream.ConsumerInfo) string {
	return strings.TrimSuffix(info.Name, "__e"+info.Config.Metadata[metaEpoch])
}

// sharedList is a list of a stream's durables that several wait for.
type sharedList struct {
	turn chan struct{} // holds a value while somebody lists; capacity 1

	waiting, begun int // guarded by present.mu

	// Of whoever has the turn.
	last []*jetstream.ConsumerInfo
	err  error
}

// listed is consumersOf, by a list that began after the call. Those who call at
// the same time share it, and must not change it.
func (dur *durables) listed(ctx context.Context, stream string) ([]*jetstream.ConsumerInfo, error) {
	p := &dur.present
	p.mu.Lock()
	l := p.lists[stream]
	if l == nil {
		l = &sharedList{turn: make(chan struct{}, 1)}
		if p.lists == nil {
			p.lists = map[string]*sharedList{}
		}
		p.lists[stream] = l
	}
	l.waiting++
	known := l.begun
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if l.waiting--; l.waiting == 0 {
			delete(p.lists, stream)
		}
	}()
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, dur.translate("list consumers", dur.api+"CONSUMER.LIST."+stream, context.Cause(ctx))
	}
	defer func() { <-l.turn }()
	p.mu.Lock()
	fresh := l.begun > known && l.err == nil
	if !fresh {
		l.begun++
	}
	p.mu.Unlock()
	if !fresh {
		l.last, l.err = dur.consumersOf(ctx, stream)
		if l.err == nil || errors.Is(l.err, jetbus.ErrNoTopic) {
			p.keep(stream, l.last)
		}
	}
	return l.last, l.err
}
