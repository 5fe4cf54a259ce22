package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

const swallow = "-" // is no answer

// inFront puts a domain's API in front of the broker's. answer is asked first for what
// the bucket's leader would answer when it is asked for a record; "" is to ask the broker.
func (r *rig) inFront(domain string, answer func() string) {
	r.Helper()
	nc := bustest.Connect(r.T, r.broker)
	must(nc.Subscribe("$JS."+domain+".API.>", func(m *nats.Msg) {
		if strings.Contains(m.Subject, ".STREAM.MSG.GET.") {
			switch a := answer(); a {
			case "":
			case swallow:
				return
			default:
				_ = m.Respond([]byte(a))
				return
			}
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: strings.Replace(m.Subject, "."+domain+".", ".", 1), Reply: m.Reply, Header: m.Header, Data: m.Data})
	}))(r.T)
	r.ok(nc.Flush())
}

// lastIs is a leader's answer.
func lastIs(seq uint64) string {
	return fmt.Sprintf(`{"message":{"subject":"x","seq":%d}}`, seq)
}

// TestAskWithoutLeader: a bucket that has no leader for a moment is asked again, and not
// given up.
func TestAskWithoutLeader(t *testing.T) {
	r := newRig(t)
	r.register("t", object("a"))
	var opened atomic.Bool
	var refused atomic.Int64
	r.inFront("away", func() string {
		if opened.Load() && refused.Add(1) <= 2 {
			return `{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`
		}
		return ""
	})
	reg := openOn(t, bustest.Connect(t, r.broker), registry.Config{Domain: "away"})
	opened.Store(true)
	_, err := reg.Compiled(t.Context(), "t", 7)
	r.is(err, registry.ErrNoVersion)
	if n := refused.Load(); n < 3 { // it is asked once more where an answer takes long
		t.Errorf("asked %d times, want 3", n)
	}
}

// A registry that was opened has all that the bucket's leader had then, also where its watcher
// began at a replica that was behind.
func TestOpenBehind(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		r := newRig(t)
		r.register("t", object("a"))
		before := r.lastSeq()
		r.register("t", object("a", "b"))
		ahead := 2*r.lastSeq() - before  // where the next registration ends
		asked := make(chan struct{}, 64) // more often than it is asked
		r.inFront("ahead", func() string {
			asked <- struct{}{}
			return lastIs(ahead)
		})
		opened := make(chan error, 1)
		nc := bustest.Connect(t, r.broker)
		go func() {
			reg, err := registry.Open(t.Context(), nc, registry.Config{Domain: "ahead", Timeout: limit})
			if err == nil {
				var all []registry.Version
				if all, err = reg.Versions(t.Context(), "t", false); err == nil && len(all) != 3 {
					err = fmt.Errorf("it knows %d versions, want 3", len(all))
				}
				err = errors.Join(err, reg.Close(context.Background()))
			}
			opened <- err
		}()
		for range 2 { // the second time it is asked for a watcher that remained behind
			select {
			case <-asked:
			case err := <-opened:
				t.Fatalf("it was opened without what the leader has: %v", err)
			}
		}
		r.register("t", object("a", "b", "c"))
		if now := r.lastSeq(); now != ahead {
			t.Fatalf("the third registration ended at %d, and not at %d as the second one let expect", now, ahead)
		}
		r.ok(<-opened)
	})
}

// A cache does not go back where the watcher that is made after a reconnect begins at a
// replica that is behind. What the leader has lost is gone.
func TestCacheStaysBehind(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		r := newRig(t)
		r.register("t", object("a"))
		r.register("t", object("a", "b"))
		all := r.lastSeq()
		var behind atomic.Bool
		asked := make(chan struct{}, 64) // more often than it is asked while the lag lasts
		r.inFront("ahead", func() string {
			if !behind.Load() {
				return ""
			}
			asked <- struct{}{}
			return lastIs(all + 1)
		})
		nc := bustest.Connect(t, r.broker)
		reg := openOn(t, nc, registry.Config{Domain: "ahead"})
		js := must(jetstream.New(bustest.Connect(t, r.broker)))(t)
		stream := must(js.Stream(t.Context(), "KV_SCHEMAS"))(t)
		known := func() int { return len(must(reg.Versions(t.Context(), "t", false))(t)) }

		behind.Store(true)
		// A stream without its last records is as good as a replica that does not have them yet.
		r.ok(stream.Purge(t.Context(), jetstream.WithPurgeSubject("$KV.SCHEMAS.s.t.v.2")))
		r.ok(nc.ForceReconnect())
		for range 2 { // the second one is asked for by a watcher that remained behind
			select {
			case <-asked:
			case <-time.After(limit):
				t.Fatal("the leader is not asked what the cache must have")
			}
			if n := known(); n != 2 {
				t.Errorf("%d versions are known beside a replica that is behind, want 2", n)
			}
		}
		behind.Store(false)
		eventually(t, func() string {
			if n := known(); n != 1 {
				return fmt.Sprintf("%d versions are known once the leader has one, want 1", n)
			}
			return ""
		})
	})
}

// A leader that does not answer is named.
func TestOpenUnanswered(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		r := newRig(t)
		r.inFront("mute", func() string { return swallow })
		_, err := registry.Open(t.Context(), bustest.Connect(t, r.broker), registry.Config{Domain: "mute"})
		r.is(err, jetbus.ErrUnavailable)
		if !strings.Contains(fmt.Sprint(err), "$JS.mute.API.STREAM.MSG.GET.KV_SCHEMAS") {
			t.Errorf("it does not say what was not answered: %v", err)
		}
	})
}

// Open says what it was not permitted, and does not wait for it.
func TestOpenDenied(t *testing.T) {
	for subject, there := range map[string]bool{
		"$JS.API.STREAM.INFO.KV_SCHEMAS":       true,
		"$JS.API.STREAM.MSG.GET.KV_SCHEMAS":    true,
		"$JS.API.CONSUMER.CREATE.KV_SCHEMAS.>": true,
		"$JS.API.STREAM.CREATE.KV_SCHEMAS":     false,
	} {
		t.Run(subject, func(t *testing.T) {
			s := adaptertest.DenyingServer(t, subject)
			if there {
				reg := must(registry.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("root", "root")), registry.Config{}))(t)
				defer func() { must(0, reg.Close(context.Background()))(t) }()
			}
			_, err := registry.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("a", "a")), registry.Config{Timeout: limit})
			if !errors.Is(err, jetbus.ErrDenied) || !strings.Contains(err.Error(), subject) {
				t.Errorf("got the error %v, want %v of %s", err, jetbus.ErrDenied, subject)
			}
		})
	}
}
