package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

// TestAskWithoutLeader: a bucket that has no leader for a moment is asked again, and not
// given up.
func TestAskWithoutLeader(t *testing.T) {
	r := newRig(t)
	r.register("t", object("a"))
	nc := bustest.Connect(t, r.broker)
	var opened atomic.Bool
	var refused atomic.Int64
	sub, err := nc.Subscribe("$JS.away.API.>", func(m *nats.Msg) { // a domain's API in front of the broker's
		if strings.Contains(m.Subject, ".STREAM.MSG.GET.") && opened.Load() && refused.Add(1) <= 2 {
			_ = m.Respond([]byte(`{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`))
			return
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: strings.Replace(m.Subject, ".away.", ".", 1), Reply: m.Reply, Header: m.Header, Data: m.Data})
	})
	r.ok(err)
	r.ok(nc.Flush())
	reg := openOn(t, bustest.Connect(t, r.broker), registry.Config{Domain: "away"})
	opened.Store(true)
	_, err = reg.Compiled(t.Context(), "t", 7)
	r.is(err, registry.ErrNoVersion)
	if n := refused.Load(); n < 3 { // it is asked once more where an answer takes long
		t.Errorf("asked %d times, want 3", n)
	}
	r.ok(sub.Unsubscribe())
}

// A registry that was opened has all that the bucket's leader had then, also where its watcher
// began at a replica that was behind.
func TestOpenBehind(t *testing.T) {
	r := newRig(t)
	r.register("t", object("a"))
	ahead := 2 * r.lastSeq() // where the next registration ends
	nc := bustest.Connect(t, r.broker)
	asked := make(chan struct{}, 1)
	sub, err := nc.Subscribe("$JS.ahead.API.>", func(m *nats.Msg) { // an API whose leader has more than its replica
		if strings.Contains(m.Subject, ".STREAM.MSG.GET.") {
			select {
			case asked <- struct{}{}:
			default:
			}
			_ = m.Respond(fmt.Appendf(nil, `{"message":{"subject":"x","seq":%d}}`, ahead))
			return
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: strings.Replace(m.Subject, ".ahead.", ".", 1), Reply: m.Reply, Header: m.Header, Data: m.Data})
	})
	r.ok(err)
	r.ok(nc.Flush())
	opened := make(chan error, 1)
	other := bustest.Connect(t, r.broker)
	go func() {
		reg, err := registry.Open(t.Context(), other, registry.Config{Domain: "ahead"})
		if err == nil {
			var all []registry.Version
			if all, err = reg.Versions(t.Context(), "t", false); err == nil && len(all) != 2 {
				err = fmt.Errorf("it knows %d versions, want 2", len(all))
			}
			err = errors.Join(err, reg.Close(context.Background()))
		}
		opened <- err
	}()
	select {
	case <-asked:
	case err := <-opened:
		t.Fatalf("it was opened without the leader: %v", err)
	}
	r.register("t", object("a", "b"))
	r.ok(<-opened)
	r.ok(sub.Unsubscribe())
}
