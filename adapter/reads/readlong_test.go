package reads_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// long is how many events a read goes through that is worth a consumer: it asks for them
// several times.
const long = 3000

// readLong declares topic a with that many events, and reads it to its end. While
// it reads, at is called behind each event. It returns the sequences read.
func (r *rig) readLong(c jetbus.TopicConfig, at func(seq uint64)) []uint64 {
	r.Helper()
	c.Name = "a"
	r.Ensure(c)
	must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", long), jetbus.BatchOptions{}))(r.T)
	var read []uint64
	for e, err := range r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{}) {
		r.OK(err)
		read = append(read, e.Seq)
		at(e.Seq)
	}
	return read
}

// ascends checks that the sequences are 1 to last.
func (r *rig) ascends(read []uint64, last int) {
	r.Helper()
	for i, seq := range read {
		if seq != uint64(i)+1 {
			r.Fatalf("the event read after %d is %d", i, seq)
		}
	}
	r.Equal("events read", len(read), last)
}

// A read to the end goes on where it was, whatever happens to the broker, and does
// not mind a caller that takes its time.
func TestReadThroughRestartAndKill(t *testing.T) {
	inBubble(t, func(r *rig) {
		read := r.readLong(jetbus.TopicConfig{}, func(seq uint64) {
			switch seq {
			case 900:
				r.OK(r.Broker.Restart(r.Context()))
			case 1900:
				r.OK(r.Broker.Kill(r.Context()))
				r.OK(r.Broker.Restart(r.Context()))
			case 2400:
				time.Sleep(5 * time.Minute)
			}
		})
		r.ascends(read, long)
	})
}

// The end of a read is the last event that was there when it began, or the last
// one that is left of those.
func TestReadEndsWithItsEnd(t *testing.T) {
	inBubble(t, func(r *rig) {
		const left = long - 100
		began := time.Now()
		read := r.readLong(jetbus.TopicConfig{KeyInSubject: true}, func(seq uint64) {
			switch {
			case seq == 1000:
				s := must(r.JS.Stream(r.Context(), "EV_A"))(r.T)
				for n := left; n < long; n++ {
					r.OK(s.Purge(r.Context(), jetstream.WithPurgeSubject(fmt.Sprint("ev.a.K.", n))))
				}
			case seq%1000 == 0:
				r.Publish("a", "late")
			}
		})
		r.ascends(read, left)
		if took := time.Since(began); took > 10*time.Second {
			r.Errorf("took %v to find out that the rest is gone", took)
		}
	})
}

// A topic that shares its stream ends before the stream does.
func TestReadOfASharedStream(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "b", Stream: "BOTH", Retention: -1})
		r.Publish("b", "first")
		r.Ensure(jetbus.TopicConfig{Name: "a", Stream: "BOTH", Retention: -1})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", long), jetbus.BatchOptions{}))(r.T)
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("b", 100), jetbus.BatchOptions{}))(r.T)
		began, n := time.Now(), 0
		for e, err := range r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{}) {
			r.OK(err)
			r.Equal("event", e.Key, n)
			n++
		}
		r.Equal("events of a", n, long)
		n = 0
		for _, err := range r.Bus.Read(r.Context(), []string{"b"}, jetbus.ReadOptions{}) {
			r.OK(err)
			n++
		}
		r.Equal("events of b", n, 101)
		if took := time.Since(began); took > 4*time.Second { // and not what the server's silence lasts
			r.Errorf("took %v", took)
		}
	})
}

// What the caller may not do at the server is done without, where that can be.
func TestReadDenied(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		s := adaptertest.DenyingServer(t, "$JS.API.CONSUMER.CREATE.>")
		root := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("root", "root")), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, root)
		must(root.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}))(t)
		must(root.PublishBatch(t.Context(), adaptertest.Numbered("a", long), jetbus.BatchOptions{}))(t)
		b := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("a", "a")), adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, b)
		began, n := time.Now(), 0
		for e, err := range b.Read(t.Context(), []string{"a"}, jetbus.ReadOptions{}) {
			if err != nil || e.Key != fmt.Sprint(n) {
				t.Fatalf("event %d is %s, %v", n, e.Key, err)
			}
			n++
		}
		if took := time.Since(began); n != long || took > 2*time.Second {
			t.Errorf("read %d events in %v", n, took)
		}
		adaptertest.WantErr(t, adaptertest.FirstErr(b.Read(t.Context(), []string{"a"}, jetbus.ReadOptions{Follow: true})), jetbus.ErrDenied)
	})
}

// A topic that is made anew under a read ends it: the rest would be of another log.
func TestReadOfATopicMadeAnewMeanwhile(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", long), jetbus.BatchOptions{}))(r.T)
		n := 0
		var last error
		for e, err := range r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{}) {
			if last = err; err != nil {
				break
			}
			r.Equal("event", e.Key, n)
			if n++; n == 100 {
				r.OK(r.Bus.DeleteTopic(r.Context(), "a"))
				time.Sleep(time.Second)
				r.Ensure(jetbus.TopicConfig{Name: "a"})
				must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", long), jetbus.BatchOptions{}))(r.T)
			}
		}
		r.WantErr(last, jetbus.ErrPositionUnknown)
	})
}
