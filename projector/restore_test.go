package projector_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/projector"
)

// restorable is inBubble with a broker that can be restored.
func restorable(t *testing.T, f func(r *rig, broker *bustest.Restorable)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		broker := bustest.StartRestorable(t)
		r := &rig{T: t, broker: broker.Broker}
		r.bus = r.open()
		r.ensure(jetbus.TopicConfig{Name: "t"})
		f(r, broker)
		time.Sleep(time.Second) // until every connection is restored: nats.go leaves goroutines otherwise
	})
}

// wantRestored reports an error that does not say that the topic was restored.
func (r *rig) wantRestored(err error) {
	r.Helper()
	if _, ok := errors.AsType[*jetbus.RestoredError](err); !ok || !errors.Is(err, projector.ErrNewStream) {
		r.Errorf("got error %v, want ErrNewStream with a RestoredError", err)
	}
}

func TestProjectionNoticesRestore(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		for _, stored := range []int{0, 2, 20} { // events after the restore
			t.Run(fmt.Sprintf("exclusive=%t/%d", exclusive, stored), func(t *testing.T) {
				restorable(t, func(r *rig, broker *bustest.Restorable) {
					m, o := newMemory(), options()
					o.Exclusive = exclusive
					r.publish(numbered(0, 3, 30)...)
					p := r.project(r.bus, m.sink(), o)
					r.caughtUp(p)
					backup := broker.Backup(r.T)
					r.publish(numbered(3, 10, 30)...)
					r.caughtUp(p)
					stopped := r.project(r.bus, m.sink(), o)
					r.stop(stopped)

					broker.Restore(r.T, backup, nil)
					if stored > 0 {
						r.publish(numbered(30, 30+stored, 30)...)
					}
					select {
					case <-p.Done():
						r.wantRestored(p.Err())
					case <-time.After(5 * time.Minute):
						r.Fatalf("the projection goes on in another history: %s", m.live())
					}
					_, err := projector.Start(r.Context(), r.bus, m.sink(), o)
					r.wantRestored(err)

					o.OnNewStream = projector.RebuildOnNewStream
					rebuilt := r.project(r.bus, m.sink(), o)
					r.caughtUp(rebuilt)
					fresh := newMemory()
					o.Name = "fresh"
					r.caughtUp(r.project(r.bus, fresh.sink(), o))
					m.want(r.T, fresh.live())
				})
			})
		}
	}
}

// A restore that loses no event is no reason to rebuild.
func TestProjectionResumesAfterRestoreWithoutLoss(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		t.Run(fmt.Sprintf("exclusive=%t", exclusive), func(t *testing.T) {
			restorable(t, func(r *rig, broker *bustest.Restorable) {
				m, o := newMemory(), options()
				o.Exclusive = exclusive
				r.publish(numbered(0, 3, 30)...)
				p := r.project(r.bus, m.sink(), o)
				r.caughtUp(p)
				backup := broker.Backup(r.T)
				time.Sleep(time.Second)
				broker.Restore(r.T, backup, nil)
				r.publish(numbered(3, 6, 30)...)
				r.caughtUp(p)
				m.want(r.T, "k0=0 k1=1 k2=2 k3=3 k4=4 k5=5")
				r.ok(p.Err())
			})
		})
	}
}

// A sink that an older version filled has no checkpoint: it is accepted, and gets one.
func TestProjectionAcceptsPositionWithoutCheckpoint(t *testing.T) {
	restorable(t, func(r *rig, broker *bustest.Restorable) {
		m := newMemory()
		r.publish(numbered(0, 3, 30)...)
		p := r.project(r.bus, m.sink(), options())
		r.caughtUp(p)
		r.stop(p)
		m.mu.Lock()
		for stream, s := range m.sources {
			s.last = jetbus.Checkpoint{}
			m.sources[stream] = s
		}
		m.mu.Unlock()
		backup := broker.Backup(r.T)
		p = r.project(r.bus, m.sink(), options())
		r.publish(numbered(3, 6, 30)...)
		r.caughtUp(p)
		r.stop(p)
		broker.Restore(r.T, backup, nil)
		r.publish(numbered(6, 20, 30)...)
		_, err := projector.Start(r.Context(), r.bus, m.sink(), options())
		r.wantRestored(err)
	})
}

// gate holds up the writes of a sink while it is shut.
type gate struct{ open chan struct{} }

func newGate() *gate { return &gate{open: make(chan struct{})} }

// pass is memorySink.before.
func (g *gate) pass(ctx context.Context, b projector.Batch) error {
	if len(b.Changes) == 0 {
		return nil
	}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// The new history may have outgrown the old one before the projection gets its next batch.
func TestProjectionNoticesRestoreAfterLongBatch(t *testing.T) {
	restorable(t, func(r *rig, broker *bustest.Restorable) {
		m := newMemory()
		sink, g := m.sink(), newGate()
		sink.before = g.pass
		p := r.project(r.bus, sink, options())
		time.Sleep(time.Second)
		backup := broker.Backup(r.T)
		r.publish("a:-1")
		time.Sleep(time.Second) // the event is being written
		broker.Restore(r.T, backup, nil)
		r.publish(numbered(0, 20, 30)...)
		time.Sleep(5 * time.Second) // they wait for the sink
		close(g.open)
		<-p.Done()
		r.wantRestored(p.Err())
	})
}

// Deliveries from before and from after a restore are in one batch: nothing that was written
// is lost, so the projection resumes.
func TestProjectionDropsDeliveriesFromBeforeRestore(t *testing.T) {
	restorable(t, func(r *rig, broker *bustest.Restorable) {
		m := newMemory()
		sink, g := m.sink(), newGate()
		sink.before = g.pass
		p := r.project(r.bus, sink, options())
		r.publish("a:1")
		time.Sleep(time.Second) // the event is being written
		backup := broker.Backup(r.T)
		r.publish("b:-1", "c:-2", "d:-3")
		time.Sleep(time.Second) // they wait for the sink
		broker.Restore(r.T, backup, nil)
		r.publish("c:2", "b:3")
		time.Sleep(5 * time.Second)
		close(g.open)
		r.eventually("the batch", func() bool { return len(sink.written()) > 1 })
		r.caughtUp(p)
		m.want(r.T, "a=1 b=3 c=2")
		r.ok(p.Err())
	})
}

// openedEarlier is a sink whose Open returned before another replica wrote the newest event.
type openedEarlier struct {
	*memorySink

	last jetbus.Checkpoint
}

func (s *openedEarlier) Open(ctx context.Context, source projector.Source) (projector.Position, error) {
	at, err := s.memorySink.Open(ctx, source)
	at.Last = s.last
	return at, err
}

// A replica that is gone wrote what the topic lost: the others learn of it from the sink.
func TestProjectionNoticesRestoreForAnotherReplica(t *testing.T) {
	for _, stored := range []int{0, 2, 20} { // events after the restore
		t.Run(fmt.Sprint(stored), func(t *testing.T) {
			restorable(t, func(r *rig, broker *bustest.Restorable) {
				m := newMemory()
				r.publish(numbered(0, 3, 30)...)
				p := r.project(r.bus, m.sink(), options())
				r.caughtUp(p)
				at, err := m.sink().Position(r.Context(), projector.Source{Stream: r.info().Stream})
				r.ok(err)
				backup := broker.Backup(r.T)
				r.publish(numbered(3, 10, 30)...)
				r.caughtUp(p)
				r.stop(p)
				broker.Restore(r.T, backup, nil)
				if stored > 0 {
					r.publish(numbered(30, 30+stored, 30)...)
				}
				p = r.project(r.bus, &openedEarlier{m.sink(), at.Last}, options())
				select {
				case <-p.Done():
					r.wantRestored(p.Err())
				case <-time.After(5 * time.Minute):
					r.Fatalf("the projection goes on in another history: %s", m.live())
				}
				_, err = projector.Start(r.Context(), r.bus, m.sink(), options())
				r.wantRestored(err)
			})
		})
	}
}

func (r *rig) info() jetbus.TopicInfo {
	r.Helper()
	info, err := r.bus.TopicInfo(r.Context(), "t")
	r.ok(err)
	return info
}

// A sink that is being filled must not get one part of each history.
func TestFillNoticesRestore(t *testing.T) {
	for _, exclusive := range []bool{false, true} {
		t.Run(fmt.Sprintf("exclusive=%t", exclusive), func(t *testing.T) {
			restorable(t, func(r *rig, broker *bustest.Restorable) {
				m, o := newMemory(), options()
				o.Exclusive, o.MaxBatch = exclusive, 5
				r.publish(numbered(0, 3, 30)...)
				backup := broker.Backup(r.T)
				r.publish(numbered(3, 20, 30)...)
				other := r.open()
				sink := m.sink()
				var batches atomic.Int32
				sink.before = func(_ context.Context, b projector.Batch) error {
					if len(b.Changes) > 0 && batches.Add(1) == 3 {
						broker.Restore(r.T, backup, nil)
						for _, item := range numbered(100, 130, 30) {
							_, err := other.Publish(r.Context(), jetbus.Event{Topic: "t", Key: item, Payload: []byte("1")})
							r.ok(err)
						}
					}
					return nil
				}
				p := r.project(r.bus, sink, o)
				select {
				case <-p.Done():
					r.wantRestored(p.Err())
				case <-time.After(5 * time.Minute):
					r.Fatalf("the projection goes on in another history: %s", m.live())
				}
			})
		})
	}
}
