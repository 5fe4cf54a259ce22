package reads_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// A follower whose consumer is taken away goes on with the next one, and with that alone:
// that the requests to the one before are over says nothing of it.
func TestFollowerLosesConsumer(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		var made atomic.Int32
		_ = must(r.NC.Subscribe("$JS.EVENT.ADVISORY.CONSUMER.CREATED.EV_A.>", func(*nats.Msg) { made.Add(1) }))(t)
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		read := make(chan uint64, 1000)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for e, err := range r.Bus.Read(ctx, []string{"a"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}) {
				if err == nil {
					read <- e.Seq
				}
			}
		}()
		for n := range 3 {
			must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 300), jetbus.BatchOptions{}))(t) // so that two requests are open
			r.Within(time.Minute, "read", func() bool { return len(read) == 301*n+300 })
			time.Sleep(time.Second)
			s := must(r.JS.Stream(r.Context(), "EV_A"))(t)
			for name := range s.ConsumerNames(r.Context()).Name() {
				r.OK(s.DeleteConsumer(r.Context(), name))
			}
			r.Publish("a", "k")
			r.Within(2*time.Second, "read", func() bool { return len(read) == 301*(n+1) })
			r.Within(time.Second, "consumers", func() bool { return made.Load() == int32(n+2) })
		}
		time.Sleep(time.Minute)
		r.Equal("consumers", made.Load(), int32(4))
		cancel()
		<-done
	})
}
