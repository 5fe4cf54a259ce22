package adapter_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// deep panics with a stack of more than 8 KiB.
func deep(n int) {
	if n == 0 {
		panic("odd")
	}
	deep(n - 1)
}

// Near the server's limit the stack is left out: a dead letter with a stack has the same payload and error
// as one without. A dead letter without its payload has room for the stack.
func TestDeadLetterStackGivesWayToPayload(t *testing.T) {
	const limit = 16 << 10
	bustest.Run(t, func(t *testing.T) {
		r := &rig{adaptertest.On(t, bustest.Start(t, embedded.Config{MaxPayload: limit}))}
		r.Ensure(jetbus.TopicConfig{Name: "orders"})
		for group, h := range map[string]jetbus.Handler{
			"panic": func(context.Context, *jetbus.Delivery) error { deep(90); return nil },
			"fails": func(context.Context, *jetbus.Delivery) error { return errors.New("handler panicked: odd") },
		} {
			must(r.Bus.Subscribe(r.Context(), "orders", group, h, jetbus.SubscribeOptions{MaxAttempts: 1}))(r.T)
		}
		seen := map[string]int{}
		for size := 4 << 10; size < limit-600; size += 100 {
			e := must(r.Bus.Publish(r.Context(), jetbus.Event{Topic: "orders", Payload: bytes.Repeat([]byte("x"), size)}))(r.T).Event
			var with, without *jetbus.DeadLetter
			r.Within(time.Minute, "two dead letters", func() bool {
				for d, err := range jetbus.DeadLetters(r.Context(), r.Bus, jetbus.DeadLetterQuery{Topic: "orders", ID: e.ID}) {
					switch {
					case errors.Is(err, jetbus.ErrNoDeadLetters):
					case err != nil:
						r.Fatal(err)
					case d.Group == "panic":
						with = &d
					default:
						without = &d
					}
				}
				return with != nil && without != nil
			})
			if with.Truncated != without.Truncated || !bytes.Equal(with.Event.Payload, without.Event.Payload) || with.Error != without.Error || without.Stack != "" {
				r.Errorf("a payload of %d bytes: %d with a stack, %d without", size, len(with.Event.Payload), len(without.Event.Payload))
			}
			switch n := len(with.Stack); {
			case with.Truncated && n > 7<<10:
				seen["truncated"]++
			case n > 7<<10:
				seen["whole"]++
			case n == 0:
				seen["none"]++
			default:
				r.Errorf("a payload of %d bytes: a stack of %d", size, n)
			}
		}
		if len(seen) != 3 {
			r.Errorf("stacks %v", seen)
		}
	})
}

// The record of an event whose dead letter has no room is small: all topics and groups share the bucket of records.
func TestLateDeadLetterHasNoStack(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { deep(90); return nil }, jetbus.SubscribeOptions{MaxAttempts: 1}))(r.T)
		r.dlqFull(true)
		r.Publish("t", "a")
		time.Sleep(time.Minute)
		records := must(r.JS.Stream(r.Context(), "KV_JETBUS_ATTEMPTS"))(r.T).CachedInfo().State
		if records.Msgs == 0 || records.Bytes > 1<<10 { // one is the probe of the bucket
			r.Errorf("%d records of %d bytes", records.Msgs, records.Bytes)
		}
		r.dlqFull(false)
		time.Sleep(10 * time.Minute)
		d := r.dead("t", 1)[0]
		r.Equal("error, stack", []any{d.Error, d.Stack}, []any{"handler panicked: odd", ""})
	})
}

// countedError counts how often its stack is taken.
type countedError struct{ taken atomic.Int64 }

func (*countedError) Error() string { return "odd" }

func (e *countedError) StackTrace() string {
	e.taken.Add(1)
	return "main.f"
}

// Only a dead letter needs the stack of a failure.
func TestStackIsTakenForDeadLettersOnly(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		var snoozed, dropped, retried countedError
		must(r.Bus.Subscribe(r.Context(), "t", "g", func(_ context.Context, d *jetbus.Delivery) error {
			switch {
			case d.Key == "retried":
				return &retried
			case d.Key == "dropped":
				return jetbus.Drop(&dropped)
			case !d.Redelivered:
				return errors.Join(jetbus.Snooze(time.Second), &snoozed)
			}
			return nil
		}, jetbus.SubscribeOptions{MaxAttempts: 3}))(r.T)
		r.Publish("t", "snoozed", "dropped", "retried")
		time.Sleep(time.Minute)
		d := r.dead("t", 1)[0]
		r.Equal("stack, stacks taken", []any{d.Stack, retried.taken.Load(), snoozed.taken.Load(), dropped.taken.Load()}, []any{"main.f", 1, 0, 0})
	})
}
