package processes_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

// scan returns what the state topic holds at the server.
func scan(t *testing.T, bus jetbus.Store) []jetbus.Event {
	t.Helper()
	var events []jetbus.Event
	for e, err := range bus.Scan(t.Context(), processes.DefaultStates, jetbus.ScanQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	return events
}

func wantStored(t *testing.T, bus jetbus.Store, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, lines(t, scan(t, bus))); d != "" {
		t.Errorf("states at the server (-want +got):\n%s", d)
	}
}

// wantSettled checks at the server that the group has nothing left to do.
func wantSettled(t *testing.T, bus jetbus.Topics) {
	t.Helper()
	groups, err := bus.Groups(t.Context(), processes.DefaultHeartbeats)
	if err != nil {
		t.Fatal(err)
	}
	if len(groups) != 1 || groups[0].Pending != 0 || groups[0].Held != 0 {
		t.Errorf("groups %+v, want one with nothing pending and nothing held", groups)
	}
}

func TestServerSilenceAndReturn(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		bus := bustest.Open(t, bustest.Start(t, embedded.Config{}), adapter.Config{})
		p := start(t, bus, processes.Options{})
		defer stop(t, p)
		for i := range 3 {
			beat(t, bus, 1, float64(i))
			time.Sleep(time.Second)
		}
		time.Sleep(13900 * time.Millisecond) // 14.9 s since the last beat
		wantStored(t, bus, "1 0 alive", "1 1 alive", "1 2 alive")
		time.Sleep(1200 * time.Millisecond)
		wantStored(t, bus, "1 0 alive", "1 1 alive", "1 2 alive", "1 2 stale")
		time.Sleep(5 * time.Minute) // beyond the duplicate window
		wantStored(t, bus, "1 0 alive", "1 1 alive", "1 2 alive", "1 2 stale")
		beat(t, bus, 1, 3)
		time.Sleep(time.Second)
		wantStored(t, bus, "1 0 alive", "1 1 alive", "1 2 alive", "1 2 stale", "1 3 alive")
		wantSettled(t, bus)
	})
}

func TestServerRestart(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		b := bustest.Start(t, embedded.Config{})
		bus := bustest.Open(t, b, adapter.Config{})
		p := start(t, bus, processes.Options{})
		beat(t, bus, 1, 1)
		beat(t, bus, 2, 1)
		time.Sleep(8 * time.Second)
		beat(t, bus, 2, 2)
		time.Sleep(time.Second)
		stop(t, p)
		if err := b.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		beat(t, bus, 3, 1) // while no projector runs
		time.Sleep(10 * time.Second)

		p = start(t, bus, processes.Options{})
		before := []string{"1 1 alive", "2 1 alive", "2 2 alive"}
		if got := p.Processes(); len(got) < 2 {
			t.Errorf("%d processes right after the start, want 2 at least", len(got))
		}
		time.Sleep(2500 * time.Millisecond)
		wantStored(t, bus, append(before, "3 1 alive", "1 1 stale")...)
		stop(t, p)

		// The group is lost, and with it every position: all beats come again.
		if err := bus.DeleteGroup(t.Context(), processes.DefaultHeartbeats, processes.DefaultGroup); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute) // and no duplicate window helps
		p = start(t, bus, processes.Options{})
		defer stop(t, p)
		time.Sleep(5 * time.Second)
		wantStored(t, bus, append(before, "3 1 alive", "1 1 stale", "2 2 stale", "3 1 stale")...)
		if got := p.Stats(); got != (processes.Stats{Stale: 2, Repeated: 4}) {
			t.Errorf("stats %+v", got)
		}
		wantSettled(t, bus)
	})
}

// crashing is a bus on which each projector dies between publishing a state and
// acknowledging its heartbeat, once a heartbeat.
type crashing struct{ *adapter.Bus }

func (c crashing) Subscribe(ctx context.Context, topic, group string, h jetbus.Handler, o jetbus.SubscribeOptions) (jetbus.Subscription, error) {
	return c.Bus.Subscribe(ctx, topic, group, func(ctx context.Context, d *jetbus.Delivery) error {
		if err := h(ctx, d); err != nil || d.Attempt > 1 {
			return err
		}
		return errors.New("died before the acknowledgement")
	}, o)
}

func TestServerRedelivery(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		bus := bustest.Open(t, bustest.Start(t, embedded.Config{}), adapter.Config{})
		p := start(t, crashing{bus}, processes.Options{})
		defer stop(t, p)
		var want []string
		for i := range 5 {
			beat(t, bus, 1, float64(i))
			want = append(want, []string{"1 0 alive", "1 1 alive", "1 2 alive", "1 3 alive", "1 4 alive"}[i])
		}
		time.Sleep(10 * time.Second)
		wantStored(t, bus, want...)
		if got := p.Stats(); got != (processes.Stats{States: 5, Repeated: 5}) {
			t.Errorf("stats %+v", got)
		}
		wantSettled(t, bus)
	})
}

func TestServerTwoProjectors(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		b := bustest.Start(t, embedded.Config{})
		bus := bustest.Open(t, b, adapter.Config{})
		one := start(t, bustest.Open(t, b, adapter.Config{}), processes.Options{})
		two := start(t, bustest.Open(t, b, adapter.Config{}), processes.Options{})
		const rounds, senders = 20, 10
		for i := range rounds {
			var events []jetbus.Event
			for pid := range senders {
				e, err := processes.HeartbeatTopic.Event(processes.Heartbeat{PID: pid, Name: "nginx", Host: "web1", CPUPct: float64(i)})
				if err != nil {
					t.Fatal(err)
				}
				events = append(events, e, e) // twice, so that both projectors often hold one of the same process
			}
			if _, err := bus.PublishBatch(t.Context(), events, jetbus.BatchOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(40 * time.Second) // silence: noticed by both
		wantSettled(t, bus)
		position, stale := map[string]string{}, map[string]int{}
		for _, e := range scan(t, bus) {
			s, err := processes.StateTopic.Decode(e)
			if err != nil {
				t.Fatal(err)
			}
			if s.Status == processes.Stale {
				stale[e.Key]++
				if s.CPUPct != rounds-1 {
					t.Errorf("%s is stale after beat %v, want %d", e.Key, s.CPUPct, rounds-1)
				}
				continue
			}
			at := e.Headers["x-heartbeat-seq"]
			if have := position[e.Key]; len(at) < len(have) || len(at) == len(have) && at <= have {
				t.Errorf("state of %s went from heartbeat %s to %s", e.Key, have, at)
			}
			position[e.Key] = at
		}
		if len(stale) != senders {
			t.Errorf("%d processes are stale, want %d", len(stale), senders)
		}
		for key, n := range stale {
			if n != 1 {
				t.Errorf("%s was said to be stale %d times", key, n)
			}
		}
		a, z := one.Stats(), two.Stats()
		if a.States == 0 || z.States == 0 || a.States+z.States+a.Repeated+z.Repeated != 2*rounds*senders {
			t.Errorf("%+v and %+v do not share %d beats", a, z, 2*rounds*senders)
		}
		t.Logf("%+v and %+v", a, z)
		stop(t, one, two)
	})
}

// The states are deleted and declared anew while the projector runs: their
// sequences begin again, and what it remembers of the old ones is worth nothing.
func TestServerStatesDeleted(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		b := bustest.Start(t, embedded.Config{})
		bus := bustest.Open(t, b, adapter.Config{})
		p := start(t, bustest.Open(t, b, adapter.Config{}), processes.Options{})
		defer stop(t, p)
		for i := range 5 {
			beat(t, bus, 1, float64(i))
			beat(t, bus, 2, float64(i))
		}
		time.Sleep(time.Second)
		if err := bus.DeleteTopic(t.Context(), processes.DefaultStates); err != nil {
			t.Fatal(err)
		}
		if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: processes.DefaultStates, KeyInSubject: true}); err != nil {
			t.Fatal(err)
		}
		beat(t, bus, 1, 7)
		time.Sleep(5 * time.Second)
		wantStored(t, bus, "1 7 alive")
		time.Sleep(20 * time.Second)
		wantStored(t, bus, "1 7 alive", "1 7 stale")
		if got := p.Processes(); len(got) != 1 || got[0].PID != 1 || got[0].Status != processes.Stale {
			t.Errorf("processes %+v, want the one that the topic has", got)
		}
		wantSettled(t, bus)
	})
}
