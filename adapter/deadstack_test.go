package adapter_test

import (
	"bytes"
	"context"
	"errors"
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

// Near the server's limit the stack is cut, then left out: a dead letter with a stack has the same payload and error
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
			case n > 0 && bytes.HasSuffix([]byte(with.Stack), []byte("\n...")):
				seen["cut"]++
			case n == 0:
				seen["none"]++
			default:
				r.Errorf("a payload of %d bytes: a stack of %d", size, n)
			}
		}
		if len(seen) != 4 {
			r.Errorf("stacks %v", seen)
		}
	})
}
