package partition_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/partition"
)

// bucketRig is a broker with the bucket in which groups meet.
type bucketRig struct {
	*testing.T
	broker *embedded.Broker
	bus    *adapter.Bus
}

func inBucket(t *testing.T, f func(r *bucketRig)) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		broker := bustest.Start(t, embedded.Config{})
		f(&bucketRig{T: t, broker: broker, bus: bustest.Open(t, broker, adapter.Config{})})
	})
}

func (r *bucketRig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// lose purges or deletes the bucket's stream.
func (r *bucketRig) lose(how string) {
	r.Helper()
	nc, err := r.broker.Connect()
	r.ok(err)
	defer nc.Close()
	_, err = nc.Request("$JS.API.STREAM."+how+".KV_"+partition.DefaultBucket, nil, 5*time.Second)
	r.ok(err)
}

// keys are those of JETBUS_GROUPS that have a value.
func (r *bucketRig) keys() (out []string) {
	r.Helper()
	for e, err := range r.bus.KeyWatch(r.Context(), partition.DefaultBucket, "") {
		r.ok(err)
		if e.Synced {
			break
		}
		out = append(out, e.Key)
	}
	slices.Sort(out)
	return out
}

// A group at a server whose bucket is purged or deleted is complete again within a TTL. No partition
// has two owners, and epochs ascend.
func TestGroupOutlivesItsBucketOnABroker(t *testing.T) {
	for _, how := range []string{"PURGE", "DELETE"} {
		t.Run(how, func(t *testing.T) {
			inBucket(t, func(r *bucketRig) {
				const n = 9
				var mu sync.Mutex
				owners, epochs := map[int]*holding{}, map[int]uint64{}
				own := func(ctx context.Context, turn *partition.Turn) (bool, error) {
					mu.Lock()
					if before := owners[turn.Partition]; before != nil && before.ctx.Err() == nil {
						r.Errorf("partition %d has two owners", turn.Partition)
					}
					if turn.Epoch <= epochs[turn.Partition] {
						r.Errorf("partition %d: epoch %d after %d", turn.Partition, turn.Epoch, epochs[turn.Partition])
					}
					owners[turn.Partition], epochs[turn.Partition] = &holding{ctx: ctx, turn: turn}, turn.Epoch
					mu.Unlock()
					select {
					case <-turn.Revoked():
					case <-ctx.Done():
					}
					mu.Lock()
					defer mu.Unlock()
					if h := owners[turn.Partition]; h != nil && h.turn == turn {
						delete(owners, turn.Partition)
					}
					return true, nil
				}
				var members []*partition.Membership
				for _, id := range []string{"a", "b", "c"} {
					bus := bustest.Open(r, r.broker, adapter.Config{SID: id})
					m, err := partition.Join(r.Context(), bus, "orders/invoices", own, partition.Options{Partitions: n, Member: id})
					r.ok(err)
					members = append(members, m)
				}
				time.Sleep(5 * time.Second)
				for range 3 {
					r.lose(how)
					time.Sleep(partition.DefaultTTL)
					for i, m := range members {
						if owned := m.Owned(); len(owned) != n/len(members) || m.Err() != nil {
							r.Errorf("a TTL after the loss member %d has %v: %v", i, owned, m.Err())
						}
					}
				}
				for _, m := range members {
					r.ok(m.Stop(r.Context()))
				}
			})
		})
	}
}

// Keys of groups are removed with their group, and with their topic.
func TestKeysGoWithTheirGroup(t *testing.T) {
	for what, remove := range map[string]func(r *bucketRig) error{
		"groups": func(r *bucketRig) error {
			for _, of := range [][2]string{{"orders", "billing"}, {"orders", "dotted.name"}, {"state", "ordered"}} {
				if err := r.bus.DeleteGroup(r.Context(), of[0], of[1]); err != nil {
					return err
				}
			}
			return nil
		},
		"topics": func(r *bucketRig) error {
			if err := r.bus.DeleteTopic(r.Context(), "orders"); err != nil {
				return err
			}
			return r.bus.DeleteTopic(r.Context(), "state")
		},
	} {
		t.Run(what, func(t *testing.T) {
			inBucket(t, func(r *bucketRig) {
				r.use("orders", 16, "billing", "dotted.name")
				r.use("kept", 4, "billing")
				r.use("state", 0, "ordered")
				var want []string
				for _, key := range r.keys() {
					if strings.HasPrefix(key, "EV_KEPT") {
						want = append(want, key)
					}
				}
				if len(r.keys()) < 70 {
					r.Errorf("only %d keys: that proves nothing", len(r.keys()))
				}
				r.ok(remove(r))
				if got := r.keys(); !slices.Equal(got, want) {
					r.Errorf("keys are left: %q, want %q", got, want)
				}
			})
		})
	}
}

// use declares a topic, with partitions or without, and has groups handle an event of it.
func (r *bucketRig) use(topic string, partitions int, groups ...string) {
	r.Helper()
	_, err := r.bus.EnsureTopic(r.Context(), jetbus.TopicConfig{Name: topic, Partitions: partitions})
	r.ok(err)
	for range 2 * max(partitions, 1) {
		_, err = r.bus.Publish(r.Context(), jetbus.Event{Topic: topic, Payload: []byte("1")}, jetbus.PublishOptions{})
		r.ok(err)
	}
	handle := func(context.Context, *jetbus.Delivery) error { return nil }
	for _, group := range groups {
		var s interface{ Stop(context.Context) error }
		if partitions > 0 {
			s, err = partition.Subscribe(r.Context(), r.bus, topic, group, handle, partition.SubscribeOptions{})
		} else {
			s, err = r.bus.Subscribe(r.Context(), topic, group, handle, jetbus.SubscribeOptions{Order: jetbus.PerKey})
		}
		r.ok(err)
		time.Sleep(5 * time.Second)
		r.ok(s.Stop(r.Context()))
	}
}

// Keys that older versions left are swept; keys of groups that exist, of other programs' groups, of
// other prefixes and of live members stay.
func TestKeysThatWereLeftAreSwept(t *testing.T) {
	inBucket(t, func(r *bucketRig) {
		r.use("orders", 4, "billing")
		r.use("state", 0, "ordered")
		kept := r.keys()
		gone := []string{
			"EV_GONE/billing/g1/.c", "EV_GONE/billing/g1/.l/0", "EV_GONE/dotted.name/g12/.l/15", "EV_GONE/long~0123456789abcdef/.c",
			"EV_GONE.gone__billing", "EV_GONE.gone__billing#held", "EV_GONE.gone__billing__p1_3/rest",
			"EV_ORDERS/deleted/g1/.c", "EV_ORDERS/deleted/g1/.l/3", "EV_ORDERS.orders__deleted__p1_3/rest",
			"EV_STATE.state__deleted", "EV_STATE.state__deleted#held", "EV_STATE.state__deleted/rest",
		}
		foreign := []string{
			"EV_ORDERS/long~0123456789abcdef/.c", "shop/workers/.c", "shop/workers/.l/0", "a.b/.c", "EV_GONE/workers/.c", "EV_GONE.plain", "OTHER.gone__billing", "SHOP_GONE__ABC/billing/g1/.c", "plain",
		}
		for _, key := range append(append([]string{}, gone...), foreign...) {
			_, err := r.bus.KeySet(r.Context(), partition.DefaultBucket, key, []byte(`{"state":"free"}`), 0, 0)
			r.ok(err)
		}
		live := []string{"EV_GONE/live/g1/.c", "EV_GONE/live/g1/.m/a", "EV_GONE.gone__held"}
		for i, key := range live {
			_, err := r.bus.KeySet(r.Context(), partition.DefaultBucket, key, []byte(`{"state":"held"}`), 0, []time.Duration{0, time.Hour, time.Hour}[i])
			r.ok(err)
		}
		s, err := r.bus.Subscribe(r.Context(), "state", "ordered", func(context.Context, *jetbus.Delivery) error { return nil }, jetbus.SubscribeOptions{Order: jetbus.PerKey})
		r.ok(err)
		time.Sleep(2 * time.Minute)
		r.ok(s.Stop(r.Context()))
		want := append(append(kept, foreign...), live...)
		slices.Sort(want)
		if got := r.keys(); !slices.Equal(got, want) {
			r.Errorf("got  %q\nwant %q", got, want)
		}
	})
}
