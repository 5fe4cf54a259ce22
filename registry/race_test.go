package registry_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// registrars register schemas of their own, all at once, in one topic.
type registrars struct {
	mu  sync.Mutex
	got []registry.Version
	wg  sync.WaitGroup
}

func (g *registrars) start(t *testing.T, reg *registry.Registry, name string, n int) {
	g.wg.Go(func() {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		for i := range n {
			text := fmt.Sprintf(`{"type": "object", "title": "%s-%d"}`, name, i)
			v, err := reg.Register(ctx, "t", text, registry.RegisterOptions{By: name})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return
			}
			g.mu.Lock()
			g.got = append(g.got, v)
			g.mu.Unlock()
		}
	})
}

// check checks that every registration is there once, under the number it was
// told, and that numbers and ids have no gaps.
func (g *registrars) check(t *testing.T, reg *registry.Registry, total int) {
	t.Helper()
	g.wg.Wait()
	versions := must(reg.Versions(t.Context(), "t", true))(t)
	slices.SortFunc(g.got, func(a, b registry.Version) int { return a.Number - b.Number })
	if diff := cmp.Diff(versions, g.got); diff != "" || len(versions) != total {
		t.Errorf("%d versions, want %d: %s", len(versions), total, diff)
	}
	var ids []int
	texts := map[string]bool{}
	for i, v := range versions {
		if v.Number != i+1 {
			t.Errorf("number %d is in place %d", v.Number, i+1)
		}
		if texts[v.Text] {
			t.Errorf("%s is there twice", v.Text)
		}
		texts[v.Text] = true
		ids = append(ids, v.ID)
	}
	slices.Sort(ids)
	for i, id := range ids {
		if id != i+1 {
			t.Errorf("id %d is in place %d", id, i+1)
			break
		}
	}
}

func TestRegisterTogether(t *testing.T) {
	const each, processes, perProcess = 5, 4, 4
	tests := []struct {
		name      string
		processes int
		per       int
	}{{"one process", 1, 16}, {"several", processes, perProcess}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			g := &registrars{}
			for p := range test.processes {
				reg := r.open(registry.Config{})
				for i := range test.per {
					g.start(t, reg, fmt.Sprintf("%d-%d", p, i), each)
				}
			}
			g.wg.Wait()
			g.check(t, r.open(registry.Config{}), test.processes*test.per*each)
		})
	}
}

// Everybody registers the same: there is one version, and everybody gets it.
func TestRegisterTheSameTogether(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	for range 4 {
		reg := r.open(registry.Config{})
		for range 4 {
			wg.Go(func() {
				v, err := reg.Register(t.Context(), "t", object("a"), registry.RegisterOptions{})
				if err != nil || v.Number != 1 || v.ID != 1 {
					t.Errorf("got %+v, %v", v, err)
				}
			})
		}
	}
	wg.Wait()
	if got := must(r.open(registry.Config{}).Versions(t.Context(), "t", true))(t); len(got) != 1 {
		t.Errorf("%d versions", len(got))
	}
}

func TestRestarts(t *testing.T) {
	r := newRig(t)
	g := &registrars{}
	for p := range 4 {
		reg := r.open(registry.Config{})
		for i := range 4 {
			g.start(t, reg, fmt.Sprintf("%d-%d", p, i), 12)
		}
	}
	for i := range 4 {
		eventually(t, func() string {
			g.mu.Lock()
			defer g.mu.Unlock()
			if len(g.got) < 30*(i+1) {
				return fmt.Sprintf("%d are registered", len(g.got))
			}
			return ""
		})
		if i%2 == 0 {
			r.ok(r.broker.Kill(t.Context()))
		}
		r.ok(r.broker.Restart(t.Context()))
	}
	g.wg.Wait()
	g.check(t, r.open(registry.Config{}), 4*4*12)
}

// While the broker is away, reads go on, and writes wait for it.
func TestBrokerAway(t *testing.T) {
	r := newRig(t)
	r.register("t", object("a!"))
	r.ok(r.broker.Kill(t.Context()))
	must(r.reg.Current("t"))(t)
	must(r.reg.Compiled(t.Context(), "t", 1))(t)
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := r.reg.Register(short, "t", object("a", "c"), registry.RegisterOptions{})
	r.is(err, jetbus.ErrUnavailable)
	done := make(chan error, 1)
	go func() {
		_, err := r.reg.Register(t.Context(), "t", object("a"), registry.RegisterOptions{})
		done <- err
	}()
	r.ok(r.broker.Restart(t.Context()))
	r.ok(<-done)
	r.register("t", object("a", "b"))
	if got := must(r.open(registry.Config{}).Latest(t.Context(), "t"))(t); got.Number != 3 {
		t.Errorf("the latest is %+v", got)
	}
}

// The answer to a write is lost: it is stored once, and the caller gets it.
func TestAnswerLost(t *testing.T) {
	tests := []struct {
		name    string
		write   string // what is lost the answer of
		after   func(r *rig)
		deleted bool
	}{
		{"of the version", "$KV.SCHEMAS.s.t.v.1 ", func(*rig) {}, false},
		{"of the id", "$KV.SCHEMAS.g.i.1 ", func(*rig) {}, false},
		{"and somebody deletes the version", "$KV.SCHEMAS.s.t.v.1 ", func(r *rig) {
			eventually(r.T, func() string { // it hears of the version by its watch
				if _, err := r.reg.Current("t"); err != nil {
					return err.Error()
				}
				return ""
			})
			must(r.reg.Delete(r.Context(), "t", 1, registry.DeleteOptions{}))(r.T)
		}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			p := &tap{broker: r.broker}
			reg := openOn(t, p.connect(t), registry.Config{})
			before := r.lastSeq()
			p.on(test.write, nil, func() {
				eventually(t, func() string {
					if r.lastSeq() == before {
						return "nothing is stored"
					}
					return ""
				})
				test.after(r)
			})
			v := must(reg.Register(t.Context(), "t", object("a"), registry.RegisterOptions{}))(t)
			if v.Number != 1 || v.ID != 1 || v.Live() == test.deleted {
				t.Errorf("got %+v", v)
			}
			if got := must(reg.Versions(t.Context(), "t", true))(t); len(got) != 1 {
				t.Errorf("there are %+v", got)
			}
		})
	}
}

// What one registers another finds at once, by asking for it.
func TestOthersSee(t *testing.T) {
	r := newRig(t)
	other := r.open(registry.Config{})
	for i := range 20 {
		topic := fmt.Sprint("t", i)
		v := r.register(topic, object("a"))
		if compiled := must(other.Compiled(t.Context(), topic, 1))(t); compiled.Fingerprint() != v.Fingerprint {
			t.Errorf("%s is %s", topic, compiled.Text())
		}
	}
}

// What needs no write by the cache, and what is refused by it, is asked of the broker all the
// same: the cache may be behind.
func TestDecidedBehind(t *testing.T) {
	full := registry.Settings{Level: registry.LevelFull}
	for _, test := range []struct {
		name      string
		meanwhile func(r *rig, others *registry.Registry) error // what the cache has not heard of
		decided   func(r *rig) error
	}{
		{"settings that were as they are to be", func(r *rig, others *registry.Registry) error {
			return others.SetSettings(r.Context(), "t", registry.Settings{Level: registry.LevelNone})
		}, func(r *rig) error {
			if err := r.reg.SetSettings(r.Context(), "t", full); err != nil {
				return err
			}
			if s := must(r.open(registry.Config{}).TopicSettings(r.Context(), "t"))(r.T); s != full {
				r.Errorf("the settings are %+v", s)
			}
			return nil
		}},
		{"a schema that was deleted", func(r *rig, others *registry.Registry) error {
			_, err := others.Delete(r.Context(), "t", 1, registry.DeleteOptions{})
			return err
		}, func(r *rig) error {
			v, err := r.reg.Register(r.Context(), "t", object("a"), registry.RegisterOptions{})
			if err == nil && (v.Number != 2 || !v.Live()) {
				r.Errorf("registered as %+v", v)
			}
			return err
		}},
		{"a change that was incompatible", func(r *rig, others *registry.Registry) error {
			return others.SetSettings(r.Context(), "t", registry.Settings{Level: registry.LevelNone})
		}, func(r *rig) error {
			_, err := r.reg.Register(r.Context(), "t", object("b!"), registry.RegisterOptions{})
			return err
		}},
		{"a topic that was read only", func(r *rig, others *registry.Registry) error {
			r.ok(others.SetSettings(r.Context(), "u", registry.Settings{Mode: registry.ReadWrite}))
			return nil
		}, func(r *rig) error {
			_, err := r.reg.Register(r.Context(), "u", object("a"), registry.RegisterOptions{})
			return err
		}},
		{"a version that was live", func(r *rig, others *registry.Registry) error {
			_, err := others.Delete(r.Context(), "t", 1, registry.DeleteOptions{})
			return err
		}, func(r *rig) error {
			_, err := r.reg.Delete(r.Context(), "t", 1, registry.DeleteOptions{Permanent: true})
			return err
		}},
		{"a topic with one version", func(r *rig, others *registry.Registry) error {
			_, err := others.Register(r.Context(), "t", object("a", "b"), registry.RegisterOptions{Force: true, By: "somebody"})
			return err
		}, func(r *rig) error {
			deleted, err := r.reg.DeleteTopic(r.Context(), "t", registry.DeleteOptions{})
			if err == nil && len(deleted) != 2 {
				r.Errorf("deleted are the versions %v", deleted)
			}
			return err
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bustest.Run(t, func(t *testing.T) {
				r := newRig(t)
				r.register("t", object("a"))
				r.ok(r.reg.SetSettings(t.Context(), "t", full))
				r.ok(r.reg.SetSettings(t.Context(), "u", registry.Settings{Mode: registry.ReadOnly}))
				r.deleteConsumers()
				r.ok(test.meanwhile(r, r.open(registry.Config{})))
				r.ok(test.decided(r))
				time.Sleep(time.Second) // the store writes behind
			})
		})
	}
}

// A watcher that the server has forgotten is made anew.
func TestWatcherLost(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		r := newRig(t)
		other := r.open(registry.Config{})
		r.deleteConsumers()
		r.register("t", object("a"))
		must(other.Compiled(t.Context(), "t", 1))(t)
		must(other.Current("t"))(t)
		time.Sleep(time.Second) // the store writes behind
	})
}
