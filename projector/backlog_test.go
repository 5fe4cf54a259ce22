package projector_test

import (
	"bytes"
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// heavy is a bus whose topics seem to have many large events, which share their payload.
type heavy struct {
	*adapter.Bus

	payload []byte
	last    uint64
	read    atomic.Uint64 // the event that was handed out last
}

func (b *heavy) Read(ctx context.Context, topics []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	return func(yield func(jetbus.Event, error) bool) {
		for seq := o.After[topics[0]] + 1; seq <= b.last; seq++ {
			b.read.Store(seq)
			if !yield(jetbus.Event{Topic: topics[0], Key: "k", Seq: seq, Payload: b.payload}, nil) {
				return
			}
		}
		<-ctx.Done() // it follows
	}
}

// What is read while the sink does not take anything is bounded in bytes, and an event that is
// larger than the bound comes through all the same.
func TestExclusiveBacklogInBytes(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		size int
		last uint64
		most uint64 // events that are read while the first batch is being written
	}{
		// 64 MiB wait, behind a batch of 16 MiB, one that had no room in it, and before one that waits for room.
		"many":            {size: 4 * mib, last: 300, most: (64+16)/4 + 2},
		"above the bound": {size: 65 * mib, last: 6, most: 4},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				bus := &heavy{Bus: r.bus, payload: bytes.Repeat([]byte("1"), c.size), last: c.last}
				m := newMemory()
				s, h := m.sink(), newHeld()
				s.before = h.before
				o := exclusively(false)
				o.Map = func(e jetbus.Event) (any, error) { return e.Seq, nil }
				r.project(bus, s, o)
				<-h.entered
				time.Sleep(10 * time.Second)
				if read := bus.read.Load(); read > c.most {
					r.Errorf("%d events were read, want %d at most", read, c.most)
				}
				close(h.leave)
				r.eventually("all of it", func() bool { return m.position() == c.last })
			})
		})
	}
}
