package projector_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector"
)

// rebuildSink is a sink whose shadows can be watched and broken.
type rebuildSink struct {
	*memorySink

	swap    func() error // called before and after a swap
	write   func(projector.Batch) error
	dropped atomic.Int32
	shadows atomic.Int32
}

type watchedShadow struct {
	*shadowOf

	s *rebuildSink
}

func (s *rebuildSink) Shadow(ctx context.Context) (projector.Shadow, error) {
	s.shadows.Add(1)
	shadow, err := s.memorySink.Shadow(ctx)
	if err != nil {
		return nil, err
	}
	of := shadow.(*shadowOf)
	of.before = func(_ context.Context, b projector.Batch) error {
		if s.write == nil {
			return nil
		}
		return s.write(b)
	}
	return &watchedShadow{of, s}, nil
}

func (s *watchedShadow) Swap(ctx context.Context) error {
	if s.s.swap != nil {
		if err := s.s.swap(); err != nil {
			return err
		}
	}
	return s.shadowOf.Swap(ctx)
}

func (s *watchedShadow) Drop(ctx context.Context) error {
	if !s.swapped {
		s.s.dropped.Add(1)
	}
	return s.shadowOf.Drop(ctx)
}

// boxed maps payloads to something that tells the new content from the old.
func boxed(e jetbus.Event) (any, error) {
	return json.RawMessage("[" + string(e.Payload) + "]"), nil
}

// Row 12 of the table: a live replica writes while the sink is rebuilt, to the very
// moment of the swap and behind it, and nothing is lost.
func TestA8Row12Rebuild(t *testing.T) {
	for name, exclusive := range map[string]bool{"shared": false, "exclusive": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				o := options()
				o.MaxBatch, o.Exclusive, o.Map = 50, exclusive, boxed
				o.KeyOf = func(e jetbus.Event) (string, error) {
					if string(e.Payload) == "13" {
						return "", errors.New("unlucky")
					}
					return e.Key, nil
				}
				m := newMemory()
				p := r.project(r.open(), m.sink(), o)
				r.publish(numbered(0, 500, 10)...)
				r.caughtUp(p)
				next := 500
				live := func() error { // the replica writes to the old content
					r.publish(numbered(next, next+70, 11)...)
					next += 70
					r.caughtUp(p)
					return nil
				}
				tries := 0
				s := &rebuildSink{memorySink: m.sink(), swap: func() error {
					if tries++; tries == 1 {
						return errors.New("away")
					}
					return live()
				}}
				var phases []projector.RebuildPhase
				var log bytes.Buffer
				o.Logger = slog.New(slog.NewTextHandler(&log, nil))
				st, err := projector.Rebuild(r.Context(), r.open(), s, o, projector.RebuildOptions{Progress: func(st projector.RebuildStats) {
					if len(phases) == 0 || phases[len(phases)-1] != st.Phase {
						phases = append(phases, st.Phase)
						if st.Phase == projector.RebuildCatching {
							r.ok(live())
						}
					}
				}})
				r.ok(err)
				r.equal("times that the swap is told to fail", strings.Count(log.String(), "error=away"), 1)
				want := "[waiting filling catching swapping closing done]"
				if exclusive {
					want = "[waiting filling catching swapping done]"
				}
				r.equal("phases", phases, want)
				if st.Read < 570 || st.Total < 500 || st.LastSeq < 570 || st.Failed != 1 || st.Rejected != 1 || st.Phase != projector.RebuildDone {
					t.Errorf("stats %+v", st)
				}
				r.publish(numbered(next, next+30, 11)...)
				next += 30
				r.caughtUp(p)
				r.eventually("the position", func() bool { return !exclusive || m.position() == uint64(next) })
				m.want(t, foldOf(next))
				r.equal("dropped", s.dropped.Load(), 0)
				r.equal("error", p.Err(), nil)
				r.equal("dead letters", len(r.dead()), 1)
			})
		})
	}
}

// foldOf is the newest event of each key of TestA8Row12Rebuild, boxed.
func foldOf(next int) string {
	last := map[string]int{}
	for i := range next {
		keys := 10
		if i >= 500 {
			keys = 11
		}
		last[fmt.Sprint("k", i%keys)] = i
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(last)) {
		out = append(out, fmt.Sprintf("%s=[%d]", key, last[key]))
	}
	return strings.Join(out, " ")
}

// A rebuild without replicas leaves a position that the next Start goes on from.
func TestRebuildThenStart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish(numbered(0, 100, 10)...)
		m := newMemory()
		_, err := projector.Rebuild(r.Context(), r.bus, m.sink(), options(), projector.RebuildOptions{})
		r.ok(err)
		r.equal("position", m.position(), 100)
		r.publish("k0:1000")
		s := m.sink()
		p := r.project(r.bus, s, options())
		r.caughtUp(p)
		r.equal("batches", s.written(), "[1]")
		r.equal("documents", len(m.docs), 10)
	})
}

// Only the last event of each key is read where the topic has keys in its subjects.
func TestRebuildLatest(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "u", KeyInSubject: true})
		for i := range 300 {
			_, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "u", Key: fmt.Sprint("k", i%3), Payload: []byte(fmt.Sprint(i))})
			r.ok(err)
		}
		m := newMemory()
		o := options()
		o.Topic = "u"
		st, err := projector.Rebuild(r.Context(), r.bus, m.sink(), o, projector.RebuildOptions{})
		r.ok(err)
		m.want(t, "k0=297 k1=298 k2=299")
		if st.Read != 3 || st.Written != 3 || st.Total != 0 || st.Seq != 300 || st.LastSeq != 300 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestRebuildFails(t *testing.T) {
	cancels := errors.New("enough")
	for name, row := range map[string]struct {
		write func(cancel context.CancelCauseFunc) error
		swap  func(cancel context.CancelCauseFunc) error
		want  error
	}{
		"canceled while filling": {write: func(cancel context.CancelCauseFunc) error { cancel(cancels); return errors.New("away") }, want: cancels},
		"canceled at the swap":   {swap: func(cancel context.CancelCauseFunc) error { cancel(cancels); return errors.New("away") }, want: cancels},
		"fenced":                 {swap: func(context.CancelCauseFunc) error { return projector.ErrFenced }, want: projector.ErrFenced},
		"swap refused":           {swap: func(context.CancelCauseFunc) error { return fmt.Errorf("%w: no", projector.ErrSwapRefused) }, want: projector.ErrSwapRefused},
		"owned":                  {write: func(context.CancelCauseFunc) error { return projector.ErrOwned }, want: projector.ErrOwned},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				m := newMemory()
				r.publish(numbered(0, 100, 10)...)
				p := r.project(r.open(), m.sink(), options())
				r.caughtUp(p)
				before := m.live()
				ctx, cancel := context.WithCancelCause(r.Context())
				defer cancel(nil)
				s := &rebuildSink{memorySink: m.sink()}
				s.write = func(b projector.Batch) error {
					if row.write == nil || len(b.Changes) == 0 {
						return nil
					}
					return row.write(cancel)
				}
				s.swap = func() error {
					if row.swap == nil {
						return nil
					}
					return row.swap(cancel)
				}
				o := options()
				o.Map = boxed
				_, err := projector.Rebuild(ctx, r.bus, s, o, projector.RebuildOptions{})
				if !errors.Is(err, row.want) {
					t.Errorf("error %v, want %v", err, row.want)
				}
				r.equal("dropped", s.dropped.Load(), 1)
				m.want(t, before)
				again := &rebuildSink{memorySink: m.sink()}
				began := time.Now()
				_, err = projector.Rebuild(r.Context(), r.bus, again, o, projector.RebuildOptions{})
				r.ok(err)
				if took := time.Since(began); took > time.Second {
					t.Errorf("the lock was free after %v", took)
				}
				m.want(t, "k0=[90] k1=[91] k2=[92] k3=[93] k4=[94] k5=[95] k6=[96] k7=[97] k8=[98] k9=[99]")
			})
		})
	}
}

// One rebuild at a time, and bad options are refused before anything is made.
func TestRebuildOne(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.publish(numbered(0, 10, 10)...)
		m := newMemory()
		begun := make(chan struct{})
		slow := &rebuildSink{memorySink: m.sink(), swap: func() error {
			close(begun)
			time.Sleep(time.Hour)
			return nil
		}}
		done := make(chan error)
		bus := r.open()
		go func() {
			_, err := projector.Rebuild(r.Context(), bus, slow, options(), projector.RebuildOptions{})
			done <- err
		}()
		<-begun
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		second := &rebuildSink{memorySink: m.sink()}
		st, err := projector.Rebuild(ctx, r.bus, second, options(), projector.RebuildOptions{})
		if !errors.Is(err, context.DeadlineExceeded) || st.Phase != projector.RebuildWaiting || second.shadows.Load() > 0 {
			t.Errorf("a second rebuild: %+v, %v, %d shadows", st, err, second.shadows.Load())
		}
		r.ok(<-done)
		for name, o := range map[string]projector.Options{
			"no name":  {Topic: "t"},
			"no topic": {Name: "p", Topic: "missing"},
		} {
			if _, err := projector.Rebuild(r.Context(), r.bus, second, o, projector.RebuildOptions{}); err == nil || second.shadows.Load() > 0 {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// With Every a rebuild swaps when no replica runs, and has by then all that the last one
// wrote; the next one goes on behind that. A rebuild that is canceled before leaves nothing.
func TestRebuildEvery(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		o := exclusively(true)
		r.publish(numbered(0, 10, 100)...)
		p := r.project(r.open(), m.sink(), o)
		r.caughtUp(p)
		var swaps atomic.Int32
		rebuild := func(ctx context.Context) (*rebuildSink, <-chan error) {
			s := &rebuildSink{memorySink: m.sink(), swap: func() error {
				swaps.Add(1)
				return nil
			}}
			bus, done := r.open(), make(chan error, 1)
			go func() {
				_, err := projector.Rebuild(ctx, bus, s, o, projector.RebuildOptions{})
				done <- err
			}()
			time.Sleep(time.Minute) // until nothing is left to do but to wait
			return s, done
		}
		ctx, cancel := context.WithCancel(r.Context())
		s, done := rebuild(ctx)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
		r.equal("dropped", s.dropped.Load(), 1)
		_, done = rebuild(r.Context())
		r.publish(numbered(10, 20, 100)...)
		r.caughtUp(p)
		r.equal("swaps while a replica runs", swaps.Load(), 0)
		r.stop(p)
		r.ok(<-done)
		r.equal("swaps", swaps.Load(), 1)
		r.equal("position", m.position(), 20)
		last := m.sink()
		p = r.project(r.open(), last, o)
		r.publish(numbered(20, 30, 100)...)
		r.caughtUp(p)
		r.equal("documents", len(m.docs), 30)
		n := 0
		for _, changes := range last.written() {
			n += changes
		}
		r.equal("changes of the last replica", n, 10)
	})
}

// With Every a swap that does not come about lets the replicas go on after a while.
func TestRebuildEveryGivesUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		o := exclusively(true)
		r.publish(numbered(0, 10, 100)...)
		s := &rebuildSink{memorySink: m.sink(), swap: func() error { return errors.New("away") }}
		began := time.Now()
		_, err := projector.Rebuild(r.Context(), r.open(), s, o, projector.RebuildOptions{})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 6*time.Minute {
			t.Errorf("after %v: %v", took, err)
		}
		if s.dropped.Load() == 0 {
			t.Error("the shadow is still there")
		}
		p := r.project(r.open(), m.sink(), o)
		r.caughtUp(p)
	})
}

// A topic that was made anew: Start rebuilds where the options say so.
func TestRebuildOnNewStream(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		o := exclusively(false)
		r.publish(numbered(0, 100, 10)...)
		p := r.project(r.bus, m.sink(), o)
		r.caughtUp(p)
		r.stop(p)
		r.anew("t")
		r.publish(`k1:"new"`)
		o.OnNewStream = projector.RebuildOnNewStream
		p = r.project(r.bus, m.sink(), o)
		r.publish(`k2:"new"`)
		r.caughtUp(p)
		m.want(t, "k1=\"new\" k2=\"new\"")
		r.equal("position", m.position(), 2)
	})
}

// TestRebuildOnNewStreamStartsOver: the lock of the rebuild is lost, as when the broker is restored. Start rebuilds again.
func TestRebuildOnNewStreamStartsOver(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		r.publish("a:1")
		p := r.project(r.bus, m.sink(), options())
		r.caughtUp(p)
		r.stop(p)
		r.anew("t")
		r.publish("b:1")
		s, lost := &rebuildSink{memorySink: m.sink()}, false
		s.write = func(projector.Batch) error {
			if lost {
				return nil
			}
			lost = true
			lock, err := r.bus.KeyGet(r.Context(), jetbus.DefaultLockBucket, "rebuild/p/t")
			if err == nil && lock.Revision == 0 {
				err = errors.New("the lock is not held")
			}
			if err == nil {
				err = r.bus.KeyDelete(r.Context(), jetbus.DefaultLockBucket, "rebuild/p/t", lock.Revision)
			}
			if err != nil {
				t.Error(err)
			}
			time.Sleep(jetbus.DefaultLockTTL) // the holder notices when it renews the lock
			return nil
		}
		o := options()
		o.OnNewStream = projector.RebuildOnNewStream
		p = r.project(r.bus, s, o)
		r.caughtUp(p)
		r.equal("shadows", s.shadows.Load(), 2)
		m.want(t, "b=1")
		r.stop(p)
	})
}

// Several replicas start when the topic was made anew: one rebuild is enough.
func TestRebuildOnNewStreamOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := newMemory()
		r.publish("a:1")
		p := r.project(r.bus, m.sink(), options())
		r.caughtUp(p)
		r.stop(p)
		r.anew("t")
		r.publish("b:1")
		o := options()
		o.OnNewStream = projector.RebuildOnNewStream
		var shadows atomic.Int32
		var wg sync.WaitGroup
		replicas := make([]*projector.Projection, 3)
		for i := range replicas {
			bus, s := r.open(), &rebuildSink{memorySink: m.sink()}
			wg.Go(func() {
				var err error
				if replicas[i], err = projector.Start(r.Context(), bus, s, o); err != nil {
					t.Error(err)
				}
				shadows.Add(s.shadows.Load())
			})
		}
		wg.Wait()
		for _, p := range replicas {
			r.caughtUp(p)
			r.stop(p)
		}
		r.equal("shadows", shadows.Load(), 1)
		m.want(t, "b=1")
	})
}
