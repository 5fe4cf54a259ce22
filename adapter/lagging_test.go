package adapter_test

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
)

// lagging makes a topic's stream answer direct gets as a replica would that has
// the events of now, until it is told to go on.
func (r *rig) lagging(stream string) (goOn func()) {
	r.Helper()
	info := r.stream(stream)
	info.Config.AllowDirect = false // before there are mirrors, which would answer for it
	must(r.js.UpdateStream(r.Context(), info.Config))(r.T)
	follow := func(name string) jetstream.Stream {
		s := must(r.js.CreateStream(r.Context(), jetstream.StreamConfig{
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
	must(r.js.UpdateStream(r.Context(), stopped))(r.T)
	var answers atomic.Pointer[string]
	answers.Store(new("LAGGING"))
	must(r.nc.Subscribe("$JS.API.DIRECT.GET."+stream, func(m *nats.Msg) {
		_ = r.nc.PublishRequest("$JS.API.DIRECT.GET."+*answers.Load(), m.Reply, m.Data)
	}))(r.T)
	r.ok(r.nc.Flush())
	return func() { answers.Store(new("CURRENT")) }
}

// A replica that lags does not end a scan early, nor does it make a state that
// would be called exact.
func TestReadsOfALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t", KeyInSubject: true})
		for i := range 10 {
			r.put("t", fmt.Sprint(i), "1")
		}
		goOn := r.lagging("EV_T")
		for i := range 10 {
			r.put("t", fmt.Sprint(i), "2")
		}
		at := r.storedAt("EV_T", 20)
		r.put("t", "z", "3")
		n := 0
		for wait := 500 * time.Millisecond; n < 10 && wait < time.Minute; wait *= 2 { // a slow machine may not get that far at first
			short, cancel := context.WithTimeout(t.Context(), wait)
			n = 0
			var last error
			for _, err := range r.bus.Scan(short, "t", jetbus.ScanQuery{}) {
				if last = err; err == nil {
					n++
				}
			}
			cancel()
			r.wantErr(last, jetbus.ErrUnavailable)
		}
		r.equal("scanned", n, 10)
		short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := r.bus.StateAt(short, "t", at)
		r.wantErr(err, jetbus.ErrUnavailable)

		timer := time.AfterFunc(300*time.Millisecond, goOn)
		defer timer.Stop()
		r.equal("state", r.at("t", at), "0=2 1=2 2=2 3=2 4=2 5=2 6=2 7=2 8=2 9=2 as of 20")
		r.equal("stored", len(strings.Fields(r.stored("t"))), 21)
	})
}

// What was stored at or after a time is not skipped because the replica that is asked
// has nothing of it yet.
func TestTimeAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		r.publish("t", "1", "2", "3")
		goOn := r.lagging("EV_T")
		r.publish("t", "4", "5", "6")
		from := jetbus.AtTime(r.storedAt("EV_T", 5))

		got := make(chan string, 10)
		sub := must(r.bus.Subscribe(r.Context(), "t", "g", func(_ context.Context, d *jetbus.Delivery) error {
			got <- d.Key
			return nil
		}, jetbus.SubscribeOptions{From: from}))(t)
		r.publish("t", "7")
		var delivered []string
		for len(delivered) == 0 || delivered[len(delivered)-1] != "7" {
			delivered = append(delivered, <-got)
		}
		r.equal("delivered", delivered, "[5 6 7]")
		r.ok(sub.Stop(r.Context()))
		r.ok(r.bus.SetCursor(r.Context(), "t", "g", jetbus.Cursor{LastTime: r.storedAt("EV_T", 5)}, jetbus.SeekOptions{}))
		r.equal("moved behind", must(r.bus.Cursor(r.Context(), "t", "g"))(t).LastSeq, 5)

		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		var read []string
		for e, err := range r.bus.Read(r.Context(), []string{"t"}, jetbus.ReadOptions{From: from}) {
			r.ok(err)
			read = append(read, e.Key)
		}
		r.equal("read", read, "[5 6 7]")
	})
}

// A retry that is stored is known to be, also to who decides by it: an event that has
// failed again since would be dropped without a dead letter.
func TestRetriedAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		e := r.publish("t", "1")[0]
		r.ok(must(r.bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}))(t).Stop(r.Context()))
		retry := func(name string) {
			r.Helper()
			must(r.bus.Retry(r.Context(), "g", e, jetbus.RetryOptions{Name: name}))(t)
		}
		retried := func(names ...string) int {
			r.Helper()
			return len(must(r.bus.Retried(r.Context(), "t", "g", names...))(t))
		}
		r.equal("before there is any", retried("d1"), 0)
		retry("d1")
		goOn := r.lagging("EV_RETRY")
		retry("d2")
		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		r.equal("one the replica has, and one it has not", retried("d1", "d2", "d9"), 2)
		r.equal("none", retried("d8", "d9"), 0)
	})
}

// The same where the replica has none of them.
func TestRetriedUnknownToAReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		e := r.publish("t", "1")[0]
		r.ok(must(r.bus.Subscribe(r.Context(), "t", "g", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{}))(t).Stop(r.Context()))
		goOn := r.lagging("EV_RETRY")
		must(r.bus.Retry(r.Context(), "g", e, jetbus.RetryOptions{Name: "d1"}))(t)
		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		r.equal("retried", len(must(r.bus.Retried(r.Context(), "t", "g", "d1"))(t)), 1)
	})
}

// A conditional publish that is stored is recognized when it is repeated.
func TestConditionalPublishAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t", KeyInSubject: true})
		last := r.publish("t", "k")[0].Seq
		r.lagging("EV_T")
		e := event("t", "k")
		e.ID = "once"
		must(r.bus.Publish(r.Context(), e, jetbus.PublishOptions{ExpectLastSeq: &last}))(t)
		again, err := r.bus.Publish(r.Context(), e, jetbus.PublishOptions{ExpectLastSeq: &last})
		r.ok(err)
		r.equal("duplicate", again.Duplicate, true)
	})
}

// The last event of a key is not one from before what was acknowledged, whichever replica
// answers.
func TestLatestAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t", KeyInSubject: true, Compact: true})
		r.put("t", "a", "1")
		r.put("t", "b", "1")
		_, bus := r.open(adapter.Config{}, nats.InProcessServer(replicated{r.broker, "EV_T"}))
		latest := func(ctx context.Context, keys ...string) (string, error) {
			state, err := bus.LatestByKey(ctx, "t", keys...)
			return words(state), err
		}
		goOn := r.lagging("EV_T")
		r.put("t", "a", "2")
		r.put("t", "c", "1")
		r.bury("t", "b")
		r.equal("one key", must(latest(t.Context(), "a"))(t), "a=2")
		r.equal("one that is deleted", must(latest(t.Context(), "b"))(t), "")
		r.equal("one that is new", must(latest(t.Context(), "c"))(t), "c=1")
		r.equal("one that never was", must(latest(t.Context(), "x"))(t), "")

		for _, keys := range [][]string{{"a", "b", "c", "x"}, {"c", "d"}, {"x", "y"}} {
			short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			state, err := latest(short, keys...)
			r.wantErr(err, jetbus.ErrUnavailable)
			r.equal("of a replica that lags", state, "")
			cancel()
		}
		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		r.equal("many", must(latest(t.Context(), "a", "b", "c", "x"))(t), "a=2 c=1")
		r.equal("none of them", must(latest(t.Context(), "x", "y"))(t), "")
		r.bury("t", "c") // the end is no event any more when it is removed
		stream := must(r.js.Stream(t.Context(), "EV_T"))(t)
		r.ok(stream.DeleteMsg(t.Context(), r.stream("EV_T").State.LastSeq))
		r.equal("behind what was removed", must(latest(t.Context(), "x", "y"))(t), "")
		r.ok(stream.Purge(t.Context()))
		r.equal("of an empty topic", must(latest(t.Context(), "x", "y"))(t), "")
	})
}

// What was acknowledged is found by its id, and by the position of a group, whichever
// replica answers.
func TestPositionsAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		r.publish("t", "1")
		goOn := r.lagging("EV_T")
		e := r.publish("t", "2")[0]
		none := func(context.Context, *jetbus.Delivery) error { return nil }
		r.ok(must(r.bus.Subscribe(r.Context(), "t", "g", none, jetbus.SubscribeOptions{From: jetbus.AfterSeq(e.Seq)}))(t).Stop(r.Context()))
		c := must(r.bus.Cursor(r.Context(), "t", "g"))(t)
		r.equal("cursor", []any{c.LastSeq, c.LastID}, []any{e.Seq, e.ID})

		old := jetbus.NewID() // of an event that the server does not know by its id
		must(r.js.PublishMsg(r.Context(), &nats.Msg{Subject: "ev.t._", Header: nats.Header{"ce-id": {old}}, Data: []byte("3")}))(t)
		must(r.js.Publish(r.Context(), "ev.t._", []byte("4")))(t)
		r.publish("t", "5")
		after := func(id string) string {
			r.Helper()
			return r.keysRead(r.bus.Read(r.Context(), []string{"t"}, jetbus.ReadOptions{From: jetbus.AfterID(id)}))
		}
		r.ok(r.bus.SetCursor(r.Context(), "t", "g", jetbus.Cursor{LastID: "EV_T-4"}, jetbus.SeekOptions{}))
		r.equal("moved behind an id that has the position in it", must(r.bus.Cursor(r.Context(), "t", "g"))(t).LastSeq, 4)

		timer := time.AfterFunc(100*time.Millisecond, goOn)
		defer timer.Stop()
		r.equal("after an id that the log is read for", after(old), " 5")
		r.wantErr(r.bus.SetCursor(r.Context(), "t", "g", jetbus.Cursor{LastID: jetbus.NewID()}, jetbus.SeekOptions{}), jetbus.ErrPositionUnknown)
	})
}

// An event that is to be removed is, whichever replica answers.
func TestRemovalAtALaggingReplica(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.ensure(jetbus.TopicConfig{Name: "t"})
		r.publish("t", "1")
		goOn := r.lagging("EV_T")
		e := r.publish("t", "2", "3")[0]
		r.equal("removed", must(r.bus.RemoveEvents(r.Context(), "t", e.Seq, e.Seq, 0, 99))(t), 1)
		goOn()
		r.equal("left", r.stream("EV_T").State.Msgs, 2)
	})
}
