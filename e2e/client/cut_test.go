package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

func TestThousandReconnects(t *testing.T) {
	r := start(t)
	bus := dial(t, r.config())
	var handled atomic.Int64
	got := make(chan struct{}, 1)
	s, err := bus.Subscribe(t.Context(), "orders", "billing", func(context.Context, *jetbus.Delivery) error {
		handled.Add(1)
		got <- struct{}{}
		return nil
	}, jetbus.SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		before := r.proxy.made.Load()
		r.proxy.cut()
		for late := time.Now().Add(patience); r.proxy.made.Load() == before; {
			if time.Now().After(late) {
				t.Fatalf("no connection after cut %d", i)
			}
			<-time.After(time.Millisecond)
		}
		if i%50 == 0 {
			if _, err := bus.Publish(t.Context(), jetbus.Event{Topic: "orders"}); err != nil {
				t.Fatal(err)
			}
			get(t, "the event", got)
		}
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := bus.Close(t.Context()); err != nil {
		t.Error(err)
	}
	for late := time.Now().Add(patience); r.proxy.open() > 0; <-time.After(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%d connections are left", r.proxy.open())
		}
	}
	if n := handled.Load(); n != 20 {
		t.Errorf("%d events were handled", n)
	}
}

func TestHandlersKeepTheirEventsOverACut(t *testing.T) {
	r := start(t)
	bus := dial(t, r.config())
	entered, leave := make(chan *jetbus.Delivery, 10), make(chan struct{})
	s, err := bus.Subscribe(t.Context(), "orders", "billing", func(ctx context.Context, d *jetbus.Delivery) error {
		entered <- d
		select {
		case <-leave:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, jetbus.SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.publish(1)
	get(t, "the event", entered)
	made := r.proxy.made.Load()
	r.proxy.cut()
	for r.proxy.made.Load() == made {
		<-time.After(time.Millisecond)
	}
	close(leave)
	r.settled("billing", 1)
	if st := s.Stats(); st.Delivered != 1 || st.LeasesLost != 0 || st.Acked != 1 {
		t.Errorf("stats %+v", st)
	}
}

func TestWithoutGraceTheLeaseIsLost(t *testing.T) {
	r := start(t)
	c := r.config()
	c.ResumeGrace = -1
	bus := dial(t, c)
	ends, again := make(chan error, 1), make(chan *jetbus.Delivery, 1)
	_, err := bus.Subscribe(t.Context(), "orders", "billing", func(ctx context.Context, d *jetbus.Delivery) error {
		if d.Redelivered {
			again <- d
			return nil
		}
		r.proxy.cut()
		<-ctx.Done()
		ends <- context.Cause(ctx)
		return nil
	}, jetbus.SubscribeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.publish(1)
	if err := get(t, "the end of the handler", ends); !errors.Is(err, jetbus.ErrLeaseExpired) {
		t.Errorf("cause %v", err)
	}
	if d := get(t, "the event again", again); d.Attempt != 1 {
		t.Errorf("attempt %d", d.Attempt)
	}
	r.settled("billing", 1)
}

func TestReaderGoesOnBehindWhatItHas(t *testing.T) {
	r := start(t)
	const n = 600
	c := r.config()
	c.Buffer = 16 << 10 // a slow reader stops reading the topic, and goes on
	bus := dial(t, c)
	var publishing sync.WaitGroup
	publishing.Go(func() { r.publish(n) })
	next := 0
	for e, err := range bus.Read(t.Context(), []string{"orders"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if string(e.Payload) != fmt.Sprint(next) {
			t.Fatalf("event %s where %d should be", e.Payload, next)
		}
		if next++; next == n {
			break
		}
		if next%100 == 0 {
			r.proxy.cut()
		}
	}
	publishing.Wait()
	if next != n {
		t.Errorf("%d events", next)
	}
}

func TestPublishOverCutsStoresOnce(t *testing.T) {
	r := start(t)
	bus := dial(t, r.config())
	r.proxy.cutting(t, 20*time.Millisecond)
	const n, writers = 100, 4
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			for i := range n {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				receipt, err := bus.Publish(ctx, jetbus.Event{Topic: "orders", Key: fmt.Sprint(w), Payload: fmt.Append(nil, i)})
				cancel()
				if err != nil || receipt.Event.Seq == 0 || receipt.Duplicate {
					t.Errorf("event %d of writer %d: %+v, %v", i, w, receipt, err)
				}
			}
		})
	}
	work.Wait()
	next := map[string]int{}
	for e, err := range r.bus.Scan(t.Context(), "orders", jetbus.ScanQuery{}) {
		if err != nil {
			t.Fatal(err)
		}
		if string(e.Payload) != fmt.Sprint(next[e.Key]) {
			t.Fatalf("writer %s: event %s where %d should be", e.Key, e.Payload, next[e.Key])
		}
		next[e.Key]++
	}
	for w := range writers {
		if next[fmt.Sprint(w)] != n {
			t.Errorf("writer %d has %d events", w, next[fmt.Sprint(w)])
		}
	}
}
