package gateway_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// TestHostile13Crowd has twenty readers that stop, and one that reads on: what waits for the
// twenty is bounded, and the one gets everything.
func TestHostile13Crowd(t *testing.T) {
	const each, events, size = 256 << 10, 800, 16 << 10 // 12 MB, for each of the twenty
	inBubble(t, gateway.Config{Limits: gateway.Limits{QueueBytes: each}}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "orders", MaxBytes: 4 << 20, Shrink: true})
		var slow []*wsClient
		for range 20 {
			c, _ := r.reader(``)
			c.next(frame.CaughtUp)
			c.stall()
			slow = append(slow, c)
		}
		fast, _ := r.reader(``)
		fast.next(frame.CaughtUp)
		r.bulk = `"` + strings.Repeat("x", size) + `"`
		payload := []byte(r.bulk)
		send := func(batches int) (most int64) {
			for range batches {
				var list []jetbus.Event
				for range 100 {
					list = append(list, jetbus.Event{Topic: "orders", Payload: payload})
				}
				if _, err := r.bus.PublishBatch(r.Context(), list, jetbus.BatchOptions{}); err != nil {
					r.Fatal(err)
				}
				for range 100 {
					fast.next(frame.Event)
				}
				most = max(most, heap())
			}
			return most
		}
		// What is read ahead for the twenty, and what the broker keeps in memory, is there soon, and
		// is then all there is.
		soon := send(events / 200)
		if later := send(events / 200); later > soon+16<<20 {
			r.Errorf("memory grew from %d to %d MiB", soon>>20, later>>20)
		}
		time.Sleep(12 * time.Second)
		for _, c := range slow {
			c.unstall()
			if code := c.closed(); code != frame.CloseSlow && code != -1 { // -1: cut within a frame
				r.Errorf("closed with %d", code)
			}
		}
		r.publish("orders", "1")
		fast.payloads(1)
	})
}

// stuckBus does not store events until it may.
type stuckBus struct {
	jetbus.Backend
	may chan struct{}
}

// Publish implements jetbus.Backend.
func (b *stuckBus) Publish(ctx context.Context, e jetbus.Event, o ...jetbus.PublishOptions) (jetbus.Receipt, error) {
	<-b.may
	return b.Backend.Publish(ctx, e, o...)
}

// PublishBatch implements jetbus.Backend.
func (b *stuckBus) PublishBatch(ctx context.Context, events []jetbus.Event, o jetbus.BatchOptions) ([]jetbus.Receipt, error) {
	<-b.may
	return b.Backend.PublishBatch(ctx, events, o)
}

// TestHostile13Publishes publishes on while the broker stores nothing: few of the frames are
// taken in, however their bytes are spread.
func TestHostile13Publishes(t *testing.T) {
	const frames = 10
	big := strings.Repeat("x", 500<<10)
	for name, text := range map[string]string{
		"payload": `{"op":"PUBLISH","topic":"orders","payload":"` + big + `"}`,
		"base64":  `{"op":"PUBLISH","topic":"orders","payload_base64":"` + base64.StdEncoding.EncodeToString([]byte(big)) + `"}`,
		"batch":   `{"op":"PUBLISH_BATCH","events":[{"topic":"orders","payload_base64":"` + base64.StdEncoding.EncodeToString([]byte(big)) + `"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, gateway.Config{Limits: gateway.Limits{Ping: time.Hour}}, func(r *wsRig) {
				bus := &stuckBus{r.bus, make(chan struct{})}
				r.serveBus(bus, gateway.Config{Limits: gateway.Limits{Ping: time.Hour}})
				c := r.dial()
				c.next(frame.Hello)
				var taken atomic.Int64
				var sending sync.WaitGroup
				sending.Go(func() {
					for range frames {
						if c.ws.Write(context.Background(), websocket.MessageText, []byte(text)) != nil {
							return
						}
						taken.Add(1)
					}
				})
				time.Sleep(time.Minute)
				if n := taken.Load(); n < 1 || n > 6 { // 1 MiB waits, and the frame behind it
					r.Errorf("%d frames of 500 KiB and more were taken in", n)
				}
				close(bus.may)
				for range frames { // what waited for longer than the broker may take was refused
					if m := c.parsed(c.text()); m.Op != frame.OK && m.Code != "broker_unavailable" {
						r.Errorf("%+v", m)
					}
				}
				sending.Wait()
			})
		})
	}
}

// TestHostile19Storm connects a thousand times, fifty at once, as clients do whose gateway was
// away: a member and a reader that were there before notice nothing, and nothing is left behind.
func TestHostile19Storm(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		reader, _ := r.reader(``)
		reader.next(frame.CaughtUp)
		member := r.member(``)
		time.Sleep(time.Second)
		calm := runtime.NumGoroutine()
		before := heap()
		for round := range 20 {
			var storm sync.WaitGroup
			clients := make([]*wsClient, 50)
			for i := range clients {
				clients[i] = r.dial()
			}
			for i, c := range clients {
				storm.Go(func() {
					switch ctx := context.Background(); i % 3 {
					case 0:
						_ = c.ws.Write(ctx, websocket.MessageText, []byte(`{"op":"SUBSCRIBE","topic":"orders"}`))
					case 1:
						_ = c.ws.Write(ctx, websocket.MessageText, []byte(`{"op":"PING"}`))
					}
					_ = c.ws.CloseNow()
				})
			}
			e := r.publish("orders", fmt.Sprint(round))[0]
			if got := reader.next(frame.Event); got.Event.ID != e.ID {
				r.Errorf("the reader got %+v", got.Event)
			}
			got := member.next(frame.Event)
			if got.Event.ID != e.ID || got.Ctx.Attempt != 1 {
				r.Errorf("the member got %+v", got)
			}
			member.ask(`{"op":"ACK","ack_id":"`+got.AckID+`","corr":"a"}`, frame.OK)
			storm.Wait()
		}
		time.Sleep(time.Minute)
		if left := runtime.NumGoroutine(); left > calm+5 {
			r.Errorf("%d goroutines, %d before", left, calm)
		}
		if grown := heap() - before; grown > 16<<20 {
			r.Errorf("memory grew by %d KiB", grown>>10)
		}
	})
}
