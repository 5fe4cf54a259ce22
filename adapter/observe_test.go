package adapter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// watched is what an observer was told of a group, in lines.
type watched struct {
	mu    sync.Mutex
	lines []string
}

func (w *watched) observe(o jetbus.Observation) {
	if o.Group != "g" || o.Topic != "t" || o.Kind == jetbus.Polled || o.Kind == jetbus.Extended {
		return
	}
	line := fmt.Sprintf("%s %d", o.Kind, o.Attempt)
	if o.Count > 0 {
		line += fmt.Sprintf(" count %d", o.Count)
	}
	if o.Kind == jetbus.Snoozed {
		line += " for " + o.Duration.String()
	}
	if o.Reason != "" {
		line += ": " + o.Reason
	}
	if o.Err != nil {
		text, _, _ := strings.Cut(o.Err.Error(), ":")
		line += " (" + text + ")"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, line)
}

// has waits until the observer was told that many lines, and returns them.
func (w *watched) has(t *testing.T, n int) []string {
	t.Helper()
	for deadline := time.Now().Add(time.Hour); ; time.Sleep(time.Second) { // of the bubble
		w.mu.Lock()
		lines := slices.Clone(w.lines)
		w.mu.Unlock()
		if len(lines) >= n || time.Now().After(deadline) {
			return lines
		}
	}
}

var errCase = errors.New("the case's")

// TestObserved tells for each way in which a delivery can end what the observer
// hears, and why the event is then delivered again.
func TestObserved(t *testing.T) {
	second := jetbus.SubscribeOptions{Backoff: jetbus.Backoff{Min: time.Second, NoJitter: true}, AckTimeout: 3 * time.Second, MaxLease: 6 * time.Second, MaxAttempts: 2}
	first := func(err error) jetbus.Handler {
		n := 0
		return func(context.Context, *jetbus.Delivery) error {
			if n++; n == 1 {
				return err
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		handler jetbus.Handler
		then    func(r *rig, bus *adapter.Bus) // after the event was published
		want    []string
	}{
		"success": {first(nil), nil, []string{"delivered 1", "acked 1"}},
		"failure": {first(errCase), nil, []string{
			"delivered 1", "nacked 1 (the case's)", "delivered 2: attempt 1 failed: the case's", "acked 2",
		}},
		"refusal by hand": {func(ctx context.Context, d *jetbus.Delivery) error {
			if d.Attempt == 1 {
				return d.Nack(ctx, jetbus.NackOptions{Reason: "not now"})
			}
			return nil
		}, nil, []string{"delivered 1", "nacked 1 (not now)", "delivered 2: attempt 1 failed: not now", "acked 2"}},
		"a long wait": {first(jetbus.RetryIn(5*time.Minute, errCase)), nil, []string{
			"delivered 1", "nacked 1 (the case's)", "delivered 2: attempt 1 failed: the case's", "acked 2",
		}},
		"snooze": {first(jetbus.Snooze(4 * time.Second)), nil, []string{
			"delivered 1", "snoozed 1 for 4s", "delivered 1: put off or given back", "acked 1",
		}},
		"drop": {first(jetbus.Drop(errCase)), nil, []string{"delivered 1", "acked 1: dropped (the case's)"}},
		"give back": {func(ctx context.Context, d *jetbus.Delivery) error {
			if !d.Redelivered {
				return d.GiveBack(ctx)
			}
			return nil
		}, nil, []string{"delivered 1", "given_back 1: given back by its holder", "delivered 1: put off or given back", "acked 1"}},
		"overrun": {func(ctx context.Context, d *jetbus.Delivery) error {
			if d.Attempt == 1 {
				<-ctx.Done()
			}
			return nil
		}, nil, []string{
			"delivered 1", "lease_lost 1: it was not settled in time", "delivered 2: attempt 1 failed: lease expired", "acked 2",
		}},
		"rejection": {first(jetbus.RejectAs(jetbus.DeadSchema, errCase)), nil, []string{"delivered 1", "dead_lettered 1 count 1: schema (the case's)"}},
		"last attempt": {func(context.Context, *jetbus.Delivery) error { return errCase }, nil, []string{
			"delivered 1", "nacked 1 (the case's)", "delivered 2: attempt 1 failed: the case's", "dead_lettered 2 count 2: max_attempts (the case's)",
		}},
		"replay": {first(jetbus.Reject(errCase)), func(r *rig, bus *adapter.Bus) {
			time.Sleep(time.Second)
			_, err := jetbus.Replay(r.Context(), bus, jetbus.ReplayOptions{DeadLetterQuery: jetbus.DeadLetterQuery{Topic: "t"}})
			r.OK(err)
		}, []string{"delivered 1", "dead_lettered 1 count 1: rejected (the case's)", "replayed 0 count 1", "delivered 1: replay", "acked 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.Ensure(jetbus.TopicConfig{Name: "t"})
				w := &watched{}
				_, bus := r.Open(adapter.Config{Observer: w.observe})
				must(bus.Subscribe(r.Context(), "t", "g", c.handler, second))(r.T)
				r.Publish("t", "k")
				if c.then != nil {
					c.then(r, bus)
				}
				got := w.has(r.T, len(c.want))
				if c.then != nil { // on two goroutines
					slices.Sort(got)
					slices.Sort(c.want)
				}
				if !slices.Equal(got, c.want) {
					r.Errorf("the observer was told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
				}
			})
		})
	}
}

// A member that dies, and one that has no room for a dead letter.
func TestObservedByAnother(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		dies, first := r.Open(adapter.Config{})
		hold := func(ctx context.Context, _ *jetbus.Delivery) error { <-ctx.Done(); return ctx.Err() }
		o := jetbus.SubscribeOptions{AckTimeout: 3 * time.Second}
		must(first.Subscribe(r.Context(), "t", "g", hold, o))(r.T)
		r.Publish("t", "k")
		time.Sleep(time.Second)
		dies.Close()
		w := &watched{}
		_, bus := r.Open(adapter.Config{Observer: w.observe})
		must(bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return jetbus.Reject(errCase) }, o))(r.T)
		config := must(r.JS.Stream(r.Context(), "EV_DLQ"))(r.T).CachedInfo().Config
		room := config.MaxBytes
		set := func(bytes int64) {
			config.MaxBytes = bytes
			must(r.JS.UpdateStream(r.Context(), config))(r.T)
		}
		set(1)
		got := w.has(r.T, 2)
		if got[0] != "delivered 1: its member died or lost its connection" || !strings.HasPrefix(got[1], "dead_fail 1 (publish dlq.t ") {
			r.Errorf("the observer was told %q", got)
		}
		set(room)
		time.Sleep(time.Hour / 2)
		if got := w.has(r.T, 3); got[len(got)-1] != "dead_lettered 0 count 1: rejected (the case's)" {
			r.Errorf("the observer was told %q", got)
		}
	})
}

// Whoever asks why an event is held for so long hears of each extension of its lease, under its
// own topic, and whether its holder asked for it.
func TestExtensionsObserved(t *testing.T) {
	inBubble(t, func(r *rig) {
		topics := []string{"t", "u"}
		var mu sync.Mutex
		heard := map[string]int{}
		_, bus := r.Open(adapter.Config{Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.Extended {
				mu.Lock()
				defer mu.Unlock()
				heard[fmt.Sprintf("%s %s %d %q", o.Topic, o.ID, o.Attempt, o.Reason)]++
			}
		}})
		for _, topic := range topics {
			r.Ensure(jetbus.TopicConfig{Name: topic})
		}
		done := make(chan struct{}, len(topics))
		sub := must(bus.Subscribe(r.Context(), "t", "g", func(ctx context.Context, d *jetbus.Delivery) error {
			time.Sleep(10 * time.Second) // of the bubble
			if d.Topic == "u" {
				r.OK(d.Extend(ctx, time.Minute))
			}
			done <- struct{}{}
			return nil
		}, jetbus.SubscribeOptions{Topics: []string{"u"}, AckTimeout: 9 * time.Second, Concurrency: 2}))(r.T)
		for _, topic := range topics {
			must(r.Bus.Publish(r.Context(), jetbus.Event{Topic: topic, ID: "of-" + topic}))(r.T)
		}
		for range topics {
			<-done
		}
		r.OK(sub.Stop(r.Context()))
		mu.Lock()
		defer mu.Unlock()
		for _, want := range []string{`t of-t 1 ""`, `u of-u 1 ""`} {
			if n := heard[want]; n < 2 || n > 4 {
				r.Errorf("%s was told %d times in 10 s, want each third of 9 s: %v", want, n, heard)
			}
		}
		r.Equal("by hand", heard[`u of-u 1 "extended by its holder"`], 1)
		r.Equal("kinds", len(heard), 3)
	})
}

// What waits for a handler is extended as well: its position is known, its id is not yet.
func TestExtensionsOfWhatWaitsObserved(t *testing.T) {
	inBubble(t, func(r *rig) {
		const slow, last = 40, 41
		var mu sync.Mutex
		heard := map[string]int{}
		_, bus := r.Open(adapter.Config{Observer: func(o jetbus.Observation) {
			if o.Kind == jetbus.Extended {
				mu.Lock()
				defer mu.Unlock()
				heard[fmt.Sprintf("%s %d %q %d", o.Topic, o.Seq, o.ID, o.Attempt)]++
			}
		}})
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("t", last), jetbus.BatchOptions{}))(r.T)
		done := make(chan string, last)
		sub := must(bus.Subscribe(r.Context(), "t", "g", func(_ context.Context, d *jetbus.Delivery) error {
			if d.Seq == slow {
				time.Sleep(10 * time.Second) // of the bubble
			}
			done <- d.ID
			return nil
		}, jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: 9 * time.Second}))(r.T)
		var id string
		for n := range last {
			if got := <-done; n+1 == slow {
				id = got
			}
		}
		r.OK(sub.Stop(r.Context()))
		mu.Lock()
		defer mu.Unlock()
		for _, want := range []string{fmt.Sprintf("t %d %q 1", slow, id), fmt.Sprintf(`t %d "" 0`, last)} {
			if n := heard[want]; n < 2 || n > 4 {
				r.Errorf("%s was told %d times in 10 s, want each third of 9 s: %v", want, n, heard)
			}
		}
		r.Equal("kinds", len(heard), 2)
	})
}

// TestObservedVersion: observations of published and handled events have the schema version that the event states. A
// batch has one observation for each version.
func TestObservedVersion(t *testing.T) {
	inBubble(t, func(r *rig) {
		var mu sync.Mutex
		got := map[string]int{}
		_, bus := r.Open(adapter.Config{Observer: func(o jetbus.Observation) {
			if o.Topic == "t" && o.Kind != jetbus.Polled && o.Kind != jetbus.Extended {
				mu.Lock()
				defer mu.Unlock()
				got[fmt.Sprintf("%s %q", o.Kind, o.Version)] += max(o.Count, 1)
			}
		}})
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		event := func(key, version string) jetbus.Event {
			e := adaptertest.Event("t", key)
			if e.Headers = map[string]string{"x-other": "9"}; version != "" {
				e.Headers[jetbus.HeaderSchemaVersion] = version
			}
			return e
		}
		for _, e := range []jetbus.Event{event("good", "1"), event("good", ""), event("reject", "2")} {
			must(bus.Publish(r.Context(), e))(r.T)
		}
		for _, atomic := range []bool{false, true} {
			must(bus.PublishBatch(r.Context(), []jetbus.Event{event("fail", "2"), event("good", "1"), event("good", "2"), event("good", "")}, jetbus.BatchOptions{Atomic: atomic}))(r.T)
		}
		sub := must(bus.Subscribe(r.Context(), "t", "g", func(_ context.Context, d *jetbus.Delivery) error {
			switch d.Key {
			case "reject":
				return jetbus.Reject(errCase)
			case "fail":
				return errCase
			}
			return nil
		}, jetbus.SubscribeOptions{From: jetbus.Earliest(), MaxAttempts: 2, Backoff: jetbus.Backoff{Min: time.Second, NoJitter: true}}))(r.T)
		r.Within(time.Minute, "all is handled", func() bool { return sub.Stats().Acked == 8 && sub.Stats().DeadLetters == 3 })
		r.OK(sub.Stop(r.Context()))
		must(bus.Publish(r.Context(), event("received", "3")))(r.T)
		received := must(bus.Receive(r.Context(), "t", "h", jetbus.ReceiveOptions{From: jetbus.AfterSeq(11)}))(r.T)
		r.OK(received[0].Ack(r.Context()))
		mu.Lock()
		defer mu.Unlock()
		r.Equal("observations", got, map[string]int{
			`published "1"`: 3, `published ""`: 3, `published "2"`: 5, `published "3"`: 1,
			`delivered "1"`: 3, `delivered ""`: 3, `delivered "2"`: 7, `nacked "2"`: 2, `dead_lettered "2"`: 5,
			`acked "1"`: 3, `acked ""`: 3, `acked "2"`: 2, `acked "3"`: 1,
		})
	})
}
