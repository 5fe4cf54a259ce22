package adapter

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
)

// With replicas an event waits for a majority, and the word that there is no room for the
// next one does not: what was sent before the word is waited for, and nothing is asked for
// meanwhile, neither again nor of the next topic.
func TestReceiveWordsOvertake(t *testing.T) {
	bus, _ := movable(t)
	if _, err := bus.EnsureTopic(t.Context(), jetbus.TopicConfig{Name: "k"}); err != nil {
		t.Fatal(err)
	}
	main, err := bus.lookup(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	retries := bus.retryTopic(main, "g")
	r, err := bus.useHandedOut(main, "g", time.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer bus.unuseHandedOut(r)
	asked, err := bus.nc.SubscribeSync("stand.in.*")
	if err != nil {
		t.Fatal(err)
	}
	o, err := jetbus.ReceiveOptions{Wait: time.Minute, MaxBytes: 1000}.Normalize()
	if err != nil {
		t.Fatal(err)
	}
	call, err := r.open(o)
	if err != nil {
		t.Fatal(err)
	}
	standIn := func(t *topic, name string) source {
		return source{t: t, durable: name, at: pullPoint{bus.nc, "stand.in." + name}, most: 1000, room: 1000, delivered: &high{}}
	}
	g := &knownGroup{t: main, main: standIn(main, "topic"), retries: standIn(retries, "retries")}
	ended := make(chan error, 1)
	go func() { ended <- call.pull(t.Context(), g.retries, o.Max, time.Minute) }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if m, err := asked.NextMsgWithContext(ctx); err != nil || m.Subject != "stand.in.retries" {
		t.Fatal(m, err)
	}
	call.receive(&nats.Msg{Header: nats.Header{
		"Status": {"409"}, "Description": {"Message Size Exceeds MaxBytes"}, "Nats-Pending-Messages": {fmt.Sprint(o.Max - 2)}, "Nats-Pending-Bytes": {"100"},
	}})
	if m, err := asked.NextMsg(3 * denialCheck); err == nil {
		t.Errorf("asked again at %s: %s", m.Subject, m.Data)
	}
	for i := range 2 {
		call.receive(&nats.Msg{Subject: "ev.R.k.g.x", Reply: fmt.Sprintf("$JS.ACK.EV_RETRY.k__g__retries.1.%d.%d.1700000000000000000.0", i+1, i+1), Data: []byte("1")})
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := call.collect(t.Context(), g, o); err != nil {
		t.Error(err)
	}
	if n, _, err := asked.Pending(); n > 0 || err != nil {
		t.Errorf("%d requests more, %v", n, err)
	}
	leases := call.take()
	for _, l := range leases {
		if l.t != retries {
			t.Errorf("event %d is taken for one of %s", l.seq, l.t.name())
		}
	}
	if len(leases) != 2 {
		t.Errorf("%d events", len(leases))
	}
	r.mu.Lock()
	for r.count > 0 {
		r.removeLocked(r.first.next, leaseSettled)
	}
	r.mu.Unlock()
	call.end(t.Context())
}
