package adapter_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
)

func TestSmoke(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		ctx := t.Context()
		br, err := embedded.Start(ctx, embedded.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer br.Stop(context.Background())
		nc, err := br.Connect()
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		b, err := adapter.Open(ctx, nc, adapter.Config{AutoCreate: true})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close(context.Background())
		got := make(chan string, 100)
		fails := 0
		s, err := b.Subscribe(ctx, "a.b", "g", func(ctx context.Context, d *jetbus.Delivery) error {
			if d.Key == "3" && fails < 2 {
				fails++
				return fmt.Errorf("boo")
			}
			if d.Key == "4" {
				time.Sleep(2 * time.Minute)
			}
			got <- d.Key + fmt.Sprint(d.Attempt)
			return nil
		}, jetbus.SubscribeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			r, err := b.Publish(ctx, jetbus.Event{Topic: "a.b", Key: fmt.Sprint(i), Payload: []byte(`{}`)})
			if err != nil {
				t.Fatal(err)
			}
			t.Log(r.Event.Seq, r.Duplicate)
		}
		for range 10 {
			t.Log(<-got)
		}
		g, err := b.Groups(ctx, "a.b")
		t.Logf("%+v %v", g, err)
		c, err := b.Cursor(ctx, "a.b", "g")
		t.Logf("%+v %v", c, err)
		if err := b.SetCursor(ctx, "a.b", "g", jetbus.Cursor{LastSeq: 8}, jetbus.SeekOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Log(<-got, <-got)
		for e, err := range b.Scan(ctx, "a.b", jetbus.ScanQuery{From: jetbus.AfterSeq(7)}) {
			t.Log(e.Seq, e.ID, err)
		}
		if err := s.Stop(ctx); err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", s.Stats())
		ds, err := b.Receive(ctx, "a.b", "h", jetbus.ReceiveOptions{From: jetbus.Earliest()})
		t.Log(len(ds), err)
		for i, e := range []jetbus.Event{{Topic: "a.b"}, {Topic: "a.b"}} {
			_ = i
			_ = e
		}
		rs, err := b.PublishBatch(ctx, []jetbus.Event{{Topic: "a.b"}, {Topic: "a.b"}}, jetbus.BatchOptions{})
		t.Log(rs, err)
		rs, err = b.PublishBatch(ctx, []jetbus.Event{{Topic: "a.b"}, {Topic: "a.b"}}, jetbus.BatchOptions{Atomic: true})
		t.Log(rs, err)
		n := 0
		for e, err := range b.Read(ctx, []string{"a.b"}, jetbus.ReadOptions{Follow: true, From: jetbus.Earliest()}) {
			n++
			if n == 14 {
				t.Log(e.Seq, err)
				break
			}
		}
	})
}
