package bustest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// open starts a broker in the bubble and connects to it until the test's end.
func open(t *testing.T, cfg embedded.Config) (*embedded.Broker, jetstream.JetStream) {
	t.Helper()
	b, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	nc, err := b.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return b, js
}

func TestRedeliveryAfterAckWait(t *testing.T) {
	const ackWait = 30 * time.Second
	bustest.Run(t, func(t *testing.T) {
		_, js := open(t, embedded.Config{})
		s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
			Durable: "d", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "s", nil); err != nil {
			t.Fatal(err)
		}
		var at [2]time.Time
		for i := range at {
			m, err := c.Next(jetstream.FetchMaxWait(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			md, err := m.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			if md.NumDelivered != uint64(i+1) {
				t.Errorf("delivery %d has the number %d", i+1, md.NumDelivered)
			}
			at[i] = time.Now()
		}
		if d := at[1].Sub(at[0]); d < ackWait || d > ackWait+time.Second {
			t.Errorf("redelivered after %v, want %v", d, ackWait)
		}
	})
}

// TestConsumerGoesOnAfterKill also shows what a crash costs: nothing that was
// published, and acks only if they are younger than the server's write-behind.
func TestConsumerGoesOnAfterKill(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		b, js := open(t, embedded.Config{})
		s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy})
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan string, 16)
		cc, err := c.Consume(func(m jetstream.Msg) {
			if err := m.DoubleAck(context.Background()); err != nil {
				t.Error(err)
			}
			got <- string(m.Data())
		})
		if err != nil {
			t.Fatal(err)
		}
		defer cc.Stop()
		for i := range 5 {
			want := fmt.Sprint("event ", i)
			if _, err := js.Publish(t.Context(), "s", []byte(want)); err != nil {
				t.Fatal(err)
			}
			if m := <-got; m != want {
				t.Errorf("got %q, want %q", m, want)
			}
			time.Sleep(5 * time.Second)
			if err := b.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if err := b.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
	})
}

// TestSharedTimers uses client calls that recycle timers, in and out of
// bubbles: a timer of one bubble must not turn up in another, nor outside.
func TestSharedTimers(t *testing.T) {
	use := func(t *testing.T) {
		b, _ := open(t, embedded.Config{})
		nc, err := b.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		sub, err := nc.SubscribeSync("x")
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Publish("x", nil); err != nil {
			t.Fatal(err)
		}
		if err := nc.FlushTimeout(10 * time.Second); err != nil {
			t.Fatal(err)
		}
		if _, err := sub.NextMsg(10 * time.Second); err != nil {
			t.Fatal(err)
		}
		if _, err := sub.NextMsg(10 * time.Millisecond); err == nil {
			t.Fatal("a message out of nowhere")
		}
	}
	for i := range 20 {
		t.Run(fmt.Sprint("bubble", i), func(t *testing.T) { bustest.Run(t, use) })
		t.Run(fmt.Sprint("outside", i), use)
	}
}

func TestBubbleTime(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		began := time.Now()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if d := time.Since(began); d != 24*time.Hour {
			t.Errorf("a day took %v", d)
		}
	})
}
