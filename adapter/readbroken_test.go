package adapter_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// A follower whose consumer is taken away goes on with the next one, and with that alone:
// that the requests to the one before are over says nothing of it.
func TestFollowerLosesConsumer(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "a"})
		var made atomic.Int32
		_ = must(r.nc.Subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.EV_A.>", func(*nats.Msg) { made.Add(1) }))(t)
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		read := make(chan uint64, 1000)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for e, err := range r.bus.Read(ctx, []string{"a"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
				if err == nil {
					read <- e.Seq
				}
			}
		}()
		for n := range 3 {
			must(r.bus.PublishBatch(r.Context(), numbered("a", 300), jetbus.BatchOptions{}))(t) // so that two requests are open
			r.within(time.Minute, "read", func() bool { return len(read) == 301*n+300 })
			time.Sleep(time.Second)
			s := must(r.js.Stream(r.Context(), "EV_A"))(t)
			for name := range s.ConsumerNames(r.Context()).Name() {
				r.ok(s.DeleteConsumer(r.Context(), name))
			}
			r.publish("a", "k")
			r.within(2*time.Second, "read", func() bool { return len(read) == 301*(n+1) })
			r.within(time.Second, "consumers", func() bool { return made.Load() == int32(n+2) })
		}
		time.Sleep(time.Minute)
		r.equal("consumers", made.Load(), int32(4))
		cancel()
		<-done
	})
}
