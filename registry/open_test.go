package registry_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/embedded/bustest"
	"github.com/seed-63e9a637/jetbus/registry"
)

func TestOpen(t *testing.T) {
	r := newRig(t)
	js := must(jetstream.New(bustest.Connect(t, r.broker)))(t)
	stream := must(js.Stream(t.Context(), "KV_SCHEMAS"))(t).CachedInfo().Config
	if stream.MaxMsgsPerSubject != 10 || stream.MaxMsgSize != 256<<10 || stream.Compression != jetstream.S2Compression ||
		stream.Storage != jetstream.FileStorage || stream.MaxAge != 0 || stream.Metadata["format"] != "1" {
		t.Errorf("the bucket is %+v", stream)
	}
	r.register("t", object("a"))
	apart := r.open(registry.Config{Bucket: "OTHER"})
	if got := must(apart.Topics(t.Context(), true))(t); got != nil {
		t.Errorf("another bucket has the topics %q", got)
	}
}

func TestOpenRefused(t *testing.T) {
	broker := bustest.Start(t, embedded.Config{})
	nc := bustest.Connect(t, broker)
	js := must(jetstream.New(nc))(t)
	good := jetstream.KeyValueConfig{History: 10, Metadata: map[string]string{"format": "1"}}
	closed := bustest.Connect(t, broker)
	closed.Close()
	tests := []struct {
		name   string
		bucket func(c *jetstream.KeyValueConfig)
		cfg    registry.Config
		want   error
		says   string
	}{
		{"another format", func(c *jetstream.KeyValueConfig) { c.Metadata = map[string]string{"format": "2"} }, registry.Config{}, jetbus.ErrConflict, `format is "2"`},
		{"a bucket of something else", func(c *jetstream.KeyValueConfig) { c.Metadata = nil }, registry.Config{}, jetbus.ErrConflict, "format"},
		{"records expire", func(c *jetstream.KeyValueConfig) { c.TTL = time.Hour }, registry.Config{}, jetbus.ErrConflict, "TTL is 1h"},
		{"in memory", func(c *jetstream.KeyValueConfig) { c.Storage = jetstream.MemoryStorage }, registry.Config{}, jetbus.ErrConflict, "storage"},
		{"small values", func(c *jetstream.KeyValueConfig) { c.MaxValueSize = 1000 }, registry.Config{}, jetbus.ErrConflict, "MaxValueSize is 1000"},
		{"good enough", func(c *jetstream.KeyValueConfig) { c.History = 1 }, registry.Config{}, nil, ""},
		{"a bad name", nil, registry.Config{Bucket: "a.b"}, jetbus.ErrInvalidOption, "Bucket"},
		{"too many replicas", nil, registry.Config{Replicas: 6}, jetbus.ErrInvalidOption, "Replicas"},
		{"a negative timeout", nil, registry.Config{Timeout: -1}, jetbus.ErrInvalidOption, "Timeout"},
		{"a bad domain", nil, registry.Config{Domain: "a.b"}, jetbus.ErrInvalidOption, "Domain"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg := test.cfg
			if test.bucket != nil {
				cfg.Bucket = strings.ReplaceAll(test.name, " ", "_")
				c := good
				c.Bucket = cfg.Bucket
				test.bucket(&c)
				must(js.CreateKeyValue(t.Context(), c))(t)
			}
			if test.want == nil {
				openOn(t, nc, cfg)
				return
			}
			_, err := registry.Open(t.Context(), nc, cfg)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %v about %s", err, test.want, test.says)
			}
		})
	}
	if _, err := registry.Open(t.Context(), closed, registry.Config{}); !errors.Is(err, jetbus.ErrClosed) {
		t.Errorf("on a closed connection: %v", err)
	}
	if _, err := registry.Open(t.Context(), nil, registry.Config{}); !errors.Is(err, jetbus.ErrInvalidOption) {
		t.Errorf("without a connection: %v", err)
	}
}

func TestOpenUnavailable(t *testing.T) {
	broker := bustest.Start(t, embedded.Config{})
	nc := bustest.Connect(t, broker)
	if err := broker.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := registry.Open(ctx, nc, registry.Config{}); !errors.Is(err, jetbus.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// Several that open a registry at the same time make one bucket.
func TestOpenTogether(t *testing.T) {
	broker := bustest.Start(t, embedded.Config{})
	var wg sync.WaitGroup
	for range 8 {
		nc := bustest.Connect(t, broker)
		wg.Go(func() {
			reg, err := registry.Open(t.Context(), nc, registry.Config{})
			if err != nil {
				t.Error(err)
				return
			}
			if err := reg.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestClose(t *testing.T) {
	bustest.Run(t, func(t *testing.T) {
		r := newRig(t)
		nc := bustest.Connect(t, r.broker)
		reg := must(registry.Open(t.Context(), nc, registry.Config{}))(t)
		must(reg.Register(t.Context(), "t", object("a"), registry.RegisterOptions{}))(t)
		r.ok(r.broker.Kill(t.Context()))
		waiting := make(chan error, 1)
		go func() {
			_, err := reg.Register(context.Background(), "t", `{"type": "object"}`, registry.RegisterOptions{})
			waiting <- err
		}()
		synctest.Wait()
		var wg sync.WaitGroup
		over, end := context.WithCancel(t.Context())
		end()
		for _, ctx := range []context.Context{t.Context(), t.Context(), over} {
			wg.Go(func() {
				if err := reg.Close(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		r.is(<-waiting, jetbus.ErrClosed)
		r.ok(reg.Close(t.Context()))
		r.ok(r.broker.Restart(t.Context()))
		_, err := reg.Current("t")
		r.is(err, jetbus.ErrClosed)
		_, err = reg.Compiled(t.Context(), "t", 1)
		r.is(err, jetbus.ErrClosed)
		_, err = reg.Register(t.Context(), "t", object("a"), registry.RegisterOptions{})
		r.is(err, jetbus.ErrClosed)
		_, err = reg.Topics(t.Context(), false)
		r.is(err, jetbus.ErrClosed)
		if nc.IsClosed() {
			t.Error("the connection was closed")
		}
	})
}

// The connection is closed under a registry.
func TestConnectionClosed(t *testing.T) {
	r := newRig(t)
	nc := bustest.Connect(t, r.broker)
	reg := openOn(t, nc, registry.Config{})
	nc.Close()
	_, err := reg.Register(t.Context(), "t", object("a"), registry.RegisterOptions{})
	r.is(err, jetbus.ErrClosed)
}

// Something else writes into the bucket. What cannot be read is said, and never
// taken for something else.
func TestForeignRecords(t *testing.T) {
	r := newRig(t)
	js := must(jetstream.New(bustest.Connect(t, r.broker)))(t)
	kv := must(js.KeyValue(t.Context(), "SCHEMAS"))(t)
	for _, topic := range []string{"broken", "deleted", "locked"} {
		r.register(topic, object("a", "b"))
	}
	must(kv.Put(t.Context(), "s.broken.v.2", []byte(`{"version": 7}`)))(t)
	must(kv.Put(t.Context(), "s.broken.x.y.z", []byte(`of the future`)))(t)
	must(kv.Put(t.Context(), "s.=2.v.1", []byte(`{}`)))(t)
	must(kv.Put(t.Context(), "s.locked.c", []byte(`{"level": "of the future"}`)))(t)
	r.ok(kv.Delete(t.Context(), "s.deleted.v.1"))
	eventually(t, func() string { // of the last one it hears last
		if _, err := r.reg.Current("deleted"); err == nil {
			return "the removed version is current"
		}
		return ""
	})
	for _, reg := range []*registry.Registry{r.reg, r.open(registry.Config{})} {
		r.reg = reg
		_, err := reg.Version(t.Context(), "broken", 2)
		r.is(err, registry.ErrUnreadable)
		_, err = reg.Latest(t.Context(), "broken")
		r.is(err, registry.ErrUnreadable)
		_, err = reg.Current("broken")
		r.is(err, registry.ErrUnreadable)
		_, err = reg.Versions(t.Context(), "broken", false)
		r.is(err, registry.ErrUnreadable)
		_, err = reg.Delete(t.Context(), "broken", 2, registry.DeleteOptions{})
		r.is(err, registry.ErrUnreadable)
		_, err = reg.Register(t.Context(), "broken", object("a"), registry.RegisterOptions{Force: true, By: "ana"})
		r.is(err, registry.ErrUnreadable)
		_, err = reg.Register(t.Context(), "locked", object("a"), registry.RegisterOptions{})
		r.is(err, registry.ErrReadOnly)
		if v := must(reg.Version(t.Context(), "deleted", 1))(t); !v.Erased {
			t.Errorf("the removed version is %+v", v)
		}
	}
	if v := r.register("deleted", object("a")); v.Number != 2 {
		t.Errorf("registered %+v", v)
	}
}

// A registry that has given its last id takes what has one, and nothing new: the key of the
// next one would not be read.
func TestLastID(t *testing.T) {
	r := newRig(t)
	known := r.register("a", object("a"))
	js := must(jetstream.New(bustest.Connect(t, r.broker)))(t)
	kv := must(js.KeyValue(t.Context(), "SCHEMAS"))(t)
	must(kv.Put(t.Context(), "g.i.999999999", []byte(`{"fingerprint": "of an import"}`)))(t)
	r.reg = r.open(registry.Config{})
	r.nothingStored(func() {
		_, err := r.reg.Register(t.Context(), "b", object("b"), registry.RegisterOptions{})
		r.is(err, registry.ErrTooLarge)
	})
	if v := r.register("b", object("a")); v.ID != known.ID {
		t.Errorf("registered with id %d, want %d", v.ID, known.ID)
	}
}
