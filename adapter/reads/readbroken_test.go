package reads_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
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

// A follower has read messages that are no events. A restore removes them, and events take their sequences.
func TestFollowerNoticesRestoreAfterMessagesThatAreNoEvents(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) }) // the file store writes with a delay
		broker := bustest.StartRestorable(t)
		r := adaptertest.On(t, broker.Broker)
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1")
		backup := broker.Backup(t)
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		ended := make(chan error, 1)
		go func() { // ends with the reader
			ended <- adaptertest.FirstErr(r.Bus.Read(ctx, []string{"a"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}))
		}()
		time.Sleep(time.Second)
		for range 5 {
			m := nats.NewMsg("ev.a._")
			m.Header.Set("Content-Type", "application/cloudevents+json")
			must(r.JS.PublishMsg(ctx, m))(t)
		}
		time.Sleep(time.Second)
		broker.Restore(t, backup, nil)
		r.Publish("a", "2", "3", "4", "5", "6", "7", "8")
		r.WantErr(<-ended, jetbus.ErrPositionUnknown)
		time.Sleep(time.Second) // until every connection is restored: nats.go leaves goroutines otherwise
	})
}
