package registry_test

import (
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
	var refused atomic.Int64
	sub, err := nc.Subscribe("$JS.away.API.>", func(m *nats.Msg) { // a domain's API in front of the broker's
		if strings.Contains(m.Subject, ".STREAM.MSG.GET.") && refused.Add(1) <= 2 {
			_ = m.Respond([]byte(`{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`))
			return
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: strings.Replace(m.Subject, ".away.", ".", 1), Reply: m.Reply, Header: m.Header, Data: m.Data})
	})
	r.ok(err)
	r.ok(nc.Flush())
	reg := openOn(t, bustest.Connect(t, r.broker), registry.Config{Domain: "away"})
	_, err = reg.Compiled(t.Context(), "t", 7)
	r.is(err, registry.ErrNoVersion)
	if n := refused.Load(); n < 3 { // it is asked once more where an answer takes long
		t.Errorf("asked %d times, want 3", n)
	}
	r.ok(sub.Unsubscribe())
}
