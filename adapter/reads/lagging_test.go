package reads_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// lagging makes a topic's stream answer direct gets as a replica would that has
// the events of now, until it is told to go on.
func (r *rig) lagging(stream string) (goOn func()) {
	r.Helper()
	info := r.Stream(stream)
	info.Config.AllowDirect = false // before there are mirrors, which would answer for it
	must(r.JS.UpdateStream(r.Context(), info.Config))(r.T)
	follow := func(name string) jetstream.Stream {
		s := must(r.JS.CreateStream(r.Context(), jetstream.StreamConfig{
			Name: name, Mirror: &jetstream.StreamSource{Name: stream}, AllowDirect: true,
		}))(r.T)
		for must(s.Info(r.Context()))(r.T).State.LastSeq < info.State.LastSeq {
			time.Sleep(10 * time.Millisecond)
		}
		return s
	}
	follow("CURRENT")
	stopped := follow("LAGGING").CachedInfo().Config
	stopped.Mirror = nil
	must(r.JS.UpdateStream(r.Context(), stopped))(r.T)
	var answers atomic.Pointer[string]
	answers.Store(new("LAGGING"))
	must(r.NC.Subscribe("$JS.API.DIRECT.GET."+stream, func(m *nats.Msg) {
		_ = r.NC.PublishRequest("$JS.API.DIRECT.GET."+*answers.Load(), m.Reply, m.Data)
	}))(r.T)
	r.OK(r.NC.Flush())
	return func() { answers.Store(new("CURRENT")) }
}

// A replica that lags does not end a scan early, nor does it make a state that
// would be called exact.
func TestReadsOfALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t", KeyInSubject: true})
		for i := range 10 {
			r.put("t", fmt.Sprint(i), "1")
		}
		goOn := r.lagging("EV_T")
		for i := range 10 {
			r.put("t", fmt.Sprint(i), "2")
		}
		at := r.StoredAt("EV_T", 20)
		r.put("t", "z", "3")
		n := 0
		for wait := 500 * time.Millisecond; n < 10 && wait < time.Minute; wait *= 2 { // a slow machine may not get that far at first
			short, cancel := context.WithTimeout(t.Context(), wait)
			n = 0
			var last error
			for _, err := range r.Bus.Scan(short, "t", jetbus.ScanQuery{}) {
				if last = err; err == nil {
					n++
				}
			}
			cancel()
			r.WantErr(last, jetbus.ErrUnavailable)
		}
		r.Equal("scanned", n, 10)
		short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := r.Bus.StateAt(short, "t", at)
		r.WantErr(err, jetbus.ErrUnavailable)

		timer := time.AfterFunc(300*time.Millisecond, goOn)
		defer timer.Stop()
		r.Equal("state", r.at("t", at), "0=2 1=2 2=2 3=2 4=2 5=2 6=2 7=2 8=2 9=2 as of 20")
		r.Equal("stored", len(strings.Fields(r.Stored("t"))), 21)
	})
}

// What its topic has dropped a scan does not show, although a replica that lags has it yet.
func TestScanOfWhatIsDropped(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t", MaxEvents: 3})
		r.Publish("t", "1", "2", "3")
		goOn := r.lagging("EV_T")
		r.Publish("t", "4", "5")
		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		r.Equal("scanned", r.keysRead(r.Bus.Scan(r.Context(), "t", jetbus.ScanQuery{})), "3 4 5")
	})
}

// What was stored at or after a time is not skipped because the replica that is asked
// has nothing of it yet.
func TestTimeAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		r.Publish("t", "1", "2", "3")
		goOn := r.lagging("EV_T")
		r.Publish("t", "4", "5", "6")
		from := jetbus.AtTime(r.StoredAt("EV_T", 5))

		got := make(chan string, 10)
		sub := must(r.Bus.Subscribe(r.Context(), "t", "g", func(_ context.Context, d *jetbus.Delivery) error {
			got <- d.Key
			return nil
		}, jetbus.SubscribeOptions{From: from}))(t)
		r.Publish("t", "7")
		var delivered []string
		for len(delivered) == 0 || delivered[len(delivered)-1] != "7" {
			delivered = append(delivered, <-got)
		}
		r.Equal("delivered", delivered, "[5 6 7]")
		r.OK(sub.Stop(r.Context()))
		r.OK(r.Bus.SetCursor(r.Context(), "t", "g", jetbus.Cursor{LastTime: r.StoredAt("EV_T", 5)}, jetbus.SeekOptions{}))
		r.Equal("moved behind", must(r.Bus.Cursor(r.Context(), "t", "g"))(t).LastSeq, 5)

		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		var read []string
		for e, err := range r.Bus.Read(r.Context(), []string{"t"}, jetbus.ReadOptions{From: from}) {
			r.OK(err)
			read = append(read, e.Key)
		}
		r.Equal("read", read, "[5 6 7]")
	})
}

// A retry that is stored is known to be, also to who decides by it: an event that has
// failed again since would be dropped without a dead letter.
func TestRetriedAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		e := r.Publish("t", "1")[0]
		r.OK(must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}))(t).Stop(r.Context()))
		retry := func(name string) {
			r.Helper()
			must(r.Bus.Retry(r.Context(), "g", e, jetbus.RetryOptions{Name: name}))(t)
		}
		retried := func(names ...string) int {
			r.Helper()
			return len(must(r.Bus.Retried(r.Context(), "t", "g", names...))(t))
		}
		r.Equal("before there is any", retried("d1"), 0)
		retry("d1")
		goOn := r.lagging("EV_RETRY")
		retry("d2")
		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		r.Equal("one the replica has, and one it has not", retried("d1", "d2", "d9"), 2)
		r.Equal("none", retried("d8", "d9"), 0)
	})
}

// The same where the replica has none of them.
func TestRetriedUnknownToAReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		e := r.Publish("t", "1")[0]
		r.OK(must(r.Bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}))(t).Stop(r.Context()))
		goOn := r.lagging("EV_RETRY")
		must(r.Bus.Retry(r.Context(), "g", e, jetbus.RetryOptions{Name: "d1"}))(t)
		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		r.Equal("retried", len(must(r.Bus.Retried(r.Context(), "t", "g", "d1"))(t)), 1)
	})
}

// A conditional publish that is stored is recognized when it is repeated.
func TestConditionalPublishAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t", KeyInSubject: true})
		last := r.Publish("t", "k")[0].Seq
		r.lagging("EV_T")
		e := adaptertest.Event("t", "k")
		e.ID = "once"
		must(r.Bus.Publish(r.Context(), e, jetbus.PublishOptions{ExpectLastSeq: &last}))(t)
		again, err := r.Bus.Publish(r.Context(), e, jetbus.PublishOptions{ExpectLastSeq: &last})
		r.OK(err)
		r.Equal("duplicate", again.Duplicate, true)
	})
}

// The last event of a key is not one from before what was acknowledged, whichever replica
// answers.
func TestLatestAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t", KeyInSubject: true, Compact: true})
		r.put("t", "a", "1")
		r.put("t", "b", "1")
		_, bus := r.Open(adapter.Config{}, nats.InProcessServer(adaptertest.Replicated{InProcessConnProvider: r.Broker, Stream: "EV_T"}))
		latest := func(ctx context.Context, keys ...string) (string, error) {
			state, err := bus.LatestByKey(ctx, "t", keys...)
			return words(state), err
		}
		goOn := r.lagging("EV_T")
		r.put("t", "a", "2")
		r.put("t", "c", "1")
		r.bury("t", "b")
		r.Equal("one key", must(latest(t.Context(), "a"))(t), "a=2")
		r.Equal("one that is deleted", must(latest(t.Context(), "b"))(t), "")
		r.Equal("one that is new", must(latest(t.Context(), "c"))(t), "c=1")
		r.Equal("one that never was", must(latest(t.Context(), "x"))(t), "")

		for _, keys := range [][]string{{"a", "b", "c", "x"}, {"c", "d"}, {"x", "y"}} {
			short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			state, err := latest(short, keys...)
			r.WantErr(err, jetbus.ErrUnavailable)
			r.Equal("of a replica that lags", state, "")
			cancel()
		}
		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		r.Equal("many", must(latest(t.Context(), "a", "b", "c", "x"))(t), "a=2 c=1")
		r.Equal("none of them", must(latest(t.Context(), "x", "y"))(t), "")
		r.bury("t", "c") // the end is no event any more when it is removed
		// The replica has it when this is answered; it would never get what was removed before.
		r.Equal("with the end", must(latest(t.Context(), "a", "c", "x"))(t), "a=2")
		stream := must(r.JS.Stream(t.Context(), "EV_T"))(t)
		r.OK(stream.DeleteMsg(t.Context(), r.Stream("EV_T").State.LastSeq))
		r.Equal("behind what was removed", must(latest(t.Context(), "x", "y"))(t), "")
		r.OK(stream.Purge(t.Context()))
		r.Equal("of an empty topic", must(latest(t.Context(), "x", "y"))(t), "")
	})
}

// What was acknowledged is found by its id, and by the position of a group, whichever
// replica answers.
func TestPositionsAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		r.Publish("t", "1")
		goOn := r.lagging("EV_T")
		e := r.Publish("t", "2")[0]
		none := func(context.Context, *jetbus.Delivery) error { return nil }
		r.OK(must(r.Bus.Subscribe(r.Context(), "t", "g", none, jetbus.SubscribeOptions{From: jetbus.AfterSeq(e.Seq)}))(t).Stop(r.Context()))
		c := must(r.Bus.Cursor(r.Context(), "t", "g"))(t)
		r.Equal("cursor", []any{c.LastSeq, c.LastID}, []any{e.Seq, e.ID})

		old := jetbus.NewID() // of an event that the server does not know by its id
		must(r.JS.PublishMsg(r.Context(), &nats.Msg{Subject: "ev.t._", Header: nats.Header{"ce-id": {old}}, Data: []byte("3")}))(t)
		must(r.JS.Publish(r.Context(), "ev.t._", []byte("4")))(t)
		r.Publish("t", "5")
		after := func(id string) string {
			r.Helper()
			return r.keysRead(r.Bus.Read(r.Context(), []string{"t"}, jetbus.ReadOptions{From: jetbus.AfterID(id)}))
		}
		r.OK(r.Bus.SetCursor(r.Context(), "t", "g", jetbus.Cursor{LastID: "EV_T-4"}, jetbus.SeekOptions{}))
		r.Equal("moved behind an id that has the position in it", must(r.Bus.Cursor(r.Context(), "t", "g"))(t).LastSeq, 4)

		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		r.Equal("after an id that the log is read for", after(old), " 5")
		r.WantErr(r.Bus.SetCursor(r.Context(), "t", "g", jetbus.Cursor{LastID: jetbus.NewID()}, jetbus.SeekOptions{}), jetbus.ErrPositionUnknown)
	})
}

// An event that is to be removed is, whichever replica answers.
func TestRemovalAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "t"})
		r.Publish("t", "1")
		goOn := r.lagging("EV_T")
		e := r.Publish("t", "2", "3")[0]
		r.Equal("removed", must(r.Bus.RemoveEvents(r.Context(), "t", e.Seq, e.Seq, 0, 99))(t), 1)
		goOn()
		r.Equal("left", r.Stream("EV_T").State.Msgs, 2)
	})
}
