package reads_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
)

func TestLatestByKeyCounts(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("state", 1025), jetbus.BatchOptions{}))(t)
		r.bury("state", "7")
		for _, n := range []int{0, 1, 1000, 1023, 1024, 1025} {
			keys := make([]string, n)
			for i := range keys {
				keys[i] = fmt.Sprint(i)
			}
			got := must(r.Bus.LatestByKey(r.Context(), "state", keys...))(t)
			want := n
			if n > 7 {
				want--
			}
			r.Equal(fmt.Sprint(n, " keys"), len(got), want)
			for key, e := range got {
				if e.Key != key || string(e.Payload) != `"`+key+`"` {
					t.Fatalf("key %s has %+v", key, e)
				}
			}
		}
		state, asOf := r.scanned("state")
		if len(state) == 0 || asOf != 1026 {
			t.Errorf("scan as of %d", asOf)
		}
	})
}

func TestScanLatestRefuses(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "plain"})
		r.compacted("state")
		each := func(jetbus.Event) error { return nil }
		_, err := r.Bus.ScanLatest(r.Context(), "plain", jetbus.LatestQuery{}, each)
		r.WantErr(err, jetbus.ErrNeedsKeySubject)
		_, err = r.Bus.ScanLatest(r.Context(), "none", jetbus.LatestQuery{}, each)
		r.WantErr(err, jetbus.ErrNoTopic)
		_, asOf := r.scanned("state")
		r.Equal("an empty topic", asOf, 0)
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("state", 10), jetbus.BatchOptions{}))(t)
		n, enough := 0, errors.New("enough")
		_, err = r.Bus.ScanLatest(r.Context(), "state", jetbus.LatestQuery{}, func(jetbus.Event) error {
			if n++; n == 3 {
				return enough
			}
			return nil
		})
		r.WantErr(err, enough)
		r.Equal("events before the error", n, 3)
		var keys []string
		must(r.Bus.ScanLatest(r.Context(), "state", jetbus.LatestQuery{KeyPrefix: "1"}, func(e jetbus.Event) error {
			keys = append(keys, e.Key)
			return nil
		}))(t)
		r.Equal("by prefix", keys, "[1]")
		ctx, cancel := context.WithCancel(r.Context())
		_, err = r.Bus.ScanLatest(ctx, "state", jetbus.LatestQuery{}, func(jetbus.Event) error { cancel(); return nil })
		r.WantErr(err, context.Canceled)
		r.OK(must(r.JS.Stream(r.Context(), "EV_STATE"))(t).Purge(r.Context()))
		_, asOf = r.scanned("state")
		r.Equal("a purged topic", asOf, 10)
	})
}

// While keys change under it, a scan gives the state as of the position it
// returns: what the events up to there amount to.
func TestScanLatestIsExact(t *testing.T) {
	for what, c := range map[string]jetbus.TopicConfig{
		"compacted":           {Name: "state", Compact: true},
		"with history":        {Name: "state", Compact: true, History: 4},
		"a log":               {Name: "state", KeyInSubject: true},
		"in a shared stream":  {Name: "state", Compact: true, Stream: "SHARED"},
		"with delayed events": {Name: "state", Compact: true, Delays: true},
	} {
		t.Run(what, func(t *testing.T) {
			inRealTime(t, func(r *rig) {
				c.Storage = jetbus.MemoryStorage
				r.Ensure(c)
				var mu sync.Mutex
				log := map[uint64]jetbus.Event{}
				write := func(b *adapter.Bus, from, n, keys int) {
					for i := range n {
						e := adaptertest.Event("state", fmt.Sprint((from+i)%keys))
						e.Payload = fmt.Append(nil, from+i)
						if i%17 == 16 && c.Compact {
							e = jetbus.Tombstone("state", e.Key)
						}
						receipt := must(b.Publish(t.Context(), e))(t)
						mu.Lock()
						log[receipt.Event.Seq] = receipt.Event
						mu.Unlock()
					}
				}
				write(r.Bus, 0, 500, 200)
				_, other := r.Open(adapter.Config{})
				stop := make(chan struct{})
				var writer sync.WaitGroup
				writer.Go(func() {
					pace := time.NewTicker(2 * time.Millisecond)
					defer pace.Stop()
					for i := 500; ; i += 10 {
						select {
						case <-stop:
							return
						case <-pace.C:
							write(other, i, 10, 200)
						}
					}
				})
				type result struct {
					asOf  uint64
					state map[string]jetbus.Event
				}
				var results []result
				for range 10 {
					one := result{state: map[string]jetbus.Event{}}
					last := uint64(0)
					one.asOf = must(r.Bus.ScanLatest(t.Context(), "state", jetbus.LatestQuery{}, func(e jetbus.Event) error {
						if e.Seq <= last {
							t.Errorf("event %d after %d", e.Seq, last)
						}
						one.state[e.Key], last = e, e.Seq
						return nil
					}))(t)
					results = append(results, one)
				}
				close(stop)
				writer.Wait()
				want, upTo := map[string]jetbus.Event{}, uint64(0) // a scan is not as of less than the one before
				for i, one := range results {
					if one.asOf < upTo {
						t.Fatalf("scan %d is as of %d, the one before as of %d", i, one.asOf, upTo)
					}
					for ; upTo < one.asOf; upTo++ {
						if e, ok := log[upTo+1]; ok {
							want[e.Key] = e
						}
					}
					for key, e := range want {
						if got := one.state[key]; got.Seq != e.Seq {
							t.Fatalf("scan %d as of %d: key %s is at %d, want %d", i, one.asOf, key, got.Seq, e.Seq)
						}
					}
					if len(one.state) != len(want) {
						t.Errorf("scan %d: %d keys, want %d", i, len(one.state), len(want))
					}
				}
			})
		})
	}
}

func TestScanLatestSurvivesLoss(t *testing.T) {
	inRealTime(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "state", Compact: true})
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("state", 3000), jetbus.BatchOptions{}))(t)
		w, b := r.OpenCabled(adapter.Config{})
		state := map[string]uint64{}
		cuts := 0
		asOf := must(b.ScanLatest(r.Context(), "state", jetbus.LatestQuery{}, func(e jetbus.Event) error {
			state[e.Key] = e.Seq
			if len(state)%1000 == 500 && cuts < 3 {
				cuts++
				w.Cut()
			}
			return nil
		}))(t)
		r.Equal("keys", len(state), 3000)
		r.Equal("as of", asOf, 3000)
		if cuts == 0 {
			t.Error("the connection was never cut")
		}
	})
}

// A scan whose topic is purged meanwhile comes to its end, with what is left and all
// that came since, as of the position it says.
func TestScanLatestDuringPurge(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("state", 3000), jetbus.BatchOptions{}))(t)
		stream := must(r.JS.Stream(r.Context(), "EV_STATE"))(t)
		state := map[string]uint64{}
		asOf := must(r.Bus.ScanLatest(r.Context(), "state", jetbus.LatestQuery{}, func(e jetbus.Event) error {
			if len(state) == 10 {
				r.OK(stream.Purge(r.Context(), jetstream.WithPurgeSequence(2900)))
				r.put("state", "2950", "new")
			}
			state[e.Key] = e.Seq
			return nil
		}))(t)
		r.Equal("as of", asOf, 3001)
		r.Equal("a key that changed", state["2950"], 3001)
		for seq := uint64(2900); seq <= 3000; seq++ { // what is left of the others
			if key := fmt.Sprint(seq - 1); key != "2950" && state[key] != seq {
				r.Errorf("key %s is at %d, want %d", key, state[key], seq)
			}
		}
		rest, asOf := r.scanned("state")
		r.Equal("keys then, as of", fmt.Sprint(len(strings.Fields(rest)), " ", asOf), "101 3001")
	})
}

// Without a deadline a scan does not wait for ever for a broker that is gone.
func TestScanLatestGivesUp(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.compacted("state")
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("state", 2000), jetbus.BatchOptions{}))(t)
		_, b := r.Open(adapter.Config{}, nats.MaxReconnects(-1))
		_, err := b.ScanLatest(context.WithoutCancel(r.Context()), "state", jetbus.LatestQuery{}, func(e jetbus.Event) error {
			if e.Seq == 100 {
				r.OK(r.Broker.Kill(r.Context()))
			}
			return nil
		})
		r.WantErr(err, jetbus.ErrUnavailable)
		r.OK(r.Broker.Restart(r.Context()))
		time.Sleep(time.Minute)
	})
}

// A stream that is deleted and declared anew begins its state anew.
func TestScanLatestOfATopicDeclaredAnew(t *testing.T) {
	inBubble(t, func(r *rig) {
		before := r.compacted("state")
		must(r.Bus.PublishBatch(r.Context(), adaptertest.Numbered("state", 100), jetbus.BatchOptions{}))(t)
		r.OK(r.Bus.DeleteTopic(r.Context(), "state"))
		time.Sleep(time.Second)
		after := r.compacted("state")
		if !after.Created.After(before.Created) {
			t.Errorf("created %v, then %v", before.Created, after.Created)
		}
		r.put("state", "a", "1")
		state, asOf := r.scanned("state")
		r.Equal("scan", fmt.Sprint(state, asOf), "a=11")
	})
}
