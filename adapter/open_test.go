package adapter_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/adapter/adaptertest"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

func TestOpenRefusesArguments(t *testing.T) {
	inBubble(t, func(r *rig) {
		for name, c := range map[string]adapter.Config{
			"upper case":  {Prefix: "Ev"},
			"wildcard":    {Prefix: "a.*"},
			"empty token": {Prefix: "a..b"},
			"long prefix": {Prefix: strings.Repeat("a", 33)},
			"storage":     {Storage: "tape"},
			"replicas":    {Replicas: 6},
			"no replicas": {Replicas: -1},
			"timeout":     {Timeout: -1},
			"domain":      {Domain: "a.b"},
			"sid":         {SID: "a\nb"},
		} {
			b, err := adapter.Open(r.Context(), r.NC, c)
			if b != nil {
				r.Errorf("%s: got a bus", name)
			}
			r.WantErr(err, jetbus.ErrInvalidOption)
		}
		_, err := adapter.Open(r.Context(), nil, adapter.Config{})
		r.WantErr(err, jetbus.ErrInvalidOption)

		canceled, cancel := context.WithCancel(r.Context())
		cancel()
		_, err = adapter.Open(canceled, r.NC, adapter.Config{})
		r.WantErr(err, context.Canceled)

		nc := bustest.Connect(r.T, r.Broker)
		nc.Close()
		_, err = adapter.Open(r.Context(), nc, adapter.Config{})
		r.WantErr(err, jetbus.ErrClosed)
	})
}

func TestOpenWithoutJetStream(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		nc := adaptertest.Dial(t, adaptertest.StartServer(t, &server.Options{}))
		before := nc.NumSubscriptions()
		began := time.Now()
		_, err := adapter.Open(t.Context(), nc, adapter.Config{})
		adaptertest.WantErr(t, err, jetbus.ErrUnavailable)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the refusal took %v", took)
		}
		if n := nc.NumSubscriptions(); n > before+1 { // nats.go keeps one for answers
			t.Errorf("%d subscriptions left behind", n-before)
		}
	})
}

func TestOpenForAccountWithoutJetStream(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		account := server.NewAccount("A")
		s := adaptertest.StartServer(t, &server.Options{
			JetStream: true, Accounts: []*server.Account{account},
			Users: []*server.User{{Username: "a", Password: "a", Account: account}},
		})
		_, err := adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("a", "a")), adapter.Config{})
		adaptertest.WantErr(t, err, jetbus.ErrUnavailable)
		if err == nil || !strings.Contains(err.Error(), "not enabled") {
			t.Errorf("the error does not say why: %v", err)
		}
	})
}

// A server that answers as those before 2.11 did: without an API level.
func TestOpenOldServer(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		nc := adaptertest.Dial(t, adaptertest.StartServer(t, &server.Options{}))
		sub := must(nc.Subscribe("$JS.API.INFO", func(m *nats.Msg) {
			_ = m.Respond([]byte(`{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"storage":0,"streams":0,"consumers":0,"limits":{},"api":{"total":1,"errors":0}}`))
		}))(t)
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		_, err := adapter.Open(t.Context(), nc, adapter.Config{})
		adaptertest.WantErr(t, err, jetbus.ErrUnavailable)
		if err == nil || !strings.Contains(err.Error(), "2.11") {
			t.Errorf("the error does not name the version: %v", err)
		}
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestOpenDenied(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		s := adaptertest.DenyingServer(t, "$JS.API.INFO")
		_, err := adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("a", "a")), adapter.Config{})
		adaptertest.WantErr(t, err, jetbus.ErrDenied)
		b := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("root", "root")), adapter.Config{}))(t)
		if err := b.Health(t.Context()); err != nil {
			t.Error(err)
		}
		adaptertest.CloseBus(t, b)
	})
}

// A bus leaves nothing behind on the connection that it borrowed.
func TestCloseLeavesTheConnection(t *testing.T) {
	inBubble(t, func(r *rig) {
		nc := bustest.Connect(r.T, r.Broker)
		must(nc.Request("$JS.API.INFO", nil, time.Second))(r.T) // nats.go's own subscription for answers
		before, heard := nc.NumSubscriptions(), 0
		nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) { heard++ })
		b := must(adapter.Open(r.Context(), nc, adapter.Config{AutoCreate: true, Logger: slog.New(slog.DiscardHandler)}))(r.T)
		must(b.Subscribe(r.Context(), "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{}))(r.T)
		must(b.Publish(r.Context(), adaptertest.Event("a", "1")))(r.T)
		must(b.Receive(r.Context(), "a", "h", jetbus.ReceiveOptions{From: jetbus.Earliest()}))(r.T)
		adaptertest.CloseBus(r.T, b)
		adaptertest.CloseBus(r.T, b) // again
		synctest.Wait()
		if !nc.IsConnected() {
			r.Error("the connection was closed")
		}
		r.Equal("subscriptions", nc.NumSubscriptions(), before)
		nc.ErrorHandler()(nc, nil, nil)
		r.Equal("calls of its owner's handler", heard, 1)
	})
}

func TestClosedBusRefuses(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		adaptertest.CloseBus(r.T, r.Bus)
		refuses(r, r.Bus)
	})
}

func TestClosedConnectionRefuses(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.Ensure(jetbus.TopicConfig{Name: "a"})
		nc, b := r.Open(adapter.Config{})
		sub := must(b.Subscribe(r.Context(), "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{}))(r.T)
		nc.Close()
		<-sub.Done()
		r.WantErr(sub.Err(), jetbus.ErrClosed)
		refuses(r, b)
	})
}

// refuses proves that every call fails with ErrClosed.
func refuses(r *rig, b *adapter.Bus) {
	ctx := r.Context()
	for name, call := range map[string]func() error{
		"Publish": func() error { _, err := b.Publish(ctx, adaptertest.Event("a", "1")); return err },
		"PublishBatch": func() error {
			_, err := b.PublishBatch(ctx, adaptertest.Numbered("a", 2), jetbus.BatchOptions{})
			return err
		},
		"Subscribe": func() error {
			_, err := b.Subscribe(ctx, "a", "g", adaptertest.Ignore, jetbus.SubscribeOptions{})
			return err
		},
		"Receive":     func() error { _, err := b.Receive(ctx, "a", "g", jetbus.ReceiveOptions{}); return err },
		"Ack":         func() error { return b.Ack(ctx, "a", "g", "1") },
		"Nack":        func() error { return b.Nack(ctx, "a", "g", "1", "") },
		"Cursor":      func() error { _, err := b.Cursor(ctx, "a", "g"); return err },
		"SetCursor":   func() error { return b.SetCursor(ctx, "a", "g", jetbus.Cursor{}, jetbus.SeekOptions{}) },
		"Read":        func() error { return adaptertest.FirstErr(b.Read(ctx, []string{"a"}, jetbus.ReadOptions{})) },
		"Scan":        func() error { return adaptertest.FirstErr(b.Scan(ctx, "a", jetbus.ScanQuery{})) },
		"LatestByKey": func() error { _, err := b.LatestByKey(ctx, "a", "k"); return err },
		"EnsureTopic": func() error { _, err := b.EnsureTopic(ctx, jetbus.TopicConfig{Name: "a"}); return err },
		"TopicInfo":   func() error { _, err := b.TopicInfo(ctx, "a"); return err },
		"ListTopics":  func() error { _, err := b.ListTopics(ctx); return err },
		"DeleteTopic": func() error { return b.DeleteTopic(ctx, "a") },
		"Groups":      func() error { _, err := b.Groups(ctx, "a"); return err },
		"DeleteGroup": func() error { return b.DeleteGroup(ctx, "a", "g") },
		"PauseGroup":  func() error { return b.PauseGroup(ctx, "a", "g", time.Now().Add(time.Hour)) },
		"ResumeGroup": func() error { return b.ResumeGroup(ctx, "a", "g") },
		"KeyGet":      func() error { _, err := b.KeyGet(ctx, "b", "k"); return err },
		"KeySet":      func() error { _, err := b.KeySet(ctx, "b", "k", nil, 0, 0); return err },
		"KeyDelete":   func() error { return b.KeyDelete(ctx, "b", "k", 1) },
		"KeyWatch":    func() error { return adaptertest.FirstErr(b.KeyWatch(ctx, "b", "")) },
		"Health":      func() error { return b.Health(ctx) },
	} {
		if err := call(); err == nil || !adaptertest.IsClosed(err) {
			r.Errorf("%s: got %v, want ErrClosed", name, err)
		}
	}
}

// TestDeniedTogether: of refusals that come at the same time nats.go remembers the last.
func TestDeniedTogether(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		s := adaptertest.DenyingServer(t, "ev.d0.>", "ev.d1.>", "ev.d2.>", "ev.d3.>")
		root := must(adapter.Open(t.Context(), adaptertest.Dial(t, s, nats.UserInfo("root", "root")), adapter.Config{AutoCreate: true}))(t)
		defer adaptertest.CloseBus(t, root)
		var heard atomic.Int32
		nc := adaptertest.Dial(t, s, nats.UserInfo("a", "a"))
		nc.SetErrorHandler(func(*nats.Conn, *nats.Subscription, error) { heard.Add(1) })
		b := must(adapter.Open(t.Context(), nc, adapter.Config{}))(t)
		defer adaptertest.CloseBus(t, b)
		var publishing sync.WaitGroup
		for i := range 4 {
			topic := fmt.Sprint("d", i)
			must(root.Publish(t.Context(), adaptertest.Event(topic, "k")))(t)
			publishing.Go(func() {
				began := time.Now()
				_, err := b.Publish(t.Context(), adaptertest.Event(topic, "k"))
				adaptertest.WantErr(t, err, jetbus.ErrDenied)
				if took := time.Since(began); took > time.Second {
					t.Errorf("%s: after %v", topic, took)
				}
			})
		}
		publishing.Wait()
		if heard.Load() != 4 {
			t.Errorf("the owner of the connection heard of %d refusals", heard.Load())
		}
	})
}
