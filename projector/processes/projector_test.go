package processes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

func start(t *testing.T, b processes.Backend, o processes.Options) *processes.Projector {
	t.Helper()
	p, err := processes.Start(t.Context(), b, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func stop(t *testing.T, projectors ...*processes.Projector) {
	t.Helper()
	for _, p := range projectors {
		if err := p.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if err := p.Err(); err != nil {
			t.Errorf("Err after Stop: %v", err)
		}
	}
}

// beat publishes a heartbeat of web1:nginx:<pid>.
func beat(t *testing.T, b jetbus.Publisher, pid int, cpu float64) jetbus.Event {
	t.Helper()
	r, err := processes.HeartbeatTopic.Publish(t.Context(), b, processes.Heartbeat{PID: pid, Name: "nginx", Host: "web1", CPUPct: cpu, MemMB: 64})
	if err != nil {
		t.Fatal(err)
	}
	return r.Event
}

// lines gives state events as "pid cpu status" in their order.
func lines(t *testing.T, events []jetbus.Event) []string {
	t.Helper()
	var got []string
	for _, e := range events {
		s, err := processes.StateTopic.Decode(e)
		if err != nil {
			t.Fatal(err)
		}
		if e.Key != s.ProcessID {
			t.Errorf("state of %s has the key %s", s.ProcessID, e.Key)
		}
		got = append(got, fmt.Sprintf("%d %v %s", s.PID, s.CPUPct, s.Status))
	}
	return got
}

func wantStates(t *testing.T, b *fakeBus, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, lines(t, b.stored(t, processes.DefaultStates))); d != "" {
		t.Errorf("states (-want +got):\n%s", d)
	}
}

// newBus is a fake with the heartbeats declared, so that they can be published first.
func newBus(t *testing.T) *fakeBus {
	t.Helper()
	b := newFakeBus()
	if _, err := b.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: processes.DefaultHeartbeats}); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEachBeatGivesOneState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		p := start(t, b, processes.Options{})
		defer stop(t, p)
		e := beat(t, b, 1, 0.5)
		beat(t, b, 2, 1)
		beat(t, b, 1, 0.5)
		synctest.Wait()
		wantStates(t, b, "1 0.5 alive", "2 1 alive", "1 0.5 alive")

		state := b.stored(t, processes.DefaultStates)[0]
		want := fmt.Sprintf(`{"processId":"web1:nginx:1","name":"nginx","host":"web1","pid":1,"cpu_pct":0.5,"mem_mb":64,"last_seen_ts":%d,"status":"alive"}`, e.Time.UnixMilli())
		if string(state.Payload) != want {
			t.Errorf("payload %s, want %s", state.Payload, want)
		}
		if !slices.Equal(state.CausedBy, []string{e.ID}) {
			t.Errorf("caused by %q, want the heartbeat %s", state.CausedBy, e.ID)
		}
		if got := p.Stats(); got != (processes.Stats{States: 3}) {
			t.Errorf("stats %+v", got)
		}
	})
}

// TestStartReadsNoHistory: what a start costs follows the processes, not what they have been.
func TestStartReadsNoHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		first := start(t, b, processes.Options{})
		for i := range 300 {
			beat(t, b, i%3, float64(i))
		}
		synctest.Wait()
		stop(t, first)
		before := b.read.Load()
		p := start(t, b, processes.Options{})
		defer stop(t, p)
		synctest.Wait()
		if n := b.read.Load() - before; n > 0 || len(p.Processes()) != 3 {
			t.Errorf("%d events were read for %d processes", n, len(p.Processes()))
		}
		beat(t, b, 1, 7)
		synctest.Wait()
		if got := p.Processes()[1]; got.CPUPct != 7 {
			t.Errorf("what came behind the start is not seen: %+v", got)
		}
	})
}

func TestSilenceAndReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		p := start(t, b, processes.Options{})
		defer stop(t, p)
		beat(t, b, 1, 1)
		time.Sleep(15 * time.Second)
		wantStates(t, b, "1 1 alive") // 15 s are not more than 15 s
		time.Sleep(time.Second)
		synctest.Wait()
		wantStates(t, b, "1 1 alive", "1 1 stale")
		time.Sleep(time.Minute)
		wantStates(t, b, "1 1 alive", "1 1 stale") // once
		beat(t, b, 1, 2)
		synctest.Wait()
		wantStates(t, b, "1 1 alive", "1 1 stale", "1 2 alive")
		time.Sleep(17 * time.Second)
		wantStates(t, b, "1 1 alive", "1 1 stale", "1 2 alive", "1 2 stale")
	})
}

func TestRestartForgetsAndRepeatsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		p := start(t, b, processes.Options{})
		beat(t, b, 1, 1)
		beat(t, b, 2, 1)
		synctest.Wait()
		time.Sleep(10 * time.Second)
		beat(t, b, 2, 2)
		synctest.Wait()
		stop(t, p)
		before := []string{"1 1 alive", "2 1 alive", "2 2 alive"}
		wantStates(t, b, before...)

		time.Sleep(6 * time.Second) // process 1 falls silent while nobody looks
		p = start(t, b, processes.Options{})
		if got := len(p.Processes()); got != 2 {
			t.Errorf("%d processes after the restart, want 2", got)
		}
		time.Sleep(1500 * time.Millisecond)
		wantStates(t, b, append(before, "1 1 stale")...)
		stop(t, p)

		p = start(t, b, processes.Options{}) // knows that 1 was said to be stale
		time.Sleep(5 * time.Second)
		wantStates(t, b, append(before, "1 1 stale")...)
		beat(t, b, 1, 3)
		synctest.Wait()
		wantStates(t, b, append(before, "1 1 stale", "1 3 alive")...)
		stop(t, p)
	})
}

func TestBacklogIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		p := start(t, b, processes.Options{})
		beat(t, b, 1, 0)
		synctest.Wait()
		stop(t, p)
		for i := range 60 { // it goes on beating while the projector is down
			time.Sleep(time.Second)
			beat(t, b, 1, float64(i+1))
		}
		b.before = func(jetbus.Event) { time.Sleep(100 * time.Millisecond) } // 6 s of work, 6 sweeps
		p = start(t, b, processes.Options{})
		defer stop(t, p)
		time.Sleep(10 * time.Second)
		for _, line := range lines(t, b.stored(t, processes.DefaultStates)) {
			if _, status, _ := cutLast(line); status == "stale" {
				t.Fatalf("a process that was beating all the time was said to be stale: %s", line)
			}
		}
		if got := p.Stats().States; got != 60 {
			t.Errorf("%d states for 60 beats", got)
		}
		time.Sleep(10 * time.Second)
		if got := p.Stats().Stale; got != 1 {
			t.Errorf("%d stale states after the silence, want 1", got)
		}
	})
}

func cutLast(s string) (before, after string, found bool) {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == ' ' {
			return s[:i], s[i+1:], true
		}
	}
	return s, "", false
}

func TestRedeliveryRepeatsNothing(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(b *fakeBus)
	}{
		{"acknowledgement lost", func(b *fakeBus) {
			b.unacked = func(d *jetbus.Delivery) bool { return d.Attempt == 1 }
		}},
		{"answer to the publish lost", func(b *fakeBus) {
			seen := map[string]bool{}
			b.lost = func(e jetbus.Event) bool {
				again := seen[e.ID]
				seen[e.ID] = true
				return e.Topic == processes.DefaultStates && !again
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBus(t)
				p := start(t, b, processes.Options{})
				defer stop(t, p)
				tt.spoil(b)
				for i := range 5 {
					beat(t, b, 1, float64(i))
					time.Sleep(time.Second)
				}
				wantStates(t, b, "1 0 alive", "1 1 alive", "1 2 alive", "1 3 alive", "1 4 alive")
				if got := p.Stats().Repeated; got != 5 {
					t.Errorf("%d repeated, want 5: the test did not redeliver", got)
				}
			})
		})
	}
}

// A heartbeat that failed comes again behind a newer one of its process.
func TestLateBeatGivesNoState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		b.unacked = func(d *jetbus.Delivery) bool { return d.Seq == 1 && d.Attempt < 3 }
		p := start(t, b, processes.Options{})
		defer stop(t, p)
		for i := range 3 {
			beat(t, b, 1, float64(i))
		}
		time.Sleep(5 * time.Second)
		wantStates(t, b, "1 0 alive", "1 1 alive", "1 2 alive")
		if got := p.Stats(); got != (processes.Stats{States: 3, Repeated: 2}) {
			t.Errorf("stats %+v", got)
		}
	})
}

// A restarted projector, which has nothing in memory, refuses what was projected before.
func TestRedeliveryAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		first := start(t, b, processes.Options{})
		beat(t, b, 1, 1)
		beat(t, b, 1, 2)
		synctest.Wait()
		stop(t, first)
		// Another group begins at the beginning: the hardest redelivery there is.
		second := start(t, b, processes.Options{Group: "another"})
		defer stop(t, second)
		synctest.Wait()
		wantStates(t, b, "1 1 alive", "1 2 alive")
		if got := second.Stats(); got != (processes.Stats{Repeated: 2}) {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestTwoProjectors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		b.before = func(e jetbus.Event) {
			if e.Topic == processes.DefaultStates && len(e.ID)%2 == 0 {
				time.Sleep(30 * time.Millisecond) // some publishes are overtaken
			}
		}
		one := start(t, b, processes.Options{})
		two := start(t, b, processes.Options{})
		const beats, senders = 40, 5
		for i := range beats {
			for pid := range senders {
				beat(t, b, pid, float64(i))
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		last := map[string]float64{}
		for _, e := range b.stored(t, processes.DefaultStates) {
			s, err := processes.StateTopic.Decode(e)
			if err != nil {
				t.Fatal(err)
			}
			if have, ok := last[e.Key]; ok && s.CPUPct <= have {
				t.Errorf("state of %s went from %v to %v", e.Key, have, s.CPUPct)
			}
			last[e.Key] = s.CPUPct
		}
		for key, got := range last {
			if got != beats-1 {
				t.Errorf("%s ends with %v, want the last beat %d", key, got, beats-1)
			}
		}
		a, z := one.Stats(), two.Stats()
		if a.States == 0 || z.States == 0 || a.States+z.States+a.Repeated+z.Repeated != beats*senders {
			t.Errorf("%+v and %+v do not share %d beats", a, z, beats*senders)
		}
		time.Sleep(10 * time.Second) // silence, noticed by both
		if got := one.Stats().Stale + two.Stats().Stale; got != senders {
			t.Errorf("%d stale states for %d processes", got, senders)
		}
		stop(t, one, two)
	})
}

// A projector that never got a heartbeat notices the silence of a process that
// another one, now gone, projected: it follows the states.
func TestSurvivorNoticesSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		survivor := start(t, b, processes.Options{Heartbeats: "other.beats"})
		defer stop(t, survivor)
		gone := start(t, b, processes.Options{})
		beat(t, b, 1, 1)
		synctest.Wait()
		stop(t, gone)
		time.Sleep(20 * time.Second)
		wantStates(t, b, "1 1 alive", "1 1 stale")
	})
}

func TestForeignAndBrokenStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		if _, err := b.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: processes.DefaultStates, KeyInSubject: true}); err != nil {
			t.Fatal(err)
		}
		put := func(key, payload string) {
			t.Helper()
			if _, err := b.Publish(t.Context(), jetbus.Event{Topic: processes.DefaultStates, Key: key, Payload: []byte(payload)}); err != nil {
				t.Fatal(err)
			}
		}
		seen := time.Now().UnixMilli()
		put("web1:nginx:1", "no state")
		put("web1:nginx:2", "null")
		put("web1:nginx:3", fmt.Sprintf(`{"processId":"web1:nginx:3","name":"nginx","host":"web1","pid":3,"last_seen_ts":%d,"status":"alive"}`, seen))
		put("web1:nginx:4", fmt.Sprintf(`{"processId":"web1:nginx:4","name":"nginx","host":"web1","pid":4,"last_seen_ts":%d,"status":"alive"}`, seen+3600_000))
		p := start(t, b, processes.Options{})
		defer stop(t, p)
		time.Sleep(time.Second)
		for pid := 1; pid <= 4; pid++ {
			beat(t, b, pid, 1)
		}
		synctest.Wait()
		states := b.stored(t, processes.DefaultStates)
		// 4 was seen later than it beat now: by time, this beat is old.
		if d := cmp.Diff([]string{"1 1 alive", "2 1 alive", "3 1 alive"}, lines(t, states[4:])); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		time.Sleep(20 * time.Second)
		if got := p.Stats().Stale; got != 4 { // 4 as well: the future does not keep it alive
			t.Errorf("%d stale, want 4", got)
		}
	})
}

// The heartbeats were deleted and begin again: their sequences do too.
func TestNewHeartbeatTopicIsNotStaleForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		p := start(t, b, processes.Options{})
		for i := range 5 {
			beat(t, b, 1, float64(i))
		}
		synctest.Wait()
		stop(t, p)
		delete(b.topics, processes.DefaultHeartbeats)
		time.Sleep(time.Second)
		p = start(t, b, processes.Options{})
		defer stop(t, p)
		beat(t, b, 1, 7)
		synctest.Wait()
		wantStates(t, b, "1 0 alive", "1 1 alive", "1 2 alive", "1 3 alive", "1 4 alive", "1 7 alive")
	})
}

func TestInvalidHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		p := start(t, b, processes.Options{})
		defer stop(t, p)
		payloads := []string{``, `null`, `[]`, `{"pid":1}`, `{"pid":"1","name":"a","host":"b"}`, `{"pid":-1,"name":"a","host":"b"}`, "\xff"}
		for _, payload := range payloads {
			if _, err := b.Publish(t.Context(), jetbus.Event{Topic: processes.DefaultHeartbeats, Payload: []byte(payload)}); err != nil {
				t.Fatal(err)
			}
		}
		beat(t, b, 1, 1)
		synctest.Wait()
		wantStates(t, b, "1 1 alive")
		if got := p.Stats(); got != (processes.Stats{States: 1, Invalid: uint64(len(payloads))}) {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		p := start(t, b, processes.Options{Forget: time.Minute})
		defer stop(t, p)
		beat(t, b, 1, 1)
		time.Sleep(50 * time.Second)
		if got := p.Processes(); len(got) != 1 || got[0].Status != processes.Stale {
			t.Fatalf("processes %+v, want one that is stale", got)
		}
		time.Sleep(20 * time.Second)
		if got := p.Processes(); len(got) != 0 {
			t.Fatalf("processes %+v, want none", got)
		}
		beat(t, b, 1, 2) // not in memory, but in the topic
		synctest.Wait()
		wantStates(t, b, "1 1 alive", "1 1 stale", "1 2 alive")
	})
}

func TestStartRefuses(t *testing.T) {
	b := newFakeBus()
	for _, name := range []string{"plain", "beats"} {
		if _, err := b.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		o    processes.Options
		want error
	}{
		{processes.Options{Heartbeats: "Bad"}, jetbus.ErrInvalidTopic},
		{processes.Options{States: "a..b"}, jetbus.ErrInvalidTopic},
		{processes.Options{Group: "a b"}, jetbus.ErrInvalidGroup},
		{processes.Options{Heartbeats: "a", States: "a"}, jetbus.ErrInvalidOption},
		{processes.Options{StaleAfter: -1}, jetbus.ErrInvalidOption},
		{processes.Options{Forget: time.Second}, jetbus.ErrInvalidOption},
		{processes.Options{States: "plain"}, jetbus.ErrNeedsKeySubject},
	}
	for _, tt := range tests {
		if _, err := processes.Start(t.Context(), b, tt.o); !errors.Is(err, tt.want) {
			t.Errorf("%+v: %v, want %v", tt.o, err, tt.want)
		}
	}
}

func TestContextEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(t)
		ctx, cancel := context.WithCancel(t.Context())
		p, err := processes.Start(ctx, b, processes.Options{})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		<-p.Done()
		stop(t, p)
		stop(t, p)
	})
}

func TestHeartbeatJSON(t *testing.T) {
	got, err := json.Marshal(processes.Heartbeat{PID: 1234, Name: "stt", Host: "local", CPUPct: 1.5, MemMB: 200, SID: "s"})
	if want := `{"pid":1234,"name":"stt","host":"local","cpu_pct":1.5,"mem_mb":200,"sid":"s"}`; err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}
