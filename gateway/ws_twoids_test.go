package gateway_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestSettleOfTwo settles by an id that two of the events have that are held.
func TestSettleOfTwo(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "short", DuplicateWindow: time.Second})
		c := r.dial()
		c.next(frame.Hello)
		c.ask(`{"op":"SUBSCRIBE","sub":"s","topic":"short","group":"g","opts":{"from":"earliest"},"corr":"s"}`, frame.OK)
		var held []frame.Message
		for range 2 {
			if _, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "short", ID: "same"}); err != nil {
				r.Fatal(err)
			}
			held = append(held, c.next(frame.Event))
			time.Sleep(5 * time.Second)
		}
		const settle = `{"op":"ACK","topic":"short","group":"g","id":"same","corr":"a"}`
		if m := c.ask(settle, frame.Err); m.Code != "conflict" {
			r.Errorf("%+v", m)
		}
		c.ask(fmt.Sprintf(`{"op":"ACK","ack_id":%q,"corr":"b"}`, held[1].AckID), frame.OK)
		if m := c.ask(settle, frame.OK); m.Applied == nil || !*m.Applied {
			r.Errorf("%+v", m)
		}
	})
}

// overtakenBus stores the last event of a batch only, as where the connection breaks under it.
type overtakenBus struct{ jetbus.Backend }

// PublishBatch implements jetbus.Backend.
func (b overtakenBus) PublishBatch(ctx context.Context, events []jetbus.Event, _ jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	receipts := make([]jetbus.Receipt, len(events))
	failed := &jetbus.BatchError{Total: len(events)}
	for i, e := range events {
		if i < len(events)-1 {
			failed.Failed = append(failed.Failed, &jetbus.PublishError{Event: e, Stored: jetbus.StoredNo, Err: jetbus.ErrOvertaken})
			continue
		}
		receipt, err := b.Publish(ctx, e)
		if receipts[i] = receipt; err != nil {
			return receipts, err
		}
	}
	if len(failed.Failed) == 0 {
		return receipts, nil
	}
	return receipts, failed
}

// TestPublishesOvertaken: what a batch has given up for the sake of an order is not stored
// behind the gateway's back.
func TestPublishesOvertaken(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		bus := &stuckBus{overtakenBus{r.bus}, make(chan struct{})}
		r.serveBus(bus, gateway.Config{})
		c := r.dial()
		c.next(frame.Hello)
		const n = 5
		for i := range n { // the first one waits by itself, and the others behind it
			c.send(fmt.Sprintf(`{"op":"PUBLISH","topic":"orders","key":"k","payload":%d,"corr":"%d"}`, i, i))
		}
		time.Sleep(time.Second)
		close(bus.may)
		answers := map[string]string{}
		for range n {
			m := c.parsed(c.text())
			answers[m.Corr] = m.Op + m.Code
		}
		stored, last := 0, ""
		for e, err := range r.bus.Scan(r.Context(), "orders", jetbus.ScanQuery{}) {
			if err != nil {
				r.Fatal(err)
			}
			if string(e.Payload) < last {
				r.Errorf("%s is behind %s", e.Payload, last)
			}
			stored, last = stored+1, string(e.Payload)
		}
		ok := 0
		for corr, answer := range answers {
			switch answer {
			case "OK":
				ok++
			case "ERRconflict":
			default:
				r.Errorf("%s: %s", corr, answer)
			}
		}
		if ok != stored || ok == n {
			r.Errorf("%d are stored, answers: %v", stored, answers)
		}
	})
}
