package reads_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

// keysRead lists the keys a sequence of events has.
func (r *rig) keysRead(seq func(func(jetbus.Event, error) bool)) string {
	r.Helper()
	var keys []string
	for e, err := range seq {
		r.OK(err)
		keys = append(keys, e.Key)
	}
	return strings.Join(keys, " ")
}

func TestReadStarts(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		var events []jetbus.Event
		for i := range 5 {
			time.Sleep(time.Minute)
			events = append(events, r.Publish("a", fmt.Sprint(i))...)
		}
		for _, c := range []struct {
			o    jetbus.ReadOptions
			want string
		}{
			{jetbus.ReadOptions{}, "0 1 2 3 4"},
			{jetbus.ReadOptions{From: jetbus.Latest()}, ""},
			{jetbus.ReadOptions{From: jetbus.AfterSeq(events[2].Seq)}, "3 4"},
			{jetbus.ReadOptions{From: jetbus.AfterID(events[3].ID)}, "4"},
			{jetbus.ReadOptions{From: jetbus.AtTime(events[1].Time)}, "1 2 3 4"},
			{jetbus.ReadOptions{From: jetbus.AtTime(time.Now().Add(time.Hour))}, ""},
			{jetbus.ReadOptions{After: map[string]uint64{"a": 4}, From: jetbus.Latest()}, "4"},
			{jetbus.ReadOptions{After: map[string]uint64{"a": 0}}, "0 1 2 3 4"},
			{jetbus.ReadOptions{Filter: jetbus.Filter{Key: "3"}}, "3"},
		} {
			r.Equal(fmt.Sprintf("%+v", c.o), r.keysRead(r.Bus.Read(ctx, []string{"a"}, c.o)), c.want)
			if c.o.After == nil {
				r.Equal(fmt.Sprintf("scan %+v", c.o), r.keysRead(r.Bus.Scan(ctx, "a", jetbus.ScanQuery{From: c.o.From, Filter: c.o.Filter})), c.want)
			}
		}
		for _, o := range []jetbus.ReadOptions{{From: jetbus.AfterSeq(99)}, {From: jetbus.AfterID("none")}, {From: jetbus.AfterID(jetbus.NewID())}} {
			r.WantErr(adaptertest.FirstErr(r.Bus.Read(ctx, []string{"a"}, o)), jetbus.ErrPositionUnknown)
		}
		r.WantErr(adaptertest.FirstErr(r.Bus.Read(ctx, nil, jetbus.ReadOptions{})), jetbus.ErrInvalidOption)
		r.WantErr(adaptertest.FirstErr(r.Bus.Read(ctx, []string{"a", "a"}, jetbus.ReadOptions{})), jetbus.ErrInvalidOption)
		r.WantErr(adaptertest.FirstErr(r.Bus.Read(ctx, []string{"a"}, jetbus.ReadOptions{After: map[string]uint64{"b": 1}})), jetbus.ErrInvalidOption)
	})
}

// An id is found behind the duplicate window, too, by the time in it.
func TestReadAfterOldID(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", DuplicateWindow: time.Minute})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 1500), jetbus.BatchOptions{}))(r.T)
		e := adaptertest.Event("a", "this")
		// Not one of NewID: its ids ascend from one bubble to the next, whose time begins anew.
		ms := fmt.Sprintf("%012x", time.Now().UnixMilli())
		e.ID = ms[:8] + "-" + ms[8:] + "-7000-8000-000000000001"
		must(r.Bus.Publish(r.Context(), e))(r.T)
		r.Publish("a", "next")
		foreign := jetbus.Event{Topic: "a", ID: "no time in it", Key: "foreign"}
		must(r.Bus.Publish(r.Context(), foreign))(r.T)
		read := func(id string) string {
			return r.keysRead(r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{From: jetbus.AfterID(id)}))
		}
		r.Equal("by a recent id", read(foreign.ID), "")
		time.Sleep(time.Hour)
		r.Equal("by an old id", read(e.ID), "next foreign")
		r.WantErr(adaptertest.FirstErr(r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{From: jetbus.AfterID(foreign.ID)})), jetbus.ErrPositionUnknown)
	})
}

func TestReadSeveralTopics(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := r.Context()
		topics := []string{"a", "b", "c"}
		for _, name := range topics {
			r.Ensure(jetbus.TopicConfig{Name: name})
			for i := range 5 {
				r.Publish(name, fmt.Sprint(name, i))
			}
		}
		got := map[string]string{}
		for e, err := range r.Bus.Read(ctx, topics, jetbus.ReadOptions{After: map[string]uint64{"a": 3, "b": 5}}) {
			r.OK(err)
			got[e.Topic] += " " + e.Key
		}
		r.Equal("read", got, map[string]string{"a": " a3 a4", "c": " c0 c1 c2 c3 c4"})

		clear(got)
		n := 0
		for e, err := range r.Bus.Read(ctx, topics, jetbus.ReadOptions{Follow: true, From: jetbus.Earliest(), After: map[string]uint64{"a": 3, "b": 5}}) {
			r.OK(err)
			got[e.Topic] += " " + e.Key
			switch n++; n {
			case 7:
				r.Publish("b", "b5")
			case 8:
				r.Publish("a", "a5")
			}
			if n == 9 {
				break
			}
		}
		r.Equal("followed", got, map[string]string{"a": " a3 a4 a5", "b": " b5", "c": " c0 c1 c2 c3 c4"})
		synctest.Wait()
		for _, name := range []string{"EV_A", "EV_B", "EV_C"} {
			r.Equal("consumers of "+name, r.Stream(name).State.Consumers, 0)
		}
	})
}

// Following goes on where it was, whatever happens to the broker.
func TestFollowThroughRestartAndKill(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		const n = 300
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "before")
		got := make(chan jetbus.Event, n)
		ended := make(chan error, 1)
		go func() {
			var last error
			for e, err := range r.Bus.Read(ctx, []string{"a"}, jetbus.ReadOptions{Follow: true}) {
				if last = err; err == nil {
					got <- e
				}
			}
			ended <- last
		}()
		synctest.Wait()
		go func() {
			for i := range n {
				_, err := r.Bus.Publish(r.Context(), adaptertest.Event("a", fmt.Sprint(i)))
				r.WantNil(err)
				time.Sleep(5 * time.Millisecond)
			}
		}()
		for range 3 {
			time.Sleep(100 * time.Millisecond)
			r.OK(r.Broker.Restart(r.Context()))
			time.Sleep(100 * time.Millisecond)
			r.OK(r.Broker.Kill(r.Context()))
			r.OK(r.Broker.Restart(r.Context()))
		}
		for i := range n {
			select {
			case e := <-got:
				if e.Key != fmt.Sprint(i) {
					r.Fatalf("event %d is %s", i, e.Key)
				}
			case <-time.After(8 * time.Second): // a question may be lost, and asked again; once Config.Timeout went by
				r.Fatalf("event %d does not come, though the broker is back", i)
			}
		}
		cancel()
		r.WantErr(<-ended, context.Canceled)
		r.Equal("further events", len(got), 0)
	})
}

// A broker that ends in order says so to a reader, which asks for more at once, and is not
// answered any more: that question ends with the connection, and not with its own time.
func TestFollowThroughRestart(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		next, stop := iter.Pull2(r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{From: jetbus.Earliest(), Follow: true}))
		defer stop()
		for i := range 10 {
			r.Publish("a", fmt.Sprint(i))
			back := time.Now()
			e, err, _ := next()
			r.OK(err)
			r.Equal("event", e.Key, fmt.Sprint(i))
			if took := time.Since(back); took > 2*time.Second {
				r.Errorf("event %d comes %v after the broker is back", i, took)
			}
			go func() { r.WantNil(r.Broker.Restart(r.Context())) }()
			time.Sleep(time.Second)
		}
	})
}

// Who listens beside the bus hears that an id is looked for, and where no event ever is.
func TestLookupIsHeardAsNone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		r.Ensure(jetbus.TopicConfig{Name: "parts", Partitions: 2})
		for topic, lookup := range map[string]string{"a": "ev.a.K.S", "parts": "ev.parts.P1.0.S"} {
			last := r.Publish(topic, "k", "S", "")[2]
			heard := must(r.NC.SubscribeSync("ev.>"))(t)
			_, err := r.Bus.Receive(r.Context(), topic, "g", jetbus.ReceiveOptions{From: jetbus.AfterID(last.ID), Wait: -1})
			r.OK(err)
			m := must(heard.NextMsg(time.Second))(t)
			r.Equal("a lookup in "+topic, []any{m.Subject, len(m.Data), m.Header.Get("ce-id")}, []any{lookup, 0, ""})
			_, err = heard.NextMsg(time.Second)
			r.WantErr(err, nats.ErrTimeout)
			r.OK(heard.Unsubscribe())
		}
		r.Equal("stored", r.Stored("a"), "k S ")
	})
}

func TestFollowEnds(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		r.Publish("a", "1")
		ended := make(chan error)
		follow := func(b *adapter.Bus) {
			go func() {
				ended <- adaptertest.FirstErr(b.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{Follow: true}))
			}()
			synctest.Wait()
		}
		nc, b := r.Open(adapter.Config{})
		follow(b)
		nc.Close()
		r.WantErr(<-ended, jetbus.ErrClosed)
		_, b = r.Open(adapter.Config{})
		follow(b)
		adaptertest.CloseBus(r.T, b)
		r.WantErr(<-ended, jetbus.ErrClosed)
		follow(r.Bus)
		r.OK(r.Bus.DeleteTopic(r.Context(), "a"))
		r.WantErr(<-ended, jetbus.ErrNoTopic)
	})
}

// A caller that stops leaves no consumer at the server and no subscription here.
func TestReadStops(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", 3000), jetbus.BatchOptions{}))(r.T)
		synctest.Wait()
		before := r.NC.NumSubscriptions()
		for i, seq := range []func(func(jetbus.Event, error) bool){
			r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{Follow: true, From: jetbus.Earliest()}),
			r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{}),
			r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{From: jetbus.AfterSeq(1500)}),
			r.Bus.Scan(r.Context(), "a", jetbus.ScanQuery{}),
		} {
			n := 0
			for _, err := range seq {
				r.OK(err)
				if n++; n == 700 {
					break
				}
			}
			synctest.Wait()
			r.Equal(fmt.Sprint("consumers after ", i), r.Stream("EV_A").State.Consumers, 0)
			r.Equal(fmt.Sprint("subscriptions after ", i), r.NC.NumSubscriptions(), before)
		}
		ctx, cancel := context.WithCancel(r.Context())
		n := 0
		var last error
		for _, err := range r.Bus.Read(ctx, []string{"a"}, jetbus.ReadOptions{}) {
			if n++; n == 700 {
				cancel()
			}
			last = err
		}
		cancel()
		r.WantErr(last, context.Canceled)
	})
}

func TestReadManyEvents(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 3000 // several steps of a scan
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", n), jetbus.BatchOptions{}))(r.T)
		// Gaps, as expiry leaves them.
		s := must(r.JS.Stream(r.Context(), "EV_A"))(r.T)
		r.OK(s.Purge(r.Context(), jetstream.WithPurgeSubject("ev.a.K.17")))
		r.OK(s.DeleteMsg(r.Context(), 1))
		want := strings.Fields(strings.Replace(" "+adaptertest.Keys(n)+" ", " 17 ", " ", 1))[1:]
		if got := r.Stored("a"); got != strings.Join(want, " ") {
			r.Errorf("got %.100s...", got)
		}
		if got := r.keysRead(r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{})); got != strings.Join(want, " ") {
			r.Errorf("got %.100s...", got)
		}
		scan := func(q jetbus.ScanQuery) string { return r.keysRead(r.Bus.Scan(r.Context(), "a", q)) }
		r.Equal("limit", scan(jetbus.ScanQuery{Limit: 3}), "1 2 3")
		r.Equal("filter before limit", scan(jetbus.ScanQuery{Limit: 3, Filter: jetbus.Filter{KeyPrefix: "299"}}), "299 2990 2991")
		r.Equal("from", scan(jetbus.ScanQuery{From: jetbus.AfterSeq(2998)}), "2998 2999")

		// What comes while the reader is at it is not waited for.
		got := 0
		for e, err := range r.Bus.Scan(r.Context(), "a", jetbus.ScanQuery{From: jetbus.AfterSeq(2000)}) {
			r.OK(err)
			if got++; e.Key == "late" {
				r.Fatal("the scan goes on behind its end")
			}
			if got <= 10 {
				r.Publish("a", "late")
			}
		}
		r.Equal("events", got, 1000)
	})
}

// A slow reader loses nothing.
func TestFollowSlowly(t *testing.T) {
	inBubble(t, func(r *rig) {
		const n = 1200
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", n), jetbus.BatchOptions{}))(r.T)
		i := 0
		for e, err := range r.Bus.Read(r.Context(), []string{"a"}, jetbus.ReadOptions{Follow: true, From: jetbus.Earliest()}) {
			r.OK(err)
			r.Equal("event", e.Key, i)
			if i%400 == 399 {
				time.Sleep(5 * time.Minute)
			}
			if i++; i == n {
				break
			}
		}
	})
}

func TestLatestByKey(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", KeyInSubject: true})
		r.Ensure(jetbus.TopicConfig{Name: "plain"})
		const n = 2500
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("a", n), jetbus.BatchOptions{}))(r.T)
		last := r.Publish("a", "", "ä.b *", "7", "_", "S")
		keys := []string{"none", "", "ä.b *", "_", "S", "S"}
		for i := range n {
			keys = append(keys, fmt.Sprint(i))
		}
		got := must(r.Bus.LatestByKey(r.Context(), "a", keys...))(r.T)
		r.Equal("keys", len(got), n+4)
		for _, e := range last {
			r.Equal("sequence of "+e.Key, got[e.Key].Seq, e.Seq)
			r.Equal("key", got[e.Key].Key, e.Key)
		}
		r.Equal("without keys", len(must(r.Bus.LatestByKey(r.Context(), "a"))(r.T)), 0)
		_, err := r.Bus.LatestByKey(r.Context(), "plain", "k")
		r.WantErr(err, jetbus.ErrNeedsKeySubject)
		_, err = r.Bus.LatestByKey(r.Context(), "a", "k", "\n")
		r.WantErr(err, jetbus.ErrInvalidEvent)
	})
}

// A position is one of the stream that it was found in: whoever follows a topic
// that is made anew learns of it, and so does a table.
func TestReadOfATopicMadeAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		for i := range 5 {
			r.put("state", "a", fmt.Sprint(i))
		}
		table := must(jetbus.OpenTable(r.Context(), r.Bus, "state", jetbus.TableOptions{}))(t)
		defer table.Close()
		ended := make(chan error, 1)
		go func() {
			ended <- adaptertest.FirstErr(r.Bus.Read(r.Context(), []string{"state"}, jetbus.ReadOptions{After: map[string]uint64{"state": 5}, Follow: true}))
		}()
		r.Settle()
		w, other := r.OpenCabled(adapter.Config{})
		cut := make(chan error, 1)
		go func() {
			cut <- adaptertest.FirstErr(other.Read(r.Context(), []string{"state"}, jetbus.ReadOptions{Follow: true}))
		}()
		r.Settle()
		w.Deaf.Store(true) // hears of nothing meanwhile
		r.OK(r.Bus.DeleteTopic(r.Context(), "state"))
		time.Sleep(time.Millisecond)
		r.compacted("state")
		w.Cut()
		r.put("state", "a", "new")
		for _, end := range []chan error{ended, cut} {
			r.WantErr(<-end, jetbus.ErrPositionUnknown)
		}
		<-table.Done()
		r.WantErr(table.Err(), jetbus.ErrPositionUnknown)
		r.WantErr(table.WaitFor(r.Context(), 6), jetbus.ErrPositionUnknown)
	})
}
