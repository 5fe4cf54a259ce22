package gateway_test

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// reader subscribes to orders without a group.
func (r *wsRig) reader(opts string) (*wsClient, frame.Message) {
	r.Helper()
	c := r.dial()
	c.next(frame.Hello)
	return c, c.ask(`{"op":"SUBSCRIBE","topic":"orders","corr":"s","opts":{`+opts+`}}`, frame.OK)
}

// payloads reads that many events.
func (c *wsClient) payloads(n int) (out []string, last frame.Message) {
	c.r.Helper()
	for range n {
		last = c.next(frame.Event)
		out = append(out, string(last.Event.Payload))
	}
	return out, last
}

func TestReader(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1", "2", "3")
		c, _ := r.reader(`"from":"earliest"`)
		got, last := c.payloads(3)
		if fmt.Sprint(got) != "[1 2 3]" || last.Offset == "" || last.AckID != "" {
			r.Errorf("%v, %+v", got, last)
		}
		if m := c.next(frame.CaughtUp); m.Offset != last.Offset || m.Seq != 3 {
			r.Errorf("%+v", m)
		}
		r.publish("orders", "4")
		got, four := c.payloads(1)
		if fmt.Sprint(got) != "[4]" {
			r.Errorf("%v", got)
		}
		_ = c.ws.CloseNow()
		r.publish("orders", "5", "6")

		c, ok := r.reader(`"from":"offset","offset":"` + four.Offset + `"`)
		if !*ok.Recovered {
			r.Errorf("%+v", ok)
		}
		if got, _ := c.payloads(2); fmt.Sprint(got) != "[5 6]" {
			r.Errorf("%v", got)
		}
		c.next(frame.CaughtUp)

		c, _ = r.reader(``) // what comes from now on
		c.next(frame.CaughtUp)
		r.publish("orders", "7")
		if got, _ := c.payloads(1); fmt.Sprint(got) != "[7]" {
			r.Errorf("%v", got)
		}
		c, _ = r.reader(`"from":"afterSeq","afterSeq":6,"filter":{"key":"x"}`)
		c.next(frame.CaughtUp)
	})
}

func TestReaderOfTopics(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "bills"})
		r.publish("orders", "1", "2")
		r.publish("bills", "3")
		c := r.dial()
		c.next(frame.Hello)
		c.ask(`{"op":"SUBSCRIBE","topics":["orders","bills"],"opts":{"from":"earliest"}}`, frame.OK)
		offsets := map[string]string{}
		for range 3 {
			m := c.next(frame.Event)
			offsets[m.Topic] = m.Offset
		}
		c.next(frame.CaughtUp)
		c.next(frame.CaughtUp)
		r.publish("bills", "4")
		c.next(frame.Event)
		again := r.dial()
		again.next(frame.Hello)
		again.ask(fmt.Sprintf(`{"op":"SUBSCRIBE","topics":["orders","bills"],"opts":{"from":"offset","offsets":[%q,%q]}}`, offsets["bills"], offsets["orders"]), frame.OK)
		if got, _ := again.payloads(1); fmt.Sprint(got) != "[4]" {
			r.Errorf("%v", got)
		}
	})
}

// TestReaderOfTopicMadeAnew goes on with a position of a topic that is not there any more.
func TestReaderOfTopicMadeAnew(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1", "2")
		c, _ := r.reader(`"from":"earliest"`)
		_, last := c.payloads(2)
		c.next(frame.CaughtUp)
		if err := r.bus.DeleteTopic(r.Context(), "orders"); err != nil {
			r.Fatal(err)
		}
		time.Sleep(time.Second)
		r.ensure(jetbus.TopicConfig{Name: "orders"})
		r.publish("orders", "new")
		if m := c.next(frame.SubClosed); m.Code != "offset_gone" && m.Code != "unknown_topic" {
			r.Errorf("%+v", m)
		}
		c, ok := r.reader(`"offset":"` + last.Offset + `"`)
		if *ok.Recovered {
			r.Errorf("%+v", ok)
		}
		if m := c.next(frame.Gap); m.Reason != "reset" {
			r.Errorf("%+v", m)
		}
		if e := c.next(frame.Event); e.Event.Seq != 1 {
			r.Errorf("%+v", e)
		}
	})
}

// TestReaderOfTopicsMadeAnew goes on with positions of two topics, one of which was made anew:
// that one is read from its beginning, and the other goes on.
func TestReaderOfTopicsMadeAnew(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "bills"})
		r.publish("orders", "1", "2")
		r.publish("bills", "3")
		c := r.dial()
		c.next(frame.Hello)
		c.ask(`{"op":"SUBSCRIBE","topics":["orders","bills"],"opts":{"from":"earliest"}}`, frame.OK)
		offsets := map[string]string{}
		for range 3 {
			m := c.next(frame.Event)
			offsets[m.Topic] = m.Offset
		}
		_ = c.ws.CloseNow()
		if err := r.bus.DeleteTopic(r.Context(), "bills"); err != nil {
			r.Fatal(err)
		}
		time.Sleep(time.Second)
		r.ensure(jetbus.TopicConfig{Name: "bills"})
		r.publish("bills", "4")
		for _, order := range [][2]string{{"orders", "bills"}, {"bills", "orders"}} {
			c := r.dial()
			c.next(frame.Hello)
			ok := c.ask(fmt.Sprintf(`{"op":"SUBSCRIBE","topics":["orders","bills"],"opts":{"offsets":[%q,%q]}}`, offsets[order[0]], offsets[order[1]]), frame.OK)
			if *ok.Recovered {
				r.Errorf("%+v", ok)
			}
			if m := c.next(frame.Gap); m.Reason != "reset" || m.Topic != "bills" {
				r.Errorf("%+v", m)
			}
			if got, _ := c.payloads(1); fmt.Sprint(got) != "[4]" {
				r.Errorf("%v", got)
			}
			c.next(frame.CaughtUp)
		}
	})
}

// TestRetentionPassesReader goes on behind an event that the topic has lost, with more.
func TestRetentionPassesReader(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "orders", MaxEvents: 3, Shrink: true})
		first := r.publish("orders", "1")
		c, _ := r.reader(`"from":"earliest"`)
		_, last := c.payloads(1)
		_ = c.ws.CloseNow()
		r.publish("orders", "2", "3", "4", "5", "6", "7")
		c, ok := r.reader(`"offset":"` + last.Offset + `"`)
		if *ok.Recovered {
			r.Errorf("%+v", ok)
		}
		if m := c.next(frame.Gap); m.Reason != "retention" || m.From != first[0].Seq+1 || m.To != 4 {
			r.Errorf("%+v", m)
		}
		if got, _ := c.payloads(3); fmt.Sprint(got) != "[5 6 7]" {
			r.Errorf("%v", got)
		}
		c.next(frame.CaughtUp)
	})
}

// TestRestart stops the broker under a reader and a member: each event comes to the reader
// once and in order.
func TestRestart(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		c, _ := r.reader(``)
		c.next(frame.CaughtUp)
		r.publish("orders", "1", "2")
		c.payloads(2)
		m := r.member(``)
		if err := r.broker.Restart(r.Context()); err != nil {
			r.Fatal(err)
		}
		r.publish("orders", "3", "4")
		if got, _ := c.payloads(2); fmt.Sprint(got) != "[3 4]" {
			r.Errorf("%v", got)
		}
		first, second := m.next(frame.Event), m.next(frame.Event)
		m.ask(`{"op":"ACKS","ack":["`+first.AckID+`","`+second.AckID+`"],"corr":"a"}`, frame.OK)
		c.quiet(time.Minute)
		m.quiet(time.Minute)
	})
}

// TestConflate lets a reader fall behind who wants the last event of each key then.
func TestConflate(t *testing.T) {
	inBubble(t, gateway.Config{Limits: gateway.Limits{QueueBytes: 4 << 10, WriteTimeout: time.Hour, Ping: time.Hour}}, func(r *wsRig) {
		c := r.dial()
		c.next(frame.Hello)
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","opts":{"slow":"conflate"}}`, frame.OK)
		c.next(frame.CaughtUp)
		c.stall()
		const n = 200
		for i := range n {
			if _, err := r.bus.Publish(r.Context(), jetbus.Event{Topic: "orders", Key: fmt.Sprint(i % 2), Payload: fmt.Appendf(nil, "%d", i)}); err != nil {
				r.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		c.unstall()
		last, gaps, events := map[string]string{}, 0, 0
		for last["0"] != "198" || last["1"] != "199" {
			m, err := frame.ParseMessage([]byte(c.text()))
			if err != nil {
				r.Fatal(err)
			}
			switch m.Op {
			case frame.Event:
				events++
				last[m.Event.Key] = string(m.Event.Payload)
			case frame.Gap:
				gaps++
				if m.Reason != "conflated" {
					r.Errorf("%+v", m)
				}
			}
		}
		if gaps == 0 || events > n/2 {
			r.Errorf("%d gaps, %d events", gaps, events)
		}
	})
}

// TestPositionNotReached: a position that the topic has not reached is no position. It would
// skip what comes, for the client and for those who share its end of the topic.
func TestPositionNotReached(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.publish("orders", "1", "2")
		other, _ := r.reader(``)
		other.next(frame.CaughtUp)
		c := r.dial()
		c.next(frame.Hello)
		if m := c.ask(`{"op":"SUBSCRIBE","topic":"orders","corr":"s","opts":{"from":"afterSeq","afterSeq":3}}`, frame.Err); m.Code != "offset_gone" {
			r.Errorf("%+v", m)
		}
		c.ask(`{"op":"SUBSCRIBE","topic":"orders","corr":"s","opts":{"from":"afterSeq","afterSeq":2}}`, frame.OK)
		r.publish("orders", "3")
		c.next(frame.CaughtUp)
		c.payloads(1)
		other.payloads(1)
	})
}

// hastyBus has retention take the rest of a topic while its first event is read, once.
type hastyBus struct {
	jetbus.Backend
	took func()
	gone atomic.Bool
}

// Read implements jetbus.Backend. Without Follow it ends where the topic did when it began.
func (b *hastyBus) Read(ctx context.Context, topics []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	if o.Follow || b.gone.Swap(true) {
		return b.Backend.Read(ctx, topics, o)
	}
	return func(yield func(jetbus.Event, error) bool) {
		for e, err := range b.Backend.Read(ctx, topics, o) {
			yield(e, err)
			break
		}
		b.took()
	}
}

// TestRetentionTakesTheBacklog: a client so slow that the rest of what there was is gone when
// its turn comes is told of it.
func TestRetentionTakesTheBacklog(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		r.ensure(jetbus.TopicConfig{Name: "orders", MaxEvents: 4, Shrink: true})
		r.publish("orders", "1", "2", "3", "4")
		r.serveBus(&hastyBus{Backend: r.bus, took: func() { r.publish("orders", "5", "6", "7", "8", "9") }}, gateway.Config{})
		c, _ := r.reader(`"from":"earliest"`)
		c.payloads(1)
		if m := c.next(frame.Gap); m.Reason != "retention" || m.From != 2 || m.To != 4 {
			r.Errorf("%+v", m)
		}
		if m := c.next(frame.CaughtUp); m.Seq != 4 {
			r.Errorf("%+v", m)
		}
		if m := c.next(frame.Gap); m.Reason != "retention" || m.From != 5 || m.To != 5 {
			r.Errorf("%+v", m)
		}
		if got, _ := c.payloads(4); fmt.Sprint(got) != "[6 7 8 9]" {
			r.Errorf("%v", got)
		}
	})
}

// countedReads counts the reads of a bus for a single client.
type countedReads struct {
	jetbus.Backend
	alone atomic.Int32
}

// Read implements jetbus.Backend.
func (b *countedReads) Read(ctx context.Context, topics []string, o jetbus.ReadOptions) iter.Seq2[jetbus.Event, error] {
	if !o.Follow {
		b.alone.Add(1)
	}
	return b.Backend.Read(ctx, topics, o)
}

// TestStalledReaderReadsNothing: the gateway does not read the bus for a client that reads nothing at the live end.
// When the client reads again, it gets all events.
func TestStalledReaderReadsNothing(t *testing.T) {
	inBubble(t, gateway.Config{}, func(r *wsRig) {
		b := &countedReads{Backend: r.bus}
		r.serveBus(b, gateway.Config{Limits: gateway.Limits{WriteTimeout: time.Hour, Ping: time.Hour}})
		c, _ := r.reader(``)
		c.next(frame.CaughtUp)
		c.stall()
		const n = 10
		var want []string
		for i := range n {
			want = append(want, fmt.Sprintf(`"%d%s"`, i, largePayload[1:len(largePayload)-1]))
		}
		r.publish("orders", want...)
		time.Sleep(time.Minute)
		if reads := b.alone.Load(); reads != 0 {
			r.Errorf("the bus was read %d times for a client that does not read", reads)
		}
		c.unstall()
		if got, _ := c.payloads(n); !slices.Equal(got, want) {
			r.Error("the client got other events")
		}
	})
}
