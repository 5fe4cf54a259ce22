package groups_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// requests counts what the server's API is asked for, by the kind of the request.
func (r *rig) requests() (count func() map[string]int) {
	r.Helper()
	var mu sync.Mutex
	counts := map[string]int{}
	sub := must(r.NC.Subscribe("$JS.API.>", func(m *nats.Msg) {
		kind, _ := strings.CutPrefix(m.Subject, "$JS.API.")
		if words := strings.Split(kind, "."); len(words) > 2 {
			kind = words[0] + "." + words[1]
		}
		mu.Lock()
		defer mu.Unlock()
		counts[kind]++
		counts["all"]++
	}))(r.T)
	r.OK(r.NC.Flush())
	return func() map[string]int {
		r.Settle()
		r.OK(sub.Unsubscribe())
		mu.Lock()
		defer mu.Unlock()
		return counts
	}
}

// A take-over costs a number of requests for each partition that does not depend on how
// many there are, also where durables were replaced behind the back of who takes over.
func TestTakeOverRequests(t *testing.T) {
	for _, n := range []int{4, 16} { // of which the second is well above the lists that are allowed
		inBubble(t, func(r *rig) {
			r.partitioned(n, inPartition(1))
			_, other := r.Open(adapter.Config{})
			r.OK(other.JoinPartitions(r.Context(), "a", "g", inPartition(1))) // and has seen all durables
			u := r.turns()
			none := func(context.Context, *jetbus.Delivery) error { return nil }
			active := func(members []jetbus.PartitionSubscription) {
				r.Helper()
				r.Within(time.Minute, "all active", func() bool {
					for _, m := range members {
						if !m.Stats().Active {
							return false
						}
					}
					return true
				})
				r.publishKeys("a", 4*n, int(u.epoch), 1) //nolint:gosec // few
				r.settled(time.Minute)
			}
			for range 2 { // the second time they are replaced
				ctx, crash := context.WithCancel(r.Context())
				members := u.all(ctx, r.Bus, 1, n, none, inPartition(1))
				active(members)
				crash()
				for _, m := range members {
					<-m.Done()
				}
			}
			count := r.requests()
			members := u.all(r.Context(), other, 1, n, none, inPartition(1))
			active(members)
			counts := count()
			t.Logf("take-over of %d partitions: %v", n, counts)
			if most := 40 + 40*n; counts["all"] > most || counts["CONSUMER.LIST"] > 8 {
				t.Errorf("take-over of %d partitions: %v, want at most %d, 8 of them lists", n, counts, most)
			}
			for _, m := range members {
				r.OK(m.Stop(r.Context()))
			}
		})
	}
}

// A group that was moved, or changed hands, is found by the name of the durable that a bus
// has seen: only the first look of one that has not asks for the names of all.
func TestMovedGroupIsFoundByName(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		_, other := r.Open(adapter.Config{})
		receive := func(b *adapter.Bus) {
			r.Helper()
			r.Equal("received", len(must(b.Receive(r.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}))(t)), 0)
		}
		none := func(context.Context, *jetbus.Delivery) error { return nil }
		pause := func(b *adapter.Bus) { // which looks for both durables of a group
			r.Helper()
			r.OK(b.PauseGroup(r.Context(), "a", "ordered", time.Now().Add(time.Hour)))
			r.OK(b.ResumeGroup(r.Context(), "a", "ordered"))
		}
		receive(r.Bus)
		for range 2 {
			s := must(r.Bus.Subscribe(r.Context(), "a", "ordered", none, jetbus.SubscribeOptions{Order: jetbus.PerKey}))(t)
			r.Within(time.Minute, "active", func() bool { return s.Stats().Active })
			r.OK(s.Stop(r.Context()))
			for _, durable := range []string{"EV_A.a__ordered", "EV_RETRY.a__ordered__retries"} {
				stray := must(r.NC.SubscribeSync(r.NC.NewInbox()))(t) // a request for which the next owner replaces the durable
				r.OK(r.NC.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+durable, stray.Subject, []byte(`{"batch":1,"expires":3600000000000}`)))
			}
			r.Settle()
		}
		r.OK(r.Bus.SetCursor(r.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{ToLatest: true}))
		looks := func(of func()) int {
			r.Helper()
			count := r.requests()
			of()
			counts := count()
			r.Equal("lists", counts["CONSUMER.LIST"], 0)
			return counts["CONSUMER.NAMES"]
		}
		r.Equal("looks of who moved it", looks(func() { receive(r.Bus) }), 0)
		r.Equal("looks of another, the first time", looks(func() { receive(other) }), 1)
		r.Equal("looks of another", looks(func() { receive(other); receive(other) }), 0)
		for _, b := range []*adapter.Bus{r.Bus, other} {
			pause(b)
			r.Equal("looks for a group that changed hands", looks(func() { pause(b) }), 0)
		}
		for stream, name := range map[string]string{"EV_A": "a__ordered__e1", "EV_RETRY": "a__ordered__retries__e1"} {
			must(r.JS.Consumer(r.Context(), stream, name))(t)
		}
	})
}

// Two that make a group at the same moment make one: all its partitions begin where the
// first of them said.
func TestPartitionsMadeAtOnce(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a", Partitions: 16, Retention: forever})
		r.publishKeys("a", 16, 0, 2)
		const makers = 4
		var wg sync.WaitGroup
		for i := range makers {
			_, b := r.Open(adapter.Config{})
			o := inPartition(1)
			if i%2 == 0 {
				o.From = jetbus.Latest()
			}
			wg.Go(func() { r.WantNil(b.JoinPartitions(r.Context(), "a", "g", o)) })
		}
		wg.Wait()
		starts, moves := map[string]int{}, map[string]int{}
		for info := range must(r.JS.Stream(r.Context(), "EV_A"))(r.T).ListConsumers(r.Context()).Info() {
			starts[info.Config.Metadata["jetbus.start"]]++
			moves[info.Config.Metadata["jetbus.move"]]++
		}
		if len(starts) != 1 || len(moves) != 1 {
			t.Errorf("begin at %v, by %v", starts, moves)
		}
		for start, n := range starts {
			r.Equal("durables", n, 16)
			left := map[string]uint64{"1": 32, "33": 0}
			var pending uint64
			for _, p := range r.parts() {
				pending += p.Pending
			}
			want, ok := left[start]
			r.Equal("events that are left from "+start, []any{pending, ok}, []any{want, true})
		}
	})
}
