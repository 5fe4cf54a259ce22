package adapter_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

// soonTold is how long after what the server refused the error may come: a quarter of a
// second, and what an owner needs before.
const soonTold = 400 * time.Millisecond

// orders are the kinds of groups.
var orders = map[string]jetbus.Order{"without order": jetbus.NoOrder, "per key": jetbus.PerKey, "total": jetbus.Total}

// denied runs f in a bubble with a bus that may do anything, where the topic "a" has three
// events, and one whose user may not publish to some subjects.
func denied(t *testing.T, f func(t *testing.T, root, b *adapter.Bus), subjects ...string) {
	t.Helper()
	bustest.Run(t, func(t *testing.T) {
		t.Helper()
		t.Cleanup(func() { time.Sleep(time.Second) }) // as inBubble
		s := adaptertest.DenyingServer(t, subjects...)
		root := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("root", "root")), adapter.Config{}))(t)
		must(root.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}))(t)
		must(root.PublishBatch(t.Context(), adaptertest.Numbered("a", 3), jetbus.BatchOptions{}))(t)
		b := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("a", "a")), adapter.Config{}))(t)
		f(t, root, b)
		adaptertest.CloseBus(t, b)
		adaptertest.CloseBus(t, root)
	})
}

// told waits for the error that ends a subscription, and checks what it says and that
// it comes soon.
func told(t *testing.T, sub jetbus.Subscription, subject string) {
	t.Helper()
	began := time.Now()
	for sub.Err() == nil && time.Since(began) < time.Minute {
		time.Sleep(10 * time.Millisecond)
	}
	if took := time.Since(began); took > soonTold {
		t.Errorf("the subscription ends after %v", took)
	}
	wantDenied(t, sub.Err(), subject)
	select {
	case <-sub.Done():
	case <-time.After(time.Minute):
		t.Error("the subscription is not over")
	}
}

func wantDenied(t *testing.T, err error, subject string) {
	t.Helper()
	adaptertest.WantErr(t, err, jetbus.ErrDenied)
	if err == nil || !strings.Contains(err.Error(), subject) {
		t.Errorf("the error does not name %s: %v", subject, err)
	}
}

// Who may not create a group is told so, also without a deadline.
func TestDeniedSubscribe(t *testing.T) {
	denied(t, func(t *testing.T, _, b *adapter.Bus) {
		began := time.Now()
		_, err := b.Subscribe(t.Context(), "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{})
		wantDenied(t, err, "$JS.API.CONSUMER.CREATE.EV_A.")
		if took := time.Since(began); took > soonTold {
			t.Errorf("told after %v", took)
		}
	}, "$JS.API.CONSUMER.CREATE.EV_A.>")
}

func TestDeniedMove(t *testing.T) {
	denied(t, func(t *testing.T, root, b *adapter.Bus) {
		must(root.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{Wait: -1}))(t)
		began := time.Now()
		wantDenied(t, b.SetCursor(t.Context(), "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{}), "$JS.API.CONSUMER.CREATE.EV_A.a__g.")
		if took := time.Since(began); took > soonTold {
			t.Errorf("told after %v", took)
		}
	}, "$JS.API.CONSUMER.CREATE.EV_A.>")
}

func TestDeniedKeyWatch(t *testing.T) {
	denied(t, func(t *testing.T, root, b *adapter.Bus) {
		must(root.KeySet(t.Context(), "x", "k", []byte("1"), 0, 0))(t)
		wantDenied(t, adaptertest.FirstErr(b.KeyWatch(t.Context(), "x", "")), "$JS.API.CONSUMER.CREATE.KV_x.")
	}, "$JS.API.CONSUMER.CREATE.KV_x.>")
}

// A member of an ordered group that stands by watches who has the topic.
func TestDeniedStandBy(t *testing.T) {
	denied(t, func(t *testing.T, root, b *adapter.Bus) {
		o := jetbus.SubscribeOptions{Order: jetbus.PerKey}
		must(root.Subscribe(t.Context(), "a", "g", adaptertest.Ignore, o))(t)
		time.Sleep(time.Second) // it takes the topic
		sub := must(b.Subscribe(t.Context(), "a", "g", adaptertest.Ignore, o))(t)
		select {
		case <-sub.Done():
		case <-time.After(time.Minute):
			t.Error("it stands by without a word")
		}
		wantDenied(t, sub.Err(), "$JS.API.CONSUMER.CREATE.KV_JETBUS_GROUPS.")
	}, "$JS.API.CONSUMER.CREATE.KV_JETBUS_GROUPS.>")
}

func TestDeniedPull(t *testing.T) {
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			denied(t, func(t *testing.T, _, b *adapter.Bus) {
				sub := must(b.Subscribe(t.Context(), "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: order}))(t)
				synctest.Wait() // an owner takes its topic
				told(t, sub, "$JS.API.CONSUMER.MSG.NEXT.EV_A.a__g")
			}, "$JS.API.CONSUMER.MSG.NEXT.EV_A.>")
		})
	}
}

// The retries of a group are pulled for, too.
func TestDeniedPullOfRetries(t *testing.T) {
	denied(t, func(t *testing.T, _, b *adapter.Bus) {
		sub := must(b.Subscribe(t.Context(), "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{}))(t)
		told(t, sub, "$JS.API.CONSUMER.MSG.NEXT.EV_RETRY.")
	}, "$JS.API.CONSUMER.MSG.NEXT.EV_RETRY.>")
}

func TestDeniedAck(t *testing.T) {
	for name, order := range orders {
		t.Run(name, func(t *testing.T) {
			denied(t, func(t *testing.T, _, b *adapter.Bus) {
				ran := make(chan struct{}, 1)
				sub := must(b.Subscribe(t.Context(), "a", "g", func(context.Context, *jetbus.Delivery) error {
					select {
					case ran <- struct{}{}:
					default:
					}
					return nil
				}, jetbus.SubscribeOptions{From: jetbus.Earliest(), Order: order, AckTimeout: time.Second}))(t)
				<-ran
				told(t, sub, "$JS.ACK.EV_A.a__g")
			}, "$JS.ACK.>")
		})
	}
}

// A handler that takes longer than its lease never comes to acknowledge: the extensions
// of its lease are refused before.
func TestDeniedExtension(t *testing.T) {
	denied(t, func(t *testing.T, _, b *adapter.Bus) {
		sub := must(b.Subscribe(t.Context(), "a", "g", func(ctx context.Context, _ *jetbus.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		}, jetbus.SubscribeOptions{From: jetbus.Earliest(), AckTimeout: 3 * time.Second, ShutdownTimeout: time.Second}))(t)
		time.Sleep(time.Second) // when the first is due
		told(t, sub, "$JS.ACK.EV_A.a__g")
	}, "$JS.ACK.>")
}

func TestDeniedReceive(t *testing.T) {
	for _, subject := range []string{"$JS.API.CONSUMER.MSG.NEXT.EV_A.", "$JS.API.CONSUMER.MSG.NEXT.EV_RETRY."} {
		denied(t, func(t *testing.T, _, b *adapter.Bus) {
			began := time.Now()
			_, err := b.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Wait: time.Minute})
			wantDenied(t, err, subject)
			if took := time.Since(began); took > soonTold {
				t.Errorf("told after %v", took)
			}
		}, subject+">")
	}
}

func TestDeniedAckOfReceive(t *testing.T) {
	denied(t, func(t *testing.T, _, b *adapter.Bus) {
		got := must(b.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 3}))(t)
		if len(got) != 3 {
			t.Fatalf("received %d events", len(got))
		}
		began := time.Now()
		for _, d := range got {
			wantDenied(t, d.Ack(t.Context()), "$JS.ACK.EV_A.a__g.>")
		}
		if took := time.Since(began); took > soonTold {
			t.Errorf("told after %v", took)
		}
	}, "$JS.ACK.>")
}

// A read that goes on for ever would be silent for ever.
func TestDeniedRead(t *testing.T) {
	denied(t, func(t *testing.T, _, b *adapter.Bus) {
		began := time.Now()
		wantDenied(t, adaptertest.FirstErr(b.Read(t.Context(), []string{"a"}, jetbus.ReadOptions{Follow: true})), "$JS.API.CONSUMER.MSG.NEXT.EV_A.")
		if took := time.Since(began); took > soonTold {
			t.Errorf("told after %v", took)
		}
	}, "$JS.API.CONSUMER.MSG.NEXT.>")
}

// What a connection was refused says nothing of the next one, whose user may be allowed
// more, or less.
func TestDeniedUntilReconnect(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) }) // as inBubble
		s := adaptertest.DenyingServer(t, "$JS.API.CONSUMER.MSG.NEXT.>", "$JS.ACK.>")
		var user atomic.Value
		user.Store("root")
		nc := adaptertest.Dial(t, s, nats.UserInfoHandler(func() (string, string) {
			u, _ := user.Load().(string)
			return u, u
		}), nats.ReconnectWait(10*time.Millisecond))
		b := must(adapter.Open(t.Context(), nc, adapter.Config{AutoCreate: true}))(t)
		defer adaptertest.CloseBus(t, b)
		as := func(name string) {
			user.Store(name)
			if err := nc.ForceReconnect(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		var ran atomic.Int32
		count := func(context.Context, *jetbus.Delivery) error { ran.Add(1); return nil }
		subscribe := func() jetbus.Subscription {
			return must(b.Subscribe(t.Context(), "a", "g", count, jetbus.SubscribeOptions{AckTimeout: time.Second}))(t)
		}
		must(b.Publish(t.Context(), adaptertest.Event("a", "1")))(t)
		for range 3 {
			as("root")
			before := ran.Load()
			sub := subscribe()
			must(b.Publish(t.Context(), adaptertest.Event("a", "k")))(t)
			time.Sleep(10 * time.Second)
			if n := ran.Load() - before; n != 1 || sub.Err() != nil {
				t.Fatalf("%d events were handled, the subscription's error is %v", n, sub.Err())
			}
			as("a")
			told(t, sub, "$JS.API.CONSUMER.MSG.NEXT.")
		}
	})
}

// Of Receive the first acknowledgement on a connection is answered.
func TestAllowedAgainToAck(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Second) }) // as inBubble
		s := adaptertest.DenyingServer(t, "$JS.ACK.>")
		var user atomic.Value
		user.Store("a")
		nc := adaptertest.Dial(t, s, nats.UserInfoHandler(func() (string, string) {
			u, _ := user.Load().(string)
			return u, u
		}), nats.ReconnectWait(10*time.Millisecond))
		b := must(adapter.Open(t.Context(), nc, adapter.Config{AutoCreate: true}))(t)
		defer adaptertest.CloseBus(t, b)
		must(b.PublishBatch(t.Context(), adaptertest.Numbered("a", 2), jetbus.BatchOptions{}))(t)
		receive := func() *jetbus.Delivery {
			return must(b.Receive(t.Context(), "a", "g", jetbus.ReceiveOptions{From: jetbus.Earliest(), Max: 1}))(t)[0]
		}
		wantDenied(t, receive().Ack(t.Context()), "$JS.ACK.EV_A.a__g.>")
		user.Store("root")
		if err := nc.ForceReconnect(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if err := receive().Ack(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// What a deletion could not remove of a topic's retries is removed by the next one, which
// finds no topic any more.
func TestDeniedRemovalOfRetries(t *testing.T) {
	denied(t, func(t *testing.T, root, b *adapter.Bus) {
		put := make(chan struct{}, 3)
		must(root.Subscribe(t.Context(), "a", "g", func(context.Context, *jetbus.Delivery) error {
			put <- struct{}{}
			return jetbus.Snooze(time.Hour)
		}, jetbus.SubscribeOptions{From: jetbus.Earliest()}))(t)
		for range 3 {
			<-put
		}
		time.Sleep(time.Second)
		wantDenied(t, b.DeleteTopic(t.Context(), "a"), "$JS.API.STREAM.PURGE.EV_RETRY")
		adaptertest.WantErr(t, root.DeleteTopic(t.Context(), "a"), jetbus.ErrNoTopic)
		must(root.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "a"}))(t)
		must(root.Subscribe(t.Context(), "a", "g", func(_ context.Context, d *jetbus.Delivery) error {
			t.Errorf("got %+v", d.Event)
			return nil
		}, jetbus.SubscribeOptions{}))(t)
		time.Sleep(2 * time.Hour)
	}, "$JS.API.STREAM.PURGE.EV_RETRY")
}
